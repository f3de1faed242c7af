"""A snapshot: a compact encoding of an observation and its decision, as a field of the log line.

With it the pure decision can be repeated from the log (``kubectl tng timeline --why``). Values are
encoded by their types; each class is listed once, with its fields. A field that a class hides from
``repr`` is left out: secrets, documents of an API, and ids that no decision compares. An API's document
is never encoded, because it may contain anything, also secrets.
"""

import base64
import dataclasses
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, get_args, get_type_hints

from shared.frame.plan import Plan
from shared.ports.errors import CallError, OutOfTimeError

FIELD = "snapshot"
"""The name of the field in the log line."""
VERSION = 1
"""The version of the encoding. The fields of the classes are part of each snapshot."""
MAX_BYTES = 96 * 1024
"""The limit of the encoded data: a slice of some 600 hosts. Cloud Logging's limit is 256 KB an entry."""
_MAX_DOCUMENT = 4 * 1024 * 1024
"""The limit of the decompressed data, for readers."""

Rule = Callable[[Any], Any]
"""From a field's value to what is encoded instead."""
Rules = Mapping[tuple[type, str], Rule]
"""Rules by class and field, for fields of which a part is left out."""

_PLAIN = frozenset({str, int, bool, float, type(None)})
_TUPLE, _SET, _MAPPING, _TIME, _DURATION, _CALL_ERROR, _TIME_ERROR = -1, -2, -3, -5, -6, -7, -8

_UNREADABLE = (ValueError, TypeError, LookupError, OverflowError, RecursionError, zlib.error)
"""What the decoder raises for damaged data."""


class SnapshotError(Exception):
    """A snapshot cannot be written or read; the text says why."""


@dataclass(frozen=True)
class Snapshot:
    """An observation and its decision.

    ``outcome`` is ``None`` if the decision crashed. ``actions`` are those of the plan in words.
    """

    observed: Any
    now: datetime
    outcome: str | None
    actions: tuple[str, ...]


def encode(observed: Any, now: datetime, plan: Plan | None, rules: Rules) -> dict[str, Any]:
    """The field of the log line. ``plan`` is ``None`` if the decision crashed."""
    writer = _Writer(rules)
    try:
        document = {
            "now": now.isoformat(),
            "outcome": plan.outcome if plan is not None else None,
            "actions": describe(plan) if plan is not None else (),
            "observed": writer.write(observed),
            "classes": writer.list_classes(),
        }
        text = json.dumps(document, separators=(",", ":"))
        data = base64.b64encode(zlib.compress(text.encode())).decode()
    except SnapshotError as error:
        return {"version": VERSION, "error": str(error)}
    except Exception as error:  # noqa: BLE001 - an error of the log line must not stop the step
        # The type alone: the text might quote a value.
        return {"version": VERSION, "error": type(error).__name__}
    field = {"version": VERSION, "bytes": len(data)}
    return field if len(data) > MAX_BYTES else {**field, "data": data}


def describe(plan: Plan) -> tuple[str, ...]:
    """A plan's actions in words."""
    return tuple(action.describe() for action in plan.list_actions())


def decode(field: Any, classes: Mapping[str, type]) -> Snapshot:
    """Decode the field of a log line. Raises nothing but `SnapshotError`, whatever the field has."""
    if not isinstance(field, Mapping):
        raise SnapshotError("the log line has none")
    if field.get("version") != VERSION:
        known = f"version {_whole(field.get('version'))!r} is not known; this tool reads {VERSION}"
        raise SnapshotError(known)
    if "error" in field:
        raise SnapshotError(f"the function could not write it: {field['error']}")
    if "data" not in field:
        size = f"it had {_whole(field.get('bytes'))} bytes, and the log takes {MAX_BYTES}"
        raise SnapshotError(f"the function left it out: {size}")
    try:
        decompressor = zlib.decompressobj()
        data = base64.b64decode(field["data"], validate=True)
        raw = decompressor.decompress(data, _MAX_DOCUMENT)
        if not decompressor.eof:
            raise ValueError("its end is missing, or it is too large")
        document = json.loads(raw)
        reader = _Reader(document["classes"], classes)
        outcome = document["outcome"]
        return Snapshot(
            reader.read(document["observed"]),
            datetime.fromisoformat(document["now"]),
            str(outcome) if outcome is not None else None,
            tuple(map(str, document["actions"])),
        )
    except _UNREADABLE as error:
        raise SnapshotError(f"it is damaged: {type(error).__name__}: {error}") from error


def _whole(number: Any) -> Any:
    """Cloud Logging returns each number of a JSON line as a float."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def find_classes(decide: Callable[..., Any]) -> dict[str, type]:
    """The dataclasses and enumerations of all values in a decision's argument, by name."""
    found: dict[str, type] = {}
    _add_classes(next(iter(get_type_hints(decide).values())), found)
    return found


def _add_classes(hint: Any, found: dict[str, type]) -> None:
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, Enum)):
        if hint.__name__ in found:
            return
        found[hint.__name__] = hint
        for inner in get_type_hints(hint).values() if dataclasses.is_dataclass(hint) else ():
            _add_classes(inner, found)
    for inner in get_args(hint):
        _add_classes(inner, found)


class _Writer:
    """Encodes values as JSON. The first item of an array is the number of a class or a tag."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._classes: dict[type, tuple[int, tuple[tuple[str, Rule | None], ...]]] = {}

    def list_classes(self) -> list[tuple[str, list[str] | None]]:
        """The name and fields of each class, by number; an enumeration has no fields."""
        return [
            (kind.__name__, None if issubclass(kind, Enum) else [name for name, _ in fields])
            for kind, (_, fields) in self._classes.items()
        ]

    def write(self, value: Any) -> Any:
        """Encode a value. Raises `SnapshotError` for a value of another class."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if dataclasses.is_dataclass(kind):
            return self._write_fields(value)
        if kind is tuple:
            return [_TUPLE, *map(self.write, value)]
        if kind is datetime:
            return [_TIME, value.isoformat()]
        if isinstance(value, Enum):
            return [self._find_class(kind)[0], value.value]
        if isinstance(value, Mapping):
            if any(isinstance(one, Mapping) for one in value.values()):
                raise SnapshotError("a document")
            return [_MAPPING, *(self.write(part) for pair in value.items() for part in pair)]
        if isinstance(value, set | frozenset):
            return [_SET, *map(self.write, sorted(value))]
        if isinstance(value, timedelta):
            return [_DURATION, value.total_seconds()]
        if isinstance(value, CallError):
            return [_CALL_ERROR, value.call, value.http, value.code, value.message]
        if isinstance(value, OutOfTimeError):
            return [_TIME_ERROR, str(value)]
        raise SnapshotError(f"a {kind.__name__}")

    def _write_fields(self, holder: Any) -> list[Any]:
        number, fields = self._find_class(type(holder))
        row: list[Any] = [number]
        for name, rule in fields:
            value = getattr(holder, name)
            if rule is not None:
                value = rule(value)
            try:
                row.append(value if type(value) in _PLAIN else self.write(value))
            except SnapshotError as error:
                raise SnapshotError(f"{type(holder).__name__}.{name}: {error}") from error
        return row

    def _find_class(self, kind: Any) -> tuple[int, tuple[tuple[str, Rule | None], ...]]:
        known = self._classes.get(kind)
        if known is None:
            every = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
            hide = {one.name: None if one.repr else _hide for one in every}
            fields = tuple((name, self._rules.get((kind, name), hide[name])) for name in hide)
            known = self._classes[kind] = (len(self._classes), fields)
        return known


def _hide(value: Any) -> Any:
    """The empty value in place of one that is left out."""
    return {} if isinstance(value, Mapping) else ""


class _Reader:
    """Decodes values from JSON. Raises `SnapshotError` for classes that have changed since."""

    def __init__(self, schema: Sequence[Any], known: Mapping[str, type]) -> None:
        self._classes = [_find_known(name, fields, known) for name, fields in schema]

    def read(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        tag, parts = value[0], map(self.read, value[1:])
        if tag < 0:
            return _READ[tag](list(parts))
        kind, names = self._classes[tag]
        return kind(*parts) if names is None else kind(**dict(zip(names, parts, strict=True)))


def _find_known(
    name: str, fields: Sequence[str] | None, known: Mapping[str, type]
) -> tuple[type, Sequence[str] | None]:
    kind = known.get(name)
    if kind is None:
        raise SnapshotError(f"another version has written it: there is no {name} here")
    if fields is None or not dataclasses.is_dataclass(kind):
        return kind, None
    present = {one.name: one for one in dataclasses.fields(kind)}
    strange = [f"no field {field} here" for field in fields if field not in present]
    for field, one in present.items():
        has_default = (one.default, one.default_factory) != (dataclasses.MISSING,) * 2
        if field not in fields and not has_default:
            strange.append(f"a new field {field}")
    if strange:
        text = f"another version has written it: {name} has {' and '.join(strange)}"
        raise SnapshotError(text)
    return kind, fields


_READ: Mapping[int, Callable[[list[Any]], Any]] = {
    _TUPLE: tuple,
    _SET: frozenset,
    _MAPPING: lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    _TIME: lambda parts: datetime.fromisoformat(parts[0]),
    _DURATION: lambda parts: timedelta(seconds=parts[0]),
    _CALL_ERROR: lambda parts: CallError(*parts),
    _TIME_ERROR: lambda parts: OutOfTimeError(*parts),
}
