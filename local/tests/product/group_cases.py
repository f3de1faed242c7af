# ruff: noqa: E501  (a table reads best with a row on a line)
"""TPUNodeGroups: the product's CRD, and the reads and writes of its functions."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from local.tests.contract.kubernetes.cases.objects import NODES, TABLE
from local.tests.contract.kubernetes.dialogue import (
    ABSENT,
    ANYTHING,
    Step,
    case,
    containing,
    delete,
    get,
    patch,
    post,
    put,
)
from tests.support import specs
from tests.support.builders import spec

GROUPS = "/apis/tpu.google.com/v1alpha1/namespaces/{ns}/tpunodegroups"
GROUP = f"{GROUPS}/a"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tpunodegroups.tpu.google.com"
FINALIZER = "tpu-functions.dev/resources"
LABEL = "tpu-functions.dev/resource-name"


def group(name: str = "a", change: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tpu.google.com/v1alpha1",
        "kind": "TPUNodeGroup",
        "metadata": {"name": name, **more.pop("metadata", {})},
        "spec": spec(**(change or {})),
        **more,
    }


CREATE_GROUP = post(GROUPS, group())


def condition(type_: str, status: str, **more: Any) -> dict[str, Any]:
    return {
        "type": type_,
        "status": status,
        "reason": "Provisioning",
        "message": "Provisioning has begun.",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        **more,
    }


STATUS = {
    "observedGeneration": 1,
    "machineType": "tpu7x-standard-4t",
    "provisioningModel": "RESERVATION_BOUND",
    "conditions": [condition("Accepted", "True"), condition("Ready", "False")],
    "resources": {"managedInstanceGroup": {"name": "tng-a", "state": "Creating"}},
    "nodeSummary": {"desired": 2, "ready": 0, "text": "0/2"},
}

GROUP_CASES = (
    case("a created group has the default values", CREATE_GROUP.has({"spec.bootstrapKubernetes.version": "1.31", "spec.repair": "Never", "metadata.generation": 1, "status": ABSENT}).warns("")),
    case(
        "a PUT of a group's status with an old version conflicts",
        CREATE_GROUP.saves(rv="metadata.resourceVersion"),
        put(f"{GROUP}/status", group(metadata={"resourceVersion": "{rv}"}, status=STATUS)).has({"status.nodeSummary.text": "0/2", "metadata.generation": 1}),
        put(f"{GROUP}/status", group(metadata={"resourceVersion": "{rv}"}, status=STATUS)).gives(
            409,
            reason="Conflict",
            message='Operation cannot be fulfilled on tpunodegroups.tpu.google.com "a": the object '
            "has been modified; please apply your changes to the latest version and try again",
        ),
    ),
    case(
        "a status that violates the CRD's schema is invalid",
        CREATE_GROUP,
        patch(f"{GROUP}/status", {"status": {"conditions": [condition("Ready", "Perhaps")]}}).gives(422, reason="Invalid"),
        patch(f"{GROUP}/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}).gives(422, reason="Invalid"),
        patch(f"{GROUP}/status", {"status": {"nodeSummary": {"ready": -1}}}).gives(422, reason="Invalid"),
        patch(f"{GROUP}/status", {"status": {"resources": {"managedInstanceGroup": "x"}}}).gives(422, reason="Invalid"),
        patch(f"{GROUP}/status", {"status": {"surprise": 1}}).warns('unknown field \\"status.surprise\\"'),
    ),
    case(
        "a patch of a group's finalizer and label with an old version conflicts",
        CREATE_GROUP.saves(rv="metadata.resourceVersion"),
        patch(
            GROUP,
            {
                "metadata": {
                    "resourceVersion": "{rv}",
                    "finalizers": [FINALIZER],
                    "labels": {LABEL: "tng-a"},
                }
            },
        ).has({"metadata.generation": 1, "metadata.finalizers": [FINALIZER]}),
        patch(GROUP, {"metadata": {"resourceVersion": "{rv}", "finalizers": []}}).gives(409, reason="Conflict"),
        get(f"/apis/tpu.google.com/v1alpha1/tpunodegroups?limit=500&labelSelector={quote(LABEL)}").has({"kind": "TPUNodeGroupList", "items": ANYTHING}),
        delete(GROUP).has({"metadata.deletionTimestamp": ANYTHING}),
        patch(f"{GROUP}/status", {"status": STATUS}).has({"status.nodeSummary.desired": 2}),
        patch(GROUP, {"metadata": {"finalizers": []}}),
        get(GROUP).gives(404, reason="NotFound", message='tpunodegroups.tpu.google.com "a" not found'),
    ),
    case(
        "the table of groups shows their status",
        CREATE_GROUP,
        get(GROUPS, accept=TABLE).has({"rows.0.cells.1": None, "rows.0.cells.4": "2x2x2"}),
        patch(f"{GROUP}/status", {"status": STATUS}),
        get(GROUPS, accept=TABLE).has(
            {
                "columnDefinitions.1.name": "READY",
                "columnDefinitions.1.description": "Whether all Nodes of the slice exist and are "
                "usable.",
                "rows.0.cells.1": "False",
                "rows.0.cells.2": "Provisioning",
                "rows.0.cells.3": "0/2",
                "rows.0.cells.5": "tpu7x-standard-4t",
                "rows.0.cells.8": "tng-a",
            }
        ),
    ),
    case("a GET of a kind that is not served is 404", Step("GET", "/apis/tpu.google.com/v1alpha1/namespaces/{ns}/workloadpolicies/a", status=404)),
    case(
        "the CRD is accepted with the costs of its rules",
        get(DEFINITION).has({"status.storedVersions": ["v1alpha1"], "status.acceptedNames.shortNames": ["tng"], "spec.conversion": {"strategy": "None"}}),
    ),
    case(
        "a group's annotations can be changed and its immutable fields cannot",
        CREATE_GROUP,
        patch(GROUP, {"metadata": {"annotations": {"tpu-functions.dev/paused": "true"}}}).has({"metadata.annotations": ANYTHING, "metadata.generation": 1}),
        patch(GROUP, {"spec": {"nodeCount": 4, "topology": "2x2x4"}})
        .gives(422, reason="Invalid")
        .has(
            {
                "message": containing(
                    "spec.nodeCount: Invalid value: NodeCount is immutable",
                    "spec.topology: Invalid value: Topology is immutable",
                )
            }
        ),
    ),
)  # fmt: skip


def reject(rows: list[Any]) -> tuple[Step, ...]:
    """Expect that each spec is invalid, with a message that contains the table's words."""
    return tuple(
        post(f"{GROUPS}?dryRun=All", group(change=row.values[0]))
        .gives(422, reason="Invalid")
        .has({"message": containing(row.values[-1])})
        for row in rows
    )


SPECS = (
    case("the error about an invalid field names the valid values", *reject(specs.REJECTED)),
    case("a valid value is accepted without a warning", *(post(f"{GROUPS}?dryRun=All", group(change=row.values[0])).warns("") for row in specs.ACCEPTED)),
    case(
        "a name that cannot be part of names on Compute Engine is invalid",
        *(post(f"{GROUPS}?dryRun=All", group(name)).gives(422, reason="Invalid") for name in specs.INVALID_NAMES),
        *(post(f"{GROUPS}?dryRun=All", group(name)) for name in specs.VALID_NAMES),
    ),
)  # fmt: skip

NODE = f"{NODES}/node-{{ns}}"

SLICE_NODES = (
    case(
        "a patch of a node's label with an old version conflicts",
        post(NODES, {"metadata": {"name": "node-{ns}"}}).saves(rv="metadata.resourceVersion", uid="metadata.uid"),
        patch(NODE, {"metadata": {"labels": {LABEL: "{ns}"}, "resourceVersion": "1"}}).gives(
            409,
            reason="Conflict",
            message='Operation cannot be fulfilled on nodes "node-{ns}": the object has been '
            "modified; please apply your changes to the latest version and try again",
        ),
        patch(NODE, {"metadata": {"labels": {LABEL: "{ns}", "a": None}}}).has({"metadata.labels": {LABEL: "{ns}"}}),
        get(f"{NODES}?limit=500&labelSelector={quote(LABEL)}%3D{{ns}}").has({"items.0.metadata.name": "node-{ns}", "items.1": ABSENT}),
    ),
    case(
        "a delete of a node with another uid conflicts",
        post(NODES, {"metadata": {"name": "node-{ns}"}}).saves(uid="metadata.uid"),
        delete(NODE, {"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}}).gives(409, reason="Conflict"),
        delete(NODE, {"preconditions": {"uid": "{uid}"}}).has({"status": "Success"}),
        delete(NODE, {"preconditions": {"uid": "{uid}"}}).gives(404, reason="NotFound", message='nodes "node-{ns}" not found'),
    ),
    case(
        "a node can be cordoned and uncordoned",
        post(NODES, {"metadata": {"name": "node-{ns}"}}),
        patch(NODE, {"spec": {"unschedulable": True}}).has({"spec.unschedulable": True}),
        get(f"{NODES}?fieldSelector=spec.unschedulable%3Dtrue&labelSelector=none").has({"items": []}),
        patch(NODE, {"spec": {"unschedulable": False}}).has({"spec.unschedulable": ABSENT}),
    ),
)  # fmt: skip

CASES = (*GROUP_CASES, *SPECS, *SLICE_NODES)
