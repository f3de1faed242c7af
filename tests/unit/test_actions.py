"""What an insert or a delete makes of Compute Engine's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

import pytest

from shared.base.errors import CallError
from shared.base.reasons import Reason
from shared.frame.plan import StaleObservation
from shared.node_groups import status
from shared.node_groups.actions import SEEN_EVERYWHERE_AFTER, Delete, Insert
from shared.node_groups.status import MIG, POLICY, TEMPLATE, Resource, State, Status
from shared.node_groups.work import GroupWork
from shared.ports.gce.calls import Gce
from shared.ports.gce.values import Operation
from shared.ports.kubernetes.cluster import Cluster
from tests.unit.builders import NOW, RESOURCE, group, raw_group
from tests.unit.test_create_resources import ADDED, SETTINGS

LONG_AGO = NOW - timedelta(hours=1)
SPEC = group().spec
OPERATION = Operation("operation-1", is_done=False)
Outcome = Operation | CallError | None


@dataclass
class Scripted:
    """Compute Engine with one answer, and a cluster that keeps the status that is written."""

    answer: Outcome
    written: list[Mapping[str, Any]] = field(default_factory=list)

    def __getattr__(self, _name: str) -> Any:
        return self._answer

    def _answer(self, *_: Any) -> Operation | None:
        if isinstance(self.answer, CallError):
            raise self.answer
        return self.answer

    def replace_status(self, raw: Mapping[str, Any], written: Mapping[str, Any]) -> Any:
        self.written.append(written)
        return {**raw, "status": written}


def work(
    answer: Outcome,
    known: Status,
    *,
    is_first_observation: bool = True,
    age: timedelta = timedelta(),
) -> tuple[GroupWork, Scripted]:
    scripted = Scripted(answer)
    raw = raw_group(status=status.render(known))
    return GroupWork(
        settings=SETTINGS,
        gce=cast("Gce", scripted),
        cluster=cast("Cluster", scripted),
        publish=lambda _inbox, _messages: None,
        random_bytes=bytes,
        remaining_s=lambda: 30.0,
        now=NOW + age,
        trigger=ADDED,
        is_first_observation=is_first_observation,
        group=replace(group(), raw=raw),
        status=known,
        reported=known,
    ), scripted


def entries(state: State, others_since: Any = LONG_AGO) -> Status:
    return Status(
        resources={
            TEMPLATE: Resource(RESOURCE, State.READY, others_since),
            POLICY: Resource(RESOURCE, state, NOW),
        }
    )


def error(http: int, reason: str) -> CallError:
    return CallError("resource_policies.insert", http, reason, "its words")


TAKEN_BACK: dict[str, tuple[CallError, list[str]]] = {
    "not ready yet: nothing was begun": (error(400, "resourceNotReady"), ["Pending"]),
    "too many requests": (error(429, "rateLimitExceeded"), ["Pending"]),
    "no answer: it may have been begun": (error(0, "unreachable"), []),
    "a failure of the server": (error(503, "backendError"), []),
    "the name is taken": (error(409, "alreadyExists"), []),
}


@pytest.mark.parametrize("case", TAKEN_BACK.values(), ids=TAKEN_BACK)
def test_the_intent_is_taken_back_only_where_nothing_can_have_been_begun(
    case: tuple[CallError, list[str]],
) -> None:
    refusal, states = case
    its_work, cluster = work(refusal, entries(State.CREATING))
    with pytest.raises(CallError) as told:
        Insert(POLICY, SPEC, {"name": RESOURCE}).apply(its_work)
    assert told.value is refusal
    assert [one["resources"][POLICY]["state"] for one in cluster.written] == states


def test_a_refusal_of_the_environment_is_recorded() -> None:
    its_work, cluster = work(error(403, "quotaExceeded"), entries(State.CREATING))
    Insert(POLICY, SPEC, {"name": RESOURCE}).apply(its_work)
    entry = its_work.status.resources[POLICY]
    assert entry.error is not None
    assert (entry.state, entry.error.reason) == (State.FAILED, Reason.QUOTA_EXCEEDED)
    assert cluster.written == []


@pytest.mark.parametrize(
    "is_first_observation, others_since, raised, state",
    [
        pytest.param(True, LONG_AGO, "StaleObservation", State.PENDING, id="observed wrongly?"),
        pytest.param(False, NOW, "resourceNotReady", State.PENDING, id="not visible yet?"),
        pytest.param(False, None, "", State.FAILED, id="made nobody knows when"),
        pytest.param(
            False,
            NOW - SEEN_EVERYWHERE_AFTER + timedelta(seconds=1),
            "resourceNotReady",
            State.PENDING,
            id="not visible everywhere yet?",
        ),
        pytest.param(
            False, NOW - SEEN_EVERYWHERE_AFTER, "", State.FAILED, id="visible everywhere by now"
        ),
        pytest.param(False, LONG_AGO, "", State.FAILED, id="really absent"),
    ],
)
def test_an_insert_that_refers_to_something_unknown(
    is_first_observation: bool, others_since: Any, raised: str, state: State
) -> None:
    known = entries(State.CREATING, others_since)
    its_work, _ = work(error(404, "notFound"), known, is_first_observation=is_first_observation)
    told = ""
    try:
        Insert(POLICY, SPEC, {"name": RESOURCE}).apply(its_work)
    except (CallError, StaleObservation) as one:
        told = one.reason if isinstance(one, CallError) else type(one).__name__
    assert (told, its_work.status.resources[POLICY].state) == (raised, state)


def test_the_operation_of_a_delete_is_recorded() -> None:
    its_work, _ = work(OPERATION, entries(State.DELETING))
    Delete(POLICY, SPEC).apply(its_work)
    assert its_work.status.resources[POLICY].operation == "operation-1"


def test_a_delete_of_what_is_gone_makes_the_step_observe_again() -> None:
    its_work, _ = work(None, entries(State.DELETING))
    with pytest.raises(StaleObservation, match="the workload policy is gone already"):
        Delete(POLICY, SPEC).apply(its_work)


IN_USE = error(400, "resourceInUseByAnotherResource")
DELETES: dict[str, tuple[str, CallError, timedelta, str | None]] = {
    "a template in use, a moment after the MIG went": (
        TEMPLATE,
        IN_USE,
        timedelta(minutes=5, seconds=-1),
        None,
    ),
    "a template in use for five minutes": (TEMPLATE, IN_USE, timedelta(minutes=5), Reason.IN_USE),
    "a MIG in use": (MIG, IN_USE, timedelta(), Reason.IN_USE),
    "no permission": (MIG, error(403, "forbidden"), timedelta(), Reason.PERMISSION_DENIED),
    "no answer": (MIG, error(503, "backendError"), timedelta(), None),
    "being created or deleted": (MIG, error(400, "resourceNotReady"), timedelta(), ""),
}


@pytest.mark.parametrize("case", DELETES.values(), ids=DELETES)
def test_a_refused_delete_is_tried_again_or_recorded(
    case: tuple[str, CallError, timedelta, str | None],
) -> None:
    """``None``: the message is tried again; empty: its end triggers the step."""
    kind, refusal, age, reason = case
    known = Status(resources={kind: Resource(RESOURCE, State.DELETING, NOW)})
    its_work, _ = work(refusal, known, age=age)
    if reason is None:
        with pytest.raises(CallError, match="its words"):
            Delete(kind, SPEC).apply(its_work)
        return
    Delete(kind, SPEC).apply(its_work)
    error = its_work.status.resources[kind].error
    assert (error.reason if error is not None else "") == reason
