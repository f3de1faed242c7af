# ruff: noqa: E501  (a table reads best with a row on a line)
"""provision_slice: a table of observations of a waiting Pod, and the plan for each of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import process_time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from functions.provision_slice import recover
from functions.provision_slice.decide import decide
from functions.provision_slice.observe import ObservedImpossible, ObservedOperation, ObservedPod
from functions.provision_slice.waiting import (
    PodsWithoutSlice,
    build_message,
    leads_unit_of,
    select_leaders,
)
from shared.base import backoff
from shared.base.names import JOBSET_NAME
from shared.base.reasons import Reason, find_advice
from shared.base.timestamps import render_time
from shared.frame.plan import Action, Emit, Plan, Send
from shared.ports.errors import CallError
from shared.ports.kubernetes.events import Event
from shared.slices.actions import (
    AnySliceAction,
    CreateSlice,
    DeleteSlice,
    ReserveSlice,
    SetReleaseDeadline,
    SliceActionError,
    UpdateClass,
)
from shared.slices.by_node_group.provider import GroupSlices
from shared.slices.candidates import ClaimCandidate, Forget, Move, RecordRefusal
from shared.slices.classes import Place, Refusal, Shape, SliceClass
from shared.slices.kinds import Leader
from shared.slices.kinds.jobset import JOBSET as KIND
from shared.slices.limits import Limit, Quota
from shared.slices.provider import DesiredSlice, NameConflict, Slice, SliceState
from shared.slices.units import Need, find_wait_start
from shared.slices.work import SliceWork, find_users
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import Message
from tests.support import jobset_objects as objects
from tests.support.builders import NOW, merge
from tests.support.jobset_objects import JOB, with_condition
from tests.support.reads import Reads
from tests.unit.functions.provision_slice.objects import (
    ANOTHER,
    DESIRED,
    OPT_OUT,
    OWNER,
    PROVISIONING,
    READY,
    SELF_HEALING,
    leader,
)

LOST = replace(SELF_HEALING, message="Preempted: 4 of 4 nodes are not ready", is_self_healing=False)
JOBSET = objects.jobset()


PodAt = tuple[ObservedPod, datetime]


def observed_pod(
    existing: Slice | NameConflict | None = None,
    now: datetime = NOW,
    jobset: dict[str, Any] | None = JOBSET,
    **more: Any,
) -> PodAt:
    cluster = cast("Any", Reads({"find_owner": jobset}))
    need = KIND.find(cluster, leader().demand).state.need
    return replace(ObservedPod(leader(), DESIRED, existing, need, GroupSlices), **more), now


def started_event(reason: str, message: str) -> Emit:
    return Emit(Event(f"TPUNodeGroup{reason}", message))


def warning(reason: str, message: str) -> Emit:
    return Emit(Event(f"TPUNodeGroup{reason}", message, is_warning=True), once=True)


def deadline_removed(existing: Slice) -> SetReleaseDeadline:
    """Return the action that removes the slice's release deadline."""
    return SetReleaseDeadline(existing, None)


def changed_jobset(**change: Any) -> dict[str, Any]:
    """Return the JobSet with this change."""
    jobset: dict[str, Any] = merge(JOBSET, change)
    return jobset


def opted_out(holder: str, value: str) -> dict[str, Any]:
    return {"metadata": {holder: {OPT_OUT: value}}}


CREATING = (
    "Creating TPUNodeGroup train-bfcf5ebea76efcf5, 4 hosts of ct6e-standard-4t (4x4), for Job "
    "train-workers-0 of JobSet train"
)
CREATE = Plan(
    "Creating",
    (
        CreateSlice(DESIRED),
        started_event("CreationStarted", CREATING),
    ),
)
PAUSED = Event(
    "SlicePaused",
    'No slice is created: the ConfigMap tpu-functions/jobsets has paused: "true". Remove this key to '
    "continue",
)
LIMIT = Limit("default", frozenset({"JobSet"}), 2, 32)
ROOM, FULL = (Quota(LIMIT, {"a": chips}, {}) for chips in (16, 20))
LIMITED = Event(
    "SliceLimitReached",
    "Namespace default may have 2 slices and 32 chips (the key namespaces of the ConfigMap "
    "tpu-functions/jobsets) and has 1 slice with 20 chips: the Pod gets its slice, TPUNodeGroup "
    "train-bfcf5ebea76efcf5 (4 hosts of ct6e-standard-4t (4x4)), when others are released",
)
PAUSE = Plan("SlicePaused", (Emit(PAUSED, once=True),))
NAME = "TPUNodeGroup train-bfcf5ebea76efcf5"
FAILURE = warning("NotReady", f"{NAME}: {SELF_HEALING.message}")
LOSS = warning("Lost", f"{NAME} does not recover by itself: {LOST.message}")
JOB_TEMPLATE = {"spec": objects.jobset()["spec"]["replicatedJobs"][0]["template"]["spec"]}


def jobs(**template: Any) -> dict[str, Any]:
    job = {"name": "workers", "replicas": 1, "template": {**JOB_TEMPLATE, **template}}
    return {"spec": {"replicatedJobs": [{**job, "name": "others", "template": {}}, job]}}


def unfit(others: str = "") -> Emit:
    return warning(
        "Unfit",
        f"{NAME} exists, but the scheduler finds no Node of it for the Pod{others}: compare the scheduler's "
        "message with kubectl get nodes --show-labels -l "
        "cloud.google.com/gke-nodepool=train-bfcf5ebea76efcf5",
    )


UNFIT = unfit()
OWNER_GONE = warning(
    "CreationFailed",
    "JobSet train does not exist or is being deleted, so that no slice is created for its Pods. If it "
    "was deleted without them, delete their controller, too, and apply it again",
)
WITHOUT_LEADER = warning(
    "CreationFailed",
    f"{NAME} does not exist, and is created when the first Pod of Job train-workers-0 of JobSet train "
    "waits for it. If that Pod runs elsewhere or has ended, delete JobSet train and apply it again",
)
WITH_DEADLINE = replace(READY, release_after=NOW)
SELF_HEALING_WITH_DEADLINE = replace(SELF_HEALING, release_after=NOW)
LATER = datetime(2026, 11, 20, 10, 15, tzinfo=UTC)
"""A quarter of an hour after the Pod began to wait."""

TOP, NEXT = Place("us-a"), Place("us-b", "SPOT")
SHAPE, ASKER = Shape("ct6e-standard-4t", "4x4"), f"default/{DESIRED.name}"
CLASS = SliceClass("v6e", (TOP, NEXT), waits=("4m", "9m"))
OFFERED = replace(DESIRED, place=TOP, shape=SHAPE)
CLAIM = ClaimCandidate(TOP, SHAPE, ASKER, CLASS.give_up_after)
FORGET = Forget(TOP, SHAPE, ASKER)
NO_ROOM = "projects/p/zones/us-a/instanceGroupManagers/tng-x: no room (STOCKOUT)"
RECORD = RecordRefusal(TOP, SHAPE, ASKER, Reason.INSUFFICIENT_CAPACITY, NO_ROOM)
MOVE = Move(NEXT, (RECORD, ClaimCandidate(NEXT, SHAPE, ASKER, CLASS.give_up_after)))
GONE_ELSEWHERE = replace(MOVE, changes=MOVE.changes[1:])
ASKING = replace(PROVISIONING, place=TOP, has_vms=False)
REFUSED = replace(SELF_HEALING, place=TOP, has_vms=False)
UNCREATED = replace(REFUSED, is_self_healing=False, was_created=False)


def remembering(until: datetime, place: Place = TOP, by: str = "") -> SliceClass:
    """The class, whose candidate has refused the shape until then."""
    since = NOW - timedelta(minutes=6)
    words = f"{NO_ROOM}. {find_advice(Reason.INSUFFICIENT_CAPACITY)}"
    known = Refusal(place.key, SHAPE, Reason.INSUFFICIENT_CAPACITY, words, since, until, by)
    return replace(CLASS, refusals=(known,))


EXPIRED, CLAIMED = remembering(NOW), remembering(NOW + timedelta(minutes=3), by=ASKER)
REMEMBERED = remembering(NOW + timedelta(minutes=3))


def candidate(existing: Slice | None = None, of: SliceClass = CLASS, **more: Any) -> PodAt:
    """A Pod whose slice is of the class."""
    fields = {"desired": OFFERED, "owner": JOBSET, "eligible": (TOP, NEXT), **more}
    return observed_pod(existing, of=of, **fields)


def reports(reason: str, message: str, *, is_warning: bool = False) -> tuple[Emit, Emit]:
    """The Events on the Pod and on its JobSet."""
    event = Event(reason, message, is_warning)
    return Emit(event, once=is_warning), Emit(event, about=JOBSET, once=True)


ON_POD, ON_JOBSET = reports(
    "CandidateRefused",
    "us-a/STANDARD has no slice of 4 hosts of ct6e-standard-4t (4x4): no room (STOCKOUT). us-b/SPOT is "
    "tried next",
)
REMOVED, REMOVED_ON_JOBSET = reports(
    "CandidateRefused",
    "us-a/STANDARD has no slice of 4 hosts of ct6e-standard-4t (4x4): the class does not have it any "
    "more. us-b/SPOT is tried next",
)
EXHAUSTED = reports(
    "CandidatesRefused",
    "No candidate of TPUSliceClass v6e has 4 hosts of ct6e-standard-4t (4x4): us-a/STANDARD: no room "
    "(STOCKOUT). The next try is after 2026-11-20T10:03:00Z; the last slices of this class waited 4m "
    "(median), 9m (90th percentile)",
    is_warning=True,
)
WAITS = "; the last slices of this class waited 4m (median), 9m (90th percentile)"
STARTED = started_event("CreationStarted", f"{CREATING}{WAITS}")
CREATE_THERE = replace(CREATE, first=(CreateSlice(OFFERED), STARTED))
ADVISED = replace(
    REFUSED,
    class_name=CLASS.name,
    message=f"{SELF_HEALING.message}. {find_advice(Reason.INSUFFICIENT_CAPACITY)}",
)
CANDIDATES: dict[str, tuple[PodAt, Plan]] = {
    "one that has never refused": (candidate(changes=(CLAIM,)), CREATE_THERE),
    "one whose refusal has ended": (
        candidate(of=EXPIRED, changes=(CLAIM,), quota=ROOM),
        replace(CREATE_THERE, first=(UpdateClass(EXPIRED, (CLAIM,)), ReserveSlice(OFFERED, ROOM), *CREATE_THERE.first)),
    ),
    "one that this slice has claimed": (candidate(of=CLAIMED, changes=(CLAIM,)), CREATE_THERE),
    "one whose refusal has ended, at the limit": (candidate(of=EXPIRED, changes=(CLAIM,), quota=FULL), Plan("LimitReached", (Emit(LIMITED, once=True),))),
    "one whose refusal has ended, paused": (candidate(of=EXPIRED, changes=(CLAIM,), is_paused=True), PAUSE),
    "none may be asked": (candidate(of=REMEMBERED, is_exhausted=True), Plan("Exhausted", EXHAUSTED)),
    "none may be asked, paused": (candidate(of=REMEMBERED, is_exhausted=True, is_paused=True), PAUSE),
    "none may be asked, at the limit": (candidate(of=REMEMBERED, is_exhausted=True, quota=FULL), Plan("Exhausted", EXHAUSTED)),
    "it waits": (candidate(ASKING), Plan("Provisioning")),
    "it has waited, another one is due": (candidate(ASKING, move=MOVE), Plan("NextCandidate", (UpdateClass(CLASS, MOVE.changes), DeleteSlice(ASKING, ON_POD), ON_JOBSET))),
    "it is not in the class any more": (candidate(ASKING, move=GONE_ELSEWHERE), Plan("NextCandidate", (DeleteSlice(ASKING, REMOVED), REMOVED_ON_JOBSET))),
    "it has refused, another one is due": (candidate(REFUSED, move=MOVE, changes=(RECORD,)), Plan("NextCandidate", (UpdateClass(CLASS, MOVE.changes), DeleteSlice(REFUSED, ON_POD), ON_JOBSET))),
    "it has refused as is remembered, another one is due": (candidate(REFUSED, of=REMEMBERED, move=MOVE, changes=(RECORD,)), Plan("NextCandidate", (DeleteSlice(REFUSED, ON_POD), ON_JOBSET))),
    "it has refused for good, another one is due": (candidate(UNCREATED, move=MOVE, changes=(RECORD,)), Plan("NextCandidate", (UpdateClass(CLASS, MOVE.changes), DeleteSlice(UNCREATED, ON_POD), ON_JOBSET))),
    "it has refused, another one is due, paused": (candidate(REFUSED, move=MOVE, changes=(RECORD,), is_paused=True), Plan("SlicePaused", (UpdateClass(CLASS, (RECORD,)), Emit(PAUSED, once=True)))),
    "it has refused, no other may be asked": (candidate(REFUSED, changes=(RECORD,)), Plan("SliceFailed", (UpdateClass(CLASS, (RECORD,)), FAILURE))),
    "it has refused, in words that advise to create another group": (candidate(ADVISED), Plan("SliceFailed", (FAILURE,))),
    "it has refused as is remembered, no other may be asked": (candidate(REFUSED, of=REMEMBERED, changes=(RECORD,)), Plan("SliceFailed", (FAILURE,))),
    "it has granted what the slice has claimed": (candidate(PROVISIONING, of=CLAIMED, changes=(FORGET,)), Plan("Provisioning", best_effort=(UpdateClass(CLAIMED, (FORGET,)),))),
    "it has granted what it has never refused": (candidate(READY, changes=(FORGET,)), Plan("Ready")),
    "the JobSet has ended": (candidate(REFUSED, move=MOVE, jobset=changed_jobset(**with_condition("Completed"))), Plan("OwnerEnded")),
}  # fmt: skip

TABLE: dict[str, tuple[PodAt, Plan]] = {
    "no slice": (observed_pod(), CREATE),
    "no slice, on a resync": (observed_pod(is_resync=True), CREATE),
    "no slice, paused": (observed_pod(is_paused=True), PAUSE),
    "no slice, the namespace has room": (observed_pod(quota=ROOM), replace(CREATE, first=(ReserveSlice(DESIRED, ROOM), *CREATE.first))),
    "no slice, the namespace is at its limit": (observed_pod(quota=FULL), Plan("LimitReached", (Emit(LIMITED, once=True),))),
    "no slice, the namespace is at its limit, paused": (observed_pod(quota=FULL, is_paused=True), PAUSE),
    "the slice is ready, the namespace is at its limit": (observed_pod(READY, quota=FULL), Plan("Ready")),
    "the JobSet is gone": (observed_pod(jobset=None), Plan("OwnerGone")),
    "the JobSet is gone, on a resync": (observed_pod(jobset=None, is_resync=True), Plan("OwnerGone", (OWNER_GONE,))),
    "the JobSet is being deleted": (observed_pod(jobset=changed_jobset(metadata={"deletionTimestamp": "2026-11-20T10:00:00Z"})), Plan("OwnerGone")),
    "the JobSet has other Jobs": (observed_pod(jobset=changed_jobset(spec={"replicatedJobs": [{"name": "others", "template": {}}]})), Plan("NoSuchUnit")),
    "the JobSet has completed": (observed_pod(jobset=changed_jobset(**with_condition("Completed"))), Plan("OwnerEnded")),
    "the JobSet has failed": (observed_pod(jobset=changed_jobset(**with_condition("Failed"))), Plan("OwnerEnded")),
    "the JobSet has opted out": (observed_pod(jobset=changed_jobset(**opted_out("annotations", "True"))), Plan("OptedOut")),
    "the JobSet has opted out by a label": (observed_pod(jobset=changed_jobset(**opted_out("labels", "yes"))), Plan("OptedOut")),
    "the JobSet is suspended": (observed_pod(jobset=changed_jobset(spec={"suspend": True})), Plan("Suspended")),
    "the JobSet is suspended, and its slice is ready": (observed_pod(WITH_DEADLINE, jobset=changed_jobset(spec={"suspend": True})), Plan("Suspended")),
    "the JobSet has been resumed": (observed_pod(jobset=changed_jobset(spec={"suspend": False})), CREATE),
    "the Job has opted out": (observed_pod(jobset=changed_jobset(**jobs(**opted_out("labels", "true")))), Plan("OptedOut")),
    "the Job has not opted out": (observed_pod(jobset=changed_jobset(**jobs(**opted_out("labels", "false")))), CREATE),
    "another object has the name": (
        observed_pod(
            NameConflict(DESIRED.name, "a TPUNodeGroup that was not created for a workload")
        ),
        Plan(
            "NameConflict",
            (
                warning(
                    "CreationFailed",
                    "The Pod's slice needs the name train-bfcf5ebea76efcf5, but a TPUNodeGroup that "
                    "was not created for a workload has this name. Delete that one, or give JobSet "
                    "train another name",
                ),
            ),
        ),
    ),
    "the slice is being created": (observed_pod(PROVISIONING), Plan("Provisioning")),
    "the slice is ready": (observed_pod(READY), Plan("Ready")),
    "the slice is ready and has a release deadline": (observed_pod(WITH_DEADLINE), Plan("Ready", (deadline_removed(WITH_DEADLINE),))),
    "the slice is ready, paused": (observed_pod(READY, is_paused=True), Plan("Ready")),
    "the slice has no hash": (observed_pod(replace(READY, hash="")), Plan("Ready")),
    "the slice is being deleted": (observed_pod(replace(READY, state=SliceState.DELETING)), Plan("Deleting")),
    "the slice has another hash and is being deleted": (observed_pod(replace(ANOTHER, state=SliceState.DELETING), is_resync=True), Plan("Deleting")),
    "the slice is ready, the Pod has waited for 15 minutes": (observed_pod(READY, is_resync=True, now=LATER), Plan("Unfit", (UNFIT,))),
    "the slice is ready and in use, the Pod has waited for 15 minutes": (
        observed_pod(READY, is_resync=True, now=LATER, users=("Job default/x",)),
        Plan("Unfit", (unfit(", and Pods of Job default/x run on it"),)),
    ),
    "the slice is ready with a release deadline, the Pod has waited for 15 minutes": (
        observed_pod(WITH_DEADLINE, is_resync=True, now=LATER),
        Plan("Unfit", (deadline_removed(WITH_DEADLINE), UNFIT)),
    ),
    "the slice is ready, the Pod has waited for less than 15 minutes": (observed_pod(READY, is_resync=True, now=LATER - timedelta(seconds=1)), Plan("Ready")),
    "the slice is ready for 14 minutes, the Pod has waited for 15 minutes": (
        observed_pod(
            replace(READY, since=LATER - timedelta(minutes=14)), is_resync=True, now=LATER
        ),
        Plan("Ready"),
    ),
    "the slice is ready for 9 hours, the Pod has waited for less than 15 minutes": (
        observed_pod(
            replace(READY, since=LATER - timedelta(hours=9)),
            is_resync=True,
            now=LATER - timedelta(seconds=1),
        ),
        Plan("Ready"),
    ),
    "the slice is ready, the Pod has waited for 15 minutes, on an event": (observed_pod(READY, now=LATER), Plan("Ready")),
    "the slice has another hash": (
        observed_pod(ANOTHER),
        Plan(
            "Replacing",
            (
                DeleteSlice(
                    ANOTHER,
                    started_event(
                        "DeletionStarted",
                        f"Deleting {NAME} to create it again: the Pod asks for 4 hosts of "
                        "ct6e-standard-4t (4x4) with other properties or Node labels than it has",
                    ),
                ),
            ),
        ),
    ),
    "the slice has another hash and is in use": (
        observed_pod(ANOTHER, users=("Job default/serve-workers-0",)),
        Plan(
            "InUse",
            (
                warning(
                    "CreationFailed",
                    f"{NAME} is not what the Pod asks for (4 hosts of ct6e-standard-4t (4x4)), and "
                    "Pods of Job default/serve-workers-0 run on it: it is replaced when they have ended",
                ),
            ),
        ),
    ),
    "the slice has another hash, paused": (observed_pod(ANOTHER, is_paused=True), PAUSE),
    "the slice waits for capacity": (observed_pod(SELF_HEALING), Plan("SliceFailed", (FAILURE,))),
    "the slice waits for capacity, on a resync": (observed_pod(SELF_HEALING, is_resync=True), Plan("SliceFailed", (FAILURE,))),
    "the slice waits for capacity and has a release deadline": (
        observed_pod(SELF_HEALING_WITH_DEADLINE),
        Plan("SliceFailed", (deadline_removed(SELF_HEALING_WITH_DEADLINE), FAILURE)),
    ),
    "the slice was lost": (observed_pod(LOST), Plan("SliceFailed", (LOSS,))),
    "the slice was lost, on a resync": (
        observed_pod(LOST, is_resync=True),
        Plan(
            "Replacing",
            (
                DeleteSlice(
                    LOST,
                    started_event(
                        "DeletionStarted", f"Deleting {NAME} to create it again: {LOST.message}"
                    ),
                ),
            ),
        ),
    ),
    "the slice was lost, some of its Nodes are ready, on a resync": (
        observed_pod(replace(LOST, has_ready_nodes=True), is_resync=True),
        Plan("SliceFailed", (LOSS,)),
    ),
    "the slice was lost, paused, on a resync": (observed_pod(LOST, is_resync=True, is_paused=True), PAUSE),
}  # fmt: skip


@pytest.mark.parametrize("case", CANDIDATES.values(), ids=CANDIDATES)
def test_the_candidates_of_a_class_are_asked_in_turn(case: tuple[PodAt, Plan]) -> None:
    (observed, now), plan = case
    assert decide(observed, now) == plan


@pytest.mark.conformance(
    cases={
        "no slice": "state-not-exists state-get-404",
        "the slice is being created": "state-provisioning-and-matches state-operation-timeout",
        "the slice is ready": "state-exists-and-matches",
    }
)
@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_the_plan_for_a_waiting_pod_follows_from_its_jobset_and_its_slice(
    case: tuple[PodAt, Plan],
) -> None:
    (observed, now), plan = case
    assert decide(observed, now) == plan


POOLS = cast(
    "Any",
    SimpleNamespace(noun="node pool", event_prefix="NodePool", concurrency_limit=5, is_gke=True),
)
POD = ObservedPod(leader(), DESIRED, None, Need.NEEDED, POOLS)


def action_error(action: AnySliceAction, http: int, message: str = "no") -> SliceActionError:
    reason = "forbidden" if http == 403 else "because"
    return SliceActionError(action, CallError("nodePools.call", http, reason, message))


def queued_event() -> Emit:
    message = (
        "node pool train-bfcf5ebea76efcf5 waits for others that are being created or deleted: no"
    )
    return Emit(Event("NodePoolQueued", message), once=True)


def failed_event(what: str, error: CallError) -> Emit:
    return Emit(Event(f"NodePool{what}Failed", str(error), is_warning=True), once=True)


CREATION, DELETION = CreateSlice(DESIRED), DeleteSlice(LOST)
ACTION_ERRORS: dict[str, tuple[CallError, bool, Plan | None]] = {
    "no free slot": (action_error(CREATION, 429), False, Plan("Queued", (queued_event(),))),
    "no free slot, on a resync": (action_error(CREATION, 429), True, Plan("Queued", (queued_event(),))),
    "no free slot for a deletion": (action_error(DELETION, 429), False, Plan("Queued", (queued_event(),))),
    "the parent of the slice does not exist": (action_error(CREATION, 404), True, Plan("Refused", (failed_event("Creation", action_error(CREATION, 404)),))),
    "forbidden to create": (action_error(CREATION, 403), False, Plan("PermissionDenied", (failed_event("Creation", action_error(CREATION, 403)),))),
    "forbidden to delete": (action_error(DELETION, 403), False, Plan("PermissionDenied", (failed_event("Deletion", action_error(DELETION, 403)),))),
    "created concurrently": (action_error(CREATION, 409), False, None),
    "deleted concurrently": (action_error(DELETION, 404), False, None),
    "unavailable": (action_error(CREATION, 503), False, None),
    "a forbidden read": (CallError("GET /x", 403, "Forbidden", "no"), False, None),
}  # fmt: skip


@pytest.mark.parametrize("case", ACTION_ERRORS.values(), ids=ACTION_ERRORS)
def test_a_failed_action_is_followed_by_the_expected_recovery(
    case: tuple[CallError, bool, Plan | None],
) -> None:
    error, is_resync, plan = case
    pod = replace(POD, is_resync=is_resync)
    work = SimpleNamespace(observed=pod, provider=POOLS, now=NOW, request=None)
    expected = plan and replace(plan, note=str(error))
    assert recover(cast("SliceWork", work), error) == expected


def test_a_request_whose_reads_are_refused_is_told_once() -> None:
    error = CallError("GET /x", 403, "Forbidden", "no")
    work = SimpleNamespace(observed=None, provider=POOLS, now=NOW, request=object())
    event = Event("NodePoolCreationFailed", str(error), is_warning=True)
    assert recover(cast("SliceWork", work), error) == Plan(
        Reason.PERMISSION_DENIED, first=(Emit(event, once=True),), note=str(error)
    )


NO_VMS = SliceActionError(
    CreateSlice(OFFERED),
    CallError("POST /x", 429, "rateLimitExceeded", "insufficient reserved capacity"),
)
FULL_RESERVATION = RecordRefusal(TOP, SHAPE, ASKER, Reason.RESERVATION_FULL, NO_VMS.message)
REJECTED = reports(
    "CandidateRefused",
    "us-a/STANDARD has no slice of 4 hosts of ct6e-standard-4t (4x4): insufficient reserved capacity. "
    "us-b/SPOT is tried next",
)
CLOSED = remembering(NOW + timedelta(minutes=3), NEXT)
ALL_REJECTED = reports(
    "CandidatesRefused",
    "No candidate of TPUSliceClass v6e has 4 hosts of ct6e-standard-4t (4x4): us-b/SPOT: no room "
    "(STOCKOUT); us-a/STANDARD: insufficient reserved capacity. The next try is after "
    "2026-11-20T10:03:00Z; the last slices of this class waited 4m (median), 9m (90th percentile)",
    is_warning=True,
)
REPORT = failed_event("Creation", NO_VMS)
CALLS: dict[str, tuple[SliceClass | None, bool, Plan]] = {
    "another one may be asked": (CLASS, True, Plan("NextCandidate", (UpdateClass(CLASS, (FULL_RESERVATION,)), *REJECTED), after=(Send("provision_slice", (build_message(leader(), NOW),)),), facts={"refusal": "ReservationFull"})),
    "no other may be asked": (CLOSED, True, Plan("ReservationFull", (UpdateClass(CLOSED, (FULL_RESERVATION,)), *ALL_REJECTED), facts={"refusal": "ReservationFull"})),
    "no class": (None, True, Plan("ReservationFull", (REPORT,))),
    "by the API server": (CLASS, False, Plan("ReservationFull", (REPORT,))),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS.values(), ids=CALLS)
def test_a_candidate_that_rejects_the_call_is_remembered_and_the_pod_triggers_its_step_again(
    case: tuple[SliceClass | None, bool, Plan],
) -> None:
    of, is_gke, plan = case
    (waiting, _) = candidate(of=of or CLASS, wording=POOLS)
    provider = SimpleNamespace(**{**vars(POOLS), "is_gke": is_gke})
    work = SimpleNamespace(observed=replace(waiting, of=of), provider=provider, now=NOW)
    found = recover(cast("SliceWork", work), NO_VMS)
    assert found is not None
    assert replace(found, note="") == plan


@pytest.mark.parametrize(
    "move, outcome, first",
    [
        (MOVE, "NextCandidate", (UpdateClass(CLASS, MOVE.changes), DeleteSlice)),
        (None, "CreationFailed", (UpdateClass(CLASS, (RECORD,)), Emit)),
    ],
)
def test_after_a_failed_creation_the_next_candidate_is_asked_at_once(
    move: Move | None, outcome: str, first: tuple[UpdateClass, type[Action]]
) -> None:
    event = LogEvent(
        "container.nodePools.create",
        "p",
        "us-central1",
        DESIRED.name,
        "nodePools",
        cluster="c",
        has_failed=True,
    )
    waiting, _ = candidate(UNCREATED, move=move, changes=(RECORD,))
    observed = ObservedOperation(event, POOLS, waiting, has_pod=True, others=None)
    plan = decide(observed, NOW)
    assert plan.outcome == outcome
    assert plan.first[0] == first[0]
    assert isinstance(plan.first[1], first[1])


def another_job(name: str) -> tuple[Leader, DesiredSlice]:
    owner = replace(OWNER, member=name)
    return leader(metadata={"name": name, "uid": name}), replace(DESIRED, name=name, unit=owner)


def trigger(*leaders: Leader) -> Action:
    return Send("provision_slice", tuple(build_message(one, NOW) for one in leaders))


def sent(plan: Plan) -> list[Message]:
    return [message for send in plan.after if isinstance(send, Send) for message in send.messages]


def test_a_finished_deletion_serves_its_own_pod_and_triggers_a_pod_for_each_free_slot() -> None:
    event = LogEvent(
        "container.nodePools.delete", "p", "us-central1", DESIRED.name, "nodePools", cluster="c"
    )
    first, second, third = another_job("first"), another_job("second"), another_job("third")
    others = PodsWithoutSlice(
        5,
        ((POD.leader, DESIRED), first, second, third),
        tuple(replace(PROVISIONING, name=name) for name in ("x", "y")),
    )
    observed = ObservedOperation(event, POOLS, POD, has_pod=True, others=others)
    plan = decide(observed, NOW)
    assert plan.outcome == "Creating"
    assert plan.first[0] == CREATION
    assert plan.facts == {"without_slice": 3, "triggered": 2}, (
        "the Pod of the deleted slice takes one of three slots"
    )
    assert isinstance(plan.after[-1], Send)
    work = cast("SliceWork", SimpleNamespace(observed=observed, provider=POOLS, now=NOW))
    recovery = recover(work, action_error(CREATION, 429))
    assert recovery is not None
    assert (recovery.outcome, recovery.facts) == ("Queued", {"without_slice": 4, "triggered": 3})
    assert sorted(message.name for message in sent(recovery)) == ["first", "second", "third"], (
        "the Pod whose creation was rejected takes no slot"
    )


def test_a_finished_creation_without_a_pod_triggers_the_waiting_pods() -> None:
    event = LogEvent(
        "container.nodePools.create", "p", "us-central1", "gone", "nodePools", cluster="c"
    )
    others = PodsWithoutSlice(5, (another_job("first"),), ())
    observed = ObservedOperation(event, POOLS, None, has_pod=False, others=others)
    assert decide(observed, NOW) == Plan(
        "NoPod",
        after=(trigger(another_job("first")[0]),),
        facts={"without_slice": 1, "triggered": 1},
    )


def test_a_slice_that_is_not_changing_takes_no_slot() -> None:
    event = LogEvent(
        "container.nodePools.create", "p", "us-central1", "gone", "nodePools", cluster="c"
    )
    ready = [replace(PROVISIONING, name=name, state=SliceState.READY) for name in ("a", "b", "c")]
    others = PodsWithoutSlice(5, tuple(map(another_job, ("x", "y", "z"))), tuple(ready))
    observed = ObservedOperation(event, POOLS, None, has_pod=False, others=others)
    assert decide(observed, NOW).facts == {"without_slice": 3, "triggered": 3}


def test_the_removal_of_a_deadline_takes_a_slot() -> None:
    event = LogEvent(
        "container.nodePools.delete", "p", "us-central1", DESIRED.name, "nodePools", cluster="c"
    )
    others = PodsWithoutSlice(3, tuple(map(another_job, ("x", "y", "z"))), (WITH_DEADLINE,))
    waiting, _ = observed_pod(WITH_DEADLINE)
    observed = ObservedOperation(event, POOLS, waiting, has_pod=True, others=others)
    plan = decide(observed, NOW)
    assert plan.first[0] == deadline_removed(WITH_DEADLINE)
    assert plan.facts == {"without_slice": 3, "triggered": 2}


def test_the_wait_of_a_pod_begins_when_the_scheduler_reports_it_unschedulable() -> None:
    assert find_wait_start(leader().demand) == datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize("since", ["", "0000-12-31T10:00:00Z"])
def test_the_wait_of_a_pod_without_the_schedulers_time_begins_with_its_creation(since: str) -> None:
    status = objects.unschedulable(since)
    assert find_wait_start(leader(status=status).demand) == datetime(
        2026, 11, 20, 9, 59, tzinfo=UTC
    )


def test_the_backoff_of_a_wait_of_2000_years_is_computed_within_a_second() -> None:
    """The sweep computes it for each waiting Pod every minute, even if the Pod's time is impossible."""
    began = process_time()
    assert backoff.is_due(NOW - timedelta(days=365 * 2_000), NOW) is False
    assert process_time() - began < 1


def on_node(phase: str, job: str = JOB, namespace: str = "default") -> dict[str, Any]:
    pod: dict[str, Any] = objects.pod(
        metadata={"namespace": namespace, "labels": {"batch.kubernetes.io/job-name": job}},
        status={"phase": phase},
    )
    return pod


def without_chips() -> dict[str, Any]:
    pod = on_node("Running")
    pod["spec"]["containers"] = [{"name": "main", "image": "busybox"}]
    return pod


def deleted(seconds: int) -> dict[str, Any]:
    pod = on_node("Running")
    pod["metadata"]["deletionTimestamp"] = render_time(NOW + timedelta(seconds=seconds))
    return pod


def of_owner(kind: str | None) -> dict[str, Any]:
    pod = on_node("Running")
    pod["metadata"]["labels"] = {}
    owners = [{"kind": kind, "name": "web", "controller": True}] if kind else []
    pod["metadata"]["ownerReferences"] = owners
    return pod


ON_NODES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "runs": (on_node("Running"), [f"Job default/{JOB}"]),
    "has not started": (on_node("Pending", "other"), ["Job default/other"]),
    "has ended": (on_node("Succeeded"), []),
    "is of a Deployment": (of_owner("ReplicaSet"), ["ReplicaSet default/web"]),
    "has no owner": (of_owner(None), ["Pod default/train-workers-0-0-abcde"]),
    "is of a DaemonSet": (of_owner("DaemonSet"), []),
    "requests no chips": (without_chips(), []),
    "is ending": (deleted(1), [f"Job default/{JOB}"]),
    "is past its deletion time by less than ten minutes": (deleted(-599), [f"Job default/{JOB}"]),
    "is past its deletion time by ten minutes": (deleted(-600), []),
}


@pytest.mark.parametrize("case", ON_NODES.values(), ids=ON_NODES)
def test_a_pod_uses_a_slice_while_it_runs_and_requests_chips(
    case: tuple[dict[str, Any], list[str]],
) -> None:
    pod, jobs = case
    assert list(find_users([pod], NOW)) == jobs


@pytest.mark.parametrize(
    "leader, worker_index, overdue_s, namespace, users",
    [
        ("serve-0", "0", 600, "default", []),
        ("serve-0", "0", 599, "default", ["StatefulSet default/serve-0"] * 2),
        ("serve-1", "0", 600, "default", ["StatefulSet default/serve-0"]),
        ("serve-0", "0", 600, "other", ["StatefulSet default/serve-0"]),
        ("serve-0", "", 600, "default", ["StatefulSet default/serve-0"]),
    ],
    ids=["overdue", "not yet", "of another group", "of another namespace", "no leader"],
)
def test_the_workers_of_a_leader_whose_deletion_is_overdue_use_no_slice(
    leader: str, worker_index: str, overdue_s: int, namespace: str, users: list[str]
) -> None:
    ending, worker = deleted(-overdue_s), of_owner("StatefulSet")
    worker["metadata"]["ownerReferences"][0]["name"] = "serve-0"
    labels = {"leaderworkerset.sigs.k8s.io/worker-index": worker_index}
    ending["metadata"] |= {"name": leader, "namespace": namespace, "labels": labels}
    ending["metadata"]["ownerReferences"] = worker["metadata"]["ownerReferences"]
    assert list(find_users([worker, ending], NOW)) == users


PODS: dict[str, tuple[dict[str, Any], bool]] = {
    "the first Pod of the Job": ({}, True),
    "the first Pod of the Job, on Kubernetes 1.27, which sets no label of the index": (
        {"labels": {"batch.kubernetes.io/job-completion-index": None}},
        True,
    ),
    "another Pod of the Job": (
        {"annotations": {"batch.kubernetes.io/job-completion-index": "1"}},
        False,
    ),
    "of another namespace, with the Job's key": ({"namespace": "other"}, False),
    "of no Job": ({"ownerReferences": []}, False),
    "with the JobSet's name only as an annotation": ({"labels": {JOBSET_NAME: None}}, True),
    "of no JobSet": ({"labels": {JOBSET_NAME: None}, "annotations": {JOBSET_NAME: None}}, False),
}


@pytest.mark.parametrize("case", PODS.values(), ids=PODS)
def test_the_first_pod_of_a_job_is_recognized_by_the_name_of_its_slice(
    case: tuple[dict[str, Any], bool],
) -> None:
    metadata, is_first = case
    assert leads_unit_of(objects.pod(metadata=metadata), DESIRED.name) is is_first


def test_many_pods_of_one_namespace_do_not_keep_those_of_another_from_a_slot() -> None:
    """All Pods of the other namespace have waited longer."""
    many = [leader(metadata={"namespace": "other", "uid": f"uid-{n}"}) for n in range(1000)]
    mine = leader()
    waits = [
        next(
            minute
            for minute in range(1000)
            if mine in select_leaders([*many, mine], 2, NOW + timedelta(minutes=start + minute))
        )
        for start in range(0, 10_000, 1000)
    ]
    assert max(waits) < 15


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_for_a_pod_that_does_not_lead_nothing_is_created_or_deleted(
    case: tuple[PodAt, Plan],
) -> None:
    (observed, now), plan = case
    claim = replace(observed.leader.claim, is_leader=False)
    follower = replace(observed, leader=observed.leader._replace(claim=claim))
    reports = (WITHOUT_LEADER,) if observed.existing is None and observed.need == "needs it" else ()
    waits = Plan("NotWaiting", reports, note="its leader does not wait")
    assert decide(follower, now) == (plan if plan.outcome == "Unfit" else waits)


def test_a_pod_that_does_not_lead_and_asks_for_an_impossible_slice_gets_no_event() -> None:
    """It may run on Nodes of others, as its leader does."""
    observed = ObservedImpossible("no class fits", POOLS, is_leader=False)
    assert decide(observed, NOW) == Plan("NotWaiting", note="no class fits")
