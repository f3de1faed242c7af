"""Slices without errors, from apply to deletion: status, Events, labels, and what is left.

The README of tpu-operator and the examples of this project are among the manifests.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import yaml

from local.cloud.simulation import PROJECT
from shared.base.reasons import REASONS, Reason
from tests.stories import helpers
from tests.stories.helpers import EXAMPLES, HOUR, MINUTE, ONE_HOST, harness_for
from tests.support.builders import DATA
from tests.support.harness import Harness
from tests.support.manifests import V6E_IMAGE, manifest

ROWS: list[dict[str, Any]] = yaml.safe_load((DATA / "spec.yaml").read_text())["valid"]
PAUSED = "tpu-functions.dev/paused"


@pytest.mark.conformance("name-owner-reference")
def test_the_example_in_the_readme_of_tpu_operator_works_unchanged() -> None:
    harness = Harness()
    readme = yaml.safe_load((EXAMPLES / "tpu-operator-readme.yaml").read_text())
    helpers.ready_slice(harness, readme)
    name = "my-tpu-node-group"
    assert helpers.condition_of(harness, name=name) == ("True", "Ready", "All nodes are ready")
    for node in helpers.nodes(harness).values():
        labels = node["metadata"]["labels"]
        assert labels["cloud.google.com/tpu-node-group"] == "default-my-tpu-node-group"
        assert labels["cloud.google.com/tpu-node-group-namespace"] == "default"
        assert labels["cloud.google.com/tpu-node-group-name"] == "my-tpu-node-group"
        assert labels["cloud.google.com/gke-tpu-topology"] == "2x2x2"
        assert labels["cloud.google.com/gke-tpu-accelerator"] == "tpu7x"
        assert labels["cloud.google.com/gke-accelerator-count"] == "4"
        assert node["status"]["allocatable"]["google.com/tpu"] == "4"
    helpers.assert_deleted_completely(harness, name)


@pytest.mark.parametrize(
    "name",
    [
        "own-template",
        "tpu-operator-readme",
        "tpu7x-2x2x2",
        "v6e-4x4-spot",
        "v6e-single-host",
    ],
)
def test_every_example_becomes_ready_and_is_deleted_completely(name: str) -> None:
    example = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    harness = harness_for(example["spec"])
    helpers.ready_slice(harness, example)
    harness.delete(example["metadata"]["name"])
    helpers.until_gone(harness, example["metadata"]["name"])
    templates = helpers.of_kind(harness, "instanceTemplates")
    assert harness.leftovers() == ([] if "instanceConfig" in example["spec"] else templates)


@pytest.mark.parametrize("length", [35, 45, 63])
def test_a_group_with_a_long_name_becomes_ready_and_is_deleted_completely(length: int) -> None:
    name = f"{'long-' * 12}abc"[-length:]
    harness = Harness()
    helpers.ready_slice(harness, {**manifest(), "metadata": {"namespace": "default", "name": name}})
    assert len(helpers.nodes(harness)) == 2
    assert helpers.condition_of(harness, name=name) == ("True", "Ready", "All nodes are ready")
    helpers.assert_deleted_completely(harness, name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_every_valid_spec_becomes_ready_and_is_deleted_completely(row: dict[str, Any]) -> None:
    applied = manifest(**row["change"])
    harness = harness_for(applied["spec"])
    before = harness.leftovers()
    helpers.ready_slice(harness, applied)
    count = applied["spec"]["nodeCount"]
    assert helpers.summary(harness) == {
        "desired": count,
        "running": count,
        "joined": count,
        "ready": count,
        "reconciling": 0,
        "failed": 0,
        "text": f"{count}/{count}",
    }
    assert helpers.pending(harness) == {}
    harness.delete(helpers.NAME)
    helpers.until_gone(harness)
    harness.run_for(HOUR)
    assert harness.leftovers() == before


def test_flex_start_waits_for_its_grant_and_is_granted_later() -> None:
    harness = Harness()
    faults = harness.simulation.gce.faults
    faults.set_capacity("us-central1-c", "ct6e", 0)
    config = {
        "machineType": "ct6e-standard-4t",
        "image": V6E_IMAGE,
        "provisioningModel": "FLEX_START",
        "reservation": None,
        "maxRunDuration": "48h",
    }
    harness.apply(manifest(nodeCount=4, topology="4x4", instanceConfig=config))
    harness.run_for(30 * MINUTE)
    assert {helpers.get(harness, vm)["status"] for vm in helpers.vms(harness)} == {"PENDING"}
    assert helpers.condition_of(harness)[:2] == ("False", "InsufficientCapacity")
    assert helpers.secrets(harness) == []
    faults.set_capacity("us-central1-c", "ct6e")
    helpers.until_ready(harness)
    running = [helpers.get(harness, vm) for vm in helpers.vms(harness)]
    assert [vm["scheduling"]["maxRunDuration"] for vm in running] == [{"seconds": "172800"}] * 4
    helpers.assert_deleted_completely(harness)


def test_several_single_hosts_are_separate_slices() -> None:
    harness = helpers.ready(manifest(**{**ONE_HOST, "nodeCount": 3}))
    assert helpers.of_kind(harness, "resourcePolicies") == []
    assert len(helpers.nodes(harness)) == 3
    assert "InterconnectReady" not in [it["type"] for it in _conditions(harness)]
    assert "workloadPolicy" not in _status(harness)["resources"]
    helpers.assert_deleted_completely(harness)


@pytest.mark.conformance("node-no-taint")
def test_labels_and_taints_of_the_user_are_on_every_node() -> None:
    harness = Harness()
    taint = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
    helpers.ready_slice(harness, manifest(nodeLabels={"team": "training"}, nodeTaints=[taint]))
    for node in helpers.nodes(harness).values():
        assert node["metadata"]["labels"]["team"] == "training"
        assert taint in node["spec"]["taints"]


def test_nodes_get_no_taint_unless_the_user_requests_it() -> None:
    harness = helpers.ready()
    assert all(not node["spec"].get("taints") for node in helpers.nodes(harness).values())


def test_labels_and_taints_are_set_on_nodes_that_joined_by_other_means() -> None:
    harness = Harness(helpers.JOIN_BY_OTHER_MEANS)
    taint = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
    applied = manifest(
        bootstrapKubernetes=None, nodeLabels={"team": "training"}, nodeTaints=[taint]
    )
    helpers.ready_slice(harness, applied)
    for node in helpers.nodes(harness).values():
        assert node["metadata"]["labels"]["team"] == "training"
        assert node["metadata"]["labels"]["cloud.google.com/gke-tpu-topology"] == "2x2x2"
        assert taint in node["spec"]["taints"]
    assert harness.simulation.gce.calls.counts()["instances.setMetadata"] == 0
    assert helpers.condition_of(harness, "TokensInjected") == (
        "True",
        "NotNeeded",
        "bootstrapKubernetes is not set: the VMs join by other means",
    )


def test_the_template_has_no_token() -> None:
    harness = helpers.ready()
    (path,) = helpers.of_kind(harness, "instanceTemplates")
    assert "kubeadm-join-token" not in helpers.metadata_of(helpers.get(harness, path)["properties"])


def test_vms_have_the_labels_that_identify_them_on_the_bill() -> None:
    harness = helpers.ready()
    for vm in helpers.vms(harness):
        labels = helpers.get(harness, vm)["labels"]
        assert labels["tpu-node-group-namespace"] == "default"
        assert labels["tpu-node-group-name"] == "my-slice"
        assert labels["tpu-functions-resource-name"] == helpers.resource_name(harness)
        assert labels["tpu-functions-cluster"]


@pytest.mark.conformance("name-gce-equals-cr")
def test_every_resource_on_compute_engine_names_its_group() -> None:
    harness = helpers.ready()
    group = harness.group(helpers.NAME)
    assert group is not None
    for collection in ("resourcePolicies", "instanceTemplates", "instanceGroupManagers"):
        (path,) = helpers.of_kind(harness, collection)
        assert (
            f"group=default/my-slice uid={group['metadata']['uid']}"
            in (helpers.get(harness, path)["description"])
        )


def test_a_user_template_is_used_and_not_deleted() -> None:
    change: dict[str, Any] = {
        "instanceConfig": None,
        "bootstrapKubernetes": None,
        "instanceTemplateURI": f"projects/{PROJECT}/global/instanceTemplates/my-template",
    }
    applied = manifest(**change)
    harness = harness_for(applied["spec"])
    helpers.ready_slice(harness, applied)
    assert helpers.condition_of(harness, "InstanceTemplateReady") == (
        "True",
        "ExternalTemplate",
        f"Using projects/{PROJECT}/global/instanceTemplates/my-template",
    )
    labels = helpers.get(harness, helpers.vms(harness)[0])["labels"]
    assert labels["tpu-node-group-name"] == "my-slice"
    harness.delete(helpers.NAME)
    helpers.until_gone(harness)
    assert harness.leftovers() == [f"projects/{PROJECT}/global/instanceTemplates/my-template"]


@pytest.mark.conformance("val-unknown-field-minnodecount")
def test_min_node_count_has_no_effect_and_a_warning_says_so() -> None:
    harness = helpers.ready(manifest(minNodeCount=9))
    warnings = [event for event in helpers.events(harness) if event[0] == "Warning"]
    assert warnings == [
        (
            "Warning",
            "MinNodeCountIgnored",
            "spec.minNodeCount is accepted for compatibility and has no effect",
        )
    ]


@pytest.mark.conformance(
    "mig-insert-pending", "mig-ready", "mig-parent-ready-event", "del-child-starts"
)
def test_the_events_of_a_slice_have_the_messages_of_tpu_operator() -> None:
    harness = helpers.ready()
    helpers.assert_deleted_completely(harness)
    assert sorted(helpers.events(harness)) == [
        ("Normal", "ChildResourcesProvisioned", "All child resources provisioned successfully"),
        ("Normal", "Cleanup", "TPU Node Group deletion initiated"),
        ("Normal", "NodesJoining", "Waiting for 1 of 2 nodes to join the cluster"),
        ("Normal", "Provisioned", "All nodes are ready"),
    ]


def test_kubectl_get_prints_readable_columns() -> None:
    harness = Harness()
    harness.apply(manifest())
    harness.run_for(timedelta(seconds=1))
    shown = helpers.columns(harness)
    assert shown.pop("AGE")
    assert shown == {
        "Name": "my-slice",
        "READY": "False",
        "REASON": "Provisioning",
        "NODES": "0/2",
        "TOPOLOGY": "2x2x2",
        "MACHINE": "tpu7x-standard-4t",
    }
    helpers.until_ready(harness)
    shown = helpers.columns(harness, wide=True)
    assert shown.pop("AGE")
    assert shown == {
        "Name": "my-slice",
        "READY": "True",
        "REASON": "Ready",
        "NODES": "2/2",
        "TOPOLOGY": "2x2x2",
        "MACHINE": "tpu7x-standard-4t",
        "ZONE": "us-central1-c",
        "MODEL": "RESERVATION_BOUND",
        "MIG": helpers.resource_name(harness),
        "IDLE": None,
        "UNUSABLE": "0.1",
    }


@pytest.mark.conformance("del-wait-mig")
def test_deletion_is_reported_step_by_step() -> None:
    harness = helpers.ready()
    harness.delete(helpers.NAME)
    reasons: list[str] = []

    def is_gone() -> bool:
        if harness.group(helpers.NAME) is None:
            return True
        if helpers.condition_of(harness)[1] not in reasons:
            reasons.append(helpers.condition_of(harness)[1])
        return False

    helpers.until(harness, is_gone)
    assert reasons[:2] == ["Ready", "DeletingMIG"]
    parallel = {"DeletingTemplate", "DeletingPolicy"}  # either may be gone first
    assert set(reasons[2:]) <= parallel


def test_a_pause_before_creation_creates_nothing_and_creation_continues_after_it() -> None:
    harness = Harness()
    applied = manifest()
    applied["metadata"]["annotations"] = {PAUSED: "true"}
    harness.apply(applied)
    harness.run_for(HOUR)
    assert helpers.condition_of(harness) == (
        "False",
        "Paused",
        REASONS[Reason.PAUSED],
    )
    assert harness.simulation.gce.calls.writes() == 0
    helpers.annotate(harness, PAUSED, None)
    helpers.until_ready(harness, timeout=5 * MINUTE)
    helpers.assert_deleted_completely(harness)


def test_a_pause_during_creation_creates_nothing_more() -> None:
    harness = Harness()
    harness.apply(manifest())
    helpers.until(harness, lambda: harness.operations["resourcePolicies.insert"] == 1)
    helpers.annotate(harness, PAUSED, "true")
    harness.run_for(HOUR)
    assert harness.operations["instanceGroupManagers.insert"] == 0
    assert helpers.condition_of(harness)[:2] == ("False", "Paused")
    helpers.annotate(harness, PAUSED, None)
    helpers.until_ready(harness)
    assert harness.operations["resourcePolicies.insert"] == 1


def test_a_pause_while_the_mig_is_inserted_reports_the_insert_and_the_slice_that_follows() -> None:
    harness = Harness()
    harness.apply(manifest())
    helpers.until(harness, lambda: harness.operations["instanceGroupManagers.insert"] == 1)
    helpers.annotate(harness, PAUSED, "true")
    harness.run_for(timedelta(seconds=1))
    assert helpers.condition_of(harness)[1:] == (
        "Provisioning",
        f"Compute Engine is creating the managed instance group {helpers.resource_name(harness)}",
    )
    accepted = helpers.condition_of(harness, "Accepted")[2]
    assert accepted == f"The spec is valid. {REASONS[Reason.PAUSED]}"
    helpers.until_ready(harness)


def test_a_paused_group_can_be_deleted() -> None:
    harness = Harness()
    applied = manifest()
    applied["metadata"]["annotations"] = {PAUSED: "true"}
    harness.apply(applied)
    harness.run_for(MINUTE)
    helpers.assert_deleted_completely(harness)


def test_a_complete_slice_stays_ready_when_it_is_paused() -> None:
    harness = helpers.ready()
    helpers.annotate(harness, PAUSED, "true")
    harness.run_for(2 * HOUR)
    assert helpers.condition_of(harness) == ("True", "Ready", "All nodes are ready")


def test_a_group_applied_again_is_not_affected_by_its_predecessor() -> None:
    harness = helpers.ready()
    first, old_nodes = helpers.resource_name(harness), set(helpers.nodes(harness))
    harness.delete(helpers.NAME)
    helpers.until_gone(harness)
    harness.apply(manifest())
    helpers.until_ready(harness)
    assert helpers.resource_name(harness) != first
    assert not old_nodes & set(helpers.nodes(harness))
    helpers.assert_deleted_completely(harness)


def test_a_group_applied_again_while_the_old_one_is_deleted_waits_only_for_the_name() -> None:
    """The name is free as soon as the finalizer of the old group is removed."""
    harness = helpers.ready()
    harness.delete(helpers.NAME)
    harness.run_for(timedelta(seconds=5))
    rejected = harness.apply(manifest())
    assert (rejected["kind"], rejected["reason"]) == ("Status", "AlreadyExists")
    helpers.until_gone(harness)
    assert harness.apply(manifest())["kind"] == "TPUNodeGroup"
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)


def test_a_group_force_deleted_and_applied_again_does_not_touch_its_predecessor() -> None:
    """A user removes the finalizer: the remaining resources do not belong to the successor."""
    harness = helpers.ready()
    first = helpers.resource_name(harness)
    harness.delete(helpers.NAME)
    helpers.patch(harness, helpers.group_path(), {"metadata": {"finalizers": []}})
    harness.apply(manifest())
    helpers.until_ready(harness)
    assert helpers.resource_name(harness) != first
    assert helpers.summary(harness)["text"] == "2/2"
    harness.delete(helpers.NAME)
    helpers.until_gone(harness)
    assert all(first in path for path in harness.leftovers())


def _status(harness: Harness) -> dict[str, Any]:
    group = harness.group(helpers.NAME)
    assert group is not None
    status: dict[str, Any] = group["status"]
    return status


def _conditions(harness: Harness) -> list[dict[str, Any]]:
    conditions: list[dict[str, Any]] = _status(harness)["conditions"]
    return conditions
