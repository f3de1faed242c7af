"""The rules for updates and deletes of an object: pure functions of documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from local.kube import errors, metadata
from local.kube.errors import FieldError
from local.kube.formats import parse_time, render_time
from local.kube.kinds import Document, Kind
from local.kube.schema import ABSENT
from local.kube.store import Record
from local.kube.strategies import strategy_of
from local.kube.writing import Write

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_POLICY_FINALIZERS = {"Foreground": FOREGROUND, "Orphan": ORPHAN}
"""The finalizers of the garbage collector, by the propagationPolicy of a delete."""
_MUTABLE_PARTS = {
    "status": ("status",),
    "approval": ("status",),
    "finalize": ("spec",),
    "scale": ("spec",),
}
"""The parts that a write to a subresource may change."""


def check_preconditions(write: Write, record: Record, meta: Document) -> None:
    """Raises 400 or 409 unless the name, namespace, uid and version in the body are the record's."""
    namespace, name = record.key
    if meta.get("name") != name:
        raise errors.mismatch("name", meta.get("name", ""), name)
    if namespace and (meta.get("namespace") or namespace) != namespace:
        raise errors.mismatch("namespace", meta["namespace"], namespace)
    uid, version = record.metadata["uid"], str(record.revision)
    if write.whole and (meta.get("uid") or uid) != uid:
        raise errors.conflict(write.kind.resource, name, f"the object's UID is {uid}")
    if (meta.get("resourceVersion") or version) != version:
        raise errors.conflict(write.kind.resource, name, errors.MODIFIED)


def check_delete_preconditions(kind: Kind, record: Record, wanted: Mapping[str, Any]) -> None:
    """Raises 409 if the object's uid or version is not that of the precondition."""
    for name, found in (("uid", record.metadata["uid"]), ("resourceVersion", str(record.revision))):
        if (wanted.get(name) or found) != found:
            why = (
                f"the {name} in the precondition ({wanted[name]}) does not match that of the object"
            )
            raise errors.conflict(kind.resource, record.key[1], f"{why} ({found})")


def isolate(write: Write, document: Document, old: Document) -> Document:
    """``old``, with the parts that belong to the resource or subresource taken from ``document``."""
    if write.subresource:
        parts = _MUTABLE_PARTS[write.subresource]
        unchanged = {name: value for name, value in old.items() if name not in parts}
        new = {**unchanged, **{name: document[name] for name in parts if name in document}}
        # A status write changes the metadata of built-in kinds, but not of custom resources.
        new["metadata"] = dict(old["metadata"] if write.kind.custom else document["metadata"])
        return new
    if "status" not in write.kind.subresources:
        return document
    document.pop("status", None)
    return {**document, **({"status": old["status"]} if "status" in old else {})}


def restore_system_fields(meta: Document, old: Mapping[str, Any]) -> None:
    """Restore the fields that clients cannot change. Other changes are rejected by the validation."""
    for name in ("uid", "namespace", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if not meta.get(name) and name in old:
            meta[name] = old[name]
    for name in ("creationTimestamp", "generation", "selfLink"):
        meta.pop(name, None)
        meta.update({name: old[name]} if name in old else {})
    meta["resourceVersion"] = old["resourceVersion"]
    meta.pop("managedFields", None)


def validate(write: Write, document: Document, old: Document | None) -> None:
    """Raises 422 with all violations of a document."""
    kind = write.kind
    meta = document["metadata"]
    before = None if old is None else old["metadata"]
    found = [
        *metadata.find_errors(meta, kind.name_style, before, custom=kind.custom),
        *kind.schema.find_errors(document, ABSENT if old is None else old),
        *(_immutable_errors(kind, document, old) if old is not None else ()),
    ]
    found = found or list(strategy_of(kind).find_errors(document, old))
    if found:
        raise errors.invalid(kind.qualified_kind, meta["name"], found)


def _immutable_errors(kind: Kind, document: Document, old: Document) -> Iterator[FieldError]:
    for path in kind.immutable:
        value = _read(document, path)
        if value != _read(old, path):
            yield errors.invalid_value(path, value, "field is immutable")
    for path in kind.immutable_once_set:
        before = _read(old, path)
        if before and _read(document, path) != before:
            name = path.rpartition(".")[2]
            why = f'{kind.kind.lower()} updates may not change {name} except from "" to valid'
            yield errors.forbidden_field(path, why)


def _read(document: Document, path: str) -> Any:
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def content_of(kind: Kind, document: Document) -> Document:
    """The content whose changes increase ``metadata.generation``."""
    left_out = {"apiVersion", "kind", "metadata"}
    if "status" in kind.subresources:
        left_out.add("status")
    return {name: value for name, value in document.items() if name not in left_out}


def mark_deleted(
    kind: Kind, document: Document, options: Mapping[str, Any], now: datetime
) -> Document:
    """``document``, changed by a delete: deletionTimestamp, grace period, and the finalizers of the
    garbage collector. A later delete can change the finalizers, and shorten a grace period."""
    strategy, meta = strategy_of(kind), document["metadata"]
    is_first = "deletionTimestamp" not in meta
    if strategy.mark is not None:
        if is_first:
            _set_policy(meta, options)
            meta["deletionTimestamp"] = render_time(now)
            strategy.mark(document, render_time(now))
        return document
    asked = options.get("gracePeriodSeconds")
    asked = 1 if asked is not None and asked < 0 else asked
    before = meta.get("deletionGracePeriodSeconds", 0)
    if before:
        if asked is None or asked >= before:
            return document
        end = parse_time(meta["deletionTimestamp"]) + timedelta(seconds=asked - before)
        if end < now:
            end, asked = now, min(asked, 1)
        meta |= {"deletionTimestamp": render_time(end), "deletionGracePeriodSeconds": asked}
    elif is_first:
        grace_s = strategy.grace_s(document, asked) if strategy.grace_s is not None else 0
        meta["deletionTimestamp"] = render_time(now + timedelta(seconds=grace_s))
        meta["deletionGracePeriodSeconds"] = grace_s
        if "generation" in meta:
            meta["generation"] += 1
    _set_policy(meta, options)
    return document


def _set_policy(meta: Document, options: Mapping[str, Any]) -> None:
    """Replace the garbage collector's finalizers, if the delete names a policy."""
    policy = options.get("propagationPolicy")
    if not policy:
        return
    finalizers = [
        one for one in meta.pop("finalizers", ()) if one not in _POLICY_FINALIZERS.values()
    ]
    finalizers += [_POLICY_FINALIZERS[policy]] if policy in _POLICY_FINALIZERS else []
    if finalizers:
        meta["finalizers"] = finalizers


def is_namespace(document: Document) -> bool:
    """Whether this is a Namespace, which is removed only when it is empty."""
    return (document["apiVersion"], document["kind"]) == ("v1", "Namespace")


def is_done(document: Document) -> bool:
    """Whether an object is being deleted, and has no finalizers and no grace period."""
    meta = document["metadata"]
    if "deletionTimestamp" not in meta or meta.get("finalizers"):
        return False
    if meta.get("deletionGracePeriodSeconds"):
        return False
    return not (is_namespace(document) and document.get("spec", {}).get("finalizers"))
