"""Times, and the formats of scalars in schemas."""

from __future__ import annotations

import base64
import re
from datetime import date, datetime
from typing import Any

_DATE_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[-+]\d\d:\d\d)"
)


def parse_time(text: str) -> datetime:
    """Parse a time in RFC 3339. Raises `ValueError`."""
    if not _DATE_TIME.fullmatch(text):
        raise ValueError(f"not an RFC 3339 time: {text!r}")
    return datetime.fromisoformat(text.upper())


def render_time(moment: datetime) -> str:
    """Render a time like ``metav1.Time``: RFC 3339 in UTC, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def can_decode(name: str, value: Any) -> bool:
    """Whether a value can be decoded as a field of a built-in object with this format."""
    try:
        if name == "date-time":
            parse_time(value)
    except ValueError:
        return False
    return has_format(name, value)


def has_format(name: str, value: Any) -> bool:
    """Whether a value of the right type has a format. Formats without a check accept all values.

    A time of a custom resource may have any offset, even 99 hours, although nothing can parse it: the
    product must tolerate such a time in a status.
    """
    try:
        if name == "date-time":
            return _DATE_TIME.fullmatch(value) is not None and bool(date.fromisoformat(value[:10]))
        if name == "byte":
            base64.b64decode(value, validate=True)
        if name in ("int32", "int64"):
            limit = 1 << (int(name[3:]) - 1)
            return -limit <= int(value) < limit
    except (ValueError, OverflowError):  # binascii.Error is a ValueError
        return False
    return True
