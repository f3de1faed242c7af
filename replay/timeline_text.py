"""A timeline in words: a summary in sentences, then a line for each moment."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import groupby

from replay import decisions
from replay.output import Format, print_json, print_paragraph
from replay.text import join_names
from replay.timeline import COMPUTE, VM, Moment, Timeline, to_document


def render_summary(timeline: Timeline, price: float | None) -> Iterator[str]:
    """The summary, a paragraph at a time."""
    yield (
        f"{timeline.group} ({timeline.resource_name}), from "
        f"{timeline.since:%Y-%m-%d %H:%M:%S} to {timeline.until:%Y-%m-%d %H:%M:%S} UTC."
    )
    first_ready, not_ready = timeline.first_ready, timeline.not_ready
    began = "Never Ready"
    if first_ready is not None:
        is_ready = "Ready at the beginning of this time range"
        began = f"First Ready after {_took(first_ready)}" if first_ready else is_ready
    yield f"{began}; not Ready for {_took(not_ready)} in total."
    for phase in timeline.phases:
        yield f"- {phase.reason}, {_took(phase.took)}: {phase.message}"
    if not_ready:
        shares = timeline.shares
        yield (
            f"Of the time not Ready, operations of Compute Engine ran for {_took(shares[COMPUTE])}, "
            f"only functions for {_took(shares['functions'])}. For {_took(shares['neither'])} neither "
            "ran: the slice waited for capacity or after a loss, or VMs booted and joined."
        )
    yield render_cost(timeline, price)
    if timeline.unusable:
        parts = (f"{hours:.2f} ({cause})" for cause, hours in sorted(timeline.unusable.items()))
        yield f"Of them billed and not usable, by cause: {', '.join(parts)}."


def render_cost(timeline: Timeline, price: float | None) -> str:
    """Chip-hours, and what they cost at a price for one."""
    hours = f"{timeline.chip_hours:.2f} chip-hours, by the time for which VMs existed."
    if price is None:
        return f"{hours} --price-per-chip-hour adds their cost."
    return f"{hours} At {price:g} per chip-hour: {timeline.chip_hours * price:.2f}."


def join_moments(moments: Sequence[Moment]) -> Iterator[Moment]:
    """The moments; what happens to several VMs one after the other is one line."""

    def kind(moment: Moment) -> tuple[str, bool] | int:
        is_of_vm = moment.who.startswith(VM)
        return (moment.what, moment.is_bad) if is_of_vm else id(moment)

    for _, group in groupby(moments, key=kind):
        first, *others = group
        if not others:
            yield first
            continue
        names = [moment.who.removeprefix(f"{VM} ") for moment in (first, *others)]
        why = f"{join_names(names)}{f'; {first.why}' if first.why else ''}"
        yield replace(first, who=f"{len(names)} VMs", why=why)


def _took(duration: timedelta) -> str:
    """A duration with two units at most: ``8.4 s``, ``12m 3s``, ``3h 5m``."""
    seconds = duration.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    return f"{whole // 3600}h {whole % 3600 // 60}m"


def print_timeline(timeline: Timeline, price: float | None, form: Format) -> None:
    """A slice's timeline."""
    if form is Format.JSON:
        print_json(to_document(timeline, price))
        return
    for paragraph in render_summary(timeline, price):
        print_paragraph(paragraph, "  " if paragraph.startswith("- ") else "", "")
    print()
    width = max((len(moment.who) for moment in timeline.moments), default=0)
    for moment in join_moments(timeline.moments):
        first = f"{moment.at:{timeline.time_form}}  {moment.who:<{width}}  "
        why = f"  [{moment.why}]" if moment.why else ""
        print_paragraph(f"{moment.what}{why}", " " * len(first), first)
        for paragraph in decisions.render(moment.decision) if moment.decision else ():
            print_paragraph(paragraph, " " * (len(first) + 2))
