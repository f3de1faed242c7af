"""A daemon's log lines are JSON, and so are those of its libraries."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from shared.base.logs import configure_daemon, make_logger


@pytest.fixture
def _restored() -> Iterator[None]:
    """Restore the process's logging after the test."""
    root, hook = logging.getLogger(), sys.excepthook
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, sys.excepthook = handlers, hook
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("_restored")
def test_every_line_of_a_daemon_is_json_with_a_severity(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().addHandler(logging.StreamHandler())
    configure_daemon()
    structlog.get_logger().info("begun", count=5)
    logging.getLogger("a.library").warning("look at %s", "this")
    logging.getLogger("a.library").info("too much")
    error = ValueError("no")
    sys.excepthook(ValueError, error, None)
    written = capsys.readouterr()
    begun, library, crashed = map(json.loads, written.out.splitlines())
    assert (begun["severity"], begun["message"], begun["count"]) == ("INFO", "begun", 5)
    assert (library["severity"], library["message"]) == ("WARNING", "look at this")
    assert library.keys() == begun.keys() - {"count"}
    assert (crashed["severity"], crashed["message"]) == ("CRITICAL", "crashed")
    assert "ValueError: no" in crashed["exception"]
    assert written.err == ""


def test_a_value_that_json_does_not_know_is_written_as_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_logger().info("done", at=Path("/a"), half="\ud800")
    line = json.loads(capsys.readouterr().out)
    assert line == {"severity": "INFO", "message": "done", "at": "/a", "half": "?"}
