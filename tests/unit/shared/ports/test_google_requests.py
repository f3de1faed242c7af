"""Requests and answers are those of Google's client libraries, which the ports do without."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1, container_v1

from functions.create_resources.bodies import mig_body, policy_body, template_body
from local.base.http import Request, Response
from local.gce.inprocess import mount
from shared.node_groups.node_group import InstanceConfig
from shared.ports.errors import About
from shared.ports.gce import values
from shared.ports.gce.calls import Gce
from shared.ports.gce.clients import Clients
from shared.ports.gce.values import TemplateRef
from shared.ports.gke import GkeClient, GkeMethod
from tests.support.builders import NOW, group
from tests.support.compute import instance

ID = "2b0b3b6e-7c3c-4c39-8a77-4b7e6f7a8f11"
FLEX = {"provisioningModel": "FLEX_START", "maxRunDuration": "7d", "bootDiskSizeGB": 250}
GROUP = group(change={"instanceConfig": FLEX})
assert isinstance(GROUP.spec.source, InstanceConfig)
BODIES = {
    "ResourcePolicy": policy_body(GROUP),
    "InstanceTemplate": template_body(GROUP, GROUP.spec.source),
    "InstanceGroupManager": mig_body(GROUP, None),
    "Metadata": {"fingerprint": "fp", "items": [{"key": "a", "value": "é/1"}]},
}
REGION = {"project": "p", "region": "us-east5"}
ZONE = {"project": "p", "zone": "us-east5-b"}
MEMBERS = {**ZONE, "instance_group_manager": "tng-a"}
VMS = {"filter": 'name eq "(tng-a-[a-z0-9]{4})"', "max_results": 500}
ALL = {"project": "p", "filter": 'name eq "tng-.*"', "max_results": 500}
OF = About("instances", "tng-a")


def message(kind: str) -> Any:
    """A body as the library's message, which has no unknown field."""
    return getattr(compute_v1, kind).from_json(json.dumps(BODIES[kind]))


Row = tuple[Callable[[Gce], object], dict[str, Any]]
CALLS: dict[str, Row] = {
    "ResourcePolicies.get": (
        lambda one: one.find_policy("p", "us-east5", "tng-a"),
        {**REGION, "resource_policy": "tng-a"},
    ),
    "ResourcePolicies.insert_unary": (
        lambda one: one.insert_policy("p", "us-east5", BODIES["ResourcePolicy"], ID),
        {**REGION, "request_id": ID, "resource_policy_resource": message("ResourcePolicy")},
    ),
    "ResourcePolicies.delete_unary": (
        lambda one: one.delete_policy("p", "us-east5", "tng-a"),
        {**REGION, "resource_policy": "tng-a"},
    ),
    "ResourcePolicies.aggregated_list": (
        lambda one: one.list_named("p", "resourcePolicies", "tng-"),
        ALL,
    ),
    "InstanceTemplates.get": (
        lambda one: one.find_template(TemplateRef("p", "tng-a")),
        {"project": "p", "instance_template": "tng-a"},
    ),
    "RegionInstanceTemplates.get": (
        lambda one: one.find_template(TemplateRef("p", "tng-a", "us-east5")),
        {**REGION, "instance_template": "tng-a"},
    ),
    "InstanceTemplates.insert_unary": (
        lambda one: one.insert_template("p", BODIES["InstanceTemplate"], ID),
        {
            "project": "p",
            "request_id": ID,
            "instance_template_resource": message("InstanceTemplate"),
        },
    ),
    "InstanceTemplates.delete_unary": (
        lambda one: one.delete_template("p", "tng-a"),
        {"project": "p", "instance_template": "tng-a"},
    ),
    "InstanceTemplates.aggregated_list": (
        lambda one: one.list_named("p", "instanceTemplates", "tng-"),
        ALL,
    ),
    "InstanceGroupManagers.get": (lambda one: one.find_mig("p", "us-east5-b", "tng-a"), MEMBERS),
    "InstanceGroupManagers.insert_unary": (
        lambda one: one.insert_mig("p", "us-east5-b", BODIES["InstanceGroupManager"], ID),
        {
            **ZONE,
            "request_id": ID,
            "instance_group_manager_resource": message("InstanceGroupManager"),
        },
    ),
    "InstanceGroupManagers.delete_unary": (
        lambda one: one.delete_mig("p", "us-east5-b", "tng-a"),
        MEMBERS,
    ),
    "InstanceGroupManagers.list_managed_instances": (
        lambda one: one.list_managed_instances("p", "us-east5-b", "tng-a"),
        MEMBERS,
    ),
    "InstanceGroupManagers.aggregated_list": (
        lambda one: one.list_named("p", "instanceGroupManagers", "tng-"),
        ALL,
    ),
    "Instances.get": (
        lambda one: one.find_instance("p", "us-east5-b", "tng-a"),
        {**ZONE, "instance": "tng-a"},
    ),
    "Instances.list": (
        lambda one: one.list_instances("p", "us-east5-b", "tng-a", 2),
        {**ZONE, **VMS},
    ),
    "Instances.set_metadata_unary": (
        lambda one: one.set_metadata("p", "us-east5-b", instance("tng-a"), {"a": "é/1"}, NOW),
        {**ZONE, "instance": "tng-a", "metadata_resource": message("Metadata")},
    ),
    "GlobalOperations.get": (
        lambda one: one.find_operation("p", "", "op", OF),
        {"project": "p", "operation": "op"},
    ),
    "RegionOperations.get": (
        lambda one: one.find_operation("p", "us-east5", "op", OF),
        {**REGION, "operation": "op"},
    ),
    "ZoneOperations.get": (
        lambda one: one.find_operation("p", "us-east5-b", "op", OF),
        {**ZONE, "operation": "op"},
    ),
}


class Recorder:
    """An API that records requests. Lists have two pages."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def handle(self, request: Request) -> Response:
        body = json.loads(request.body) if request.body else None
        self.requests.append((request.method, request.path, request.query, body))
        is_first = len(self.requests) == 1
        return Response.of_json({"name": "x", "nextPageToken": "2/3" if is_first else ""})


@pytest.mark.parametrize("name", CALLS)
def test_a_request_is_that_of_the_client_library(name: str) -> None:
    call, request = CALLS[name]
    ours, theirs = Recorder(), Recorder()
    call(Gce(Clients("http://compute.test", prepare=lambda one: mount(one, ours)), lambda: 9.0))
    service, _, method = name.partition(".")
    client = getattr(compute_v1, f"{service}Client")(credentials=AnonymousCredentials())
    mount(client.transport._session, theirs)
    answer = getattr(client, method)(request=request)
    assert len(list(getattr(answer, "pages", [answer]))) == len(theirs.requests)
    assert ours.requests == theirs.requests


PARENT = "projects/p/locations/us-east5/clusters/c"
POOL = {"name": f"{PARENT}/nodePools/n"}
CREATED = {"name": "n", "initialNodeCount": 2, "config": {"diskSizeGb": 100, "spot": True}}
LABELS = {"labels": {"labels": {"a": "b"}}, "etag": "e"}
GKE_CALLS: dict[GkeMethod, tuple[str, dict[str, Any]]] = {
    "create_node_pool": ("CreateNodePoolRequest", {"parent": PARENT, "nodePool": CREATED}),
    "get_node_pool": ("GetNodePoolRequest", POOL),
    "list_node_pools": ("ListNodePoolsRequest", {"parent": PARENT}),
    "update_node_pool": ("UpdateNodePoolRequest", {**POOL, **LABELS}),
    "delete_node_pool": ("DeleteNodePoolRequest", POOL),
}


@pytest.mark.parametrize("method", GKE_CALLS)
def test_a_request_to_gke_is_that_of_the_client_library(method: GkeMethod) -> None:
    kind, request = GKE_CALLS[method]
    ours, theirs = Recorder(), Recorder()
    client = GkeClient("http://container.test", prepare=lambda one: mount(one, ours))
    client.call(method, request, lambda: 9.0)
    library = container_v1.ClusterManagerClient(
        credentials=AnonymousCredentials(), transport="rest"
    )
    mount(library.transport._session, theirs)
    getattr(library, method)(request=getattr(container_v1, kind).from_json(json.dumps(request)))
    ((http, path, query, body),) = theirs.requests
    query.pop("$alt", None)  # the library asks for numbers in place of the names of enums
    assert ours.requests == [(http, path, query, body)]


ANSWERS: dict[str, tuple[Callable[[Any], object], Any, object]] = {
    "a VM": (
        values.parse_instance,
        compute_v1.Instance(name="vm", id=2**63, metadata={"fingerprint": "AA=="}),
        values.Instance("vm", str(2**63), "", None, None, "AA=="),
    ),
    "a member": (
        values.parse_managed_instance,
        compute_v1.ManagedInstance(name="vm", id=2**63, instance_status="RUNNING"),
        values.ManagedInstance("vm", "RUNNING", (), str(2**63)),
    ),
    "a member without a VM": (
        values.parse_managed_instance,
        compute_v1.ManagedInstance(name="vm"),
        values.ManagedInstance("vm", ""),
    ),
    "an operation": (
        values.parse_operation,
        compute_v1.Operation(
            name="op",
            status="DONE",
            http_error_status_code=403,
            error={"errors": [{"code": "FORBIDDEN", "message": "no"}]},
        ),
        values.Operation("op", True, values.GceError("FORBIDDEN", "no", 403)),
    ),
    "a template": (
        values.parse_template,
        compute_v1.InstanceTemplate.from_json(json.dumps(BODIES["InstanceTemplate"])),
        values.Template(
            uri="",
            description=GROUP.mark,
            machine_type="tpu7x-standard-4t",
            has_scheduling=True,
            maintenance="TERMINATE",
            provisioning_model="FLEX_START",
            termination_action="DELETE",
            reservation_type="NO_RESERVATION",
            has_boot_disk=True,
            max_run_s=604_800,
            metadata={
                one["key"]: one["value"]
                for one in BODIES["InstanceTemplate"]["properties"]["metadata"]["items"]
            },
        ),
    ),
    "a MIG": (
        values.parse_mig,
        compute_v1.InstanceGroupManager(
            target_size=2,
            current_actions={"creating": 1, "recreating": 1},
            status={
                "bulk_instance_operation": {
                    "in_progress": True,
                    "last_progress_check": {"error": {"errors": [{"code": "STOCKOUT"}]}},
                },
                "applied_accelerator_topologies": [
                    {"accelerator_topology": "2x2x2", "state": "ACTIVE"}
                ],
            },
        ),
        values.Mig("", "", 2, 1, True, 1, (values.GceError("STOCKOUT", ""),), {"2x2x2": "ACTIVE"}),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_of_the_client_librarys_messages_is_read(name: str) -> None:
    parse, message, value = ANSWERS[name]
    rendered = type(message).to_json(
        message, use_integers_for_enums=False, always_print_fields_with_no_presence=False
    )
    assert parse(json.loads(rendered)) == value
