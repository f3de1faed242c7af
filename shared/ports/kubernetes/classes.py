"""The calls about TPUSliceClasses."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from shared.ports.errors import CallError
from shared.ports.kubernetes.transport import NOT_SERVED, Target, Transport

_PLURAL = "tpusliceclasses"
_VERSION = "tpu-functions.dev/v1alpha1"
_CLASSES = Target("TPUSliceClass", f"/apis/{_VERSION}", _PLURAL)
_API = Target("APIResourceList", _CLASSES.api, "")
_NOT_SERVED_KEPT = timedelta(minutes=1)


class SliceClassCalls(Transport):
    def list_slice_classes(self, now: datetime) -> list[dict[str, Any]]:
        """All classes. None, without a read for a minute, if the cluster does not serve them: that is so
        until the manifests of this version are applied. An API server then answers 403, as it does if it
        has just started or a permission is missing: discovery, which everybody may read, decides."""
        cached = self._connection.cached
        if now < cached.get(_PLURAL, ("", now))[1]:
            return []
        try:
            return list(self._list(_CLASSES))
        except CallError as error:
            if error.code != NOT_SERVED and (error.http != 403 or self._serves_classes()):
                raise
            cached[_PLURAL] = ("", now + _NOT_SERVED_KEPT)
            return []

    def _serves_classes(self) -> bool:
        try:
            self._call("GET", _API)
        except CallError as error:
            if error.code == NOT_SERVED:
                return False
            raise
        return True

    def find_slice_class(self, name: str) -> dict[str, Any] | None:
        """The class of that name, or ``None``."""
        return self._find(_CLASSES.one(name))

    def replace_class_status(self, found: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Write the status of a class, if it is unchanged since it was read (409 if not). The item of a
        list may be given, which lacks kind and apiVersion."""
        target = _CLASSES.one(found["metadata"]["name"], "status")
        whole = {**found, "apiVersion": _VERSION, "kind": _CLASSES.kind, "status": status}
        self._call("PUT", target, whole)
