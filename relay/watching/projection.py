"""JSON from the API server, with everything dropped that the outbox does not read.

A Node is 10 to 20 KB of JSON, most of it container images, a JobSet mostly the templates of its
Pods; a page of 500 as Python objects would be the largest thing in the process. Objects are cut down
one by one while the page is being parsed.
"""

from collections.abc import Mapping
from typing import Any

from shared.base.documents import parse_json, read_mapping, read_mappings
from shared.base.names import TOPOLOGY_LABEL, TPU_RESOURCE

_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
    "labels",
    "ownerReferences",
)
_ANNOTATIONS_OF = (
    "tpu-functions.dev",
    "tpu-provisioner.cloud.google.com",
    "jobset.sigs.k8s.io",
    "batch.kubernetes.io",
    "leaderworkerset.sigs.k8s.io",
    "kueue.x-k8s.io",
    "autoscaling.x-k8s.io",
    "cluster-autoscaler.kubernetes.io",
)
"""The prefixes of the annotations that are kept."""
_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
_POD_SPEC = ("nodeSelector", "tolerations", "nodeName", "schedulingGates", "schedulingGroup")
_OF_GROUP = ("nodeCount", "topology", "targetSizePolicyMode", "nodeLabels")
_REQUEST_SPEC = ("signerName", "username", "groups")
_SPEC = (
    *("providerID", *_OF_GROUP, "containers", "initContainers", *_POD_SPEC),
    *("replicatedJobs", "template", *_REQUEST_SPEC, "provisioningClassName"),
)
_STATUS = (
    *("observedGeneration", "nodeSummary", "completedAt", "provisioningModel", "resources"),
    *("capacity", "allocatable", "phase", "certificate", "replicatedJobsStatus"),
    *("provisioningClassDetails", "idleSince", "repairs"),
)
_CONDITIONS = (
    *("Ready", "ManagedInstanceGroupReady", "TokensInjected", "NodesJoined"),
    "MaintenanceScheduled",
    *("PodScheduled", "Completed", "Failed", "Approved", "Denied"),
    *("Provisioned", "BookingExpired"),
)


def parse(text: bytes) -> Any:
    """Parse a list or a watch event, without the fields that are not read. Raises `ValueError`."""
    return parse_json(text, object_hook=_project)


def _project(value: dict[str, Any]) -> dict[str, Any]:
    """The fields that are kept of a part of the document, whose own parts are already projected."""
    if isinstance(containers := value.get("containers"), list):
        before = [
            {"resources": _project_resources(one), **_only(one, ("restartPolicy",))}
            for one in read_mappings(value, "initContainers")
        ]
        return {
            **_only(value, _POD_SPEC),
            "containers": [{"resources": _project_resources(one)} for one in containers],
            **({"initContainers": before} if before else {}),
        }
    if "metadata" not in value or not any(
        isinstance(value.get(part), dict) for part in ("spec", "status")
    ):
        # Not an object or a template in it: a list, or an error, whose status is a word.
        return value
    metadata, status = read_mapping(value, "metadata"), read_mapping(value, "status")
    spec = read_mapping(value, "spec")
    is_pod = "phase" in status and isinstance(spec.get("containers"), list)
    if is_pod and not _asks_for_slice(spec):
        # Of a Pod that needs no slice only the name is read. Thousands may wait in a list.
        return {"metadata": _only(metadata, _IDENTITY)}
    annotations = {
        key: text
        for key, text in read_mapping(metadata, "annotations").items()
        if key.partition("/")[0] in _ANNOTATIONS_OF
    }
    every = read_mappings(status, "conditions")
    conditions = [one for one in every if one.get("type") in _CONDITIONS]
    return {
        "metadata": {**_only(metadata, _METADATA), "annotations": annotations},
        "spec": _only(spec, _SPEC),
        "status": {**_only(status, _STATUS), "conditions": conditions},
    }


def _asks_for_slice(spec: Mapping[str, Any]) -> bool:
    """Whether a Pod requests TPU chips and a topology."""
    return TOPOLOGY_LABEL in read_mapping(spec, "nodeSelector") and any(
        TPU_RESOURCE in container["resources"]["requests"]
        for container in (*spec["containers"], *spec.get("initContainers", ()))
    )


def _project_resources(container: Any) -> dict[str, Any]:
    """The TPU chips that a container requests."""
    resources = read_mapping(container, "resources") if isinstance(container, dict) else {}
    parts = ("requests", "limits")
    return {part: _only(read_mapping(resources, part), (TPU_RESOURCE,)) for part in parts}


def _only(part: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: part[key] for key in keys if key in part}
