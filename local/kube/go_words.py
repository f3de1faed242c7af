"""What Go's decoders say of a body that they cannot read."""

from __future__ import annotations

import json
import re
from typing import Any

_SHOWN_BYTES = 30
_TYPES: dict[type, str] = {
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
_HEAD_TYPE = (
    r'struct { APIVersion string "json:\"apiVersion,omitempty\""; '
    r'Kind string "json:\"kind,omitempty\"" }'
)
_JSON_FAULTS = {
    "Expecting value": "looking for beginning of value",
    "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
    "Expecting ':' delimiter": "after object key",
    "Expecting ',' delimiter": "after object key:value pair",
    "Extra data": "after top-level value",
}
_BASE64 = re.compile(r"[A-Za-z0-9+/]*")


def go_type(value: Any) -> str:
    """The name of a JSON value's type in the messages of encoding/json."""
    return _TYPES[type(value)]


def unmarshal_fault(value: Any, wanted: str, field: str = "") -> str:
    """A value of another type than ``wanted``, in the struct field of that name."""
    where = f"struct field {field} of type {wanted}" if field else f"value of type {wanted}"
    return f"json: cannot unmarshal {go_type(value)} into Go {where}"


def head_fault(value: Any) -> str:
    """A body that is no object, where an object's apiVersion and kind are looked for."""
    return unmarshal_fault(value, _HEAD_TYPE)


def json_fault(error: ValueError, text: str) -> str:
    """A text that is no JSON."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    if error.pos >= len(text) or error.msg.startswith("Unterminated string"):
        return "unexpected end of JSON input"
    why = _JSON_FAULTS.get(error.msg, error.msg)
    return f"invalid character {_quote(text[error.pos])} {why}"


def _quote(character: str) -> str:
    return {"'": r"'\''", '"': "'\"'"}.get(character, f"'{character}'")


def base64_fault(text: str) -> str:
    """A text that is no base64."""
    found = _BASE64.match(text)
    at = found.end() if found else 0
    if at == len(text.rstrip("=")):
        at = len(text) // 4 * 4
    return f"illegal base64 data at input byte {at}"


def summarize(body: bytes) -> str:
    """A body as it stands behind the message: its beginning, in hex if it is no object."""
    if not body:
        return "<empty>"
    more = " ..." if len(body) > _SHOWN_BYTES else ""
    shown = body[:_SHOWN_BYTES]
    return (shown.decode(errors="replace") if body[:1] == b"{" else shown.hex()) + more


def render_map(value: Any) -> str:
    """A value as ``%v`` prints it: ``map[data:map[x:1]]``."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{render_map(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(render_map, value))}]"
    if value is None:
        return "<nil>"
    return json.dumps(value) if isinstance(value, bool) else str(value)
