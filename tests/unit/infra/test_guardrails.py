"""What the guardrails' policy lets pass and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.admission import refusal
from tests.guardrails import CASES, Case

Manifest = dict[str, Any]

COMPONENT = Path(__file__).parents[3] / "infra" / "kubernetes" / "components" / "guardrails"
POLICIES: dict[str, Manifest] = {
    document["metadata"]["name"]: document
    for path in COMPONENT.glob("*.yaml")
    for document in yaml.safe_load_all(path.read_text())
    if document["kind"] == "ValidatingAdmissionPolicy"
}
GUARDRAILS = POLICIES["tpu-guardrails"]


def limits(case: Case) -> Manifest:
    metadata = {"name": "tpu-guardrails", "namespace": "tpu-functions"}
    return {"metadata": metadata, **({} if case.limits is None else {"data": case.limits})}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_guardrails(case: Case) -> None:
    said = refusal(GUARDRAILS, "CREATE", case.group, params=limits(case))
    assert said == case.message("tpu-functions")


def test_a_group_that_stands_already_is_left_alone_unless_its_spec_changes() -> None:
    case = Case("", {"maxChips": "0"}, {}, "spec.topology: 2x2x2 has 8 chips; allowed: 0")
    standing = case.group
    released = {**standing, "metadata": {**standing["metadata"], "finalizers": []}}
    assert refusal(GUARDRAILS, "UPDATE", released, old=standing, params=limits(case)) == ""
    other = {**standing, "spec": {**standing["spec"], "nodeCount": 3}}
    said = refusal(GUARDRAILS, "UPDATE", standing, old=other, params=limits(case))
    assert said == case.message("tpu-functions")
