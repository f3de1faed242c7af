"""All objects in a cluster, of every kind that can be listed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from local.control_plane.plane import ControlPlane

_SERVED_WITHIN_S = 10.0


def list_everything(plane: ControlPlane) -> set[str]:
    """Return each object as ``resource namespace/name``, and the keys of cluster-info that tokens sign.

    Only events about groups and events of the product are included: those of the cluster itself, about
    Nodes and Pods, expire after an hour.
    """
    _, info = plane.request("GET", "/api/v1/namespaces/kube-public/configmaps/cluster-info")
    found = {f"cluster-info {key}" for key in info.get("data", {})}
    for prefix in _versions(plane):
        for resource in plane.request("GET", prefix)[1]["resources"]:
            name = resource["name"]
            if "list" in resource["verbs"] and "/" not in name:
                found |= _names(plane, f"{prefix}/{name}", name)
    return found


def _versions(plane: ControlPlane) -> Iterator[str]:
    yield "/api/v1"
    for group in plane.request("GET", "/apis")[1]["groups"]:
        yield f"/apis/{group['preferredVersion']['groupVersion']}"


def _names(plane: ControlPlane, path: str, resource: str) -> set[str]:
    code, listed = plane.request("GET", path)
    deadline = time.monotonic() + _SERVED_WITHIN_S
    while code == 429:  # 429: a CRD was just created; 404: a CRD was just deleted
        assert time.monotonic() < deadline, listed
        time.sleep(0.1)
        code, listed = plane.request("GET", path)
    assert code in (200, 404), listed
    return {
        f"{resource} {item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
        for item in listed.get("items", [])
        if resource != "events" or _concerns_product(item)
    }


def _concerns_product(event: dict[str, Any]) -> bool:
    about = event.get("involvedObject") or event.get("regarding") or {}
    source = event.get("source") or event.get("deprecatedSource") or {}
    is_from_product = source.get("component", "").startswith("tpu-functions-")
    return bool(about.get("kind") == "TPUNodeGroup" or is_from_product)
