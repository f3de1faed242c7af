"""Fixtures for the tests of the tool."""

from __future__ import annotations

import pytest

from tests.support.harness import Harness
from tests.unit.replay.tool import ALONE, Tool


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the wrapping of output by the width of the developer's terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def tool() -> Tool:
    """The tool in a simulation in which only the tool triggers steps."""
    return Tool(Harness(ALONE))


@pytest.fixture
def busy_tool() -> Tool:
    """The tool in a complete simulation."""
    return Tool(Harness())
