"""Structural schemas: prune, default, validate, as the API server does to every object.

A `Schema` is compiled once and then only reads. It works on plain JSON values in three passes, in
the API server's order: `fill` (drops what the schema does not know, sets defaults), `validate`
(types, limits, enumerations) and `check_rules` (CEL). On an update the old value comes along:
findings in a part that has not changed are not reported (ratcheting, documented since 1.30 and
general since 1.33), which also makes a write of the status cost what the status costs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from local.kube import errors
from local.kube.cel import SCALARS_TO_CEL, Rule, escape_name
from local.kube.checks import ACCEPTED, checks_of, type_name
from local.kube.errors import FieldError


class _Absent:
    """No old value: the object, or this part of it, is new."""


ABSENT: Final = _Absent()

_EMPTY: tuple[Any, ...] = ("", False, [], {})
"""What Go leaves out of a field with omitempty."""

_INT_OR_STRING = frozenset({"integer", "string"})
_BLOCKING = frozenset(
    {
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    }
)
_UNCHECKED_RULES = errors.invalid_value(
    errors.NOWHERE,
    None,
    "some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation",
)

_EMBEDDED: Mapping[str, Any] = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
"""What an object within an object has, whatever its schema says."""

Pairs = Iterator[tuple[Any, str, "Schema", Any]]


@dataclass(frozen=True)
class _Junctor:
    """``allOf`` and its like: how many of the schemas may hold, and what to say if not."""

    schemas: tuple[Schema, ...]
    holds: Callable[[int, int], bool]
    words: str

    def find_errors(self, value: Any, path: str) -> list[FieldError]:
        faults = [schema.validate(value, path=path) for schema in self.schemas]
        held = faults.count([])
        if self.holds(held, len(faults)):
            return []
        why = f'"{path}" {self.words}'
        if self.words == _ONE_OF:
            why += f". Found {f'{held} valid alternatives' if held else 'none valid'}"
        return [errors.invalid_somewhere(why), *next(filter(None, faults), [])]


_ONE_OF = "must validate one and only one schema (oneOf)"
_JUNCTORS: dict[str, tuple[Callable[[int, int], bool], str]] = {
    "allOf": (lambda held, members: held == members, "must validate all the schemas (allOf)"),
    "anyOf": (lambda held, _: held > 0, "must validate at least one schema (anyOf)"),
    "oneOf": (lambda held, _: held == 1, _ONE_OF),
    "not": (lambda held, _: held == 0, "must not validate the schema (not)"),
}


class Schema:
    """One node of a structural schema, compiled.

    ``source`` is the OpenAPI v3 form that it was made from. Raises `CelError` when a rule in it
    does not compile; everything else that a schema may not say is found by `structural`.
    """

    def __init__(self, source: Mapping[str, Any]) -> None:
        self.source = source
        implied = _EMBEDDED if source.get("x-kubernetes-embedded-resource") else {}
        self.properties: dict[str, Schema] = {
            name: Schema(child)
            for name, child in {**source.get("properties", {}), **implied}.items()
        }
        self.items: Schema | None = Schema(source["items"]) if "items" in source else None
        additional = source.get("additionalProperties")
        self.additional: Schema | None = (
            Schema(additional) if isinstance(additional, Mapping) else None
        )
        self.omits_empty = bool(source.get("x-go-omitempty", False))
        self.nullable = bool(source.get("nullable", False))
        self.map_keys: tuple[str, ...] = tuple(source.get("x-kubernetes-list-map-keys", ()))
        self.list_type = str(source.get("x-kubernetes-list-type", "atomic"))
        self.rules = tuple(Rule.of(rule) for rule in source.get("x-kubernetes-validations", ()))
        self._required: tuple[str, ...] = tuple(source.get("required", ()))
        self.keeps_unknown = additional is True or bool(
            source.get("x-kubernetes-preserve-unknown-fields", False)
        )
        self._types = self._accepted_types()
        self._checks = tuple(checks_of(source))
        self._junctors = tuple(self._make_junctors())
        self._defaults = {
            name: json.dumps(child.source["default"])
            for name, child in self.properties.items()
            if "default" in child.source
        }
        self.has_rules: bool = bool(self.rules) or any(
            child.has_rules for child in self._children()
        )
        self._to_cel = self._make_to_cel()

    def _children(self) -> Iterator[Schema]:
        yield from self.properties.values()
        if self.items is not None:
            yield self.items
        if self.additional is not None:
            yield self.additional

    def _accepted_types(self) -> frozenset[str] | None:
        if self.source.get("x-kubernetes-int-or-string"):
            return _INT_OR_STRING
        return ACCEPTED.get(self.source.get("type", ""))

    def _make_junctors(self) -> Iterator[_Junctor]:
        for keyword, (holds, words) in _JUNCTORS.items():
            if keyword in self.source:
                found = self.source[keyword]
                members = [found] if isinstance(found, Mapping) else found
                yield _Junctor(tuple(Schema(member) for member in members), holds, words)

    # -- prune and default ------------------------------------------------------------------------

    def fill(self, value: Any, old: Any = ABSENT, path: str = "") -> list[str]:
        """Prune ``value`` and set its defaults, in place; return the paths of what was unknown."""
        if value == old:
            return []
        unknown: list[str] = []
        if isinstance(value, dict):
            self._fill_object(value, path, unknown)
        elif isinstance(value, list) and None in value and self.items is not None:
            self._fill_nulls(value, self.items)
        for child_value, child_path, child, child_old in self._pairs(value, old, path):
            unknown += child.fill(child_value, child_old, child_path)
        return unknown

    def _fill_object(self, value: dict[str, Any], path: str, unknown: list[str]) -> None:
        for name in list(value):
            child = self.properties.get(name, self.additional)
            if child is None:
                self._drop_unknown(value, name, path, unknown)
            elif child.omits_empty and name in self.properties and value[name] in _EMPTY:
                del value[name]
            elif value[name] is None and not child.nullable:
                del value[name]  # documented: such a null is pruned, and then defaulted
                if name not in self.properties and "default" in child.source:
                    value[name] = child.source["default"]
        for name, default in self._defaults.items():
            if name not in value:
                value[name] = json.loads(default)

    def _fill_nulls(self, value: list[Any], items: Schema) -> None:
        if "default" in items.source:
            nothing = json.dumps(items.source["default"])
            value[:] = [json.loads(nothing) if item is None else item for item in value]

    def _drop_unknown(
        self, value: dict[str, Any], name: str, path: str, unknown: list[str]
    ) -> None:
        if self.keeps_unknown:
            return
        unknown.append(f"{path}.{name}" if path else name)
        del value[name]

    # -- validate ---------------------------------------------------------------------------------

    def accepts(self, value: Any) -> bool:
        """Whether a value is of a type that may stand here."""
        return self._types is None or type_name(value) in self._types

    def validate(self, value: Any, old: Any = ABSENT, path: str = "") -> list[FieldError]:
        """What is wrong with a filled value, rules aside."""
        if value is None and self.nullable:
            return []
        if value == old and type(value) is type(old):
            return []
        found = type_name(value)
        if not self.accepts(value):
            wanted = self.source.get("type", "integer,string")
            why = f'{path} in body must be of type {wanted}: "{found}"'
            wrong = errors.wrong_type(path, found, why)
            return [wrong, *self._break_limits(value, found, path)]
        result = self._break_limits(value, found, path)
        if found == "object":
            result += self._missing(value, path)
        if found == "array" and self.list_type in ("map", "set"):
            result += self._duplicates(value, path)
        for child_value, child_path, child, child_old in self._pairs(value, old, path):
            result += child.validate(child_value, child_old, child_path)
        return result

    def _break_limits(self, value: Any, found: str, path: str) -> list[FieldError]:
        faults = [check(value, path) for types, check in self._checks if found in types]
        result = [fault for fault in faults if fault is not None]
        for junctor in self._junctors:
            result += junctor.find_errors(value, path)
        return result

    def _missing(self, value: dict[str, Any], path: str) -> Iterator[FieldError]:
        for name in self._required:
            if name not in value:
                yield errors.required(f"{path}.{name}" if path else name)

    def _duplicates(self, value: list[Any], path: str) -> Iterator[FieldError]:
        seen: set[str] = set()
        for index, item in enumerate(value):
            rendered = json.dumps(self.item_key(item), sort_keys=True)
            if rendered in seen:
                yield errors.duplicate(f"{path}[{index}]", json.loads(rendered))
            seen.add(rendered)

    def item_key(self, item: Any) -> Any:
        """What tells one item of a ``map`` or ``set`` list from another."""
        if self.list_type == "map" and isinstance(item, dict):
            return {key: self._key_part(item, key) for key in self.map_keys}
        return item

    def _key_part(self, item: dict[str, Any], key: str) -> Any:
        if key in item or self.items is None or key not in self.items.properties:
            return item.get(key)
        return self.items.properties[key].source.get("default")

    # -- rules ------------------------------------------------------------------------------------

    def check_rules(self, value: Any, old: Any = ABSENT, path: str = "") -> list[FieldError]:
        """What the CEL rules find in a valid value."""
        if not self.has_rules or value is None:
            return []
        result = [error for error in self._break_rules(value, old, path) if error is not None]
        parts = self._pairs(value, old, path, keys_in_brackets=True)
        for child_value, child_path, child, child_old in parts:
            if child.has_rules:
                result += child.check_rules(child_value, child_old, child_path)
        return result

    def _break_rules(self, value: Any, old: Any, path: str) -> Iterator[FieldError | None]:
        unchanged = value == old
        due = [rule for rule in self.rules if rule.transition or not unchanged]
        if not due:
            return
        has_old = old is not ABSENT
        now = self.to_cel(value)
        before = self.to_cel(old) if has_old else None
        for rule in due:
            why = rule.find_failure(now, before, has_old=has_old)
            yield why if why is None else _rule_error(rule, path, value, why)

    def to_cel(self, value: Any) -> Any:
        """A value as a rule sees it: names escaped, numbers as doubles, times as timestamps."""
        return value if self._to_cel is None else self._to_cel(value)

    def _make_to_cel(self) -> Callable[[Any], Any] | None:
        scalar = SCALARS_TO_CEL.get((self.source.get("type", ""), self.source.get("format", "")))
        if scalar is not None:
            return lambda value: (
                value if type_name(value) not in (self._types or ()) else (scalar(value))
            )
        if self.source.get("type") == "number":
            return lambda value: float(value) if isinstance(value, int) else value
        renamed = any(escape_name(name) != name for name in self.properties)
        if not renamed and all(child._to_cel is None for child in self._children()):
            return None
        return self._convert

    def _convert(self, value: Any) -> Any:
        if isinstance(value, list) and self.items is not None:
            return [self.items.to_cel(item) for item in value]
        if isinstance(value, dict):
            return dict(self._convert_entry(name, item) for name, item in value.items())
        return value

    def _convert_entry(self, name: str, item: Any) -> tuple[str, Any]:
        child = self.properties.get(name)
        if child is not None:
            return escape_name(name), child.to_cel(item)
        return name, item if self.additional is None else self.additional.to_cel(item)

    # -- what all passes share --------------------------------------------------------------------

    def _pairs(self, value: Any, old: Any, path: str, *, keys_in_brackets: bool = False) -> Pairs:
        """The parts of a value, each with its path, its schema and the old value if there is one.

        A map's keys stand in brackets in what rules find, behind a dot elsewhere.
        """
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            yield from self._members(value, before, path, "[{}]" if keys_in_brackets else ".{}")
        elif isinstance(value, list) and self.items is not None:
            yield from self._elements(value, old, path, self.items)

    def _members(
        self, value: dict[str, Any], old: dict[str, Any], path: str, key_form: str
    ) -> Pairs:
        for name, item in value.items():
            child = self.properties.get(name)
            if child is not None:
                child_path = f"{path}.{name}" if path else name
                yield item, child_path, child, old.get(name, ABSENT)
            elif self.additional is not None:
                yield item, path + key_form.format(name), self.additional, old.get(name, ABSENT)

    def _elements(self, value: list[Any], old: Any, path: str, items: Schema) -> Pairs:
        before: dict[str, Any] = {}
        if self.list_type == "map" and isinstance(old, list):
            before = {json.dumps(self.item_key(item), sort_keys=True): item for item in old}
        for index, item in enumerate(value):
            key = json.dumps(self.item_key(item), sort_keys=True) if before else ""
            yield item, f"{path}[{index}]", items, before.get(key, ABSENT)


def find_errors(schema: Schema, value: Any, old: Any = ABSENT, part: str = "") -> list[FieldError]:
    """All that is wrong with a filled object: limits first, rules if the limits let them run.

    ``part`` names the one member that a write is about; in messages, paths begin there.
    """
    found = list(_part_errors(schema, value, old, part)) if part else schema.validate(value, old)
    if any(error.reason in _BLOCKING for error in found):
        return [*found, _UNCHECKED_RULES] if schema.has_rules else found
    return found + schema.check_rules(value, old)


def _part_errors(schema: Schema, value: Any, old: Any, part: str) -> Iterator[FieldError]:
    before = old.get(part, ABSENT) if isinstance(old, dict) else ABSENT
    if part not in value or part not in schema.properties:
        return
    for error in schema.properties[part].validate(value[part], before):
        within = error.field == errors.NOWHERE
        yield error if within else replace(error, field=f"{part}.{error.field}".rstrip("."))


def _rule_error(rule: Rule, path: str, value: Any, why: str) -> FieldError:
    field = (path + rule.field_path).removeprefix(".") or errors.NOWHERE
    shown = errors.OMITTED if isinstance(value, dict | list) else value
    return {
        "FieldValueRequired": lambda: errors.required(field, why),
        "FieldValueForbidden": lambda: errors.forbidden_field(field, why),
        "FieldValueDuplicate": lambda: errors.duplicate(field, shown),
        "FieldValueInvalid": lambda: errors.invalid_value(field, shown, why),
    }[rule.reason]()
