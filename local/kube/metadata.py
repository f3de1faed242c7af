"""What may stand in ``metadata``: names, labels, annotations, finalizers, owners."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from local.kube import errors
from local.kube.errors import FieldError
from local.kube.kinds import Document

MAX_ANNOTATIONS_BYTES = 256 * 1024

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME_PART = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = f"({_NAME_PART})?"

_SUBDOMAIN_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    f"for validation is '{_SUBDOMAIN}')"
)
_LABEL_WORDS = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    f"for validation is '{_LABEL}')"
)
_NAME_PART_WORDS = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_NAME_PART}')"
)
_LABEL_KEY_WORDS = (
    "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex "
    f"used for validation is '{_NAME_PART}') with an optional DNS subdomain prefix and '/' (e.g. "
    "'example.com/MyName')"
)
_LABEL_VALUE_WORDS = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    f"or '12345', regex used for validation is '{_LABEL_VALUE}')"
)
_STANDARD_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_SERVER_OWNED = ("name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds")


def name_faults(style: str, name: str) -> list[str]:
    """What is wrong with a name; ``style`` is ``subdomain``, ``label`` or ``path`` (RBAC kinds)."""
    if style == "path":
        return _path_faults(name)
    pattern, words, limit = {
        "label": (_LABEL, _LABEL_WORDS, 63),
        "subdomain": (_SUBDOMAIN, _SUBDOMAIN_WORDS, 253),
    }[style]
    faults = [] if len(name) <= limit else [f"must be no more than {limit} bytes"]
    return faults if re.fullmatch(pattern, name) else [*faults, words]


def _path_faults(name: str) -> list[str]:
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{mark}'" for mark in ("/", "%") if mark in name]


def key_faults(key: str) -> list[str]:
    """What is wrong with the key of a label, an annotation or a taint."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        return [_LABEL_KEY_WORDS]
    faults = []
    if slash and not re.fullmatch(_SUBDOMAIN, prefix):
        faults.append(
            f"prefix part {_SUBDOMAIN_WORDS}" if prefix else "prefix part must be non-empty"
        )
    if not name:
        return [*faults, "name part must be non-empty", _NAME_PART_WORDS]
    if len(name) > 63:
        faults.append("name part must be no more than 63 bytes")
    return faults if re.fullmatch(_NAME_PART, name) else [*faults, _NAME_PART_WORDS]


def find_errors(
    metadata: Mapping[str, Any], name_style: str, old: Mapping[str, Any] | None, *, custom: bool
) -> Iterator[FieldError]:
    """What is wrong with an object's metadata; on an update, what may not be so any more."""
    if old is None:
        for why in name_faults(name_style, metadata["name"]):
            yield errors.invalid_value("metadata.name", metadata["name"], why)
    else:
        yield from _changed(metadata, old)
        yield from _new_finalizers(metadata, old)
    yield from _label_errors(metadata.get("labels") or {})
    yield from _annotation_errors(metadata.get("annotations") or {})
    yield from _owner_errors(metadata.get("ownerReferences") or ())
    yield from _finalizer_errors(metadata.get("finalizers") or (), custom=custom)


def _finalizer_errors(finalizers: Sequence[str], *, custom: bool) -> Iterator[FieldError]:
    for index, name in enumerate(finalizers):
        for why in key_faults(name):
            yield errors.invalid_value("metadata.finalizers", name, why)
        if not custom and is_bare_finalizer(name):
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield errors.invalid_value(f"metadata.finalizers[{index}]", name, why)


def is_bare_finalizer(name: str) -> bool:
    """Whether a finalizer has no domain, and is none of the few that need none."""
    return "/" not in name and name not in _STANDARD_FINALIZERS


def find_warnings(metadata: Mapping[str, Any]) -> Iterator[str]:
    """What is not well chosen in a custom resource's metadata."""
    for name in metadata.get("finalizers") or ():
        if is_bare_finalizer(name):
            yield (
                f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name to avoid '
                "accidental conflicts with other finalizer writers"
            )


def _changed(metadata: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    for name in _SERVER_OWNED:
        if metadata.get(name) != old.get(name):
            yield errors.invalid_value(f"metadata.{name}", metadata.get(name), "field is immutable")


def _new_finalizers(metadata: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    if "deletionTimestamp" not in old:
        return
    known = old.get("finalizers") or ()
    new = [name for name in metadata.get("finalizers") or () if name not in known]
    if new:
        listed = ", ".join(errors.render_value(name) for name in new)
        yield errors.forbidden_field(
            "metadata.finalizers",
            "no new finalizers can be added if the object is being deleted, found new finalizers "
            f"[]string{{{listed}}}",
        )


def _label_errors(labels: Mapping[str, str]) -> Iterator[FieldError]:
    for key, value in labels.items():
        for why in key_faults(key):
            yield errors.invalid_value("metadata.labels", key, why)
        for why in label_value_faults(value):
            yield errors.invalid_value("metadata.labels", value, why)


def label_value_faults(value: str) -> list[str]:
    """What is wrong with a label's value."""
    faults = [] if len(value) <= 63 else ["must be no more than 63 bytes"]
    return faults if re.fullmatch(_LABEL_VALUE, value) else [*faults, _LABEL_VALUE_WORDS]


def _annotation_errors(annotations: Mapping[str, str]) -> Iterator[FieldError]:
    for key in annotations:
        for why in key_faults(key.lower()):
            yield errors.invalid_value("metadata.annotations", key, why)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MAX_ANNOTATIONS_BYTES:
        yield errors.too_long("metadata.annotations", MAX_ANNOTATIONS_BYTES)


def _owner_errors(owners: Sequence[Document]) -> Iterator[FieldError]:
    for owner in owners:
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                why = "version must not be empty" if name == "apiVersion" else "must not be empty"
                yield errors.invalid_value(f"metadata.ownerReferences.{name}", "", why)
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        names = ", ".join(f"{one['kind']}/{one['name']}" for one in controllers[:2])
        yield errors.invalid_value(
            "metadata.ownerReferences",
            list(owners),
            "Only one reference can have Controller set to true. Found "
            f'"true" in references for {names.replace(", ", " and ")}',
        )
