"""A reader of environment variables. It reports all errors together, by the variables' names."""

import ipaddress
import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar
from urllib.parse import urlsplit

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)


class SettingsError(Exception):
    """Variables are missing or wrong; the message says what would be right."""


class Variables:
    """The environment, trimmed. ``problems`` collects its errors."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []

    def get(self, name: str) -> str:
        """A variable's value; empty when it is not set."""
        return self._environment.get(name, "").strip()

    def require(self, name: str, meaning: str, pattern: re.Pattern[str] | None = None) -> str:
        """A value that must be set, and match ``pattern``; ``meaning`` says what would be right."""
        value = self.get(name)
        if not value:
            self.problems.append(f"{name} is not set: it must be {meaning}")
        elif pattern is not None and not pattern.fullmatch(value):
            self.reject(name, meaning)
        return value

    def reject(self, name: str, meaning: str) -> None:
        """Record that a value is wrong."""
        self.problems.append(f"{name}={self.get(name)!r} is wrong: it must be {meaning}")

    def match(self, name: str, meaning: str, pattern: re.Pattern[str], default: str) -> str:
        """A value that must match ``pattern``, or ``default`` when it is not set."""
        value = self.get(name) or default
        if not pattern.fullmatch(value):
            self.reject(name, meaning)
        return value

    def check(self) -> None:
        """Raise `SettingsError` if there are problems."""
        if self.problems:
            raise SettingsError("; ".join(self.problems))


def read_url(variables: Variables, name: str) -> str:
    """Another address of an API of Google's: plain HTTP on this machine only."""
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


def read_choice(variables: Variables, name: str, default: ChoiceT) -> ChoiceT:
    """A word of the enumeration that ``default`` belongs to."""
    words = type(default)
    value = variables.get(name) or default
    if value not in list(words):
        variables.reject(name, " or ".join(words))
        return default
    return words(value)


def read_number(variables: Variables, name: str, default: int, allowed: range, meaning: str) -> int:
    """A whole number; ``meaning`` says which are allowed."""
    text = variables.get(name) or str(default)
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) not in allowed:
        variables.reject(name, meaning)
        return default
    return int(text)


def read_minutes(
    variables: Variables, name: str, default: timedelta | None = None
) -> timedelta | None:
    """A time in whole minutes; ``None`` for 0, which means never."""
    if not variables.get(name):
        return default
    meaning = "a whole number of minutes of at most six digits, or 0 for never"
    return timedelta(minutes=read_number(variables, name, 0, range(10**6), meaning)) or None


def split_items(text: str) -> tuple[str, ...]:
    """The items of a list that are separated by commas, without the empty ones."""
    return tuple(item.strip() for item in text.split(",") if item.strip())
