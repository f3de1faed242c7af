# ruff: noqa: E501  (a table reads best with a row on a line)
"""The sweep resyncs the steps of each group at growing intervals, a settled group once an hour."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from functions.sweep import recover
from functions.sweep.decide import (
    decide,
    find_due_steps,
    is_due,
    is_settled,
    last_progress,
    list_steps,
)
from functions.sweep.observe import LEAKS_MINUTE, ObservedGroups, observe, parse_groups
from shared.base import backoff
from shared.base.names import BOOTSTRAP_GROUP, KUBELET_SIGNER
from shared.base.reasons import Reason
from shared.base.signing_requests import SigningRequest
from shared.frame.plan import Fail, Plan, Send, Work
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import (
    MIG,
    TEMPLATE,
    Condition,
    Counts,
    Pending,
    Resource,
    Retry,
    State,
    Status,
    Type,
    render,
)
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.kubernetes.cluster import Cluster
from shared.settings import JoinApproval
from shared.triggers.message import SWEEP_KIND, Cause, Message
from shared.triggers.trigger import TimeTrigger, Trigger
from tests.support.builders import CLUSTER, NOW, RESOURCE, SETTINGS, flat, group, raw_group
from tests.unit.functions.create_resources.objects import OWN

CREATED = datetime.fromisoformat("2026-11-20T09:00:00+00:00")


def known(*true: Type, false: Type | None = None, reason: str = "x", **rest: Any) -> Status:
    conditions = {kind: Condition("True", "Ready", "", CREATED, 1) for kind in true}
    if false is not None:
        conditions[false] = Condition("False", reason, "", CREATED, 1)
    return Status(conditions=conditions, observed_generation=1, **rest)


EXISTING = {MIG: Resource(RESOURCE, State.READY, CREATED)}
INDIVIDUAL = {"nodeCount": 1, "topology": "2x2x1", "targetSizePolicyMode": "INDIVIDUAL"}
FIRST_MINUTE = CREATED + timedelta(minutes=1)
STEPS: dict[str, tuple[NodeGroup, Status, tuple[str, ...]]] = {
    "a new group": (group(owned=False), Status(), ("create_resources",)),
    "a group being deleted": (
        group(deleting=True, deletionTimestamp="2026-11-20T09:00:00Z"),
        known(Type.READY),
        ("tear_down",),
    ),
    "a BULK slice that waits for capacity": (
        group(),
        known(false=Type.MIG_READY, resources=EXISTING),
        ("create_resources",),
    ),
    "an INDIVIDUAL group with some VMs": (
        group(change=INDIVIDUAL),
        known(false=Type.MIG_READY, resources=EXISTING, counts=Counts(desired=2, running=1)),
        ("create_resources", "inject_token", "label_node"),
    ),
    "VMs have not joined": (
        group(),
        known(Type.MIG_READY, resources=EXISTING),
        ("inject_token", "label_node"),
    ),
    "all have joined and are not ready": (
        group(),
        known(Type.MIG_READY, Type.NODES_JOINED, resources=EXISTING),
        ("label_node",),
    ),
    "ready, and rejected since": (
        group(),
        replace(
            known(Type.MIG_READY, Type.NODES_JOINED, false=Type.ACCEPTED, resources=EXISTING),
            observed_generation=2,
        ),
        ("create_resources", "label_node"),
    ),
    "a group without its label": (
        group(labels={}),
        known(Type.MIG_READY, Type.NODES_JOINED, Type.READY, resources=EXISTING),
        ("create_resources", "label_node"),
    ),
}


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS)
def test_a_resync_is_sent_to_the_steps_that_have_work(
    case: tuple[NodeGroup, Status, tuple[str, ...]],
) -> None:
    about, status, steps = case
    assert find_due_steps(about, status, FIRST_MINUTE) == steps


BOTH = ("inject_token", "label_node")
FAILED = (Retry("inject_token", "403 rateLimitExceeded", CREATED),)


@pytest.mark.parametrize(
    "seconds, retries, runs",
    [
        (1, (), [(), *[BOTH] * 4]),
        (1, FAILED, [*[("inject_token",)] * 4, BOTH]),
        (239, FAILED, [*[("inject_token",)] * 4, BOTH]),
    ],
)
def test_for_eight_minutes_each_run_triggers_the_steps_with_a_transient_error_and_every_fifth_all(
    seconds: int, retries: tuple[Retry, ...], runs: list[tuple[str, ...]]
) -> None:
    status = known(Type.MIG_READY, resources=EXISTING, retries=retries)
    minutes = (CREATED + timedelta(seconds=seconds, minutes=number) for number in range(5))
    found = [find_due_steps(group(), status, at) for at in minutes]
    assert sorted(found, key=len) == runs


def test_vms_with_maintenance_are_counted_once_more_within_a_minute_of_the_first_announcement() -> (
    None
):
    status = known(Type.MIG_READY, Type.NODES_JOINED, Type.READY, resources=EXISTING)
    announced = {Type.MAINTENANCE_SCHEDULED: Condition("True", "Pending", "", NOW, 1)}
    status = replace(status, conditions={**status.conditions, **announced})
    minutes = (NOW + timedelta(seconds=30, minutes=number) for number in range(-1, 59))
    found = [find_due_steps(group(), status, at) for at in minutes]
    assert found[:3] == [(), ("label_node",), ()]
    assert len([one for one in found if one]) <= 2, "and by the hourly look"


def test_label_node_is_triggered_a_day_an_hour_and_ten_minutes_before_the_vms_end() -> None:
    status = known(Type.MIG_READY, Type.NODES_JOINED, Type.READY, resources=EXISTING)
    end = NOW + timedelta(days=2)
    minutes = [end - timedelta(seconds=30, minutes=number) for number in range(25 * 60)]
    before, after = (
        {at for at in minutes if find_due_steps(group(), one, at)}
        for one in (status, replace(status, run_ends=end))
    )
    notices = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=10))
    told = {end - notice + timedelta(seconds=30) for notice in notices}
    assert told <= after
    assert after - before <= told


def test_no_notice_of_the_end_of_the_vms_is_missed_whichever_second_the_sweep_starts() -> None:
    status = known(Type.MIG_READY, Type.NODES_JOINED, Type.READY, resources=EXISTING)
    end = NOW + timedelta(minutes=10, seconds=1)
    minutes = (NOW.replace(minute=minute) for minute in range(3))
    assert not any(find_due_steps(group(), status, at) for at in minutes), "the hourly look"
    status = replace(status, run_ends=end)
    starts = (NOW + timedelta(seconds=one) for one in (0, 62, 121))
    assert [find_due_steps(group(), status, at) for at in starts] == [(), ("label_node",), ()]


@pytest.mark.parametrize("is_limited", [False, True])
def test_the_vms_of_an_individual_group_that_waits_for_others_are_counted_if_they_will_stop(
    is_limited: bool,
) -> None:
    status = known(
        false=Type.MIG_READY,
        resources=EXISTING,
        counts=Counts(2, 1, 1, 1),
        run_ends=NOW if is_limited else None,
    )
    assert ("label_node" in list_steps(group(change=INDIVIDUAL), status)) is is_limited
    announced = {Type.MAINTENANCE_SCHEDULED: Condition("True", "Pending", "", NOW, 1)}
    status = replace(status, run_ends=None, conditions={**status.conditions, **announced})
    assert "label_node" in list_steps(group(change=INDIVIDUAL), status)


def test_a_due_repair_is_looked_at_each_minute_for_half_an_hour() -> None:
    status = known(
        Type.MIG_READY,
        Type.ACCEPTED,
        resources=EXISTING,
        provisioning_model="SPOT",
        pending=(Pending(f"{RESOURCE}-aaaa", Reason.PREEMPTED, NOW),),
    )
    about = group(change={"repair": "Recreate"})
    minutes = (NOW + timedelta(seconds=30, minutes=number) for number in range(60))
    due = ["tear_down" in find_due_steps(about, status, at) for at in minutes]
    assert due[:30] == [True] * 30
    assert sum(due[30:]) <= 2


def test_a_run_publishes_in_the_order_of_a_slices_life_and_the_oldest_groups_first() -> None:
    """What comes first gets the rate quota."""
    groups = {
        "young": raw_group(creationTimestamp="2026-11-20T09:00:30Z"),
        "old": raw_group(creationTimestamp="2026-11-20T09:00:00Z"),
    }
    for name, raw in groups.items():
        raw["metadata"]["name"] = name
        since = CREATED + timedelta(seconds=30 * (name == "young"))
        error = Retry("inject_token", "403 rateLimitExceeded", since)
        other = replace(error, step="label_node")
        raw["status"] = render(Status(retries=(other, error)))
    found, _ = parse_groups(groups.values(), CLUSTER)
    at = CREATED + timedelta(minutes=1)
    asked = replace(request("r"), created=CREATED)
    sends = flat(decide(ObservedGroups(found, at, requests=(asked,)), at))
    published = [
        (send.step, [message.name for message in send.messages])
        for send in sends
        if isinstance(send, Send)
    ]
    assert published == [
        ("inject_token", ["old", "young"]),
        ("approve_join", [""]),
        ("label_node", ["old", "young"]),
    ]


def rejected(code: str, reason: Reason = Reason.REFUSED) -> dict[str, Resource]:
    return {MIG: Resource("n", State.CREATING, CREATED).fail(reason, code, "m", CREATED)}


PAUSED = {"tpu-functions.dev/paused": "true"}
SETTLED: dict[str, tuple[NodeGroup, Status, bool]] = {
    "ready": (group(), known(Type.READY), True),
    "ready without label": (group(labels={}), known(Type.READY), False),
    "paused before the first insert": (group(annotations=PAUSED), known(), True),
    "paused after the first insert": (group(annotations=PAUSED), known(resources=EXISTING), False),
    "invalid spec": (group(), known(false=Type.ACCEPTED, reason=Reason.INVALID_SPEC), True),
    "invalid spec, and changed since": (group(generation=2), known(false=Type.ACCEPTED, reason=Reason.INVALID_SPEC), False),
    "a disk type that Compute Engine rejects": (group(), known(Type.ACCEPTED, false=Type.MIG_READY, reason=Reason.INVALID_SPEC, resources=EXISTING), True),
    "a topology that Compute Engine rejects, and changed since": (
        group(generation=2),
        known(Type.ACCEPTED, false=Type.POLICY_READY, reason=Reason.INVALID_SPEC),
        False,
    ),
    "rejected by Compute Engine for another reason": (group(), known(Type.ACCEPTED, false=Type.MIG_READY, reason=Reason.REFUSED, resources=EXISTING), False),
    "an insert that Compute Engine rejects with 400": (group(), known(Type.ACCEPTED, resources=rejected("invalid")), True),
    "a zone that Compute Engine does not know": (group(), known(Type.ACCEPTED, resources=rejected("invalid", Reason.NOT_OFFERED)), True),
    "an insert that Compute Engine rejects with 400, and changed since": (group(generation=2), known(Type.ACCEPTED, resources=rejected("invalid")), False),
    "an insert whose reservation is full, with the code of a 400": (
        group(),
        known(Type.ACCEPTED, resources=rejected("invalid", Reason.RESERVATION_FULL)),
        False,
    ),
    "an insert for which there is no quota": (group(), known(Type.ACCEPTED, resources=rejected("quotaExceeded")), False),
    "ready, and being deleted": (group(deleting=True), known(Type.READY), False),
}  # fmt: skip


@pytest.mark.parametrize("case", SETTLED.values(), ids=SETTLED)
def test_a_group_is_settled_only_if_nothing_is_to_be_done_until_an_event(
    case: tuple[NodeGroup, Status, bool],
) -> None:
    about, status, settled = case
    assert is_settled(about, status) is settled


def due_minutes(about: NodeGroup, status: Status, hours: int) -> Iterator[int]:
    """Yield the minutes after the last progress at which a resync is due."""
    for minute in range(hours * 60 + 1):
        if is_due(about, status, CREATED + timedelta(minutes=minute)):
            yield minute


def test_a_waiting_group_is_resynced_at_intervals_that_grow_to_half_an_hour() -> None:
    minutes = list(due_minutes(group(owned=False), Status(), 24))
    gaps = [later - earlier for earlier, later in itertools.pairwise(minutes)]

    assert minutes[:5] == [1, 2, 3, 4, 5]
    assert max(gaps) == 30
    assert all(later - earlier >= -1 for earlier, later in itertools.pairwise(gaps))
    assert len(minutes) < 80


def test_groups_that_began_to_wait_together_are_spread_over_the_minutes() -> None:
    waiting = [group(owned=False, uid=f"0c6e8a4e-0000-4000-8000-{n:012}") for n in range(100)]
    resyncs = Counter(minute for one in waiting for minute in due_minutes(one, Status(), 2))
    assert all(resyncs[minute] == 100 for minute in range(1, 8))
    assert max(resyncs[minute] for minute in range(30, 60)) <= 15
    assert max(resyncs[minute] for minute in range(60, 120)) <= 15


def test_a_settled_group_is_resynced_once_an_hour() -> None:
    minutes = list(due_minutes(group(), known(Type.READY), 6))
    assert len(minutes) == 6
    assert {minute % 60 for minute in minutes} == {minutes[0] % 60}


def test_progress_restarts_the_intervals() -> None:
    waited_long = known(false=Type.MIG_READY)
    assert waited_long.conditions[Type.MIG_READY].since == CREATED
    moment = NOW + timedelta(minutes=7)
    fresh = replace(
        waited_long, resources={MIG: Resource("n", State.CREATING, moment - timedelta(minutes=2))}
    )
    assert is_due(group(), fresh, moment)


def test_a_failed_insert_that_is_retried_does_not_count_as_progress() -> None:
    resource = Resource("n", State.CREATING, CREATED).fail("QuotaExceeded", "q", "m", CREATED)
    retried = replace(resource, since=NOW)
    status = known(resources={MIG: retried})
    due = list(due_minutes(group(), status, 24))
    assert len(due) < 80


JITTER = st.lists(st.integers(0, 59), min_size=300, max_size=300)


@settings(max_examples=25)
@given(jitter=JITTER, since_s=st.integers(0, 59), lag=st.floats(0, 1, exclude_max=True))
@example(jitter=[59, 0] * 150, since_s=30, lag=0.0)
@example(jitter=[0, 59] * 150, since_s=0, lag=0.0)
def test_no_resync_is_missed_or_repeated_at_whichever_second_the_sweep_starts(
    jitter: list[int], since_s: int, lag: float
) -> None:
    since = CREATED + timedelta(seconds=since_s)

    def minutes(starts: list[int]) -> list[int]:
        return [
            minute
            for minute, second in enumerate(starts, 1)
            if backoff.is_due(since, CREATED + timedelta(minutes=minute, seconds=second), lag)
        ]

    due = minutes(jitter)
    assert due == minutes([0] * len(jitter))
    assert max(later - earlier for earlier, later in itertools.pairwise(due)) <= 30


def test_a_late_sweep_run_resyncs_the_groups_of_the_minute_of_its_message() -> None:
    """Otherwise the groups of that minute would get no resync, and those of a later one two resyncs."""
    ready = known(Type.READY, Type.MIG_READY, Type.NODES_JOINED, resources=EXISTING)
    settled = raw_group(status=render(ready))
    (minute,) = {minute % 60 for minute in due_minutes(group(), ready, 6)}
    on_time = CREATED + timedelta(days=1, minutes=minute)
    for minutes_late in range(5):
        late = on_time + timedelta(minutes=minutes_late)
        runs = [
            decide(observe(listing([settled], [], trigger=replace(SWEEP, at=at))), late)
            for at in (on_time, late)
        ]
        ran = [plan.facts["triggered"] for plan in runs]
        assert ran == [{"label_node": 1}, {"label_node": 1} if late == on_time else {}]


def test_a_time_in_the_future_is_due_immediately() -> None:
    ahead = replace(known(), pending=(Pending("a", "NodeLost", NOW + timedelta(days=400)),))
    assert all(is_due(group(), ahead, NOW + timedelta(minutes=minute)) for minute in range(60))


NAMELESS = {**raw_group(), "metadata": {"name": "broken", "namespace": "default"}}


def test_an_unusable_group_is_named_and_does_not_stop_the_others() -> None:
    """The second group raises an unexpected error; no API object is known that does."""
    waiting = raw_group(owned=False, creationTimestamp="2026-11-20T09:59:00Z")
    groups, unparsable = parse_groups([NAMELESS, waiting], CLUSTER)
    impossible = replace(group(), raw=None)  # type: ignore[arg-type]
    plan = decide(ObservedGroups((impossible, *groups), NOW, unparsable=unparsable), NOW)
    assert plan.facts == {
        "groups": 2,
        "triggered": {"create_resources": 1},
        "skipped": [
            "default/broken: metadata.namespace, metadata.name and metadata.uid must be text",
            "default/my-slice: AttributeError: 'NoneType' object has no attribute 'get'",
        ],
    }
    assert plan.needs_attention
    (send,) = flat(plan)
    assert isinstance(send, Send)
    assert [message.name for message in send.messages] == ["my-slice"]


def test_a_sweep_run_that_handles_all_groups_needs_no_attention() -> None:
    assert not decide(ObservedGroups((group(),), NOW), NOW).needs_attention


BULK, SINGLE = group(), group(change=INDIVIDUAL)
JOINED = known(Type.MIG_READY, Type.NODES_JOINED, resources=EXISTING)
UNSETTLED: dict[str, tuple[NodeGroup, Status, tuple[str, ...]]] = {
    "MIG complete, some VMs have not joined: tokens and Nodes": (
        SINGLE,
        known(Type.MIG_READY, resources=EXISTING, counts=Counts(desired=2, running=1, joined=1)),
        ("inject_token", "label_node"),
    ),
    "MIG incomplete, all running VMs have joined: no tokens": (
        SINGLE,
        known(resources=EXISTING, counts=Counts(desired=2, running=1, joined=1)),
        ("create_resources", "label_node"),
    ),
    "MIG incomplete, all running VMs are ready: no tokens and Nodes": (
        SINGLE,
        known(resources=EXISTING, counts=Counts(desired=2, running=1, joined=1, ready=1)),
        ("create_resources",),
    ),
    "a BULK MIG that is incomplete although VMs run": (
        BULK,
        known(resources=EXISTING, counts=Counts(desired=2, running=2)),
        ("create_resources",),
    ),
    "no MIG, with counts of VMs": (
        SINGLE,
        known(counts=Counts(desired=2, running=2)),
        ("create_resources",),
    ),
    "all have joined, not all are ready": (BULK, JOINED, ("label_node",)),
    "not owned although its MIG is ready": (
        group(owned=False),
        JOINED,
        ("create_resources", "label_node"),
    ),
    "complete once, BULK, its MIG has an error, and all running VMs are ready: an event may be lost": (
        BULK,
        known(
            Type.NODES_JOINED,
            false=Type.MIG_READY,
            resources=EXISTING,
            counts=Counts(desired=2, running=2, joined=2, ready=2),
            completed_at=CREATED,
        ),
        ("create_resources", "label_node"),
    ),
    "complete once, BULK, its MIG has an error, and a Node is missing": (
        BULK,
        known(
            false=Type.MIG_READY,
            resources=EXISTING,
            counts=Counts(desired=2, running=1, joined=1, ready=1),
            completed_at=CREATED,
        ),
        ("create_resources", "inject_token", "label_node"),
    ),
    "complete once, INDIVIDUAL, and a repair is blocked": (
        SINGLE,
        known(
            false=Type.MIG_READY,
            resources=EXISTING,
            counts=Counts(desired=2, running=1, joined=1, ready=1),
            completed_at=CREATED,
        ),
        ("create_resources", "inject_token", "label_node"),
    ),
    "complete once, and the MIG's entry was removed from the status": (
        BULK,
        known(Type.MIG_READY, Type.NODES_JOINED, completed_at=CREATED),
        ("create_resources", "label_node"),
    ),
    "complete once, and the MIG is gone: the last Nodes and counts remain to be written": (
        BULK,
        known(
            Type.NODES_JOINED,
            false=Type.MIG_READY,
            resources={MIG: Resource("n", State.GONE, CREATED)},
            counts=Counts(desired=2, running=2, joined=2, ready=2),
            completed_at=CREATED,
        ),
        ("create_resources", "label_node"),
    ),
}


UNSETTLED["a repair deletes the MIG: create_resources waits until its Nodes are deleted"] = (
    BULK,
    known(resources={MIG: Resource(RESOURCE, State.DELETING, CREATED)}),
    ("tear_down",),
)
UNSETTLED["a repair deletes the MIG, and a step has an error"] = (
    BULK,
    known(resources={MIG: Resource(RESOURCE, State.DELETING, CREATED)}, retries=FAILED),
    ("tear_down", "inject_token"),
)


@pytest.mark.parametrize("case", UNSETTLED.values(), ids=UNSETTLED)
def test_a_resync_is_sent_only_to_steps_that_can_observe_something(
    case: tuple[NodeGroup, Status, tuple[str, ...]],
) -> None:
    about, status, steps = case
    assert list_steps(about, status) == steps


OWNERS = {
    **dict.fromkeys((Type.ACCEPTED, Type.POLICY_READY, Type.TEMPLATE_READY, Type.MIG_READY), "create_resources"),
    Type.TOKENS_INJECTED: "inject_token",
    **dict.fromkeys((Type.NODES_JOINED, Type.INTERCONNECT_READY, Type.READY), "label_node"),
}  # fmt: skip


@pytest.mark.parametrize("kind", OWNERS)
def test_the_owner_of_each_condition_that_is_not_true_gets_a_resync(kind: Type) -> None:
    """Whatever else is true: somebody may have edited or restored the status."""
    others = [one for one in Type if one is not kind]
    status = known(*others, false=kind, resources=EXISTING, completed_at=CREATED)
    steps = list_steps(BULK, status)
    assert OWNERS[kind] in steps
    assert set(steps) <= {OWNERS[kind], "label_node", "inject_token"}


def test_a_paused_group_with_a_resource_is_not_settled() -> None:
    paused = group(annotations=PAUSED)
    states = {
        state: is_settled(paused, known(resources={MIG: Resource("n", state, CREATED)}))
        for state in State
    }
    assert {state for state, settled in states.items() if settled} == {State.PENDING, State.GONE}


def test_a_paused_group_with_a_template_of_its_user_is_settled() -> None:
    template = {TEMPLATE: Resource("t", State.READY, CREATED)}
    assert is_settled(group(annotations=PAUSED, change=OWN), known(resources=template))
    assert not is_settled(group(annotations=PAUSED), known(resources=template))


RETRIED = known(
    resources={MIG: Resource("n", State.CREATING, NOW)},
    retries=(Retry("create_resources", "503", CREATED),),
)


def test_the_intent_of_a_call_that_fails_repeatedly_does_not_count_as_progress() -> None:
    assert last_progress(group(), RETRIED) == CREATED
    created = replace(RETRIED, resources={MIG: Resource("n", State.READY, NOW)})
    assert last_progress(group(), created) == NOW


def test_a_step_with_a_retry_gets_a_resync_of_a_ready_group() -> None:
    ready = known(
        Type.READY,
        Type.MIG_READY,
        Type.NODES_JOINED,
        resources=EXISTING,
        retries=(Retry("create_resources", "503", CREATED),),
    )
    assert not is_settled(group(), ready)
    assert list_steps(group(), ready) == ("label_node", "create_resources")


def test_tear_down_gets_a_resync_of_a_ready_group_that_has_an_error_of_tear_down() -> None:
    """A user deleted a resource, the audit log entry triggered tear_down, and its reads failed."""
    ready = known(
        Type.READY,
        Type.MIG_READY,
        Type.NODES_JOINED,
        resources=EXISTING,
        retries=(Retry("tear_down", "503", CREATED),),
    )
    assert list_steps(group(), ready) == ("label_node", "tear_down")


SWEEP = TimeTrigger(NOW)
UNAVAILABLE = CallError("GET groups", 503, "unavailable", "later")


@pytest.mark.parametrize(
    "provider, minute, is_redelivered, failure, topics",
    [
        ("", LEAKS_MINUTE - 1, False, None, []),
        ("", LEAKS_MINUTE, False, None, ["report_leaks"]),
        ("", LEAKS_MINUTE, False, UNAVAILABLE, []),
        ("gke", LEAKS_MINUTE + 1, False, None, ["provision_slice", "release_slice"]),
        ("gke", LEAKS_MINUTE, False, None, ["provision_slice", "release_slice", "report_leaks"]),
        ("gke", LEAKS_MINUTE, False, UNAVAILABLE, ["provision_slice", "release_slice"]),
        ("gke", LEAKS_MINUTE, True, UNAVAILABLE, []),
        # The earlier attempt may have failed before it could publish.
        ("gke", LEAKS_MINUTE, True, None, ["provision_slice", "release_slice", "report_leaks"]),
    ],
)
def test_slices_are_swept_even_if_groups_cannot_be_listed_and_not_at_each_failure(
    provider: str, minute: int, is_redelivered: bool, failure: CallError | None, topics: list[str]
) -> None:
    """The minute is that of the message, because a retry may begin later."""
    trigger = replace(SWEEP, at=NOW.replace(minute=minute), is_redelivered=is_redelivered)
    actions = flat(
        decide(observe(listing([failure] if failure else [], [], provider, trigger)), NOW)
    )
    sent = [action for action in actions if isinstance(action, Send)]
    assert [send.step for send in sent] == topics
    assert {send.messages for send in sent} <= {
        (Message("", "", "", Cause.SWEEP, trigger.at, kind=SWEEP_KIND),)
    }
    assert actions[len(sent) :] == ([Fail(failure)] if failure else [])


def test_slices_are_swept_once_if_the_step_observes_again() -> None:
    trigger = replace(SWEEP, at=NOW.replace(minute=LEAKS_MINUTE + 1))
    work = listing([UNAVAILABLE], [], "gke", trigger)
    work.is_first_observation = False
    assert flat(decide(observe(work), NOW)) == [Fail(UNAVAILABLE)]


def signing_request(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": "u", "creationTimestamp": "2026-11-20T09:59:00Z"},
        "spec": {
            "signerName": KUBELET_SIGNER,
            "username": "system:bootstrap:abcdef",
            "groups": [BOOTSTRAP_GROUP],
            **spec,
        },
    }


@dataclass
class Listing:
    """A cluster that lists groups and requests; an error in a list is raised at its position."""

    groups: list[Any]
    requests: list[Any]

    def get_cluster_id(self) -> str:
        return CLUSTER

    def list_groups(self) -> Iterator[Any]:
        return map(raised_or_same, self.groups)

    def list_signing_requests(self) -> Iterator[Any]:
        return map(raised_or_same, self.requests)


def raised_or_same(one: Any) -> Any:
    if isinstance(one, Exception):
        raise one
    return one


def listing(
    groups: list[Any],
    requests: list[Any],
    provider: str = "",
    trigger: Trigger = SWEEP,
    approval: JoinApproval = JoinApproval.APPROVE_JOIN,
) -> Work:
    nothing: Any = None
    return Work(
        settings=replace(SETTINGS, join_approval=approval, slice_provider=provider),
        gce=nothing,
        cluster=cast("Cluster", Listing(groups, requests)),
        publish=nothing,
        random_bytes=bytes,
        remaining_s=lambda: 30.0,
        now=NOW,
        trigger=trigger,
    )


FORBIDDEN = CallError("GET requests", 403, "Forbidden", "may not list")
SLOW = OutOfTimeError("no answer within 19 s")
OWN_APPROVAL, EXTERNAL_APPROVAL = JoinApproval.APPROVE_JOIN, JoinApproval.EXTERNAL
WITH_TOKENS = raw_group()
WITHOUT_TOKENS = raw_group(change={"bootstrapKubernetes": None})
ONE = signing_request("csr-1")
LISTED: dict[str, tuple[list[Any], list[Any], JoinApproval, tuple[list[str], Any, Any]]] = {
    "a group whose VMs join with tokens": (
        [WITHOUT_TOKENS, WITH_TOKENS],
        [ONE, signing_request("csr-2", groups=["system:bootstrappers"]), ONE],
        OWN_APPROVAL,
        (["csr-1", "csr-1"], None, None),
    ),
    "a group whose VMs join by other means": ([WITHOUT_TOKENS], [ONE], OWN_APPROVAL, ([], None, None)),
    "the cluster approves": ([WITH_TOKENS], [ONE], EXTERNAL_APPROVAL, ([], None, None)),
    "no group": ([], [ONE], OWN_APPROVAL, ([], None, None)),
    "a list of requests that ends early": ([WITH_TOKENS], [ONE, FORBIDDEN], OWN_APPROVAL, (["csr-1"], None, FORBIDDEN)),
    "no time for all requests": ([WITH_TOKENS], [ONE, SLOW], OWN_APPROVAL, (["csr-1"], None, SLOW)),
    "groups that cannot be listed": ([WITH_TOKENS, FORBIDDEN], [ONE], OWN_APPROVAL, ([], FORBIDDEN, None)),
}  # fmt: skip


@pytest.mark.parametrize("provider", ["", "gke"])
@pytest.mark.parametrize("case", LISTED.values(), ids=LISTED)
def test_signing_requests_are_listed_only_if_a_group_joins_with_approved_tokens(
    case: tuple[list[Any], list[Any], JoinApproval, tuple[list[str], Any, Any]], provider: str
) -> None:
    groups, requests, approval, (names, failure, requests_failure) = case
    found = observe(listing(groups, requests, provider, approval=approval))
    assert [one.name for one in found.requests] == names
    assert (found.failure, found.requests_failure) == (failure, requests_failure)
    assert len(found.groups) == (0 if failure else len(groups))


def request(name: str, token: str = "abcdef", age_s: float = 30, **change: Any) -> SigningRequest:
    pending = SigningRequest(name, "u", token, NOW - timedelta(seconds=age_s), False, "")
    return replace(pending, **change)


REQUESTS: dict[str, tuple[list[SigningRequest], list[tuple[str, ...]]]] = {
    "pending": ([request("a")], [("a",)]),
    "approved by this system": (
        [request("a", is_decided=True, approver="ApprovedByTpuFunctions")],
        [],
    ),
    "denied": ([request("a", is_decided=True)], []),
    "approved by another approver": (
        [request("a", is_decided=True, approver="AutoApproved")],
        [("a",)],
    ),
    "pending for less than 20 minutes": ([request("a", age_s=1199)], [("a",)]),
    "pending for less than 30 seconds": ([request("a", age_s=29)], []),
    "pending for 20 minutes": ([request("a", age_s=1200)], []),
    "more than one batch": (
        [request(f"csr-{number:02}", f"token{number:02}") for number in range(21)],
        [tuple(f"csr-{number:02}" for number in range(20)), ("csr-20",)],
    ),
    "the newest five of a token": (
        [*(request(f"csr-{age}", age_s=age) for age in range(31, 39)), request("x", "other")],
        [("csr-35", "csr-34", "csr-33", "csr-32", "csr-31", "x")],
    ),
}


@pytest.mark.parametrize("case", REQUESTS.values(), ids=REQUESTS)
def test_signing_requests_that_a_kubelet_waits_for_are_sent_to_approve_join(
    case: tuple[list[SigningRequest], list[tuple[str, ...]]],
) -> None:
    requests, batches = case
    plan = decide(ObservedGroups((), NOW, requests=tuple(requests)), NOW)
    sent = [one for one in flat(plan) if isinstance(one, Send) and one.step == "approve_join"]
    assert [message.requests for one in sent for message in one.messages] == batches


def test_a_group_is_resynced_even_if_signing_requests_cannot_be_listed() -> None:
    forbidden = CallError("GET requests", 403, "Forbidden", "may not list")
    plan = decide(
        ObservedGroups((group(owned=False),), FIRST_MINUTE, requests_failure=forbidden), NOW
    )
    assert [type(one).__name__ for one in flat(plan)] == ["Send"]
    assert plan.facts["triggered"] == {"create_resources": 1}
    assert (plan.note, plan.needs_attention) == (str(forbidden), True)


LOST_TOPIC = CallError("publish to t-label-node", 503, "Unavailable", "try later")


@pytest.mark.parametrize(
    "observed, plan",
    [
        (
            ObservedGroups((), NOW),
            Plan("SweptPartly", note=str(LOST_TOPIC), needs_attention=True),
        ),
        (ObservedGroups((), NOW, failure=LOST_TOPIC), None),
        (None, None),
    ],
    ids=["a topic", "the list of groups", "the cluster's id"],
)
def test_a_sweep_run_is_retried_only_if_it_published_nothing(
    observed: ObservedGroups | None, plan: Plan | None
) -> None:
    nothing: Any = None
    work = Work(
        settings=nothing,
        gce=nothing,
        cluster=nothing,
        publish=nothing,
        random_bytes=bytes,
        remaining_s=lambda: 30.0,
        now=NOW,
        trigger=TimeTrigger(NOW),
        observed=observed,
    )
    assert recover(work, LOST_TOPIC) == plan


def test_the_withdrawn_intent_of_a_retried_insert_does_not_count_as_progress() -> None:
    withdrawn = {**EXISTING, MIG: Resource("r", State.PENDING, CREATED + timedelta(hours=5))}
    retried = (Retry("create_resources", "412 conditionNotMet", CREATED + timedelta(hours=1)),)
    given = replace(known(false=Type.MIG_READY, resources=withdrawn), retries=retried)
    assert last_progress(group(), given) == CREATED + timedelta(hours=1)
    given = replace(given, retries=())
    assert last_progress(group(), given) == CREATED + timedelta(hours=5)
