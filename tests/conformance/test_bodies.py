"""The request bodies for Compute Engine: workload policy, instance template and MIG."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from functions.create_resources.bodies import (
    merge_kube_labels,
    mig_body,
    policy_body,
    template_body,
)
from functions.inject_token.decide import decide
from functions.inject_token.observe import Vm
from shared.base.names import KUBE_LABELS_KEY, STARTUP_SCRIPT_KEY
from shared.node_groups.bootstrap import Token
from shared.node_groups.node_group import InstanceConfig, NodeGroup, parse
from tests.support.builders import NOW, RESOURCE, group, raw_group
from tests.support.compute import instance, template
from tests.support.specs import OWN_TEMPLATE
from tests.unit.functions.inject_token.objects import describe, observed

INDIVIDUAL: dict[str, Any] = {
    "nodeCount": 4,
    "topology": "2x2x1",
    "targetSizePolicyMode": "INDIVIDUAL",
}
LABELS = (
    "cloud.google.com/gke-accelerator-count=4,"
    "cloud.google.com/gke-tpu-accelerator=tpu7x,"
    "cloud.google.com/gke-tpu-topology=2x2x2"
)


def config(**change: Any) -> NodeGroup:
    return group(change={"instanceConfig": change})


def properties(about: NodeGroup) -> dict[str, Any]:
    assert isinstance(about.spec.source, InstanceConfig)
    found: dict[str, Any] = template_body(about, about.spec.source)["properties"]
    return found


def metadata(about: NodeGroup) -> dict[str, str]:
    return {item["key"]: item["value"] for item in properties(about)["metadata"]["items"]}


# The policy


def test_a_bulk_group_has_a_policy_with_its_topology() -> None:
    assert policy_body(group()) == {
        "name": RESOURCE,
        "description": group().mark,
        "workload_policy": {"type_": "HIGH_THROUGHPUT", "accelerator_topology": "2x2x2"},
    }


@pytest.mark.conformance("name-region-from-zone", "pol-bulk-only")
@pytest.mark.parametrize(
    "zone, region",
    [("us-central1-a", "us-central1"), ("us-south1-ai1b", "us-south1")],
)
def test_a_policy_is_in_the_region_of_the_zone(zone: str, region: str) -> None:
    spec = group(change={"nodeLocation": zone, "instanceConfig": {"subnetwork": None}}).spec
    assert spec.region == region


# The template


@pytest.mark.conformance(
    cases={
        "RESERVATION_BOUND-scheduling2": "tmpl-termination-reservation-bound",
        "SPOT-scheduling1": "tmpl-set-fields-kept",
    }
)
@pytest.mark.parametrize(
    "model, scheduling",
    [
        ("STANDARD", {}),
        ("SPOT", {"instance_termination_action": "STOP", "automatic_restart": False}),
        ("RESERVATION_BOUND", {"instance_termination_action": "DELETE"}),
        (
            "FLEX_START",
            {
                "instance_termination_action": "DELETE",
                "max_run_duration": {"seconds": 604800},
            },
        ),
    ],
)
def test_the_scheduling_of_vms_follows_from_the_provisioning_model(
    model: str, scheduling: dict[str, Any]
) -> None:
    reservation = "my-reservation" if model == "RESERVATION_BOUND" else None
    duration = "7d" if model == "FLEX_START" else None
    about = config(provisioningModel=model, reservation=reservation, maxRunDuration=duration)
    assert properties(about)["scheduling"] == {
        "on_host_maintenance": "TERMINATE",
        "provisioning_model": model,
        **scheduling,
    }


@pytest.mark.conformance("tmpl-reservation-affinity")
def test_the_template_refers_to_the_reservation_by_name() -> None:
    about = config(provisioningModel=None, reservation="test-reservation")
    assert properties(about)["reservation_affinity"] == {
        "consume_reservation_type": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["test-reservation"],
    }


@pytest.mark.conformance("tmpl-no-reservation")
def test_the_template_has_no_reservation_if_the_spec_has_none() -> None:
    found = properties(config(provisioningModel="SPOT", reservation=None))
    assert "reservation_affinity" not in found


def test_flex_start_uses_no_reservation() -> None:
    about = config(provisioningModel="FLEX_START", reservation=None, maxRunDuration="1h")
    affinity = properties(about)["reservation_affinity"]
    assert affinity == {"consume_reservation_type": "NO_RESERVATION"}


@pytest.mark.conformance("tmpl-boot-disk")
def test_the_boot_disk_follows_from_the_spec_and_is_deleted_with_its_vm() -> None:
    about = config(image="projects/p/global/images/i", bootDiskSizeGB=250, diskType="pd-ssd")
    assert properties(about)["disks"] == [
        {
            "boot": True,
            "auto_delete": True,
            "initialize_params": {
                "source_image": "projects/p/global/images/i",
                "disk_size_gb": 250,
                "disk_type": "pd-ssd",
            },
        }
    ]


def test_without_a_size_the_disk_has_the_size_of_its_image() -> None:
    disk = properties(config(bootDiskSizeGB=None))["disks"][0]["initialize_params"]
    assert disk.keys() == {"source_image", "disk_type"}


@pytest.mark.parametrize(
    "given, expected",
    [
        ("custom-subnet", "projects/my-gcp-project/regions/us-central1/subnetworks/custom-subnet"),
        (None, "projects/my-gcp-project/regions/us-central1/subnetworks/default"),
        (
            "projects/host/regions/us-central1/subnetworks/shared",
            "projects/host/regions/us-central1/subnetworks/shared",
        ),
    ],
)
def test_the_subnetwork_follows_from_the_spec(given: str | None, expected: str) -> None:
    assert properties(config(subnetwork=given))["network_interfaces"] == [{"subnetwork": expected}]


@pytest.mark.conformance("tmpl-tags")
def test_the_tags_are_those_of_the_spec() -> None:
    assert properties(config(networkTags=["tag1", "tag2"]))["tags"] == {"items": ["tag1", "tag2"]}


@pytest.mark.conformance("tmpl-no-tags")
@pytest.mark.parametrize("tags", [[], None])
def test_the_template_has_no_tags_if_the_spec_has_none(tags: list[str] | None) -> None:
    assert "tags" not in properties(config(networkTags=tags))


@pytest.mark.conformance("tmpl-service-account")
def test_the_service_account_is_that_of_the_spec() -> None:
    accounts = [{"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}]
    assert properties(config(serviceAccounts=accounts))["service_accounts"] == accounts


def test_the_vms_have_no_service_account_if_the_spec_has_none() -> None:
    assert "service_accounts" not in properties(group())


@pytest.mark.conformance("tmpl-startup-script")
def test_the_startup_script_contains_version_project_and_zone() -> None:
    script = metadata(group())[STARTUP_SCRIPT_KEY]
    for value in ("1.31", "my-gcp-project", "us-central1-c"):
        assert value in script


@pytest.mark.conformance("tmpl-no-script-without-bootstrap")
@pytest.mark.parametrize("given", [{}, {"startup-script": "#!/bin/sh"}])
def test_without_bootstrapping_the_metadata_has_only_the_startup_script_of_the_user(
    given: dict[str, str],
) -> None:
    about = group(change={"bootstrapKubernetes": None, "instanceConfig": {"metadata": given}})
    assert metadata(about) == {**given, KUBE_LABELS_KEY: LABELS}


@pytest.mark.conformance("boot-vm-states-skipped")
def test_the_template_has_the_node_labels() -> None:
    about = config(metadata={"kube-labels": "mine=1"})
    assert metadata(about)[KUBE_LABELS_KEY] == f"{LABELS},mine=1"


@pytest.mark.conformance("boot-kube-labels-merge")
@pytest.mark.parametrize(
    "existing, merged",
    [
        ("", "a=1,b=2"),
        ("foo=bar", "a=1,b=2,foo=bar"),
        ("a=old,foo=bar", "a=1,b=2,foo=bar"),
        ("nonsense,foo=bar", "a=1,b=2,foo=bar,nonsense"),
        (" c = 3 ,,a", "a=1,b=2,c = 3,a"),
    ],
)
def test_kube_labels_keeps_labels_of_other_writers(existing: str, merged: str) -> None:
    assert merge_kube_labels(existing, {"a": "1", "b": "2"}) == merged


# The managed instance group


@pytest.mark.conformance("mig-bulk-without-policy", "mig-gce-body")
def test_the_mig_of_a_bulk_group_has_the_policy_and_no_repair() -> None:
    name = RESOURCE
    assert mig_body(group(), None) == {
        "name": name,
        "description": group().mark,
        "base_instance_name": name,
        "instance_template": f"projects/my-gcp-project/global/instanceTemplates/{name}",
        "target_size": 2,
        "target_size_policy": {"mode": "BULK"},
        "instance_lifecycle_policy": {"default_action_on_failure": "DO_NOTHING"},
        "resource_policies": {
            "workload_policy": f"projects/my-gcp-project/regions/us-central1/resourcePolicies/{name}"
        },
    }


@pytest.mark.conformance("pol-skip-individual", "mig-individual-repairs")
def test_the_mig_of_an_individual_group_repairs_vms_and_has_no_policy() -> None:
    about = group(change=INDIVIDUAL)
    body = mig_body(about, None)
    assert body["instance_lifecycle_policy"] == {"default_action_on_failure": "REPAIR"}
    assert body["target_size_policy"] == {"mode": "INDIVIDUAL"}
    assert "resource_policies" not in body
    assert about.spec.resource_kinds == ("instanceTemplate", "managedInstanceGroup")


def test_the_mig_of_flex_start_has_no_repair() -> None:
    flex = {"provisioningModel": "FLEX_START", "reservation": None, "maxRunDuration": "1h"}
    body = mig_body(group(change={**INDIVIDUAL, "instanceConfig": flex}), None)
    assert body["instance_lifecycle_policy"] == {"default_action_on_failure": "DO_NOTHING"}


@pytest.mark.parametrize("scope", ["global", "regions/us-central1"])
def test_a_user_template_is_used_from_the_scope_in_its_uri(scope: str) -> None:
    uri = f"projects/my-gcp-project/{scope}/instanceTemplates/t"
    body = mig_body(group(change={**OWN_TEMPLATE, "instanceTemplateURI": uri}), template())
    assert body["instance_template"] == uri


# Names


@pytest.mark.conformance("name-hash-suffix", "name-template", "name-mig")
def test_children_of_tpu_operator_are_recognized_by_name() -> None:
    parsed = parse(raw_group(name="my-tpu-group", uid="my-uid"), "cluster")
    assert parsed.operator_child_names == {
        "workloadpolicies": "my-tpu-group-policy-1ec0000c",
        "instancetemplates": "my-tpu-group-template-1ec0000c",
        "managedinstancegroups": "my-tpu-group-mig-1ec0000c",
    }


# Tokens, by the state of the VM


@pytest.mark.parametrize("status", ["PROVISIONING", "STAGING", "RUNNING"])
def test_a_vm_gets_a_token_if_its_metadata_can_be_written(status: str) -> None:
    given = observed(Vm(instance(status=status), None, None))
    written = ["SetMetadata", "CreateSecret newnew", "RevokeIfJoined, if slow"]
    expected = written if status == "RUNNING" else []
    assert describe(decide(given, NOW)) == expected


@pytest.mark.parametrize(
    "status", ["STOPPING", "SUSPENDING", "SUSPENDED", "TERMINATED", "PENDING", ""]
)
def test_a_vm_that_cannot_join_gets_no_token(status: str) -> None:
    assert describe(decide(observed(Vm(instance(status=status), None, None)), NOW)) == []


@pytest.mark.conformance(cases={"-1-False": "tok-expired", "5-False": "tok-expires-soon"})
@pytest.mark.parametrize(
    "minutes_left, is_kept", [(-1, False), (5, False), (30, False), (31, True), (45, True)]
)
def test_a_token_is_kept_if_it_is_valid_until_the_next_resync(
    minutes_left: int, is_kept: bool
) -> None:
    token = Token("oldold", "o" * 16, NOW + timedelta(minutes=minutes_left))
    plan = decide(observed(Vm(instance(token=token), None, token)), NOW)
    keep, renew = ["CreateSecret oldold"], ["SetMetadata", "CreateSecret newnew"]
    assert describe(plan)[:-1] == (keep if is_kept else renew)
