"""From a body to a document of its kind: types, unknown fields, defaults, in Go's words."""

from __future__ import annotations

from typing import Any

from local.kube import errors
from local.kube.checks import type_name
from local.kube.kinds import Document
from local.kube.schema import ABSENT
from local.kube.writing import Write

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


def check_type(write: Write, document: Document) -> None:
    """Does the body say that it is of the URL's kind? A body that says nothing is taken as such."""
    kind, version = write.kind, write.version
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


def decode(write: Write, document: Document, old: Any) -> tuple[str, ...]:
    """Prune and default; unknown fields are refused, warned of or dropped, as the client wishes.

    Raises 400, as Go's decoder would, also for values of a wrong type in the fields that Go knows:
    all of a built-in kind, and the metadata of any.
    """
    unknown = write.version.schema.fill(document, old)
    meta = document["metadata"]
    for name in [name for name, value in meta.items() if value in ("", [], {})]:
        del meta[name]  # Go leaves out what is empty
    _refuse_undecodable(write, document, old)
    if not unknown or write.options.field_validation == "Ignore":
        return ()
    findings = tuple(f'unknown field "{path}"' for path in unknown)
    if write.options.field_validation == "Strict":
        raise strict_decoding_error(write, findings)
    return findings


def _refuse_undecodable(write: Write, document: Document, old: Any) -> None:
    kind, version = write.kind, write.version
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


def read_review(write: Write, document: Document) -> Document:
    """A review as it was sent, decoded; reviews are answered and never stored."""
    check_type(write, document)
    own_metadata(document)
    decode(write, document, ABSENT)
    return document


def strict_decoding_error(write: Write, findings: tuple[str, ...]) -> errors.ApiError:
    """400 of a body with unknown or doubled fields, when the client has asked to be strict."""
    words = f"strict decoding error: {', '.join(findings)}"
    kind, version = write.kind, write.version
    if not kind.custom:
        words = (
            f'{kind.kind} in version "{version.name}" cannot be handled as a {kind.kind}: {words}'
        )
    return errors.bad_request(words)
