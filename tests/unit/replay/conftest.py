"""What the tests of the tool share."""

from __future__ import annotations

import pytest

from tests.harness import Harness
from tests.unit.replay.desk import ALONE, Desk


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is not wrapped, whatever the terminal of who runs the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def desk() -> Desk:
    """A person in a simulation where nobody else wakes a step."""
    return Desk(Harness(ALONE))


@pytest.fixture
def busy_desk() -> Desk:
    """A person in a simulation where everything works."""
    return Desk(Harness())
