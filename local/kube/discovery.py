"""What is served: groups, and the resources of each group version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from local.kube.catalogue import Catalogue
from local.kube.kinds import Document, Kind


def kinds_of(catalogue: Catalogue, group: str, version: str) -> Iterator[Kind]:
    """The kinds of one group version."""
    return (kind for kind in catalogue if kind.group == group and version in kind.versions)


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
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": list(_entries(kinds, version)),
    }


def _entries(kinds: Iterable[Kind], version: str) -> Iterator[Document]:
    for kind in kinds:
        shared = {"namespaced": kind.namespaced, "kind": kind.kind}
        entry = {"name": kind.plural, "singularName": kind.singular, **shared}
        more = {"shortNames": list(kind.short_names), "categories": list(kind.categories)}
        more = {name: names for name, names in more.items() if names}
        yield {**entry, "verbs": list(kind.verbs), **more}
        for name, verbs in kind.versions[version].subresources.items():
            entry = {"name": f"{kind.plural}/{name}", "singularName": "", **shared}
            yield {**entry, "verbs": list(verbs)}
