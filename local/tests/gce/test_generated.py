"""Generated files are up to date."""

from __future__ import annotations

import json

import pytest

from local.base.controls import describe_fault
from local.gce import generate
from local.gce.refusals import CATALOGUE
from local.gce.simulator import FAULTS

PAGE = generate.PAGE.read_text()
AGAIN = "run python -m local.gce.generate"


def test_the_fields_match_the_client_library() -> None:
    assert json.loads(generate.FIELDS.read_text()) == json.loads(generate.render_fields()), AGAIN


def test_the_errors_in_the_docs_match_the_catalogue() -> None:
    assert generate.with_tables(PAGE, FAULTS, CATALOGUE) == PAGE, AGAIN


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_description(fault: str) -> None:
    assert describe_fault(FAULTS[fault]).endswith(".")
