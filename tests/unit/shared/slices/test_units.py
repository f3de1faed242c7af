# ruff: noqa: E501  (a table reads best with a row on a line)
"""What a Pod asks for, and which Pods of a gang wait although the scheduler has not tried them."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import V1PodSpec

from functions import provision_slice
from shared.base.names import TPU_RESOURCE
from shared.frame.plan import NothingToDo
from shared.slices.kinds import find_leader
from shared.slices.units import find_wait_start, read_demand, waits
from shared.triggers.message import POD_KIND, Cause, Message
from shared.triggers.trigger import ObjectTrigger
from tests.unit.relay.objects import START, held_pod, pod

SCHEDULED = [{"type": "PodScheduled", "status": "True"}]
REFUSED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
GATED = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]


def asking(chips: int) -> dict[str, Any]:
    """A container that requests chips."""
    return {"resources": {"limits": {TPU_RESOURCE: str(chips)}}}


HELD: dict[str, tuple[dict[str, Any], list[dict[str, str]], bool]] = {
    "not tried": ({}, [], True),
    "other conditions": ({}, [{"type": "Initialized", "status": "True"}], True),
    "tried": ({}, REFUSED, True),
    "gate": ({"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}, GATED, False),
    "gate, no condition yet": ({"schedulingGates": [{"name": "g"}]}, [], False),
    "placed": ({"nodeName": "n"}, SCHEDULED, False),
    "placed by hand": ({"nodeName": "n"}, [], False),
    "no gang": ({"schedulingGroup": None}, [], False),
    "no gang, tried": ({"schedulingGroup": None}, REFUSED, True),
    "no chips": ({"containers": []}, [], False),
}


@pytest.mark.parametrize("spec, conditions, expected", HELD.values(), ids=HELD.keys())
def test_a_pod_of_a_gang_waits_before_the_scheduler_has_tried_it(
    spec: dict[str, Any], conditions: list[dict[str, str]], expected: bool
) -> None:
    raw = held_pod(**spec)
    raw["status"]["conditions"] = conditions
    assert (waits(raw) is not None) is expected


def test_a_pod_that_is_not_pending_or_is_being_deleted_does_not_wait_in_a_gang() -> None:
    gang = held_pod()["spec"]
    for raw in (pod(phase="Running"), pod(deleting=True)):
        assert waits({**raw, "spec": gang}) is None


def test_a_held_pod_has_waited_since_its_creation() -> None:
    """The API server writes no list of conditions into it."""
    raw = held_pod()
    raw["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    del raw["status"]["conditions"]
    leader = find_leader(raw)
    assert leader is not None
    assert find_wait_start(leader.demand) == START


CLAIMS = {
    '0/4 nodes are available: persistentvolumeclaim "data" not found. not found': False,
    "0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/4 "
    "nodes are available: 4 Preemption is not helpful for scheduling.": False,
    '0/4 nodes are available: persistentvolumeclaim "data" bound to non-existent persistentvolume "x".': False,
    '0/4 nodes are available: waiting for ephemeral volume controller to create the persistentvolumeclaim "p-d".': False,
    "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.": True,
    "0/4 nodes are available: 4 node(s) had volume node affinity conflict.": True,
    "0/4 nodes are available: 4 node(s) didn't find available persistent volumes to bind.": True,
    "": True,
}


@pytest.mark.parametrize("message", CLAIMS)
def test_a_pod_that_fits_no_node_because_of_its_volume_claims_waits_for_no_slice(
    message: str,
) -> None:
    """Its slice would be billed, and not used. When the claim is there, the message is another one."""
    assert (waits(pod(message=message)) is not None) is CLAIMS[message]


ALWAYS = {"restartPolicy": "Always"}
CHIPS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], int]] = {
    "one container": ([asking(4)], [], 4),
    "two containers": ([asking(4), asking(4)], [], 8),
    "an init container prepares the chips": ([asking(4)], [asking(4)], 4),
    "only an init container": ([], [asking(4)], 4),
    "an init container asks for more than the container": ([asking(1)], [asking(4)], 4),
    "a sidecar": ([asking(2)], [asking(2) | ALWAYS], 4),
    "only a sidecar": ([asking(0)], [asking(4) | ALWAYS], 4),
    "an init container beside a sidecar": ([], [asking(2) | ALWAYS, asking(2)], 4),
    "an init container before a sidecar": ([], [asking(4), asking(2) | ALWAYS], 4),
}


@pytest.mark.parametrize("containers, before, chips", CHIPS.values(), ids=CHIPS.keys())
def test_a_pod_asks_for_as_many_chips_as_its_containers_have_at_the_same_time(
    containers: list[dict[str, Any]], before: list[dict[str, Any]], chips: int
) -> None:
    assert read_demand(held_pod(containers=containers, initContainers=before)).chips == chips


@pytest.mark.parametrize("seconds, is_left", [(0, True), (59, True), (60, False)])
@pytest.mark.parametrize("is_tried", [False, True])
def test_a_held_pod_gets_a_slice_a_minute_after_its_creation(
    monkeypatch: pytest.MonkeyPatch, seconds: int, is_left: bool, is_tried: bool
) -> None:
    """Free Nodes may suffice for one that the scheduler is just about to try."""
    raw = held_pod()
    raw["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    raw["status"]["conditions"] = REFUSED if is_tried else []
    cluster = SimpleNamespace(find_pod=lambda *_: raw)
    now = START + timedelta(seconds=seconds)
    work: Any = SimpleNamespace(facts={}, cluster=cluster, now=now, leader=None)
    monkeypatch.setattr(provision_slice, "open_slices", lambda *_: work)
    message = Message("default", "one", "", Cause.RESYNC, now, kind=POD_KIND)
    invocation: Any = SimpleNamespace(trigger=ObjectTrigger(message))
    expected = pytest.raises(NothingToDo, match="NotWaiting") if is_left and not is_tried else None
    with expected or nullcontext():
        assert provision_slice.open_pod(invocation, True) is work


def test_the_field_of_gangs_that_is_read_is_the_only_one_of_the_pinned_api() -> None:
    """A new field, as `workloadRef` once was, may hold Pods that `is_held` does not see."""
    words = ("group", "gang", "workload")
    fields = {
        name
        for name in V1PodSpec.attribute_map.values()
        if any(word in name.lower() for word in words)
    }
    assert fields == {"schedulingGroup"}
