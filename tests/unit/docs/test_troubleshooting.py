"""docs/troubleshooting.md has one entry for each reason, decision and Event that a user meets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from functions.report_leaks.decide import LEAKED, NODES_LEFT, NOT_ALL_SEEN
from shared.base.reasons import REASONS, Reason, find_entry
from shared.frame import step
from tests.unit.docs.pages import list_anchors
from tools.pages.slice_lifecycle import list_templates

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "troubleshooting.md"
ENTRY = re.compile(r"^### (Decision |Event |)`(\w+)`\n\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)


def entries(kind: str) -> list[str]:
    """Return the names that have an entry of this kind, in the order of the page."""
    return [word for prefix, word, _ in ENTRY.findall(PAGE.read_text()) if prefix.strip() == kind]


def answers() -> Iterator[str]:
    """Yield the decisions in the code about pushes that are not acknowledged."""
    for path in (ROOT / "shared" / "frame" / "step.py", ROOT / "main.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                names = [ast.unparse(argument) for argument in node.args[:1]]
                constants = [one for one in node.args[1:2] if isinstance(one, ast.Constant)]
                if names in (["TRY_AGAIN"], ["POISON"]):
                    yield from (str(one.value) for one in constants)
                yield from (
                    str(keyword.value.value)
                    for keyword in node.keywords
                    if keyword.arg == "decision" and isinstance(keyword.value, ast.Constant)
                )


def test_each_reason_has_one_entry() -> None:
    assert entries("") == list(Reason)


def test_each_decision_that_is_logged_as_a_warning_has_one_entry() -> None:
    decisions = {*answers(), step.CRASHED, *step._GIVEN_UP}
    assert decisions > {"TryAgain", "Poison", "CannotStart", "PushRefused"}
    decisions |= {LEAKED, NODES_LEFT, NOT_ALL_SEEN, "Swept"}
    assert sorted(entries("Decision")) == sorted(decisions)


def test_each_event_of_a_jobset_has_one_entry() -> None:
    assert sorted(entries("Event")) == sorted({event.reason for event in list_templates()})


@pytest.mark.parametrize("entry", ENTRY.findall(PAGE.read_text()), ids=lambda entry: entry[1])
def test_an_entry_has_a_meaning_how_to_inspect_it_and_what_to_do(
    entry: tuple[str, str, str],
) -> None:
    assert re.findall(r"^- \*\*(\w+)\*\*: \S", entry[2], re.MULTILINE) == ["Means", "Look", "Do"]


@pytest.mark.parametrize("reason", REASONS)
def test_the_entry_of_a_reason_can_be_linked_to(reason: Reason) -> None:
    page, _, anchor = find_entry(reason).partition("#")
    assert ROOT / page == PAGE
    assert anchor in list_anchors(PAGE)


@pytest.mark.parametrize("reason", REASONS)
def test_the_entry_of_a_reason_begins_with_the_cause_that_the_catalogue_has(reason: Reason) -> None:
    text = next(text for _, name, text in ENTRY.findall(PAGE.read_text()) if name == reason)
    cause = REASONS[reason].partition(". ")[0].rstrip(".")
    assert " ".join(text.split()).startswith(f"- **Means**: {cause}.")


def test_an_unknown_reason_has_no_entry() -> None:
    assert (find_entry("Ready"), find_entry("")) == ("", "")
