"""A release from its files alone: what docs/install.md says, on an existing cluster.

The cluster's control plane is real and keeps its flags. helm gets the charts from a registry on this
machine. Compute Engine, Secret Manager and kubelets are simulated, so no image is pulled; the
token-writer and the steps run in the test.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.auth.credentials import AnonymousCredentials

from infra.release import __main__ as release
from local.base.clock import VirtualClock
from local.base.ports import LOOPBACK
from local.cloud.secret_manager import SecretManager as Secrets
from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import open_own_control_plane
from relay.tokens.writer import SecretManager, TokenWriter
from shared.base.names import INSTALLATION_ANNOTATION
from shared.ports.google_credentials import GoogleCredentials
from tests.real.bridge.clusters import on_installation
from tests.real.bridge.connections import Caller, trusting
from tests.real.bridge.heartbeats import Grace
from tests.real.bridge.installation import Installation, service_accounts
from tests.real.deploy.installer import installer, simulated_kubelet
from tests.real.deploy.outputs import ACCOUNTS, KUBECONFIGS, Outputs
from tests.real.helm_hooks import checks_run, list_left
from tests.real.inventory import list_everything
from tests.real.relay.waiting import until
from tests.stories import helpers
from tests.support.chart import AUDIENCE, HELM, MANIFESTS, needs_helm
from tests.support.go_tools import REGISTRY, find_tool
from tests.support.harness import ROOT, Harness
from tests.support.loopback import open_loopback
from tests.support.manifests import manifest
from version import VERSION

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("release"), needs_helm]

DIGESTS = {name: f"sha256:{digit * 64}" for name, digit in (("relay", "a"), ("inject-env", "b"))}
PAGE = (ROOT / "docs" / "install.md").read_text()
OLDER = f"sha256:{'c' * 64}"
INSTALLATION = "0123456789abcdef0123456789abcdef"
SYSTEM = "/api/v1/namespaces/kube-system"
KUBERNETES_GRACE_S = 50.0
"""The default of kube-controller-manager's --node-monitor-grace-period."""
NOT_OURS = (
    "certificatesigningrequests ",
    "customresourcedefinitions /canaries.",
    "apiservices /v1.canaries.",
)
"""Requests are deleted by the cluster after an hour; the canaries are the test's."""
POD = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release whose images have been built."""
    folder = tmp_path_factory.mktemp("release") / "files"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(str(HELM)).parent}{os.pathsep}{os.environ['PATH']}")
        release.build(release.Settings(VERSION, release.read_repository(), DIGESTS), folder)
    return folder


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """The address of a registry without TLS."""
    with subprocess.Popen(
        [find_tool(REGISTRY), "-port=0"], stderr=subprocess.PIPE, text=True
    ) as it:
        assert it.stderr is not None
        port = it.stderr.readline().rpartition(" ")[2].strip()
        yield f"localhost:{port}"
        it.terminate()


class Operator:
    """An empty folder, and the tools of the page's prerequisites. Terraform's outputs are files."""

    def __init__(self, folder: Path, plane: OwnControlPlane, registry: str) -> None:
        self.folder = folder / "empty"
        self._programs, self._outputs = folder / "bin", folder / "outputs"
        for made in (self.folder, self._programs, self._outputs):
            made.mkdir()
        self._plane, self._registry = plane, registry
        for name, command in {
            "kubectl": f'exec {plane.kubectl} "$@"',
            "helm": f'exec {HELM} "$@"',
            "terraform": f'[ "$1" != output ] || cat {self._outputs}/"$3"',
        }.items():
            (self._programs / name).write_text(f"#!/bin/sh\n{command}\n")
            (self._programs / name).chmod(0o755)

    def write_output(self, name: str, text: str) -> None:
        """Write what ``terraform output -raw`` prints."""
        (self._outputs / name).write_text(text)

    def run(self, script: str, **replaced: str) -> str:
        """Run commands of a page or the workflow, with this registry instead of ghcr.io, without TLS."""
        script = re.sub(r"oci://ghcr\.io/[^/\s]+", f"oci://{self._registry}", script)
        script = re.sub(r"helm (upgrade|push)", r"helm \1 --plain-http", script)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": os.pathsep.join([str(self._programs), os.environ["PATH"]]),
                "KUBECONFIG": str(self._plane.kubeconfig),
                **replaced,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


def read_block(beginning: str) -> str:
    """Return the commands of docs/install.md that begin so."""
    (block,) = re.findall(rf"```sh\n({re.escape(beginning)}.*?)```", PAGE, re.DOTALL)
    return str(block)


def push(operator: Operator, packaged: Path) -> None:
    """Push a chart by the command of the workflow."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())
    (command,) = [
        step["run"]
        for step in workflow["jobs"]["publish"]["steps"]
        if step.get("run", "").startswith("helm push")
    ]
    version = packaged.name.removeprefix("tpu-functions-").removesuffix(".tgz")
    folder = operator.folder / "build" / "release"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(packaged, folder)
    pushed = operator.run(command, GITHUB_REF_NAME=f"v{version}", GITHUB_REPOSITORY_OWNER="Acme")
    assert f"/charts/tpu-functions:{version}\n" in pushed


def test_the_checksums_are_those_of_the_files(files: Path) -> None:
    command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    done = subprocess.run(command, cwd=files, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_an_existing_cluster_gets_slices_is_upgraded_rolled_back_and_left_as_it_was(
    files: Path, registry: str, tmp_path: Path
) -> None:
    older = release.Settings(VERSION, "x", {"relay": OLDER}, is_snapshot=True)
    with open_own_control_plane() as plane, functions_tokens(plane, tmp_path) as tokens:
        operator = Operator(tmp_path, plane, registry)
        for packaged in (
            release.write_chart(older, tmp_path),
            files / f"tpu-functions-{VERSION}.tgz",
        ):
            push(operator, packaged)
        before = list_everything(plane)
        operator.write_output("values", yaml.safe_dump(tokens.values))
        operator.write_output("installation_id", INSTALLATION)
        install = read_block("terraform apply\n")
        operator.run(install.replace(f"={VERSION} ", f"={VERSION}-snapshot "))
        assert image_of_the_relay(plane).endswith(f"/relay:{VERSION}-snapshot@{OLDER}")
        steps = tokens.write_all()
        accounts = {**steps, **service_accounts(plane, ["relay"])}
        grace = Grace(KUBERNETES_GRACE_S)
        with (
            closing(Installation(plane, accounts, grace=grace)) as installed,
            on_installation(installed),
        ):
            harness = Harness()
            harness.configure(installation_id=INSTALLATION)
            helpers.ready_slice(harness, manifest())
            operator.run(install)
            assert image_of_the_relay(plane).endswith(f"/relay:{VERSION}@{DIGESTS['relay']}")
            harness.run_for(2 * helpers.MINUTE)
            helpers.until_ready(harness)
            operator.run("helm rollback tpu-functions --namespace=tpu-functions")
            assert image_of_the_relay(plane).endswith(OLDER)
            harness.run_for(2 * helpers.MINUTE)
            helpers.until_ready(harness)
            tokens.offset += timedelta(hours=2)
            renewed = tokens.write_all()
            assert not any(renewed[name].token == one.token for name, one in steps.items())
            helpers.assert_deleted_completely(harness)
            users = {one.user for one in accounts.values()}
            calls = [one for one in harness.simulation.kube.calls if one.user in users]
            assert calls
            assert [one for one in calls if one.code in (401, 403)] == []
        with simulated_kubelet(plane), checks_run(plane, tmp_path):
            operator.run(read_block("helm uninstall"))
        left = {one for one in list_left(plane, before) if not one.startswith(NOT_OURS)}
        assert left == set()
        annotations = plane.request("GET", SYSTEM)[1]["metadata"].get("annotations", {})
        assert INSTALLATION_ANNOTATION not in annotations


def test_deploy_sh_of_the_archive_installs_the_releases_images_and_deletes_everything(
    files: Path, tmp_path: Path
) -> None:
    """The page's three commands. The first one writes the settings."""
    name = f"tpu-functions-{VERSION}"
    subprocess.run(["tar", "-xzf", files / f"{name}.tar.gz"], cwd=tmp_path, check=True)
    with (
        open_own_control_plane() as plane,
        installer(tmp_path, plane, with_tokens(plane), tmp_path / name) as deploy,
        simulated_kubelet(plane),
    ):
        before = list_everything(plane)
        shutil.rmtree(deploy.folder)
        deploy.nodes_pull = False
        deploy.gcloud = [("config get project", "p-1", 0), ("config get compute/region", "a-b1", 0)]
        first, *commands = read_block("./deploy.sh --dir").splitlines()
        for command, answer in ((first, ""), (commands[0], "y\ny\n")):
            arguments = command.partition("#")[0].split()[3:]
            ran = deploy.run(*arguments, answer=answer)
            assert ran.code == 0, ran.output
        assert not [call for call in ran.calls if "builds submit" in call]
        assert image_of_the_relay(plane).endswith(f"/relay:{VERSION}@{DIGESTS['relay']}")
        path = "/apis/apps/v1/namespaces/tpu-functions/deployments/token-writer"
        assert plane.request("GET", path)[0] == 200
        destroyed = deploy.run("--destroy", "research", answer="y\n")
        assert destroyed.code == 0, destroyed.output
        until(lambda: not list_left(plane, before), "nothing is left")


def with_tokens(plane: OwnControlPlane) -> Outputs:
    """Terraform's outputs with ServiceAccounts' tokens."""
    values = yaml.safe_load(KUBECONFIGS.values) | render_values(plane)
    return replace(KUBECONFIGS, values=yaml.safe_dump(values))


def render_values(plane: OwnControlPlane) -> dict[str, Any]:
    """Return the values of the token-writer that follow from the cluster."""
    writer = {
        "enabled": True,
        "server": plane.server,
        "ca": base64.b64encode(plane.ca_pem.encode()).decode(),
        "steps": ACCOUNTS,
    }
    return {"identity": {"google": {"audience": AUDIENCE}}, "tokenWriter": writer}


def image_of_the_relay(plane: OwnControlPlane) -> str:
    path = "/apis/apps/v1/namespaces/tpu-functions/deployments/relay"
    spec = plane.request("GET", path)[1]["spec"]["template"]["spec"]
    return str(spec["containers"][0]["image"])


class Tokens:
    """The token-writer of the installation, with its secrets in a simulated Secret Manager."""

    def __init__(
        self, plane: OwnControlPlane, folder: Path, endpoint: str, secrets: Secrets
    ) -> None:
        self.values = {"project": "my-gcp-project", **render_values(plane)}
        self.offset = timedelta()
        self._plane, self._folder, self._secrets = plane, folder, secrets
        self._writer = TokenWriter(
            plane.server,
            plane.ca_pem,
            {step: f"projects/p/secrets/{step}" for step in ACCOUNTS},
            str(folder / "kubeconfig"),
            SecretManager(endpoint, GoogleCredentials(AnonymousCredentials)),
            lambda: datetime.now(UTC) + self.offset,
        )

    def write_all(self) -> dict[str, Caller]:
        """Run a round of the token-writer, with its own token; return the steps' credentials."""
        minted = self._plane.run_kubectl("create", "token", "token-writer", "-n", "tpu-functions")
        (self._folder / "token").write_text(minted.stdout.strip())
        until(self._has_written_all, "each step has a token")
        tls = trusting(self._plane.ca_pem)
        return {
            step: Caller(
                f"system:serviceaccount:tpu-functions:{step}",
                tls,
                self._secrets.secrets[step][-1].payload.decode(),
            )
            for step in ACCOUNTS
        }

    def _has_written_all(self) -> bool:
        return not any(one.has_failed for one in self._writer.run_round())


@contextmanager
def functions_tokens(plane: OwnControlPlane, folder: Path) -> Iterator[Tokens]:
    """The token-writer, with the kubeconfig of its Pod and the paths of this machine."""
    secrets = Secrets(VirtualClock(), "p")
    for step in ACCOUNTS:
        secrets.add(step, b"the token-writer has not run yet")
        secrets.grant("", step, "versions.list", "versions.add", "versions.destroy")
    text = (MANIFESTS / "token-writer" / "kubeconfig").read_text()
    text = text.replace("https://kubernetes.default.svc", plane.server)
    (folder / "kubeconfig").write_text(text.replace(POD, str(folder)))
    (folder / "ca.crt").write_text(plane.ca_pem)
    with open_loopback() as loopback:
        yield Tokens(plane, folder, f"http://{LOOPBACK}:{loopback.serve(secrets)}", secrets)
