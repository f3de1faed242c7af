"""What can be seen of a supervisor at work: the raw material of the demo's timeline and of the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SubprocessLine:
    """A child process wrote a line: a function or the relay."""

    process: str
    line: str


@dataclass(frozen=True)
class SubprocessEnded:
    """A child process ended by itself; it is started again in ``again_in_s`` seconds."""

    process: str
    how: str
    again_in_s: float
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class AuditEntry:
    """The simulated Compute Engine wrote an audit log entry; ``steps`` are whom a sink tells."""

    entry: Mapping[str, Any]
    steps: tuple[str, ...]


@dataclass(frozen=True)
class SerialText:
    """A VM wrote to its serial port."""

    vm: str
    text: str


@dataclass(frozen=True)
class SweepTriggered:
    """The Scheduler woke the sweep."""


@dataclass(frozen=True)
class ClusterAction:
    """The supervisor does something to a cluster that is not its own."""

    what: str
    why: str = ""
    is_bad: bool = False


Event = SubprocessLine | SubprocessEnded | AuditEntry | SerialText | SweepTriggered | ClusterAction
Observe = Callable[[Event], None]
