"""The protobuf bodies that kubectl sends although nobody asked it to.

kubectl 1.32 and later write ``auth can-i``, ``auth whoami``, evictions and the ``create`` generators
in protobuf and do not fall back to JSON when that is refused. Decoded here are the messages of
those commands; the field numbers are those of ``generated.proto`` in k8s.io/api and apimachinery.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from local.kube import errors
from local.kube.formats import render_time
from local.kube.kinds import Document

_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Decode = Callable[[Any], Any]
Fields = Mapping[int, tuple[str, Decode]]


class ProtobufError(ValueError):
    """A body that is no message."""


def decode(body: bytes) -> Document:
    """An object from its wire form. Raises `ProtobufError`.

    Raises 415 for other kinds, in the words of a server that reads no protobuf at all.
    """
    if not body.startswith(_MAGIC):
        raise ProtobufError("the body does not begin as a Kubernetes protobuf message does")
    envelope = dict(_split(body[len(_MAGIC) :]))
    type_meta = _TYPE_META(envelope.get(1, b""))
    kind = type_meta.get("kind", "")
    if kind not in _KINDS:
        raise errors.unsupported_media_type(("application/json", "application/yaml"))
    return {**type_meta, **_message(_KINDS[kind])(envelope.get(2, b""))}


def _bytes(raw: Any) -> bytes:
    if not isinstance(raw, bytes):
        raise ProtobufError("a number stands where a text or a message belongs")
    return raw


def _split(raw: Any) -> Iterator[tuple[int, Any]]:
    """The fields of a message: numbers and raw values."""
    data = _bytes(raw)
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, at = _read_varint(data, at)
            yield number, value
        elif wire_type == _BYTES:
            length, at = _read_varint(data, at)
            if at + length > len(data):
                raise ProtobufError("the message ends within a field")
            yield number, data[at : at + length]
            at += length
        elif wire_type in (_FIXED64, _FIXED32):
            at += 8 if wire_type == _FIXED64 else 4
        else:
            raise ProtobufError(f"wire type {wire_type} is not known")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
    raise ProtobufError("the message ends within a number")


def _text(raw: Any) -> str:
    return _bytes(raw).decode()


def _base64(raw: Any) -> str:
    return base64.b64encode(_bytes(raw)).decode()


def _number(raw: Any) -> int:
    if not isinstance(raw, int):
        raise ProtobufError("a text or a message stands where a number belongs")
    return raw


def _flag(raw: Any) -> bool:
    return bool(_number(raw))


def _time(raw: Any) -> str:
    seconds = _number(dict(_split(raw)).get(1, 0))
    try:
        return render_time(datetime.fromtimestamp(seconds, UTC))
    except (OverflowError, OSError) as error:
        raise ProtobufError("a time is out of range") from error


def _message(fields: Fields) -> Decode:
    """A decoder that leaves out what is empty, as JSON's omitempty does."""

    def decode_message(raw: Any) -> Document:
        document: Document = {}
        for number, value in _split(raw):
            if number not in fields:
                continue
            name, decode_field = fields[number]
            found = decode_field(value)
            if name.endswith("[]"):
                document.setdefault(name[:-2], []).append(found)
            elif name.endswith("{}"):
                document.setdefault(name[:-2], {}).update(found)
            elif found not in ("", {}, 0):
                document[name] = found
        return document

    return decode_message


def _entry(decode_value: Decode) -> Decode:
    def decode_entry(raw: Any) -> Document:
        entry = dict(_split(raw))
        return {_text(entry.get(1, b"")): decode_value(entry.get(2, b""))}

    return decode_entry


_TYPE_META = _message({1: ("apiVersion", _text), 2: ("kind", _text)})
_OWNER = _message(
    {
        1: ("kind", _text),
        3: ("name", _text),
        4: ("uid", _text),
        5: ("apiVersion", _text),
        6: ("controller", _flag),
        7: ("blockOwnerDeletion", _flag),
    }
)
_METADATA = _message(
    {
        1: ("name", _text),
        2: ("generateName", _text),
        3: ("namespace", _text),
        5: ("uid", _text),
        6: ("resourceVersion", _text),
        7: ("generation", _number),
        9: ("deletionTimestamp", _time),
        11: ("labels{}", _entry(_text)),
        12: ("annotations{}", _entry(_text)),
        13: ("ownerReferences[]", _OWNER),
        14: ("finalizers[]", _text),
    }
)
_RESOURCE_ATTRIBUTES = _message(
    {
        1: ("namespace", _text),
        2: ("verb", _text),
        3: ("group", _text),
        4: ("version", _text),
        5: ("resource", _text),
        6: ("subresource", _text),
        7: ("name", _text),
    }
)
_NON_RESOURCE_ATTRIBUTES = _message({1: ("path", _text), 2: ("verb", _text)})
_ACCESS_SPEC = _message(
    {
        1: ("resourceAttributes", _RESOURCE_ATTRIBUTES),
        2: ("nonResourceAttributes", _NON_RESOURCE_ATTRIBUTES),
    }
)
_PRECONDITIONS = _message({1: ("uid", _text), 2: ("resourceVersion", _text)})
_DELETE_OPTIONS = _message(
    {
        1: ("gracePeriodSeconds", _number),
        2: ("preconditions", _PRECONDITIONS),
        4: ("propagationPolicy", _text),
        5: ("dryRun[]", _text),
    }
)
_REFERENCE = _message({1: ("kind", _text), 2: ("namespace", _text), 3: ("name", _text)})

_KINDS: Mapping[str, Fields] = {
    "SelfSubjectAccessReview": {1: ("metadata", _METADATA), 2: ("spec", _ACCESS_SPEC)},
    "SelfSubjectRulesReview": {
        1: ("metadata", _METADATA),
        2: ("spec", _message({1: ("namespace", _text)})),
    },
    "SelfSubjectReview": {1: ("metadata", _METADATA)},
    "Namespace": {
        1: ("metadata", _METADATA),
        2: ("spec", _message({1: ("finalizers[]", _text)})),
    },
    "ConfigMap": {
        1: ("metadata", _METADATA),
        2: ("data{}", _entry(_text)),
        3: ("binaryData{}", _entry(_base64)),
        4: ("immutable", _flag),
    },
    "Secret": {
        1: ("metadata", _METADATA),
        2: ("data{}", _entry(_base64)),
        3: ("type", _text),
        4: ("stringData{}", _entry(_text)),
        5: ("immutable", _flag),
    },
    "ServiceAccount": {
        1: ("metadata", _METADATA),
        2: ("secrets[]", _REFERENCE),
        4: ("automountServiceAccountToken", _flag),
    },
    "Eviction": {1: ("metadata", _METADATA), 2: ("deleteOptions", _DELETE_OPTIONS)},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", _number),
        2: ("preconditions", _PRECONDITIONS),
        4: ("propagationPolicy", _text),
        5: ("dryRun[]", _text),
    },
}
