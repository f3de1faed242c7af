"""The two workloads in examples/: one is injected, the other has the same variables manually."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.unit.webhook.workloads import Answered

EXAMPLES = Path(__file__).parents[3] / "examples" / "workload"


def read(name: str) -> Any:
    documents = yaml.safe_load_all((EXAMPLES / name).read_text())
    return next(one for one in documents if one["kind"] == "StatefulSet")


def test_the_injected_variables_are_those_of_the_manual_example() -> None:
    manual = read("by-hand.yaml")
    answered = Answered(read("injected.yaml"))
    assert answered.warnings == []
    expected = manual["spec"]["template"]["spec"]["containers"][0]["env"]
    assert sorted(answered.entries("train"), key=str) == sorted(expected, key=str)


def test_the_variables_of_the_manual_example_are_kept() -> None:
    manual = read("by-hand.yaml")
    entries = manual["spec"]["template"]["spec"]["containers"][0]["env"]
    assert Answered(manual).entries("train") == entries
