# ruff: noqa: E501  (a table reads best with a row on a line)
"""Fields of answers that the service adds or changes.

The expectations come from recorded conversations with the real service.
"""

from __future__ import annotations

from typing import Any

import pytest

from local.tests.gce.small_cloud import (
    GROUP,
    IMAGE,
    NUMBER,
    POLICY,
    PROJECT,
    REGION,
    TEMPLATE,
    ZONE,
    ZONE_PATH,
    Cloud,
    Document,
    policy_body,
    template_body,
)

ROOT = "https://www.googleapis.com/compute/v1/"
VM = f"{ZONE_PATH}/instances/vm"
ABSENT = "nothing"


def look_up(document: Any, path: str) -> Any:
    """Return the value at a dotted path, or `ABSENT`."""
    for part in path.split("."):
        if isinstance(document, list):
            document = document[int(part)]
        elif part in document:
            document = document[part]
        else:
            return ABSENT
    return document


@pytest.fixture(scope="module")
def template() -> Document:
    cloud = Cloud()
    body = template_body("n1-standard-1", {"onHostMaintenance": "MIGRATE"}, metadata={}, tags={})
    cloud.settle("POST", TEMPLATE.rpartition("/")[0], body)
    return cloud.get(TEMPLATE)


@pytest.mark.parametrize(
    "path, value",
    [
        ("kind", "compute#instanceTemplate"),
        ("description", ""),
        ("selfLink", ROOT + TEMPLATE),
        ("fingerprint", ABSENT),
        ("status", ABSENT),
        ("properties.machineType", "n1-standard-1"),
        ("properties.disks.0.kind", "compute#attachedDisk"),
        ("properties.disks.0.index", 0),
        ("properties.disks.0.deviceName", "persistent-disk-0"),
        ("properties.disks.0.initializeParams.sourceImage", IMAGE),
        ("properties.metadata.fingerprint", "x4iOk7cA2GY="),
        ("properties.metadata.items", ABSENT),
        ("properties.tags", {}),
        ("properties.networkInterfaces.0.kind", "compute#networkInterface"),
        ("properties.networkInterfaces.0.name", "nic0"),
        ("properties.networkInterfaces.0.network", f"{ROOT}projects/{PROJECT}/global/networks/default"),
        ("properties.networkInterfaces.0.subnetwork", ABSENT),
        ("properties.scheduling.automaticRestart", True),
        ("properties.scheduling.preemptible", False),
        ("properties.scheduling.provisioningModel", "STANDARD"),
    ],
)  # fmt: skip
def test_a_read_template_has(template: Document, path: str, value: Any) -> None:
    assert look_up(template, path) == value


@pytest.fixture(scope="module")
def instance() -> Document:
    cloud = Cloud()
    cloud.settle("POST", TEMPLATE.rpartition("/")[0], template_body())
    properties = template_body()["properties"]
    machine_type = f"zones/{ZONE}/machineTypes/{properties['machineType']}"
    body = {"name": "vm", **properties, "machineType": machine_type, "metadata": {}}
    cloud.settle("POST", f"{ZONE_PATH}/instances", body)
    cloud.clock.run_for(5)
    return cloud.get(VM)


@pytest.mark.parametrize(
    "path, value",
    [
        ("kind", "compute#instance"),
        ("status", "RUNNING"),
        ("zone", f"{ROOT}{ZONE_PATH}"),
        ("machineType", f"{ROOT}{ZONE_PATH}/machineTypes/ct6e-standard-4t"),
        ("disks.0.initializeParams", ABSENT),
        ("disks.0.source", f"{ROOT}{ZONE_PATH}/disks/vm"),
        ("disks.0.diskSizeGb", "10"),
        ("disks.0.index", 0),
        ("networkInterfaces.0.subnetwork", f"{ROOT}projects/{PROJECT}/regions/{REGION}/subnetworks/default"),
        ("networkInterfaces.0.stackType", "IPV4_ONLY"),
        ("metadata", {"kind": "compute#metadata", "fingerprint": "x4iOk7cA2GY="}),
        ("tags", {"fingerprint": "42WmSpB8rSM="}),
        ("deletionProtection", False),
        ("startRestricted", False),
        ("scheduling.onHostMaintenance", "TERMINATE"),
        ("params", ABSENT),
    ],
)  # fmt: skip
def test_a_read_vm_has(instance: Document, path: str, value: Any) -> None:
    assert look_up(instance, path) == value


def test_fingerprints_of_a_vm_differ(instance: Document) -> None:
    assert instance["fingerprint"] != instance["labelFingerprint"]


def test_times_are_pacific_with_milliseconds(instance: Document) -> None:
    assert instance["creationTimestamp"].endswith("-08:00")
    assert len(instance["lastStartTimestamp"]) == len("2026-06-29T12:21:52.100-07:00")


@pytest.fixture(scope="module")
def group() -> Document:
    cloud = Cloud()
    cloud.make_parts()
    cloud.make_group()
    return cloud.get(GROUP)


@pytest.mark.parametrize(
    "path, value",
    [
        ("kind", "compute#instanceGroupManager"),
        ("instanceTemplate", ROOT + TEMPLATE),
        ("versions", [{"instanceTemplate": ROOT + TEMPLATE, "targetSize": {"calculated": 2}}]),
        ("resourcePolicies.workloadPolicy", ROOT + POLICY),
        ("instanceGroup", f"{ROOT}{ZONE_PATH}/instanceGroups/slice"),
        ("targetSizePolicy.mode", "BULK"),
        ("targetStoppedSize", 0),
        ("targetSuspendedSize", 0),
        ("standbyPolicy.mode", "MANUAL"),
        ("listManagedInstancesResults", "PAGELESS"),
        ("updatePolicy.type", "OPPORTUNISTIC"),
        ("updatePolicy.maxSurge", {"fixed": 1, "calculated": 1}),
        ("updatePolicy.minReadySec", 0),
        ("instanceLifecyclePolicy.defaultActionOnFailure", "DO_NOTHING"),
        ("instanceLifecyclePolicy.forceUpdateOnRepair", "NO"),
        ("instanceLifecyclePolicy.onFailedHealthCheck", "DEFAULT_ACTION"),
        ("serviceAccount", f"{NUMBER}@cloudservices.gserviceaccount.com"),
        ("status.stateful.hasStatefulConfig", False),
        ("status.allInstancesConfig.effective", True),
        ("status.versionTarget.isReached", True),
        ("status.bulkInstanceOperation.inProgress", True),
        ("status.appliedAcceleratorTopologies", ABSENT),
    ],
)  # fmt: skip
def test_a_read_mig_has(group: Document, path: str, value: Any) -> None:
    assert look_up(group, path) == value


def test_all_thirteen_actions_are_counted(group: Document) -> None:
    assert len(group["currentActions"]) == 13
    assert sum(group["currentActions"].values()) == group["currentActions"]["creating"] == 2


def test_all_thirteen_statuses_are_counted_for_tpu_groups_only(group: Document) -> None:
    assert len(group["status"]["currentInstanceStatuses"]) == 13
    cloud = Cloud()
    cloud.make_parts(machine_type="n1-standard-1")
    cloud.make_group(bulk=False)
    assert "currentInstanceStatuses" not in cloud.group_status()


def test_a_read_policy_has_status_and_region(cloud: Cloud) -> None:
    cloud.settle("POST", POLICY.rpartition("/")[0], policy_body(description="mine"))
    policy = cloud.get(POLICY)
    assert policy["region"] == f"{ROOT}projects/{PROJECT}/regions/{REGION}"
    assert (policy["status"], policy["description"]) == ("READY", "mine")
    assert "labels" not in policy


@pytest.mark.parametrize(
    "reference",
    [
        TEMPLATE,
        ROOT + TEMPLATE,
        f"https://compute.googleapis.com/compute/beta/{TEMPLATE}",
        "global/instanceTemplates/slice",
        TEMPLATE.replace(PROJECT, NUMBER),
    ],
    ids=["path", "URL", "beta URL", "partial path", "project number"],
)
def test_a_template_can_be_named_by_every_form_of_its_url(reference: str) -> None:
    cloud = Cloud()
    cloud.make_parts()
    cloud.make_group(instanceTemplate=reference)
    assert cloud.get(GROUP)["instanceTemplate"] == ROOT + TEMPLATE


def test_a_regional_template_can_be_used_in_its_region() -> None:
    cloud = Cloud()
    cloud.make_parts()
    regional = TEMPLATE.replace("global", f"regions/{REGION}")
    cloud.settle("POST", regional.rpartition("/")[0], template_body())
    cloud.clock.run_for(5)
    cloud.make_group(instanceTemplate=regional)
    assert cloud.get(GROUP)["instanceTemplate"] == ROOT + regional
    assert cloud.get(regional)["region"] == f"{ROOT}projects/{PROJECT}/regions/{REGION}"


def test_a_project_is_found_by_its_number(cloud: Cloud) -> None:
    cloud.make_parts()
    assert cloud.get(POLICY.replace(PROJECT, NUMBER))["selfLink"] == ROOT + POLICY


def test_provision_only_topologies_need_no_bulk_mode(cloud: Cloud) -> None:
    body = policy_body()
    body["workloadPolicy"]["acceleratorTopologyMode"] = "PROVISION_ONLY"
    cloud.settle("POST", POLICY.rpartition("/")[0], body)
    cloud.settle("POST", TEMPLATE.rpartition("/")[0], template_body())
    cloud.clock.run_for(5)
    cloud.make_group(targetSizePolicy={"mode": "INDIVIDUAL"})
    cloud.run_until_running(2)
    assert "appliedAcceleratorTopologies" not in cloud.group_status()


def test_zones_are_separate(slice_cloud: Cloud) -> None:
    slice_cloud.make_group()
    other = GROUP.replace(ZONE, "us-central1-a")
    assert slice_cloud.send("GET", other)[0] == 404
