"""The status of a TPUNodeGroup: read, changed and judged by pure functions.

Each condition belongs to one step; `conclude` computes ``Ready`` from all that is known, whoever
writes. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from shared.base.documents import (
    Document,
    read_mapping,
    read_mappings,
    read_number,
    read_text,
    without_empty,
)
from shared.base.names import STEPS
from shared.base.reasons import Reason
from shared.base.timestamps import LONG_AGO, guess_time, render_time
from shared.node_groups.node_group import AnyGroup

MAX_PENDING = 16
MAX_MESSAGE = 1024
MAX_RETRY_MESSAGE = 400


class State(StrEnum):
    """The state of a GCE resource of the group."""

    PENDING = "Pending"
    CREATING = "Creating"
    READY = "Ready"
    DELETING = "Deleting"
    GONE = "Gone"
    FAILED = "Failed"


class Type(StrEnum):
    """The conditions; the comment names the step that writes each."""

    ACCEPTED = "Accepted"  # create_resources
    POLICY_READY = "WorkloadPolicyReady"  # create_resources
    TEMPLATE_READY = "InstanceTemplateReady"  # create_resources
    MIG_READY = "ManagedInstanceGroupReady"  # create_resources
    TOKENS_INJECTED = "TokensInjected"  # inject_token
    NODES_JOINED = "NodesJoined"  # label_node
    INTERCONNECT_READY = "InterconnectReady"  # label_node
    READY = "Ready"  # every step, by `conclude`


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
class ResourceError:
    """Why a resource is not created (or not deleted): the reason, GCE's code and message, since when."""

    reason: str
    code: str
    message: str
    since: datetime


@dataclass(frozen=True)
class Resource:
    """One GCE resource of the group.

    ``since`` is when the state was entered, for ``Creating`` and ``Deleting`` written before the
    call; ``operation`` is set after it. ``error`` stays recorded until an attempt succeeds.
    """

    name: str
    state: State = State.PENDING
    since: datetime | None = None
    uri: str = ""
    operation: str = ""
    error: ResourceError | None = None

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
            error=None if settled else self.error,
        )

    def with_error(self, reason: str, code: str, message: str, now: datetime) -> Resource:
        """Record an error; of errors with the same reason the time of the first is kept."""
        before = self.error
        since = before.since if before is not None and before.reason == reason else now
        return replace(self, error=ResourceError(reason, code, message[:MAX_MESSAGE], since))

    def fail(self, reason: str, code: str, message: str, now: datetime) -> Resource:
        """Record that the creation failed, and why."""
        failed = self.with_error(reason, code, message, now)
        return replace(failed, state=State.FAILED, since=self.since or now, operation="")


@dataclass(frozen=True)
class Pending:
    """A VM that blocks readiness, why, and since when."""

    name: str
    why: str
    since: datetime


@dataclass(frozen=True)
class Retry:
    """A step that has failed for a transient reason since then, and what the API said last."""

    step: str
    message: str
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
    retries: tuple[Retry, ...] = ()
    """Transient errors that were left to the sweep and have not been seen to end."""

    def is_true(self, kind: Type) -> bool:
        condition = self.conditions.get(kind)
        return condition is not None and condition.is_true

    def with_resource(self, kind: str, resource: Resource) -> Status:
        return replace(self, resources={**self.resources, kind: resource})

    def with_retry(self, step: str, message: str, now: datetime) -> Status:
        """The step has failed again: the time of its first failure is kept."""
        before = next((retry for retry in self.retries if retry.step == step), None)
        since = min(before.since, now) if before is not None else now
        retry = Retry(step, message[:MAX_RETRY_MESSAGE], since)
        every = (*self.without_retry(step).retries, retry)
        return replace(self, retries=tuple(sorted(every, key=lambda one: one.step)))

    def without_retry(self, step: str) -> Status:
        return replace(self, retries=tuple(one for one in self.retries if one.step != step))

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


def parse(raw: Any) -> Status:
    """A status as the API server holds it; an absent one is an empty one. Never raises.

    Anybody may have written it, or a later version: what has a wrong type, and a condition or resource
    that is not known here, reads as absent. A state that is not known reads as ``Creating`` (possibly in
    progress), a time that is none as long ago.
    """
    document = raw if isinstance(raw, Mapping) else {}
    completed = document.get("completedAt")
    return Status(
        observed_generation=_read_count(document, "observedGeneration"),
        completed_at=_read_time(completed) if completed else None,
        machine_type=read_text(document, "machineType"),
        provisioning_model=read_text(document, "provisioningModel"),
        conditions={
            Type(kind): condition
            for entry in read_mappings(document, "conditions")
            if (kind := _read_type(entry)) in _TYPES and (condition := _find_condition(entry))
        },
        resources={
            kind: _parse_resource(entry)
            for kind, entry in read_mapping(document, "resources").items()
            if kind in CONDITION_OF and isinstance(entry, Mapping)
        },
        counts=_parse_counts(read_mapping(document, "nodeSummary")),
        pending=tuple(_parse_pending(document)),
        retries=tuple(_parse_retries(document)),
    )


_TYPES = frozenset(map(str, Type))
_STATES = frozenset(map(str, State))
_WORD = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
"""The pattern of a condition's reason in the definition: anything else could not be written again."""
_RENAMED = {"SliceWired": Type.INTERCONNECT_READY}
"""Conditions by an earlier name."""


def _read_word(holder: Document, key: str) -> str:
    word = read_text(holder, key)
    return word if _WORD.fullmatch(word) else ""


def _read_type(entry: Document) -> str:
    kind = read_text(entry, "type")
    return _RENAMED.get(kind, kind)


def _read_count(holder: Document, key: str) -> int:
    return max(0, int(read_number(holder, key)))


def _read_time(value: Any) -> datetime:
    return guess_time(value) or LONG_AGO


def _find_condition(entry: Document) -> Condition | None:
    status, reason = read_text(entry, "status"), _read_word(entry, "reason")
    if status not in ("True", "False", "Unknown") or not reason:
        return None
    return Condition(
        status,
        reason,
        read_text(entry, "message"),
        _read_time(entry.get("lastTransitionTime")),
        _read_count(entry, "observedGeneration"),
    )


def _parse_resource(entry: Document) -> Resource:
    state = read_text(entry, "state")
    return Resource(
        name=read_text(entry, "name"),
        state=State(state) if state in _STATES else State.CREATING,
        since=guess_time(entry.get("since")),
        uri=read_text(entry, "uri"),
        operation=read_text(entry, "operation"),
        error=_find_error(read_mapping(entry, "error")),
    )


def _find_error(error: Document) -> ResourceError | None:
    if not error:
        return None
    return ResourceError(
        _read_word(error, "reason") or Reason.REFUSED,
        read_text(error, "code"),
        read_text(error, "message"),
        _read_time(error.get("since")),
    )


def _parse_counts(summary: Document) -> Counts:
    return Counts(**{name: _read_count(summary, name) for name in Counts.__dataclass_fields__})


def _parse_pending(document: Document) -> Iterator[Pending]:
    """The entries, each VM once: two of one name could not be written again."""
    names: set[str] = set()
    for entry in read_mappings(document, "pending"):
        name, why = read_text(entry, "name"), _read_word(entry, "why")
        if name and why and name not in names:
            names.add(name)
            yield Pending(name, why, _read_time(entry.get("since")))


def _parse_retries(document: Document) -> Iterator[Retry]:
    found = {read_text(entry, "step"): entry for entry in read_mappings(document, "retries")}
    for step, entry in found.items():
        if step in STEPS and step != "sweep":
            yield Retry(step, read_text(entry, "message"), _read_time(entry.get("since")))


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
            "retries": [
                {"step": one.step, "message": one.message, "since": render_time(one.since)}
                for one in status.retries
            ],
        }
    )


def _render_resource(resource: Resource) -> dict[str, Any]:
    error = resource.error
    return without_empty(
        {
            "name": resource.name,
            "uri": resource.uri,
            "state": str(resource.state),
            "since": _time(resource.since),
            "operation": resource.operation,
            "error": {
                "reason": error.reason,
                "code": error.code,
                "message": error.message,
                "since": render_time(error.since),
            }
            if error
            else {},
        }
    )


def _time(moment: datetime | None) -> str:
    return render_time(moment) if moment else ""
