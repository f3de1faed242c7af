"""What create, update, patch and delete mean: the rules that hold for every kind.

A write goes through the same stations as in kube-apiserver: who owns which field of ``metadata``,
what a subresource may change, prune, default, validate, admission, generation, and the store. The
kinds differ in their rows (`kinds`) and in a few functions (`strategies`), not here.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from local.clock import Clock
from local.kube import errors, metadata
from local.kube.catalogue import Catalogue
from local.kube.errors import FieldError
from local.kube.formats import render_time
from local.kube.kinds import Document, Kind, Version
from local.kube.managed import Managers, writer_of
from local.kube.schema import ABSENT, find_errors, type_name
from local.kube.store import Key, Record, Store
from local.kube.strategies import strategy_of
from local.kube.users import User

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_MAX_GENERATED_BASE = 58
_NAME_TRIES = 8
"""Tries for a free generated name (documented, since 1.31)."""

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_POLICY_FINALIZERS = {"Foreground": FOREGROUND, "Orphan": ORPHAN}
"""What a delete's propagationPolicy leaves for the garbage collector to do first."""

_POLICIES = frozenset(_POLICY_FINALIZERS.values())
_SET_BY_SERVER = (
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "generation",
    "resourceVersion",
)
_VERSION_MISSING = FieldError(
    "FieldValueInvalid",
    "metadata.resourceVersion",
    "Invalid value: 0x0: must be specified for an update",
)
_MUTABLE_PARTS = {"status": ("status",), "approval": ("status",), "finalize": ("spec",)}
"""What a write to a subresource may change; all else stays as it is."""

_PROTECTED_NAMESPACES = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})


@dataclass(frozen=True)
class Options:
    """What a client may ask of a write, whatever the object."""

    field_manager: str = ""
    dry_run: bool = False
    field_validation: str = "Warn"
    force: bool = False


DEFAULTS = Options()


@dataclass(frozen=True)
class Outcome:
    """A write that has been carried out (or, as a dry run, would have been)."""

    record: Record
    created: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deletion:
    """What a delete did: ``gone``, or waiting for finalizers."""

    record: Record
    gone: bool


@dataclass
class Attributes:
    """One write, as admission sees it. ``document`` may be changed by it until it is stored.

    ``old`` is ``None`` when the object is being created.
    """

    user: User
    kind: Kind
    subresource: str
    document: Document
    old: Document | None
    operation: str


class Admission(Protocol):
    """Says no by raising `ApiError`, or changes ``attributes.document``."""

    def __call__(self, attributes: Attributes) -> None: ...


class Resources:
    """All objects, with the API server's rules around them."""

    def __init__(self, store: Store, catalogue: Catalogue, clock: Clock, random: Random) -> None:
        self.store = store
        self.catalogue = catalogue
        self._clock = clock
        self._random = random
        self._managers = Managers(clock)
        self.admission: list[Admission] = []

    # -- reading ----------------------------------------------------------------------------------

    def get(self, kind: Kind, key: Key) -> Record:
        """One object. Raises 404."""
        record = self.store.find(kind.resource, key)
        if record is None:
            raise errors.not_found(kind.resource, key[1])
        return record

    # -- create -----------------------------------------------------------------------------------

    def create(
        self,
        kind: Kind,
        version: Version,
        namespace: str,
        document: Document,
        user: User,
        options: Options = DEFAULTS,
        *,
        applied: bool = False,
    ) -> Outcome:
        """Store a new object; ``document`` is used up. Raises what Kubernetes would answer.

        ``applied``: it comes from server-side apply and brings its managedFields along.
        """
        _check_type(kind, version, document)
        meta = own_metadata(document)
        if meta.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        self._place(kind, meta, namespace)
        self._name(kind, meta)
        self._check_namespace(kind, meta)
        self._fill_system_fields(kind, meta)
        if "status" in version.subresources and not kind.status_on_create:
            document.pop("status", None)
        document.update(json.loads(json.dumps(kind.initial)))
        warnings = decode(kind, version, document, ABSENT, options)
        strategy_of(kind).prepare_create(document, user)
        self._admit(Attributes(user, kind, "", document, None, "CREATE"))
        if not applied:
            meta.pop("managedFields", None)
            self._record_managers(kind, version, document, None, options)
        _validate(kind, version, document, None)
        return Outcome(self._store_new(kind, document, options), True, warnings)

    def _place(self, kind: Kind, meta: Document, namespace: str) -> None:
        if not kind.namespaced:
            meta.pop("namespace", None)
        elif (meta.get("namespace") or namespace) != namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the "
                "request"
            )
        else:
            meta["namespace"] = namespace

    def _name(self, kind: Kind, meta: Document) -> None:
        if meta.get("name"):
            return
        prefix = meta.get("generateName")
        if not prefix:
            missing = errors.required("metadata.name", "name or generateName is required")
            raise errors.invalid(kind.qualified_kind, "", [missing])
        for _ in range(_NAME_TRIES):
            suffix = "".join(self._random.choice(_SUFFIX_LETTERS) for _ in range(5))
            meta["name"] = prefix[:_MAX_GENERATED_BASE] + suffix
            if self.store.find(kind.resource, _key_of(meta)) is None:
                return

    def _check_namespace(self, kind: Kind, meta: Mapping[str, Any]) -> None:
        """NamespaceLifecycle: no object without its namespace, none new in one that goes."""
        if not kind.namespaced:
            return
        name = meta["namespace"]
        namespace = self.store.find("namespaces", ("", name))
        if namespace is None:
            raise errors.not_found("namespaces", name)
        if "deletionTimestamp" in namespace.metadata:
            why = f"unable to create new content in namespace {name} because it is being terminated"
            cause = FieldError(
                "NamespaceTerminating",
                "metadata.namespace",
                f"namespace {name} is being terminated",
            )
            raise errors.forbidden(kind.resource, meta["name"], why, [cause])

    def _fill_system_fields(self, kind: Kind, meta: Document) -> None:
        for name in _SET_BY_SERVER:
            meta.pop(name, None)
        meta["uid"] = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        meta["creationTimestamp"] = render_time(self._clock.now())
        if kind.counts_generation:
            meta["generation"] = 1

    def _store_new(self, kind: Kind, document: Document, options: Options) -> Record:
        document["apiVersion"] = kind.api_version(kind.storage)
        key = _key_of(document["metadata"])
        if self.store.find(kind.resource, key) is not None:
            raise errors.already_exists(kind.resource, key[1])
        if options.dry_run:
            return Record.of(document, 0)
        return self.store.put(kind.resource, document)

    # -- update -----------------------------------------------------------------------------------

    def update(
        self,
        kind: Kind,
        version: Version,
        key: Key,
        document: Document,
        user: User,
        options: Options = DEFAULTS,
        subresource: str = "",
    ) -> Outcome:
        """PUT: replace an object, or what of it belongs to the subresource."""
        found = self.store.find(kind.resource, key)
        if found is None and kind.create_on_update and not subresource:
            return self.create(kind, version, key[0], document, user, options)
        record = self.get(kind, key)
        versioned = bool(own_metadata(document).get("resourceVersion"))
        if not versioned and (kind.custom or kind.require_version):
            raise errors.invalid(kind.qualified_kind, key[1], [_VERSION_MISSING])
        return self.replace(kind, version, record, document, user, options, subresource)

    def replace(
        self,
        kind: Kind,
        version: Version,
        record: Record,
        document: Document,
        user: User,
        options: Options = DEFAULTS,
        subresource: str = "",
        *,
        applied: bool = False,
    ) -> Outcome:
        """Store ``document``, which is used up, in place of ``record``.

        ``applied``: the document comes from server-side apply and brings its managedFields along.
        Raises 409, 422 and what admission says.
        """
        _check_type(kind, version, document)
        meta = own_metadata(document)
        _check_preconditions(kind, record, meta)
        old = record.document
        document = _isolate(kind, version, subresource, document, old)
        _restore_system_fields(document["metadata"], record.metadata, applied=applied)
        warnings = decode(kind, version, document, old, options)
        strategy_of(kind).prepare_update(document, old, user, subresource)
        self._admit(Attributes(user, kind, subresource, document, old, "UPDATE"))
        if kind.counts_generation and _content(version, document) != _content(version, old):
            document["metadata"]["generation"] = record.metadata.get("generation", 0) + 1
        if not applied:
            self._record_managers(kind, version, document, old, options, subresource)
        _validate(kind, version, document, old)
        return Outcome(self._store_changed(kind, record, document, options), False, warnings)

    def _store_changed(
        self, kind: Kind, record: Record, document: Document, options: Options
    ) -> Record:
        document["apiVersion"] = kind.api_version(kind.storage)
        if document == record.document or options.dry_run:
            return Record.of(document, record.revision)
        if _is_done(document):
            return self.store.remove(kind.resource, record.key, document)
        return self.store.put(kind.resource, document)

    def apply(
        self,
        kind: Kind,
        version: Version,
        key: Key,
        applied: Document,
        user: User,
        options: Options,
        subresource: str = "",
    ) -> Outcome:
        """Server-side apply: create, or merge what is said and drop what is said no more."""
        record = self.store.find(kind.resource, key)
        if record is None and subresource:
            raise errors.not_found(kind.resource, key[1])
        live = _blank(kind, version, key) if record is None else record.copy()
        writer = writer_of(kind, version, options.field_manager, "Apply", subresource)
        merged = self._managers.apply(live, applied, version.schema, writer, force=options.force)
        if record is not None:
            return self.replace(
                kind, version, record, merged, user, options, subresource, applied=True
            )
        return self.create(kind, version, key[0], merged, user, options, applied=True)

    # -- delete -----------------------------------------------------------------------------------

    def delete(
        self, kind: Kind, key: Key, user: User, wishes: Mapping[str, Any] | None = None
    ) -> Deletion:
        """Delete an object, or mark it for deletion while finalizers hold it.

        ``wishes`` are DeleteOptions: preconditions, propagationPolicy, dryRun. Raises 403 for the
        system's namespaces, 404, and 409 for preconditions that do not hold.
        """
        wishes = wishes or {}
        record = self.get(kind, key)
        _check_delete_preconditions(kind, record, wishes.get("preconditions") or {})
        if kind.resource == "namespaces" and key[1] in _PROTECTED_NAMESPACES:
            raise errors.forbidden("namespaces", key[1], "this namespace may not be deleted")
        self._admit(Attributes(user, kind, "", record.copy(), record.document, "DELETE"))
        if "deletionTimestamp" in record.metadata:
            return Deletion(record, gone=False)
        marked = self._mark(record, str(wishes.get("propagationPolicy") or "Background"))
        if wishes.get("dryRun"):
            return Deletion(Record.of(marked, record.revision), _is_done(marked))
        if _is_done(marked):
            final = record.copy()
            return Deletion(self.store.remove(kind.resource, key, final), gone=True)
        return Deletion(self.store.put(kind.resource, marked), gone=False)

    def _mark(self, record: Record, policy: str) -> Document:
        document = record.copy()
        meta = document["metadata"]
        finalizers = [name for name in meta.get("finalizers", []) if name not in _POLICIES]
        finalizers += [_POLICY_FINALIZERS[policy]] if policy in _POLICY_FINALIZERS else []
        if finalizers:
            meta["finalizers"] = finalizers
        else:
            meta.pop("finalizers", None)
        meta["deletionTimestamp"] = render_time(self._clock.now())
        meta["deletionGracePeriodSeconds"] = 0
        if "generation" in meta:
            meta["generation"] += 1
        if _is_namespace(document):
            document["status"] = {**document.get("status", {}), "phase": "Terminating"}
        return document

    # -- what writes share ------------------------------------------------------------------------

    def _admit(self, attributes: Attributes) -> None:
        for admission in self.admission:
            admission(attributes)

    def _record_managers(
        self,
        kind: Kind,
        version: Version,
        document: Document,
        old: Document | None,
        options: Options,
        subresource: str = "",
    ) -> None:
        writer = writer_of(kind, version, options.field_manager or "unknown", "Update", subresource)
        self._managers.record_update(document, old, version.schema, writer)


_TEXTS = ("name", "generateName", "namespace", "uid", "resourceVersion")


def own_metadata(document: Document) -> Document:
    """The document's metadata, made its own (a change to it changes nothing else)."""
    found = document.get("metadata")
    if found is not None and not isinstance(found, dict):
        raise errors.bad_request("metadata must be an object")
    own: Document = dict(found or {})
    for name in _TEXTS:
        if not isinstance(own.get(name) or "", str):
            raise errors.bad_request(
                f"json: cannot unmarshal {type_name(own[name])} into Go struct field "
                f"ObjectMeta.metadata.{name} of type string"
            )
    document["metadata"] = own
    return own


def _key_of(meta: Mapping[str, Any]) -> Key:
    return meta.get("namespace", ""), meta["name"]


def _blank(kind: Kind, version: Version, key: Key) -> Document:
    meta = {"name": key[1], **({"namespace": key[0]} if key[0] else {})}
    return {"apiVersion": kind.api_version(version.name), "kind": kind.kind, "metadata": meta}


def _check_type(kind: Kind, version: Version, document: Document) -> None:
    """Does the body say that it is of the URL's kind? A body that says nothing is taken as such."""
    wanted = kind.api_version(version.name)
    found = document.setdefault("apiVersion", wanted), document.setdefault("kind", kind.kind)
    if found[0] != wanted:
        raise errors.bad_request(
            f"the API version in the data ({found[0]}) does not match the expected API version "
            f"({wanted})"
        )
    if found[1] != kind.kind:
        raise errors.bad_request(
            f'{found[1]} in version "{version.name}" cannot be handled as a {kind.kind}: '
            f"converting ({found[1]}) to ({kind.kind}): unknown conversion"
        )


def _check_preconditions(kind: Kind, record: Record, meta: Document) -> None:
    """Is this the object that the URL names, as the client last saw it?"""
    namespace, name = record.key
    if meta.setdefault("name", name) != name:
        raise errors.bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL ({name})"
        )
    if namespace and (meta.get("namespace") or namespace) != namespace:
        raise errors.bad_request(
            f"the namespace of the object ({meta['namespace']}) does not match the namespace on "
            f"the URL ({namespace})"
        )
    uid = record.metadata["uid"]
    if (meta.get("uid") or uid) != uid:
        raise errors.conflict(
            kind.resource,
            name,
            f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {uid}",
        )
    if (meta.get("resourceVersion") or str(record.revision)) != str(record.revision):
        raise errors.conflict(kind.resource, name, errors.MODIFIED)


def _check_delete_preconditions(kind: Kind, record: Record, wanted: Mapping[str, Any]) -> None:
    uid, version = record.metadata["uid"], str(record.revision)
    if (wanted.get("uid") or uid) != uid:
        raise errors.conflict(
            kind.resource,
            record.key[1],
            f"Precondition failed: UID in precondition: {wanted['uid']}, UID in object meta: {uid}",
        )
    if (wanted.get("resourceVersion") or version) != version:
        raise errors.conflict(
            kind.resource,
            record.key[1],
            f"the ResourceVersion in the precondition ({wanted['resourceVersion']}) does not match "
            f"the ResourceVersion in record ({version}). The object might have been modified",
        )


def _isolate(
    kind: Kind, version: Version, subresource: str, document: Document, old: Document
) -> Document:
    """What is left of ``document`` when only what the (sub)resource owns is taken from it."""
    if subresource:
        parts = _MUTABLE_PARTS[subresource]
        kept = {name: value for name, value in old.items() if name not in parts}
        new = {**kept, **{name: document[name] for name in parts if name in document}}
        # A custom resource's status write leaves metadata alone; the built-in kinds' does not.
        new["metadata"] = dict(old["metadata"] if kind.custom else document["metadata"])
        if kind.custom and "managedFields" in document["metadata"]:
            new["metadata"]["managedFields"] = document["metadata"]["managedFields"]
        return new
    if "status" not in version.subresources:
        return document
    document.pop("status", None)
    return {**document, **({"status": old["status"]} if "status" in old else {})}


def _restore_system_fields(meta: Document, old: Mapping[str, Any], *, applied: bool) -> None:
    """Put back what no client may change; leave what is refused when it differs."""
    for name in ("uid", "creationTimestamp", "namespace"):
        if not meta.get(name) and name in old:
            meta[name] = old[name]
    for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"):
        meta.pop(name, None)
        meta.update({name: old[name]} if name in old else {})
    meta["resourceVersion"] = old["resourceVersion"]
    if not applied:
        meta.pop("managedFields", None)
        meta.update({"managedFields": old["managedFields"]} if "managedFields" in old else {})


def decode(
    kind: Kind, version: Version, document: Document, old: Any, options: Options
) -> tuple[str, ...]:
    """Prune and default; unknown fields are refused, warned of or dropped, as the client wishes.

    Raises 400, as Go's decoder would, also for values of a wrong type in the fields that Go knows:
    all of a built-in kind, and the metadata of any.
    """
    unknown = version.schema.fill(document, old)
    meta = document["metadata"]
    for name in [name for name, value in meta.items() if value in ("", [], {})]:
        del meta[name]  # Go leaves out what is empty
    _refuse_undecodable(kind, version, document, old)
    if not unknown or options.field_validation == "Ignore":
        return ()
    findings = tuple(f'unknown field "{path}"' for path in unknown)
    if options.field_validation == "Strict":
        raise strict_decoding_error(kind, version, findings)
    return findings


def _refuse_undecodable(kind: Kind, version: Version, document: Document, old: Any) -> None:
    schema, value, path = version.schema, document, ""
    if kind.custom:
        schema, value, path = (
            version.schema.properties["metadata"],
            document["metadata"],
            "metadata",
        )
        old = ABSENT if old is ABSENT else old["metadata"]
    for error in schema.validate(value, old, path):
        if error.reason == "FieldValueTypeInvalid":
            raise errors.bad_request(
                f'{kind.kind} in version "{version.name}" cannot be handled as a {kind.kind}: '
                f"json: cannot unmarshal into Go struct field {kind.kind}.{error.field}: "
                f"{error.message}"
            )


def read_review(kind: Kind, version: Version, document: Document, options: Options) -> Document:
    """A review as it was sent, decoded; reviews are answered and never stored."""
    _check_type(kind, version, document)
    own_metadata(document)
    decode(kind, version, document, ABSENT, options)
    return document


def strict_decoding_error(
    kind: Kind, version: Version, findings: tuple[str, ...]
) -> errors.ApiError:
    """400 of a body with unknown or doubled fields, when the client has asked to be strict."""
    words = f"strict decoding error: {', '.join(findings)}"
    if not kind.custom:
        words = (
            f'{kind.kind} in version "{version.name}" cannot be handled as a {kind.kind}: {words}'
        )
    return errors.bad_request(words)


def _validate(kind: Kind, version: Version, document: Document, old: Document | None) -> None:
    meta = document["metadata"]
    found = find_errors(version.schema, document, ABSENT if old is None else old)
    found = [
        *metadata.find_errors(meta, kind.name_style, None if old is None else old["metadata"]),
        *found,
        *(_immutable_errors(kind, document, old) if old is not None else ()),
    ]
    found = found or list(strategy_of(kind).find_errors(document, old))
    if found:
        raise errors.invalid(kind.qualified_kind, meta["name"], found)


def _immutable_errors(kind: Kind, document: Document, old: Document) -> Iterator[FieldError]:
    for path in kind.immutable:
        value = _read(document, path)
        if value != _read(old, path):
            yield errors.invalid_value(".".join(path), value, "field is immutable")
    for path in kind.immutable_once_set:
        before = _read(old, path)
        if before and _read(document, path) != before:
            yield errors.forbidden_field(
                ".".join(path),
                f'{kind.kind.lower()} updates may not change {path[-1]} except from "" to valid',
            )


def _read(document: Document, path: tuple[str, ...]) -> Any:
    value: Any = document
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _content(version: Version, document: Document) -> Document:
    """What counts for ``metadata.generation``."""
    left_out = {"apiVersion", "kind", "metadata"}
    if "status" in version.subresources:
        left_out.add("status")
    return {name: value for name, value in document.items() if name not in left_out}


def _is_namespace(document: Document) -> bool:
    return (document["apiVersion"], document["kind"]) == ("v1", "Namespace")


def _is_done(document: Document) -> bool:
    """Whether an object that is being deleted has nothing left to hold it."""
    meta = document["metadata"]
    if "deletionTimestamp" not in meta or meta.get("finalizers"):
        return False
    return not (_is_namespace(document) and document.get("spec", {}).get("finalizers"))
