"""What all tests share: Hypothesis profiles, fixtures of real parts, figures shown after a run.

Loaded by ``-p`` in ``local/pyproject.toml``, and by the product's ``conftest.py``.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import Callable
from pkgutil import iter_modules

import pytest
from hypothesis import settings

import local.tests

# All helpers, so that their failing asserts show values as those of a test do. A module that is
# imported before this call is left out.
pytest.register_assert_rewrite(
    *(f"{local.tests.__name__}.{module.name}" for module in iter_modules(local.tests.__path__))
)

from local.tests import real_parts  # noqa: E402

control_plane = real_parts.control_plane
own_control_plane = real_parts.own_control_plane
pubsub_emulator = real_parts.pubsub_emulator

settings.register_profile("random", deadline=None)
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")  # what failed fails again; `make test-all` draws at random


def pytest_configure() -> None:
    """Heed Ctrl-C, as programs that tests start then do: background jobs of a shell ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def print_figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print a line after the run, whichever process the test ran in."""
    return lambda line: record_property("figure", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped, and the lines of `print_figure`, sorted."""
    terminalreporter.write_line(f"skipped: {len(terminalreporter.getreports('skipped'))}")
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    lines = sorted(
        str(line) for report in reports for name, line in report.user_properties if name == "figure"
    )
    if lines:
        terminalreporter.section("figures")
    for line in lines:
        terminalreporter.write_line(line)
