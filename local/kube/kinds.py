"""The kinds: the built-in ones from rows of ``builtin.yaml``, others from CRDs.

All properties of a kind are in its `Kind`: the code that stores, validates, prints and discovers objects
does not depend on particular kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from local.kube.schema import Schema

Document = dict[str, Any]
"""An object, or a part of one, in JSON form."""

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

_TYPES: dict[str, Document] = {
    "string": {"type": "string", "x-go-omitempty": True},
    "text": {"type": "string"},
    "flag": {"type": "boolean", "x-go-omitempty": True},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "time": {"type": "string", "format": "date-time"},
    "microTime": {"type": "string", "format": "date-time"},
    "bytes": {"type": "string", "format": "byte"},
    "quantity": {"x-kubernetes-int-or-string": True},
    "object": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}


@dataclass(frozen=True)
class Column:
    """One column of the Table form. ``cell`` is a JSONPath, or ``=name`` of a function."""

    name: str
    cell: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


NAME_COLUMN = Column("Name", ".metadata.name", format="name")
AGE_COLUMN = Column("Age", ".metadata.creationTimestamp", type="date")


@dataclass(frozen=True, eq=False, kw_only=True)
class Kind:
    """A kind in its only version: names, scope and properties.

    ``subresources`` maps names to verbs; ``selectable`` are the fields of field selectors.
    ``builtin.yaml`` describes the other properties.
    """

    kind: str
    plural: str
    singular: str
    version: str
    schema: Schema
    columns: tuple[Column, ...]
    group: str = ""
    namespaced: bool = True
    subresources: Mapping[str, Sequence[str]] = field(default_factory=dict)
    selectable: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    custom: bool = False
    served: bool = True
    verbs: tuple[str, ...] = VERBS
    virtual: bool = False
    counts_generation: bool = True
    require_version: bool = False
    status_on_create: bool = False
    returns_deleted: bool = False
    name_style: str = "subdomain"
    initial: Mapping[str, Any] = field(default_factory=dict)
    immutable: tuple[str, ...] = ()
    immutable_once_set: tuple[str, ...] = ()

    @property
    def resource(self) -> str:
        """``widgets.example.com``: the key of the collection, and the name in messages."""
        return qualify(self.plural, self.group)

    @property
    def qualified_kind(self) -> str:
        """``Widget.example.com``: the name in messages of 422."""
        return qualify(self.kind, self.group)

    @property
    def api_version(self) -> str:
        """``example.com/v1``, ``v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version


def qualify(name: str, group: str) -> str:
    """A resource or kind, followed by its group."""
    return f"{name}.{group}" if group else name


_WHEN_UNSET: Mapping[str, Document] = {
    "~": {"default": {}},
    "?": {"default": None, "nullable": True, "x-go-omitempty": False},
}
"""The meaning of the last character of a name in the short form of schemas."""

# -- the short form of schemas ---------------------------------------------------------------------


def expand_schema(short: Any) -> Document:
    """Convert a schema from the short form, which ``builtin.yaml`` describes, to OpenAPI."""
    if isinstance(short, str):
        return _expand_scalar(short)
    if isinstance(short, list):
        return _expand_list(*short)
    if "*" in short:
        member = _nullable(expand_schema(short["*"]))
        return {"type": "object", "additionalProperties": member, "x-go-omitempty": True}
    schema: Document = {
        "type": "object",
        "properties": {
            name.rstrip("!~?"): {**expand_schema(child), **_WHEN_UNSET.get(name[-1], {})}
            for name, child in short.items()
        },
    }
    required = [name.rstrip("!") for name in short if name.endswith("!")]
    return {**schema, "required": required} if required else schema


def _expand_scalar(short: str) -> Document:
    type_, _, written = short.partition(" = ")
    if not written:
        return dict(_TYPES[type_])
    return {**_TYPES[type_], "default": yaml.safe_load(written), "x-go-omitempty": False}


def _nullable(member: Document) -> Document:
    """The schema of a member of a map or list: Go decodes null as the zero value of its type."""
    nothing: Document = {"string": {"default": ""}, "object": {"default": {}}}
    return {**nothing.get(member.get("type", ""), {}), **member}


def _expand_list(item: Any, keys: str = "", merge_key: str = "") -> Document:
    member = _nullable(expand_schema(item))
    schema: Document = {"type": "array", "items": member, "x-go-omitempty": True}
    if keys == "set":
        return {**schema, "x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}
    if not keys:
        return schema
    map_keys = keys.removeprefix("by ").split()
    return {
        **schema,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": map_keys,
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-patch-merge-key": merge_key or map_keys[0],
    }


@cache
def _builtin_rows() -> Mapping[str, Any]:
    text = Path(__file__).with_name("builtin.yaml").read_text(encoding="utf-8")
    rows: Mapping[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return rows


@cache
def metadata_schema() -> Mapping[str, Any]:
    """The schema of ``metadata``, the same for all kinds."""
    return expand_schema(_builtin_rows()["metadata"])


def with_object_fields(schema: Mapping[str, Any]) -> Document:
    """A kind's schema with ``apiVersion``, ``kind`` and ``metadata`` added.

    A CRD may restrict the name.
    """
    own, metadata = schema.get("properties", {}), metadata_schema()
    restricted = own.get("metadata", {}).get("properties", {})
    fields = metadata["properties"]
    named = {name: {**fields[name], **more} for name, more in restricted.items() if name in fields}
    properties = {
        **own,
        "apiVersion": _TYPES["string"],
        "kind": _TYPES["string"],
        "metadata": {**metadata, "properties": {**fields, **named}},
    }
    return {**schema, "type": "object", "properties": properties}


# -- the built-in rows -----------------------------------------------------------------------------


@cache
def builtin_kinds() -> tuple[Kind, ...]:
    """All kinds without a CRD."""
    return tuple(_read_row(name, row) for name, row in _builtin_rows()["kinds"].items())


def _read_row(name: str, row: Mapping[str, Any]) -> Kind:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    columns = tuple(Column(**column) for column in row.get("columns", ())) or (AGE_COLUMN,)
    is_named = any(column.name == NAME_COLUMN.name for column in columns)
    fields["columns"] = columns if is_named else (NAME_COLUMN, *columns)
    fields["schema"] = Schema(with_object_fields(expand_schema(row["schema"])))
    return Kind(**fields, kind=name, singular=name.lower())
