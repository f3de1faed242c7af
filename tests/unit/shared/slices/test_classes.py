"""TPUSliceClasses: how they are read, and which one a Pod gets."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from shared.slices.classes import Place, Refusal, Shape, parse
from tests.support.builders import NOW

TEMPLATE = {"spec": {"project": "tpus", "instanceConfig": {"image": "i"}}}


def a_class(spec: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "v6e"}, "spec": spec, "status": status}


def test_a_refusal_is_read_as_it_was_written() -> None:
    refused = Refusal(
        Place("us-east5-b", "SPOT").key,
        Shape("ct6e-standard-4t", "4x4"),
        *("InsufficientCapacity", "no capacity"),
        *(NOW, NOW + timedelta(minutes=5)),
    )
    claimed = Refusal(**{**vars(refused), "asked_by": "default/a"})
    status = [one.render() for one in (refused, claimed)]
    assert parse(a_class({}, refusals=[*status, {}, "odd"])).refusals == (refused, claimed)


def test_candidates_have_the_project_of_the_template_unless_they_name_another() -> None:
    candidates = [{"zone": "z-a", "provisioningModel": "SPOT"}, {"zone": "z-a", "project": "p"}]
    read = parse(a_class({"template": TEMPLATE, "candidates": candidates}))
    assert [one.key for one in read.candidates] == ["tpus:z-a/SPOT", "p:z-a/STANDARD"]
