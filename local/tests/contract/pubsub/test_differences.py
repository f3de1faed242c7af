"""Known differences are documented, have a reason, and are differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.tests.contract.pubsub.cases import CASES, Case
from local.tests.contract.pubsub.table import render_embedded, render_emulator

PAGE = Path(__file__).parents[3] / "docs" / "embedded-pubsub.md"


@pytest.mark.parametrize("render", [render_embedded, render_emulator])
def test_the_reference_has_the_tables_of_the_cases(render: object) -> None:
    assert callable(render)
    table = render(CASES)
    assert table in PAGE.read_text(), f"{PAGE.name} must have this table:\n\n{table}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_difference_differs_and_the_embedded_one_has_a_reason(case: Case) -> None:
    for differs in filter(None, (case.embedded, case.emulator)):
        assert differs.outcome != case.outcome
    assert case.embedded is None or case.embedded.why


def test_the_names_of_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
