"""Known differences between kubectl's output on the embedded API and on a real one.

``local/docs/embedded-kubernetes.md`` documents each. A known difference that does not occur any more
is a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from local.tests.contract.kubernetes.kubectl.terminal import Shown


@dataclass(frozen=True)
class Difference:
    """The output of this command may differ.

    ``always``: it must differ. Otherwise it depends on how fast a controller is.
    """

    command: str
    always: bool = True


KNOWN: Mapping[str, tuple[Difference, ...]] = {
    "controllers act only when the clock runs their callbacks": (
        Difference("get node node-{id}", always=False),
        Difference("get node node-{id} -o jsonpath={.spec.taints[*].key}", always=False),
        Difference("describe node node-{id}", always=False),
    ),
    "lists the groups of these kinds": (Difference("api-versions"),),
    "omits the descriptions of `apiVersion`, `kind` and `metadata`": (Difference("explain wd"),),
}
"""By the words of the page that describe them."""


@dataclass(frozen=True)
class Finding:
    """A command, and the lines that appear on only one of the two APIs."""

    command: str
    real: Sequence[str]
    embedded: Sequence[str]

    def __str__(self) -> str:
        lines = [f"  real      {one}" for one in self.real]
        lines += [f"  embedded  {one}" for one in self.embedded]
        return "\n".join([f"kubectl {self.command}", *lines])


def compare(real: Iterable[Shown], embedded: Iterable[Shown]) -> Iterator[Finding]:
    """Compare two runs: yield the commands whose output differs."""
    for one, other in zip(real, embedded, strict=True):
        assert one.command == other.command
        if one.lines != other.lines:
            real_lines = [line for line in one.lines if line not in other.lines]
            embedded_lines = [line for line in other.lines if line not in one.lines]
            if not real_lines and not embedded_lines:  # in another order
                real_lines, embedded_lines = list(one.lines), list(other.lines)
            yield Finding(one.command, real_lines, embedded_lines)


def check(taken: Iterable[Shown], found: Sequence[Finding]) -> None:
    """Raise `AssertionError` for an unknown difference, and for a known one that was not found."""
    known = {one.command: one for group in KNOWN.values() for one in group}
    differing = {one.command for one in found}
    new = [one for one in found if one.command not in known]
    missing = [
        one.command
        for one in taken
        if one.command in known and known[one.command].always and one.command not in differing
    ]
    assert not new, "kubectl's output differs:\n" + "\n".join(map(str, new))
    assert not missing, f"known differences that do not occur any more: {missing}"
