"""The known differences, as the tables of local/docs/embedded-pubsub.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from local.tests.contract.pubsub.case import OTHER_MESSAGE, Case


def render_embedded(cases: Iterable[Case]) -> str:
    """Render how the embedded Pub/Sub differs from the service, and why."""
    found = ((case.embedded, case.name) for case in cases if case.embedded)
    return _render(
        ("embedded", "service", "why"),
        [(differs.how, name, differs.why) for differs, name in found],
    )


def render_emulator(cases: Iterable[Case]) -> str:
    """Render how the emulator differs from the service, except in error messages."""
    found = ((case.emulator, case.name) for case in cases if case.emulator)
    return _render(
        ("emulator", "service"),
        [(differs.how, name) for differs, name in found if differs.how != OTHER_MESSAGE],
    )


def _render(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Render a table. Rows that differ only in the second cell are merged."""
    folded: dict[tuple[str, ...], list[str]] = {}
    for first, name, *rest in rows:
        folded.setdefault((first, *rest), []).append(name)
    body = [(first, "; ".join(names), *rest) for (first, *rest), names in folded.items()]
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
