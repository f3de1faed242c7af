"""Label selectors in the string form of a query parameter, and ``matchExpressions``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
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
    requirements, at = [], 0
    while at < len(text):
        found = _REQUIREMENT.match(text, at)
        if found is None:
            raise _unreadable(text, f"cannot parse {text[at:]!r}")
        requirements.append(_requirement(found, text))
        at = found.end()
    return Selector(tuple(requirements))


def _unreadable(text: str, why: str) -> errors.ApiError:
    return errors.bad_request(f"unable to parse the label selector {text!r}: {why}")


def _requirement(found: re.Match[str], text: str) -> Requirement:
    key = found["key"] or found["key_absent"]
    operator = found["set"] or found["operator"] or ("absent" if found["absent"] else "present")
    values = tuple(part.strip() for part in (found["values"] or found["value"] or "").split(","))
    wrong = [*key_violations(key), *(why for one in values for why in label_value_violations(one))]
    if operator in ("<", ">") and not _is_number(values[0]):
        wrong.append("the value must be an integer")
    if wrong:
        raise _unreadable(text, "; ".join(wrong))
    holds = _OPERATORS[operator]
    return lambda labels: holds(labels, key, values)


Holds = Callable[[Labels, str, tuple[str, ...]], bool]


def _within(labels: Labels, key: str, values: tuple[str, ...]) -> bool:
    return labels.get(key) in values


def _without(labels: Labels, key: str, values: tuple[str, ...]) -> bool:
    return labels.get(key) not in values


def _beyond(labels: Labels, key: str, values: tuple[str, ...]) -> bool:
    return _is_number(labels.get(key)) and int(labels[key]) > int(values[0])


def _below(labels: Labels, key: str, values: tuple[str, ...]) -> bool:
    return _is_number(labels.get(key)) and int(labels[key]) < int(values[0])


def _present(labels: Labels, key: str, _: tuple[str, ...]) -> bool:
    return key in labels


def _absent(labels: Labels, key: str, _: tuple[str, ...]) -> bool:
    return key not in labels


def _is_number(text: str | None) -> bool:
    return text is not None and text.removeprefix("-").isdecimal()


_OPERATORS: dict[str, Holds] = {
    **dict.fromkeys(("in", "=", "==", "In"), _within),
    **dict.fromkeys(("notin", "!=", "NotIn"), _without),
    **dict.fromkeys((">", "Gt"), _beyond),
    **dict.fromkeys(("<", "Lt"), _below),
    **dict.fromkeys(("present", "Exists"), _present),
    **dict.fromkeys(("absent", "DoesNotExist"), _absent),
}


def matches_expressions(expressions: Iterable[Mapping[str, Any]], labels: Labels) -> bool:
    """Whether labels fulfil all ``matchExpressions`` (of selectors and of node affinity)."""
    return all(
        _OPERATORS[one["operator"]](labels, one["key"], tuple(one.get("values", ())))
        for one in expressions
    )
