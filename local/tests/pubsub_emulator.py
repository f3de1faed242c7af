"""Runs Google's Pub/Sub emulator of an installed Cloud SDK for tests.

The emulator is a component of the SDK: ``gcloud components install pubsub-emulator``, or Debian's
package google-cloud-cli-pubsub-emulator. It is a Java program that serves gRPC and REST at one port,
without TLS, and keeps its data in memory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from local.base import parent_watch
from local.base.ports import LOOPBACK, find_free_ports

READY_WITHIN_S = 120.0
_STOP_WITHIN_S = 10.0
_POLL_S = 0.05
_PROGRAM = Path("platform", "pubsub-emulator", "bin", "cloud-pubsub-emulator")


class EmulatorError(Exception):
    """The emulator did not start; the message has its output."""


def find(environment: Mapping[str, str]) -> Path | None:
    """The program that starts an installed emulator; `None` without it, the SDK or Java."""
    path = environment.get("PATH", os.defpath)
    gcloud = shutil.which("gcloud", path=path)
    java = environment.get("JAVA_HOME") or shutil.which("java", path=path)
    if gcloud is None or java is None:
        return None
    done = subprocess.run(
        [gcloud, "info", "--format=value(installation.sdk_root)"],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    root = done.stdout.strip()
    program = Path(root) / _PROGRAM
    return program if root and os.access(program, os.X_OK) else None


@contextmanager
def start(program: Path) -> Iterator[str]:
    """Run an emulator until the end of the block, or of this process; yield its address.

    Raises `EmulatorError`.
    """
    watch_end, watch_pipe = os.pipe()
    watcher = subprocess.Popen(
        parent_watch.WATCH,
        stdin=watch_end,
        start_new_session=True,
    )
    os.close(watch_end)
    try:
        with tempfile.TemporaryFile() as log:
            (port,) = find_free_ports(1)
            address = f"{LOOPBACK}:{port}"
            child = subprocess.Popen(
                [
                    *parent_watch.exec_command(watch_pipe),
                    *(str(program), f"--host={LOOPBACK}", f"--port={port}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(watch_pipe,),
                start_new_session=True,
            )
            try:
                if not _becomes_ready(child, address):
                    log.seek(0)
                    output = log.read().decode(errors="replace").strip()
                    raise EmulatorError(
                        f"{program} does not answer at {address}. Output:\n{output}"
                    )
                yield address
            finally:
                _stop(child)
    finally:
        # The parent watch kills processes that are left.
        os.close(watch_pipe)
        watcher.wait()


def _becomes_ready(child: subprocess.Popen[bytes], address: str) -> bool:
    deadline = time.monotonic() + READY_WITHIN_S
    while child.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://{address}/", timeout=5):
                return True
        except OSError:
            time.sleep(_POLL_S)
    return False


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
