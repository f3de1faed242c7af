"""A pytest plugin: it records how long each test takes, and runs chosen tests in a given order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_seconds: dict[str, float] = {}
_failed: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that name the two files."""
    parser.addoption("--record", type=Path, help="write each test's seconds and the failures")
    parser.addoption("--order", type=Path, help="run only these tests, in this order")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests in the order file. A file name there selects all tests of the file."""
    path: Path | None = config.getoption("order")
    if path is None:
        return
    ranks = {name: rank for rank, name in enumerate(json.loads(path.read_text()))}

    def rank(item: pytest.Item) -> int | None:
        return ranks.get(item.nodeid, ranks.get(item.nodeid.partition("::")[0]))

    chosen = [item for item in items if rank(item) is not None]
    items[:] = sorted(chosen, key=lambda item: rank(item) or 0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up set-up, call and tear-down of a test."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        _failed.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the record, in the process that has all reports."""
    path: Path | None = session.config.getoption("record")
    if path is not None and not hasattr(session.config, "workerinput"):
        path.write_text(json.dumps({"seconds": _seconds, "failed": _failed}))
