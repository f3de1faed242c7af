"""A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

It has what ``kubeadm init`` creates: RBAC, Node authorization, NodeRestriction, bootstrap tokens
with their signer and cleaner, and the ConfigMaps and permissions of ``kubeadm join``. There is no
kubelet: Pods are bound and stay Pending, unless a kubelet is simulated.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from local.base import parent_watch
from local.base.ports import LOOPBACK, find_free_ports
from local.control_plane.binaries import Binaries, Unavailable
from local.kube import CertificateAuthority, User
from local.kube.bootstrap import initial_objects

READY_WITHIN_S = 120.0
_STOP_WITHIN_S = 5.0
"""An API server with open watches takes a minute to end."""
_POLL_S = 0.1
_ADMIN = User("admin", ("system:masters",))
_NAMESPACES = {"default", "kube-node-lease", "kube-public", "kube-system"}
"""The namespaces of every cluster."""
_CONTROLLERS = "*,bootstrapsigner,tokencleaner"


class ControlPlaneError(Exception):
    """A part of the control plane did not start or end; the message has the last lines of its log."""


class ControlPlane:
    """A running control plane, or a cluster that a kubeconfig names.

    ``kubeconfig`` is an administrator's: one cluster with embedded CA, a client certificate or a token.
    ``kubectl`` is a program of its version. A cluster with ``is_ours`` false cannot be stopped.
    """

    def __init__(self, kubeconfig: Path, kubectl: str, *, is_ours: bool = False) -> None:
        self.kubeconfig = kubeconfig
        self.kubectl = kubectl
        self.is_ours = is_ours
        content = yaml.safe_load(kubeconfig.read_text())
        wanted = next(
            context["context"]
            for context in content["contexts"]
            if context["name"] == content["current-context"]
        )
        cluster = next(
            one["cluster"] for one in content["clusters"] if one["name"] == wanted["cluster"]
        )
        self.server: str = cluster["server"]
        """The URL of the API server."""
        self._user = next(one["user"] for one in content["users"] if one["name"] == wanted["user"])
        self.ca_pem = base64.b64decode(cluster["certificate-authority-data"]).decode()
        """The certificate of the cluster's CA."""

    def administrator(self) -> ssl.SSLContext:
        """The administrator's TLS settings: the pinned CA and the client certificate, if any."""
        context = ssl.create_default_context(cadata=self.ca_pem)
        if "client-certificate-data" in self._user:
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                for part in ("client-certificate-data", "client-key-data"):
                    file.write(base64.b64decode(self._user[part]).decode())
                file.flush()
                context.load_cert_chain(file.name)
        return context

    def headers(self) -> dict[str, str]:
        """The administrator's Authorization header, if there is no client certificate."""
        token = self._user.get("token")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[int, Any]:
        """Send a request as the administrator; returns status and document."""
        raw = json.dumps(body).encode() if body is not None else None
        sent = {"Accept": "application/json", **self.headers(), **headers}
        if raw is not None:
            sent["Content-Type"] = content_type
        asked = urllib.request.Request(self.server + path, raw, sent, method=method)
        try:
            # Without proxies: to look for them reads the environment, which may change at the same time.
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}),
                urllib.request.HTTPSHandler(context=self.administrator()),
            )
            with opener.open(asked, timeout=30) as answer:
                return answer.status, _decode(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _decode(error.read())

    def register_node(self, node: Mapping[str, Any]) -> tuple[int, Any]:
        """Create a Node as its kubelet, as the policy tpu-functions-node-registrations requires."""
        name = node["metadata"]["name"]
        kubelet = {"Impersonate-User": f"system:node:{name}", "Impersonate-Group": "system:masters"}
        return self.request("POST", "/api/v1/nodes", node, headers=kubelet)

    def run_kubectl(
        self, *arguments: str, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator, with its own home directory."""
        return subprocess.run(
            [self.kubectl, *arguments],
            env={
                "KUBECONFIG": str(self.kubeconfig),
                "HOME": str(self.kubeconfig.parent),
                "PATH": os.defpath,
            },
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


class OwnControlPlane(ControlPlane):
    """A control plane that `start` has started; its parts can be stopped and started."""

    def __init__(
        self,
        binaries: Binaries,
        directory: Path,
        api_server_flags: Sequence[str] = (),
        controller_flags: Sequence[str] = (),
        scheduler_flags: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        """Data, keys, and a log for each part (``kube-apiserver.log``...)."""
        self._binaries = binaries
        self._api_server_flags = api_server_flags
        self._controller_flags = controller_flags
        self._scheduler_flags = scheduler_flags
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd_port, self._peer_port, port = find_free_ports(3)
        self._api_port = port
        now = datetime.now(UTC)
        ca = CertificateAuthority.create(now)
        self._write("ca.crt", ca.certificate_pem)
        self._write("ca.key", ca.export().key_pem)
        serving = ca.issue_server(
            ("localhost", LOOPBACK, "kubernetes.default.svc", "10.96.0.1"), now
        )
        self._write("apiserver.crt", serving.certificate_pem)
        self._write("apiserver.key", serving.key_pem)
        self._write_account_keys()
        self._kubeconfig_of("kube-controller-manager", "system:kube-controller-manager", ca, now)
        self._kubeconfig_of("kube-scheduler", "system:kube-scheduler", ca, now)
        admin = ca.issue_client(_ADMIN, now)
        path = self._write_kubeconfig("admin", ca.certificate_pem, admin)
        watch_end, self._watch_pipe = os.pipe()
        self._watch = subprocess.Popen(
            parent_watch.WATCH,
            stdin=watch_end,
            start_new_session=True,
        )
        os.close(watch_end)
        super().__init__(path, binaries.path("kubectl"), is_ours=True)

    @property
    def etcd_url(self) -> str:
        """The URL of etcd for clients."""
        return f"http://{LOOPBACK}:{self._etcd_port}"

    def start_all(self) -> None:
        """Start all parts and wait until the API server and its controllers are ready."""
        self._start_etcd()
        self.start_api_server()
        self._seed()
        self._start_controllers()

    def start_api_server(self) -> None:
        """Start the API server, always at the same port, and wait until it is ready."""
        d = self.directory
        self._start(
            "kube-apiserver",
            f"--etcd-servers={self.etcd_url}",
            f"--bind-address={LOOPBACK}",
            f"--advertise-address={LOOPBACK}",
            f"--secure-port={self._api_port}",
            f"--tls-cert-file={d}/apiserver.crt",
            f"--tls-private-key-file={d}/apiserver.key",
            f"--client-ca-file={d}/ca.crt",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={d}/sa.pub",
            f"--service-account-signing-key-file={d}/sa.key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
            "--enable-bootstrap-token-auth=true",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            # An API server that is advertised on loopback must not create Endpoints of itself.
            "--endpoint-reconciler-type=none",
            "--profiling=false",
            *self._api_server_flags,
        )
        self._until_ready()

    def stop_api_server(self) -> None:
        """Stop the API server, as for an upgrade."""
        self.stop_program("kube-apiserver")

    def restart_api_server(self) -> None:
        """Stop and start the API server."""
        self.stop_api_server()
        self.start_api_server()

    def compact(self) -> None:
        """Discard the history: watches from an older version get 410."""
        revision = int(self._etcd("kv/range", {"key": base64.b64encode(b"x").decode()})["revision"])
        self._etcd("kv/compaction", {"revision": str(revision), "physical": True})

    def _etcd(self, method: str, body: dict[str, Any]) -> Any:
        asked = urllib.request.Request(
            f"{self.etcd_url}/v3/{method}", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.loads(answer.read())["header"]

    def stop(self) -> None:
        """Stop all parts in reverse order."""
        for name in reversed(list(self._children)):
            self.stop_program(name)
        os.close(self._watch_pipe)
        self._watch.wait()

    def _start_etcd(self) -> None:
        peers = f"http://{LOOPBACK}:{self._peer_port}"
        self._start(
            "etcd",
            f"--data-dir={self.directory}/etcd",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def _start_controllers(self) -> None:
        d = self.directory
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={d}/kube-controller-manager.kubeconfig",
            f"--bind-address={LOOPBACK}",
            "--secure-port=0",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={d}/sa.key",
            f"--root-ca-file={d}/ca.crt",
            f"--cluster-signing-cert-file={d}/ca.crt",
            f"--cluster-signing-key-file={d}/ca.key",
            f"--controllers={_CONTROLLERS}",
            *self._controller_flags,
        )
        self._start(
            "kube-scheduler",
            f"--kubeconfig={d}/kube-scheduler.kubeconfig",
            f"--bind-address={LOOPBACK}",
            "--secure-port=0",
            "--leader-elect=false",
            *self._scheduler_flags,
        )
        self.wait_until(self._has_published, "kube-controller-manager")

    def _has_published(self) -> bool:
        """Whether the controllers have created their objects in each namespace."""
        for published in ("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default"):
            path = "/api/v1/{}?fieldSelector=metadata.name={}".format(*published)
            items = self.request("GET", path)[1]["items"]
            if not {item["metadata"]["namespace"] for item in items} >= _NAMESPACES:
                return False
        return True

    def _seed(self) -> None:
        """Create what kubeadm init creates for nodes that join."""
        for manifest in _kubeadm_objects(self.server, self.ca_pem):
            code, answer = self.request("POST", _collection(manifest), manifest)
            if code not in (201, 409):
                raise ControlPlaneError(f"{manifest['kind']} was refused: {answer}")

    def _start(self, name: str, *arguments: str) -> None:
        self.start_program(name, Path(self._binaries.path(name)), *arguments)

    def start_program(self, name: str, program: Path, *arguments: str) -> None:
        """Start a part, or a program beside the parts, with a log of its name; `stop` stops it."""
        with (self.directory / f"{name}.log").open("ab") as log:
            self._children[name] = subprocess.Popen(
                [
                    *parent_watch.exec_command(self._watch_pipe),
                    str(program),
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(self._watch_pipe,),
                start_new_session=True,
            )

    def send_signal(self, name: str, number: int) -> None:
        """Send a signal to what `start_program` has started, such as ``kube-apiserver``."""
        self._children[name].send_signal(number)

    def stop_program(self, name: str) -> None:
        """Stop what `start_program` has started."""
        child = self._children.pop(name)
        child.terminate()
        try:
            child.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        os.write(self._watch_pipe, f"-{child.pid}\n".encode())

    def _until_ready(self) -> None:
        def is_ready() -> bool:
            try:
                return self.request("GET", "/readyz")[0] == 200
            except OSError:
                return False

        self.wait_until(is_ready, "kube-apiserver")

    def wait_until(self, condition: Callable[[], bool], name: str) -> None:
        """Wait for a condition. Raises `ControlPlaneError` if a part ends, or ``name`` is late."""
        deadline = time.monotonic() + READY_WITHIN_S
        while not condition():
            ended = [one for one, child in self._children.items() if child.poll() is not None]
            if ended or time.monotonic() > deadline:
                late = ended[0] if ended else name
                log = (self.directory / f"{late}.log").read_text()
                tail = "\n".join(log.splitlines()[-15:])
                raise ControlPlaneError(f"{late} is not ready; its last lines:\n{tail}")
            time.sleep(_POLL_S)

    def _write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_text(text)
        return path

    def _write_account_keys(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self._write("sa.key", private.decode())
        self._write("sa.pub", public.decode())

    def _kubeconfig_of(self, part: str, user: str, ca: CertificateAuthority, now: datetime) -> Path:
        return self._write_kubeconfig(
            part, ca.certificate_pem, ca.issue_client(User(user, ()), now)
        )

    def _write_kubeconfig(self, name: str, ca_pem: str, pair: Any) -> Path:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {
                        "server": f"https://{LOOPBACK}:{self._api_port}",
                        "certificate-authority-data": _encode(ca_pem),
                    },
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate-data": _encode(pair.certificate_pem),
                        "client-key-data": _encode(pair.key_pem),
                    },
                }
            ],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": name}}],
            "current-context": "tests",
        }
        return self._write(f"{name}.kubeconfig", json.dumps(content))


@contextmanager
def named(path: str) -> Iterator[ControlPlane]:
    """The cluster that an administrator's kubeconfig names. Raises `Unavailable`."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise Unavailable("TEST_KUBECONFIG needs kubectl on PATH")
    view = [kubectl, "config", "view", "--raw", "--flatten", "--minify", "--kubeconfig", path]
    flat = subprocess.run(view, capture_output=True, text=True, check=False)
    if flat.returncode:
        raise Unavailable(f"TEST_KUBECONFIG={path} cannot be used: {flat.stderr.strip()}")
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "kubeconfig"
        copy.touch(mode=0o600)
        copy.write_text(flat.stdout)
        try:
            plane = ControlPlane(copy, kubectl)
        except (KeyError, StopIteration) as error:
            raise Unavailable(
                f"TEST_KUBECONFIG={path} must name a cluster with its CA, and a user with a client "
                "certificate or a token"
            ) from error
        yield plane


@contextmanager
def start(
    binaries: Binaries,
    api_server_flags: Sequence[str] = (),
    controller_flags: Sequence[str] = (),
    scheduler_flags: Sequence[str] = (),
) -> Iterator[OwnControlPlane]:
    """Run a control plane until the block is left. Raises `ControlPlaneError`.

    The flags are additional ones of kube-apiserver, kube-controller-manager and kube-scheduler.
    """
    directory = Path(tempfile.mkdtemp(prefix="tpu-functions-control-plane-"))
    flags = api_server_flags, controller_flags, scheduler_flags
    plane = OwnControlPlane(binaries, directory, *flags)
    try:
        plane.start_all()
        yield plane
    finally:
        plane.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _kubeadm_objects(server: str, ca_pem: str) -> Sequence[dict[str, Any]]:
    of_kubeadm = [
        manifest
        for manifest in initial_objects()
        if manifest["metadata"]["name"].startswith("kubeadm")
        or manifest["metadata"]["name"] == "kubelet-config"
    ]
    cluster = {"server": server, "certificate-authority-data": _encode(ca_pem)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "", "cluster": cluster}],
        "contexts": None,
        "current-context": "",
        "users": None,
    }
    info = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cluster-info", "namespace": "kube-public"},
        "data": {"kubeconfig": yaml.safe_dump(content)},
    }
    return [*of_kubeadm, info]


def _collection(manifest: dict[str, Any]) -> str:
    version = manifest["apiVersion"]
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = manifest["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{prefix}{scope}/{manifest['kind'].lower()}s"


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decode(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
