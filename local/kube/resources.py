"""Create, update, patch and delete, with the rules that apply to every kind.

A write has the same stages as in kube-apiserver: system fields of ``metadata``, isolation of the
subresource, pruning, defaulting, admission, validation, generation, store. The differences between
kinds are in `kinds` and `strategies`.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping
from random import Random
from typing import Any

from local.base.clock import Clock
from local.kube import errors
from local.kube.catalogue import Catalogue
from local.kube.decoding import decode, own_metadata
from local.kube.errors import FieldError
from local.kube.formats import render_time
from local.kube.kinds import Document, Kind
from local.kube.lifecycle import (
    check_delete_preconditions,
    check_preconditions,
    content_of,
    is_done,
    isolate,
    mark_deleted,
    restore_system_fields,
    validate,
)
from local.kube.store import Key, Record, Store
from local.kube.strategies import strategy_of
from local.kube.users import User
from local.kube.writing import Admission, Attributes, Deletion, Outcome, Write

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_MAX_GENERATED_BASE = 58
_SET_BY_SERVER = (
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "generation",
    "resourceVersion",
    "managedFields",
)
_VERSION_MISSING = FieldError(
    "FieldValueInvalid",
    "metadata.resourceVersion",
    "Invalid value: 0: must be specified for an update",
)
_PROTECTED_NAMESPACES = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})


class Resources:
    """All objects, with the API server's rules."""

    def __init__(self, store: Store, catalogue: Catalogue, clock: Clock, random: Random) -> None:
        self.store = store
        self.catalogue = catalogue
        self._clock = clock
        self._random = random
        self.admission: list[Admission] = []

    # -- reading ----------------------------------------------------------------------------------

    def get(self, kind: Kind, key: Key) -> Record:
        """Get an object. Raises 404."""
        record = self.store.find(kind.resource, key)
        if record is None:
            raise errors.not_found(kind.resource, key[1])
        return record

    # -- create -----------------------------------------------------------------------------------

    def create(self, write: Write, namespace: str, document: Document) -> Outcome:
        """Store a new object. Changes ``document``. Raises the error that Kubernetes would return."""
        warnings = decode(write, document)
        meta = document["metadata"]
        strategy = strategy_of(write.kind)
        strategy.default(document)
        _place(write.kind, meta, namespace)
        self._name(write.kind, meta)
        self._check_namespace(write.kind, meta)
        if meta.get("resourceVersion"):
            raise errors.version_on_create()
        self._fill_system_fields(write.kind, meta)
        attributes = self.admit(write.user, write.kind, document, None, "CREATE")
        if "status" in write.kind.subresources and not write.kind.status_on_create:
            document.pop("status", None)
        document.update(json.loads(json.dumps(write.kind.initial)))
        write.kind.schema.fill(document)
        validate(write, document, None)
        strategy.prepare(attributes)
        warnings = (*warnings, *attributes.warnings)
        return Outcome(self._store_new(write, document), True, warnings)

    def read_review(self, write: Write, document: Document) -> Document:
        """Decode a review."""
        decode(write, document)
        return document

    def _name(self, kind: Kind, meta: Document) -> None:
        if meta.get("name"):
            return
        prefix = meta.get("generateName")
        if not prefix:
            missing = errors.required("metadata.name", "name or generateName is required")
            raise errors.invalid(kind.qualified_kind, "", [missing])
        suffix = "".join(self._random.choice(_SUFFIX_LETTERS) for _ in range(5))
        meta["name"] = prefix[:_MAX_GENERATED_BASE] + suffix

    def _check_namespace(self, kind: Kind, meta: Mapping[str, Any]) -> None:
        """NamespaceLifecycle: reject a new object if its namespace is absent or being deleted."""
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

    def _store_new(self, write: Write, document: Document) -> Record:
        resource, meta = write.kind.resource, document["metadata"]
        if self.store.find(resource, (meta.get("namespace", ""), meta["name"])) is not None:
            raise errors.already_exists(resource, meta["name"])
        if write.dry_run:
            return Record.unstored(document)
        return self.store.put(resource, document)

    # -- update -----------------------------------------------------------------------------------

    def update(self, write: Write, key: Key, document: Document) -> Outcome:
        """PUT: replace an object, or its part that belongs to the subresource."""
        kind, record = write.kind, self.get(write.kind, key)
        meta = own_metadata(write, document)
        if not meta.get("resourceVersion") and (kind.custom or kind.require_version):
            raise errors.invalid(kind.resource, key[1], [_VERSION_MISSING])
        return self.replace(dataclasses.replace(write, whole=True), record, document)

    def replace(self, write: Write, record: Record, document: Document) -> Outcome:
        """Store ``document`` in place of ``record``. Changes ``document``.

        Raises 409, 422, and the errors of admission.
        """
        kind, old = write.kind, record.document
        warnings = decode(write, document, old)
        strategy = strategy_of(kind)
        strategy.default(document)
        check_preconditions(write, record, document["metadata"])
        document = isolate(write, document, old)
        restore_system_fields(document["metadata"], record.metadata)
        attributes = self.admit(write.user, kind, document, old, "UPDATE", write.subresource)
        validate(write, document, old)
        strategy.prepare(attributes)
        if kind.counts_generation and content_of(kind, document) != content_of(kind, old):
            document["metadata"]["generation"] = record.metadata.get("generation", 0) + 1
        warnings = (*warnings, *attributes.warnings)
        return Outcome(self._store_changed(write, record, document), False, warnings)

    def _store_changed(self, write: Write, record: Record, document: Document) -> Record:
        if document == record.document or write.dry_run:
            return Record.of(document, record.revision)
        if is_done(document):
            self.store.remove(write.kind.resource, record.key, record.copy())
            return Record.of(document, record.revision)
        return self.store.put(write.kind.resource, document)

    # -- delete -----------------------------------------------------------------------------------

    def delete(
        self, kind: Kind, key: Key, user: User, options: Mapping[str, Any] | None = None
    ) -> Deletion:
        """Delete an object; if it has finalizers or a grace period, set its deletionTimestamp.

        ``options`` are DeleteOptions: gracePeriodSeconds, preconditions, propagationPolicy, dryRun.
        Raises 403 for the system's namespaces, 404, and 409 for preconditions that do not hold.
        """
        options = options or {}
        record = self.get(kind, key)
        check_delete_preconditions(kind, record, options.get("preconditions") or {})
        if kind.resource == "namespaces" and key[1] in _PROTECTED_NAMESPACES:
            raise errors.forbidden("namespaces", key[1], "this namespace may not be deleted")
        self.admit(user, kind, record.copy(), record.document, "DELETE")
        marked = mark_deleted(kind, record.copy(), options, self._clock.now())
        if options.get("dryRun"):
            return Deletion(Record.of(marked, record.revision), is_done(marked))
        is_changed, is_gone = marked != record.document, is_done(marked)
        if is_changed and (not is_gone or strategy_of(kind).grace_s is not None):
            record = self.store.put(kind.resource, marked)
        if is_gone:
            record = self.store.remove(kind.resource, key, record.copy())
        return Deletion(record, is_gone)

    # -- helpers of all writes --------------------------------------------------------------------

    def admit(
        self,
        user: User,
        kind: Kind,
        document: Document,
        old: Document | None,
        operation: str,
        subresource: str = "",
    ) -> Attributes:
        """Call the admission plugins about a write. Raises the error of the first that denies it."""
        now = render_time(self._clock.now())
        attributes = Attributes(user, kind, document, old, operation, now, subresource)
        for admission in self.admission:
            admission(attributes)
        return attributes


def _place(kind: Kind, meta: Document, namespace: str) -> None:
    """Set the namespace of an object to that of the URL. Raises 400 if it has another one."""
    if not kind.namespaced:
        meta.pop("namespace", None)
    elif (meta.get("namespace") or namespace) != namespace:
        raise errors.mismatch("namespace", meta["namespace"], namespace)
    else:
        meta["namespace"] = namespace
