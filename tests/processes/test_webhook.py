"""Shutdown of the webhook: reviews that are sent during the drain time are still answered."""

from __future__ import annotations

import json
import signal
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from local.base.ports import LOOPBACK
from local.kube import CertificateAuthority
from tests.processes.program import Program
from tests.support.harness import ROOT
from tests.unit.webhook.workloads import as_review, stateful_set
from webhook.server import LAST_ANSWERS_S
from webhook.settings import read_settings

pytestmark = pytest.mark.processes

DEPLOYMENT = ROOT / "infra" / "chart" / "manifests" / "inject-env" / "deployment.yaml"


@contextmanager
def running(folder: Path, drain_seconds: str) -> Iterator[tuple[Program, ssl.SSLContext]]:
    ca = CertificateAuthority.create(datetime.now(UTC))
    pair = ca.issue_server((LOOPBACK,), datetime.now(UTC))
    (folder / "tls.crt").write_text(pair.certificate_pem)
    (folder / "tls.key").write_text(pair.key_pem)
    program = Program(
        folder / "run",
        "webhook",
        f"--tls-cert-file={folder}/tls.crt",
        f"--tls-key-file={folder}/tls.key",
        environment={"HOST": LOOPBACK, "PORT": "0", "DRAIN_SECONDS": drain_seconds},
    )
    try:
        program.wait_for_output('"started"')
        yield program, ssl.create_default_context(cadata=ca.certificate_pem)
    finally:
        if program.process.poll() is None:
            program.process.kill()
            program.process.wait()


def test_after_sigterm_reviews_are_answered_and_connections_closed(tmp_path: Path) -> None:
    with running(tmp_path, "600") as (program, trust):
        (line,) = (one for one in program.output.splitlines() if '"started"' in one)
        url = f"https://{LOOPBACK}:{json.loads(line)['port']}/mutate"
        body = json.dumps(as_review(stateful_set())).encode()
        program.process.send_signal(signal.SIGTERM)
        program.wait_for_output('"ending"')
        for _ in range(2):
            with urllib.request.urlopen(url, data=body, context=trust, timeout=30) as answer:
                assert answer.status == 200
                assert answer.headers["Connection"] == "close"
                assert json.load(answer)["response"]["patchType"] == "JSONPatch"
        # SIGINT ends the drain time.
        assert program.stop(signal.SIGINT) == 0


def test_the_webhook_ends_after_the_drain_time(tmp_path: Path) -> None:
    with running(tmp_path, "0") as (program, _):
        assert program.stop(signal.SIGTERM) == 0
        assert '"ended"' in program.output


def test_the_drain_time_is_shorter_than_the_grace_period_of_the_deployment() -> None:
    (deployment,) = (
        one for one in yaml.safe_load_all(DEPLOYMENT.read_text()) if one["kind"] == "Deployment"
    )
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {one["name"]: one["value"] for one in container.get("env", [])}
    drain_s = read_settings(container.get("args", []), variables).drain_s
    assert drain_s >= 5
    assert drain_s + LAST_ANSWERS_S < pod["terminationGracePeriodSeconds"]
