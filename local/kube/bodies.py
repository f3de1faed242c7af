"""Request bodies: JSON and YAML."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from local.base.http import Request
from local.kube import errors
from local.kube.go_words import head_fault, json_fault, summarize
from local.kube.kinds import Document, Kind

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
_NO_PROTOBUF = (
    ". This command sends protobuf, which the embedded API does not read: use `kubectl apply -f` with "
    "a manifest, or a real control plane (`make local ARGS=--real`)"
)
"""kubectl sends protobuf to ``create`` and ``auth``, and does not fall back to JSON."""


@dataclass(frozen=True)
class Body:
    """A decoded object, and the paths of the fields that stand in it twice."""

    document: Document
    doubled: tuple[str, ...] = ()


class _Doubled(dict[str, Any]):
    """An object of whose members some were given more than once."""

    names: tuple[str, ...] = ()


def content_type(request: Request) -> str:
    """The bare media type of the body; JSON where none is said."""
    return request.headers.get("content-type", JSON).partition(";")[0].strip().lower() or JSON


def read_object(request: Request, kind: Kind) -> Body:
    """The object in a body. Raises 400 for what cannot be read, 415 for other media types."""
    body = request.body
    try:
        found = _decode(request)
    except Unreadable as error:
        raise _unrecognized(kind, f"couldn't get version/kind; {error}", body) from error
    if kind.custom and not found.document.get("kind"):
        text = body.decode(errors="replace")
        raise _unrecognized(kind, f"Object 'Kind' is missing in '{text}'", body)
    if kind.custom:
        found.document.setdefault("apiVersion", "")
    return found


def read_options(request: Request) -> Document:
    """The DeleteOptions in a body. Raises as `read_object` does."""
    try:
        return _decode(request).document
    except Unreadable as error:
        raise errors.bad_request(f"couldn't get version/kind; {error}") from error


class Unreadable(ValueError):
    """A body that is no object in its media type."""


def _decode(request: Request) -> Body:
    decode = _DECODERS.get(content_type(request))
    if decode is None:
        hint = _NO_PROTOBUF if content_type(request) == PROTOBUF else ""
        raise errors.unsupported_media_type((JSON, YAML), hint)
    try:
        document, doubled = decode(request.body)
    except (ValueError, yaml.YAMLError) as error:
        text = request.body.decode(errors="replace")
        fault = json_fault(error, text) if isinstance(error, ValueError) else str(error)
        raise Unreadable(f"json parse error: {fault}") from error
    if not isinstance(document, dict):
        raise Unreadable(f"json parse error: {head_fault(document)}")
    return Body(document, doubled)


def _unrecognized(kind: Kind, why: str, body: bytes) -> errors.ApiError:
    return errors.bad_request(
        f"the object provided is unrecognized (must be of type {kind.kind}): {why} "
        f"({summarize(body)})"
    )


def read_patch(body: bytes) -> Any:
    """A patch in JSON. Raises 400."""
    try:
        return json.loads(body)
    except ValueError as error:
        text = body.decode(errors="replace")
        raise errors.bad_request(f"error decoding patch: {json_fault(error, text)}") from error


def _decode_json(body: bytes) -> tuple[Any, tuple[str, ...]]:
    found: list[_Doubled] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        collected = dict(pairs)
        if len(collected) == len(pairs):
            return collected
        names = [name for name, _ in pairs]
        doubled = _Doubled(collected)
        doubled.names = tuple(dict.fromkeys(name for name in names if names.count(name) > 1))
        found.append(doubled)
        return doubled

    document = json.loads(body, object_pairs_hook=collect)
    return (json.loads(body), tuple(_find_doubled(document))) if found else (document, ())


def _find_doubled(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, _Doubled):
        yield from (f"{path}{name}" for name in value.names)
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _find_doubled(item, f"{path}{name}.")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _find_doubled(item, f"{path.removesuffix('.')}[{index}].")


_DECODERS: dict[str, Callable[[bytes], tuple[Any, tuple[str, ...]]]] = {
    JSON: _decode_json,
    YAML: lambda body: (yaml.safe_load(body), ()),
}
