"""The functions check every bound of the definition (crd.yaml), at the bound and beyond it.

The functions name the allowed values even if a pattern rejects the value with another message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.node_groups import node_group
from tests.support.builders import CLUSTER, merge, raw_group

CRD: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[4] / "infra/kubernetes/base/crd.yaml").read_text()
)
SPEC: dict[str, Any] = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
RAW = raw_group()
MAX_INT32 = 2_147_483_647
"""The maximum of the format int32, which applies to a number without a maximum."""


def list_bounds(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield path, value and message of each value at a bound (no message) or beyond it."""
    if schema["type"] == "string" and "maxLength" in schema:
        most, least = schema["maxLength"], schema.get("minLength", 0)
        yield path, "a" * most, ""
        yield path, "a" * (most + 1), f"has {most + 1} characters; {most} are allowed"
        yield path, "a" * least, ""
        if least == 1:
            yield path, "", "must not be empty"
    elif schema["type"] == "integer":
        least, most = schema["minimum"], schema.get("maximum", MAX_INT32)
        for number in (least - 1, least, most, most + 1):
            message = f"must be a whole number from {least} to {most}, not {number}"
            yield path, number, "" if least <= number <= most else message
    elif schema["type"] == "array":
        least, most = schema.get("minItems", 0), schema["maxItems"]
        for number in {max(least - 1, 0), least, most, most + 1}:
            message = f"must have {least} to {most} items, not {number}"
            yield path, [{}] * number, "" if least <= number <= most else message
        for field, value, message in list_bounds(f"{path}[0]", schema["items"]):
            yield field, value, message
    elif "additionalProperties" in schema:
        most = schema["maxProperties"]
        yield path, {f"k{number}": "" for number in range(most)}, ""
        entries = {f"k{number}": "" for number in range(most + 1)}
        yield path, entries, f"has {most + 1} entries; {most} are allowed"
        yield from list_bounds(f"{path}.key", schema["additionalProperties"])
    for name, child in schema.get("properties", {}).items():
        yield from list_bounds(f"{path}.{name}", child)


BOUNDS = list(list_bounds("spec", SPEC))
BOUND_MESSAGES = ("allowed", "must not be empty", "must be a whole number", "must have")


def nest(path: str, value: Any) -> Any:
    """Return a merge patch that sets the path to the value."""
    for name in reversed(path.split(".")[1:]):
        bare = name.removesuffix("[0]")
        value = {bare: [value] if name != bare else value}
    return value


@pytest.mark.parametrize(
    "path, value, message",
    BOUNDS,
    ids=[f"{path}, {message or 'at the bound'}" for path, _, message in BOUNDS],
)
def test_a_value_at_a_bound_is_valid_and_a_value_beyond_it_is_a_violation(
    path: str, value: Any, message: str
) -> None:
    changed = {**RAW, "spec": merge(RAW["spec"], nest(path, value))}
    found = [
        violation.text
        for violation in node_group.parse(changed, CLUSTER).violations
        if violation.path == path and any(part in violation.text for part in BOUND_MESSAGES)
    ]
    assert found == ([message] if message else [])
