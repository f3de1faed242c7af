"""``kubectl tng web`` as a user starts it: a process, which ends with Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from replay.__main__ import LATE

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[4]


def write_kubeconfig(folder: Path, current: str) -> Path:
    """A kubeconfig with two contexts, of clusters that do not answer."""
    names = ("one", "other")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{closed.getsockname()[1]}"
    document = {
        "clusters": [{"name": name, "cluster": {"server": server}} for name in names],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}} for name in names],
        "current-context": current,
    }
    path = folder / "config"
    path.write_text(json.dumps(document))
    return path


@contextmanager
def start(kubeconfig: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PUBSUB_PROJECT": "p"}
    process = subprocess.Popen(
        [sys.executable, "-m", "replay", "web", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def read_sections(address: str, *names: str) -> dict[str, object]:
    """The sections of the overview, until these have come."""
    found: dict[str, object] = {}
    with urlopen(f"{address}events", timeout=60) as answer:
        while not set(names) <= set(found):
            line = answer.readline().decode()
            found |= json.loads(line[5:]) if line.startswith("data:") else {}
    return found


def test_it_prints_its_address_serves_until_ctrl_c_and_keeps_its_cluster(tmp_path: Path) -> None:
    with start(write_kubeconfig(tmp_path, "one"), "-n", "ml") as process:
        address = read_line(process)
        with urlopen(address, timeout=60) as answer:
            assert answer.read().startswith(b"<!doctype html>")
        write_kubeconfig(tmp_path, "other")
        found = read_sections(address, "context", "clusterError", "deadLettersError", "leaksError")
        assert found["context"] == "one · ml"
        path = "/apis/tpu.google.com/v1alpha1/namespaces/ml/tpunodegroups"
        assert f"the call `GET {path}` to the cluster failed" in str(found["clusterError"])
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (130, "")
    assert stderr.replace(f"{LATE}\n", "") == "The page is served until Ctrl-C.\n"


def test_a_port_that_is_in_use_is_an_error_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with start(write_kubeconfig(tmp_path, "one"), "--port", str(port)) as process:
            stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (2, "")
    words = f"127.0.0.1:{port} cannot be used: Address already in use; 0 takes any free port"
    assert words in " ".join(stderr.split())
