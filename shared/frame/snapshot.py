"""A snapshot: a compact encoding of an observation and its decision, as a field of the log line.

With it the pure decision can be repeated from the log (``kubectl tng timeline --why``). Values are
encoded by their types; each class is listed once, with its fields. A mapping is encoded only if a rule
selects its content: an API's documents may contain anything, also secrets.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
"""Rules by class (or base class) and field."""

_PLAIN = frozenset({str, int, bool, float, type(None)})
_TUPLE, _SET, _MAPPING, _LIST, _TIME, _DURATION, _CALL_ERROR, _TIME_ERROR = range(-1, -9, -1)

_UNREADABLE = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    RecursionError,
    zlib.error,
)
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


def whole(value: Any) -> Any:
    """The rule of a field that is encoded unchanged, with its mappings."""
    return value


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
        known = f"version {field.get('version')!r} is not known; this tool reads {VERSION}"
        raise SnapshotError(known)
    if "error" in field:
        raise SnapshotError(f"the function could not write it: {field['error']}")
    if "data" not in field:
        size = f"it had {field.get('bytes')} bytes, and the log takes {MAX_BYTES}"
        raise SnapshotError(f"the function left it out: {size}")
    try:
        document = json.loads(_decompress(field["data"]))
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


def find_classes(decide: Callable[..., Any]) -> dict[str, type]:
    """The dataclasses and enumerations of all values in a decision's argument, by name."""
    found: dict[str, type] = {}
    hints = get_type_hints(decide)
    _add_classes(next(iter(hints.values())), found)
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


def _decompress(data: Any) -> bytes:
    decompressor = zlib.decompressobj()
    raw = decompressor.decompress(base64.b64decode(data, validate=True), _MAX_DOCUMENT)
    if not decompressor.eof:
        raise ValueError("its end is missing, or it is too large")
    return raw


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

    def write(self, value: Any, *, is_ruled: bool = False) -> Any:
        """Encode a value; a mapping only inside the result of a rule. Raises `SnapshotError`."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if dataclasses.is_dataclass(kind):
            return self._write_fields(value, *self._find_class(kind))
        if kind is tuple:
            return [_TUPLE, *(self.write(item, is_ruled=is_ruled) for item in value)]
        if kind is datetime:
            return [_TIME, value.isoformat()]
        if isinstance(value, Enum):
            return [self._find_class(kind)[0], value.value]
        if isinstance(value, Mapping) and is_ruled:
            return self._write_mapping(value)
        return self._write_rare(value, is_ruled)

    def _write_rare(self, value: Any, is_ruled: bool) -> Any:
        if isinstance(value, list) and is_ruled:
            return [_LIST, *(self.write(item, is_ruled=True) for item in value)]
        if isinstance(value, set | frozenset):
            return [_SET, *(self.write(item) for item in sorted(value))]
        if isinstance(value, timedelta):
            return [_DURATION, value.total_seconds()]
        if isinstance(value, CallError):
            return [_CALL_ERROR, value.call, value.http, value.code, value.message]
        if isinstance(value, OutOfTimeError):
            return [_TIME_ERROR, str(value)]
        raise SnapshotError(f"a {type(value).__name__} without a rule")

    def _write_fields(
        self, holder: Any, number: int, fields: Iterable[tuple[str, Rule | None]]
    ) -> list[Any]:
        row: list[Any] = [number]
        for name, rule in fields:
            value = getattr(holder, name)
            if rule is not None:
                row.append(self.write(rule(value), is_ruled=True))
            elif type(value) in _PLAIN:
                row.append(value)
            else:
                row.append(self._write_field(holder, name, value))
        return row

    def _write_field(self, holder: Any, name: str, value: Any) -> Any:
        try:
            return self.write(value)
        except SnapshotError as error:
            raise SnapshotError(f"{type(holder).__name__}.{name}: {error}") from error

    def _write_mapping(self, given: Mapping[Any, Any]) -> list[Any]:
        parts: list[Any] = [_MAPPING]
        for key, value in given.items():
            parts.append(key if type(key) in _PLAIN else self.write(key, is_ruled=True))
            parts.append(value if type(value) in _PLAIN else self.write(value, is_ruled=True))
        return parts

    def _find_class(self, kind: type) -> tuple[int, tuple[tuple[str, Rule | None], ...]]:
        known = self._classes.get(kind)
        if known is None:
            names = [one.name for one in _list_fields(kind)]
            fields = tuple((name, self._find_rule(kind, name)) for name in names)
            known = self._classes[kind] = (len(self._classes), fields)
        return known

    def _find_rule(self, kind: type, name: str) -> Rule | None:
        rules = (self._rules.get((base, name)) for base in kind.__mro__)
        return next((rule for rule in rules if rule is not None), None)


def _list_fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a dataclass; none for an enumeration."""
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


class _Reader:
    """Decodes values from JSON. Raises `SnapshotError` for classes that have changed since."""

    def __init__(self, schema: Sequence[Any], known: Mapping[str, type]) -> None:
        self._classes = [_find_known(name, fields, known) for name, fields in schema]

    def read(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        tag, parts = value[0], value[1:]
        if tag >= 0:
            kind, names = self._classes[tag]
            items = map(self.read, parts)
            return (
                kind(**dict(zip(names, items, strict=True))) if names is not None else kind(*items)
            )
        return _READ[tag](list(map(self.read, parts)))


def _find_known(
    name: str, fields: Sequence[str] | None, known: Mapping[str, type]
) -> tuple[type, Sequence[str] | None]:
    kind = known.get(name)
    if kind is None:
        raise SnapshotError(f"another version has written it: there is no {name} here")
    if fields is None or not dataclasses.is_dataclass(kind):
        return kind, None
    strange = list(_list_differences(kind, fields))
    if strange:
        text = f"another version has written it: {name} has {' and '.join(strange)}"
        raise SnapshotError(text)
    return kind, fields


def _list_differences(kind: Any, names: Sequence[str]) -> Iterator[str]:
    """The differences between a class and its encoded fields, except new fields with a default."""
    present = {one.name: one for one in _list_fields(kind)}
    yield from (f"no field {name} here" for name in names if name not in present)
    for name, one in present.items():
        has_default = (one.default, one.default_factory) != (dataclasses.MISSING,) * 2
        if name not in names and not has_default:
            yield f"a new field {name}"


_READ: Mapping[int, Callable[[list[Any]], Any]] = {
    _TUPLE: tuple,
    _SET: frozenset,
    _MAPPING: lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    _LIST: list,
    _TIME: lambda parts: datetime.fromisoformat(parts[0]),
    _DURATION: lambda parts: timedelta(seconds=parts[0]),
    _CALL_ERROR: lambda parts: CallError(*parts),
    _TIME_ERROR: lambda parts: OutOfTimeError(*parts),
}
