"""Structural schemas: prune, default and validate objects like the API server.

A `Schema` is compiled once and is immutable. It processes plain JSON values in three passes, in the API
server's order: `fill` (removes unknown fields, sets defaults), `validate` (types, limits, enumerations)
and `check_rules` (CEL). On an update, violations in unchanged parts are not reported (ratcheting,
documented since 1.30, generally available since 1.33); so a write of the status costs no more than the
status itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from local.kube import errors
from local.kube.cel import Rule, escape_name, parse_timestamp
from local.kube.checks import ACCEPTED, checks_of, type_name
from local.kube.errors import FieldError
from local.kube.formats import can_decode

ABSENT: Final = object()
"""There is no old value: the object, or this part of it, is new."""
_EMPTY: tuple[Any, ...] = ("", False, [], {})
"""The values of a field with omitempty that Go omits."""

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
"""Rules do not run on a value with one of these errors."""

Parts = Iterator[tuple[Any, str, "Schema", Any]]


class Schema:
    """One node of a structural schema, compiled.

    ``source`` is its OpenAPI v3 form. Raises `CelError` if a rule does not compile.
    """

    def __init__(self, source: Mapping[str, Any]) -> None:
        self.source = source
        self.properties = {
            name: Schema(child) for name, child in source.get("properties", {}).items()
        }
        self.items: Schema | None = Schema(source["items"]) if "items" in source else None
        additional = source.get("additionalProperties")
        self.additional: Schema | None = (
            Schema(additional) if isinstance(additional, Mapping) else None
        )
        self.nullable = bool(source.get("nullable", False))
        self._omits_empty = bool(source.get("x-go-omitempty", False))
        self._list_type = str(source.get("x-kubernetes-list-type", "atomic"))
        self._map_keys: tuple[str, ...] = tuple(source.get("x-kubernetes-list-map-keys", ()))
        self._rules = tuple(Rule(rule) for rule in source.get("x-kubernetes-validations", ()))
        self._required: tuple[str, ...] = tuple(source.get("required", ()))
        self._keeps_unknown = additional is True or bool(
            source.get("x-kubernetes-preserve-unknown-fields", False)
        )
        int_or_string = source.get("x-kubernetes-int-or-string")
        self._types = _INT_OR_STRING if int_or_string else ACCEPTED.get(source.get("type", ""))
        self._checks = tuple(checks_of(source))
        self._defaults = {
            name: json.dumps(child.source["default"])
            for name, child in self.properties.items()
            if "default" in child.source
        }
        self._has_rules: bool = bool(self._rules) or any(
            child._has_rules for child in self._children()
        )
        self._to_cel = self._make_to_cel()

    def _children(self) -> Iterator[Schema]:
        yield from self.properties.values()
        yield from (child for child in (self.items, self.additional) if child is not None)

    # -- prune and default ------------------------------------------------------------------------

    def fill(self, value: Any, old: Any = ABSENT, path: str = "") -> list[str]:
        """Prune ``value`` and set its defaults, in place; return the paths of the unknown fields."""
        if value == old:
            return []
        unknown: list[str] = []
        if isinstance(value, dict):
            self._fill_object(value, path, unknown)
        elif isinstance(value, list) and self.items is not None and "default" in self.items.source:
            nothing = json.dumps(self.items.source["default"])
            value[:] = [json.loads(nothing) if item is None else item for item in value]
        for child_value, child_path, child, child_old in self._parts(value, old, path):
            unknown += child.fill(child_value, child_old, child_path)
        return unknown

    def _fill_object(self, value: dict[str, Any], path: str, unknown: list[str]) -> None:
        for name in list(value):
            child = self.properties.get(name, self.additional)
            if child is None:
                if not self._keeps_unknown:
                    unknown.append(f"{path}.{name}" if path else name)
                    del value[name]
            elif child._omits_empty and name in self.properties and value[name] in _EMPTY:
                del value[name]
            elif value[name] is None and not child.nullable:
                del value[name]  # documented: such a null is pruned, then defaulted
                if name not in self.properties and "default" in child.source:
                    value[name] = child.source["default"]
        for name, default in self._defaults.items():
            if name not in value:
                value[name] = json.loads(default)

    # -- validate ---------------------------------------------------------------------------------

    def find_mistyped(self, value: Any, old: Any = ABSENT, path: str = "") -> str | None:
        """Find the first value that a Go struct of this schema cannot hold; returns its violation."""
        if value is None or value == old:
            return None
        if not self._accepts(value):
            wanted = self.source.get("type", "integer or string")
            return f"{path} must be of type {wanted}, and not {type_name(value)}"
        name = self.source.get("format", "")
        if not can_decode(name, value):
            return f"{path} must have the format {name}"
        found = (
            child.find_mistyped(child_value, child_old, child_path)
            for child_value, child_path, child, child_old in self._parts(value, old, path)
        )
        return next(filter(None, found), None)

    def _accepts(self, value: Any) -> bool:
        return self._types is None or type_name(value) in self._types

    def find_errors(self, value: Any, old: Any = ABSENT) -> list[FieldError]:
        """The violations of a filled object: of limits, then of rules unless those block them."""
        found = self.validate(value, old)
        if any(error.reason in _BLOCKING for error in found):
            return found
        return found + self.check_rules(value, old)

    def validate(self, value: Any, old: Any = ABSENT, path: str = "") -> list[FieldError]:
        """The violations of a filled value, without those of rules."""
        if value is None and self.nullable:
            return []
        if value == old and type(value) is type(old):
            return []
        found = type_name(value)
        if not self._accepts(value):
            wanted = self.source.get("type", "integer,string")
            why = f'{path} in body must be of type {wanted}: "{found}"'
            return [errors.wrong_type(path, found, why)]
        checked = (check(value, path) for types, check in self._checks if found in types)
        result = [error for error in checked if error is not None]
        if found == "object":
            missing = (name for name in self._required if name not in value)
            result += (errors.required(f"{path}.{name}" if path else name) for name in missing)
        if found == "array" and self._list_type in ("map", "set"):
            result += self._duplicates(value, path)
        for child_value, child_path, child, child_old in self._parts(value, old, path):
            result += child.validate(child_value, child_old, child_path)
        return result

    def _duplicates(self, value: list[Any], path: str) -> Iterator[FieldError]:
        seen: set[str] = set()
        for index, item in enumerate(value):
            key = self._item_key(item)
            if key in seen:
                yield errors.duplicate(f"{path}[{index}]", json.loads(key))
            seen.add(key)

    def _item_key(self, item: Any) -> str:
        """The key of an item of a ``map`` or ``set`` list."""
        if self._list_type == "map" and isinstance(item, dict):
            known = {} if self.items is None else self.items._defaults
            item = {
                key: item.get(key, json.loads(known.get(key, "null"))) for key in self._map_keys
            }
        return json.dumps(item, sort_keys=True)

    # -- rules ------------------------------------------------------------------------------------

    def check_rules(self, value: Any, old: Any = ABSENT, path: str = "") -> list[FieldError]:
        """The violations of CEL rules in a valid value."""
        if not self._has_rules or value is None:
            return []
        result = list(self._list_rule_violations(value, old, path))
        parts = self._parts(value, old, path, keys_in_brackets=True)
        for child_value, child_path, child, child_old in parts:
            if child._has_rules:
                result += child.check_rules(child_value, child_old, child_path)
        return result

    def _list_rule_violations(self, value: Any, old: Any, path: str) -> Iterator[FieldError]:
        unchanged = value == old
        due = [rule for rule in self._rules if rule.transition or not unchanged]
        if not due:
            return
        has_old = old is not ABSENT
        now = self.to_cel(value)
        before = self.to_cel(old) if has_old else None
        for rule in due:
            why = rule.find_failure(now, before, has_old=has_old)
            if why is not None:
                yield _rule_error(rule, path, value, why)

    def to_cel(self, value: Any) -> Any:
        """Convert a value for rules: names escaped, numbers as doubles, times as timestamps."""
        return value if self._to_cel is None else self._to_cel(value)

    def _make_to_cel(self) -> Callable[[Any], Any] | None:
        if self.source.get("format") == "date-time":
            return lambda value: parse_timestamp(value) if isinstance(value, str) else value
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
            return dict(self._convert_member(name, item) for name, item in value.items())
        return value

    def _convert_member(self, name: str, item: Any) -> tuple[str, Any]:
        child = self.properties.get(name)
        if child is not None:
            return escape_name(name), child.to_cel(item)
        return name, item if self.additional is None else self.additional.to_cel(item)

    # -- helpers of all passes --------------------------------------------------------------------

    def _parts(self, value: Any, old: Any, path: str, *, keys_in_brackets: bool = False) -> Parts:
        """The parts of a value, each with its path, its schema and the old value if there is one.

        In paths of rules, a map's keys are in brackets; in others, they follow a dot.
        """
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for name, item in value.items():
                child = self.properties.get(name, self.additional)
                if child is not None:
                    at = f"{path}.{name}" if path else name
                    if keys_in_brackets and name not in self.properties:
                        at = f"{path}[{name}]"
                    yield item, at, child, before.get(name, ABSENT)
        elif isinstance(value, list) and self.items is not None:
            known: dict[str, Any] = {}
            if self._list_type == "map" and isinstance(old, list):
                known = {self._item_key(item): item for item in old}
            for index, item in enumerate(value):
                key = self._item_key(item) if known else ""
                yield item, f"{path}[{index}]", self.items, known.get(key, ABSENT)


def _rule_error(rule: Rule, path: str, value: Any, why: str) -> FieldError:
    field = (path + rule.field_path).removeprefix(".") or errors.NOWHERE
    shown = errors.OMITTED if isinstance(value, dict | list) else value
    return {
        "FieldValueRequired": lambda: errors.required(field, why),
        "FieldValueForbidden": lambda: errors.forbidden_field(field, why),
        "FieldValueDuplicate": lambda: errors.duplicate(field, shown),
        "FieldValueInvalid": lambda: errors.invalid_value(field, shown, why),
    }[rule.reason]()
