"""The string and number formats that a structural schema may name, those that are checked."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import uuid
from collections.abc import Callable
from datetime import date, datetime
from typing import Any
from urllib.parse import urlsplit

_DURATION = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)([\d.]+(ns|us|µs|ms|s|m|h))*|0")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[-+]\d\d:\d\d)")
_TIME_OF_FORMAT = re.compile(r"(?P<hour>\d\d):[0-5]\d:[0-5]\d(.\d+)?(Z|[-+]\d\d:\d\d)")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_HOSTNAME = re.compile(r"(?=.{1,253}\Z)([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.?)+")


def parse_time(text: str) -> datetime:
    """A point in time from RFC 3339. Raises `ValueError`."""
    if not _DATE_TIME.fullmatch(text):
        raise ValueError(f"not an RFC 3339 time: {text!r}")
    return datetime.fromisoformat(text.upper())


def is_time_of_format(text: str) -> bool:
    """Whether the format ``date-time`` of a schema takes it: a day that there is, hours, minutes and
    seconds that there are, and any offset, of 99 hours too (what it is read as is another matter)."""
    day, _, time = text.upper().partition("T")
    parts = _TIME_OF_FORMAT.fullmatch(time)
    return _is_day(day) and parts is not None and parts["hour"] <= "23"


def render_time(moment: datetime) -> str:
    """RFC 3339 in UTC, in whole seconds, as ``metav1.Time`` is written."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def render_micro_time(moment: datetime) -> str:
    """RFC 3339 in UTC with six decimals, as ``metav1.MicroTime`` is written (Leases, Events)."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _parses(parse: Callable[[str], Any]) -> Callable[[Any], bool]:
    def check(text: Any) -> bool:
        try:
            parse(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return check


def _integer_of(bits: int) -> Callable[[Any], bool]:
    limit = 1 << (bits - 1)
    return lambda number: -limit <= number < limit


def _parse_day(text: str) -> date:
    if not _DAY.fullmatch(text):
        raise ValueError(f"not a day: {text!r}")
    return date.fromisoformat(text)


_is_day = _parses(_parse_day)

FORMATS: dict[str, Callable[[Any], bool]] = {
    "date": _is_day,
    "date-time": is_time_of_format,
    "datetime": is_time_of_format,
    "duration": lambda text: _DURATION.fullmatch(text) is not None,
    "email": lambda text: _EMAIL.fullmatch(text) is not None,
    "hostname": lambda text: _HOSTNAME.fullmatch(text) is not None,
    "ipv4": _parses(ipaddress.IPv4Address),
    "ipv6": _parses(ipaddress.IPv6Address),
    "cidr": _parses(lambda text: ipaddress.ip_network(text, strict=False)),
    "uri": lambda text: bool(urlsplit(text).scheme),
    "uuid": _parses(uuid.UUID),
    "byte": _parses(lambda text: base64.b64decode(text, validate=True)),
    "int32": _integer_of(32),
    "int64": _integer_of(64),
}
"""Format name to check. An unknown format is no check at all, as in Kubernetes."""

DECODES: dict[str, Callable[[Any], bool]] = {
    "byte": FORMATS["byte"],
    "date-time": _parses(parse_time),
}
"""What a field of a built-in kind is read as, by its format, and so must be."""
