"""A route: the triggers that one step accepts."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from shared.triggers.audit_log import LogEvent
from shared.triggers.message import SWEEP_KIND, Cause
from shared.triggers.trigger import LogTrigger, ObjectTrigger, Trigger


class Result(Enum):
    """The operations whose ends trigger a step, by their result."""

    ANY = "any"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Log(Enum):
    """The audit log that has an entry, by the name that Cloud Logging gives it."""

    ACTIVITY = "activity"
    SYSTEM_EVENT = "system_event"


@dataclass(frozen=True)
class Ends:
    """The ends of operations, as the audit log reports them. ``resource`` names the service, too, such
    as ``compute.instances``."""

    resource: str
    verbs: tuple[str, ...]
    result: Result = Result.ANY
    log: Log = Log.ACTIVITY

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, without the API's version."""
        return tuple(f"{self.resource}.{verb}" for verb in self.verbs)

    def has(self, event: LogEvent) -> bool:
        """Whether an entry reports one of these ends."""
        result = Result.FAILED if event.has_failed else Result.SUCCEEDED
        return event.method in self.methods and self.result in (Result.ANY, result)


@dataclass(frozen=True)
class Route:
    """The triggers that one step accepts.

    ``causes``: the kinds of its messages, each with the causes that this system publishes. Only the kind
    decides: another version may publish other causes. ``ends``: its entries of the audit log.
    ``is_of_slices``: the step exists only where workloads get slices.
    """

    step: str
    causes: Mapping[str, tuple[Cause, ...]]
    ends: tuple[Ends, ...] = ()
    is_of_slices: bool = False

    def accepts(self, trigger: Trigger) -> bool:
        """Whether a trigger is for this step."""
        match trigger:
            case ObjectTrigger(message):
                return message.kind in self.causes
            case LogTrigger(event):
                return event.has_managed_name and any(ends.has(event) for ends in self.ends)
        return SWEEP_KIND in self.causes


Routes = Mapping[str, Route]
"""Routes by the name of the step."""


def list_kinds(routes: Routes) -> tuple[str, ...]:
    """The kinds of messages that any step accepts."""
    return tuple(dict.fromkeys(kind for route in routes.values() for kind in route.causes))


def find_steps(trigger: Trigger, routes: Routes) -> tuple[str, ...]:
    """The steps that accept a trigger."""
    return tuple(step for step, route in routes.items() if route.accepts(trigger))
