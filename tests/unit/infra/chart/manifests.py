"""The installed manifests, and the permissions that their roles grant."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from local.cluster.manifests import WITH_PODS, read_manifests
from shared.node_groups.bootstrap import Token, token_secret

Manifest = dict[str, Any]
Permission = tuple[str, str, str, str]
"""Namespace (or ``*``), API group, resource (``/`` and a name if only one), verb."""
DOCUMENTS: list[Manifest] = read_manifests(WITH_PODS)
LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/component", "app.kubernetes.io/part-of")


def expand(role: Manifest) -> Iterator[Permission]:
    namespace = role["metadata"].get("namespace", "*")
    for rule in role["rules"]:
        names = [f"/{name}" for name in rule.get("resourceNames", ())] or [""]
        yield from (
            (namespace, group, resource + name, verb)
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for name in names
            for verb in rule["verbs"]
        )


def merge_patch(target: Any, change: Any) -> Any:
    """Return a copy of ``target`` with the JSON merge patch ``change`` applied."""
    if not isinstance(change, dict):
        return change
    base = target if isinstance(target, dict) else {}
    keys = [key for key in (base | change) if change.get(key, ...) is not None]
    return {
        key: merge_patch(base.get(key), change[key]) if key in change else base[key] for key in keys
    }


SECRET = token_secret(
    Token("abcdef", "0123456789abcdef", datetime(2026, 1, 1, tzinfo=UTC)),
    resource_name="tng-training-1a2b3c4d",
    vm="tng-training-1a2b3c4d-x1y2",
)
