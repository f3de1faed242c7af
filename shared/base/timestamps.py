"""Times as Kubernetes and Compute Engine write them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""The time that replaces an unreadable one."""
CLOCKS_DIFFER_BY = timedelta(minutes=5)
"""The largest difference between the clocks of this process, of another one and of an API (a guess)."""


SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""The units of durations."""


def parse_duration_s(text: str) -> int | None:
    """``90s``, ``30m``, ``168h`` or ``7d`` in seconds; ``None`` if it is not such a duration."""
    return int(text[:-1]) * SECONDS[text[-1]] if re.fullmatch("[0-9]{1,6}[smhd]", text) else None


def parse_time(text: str) -> datetime:
    """Parse an RFC 3339 time, with ``Z`` or an offset. Raises `ValueError` for any other text."""
    moment = datetime.fromisoformat(text)
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text} lies outside of the years 1 to 9999 in UTC") from error


def find_time(text: str | None) -> datetime | None:
    """Parse the time in a field that may be absent."""
    return parse_time(text) if text else None


def guess_time(value: Any) -> datetime | None:
    """Parse the time in a field that others write: an invalid time counts as absent, and so does one to
    which no minute can be added, or from which none subtracted."""
    try:
        found = find_time(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found is not None and 1 < found.year < 9999 else None


def render_time(moment: datetime) -> str:
    """A time in whole seconds, as Kubernetes writes its own."""
    whole = moment.astimezone(UTC).replace(microsecond=0, tzinfo=None)
    return f"{whole.isoformat()}Z"
