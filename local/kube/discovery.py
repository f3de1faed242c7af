"""What is served, told in the two forms that clients ask for: legacy and aggregated."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Iterator

from local.kube.catalogue import Catalogue
from local.kube.kinds import Document, Kind, Version

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""The content type by which a client knows an aggregated answer."""


def wants_aggregated(accept: str) -> bool:
    """Whether the Accept header asks for the aggregated form, version 2."""
    return any(
        {"g=apidiscovery.k8s.io", "v=v2"} <= {part.strip() for part in wish.split(";")}
        for wish in accept.split(",")
    )


def aggregated(catalogue: Catalogue, *, core: bool) -> Document:
    """APIGroupDiscoveryList: of the core group, or of all named ones."""
    groups = [group for group in catalogue.groups() if (group == "") is core]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": group} if group else {},
                "versions": [
                    {
                        "version": version,
                        "freshness": "Current",
                        "resources": [
                            _describe(kind, kind.versions[version])
                            for kind in kinds_of(catalogue, group, version)
                        ],
                    }
                    for version in catalogue.groups()[group]
                ],
            }
            for group in groups
        ],
    }


def kinds_of(catalogue: Catalogue, group: str, version: str) -> Iterator[Kind]:
    """The kinds of one group version."""
    return (kind for kind in catalogue if kind.group == group and version in kind.versions)


def _describe(kind: Kind, version: Version) -> Document:
    described: Document = {
        "resource": kind.plural,
        "responseKind": _response_kind(kind, version),
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    optional = {
        "shortNames": list(kind.short_names),
        "categories": list(kind.categories),
        "subresources": [
            {
                "subresource": name,
                "responseKind": _response_kind(kind, version),
                "verbs": list(verbs),
            }
            for name, verbs in sorted(version.subresources.items())
        ],
    }
    return {**described, **{name: value for name, value in optional.items() if value}}


def _response_kind(kind: Kind, version: Version) -> Document:
    """A built-in kind's group and version are those of the list that it stands in, and left out."""
    if kind.custom:
        return _gvk(kind.group, version.name, kind.kind)
    return _gvk("", "", kind.kind)


def _gvk(group: str, version: str, kind: str) -> Document:
    return {"group": group, "version": version, "kind": kind}


def group_list(catalogue: Catalogue) -> Document:
    """APIGroupList."""
    groups = [_group(group, names) for group, names in catalogue.groups().items() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def find_group(catalogue: Catalogue, group: str) -> Document | None:
    """APIGroup of one group."""
    versions = catalogue.groups().get(group)
    if not group or versions is None:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions)}


def _group(group: str, versions: list[str]) -> Document:
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def find_resource_list(catalogue: Catalogue, group: str, version: str) -> Document | None:
    """APIResourceList of one group version, subresources as entries of their own."""
    kinds = list(kinds_of(catalogue, group, version))
    if not kinds:
        return None
    head = {"kind": "APIResourceList", **({"apiVersion": "v1"} if group else {})}
    return {
        **head,
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": list(_entries(kinds, version)),
    }


def _entries(kinds: Iterable[Kind], version: str) -> Iterator[Document]:
    for kind in kinds:
        entry: Document = {
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list(kind.verbs),
        }
        optional: Document = {
            "shortNames": list(kind.short_names),
            "categories": list(kind.categories),
            "storageVersionHash": "" if kind.virtual else _hash(kind),
        }
        yield {**entry, **{name: value for name, value in optional.items() if value}}
        for name, verbs in sorted(kind.versions[version].subresources.items()):
            yield {
                "name": f"{kind.plural}/{name}",
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": list(verbs),
            }


def _hash(kind: Kind) -> str:
    """What tells clients that a kind is stored in another version than before."""
    stored = f"{kind.group}/{kind.hashed_as or kind.storage}/{kind.kind}"
    return b64encode(hashlib.sha256(stored.encode()).digest()[:8]).decode()
