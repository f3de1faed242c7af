"""The validation of ``metadata``: names, labels, annotations, owners, finalizers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from local.kube import errors
from local.kube.errors import FieldError

MAX_ANNOTATIONS_BYTES = 256 * 1024

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME_PART = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_STYLES = {
    "label": (_LABEL, "RFC 1123 label", 63),
    "subdomain": (_SUBDOMAIN, "RFC 1123 subdomain", 253),
    "path": (r"(?!\.\.?\Z)[^/%]*", "path segment name", 1 << 30),
}
"""Styles of names: pattern, description and maximal length. ``path`` is for RBAC kinds."""
_STANDARD_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_SERVER_OWNED = ("name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds")


def key_violations(key: str) -> list[str]:
    """The violations of the key of a label, an annotation or a taint."""
    prefix, slash, name = key.rpartition("/")
    if slash and not re.fullmatch(_SUBDOMAIN, prefix):
        return ["the part before the slash must be a lowercase RFC 1123 subdomain"]
    return _part_violations(name, _NAME_PART)


def label_value_violations(value: str) -> list[str]:
    """The violations of the value of a label."""
    return _part_violations(value, f"({_NAME_PART})?")


def _part_violations(text: str, pattern: str) -> list[str]:
    if len(text) <= 63 and re.fullmatch(pattern, text):
        return []
    return [f"must be no more than 63 bytes and match the regular expression '{pattern}'"]


def find_errors(
    metadata: Mapping[str, Any], name_style: str, old: Mapping[str, Any] | None, *, custom: bool
) -> Iterator[FieldError]:
    """The violations of an object's metadata; on an update, also of changes of immutable fields."""
    if old is None:
        yield from _name_errors(metadata["name"], name_style)
    else:
        for name in _SERVER_OWNED:
            if (value := metadata.get(name)) != old.get(name):
                yield errors.invalid_value(f"metadata.{name}", value, "field is immutable")
        yield from _new_finalizers(metadata, old)
    for key, value in (metadata.get("labels") or {}).items():
        for why in key_violations(key):
            yield errors.invalid_value("metadata.labels", key, why)
        for why in label_value_violations(value):
            yield errors.invalid_value("metadata.labels", value, why)
    yield from _annotation_errors(metadata.get("annotations") or {})
    for index, name in enumerate(metadata.get("finalizers") or ()):
        for why in key_violations(name):
            yield errors.invalid_value("metadata.finalizers", name, why)
        if not custom and "/" not in name and name not in _STANDARD_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield errors.invalid_value(f"metadata.finalizers[{index}]", name, why)


def _name_errors(name: str, style: str) -> Iterator[FieldError]:
    pattern, words, limit = _STYLES[style]
    if len(name) > limit or not re.fullmatch(pattern, name):
        why = f"must be a lowercase {words}, no more than {limit} bytes, and match '{pattern}'"
        yield errors.invalid_value("metadata.name", name, why)


def _new_finalizers(metadata: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    known = old.get("finalizers") or ()
    new = [name for name in metadata.get("finalizers") or () if name not in known]
    if new and "deletionTimestamp" in old:
        why = "no new finalizers can be added if the object is being deleted, found new finalizers"
        yield errors.forbidden_field("metadata.finalizers", f"{why} {', '.join(new)}")


def _annotation_errors(annotations: Mapping[str, str]) -> Iterator[FieldError]:
    for key in annotations:
        for why in key_violations(key.lower()):
            yield errors.invalid_value("metadata.annotations", key, why)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MAX_ANNOTATIONS_BYTES:
        yield errors.too_long("metadata.annotations", MAX_ANNOTATIONS_BYTES)
