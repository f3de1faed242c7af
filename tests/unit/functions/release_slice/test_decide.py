# ruff: noqa: E501  (a table reads best with a row on a line)
"""release_slice: a table of observations of a slice and its JobSet, and the plan for each of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from functions.release_slice import is_retry_reported, recover, report_retry
from functions.release_slice.decide import decide, is_report_due, is_superseded
from functions.release_slice.observe import (
    ObservedAll,
    ObservedSlice,
    ObservedSlices,
    select_next,
)
from shared.base.slice_names import job_key, slice_name
from shared.base.timestamps import render_time
from shared.frame.plan import Each, Emit, Fail, Plan, Send
from shared.ports.errors import CallError
from shared.ports.kubernetes.events import Event
from shared.settings import Settings
from shared.slices.actions import (
    AnySliceAction,
    DeleteSlice,
    SetReleaseDeadline,
    SliceActionError,
)
from shared.slices.by_node_group.provider import GroupSlices
from shared.slices.kinds.jobset import JOBSET, find_unit_of
from shared.slices.kinds.kind import Rules
from shared.slices.provider import Slice, SliceState
from shared.slices.units import Need, Unit, UnitState
from shared.slices.work import SliceWork
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import Cause
from shared.triggers.trigger import TimeTrigger
from tests.support import jobset_objects as objects
from tests.support.builders import NOW, merge
from tests.support.jobset_objects import with_condition
from tests.support.reads import reading_slices
from tests.unit.functions.release_slice.objects import (
    COMPLETED,
    DEFAULTS,
    DEGRADED,
    DUE,
    LOST,
    NAME,
    REBUILDS,
    RUNNING,
    SETTINGS,
    SLICE,
    WITH_DEADLINE,
    completed_job,
)

BEING_DELETED = replace(DUE, state=SliceState.DELETING)
SELF_HEALING = replace(LOST, is_self_healing=True)
PROVISIONING = replace(SLICE, state=SliceState.PROVISIONING)
WITH_FOREIGN_DEADLINE = replace(SLICE, release_after=NOW + timedelta(seconds=61))
RELEASES_SUSPENDED = replace(SETTINGS, suspended_release=timedelta(minutes=90))

FAILED = objects.jobset(**with_condition("Failed"))


def suspended(minutes: int) -> dict[str, Any]:
    since = render_time(NOW - timedelta(minutes=minutes))
    return objects.jobset(spec={"suspend": True}, **with_condition("Suspended", since))


def resumed(minutes: int) -> dict[str, Any]:
    """Return a resumed JobSet whose controller has not updated its conditions yet."""
    jobset = suspended(minutes)
    jobset["spec"]["suspend"] = False
    return jobset


ENDING = objects.jobset(metadata={"deletionTimestamp": render_time(NOW)})


def with_jobs(*names: str) -> dict[str, Any]:
    return objects.jobset(spec={"replicatedJobs": [{"name": name} for name in names]})


WITHOUT_TPUS = objects.jobset()
for one in WITHOUT_TPUS["spec"]["replicatedJobs"]:
    one["template"]["spec"]["template"]["spec"] = {"containers": [{"name": "cpu"}]}
MANY_OTHERS = objects.jobset(spec={"replicatedJobs": [{"name": "others", "replicas": 2**31 - 1}]})
UNNUMBERED = replace(
    SLICE,
    name=slice_name("train", job_key("default", "train-workers-x")),
    unit=Unit("JobSet", "default", "train", "train-workers-x"),
)
PADDED = replace(
    SLICE,
    name=slice_name("train", job_key("default", "train-workers-00")),
    unit=Unit("JobSet", "default", "train", "train-workers-00"),
)
SECOND = replace(
    SLICE,
    name=slice_name("train", job_key("default", "train-workers-1")),
    unit=Unit("JobSet", "default", "train", "train-workers-1"),
)


IN_HALF_A_MINUTE = NOW + timedelta(seconds=30)
GONE = Event("TPUNodeGroupNotFound", f"TPUNodeGroup {NAME} was gone before it could be deleted")


def deleting(outcome: str, existing: Slice, why: str) -> Plan:
    started = Event("TPUNodeGroupDeletionStarted", f"Deleting TPUNodeGroup {NAME}: {why}")
    return Plan(outcome, (DeleteSlice(existing, Emit(started), Emit(GONE)),))


def deadline_set(existing: Slice, at: datetime = IN_HALF_A_MINUTE) -> Plan:
    return Plan("DeadlineSet", (SetReleaseDeadline(existing, at),))


def deadline_removed(existing: Slice) -> Plan:
    return Plan("NeededAgain", (SetReleaseDeadline(existing, None),))


NEEDED, WAITING = Plan("Needed"), Plan("Waiting")
DEADLINE_SET = deadline_set(SLICE)
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
    "its JobSet is running": (SLICE, RUNNING, SETTINGS, NEEDED),
    "its JobSet is gone": (SLICE, None, SETTINGS, DEADLINE_SET),
    "its JobSet has completed": (SLICE, COMPLETED, SETTINGS, deleting("Releasing", SLICE, "JobSet train has ended (Completed)")),
    "its JobSet has failed": (SLICE, FAILED, SETTINGS, deleting("Releasing", SLICE, "JobSet train has ended (Failed)")),
    "its JobSet is being deleted": (SLICE, ENDING, SETTINGS, deadline_set(SLICE, NOW + timedelta(minutes=1))),
    "its JobSet is being deleted and suspended": (SLICE, merge(ENDING, suspended(1)), SETTINGS, deadline_set(SLICE, NOW + timedelta(minutes=1))),
    "due, and its JobSet is being deleted": (DUE, ENDING, SETTINGS, deleting("Releasing", DUE, "JobSet train is being deleted")),
    "lost, and its JobSet has failed": (LOST, FAILED, SETTINGS, deleting("Releasing", LOST, "JobSet train has ended (Failed)")),
    "lost, some of its Nodes are ready, and its JobSet has failed": (DEGRADED, FAILED, SETTINGS, deleting("Releasing", DEGRADED, "JobSet train has ended (Failed)")),
    "self-healing, and its JobSet has failed": (SELF_HEALING, FAILED, SETTINGS, deleting("Releasing", SELF_HEALING, "JobSet train has ended (Failed)")),
    "being created, and its JobSet is gone": (PROVISIONING, None, SETTINGS, deadline_set(PROVISIONING)),
    "its deadline is ahead": (WITH_DEADLINE, None, SETTINGS, WAITING),
    "its deadline is later than this system sets it": (WITH_FOREIGN_DEADLINE, None, SETTINGS, deadline_set(WITH_FOREIGN_DEADLINE)),
    "its deadline is ahead, and its JobSet exists again": (WITH_DEADLINE, RUNNING, SETTINGS, deadline_removed(WITH_DEADLINE)),
    "due, and its JobSet exists again": (DUE, RUNNING, SETTINGS, deadline_removed(DUE)),
    "due, and its JobSet is gone": (DUE, None, SETTINGS, deleting("Releasing", DUE, "JobSet train no longer exists")),
    "due, and its JobSet has ended": (DUE, COMPLETED, SETTINGS, deleting("Releasing", DUE, "JobSet train has ended (Completed)")),
    "being deleted": (BEING_DELETED, None, SETTINGS, Plan("Deleting")),
    "its JobSet no longer has its Job": (SLICE, with_jobs("others"), SETTINGS, DEADLINE_SET),
    "its JobSet was created again without a spec": (SLICE, {key: value for key, value in RUNNING.items() if key != "spec"}, SETTINGS, DEADLINE_SET),
    "due, and its JobSet no longer has its Job": (
        DUE,
        with_jobs("others"),
        SETTINGS,
        deleting("Releasing", DUE, "JobSet train has no Job train-workers-0 any more"),
    ),
    "its JobSet has an empty spec": (SLICE, objects.jobset(spec=None), SETTINGS, DEADLINE_SET),
    "its JobSet has been suspended since an impossible time": (
        SLICE,
        objects.jobset(
            spec={"suspend": True}, **with_condition("Suspended", "0000-01-01T00:00:00Z")
        ),
        RELEASES_SUSPENDED,
        NEEDED,
    ),
    "its JobSet has its Job by the default number of replicas": (SLICE, with_jobs("others", "workers"), SETTINGS, NEEDED),
    "its JobSet has fewer replicas than before": (SECOND, with_jobs("workers"), SETTINGS, deadline_set(SECOND)),
    "its labels name a Job without an index": (UNNUMBERED, RUNNING, SETTINGS, deadline_set(UNNUMBERED)),
    "its labels name a Job with another number of digits": (PADDED, RUNNING, SETTINGS, deadline_set(PADDED)),
    "due, and its JobSet was created again without TPUs": (
        DUE,
        WITHOUT_TPUS,
        SETTINGS,
        deleting("Releasing", DUE, "Job train-workers-0 of JobSet train asks for no TPUs now"),
    ),
    "its JobSet has 2147483647 other Jobs": (SLICE, MANY_OTHERS, SETTINGS, DEADLINE_SET),
    "its owner is no Job of a JobSet": (replace(SLICE, unit=Unit("JobSet", "default", "train", "rs-1")), with_jobs("others"), SETTINGS, NEEDED),
    "suspended, and suspension releases no slice": (SLICE, suspended(1000), SETTINGS, NEEDED),
    "suspended for 89 of 90 minutes": (SLICE, suspended(89), RELEASES_SUSPENDED, NEEDED),
    "suspended for 90 minutes": (SLICE, suspended(90), RELEASES_SUSPENDED, DEADLINE_SET),
    "due, and suspended for 91 minutes": (DUE, suspended(91), RELEASES_SUSPENDED, deleting("Releasing", DUE, "JobSet train has been suspended for 91 minutes")),
    "suspended without a condition yet": (SLICE, objects.jobset(spec={"suspend": True}), RELEASES_SUSPENDED, NEEDED),
    "its deadline is ahead, and it is suspended for a minute": (WITH_DEADLINE, suspended(1), RELEASES_SUSPENDED, deadline_removed(WITH_DEADLINE)),
    "due, and resumed": (DUE, RUNNING, RELEASES_SUSPENDED, deadline_removed(DUE)),
    "due, and resumed without a new condition yet": (DUE, resumed(1000), RELEASES_SUSPENDED, deadline_removed(DUE)),
    "lost, and suspended": (LOST, suspended(1), RELEASES_SUSPENDED, LOSS),
    "lost": (LOST, RUNNING, SETTINGS, LOSS),
    "lost for 29 of 30 minutes": (replace(LOST, since=NOW - timedelta(minutes=29)), RUNNING, REBUILDS, LOSS),
    "lost for 30 minutes": (LOST, RUNNING, REBUILDS, deleting("Rebuilding", LOST, "Preempted: gone")),
    "lost a moment ago, by default": (replace(LOST, since=NOW), RUNNING, DEFAULTS, deleting("Rebuilding", replace(LOST, since=NOW), "Preempted: gone")),
    "it may recover, by default": (replace(LOST, is_self_healing=True), RUNNING, DEFAULTS, NEEDED),
    "lost at an unknown time": (replace(LOST, since=None), RUNNING, REBUILDS, LOSS),
    "self-healing": (SELF_HEALING, RUNNING, REBUILDS, NEEDED),
}  # fmt: skip


def rules_of(existing: Slice, settings: Settings) -> Rules:
    is_ours = existing.name == existing.unit.slice_name
    others = frozenset() if is_ours else frozenset([existing.unit])
    return Rules(NOW, settings.suspended_release, named_by_others=others)


def observed(
    existing: Slice,
    jobset: dict[str, Any] | None,
    settings: Settings = SETTINGS,
    users: tuple[str, ...] = (),
    users_error: CallError | None = None,
    job: dict[str, Any] | None = None,
) -> ObservedSlice:
    state = JOBSET.find_job_state(existing.unit, jobset, job, rules_of(existing, settings))
    return ObservedSlice(existing, state, settings, GroupSlices, users, users_error)


def decide_about(*slices: ObservedSlice) -> Plan:
    return decide(ObservedSlices(slices), NOW)


def about_one(existing: Slice, plan: Plan) -> Plan:
    """Return the plan about one slice of a message, which may name several."""
    each = Each(existing.name, plan.first, plan.outcome, plan.note)
    return Plan(plan.outcome, each=(each,))


@pytest.mark.conformance(
    cases={
        "its JobSet is gone": "delete-jobset-gone delete-node-without-pool-label delete-node-too-young "
        "delete-node-shutting-down delete-second-check-delay-unused "
        "gc-error-jobset-gone-no-nodes gc-nodes-exist",
        "being created, and its JobSet is gone": "delete-pool-without-nodes-running gc-not-error",
        "lost": "delete-node-unknown-for-long gc-jobset-exists",
        "lost, and its JobSet has failed": "delete-pool-error-jobset-finished gc-jobset-finished",
        "due, and its JobSet has ended": "delete-jobset-completed",
        "its JobSet is running": "delete-jobset-running",
        "its deadline is ahead": "config-min-lifespan-zero",
    }
)
@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_the_plan_for_a_slice_follows_from_its_state_and_its_jobset(case: Case) -> None:
    existing, jobset, settings, plan = case
    assert decide_about(observed(existing, jobset, settings)) == about_one(existing, plan)


COUNTING = merge(RUNNING, {"metadata": {"uid": "jobset-uid"}, "status": {"restarts": 1}})
JOBS: dict[str, tuple[dict[str, Any] | None, dict[str, Any], Plan]] = {
    "does not exist": (None, COUNTING, NEEDED),
    "has completed": (completed_job(), COUNTING, DEADLINE_SET),
    "has not completed": (completed_job(status={"conditions": None}), COUNTING, NEEDED),
    "may complete": (completed_job(status={"conditions": [{"type": "Complete", "status": "False"}]}), COUNTING, NEEDED),
    "has failed": (completed_job(status={"conditions": [{"type": "Failed", "status": "True"}]}), COUNTING, NEEDED),
    "has completed, and is being deleted": (completed_job(metadata={"deletionTimestamp": render_time(NOW)}), COUNTING, NEEDED),
    "had completed before a restart": (completed_job(), merge(COUNTING, {"status": {"restarts": 2}}), NEEDED),
    "had completed before the first restart": (completed_job("0"), COUNTING, NEEDED),
    "has completed without a restart": (completed_job("0"), merge(COUNTING, {"status": {"restarts": None}}), DEADLINE_SET),
    "is of a JobSet of the same name that was deleted": (completed_job(), merge(COUNTING, {"metadata": {"uid": "new-uid"}}), NEEDED),
    "is of no JobSet": (completed_job(metadata={"ownerReferences": None}), COUNTING, NEEDED),
    "has completed, and its JobSet is suspended": (completed_job(), merge(COUNTING, {"spec": {"suspend": True}}), DEADLINE_SET),
}  # fmt: skip


@pytest.mark.parametrize("job, jobset, plan", JOBS.values(), ids=JOBS)
def test_the_slice_of_a_job_that_has_completed_for_good_is_released(
    job: dict[str, Any] | None, jobset: dict[str, Any], plan: Plan
) -> None:
    one = observed(SLICE, jobset, job=job)
    assert decide_about(one) == about_one(SLICE, plan)


def test_the_end_of_a_creation_changes_one_slice_and_triggers_the_following() -> None:
    plan = decide(ObservedSlices((observed(DUE, None),), (SECOND,)), NOW)
    assert plan.outcome == "Releasing"
    assert plan.each == decide_about(observed(DUE, None)).each
    (send,) = plan.first
    assert isinstance(send, Send)
    assert [(send.step, one.name, one.cause) for one in send.messages] == [
        ("release_slice", SECOND.name, Cause.RESYNC)
    ]
    assert plan.facts == {"triggered": 1}
    assert decide(ObservedSlices((), ()), NOW) == Plan("NoSlice", facts={"triggered": 0})


def test_a_slice_in_use_is_not_deleted_until_its_pods_end() -> None:
    in_use = Event(
        "TPUNodeGroupInUse",
        f"TPUNodeGroup {NAME} is not deleted yet, because Pods of Job default/other run on it: it is "
        "deleted when they have ended, at the latest ten minutes after the grace period of their "
        "deletion",
    )
    plan = Plan("InUse", (Emit(in_use, once=True),))
    users = ("Job default/other",)
    for one in (observed(DUE, None, users=users), observed(DEGRADED, RUNNING, REBUILDS, users)):
        assert decide_about(one) == about_one(one.existing, plan)


def test_a_slice_whose_pods_cannot_be_read_is_not_deleted_and_a_transient_error_is_retried() -> (
    None
):
    forbidden = CallError("GET /api/v1/pods", 403, "Forbidden", "no")
    reported = Event("TPUNodeGroupDeletionFailed", str(forbidden), is_warning=True)
    busy = CallError("GET /api/v1/pods", 429, "TooManyRequests", "later")
    assert decide_about(observed(DUE, None, users_error=forbidden)) == about_one(
        DUE, Plan("PermissionDenied", (Emit(reported),), note=str(forbidden))
    )
    assert decide_about(observed(DUE, None, users_error=busy)) == about_one(
        DUE, Plan("Failed", (Fail(busy),))
    )


def test_the_outcome_of_a_jobset_joins_the_outcomes_of_its_slices() -> None:
    assert decide_about() == Plan("NoSlice")
    plan = decide_about(observed(DUE, None), observed(SLICE, None), observed(DUE, None))
    assert plan.outcome == "DeadlineSet,Releasing"


@pytest.mark.parametrize("deadline", [NOW, None], ids=["set", "removed"])
def test_only_a_deadline_that_is_removed_may_fail(deadline: datetime | None) -> None:
    """While the owner needs the slice, its deadline has no effect."""
    error = CallError("PATCH x", 403, "Forbidden", "may not patch")
    work, _ = reading_slices(SliceWork, TimeTrigger(NOW), {"set_release_deadline": error})
    action = SetReleaseDeadline(SLICE, deadline)
    if deadline is not None:
        with pytest.raises(SliceActionError, match="may not patch"):
            action.apply(work)
        return
    action.apply(work)
    assert work.facts["left_undone"] == [str(error)]


def action_error(action: AnySliceAction, http: int) -> SliceActionError:
    reason = "forbidden" if http == 403 else "because"
    return SliceActionError(action, CallError("call", http, reason, "no"))


def work(*slices: ObservedSlice, limit: int | None = None) -> SliceWork:
    """Return the work about slices whose Nodes have no Pods."""
    provider = SimpleNamespace(
        noun=GroupSlices.noun, event_prefix=GroupSlices.event_prefix, concurrency_limit=limit
    )
    cluster = SimpleNamespace(list_nodes_of_slice=lambda _: [], list_pods_on=lambda _: [])
    observed = ObservedSlices(slices)
    found = SimpleNamespace(observed=observed, provider=provider, cluster=cluster, now=NOW)
    return cast("SliceWork", found)


def denied(error: CallError) -> Plan:
    event = Event("TPUNodeGroupDeletionFailed", str(error), is_warning=True)
    return Plan("PermissionDenied", (Emit(event),), note=str(error))


SETTING, DELETING = SetReleaseDeadline(SLICE, IN_HALF_A_MINUTE), DeleteSlice(DUE)
ACTION_ERRORS: dict[str, tuple[CallError, int | None, Plan | None]] = {
    "no free slot": (
        action_error(DELETING, 429),
        5,
        Plan("Queued", note=str(action_error(DELETING, 429))),
    ),
    "too many calls": (action_error(DELETING, 429), None, None),
    "forbidden to delete": (action_error(DELETING, 403), None, denied(action_error(DELETING, 403))),
    "forbidden to set the deadline": (
        action_error(SETTING, 403),
        None,
        deleting(
            "Releasing",
            SLICE,
            "no JobSet needs it, and its release deadline cannot be written: call: 403 forbidden: no",
        ),
    ),
    "changed concurrently": (action_error(SETTING, 412), None, None),
    "unavailable": (action_error(SETTING, 503), None, None),
    "a forbidden read": (CallError("GET /x", 403, "Forbidden", "no"), None, None),
}


@pytest.mark.parametrize("case", ACTION_ERRORS.values(), ids=ACTION_ERRORS)
def test_a_failed_action_is_followed_by_the_expected_recovery(
    case: tuple[CallError, int | None, Plan | None],
) -> None:
    error, limit, plan = case
    assert recover(work(observed(SLICE, None), observed(DUE, None), limit=limit), error) == plan


def test_the_sweep_retries_a_deletion_that_is_not_reported_yet() -> None:
    """Ten minutes long, no Event is written; the message itself is not retried."""
    for now, events in ((NOW, 0), (NOW + timedelta(minutes=10), 1)):
        answers: dict[str, Any] = {
            "find_owner": None,
            "list_nodes_of_slice": [],
            "list_pods_on": [],
        }
        about, _ = reading_slices(SliceWork, TimeTrigger(now), answers)
        plan = report_retry(replace(about, now=now), action_error(DELETING, 503))
        assert plan is not None
        assert (plan.outcome, len(plan.first)) == ("GivenUp", events)


DELETION = LogEvent(
    "container.nodePools.delete", "p", "us-central1", NAME, "nodePools", cluster="c"
)
LATE_ENTRIES: dict[str, tuple[LogEvent, Slice | None, bool]] = {
    "deleted, and no slice exists": (DELETION, None, False),
    "deleted, and another is being deleted": (DELETION, BEING_DELETED, False),
    "deleted, and the slice exists": (DELETION, SLICE, True),
    "not deleted, and the slice exists": (replace(DELETION, has_failed=True), SLICE, False),
    "not deleted, and no slice exists": (replace(DELETION, has_failed=True), None, True),
}


@pytest.mark.parametrize("case", LATE_ENTRIES.values(), ids=LATE_ENTRIES)
def test_a_late_entry_about_a_deletion_is_superseded_by_the_current_state_of_the_slice(
    case: tuple[LogEvent, Slice | None, bool],
) -> None:
    event, existing, expected = case
    assert is_superseded(event, existing) is expected


SWEEP_CASES: dict[str, tuple[ObservedSlice, bool, bool]] = {
    "an action is due": (observed(SLICE, None), True, False),
    "no action is due": (observed(SLICE, RUNNING), False, False),
    "the deadline is ahead": (observed(WITH_DEADLINE, None), False, False),
    "a loss a minute ago": (observed(replace(LOST, since=NOW - timedelta(minutes=1)), RUNNING), False, True),
    "a loss half a minute ago": (observed(replace(LOST, since=NOW - timedelta(seconds=30)), RUNNING), False, False),
    "a loss at an unknown time": (observed(replace(LOST, since=None), RUNNING), False, True),
}  # fmt: skip


def test_a_report_that_was_due_in_the_minute_of_the_message_is_made_by_a_late_run() -> None:
    lost = observed(replace(LOST, since=NOW - timedelta(minutes=31)), RUNNING)
    late = NOW + timedelta(minutes=1)
    assert (is_report_due(lost, NOW), is_report_due(lost, late)) == (True, False)
    assert decide(ObservedAll((lost,), None, NOW), late).facts == {"triggered": 1}
    assert decide(ObservedAll((lost,), None, late), late).facts == {"triggered": 0}


@pytest.mark.parametrize("case", SWEEP_CASES.values(), ids=SWEEP_CASES)
def test_the_sweep_finds_due_changes_and_due_reports(
    case: tuple[ObservedSlice, bool, bool],
) -> None:
    one, is_changed, is_reported = case
    assert (one.is_change_due(NOW), is_report_due(one, NOW)) == (is_changed, is_reported)


def test_the_sweep_reports_once_that_jobsets_cannot_be_read_and_goes_on_with_other_slices() -> None:
    busy = CallError("GET /apis/jobset.x-k8s.io/v1alpha2/jobsets", 503, "NotServed", "no")
    unknown = UnitState(Need.NEEDED, error=busy)
    of_jobsets = (
        replace(observed(replace(SLICE, name=name), None), state=unknown, users_error=busy)
        for name in "ab"
    )
    plan = decide(ObservedAll((*of_jobsets, observed(DUE, None)), None, NOW), NOW)
    assert (plan.facts, plan.errors) == ({"triggered": 1}, (busy,))


def test_the_slices_that_are_due_longest_are_selected_first_then_those_without_a_deadline() -> None:
    older, undated = replace(DUE, name="older", release_after=NOW - timedelta(minutes=1)), SLICE
    selected = select_next([observed(one, None) for one in (undated, DUE, older)], 4, NOW)
    assert selected == [older, DUE, undated]


def test_the_jobset_of_a_deleted_slice_is_found_by_the_name_of_the_slice() -> None:
    others = objects.jobset(metadata={"name": "others"})
    assert find_unit_of(NAME, [others, RUNNING]) == SLICE.unit
    assert find_unit_of(NAME, [others]) is None
    assert find_unit_of(NAME, [MANY_OTHERS, RUNNING]) == SLICE.unit


ENDED_AT = NOW - timedelta(minutes=12)
TEN_MINUTES = timedelta(minutes=10)
LONG_DUE = replace(DUE, release_after=NOW - TEN_MINUTES)
JUST_ENDED, LONG_ENDED = (
    objects.jobset(**with_condition("Completed", render_time(NOW - age)))
    for age in (TEN_MINUTES - timedelta(seconds=1), TEN_MINUTES)
)
RETRIES: dict[str, tuple[Slice, dict[str, Any] | None, Settings, bool]] = {
    "a JobSet that needs it": (SLICE, RUNNING, SETTINGS, False),
    "no JobSet, and no deadline could be written": (SLICE, None, SETTINGS, False),
    "no JobSet for less than ten minutes": (DUE, None, SETTINGS, False),
    "no JobSet for ten minutes": (LONG_DUE, None, SETTINGS, True),
    "a JobSet that has just ended": (LONG_DUE, JUST_ENDED, SETTINGS, False),
    "a JobSet that ended ten minutes ago": (DUE, LONG_ENDED, SETTINGS, True),
    "a JobSet without its Job": (LONG_DUE, with_jobs("others"), SETTINGS, True),
    "a suspended JobSet whose slices are not released": (LONG_DUE, suspended(600), SETTINGS, False),
    "a suspended JobSet whose slices are released later": (
        LONG_DUE,
        suspended(89),
        RELEASES_SUSPENDED,
        False,
    ),
    "a JobSet that was suspended for nine minutes more than the limit": (
        SLICE,
        suspended(99),
        RELEASES_SUSPENDED,
        False,
    ),
    "a JobSet that was suspended for ten minutes more than the limit": (
        SLICE,
        suspended(100),
        RELEASES_SUSPENDED,
        True,
    ),
}


@pytest.mark.parametrize("case", RETRIES.values(), ids=RETRIES)
def test_a_retried_error_is_reported_if_the_release_of_the_slice_is_due_for_ten_minutes(
    case: tuple[Slice, dict[str, Any] | None, Settings, bool],
) -> None:
    existing, jobset, settings, is_reported = case
    state = JOBSET.find_job_state(existing.unit, jobset, None, rules_of(existing, settings))
    one = ObservedSlice(existing, state, settings, cast("Any", None))
    assert is_retry_reported(one, NOW) is is_reported
