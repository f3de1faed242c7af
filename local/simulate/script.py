"""The script of a rehearsal: what happens when, a line each.

    2:00     preempt 3 hosts of training     # a comment
    0:00     no capacity in us-east5-b until 10:00

A time is minutes and seconds, or hours, minutes and seconds, since the manifest was applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from local.gce import links
from local.gce.supply import MODELS
from local.gce.topology import chips_of

TIME = "M:SS or H:MM:SS"
_TIME = re.compile(r"(?:(\d{1,3}):)?(\d{1,3}):(\d\d)")
_HOSTS = r"(?:(?P<count>\d+) hosts?|host (?P<host>\d+))(?: of (?P<name>\S+))?"
_ON_HOSTS = ("N hosts [of NAME]", "host I [of NAME]")
PREEMPT, FAIL, MAINTAIN, DELETE = "preempt", "fail", "maintain", "delete"
NO_CAPACITY, RESERVATION = "no capacity", "reservation"
ENDED = "ended"
"""The value of ``until`` in the line that ends a time without capacity."""
FORMS: Mapping[str, tuple[Sequence[str], re.Pattern[str]]] = {
    PREEMPT: (_ON_HOSTS, re.compile(_HOSTS)),
    FAIL: (_ON_HOSTS, re.compile(_HOSTS)),
    MAINTAIN: (_ON_HOSTS, re.compile(_HOSTS)),
    DELETE: (("[KIND/]NAME",), re.compile(r"(?P<name>\S+)")),
    NO_CAPACITY: (
        ("in ZONE [for MODEL] [until TIME]",),
        re.compile(r"in (?P<zone>\S+)(?: for (?P<model>\S+))?(?: until (?P<until>\S+))?"),
    ),
    RESERVATION: (
        ("NAME in ZONE has N hosts of MACHINE-TYPE",),
        re.compile(r"(?P<name>\S+) in (?P<zone>\S+) has (?P<count>\d+) hosts? of (?P<type>\S+)"),
    ),
}
"""What may be written after each verb: in words, and as a pattern of all of it."""


class WrongInput(Exception):
    """A manifest or a script cannot be used; the message says where, why, and what is allowed."""


@dataclass(frozen=True)
class Line:
    """A line of the script; ``at_s``: seconds since the manifest was applied."""

    at_s: int
    verb: str
    text: str
    """The line without its time."""
    values: Mapping[str, str] = field(default_factory=dict)


def parse_time(text: str) -> int | None:
    """Seconds of a time; ``None`` if it is none."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    is_valid = seconds < 60 and (found[1] is None or minutes < 60)
    return 3600 * hours + 60 * minutes + seconds if is_valid else None


def parse_script(text: str, file: str, objects: Iterable[tuple[str, str]]) -> list[Line]:
    """The lines in the order of their times. Raises `WrongInput`, which has all wrong lines.

    ``objects``: kind and name of what the manifest has.
    """
    known, lines, wrong = list(objects), list[Line](), list[str]()
    for number, raw in enumerate(text.splitlines(), 1):
        words = raw.partition("#")[0].split()
        if not words:
            continue
        try:
            lines += _parse_line(words, known)
        except ValueError as error:
            wrong.append(f"{file}, line {number}: {error}")
    if wrong:
        raise WrongInput("\n".join(wrong))
    lines = [line for line in lines if not any(_outlasts(one, line) for one in lines)]
    return sorted(lines, key=lambda line: line.at_s)


def _outlasts(one: Line, end: Line) -> bool:
    """Whether the time without capacity of one line goes on when that of another ends."""
    has_ended = [it.values.get("until") == ENDED for it in (one, end)]
    places = [(it.verb, it.values.get("zone"), it.values.get("model")) for it in (one, end)]
    if has_ended != [False, True] or places[0] != places[1]:
        return False
    last_s = parse_time(one.values.get("until", ""))
    return one.at_s <= end.at_s and (last_s is None or end.at_s < last_s)


def _parse_line(words: Sequence[str], objects: Sequence[tuple[str, str]]) -> Iterator[Line]:
    at_s, text = parse_time(words[0]), " ".join(words[1:])
    if at_s is None:
        raise ValueError(f"{words[0]!r} is not a time: a line begins with {TIME}")
    verb = next((verb for verb in FORMS if f"{text} ".startswith(f"{verb} ")), "")
    if not verb:
        what = f"{text!r} is not known" if text else "nothing follows the time"
        raise ValueError(f"{what}; it must be one of {', '.join(FORMS)}")
    forms, pattern = FORMS[verb]
    found = pattern.fullmatch(text.removeprefix(verb).strip())
    if found is None:
        raise ValueError(f"{text!r} must be: {' or '.join(f'{verb} {form}' for form in forms)}")
    values = {name: value for name, value in found.groupdict().items() if value is not None}
    _check_values(verb, values, objects)
    yield Line(at_s, verb, text, values)
    if "until" in values:
        end_s = parse_time(values["until"])
        if end_s is None or end_s <= at_s:
            raise ValueError(f"until {values['until']} must be a later time, {TIME}")
        yield Line(end_s, verb, f"capacity in {values['zone']} again", {**values, "until": ENDED})


def _check_values(verb: str, values: Mapping[str, str], objects: Sequence[tuple[str, str]]) -> None:
    zone, model, machine = (values.get(name) for name in ("zone", "model", "type"))
    if zone is not None and not links.is_zone(zone):
        raise ValueError(f"{zone} is not a zone, as in us-east5-b")
    if model is not None and model not in MODELS:
        raise ValueError(
            f"{model} is not a provisioning model; it must be one of {', '.join(MODELS)}"
        )
    if machine is not None and not chips_of(machine):
        raise ValueError(f"{machine} is not a machine type with TPUs, as in ct6e-standard-4t")
    if values.get("count") == "0" and verb != RESERVATION:
        raise ValueError("0 hosts: the number must be at least 1")
    if "name" not in values or verb == RESERVATION:
        return
    kind, _, name = values["name"].rpartition("/")
    found = [one for one in objects if one[1] == name and kind.lower() in ("", one[0].lower())]
    if len(found) != 1:
        names = ", ".join("/".join(one) for one in objects)
        why = "not in" if not found else "the name of several objects of"
        raise ValueError(f"{values['name']} is {why} the manifest, which has {names}")
