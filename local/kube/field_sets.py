"""Sets of fields, in the form that ``fieldsV1`` has on the wire, and what they are made from.

A set is a tree: ``f:name`` for a member, ``k:{"type":"Ready"}`` for an item of a list with keys,
``v:"x"`` for a value of a set, and ``.`` within a branch for the field itself. An empty branch is a
field without others beneath it; an empty tree is the empty set. As structured-merge-diff has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from local.kube.schema import ABSENT, Schema

Tree = dict[str, Any]
SELF = "."


def _branch(tree: Tree, *, itself: bool) -> Tree:
    return {SELF: {}, **tree} if tree and itself else tree


def _holds_itself(branch: Tree) -> bool:
    return not branch or SELF in branch


def _below(branch: Tree) -> Tree:
    return {name: child for name, child in branch.items() if name != SELF}


def union(one: Tree, other: Tree) -> Tree:
    """The fields of either."""
    merged = dict(one)
    for name, theirs in other.items():
        mine = merged.get(name)
        merged[name] = (
            theirs
            if mine is None
            else _branch(
                union(_below(mine), _below(theirs)),
                itself=_holds_itself(mine) or _holds_itself(theirs),
            )
        )
    return merged


def subtract(one: Tree, other: Tree) -> Tree:
    """The fields of ``one`` that are not in ``other``."""
    left: Tree = {}
    for name, mine in one.items():
        theirs = other.get(name)
        if theirs is None:
            left[name] = mine
            continue
        below = subtract(_below(mine), _below(theirs))
        itself = _holds_itself(mine) and not _holds_itself(theirs)
        if below or itself:
            left[name] = _branch(below, itself=itself)
    return left


def intersect(one: Tree, other: Tree) -> Tree:
    """The fields in both."""
    both: Tree = {}
    for name, mine in one.items():
        theirs = other.get(name)
        if theirs is None:
            continue
        below = intersect(_below(mine), _below(theirs))
        itself = _holds_itself(mine) and _holds_itself(theirs)
        if below or itself:
            both[name] = _branch(below, itself=itself)
    return both


def render_paths(tree: Tree, prefix: str = "") -> Iterator[str]:
    """Each field as a path: ``.spec.ports[port=80].name``."""
    for name, branch in tree.items():
        path = prefix + _render_element(name)
        if _holds_itself(branch):
            yield path
        yield from render_paths(_below(branch), path)


def _render_element(name: str) -> str:
    kind, _, rest = name.partition(":")
    if kind == "f":
        return f".{rest}"
    if kind == "v":
        return f"[={rest}]"
    keys = ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(rest).items())
    return f"[{keys}]"


# -- faults of form --------------------------------------------------------------------------------


def find_faults(value: Any, schema: Schema, path: str = "") -> Iterator[str]:
    """Why a value that is applied has no fields that could be owned, in its library's words."""
    if value is None:
        return
    if isinstance(value, dict):
        yield from _member_faults(value, schema, path)
    elif isinstance(value, list) and schema.items is not None:
        yield from _item_faults(value, schema, path)
        for index, item in enumerate(value):
            yield from find_faults(item, schema.items, f"{path}[{index}]")
    elif schema.source.get("type") == "string" and not isinstance(value, str):
        shown = json.dumps(value)
        yield f"{path}: expected string, got &value.valueUnstructured{{Value:{shown}}}"


def _member_faults(value: dict[str, Any], schema: Schema, path: str) -> Iterator[str]:
    for name, item in value.items():
        child = member_schema(schema, name)
        if child is not None:
            yield from find_faults(item, child, f"{path}.{name}")
        elif not schema.keeps_unknown and schema.properties:
            yield f"{path}.{name}: field not declared in schema"


def _item_faults(value: list[Any], schema: Schema, path: str) -> Iterator[str]:
    if schema.list_type not in ("map", "set"):
        return
    seen = set()
    for index, item in enumerate(value):
        if schema.list_type == "map" and not isinstance(item, dict):
            why = "associative list with keys may not have non-map elements"
            yield f"{path}: element {index}: {why}"
            return
        keys = schema.item_key(item)
        if isinstance(keys, dict) and schema.list_type == "map" and not any(keys.values()):
            names = " ".join(json.dumps(name) for name in schema.map_keys)
            yield (
                f"{path}: element {index}: associative list with keys has an element that omits all "
                f"key fields [{names}] (and doesn't have default values for any key fields)"
            )
            continue
        shown = _render_element(item_name(item, schema))
        if shown in seen:
            yield f"{path}: duplicate entries for key {shown}"
        seen.add(shown)


# -- from values -----------------------------------------------------------------------------------


def member_schema(schema: Schema | None, name: str) -> Schema | None:
    """The schema of an object's member, or ``None`` where it may be anything."""
    return None if schema is None else schema.properties.get(name, schema.additional)


def item_name(item: Any, schema: Schema) -> str:
    """The name of an item of a ``map`` or ``set`` list."""
    prefix = "k" if schema.list_type == "map" else "v"
    key = json.dumps(schema.item_key(item), separators=(",", ":"), sort_keys=True)
    return f"{prefix}:{key}"


Parts = dict[str, tuple[Any, "Schema | None"]]


def _parts(value: Any, schema: Schema | None) -> Parts:
    """The fields right beneath a value; none where it is owned as a whole."""
    if isinstance(value, dict) and not (schema is not None and schema.is_atomic):
        return {f"f:{name}": (item, member_schema(schema, name)) for name, item in value.items()}
    if isinstance(value, list) and schema is not None and schema.list_type in ("map", "set"):
        return {item_name(item, schema): (item, schema.items) for item in value}
    return {}


def fields_of(value: Any, schema: Schema | None) -> Tree:
    """The fields that somebody claims who applies a value: leaves, items, and members of maps."""
    tree: Tree = {}
    for name, (item, child) in _parts(value, schema).items():
        if item == [] and child is not None and child.list_type in ("map", "set"):
            continue
        declared = schema is not None and name.removeprefix("f:") in schema.properties
        tree[name] = _branch(fields_of(item, child), itself=not declared)
    return tree


def compare(old: Any, new: Any, schema: Schema | None) -> tuple[Tree, Tree]:
    """What has been set or changed from ``old`` to ``new``, and what has gone."""
    touched: Tree = {}
    gone: Tree = {}
    before, after = _parts(old, schema), _parts(new, schema)
    for name in {**before, **after}:
        was, child = before.get(name, (ABSENT, None))
        now, child = after.get(name, (ABSENT, child))
        if was is not ABSENT and was == now:
            continue
        more, less = _compare_branch(was, now, child)
        touched.update({} if more is None else {name: more})
        gone.update({} if less is None else {name: less})
    return touched, gone


def _compare_branch(old: Any, new: Any, schema: Schema | None) -> tuple[Tree | None, Tree | None]:
    if not _parts(old, schema) and not _parts(new, schema):
        return (None, {}) if new is ABSENT else ({}, None)
    touched, gone = compare(old, new, schema)
    return (
        _branch(touched, itself=old is ABSENT) if touched else None,
        _branch(gone, itself=new is ABSENT) if gone else None,
    )
