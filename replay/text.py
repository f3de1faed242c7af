"""Small parts of texts: ages, lists of names, times of Events."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from shared.base.timestamps import LONG_AGO, guess_time
from version import VERSION

REPOSITORY = "https://github.com/OWNER/tpu-functions"
"""A release has its own instead (`tools.bundle`)."""
MAX_NAMES = 3
"""Names that a list has; of more it gives the number."""


def join_names(names: Sequence[str], most: int = MAX_NAMES, separator: str = ", ") -> str:
    """The first names, and the number of those that are left: ``a, b, c and 2 more``."""
    left = len(names) - most
    return f"{separator.join(names[:most])}{f' and {left} more' if left > 0 else ''}"


def render_age(age: timedelta) -> str:
    """A duration in its largest unit, as kubectl has it: ``45s``, ``12m``, ``3h``, ``5d``."""
    seconds = max(0, int(age.total_seconds()))
    units = ((86400, "d"), (3600, "h"), (60, "m"))
    return next(
        (f"{seconds // size}{unit}" for size, unit in units if seconds >= size), f"{seconds}s"
    )


def render_minute(at: datetime, now: datetime) -> str:
    """A time with its date, if it is not of today: ``09:12 UTC``, ``11-28 09:12 UTC``."""
    return f"{at:{'%H:%M' if at.date() == now.date() else '%m-%d %H:%M'}} UTC"


def link(page: str) -> str:
    """A page of the docs: its path in a checkout, also where the tool was built from one; elsewhere its
    address."""
    root = Path(__file__).parent.parent
    is_own = (root / "docs").is_dir() or "/OWNER/" in REPOSITORY
    return page if is_own else f"{REPOSITORY}/blob/v{VERSION}/{page}"


def find_time_of(event: Mapping[str, Any]) -> datetime:
    """When an Event was last seen."""
    return guess_time(event.get("lastTimestamp") or event.get("eventTime")) or LONG_AGO


def printable(text: str) -> str:
    """Text on one line, without control and direction characters: its origin may be untrusted."""
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )
