"""The relay's image, step by step without Docker: what is in it starts, and is well."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from pathlib import Path

import pytest

from local.ports import LOOPBACK, find_free_ports
from local.world import PROJECT
from tests.bench import Bench
from tests.bundle.bundle import ROOT
from tests.bundle.dockerfile import build
from tests.real.relay.patience import until


def is_well(port: int) -> bool:
    """Whether it says that it is, and that it is ready."""
    for path in ("healthz", "readyz"):
        try:
            urllib.request.urlopen(f"http://{LOOPBACK}:{port}/{path}", timeout=10).close()
        except OSError:
            return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_image_starts_a_relay_that_is_well(tmp_path: Path) -> None:
    image = build(ROOT / "relay" / "Dockerfile", tmp_path / "image")
    bench = Bench()
    (port,) = find_free_ports(1)
    environment = image.environment | {
        "PATH": os.defpath,
        "PUBSUB_PROJECT": PROJECT,
        "PUBSUB_EMULATOR_HOST": bench.emulator,
        "KUBECONFIG": bench.kubeconfig(tmp_path, "admin"),
        "PORT": str(port),
    }
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            image.command(image.entry_point),
            cwd=image.inside("."),
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        until(lambda: is_well(port), f"the relay is well, whose log is {log}")
    finally:
        process.terminate()
        code = process.wait()
    assert code == 0, log.read_text()
