"""Losses of VMs, Nodes, the interconnect, labels and the MIG, and how the status reports them.

The loss of a VM of a complete BULK slice is reported, and the VM is not recreated. Compute Engine
repairs an INDIVIDUAL group, and the new VMs join.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from local.cloud.simulation import PROJECT, identity
from local.vm.kubelet import ACCELERATOR_LABEL
from shared.base.names import FINALIZER, RESOURCE_NAME_LABEL, VM_ID_LABEL, VM_STARTED_KEY
from shared.base.reasons import REASONS, Reason
from shared.base.timestamps import parse_time, render_time
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME, ONE_HOST, SPOT, STANDARD, TWO_SINGLE
from tests.support.harness import RESERVATION, Harness
from tests.support.manifests import manifest


def ready(harness: Harness, **change: Any) -> list[str]:
    """Create a Ready slice; return the paths of its VMs."""
    helpers.ready_slice(harness, manifest(**change))
    return helpers.vms(harness)


def status_writes(harness: Harness) -> int:
    return harness.simulation.kube.calls.count(resource="tpunodegroups", subresource="status")


def node_lists(harness: Harness) -> int:
    user = identity("label-node").name
    return harness.simulation.kube.calls.count(user=user, resource="nodes", verb="list")


def loss_time(harness: Harness) -> str:
    """When the last VM was lost, by the status."""
    group = harness.group(NAME)
    assert group is not None
    return max(str(one["since"]) for one in group["status"]["pending"])


# VMs that Compute Engine stops


def test_a_preempted_vm_of_a_slice_is_named_and_not_recreated() -> None:
    harness = Harness(helpers.with_heartbeats())
    lost, _ = ready(harness, instanceConfig=SPOT)
    harness.simulation.gce.faults.preempt(lost)
    helpers.until_reason(harness, "Preempted", timeout=2 * MINUTE)
    name = helpers.vm_name(lost)
    text = (
        f"1 of 2 nodes is not ready: {name}. Lost at {loss_time(harness)}. Compute Engine does not "
        "restart Spot VMs of a slice. Delete the group and apply it again."
    )
    expected = ("False", "Preempted", text)
    assert helpers.condition_of(harness) == expected
    assert helpers.pending(harness) == {name: "Preempted"}
    assert ("Warning", "Preempted", text) in helpers.events(harness)
    harness.run_for(2 * HOUR)
    assert helpers.condition_of(harness) == expected
    assert helpers.columns(harness)["NODES"] == "1/2"
    assert harness.operations["instances.insert"] == 2
    helpers.assert_deleted_completely(harness)


def test_64_vms_preempted_together_cause_few_writes_and_one_reason() -> None:
    """The number of reads must not grow with the square of the number of VMs."""
    harness = Harness()
    lost = ready(harness, nodeCount=64, topology="4x8x8", instanceConfig=SPOT)
    before, lists = status_writes(harness), node_lists(harness)
    for vm in lost:
        harness.simulation.gce.faults.preempt(vm)
    harness.run_for(2 * MINUTE)
    assert helpers.condition_of(harness)[:2] == ("False", "Preempted")
    pending = helpers.pending(harness)
    assert next(iter(pending.values())) == "Preempted"
    assert 1 <= len(pending) <= 16
    assert helpers.condition_of(harness)[2].startswith("64 of 64 nodes are not ready: ")
    assert status_writes(harness) - before <= 4
    assert node_lists(harness) - lists <= 6
    helpers.assert_deleted_completely(harness)


def test_a_slice_is_restarted_as_a_whole_after_a_host_error_and_needs_no_token() -> None:
    harness = Harness(helpers.with_heartbeats())
    lost, _ = ready(harness)
    tokens = harness.simulation.gce.calls.counts()["instances.setMetadata"]
    uids = {node["metadata"]["uid"] for node in helpers.nodes(harness).values()}
    harness.simulation.gce.faults.host_error(lost)
    helpers.until_reason(harness, "Preempted", timeout=2 * MINUTE)
    since = loss_time(harness)
    until = render_time(parse_time(since) + 30 * MINUTE)
    assert helpers.condition_of(harness)[2].endswith(
        f". Lost at {since}. Compute Engine restarts the VMs of a slice together, except deleted ones. "
        f"If the slice is not Ready by {until}, delete the group and apply it again."
    )
    helpers.until_ready(harness, timeout=10 * MINUTE)
    assert harness.operations["instances.insert"] == 2
    assert "instances.delete" not in harness.operations
    assert harness.simulation.gce.calls.counts()["instances.setMetadata"] == tokens
    assert {node["metadata"]["uid"] for node in helpers.nodes(harness).values()} == uids
    assert helpers.pending(harness) == {}
    assert helpers.secrets(harness) == []


# VMs and MIGs that users delete


def test_a_vm_deleted_manually_is_recreated_and_admitted_again() -> None:
    harness = Harness(helpers.with_heartbeats())
    lost, kept = ready(harness, **TWO_SINGLE)
    before = helpers.nodes(harness)
    harness.simulation.gce.faults.act_as_user("DELETE", lost)
    helpers.until(harness, lambda: not harness.is_ready(NAME), 5 * MINUTE)
    assert helpers.pending(harness) == {helpers.vm_name(lost): "NodeLost"}
    assert helpers.condition_of(harness)[2].endswith(
        f"Lost at {loss_time(harness)}. Its managed instance group creates it again. Nothing to do."
    )
    helpers.until_ready(harness, timeout=10 * MINUTE)
    after = helpers.nodes(harness)
    assert set(after) == set(before)
    renewed = helpers.vm_name(lost)
    assert after[renewed]["metadata"]["uid"] != before[renewed]["metadata"]["uid"]
    assert after[renewed]["metadata"]["labels"][VM_ID_LABEL] == helpers.get(harness, lost)["id"]
    unchanged = helpers.vm_name(kept)
    assert after[unchanged]["metadata"]["uid"] == before[unchanged]["metadata"]["uid"]
    assert harness.simulation.gce.calls.counts()["instances.setMetadata"] == 3
    harness.run_for(5 * MINUTE)
    assert helpers.secrets(harness) == []
    helpers.assert_deleted_completely(harness)


def test_a_late_message_about_the_node_of_a_deleted_vm_does_not_keep_its_successor_from_joining() -> (
    None
):
    harness = Harness(helpers.with_heartbeats())
    publish = harness.simulation.publish
    lost, _ = ready(harness, **TWO_SINGLE)
    late: list[tuple[str, bytes, Any]] = []

    def keep(step: str, data: bytes, attributes: Any) -> None:
        if step == "label_node" and b'"NodesChanged"' in data:
            late.append((step, data, attributes))
        publish(step, data, attributes)

    harness.simulation.publish = keep  # type: ignore[method-assign]
    harness.simulation.gce.faults.act_as_user("DELETE", lost)
    helpers.until(harness, lambda: helpers.secrets(harness) != [], 5 * MINUTE)
    harness.run_for(timedelta(seconds=5))
    assert helpers.vm_name(lost).encode() in late[-1][1]
    publish(*late[-1])
    helpers.until_ready(harness, timeout=10 * MINUTE)
    helpers.assert_deleted_completely(harness)


def test_a_late_count_does_not_keep_a_recreated_vm_that_boots_slowly_from_joining() -> None:
    harness = Harness(helpers.with_heartbeats(join_s=(420.0, 421.0)))
    lost, _ = ready(harness, **TWO_SINGLE)
    publish, late = harness.simulation.publish, list[tuple[str, bytes, Any]]()

    def hold(step: str, data: bytes, attributes: Any) -> None:
        late.append((step, data, attributes))
        if step != "label_node":
            publish(*late.pop())

    harness.simulation.publish = hold  # type: ignore[method-assign]
    harness.simulation.gce.faults.act_as_user("DELETE", lost)
    harness.simulation.admin("DELETE", f"/api/v1/nodes/{helpers.vm_name(lost)}")
    helpers.until(harness, lambda: helpers.secrets(harness) != [], 5 * MINUTE)
    harness.run_for(7 * MINUTE)
    assert harness.is_ready(NAME)
    harness.simulation.publish = publish  # type: ignore[method-assign]
    for message in late:
        publish(*message)
    helpers.until_reason(harness, "AwaitingNodeJoin", timeout=MINUTE)
    helpers.until_ready(harness, timeout=20 * MINUTE)


def test_a_vm_of_a_slice_deleted_manually_is_lost_and_not_recreated() -> None:
    harness = Harness(helpers.with_heartbeats())
    lost, _ = ready(harness)
    harness.simulation.gce.faults.act_as_user("DELETE", lost)
    helpers.until_reason(harness, "NodeLost", timeout=5 * MINUTE)
    name = helpers.vm_name(lost)
    harness.run_for(HOUR)
    assert helpers.condition_of(harness)[:2] == ("False", "NodeLost")
    assert name in helpers.condition_of(harness)[2]
    assert helpers.pending(harness) == {name: "NodeLost"}
    assert name not in helpers.nodes(harness)
    assert harness.operations["instances.insert"] == 2
    helpers.assert_deleted_completely(harness)


def test_a_mig_deleted_manually_before_completion_is_created_again() -> None:
    harness = Harness()
    harness.apply(manifest())
    helpers.until(harness, lambda: bool(helpers.vms(harness)))
    harness.run_for(timedelta(seconds=10))
    (path,) = helpers.of_kind(harness, "instanceGroupManagers")
    harness.simulation.gce.faults.act_as_user("DELETE", path)
    helpers.until_ready(harness)
    assert harness.operations["instanceGroupManagers.insert"] == 2
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize("model", [STANDARD, SPOT], ids=["STANDARD", "SPOT"])
def test_vms_of_a_mig_that_was_created_again_have_lost_nothing(model: dict[str, Any]) -> None:
    harness = Harness(helpers.with_heartbeats(join_s=(420.0, 421.0)))
    harness.apply(manifest(instanceConfig=model))
    helpers.until_reason(harness, "AwaitingNodeJoin")
    helpers.until(harness, lambda: len(helpers.pending(harness)) == 2)
    (path,) = helpers.of_kind(harness, "instanceGroupManagers")
    harness.simulation.gce.faults.act_as_user("DELETE", path)
    helpers.until_reason(harness, "NodeLost", timeout=5 * MINUTE)
    helpers.until_reason(harness, "Provisioning", timeout=5 * MINUTE)
    reasons = list[str]()
    while not harness.is_ready(NAME):
        harness.run_for(timedelta(seconds=5))
        reasons.append(helpers.condition_of(harness)[1])
    assert list(dict.fromkeys(reasons)) == ["Provisioning", "AwaitingNodeJoin", "Ready"]
    helpers.assert_deleted_completely(harness)


def test_a_foreign_vm_that_is_deleted_while_vms_join_is_no_loss() -> None:
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest(instanceConfig=STANDARD))
    helpers.until(harness, lambda: len(helpers.vms(harness)) == 2)
    path = helpers.make_vm_manually(harness)
    helpers.until_reason(harness, "NodeJoinTimeout")
    expected = helpers.condition_of(harness)
    assert "ForeignVM" in {reason for _, reason, _ in helpers.events(harness)}
    harness.simulation.gce.faults.act_as_user("DELETE", path)
    for _ in range(60):
        harness.run_for(timedelta(seconds=5))
        assert helpers.condition_of(harness) == expected
    helpers.assert_deleted_completely(harness)


def test_a_mig_deleted_manually_after_completion_is_reported_lost() -> None:
    harness = Harness()
    ready(harness)
    (path,) = helpers.of_kind(harness, "instanceGroupManagers")
    harness.simulation.gce.faults.act_as_user("DELETE", path)
    helpers.until_reason(harness, "ResourceLost", timeout=5 * MINUTE)
    text = (
        f"The managed instance group {helpers.resource_name(harness)} is gone. The slice was complete "
        "and its managed instance group is gone. It is not created again: delete the group "
        "and apply it again."
    )
    harness.run_for(2 * HOUR)
    assert helpers.condition_of(harness) == ("False", "ResourceLost", text)
    assert ("Warning", "ResourceLost", text) in helpers.events(harness)
    joined = helpers.condition_of(harness, "NodesJoined")[2]
    assert joined.endswith(text.partition(" is gone. ")[2])  # nobody is said to restore the VMs
    assert harness.operations["instanceGroupManagers.insert"] == 1
    assert helpers.nodes(harness) == {}
    helpers.assert_deleted_completely(harness)


def no_capacity(harness: Harness, vms: int | None) -> None:
    harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", vms)


def no_reservation(harness: Harness, vms: int | None) -> None:
    faults = harness.simulation.gce.faults
    if vms is None:
        faults.set_reservation(RESERVATION, "tpu7x-standard-4t", 4096)
    else:
        faults.remove_reservation(RESERVATION)


@pytest.mark.parametrize(
    "block, model, reason, text",
    [
        (
            no_capacity,
            {"instanceConfig": helpers.STANDARD},
            "InsufficientCapacity",
            "ZONE_RESOURCE_POOL_EXHAUSTED",
        ),
        (no_reservation, {}, "ReservationNotFound", "does not exist"),
    ],
    ids=["stockout", "removed reservation"],
)
def test_a_blocked_repair_is_reported_with_its_vm_and_continues_by_itself(
    block: Callable[[Harness, int | None], None], model: dict[str, Any], reason: str, text: str
) -> None:
    harness = Harness(helpers.with_heartbeats())
    lost, _ = ready(harness, **TWO_SINGLE, **model)
    block(harness, 1)
    harness.simulation.gce.faults.act_as_user("DELETE", lost)
    helpers.until_reason(harness, reason, timeout=10 * MINUTE)
    before = status_writes(harness)
    harness.run_for(HOUR)
    status, found_reason, message = helpers.condition_of(harness)
    assert (status, found_reason) == ("False", reason)
    assert message.startswith(f"VM {helpers.vm_name(lost)} of projects/")
    assert text in message
    assert message.endswith(REASONS[Reason(reason)])
    assert helpers.condition_of(harness, "ManagedInstanceGroupReady") == (
        status,
        found_reason,
        message,
    )
    assert status_writes(harness) - before <= 2
    block(harness, None)
    helpers.until_ready(harness, timeout=HOUR)
    assert helpers.condition_of(harness, "ManagedInstanceGroupReady")[:2] == ("True", "Ready")
    helpers.assert_deleted_completely(harness)


def test_a_bulk_slice_that_loses_a_vm_before_completion_reports_that_the_others_are_billed() -> (
    None
):
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest())
    helpers.until(harness, lambda: len(helpers.vms(harness)) == 2)
    harness.run_for(2 * MINUTE)
    lost, _ = helpers.vms(harness)
    harness.simulation.gce.faults.act_as_user("DELETE", lost)
    text = (
        "Before the slice was complete, 1 of its 2 VMs were deleted. Compute Engine does not recreate "
        "VMs of a BULK slice. The others wait and are billed. Delete the group and apply it again."
    )
    helpers.until_reason(harness, "NodeLost", timeout=15 * MINUTE)
    harness.run_for(HOUR)
    assert helpers.condition_of(harness) == ("False", "NodeLost", text)
    helpers.assert_deleted_completely(harness)


ENDS_AFTER_90_MINUTES = {
    "provisioningModel": "FLEX_START",
    "maxRunDuration": {"seconds": 5400},
    "instanceTerminationAction": "DELETE",
    "onHostMaintenance": "TERMINATE",
}
FLEX = {"provisioningModel": "FLEX_START", "reservation": None, "maxRunDuration": "90m"}
OWN = {
    "instanceConfig": None,
    "bootstrapKubernetes": None,
    "instanceTemplateURI": f"projects/{PROJECT}/global/instanceTemplates/my-template",
}


@pytest.mark.parametrize("is_shrunk", [False, True], ids=["the MIG stays", "the MIG is shrunk"])
@pytest.mark.parametrize("mode", [{}, TWO_SINGLE], ids=["BULK", "INDIVIDUAL"])
@pytest.mark.parametrize("source", [{"instanceConfig": FLEX}, OWN], ids=["spec", "own template"])
def test_the_end_of_max_run_duration_is_reported_as_such(
    source: dict[str, Any], mode: dict[str, Any], is_shrunk: bool
) -> None:
    identity = helpers.by_other_means if source is OWN else None
    harness = Harness(helpers.with_heartbeats(identity=identity))
    if source is OWN:
        helpers.create_template(harness, helpers.template(scheduling=ENDS_AFTER_90_MINUTES))
    ready(harness, **source, **mode)
    harness.run_for(2 * HOUR)
    if is_shrunk:
        (path,) = helpers.of_kind(harness, "instanceGroupManagers")
        harness.simulation.gce.faults.act_as_user("POST", f"{path}/resize?size=0")
        harness.run_for(HOUR)
    status, reason, message = helpers.condition_of(harness)
    assert (status, reason) == ("False", "MaxRunDurationReached")
    assert message.endswith(REASONS[Reason.MAX_RUN_DURATION_REACHED])
    reported = {event for _, event, _ in helpers.events(harness)}
    assert not reported & {"NodeLost", "ResourceConflict"}


def test_the_first_end_in_an_individual_group_is_no_resize_and_names_the_vms_that_still_run() -> (
    None
):
    harness = Harness(helpers.with_heartbeats())
    faults = harness.simulation.gce.faults
    faults.set_capacity("us-central1-c", "tpu7x", 1)
    harness.apply(manifest(instanceConfig=FLEX, **TWO_SINGLE))
    helpers.until(harness, lambda: len(helpers.nodes(harness)) == 1)
    harness.run_for(50 * MINUTE)
    faults.set_capacity("us-central1-c", "tpu7x", 2)
    helpers.until_ready(harness, timeout=HOUR)
    helpers.until(harness, lambda: len(helpers.vms(harness)) == 1, HOUR)
    (path,) = helpers.of_kind(harness, "instanceGroupManagers")
    faults.act_as_user("POST", f"{path}/resize?size=1")
    harness.run_for(10 * MINUTE)
    status, reason, message = helpers.condition_of(harness)
    assert (status, reason) == ("False", "MaxRunDurationReached")
    assert message.startswith("Waiting for 1 of 2 nodes to join the cluster; tng-my-slice-")
    assert message.endswith("apply it again. VMs that still run are deleted with it.")
    assert "ResourceConflict" not in {event for _, event, _ in helpers.events(harness)}


@pytest.mark.parametrize(
    "mode, size, advice",
    [
        (TWO_SINGLE, 4, "Resize it back, or delete the group and apply it again."),
        ({}, 1, "Delete the group and apply it again."),
        ({}, 0, "Resize it back, or delete the group and apply it again."),
    ],
    ids=["INDIVIDUAL, larger", "BULK, smaller", "BULK, empty"],
)
def test_a_mig_that_is_resized_unseen_is_reported_within_an_hour_with_what_can_be_done(
    mode: dict[str, Any], size: int, advice: str
) -> None:
    harness = Harness(helpers.with_heartbeats())
    ready(harness, **mode)
    harness.simulation.options = replace(harness.simulation.options, sinks=False)
    (path,) = helpers.of_kind(harness, "instanceGroupManagers")
    harness.simulation.gce.faults.act_as_user("POST", f"{path}/resize?size={size}")
    harness.run_for(65 * MINUTE)
    assert helpers.condition_of(harness) == (
        "False",
        "ResourceConflict",
        f"{path} was resized: its targetSize is {size}, and the spec has 2 nodes. {advice}",
    )
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize("mode", [{}, TWO_SINGLE], ids=["BULK", "INDIVIDUAL"])
def test_a_vm_that_was_stopped_unseen_before_it_joined_is_reported_with_its_status(
    mode: dict[str, Any],
) -> None:
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest(**mode, instanceConfig=FLEX))
    helpers.until(harness, lambda: len(helpers.secrets(harness)) == 2)
    harness.run_for(MINUTE)
    harness.simulation.options = replace(harness.simulation.options, sinks=False)
    stopped = helpers.vms(harness)[0]
    harness.simulation.gce.faults.act_as_user("POST", f"{stopped}/stop")
    helpers.until_reason(harness, "NodeLost", timeout=5 * MINUTE)
    assert helpers.get(harness, stopped)["status"] == "TERMINATED"
    harness.run_for(HOUR)
    text = f"nodes to join the cluster; {helpers.vm_name(stopped)} (TERMINATED). Lost at "
    _, reason, message = helpers.condition_of(harness)
    assert (reason, message[: len(text) + 19]) == ("NodeLost", f"Waiting for 2 of 2 {text}")
    assert message.endswith("elete the group and apply it again.")
    helpers.assert_deleted_completely(harness)


# Nodes


def test_a_node_that_flaps_for_an_hour_costs_a_status_write_a_minute() -> None:
    harness = Harness()
    _, flapping = ready(harness)
    path = f"/api/v1/nodes/{helpers.vm_name(flapping)}/status"
    before = status_writes(harness)
    for half_minute in range(120):
        status = "False" if half_minute % 2 == 0 else "True"
        helpers.patch(harness, path, {"status": {"conditions": conditions(harness, path, status)}})
        if half_minute == 0:
            reported = harness.clock.now()
            harness.run_for(timedelta(seconds=20))
            assert helpers.condition_of(harness)[:2] == ("False", "NodeNotReady")
            harness.run_for(timedelta(seconds=10))
        elif half_minute == 1:  # it is Ready again
            harness.run_for(timedelta(seconds=20))
            found = re.search("counted from ([^ ]*Z) on: ", helpers.condition_of(harness)[2])
            assert found is not None
            assert abs(parse_time(found[1]) - reported - MINUTE) < timedelta(seconds=10)
            harness.run_for(timedelta(seconds=10))
        else:
            harness.run_for(timedelta(seconds=30))
    assert status_writes(harness) - before <= 60
    helpers.until_ready(harness, timeout=3 * MINUTE)
    helpers.assert_deleted_completely(harness)


def conditions(harness: Harness, path: str, ready: str) -> list[dict[str, Any]]:
    """A Node's conditions with another status of Ready."""
    found = harness.simulation.admin("GET", path.removesuffix("/status"))["status"]["conditions"]
    moment = render_time(harness.clock.now())
    return [
        {**one, "status": ready, "lastTransitionTime": moment} if one["type"] == "Ready" else one
        for one in found
    ]


@pytest.mark.parametrize("change", [{}, TWO_SINGLE], ids=["BULK", "INDIVIDUAL"])
def test_a_node_of_a_ready_group_deleted_manually_is_reported_with_what_to_do(
    change: dict[str, Any],
) -> None:
    harness = Harness(helpers.with_heartbeats())
    lost, _ = ready(harness, **change)
    harness.run_for(10 * MINUTE)
    name = helpers.vm_name(lost)
    harness.simulation.admin("DELETE", f"/api/v1/nodes/{name}")
    helpers.until(harness, lambda: not harness.is_ready(NAME), MINUTE)
    advice = (
        ", or delete the VM so that it is recreated."
        if change
        else ". Do not delete VMs of a BULK slice: Compute Engine does not recreate them."
    )
    text = (
        f"Node {name} was deleted; its VM is running. Restart its kubelet or reset the VM{advice}"
    )
    assert helpers.condition_of(harness) == ("False", "NodeDeleted", text)
    assert ("Warning", "NodeDeleted", text) in helpers.events(harness)
    for _ in range(120):
        harness.run_for(MINUTE)
        assert helpers.secrets(harness) == []
    assert helpers.condition_of(harness) == ("False", "NodeDeleted", text)
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize("minutes", [0, 90], ids=["young", "old"])
@pytest.mark.parametrize("deleted", [4, 5])
def test_many_nodes_deleted_manually_at_once_are_reported_as_deleted_and_their_vms_get_no_token(
    deleted: int, minutes: int
) -> None:
    harness = Harness(helpers.with_heartbeats())
    names = [helpers.vm_name(path) for path in ready(harness, nodeCount=8, topology="2x4x4")]
    harness.run_for(minutes * MINUTE)
    for name in names[:deleted]:
        harness.simulation.admin("DELETE", f"/api/v1/nodes/{name}")
    for _ in range(20):
        harness.run_for(MINUTE)
        assert helpers.pending(harness) == dict.fromkeys(names[:deleted], "NodeDeleted")
        assert helpers.secrets(harness) == []
    assert helpers.condition_of(harness)[:2] == ("False", "NodeDeleted")
    for path in helpers.vms(harness)[:deleted]:
        harness.simulation.gce.faults.act_as_user("POST", f"{path}/reset")
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)


def test_no_vm_of_a_large_slice_gets_another_token_when_all_nodes_are_deleted() -> None:
    harness = Harness(helpers.with_heartbeats())
    paths = ready(harness, nodeCount=32, topology="4x4x8")
    harness.run_for(20 * MINUTE)
    for path in paths:
        harness.simulation.admin("DELETE", f"/api/v1/nodes/{helpers.vm_name(path)}")
    for _ in range(20):
        harness.run_for(MINUTE)
        assert helpers.secrets(harness) == []
    assert set(helpers.pending(harness).values()) == {"NodeDeleted"}


def test_a_vm_that_joined_before_an_upgrade_gets_no_other_token_when_its_node_is_deleted() -> None:
    """Earlier versions did not record in the metadata when the VM had been started."""
    harness = Harness(helpers.with_heartbeats())
    lost, _ = ready(harness)
    harness.run_for(10 * MINUTE)
    found = helpers.get(harness, lost)["metadata"]
    items = [one for one in found["items"] if one["key"] != VM_STARTED_KEY]
    assert len(items) < len(found["items"])
    change = {"fingerprint": found["fingerprint"], "items": items}
    harness.simulation.gce.faults.act_as_user("POST", f"{lost}/setMetadata", change)
    harness.run_for(MINUTE)
    harness.simulation.admin("DELETE", f"/api/v1/nodes/{helpers.vm_name(lost)}")
    for _ in range(90):
        harness.run_for(MINUTE)
        assert helpers.secrets(harness) == []
    assert helpers.pending(harness) == {helpers.vm_name(lost): "NodeDeleted"}
    harness.simulation.gce.faults.act_as_user("POST", f"{lost}/reset")
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)


def test_labels_on_which_something_insists_are_corrected_five_times_in_ten_minutes_and_reported() -> (
    None
):
    harness = helpers.ready()
    name = sorted(helpers.nodes(harness))[0]
    wrong = {"metadata": {"labels": {"cloud.google.com/gke-tpu-topology": "9x9"}}}
    calls, user = harness.simulation.kube.calls, identity("label-node").name
    before = calls.count(user=user, resource="nodes", verb="patch")
    for _ in range(60):
        helpers.patch(harness, f"/api/v1/nodes/{name}", wrong)
        harness.run_for(timedelta(seconds=9))
    assert calls.count(user=user, resource="nodes", verb="patch") - before == 5
    events = harness.simulation.admin("GET", "/api/v1/namespaces/default/events")["items"]
    (text,) = [one["message"] for one in events if one["reason"] == "LabelsContested"]
    assert text == (
        f"Something has set labels of Node {name} again after 5 corrections in ten minutes: they are "
        f"corrected less often now. To find it: kubectl get node {name} -o yaml --show-managed-fields"
    )
    assert harness.is_ready(NAME)
    harness.run_for(2 * HOUR)
    labels = helpers.nodes(harness)[name]["metadata"]["labels"]
    assert labels["cloud.google.com/gke-tpu-topology"] == "2x2x2"
    helpers.assert_deleted_completely(harness)


def test_a_node_that_was_deleted_before_the_slice_was_complete_is_remembered() -> None:
    harness = Harness(helpers.with_heartbeats())
    harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 1)
    harness.apply(manifest(**TWO_SINGLE, instanceConfig=STANDARD))
    helpers.until(harness, lambda: len(helpers.nodes(harness)) == 1)
    harness.run_for(6 * MINUTE)
    (path,) = helpers.vms(harness)
    name = helpers.vm_name(path)
    harness.simulation.admin("DELETE", f"/api/v1/nodes/{name}")
    helpers.until(harness, lambda: helpers.pending(harness).get(name) == "NodeDeleted", MINUTE)
    for _ in range(120):
        harness.run_for(MINUTE)
        assert helpers.secrets(harness) == []
    assert helpers.pending(harness)[name] == "NodeDeleted"
    harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 2)
    harness.simulation.gce.faults.act_as_user("POST", f"{path}/reset")
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)


def test_a_node_that_reports_is_kept_when_its_proof_is_edited() -> None:
    """As after a restore of the cluster from a backup that has the Node of an earlier VM."""
    harness = helpers.ready(options=helpers.with_heartbeats())
    name, before = sorted(helpers.nodes(harness).items())[0]
    path = f"/api/v1/nodes/{name}"
    helpers.patch(harness, path, {"metadata": {"labels": {VM_ID_LABEL: "4711"}}})
    harness.run_for(2 * HOUR)
    after = helpers.nodes(harness)[name]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["labels"][VM_ID_LABEL] == before["metadata"]["labels"][VM_ID_LABEL]
    events = harness.simulation.admin("GET", "/api/v1/namespaces/default/events")["items"]
    assert [one["message"] for one in events if one["reason"] == "VmIdCorrected"] == [
        f"Node {name} had the id of another VM in its label {VM_ID_LABEL}. Its kubelet runs on VM "
        f"{name}: the label is corrected, and the Node is kept."
    ]
    assert harness.is_ready(NAME)
    assert harness.node_deletes() == 0
    helpers.assert_deleted_completely(harness)


def test_a_node_deleted_manually_is_reported_and_returns_with_its_vm() -> None:
    harness = Harness(helpers.with_heartbeats())
    lost, _ = ready(harness)
    harness.simulation.admin("DELETE", f"/api/v1/nodes/{helpers.vm_name(lost)}")
    helpers.until(harness, lambda: not harness.is_ready(NAME), MINUTE)
    assert helpers.condition_of(harness)[1] == "NodeDeleted"
    harness.simulation.gce.faults.act_as_user("POST", f"{lost}/reset")
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)


UNMANAGED = "components.gke.io/gke-unmanaged-node"
"""The label of Nodes that Google's cloud-controller-manager leaves alone."""


def run_beside_cloud_controller_manager(
    harness: Harness, holds: Callable[[], bool], timeout: timedelta
) -> None:
    """Let time pass beside a cloud-controller-manager whose project does not have the VMs: every five
    seconds it deletes each Node that is not Ready."""
    end = harness.clock.now() + timeout
    while not holds():
        assert harness.clock.now() < end, helpers.describe_state(harness)
        harness.run_for(timedelta(seconds=5))
        for name, node in helpers.nodes(harness).items():
            status = {one["type"]: one["status"] for one in node["status"]["conditions"]}
            if status["Ready"] != "True" and UNMANAGED not in node["metadata"]["labels"]:
                harness.simulation.admin("DELETE", f"/api/v1/nodes/{name}")


@pytest.mark.parametrize("change", [{}, TWO_SINGLE], ids=["BULK", "INDIVIDUAL"])
def test_a_slice_whose_nodes_are_deleted_before_they_are_ready_is_reported_late(
    change: dict[str, Any],
) -> None:
    harness = Harness(helpers.with_heartbeats())
    harness.apply(manifest(**change))
    run_beside_cloud_controller_manager(
        harness, lambda: helpers.condition_of(harness)[1] == "NodeJoinTimeout", 20 * MINUTE
    )
    assert helpers.condition_of(harness)[2].startswith(
        "Waiting for 2 of 2 nodes to join the cluster; "
    )
    assert [
        vm for vm in helpers.vms(harness) if helpers.vm_name(vm) in helpers.nodes(harness)
    ] == []
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize("labels", [{}, {UNMANAGED: "true"}], ids=["deleted", "left alone"])
def test_a_node_that_is_not_ready_for_a_moment_stays_only_with_the_label_for_it(
    labels: dict[str, str],
) -> None:
    harness = Harness(helpers.with_heartbeats())
    harness.apply(manifest(nodeLabels=labels))
    if labels:
        run_beside_cloud_controller_manager(harness, lambda: harness.is_ready(NAME), HOUR)
    helpers.until_ready(harness)
    harness.run_for(10 * MINUTE)
    name = sorted(helpers.nodes(harness))[0]
    path = f"/api/v1/nodes/{name}/status"
    helpers.patch(harness, path, {"status": {"conditions": conditions(harness, path, "False")}})
    reason = "NodeNotReady" if labels else "NodeDeleted"
    run_beside_cloud_controller_manager(
        harness, lambda: helpers.pending(harness) == {name: reason}, 5 * MINUTE
    )
    harness.run_for(10 * MINUTE)
    assert harness.is_ready(NAME) is bool(labels)
    assert (name in helpers.nodes(harness)) is bool(labels)
    helpers.assert_deleted_completely(harness)


def test_silent_kubelets_are_reported() -> None:
    harness = Harness(helpers.with_heartbeats(lease_s=None))
    harness.apply(manifest())
    helpers.until_ready(harness)
    helpers.until(harness, lambda: not harness.is_ready(NAME), 5 * MINUTE)
    harness.run_for(5 * MINUTE)
    names = sorted(helpers.nodes(harness))
    assert helpers.condition_of(harness)[:2] == ("False", "NodeNotReady")
    assert helpers.condition_of(harness)[2].startswith(
        "2 of 2 nodes are not ready, or are counted "
    )
    assert helpers.pending(harness) == dict.fromkeys(names, "NodeNotReady")
    helpers.assert_deleted_completely(harness)


def test_a_missing_device_plugin_is_reported() -> None:
    harness = Harness(helpers.vm_options(plugin_s=None))
    harness.apply(manifest())
    helpers.until_reason(harness, "DevicePluginMissing", timeout=10 * MINUTE)
    names = sorted(helpers.nodes(harness))
    assert helpers.pending(harness) == dict.fromkeys(names, "DevicePluginMissing")
    assert helpers.condition_of(harness)[2] == (
        f"2 of 2 nodes are not ready: {', '.join(names)}. A Node is Ready but does not offer "
        "all of its google.com/tpu chips. Check the DaemonSet tpu-device-plugin in kube-system."
    )
    assert helpers.condition_of(harness, "NodesJoined")[:2] == ("True", "Joined")
    for name in names:
        path = f"/api/v1/nodes/{name}/status"
        offer = {"google.com/tpu": "4"}
        helpers.patch(harness, path, {"status": {"capacity": offer, "allocatable": offer}})
    helpers.until_ready(harness, timeout=5 * MINUTE)


def test_a_node_of_another_machine_with_our_label_is_not_touched() -> None:
    harness = Harness()
    ready(harness)
    labels = {RESOURCE_NAME_LABEL: helpers.resource_name(harness), ACCELERATOR_LABEL: "tpu7x"}
    stranger = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "worker-1", "labels": labels},
        "spec": {"providerID": f"gce://{PROJECT}/us-central1-c/worker-1"},
    }
    harness.simulation.admin("POST", "/api/v1/nodes", stranger)
    harness.run_for(timedelta(minutes=5))
    harness.run_for(2 * HOUR)
    assert helpers.summary(harness)["text"] == "2/2"
    harness.delete(NAME)
    helpers.until_gone(harness)
    after = helpers.nodes(harness)["worker-1"]
    taints = [taint["key"] for taint in after["spec"].pop("taints", ())]
    assert {taint.partition("/")[0] for taint in taints} <= {"node.kubernetes.io"}
    assert after["spec"] == stranger["spec"]
    assert after["metadata"]["labels"] == labels
    assert harness.leftovers() == ["Node worker-1"]


# joining


def test_a_node_that_joins_without_a_providerid_is_reported_and_not_counted() -> None:
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest(**ONE_HOST))
    helpers.until(harness, lambda: len(helpers.secrets(harness)) == 1)
    name = helpers.vm_name(helpers.vms(harness)[0])
    labels = {RESOURCE_NAME_LABEL: helpers.resource_name(harness)}
    nameless = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    harness.simulation.admin("POST", "/api/v1/nodes", nameless, **helpers.as_kubelet(name))
    harness.run_for(5 * MINUTE)
    assert helpers.condition_of(harness)[1:] == (
        "AwaitingNodeJoin",
        "Waiting for 1 of 1 nodes to join the cluster (1 nodes joined with missing ProviderID)",
    )
    found = harness.simulation.admin("GET", "/api/v1/namespaces/default/events")["items"]
    reported = {
        (event["involvedObject"]["kind"], event["reason"], event["message"]) for event in found
    }
    assert ("Node", "MissingProviderID", f"Node {name} joined without a ProviderID") in reported


def test_a_vm_that_has_not_joined_for_hours_always_has_a_valid_token() -> None:
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest())
    helpers.until(harness, lambda: len(helpers.secrets(harness)) == 2)
    for _ in range(6 * 60):
        harness.run_for(MINUTE)
        found = [helpers.metadata_of(helpers.get(harness, path)) for path in helpers.vms(harness)]
        ids = {one["kubeadm-join-token"].partition(".")[0] for one in found}
        assert {f"bootstrap-token-{one}" for one in ids} <= set(helpers.secrets(harness))
    helpers.assert_deleted_completely(harness)


def test_unused_tokens_expire_after_an_hour() -> None:
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest())
    helpers.until(harness, lambda: len(helpers.secrets(harness)) == 2)
    first = helpers.secrets(harness)
    harness.run_for(timedelta(minutes=70))
    assert not set(first) & set(helpers.secrets(harness))
    assert len(helpers.secrets(harness)) <= 4
    helpers.assert_deleted_completely(harness)


# interconnect


@pytest.mark.parametrize("outcome, word", [("FAILED", "FAILED"), ("NEVER", "ACTIVATING")])
def test_an_interconnect_that_does_not_become_active_is_reported(outcome: str, word: str) -> None:
    harness = Harness()
    harness.apply(manifest())
    helpers.until(harness, lambda: bool(helpers.vms(harness)))
    (path,) = helpers.of_kind(harness, "instanceGroupManagers")
    harness.simulation.gce.faults.break_interconnect(path, outcome)
    helpers.until_reason(harness, "InterconnectNotReady", timeout=10 * MINUTE)
    harness.run_for(HOUR)
    text = (
        f"Compute Engine reports the interconnect between the chips as {word}. If it stays so for ten "
        "minutes, delete the group and apply it again."
    )
    assert helpers.condition_of(harness) == ("False", "InterconnectNotReady", text)
    assert helpers.condition_of(harness, "InterconnectReady") == ("False", "NotActive", text)
    assert helpers.columns(harness)["NODES"] == "2/2"
    helpers.assert_deleted_completely(harness)


# changes of the object by users


@pytest.mark.parametrize("change", [{}, TWO_SINGLE], ids=["BULK", "INDIVIDUAL"])
def test_a_wiped_status_is_rebuilt_without_a_second_insert(change: dict[str, Any]) -> None:
    harness = Harness()
    ready(harness, **change)
    before, operations = helpers.summary(harness), dict(harness.operations)
    group = harness.group(NAME)
    assert group is not None
    harness.simulation.admin("PUT", f"{helpers.group_path()}/status", {**group, "status": {}})
    assert not harness.is_ready(NAME)
    helpers.until_ready(harness, timeout=5 * MINUTE)
    harness.run_for(HOUR)
    assert helpers.summary(harness) == before
    assert harness.operations == operations
    helpers.assert_deleted_completely(harness)


def test_a_status_wiped_during_deletion_leaves_nothing_behind() -> None:
    harness = Harness()
    ready(harness)
    harness.delete(NAME)
    harness.run_for(timedelta(seconds=20))
    group = harness.group(NAME)
    assert group is not None
    harness.simulation.admin("PUT", f"{helpers.group_path()}/status", {**group, "status": {}})
    helpers.until_gone(harness)
    harness.run_for(HOUR)
    assert harness.leftovers() == []


@pytest.mark.parametrize(
    "change",
    [{"labels": {RESOURCE_NAME_LABEL: None}}, {"finalizers": []}],
    ids=["label", "finalizer"],
)
def test_a_removed_finalizer_or_label_of_a_group_is_restored(
    change: dict[str, Any],
) -> None:
    harness = Harness()
    ready(harness)
    name = helpers.resource_name(harness)
    helpers.patch(harness, helpers.group_path(), {"metadata": change})

    def is_back() -> bool:
        group = harness.group(NAME)
        assert group is not None
        metadata = group["metadata"]
        labels = metadata.get("labels", {})
        return (
            FINALIZER in metadata.get("finalizers", []) and labels.get(RESOURCE_NAME_LABEL) == name
        )

    helpers.until(harness, is_back, 2 * MINUTE)
    assert harness.is_ready(NAME)
    helpers.assert_deleted_completely(harness)


def test_a_recreated_vm_that_joins_by_other_means_takes_over_its_predecessors_node() -> None:
    """No sweep runs, and no event of Compute Engine arrives. The Node of the old VM remains; the step
    reads the VM because the Node's boot id has changed."""
    harness = Harness(
        replace(helpers.with_heartbeats(identity=helpers.by_other_means), sweeps=False)
    )
    helpers.ready_slice(harness, manifest(**TWO_SINGLE, bootstrapKubernetes=None))
    lost, _ = helpers.vms(harness)
    name, before = helpers.vm_name(lost), helpers.get(harness, lost)["id"]
    uid = helpers.nodes(harness)[name]["metadata"]["uid"]
    harness.simulation.options = replace(harness.simulation.options, sinks=False)
    harness.simulation.gce.faults.act_as_user("DELETE", lost)
    harness.run_for(10 * MINUTE)
    node = helpers.nodes(harness)[name]["metadata"]
    assert node["uid"] == uid
    assert node["labels"][VM_ID_LABEL] == helpers.get(harness, lost)["id"] != before
    start = len(harness.answers)
    harness.simulation.options = replace(harness.simulation.options, sinks=True)
    harness.run_for(2 * HOUR)
    assert helpers.condition_of(harness) == ("True", "Ready", "All nodes are ready")
    assert "inject_token" not in {step for step, _ in harness.answers[start:]}
    assert "NodeJoinTimeout" not in {reason for _, reason, _ in helpers.events(harness)}
    helpers.assert_deleted_completely(harness)
