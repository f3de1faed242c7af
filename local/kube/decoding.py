"""Decodes request bodies: JSON, types, unknown fields, defaults."""

from __future__ import annotations

import json
from typing import Any

from local.base.http import Request
from local.kube import errors
from local.kube.errors import Undecodable
from local.kube.kinds import Document, Kind
from local.kube.schema import ABSENT
from local.kube.writing import Write

JSON = "application/json"
PROTOBUF = "application/vnd.kubernetes.protobuf"
_NO_PROTOBUF = (
    ". This command sends protobuf, which the embedded API does not read: use `kubectl apply -f` with "
    "a manifest, or a real control plane (`make local ARGS=--real`)"
)
"""kubectl sends protobuf to ``create`` and ``auth``, and does not fall back to JSON."""


def content_type(request: Request) -> str:
    """The media type of the body without parameters; JSON by default."""
    return request.headers.get("content-type", JSON).partition(";")[0].strip().lower() or JSON


def read_object(request: Request) -> Document:
    """Parse the object in a body. Raises 400 if it is not an object, 415 for other media types."""
    media_type = content_type(request)
    if media_type != JSON:
        hint = _NO_PROTOBUF if media_type == PROTOBUF else ""
        raise errors.unsupported_media_type((JSON,), hint)
    document = parse_json(request.body)
    if not isinstance(document, dict):
        raise errors.bad_request("the body of the request must be an object")
    return document


def parse_json(body: bytes) -> Any:
    """Parse a body. Raises 400."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise errors.bad_request(f"the body of the request cannot be parsed: {error}") from error


def own_metadata(write: Write, document: Document) -> Document:
    """Replace the document's metadata by a copy and return it."""
    found = document.get("metadata")
    if found is not None and not isinstance(found, dict):
        raise _undecodable(write.kind, "metadata must be an object")
    own: Document = dict(found or {})
    document["metadata"] = own
    return own


def _check_type(write: Write, document: Document) -> None:
    """Raises 400 if the body is not of the URL's kind. A built-in object may omit its kind."""
    kind = write.kind
    wanted = kind.api_version
    if not kind.custom:
        document.setdefault("apiVersion", wanted)
        document.setdefault("kind", kind.kind)
    found = document.get("apiVersion"), document.get("kind")
    if found != (wanted, kind.kind):
        raise _undecodable(kind, f"it is a {found[1]} in {found[0]}, and not in {wanted}")


def decode(write: Write, document: Document, old: Any = ABSENT) -> tuple[str, ...]:
    """Check the type, prune and default. Returns warnings about unknown fields, or rejects them.

    Raises `Undecodable`, also for values of a wrong type in the fields that Go decodes: all of a
    built-in kind, and the metadata of any kind.
    """
    _check_type(write, document)
    own_metadata(write, document)
    schema = write.kind.schema
    unknown = schema.fill(document, old)
    if write.kind.custom:
        before = ABSENT if old is ABSENT else old["metadata"]
        known = schema.properties["metadata"]
        wrong = known.find_mistyped(document["metadata"], before, "metadata")
    else:
        wrong = schema.find_mistyped(document, old)
    if wrong is not None:
        raise _undecodable(write.kind, wrong)
    if not unknown or write.field_validation == "Ignore":
        return ()
    findings = tuple(f'unknown field "{path}"' for path in unknown)
    if write.field_validation == "Strict":
        raise _undecodable(write.kind, f"strict decoding error: {', '.join(findings)}")
    return findings


def _undecodable(kind: Kind, why: str) -> Undecodable:
    return Undecodable(
        f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}'
    )
