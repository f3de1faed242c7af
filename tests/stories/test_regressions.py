"""Regression tests for bugs that were fixed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import yaml

from local.cloud.simulation import Options
from shared.base.names import RESOURCE_NAME_LABEL, VM_ID_LABEL
from shared.node_groups.status import Type
from tests.stories import helpers
from tests.stories.calls import CallCounter
from tests.stories.errors import INJECTED_ERRORS, denied, notes
from tests.stories.helpers import EXAMPLES, HOUR, MINUTE, ONE_HOST, SPOT, STANDARD, TWO_SINGLE
from tests.support.harness import Harness
from tests.support.manifests import manifest


def test_the_sweep_without_events_reports_a_stopped_vm_lost() -> None:
    harness = helpers.ready(manifest(instanceConfig=SPOT), Options(relays=False, sinks=False))
    lost = helpers.vms(harness)[0]
    harness.simulation.gce.faults.preempt(lost)
    helpers.until(harness, lambda: not harness.is_ready(helpers.NAME), 2 * HOUR)
    assert helpers.pending(harness) == {helpers.vm_name(lost): "NodeLost"}


@pytest.mark.parametrize("mode", [{}, {**ONE_HOST, "nodeCount": 2}], ids=["BULK", "INDIVIDUAL"])
def test_a_preempted_vm_stays_reported_while_its_node_is_not_known_to_be_dead(
    mode: dict[str, Any],
) -> None:
    """Its Node is still Ready for 50 seconds. A change of another Node must not clear the reason."""
    harness = helpers.ready(manifest(instanceConfig=SPOT, **mode), helpers.with_heartbeats())
    lost, other = map(helpers.vm_name, helpers.vms(harness))
    harness.simulation.gce.faults.preempt(helpers.vms(harness)[0])
    helpers.until_reason(harness, "Preempted")
    helpers.patch(
        harness,
        f"/api/v1/nodes/{other}",
        {"metadata": {"labels": {"cloud.google.com/gke-tpu-topology": "9x9"}}},
    )
    harness.run_for(timedelta(seconds=8))
    assert helpers.condition_of(harness)[:2] == ("False", "Preempted")
    assert helpers.pending(harness) == {lost: "Preempted"}


def test_64_vms_preempted_together_are_all_reported_lost() -> None:
    harness = helpers.ready(manifest(nodeCount=64, topology="4x8x8", instanceConfig=SPOT))
    for vm in helpers.vms(harness):
        harness.simulation.gce.faults.preempt(vm)
    harness.run_for(2 * MINUTE)
    assert set(helpers.pending(harness).values()) <= {"Preempted", "NodeLost"}


def test_a_node_of_another_machine_with_our_proof_is_not_touched() -> None:
    harness = helpers.ready()
    labels = {
        RESOURCE_NAME_LABEL: helpers.resource_name(harness),
        "cloud.google.com/gke-tpu-accelerator": "tpu7x",
        VM_ID_LABEL: "12345",
    }
    harness.simulation.admin(
        "POST",
        "/api/v1/nodes",
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "worker-1", "labels": labels},
            "spec": {"providerID": "gce://my-gcp-project/us-central1-c/worker-1"},
        },
    )
    harness.run_for(timedelta(minutes=5))
    assert helpers.nodes(harness)["worker-1"]["metadata"]["labels"] == labels
    assert helpers.summary(harness)["joined"] == 2


@pytest.mark.parametrize(
    "name", ["reservation full", "stockout", "quota of chips", "agent may not create VMs"]
)
def test_the_reason_of_an_individual_group_that_waits_does_not_flap(name: str) -> None:
    injected = INJECTED_ERRORS[name]
    harness = Harness()
    injected.begin(harness.simulation.gce.faults)
    harness.apply(manifest(**{**TWO_SINGLE, **injected.change}))
    helpers.until_reason(harness, injected.reason, timeout=5 * MINUTE)
    for _ in range(40):
        harness.run_for(MINUTE)
        assert helpers.condition_of(harness)[:2] == ("False", injected.reason)


FLEX = {"provisioningModel": "FLEX_START", "reservation": None, "maxRunDuration": "90h"}


@pytest.mark.parametrize(
    "mode",
    [
        {},
        TWO_SINGLE,
        {"bootstrapKubernetes": None},
        {"instanceConfig": FLEX},
        {"instanceConfig": FLEX, **TWO_SINGLE},
    ],
    ids=["BULK", "INDIVIDUAL", "no tokens", "flex-start, BULK", "flex-start, INDIVIDUAL"],
)
def test_a_lack_of_capacity_is_not_reported_any_more_when_vms_run(mode: dict[str, Any]) -> None:
    """The sweep triggers a group that has waited long every half hour only, and the VMs boot long."""
    identity = None if "bootstrapKubernetes" not in mode else helpers.by_other_means
    harness = Harness(helpers.vm_options(boot_s=(600.0, 601.0), identity=identity))
    faults = harness.simulation.gce.faults
    faults.set_capacity("us-central1-c", "tpu7x", 0)
    harness.apply(manifest(**{"instanceConfig": STANDARD, **mode}))
    harness.run_for(2 * HOUR)
    assert helpers.condition_of(harness)[1] in ("InsufficientCapacity", "Provisioning")
    faults.set_capacity("us-central1-c", "tpu7x", 2)
    helpers.until(harness, lambda: running(harness) >= 1)
    harness.run_for(timedelta(seconds=5))
    if "targetSizePolicyMode" not in mode:  # the other VM of an INDIVIDUAL group may still wait
        assert helpers.condition_of(harness)[1] in ("Provisioning", "AwaitingNodeJoin")
    helpers.until(harness, lambda: running(harness) == 2)
    harness.run_for(MINUTE + timedelta(seconds=5))
    assert helpers.condition_of(harness)[1] == "AwaitingNodeJoin"
    helpers.until_ready(harness)


def running(harness: Harness) -> int:
    """The number of VMs that run."""
    return sum(helpers.get(harness, vm)["status"] == "RUNNING" for vm in helpers.vms(harness))


def test_a_refused_read_is_reported_by_an_event() -> None:
    harness = Harness()
    denied("compute.instanceGroupManagers.get").begin(harness.simulation.gce.faults)
    harness.apply(manifest())
    helpers.until_reason(harness, "PermissionDenied", timeout=5 * MINUTE)
    assert [event for event in helpers.events(harness) if event[1] == "PermissionDenied"]


def test_a_kubeconfig_that_is_not_yaml_is_named_in_the_log() -> None:
    harness = Harness()
    harness.kubeconfig("create_resources").write_text("not: [a kubeconfig")
    harness.apply(manifest())
    harness.run_for(5 * MINUTE)
    assert "cannot be used: " in notes(harness, "create_resources")


def test_the_example_in_an_ai_zone_becomes_ready() -> None:
    harness = Harness()
    helpers.ready_slice(harness, yaml.safe_load((EXAMPLES / "v6e-8x8-flex-start.yaml").read_text()))


def test_a_group_of_single_hosts_that_waits_for_capacity_is_observed_cheaply() -> None:
    harness = Harness()
    counter = CallCounter(harness)
    harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 0)
    harness.apply(manifest(**{**TWO_SINGLE, "instanceConfig": STANDARD}))
    helpers.until_reason(harness, "InsufficientCapacity", timeout=5 * MINUTE)
    minutes = []
    for _ in range(60):
        before = counter.cost()
        harness.run_for(MINUTE)
        minutes.append(counter.cost() - before)
    assert max(cost.reads for cost in minutes) <= 2
    harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 2)
    helpers.until_ready(harness)


def test_an_invalid_time_in_a_status_does_not_keep_the_sweep_from_other_groups() -> None:
    harness = helpers.ready(manifest(), Options(relays=False))
    odd = "2026-11-20T10:00:00+99:00"
    answer = helpers.patch(
        harness, f"{helpers.group_path()}/status", {"status": {"completedAt": odd}}
    )
    assert answer["status"]["completedAt"] == odd
    harness.apply(manifest("other"))
    helpers.until_ready(harness, "other", 2 * HOUR)


@pytest.mark.parametrize("kind", [one for one in Type if one is not Type.MAINTENANCE_SCHEDULED])
def test_the_sweep_alone_heals_each_condition(kind: Type) -> None:
    """Somebody has restored an older status, or has edited it."""
    harness = helpers.ready(manifest(), Options(relays=False, sinks=False))
    before = conditions(harness)
    assert before[kind]["status"] == "True"
    edited = {**before, kind: {**before[kind], "status": "False", "message": "edited"}}
    change = {"status": {"conditions": list(edited.values())}}
    helpers.patch(harness, f"{helpers.group_path()}/status", change)
    harness.run_for(2 * HOUR)
    after = conditions(harness)
    assert after.keys() == before.keys()
    assert {name for name, one in after.items() if one["status"] != "True"} == set()
    assert after[kind]["message"] == before[kind]["message"]


def conditions(harness: Harness) -> dict[str, dict[str, Any]]:
    """The conditions of the group by type."""
    group = harness.group(helpers.NAME)
    assert group is not None
    return {one["type"]: one for one in group["status"]["conditions"]}
