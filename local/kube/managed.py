"""Who owns which field: ``managedFields``, and server-side apply, which lives by it.

This is the part of structured-merge-diff that one version of each kind needs: sets of fields
(`field_sets`) are not converted between versions, and old Update entries are never folded together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from local.base.clock import Clock
from local.kube import errors
from local.kube.field_sets import (
    Tree,
    compare,
    fields_of,
    intersect,
    item_name,
    member_schema,
    render_paths,
    subtract,
    union,
)
from local.kube.formats import render_time
from local.kube.kinds import Document
from local.kube.schema import Schema

_BEFORE_FIRST_APPLY = "before-first-apply"
_OWNED_METADATA = ("labels", "annotations", "finalizers", "ownerReferences", "generateName")


@dataclass(frozen=True)
class Writer:
    """Whose change it is: the identity of one entry of ``managedFields``."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    resets: tuple[str, ...] = ()
    """Members that are not this writer's to change, whatever it sends."""

    def owned_part(self, document: Document) -> Document:
        """What of an object can have owners, as far as it concerns this writer."""
        metadata = document.get("metadata", {})
        owned = {name: metadata[name] for name in _OWNED_METADATA if name in metadata}
        left_out = ("apiVersion", "kind", "metadata", *self.resets)
        rest = {name: value for name, value in document.items() if name not in left_out}
        return {"metadata": owned, **rest}

    def owns(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry is this writer's; an applier's holds for all versions."""
        same_version = self.operation == "Apply" or entry["apiVersion"] == self.api_version
        return same_version and (self.manager, self.operation, self.subresource) == (
            entry["manager"],
            entry["operation"],
            entry.get("subresource", ""),
        )


class Managers:
    """Writes ``managedFields`` for every write."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def record_create(
        self, document: Document, blank: Document, schema: Schema, writer: Writer
    ) -> None:
        """Note that the writer has made it what it is beyond ``blank``, its kind with nothing set."""
        self._record(document, blank, schema, writer)

    def record_update(
        self, document: Document, old: Document, schema: Schema, writer: Writer
    ) -> None:
        """Note what the writer has changed (by anything but apply).

        An object that nobody has owned any field of goes without such notes until it is applied.
        """
        if old["metadata"].get("managedFields"):
            self._record(document, old, schema, writer)

    def _record(self, document: Document, old: Document, schema: Schema, writer: Writer) -> None:
        touched, gone = compare(writer.owned_part(old), writer.owned_part(document), schema)
        entries: list[Document] = list(old.get("metadata", {}).get("managedFields") or ())
        lost = union(touched, gone)
        mine: Tree = next((entry["fieldsV1"] for entry in entries if writer.owns(entry)), {})
        others = [
            {**entry, "fieldsV1": subtract(entry["fieldsV1"], lost)}
            for entry in entries
            if not writer.owns(entry)
        ]
        fields = union(subtract(mine, gone), touched)
        self._write(document, others, self._entry(entries, fields, writer))

    def apply(
        self,
        live: Document,
        applied: Document,
        blank: Document,
        schema: Schema,
        writer: Writer,
        *,
        force: bool,
    ) -> Document:
        """What server-side apply makes of ``live``, ownership included; ``blank`` as for a create.

        Raises 409 when somebody else owns a field that would change, unless ``force``.
        """
        entries: list[Document] = list(live["metadata"].get("managedFields") or ())
        if not entries and "uid" in live["metadata"]:
            entries = self._before_first_apply(live, blank, schema, writer)
        wanted = fields_of(writer.owned_part(applied), schema)
        if not wanted.get("f:metadata"):
            wanted.pop("f:metadata", None)
        mine: Tree = next((entry["fieldsV1"] for entry in entries if writer.owns(entry)), {})
        others = [entry for entry in entries if not writer.owns(entry)]
        changing, _ = compare(
            writer.owned_part(live),
            merge(writer.owned_part(live), writer.owned_part(applied), schema),
            schema,
        )
        if not force:
            _refuse_conflicts(others, changing)
        others = [{**entry, "fieldsV1": subtract(entry["fieldsV1"], changing)} for entry in others]
        kept = _union_of(entry["fieldsV1"] for entry in others)
        said = {name: value for name, value in applied.items() if name not in writer.resets}
        merged: Document = drop(
            merge(live, said, schema), mine, {"f:metadata": {}, **wanted}, kept, schema
        )
        settled = writer.owned_part(merged) == writer.owned_part(live)
        entry = self._entry(entries, wanted, writer, settled=settled)
        self._write(merged, others, entry)
        return merged

    def _before_first_apply(
        self, live: Document, blank: Document, schema: Schema, writer: Writer
    ) -> list[Document]:
        """All that an object has held so far belongs to nobody in particular."""
        everybody = Writer(_BEFORE_FIRST_APPLY, "Update", writer.api_version, "", writer.resets)
        fields, _ = compare(everybody.owned_part(blank), everybody.owned_part(live), schema)
        return [self._entry([], fields, everybody)]

    def _write(
        self,
        document: Document,
        others: list[Document],
        own: Document,
    ) -> None:
        entries = [entry for entry in (*others, own) if entry["fieldsV1"]]
        metadata = {**document["metadata"], "managedFields": entries}
        if not entries:
            del metadata["managedFields"]
        entries.sort(key=_rank)
        document["metadata"] = metadata

    def _entry(
        self, before: list[Document], fields: Tree, writer: Writer, *, settled: bool = False
    ) -> Document:
        """The writer's entry; its time is that of its last change to an object, if it made any."""
        mine = next((entry for entry in before if writer.owns(entry)), {})
        if mine.get("fieldsV1") == fields:
            return mine
        time = mine.get("time") if settled else render_time(self._clock.now())
        entry = {
            "manager": writer.manager,
            "operation": writer.operation,
            "apiVersion": writer.api_version,
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
            "subresource": writer.subresource,
        }
        return {name: value for name, value in entry.items() if value or name == "fieldsV1"}


def _rank(entry: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("operation", "time", "manager", "apiVersion", "subresource")
    return tuple(str(entry.get(name, "")) for name in names)


def _union_of(trees: Iterable[Tree]) -> Tree:
    whole: Tree = {}
    for tree in trees:
        whole = union(whole, tree)
    return whole


def _refuse_conflicts(others: list[Document], changing: Tree) -> None:
    conflicts = [
        (_render_manager(entry), path)
        for entry in others
        for path in render_paths(intersect(entry["fieldsV1"], changing))
    ]
    if conflicts:
        raise errors.apply_conflict(conflicts)


def _render_manager(entry: Mapping[str, Any]) -> str:
    words = f'"{entry["manager"]}"'
    if entry.get("subresource"):
        words += f' with subresource "{entry["subresource"]}"'
    return words if entry["operation"] == "Apply" else f"{words} using {entry['apiVersion']}"


# -- merging ---------------------------------------------------------------------------------------


def merge(live: Any, applied: Any, schema: Schema | None) -> Any:
    """``live`` with all that ``applied`` says; lists as their type in the schema has it."""
    if isinstance(applied, dict):
        merged = dict(live) if isinstance(live, dict) else {}
        for name, item in applied.items():
            merged[name] = merge(merged.get(name), item, member_schema(schema, name))
        return merged
    if isinstance(applied, list) and isinstance(live, list):
        return _merge_list(live, applied, schema)
    return applied


def _merge_list(live: list[Any], applied: list[Any], schema: Schema | None) -> list[Any]:
    if schema is None or schema.list_type == "atomic":
        return applied
    items = {item_name(item, schema): item for item in live}
    for item in applied:
        name = item_name(item, schema)
        items[name] = merge(items[name], item, schema.items) if name in items else item
    return list(items.values())


def drop(value: Any, before: Tree, wanted: Tree, kept: Tree, schema: Schema | None) -> Any:
    """``value`` without what an applier owned ``before``, wants no more and nobody has ``kept``.

    A member goes with all that is in it, unless something in it is somebody else's.
    """
    if isinstance(value, dict):
        left = {}
        for name, item in value.items():
            field = f"f:{name}"
            if not _is_dropped(field, before, wanted, kept):
                left[name] = _drop_within(
                    item, field, before, wanted, kept, member_schema(schema, name)
                )
        return left
    if isinstance(value, list) and schema is not None and schema.list_type in ("map", "set"):
        return [
            _drop_within(item, name, before, wanted, kept, schema.items)
            for item in value
            if not _is_dropped(name := item_name(item, schema), before, wanted, kept)
        ]
    return value


def _is_dropped(name: str, before: Tree, wanted: Tree, kept: Tree) -> bool:
    return name in before and name not in wanted and name not in kept


def _drop_within(
    item: Any, name: str, before: Tree, wanted: Tree, kept: Tree, schema: Schema | None
) -> Any:
    if name not in before:
        return item
    return drop(item, before[name], wanted.get(name, {}), kept.get(name, {}), schema)
