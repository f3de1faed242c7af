"""The images, built without Docker: their programs start, are healthy, and answer."""

from __future__ import annotations

import json
import os
import ssl
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest

from local.base.ports import LOOPBACK, find_free_ports
from local.cloud.simulation import PROJECT
from local.kube import CertificateAuthority
from tests.bundle.bundle import ROOT
from tests.bundle.dockerfile import build
from tests.real.relay.waiting import until
from tests.unit.webhook.workloads import as_review, job, jobset_labels, selector
from tools.bench import Bench

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800), pytest.mark.xdist_group("bundle")]


def is_healthy(url: str, trust: ssl.SSLContext | None = None) -> bool:
    """True if both health endpoints succeed."""
    for path in ("healthz", "readyz"):
        try:
            urllib.request.urlopen(f"{url}/{path}", timeout=10, context=trust).close()
        except OSError:
            return False
    return True


def test_the_relay_of_the_image_is_healthy(tmp_path: Path) -> None:
    image = build(ROOT / "relay" / "Dockerfile", tmp_path / "image")
    bench = Bench()
    (port,) = find_free_ports(1)
    environment = {
        "PATH": os.defpath,
        "PUBSUB_PROJECT": PROJECT,
        "PUBSUB_EMULATOR_HOST": bench.emulator,
        "KUBECONFIG": bench.kubeconfig(tmp_path, "admin"),
        "PORT": str(port),
    }
    log = tmp_path / "log"
    with image.started(environment, log):
        until(lambda: is_healthy(f"http://{LOOPBACK}:{port}"), f"the relay is healthy (log: {log})")


def test_the_webhook_of_the_image_answers(tmp_path: Path) -> None:
    image = build(ROOT / "webhook" / "Dockerfile", tmp_path / "image")
    trust = issue(tmp_path)
    (port,) = find_free_ports(1)
    environment = {
        "PATH": os.defpath,
        "GTEI_TLS_CERT_FILE": f"{tmp_path}/tls.crt",
        "GTEI_TLS_KEY_FILE": f"{tmp_path}/tls.key",
        "HOST": LOOPBACK,
        "PORT": str(port),
    }
    url, log = f"https://{LOOPBACK}:{port}", tmp_path / "log"
    requested = job(labels={**jobset_labels(2, 1), "jobset.sigs.k8s.io/job-key": "k"})
    requested["spec"]["template"]["spec"]["nodeSelector"] = selector("tpu-v6e-slice", "4x4")
    body = json.dumps(as_review(requested)).encode()
    with image.started(environment, log):
        until(lambda: is_healthy(url, trust), f"the webhook is healthy (log: {log})")
        for path in ("mutate", "mutate-jobs"):
            with urllib.request.urlopen(f"{url}/{path}", body, context=trust, timeout=10) as answer:
                assert json.load(answer)["response"]["patchType"] == "JSONPatch"
        renewed = issue(tmp_path)
        until(lambda: is_healthy(url, renewed), "a renewed certificate is read without a restart")


def issue(folder: Path) -> ssl.SSLContext:
    """Write a certificate and key of a new CA; return a context that trusts it."""
    ca = CertificateAuthority.create(datetime.now(UTC))
    pair = ca.issue_server((LOOPBACK,), datetime.now(UTC))
    (folder / "tls.crt").write_text(pair.certificate_pem)
    (folder / "tls.key").write_text(pair.key_pem)
    return ssl.create_default_context(cadata=ca.certificate_pem)
