"""A timeline in words: a summary in sentences, then a line for each moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

from replay.timeline import COMPUTE, VM, Moment, Timeline

MAX_NAMES = 3
"""VMs that one line names; of more it gives the number."""


def render_summary(timeline: Timeline, price: float | None) -> Iterator[str]:
    """The summary, a paragraph at a time."""
    yield (
        f"{timeline.group} ({timeline.resource_name}), from "
        f"{timeline.since:%Y-%m-%d %H:%M:%S} to {timeline.until:%Y-%m-%d %H:%M:%S} UTC."
    )
    first_ready, not_ready = timeline.first_ready, timeline.not_ready
    began = f"First Ready after {_took(first_ready)}" if first_ready else "Never Ready"
    yield f"{began}; not Ready for {_took(not_ready)} in total."
    for phase in timeline.phases:
        yield f"- {phase.reason}, {_took(phase.took)}: {phase.message}"
    if not_ready:
        shares = timeline.shares
        yield (
            f"Of the time not Ready, operations of Compute Engine ran for {_took(shares[COMPUTE])}, "
            f"only functions for {_took(shares['functions'])}. For {_took(shares['neither'])} neither "
            "ran: the slice waited for capacity, or VMs booted and joined."
        )
    yield render_cost(timeline, price)


def render_cost(timeline: Timeline, price: float | None) -> str:
    """Chip-hours, and what they cost at a price for one."""
    hours = f"{timeline.chip_hours:.2f} chip-hours, by the time for which VMs existed."
    if price is None:
        return f"{hours} --price-per-chip-hour adds their cost."
    return f"{hours} At {price:g} per chip-hour: {timeline.chip_hours * price:.2f}."


def join_moments(moments: Sequence[Moment]) -> Iterator[Moment]:
    """The moments; what happens to several VMs one after the other is one line."""
    waiting: list[Moment] = []
    for moment in moments:
        if waiting and not _goes_with(moment, waiting[-1]):
            yield _join(waiting)
            waiting = []
        waiting.append(moment)
    if waiting:
        yield _join(waiting)


def _goes_with(moment: Moment, before: Moment) -> bool:
    is_same = (moment.what, moment.is_bad) == (before.what, before.is_bad)
    return is_same and moment.who.startswith(VM) and before.who.startswith(VM)


def _join(moments: Sequence[Moment]) -> Moment:
    first = moments[0]
    if len(moments) == 1:
        return first
    names = [moment.who.removeprefix(f"{VM} ") for moment in moments]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    why = f"{', '.join(names[:MAX_NAMES])}{more}{f'; {first.why}' if first.why else ''}"
    return replace(first, who=f"{len(names)} VMs", why=why)


def _took(duration: timedelta) -> str:
    """A duration with two units at most: ``8.4 s``, ``12m 3s``, ``3h 5m``."""
    seconds = duration.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    return f"{whole // 3600}h {whole % 3600 // 60}m"
