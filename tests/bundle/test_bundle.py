"""The functions run with only the files and packages that are deployed."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from local.base.clock import LoopClock
from local.base.ports import LOOPBACK, find_free_ports
from local.base.web import serve
from local.cloud import container_engine
from local.cloud.simulation import PROJECT
from local.kube import CertificateAuthority
from local.pubsub.model import PushIdentity
from local.pubsub.tokens import PushTokens
from local.vm.conversation import Bearer, Identity
from local.vm.kubelet import KubeletBehaviour
from local.vm.transport import InProcess
from shared.triggers.routes import ROUTES, SLICE_STEPS, STEPS
from tests.bundle.bundle import ROOT, copy_uploaded, list_uploaded, make_environment, pip, run
from tests.real.relay.waiting import until
from tests.support.loopback import Google, MetadataServer, TrustsGoogle, encode_ca, is_id_token
from tests.support.pushes import push
from tools.bench import Bench, make_group

AUDIENCE = "my-cluster"
PUSHER = f"pusher@{PROJECT}.iam.gserviceaccount.com"


def list_entry_points() -> list[str]:
    """List the functions of main.py that deployments use as entry points."""
    tree = ast.parse((ROOT / "main.py").read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    built = (one for one in assigned if ast.unparse(one.value).startswith("_build_entry_point("))
    return [ast.unparse(one.targets[0]) for one in built]


def test_only_the_functions_are_uploaded() -> None:
    expected = ["main.py", "requirements.txt"]
    for folder in ("functions", "shared"):
        expected += [
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        ]
    assert list_uploaded() == sorted(expected)


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_uploads_the_same_files(tmp_path: Path) -> None:
    done = subprocess.run(
        ["gcloud", "meta", "list-files-for-upload", str(ROOT)],
        env={**os.environ, "CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(done.stdout.split()) == list_uploaded()


# Each entry point runs in its own process, in an environment with only requirements.txt.


@dataclass
class Deployment:
    """The deployed files, their environment, and a simulated cloud on loopback."""

    folder: Path
    programs: Path
    bench: Bench
    ca: CertificateAuthority
    pubsub: PushTokens

    def serve(self, application: Any, *, is_tls: bool = False) -> int:
        """Serve an application; return its port."""
        tls = self.ca.server_context((LOOPBACK,), datetime.now(UTC)) if is_tls else None
        served = asyncio.run_coroutine_threadsafe(serve(application, tls=tls), self.bench.loop)
        return served.result(60)[1]

    def environment(self, step: str) -> dict[str, str]:
        """The variables of a deployment, with ID tokens for the cluster and verification of pushes."""
        google = Google(f"{step.replace('_', '-')}@{PROJECT}.iam.gserviceaccount.com")
        user = "admin" if step not in STEPS else step.replace("_", "-")
        cluster = TrustsGoogle(self.bench.kube, is_id_token(google, AUDIENCE), user)
        return {
            "PATH": f"{self.programs}{os.pathsep}{os.defpath}",
            "PUBSUB_PROJECT": PROJECT,
            "CLUSTER_SERVER": f"https://{LOOPBACK}:{self.serve(cluster, is_tls=True)}",
            "CLUSTER_CA": encode_ca(self.ca.certificate_pem),
            "CLUSTER_TOKEN": "google-id-token",
            "CLUSTER_AUDIENCE": AUDIENCE,
            "GCE_METADATA_HOST": f"{LOOPBACK}:{self.serve(MetadataServer(google))}",
            "PUSH_SERVICE_ACCOUNT": PUSHER,
            "PUSH_AUDIENCE": f"https://{step}.example",
            "PUSH_CERTIFICATES_URL": f"http://{LOOPBACK}:{self.serve(self.pubsub)}/certs",
            "COMPUTE_ENDPOINT": f"http://{LOOPBACK}:{self.bench.ports['gce']}",
            "PUBSUB_EMULATOR_HOST": self.bench.emulator,
            **self._jobsets(step),
        }

    def _jobsets(self, step: str) -> dict[str, str]:
        """The additional variables of steps of JobSets, with node pools of GKE."""
        if step not in SLICE_STEPS:
            return {}
        engine = container_engine.simulate(
            LoopClock(self.bench.loop),
            Random(0),
            InProcess(self.bench.kube),
            Identity("", "", Bearer("admin")),
            KubeletBehaviour(),
            on_log_entry=lambda _: None,
        )
        url = f"http://{LOOPBACK}:{self.serve(engine)}"
        return {"JOBSET_PROVIDER": "gke", **container_engine.environment(url)}

    def push_token(self, step: str) -> str:
        """The token that Pub/Sub sends with a push."""
        identity = PushIdentity(PUSHER, f"https://{step}.example")
        return self.pubsub.render(identity, "", datetime.now(UTC))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = tmp_path_factory.mktemp("bundle")
    copy_uploaded(folder / "source")
    programs = make_environment(folder / "environment")
    run([*pip(programs), "install", "-q", "-r", "requirements.txt"], folder / "source")
    ca = CertificateAuthority.create(datetime.now(UTC))
    return Deployment(folder / "source", programs, Bench(), ca, PushTokens())


@contextmanager
def function(deployment: Deployment, step: str, log: Path) -> Iterator[str]:
    """The process of an entry point; yields its URL when it listens."""
    (port,) = find_free_ports(1)
    url = f"http://{LOOPBACK}:{port}/"
    command = [str(deployment.programs / "functions-framework"), f"--target={step}"]
    command += [f"--port={port}", f"--host={LOOPBACK}", "--signature-type=http"]
    environment = deployment.environment(step)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=deployment.folder, env=environment, stdout=output, stderr=output
        )
    try:
        # The framework answers 404 here without calling the function.
        until(lambda: post(f"{url}robots.txt", b"")[0] == 404, f"{step} listens (log: {log})")
        yield url
    finally:
        process.terminate()
        process.wait()


def post(url: str, body: bytes, token: str = "") -> tuple[int, str]:
    """Return the status, 0 without a connection, and the answer."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def make_message(bench: Bench, step: str) -> bytes:
    """A push for which the step calls the cluster and the cloud."""
    if step in SLICE_STEPS:
        return push({"version": 1, "kind": "Sweep"})
    return make_group(bench, step.replace("_", "-"), step)


@pytest.mark.real
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("bundle")
@pytest.mark.parametrize("step", ROUTES)
def test_each_step_works_with_the_deployed_files_and_packages(
    deployment: Deployment, step: str, tmp_path: Path
) -> None:
    token = deployment.push_token(step)
    message = make_message(deployment.bench, step)
    log = tmp_path / "log"
    with function(deployment, step, log) as url:
        assert post(url, message, token) == (204, "")
        assert post(url, b"poison", token)[0] == 400
        assert post(url, message) == (401, "PushRefused\n")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["severity"] for line in lines] == ["INFO", "WARNING", "WARNING"]
    assert lines[0]["calls"]["kubernetes"] > 0
    if step in SLICE_STEPS:
        assert lines[0]["decision"] == "Swept"
    if step == "release_slice":
        assert lines[0]["slices"] == 0, "the step lists the node pools of GKE"
    assert token not in log.read_text()


def test_all_entry_points_have_a_test() -> None:
    assert set(list_entry_points()) == {*ROUTES}
