"""Objects for tests of decisions: a TPUNodeGroup as the API server returns it, and its actions."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from shared.base.names import FINALIZER, RESOURCE_NAME_LABEL
from shared.frame.plan import Action, Plan
from shared.node_groups import node_group
from shared.node_groups.node_group import AnyGroup, NodeGroup, UnreadableGroup, resource_name
from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.settings import Settings

DATA = Path(__file__).parents[1] / "data"
CLUSTER = "11111111-2222-3333-4444-555555555555"
NOW = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
UID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
NAME = "my-slice"
RESOURCE = resource_name(CLUSTER, NAME, UID)


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def spec(**change: Any) -> dict[str, Any]:
    """Return the spec of a two-host tpu7x slice with a JSON merge patch applied."""
    merged: dict[str, Any] = merge(copy.deepcopy(_example()), change)
    return merged


@cache
def _example() -> dict[str, Any]:
    """Return the example; it is cached because parsing the file takes a quarter of a second."""
    found: dict[str, Any] = yaml.safe_load((DATA / "spec.yaml").read_text())["original_example"]
    return found["spec"]  # type: ignore[no-any-return]


def raw_group(
    *,
    owned: bool = True,
    deleting: bool = False,
    status: dict[str, Any] | None = None,
    change: dict[str, Any] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """Return a TPUNodeGroup; an ``owned`` one has this system's finalizer and label."""
    raw: dict[str, Any] = {
        "apiVersion": "tpu.google.com/v1alpha1",
        "kind": "TPUNodeGroup",
        "metadata": {
            "namespace": "default",
            "name": NAME,
            "uid": UID,
            "resourceVersion": "7",
            "generation": 1,
            "creationTimestamp": "2026-11-20T09:00:00Z",
        },
        "spec": spec(**(change or {})),
    }
    if owned:
        raw["metadata"] |= {"finalizers": [FINALIZER], "labels": {RESOURCE_NAME_LABEL: RESOURCE}}
    if deleting:
        raw["metadata"]["deletionTimestamp"] = "2026-11-20T09:59:00Z"
    raw["metadata"] |= copy.deepcopy(metadata)
    if status is not None:
        raw["status"] = status
    return raw


def group(**options: Any) -> NodeGroup:
    """Return the TPUNodeGroup of `raw_group`, parsed."""
    return readable(node_group.parse(raw_group(**options), CLUSTER))


def unreadable_group(**options: Any) -> UnreadableGroup:
    """Return the TPUNodeGroup of `raw_group` with a spec that names no zone, parsed."""
    parsed = node_group.parse(raw_group(change={"nodeLocation": None}, **options), CLUSTER)
    assert isinstance(parsed, UnreadableGroup)
    return parsed


def readable(parsed: AnyGroup) -> NodeGroup:
    """Return the group; an unreadable one fails the test."""
    assert isinstance(parsed, NodeGroup), parsed.violations
    return parsed


def flat(plan: Plan) -> list[Action]:
    """Return all actions of a plan."""
    return list(plan.list_actions())


SETTINGS = Settings(
    "my-gcp-project", "t-", frozenset({"my-gcp-project"}), Kubeconfig(""), "", timedelta(minutes=15)
)
