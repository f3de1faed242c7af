"""What an Event must say: little in the old form, more in the new one, which has an eventTime."""

from __future__ import annotations

from collections.abc import Iterator

from local.kube import errors
from local.kube.errors import FieldError
from local.kube.kinds import Document

_OF_CLUSTER = ("default", "kube-system")
"""Namespaces of Events about objects that are in none."""


def find_event_errors(document: Document, old: Document | None) -> Iterator[FieldError]:
    """What is wrong with an Event beyond the types of its fields."""
    if old is not None:
        return
    own = document["metadata"]["namespace"]
    about = document["involvedObject"].get("namespace", "")
    is_new = document.get("eventTime") is not None
    if (not is_new and about != own) if about else own not in _OF_CLUSTER[: 1 + is_new]:
        why = "does not match event.namespace"
        yield errors.invalid_value("involvedObject.namespace", about, why)
    for name in ("reportingComponent", "reportingInstance", "action", "reason"):
        if is_new and not document.get(name):
            yield errors.required(name)
