"""Bodies on their way in: JSON, YAML, and the little protobuf that kubectl sends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from local.http import Request
from local.kube import errors, protobuf
from local.kube.kinds import Document

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"


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


def read_object(request: Request) -> Body:
    """The object in a body. Raises 400 for what cannot be read, 415 for other media types."""
    decode = _DECODERS.get(content_type(request))
    if decode is None:
        raise errors.unsupported_media_type((JSON, YAML, PROTOBUF))
    try:
        document, doubled = decode(request.body)
    except (ValueError, yaml.YAMLError) as error:
        raise errors.bad_request(
            f"the object provided is unrecognized (must be of type Status): {error}"
        ) from error
    if not isinstance(document, dict):
        raise errors.bad_request("the object provided is unrecognized: expected an object")
    return Body(document, doubled)


def read_patch(body: bytes) -> Any:
    """A patch, in JSON or YAML. Raises 400."""
    try:
        return json.loads(body)
    except ValueError:
        pass  # an apply patch may be YAML, of which JSON is the usual case
    try:
        return yaml.safe_load(body)
    except yaml.YAMLError as error:
        raise errors.bad_request(f"error decoding patch: {error}") from error


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
    return document, tuple(_find_doubled(document)) if found else ()


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
    PROTOBUF: lambda body: (protobuf.decode(body), ()),
}
