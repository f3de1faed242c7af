"""``python -m relay.tokens`` as a process, with an environment and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import pytest

from local.base.ports import LOOPBACK, find_free_ports
from local.kube import CertificateAuthority
from tests.support.loopback import encode_ca, open_loopback
from tests.unit.relay.tokens.cluster import STEPS, World, open_world

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[4]
TIMEOUT_S = 30


@contextmanager
def run_writer(world: World, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run the process until the block ends."""
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(world.folder / "kubeconfig"),
        "PUBSUB_PROJECT": "my-project",
        "TOPIC_PREFIX": "research-",
        "SECRET_MANAGER_ENDPOINT": world.endpoint,
        "STEPS": ",".join(STEPS),
        "CLUSTER_SERVER": world.server,
        "CLUSTER_CA": encode_ca(world.ca.certificate_pem),
        **variables,
    }
    command = [sys.executable, "-m", "relay.tokens"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a cluster and its secrets, whose Secret Manager accepts requests without credentials."""
    with open_loopback() as loopback:
        world = open_world(loopback, tmp_path, CertificateAuthority.create(datetime.now(UTC)))
        world.secrets.project = "my-project"
        secrets, grants = world.secrets.secrets, world.secrets.grants["writer"]
        for step in STEPS:
            secrets[f"research-token-{step}"] = secrets.pop(f"tokens-{step}")
            grants[f"research-token-{step}"] = grants.pop(f"tokens-{step}")
        world.secrets.grants[""] = grants
        yield world


def test_it_writes_all_tokens_serves_metrics_and_ends_on_sigterm(world: World) -> None:
    (port,) = find_free_ports(1)
    with run_writer(world, PORT=str(port)) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(4)]
        assert [line["message"] for line in lines] == [
            "started",
            "token written",
            "token written",
            "ready",
        ]
        assert {line["severity"] for line in lines} == {"INFO"}
        assert [line["step"] for line in lines[1:3]] == list(STEPS)
        assert (lines[1]["version"], lines[1]["expires"]) == (2, "2026-01-01T12:00:01Z")
        metrics = urlopen(f"http://{LOOPBACK}:{port}/metrics").read().decode()
        assert 'tpu_functions_token_written_timestamp_seconds{step="sweep"}' in metrics
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=TIMEOUT_S)
        assert [json.loads(line)["message"] for line in rest.splitlines()] == ["ended"]
        assert process.returncode == 0
    assert "eyJ" not in f"{lines}{rest}"


def test_it_is_not_ready_while_a_step_has_no_token(world: World) -> None:
    (port,) = find_free_ports(1)
    del world.secrets.secrets["research-token-sweep"]
    with run_writer(world, PORT=str(port)) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=TIMEOUT_S)
    assert [(line["severity"], line["message"]) for line in lines[1:]] == [
        ("WARNING", "token not written"),
        ("INFO", "token written"),
    ]
    assert "404 NOT_FOUND" in lines[1]["error"]
    assert "ready" not in rest


def test_it_does_not_start_with_invalid_settings(world: World) -> None:
    with run_writer(world, STEPS="") as process:
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 2
    assert json.loads(output)["message"].startswith("cannot start: STEPS is not set: ")
