"""The status of a TPUNodeGroup: read, changed and judged by pure functions.

Each condition belongs to one step; `conclude` computes ``Ready`` from all that is known, whoever
writes. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from shared.base.documents import without_empty
from shared.base.timestamps import guess_time, render_time
from shared.node_groups.node_group import AnyGroup

MAX_PENDING = 16
MAX_MESSAGE = 1024
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""For a time that somebody has taken out of the status."""


class State(StrEnum):
    """Where a GCE resource of the group stands."""

    PENDING = "Pending"
    CREATING = "Creating"
    READY = "Ready"
    DELETING = "Deleting"
    GONE = "Gone"
    FAILED = "Failed"


class Type(StrEnum):
    """The conditions; behind each the step that writes it."""

    ACCEPTED = "Accepted"  # create_resources
    POLICY_READY = "WorkloadPolicyReady"  # create_resources
    TEMPLATE_READY = "InstanceTemplateReady"  # create_resources
    MIG_READY = "ManagedInstanceGroupReady"  # create_resources
    TOKENS_INJECTED = "TokensInjected"  # inject_token
    NODES_JOINED = "NodesJoined"  # label_node
    SLICE_WIRED = "SliceWired"  # label_node
    READY = "Ready"  # whoever writes, by `conclude`


POLICY, TEMPLATE, MIG = "workloadPolicy", "instanceTemplate", "managedInstanceGroup"
CONDITION_OF = {
    POLICY: Type.POLICY_READY,
    TEMPLATE: Type.TEMPLATE_READY,
    MIG: Type.MIG_READY,
}
NOUN = {
    POLICY: "workload policy",
    TEMPLATE: "instance template",
    MIG: "managed instance group",
}


@dataclass(frozen=True)
class Condition:
    """One condition; ``since`` is when its status last changed."""

    status: str
    reason: str
    message: str
    since: datetime
    generation: int

    @property
    def is_true(self) -> bool:
        return self.status == "True"


@dataclass(frozen=True)
class Trouble:
    """Why a resource is not made (or not deleted): our reason, GCE's code and words, since when."""

    reason: str
    code: str
    message: str
    since: datetime


@dataclass(frozen=True)
class Resource:
    """One GCE resource of the group, as far as it has come.

    ``since`` is when the state was entered, for ``Creating`` and ``Deleting`` written before the
    call; ``operation`` is set after it. ``trouble`` stays through further tries until one succeeds.
    """

    name: str
    state: State = State.PENDING
    since: datetime | None = None
    uri: str = ""
    operation: str = ""
    trouble: Trouble | None = None

    def enter(self, state: State, now: datetime, *, uri: str = "") -> Resource:
        """The same resource in another state.

        Entering ``Creating`` again is another attempt; ``Deleting`` again is the same one.
        """
        if state is self.state and state is not State.CREATING:
            return replace(self, uri=uri or self.uri, operation="")
        settled = state in (State.READY, State.GONE)
        return replace(
            self,
            state=state,
            since=now,
            uri=uri or self.uri,
            operation="",
            trouble=None if settled else self.trouble,
        )

    def with_trouble(self, reason: str, code: str, message: str, now: datetime) -> Resource:
        """What stands in the way; the time of the first trouble of a reason is kept."""
        before = self.trouble
        since = before.since if before is not None and before.reason == reason else now
        return replace(self, trouble=Trouble(reason, code, message[:MAX_MESSAGE], since))

    def fail(self, reason: str, code: str, message: str, now: datetime) -> Resource:
        """Not made, and why."""
        failed = self.with_trouble(reason, code, message, now)
        return replace(failed, state=State.FAILED, since=self.since or now, operation="")


@dataclass(frozen=True)
class Pending:
    """A VM that holds the slice up, why, and since when."""

    name: str
    why: str
    since: datetime


@dataclass(frozen=True)
class Counts:
    """VMs and Nodes: wanted, running, joined (proved ours), ready, and beyond hope for now."""

    desired: int = 0
    running: int = 0
    joined: int = 0
    ready: int = 0
    failed: int = 0


_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Status:
    """All of ``status``."""

    observed_generation: int = 0
    completed_at: datetime | None = None
    machine_type: str = ""
    provisioning_model: str = ""
    conditions: Mapping[Type, Condition] = field(default_factory=lambda: _NOTHING)
    resources: Mapping[str, Resource] = field(default_factory=lambda: _NOTHING)
    counts: Counts = Counts()
    pending: tuple[Pending, ...] = ()

    def is_true(self, kind: Type) -> bool:
        condition = self.conditions.get(kind)
        return condition is not None and condition.is_true

    def with_resource(self, kind: str, resource: Resource) -> Status:
        return replace(self, resources={**self.resources, kind: resource})

    def with_condition(
        self,
        kind: Type,
        status: bool | None,
        reason: str,
        message: str,
        *,
        group: AnyGroup,
        now: datetime,
    ) -> Status:
        """Set a condition (``None``: Unknown); its time moves only when its status changes."""
        word = {True: "True", False: "False", None: "Unknown"}[status]
        before = self.conditions.get(kind)
        since = before.since if before is not None and before.status == word else now
        said = Condition(word, reason, message[:MAX_MESSAGE], since, group.generation)
        return replace(self, conditions={**self.conditions, kind: said})


def parse(raw: Mapping[str, Any] | None) -> Status:
    """A status as the API server holds it; an absent one is an empty one.

    The API server takes times that are none (``T10:00:00+99:00``): whoever wrote one, it was long ago.
    """
    raw = raw or {}
    summary = raw.get("nodeSummary") or {}
    return Status(
        observed_generation=raw.get("observedGeneration", 0),
        completed_at=_read_time(raw["completedAt"]) if raw.get("completedAt") else None,
        machine_type=raw.get("machineType", ""),
        provisioning_model=raw.get("provisioningModel", ""),
        conditions={
            Type(entry["type"]): _parse_condition(entry)
            for entry in raw.get("conditions") or ()
            if entry["type"] in set(Type)
        },
        resources={
            kind: _parse_resource(entry) for kind, entry in (raw.get("resources") or {}).items()
        },
        counts=Counts(**{name: summary.get(name, 0) for name in Counts.__dataclass_fields__}),
        pending=tuple(
            Pending(entry["name"], entry["why"], _read_time(entry.get("since")))
            for entry in raw.get("pending") or ()
        ),
    )


def _read_time(text: str | None) -> datetime:
    return guess_time(text) or LONG_AGO


def _parse_condition(entry: Mapping[str, Any]) -> Condition:
    return Condition(
        entry["status"],
        entry.get("reason", ""),
        entry.get("message", ""),
        _read_time(entry["lastTransitionTime"]),
        entry.get("observedGeneration", 0),
    )


def _parse_resource(entry: Mapping[str, Any]) -> Resource:
    error = entry.get("error")
    return Resource(
        name=entry.get("name", ""),
        state=State(entry.get("state", "Pending")),
        since=guess_time(entry.get("since")),
        uri=entry.get("uri", ""),
        operation=entry.get("operation", ""),
        trouble=Trouble(
            error.get("reason", ""),
            error.get("code", ""),
            error.get("message", ""),
            _read_time(error.get("since")),
        )
        if error
        else None,
    )


def render(status: Status) -> dict[str, Any]:
    """A status as the API server takes it; what is empty is left out."""
    counts = status.counts
    return without_empty(
        {
            "observedGeneration": status.observed_generation,
            "completedAt": _time(status.completed_at),
            "machineType": status.machine_type,
            "provisioningModel": status.provisioning_model,
            "conditions": [
                {
                    "type": str(kind),
                    "status": condition.status,
                    "reason": condition.reason,
                    "message": condition.message,
                    "lastTransitionTime": render_time(condition.since),
                    "observedGeneration": condition.generation,
                }
                for kind, condition in sorted(status.conditions.items())
            ],
            "resources": {
                kind: _render_resource(resource)
                for kind, resource in sorted(status.resources.items())
            },
            "nodeSummary": {
                "desired": counts.desired,
                "running": counts.running,
                "joined": counts.joined,
                "ready": counts.ready,
                "reconciling": max(0, counts.desired - counts.ready),
                "failed": counts.failed,
                "text": f"{counts.ready}/{counts.desired}",
            }
            if counts.desired
            else {},
            "pending": [
                {"name": entry.name, "why": entry.why, "since": render_time(entry.since)}
                for entry in status.pending[:MAX_PENDING]
            ],
        }
    )


def _render_resource(resource: Resource) -> dict[str, Any]:
    trouble = resource.trouble
    return without_empty(
        {
            "name": resource.name,
            "uri": resource.uri,
            "state": str(resource.state),
            "since": _time(resource.since),
            "operation": resource.operation,
            "error": {
                "reason": trouble.reason,
                "code": trouble.code,
                "message": trouble.message,
                "since": render_time(trouble.since),
            }
            if trouble
            else {},
        }
    )


def _time(moment: datetime | None) -> str:
    return render_time(moment) if moment else ""
