"""The status of a TPUNodeGroup: parse, change and render it. All functions are pure.

Each condition belongs to one step. `readiness.conclude` computes ``Ready`` from the others, in each
step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
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
from shared.base.reasons import ORDER, Reason
from shared.base.timestamps import CLOCKS_DIFFER_BY, LONG_AGO, guess_time, render_time
from shared.node_groups.node_group import AnyGroup, InstanceConfig, NodeGroup
from shared.ports.error_reasons import BAD_REQUESTS
from shared.triggers import routes

MAX_PENDING = 16
MAX_JOIN_OF_VM = timedelta(minutes=10)
"""A VM of a complete slice was started at most this long before the slice was complete (a guess, for
VMs that no longer exist)."""
MAX_MESSAGE = 1024
MAX_RETRY_MESSAGE = 400
_CUT = " [...] "
RUN_END_NOTICES = {
    timedelta(days=1): "a day",
    timedelta(hours=1): "an hour",
    timedelta(minutes=10): "ten minutes",
}
"""How long before the end of the first VM an Event is emitted, and its words."""
_CENTURY_S = 100 * 365 * 24 * 3600
"""Longer runs are not told apart: anybody may have written the status."""


def shorten(message: str, limit: int = MAX_MESSAGE) -> str:
    """A message of at most so many characters. The middle is cut, which is of a quoted error: the
    beginning names the object, and the end says what to do."""
    if len(message) <= limit:
        return message
    end = message[-(limit // 2) :]
    return f"{message[: limit - len(end) - len(_CUT)]}{_CUT}{end}"


class State(StrEnum):
    """The state of a GCE resource of the group."""

    PENDING = "Pending"
    CREATING = "Creating"
    READY = "Ready"
    DELETING = "Deleting"
    GONE = "Gone"
    FAILED = "Failed"


class UnusableCause(StrEnum):
    """Why running chips are not usable (`goodput`)."""

    START = "start"
    """The VMs of a new slice boot and join."""
    STEPS = "steps"
    """A step fails and is retried, because of this system or of an API that it calls."""
    COMPUTE_ENGINE = "computeEngine"
    """Compute Engine has taken VMs back, restores them, or has no capacity for the others."""
    USER = "user"
    """Whatever else the reason of ``Ready`` names: the user can correct it."""


class Type(StrEnum):
    """The conditions; the comment names the step that writes each."""

    ACCEPTED = "Accepted"  # create_resources
    POLICY_READY = "WorkloadPolicyReady"  # create_resources
    TEMPLATE_READY = "InstanceTemplateReady"  # create_resources
    MIG_READY = "ManagedInstanceGroupReady"  # create_resources
    TOKENS_INJECTED = "TokensInjected"  # inject_token
    NODES_JOINED = "NodesJoined"  # label_node
    INTERCONNECT_READY = "InterconnectReady"  # label_node
    MAINTENANCE_SCHEDULED = "MaintenanceScheduled"  # label_node; absent if none is announced
    READY = "Ready"  # every step, by `conclude`


POLICY, TEMPLATE, MIG = "workloadPolicy", "instanceTemplate", "managedInstanceGroup"
CONDITION_OF = {POLICY: Type.POLICY_READY, TEMPLATE: Type.TEMPLATE_READY, MIG: Type.MIG_READY}
NOUN = {POLICY: "workload policy", TEMPLATE: "instance template", MIG: "managed instance group"}


@dataclass(frozen=True)
class Condition:
    """A condition. ``since`` is when its status last changed."""

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
    """Why a resource is not created or not deleted, with GCE's code and message, since when."""

    reason: str
    code: str
    message: str
    since: datetime


@dataclass(frozen=True)
class Resource:
    """One GCE resource of the group.

    ``since`` is when the state was entered. ``Creating`` and ``Deleting`` are written before the call,
    ``operation`` after it. ``error`` is kept until an attempt succeeds.
    """

    name: str
    state: State = State.PENDING
    since: datetime | None = None
    uri: str = ""
    operation: str = ""
    error: ResourceError | None = None

    @property
    def is_rejected(self) -> bool:
        """Whether Compute Engine has rejected the insert (400), which it does again for the same spec. A
        reservation that is missing or full may have such a code, too."""
        error = self.error if self.state is State.FAILED else None
        reasons = (Reason.REFUSED, Reason.NOT_OFFERED)
        return error is not None and error.reason in reasons and error.code in BAD_REQUESTS

    @property
    def is_unseen(self) -> bool:
        """Whether Compute Engine has accepted no insert of it, as far as the status shows: where it did,
        the zone or region exists, even if it is hidden from the project now."""
        is_uncreated = self.state in (State.PENDING, State.CREATING, State.FAILED)
        return is_uncreated and not (self.uri or self.operation)

    def enter(self, state: State, now: datetime, *, uri: str = "") -> Resource:
        """The resource in another state.

        To enter ``Creating`` again is a new attempt; to enter ``Deleting`` again is not.
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
        """Record an error. An error with the same reason as before keeps the time of the first."""
        before = self.error
        since = before.since if before is not None and before.reason == reason else now
        return replace(self, error=ResourceError(reason, code, shorten(message), since))

    def fail(self, reason: str, code: str, message: str, now: datetime) -> Resource:
        """Record that the creation has failed."""
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
    """A step with a transient error: the last message, and the time of the first."""

    step: str
    message: str
    since: datetime


@dataclass(frozen=True)
class Repairs:
    """The repairs of the slice (`recovery.begin_repair`) since the last day without one."""

    count: int = 0
    last_at: datetime | None = None


@dataclass(frozen=True)
class Counts:
    """Counts of VMs: desired, running, joined, joined with a ready Node, and not joined in time."""

    desired: int = 0
    running: int = 0
    joined: int = 0
    ready: int = 0
    failed: int = 0


_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Unusable:
    """Chips of running VMs of a slice that was not Ready: billed, and not usable (`goodput`).

    ``chip_seconds`` are the sums by cause. ``chips`` are not usable for ``cause`` since ``since``, which
    the sums do not have yet.
    """

    chip_seconds: Mapping[UnusableCause, int] = field(default_factory=lambda: _NOTHING)
    cause: UnusableCause | None = None
    chips: int = 0
    since: datetime | None = None

    @property
    def chip_hours(self) -> float:
        return sum(self.chip_seconds.values()) / 3600


@dataclass(frozen=True)
class Status:
    """The whole ``status``."""

    observed_generation: int = 0
    completed_at: datetime | None = None
    """When the slice was complete for the first time, since its last repair."""
    machine_type: str = ""
    provisioning_model: str = ""
    topology: str = ""
    max_run_s: int = 0
    """The seconds for which the VMs may run; 0 without a limit, or if it is not known."""
    conditions: Mapping[Type, Condition] = field(default_factory=lambda: _NOTHING)
    resources: Mapping[str, Resource] = field(default_factory=lambda: _NOTHING)
    counts: Counts = Counts()
    pending: tuple[Pending, ...] = ()
    repairs: Repairs = Repairs()
    retries: tuple[Retry, ...] = ()
    """Errors that no condition reports: transient ones that only the sweep retries and that may not be
    over, and those of label_node while the slice is complete."""
    run_ends: datetime | None = None
    """When Compute Engine ends the first VM: at the end of its maxRunDuration or its reservation."""
    idle_since: datetime | None = None
    """Since when no Pod uses the chips of the Ready slice, as report_leaks observes once an hour."""
    unusable: Unusable = Unusable()

    def find_end(self, now: datetime, started: datetime | None = None) -> Reason | None:
        """Why a VM that was started then has, or had, to end by now; ``None``: it had not. With a
        maxRunDuration its age counts. If its start is not known, the end of the first VM counts; and if
        that is not, the completion of the slice."""
        margin, since = CLOCKS_DIFFER_BY, started
        if not self.max_run_s:
            end = self.run_ends
            is_over = end is not None and now >= end - margin and (since is None or since < end)
            return Reason.RUN_ENDED if is_over else None
        if since is None and self.run_ends is not None:
            is_over = now >= self.run_ends - margin
            return Reason.MAX_RUN_DURATION_REACHED if is_over else None
        if since is None:
            margin, since = MAX_JOIN_OF_VM, self.completed_at
        if since is None:
            return None
        end = self.find_run_end(since)
        is_over = now >= end - min(margin, (end - since) / 4)
        return Reason.MAX_RUN_DURATION_REACHED if is_over else None

    def find_run_end(self, started: datetime) -> datetime:
        """When a VM that was started then has run for its maxRunDuration, which is not 0."""
        return started + timedelta(seconds=min(self.max_run_s, _CENTURY_S))

    def is_true(self, kind: Type) -> bool:
        condition = self.conditions.get(kind)
        return condition is not None and condition.is_true

    def has_api_error(self, kind: Type) -> bool:
        """Whether a condition reports an error of an API, such as a lack of capacity."""
        condition = self.conditions.get(kind)
        return condition is not None and condition.reason in ORDER

    def with_resource(self, kind: str, resource: Resource) -> Status:
        return replace(self, resources={**self.resources, kind: resource})

    def with_retry(self, step: str, message: str, now: datetime) -> Status:
        """Record an error of a step in ``retries``. The time of its first failure is kept."""
        before = next((retry for retry in self.retries if retry.step == step), None)
        since = min(before.since, now) if before is not None else now
        retry = Retry(step, shorten(message, MAX_RETRY_MESSAGE), since)
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
        group: AnyGroup,
        now: datetime,
    ) -> Status:
        """Set a condition (``None``: Unknown). Its time changes only with its status."""
        word = {True: "True", False: "False", None: "Unknown"}[status]
        before = self.conditions.get(kind)
        since = before.since if before is not None and before.status == word else now
        condition = Condition(word, reason, shorten(message), since, group.generation)
        return replace(self, conditions={**self.conditions, kind: condition})


def parse(raw: Any) -> Status:
    """Parse a group's ``status``; an absent one is empty. Never raises.

    Users or later versions may have written it. Values of a wrong type and unknown conditions or
    resources are ignored. An unknown state counts as ``Creating`` (possibly in progress), an invalid
    time as long ago.
    """
    document = raw if isinstance(raw, Mapping) else {}
    completed, summary = document.get("completedAt"), read_mapping(document, "nodeSummary")
    return Status(
        observed_generation=_read_count(document, "observedGeneration"),
        completed_at=_read_time(completed) if completed else None,
        machine_type=read_text(document, "machineType"),
        provisioning_model=read_text(document, "provisioningModel"),
        topology=read_text(document, "topology"),
        max_run_s=_read_count(document, "maxRunSeconds"),
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
        counts=Counts(**{name: _read_count(summary, name) for name in Counts.__dataclass_fields__}),
        pending=tuple(_parse_pending(document)),
        repairs=_parse_repairs(read_mapping(document, "repairs")),
        retries=tuple(_parse_retries(document)),
        run_ends=guess_time(document.get("runEndsAt")),
        idle_since=_read_time(document["idleSince"]) if document.get("idleSince") else None,
        unusable=_parse_unusable(read_mapping(document, "unusable")),
    )


def parse_of(group: AnyGroup) -> Status:
    """The status of a group. It is empty if it is another object's, as after a restore from a backup:
    then its resources have another name. (An instance template with another name is the user's.)"""
    known = parse(group.raw.get("status"))
    if isinstance(group, NodeGroup) and isinstance(group.spec.source, InstanceConfig):
        known = replace(known, max_run_s=group.spec.source.max_run_s)
    foreign = {kind for kind, one in known.resources.items() if one.name != group.resource_name}
    return Status() if foreign - {TEMPLATE} else known


_TYPES = frozenset(map(str, Type))
_STATES = frozenset(map(str, State))
_WORD = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
"""The pattern of a condition's reason in the CRD: the API server rejects other reasons."""
_RENAMED = {"SliceWired": Type.INTERCONNECT_READY}
"""Conditions by their earlier names."""


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


def _parse_pending(document: Document) -> Iterator[Pending]:
    """The entries, each VM once: the API server rejects two entries with one name."""
    names: set[str] = set()
    for entry in read_mappings(document, "pending"):
        name, why = read_text(entry, "name"), _read_word(entry, "why")
        if name and why and name not in names:
            names.add(name)
            yield Pending(name, why, _read_time(entry.get("since")))


def _parse_repairs(entry: Document) -> Repairs:
    last_at = guess_time(entry.get("lastAt"))
    return Repairs(_read_count(entry, "count"), last_at) if last_at is not None else Repairs()


def _parse_retries(document: Document) -> Iterator[Retry]:
    found = {read_text(entry, "step"): entry for entry in read_mappings(document, "retries")}
    for step, entry in found.items():
        if step in routes.STEPS and step != routes.SWEEP:
            yield Retry(step, read_text(entry, "message"), _read_time(entry.get("since")))


def _parse_unusable(document: Document) -> Unusable:
    sums, since = read_mapping(document, "chipSeconds"), guess_time(document.get("since"))
    chip_seconds = {one: count for one in UnusableCause if (count := _read_count(sums, one))}
    word, chips = read_text(document, "cause"), _read_count(document, "chips")
    cause = next((one for one in UnusableCause if one == word), None)
    is_open = since is not None and chips and cause is not None
    return Unusable(chip_seconds, cause, chips, since) if is_open else Unusable(chip_seconds)


def render(status: Status) -> dict[str, Any]:
    """The status as JSON for the API server, without empty values."""
    counts = status.counts
    return without_empty(
        {
            "observedGeneration": status.observed_generation,
            "completedAt": _time(status.completed_at),
            "machineType": status.machine_type,
            "provisioningModel": status.provisioning_model,
            "topology": status.topology,
            "maxRunSeconds": status.max_run_s or "",
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
            "repairs": {"count": status.repairs.count, "lastAt": _time(status.repairs.last_at)}
            if status.repairs.last_at
            else {},
            "retries": [
                {"step": one.step, "message": one.message, "since": render_time(one.since)}
                for one in status.retries
            ],
            "runEndsAt": _time(status.run_ends),
            "idleSince": _time(status.idle_since),
            "unusable": _render_unusable(status.unusable),
        }
    )


def _render_unusable(unusable: Unusable) -> dict[str, Any]:
    return without_empty(
        {
            "chipHours": f"{unusable.chip_hours:.1f}" if unusable.chip_seconds else "",
            "chipSeconds": {str(one): unusable.chip_seconds[one] for one in unusable.chip_seconds},
            "cause": str(unusable.cause or ""),
            "chips": unusable.chips,
            "since": _time(unusable.since),
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
