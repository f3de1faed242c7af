"""Google's emulator is found, and ends with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from local.tests import pubsub_emulator
from local.tests.run.family import wait_until_gone

_GONE_WITHIN_S = 30.0
_START_ONE = """
import sys
from pathlib import Path
from local.tests import pubsub_emulator
with pubsub_emulator.start(Path(sys.argv[1])) as address:
    print(address, flush=True)
    sys.stdin.read()
"""


def test_without_the_sdk_there_is_no_emulator(tmp_path: Path) -> None:
    assert pubsub_emulator.find({"PATH": str(tmp_path), "JAVA_HOME": "/jdk"}) is None


def test_without_java_there_is_no_emulator(tmp_path: Path) -> None:
    (tmp_path / "gcloud").touch(mode=0o755)
    assert pubsub_emulator.find({"PATH": str(tmp_path)}) is None


def test_without_the_component_there_is_no_emulator(tmp_path: Path) -> None:
    gcloud = tmp_path / "gcloud"
    gcloud.write_text(f"#!/bin/sh\necho {tmp_path}\n")
    gcloud.chmod(0o755)
    assert pubsub_emulator.find({"PATH": str(tmp_path), "JAVA_HOME": "/jdk"}) is None


def test_an_emulator_that_exits_immediately_is_an_error_with_its_output(tmp_path: Path) -> None:
    program = tmp_path / "emulator"
    program.write_text("#!/bin/sh\necho no Java here\nexit 1\n")
    program.chmod(0o755)
    with (
        pytest.raises(pubsub_emulator.EmulatorError, match="Output:\nno Java here"),
        pubsub_emulator.start(program),
    ):
        pass


@pytest.mark.real
@pytest.mark.xdist_group("pubsub_emulator")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_emulator_ends_with_the_process_that_started_it(number: int) -> None:
    program = pubsub_emulator.find(os.environ)
    if program is None:
        pytest.skip("no Pub/Sub emulator is installed")
    starter = subprocess.Popen(
        [sys.executable, "-c", _START_ONE, str(program)],
        cwd=Path(__file__).parents[4],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        address = starter.stdout.readline().strip()
        children = psutil.Process(starter.pid).children(recursive=True)
        assert any(address.rpartition(":")[2] in " ".join(one.cmdline()) for one in children)
        starter.send_signal(number)
    wait_until_gone([child.pid for child in children], _GONE_WITHIN_S)
