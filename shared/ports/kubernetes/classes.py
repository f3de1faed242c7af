"""The calls about TPUSliceClasses."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shared.ports.kubernetes.transport import Target, Transport

_PLURAL = "tpusliceclasses"
_VERSION = "tpu-functions.dev/v1alpha1"
_CLASSES = Target("TPUSliceClass", f"/apis/{_VERSION}", _PLURAL)


class SliceClassCalls(Transport):
    def list_slice_classes(self, now: datetime) -> list[dict[str, Any]]:
        """All classes; none if the manifests of this version have not been applied."""
        return self._list_if_served(_CLASSES, now)

    def find_slice_class(self, name: str) -> dict[str, Any] | None:
        """The class of that name, or ``None``."""
        return self._find(_CLASSES.one(name))

    def replace_class_status(self, found: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Write the status of a class, if it is unchanged since it was read (409 if not). The item of a
        list may be given, which lacks kind and apiVersion."""
        target = _CLASSES.one(found["metadata"]["name"], "status")
        whole = {**found, "apiVersion": _VERSION, "kind": _CLASSES.kind, "status": status}
        self._call("PUT", target, whole)
