"""What is done about a slice as its JobSet stands: a table of what is seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from functions.release_slice import (
    ObservedSlice,
    ObservedSlices,
    decide,
    find_jobset_of,
    is_change_due,
    is_report_due,
    is_superseded,
    recover,
    select,
)
from shared.base.errors import CallError
from shared.base.timestamps import render_time
from shared.frame.audit_log import LogEvent
from shared.frame.plan import Emit, Fail, Plan
from shared.frame.settings import Settings
from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.ports.kubernetes.events import Event
from shared.slices.actions import (
    AnySliceAction,
    DeleteSlice,
    EmitDeletion,
    SetReleaseDeadline,
    SliceActionError,
)
from shared.slices.by_node_group.provider import GroupSlices
from shared.slices.jobsets import job_key
from shared.slices.provider import Owner, Slice, SliceState, slice_name
from shared.slices.work import SliceWork
from tests import jobset_objects as objects
from tests.jobset_objects import JOB, with_condition
from tests.unit.builders import NOW

NAME = "train-bfcf5ebea76efcf5"
SLICE = Slice(NAME, Owner("default", "train", JOB), "hash", SliceState.READY)
MARKED = replace(SLICE, release_after=NOW + timedelta(seconds=1))
DUE = replace(SLICE, release_after=NOW)
GOING = replace(DUE, state=SliceState.DELETING)
LOST = replace(
    SLICE, state=SliceState.FAILED, message="Preempted: gone", since=NOW - timedelta(minutes=30)
)
TROUBLED = replace(LOST, is_self_healing=True)
DEGRADED = replace(LOST, has_ready_nodes=True)
COMING = replace(SLICE, state=SliceState.PROVISIONING)
MARKED_BY_OTHERS = replace(SLICE, release_after=NOW + timedelta(seconds=61))
SETTINGS = Settings("p", "", frozenset(), Kubeconfig(""), "", timedelta(minutes=15))
REBUILDS = replace(SETTINGS, lost_rebuild=timedelta(minutes=30))
LETS_GO = replace(SETTINGS, suspended_release=timedelta(minutes=90))

ALIVE = objects.jobset()
COMPLETED = objects.jobset(**with_condition("Completed"))
FAILED = objects.jobset(**with_condition("Failed"))


def suspended(minutes: int) -> dict[str, Any]:
    since = render_time(NOW - timedelta(minutes=minutes))
    return objects.jobset(spec={"suspend": True}, **with_condition("Suspended", since))


def resumed(minutes: int) -> dict[str, Any]:
    """A JobSet that its controller has not looked at since."""
    jobset = suspended(minutes)
    jobset["spec"]["suspend"] = False
    return jobset


def with_jobs(*names: str) -> dict[str, Any]:
    return objects.jobset(spec={"replicatedJobs": [{"name": name} for name in names]})


MANY_OTHERS = objects.jobset(spec={"replicatedJobs": [{"name": "others", "replicas": 2**31 - 1}]})
UNNUMBERED = replace(
    SLICE,
    name=slice_name("train", job_key("default", "train-workers-x")),
    owner=Owner("default", "train", "train-workers-x"),
)
SECOND = replace(
    SLICE,
    name=slice_name("train", job_key("default", "train-workers-1")),
    owner=Owner("default", "train", "train-workers-1"),
)


IN_HALF_A_MINUTE = NOW + timedelta(seconds=30)
GONE = Event("TPUNodeGroupNotFound", f"TPUNodeGroup {NAME} was gone before it could be deleted")


def deleting(outcome: str, existing: Slice, why: str) -> Plan:
    started = Event("TPUNodeGroupDeletionStarted", f"Deleting TPUNodeGroup {NAME}: {why}")
    return Plan(outcome, (DeleteSlice(existing), EmitDeletion(started, if_gone=GONE)))


def marking(existing: Slice) -> Plan:
    return Plan("DeadlineSet", (SetReleaseDeadline(existing, IN_HALF_A_MINUTE),))


def keeping(existing: Slice) -> Plan:
    return Plan("NeededAgain", (SetReleaseDeadline(existing, None),))


WANTED, WAIT = Plan("Needed"), Plan("Waiting")
MARK = marking(SLICE)
LOSS = Plan(
    "Lost",
    (
        Emit(
            Event(
                "TPUNodeGroupLost",
                f"TPUNodeGroup {NAME} does not recover by itself: Preempted: gone",
                is_warning=True,
            ),
            once=True,
        ),
    ),
)
Case = tuple[Slice, dict[str, Any] | None, Settings, Plan]
TABLE: dict[str, Case] = {
    "its JobSet lives": (SLICE, ALIVE, SETTINGS, WANTED),
    "its JobSet is gone": (SLICE, None, SETTINGS, MARK),
    "its JobSet has completed": (SLICE, COMPLETED, SETTINGS, MARK),
    "its JobSet has failed": (SLICE, FAILED, SETTINGS, MARK),
    "in trouble, and its JobSet has failed": (
        LOST,
        FAILED,
        SETTINGS,
        deleting("Releasing", LOST, "JobSet train has ended (Failed)"),
    ),
    "in trouble, some of its Nodes are ready, and its JobSet has failed": (
        DEGRADED,
        FAILED,
        SETTINGS,
        marking(DEGRADED),
    ),
    "in trouble that mends itself, and its JobSet has failed": (
        TROUBLED,
        FAILED,
        SETTINGS,
        marking(TROUBLED),
    ),
    "being made, and its JobSet is gone": (
        COMING,
        None,
        SETTINGS,
        marking(COMING),
    ),
    "marked": (MARKED, None, SETTINGS, WAIT),
    "marked by somebody for later than we ever would": (
        MARKED_BY_OTHERS,
        None,
        SETTINGS,
        marking(MARKED_BY_OTHERS),
    ),
    "marked, and its JobSet is there again": (MARKED, ALIVE, SETTINGS, keeping(MARKED)),
    "due, and its JobSet is there again": (DUE, ALIVE, SETTINGS, keeping(DUE)),
    "due, and its JobSet is gone": (
        DUE,
        None,
        SETTINGS,
        deleting("Releasing", DUE, "JobSet train no longer exists"),
    ),
    "due, and its JobSet has ended": (
        DUE,
        COMPLETED,
        SETTINGS,
        deleting("Releasing", DUE, "JobSet train has ended (Completed)"),
    ),
    "being deleted": (GOING, None, SETTINGS, Plan("Deleting")),
    "its JobSet has its Job no more": (SLICE, with_jobs("others"), SETTINGS, MARK),
    "its JobSet was made again without anything": (
        SLICE,
        {key: value for key, value in ALIVE.items() if key != "spec"},
        SETTINGS,
        MARK,
    ),
    "due, and its JobSet has its Job no more": (
        DUE,
        with_jobs("others"),
        SETTINGS,
        deleting("Releasing", DUE, "JobSet train has no Job train-workers-0 any more"),
    ),
    "its JobSet says nothing of any Job": (SLICE, objects.jobset(spec=None), SETTINGS, MARK),
    "its JobSet has been suspended since no time that can be": (
        SLICE,
        objects.jobset(
            spec={"suspend": True}, **with_condition("Suspended", "0000-01-01T00:00:00Z")
        ),
        LETS_GO,
        WANTED,
    ),
    "its JobSet has its Job by default": (SLICE, with_jobs("others", "workers"), SETTINGS, WANTED),
    "its JobSet has fewer Jobs than it had": (
        SECOND,
        with_jobs("workers"),
        SETTINGS,
        marking(SECOND),
    ),
    "its labels name a Job that is none": (UNNUMBERED, ALIVE, SETTINGS, marking(UNNUMBERED)),
    "its JobSet has more Jobs than anybody can count": (
        SLICE,
        MANY_OTHERS,
        SETTINGS,
        MARK,
    ),
    "made for something that is no JobSet's Job": (
        replace(SLICE, owner=Owner("default", "train", "rs-1")),
        with_jobs("others"),
        SETTINGS,
        WANTED,
    ),
    "suspended, and nobody minds": (SLICE, suspended(1000), SETTINGS, WANTED),
    "suspended for a while": (SLICE, suspended(89), LETS_GO, WANTED),
    "suspended for long": (SLICE, suspended(90), LETS_GO, MARK),
    "due, and suspended for long": (
        DUE,
        suspended(91),
        LETS_GO,
        deleting("Releasing", DUE, "JobSet train has been suspended for 91 minutes"),
    ),
    "suspended just now": (SLICE, objects.jobset(spec={"suspend": True}), LETS_GO, WANTED),
    "marked, and suspended again": (MARKED, suspended(1), LETS_GO, keeping(MARKED)),
    "resumed": (DUE, ALIVE, LETS_GO, keeping(DUE)),
    "resumed this moment": (DUE, resumed(1000), LETS_GO, keeping(DUE)),
    "lost, and suspended": (LOST, suspended(1), LETS_GO, LOSS),
    "lost": (LOST, ALIVE, SETTINGS, LOSS),
    "lost for a while": (
        replace(LOST, since=NOW - timedelta(minutes=29)),
        ALIVE,
        REBUILDS,
        LOSS,
    ),
    "lost for long": (LOST, ALIVE, REBUILDS, deleting("Rebuilding", LOST, "Preempted: gone")),
    "lost, nobody knows since when": (replace(LOST, since=None), ALIVE, REBUILDS, LOSS),
    "in trouble that mends itself": (TROUBLED, ALIVE, REBUILDS, WANTED),
}


def observed(
    existing: Slice,
    jobset: dict[str, Any] | None,
    settings: Settings = SETTINGS,
    users: tuple[str, ...] = (),
    users_error: CallError | None = None,
) -> ObservedSlice:
    return ObservedSlice(existing, jobset, settings, GroupSlices, users, users_error)


def decide_about(*slices: ObservedSlice) -> Plan:
    return decide(ObservedSlices(slices), NOW)


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_what_is_done(case: Case) -> None:
    existing, jobset, settings, plan = case
    assert decide_about(observed(existing, jobset, settings)) == Plan(plan.outcome, parts=(plan,))


def test_what_pods_run_on_stays_until_they_end() -> None:
    in_use = Event(
        "TPUNodeGroupInUse",
        f"TPUNodeGroup {NAME} is not deleted yet, because Job default/other uses it: it is deleted "
        "when that Job has ended",
    )
    plan = Plan("InUse", (Emit(in_use, once=True),))
    users = ("default/other",)
    for one in (observed(DUE, None, users=users), observed(DEGRADED, ALIVE, REBUILDS, users)):
        assert decide_about(one) == Plan("InUse", parts=(plan,))


def test_a_slice_whose_pods_cannot_be_read_stays_and_is_tried_again_if_that_may_help() -> None:
    refused = CallError("GET /api/v1/pods", 403, "Forbidden", "no")
    reported = Event("TPUNodeGroupDeletionFailed", str(refused), is_warning=True)
    busy = CallError("GET /api/v1/pods", 429, "TooManyRequests", "later")
    assert decide_about(observed(DUE, None, users_error=refused)).parts == (
        Plan("PermissionDenied", (Emit(reported),), note=str(refused)),
    )
    assert decide_about(observed(DUE, None, users_error=busy)).parts == (
        Plan("Failed", (Fail(busy),)),
    )


def test_the_outcome_of_a_jobset_is_that_of_all_its_slices() -> None:
    assert decide_about() == Plan("NoSlice")
    plan = decide_about(observed(DUE, None), observed(SLICE, None), observed(DUE, None))
    assert plan.outcome == "DeadlineSet,Releasing"


def refused(action: AnySliceAction, http: int) -> SliceActionError:
    reason = "forbidden" if http == 403 else "because"
    return SliceActionError(action, CallError("call", http, reason, "no"))


def work(*slices: ObservedSlice, limit: int | None = None) -> SliceWork:
    """Work on slices on whose Nodes nothing runs."""
    provider = SimpleNamespace(
        noun=GroupSlices.noun, event_prefix=GroupSlices.event_prefix, concurrency_limit=limit
    )
    cluster = SimpleNamespace(list_nodes_of_slice=lambda _: [], list_pods_on=lambda _: [])
    observed = ObservedSlices(slices)
    made = SimpleNamespace(observed=observed, provider=provider, cluster=cluster, now=NOW)
    return cast("SliceWork", made)


def failing(error: CallError) -> Plan:
    event = Event("TPUNodeGroupDeletionFailed", str(error), is_warning=True)
    return Plan("PermissionDenied", (Emit(event),), note=str(error))


SETTING, DELETING = SetReleaseDeadline(SLICE, IN_HALF_A_MINUTE), DeleteSlice(DUE)
REMOVING = SetReleaseDeadline(DUE, None)
REFUSALS: dict[str, tuple[CallError, int | None, Plan | None]] = {
    "no room": (refused(DELETING, 429), 5, Plan("Queued", note=str(refused(DELETING, 429)))),
    "too many calls": (refused(DELETING, 429), None, None),
    "forbidden to delete": (refused(DELETING, 403), None, failing(refused(DELETING, 403))),
    "forbidden to remove the deadline": (
        refused(REMOVING, 403),
        None,
        failing(refused(REMOVING, 403)),
    ),
    "forbidden to set the deadline": (
        refused(SETTING, 403),
        None,
        deleting(
            "Releasing",
            SLICE,
            "no JobSet needs it, and its release deadline cannot be written: call: 403 forbidden: no",
        ),
    ),
    "changed meanwhile": (refused(SETTING, 412), None, None),
    "busy": (refused(SETTING, 503), None, None),
    "a read that was forbidden": (CallError("GET /x", 403, "Forbidden", "no"), None, None),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_what_is_done_about_a_refusal(case: tuple[CallError, int | None, Plan | None]) -> None:
    error, limit, plan = case
    assert recover(work(observed(SLICE, None), observed(DUE, None), limit=limit), error) == plan


DELETION = LogEvent("container.nodePools.delete", "p", "us-central1", NAME, cluster="c")
LATE_ENTRIES: dict[str, tuple[LogEvent, Slice | None, bool]] = {
    "deleted, and nothing there": (DELETION, None, False),
    "deleted, and another is being deleted": (DELETION, GOING, False),
    "deleted, and there": (DELETION, SLICE, True),
    "not deleted, and there": (replace(DELETION, has_failed=True), SLICE, False),
    "not deleted, and nothing there": (replace(DELETION, has_failed=True), None, True),
}


@pytest.mark.parametrize("case", LATE_ENTRIES.values(), ids=LATE_ENTRIES)
def test_a_late_entry_about_a_deletion_is_superseded_by_what_exists_now(
    case: tuple[LogEvent, Slice | None, bool],
) -> None:
    event, existing, expected = case
    assert is_superseded(event, existing) is expected


IN_QUESTION: dict[str, tuple[ObservedSlice, bool, bool]] = {
    "something to do": (observed(SLICE, None), True, False),
    "nothing to do": (observed(SLICE, ALIVE), False, False),
    "no time yet": (observed(MARKED, None), False, False),
    "something to tell, lately": (
        observed(replace(LOST, since=NOW - timedelta(minutes=1)), ALIVE),
        False,
        True,
    ),
    "something told": (
        observed(replace(LOST, since=NOW - timedelta(seconds=30)), ALIVE),
        False,
        False,
    ),
    "something to tell, nobody knows since when": (
        observed(replace(LOST, since=None), ALIVE),
        False,
        True,
    ),
}


@pytest.mark.parametrize("case", IN_QUESTION.values(), ids=IN_QUESTION)
def test_which_slices_the_sweep_acts_on_or_reports(
    case: tuple[ObservedSlice, bool, bool],
) -> None:
    one, is_changed, is_told = case
    assert (is_change_due(one, NOW), is_report_due(one, NOW)) == (is_changed, is_told)


def test_those_that_are_due_for_longest_go_first_and_then_those_that_have_no_mark() -> None:
    older, unmarked = replace(DUE, name="older", release_after=NOW - timedelta(minutes=1)), SLICE
    assert select([unmarked, DUE, older], 4, NOW)[:2] == [older, DUE]
    assert set(select([unmarked, DUE, older], 4, NOW)) == {older, DUE, unmarked}


def test_a_slice_leads_to_its_jobset_when_it_is_gone() -> None:
    others = objects.jobset(metadata={"name": "others"})
    assert find_jobset_of(NAME, [others, ALIVE]) == ALIVE
    assert find_jobset_of(NAME, [others]) is None
    assert find_jobset_of(NAME, [MANY_OTHERS, ALIVE]) == ALIVE
