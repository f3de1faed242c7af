"""Each case on the embedded Pub/Sub and on Google's emulator."""

from __future__ import annotations

import pytest

from local.tests.contract.pubsub.cases import CASES, Case
from local.tests.contract.pubsub.conftest import Run

pytestmark = pytest.mark.filterwarnings("ignore:The return_immediately flag is deprecated")


@pytest.mark.xdist_group("embedded pubsub")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_embedded_pubsub_has_the_expected_outcome(case: Case, embedded: Run) -> None:
    expected = case.embedded.outcome if case.embedded else case.outcome
    assert embedded(case) == expected


@pytest.mark.real
@pytest.mark.xdist_group("pubsub_emulator")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_emulator_has_the_expected_outcome(case: Case, emulator: Run) -> None:
    expected = case.emulator.outcome if case.emulator else case.outcome
    assert emulator(case) == expected
