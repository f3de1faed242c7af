"""Rehearse a manifest on this machine, on a virtual clock: hours take seconds.

The functions of this version run against simulated cloud APIs. Printed are the timeline of each slice,
the conditions at the end, the calls, and the chip-hours.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from local.simulate.rehearsal import Rehearsal, read_manifest, read_text
from local.simulate.script import ENDED, TIME, Line, WrongInput, parse_script, parse_time
from replay.output import (
    Format,
    print_paragraph,
    print_rows,
    say,
    show_progress,
)
from replay.text import render_age
from replay.timeline_text import print_timeline
from shared.base.timestamps import guess_time

_EPILOG = 'Give options to make as ARGS="-f FILE --faults SCRIPT".'
AFTERWARDS_S = 1800
"""How long a rehearsal lasts after the last line of its script."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a rehearsal. Returns 1 if a line could not be played, 2 if the input is wrong."""
    options = _parse(arguments)
    try:
        return _run(options)
    except WrongInput as error:
        for line in str(error).splitlines():
            say(line)
        return 2


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make simulate",
        description=__doc__,
        epilog='Give options to make as ARGS="-f FILE --faults SCRIPT".',
    )
    parser.add_argument(
        "-f", "--filename", type=Path, required=True, metavar="FILE", help="manifests"
    )
    parser.add_argument(
        "--faults", type=Path, metavar="SCRIPT", help="what happens when; see docs/simulate.md"
    )
    parser.add_argument(
        "--until",
        type=_time,
        metavar="TIME",
        help="when it ends, M:SS or H:MM:SS (default: half an hour after the script)",
    )
    parser.add_argument(
        "--pods-run",
        type=_time,
        metavar="TIME",
        help="how long Pods of Jobs run (default: without end)",
    )
    parser.add_argument(
        "--price-per-chip-hour", type=_price, metavar="PRICE", help="a price in any currency"
    )
    return parser.parse_args(arguments)


def _time(text: str) -> int:
    found = parse_time(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, {TIME}")
    return found


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a price")
    return price


def _run(options: argparse.Namespace) -> int:
    documents = read_manifest(options.filename)
    names = [(one["kind"], one["metadata"]["name"]) for one in documents]
    lines = _read_script(options.faults, names)
    last_s = max((line.at_s for line in lines), default=0)
    end_s = last_s + AFTERWARDS_S if options.until is None else options.until
    left = [line for line in lines if line.at_s > end_s]
    if any(line.values.get("until") != ENDED for line in left):
        raise WrongInput(f"--until is before the last line of {options.faults}")
    rehearsal = Rehearsal(documents, options.pods_run)
    rehearsal.play(lines[: len(lines) - len(left)], end_s, show_progress)
    show_progress("")
    _print(rehearsal, options.price_per_chip_hour)
    return 1 if any(moment.is_bad for moment in rehearsal.script) else 0


def _read_script(file: Path | None, names: Sequence[tuple[str, str]]) -> list[Line]:
    return [] if file is None else parse_script(read_text(file), str(file), names)


def _print(rehearsal: Rehearsal, price: float | None) -> None:
    for note in rehearsal.notes:
        say(note)
    timelines = list(rehearsal.build_timelines(say))
    for timeline in timelines:
        print_timeline(timeline, price, Format.TABLE)
        print()
    if not timelines:
        print("No slice was created.")
        for moment in (*rehearsal.script, *rehearsal.list_events()):
            first = f"{moment.at:%H:%M:%S}  "
            print_paragraph(f"{moment.what}  [{moment.why}]", " " * len(first), first)
        print()
    print(f"At the end, {rehearsal.now:%H:%M:%S}:\n")
    for name, conditions in rehearsal.list_conditions():
        rows = [_render_condition(one, rehearsal.now) for one in conditions or ()]
        print_rows((name, "STATUS", "REASON", "FOR"), rows)
        print("" if rows else f"{name}: {'gone' if conditions is None else 'no conditions'}\n")
    calls = rehearsal.count_calls()
    cells = [[step, *map(str, counts)] for step, *counts in calls]
    columns = zip((0, 0, 0), *(counts for _, *counts in calls), strict=True)
    total = map(str, map(sum, columns))
    head = ("CALLS OF", "INVOCATIONS", "COMPUTE ENGINE", "KUBERNETES")
    print_rows(head, [(row, ()) for row in (*cells, ["all", *total])])
    hours = sum(timeline.chip_hours for timeline in timelines)
    cost = f", at {price:g} per chip-hour: {hours * price:.2f}" if price is not None else ""
    print(f"\n{hours:.2f} chip-hours in all{cost}.")
    print_paragraph(f"Left on Compute Engine: {_render(rehearsal.count_left())}.")
    print_paragraph(f"Pods: {_render(rehearsal.count_pods())}.")


def _render(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def _render_condition(one: Mapping[str, Any], now: datetime) -> tuple[list[str], list[str]]:
    since = guess_time(one.get("lastTransitionTime")) or now
    status, reason = str(one.get("status", "")), str(one.get("reason", ""))
    message = "" if status == "True" else str(one.get("message", ""))
    return [str(one.get("type", "")), status, reason, render_age(now - since)], [message]
