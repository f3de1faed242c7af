"""JSON from the API server, with everything dropped that the outbox does not read.

A Node is 10 to 20 KB of JSON, most of it container images, a JobSet mostly the templates of its
Pods; a page of 500 as Python objects would be the largest thing in the process. Objects are cut down
one by one while the page is being parsed.
"""

from __future__ import annotations

from typing import Any

from shared.base.documents import parse_json
from shared.base.names import TPU_RESOURCE

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
)
"""The prefixes of the annotations that are kept."""
_POD_SPEC = ("nodeSelector", "tolerations")
_OF_GROUP = ("nodeCount", "topology", "targetSizePolicyMode")
_REQUEST_SPEC = ("signerName", "username", "groups")
_SPEC = (
    *("providerID", *_OF_GROUP, "containers", *_POD_SPEC, "replicatedJobs", "template"),
    *_REQUEST_SPEC,
)
_STATUS = (
    *("observedGeneration", "nodeSummary", "completedAt", "provisioningModel", "resources"),
    *("capacity", "allocatable", "phase", "certificate"),
)
_CONDITIONS = (
    *("Ready", "ManagedInstanceGroupReady", "TokensInjected", "NodesJoined"),
    *("PodScheduled", "Completed", "Failed", "Approved", "Denied"),
)


def parse(text: bytes) -> Any:
    """Parse a list or a watch event, without the fields that nobody reads. Raises `ValueError`."""
    return parse_json(text, object_hook=_project)


def _project(value: dict[str, Any]) -> dict[str, Any]:
    """The fields that are kept of a part of the document, whose own parts are already projected."""
    if isinstance(containers := value.get("containers"), list):
        return {**_only(value, _POD_SPEC), "containers": [_requests(one) for one in containers]}
    if not _is_kubernetes_object(value):
        return value
    metadata, status = _part(value, "metadata"), _part(value, "status")
    return {
        "metadata": {
            **_only(metadata, _METADATA),
            "annotations": {
                key: text
                for key, text in _part(metadata, "annotations").items()
                if key.partition("/")[0] in _ANNOTATIONS_OF
            },
        },
        "spec": _only(_part(value, "spec"), _SPEC),
        "status": {**_only(status, _STATUS), "conditions": _conditions(status)},
    }


def _is_kubernetes_object(value: dict[str, Any]) -> bool:
    """A Node, a TPUNodeGroup, a request, a Pod, a JobSet or a template in it; not a list of them, nor an
    error, whose status is a word."""
    parts = (value.get("spec"), value.get("status"))
    return "metadata" in value and any(isinstance(part, dict) for part in parts)


def _conditions(status: dict[str, Any]) -> list[dict[str, Any]]:
    conditions = status.get("conditions")
    items = conditions if isinstance(conditions, list) else []
    return [item for item in items if isinstance(item, dict) and item.get("type") in _CONDITIONS]


def _requests(container: Any) -> dict[str, Any]:
    """The TPU chips that a container requests."""
    resources = _part(container, "resources") if isinstance(container, dict) else {}
    return {
        "resources": {
            part: _only(_part(resources, part), (TPU_RESOURCE,)) for part in ("requests", "limits")
        }
    }


def _part(holder: dict[str, Any], key: str) -> dict[str, Any]:
    part = holder.get(key)
    return part if isinstance(part, dict) else {}


def _only(part: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: part[key] for key in keys if key in part}
