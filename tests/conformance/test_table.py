"""Every known behaviour of tpu-operator and TPU Provisioner has a test, or a reason for a difference."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.provisioner import NODE_POOLS
from tests.conformance.provisioner import ROWS as PROVISIONER
from tests.conformance.provisioner_steps import ROWS as PROVISIONER_STEPS
from tests.conformance.provisioner_steps import STEPS
from tests.conformance.table import (
    LABEL,
    ROWS,
    SHAPES,
    TOPOLOGY_GENERATIONS,
    TOPOLOGY_LABELS,
    TOPOLOGY_RULES,
    TOPOLOGY_TRAPS,
    TRIGGERS,
    Row,
)
from tests.unit.test_desired_pool import DIFFERS, INPUT_ERRORS

pytestmark = pytest.mark.xdist_group("conformance table")

TESTS = Path(__file__).parents[1]
DATA = TESTS / "data"
OPERATOR: list[dict[str, Any]] = yaml.safe_load((DATA / "tpu_node_group.yaml").read_text())["rows"]
TOPOLOGY: dict[str, Any] = yaml.safe_load((DATA / "topology.yaml").read_text())
ENTRIES = [
    json.loads(line)["name"] for line in (DATA / "audit-log-entries.jsonl").read_text().splitlines()
]


def shape_rows() -> dict[str, Row]:
    """Each documented shape of a supported generation, by machine type."""
    return {
        f"{generation} {row['topology']} {machine_type}": Row(
            (
                f"{SHAPES}test_a_documented_shape_has_the_documented_number_of_vms"
                f"[{machine_type}-{row['topology']}-{vms['hosts']}]",
            )
        )
        for generation in ("v6e", "tpu7x")
        for row in TOPOLOGY["generations"][generation]["topologies"]
        for machine_type, vms in row["vms"].items()
    }


def entry_rows() -> dict[str, Row]:
    """Each entry of the audit log."""
    name = f"{TRIGGERS}test_an_entry_triggers_the_step_that_it_concerns"
    return {entry: Row((f"{name}[{entry}]",)) for entry in ENTRIES}


TABLES: dict[str, tuple[Mapping[str, Row], set[str]]] = {
    "behaviours": (ROWS, {row["id"] for row in OPERATOR}),
    "rules of topologies": (TOPOLOGY_RULES, {*TOPOLOGY["rules"]}),
    "labels": (TOPOLOGY_LABELS, {*TOPOLOGY["labels"]}),
    "generations": (TOPOLOGY_GENERATIONS, {*TOPOLOGY["generations"]}),
    "traps": (TOPOLOGY_TRAPS, {row["id"] for row in TOPOLOGY["traps"]}),
    "shapes": (shape_rows(), {*shape_rows()}),
    "entries of the audit log": (entry_rows(), {*ENTRIES}),
    "node pools": (NODE_POOLS, {*PROVISIONER}),
    "slices of JobSets": (STEPS, {*PROVISIONER_STEPS}),
}


@pytest.mark.parametrize("table", TABLES)
def test_the_answers_are_for_exactly_the_rows(table: str) -> None:
    answers, rows = TABLES[table]
    assert answers.keys() == rows


@pytest.mark.parametrize("table", TABLES)
def test_every_answer_has_a_test_or_a_reason(table: str) -> None:
    answers, _ = TABLES[table]
    assert [name for name, row in answers.items() if not row.tests and not row.why] == []


def test_a_behaviour_with_the_verdict_same_has_a_test() -> None:
    for rows, answers in (
        (OPERATOR, ROWS),
        (PROVISIONER.values(), NODE_POOLS),
        (PROVISIONER_STEPS.values(), STEPS),
    ):
        same = [row["id"] for row in rows if row["verdict"] == "same"]
        assert [name for name in same if not answers[name].tests] == []


def test_a_pool_that_differs_from_correct_behaviour_has_a_reason() -> None:
    wrong = {name for name, row in PROVISIONER.items() if row["verdict"] == "known_wrong"}
    changed = {*INPUT_ERRORS, *DIFFERS}
    assert [name for name in sorted(changed - wrong) if not NODE_POOLS[name].why] == []


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """The node ids below tests/ of all tests in the modules that the tables name.

    The id of a story is without the cluster on which it runs.
    """
    named = {
        test.partition("::")[0]
        for answers, _ in TABLES.values()
        for row in answers.values()
        for test in row.tests
    }
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    found = subprocess.run(
        [*command, *(str(TESTS / module) for module in sorted(named))],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.removeprefix("tests/") for line in found.stdout.splitlines() if "::" in line}
    return {name.replace("[embedded]", "").replace("[embedded-", "[") for name in names}


@pytest.mark.parametrize("table", TABLES)
def test_every_named_test_exists(table: str, collected: set[str]) -> None:
    answers, _ = TABLES[table]
    missing = {test for row in answers.values() for test in row.tests} - collected
    assert sorted(missing) == []


def test_a_missing_test_is_detected(collected: set[str]) -> None:
    assert f"{LABEL}test_the_condition_ready_follows_from_the_nodes[one of two]" in collected
    assert f"{LABEL}test_the_condition_ready_follows_from_the_nodes[three of two]" not in collected
