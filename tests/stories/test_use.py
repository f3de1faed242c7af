"""Slices whose chips no Pod uses, and chips that are billed and not usable."""

from __future__ import annotations

from typing import Any

import pytest

from shared.base.timestamps import parse_time
from shared.settings import GKE, TPU_NODE_GROUP
from tests.faults.jobsets import SETTINGS, prepare
from tests.stories import helpers, jobsets
from tests.stories.helpers import HOUR, MINUTE, NAME, SPOT, STANDARD, TWO_SINGLE
from tests.support import jobset_objects
from tests.support.harness import Harness
from tests.support.manifests import manifest


def lines(harness: Harness, decision: str) -> list[dict[str, Any]]:
    return [line for line in harness.log.lines if line["decision"] == decision]


def group_status(harness: Harness) -> dict[str, Any]:
    group = harness.group(NAME)
    assert group is not None
    found: dict[str, Any] = group["status"]
    return found


def until_looked_at(harness: Harness) -> None:
    """Let time pass until report_leaks has run once more."""
    count = len(lines(harness, "NoLeaks"))
    helpers.until(harness, lambda: len(lines(harness, "NoLeaks")) > count, 2 * HOUR)
    harness.run_for(MINUTE)


@pytest.mark.parametrize("change", [{}, TWO_SINGLE], ids=["BULK", "INDIVIDUAL"])
def test_an_idle_group_says_since_when_and_gets_an_event_after_an_hour(
    change: dict[str, Any],
) -> None:
    harness = helpers.ready(manifest(**change))
    assert helpers.columns(harness, wide=True)["IDLE"] is None
    until_looked_at(harness)
    since = group_status(harness)["idleSince"]
    assert parse_time(since) >= harness.clock.now() - 2 * MINUTE
    assert helpers.columns(harness, wide=True)["IDLE"] is not None
    assert (lines(harness, "IdleSlice"), helpers.condition_of(harness)[:2]) == (
        [],
        ("True", "Ready"),
    )
    until_looked_at(harness)
    note = (
        f"No Pod used the 8 TPU chips of TPUNodeGroup default/{NAME} at each look since {since}, once "
        "an hour. They are billed. Delete it if nothing needs it."
    )
    (line,) = lines(harness, "IdleSlice")
    assert (line["severity"], line["slice"]) == ("INFO", helpers.resource_name(harness))
    assert (line["group"], line["workload"], line["chips"]) == (f"default/{NAME}", "", 8)
    assert (line["idle_h"], line["note"]) == (1.0, note)
    assert helpers.events(harness)[-1] == ("Warning", "SliceIdle", note)
    until_looked_at(harness)
    assert group_status(harness)["idleSince"] == since
    assert [one["idle_h"] for one in lines(harness, "IdleSlice")] == [1.0, 2.0]
    helpers.bind_pod(harness, max(helpers.nodes(harness)))
    until_looked_at(harness)
    assert "idleSince" not in group_status(harness)
    until_looked_at(harness)
    assert len(lines(harness, "IdleSlice")) == 2
    assert harness.group(NAME) is not None


def test_a_slice_that_is_lost_is_not_idle() -> None:
    harness = helpers.ready(manifest(instanceConfig=SPOT), helpers.with_heartbeats())
    until_looked_at(harness)
    assert "idleSince" in group_status(harness)
    harness.simulation.gce.faults.preempt(helpers.vms(harness)[0])
    helpers.until_reason(harness, "Preempted", timeout=2 * MINUTE)
    assert "idleSince" not in group_status(harness)
    until_looked_at(harness)
    assert "idleSince" not in group_status(harness)


def test_an_unread_pod_list_is_reported_and_no_slice_counts_as_idle() -> None:
    harness = helpers.ready()
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/tpu-functions-report-leaks"
    rules = [
        one
        for one in harness.simulation.admin("GET", path)["rules"]
        if one["resources"] != ["pods"]
    ]
    helpers.patch(harness, path, {"rules": rules})
    helpers.until(harness, lambda: bool(lines(harness, "NotAllSeen")), 2 * HOUR)
    (line,) = lines(harness, "NotAllSeen")
    assert line["note"].startswith("Not seen: Pods; GET /api/v1/pods: 403 Forbidden")
    assert "idleSince" not in group_status(harness)


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
def test_the_slice_of_a_workload_is_reported_while_no_pod_uses_it(provider: str) -> None:
    """The JobSet's Pods are deleted, and its controller does not create them again."""
    harness = Harness(slices=SETTINGS[provider])
    prepare(harness)
    jobsets.apply(harness, jobset_objects.jobset())
    jobsets.until(harness, lambda: jobsets.are_running(harness))
    harness.run_for(3 * HOUR)
    assert lines(harness, "IdleSlice") == lines(harness, "LeakedSlice") == []
    harness.jobsets.controllers = frozenset()
    for pod in jobsets.pods(harness):
        harness.simulation.admin(
            "DELETE", f"{jobsets.PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0"
        )
    harness.run_for(2 * HOUR + 10 * MINUTE)
    what, when, count = f"node pool {jobsets.NAME}", "now", 2
    group = harness.group(jobsets.NAME, jobset_objects.NAMESPACE)
    if group is not None:
        what = f"TPUNodeGroup {jobset_objects.NAMESPACE}/{jobsets.NAME}"
        when, count = f"at each look since {group['status']['idleSince']}, once an hour", 1
    note = (
        f"No Pod used the 16 TPU chips of {what} {when}. They are billed. It was created for JobSet "
        "train, and is deleted when that ends."
    )
    found = lines(harness, "IdleSlice")
    assert [(one["workload"], one["chips"], one["note"]) for one in found] == [
        ("JobSet train", 16, note)
    ] * count
    namespace = jobset_objects.NAMESPACE if group is not None else "default"
    events = harness.simulation.admin("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    idle = [one for one in events if one["reason"] == "SliceIdle"]
    kind = "TPUNodeGroup" if group is not None else "Node"
    assert [(one["involvedObject"]["kind"], one["message"]) for one in idle] == [(kind, note)]


def test_chips_that_are_not_usable_are_added_up_by_cause() -> None:
    harness = helpers.ready(manifest(), helpers.with_heartbeats())
    start = group_status(harness)["unusable"]
    assert start.keys() == {"chipHours", "chipSeconds"}
    assert start["chipSeconds"].keys() == {"start"}
    # Eight chips from the first count of running VMs on.
    assert 8 * 30 <= start["chipSeconds"]["start"] <= 8 * 120
    lost, kept = helpers.vms(harness)
    harness.simulation.gce.faults.host_error(lost)
    helpers.until_reason(harness, "Preempted", timeout=2 * MINUTE)
    unusable = group_status(harness)["unusable"]
    assert (unusable["cause"], unusable["chips"]) == ("computeEngine", 4), (
        "the lost VM is not billed"
    )
    helpers.until_ready(harness, timeout=10 * MINUTE)
    unusable = group_status(harness)["unusable"]
    assert unusable["chipSeconds"].keys() == {"start", "computeEngine"}
    assert unusable["chipSeconds"]["start"] == start["chipSeconds"]["start"]
    harness.run_for(HOUR)  # its VM was restarted, too, and must join again within this time
    harness.simulation.admin("DELETE", f"/api/v1/nodes/{helpers.vm_name(kept)}")
    helpers.until_reason(harness, "NodeJoinTimeout", timeout=10 * MINUTE)
    harness.run_for(4 * HOUR)
    unusable = group_status(harness)["unusable"]
    assert (unusable["cause"], unusable["chips"]) == ("user", 8)
    assert parse_time(unusable["since"]) >= harness.clock.now() - 2 * HOUR, "added once an hour"
    assert 8 * 3600 * 2 <= unusable["chipSeconds"]["user"] <= 8 * 3600 * 4
    total = sum(unusable["chipSeconds"].values())
    assert unusable["chipHours"] == helpers.columns(harness, wide=True)["UNUSABLE"]
    assert unusable["chipHours"] == f"{total / 3600:.1f}"
    found = lines(harness, "Unusable")
    assert sum(one["chip_hours"] for one in found) == pytest.approx(total / 3600, abs=0.01)
    assert {(one["group"], one["workload"]) for one in found} == {(f"default/{NAME}", "")}
    assert {one["cause"] for one in found} == {"start", "computeEngine", "user"}
    helpers.assert_deleted_completely(harness)
    assert sum(one["chip_hours"] for one in lines(harness, "Unusable")) <= total / 3600 + 8 * 2


def test_a_vm_of_an_individual_group_is_usable_while_others_have_no_capacity() -> None:
    harness = Harness()
    harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 1)
    harness.apply(manifest(**{**TWO_SINGLE, "instanceConfig": STANDARD}))
    helpers.until_reason(harness, "InsufficientCapacity", timeout=10 * MINUTE)
    harness.run_for(3 * HOUR)
    unusable = group_status(harness)["unusable"]
    assert unusable.keys() == {"chipHours", "chipSeconds"}
    assert unusable["chipSeconds"].keys() == {"computeEngine"}
    assert 4 * 30 <= unusable["chipSeconds"]["computeEngine"] <= 4 * 120, "until it was ready"


def test_the_chips_of_a_workloads_slice_name_its_workload() -> None:
    harness = Harness(slices=SETTINGS[TPU_NODE_GROUP])
    prepare(harness)
    jobsets.apply(harness, jobset_objects.jobset())
    jobsets.until(harness, lambda: jobsets.are_running(harness))
    found = lines(harness, "Unusable")
    assert {(one["group"], one["workload"], one["cause"]) for one in found} == {
        (f"{jobset_objects.NAMESPACE}/{jobsets.NAME}", "JobSet train", "start")
    }
