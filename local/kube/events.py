"""What an Event must say: little in the old form, more in the new one, which has an eventTime."""

from __future__ import annotations

from collections.abc import Iterator

from local.kube import errors
from local.kube.errors import FieldError
from local.kube.kinds import Document
from local.kube.metadata import key_faults

_NOWHERE = ("", "default")


def find_event_faults(document: Document, old: Document | None) -> Iterator[FieldError]:
    """What is wrong with an Event beyond the types of its fields."""
    if old is not None:
        return
    is_new = document.get("eventTime") is not None
    yield from _place_faults(document, is_new=is_new)
    if is_new:
        yield from _reporter_faults(document)


def _place_faults(document: Document, *, is_new: bool) -> Iterator[FieldError]:
    own = document["metadata"]["namespace"]
    about = document["involvedObject"].get("namespace", "")
    at_home = own in ((*_NOWHERE, "kube-system") if is_new else _NOWHERE)
    if not (at_home if not about else is_new or about == own):
        why = "does not match event.namespace"
        yield errors.invalid_value("involvedObject.namespace", about, why)


def _reporter_faults(document: Document) -> Iterator[FieldError]:
    reporter = document.get("reportingComponent", "")
    if not reporter:
        yield errors.required("reportingComponent")
    for why in key_faults(reporter):
        yield errors.invalid_value("reportingComponent", reporter, why)
    for name in ("reportingInstance", "action", "reason"):
        if not document.get(name):
            yield errors.required(name)
