"""The calls about TPUNodeGroups."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from shared.base.names import GROUP, JOBSET_LABEL, KIND, PLURAL, RESOURCE_NAME_LABEL, VERSION
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import CallError
from shared.ports.kubernetes.transport import MERGE_PATCH, NOT_SERVED, Target, Transport

_API = f"/apis/{GROUP}/{VERSION}"
_GROUPS = Target(KIND, _API, PLURAL)
_NOT_SERVED_KEPT = timedelta(minutes=1)


class GroupCalls(Transport):
    """The calls about TPUNodeGroups, and about tpu-operator's children of one."""

    def find_group(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The TPUNodeGroup of that name, or ``None``."""
        return self._find(_GROUPS.within(namespace).one(name))

    def list_groups_named(self, resource_name: str) -> list[dict[str, Any]]:
        """The groups with this resource-name label in all namespaces; normally there is one."""
        return list(self._list(_GROUPS, f"{RESOURCE_NAME_LABEL}={resource_name}"))

    def list_groups(self, namespace: str = "") -> Iterator[dict[str, Any]]:
        """All groups of the cluster, or of a namespace, page by page."""
        return self._list(_GROUPS.within(namespace))

    def replace_status(self, group: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
        """Write a group's status, if the group is unchanged since it was read (409 if not)."""
        return self._call("PUT", _of(group, "status"), {**group, "status": status})

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
        return self._call("PATCH", _of(group), {"metadata": metadata}, media=MERGE_PATCH)

    def has_operator_children(
        self, namespace: str, names: Mapping[str, str], now: datetime
    ) -> bool:
        """Whether tpu-operator has created any of these children (plural to name) of a group.

        Its kinds are installed together: if one is not served, the others are not read, nor any for a
        minute. It marks a group with its finalizer before it creates children.
        """
        cached = self._connection.cached
        if now < cached.get(NOT_SERVED, ("", now))[1]:
            return False
        for plural, name in names.items():
            try:
                self._call("GET", Target(plural, _API, plural, namespace, name))
            except CallError as error:
                if error.code == NOT_SERVED:
                    cached[NOT_SERVED] = ("", now + _NOT_SERVED_KEPT)
                    return False
                if error.kind is not ErrorKind.ABSENT:
                    raise
            else:
                return True
        return False

    def list_slice_groups(self, namespace: str = "", jobset: str = "") -> list[dict[str, Any]]:
        """The groups that were created for JobSets: all, or those of one JobSet."""
        term = f"{JOBSET_LABEL}={jobset}" if jobset else JOBSET_LABEL
        return list(self._list(_GROUPS.within(namespace), term))

    def create_group(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create a group (409 if its name exists)."""
        return self._call("POST", _GROUPS.within(manifest["metadata"]["namespace"]), manifest)

    def annotate_group(
        self, group: Mapping[str, Any], annotations: Mapping[str, str | None]
    ) -> dict[str, Any]:
        """Set annotations, or remove them (``None``), if the group is unchanged since it was read."""
        version = group["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version, "annotations": dict(annotations)}}
        return self._call("PATCH", _of(group), change, media=MERGE_PATCH)

    def delete_group(self, group: Mapping[str, Any]) -> bool:
        """Delete a group, if it is unchanged since it was read (409 if not); ``False`` if it is gone."""
        metadata = group["metadata"]
        still = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        try:
            self._call("DELETE", _of(group), {"preconditions": still})
        except CallError as error:
            if error.kind is not ErrorKind.ABSENT:
                raise
            return False
        return True


def _of(group: Mapping[str, Any], subresource: str = "") -> Target:
    metadata = group["metadata"]
    return _GROUPS.within(metadata["namespace"]).one(metadata["name"], subresource)
