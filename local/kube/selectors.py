"""Label and field selectors, in the string form of a query parameter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from local.kube import errors

Labels = Mapping[str, str]
Requirement = Callable[[Labels], bool]

_SET = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\s*")
_EQUALITY = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s!=,()]*)\s*")
_EXISTS = re.compile(r"\s*(?P<not>!?)\s*(?P<key>[^\s!=,()]+)\s*")
_KEY = re.compile(r"(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_TERM = re.compile(r"(?P<path>[^=!,]+)(?P<op>==|=|!=)(?P<value>(?:\\.|[^,\\])*)")


@dataclass(frozen=True)
class Selector:
    """All requirements must hold; an empty selector matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels | None) -> bool:
        """Whether an object with these labels is selected."""
        return all(requirement(labels or {}) for requirement in self.requirements)


@lru_cache(maxsize=1024)
def parse_label_selector(text: str) -> Selector:
    """A selector from ``a=b,c!=d,e in (f,g),h notin (i),j,!k``. Raises 400."""
    requirements: list[Requirement] = []
    rest = text
    while rest.strip():
        requirement, rest = _parse_requirement(text, rest)
        requirements.append(requirement)
    return Selector(tuple(requirements))


def _parse_requirement(text: str, rest: str) -> tuple[Requirement, str]:
    for pattern, make in ((_SET, _in_set), (_EQUALITY, _equal), (_EXISTS, _exists)):
        found = pattern.match(rest)
        if found and rest[found.end() :][:1] in ("", ",") and _KEY.fullmatch(found["key"]):
            return make(found), rest[found.end() + 1 :]
    raise errors.bad_request(
        f"unable to parse requirement: found '{rest.strip()}' in label selector \"{text}\""
    )


def _in_set(found: re.Match[str]) -> Requirement:
    key, values = found["key"], {value.strip() for value in found["values"].split(",")}
    if found["op"] == "in":
        return lambda labels: labels.get(key) in values
    return lambda labels: labels.get(key) not in values


def _equal(found: re.Match[str]) -> Requirement:
    key, value = found["key"], found["value"]
    if found["op"] == "!=":
        return lambda labels: labels.get(key) != value
    return lambda labels: labels.get(key) == value


def _exists(found: re.Match[str]) -> Requirement:
    key = found["key"]
    if found["not"]:
        return lambda labels: key not in labels
    return lambda labels: key in labels


_OPERATORS: dict[str, Callable[[Labels, str, tuple[str, ...]], bool]] = {
    "In": lambda labels, key, values: labels.get(key) in values,
    "NotIn": lambda labels, key, values: labels.get(key) not in values,
    "Exists": lambda labels, key, _: key in labels,
    "DoesNotExist": lambda labels, key, _: key not in labels,
    "Gt": lambda labels, key, values: key in labels and int(labels[key]) > int(values[0]),
    "Lt": lambda labels, key, values: key in labels and int(labels[key]) < int(values[0]),
}


def matches_expressions(expressions: Iterable[Mapping[str, Any]], labels: Labels) -> bool:
    """Whether labels fulfil all ``matchExpressions`` (of selectors and of node affinity)."""
    return all(
        _OPERATORS[one["operator"]](labels, one["key"], tuple(one.get("values", ())))
        for one in expressions
    )


@dataclass(frozen=True)
class FieldTerm:
    """One term of a field selector."""

    path: str
    value: str
    equal: bool


@dataclass(frozen=True)
class FieldSelector:
    """All terms must hold; an empty selector matches everything."""

    terms: tuple[FieldTerm, ...] = ()

    def matches(self, document: Mapping[str, Any]) -> bool:
        """Whether an object is selected; a missing field counts as the empty string."""
        return all(
            (read_field(document, term.path) == term.value) is term.equal for term in self.terms
        )

    @property
    def name(self) -> str:
        """The one name that ``metadata.name=`` asks for, or the empty string."""
        for term in self.terms:
            if term.path == "metadata.name" and term.equal:
                return term.value
        return ""


@lru_cache(maxsize=4096)
def parse_field_selector(text: str, known: tuple[str, ...]) -> FieldSelector:
    """A selector over ``known`` fields and the name and namespace that all have. Raises 400."""
    terms = []
    for part in filter(None, re.split(r"(?<!\\),", text)):
        found = _TERM.fullmatch(part.strip())
        if found is None:
            raise errors.bad_request(
                f"invalid selector: '{text}'; can't understand '{part.strip()}'"
            )
        path = found["path"].strip()
        if path not in known and path not in ("metadata.name", "metadata.namespace"):
            raise errors.bad_request(f"field label not supported: {path}")
        value = re.sub(r"\\(.)", r"\1", found["value"])
        terms.append(FieldTerm(path, value, found["op"] != "!="))
    return FieldSelector(tuple(terms))


_FLAGS = frozenset({"spec.unschedulable", "spec.hostNetwork"})


def read_field(document: Mapping[str, Any], path: str) -> str:
    """A field in the form that selectors compare: text, ``true``, ``false`` or empty."""
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if path in _FLAGS:
        return "true" if value else "false"
    if path == "source" and isinstance(value, Mapping):
        return str(value.get("component", ""))
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
