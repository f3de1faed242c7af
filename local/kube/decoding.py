"""From a body to a document of its kind: types, unknown fields, defaults, in Go's words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from local.kube import errors
from local.kube.formats import DECODES
from local.kube.go_words import base64_fault, unmarshal_fault
from local.kube.kinds import Document, builtin_kinds
from local.kube.schema import ABSENT, Schema
from local.kube.writing import Write

_GO_TYPES = {"string": "string", "boolean": "bool", "integer": "int32", "number": "float64"}
_SCHEMES = {True: "pkg/runtime/scheme.go:111", False: "pkg/api/legacyscheme/scheme.go:30"}


class Undecodable(errors.ApiError):
    """400: a body that Go cannot decode as what it should be; ``why`` is Go's part of the message."""

    def __init__(self, write: Write, why: str, kind: str = "", version: str = "") -> None:
        wanted = write.kind.kind
        super().__init__(
            400,
            "BadRequest",
            f'{kind or wanted} in version "{version or write.version.name}" cannot be handled as a '
            f"{wanted}: {why}",
        )
        self.why = why


def own_metadata(write: Write, document: Document) -> Document:
    """The document's metadata, made its own (a change to it changes nothing else)."""
    found = document.get("metadata")
    if found is not None and not isinstance(found, dict):
        field = "" if write.kind.custom else f"{write.kind.kind}.metadata"
        raise Undecodable(write, unmarshal_fault(found, "v1.ObjectMeta", field))
    own: Document = dict(found or {})
    document["metadata"] = own
    return own


def check_type(write: Write, document: Document) -> None:
    """Does the body say that it is of the URL's kind? A body that says nothing is taken as such."""
    kind, version = write.kind, write.version
    wanted = kind.api_version(version.name)
    found = document.setdefault("apiVersion", wanted), document.setdefault("kind", kind.kind)
    for name, value in zip(("apiVersion", "kind"), found, strict=True):
        if not isinstance(value, str):
            raise Undecodable(write, unmarshal_fault(value, "string", f".{name}"))
    if found == (wanted, kind.kind):
        return
    if kind.custom and found[0] == wanted:
        _refuse_kind(write, document)
    if not kind.custom and found[1] != kind.kind:
        known = next((one for one in builtin_kinds() if one.kind == found[1]), None)
        package = (known.group.partition(".")[0] or "core") if known else ""
        why = (
            f"converting ({version.name}.{found[1]}) to ({package}.{kind.kind}): unknown conversion"
            if known and found[0] == wanted
            else _unregistered(*found)
        )
        raise Undecodable(write, why, found[1], found[0].rpartition("/")[2])
    if not kind.custom:
        raise Undecodable(write, _unregistered(*found), "", found[0].rpartition("/")[2])
    raise errors.bad_request(
        f"the API version in the data ({found[0]}) does not match the expected API version "
        f"({wanted})"
    )


def _refuse_kind(write: Write, document: Document) -> None:
    found = document["kind"]
    name = str((document.get("metadata") or {}).get("name", ""))
    wrong = errors.invalid_value("kind", found, f"must be {write.kind.kind}")
    raise errors.invalid(
        write.kind.qualified_kind.replace(write.kind.kind, found, 1), name, [wrong]
    )


def _unregistered(api_version: str, kind: str) -> str:
    known = any(one.kind == kind for one in builtin_kinds())
    return (
        f'no kind "{kind}" is registered for version "{api_version}" in scheme "{_SCHEMES[known]}"'
    )


def decode(write: Write, document: Document, old: Any = ABSENT) -> tuple[str, ...]:
    """Prune and default; unknown fields are refused, warned of or dropped, as the client wishes.

    Raises `Undecodable`, also for values of a wrong type in the fields that Go knows: all of a
    built-in kind, and the metadata of any.
    """
    unknown = write.version.schema.fill(document, old)
    fault = _find_fault(write, document, old)
    if fault is not None:
        raise Undecodable(write, fault)
    if not unknown or write.options.field_validation == "Ignore":
        return ()
    findings = tuple(f'unknown field "{path}"' for path in unknown)
    if write.options.field_validation == "Strict":
        raise strict_decoding_error(write, findings)
    return findings


@dataclass(frozen=True)
class _Place:
    """Where a value stands, as Go sees it: the struct around it and the way to it from the root."""

    root: str
    struct: str
    way: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        return ".".join((self.struct, *self.way)) if self.way else ""

    @property
    def inner(self) -> str:
        """The struct that stands here. Far inside it is known by its field's name alone."""
        if not self.way:
            return self.root
        if self.way == ("metadata",):
            return "ObjectMeta"
        last = self.way[-1][:1].upper() + self.way[-1][1:]
        return f"{self.root}{last}" if len(self.way) == 1 else last.removesuffix("s")

    def member(self, name: str) -> _Place:
        return _Place(self.root, self.inner, (*self.way, name))


def _find_fault(write: Write, document: Document, old: Any) -> str | None:
    schema = write.version.schema
    if not write.kind.custom:
        return _mistyped(schema, document, old, _Place(write.kind.kind, write.kind.kind))
    before = ABSENT if old is ABSENT else old["metadata"]
    place = _Place("ObjectMeta", "ObjectMeta")
    return _mistyped(schema.properties["metadata"], document["metadata"], before, place)


def _mistyped(schema: Schema, value: Any, old: Any, place: _Place) -> str | None:
    """What Go would say of the first value that its field cannot hold."""
    if value is None or value == old:
        return None
    if not schema.accepts(value):
        return unmarshal_fault(value, _go_name(schema, place), place.field)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        faults = (
            _mistyped(child, item, before.get(name, ABSENT), inner)
            for name, item, child, inner in _members(schema, value, place)
        )
    elif isinstance(value, list) and schema.items is not None:
        items = schema.items
        faults = (_mistyped(items, item, ABSENT, place) for item in value)
    else:
        return _unparsable(schema, value)
    return next((fault for fault in faults if fault is not None), None)


def _members(
    schema: Schema, value: Document, place: _Place
) -> Iterator[tuple[str, Any, Schema, _Place]]:
    for name, item in value.items():
        if name in schema.properties:
            yield name, item, schema.properties[name], place.member(name)
        elif schema.additional is not None:
            yield name, item, schema.additional, place


def _go_name(schema: Schema, place: _Place) -> str:
    if schema.items is not None:
        return f"[]{_go_name(schema.items, place)}"
    if schema.additional is not None:
        return f"map[string]{_go_name(schema.additional, place)}"
    if schema.properties:
        return f"v1.{place.inner}"
    return _GO_TYPES.get(schema.source.get("type", ""), "string")


def _unparsable(schema: Schema, value: Any) -> str | None:
    format_ = schema.source.get("format", "")
    if format_ not in DECODES or DECODES[format_](value):
        return None
    if format_ == "byte":
        return base64_fault(value)
    layout = "2006-01-02T15:04:05Z07:00"
    return f'parsing time "{value}" as "{layout}": cannot parse "{value}" as "2006"'


def strict_decoding_error(write: Write, findings: tuple[str, ...]) -> Undecodable:
    """400 of a body with unknown or doubled fields, when the client has asked to be strict."""
    return Undecodable(write, f"strict decoding error: {', '.join(findings)}")
