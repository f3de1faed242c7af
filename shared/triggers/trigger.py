"""Triggers: why a step is invoked, and about what. A trigger is never a command."""

from dataclasses import dataclass
from datetime import datetime

from shared.triggers.audit_log import LogEvent
from shared.triggers.message import Cause, Message


class _Common:
    """What most triggers do not have."""

    @property
    def is_resync(self) -> bool:
        """Whether the step observes everything, because events may have been lost."""
        return False

    @property
    def requests(self) -> tuple[str, ...]:
        """Names of CertificateSigningRequests."""
        return ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of Nodes that have changed or, with the cause Continued, that are left."""
        return ()

    @property
    def vms(self) -> tuple[str, ...]:
        """Names of VMs."""
        return ()


@dataclass(frozen=True)
class ObjectTrigger(_Common):
    """A message about a named object, or about CertificateSigningRequests."""

    message: Message
    is_redelivered: bool = False
    """An earlier delivery was not acknowledged: its invocation may have been interrupted."""
    unknown_cause: str | None = None
    """The cause of a message that another version has published, if this one does not know it."""

    @property
    def cause(self) -> str:
        return str(self.message.cause) if self.unknown_cause is None else self.unknown_cause

    @property
    def at(self) -> datetime:
        return self.message.at

    @property
    def is_resync(self) -> bool:
        return self.message.cause is Cause.RESYNC

    @property
    def requests(self) -> tuple[str, ...]:
        return self.message.requests

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.message.nodes

    @property
    def vms(self) -> tuple[str, ...]:
        return self.message.vms


@dataclass(frozen=True)
class LogTrigger(_Common):
    """An entry of the audit log."""

    event: LogEvent
    at: datetime
    is_redelivered: bool = False
    is_first_attempt: bool = False
    """Pub/Sub counts the attempts, and this is the first: no earlier invocation was interrupted."""

    @property
    def cause(self) -> str:
        return self.event.method

    @property
    def vms(self) -> tuple[str, ...]:
        return (self.event.name,) if self.event.concerns_vm else ()


@dataclass(frozen=True)
class TimeTrigger(_Common):
    """A message that names no object: its time has come."""

    at: datetime
    is_redelivered: bool = False

    @property
    def cause(self) -> str:
        return str(Cause.SWEEP)


Trigger = ObjectTrigger | LogTrigger | TimeTrigger
