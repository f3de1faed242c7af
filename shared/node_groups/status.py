"""The status of a TPUNodeGroup: read, changed and judged by pure functions.

Each condition belongs to one step; `conclude` computes ``Ready`` from all that is known, whoever
writes. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from shared.base.reasons import Reason
from shared.base.timestamps import guess_time, render_time
from shared.node_groups.node_group import NodeGroup

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
        group: NodeGroup,
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
    return _without_empty(
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
    return _without_empty(
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


def _without_empty(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if value not in ("", {}, [], 0, None)}


@dataclass(frozen=True)
class Judgement:
    """What ``Ready`` says."""

    is_ready: bool
    reason: str
    message: str


_Judge = Callable[[NodeGroup, Status], Judgement | None]


def conclude(group: NodeGroup, status: Status, now: datetime) -> Status:
    """The status with ``Ready`` as all the rest makes it, and ``completedAt`` when it is first so."""
    verdict = judge(group, status)
    if verdict.is_ready and status.completed_at is None:
        status = replace(status, completed_at=now)
    return status.with_condition(
        Type.READY, verdict.is_ready, verdict.reason, verdict.message, group=group, now=now
    )


def judge(group: NodeGroup, status: Status) -> Judgement:
    """Whether the slice is ready, and if not, the one reason that a person should read first."""
    for judge_one in _JUDGES:
        verdict = judge_one(group, status)
        if verdict is not None:
            return verdict
    return Judgement(True, "Ready", "All nodes are ready")


def _judge_deletion(group: NodeGroup, status: Status) -> Judgement | None:
    if group.deleting is None:
        return None
    for kind, reason, noun in _TEAR_DOWN_ORDER:
        resource = status.resources.get(kind)
        if resource is None or resource.state is State.GONE:
            continue
        if kind == TEMPLATE and group.spec is not None and group.spec.template is not None:
            continue
        if resource.trouble is not None:
            return Judgement(False, resource.trouble.reason, resource.trouble.message)
        return Judgement(False, reason, f"Waiting for {noun} to be deleted")
    return Judgement(False, Reason.DELETING_NODES, "Deleting stale Node objects")


_TEAR_DOWN_ORDER = (
    (MIG, Reason.DELETING_MIG, "ManagedInstanceGroup"),
    (TEMPLATE, Reason.DELETING_TEMPLATE, "InstanceTemplate"),
    (POLICY, Reason.DELETING_POLICY, "WorkloadPolicy"),
)


def _judge_acceptance(_: NodeGroup, status: Status) -> Judgement | None:
    return _unless_true(status.conditions.get(Type.ACCEPTED))


def _judge_resources(_: NodeGroup, status: Status) -> Judgement | None:
    verdicts = list(_resource_verdicts(status))
    telling = [verdict for verdict in verdicts if verdict.reason != Reason.PROVISIONING]
    if status.counts.joined and not telling:
        return None  # VMs have joined, so they have been made; that they have is yet to be asked
    return next(iter(telling or verdicts), None)


def _resource_verdicts(status: Status) -> Iterator[Judgement]:
    for kind in (Type.POLICY_READY, Type.TEMPLATE_READY, Type.MIG_READY):
        verdict = _unless_true(status.conditions.get(kind))
        if verdict is not None:
            yield verdict
    if Type.MIG_READY not in status.conditions:
        yield Judgement(False, Reason.PROVISIONING, "Making the resources on Compute Engine")


def _judge_tokens(_: NodeGroup, status: Status) -> Judgement | None:
    """A VM that cannot get its token cannot join; who has joined needs none."""
    verdict = _unless_true(status.conditions.get(Type.TOKENS_INJECTED))
    has_joined = status.is_true(Type.NODES_JOINED)
    if verdict is None or has_joined or verdict.reason == Reason.PROVISIONING:
        return None
    return verdict


def _judge_nodes(_: NodeGroup, status: Status) -> Judgement | None:
    joined = status.conditions.get(Type.NODES_JOINED)
    if joined is None:
        desired = status.counts.desired
        return Judgement(False, Reason.AWAITING_NODE_JOIN, awaiting_message(desired, desired))
    return _unless_true(joined)


def _judge_pending(_: NodeGroup, status: Status) -> Judgement | None:
    if status.counts.ready >= status.counts.desired:
        return None
    reason = next((entry.why for entry in status.pending), Reason.NODE_NOT_READY)
    names = ", ".join(entry.name for entry in status.pending[:3]) or "a Node"
    missing = status.counts.desired - status.counts.ready
    return Judgement(
        False, reason, f"{missing} of {status.counts.desired} nodes are not ready: {names}"
    )


def _judge_wires(group: NodeGroup, status: Status) -> Judgement | None:
    if group.spec is None or not group.spec.is_bulk:
        return None
    wired = status.conditions.get(Type.SLICE_WIRED)
    if wired is not None and wired.status != "False":
        return None
    message = wired.message if wired else "Waiting for the links between the chips"
    return Judgement(False, Reason.NOT_WIRED, message)


_JUDGES: tuple[_Judge, ...] = (
    _judge_deletion,
    _judge_acceptance,
    _judge_resources,
    _judge_tokens,
    _judge_nodes,
    _judge_pending,
    _judge_wires,
)


def _unless_true(condition: Condition | None) -> Judgement | None:
    if condition is None or condition.is_true:
        return None
    return Judgement(False, condition.reason, condition.message)


def awaiting_message(missing: int, desired: int) -> str:
    """The words for Nodes that have not joined, as users know them from tpu-operator."""
    return f"Waiting for {missing} of {desired} nodes to join the cluster"
