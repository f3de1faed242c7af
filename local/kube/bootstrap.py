"""The initial objects of a cluster, read from ``bootstrap.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from local.kube.kinds import Document

_RBAC = "rbac.authorization.k8s.io"


@cache
def initial_objects() -> tuple[Document, ...]:
    """All initial objects, in an order in which they can be created."""
    rows = yaml.safe_load(Path(__file__).with_name("bootstrap.yaml").read_text(encoding="utf-8"))
    return tuple(_read(rows))


def _read(rows: Mapping[str, Any]) -> Iterator[Document]:
    for name in rows["namespaces"]:
        yield _object("v1", "Namespace", name)
    for name, rules in rows["clusterRoles"].items():
        yield _object(f"{_RBAC}/v1", "ClusterRole", name, rules=rules)
    for name, row in rows["clusterRoleBindings"].items():
        yield _object(f"{_RBAC}/v1", "ClusterRoleBinding", name, **_binding("ClusterRole", row))
    for namespace, roles in rows["roles"].items():
        for name, rules in roles.items():
            yield _object(f"{_RBAC}/v1", "Role", name, namespace, rules=rules)
    for namespace, bindings in rows["roleBindings"].items():
        for name, row in bindings.items():
            yield _object(f"{_RBAC}/v1", "RoleBinding", name, namespace, **_binding("Role", row))
    for namespace, maps in rows["configMaps"].items():
        for name, data in maps.items():
            yield _object("v1", "ConfigMap", name, namespace, data=data)


def _object(version: str, kind: str, name: str, namespace: str = "", **content: Any) -> Document:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **content}


def _binding(role_kind: str, row: Mapping[str, Any]) -> Document:
    subjects = [
        {"kind": kind, "apiGroup": _RBAC, "name": name}
        for kind, names in (("Group", row.get("groups", ())), ("User", row.get("users", ())))
        for name in names
    ]
    role_ref = {"apiGroup": _RBAC, "kind": role_kind, "name": row["role"]}
    return {"roleRef": role_ref, "subjects": subjects}
