"""Kubernetes Events: the value, and the calls that write one about an object."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shared.base.timestamps import render_time
from shared.ports.errors import CallError
from shared.ports.kubernetes.transport import MERGE_PATCH, Target, Transport

_EVENTS = Target("Event", "/api/v1", "events")


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about an object, as in ``kubectl describe``.

    Two Events about an object with the same reason are one if they have the same ``key``, the message by
    default.
    """

    reason: str
    message: str
    is_warning: bool = False
    key: str = field(default="", compare=False)


class EventCalls(Transport):
    """The calls about Events, whose source is the step."""

    def emit(self, about: Mapping[str, Any], event: Event, now: datetime) -> None:
        """Write an Event about an object, or increment the count of an equal one."""
        equal = self._create_event(about, event, now)
        if equal is not None:
            self._count_up(equal, now)

    def emit_once(self, about: Mapping[str, Any], event: Event, now: datetime) -> bool:
        """Write an Event about an object, unless an equal one exists. Returns whether it was written.

        An API server keeps an Event for an hour, if its ``--event-ttl`` is not set.
        """
        return self._create_event(about, event, now) is None

    def list_events(self, namespace: str, uid: str) -> list[dict[str, Any]]:
        """The Events about an object."""
        return list(self._list(_EVENTS.within(namespace), fields=f"involvedObject.uid={uid}"))

    def list_pod_events(self, namespace: str, source: str) -> list[dict[str, Any]]:
        """A component's Events about the Pods of a namespace; of all, if it is empty."""
        fields = f"involvedObject.kind=Pod,source={source}"
        return list(self._list(_EVENTS.within(namespace), fields=fields))

    def _create_event(self, about: Mapping[str, Any], event: Event, now: datetime) -> Target | None:
        """Write an Event. Returns an equal one, if it exists."""
        manifest = _render(about, event, self.component, now)
        metadata = manifest["metadata"]
        events = _EVENTS.within(metadata["namespace"])
        try:
            self._call("POST", events, manifest)
        except CallError as error:
            if error.code != "AlreadyExists":
                raise
            return events.one(metadata["name"])
        return None

    def _count_up(self, equal: Target, now: datetime) -> None:
        found = self._find(equal)
        if found is not None:
            change = {"count": (found.get("count") or 1) + 1, "lastTimestamp": render_time(now)}
            self._call("PATCH", equal, change, media=MERGE_PATCH)


def _render(
    about: Mapping[str, Any], event: Event, component: str, now: datetime
) -> dict[str, Any]:
    metadata = about["metadata"]
    said = f"{metadata['uid']}/{event.reason}/{event.key or event.message}"
    digest = hashlib.sha256(said.encode()).hexdigest()[:16]
    namespace = metadata.get("namespace") or "default"
    reference = {
        "apiVersion": about["apiVersion"],
        "kind": about["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
    }
    if metadata.get("namespace"):
        reference["namespace"] = namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name'][:200]}.{digest}", "namespace": namespace},
        "involvedObject": reference,
        "reason": event.reason,
        "message": event.message[:1024],
        "type": "Warning" if event.is_warning else "Normal",
        "source": {"component": component},
        "reportingComponent": "",
        "reportingInstance": "",
        "firstTimestamp": render_time(now),
        "lastTimestamp": render_time(now),
        "count": 1,
    }
