"""A reader of environment variables: all that is wrong is reported at once, by the variables' names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from datetime import timedelta
from urllib.parse import urlsplit


class SettingsError(Exception):
    """Variables of the environment are missing or wrong; the message says what would be right."""


class Variables:
    """The environment, trimmed, and what has been found wrong with it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []

    def get(self, name: str) -> str:
        """A variable's value; empty when it is not set."""
        return self._environment.get(name, "").strip()

    def require(self, name: str, meaning: str, pattern: re.Pattern[str] | None = None) -> str:
        """One that must be set, and match ``pattern``; ``meaning`` says what would be right."""
        value = self.get(name)
        if not value:
            self.problems.append(f"{name} is not set: it must be {meaning}")
        elif pattern is not None and not pattern.fullmatch(value):
            self.reject(name, meaning)
        return value

    def reject(self, name: str, meaning: str) -> None:
        """Note that a value is wrong."""
        self.problems.append(f"{name}={self.get(name)!r} is wrong: it must be {meaning}")

    def match(self, name: str, meaning: str, pattern: re.Pattern[str], default: str) -> str:
        """One that must match ``pattern``, or ``default`` when it is not set."""
        value = self.get(name) or default
        if not pattern.fullmatch(value):
            self.reject(name, meaning)
        return value

    def check(self) -> None:
        """Raise `SettingsError` for all that has been found wrong."""
        if self.problems:
            raise SettingsError("; ".join(self.problems))


def read_url(variables: Variables, name: str) -> str:
    """An address of Google's in another place: plain HTTP on this machine only."""
    value = variables.get(name)
    if value and not is_url(value, "https") and not (is_url(value, "http") and _is_loopback(value)):
        variables.reject(name, "an https URL (http on this machine)")
    return value


def is_url(value: str, scheme: str) -> bool:
    """Whether a value is a URL of this scheme with a host."""
    try:
        parts = urlsplit(value)
        return parts.scheme == scheme and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_seconds(variables: Variables, name: str, default: int) -> timedelta:
    """A time in whole seconds above 0."""
    text = variables.get(name) or str(default)
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) == 0:
        variables.reject(name, "a whole number of seconds above 0")
        return timedelta()
    return timedelta(seconds=int(text))


def read_minutes(variables: Variables, name: str) -> timedelta | None:
    """A time in whole minutes; ``None`` for 0, which means never."""
    text = variables.get(name) or "0"
    if not re.fullmatch("[0-9]{1,6}", text):
        variables.reject(name, "a whole number of minutes, or 0 for never")
        return None
    return timedelta(minutes=int(text)) or None


def split_items(text: str) -> tuple[str, ...]:
    """The items of a list with commas between; empty ones are left out."""
    return tuple(item.strip() for item in text.split(",") if item.strip())
