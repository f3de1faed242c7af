"""The webhook as it is installed, on a real control plane: chart, certificate, Deployment, Service.

The API server calls the Service by its name. There is no network of Pods here, so a proxy connects the
API server to a process that runs the command of the Deployment's container.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.base.ports import LOOPBACK, find_free_ports
from local.control_plane.plane import OwnControlPlane
from local.kube import CertificateAuthority
from local.tests.real_parts import open_own_control_plane
from tests.bundle.dockerfile import read_steps
from tests.real.relay.waiting import until
from tests.support.chart import apply as apply_chart
from tests.support.chart import define_anything
from webhook.settings import read_settings

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("inject-env-installed")]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "workload"
PAGE = ROOT / "docs" / "injection.md"
NAMESPACE = "tpu-functions"
NAMESPACES = ROOT / "infra" / "chart" / "manifests" / "namespace.yaml"
CONFIGURATION = "tpu-functions-inject-env"

Document = dict[str, Any]


class ServiceNetwork:
    """An HTTP proxy between an API server and Services; one process serves all Services."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The socket on which it listens."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.process_port = 0
        self.requested: set[str] = set()
        """The addresses of the requested connections."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        method, address, _ = head.decode().split(" ", 2)
        assert method == "CONNECT"
        self.requested.add(address)
        try:
            process = socket.create_connection((LOOPBACK, self.process_port))
        except OSError:
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            client.close()
            return
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        threading.Thread(target=_pipe, args=(client, process), daemon=True).start()
        _pipe(process, client)


def _pipe(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        target.close()


@pytest.fixture(scope="module")
def services() -> Iterator[ServiceNetwork]:
    # The path of pytest's temporary folder can be too long for a socket.
    with tempfile.TemporaryDirectory() as folder:
        network = ServiceNetwork(Path(folder) / "services")
        yield network
        network.close()


@pytest.fixture(scope="module")
def plane(
    services: ServiceNetwork, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OwnControlPlane]:
    """A control plane with the namespace. It reaches Services through the network."""
    folder = tmp_path_factory.mktemp("plane")
    connection = {
        "proxyProtocol": "HTTPConnect",
        "transport": {"uds": {"udsName": str(services.path)}},
    }
    egress = {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }
    (folder / "egress.yaml").write_text(yaml.safe_dump(egress))
    flags = [
        f"--egress-selector-config-file={folder}/egress.yaml",
    ]
    with open_own_control_plane(flags) as started:
        kubectl(started, "apply", "-f", str(NAMESPACES))
        yield started


def kubectl(plane: OwnControlPlane, *arguments: str, stdin: str | None = None) -> str:
    result = plane.run_kubectl(*arguments, stdin=stdin)
    assert result.returncode == 0, result.stderr
    return result.stdout


def read(plane: OwnControlPlane, *arguments: str) -> Any:
    return json.loads(kubectl(plane, "get", *arguments, "--output=json"))


# The certificate


def issue_manually(plane: OwnControlPlane, folder: Path) -> Document:
    """Follow the page on injection with a certificate of one's own, and return the written values."""
    done = run_block(plane, "openssl", folder)
    assert done.returncode == 0, done.stderr
    assert not (folder / "tls.key").exists()
    values: Document = yaml.safe_load((folder / "inject-env.yaml").read_text())
    return values


def run_block(
    plane: OwnControlPlane, command: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run the page's only block that contains a command, in a folder."""
    (block,) = (one for one in blocks_of(PAGE, "sh") if command in one)
    home = {
        "PATH": f"{Path(plane.kubectl).parent}:{os.defpath}",
        "KUBECONFIG": str(plane.kubeconfig),
        "HOME": str(plane.kubeconfig.parent),
    }
    return subprocess.run(
        ["bash", "-euc", block], cwd=folder, env=home, capture_output=True, text=True, check=False
    )


def blocks_of(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in a language."""
    return [part.partition("```")[0] for part in page.read_text().split(f"```{language}\n")[1:]]


class CertManager:
    """Issues each Certificate into its Secret, with the CA that its Issuer names, and injects the CA of
    a Certificate into the configurations that request it."""

    def __init__(self, plane: OwnControlPlane) -> None:
        self._plane = plane
        self._authorities: dict[str, CertificateAuthority] = {}
        """The CAs by the Secrets of their Certificates."""

    def issue(self) -> None:
        """Issue all Certificates, as for a renewal; a CA keeps its key (rotationPolicy)."""
        items = read(self._plane, "certificates.cert-manager.io", "--all-namespaces")["items"]
        for item in sorted(items, key=lambda one: not one["spec"].get("isCA", False)):
            spec, namespace = item["spec"], item["metadata"]["namespace"]
            if spec.get("isCA"):
                assert spec["privateKey"]["rotationPolicy"] == "Never"
                made = CertificateAuthority.create(datetime.now(UTC))
                ca = self._authorities.setdefault(spec["secretName"], made)
                texts = {"tls.crt": ca.certificate_pem, "tls.key": "no test reads it"}
            else:
                ca = self._find_issuer(spec["issuerRef"]["name"], namespace)
                pair = ca.issue_server(tuple(spec["dnsNames"]), datetime.now(UTC))
                texts = {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem}
            secret = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "metadata": {"name": spec["secretName"], "namespace": namespace},
                "stringData": {**texts, "ca.crt": ca.certificate_pem},
            }
            kubectl(self._plane, "apply", "-f", "-", stdin=json.dumps(secret))
            self._inject_ca_of(f"{namespace}/{item['metadata']['name']}", ca)

    def _find_issuer(self, name: str, namespace: str) -> CertificateAuthority:
        issuer = read(self._plane, "issuer.cert-manager.io", name, "-n", namespace)["spec"]
        if "selfSigned" in issuer:
            return CertificateAuthority.create(datetime.now(UTC))
        return self._authorities[issuer["ca"]["secretName"]]

    def _inject_ca_of(self, certificate: str, ca: CertificateAuthority) -> None:
        for one in read(self._plane, "mutatingwebhookconfigurations")["items"]:
            source = one["metadata"].get("annotations", {}).get("cert-manager.io/inject-ca-from")
            if source == certificate:
                inject_ca(self._plane, one, ca.certificate_pem)


def inject_ca(plane: OwnControlPlane, configuration: Document, ca: str) -> None:
    path = "/webhooks/{}/clientConfig/caBundle"
    value = base64.b64encode(ca.encode()).decode()
    patch = [
        {"op": "add", "path": path.format(number), "value": value}
        for number in range(len(configuration["webhooks"]))
    ]
    name = configuration["metadata"]["name"]
    kubectl(
        plane, "patch", "mutatingwebhookconfiguration", name, "--type=json", "-p", json.dumps(patch)
    )


# The Deployment


def container_of(plane: OwnControlPlane) -> tuple[Document, Document]:
    """Return the Deployment's container and its Pod's spec."""
    spec: Document = read(plane, "deployment", "inject-env", "-n", NAMESPACE)["spec"]["template"][
        "spec"
    ]
    (container,) = spec["containers"]
    return container, spec


@contextmanager
def running(plane: OwnControlPlane, folder: Path) -> Iterator[int]:
    """Run the Deployment's container as a process, with the Secret that it mounts; yield its port."""
    container, spec = container_of(plane)
    arguments = container.get("args", [])
    variables = {one["name"]: one["value"] for one in container.get("env", [])}
    settings = read_settings(arguments, variables)
    (mount,), (volume,) = container["volumeMounts"], spec["volumes"]
    secret = read(plane, "secret", volume["secret"]["secretName"], "-n", NAMESPACE)["data"]
    for path in (settings.certificate, settings.key):
        assert str(path.parent) == mount["mountPath"]
        (folder / path.name).write_bytes(base64.b64decode(secret[path.name]))
    (port,) = find_free_ports(1)
    entry_point = dict(read_steps((ROOT / "webhook" / "Dockerfile").read_text()))["ENTRYPOINT"]
    program, *words = json.loads(entry_point)
    assert program == "python"
    moved = [
        f"--tls-cert-file={folder}/{settings.certificate.name}",
        f"--tls-key-file={folder}/{settings.key.name}",
    ]
    process = subprocess.Popen(
        [sys.executable, *words, *arguments, *moved],
        cwd=ROOT,
        env={"PATH": os.defpath, **variables, "HOST": LOOPBACK, "PORT": str(port)},
        stdout=(folder / "log").open("wb"),
    )
    try:
        until(lambda: is_healthy(container, port), f"its probes succeed: {folder}/log")
        assert process.poll() is None
        yield port
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0, (folder / "log").read_text()


def is_healthy(container: Document, port: int) -> bool:
    """Return whether the probes succeed."""
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    unverified = ssl._create_unverified_context()  # as the kubelet does
    for name in ("readinessProbe", "livenessProbe"):
        probe = container[name]["httpGet"]
        assert ports[probe["port"]] == read_settings(container.get("args", []), {}).port
        url = f"{probe['scheme'].lower()}://{LOOPBACK}:{port}{probe['path']}"
        try:
            urllib.request.urlopen(url, context=unverified, timeout=10).close()
        except OSError:
            return False
    return True


# The installed webhook


@pytest.fixture(autouse=True)
def no_workloads(plane: OwnControlPlane) -> Iterator[None]:
    """Delete the workloads after each test."""
    yield
    kubectl(plane, "delete", "--ignore-not-found", "-f", str(EXAMPLES / "injected.yaml"))
    kubectl(plane, "delete", "pods,events", "--all", "--wait=false")


@pytest.fixture(scope="module")
def cert_manager(plane: OwnControlPlane) -> None:
    """CRDs with the names of cert-manager's; they accept any object."""
    for kind in ("Certificate", "Issuer"):
        document = define_anything("cert-manager.io", kind)
        kubectl(plane, "apply", "-f", "-", stdin=json.dumps(document))
        path = f"/apis/cert-manager.io/v1/{kind.lower()}s"
        until(partial(is_served, plane, path), f"{kind} is served")


def is_served(plane: OwnControlPlane, path: str) -> bool:
    return plane.request("GET", path)[0] == 200


@pytest.fixture(scope="module", params=["by hand", "cert-manager"])
def installed(
    request: pytest.FixtureRequest, plane: OwnControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Document:
    """The values of the applied chart; the certificate is issued manually or by cert-manager."""
    if request.param == "by hand":
        values = issue_manually(plane, tmp_path_factory.mktemp("issued"))
        apply_chart(plane, values)
    else:
        request.getfixturevalue("cert_manager")
        kubectl(plane, "delete", "mutatingwebhookconfigurations", "--all")
        kubectl(plane, "delete", "secret", "inject-env-tls", "-n", NAMESPACE, "--ignore-not-found")
        values = {"injectEnv": {"enabled": True, "certificate": "cert-manager"}}
        apply_chart(plane, values)
        CertManager(plane).issue()
    return values


@pytest.mark.usefixtures("installed")
def test_the_api_server_calls_the_service_and_a_workload_is_injected(
    plane: OwnControlPlane, services: ServiceNetwork, tmp_path: Path
) -> None:
    """Both workloads of examples/workload have the same variables."""
    services.requested.clear()
    with running(plane, tmp_path) as services.process_port:
        until(partial(is_injected, plane), "the API server calls the webhook")
        kubectl(plane, "apply", "-f", str(EXAMPLES / "injected.yaml"))
        kubectl(plane, "wait", "--for=create", "pod/tpu-worker-v7x-1", "--timeout=30s")
        kubectl(plane, "apply", "-f", str(EXAMPLES / "injected.yaml"))
    address = read(plane, "service", "inject-env", "-n", NAMESPACE)["spec"]["clusterIP"]
    assert services.requested == {f"{address}:443"}
    expected = variables_of((EXAMPLES / "by-hand.yaml").read_text())
    pod = read(plane, "pod", "tpu-worker-v7x-1")
    found = {
        one["name"]: one.get("value") or "<field>" for one in pod["spec"]["containers"][0]["env"]
    }
    assert found == expected


def variables_of(manifest: str) -> dict[str, str]:
    (workload,) = (one for one in yaml.safe_load_all(manifest) if one["kind"] == "StatefulSet")
    entries = workload["spec"]["template"]["spec"]["containers"][0]["env"]
    return {one["name"]: one.get("value") or "<field>" for one in entries}


def is_injected(plane: OwnControlPlane) -> bool:
    """Return whether the API server already calls the webhook, by the page's command."""
    return "TPU_WORKER_HOSTNAMES" in run_block(plane, "--dry-run=server", ROOT).stdout


def test_the_overlay_can_be_applied_again_without_change_to_objects_or_ca(
    installed: Document, plane: OwnControlPlane
) -> None:
    result = apply_chart(plane, installed)
    # kubectl sends its selector each time, although it is unchanged.
    result.remove("poddisruptionbudget.policy/inject-env configured")
    assert [line for line in result if not line.endswith(" unchanged")] == []
    assert len(bundles(plane)) == 1


@pytest.mark.parametrize("installed", ["cert-manager"], indirect=True)
@pytest.mark.usefixtures("installed")
def test_a_renewed_certificate_is_trusted_immediately(
    plane: OwnControlPlane, services: ServiceNetwork, tmp_path: Path
) -> None:
    """The certificate is trusted before and after the webhook has read its new file."""
    manager = CertManager(plane)
    manager.issue()
    before = bundles(plane)
    with running(plane, tmp_path) as services.process_port:
        until(partial(is_injected, plane), "the API server calls the webhook")
        manager.issue()
        assert is_injected(plane)
    with running(plane, tmp_path) as services.process_port:
        until(partial(is_injected, plane), "the API server calls the webhook with its new file")
    assert bundles(plane) == before


def bundles(plane: OwnControlPlane) -> set[str]:
    webhooks = read(plane, "mutatingwebhookconfiguration", CONFIGURATION)["webhooks"]
    return {one["clientConfig"]["caBundle"] for one in webhooks}


@pytest.mark.usefixtures("installed")
def test_a_restricted_namespace_accepts_the_pod(plane: OwnControlPlane) -> None:
    _, spec = container_of(plane)
    pod = {"metadata": {"name": "trial"}, "spec": spec}
    code, result = plane.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)
    assert code == 201, result


@pytest.mark.usefixtures("installed")
def test_tpu_workloads_are_rejected_and_others_are_accepted_while_the_webhook_is_unavailable(
    plane: OwnControlPlane, services: ServiceNetwork, tmp_path: Path
) -> None:
    until(partial(is_rejected, plane), "the policies are in effect")
    rejected = plane.run_kubectl("apply", "-f", str(EXAMPLES / "injected.yaml"))
    assert rejected.stderr.strip().endswith(
        "denied request: the webhook inject-env in tpu-functions was unavailable, so the mark of this "
        "workload has no effect; apply it again when the webhook is available"
    )
    plain = ["run", "plain", "--image=python:3.12", "--labels=tpu-functions.dev/inject=enabled"]
    kubectl(plane, *plain, "--dry-run=server")
    moved = move_label_to_template()
    kubectl(plane, "apply", "-f", "-", stdin=moved)
    until(partial(has_event, plane, "has no TPU_WORKER_ID"), "its Pods are rejected")
    with running(plane, tmp_path) as services.process_port:
        kubectl(plane, "wait", "--for=create", "pod/tpu-worker-v7x-1", "--timeout=120s")
    pod = read(plane, "pod", "tpu-worker-v7x-1")
    variables = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert variables["TPU_WORKER_ID"] == "1"
    assert variables["TPU_WORKER_HOSTNAMES"] == (
        "tpu-worker-v7x-0.tpu-svc-v7x,tpu-worker-v7x-1.tpu-svc-v7x"
    )


def is_rejected(plane: OwnControlPlane) -> bool:
    result = plane.run_kubectl("create", "--dry-run=server", "-f", str(EXAMPLES / "injected.yaml"))
    return "denied request" in result.stderr


def move_label_to_template() -> str:
    """Return the example with its label in the Pod template instead of on the workload."""
    documents = list(yaml.safe_load_all((EXAMPLES / "injected.yaml").read_text()))
    workload = documents[-1]
    label = workload["metadata"].pop("labels")
    workload["spec"]["template"]["metadata"]["labels"] |= label
    return yaml.safe_dump_all(documents)


def has_event(plane: OwnControlPlane, text: str) -> bool:
    """Return whether an event of the StatefulSet contains the text."""
    events = read(plane, "events", "--field-selector=involvedObject.kind=StatefulSet")["items"]
    return any(text in event["message"] for event in events)


def test_strict_mode_rejects_new_problems_and_lets_controllers_write_a_stored_workload(
    installed: Document, plane: OwnControlPlane, services: ServiceNetwork, tmp_path: Path
) -> None:
    kubectl(plane, "set", "env", "deployment/inject-env", "INJECT_STRICT=false", "-n", NAMESPACE)
    with running(plane, tmp_path) as services.process_port:
        until(partial(is_injected, plane), "the API server calls the webhook")
        kubectl(plane, "create", "-f", "-", stdin=json.dumps(CONTRADICTORY))
    (block,) = (one for one in blocks_of(PAGE, "yaml") if "INJECT_STRICT" in one)
    of_page = yaml.safe_load(block)["injectEnv"]
    apply_chart(plane, {"injectEnv": {**installed["injectEnv"], **of_page}})
    mismatched = (EXAMPLES / "injected.yaml").read_text().replace("replicas: 2", "replicas: 3")
    with running(plane, tmp_path) as services.process_port:
        until(partial(is_injected, plane), "the API server calls the webhook")
        result = plane.run_kubectl("create", "--dry-run=server", "-f", "-", stdin=mismatched)
        # The controller of Deployments writes the revision into the Deployment before it rolls out.
        kubectl(plane, "set", "image", "deployment/stored", "worker=python:3.13")
        until(lambda: find_revision(plane) == "2", "the controller writes the Deployment")
        kubectl(plane, "delete", "deployment", "stored")
    assert result.stderr.strip().endswith(
        "denied the request: topology 2x2x2 needs 2 Pods, and there are 3; set their number to 2"
    )


CONTRADICTORY: Document = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "stored", "labels": {"tpu-functions.dev/inject": "enabled"}},
    "spec": {
        "selector": {"matchLabels": {"app": "stored"}},
        "template": {
            "metadata": {"labels": {"app": "stored"}},
            "spec": {
                "nodeSelector": {
                    "cloud.google.com/gke-tpu-accelerator": "tpu7x",
                    "cloud.google.com/gke-tpu-topology": "2x2x2",
                },
                "containers": [
                    {
                        "name": "worker",
                        "image": "python:3.12",
                        "resources": {"limits": {"google.com/tpu": "4"}},
                    }
                ],
            },
        },
    },
}
"""A Deployment's Pods have no names that are known, and its slice has two hosts."""


def find_revision(plane: OwnControlPlane) -> str:
    annotations = read(plane, "deployment", "stored")["metadata"].get("annotations", {})
    return str(annotations.get("deployment.kubernetes.io/revision", ""))
