"""The observable behaviour of groups for which tpu-operator has a rule, or a bug that is fixed here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from local.cloud.simulation import PROJECT, Options, identity
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME
from tests.support.harness import Harness
from tests.support.manifests import manifest
from tests.support.specs import OWN_TEMPLATE

MIGS = "instanceGroupManagers"


class Creation:
    """A group from apply to Ready, with each status that a watch returned."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.statuses: list[dict[str, Any]] = []
        self.harness.apply(manifest())
        helpers.until(self.harness, self._record)
        self.harness.run_for(MINUTE)

    def _record(self) -> bool:
        group = self.harness.group(NAME)
        status = (group or {}).get("status")
        if status and status not in self.statuses[-1:]:
            self.statuses.append(status)
        return self.harness.is_ready(NAME)

    def conditions(self, kind: str) -> Iterator[tuple[str, str, str]]:
        """The values of a condition in order, without repetitions."""
        before = None
        for status in self.statuses:
            for entry in status.get("conditions", []):
                value = (entry["status"], entry["reason"], entry["message"])
                if entry["type"] == kind and value != before:
                    before = value
                    yield value

    def entries(self, kind: str) -> Iterator[dict[str, Any]]:
        """The values of ``status.resources.<kind>`` in order."""
        for status in self.statuses:
            if kind in status.get("resources", {}):
                yield status["resources"][kind]


@pytest.fixture(scope="module")
def creation() -> Creation:
    return Creation()


# Creation


@pytest.mark.conformance("pol-condition-created", "pol-condition-ready")
@pytest.mark.parametrize(
    "kind, noun, kind_in_message",
    [
        ("WorkloadPolicyReady", "workload policy", "WorkloadPolicy"),
        ("InstanceTemplateReady", "instance template", "InstanceTemplate"),
    ],
)
def test_the_condition_of_a_resource_is_provisioning_until_it_exists(
    creation: Creation, kind: str, noun: str, kind_in_message: str
) -> None:
    name = helpers.resource_name(creation.harness)
    assert list(creation.conditions(kind)) == [
        ("False", "Provisioning", f"Compute Engine is creating the {noun} {name}"),
        ("True", "Ready", f"{kind_in_message} provisioned successfully"),
    ]


@pytest.mark.conformance("mig-parent-waits-stable")
def test_the_condition_of_the_mig_is_ready_when_its_vms_exist(creation: Creation) -> None:
    name = helpers.resource_name(creation.harness)
    assert list(creation.conditions("ManagedInstanceGroupReady")) == [
        ("False", "Provisioning", f"The managed instance group {name} is not created yet"),
        ("False", "Provisioning", f"Compute Engine is creating the managed instance group {name}"),
        ("False", "Provisioning", "Waiting for Compute Engine to create 2 VMs"),
        ("True", "Ready", "ManagedInstanceGroup provisioned successfully"),
    ]


@pytest.mark.conformance("mig-list-before-it-exists", "stat-ready")
def test_ready_has_only_the_expected_reasons_during_creation(creation: Creation) -> None:
    reasons = [reason for _, reason, _ in creation.conditions("Ready")]
    assert reasons[0] == "Provisioning"
    assert set(reasons) <= {"Provisioning", "AwaitingNodeJoin", "InterconnectNotReady", "Ready"}
    assert list(creation.conditions("Ready"))[-1] == ("True", "Ready", "All nodes are ready")


@pytest.mark.conformance("stat-awaiting")
def test_nodes_that_have_not_joined_are_counted_in_the_message_of_tpu_operator() -> None:
    harness = Harness(helpers.vm_options(join_s=(10.0, 600.0)))
    harness.apply(manifest())
    harness.run_for(timedelta(seconds=1))
    helpers.until(harness, lambda: helpers.summary(harness)["ready"] == 1)
    helpers.until_reason(harness, "AwaitingNodeJoin", timeout=2 * MINUTE)
    assert helpers.condition_of(harness) == (
        "False",
        "AwaitingNodeJoin",
        "Waiting for 1 of 2 nodes to join the cluster",
    )
    summary = helpers.summary(harness)
    assert (summary["ready"], summary["reconciling"], summary["text"]) == (1, 1, "1/2")


@pytest.mark.conformance("mig-op-done")
def test_an_operation_is_in_the_status_while_it_runs(creation: Creation) -> None:
    states = [
        (entry["state"], "operation" in entry) for entry in creation.entries("managedInstanceGroup")
    ]
    assert list(dict.fromkeys(states)) == [
        ("Pending", False),
        ("Creating", True),
        ("Ready", False),
    ]


@pytest.mark.conformance("stat-no-observed-generation")
def test_every_condition_has_the_observed_generation(creation: Creation) -> None:
    conditions = creation.statuses[-1]["conditions"]
    assert {entry["observedGeneration"] for entry in conditions} == {1}
    assert creation.statuses[-1]["observedGeneration"] == 1


def test_a_creation_without_errors_emits_no_warning(creation: Creation) -> None:
    assert [event for event in helpers.events(creation.harness) if event[0] == "Warning"] == []


@pytest.mark.conformance("mig-unstable")
def test_a_slice_is_ready_within_40_seconds_of_its_last_node(creation: Creation) -> None:
    moments = [
        condition["lastTransitionTime"]
        for node in helpers.nodes(creation.harness).values()
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready"
    ]
    group = creation.harness.group(NAME)
    assert group is not None
    completed = _seconds(group["status"]["completedAt"])
    plugin_and_links = 40
    assert completed - max(map(_seconds, moments)) <= plugin_and_links


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.conformance(
    "tok-latest-wins", "tok-other-group", "tok-shared-by-slice", "tok-not-removed-after-join"
)
def test_each_vm_has_its_own_token_and_none_is_valid_after_the_join(creation: Creation) -> None:
    tokens = {
        helpers.metadata_of(helpers.get(creation.harness, vm))["kubeadm-join-token"]
        for vm in helpers.vms(creation.harness)
    }
    assert len(tokens) == 2
    assert helpers.secrets(creation.harness) == []


@pytest.mark.conformance("tmpl-kube-labels-not-in-template", "boot-writes-always")
def test_metadata_is_written_once_for_each_vm(creation: Creation) -> None:
    assert creation.harness.simulation.gce.calls.counts()["instances.setMetadata"] == 2


@pytest.mark.conformance("node-label-no-write-when-right")
def test_a_node_with_the_correct_labels_is_not_patched_again(creation: Creation) -> None:
    calls = creation.harness.simulation.kube.calls
    user = identity("label-node").name
    assert calls.count(user=user, verb="patch", resource="nodes", code=200) == 2


# Errors


@pytest.mark.conformance("mig-insert-transient", "mig-terminal-is-forever", "stat-child-terminal")
def test_an_unknown_error_is_reported_and_the_call_retried() -> None:
    harness = Harness()
    message = "an error that no rule matches"
    harness.simulation.gce.faults.fail_next(
        "instanceGroupManagers.insert", http=400, reason="somethingNew", message=message
    )
    harness.apply(manifest())
    helpers.until_reason(harness, "Refused")
    assert message in helpers.condition_of(harness)[2]
    helpers.until_ready(harness)


@pytest.mark.conformance(
    "stat-ready-overwritten-by-blip", "mig-get-error", "stat-error", "boot-list-fails"
)
def test_a_failed_read_does_not_change_the_condition_of_a_ready_slice() -> None:
    harness = helpers.ready()
    before = harness.condition(NAME, "Ready")
    for verb in ("instances.list", "instanceGroupManagers.get"):
        harness.simulation.gce.faults.fail_next(verb, calls=3, http=503)
    harness.run_for(3 * HOUR)
    assert harness.condition(NAME, "Ready") == before
    rejected = [call.verb for call in harness.simulation.gce.calls.records if call.status == 503]
    assert rejected.count("instances.list") == 3


def test_the_reason_of_a_vm_that_cannot_be_created_does_not_flap() -> None:
    harness = Harness()
    harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 1)
    two_hosts = {**helpers.ONE_HOST, "nodeCount": 2, "instanceConfig": dict(helpers.STANDARD)}
    harness.apply(manifest(**two_hosts))
    helpers.until_reason(harness, "InsufficientCapacity")
    assert not harness.run_until(
        lambda: helpers.condition_of(harness)[1] != "InsufficientCapacity", timedelta(minutes=30)
    )


def test_an_insert_that_refers_to_a_missing_resource_is_reported() -> None:
    harness = Harness()
    message = "The resource 'projects/p/global/networks/n' was not found"
    harness.simulation.gce.faults.fail_next(
        "instanceTemplates.insert", calls=10_000, http=404, reason="notFound", message=message
    )
    harness.apply(manifest())
    harness.run_for(HOUR)
    assert message in helpers.condition_of(harness)[2]


# Nodes


@pytest.mark.conformance("node-not-watched")
def test_an_unready_node_makes_the_slice_unready_within_seconds() -> None:
    harness = helpers.ready()
    name, node = next(iter(helpers.nodes(harness).items()))
    path = f"/api/v1/nodes/{name}/status"
    conditions = node["status"]["conditions"]
    down = [{**it, "status": "False"} if it["type"] == "Ready" else it for it in conditions]
    helpers.patch(harness, path, {"status": {"conditions": down}})
    helpers.until_reason(harness, "NodeNotReady", timeout=timedelta(seconds=5))
    assert helpers.pending(harness) == {name: "NodeNotReady"}
    helpers.patch(harness, path, {"status": {"conditions": conditions}})
    harness.run_for(timedelta(seconds=15))
    assert not harness.is_ready(NAME)  # changes of a flapping Node are coalesced
    helpers.until_ready(harness, timeout=timedelta(minutes=3))


@pytest.mark.conformance("stat-failed-never-set", "stat-no-deadline")
def test_vms_that_never_join_are_named_and_counted_after_15_minutes() -> None:
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest())
    helpers.until_reason(harness, "NodeJoinTimeout")
    names = {helpers.vm_name(vm) for vm in helpers.vms(harness)}
    assert helpers.pending(harness) == dict.fromkeys(names, "NodeJoinTimeout")
    assert helpers.summary(harness)["failed"] == 2
    assert all(name in helpers.condition_of(harness)[2] for name in names)
    assert "get-serial-port-output" in helpers.condition_of(harness)[2]


# Deletion


@pytest.mark.conformance("del-cordon", "del-order")
def test_a_deletion_cordons_nodes_and_deletes_the_mig_before_the_template() -> None:
    harness = helpers.ready()
    harness.delete(NAME)
    helpers.until(harness, lambda: harness.operations["instanceGroupManagers.delete"] == 1)
    assert all(node["spec"]["unschedulable"] for node in helpers.nodes(harness).values())
    assert len(helpers.nodes(harness)) == 2
    helpers.until(harness, lambda: harness.operations["instanceTemplates.delete"] == 1)
    assert helpers.of_kind(harness, MIGS) == helpers.vms(harness) == []
    helpers.until_gone(harness)
    assert harness.leftovers() == []


@pytest.mark.conformance("del-nodes-only-labelled")
@pytest.mark.parametrize(
    "options, change",
    [
        pytest.param(None, {}, id="registered with labels"),
        pytest.param(helpers.JOIN_BY_OTHER_MEANS, {"bootstrapKubernetes": None}, id="without any"),
    ],
)
def test_a_node_that_was_never_labelled_is_deleted_with_its_group(
    options: Options | None, change: dict[str, Any]
) -> None:
    harness = Harness(options)
    harness.apply(manifest(**change))
    helpers.until(harness, lambda: len(helpers.nodes(harness)) == 1)
    harness.delete(NAME)
    helpers.until_gone(harness)
    harness.run_for(HOUR)
    assert harness.leftovers() == []


@pytest.mark.conformance("tok-gc-on-delete")
def test_a_deletion_revokes_the_tokens_of_its_group_and_no_others() -> None:
    harness = Harness(helpers.vm_options(joins=False))
    other = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef"},
    }
    harness.simulation.admin("POST", "/api/v1/namespaces/kube-system/secrets", other)
    harness.apply(manifest())
    helpers.until(harness, lambda: len(helpers.secrets(harness)) == 3)
    harness.run_for(MINUTE)
    harness.delete(NAME)
    helpers.until(harness, lambda: harness.operations["instanceGroupManagers.delete"] == 1)
    assert helpers.secrets(harness) == ["bootstrap-token-abcdef"]


@pytest.mark.conformance("tok-gc-skipped-without-bootstrap")
def test_without_bootstrapping_no_secret_is_touched() -> None:
    harness = helpers.ready(manifest(bootstrapKubernetes=None), helpers.JOIN_BY_OTHER_MEANS)
    helpers.assert_deleted_completely(harness)
    assert harness.simulation.kube.calls.count(verb="delete", resource="secrets") == 0


@pytest.mark.parametrize("collection", [MIGS, "instanceTemplates", "resourcePolicies"])
def test_a_delete_that_answers_404_is_complete(collection: str) -> None:
    harness = helpers.ready()
    verb = f"{collection}.delete"
    harness.simulation.gce.faults.fail_next(verb, http=404, reason="notFound", executed=True)
    helpers.assert_deleted_completely(harness)
    assert harness.operations[verb] == 1


@pytest.mark.conformance("del-child-op-404")
def test_a_delete_whose_operation_fails_with_404_is_complete() -> None:
    harness = helpers.ready()
    harness.simulation.gce.faults.fail_operations(
        "resourcePolicies.delete", code="RESOURCE_NOT_FOUND", http=404
    )
    helpers.assert_deleted_completely(harness)


@pytest.mark.conformance("del-child-404", "del-child-done-at-once")
def test_resources_that_were_deleted_manually_are_not_deleted_again() -> None:
    harness = helpers.ready()
    for collection in (MIGS, "instanceTemplates", "resourcePolicies"):
        (path,) = helpers.of_kind(harness, collection)
        _delete_manually(harness, path)
        harness.run_for(5 * MINUTE)
    harness.operations.clear()
    helpers.assert_deleted_completely(harness)
    assert not harness.operations


@pytest.mark.conformance(
    "dp-exists", "dp-kept-while-others", "dp-deleted-with-last", "del-device-plugin-condition"
)
def test_the_device_plugin_is_not_changed_by_groups() -> None:
    harness = Harness()
    path = "/apis/apps/v1/namespaces/kube-system/daemonsets/tpu-device-plugin"
    before = harness.simulation.admin("GET", path)
    helpers.ready_slice(harness, manifest())
    helpers.assert_deleted_completely(harness)
    after = harness.simulation.admin("GET", path)
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


# User templates


@pytest.mark.conformance("byo-machine-type")
def test_a_user_template_without_tpus_is_reported_and_its_replacement_is_used() -> None:
    harness = Harness(helpers.JOIN_BY_OTHER_MEANS)
    wrong = {**helpers.template("n1-standard-1"), "name": "a"}
    helpers.create_template(harness, wrong)
    harness.apply(manifest(**OWN_TEMPLATE))
    helpers.until_reason(harness, "InvalidTemplate")
    text = 'invalid external template: machine type "n1-standard-1" is not supported'
    status, reason, message = helpers.condition_of(harness, "InstanceTemplateReady")
    assert (status, reason) == ("False", "InvalidTemplate")
    assert text in message
    harness.run_for(2 * HOUR)
    warnings = [event for event in helpers.events(harness) if event[1] == "InvalidInstanceTemplate"]
    assert len(warnings) == 1
    _delete_manually(harness, f"projects/{PROJECT}/global/instanceTemplates/a")
    harness.run_for(MINUTE)
    helpers.create_template(harness, {**helpers.template(), "name": "a"})
    helpers.until_ready(harness)


@pytest.mark.conformance("byo-regional-template")
def test_a_regional_template_is_read_from_its_region() -> None:
    harness = Harness(helpers.JOIN_BY_OTHER_MEANS)
    helpers.create_template(harness, {**helpers.template("n1-standard-1"), "name": "a"})
    helpers.create_template(harness, {**helpers.template(), "name": "a"}, region="us-central1")
    uri = "projects/my-gcp-project/regions/us-central1/instanceTemplates/a"
    helpers.ready_slice(harness, manifest(**{**OWN_TEMPLATE, "instanceTemplateURI": uri}))
    assert harness.simulation.gce.calls.counts()["instanceTemplates.get"] == 0


@pytest.mark.conformance("tmpl-none-for-byo", "byo-fetched-every-pass")
def test_a_user_template_is_not_read_again_after_the_slice_is_ready() -> None:
    harness = Harness(helpers.JOIN_BY_OTHER_MEANS)
    helpers.create_template(harness, {**helpers.template(), "name": "a"})
    helpers.ready_slice(harness, manifest(**OWN_TEMPLATE))
    reads = harness.simulation.gce.calls.counts()["instanceTemplates.get"]
    harness.run_for(3 * HOUR)
    assert harness.simulation.gce.calls.counts()["instanceTemplates.get"] == reads
    assert harness.is_ready(NAME)
    assert harness.operations["instanceTemplates.insert"] == 1  # by this test


@pytest.mark.conformance("boot-byo-no-token")
def test_vms_of_a_user_template_get_their_labels_without_a_call_per_vm() -> None:
    harness = Harness(helpers.JOIN_BY_OTHER_MEANS)
    helpers.create_template(harness, {**helpers.template(), "name": "a"})
    helpers.ready_slice(harness, manifest(**OWN_TEMPLATE))
    (vm, _) = helpers.vms(harness)
    labels = helpers.metadata_of(helpers.get(harness, vm))["kube-labels"]
    assert "cloud.google.com/gke-tpu-topology=2x2x2" in labels.split(",")
    assert harness.simulation.gce.calls.counts()["instances.setMetadata"] == 0


def _delete_manually(harness: Harness, path: str) -> None:
    harness.simulation.gce.faults.act_as_user("DELETE", path)
