"""The parent watch ends the recorded process groups when its input ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from local.base import parent_watch

pytestmark = pytest.mark.processes


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "import signal; signal.pause()"], start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


def test_a_recorded_process_group_is_ended(sleeper: subprocess.Popen[bytes]) -> None:
    parent_watch.watch([f"+{sleeper.pid}\n"])
    assert sleeper.wait(timeout=10) == -signal.SIGTERM


def test_a_process_group_whose_record_was_removed_is_not_ended(
    sleeper: subprocess.Popen[bytes],
) -> None:
    parent_watch.watch([f"+{sleeper.pid}\n", f"-{sleeper.pid}\n"])
    assert parent_watch.signal_group(sleeper.pid, 0)
    assert sleeper.poll() is None


def test_an_absent_process_group_is_no_error(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    parent_watch.watch([f"+{sleeper.pid}\n"])
    assert not parent_watch.signal_group(sleeper.pid, 0)
