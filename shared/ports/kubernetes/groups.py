"""The calls about TPUNodeGroups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shared.base.names import GROUP, JOBSET_LABEL, PLURAL, RESOURCE_NAME_LABEL, VERSION
from shared.ports.errors import CallError
from shared.ports.kubernetes.transport import MERGE_PATCH, NOT_SERVED, Transport, quoted

_GROUPS = f"/apis/{GROUP}/{VERSION}"


class GroupCalls(Transport):
    """The calls about TPUNodeGroups, and about tpu-operator's children of one."""

    def find_group(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The TPUNodeGroup of that name, or ``None``."""
        return self._find(_object_path(namespace, name))

    def list_groups_named(self, resource_name: str) -> list[dict[str, Any]]:
        """The groups with this resource-name label in all namespaces; normally there is one."""
        return list(self._list(f"{_GROUPS}/{PLURAL}", f"{RESOURCE_NAME_LABEL}={resource_name}"))

    def list_groups(self) -> Iterator[dict[str, Any]]:
        """All groups of the cluster, page by page."""
        return self._list(f"{_GROUPS}/{PLURAL}")

    def replace_status(self, group: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
        """Write a group's status, if the group is unchanged since it was read (409 if not)."""
        return self._call("PUT", f"{_path(group)}/status", {**group, "status": status})

    def patch_group(
        self,
        group: Mapping[str, Any],
        *,
        finalizers: list[str],
        labels: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Set a group's finalizers and labels, if it is unchanged since it was read (409 if not)."""
        metadata: dict[str, Any] = {
            "resourceVersion": group["metadata"]["resourceVersion"],
            "finalizers": finalizers,
        }
        if labels:
            metadata["labels"] = dict(labels)
        return self._call("PATCH", _path(group), {"metadata": metadata}, kind=MERGE_PATCH)

    def has_operator_children(self, namespace: str, names: Mapping[str, str]) -> bool:
        """Whether tpu-operator has made any of these children (plural to name) of a group.

        Its kinds are installed together: where one is not known, the others need not be asked for.
        """
        for plural, name in names.items():
            try:
                self._call("GET", f"{_GROUPS}/namespaces/{namespace}/{plural}/{name}")
            except CallError as error:
                if error.reason == NOT_SERVED:
                    return False
                if error.http != 404:
                    raise
            else:
                return True
        return False

    def list_slice_groups(self, namespace: str = "", jobset: str = "") -> list[dict[str, Any]]:
        """The groups that were created for JobSets: all, or those of one JobSet."""
        path = f"{_GROUPS}/namespaces/{quoted(namespace)}" if namespace else _GROUPS
        term = f"{JOBSET_LABEL}={jobset}" if jobset else JOBSET_LABEL
        return list(self._list(f"{path}/{PLURAL}", term))

    def create_group(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create a group (409 if its name exists)."""
        path = f"{_GROUPS}/namespaces/{quoted(manifest['metadata']['namespace'])}/{PLURAL}"
        return self._call("POST", path, manifest)

    def annotate_group(
        self, group: Mapping[str, Any], annotations: Mapping[str, str | None]
    ) -> dict[str, Any]:
        """Set annotations, or remove them (``None``), if the group is unchanged since it was read."""
        version = group["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version, "annotations": dict(annotations)}}
        return self._call("PATCH", _path(group), change, kind=MERGE_PATCH)

    def delete_group(self, group: Mapping[str, Any]) -> bool:
        """Delete a group, if it is unchanged since it was read (409 if not); ``False`` if it is gone."""
        metadata = group["metadata"]
        still = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        try:
            self._call("DELETE", _path(group), {"preconditions": still})
        except CallError as error:
            if error.http != 404:
                raise
            return False
        return True


def _path(group: Mapping[str, Any]) -> str:
    return _object_path(group["metadata"]["namespace"], group["metadata"]["name"])


def _object_path(namespace: str, name: str) -> str:
    return f"{_GROUPS}/namespaces/{quoted(namespace)}/{PLURAL}/{quoted(name)}"
