"""The work of a step on one TPUNodeGroup: find the group of a trigger, and write its status."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from shared.base.reasons import REASONS, Reason
from shared.frame.plan import Emit, NothingToDo, Plan, StepRefused, Work
from shared.frame.step import Invocation, Step, work_fields
from shared.node_groups import node_group, readiness, status
from shared.node_groups.events import changes
from shared.node_groups.goodput import UNUSABLE
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.snapshot import RULES
from shared.node_groups.status import Status, Type, UnusableCause
from shared.ports.errors import CallError
from shared.settings import Settings
from shared.triggers import routes
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import Message
from shared.triggers.trigger import LogTrigger, ObjectTrigger

ObservedT = TypeVar("ObservedT")


@dataclass(kw_only=True)
class GroupWork(Work):
    """Work on one group.

    ``group`` is the object as it was last read or written, ``status`` its status.
    """

    group: AnyGroup
    settings: Settings
    status: Status
    reported: Status
    """The status for whose changes Events have been written."""
    ends_own_retries: bool = False
    """Whether the step itself decides when its error in ``retries`` is over."""
    revoked: set[str] = field(default_factory=set)
    """The VMs whose tokens were revoked together with another's."""
    writing_s: float = 0.0
    """`remaining_s` when the metadata of the last VM was about to be written."""
    may_revoke_together: bool = True
    """False after the API server has forbidden it."""

    @property
    def subject(self) -> Mapping[str, Any]:
        """The group's object, as it was last read or written."""
        return self.group.raw

    def list_events(self) -> Iterator[Emit]:
        """The Events about the changes of the status since the last call."""
        events = changes(self.group, self.reported, self.status)
        self.reported = self.status
        return map(Emit, events)

    def refuse(self, refusal: StepRefused) -> Plan:
        """Report it in Ready, which any step computes again as soon as it is not refused."""
        reason, text = refusal.outcome, str(refusal)
        known = self.status.with_condition(Type.READY, False, reason, text, self.group, self.now)
        return replace(super().refuse(refusal), first=(WriteStatus(known),))

    def list_closing_actions(self) -> Iterator[WriteStatus]:
        """Remove the step's entry in ``retries``, if the error is over.

        Only a resync proves that, because it observes everything.
        """
        known = self.status.without_retry(self.step)
        is_proof = self.trigger.is_resync and not self.ends_own_retries
        if is_proof and known != self.status:
            yield WriteStatus(readiness.conclude(self.group, known, self.now))

    def replace_object(self, raw: Mapping[str, Any]) -> None:
        """Use the object that a write has returned."""
        self.group = node_group.parse(raw, self.group.cluster)

    def write(self, desired: Status) -> None:
        """Write a status if it differs from the object's. Raises `CallError` (409: it is outdated)."""
        self.status = desired
        rendered = status.render(desired)
        if rendered != (self.group.raw.get("status") or {}):
            before = status.parse_of(self.group).unusable.chip_seconds
            self.replace_object(self.cluster.replace_status(self.group.raw, rendered))
            self._log_unusable(before)
            ready = desired.conditions.get(Type.READY)
            if ready is not None:
                self.facts["ready"] = {"reason": ready.reason, "message": ready.message}

    def _log_unusable(self, before: Mapping[UnusableCause, int]) -> None:
        """Write a line for each sum of unusable chips that has grown."""
        named = {"group": self.group.key, "workload": self.group.workload}
        for cause, seconds in self.status.unusable.chip_seconds.items():
            if added := seconds - before.get(cause, 0):
                fields = {"step": self.step, "decision": UNUSABLE, **named, "cause": str(cause)}
                self.log.info(
                    f"{self.step}: {UNUSABLE}", **fields, chip_hours=round(added / 3600, 4)
                )

    def conclude_and_write(self, known: Status) -> None:
        """Compute ``Ready``, and write a status with it."""
        self.write(readiness.conclude(self.group, known, self.now))


@dataclass(frozen=True)
class WriteStatus:
    """Write this status, if it differs from the object's."""

    status: Status = field(repr=False)

    def apply(self, work: GroupWork) -> None:
        work.write(self.status)

    def describe(self) -> str:
        return "update the status if it differs"


def open_group(
    invocation: Invocation, is_first_observation: bool, *, ends_own_retries: bool = False
) -> GroupWork:
    """The work on the group that the trigger names. Raises `NothingToDo` and `CallError`."""
    group = find_group(invocation, is_first_observation)
    invocation.facts |= {"group": group.key, "uid": group.uid}
    known = status.parse_of(group)
    fields = work_fields(invocation, is_first_observation=is_first_observation)
    return GroupWork(
        **fields, group=group, status=known, reported=known, ends_own_retries=ends_own_retries
    )


def find_group(invocation: Invocation, is_first_observation: bool = False) -> AnyGroup:
    """The group that the trigger names. Raises `NothingToDo` and `CallError`.

    It is read, unless it was read seconds ago and the trigger is an event about a VM. A deletion does
    not end, and inject_token writes a status rarely then: if it is outdated, the step observes again.
    """
    cluster_id = invocation.cluster.get_cluster_id()
    match invocation.trigger:
        case ObjectTrigger(message):
            invocation.facts["group"] = f"{message.namespace}/{message.name}"
            raw = invocation.cluster.find_group(message.namespace, message.name)
            if raw is None:
                raise NothingToDo("GroupGone")
            if message.uid and raw["metadata"]["uid"] != message.uid:
                raise NothingToDo("GroupReplaced")
            # After a 401, it may be another cluster than before the group was read.
            return node_group.parse(raw, invocation.cluster.get_cluster_id())
        case LogTrigger(event):
            name, cluster = event.resource_name, invocation.cluster
            if event.concerns_vm and is_first_observation:
                calls, now = cluster.calls, invocation.runtime.now()
                kept = _find_owner(event, cluster.list_recent_groups_named(name, now), cluster_id)
                is_enough = invocation.step == routes.INJECT_TOKEN or cluster.calls > calls
                if kept is not None and (is_enough or kept.deleting is not None):
                    return kept
            group = _find_owner(event, cluster.list_groups_named(name), cluster_id)
            if group is None:
                raise NothingToDo("NotOurs")
            return group
    raise NothingToDo("NotForThisStep")


def _find_owner(
    event: LogEvent, labelled: Iterable[Mapping[str, Any]], cluster_id: str
) -> NodeGroup | None:
    """The group of an event's resource, of those with its label."""
    # Users can write labels, so only the name that is computed from the uid proves it.
    for raw in labelled:
        group = node_group.parse(raw, cluster_id)
        if not isinstance(group, NodeGroup) or group.resource_name != event.resource_name:
            continue
        places = ("", group.spec.zone, group.spec.region)
        if event.project == group.spec.project and event.location in places:
            return group
    return None


def message_about(group: AnyGroup, cause: Any, at: datetime, **names: Any) -> Message:
    """A message about a group, for a step's topic."""
    return Message(group.namespace, group.name, group.uid, cause, at, **names)


AddError = Callable[[Status, Reason, str], Status | None]


def report_environment_error(work: GroupWork, error: CallError, add_error: AddError) -> Plan | None:
    """The plan for an environment error; ``None`` for a stale or transient one.

    ``add_error`` adds the error to the status, with this reason and message. If it returns ``None``, no
    condition may report the error, and it is recorded like a transient one. Otherwise an older transient
    error of the step is over, unless the step decides that itself: the error may be about another VM. An
    event about one VM writes no condition: the error may concern only that VM.
    """
    reason = error.reason
    if reason is None or work.has_failed:  # has_failed: the report itself has failed
        return None
    if isinstance(work.trigger, LogTrigger) and work.trigger.event.concerns_vm:
        return Plan(reason, note=str(error))
    known = work.status = work.reported = status.parse_of(work.group)
    reported = add_error(known, reason, f"{error.message} ({error.call}). {REASONS[reason]}")
    if reported is None:
        reported = known.with_retry(work.step, f"{error}. {REASONS[reason]}", work.now)
    elif not work.ends_own_retries:
        reported = reported.without_retry(work.step)
    written = WriteStatus(readiness.conclude(work.group, reported, work.now))
    return Plan(reason, first=(written,), note=str(error))


def report_retry(work: GroupWork, error: Exception) -> Plan:
    """The plan for a transient error that only the sweep retries: record it with its time."""
    known = work.status.with_retry(work.step, str(error), work.now)
    return Plan("GivenUp", first=(WriteStatus(readiness.conclude(work.group, known, work.now)),))


def build_step(
    name: str,
    observe: Callable[[GroupWork], ObservedT],
    decide: Callable[[ObservedT, datetime], Plan],
    recover: Callable[[GroupWork, CallError], Plan | None],
    *,
    ends_own_retries: bool = False,
) -> Step[GroupWork, ObservedT]:
    """A step on groups: it records transient errors in the status, and its observations in the log."""
    begin = partial(open_group, ends_own_retries=ends_own_retries)
    return Step(name, begin, observe, decide, recover, give_up=report_retry, snapshot=RULES)
