"""What all tests share: a way to show figures after a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Show a line after the run, whichever process the test ran in."""
    return lambda line: record_property("said", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have said, sorted."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    lines = sorted(
        str(line) for report in reports for name, line in report.user_properties if name == "said"
    )
    if lines:
        terminalreporter.section("figures")
    for line in lines:
        terminalreporter.write_line(line)
