"""A Pod's node selector and affinity, and whether the Nodes of a slice match them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.base.documents import read_mapping, read_mappings
from shared.ports.gke_settings import is_below
from shared.slices.units import Demand, InputError


@dataclass(frozen=True)
class Selection:
    """A Pod's nodeSelector and required node affinity, and the labels that all Nodes of its slice have.

    ``implied`` are labels that follow from the slice's size and place, whatever its manifest says. In
    ``open_domains`` Nodes may have unknown labels, except ``closed_keys``: a requirement of an unknown
    label counts as met.
    """

    selector: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[Mapping[str, Any], ...] | None = None
    """The terms of the required node affinity, one of which must match; ``None``: no requirement."""
    implied: Mapping[str, str] = field(default_factory=dict)
    open_domains: tuple[str, ...] = ()
    closed_keys: frozenset[str] = frozenset()

    def matches(self, given: Mapping[str, str]) -> bool:
        """Whether the Pod selects Nodes whose manifest gives them these labels."""
        labels = {**self.implied, **given}
        return self._find_unmet_selector(labels) is None and not self._find_unmet_affinity(labels)

    def check(
        self, given: Mapping[str, str], other_way: Callable[[str], str], for_affinity: str
    ) -> None:
        """Raise `InputError` for a requirement that Nodes with these labels do not meet. ``other_way``
        says of a key, and ``for_affinity`` of an affinity, what else than to take it out can be done."""
        labels = {**self.implied, **given}
        key = self._find_unmet_selector(labels)
        if key is not None:
            has = f"{key}={labels[key]}" if key in labels else "no such label"
            raise InputError(
                f"the Pod's nodeSelector has {key}={self.selector[key]}, and the Nodes of its slice "
                f"would have {has}: it must be taken out{other_way(key)}"
            )
        if unmet := self._find_unmet_affinity(labels):
            raise InputError(
                f"the Pod's required nodeAffinity has {unmet}, which no Node of its slice would match: "
                f"it must be taken out{for_affinity}"
            )

    def _find_unmet_selector(self, labels: Mapping[str, str]) -> str | None:
        for key, value in self.selector.items():
            if labels.get(key) != value and not self._is_unknown(key, labels):
                return key
        return None

    def _find_unmet_affinity(self, labels: Mapping[str, str]) -> str:
        """The first unmet requirement of the node affinity, in words; empty if it is met."""
        if self.terms is None:
            return ""
        unmet = [self._find_unmet(term, labels) for term in self.terms]
        return next(iter(unmet), "no term") if all(unmet) else ""

    def _find_unmet(self, term: Mapping[str, Any], labels: Mapping[str, str]) -> str:
        """The first unmet requirement of a term; empty if the term matches.

        An empty term matches no Node. A term with matchFields selects by name, so it matches no Node
        that is yet to be created.
        """
        expressions = list(read_mappings(term, "matchExpressions"))
        if term.get("matchFields"):
            return "matchFields"
        if not expressions:
            return "an empty term"
        unmet = (one for one in expressions if not self._holds(one, labels))
        return next(map(_render, unmet), "")

    def _holds(self, expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
        key, operator = str(expression.get("key")), expression.get("operator")
        if self._is_unknown(key, labels):
            return True
        value, values = labels.get(key), expression.get("values") or ()
        if operator in ("NotIn", "DoesNotExist"):
            return value not in values if operator == "NotIn" else value is None
        if value is None or operator == "Exists":
            return value is not None
        if operator == "In":
            return value in values
        numbers = [int(one) for one in (value, *values) if re.fullmatch("-?[0-9]{1,18}", one)]
        if len(numbers) != 2:
            return False
        return numbers[0] > numbers[1] if operator == "Gt" else numbers[0] < numbers[1]

    def _is_unknown(self, key: str, labels: Mapping[str, str]) -> bool:
        is_known = key in labels or key in self.closed_keys
        return not is_known and is_below(key, self.open_domains)


def build_selection(demand: Demand, implied: Mapping[str, str]) -> Selection:
    """The selection of a Pod, if all labels of the Nodes are known."""
    return Selection(demand.selector, _read_terms(demand.raw), implied)


def _read_terms(pod: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    found = pod
    for name in ("spec", "affinity", "nodeAffinity"):
        found = read_mapping(found, name)
    required = read_mapping(found, "requiredDuringSchedulingIgnoredDuringExecution")
    return tuple(read_mappings(required, "nodeSelectorTerms")) if required else None


def _render(expression: Mapping[str, Any]) -> str:
    values = expression.get("values")
    words = [str(expression.get("key")), str(expression.get("operator"))]
    return " ".join([*words, f"[{', '.join(values)}]"] if values else words)
