"""The two workloads in examples/: what is injected into one is what the other has by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.unit.inject_env.workloads import Answered

EXAMPLES = Path(__file__).parents[3] / "examples" / "workload"


def read(name: str) -> Any:
    documents = yaml.safe_load_all((EXAMPLES / name).read_text())
    return next(one for one in documents if one["kind"] == "StatefulSet")


def test_what_is_injected_is_what_was_written_by_hand() -> None:
    by_hand = read("by-hand.yaml")
    answered = Answered(read("injected.yaml"))
    assert answered.warnings == []
    wanted = by_hand["spec"]["template"]["spec"]["containers"][0]["env"]
    assert sorted(answered.entries("train"), key=str) == sorted(wanted, key=str)


def test_what_was_written_by_hand_stays() -> None:
    by_hand = read("by-hand.yaml")
    entries = by_hand["spec"]["template"]["spec"]["containers"][0]["env"]
    assert Answered(by_hand).entries("train") == entries
