"""CustomResourceDefinitions: from the object to a kind that is served."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from local.kube.catalogue import Catalogue
from local.kube.kinds import (
    AGE_COLUMN,
    NAME_COLUMN,
    Column,
    Document,
    Kind,
    Version,
    with_object_fields,
)
from local.kube.schema import Schema
from local.kube.store import Change, Store
from local.kube.watch import WatchHub

CRD_RESOURCE = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""Holds a CRD until its objects are gone."""


def kind_of(crd: Mapping[str, Any]) -> Kind:
    """The kind that a (valid) CRD defines."""
    spec = crd["spec"]
    names = spec["names"]
    versions = [one for one in spec["versions"] if one["served"]]
    return Kind(
        group=spec["group"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        namespaced=spec["scope"] == "Namespaced",
        versions={one["name"]: _version_of(one) for one in versions},
        storage=next(one["name"] for one in spec["versions"] if one["storage"]),
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        custom=True,
    )


def _version_of(version: Mapping[str, Any]) -> Version:
    has_status = "status" in version.get("subresources", {})
    return Version(
        version["name"],
        compile_schema(json.dumps(version["schema"]["openAPIV3Schema"])),
        (NAME_COLUMN, *_columns_of(version)),
        {"status": ("get", "patch", "update")} if has_status else {},
        tuple(field["jsonPath"].removeprefix(".") for field in version.get("selectableFields", ())),
    )


@lru_cache(maxsize=64)
def compile_schema(source: str) -> Schema:
    """A CRD's schema with what all objects have, compiled once per text in a process."""
    schema: Document = json.loads(source)
    return Schema(with_object_fields(schema))


def _columns_of(version: Mapping[str, Any]) -> Iterator[Column]:
    declared = version.get("additionalPrinterColumns")
    if not declared:
        yield AGE_COLUMN
        return
    for column in declared:
        yield Column(
            column["name"],
            column["jsonPath"],
            column["type"],
            column.get("format", ""),
            column.get("description", ""),
            column.get("priority", 0),
        )


def prepare_crd(document: Document, now: str) -> None:
    """Complete a CRD: the names that follow from others, and the status of one that is served.

    Kubernetes does the latter in a controller, a second or so later.
    """
    spec = document["spec"] = {"conversion": {"strategy": "None"}, **document["spec"]}
    spec["versions"] = [_without_nulls(version) for version in spec["versions"]]
    kind = spec["names"]["kind"]
    names = spec["names"] = {
        "singular": kind.lower(),
        "listKind": f"{kind}List",
        **spec["names"],
    }
    meta = document["metadata"]
    if "deletionTimestamp" not in meta and CLEANUP_FINALIZER not in meta.get("finalizers", ()):
        meta["finalizers"] = [*meta.get("finalizers", ()), CLEANUP_FINALIZER]
    status = document.get("status") or {}
    stored = [one["name"] for one in spec["versions"] if one["storage"]]
    earlier = [name for name in status.get("storedVersions", ()) if name not in stored]
    document["status"] = {
        "conditions": status.get("conditions")
        or [
            {
                "type": "NamesAccepted",
                "status": "True",
                "lastTransitionTime": now,
                "reason": "NoConflicts",
                "message": "no conflicts found",
            },
            {
                "type": "Established",
                "status": "True",
                "lastTransitionTime": now,
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
            },
        ],
        "acceptedNames": names,
        "storedVersions": [*earlier, *stored],
    }


def _without_nulls(value: Any) -> Any:
    """A schema as Go writes it: null is the same as nothing, except among values."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: item if name in ("default", "enum") else _without_nulls(item)
        for name, item in value.items()
        if item is not None or name == "default"
    }


class CrdRegistrar:
    """Serves what CRDs define, from the moment that they are stored."""

    def __init__(self, store: Store, catalogue: Catalogue, hub: WatchHub) -> None:
        self._store = store
        self._catalogue = catalogue
        self._hub = hub
        store.listen(self._follow, CRD_RESOURCE)

    def _follow(self, change: Change) -> None:
        if change.type == "DELETED":
            resource = change.record.key[1]
            self._catalogue.remove(resource)
            self._store.drop_collection(resource)
            self._hub.cut(resource)
        else:
            self._catalogue.add(kind_of(change.record.document))

    def reload(self) -> None:
        """Serve what the store's CRDs define, and nothing else that is not built in."""
        for kind in tuple(self._catalogue):
            if kind.custom:
                self._catalogue.remove(kind.resource)
        for record in self._store.records(CRD_RESOURCE):
            self._catalogue.add(kind_of(record.document))
