"""The guardrails' policy: the groups that it admits and those that it rejects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.admission import refusal
from tests.support.guardrails import CASES, Case

Manifest = dict[str, Any]

COMPONENT = Path(__file__).parents[4] / "infra" / "chart" / "manifests" / "guardrails"
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
def test_the_guardrails_admit_a_group_within_the_limits_and_reject_any_other(case: Case) -> None:
    message = refusal(GUARDRAILS, "CREATE", case.group, params=limits(case))
    assert message == case.message("tpu-functions")


def test_an_existing_group_is_rejected_only_if_its_spec_changes() -> None:
    case = Case("", {"maxChips": "0"}, {}, "spec.topology: 2x2x2 has 8 chips; allowed: 0")
    existing = case.group
    released = {**existing, "metadata": {**existing["metadata"], "finalizers": []}}
    assert refusal(GUARDRAILS, "UPDATE", released, old=existing, params=limits(case)) == ""
    other = {**existing, "spec": {**existing["spec"], "nodeCount": 3}}
    message = refusal(GUARDRAILS, "UPDATE", existing, old=other, params=limits(case))
    assert message == case.message("tpu-functions")
