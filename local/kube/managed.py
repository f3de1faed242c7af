"""Who owns which field: ``managedFields``, and server-side apply, which lives by it.

A set of fields is a tree in the form that ``fieldsV1`` has on the wire: ``f:name`` for a member,
``k:{"type":"Ready"}`` for an item of a list with keys, ``v:"x"`` for a value of a set, ``.`` for the
item itself, and an empty tree for a leaf. This is the part of structured-merge-diff that one
version of each kind needs: sets are not converted between versions, and old Update entries are
never folded together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from local.clock import Clock
from local.kube import errors
from local.kube.formats import render_time
from local.kube.kinds import Document
from local.kube.schema import Schema

Tree = dict[str, Any]
_SELF = "."
_OWNED_METADATA = ("labels", "annotations", "finalizers", "ownerReferences", "generateName")


@dataclass(frozen=True)
class Writer:
    """Whose change it is: the identity of one entry of ``managedFields``."""

    manager: str
    operation: str
    api_version: str
    subresource: str

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

    def record_update(
        self, document: Document, old: Document | None, schema: Schema, writer: Writer
    ) -> None:
        """Note in ``document`` that the writer has made it what it is (any write but apply)."""
        touched, gone = _diff(_owned_part(old or {}), _owned_part(document), schema)
        entries: list[Document] = list((old or {}).get("metadata", {}).get("managedFields") or ())
        lost = union(touched, gone)
        mine: Tree = next((entry["fieldsV1"] for entry in entries if writer.owns(entry)), {})
        others = [
            {**entry, "fieldsV1": subtract(entry["fieldsV1"], lost)}
            for entry in entries
            if not writer.owns(entry)
        ]
        self._write(document, entries, others, union(subtract(mine, gone), touched), writer)

    def apply(
        self,
        live: Document,
        applied: Document,
        schema: Schema,
        writer: Writer,
        *,
        force: bool,
    ) -> Document:
        """What server-side apply makes of ``live``, ownership included.

        Raises 409 when somebody else owns a field that would change, unless ``force``.
        """
        entries: list[Document] = list(live["metadata"].get("managedFields") or ())
        wanted = field_tree(_owned_part(applied), schema)
        mine: Tree = next((entry["fieldsV1"] for entry in entries if writer.owns(entry)), {})
        others = [entry for entry in entries if not writer.owns(entry)]
        changing = _diff(
            _owned_part(live), merge(_owned_part(live), _owned_part(applied), schema), schema
        )[0]
        if not force:
            _refuse_conflicts(others, intersect(wanted, changing))
        others = [
            {**entry, "fieldsV1": subtract(entry["fieldsV1"], intersect(wanted, changing))}
            for entry in others
        ]
        dropped = subtract(mine, wanted)
        for entry in others:
            dropped = subtract(dropped, entry["fieldsV1"])
        merged: Document = _remove(merge(live, applied, schema), dropped, schema)
        self._write(merged, entries, others, wanted, writer)
        return merged

    def _write(
        self,
        document: Document,
        before: list[Document],
        others: list[Document],
        fields: Tree,
        writer: Writer,
    ) -> None:
        entries = [entry for entry in others if entry["fieldsV1"]]
        if fields:
            entries.append(self._entry(before, fields, writer))
        metadata = {**document["metadata"], "managedFields": entries}
        if not entries:
            del metadata["managedFields"]
        entries.sort(key=lambda entry: (entry["operation"], entry["time"], entry["manager"]))
        document["metadata"] = metadata

    def _entry(self, before: list[Document], fields: Tree, writer: Writer) -> Document:
        for entry in before:
            if writer.owns(entry) and entry["fieldsV1"] == fields:
                return entry
        entry = {
            "manager": writer.manager,
            "operation": writer.operation,
            "apiVersion": writer.api_version,
            "time": render_time(self._clock.now()),
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
        return {**entry, "subresource": writer.subresource} if writer.subresource else entry


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


def _owned_part(document: Document) -> Document:
    metadata = document.get("metadata", {})
    owned = {name: metadata[name] for name in _OWNED_METADATA if name in metadata}
    rest = {
        name: value
        for name, value in document.items()
        if name not in ("apiVersion", "kind", "metadata")
    }
    return {"metadata": owned, **rest} if owned else rest


# -- trees -----------------------------------------------------------------------------------------


def field_tree(value: Any, schema: Schema | None) -> Tree:
    """The fields of a value, down to its leaves."""
    if isinstance(value, dict):
        return {
            f"f:{name}": field_tree(item, _member(schema, name)) for name, item in value.items()
        }
    if isinstance(value, list) and schema is not None and schema.list_type == "map":
        return {
            _item_name(item, schema): {_SELF: {}, **field_tree(item, schema.items)}
            for item in value
        }
    if isinstance(value, list) and schema is not None and schema.list_type == "set":
        return {_item_name(item, schema): {} for item in value}
    return {}


def _member(schema: Schema | None, name: str) -> Schema | None:
    return None if schema is None else schema.properties.get(name, schema.additional)


def _item_name(item: Any, schema: Schema) -> str:
    prefix = "k" if schema.list_type == "map" else "v"
    key = json.dumps(schema.item_key(item), separators=(",", ":"), sort_keys=True)
    return f"{prefix}:{key}"


def union(one: Tree, other: Tree) -> Tree:
    """The fields of either."""
    merged = dict(one)
    for name, child in other.items():
        merged[name] = union(merged[name], child) if name in merged else child
    return merged


def subtract(one: Tree, other: Tree) -> Tree:
    """The fields of ``one`` that are not in ``other``; a leaf takes all beneath it along."""
    left: Tree = {}
    for name, child in one.items():
        taken = other.get(name)
        if taken is None:
            left[name] = child
        elif child and taken:
            rest = subtract(child, taken)
            left.update({name: rest} if rest else {})
    return left


def intersect(one: Tree, other: Tree) -> Tree:
    """The fields in both."""
    both: Tree = {}
    for name, child in one.items():
        if name not in other:
            continue
        common = intersect(child, other[name]) if child and other[name] else {}
        if common or not (child and other[name]):
            both[name] = common
    return both


def render_paths(tree: Tree, prefix: str = "") -> Iterator[str]:
    """Each leaf as a path: ``.spec.ports[port=80].name``."""
    for name, child in tree.items():
        path = prefix if name == _SELF else prefix + _render_element(name)
        if child:
            yield from render_paths(child, path)
        else:
            yield path


def _render_element(name: str) -> str:
    kind, _, rest = name.partition(":")
    if kind == "f":
        return f".{rest}"
    if kind == "v":
        return f"[={rest}]"
    keys = ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(rest).items())
    return f"[{keys}]"


def _diff(old: Any, new: Any, schema: Schema | None) -> tuple[Tree, Tree]:
    """What was set or changed between two objects, and what went away."""
    touched: Tree = {}
    gone: Tree = {}
    before, after = _parts(old, schema), _parts(new, schema)
    for name, (item, child) in after.items():
        if name not in before:
            touched[name] = _whole(name, item, child)
        elif before[name][0] != item:
            changed, lost = _diff_part(before[name][0], item, child)
            touched.update({name: changed} if changed is not None else {})
            gone.update({name: lost} if lost else {})
    for name, (item, child) in before.items():
        if name not in after:
            gone[name] = _whole(name, item, child)
    return touched, gone


def _diff_part(old: Any, new: Any, schema: Schema | None) -> tuple[Tree | None, Tree]:
    if not _parts(old, schema) or not _parts(new, schema):
        return field_tree(new, schema), field_tree(old, schema)
    changed, lost = _diff(old, new, schema)
    return changed or None, lost


def _whole(name: str, item: Any, schema: Schema | None) -> Tree:
    tree = field_tree(item, schema)
    return {_SELF: {}, **tree} if name.startswith("k:") else tree


def _parts(value: Any, schema: Schema | None) -> dict[str, tuple[Any, Schema | None]]:
    if isinstance(value, dict):
        return {f"f:{name}": (item, _member(schema, name)) for name, item in value.items()}
    if isinstance(value, list) and schema is not None and schema.list_type in ("map", "set"):
        return {_item_name(item, schema): (item, schema.items) for item in value}
    return {}


# -- merging ---------------------------------------------------------------------------------------


def merge(live: Any, applied: Any, schema: Schema | None) -> Any:
    """``live`` with all that ``applied`` says; lists as their type in the schema has it."""
    if isinstance(applied, dict):
        merged = dict(live) if isinstance(live, dict) else {}
        for name, item in applied.items():
            merged[name] = merge(merged.get(name), item, _member(schema, name))
        return merged
    if isinstance(applied, list) and isinstance(live, list):
        return _merge_list(live, applied, schema)
    return applied


def _merge_list(live: list[Any], applied: list[Any], schema: Schema | None) -> list[Any]:
    if schema is None or schema.list_type == "atomic":
        return applied
    items = {_item_name(item, schema): item for item in live}
    for item in applied:
        name = _item_name(item, schema)
        items[name] = merge(items[name], item, schema.items) if name in items else item
    return list(items.values())


def _remove(value: Any, tree: Tree, schema: Schema | None) -> Any:
    """``value`` without the leaves of ``tree``; parents that become empty stay."""
    if isinstance(value, dict):
        return {
            name: _remove(item, tree[f"f:{name}"], _member(schema, name))
            if tree.get(f"f:{name}")
            else item
            for name, item in value.items()
            if tree.get(f"f:{name}") != {}
        }
    if isinstance(value, list) and schema is not None:
        return [
            _remove(item, tree.get(_item_name(item, schema), {}), schema.items)
            for item in value
            if not _removes_item(tree.get(_item_name(item, schema)))
        ]
    return value


def _removes_item(tree: Tree | None) -> bool:
    return tree is not None and (not tree or _SELF in tree)
