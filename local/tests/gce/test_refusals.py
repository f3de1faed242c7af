# ruff: noqa: E501  (a table reads best with a row on a line)
"""Every error of the catalogue is provoked, through the real client library if possible."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import compute_v1

from local.gce import ConditionalRole, Principal, Timings, iam
from local.gce.inventory import Inventory
from local.gce.refusals import CATALOGUE
from local.tests.gce.small_cloud import (
    AGENT,
    FLEX,
    GROUP,
    IMAGE,
    NUMBER,
    POLICY,
    PROJECT,
    REGION,
    SPOT,
    TEMPLATE,
    ZONE,
    ZONE_PATH,
    Cloud,
    Document,
    group_body,
    policy_body,
    template_body,
)

SUBNETWORK = f"projects/{PROJECT}/regions/{REGION}/subnetworks/tpus"
RESERVATION = f"projects/{PROJECT}/zones/{ZONE}/reservations/tpus"
ROOT = "https://www.googleapis.com/compute/v1/"
VM = f"{ZONE_PATH}/instances/vm"
UUID = "b0a1c2d3-0000-4000-8000-000000000001"
MACHINE_ACCOUNT = "vm@my-project.iam.gserviceaccount.com"
BACKEND_SERVICE = f"projects/{PROJECT}/global/backendServices/web"
NAME_RULE = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"

Ask = Callable[[Cloud], Any]


# ---------------------------------------------------------------- calls of the client library


def insert_policy(cloud: Cloud, body: Document | None = None, **request: Any) -> Any:
    resource = compute_v1.ResourcePolicy.from_json(json.dumps(body or policy_body()))
    return cloud.client("ResourcePoliciesClient").insert_unary(
        {"project": PROJECT, "region": REGION, "resource_policy_resource": resource, **request}
    )


def insert_template(cloud: Cloud, body: Document | None = None, **request: Any) -> Any:
    resource = compute_v1.InstanceTemplate.from_json(json.dumps(body or template_body()))
    return cloud.client("InstanceTemplatesClient").insert_unary(
        {"project": PROJECT, "instance_template_resource": resource, **request}
    )


def get_policy(cloud: Cloud, region: str = REGION) -> Any:
    return cloud.client("ResourcePoliciesClient").get(
        project=PROJECT, region=region, resource_policy="slice"
    )


def delete_template(cloud: Cloud) -> Any:
    return cloud.client("InstanceTemplatesClient").delete_unary(
        project=PROJECT, instance_template="slice"
    )


def insert_group(cloud: Cloud, body: Document | None = None, zone: str = ZONE) -> Any:
    resource = compute_v1.InstanceGroupManager.from_json(json.dumps(body or group_body()))
    return cloud.client("InstanceGroupManagersClient").insert_unary(
        {"project": PROJECT, "zone": zone, "instance_group_manager_resource": resource}
    )


def change_group(cloud: Cloud, method: str, **arguments: Any) -> Any:
    client = cloud.client("InstanceGroupManagersClient")
    return getattr(client, method)(
        project=PROJECT, zone=ZONE, instance_group_manager="slice", **arguments
    )


def insert_vm(cloud: Cloud, **fields: Any) -> Any:
    body = {"name": "vm", **template_body()["properties"], **fields}
    machine_type = body["machineType"]
    body["machineType"] = f"zones/{ZONE}/machineTypes/{machine_type}"
    return cloud.client("InstancesClient").insert_unary(
        project=PROJECT,
        zone=ZONE,
        instance_resource=compute_v1.Instance.from_json(json.dumps(body)),
    )


def change_vm(cloud: Cloud, method: str, **arguments: Any) -> Any:
    client = cloud.client("InstancesClient")
    return getattr(client, method)(project=PROJECT, zone=ZONE, instance="vm", **arguments)


def set_metadata(cloud: Cloud, items: dict[str, str], fingerprint: str | None = None) -> Any:
    current = cloud.get(VM)["metadata"]["fingerprint"] if fingerprint is None else fingerprint
    metadata = compute_v1.Metadata(
        fingerprint=current, items=[{"key": key, "value": value} for key, value in items.items()]
    )
    return change_vm(cloud, "set_metadata_unary", metadata_resource=metadata)


def list_vms(cloud: Cloud, **request: Any) -> Any:
    request = {"project": PROJECT, "zone": ZONE, **request}
    return list(cloud.client("InstancesClient").list(request))


def get_vm(cloud: Cloud, zone: str = ZONE) -> Any:
    return cloud.client("InstancesClient").get(project=PROJECT, zone=zone, instance="vm")


# ---------------------------------------------------------------- initial states


def with_parts(cloud: Cloud) -> None:
    cloud.make_parts()


def with_group(cloud: Cloud) -> None:
    cloud.make_parts()
    cloud.make_group()


def with_empty_group(cloud: Cloud) -> None:
    with_running_group(cloud)
    change_group(cloud, "resize_unary", size=0)
    cloud.run_until_running(0)


def with_running_group(cloud: Cloud) -> None:
    with_group(cloud)
    cloud.run_until_running(2)


def with_large_group(cloud: Cloud) -> None:
    cloud.make_parts()
    body = group_body(4, bulk=False, targetSizePolicy={"mode": "BULK"})
    cloud.settle("POST", GROUP.rpartition("/")[0], body)


def with_vm(cloud: Cloud) -> None:
    insert_vm(cloud, serviceAccounts=[{"email": MACHINE_ACCOUNT}])
    cloud.clock.run_for(60)


def removed(permission: str) -> Ask:
    return lambda cloud: cloud.faults.remove_permission("user@example.com", permission)


def after(*steps: Ask) -> Ask:
    def do(cloud: Cloud) -> None:
        for step in steps:
            step(cloud)

    return do


def nothing(_: Cloud) -> None:
    """Leave the project empty."""


def with_shape(topology: str, machine_type: str) -> Ask:
    return lambda cloud: cloud.make_parts(topology, machine_type=machine_type)


# ---------------------------------------------------------------- immediate errors


@dataclass(frozen=True)
class Case:
    """A call that must fail: initial state, call and message."""

    id: str
    refusal: str
    ask: Ask
    message: str
    before: Ask = nothing
    timings: Timings = Timings()  # noqa: RUF009 - it is frozen


def inventory(machine_types: Any = None, **lists: Any) -> Inventory:
    """Build a table in which everything exists except the resources named here."""
    kinds = ("images", "networks", "subnetworks", "diskTypes")
    return Inventory(machine_types or {ZONE: ["*"]}, {**{kind: ["*"] for kind in kinds}, **lists})


CALLS = [
    Case("get of an absent policy", "NOT_FOUND", get_policy, f"The resource '{POLICY}' was not found"),
    Case("get of an absent template", "NOT_FOUND", lambda c: c.client("InstanceTemplatesClient").get(project=PROJECT, instance_template="slice"), f"The resource '{TEMPLATE}' was not found"),
    Case(
        "get of an absent regional template",
        "NOT_FOUND",
        lambda c: c.client("RegionInstanceTemplatesClient").get(project=PROJECT, region=REGION, instance_template="slice"),
        f"The resource 'projects/{PROJECT}/regions/{REGION}/instanceTemplates/slice' was not found",
    ),
    Case("get of an absent MIG", "NOT_FOUND", lambda c: change_group(c, "get"), f"The resource '{GROUP}' was not found"),
    Case("get of an absent VM", "NOT_FOUND", get_vm, f"The resource '{VM}' was not found"),
    Case(
        "get of an absent operation",
        "NOT_FOUND",
        lambda c: c.client("ZoneOperationsClient").get(project=PROJECT, zone=ZONE, operation="operation-1"),
        f"The resource '{ZONE_PATH}/operations/operation-1' was not found",
    ),
    Case("get in an unknown project", "NOT_FOUND", lambda c: c.client("InstancesClient").get(project="nobody", zone=ZONE, instance="vm"), "The resource 'projects/nobody' was not found"),
    Case("delete of an absent template", "NOT_FOUND", delete_template, f"The resource '{TEMPLATE}' was not found"),
    Case("delete of an absent MIG", "NOT_FOUND", lambda c: change_group(c, "delete_unary"), f"The resource '{GROUP}' was not found"),
    Case("delete of an absent VM", "NOT_FOUND", lambda c: change_vm(c, "delete_unary"), f"The resource '{VM}' was not found"),
    Case("setMetadata of a deleted VM", "NOT_FOUND", lambda c: set_metadata(c, {}, "x"), f"The resource '{VM}' was not found"),
    Case("unknown zone", "UNKNOWN_ZONE", lambda c: get_vm(c, "nowhere"), "Invalid value for field 'zone': 'nowhere'. Unknown zone."),
    Case("unknown region", "UNKNOWN_REGION", lambda c: get_policy(c, "nowhere"), "Invalid value for field 'region': 'nowhere'. Unknown region."),
    Case("policy name taken", "ALREADY_EXISTS", insert_policy, f"The resource '{POLICY}' already exists", with_parts),
    Case("template name taken", "ALREADY_EXISTS", insert_template, f"The resource '{TEMPLATE}' already exists", with_parts),
    Case("template name taken during its creation", "ALREADY_EXISTS", insert_template, f"The resource '{TEMPLATE}' already exists", insert_template),
    Case("MIG name taken", "ALREADY_EXISTS", insert_group, f"The resource '{GROUP}' already exists", with_group),
    Case("VM name taken", "ALREADY_EXISTS", insert_vm, f"The resource '{VM}' already exists", with_vm),
    Case("requestId that is not a UUID", "BAD_REQUEST_ID", lambda c: insert_policy(c, request_id="one"), "Invalid value for field 'requestId': 'one'. Must be a valid, non-zero UUID."),
    Case(
        "requestId that is the zero UUID",
        "BAD_REQUEST_ID",
        lambda c: insert_policy(c, request_id="00000000-0000-0000-0000-000000000000"),
        "Invalid value for field 'requestId': '00000000-0000-0000-0000-000000000000'. Must be a valid, non-zero UUID.",
    ),
    Case(
        "requestId sent again with another body",
        "REQUEST_ID_REUSED",
        lambda c: insert_policy(c, policy_body("4x4"), request_id=UUID),
        f"Invalid value for field 'requestId': '{UUID}'. It was used for a different request.",
        lambda c: insert_policy(c, request_id=UUID),
    ),
    Case("permission missing", "PERMISSION_MISSING", get_vm, f"Required 'compute.instances.get' permission for '{VM}'", removed("compute.instances.get")),
    Case("permission to list missing", "PERMISSION_MISSING", list_vms, f"Required 'compute.instances.list' permission for 'projects/{PROJECT}'", removed("compute.instances.list")),
    Case(
        "permission to create VMs missing for a MIG",
        "PERMISSION_MISSING",
        insert_group,
        f"Required 'compute.instances.create' permission for 'projects/{PROJECT}'",
        after(with_parts, removed("compute.instances.create")),
    ),
    Case(
        "permission to use the template missing",
        "PERMISSION_MISSING",
        insert_group,
        f"Required 'compute.instanceTemplates.useReadOnly' permission for '{TEMPLATE}'",
        after(with_parts, removed("compute.instanceTemplates.useReadOnly")),
    ),
    Case(
        "permission to use the policy missing",
        "PERMISSION_MISSING",
        insert_group,
        f"Required 'compute.resourcePolicies.use' permission for '{POLICY}'",
        after(with_parts, removed("compute.resourcePolicies.use")),
    ),
    Case(
        "setMetadata without actAs on the VM's account",
        "ACT_AS_MISSING",
        lambda c: set_metadata(c, {"a": "b"}),
        f"The user does not have access to service account '{MACHINE_ACCOUNT}'.  User: "
        f"'user@example.com'.  Ask a "
        "project owner to grant you the iam.serviceAccountUser role on the service account",
        after(with_vm, removed("iam.serviceAccounts.actAs")),
    ),
    Case(
        "template without actAs on its account",
        "ACT_AS_MISSING",
        lambda c: insert_template(c, template_body(serviceAccounts=[{"email": MACHINE_ACCOUNT}])),
        f"The user does not have access to service account '{MACHINE_ACCOUNT}'.  User: "
        f"'user@example.com'.  Ask a "
        "project owner to grant you the iam.serviceAccountUser role on the service account",
        removed("iam.serviceAccounts.actAs"),
    ),
    Case(
        "API disabled",
        "API_DISABLED",
        get_vm,
        f"Compute Engine API has not been used in project {NUMBER} before or it is disabled. "
        f"Enable it by visiting "
        "https://console.developers.google.com/apis/api/compute.googleapis.com/overview?project="
        f"{NUMBER} then retry.",
        lambda c: c.faults.disable_api(PROJECT),
    ),
    Case(
        "read rate quota used up",
        "RATE_LIMITED",
        get_vm,
        "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' "
        "of service "
        f"'compute.googleapis.com' for consumer 'project_number:{NUMBER}'.",
        lambda c: c.faults.rate_limit(calls=1),
    ),
    Case(
        "write rate quota used up for a while",
        "RATE_LIMITED",
        insert_policy,
        f"Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service 'compute.googleapis.com' for consumer 'project_number:{NUMBER}'.",
        lambda c: c.faults.rate_limit(seconds=60),
    ),
    Case("rate quota used up at the other front end", "RATE_LIMITED_429", insert_policy, "RESOURCE_EXHAUSTED", lambda c: c.faults.rate_limit(calls=1, http=429)),
    Case("internal error", "BACKEND_ERROR", insert_policy, "Internal error. Please try again or contact Google Support.", lambda c: c.faults.fail_next("*.insert")),
    Case(
        "quota of templates used up",
        "RESOURCE_QUOTA",
        lambda c: insert_template(c, template_body() | {"name": "second"}),
        "Quota 'INSTANCE_TEMPLATES' exceeded.  Limit: 1.0 in region my-project.",
        after(with_parts, lambda c: c.faults.set_count_quota("instanceTemplates", 1)),
    ),
    Case(
        "quota of MIGs used up",
        "RESOURCE_QUOTA",
        insert_group,
        "Quota 'INSTANCE_GROUP_MANAGERS' exceeded.  Limit: 0.0 in region my-project.",
        after(with_parts, lambda c: c.faults.set_count_quota("instanceGroupManagers", 0)),
    ),
    Case("policy without name", "REQUIRED", lambda c: insert_policy(c, {"workloadPolicy": {"type": "HIGH_THROUGHPUT"}}), "Required field 'resource.name' not specified"),
    Case("policy without policy", "REQUIRED", lambda c: insert_policy(c, {"name": "slice"}), "Required field 'resource.workloadPolicy' not specified"),
    Case(
        "workload policy without type",
        "REQUIRED",
        lambda c: insert_policy(c, {"name": "slice", "workloadPolicy": {"acceleratorTopology": "4x4"}}),
        "Required field 'resource.workloadPolicy.type' not specified",
    ),
    Case("template without properties", "REQUIRED", lambda c: insert_template(c, {"name": "slice"}), "Required field 'resource.properties' not specified"),
    Case("template without machine type", "REQUIRED", lambda c: insert_template(c, template_body("")), "Required field 'resource.properties.machineType' not specified"),
    Case("template without disks", "REQUIRED", lambda c: insert_template(c, template_body(disks=[])), "Required field 'resource.properties.disks' not specified"),
    Case("MIG without template", "REQUIRED", lambda c: insert_group(c, group_body(instanceTemplate="")), "Required field 'resource.instanceTemplate' not specified"),
    Case("MIG without size", "REQUIRED", lambda c: insert_group(c, {"name": "slice", "instanceTemplate": TEMPLATE}), "Required field 'resource.targetSize' not specified"),
    Case("name in upper case", "BAD_NAME", lambda c: insert_policy(c, policy_body(name="Slice")), f"Invalid value for field 'resource.name': 'Slice'. {NAME_RULE}"),
    Case("name of 64 characters", "BAD_NAME", lambda c: insert_template(c, template_body() | {"name": "a" * 64}), f"Invalid value for field 'resource.name': '{'a' * 64}'. {NAME_RULE}"),
    Case(
        "base name of 59 characters",
        "BASE_NAME",
        lambda c: insert_group(c, group_body(baseInstanceName="a" * 59)),
        f"Invalid value for field 'resource.baseInstanceName': '{'a' * 59}'. Must be a match "
        f"of regex "
        r"'[a-z](([-a-z0-9]{0,57})|([-a-z0-9]{0,51}-#{1,10}(\[[0-9]{1,10}\])?))'",
    ),
    Case(
        "malformed topology",
        "BAD_VALUE",
        lambda c: insert_policy(c, policy_body("four by four")),
        "Invalid value for field 'resource.workloadPolicy.acceleratorTopology': 'four by four'. The topology is malformed.",
    ),
    Case(
        "MIG of more than a thousand VMs",
        "BAD_VALUE",
        lambda c: insert_group(c, group_body(1001)),
        "Invalid value for field 'resource.targetSize': '1001'. Values must be within the range: [0, 1000]",
        with_parts,
    ),
    Case(
        "policy of another region",
        "BAD_VALUE",
        lambda c: insert_group(c, group_body(), "europe-west4-a"),
        f"Invalid value for field 'resource.resourcePolicies.workloadPolicy': '{POLICY}'. The resource policy must be in the region of the group.",
        with_parts,
    ),
    Case("too many results per page", "BAD_VALUE", lambda c: list_vms(c, max_results=501), "Invalid value for field 'maxResults': '501'. Values must be within the range: [0, 500]"),
    Case(
        "order of managed instances",
        "BAD_VALUE",
        lambda c: list(
            c.client("InstanceGroupManagersClient").list_managed_instances(
                {
                    "project": PROJECT,
                    "zone": ZONE,
                    "instance_group_manager": "slice",
                    "order_by": "name",
                }
            )
        ),
        "Invalid value for field 'orderBy': 'name'. It is not supported.",
        with_group,
    ),
    Case(
        "policy by its bare name",
        "MALFORMED_URL",
        lambda c: insert_group(c, group_body(resourcePolicies={"workloadPolicy": "slice"})),
        "Invalid value for field 'resource.resourcePolicies.workloadPolicy': 'slice'. The URL is malformed.",
        with_parts,
    ),
    Case(
        "template by its bare name",
        "MALFORMED_URL",
        lambda c: insert_group(c, group_body(instanceTemplate="slice")),
        "Invalid value for field 'resource.instanceTemplate': 'slice'. The URL is malformed.",
    ),
    Case("filter that cannot be parsed", "BAD_FILTER", lambda c: list_vms(c, filter="name is vm"), "Invalid value for field 'filter': 'name is vm'. Invalid list filter expression."),
    Case("unknown page token", "BAD_PAGE_TOKEN", lambda c: list_vms(c, page_token="x"), "Invalid value for field 'pageToken': 'x'. Invalid page token"),
    Case(
        "distance and topology in one policy",
        "POLICY_SHAPE",
        lambda c: insert_policy(
            c,
            {
                "name": "slice",
                "workloadPolicy": {
                    "type": "HIGH_THROUGHPUT",
                    "acceleratorTopology": "4x4",
                    "maxTopologyDistance": "BLOCK",
                },
            },
        ),
        "Invalid value for field 'resource.workloadPolicy.maxTopologyDistance': 'BLOCK'. It "
        "cannot be set together "
        "with acceleratorTopology or acceleratorTopologyMode.",
    ),
    Case(
        "SPOT with automatic restart",
        "SPOT_RESTARTS",
        lambda c: insert_template(c, template_body(scheduling={**SPOT, "automaticRestart": True})),
        "Invalid value for field 'resource.properties.scheduling.preemptible': 'true'. "
        "Scheduling must have preemptible "
        "be false when AutomaticRestart is true.",
    ),
    Case(
        "FLEX_START without a maximum duration",
        "FLEX_START_ENDLESS",
        lambda c: insert_template(c, template_body(scheduling={"provisioningModel": "FLEX_START"})),
        "Invalid value for field 'resource.properties.scheduling.maxRunDuration': ''. Max run duration is required for the FLEX_START provisioning model.",
    ),
    Case(
        "TPU VM with live migration",
        "TPU_MIGRATES",
        lambda c: insert_template(c, template_body(scheduling={"onHostMaintenance": "MIGRATE"})),
        "Invalid value for field 'resource.properties.scheduling.onHostMaintenance': 'MIGRATE'. TPU instances do not support live migration.",
    ),
    Case("delete of a template in use", "TEMPLATE_IN_USE", delete_template, f"The instance_template resource '{TEMPLATE}' is already being used by '{GROUP}'", with_group),
    Case(
        "delete of a policy in use",
        "POLICY_IN_USE",
        lambda c: c.client("ResourcePoliciesClient").delete_unary(project=PROJECT, region=REGION, resource_policy="slice"),
        f"The resource_policy resource '{POLICY}' is already being used by '{GROUP}'",
        with_group,
    ),
    Case(
        "delete of a MIG in use",
        "GROUP_IN_USE",
        lambda c: change_group(c, "delete_unary"),
        f"The instance_group_manager resource '{GROUP}' is already being used by '{BACKEND_SERVICE}'",
        after(with_group, lambda c: c.faults.use_group(GROUP, BACKEND_SERVICE)),
    ),
    Case(
        "delete of a MIG during its deletion",
        "NOT_READY",
        lambda c: change_group(c, "delete_unary"),
        f"The resource '{GROUP}' is not ready",
        after(with_group, lambda c: change_group(c, "delete_unary")),
    ),
    Case(
        "change of a MIG during another change",
        "NOT_READY",
        lambda c: change_group(c, "resize_unary", size=0),
        f"The resource '{GROUP}' is not ready",
        after(with_group, lambda c: change_group(c, "resize_unary", size=0)),
    ),
    Case("delete of a template during its creation", "NOT_READY", delete_template, f"The resource '{TEMPLATE}' is not ready", insert_template),
    Case("MIG from a template during its creation", "NOT_READY", lambda c: insert_group(c, group_body(bulk=False)), f"The resource '{TEMPLATE}' is not ready", insert_template),
    Case("MIG from a policy during its creation", "NOT_READY", insert_group, f"The resource '{POLICY}' is not ready", after(with_parts, lambda c: c.settle("DELETE", POLICY), insert_policy)),
    Case("setMetadata of a VM during its creation", "NOT_READY", lambda c: set_metadata(c, {}), f"The resource '{VM}' is not ready", insert_vm),
    Case("setMetadata during another setMetadata", "NOT_READY", lambda c: set_metadata(c, {"a": "2"}), f"The resource '{VM}' is not ready", after(with_vm, lambda c: set_metadata(c, {"a": "1"}))),
    Case("delete of a VM during its deletion", "NOT_READY", lambda c: change_vm(c, "delete_unary"), f"The resource '{VM}' is not ready", after(with_vm, lambda c: change_vm(c, "delete_unary"))),
    Case(
        "MIG from a template that is not visible yet",
        "NOT_FOUND",
        lambda c: insert_group(c, group_body(bulk=False)),
        f"The resource '{TEMPLATE}' was not found",
        lambda c: c.settle("POST", TEMPLATE.rpartition("/")[0], template_body()),
        Timings(template_visibility_lag_s=(5, 5)),
    ),
    Case("MIG from an absent policy", "NOT_FOUND", insert_group, f"The resource '{POLICY}' was not found", after(with_parts, lambda c: c.settle("DELETE", POLICY))),
    Case(
        "TPU topology without BULK",
        "BULK_NEEDED",
        lambda c: insert_group(c, group_body(targetSizePolicy={"mode": "INDIVIDUAL"})),
        "MIGs with TPU accelerator topology require BULK mode in target size policy.",
        with_parts,
    ),
    Case(
        "BULK with allInstancesConfig, if that is an error",
        "BULK_REFUSES_CONFIG",
        lambda c: insert_group(c, group_body(allInstancesConfig={"properties": {"labels": {"a": "b"}}})),
        "Invalid value for field 'resource.allInstancesConfig'. All-instances configuration is not supported in BULK mode.",
        with_parts,
        Timings(bulk_takes_all_instances_config=False),
    ),
    Case(
        "FLEX_START with repairs",
        "FLEX_START_REPAIRS",
        lambda c: insert_group(c, group_body(repair=True)),
        "Invalid value for field 'resource.instanceLifecyclePolicy.defaultActionOnFailure': "
        "'REPAIR'. It must be "
        "DO_NOTHING for the FLEX_START provisioning model.",
        lambda c: c.make_parts(scheduling=FLEX),
    ),
    Case(
        "resizing a BULK MIG to a size that does not fit the topology",
        "GANG_SIZE",
        lambda c: change_group(c, "resize_unary", size=3),
        "Requested invalid target size '3' for a Managed Instance Group in the gang mode of size '2'. Should be equal to the gang size.",
        with_empty_group,
    ),
    Case(
        "growing a BULK MIG",
        "BULK_GROWS",
        lambda c: change_group(c, "resize_unary", size=3),
        "Invalid value for field 'size': '3'. A group in BULK mode can grow only from size 0.",
        with_running_group,
    ),
    Case(
        "shrinking a BULK MIG during its creation",
        "BULK_SHRINKS",
        lambda c: change_group(c, "resize_unary", size=2),
        "Invalid value for field 'size': '2'. A bulk operation is in progress.",
        with_large_group,
    ),
    Case(
        "workload policy on one VM",
        "WORKLOAD_POLICY_ON_VM",
        lambda c: insert_vm(c, resourcePolicies=[POLICY]),
        f"Invalid value for field 'resource.resourcePolicies[0]': '{POLICY}'. Resource policy "
        f"must have one of "
        "[VmMaintenancePolicy, GroupPlacementPolicy, InstanceSchedulePolicy].",
        with_parts,
    ),
    Case("setMetadata with a stale fingerprint", "METADATA_FINGERPRINT", lambda c: set_metadata(c, {}, "c3RhbGU="), "Supplied fingerprint does not match current metadata fingerprint.", with_vm),
    Case("setMetadata without fingerprint", "METADATA_FINGERPRINT", lambda c: set_metadata(c, {}, ""), "Supplied fingerprint does not match current metadata fingerprint.", with_vm),
    Case(
        "metadata value too large",
        "METADATA_TOO_LARGE",
        lambda c: set_metadata(c, {"a": "x" * 262145}),
        "Value for field 'metadata.items[0].value' is too large: maximum size 262144 character(s); actual size 262145.",
        with_vm,
    ),
    Case(
        "metadata too large in total",
        "METADATA_TOO_LARGE",
        lambda c: set_metadata(c, {"a": "x" * 262144, "b": "x" * 262142}),
        "Value for field 'metadata' is too large: maximum size 524288 character(s); actual size 524288.",
        with_vm,
    ),
    Case(
        "metadata key like a label",
        "METADATA_KEY",
        lambda c: set_metadata(c, {"example.com/key": "x"}),
        "Invalid value for field 'metadata.items[0].key': 'example.com/key'. Must be a match of regex '[a-zA-Z0-9-_]+' and less than 128 bytes.",
        with_vm,
    ),
    Case(
        "metadata key twice",
        "METADATA_KEY",
        lambda c: change_vm(
            c,
            "set_metadata_unary",
            metadata_resource=compute_v1.Metadata(
                fingerprint=c.get(VM)["metadata"]["fingerprint"],
                items=[{"key": "a", "value": ""}] * 2,
            ),
        ),
        "Invalid value for field 'metadata.items[1].key': 'a'. Duplicate key.",
        with_vm,
    ),
    Case("reset of a stopped VM", "VM_IS_DOWN", lambda c: change_vm(c, "reset_unary"), f"The resource '{VM}' is not ready", after(with_vm, lambda c: c.settle("POST", f"{VM}/stop"))),
    Case(
        "VM from an absent image",
        "IMAGE_ABSENT",
        insert_vm,
        f"Invalid value for field 'resource.disks[0].initializeParams.sourceImage': '{ROOT}{IMAGE}'. The referenced image resource cannot be found.",
        lambda c: c.faults.remove_resource(IMAGE),
    ),
    Case(
        "VM in an absent network",
        "SUBNETWORK_ABSENT",
        insert_vm,
        f"Invalid value for field 'resource.networkInterfaces[0].network': "
        f"'{ROOT}projects/{PROJECT}/global/networks/"
        "default'. The referenced network resource cannot be found.",
        lambda c: c.faults.remove_resource(f"projects/{PROJECT}/global/networks/default"),
    ),
    Case(
        "VM of a machine type that the zone does not have",
        "MACHINE_TYPE_ABSENT",
        insert_vm,
        f"Invalid value for field 'resource.machineType': '{ROOT}{ZONE_PATH}/machineTypes/"
        f"ct6e-standard-4t'. Machine type with name 'ct6e-standard-4t' does not exist in zone "
        f"'{ZONE}'.",
        lambda c: c.simulator.restrict(inventory(machine_types={ZONE: ["tpu7x-standard-4t"]})),
    ),
    Case(
        "VM from an image that is not in the table",
        "IMAGE_ABSENT",
        insert_vm,
        f"Invalid value for field 'resource.disks[0].initializeParams.sourceImage': '{ROOT}{IMAGE}'. The referenced image resource cannot be found.",
        lambda c: c.simulator.restrict(inventory(images=["projects/images/global/images/other"])),
    ),
    Case(
        "VM in a network that is not in the table",
        "SUBNETWORK_ABSENT",
        insert_vm,
        f"Invalid value for field 'resource.networkInterfaces[0].network': "
        f"'{ROOT}projects/{PROJECT}/global/networks/"
        "default'. The referenced network resource cannot be found.",
        lambda c: c.simulator.restrict(inventory(networks=[])),
    ),
    Case(
        "VM in a zone that is not in the table",
        "UNKNOWN_ZONE",
        insert_vm,
        f"Invalid value for field 'zone': '{ZONE}'. Unknown zone.",
        lambda c: c.simulator.restrict(inventory(machine_types={"us-east5-b": ["*"]})),
    ),
    Case(
        "policy in a region that is not in the table",
        "UNKNOWN_REGION",
        insert_policy,
        f"Invalid value for field 'region': '{REGION}'. Unknown region.",
        lambda c: c.simulator.restrict(inventory(machine_types={"us-east5-b": ["*"]})),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.id)
def test_a_call_is_answered_with_the_error(case: Case) -> None:
    cloud = Cloud(case.timings)
    case.before(cloud)
    before = cloud.simulator.leftovers()
    with pytest.raises(GoogleAPICallError) as raised:
        case.ask(cloud)
    refusal = CATALOGUE[case.refusal]
    reasons = [error["reason"] for error in raised.value.errors]
    code, reason = (
        (400, "invalid") if "operation" in refusal.where else (refusal.http, refusal.reason)
    )
    assert raised.value.message.endswith(case.message)
    assert (raised.value.code, reasons[0]) in {(code, reason), (refusal.http, refusal.reason)}
    assert cloud.simulator.leftovers() == before


# ---------------------------------------------------------------- requests that the library cannot send

RAW = [
    Case("broken JSON", "MALFORMED_JSON", lambda c: c.send("POST", POLICY.rpartition("/")[0], b"{"), "Parse Error"),
    Case("JSON that is not an object", "MALFORMED_JSON", lambda c: c.send("POST", POLICY.rpartition("/")[0], b"[1]"), "Parse Error"),
    Case(
        "unknown field",
        "UNKNOWN_FIELD",
        lambda c: c.send("POST", POLICY.rpartition("/")[0], policy_body(labels={})),
        "Invalid JSON payload received. Unknown name \"labels\" at 'resource': Cannot find field.",
    ),
    Case(
        "unknown field within",
        "UNKNOWN_FIELD",
        lambda c: c.send("POST", TEMPLATE.rpartition("/")[0], template_body(zone="x")),
        "Invalid JSON payload received. Unknown name \"zone\" at 'resource.properties': Cannot find field.",
    ),
    Case(
        "unknown enum value",
        "WRONG_VALUE",
        lambda c: c.send("POST", GROUP.rpartition("/")[0], group_body(targetSizePolicy={"mode": "ALL"})),
        "Invalid value at 'resource.targetSizePolicy.mode' (enum), \"ALL\"",
    ),
    Case("string instead of a number", "WRONG_VALUE", lambda c: c.send("POST", GROUP.rpartition("/")[0], group_body(targetSize="two")), "Invalid value at 'resource.targetSize' (int32), \"two\""),
    Case(
        "list instead of a map",
        "WRONG_VALUE",
        lambda c: c.send("POST", GROUP.rpartition("/")[0], group_body(allInstancesConfig={"properties": {"metadata": [{"key": "a"}]}})),
        'Invalid value at \'resource.allInstancesConfig.properties.metadata\' (map), [{"key": "a"}]',
    ),
    Case("unknown path", "UNKNOWN_PATH", lambda c: c.send("PUT", VM), f"The requested URL /compute/v1/{VM} was not found on this server."),
    Case("unknown token", "UNAUTHENTICATED", lambda c: c.send("GET", VM, token="stolen"), "Request had invalid authentication credentials."),
]  # fmt: skip


@pytest.mark.parametrize("case", RAW, ids=lambda case: case.id)
def test_a_malformed_request_is_an_error(case: Case) -> None:
    refusal = CATALOGUE[case.refusal]
    status, answer = case.ask(Cloud())
    error = answer["error"]
    assert status == error["code"] == refusal.http
    assert error["message"] == error["errors"][0]["message"] == case.message
    assert error["errors"][0]["reason"] == refusal.reason
    assert error.get("status", "") == refusal.status


# ---------------------------------------------------------------- VMs that cannot be created


@dataclass(frozen=True)
class Obstacle:
    """A VM that cannot be created: the obstacle, and the error message."""

    id: str
    refusal: str
    arrange: Ask
    message: str
    template: tuple[tuple[str, Any], ...] = ()
    bulk_only: bool = False
    individual_only: bool = False


RESERVED = (
    ("reservationAffinity", {"consumeReservationType": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name", "values": ["tpus"]}),
)  # fmt: skip


def disk(disk_type: str) -> tuple[tuple[str, Any], ...]:
    parameters = {"sourceImage": IMAGE, "diskType": disk_type}
    return (("disks", [{"boot": True, "initializeParams": parameters}]),)


OBSTACLES = [
    Obstacle(
        "stockout",
        "NO_CAPACITY",
        lambda c: c.faults.set_capacity(ZONE, "ct6e", 0),
        f"The zone '{ZONE_PATH}' does not have enough resources available to fulfill the request.  Try a different zone, or try again later.",
        individual_only=True,
    ),
    Obstacle(
        "stockout in bulk",
        "NO_BULK_CAPACITY",
        lambda c: c.faults.set_capacity(ZONE, "ct6e", 1),
        f"Waiting for resources. The zone '{ZONE_PATH}' does not have enough resources available to fulfill the request.",
        bulk_only=True,
    ),
    Obstacle("quota of chips", "VM_QUOTA", lambda c: c.faults.set_chip_quota(REGION, "ct6e", 3), "Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 3.0 in region us-central1."),
    Obstacle("reservation absent", "RESERVATION_ABSENT", nothing, f"Specified reservation {RESERVATION} does not exist.", RESERVED),
    Obstacle(
        "reservation full",
        "RESERVATION_FULL",
        lambda c: c.faults.set_reservation(RESERVATION, "ct6e-standard-4t", 0),
        f"Specified reservation '{RESERVATION}' does not have available resources for the request.",
        RESERVED,
    ),
    Obstacle(
        "reservation of another machine type",
        "RESERVATION_MISMATCH",
        lambda c: c.faults.set_reservation(RESERVATION, "ct6e-standard-8t", 8),
        f"No available resources in specified reservations '{RESERVATION}'",
        RESERVED,
    ),
    Obstacle(
        "reservation of another family",
        "RESERVATION_FAMILY",
        lambda c: c.faults.set_reservation(RESERVATION, "tpu7x-standard-4t", 8),
        f"Incompatible AggregateReservation VMFamily: reservation '{RESERVATION}' is for tpu7x.",
        RESERVED,
    ),
    Obstacle(
        "reservation not ready",
        "RESERVATION_NOT_READY",
        lambda c: c.faults.set_reservation(RESERVATION, "ct6e-standard-4t", 8, ready=False),
        f"Cannot use reservation '{RESERVATION}' as it requires reservation to be in READY state.",
        RESERVED,
    ),
    Obstacle(
        "reservation bound to none",
        "RESERVATION_NEEDED",
        nothing,
        "RESERVATION_BOUND instances must use ReservationAffinity of SPECIFIC_RESERVATION.",
        (
            (
                "scheduling",
                {"provisioningModel": "RESERVATION_BOUND", "instanceTerminationAction": "DELETE"},
            ),
        ),
    ),
    Obstacle(
        "organization policy",
        "ORG_POLICY",
        lambda c: c.faults.set_org_policy(PROJECT, "constraints/compute.vmExternalIpAccess"),
        f"Constraint constraints/compute.vmExternalIpAccess violated for project {PROJECT}.",
    ),
    Obstacle("subnetwork full", "SUBNET_FULL", lambda c: c.faults.fill_subnetwork(SUBNETWORK), f"IP space of '{SUBNETWORK}' is exhausted.", (("networkInterfaces", [{"subnetwork": SUBNETWORK}]),)),
    Obstacle(
        "subnetwork absent",
        "SUBNETWORK_ABSENT",
        lambda c: c.faults.remove_resource(SUBNETWORK),
        f"Invalid value for field 'resource.networkInterfaces[0].subnetwork': '{ROOT}{SUBNETWORK}'. The referenced subnetwork resource cannot be found.",
        (("networkInterfaces", [{"subnetwork": SUBNETWORK}]),),
    ),
    Obstacle(
        "image absent",
        "IMAGE_ABSENT",
        lambda c: c.faults.remove_resource(IMAGE),
        f"Invalid value for field 'resource.disks[0].initializeParams.sourceImage': '{ROOT}{IMAGE}'. The referenced image resource cannot be found.",
    ),
    Obstacle(
        "disk type absent",
        "DISK_TYPE_ABSENT",
        lambda c: c.simulator.restrict(inventory(diskTypes=["hyperdisk-balanced"])),
        "Invalid value for field 'resource.disks[0].initializeParams.diskType': "
        f"'{ROOT}{ZONE_PATH}/diskTypes/hyperdisk-foo'. The referenced diskType resource cannot be "
        "found.",
        disk("hyperdisk-foo"),
    ),
    Obstacle(
        "agent without permission",
        "AGENT_LACKS_PERMISSION",
        lambda c: c.faults.remove_permission(AGENT, "compute.instances.create"),
        f"Required 'compute.instances.create' permission for 'projects/{PROJECT}'",
    ),
    Obstacle(
        "disk type",
        "DISK_TYPE",
        nothing,
        "[pd-balanced] features are not compatible for creating instance: pd-balanced disk type cannot be used by ct6e-standard-4t machine type.",
        disk("pd-balanced"),
    ),
    Obstacle(
        "machine type that cannot form the topology",
        "TPU_MISMATCH",
        nothing,
        "Unsupported TPU configuration: machine type ct6e-standard-1t cannot form accelerator topology 2x4.",
        (("machineType", "ct6e-standard-1t"),),
        bulk_only=True,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", [case for case in OBSTACLES if not case.individual_only], ids=lambda case: case.id
)
def test_a_bulk_mig_reports_why_it_waits(case: Obstacle) -> None:
    cloud = Cloud()
    case.arrange(cloud)
    cloud.make_parts(**dict(case.template))
    cloud.make_group()
    refusal = CATALOGUE[case.refusal]
    check = cloud.group_status()["bulkInstanceOperation"]["lastProgressCheck"]
    error = check["error"]["errors"][0]
    assert (error["code"], error["message"]) == (refusal.code or refusal.reason, case.message)
    assert not any("id" in vm for vm in cloud.managed())


@pytest.mark.parametrize(
    "case", [case for case in OBSTACLES if not case.bulk_only], ids=lambda case: case.id
)
def test_the_operation_of_a_failed_insert_has_the_error(case: Obstacle) -> None:
    cloud = Cloud()
    case.arrange(cloud)
    cloud.make_parts(**dict(case.template))
    cloud.make_group(size=1, bulk=False)
    cloud.clock.run_for(15)
    refusal = CATALOGUE[case.refusal]
    failed = next(op for op in cloud.get(f"{ZONE_PATH}/operations")["items"] if "error" in op)
    error = failed["error"]["errors"][0]
    assert (error["code"], error["message"]) == (refusal.code or refusal.reason, case.message)
    assert failed["httpErrorStatusCode"] == refusal.http
    attempt = cloud.managed()[0]["lastAttempt"]["errors"]["errors"][0]
    assert attempt["message"] == case.message


def test_a_vm_preempted_during_its_creation_fails_to_start() -> None:
    cloud = Cloud()
    cloud.make_parts(scheduling=SPOT)
    cloud.make_group(size=1, bulk=False)
    name = cloud.managed()[0]["name"]
    cloud.faults.preempt(f"{ZONE_PATH}/instances/{name}")
    error = cloud.managed()[0]["lastAttempt"]["errors"]["errors"][0]
    assert error["code"] == CATALOGUE["PREEMPTED_AT_START"].reason
    assert error["message"] == "Instance failed to start due to preemption."


def test_deleting_a_vm_during_its_creation_ends_its_insert(cloud: Cloud) -> None:
    insert = insert_vm(cloud)
    change_vm(cloud, "delete_unary")
    operation = cloud.client("ZoneOperationsClient").get(
        project=PROJECT, zone=ZONE, operation=insert.name
    )
    assert operation.error.errors[0].code == CATALOGUE["CANCELED"].reason


def test_the_insert_of_a_mig_whose_size_does_not_fit_the_topology_ends_in_an_error(
    cloud: Cloud,
) -> None:
    cloud.make_parts()
    operation = cloud.settle("POST", GROUP.rpartition("/")[0], group_body(3))
    assert operation["error"]["errors"][0] == {
        "code": CATALOGUE["SIZE_AND_TOPOLOGY"].reason,
        "message": "Invalid value for field 'operation': ''. Target size should be 2 for given accelerator topology but was 3.",
    }
    assert cloud.send("GET", GROUP)[0] == 404


def test_an_operation_can_end_in_an_internal_error(cloud: Cloud) -> None:
    cloud.faults.fail_operations("instanceTemplates.insert")
    operation = cloud.settle("POST", TEMPLATE.rpartition("/")[0], template_body())
    assert operation["error"]["errors"][0]["code"] == CATALOGUE["INTERNAL_ERROR"].reason
    assert operation["httpErrorStatusCode"] == 500
    assert cloud.send("GET", TEMPLATE)[0] == 404


def test_every_error_of_the_catalogue_has_been_provoked() -> None:
    tested_separately = {"PREEMPTED_AT_START", "CANCELED", "INTERNAL_ERROR", "SIZE_AND_TOPOLOGY"}
    in_tables = {case.refusal for case in (*CALLS, *RAW)} | {case.refusal for case in OBSTACLES}
    assert in_tables | tested_separately == set(CATALOGUE)


# ---------------------------------------------------------------- IAM


def test_a_principal_is_limited_to_its_permissions() -> None:
    reader = Principal("reader@example.com", frozenset({"compute.instances.list"}))
    cloud = Cloud(principals={"token": reader})
    assert cloud.send("GET", f"{ZONE_PATH}/instances", token="token")[0] == 200
    status, answer = cloud.send("GET", VM, token="token")
    assert status == 403
    assert answer["error"]["errors"][0]["reason"] == "forbidden"


OF_OURS = 'resource.name.extract("/instances/{name}").startsWith("tng-")'


def test_a_conditional_role_grants_matching_resources_and_no_lists() -> None:
    role = ConditionalRole(frozenset({"compute.instances.get", "compute.instances.list"}), OF_OURS)
    cloud = Cloud(principals={"token": Principal("x@example.com", frozenset(), (role,))})
    for name, status in (("tng-train-1a2b3c4d-x1y2", 404), ("control-plane-1", 403), ("", 403)):
        path = f"{ZONE_PATH}/instances/{name}".rstrip("/")
        assert cloud.send("GET", path, token="token")[0] == status, path


def test_an_unsupported_condition_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"resource\.type is not known here"):
        iam.holds("resource.type", "projects/p")


@pytest.mark.parametrize(
    "method, permission",
    [
        ("list_managed_instances", "compute.instanceGroupManagers.get"),
        ("list_errors", "compute.instanceGroupManagers.get"),
        ("resize_unary", "compute.instanceGroupManagers.update"),
        ("delete_unary", "compute.instanceGroupManagers.delete"),
    ],
)
def test_methods_need_the_documented_permission(method: str, permission: str) -> None:
    cloud = Cloud()
    with_group(cloud)
    cloud.faults.remove_permission("user@example.com", permission)
    arguments = {"size": 0} if method == "resize_unary" else {}
    with pytest.raises(GoogleAPICallError, match=f"Required '{permission}' permission"):
        change_group(cloud, method, **arguments)
