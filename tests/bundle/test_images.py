"""The images, step by step without Docker: what is in them starts, is well, and does its work."""

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
from tests.bench import Bench
from tests.bundle.bundle import ROOT
from tests.bundle.dockerfile import build
from tests.real.relay.waiting import until
from tests.unit.inject_env.workloads import as_review, job, jobset_labels, selector

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800), pytest.mark.xdist_group("bundle")]


def is_well(url: str, trust: ssl.SSLContext | None = None) -> bool:
    """Whether it says that it is, and that it is ready."""
    for path in ("healthz", "readyz"):
        try:
            urllib.request.urlopen(f"{url}/{path}", timeout=10, context=trust).close()
        except OSError:
            return False
    return True


def test_the_image_starts_a_relay_that_is_well(tmp_path: Path) -> None:
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
        until(
            lambda: is_well(f"http://{LOOPBACK}:{port}"), f"the relay is well, whose log is {log}"
        )


def test_the_image_starts_a_webhook_that_answers(tmp_path: Path) -> None:
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
    asked = job(labels={**jobset_labels(2, 1), "jobset.sigs.k8s.io/job-key": "k"})
    asked["spec"]["template"]["spec"]["nodeSelector"] = selector("tpu-v6e-slice", "4x4")
    body = json.dumps(as_review(asked)).encode()
    with image.started(environment, log):
        until(lambda: is_well(url, trust), f"the webhook is well, whose log is {log}")
        for path in ("mutate", "mutate-jobs"):
            with urllib.request.urlopen(f"{url}/{path}", body, context=trust, timeout=10) as answer:
                assert json.load(answer)["response"]["patchType"] == "JSONPatch"
        renewed = issue(tmp_path)
        until(lambda: is_well(url, renewed), "a renewed certificate is read without a restart")


def issue(folder: Path) -> ssl.SSLContext:
    """A new CA's certificate and key, in place of those that are there; trust in it."""
    ca = CertificateAuthority.create(datetime.now(UTC))
    pair = ca.issue_server((LOOPBACK,), datetime.now(UTC))
    (folder / "tls.crt").write_text(pair.certificate_pem)
    (folder / "tls.key").write_text(pair.key_pem)
    return ssl.create_default_context(cadata=ca.certificate_pem)
