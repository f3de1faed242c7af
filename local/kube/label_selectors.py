"""Label selectors in the string form of a query parameter, and ``matchExpressions``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import isnan, nan
from typing import Any

from local.kube import errors
from local.kube.metadata import key_violations, label_value_violations

Labels = Mapping[str, str]
Requirement = Callable[[Labels], bool]

_REQUIREMENT = re.compile(
    r"""\s*
    (?: (?P<absent>!)\s*(?P<key_absent>[^\s=!(),<>]+)
      | (?P<key>[^\s=!(),<>]+)
        (?: \s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)
          | \s*(?P<operator>==|=|!=|<|>)\s*(?P<value>[^\s=!(),<>]*) )? )
    \s*(?:,(?=\s*[^\s,])|\Z)""",
    re.VERBOSE,
)


@lru_cache(maxsize=1024)
def parse_label_selector(text: str) -> Requirement:
    """Parse a selector such as ``a=b,c!=d,e in (f,g),h notin (i),j,!k`` into a function of labels.

    Raises 400.
    """
    requirements: list[Requirement] = []
    at = 0
    while at < len(text):
        found = _REQUIREMENT.match(text, at)
        if found is None:
            raise _unreadable(text, f"cannot parse {text[at:]!r}")
        requirements.append(_requirement(found, text))
        at = found.end()
    return lambda labels: all(requirement(labels) for requirement in requirements)


def _unreadable(text: str, why: str) -> errors.ApiError:
    return errors.bad_request(f"unable to parse the label selector {text!r}: {why}")


def _requirement(found: re.Match[str], text: str) -> Requirement:
    key = found["key"] or found["key_absent"]
    operator = _SIGNS[found["set"] or found["operator"] or found["absent"] or ""]
    values = tuple(part.strip() for part in (found["values"] or found["value"] or "").split(","))
    wrong = [*key_violations(key), *(why for one in values for why in label_value_violations(one))]
    if operator in ("Gt", "Lt") and isnan(_number(values[0])):
        wrong.append("the value must be an integer")
    if wrong:
        raise _unreadable(text, "; ".join(wrong))
    holds = _OPERATORS[operator]
    return lambda labels: holds(labels, key, values)


def _number(text: str | None) -> float:
    """A label's value as an integer; NaN, which compares as false, if it is none."""
    return int(text) if text and text.removeprefix("-").isdecimal() else nan


Holds = Callable[[Labels, str, tuple[str, ...]], bool]
_OPERATORS: dict[str, Holds] = {
    "In": lambda labels, key, values: labels.get(key) in values,
    "NotIn": lambda labels, key, values: labels.get(key) not in values,
    "Exists": lambda labels, key, _: key in labels,
    "DoesNotExist": lambda labels, key, _: key not in labels,
    "Gt": lambda labels, key, values: _number(labels.get(key)) > _number(values[0]),
    "Lt": lambda labels, key, values: _number(labels.get(key)) < _number(values[0]),
}
"""Whether labels match a requirement, by the operator in ``matchExpressions``."""
_SIGNS = {
    "": "Exists",
    "!": "DoesNotExist",
    "in": "In",
    "notin": "NotIn",
    "=": "In",
    "==": "In",
    "!=": "NotIn",
    ">": "Gt",
    "<": "Lt",
}
"""The operators by their form in a query."""


def matches_expressions(expressions: Iterable[Mapping[str, Any]], labels: Labels) -> bool:
    """Whether labels match all ``matchExpressions`` (of selectors and of node affinity)."""
    return all(
        _OPERATORS[one["operator"]](labels, one["key"], tuple(one.get("values", ())))
        for one in expressions
    )
