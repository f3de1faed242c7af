"""The events of a run, from which the timeline and the log are rendered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SubprocessLine:
    """A subprocess wrote a line: a function, the relay or the webhook."""

    process: str
    line: str


@dataclass(frozen=True)
class SubprocessEnded:
    """A subprocess ended by itself; it is restarted in ``again_in_s`` seconds."""

    process: str
    how: str
    again_in_s: float
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class AuditEntry:
    """The simulated Compute Engine wrote an audit log entry, which the sinks of ``steps`` match."""

    entry: Mapping[str, Any]
    steps: tuple[str, ...]


@dataclass(frozen=True)
class SerialText:
    """A VM wrote to its serial port."""

    vm: str
    text: str


@dataclass(frozen=True)
class SweepTriggered:
    """The Scheduler published to the sweep."""


@dataclass(frozen=True)
class ClusterAction:
    """The supervisor changes a named cluster."""

    what: str
    why: str = ""
    is_bad: bool = False


Event = SubprocessLine | SubprocessEnded | AuditEntry | SerialText | SweepTriggered | ClusterAction
Observe = Callable[[Event], None]
