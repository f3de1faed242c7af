"""The controllers of JobSet, LeaderWorkerSet and Kueue, with their webhooks, beside a control plane.

Those of JobSet and LeaderWorkerSet are built from the Go module of the control plane's programs;
Kueue's from ``kueue/go.mod``, because it raises dependencies of the API server. They are cached like
those programs, with the manifests of their installation (``config/default``). Here, a controller is a
process instead of a Pod: with the ServiceAccount and the permissions of the manifests, a certificate
that is issued here, and webhooks that the API server calls by URL. Its management of certificates,
leader election, metrics and aggregated APIs are off.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from local.base.access import encode
from local.base.kubeconfig import kubeconfig
from local.base.ports import LOOPBACK, find_free_ports
from local.control_plane.binaries import (
    HERE,
    Binaries,
    Print,
    Unavailable,
    can_build,
    download,
    folder_in_cache,
    go_build,
)
from local.control_plane.plane import ControlPlaneError, OwnControlPlane
from local.kube import CertificateAuthority

Document = dict[str, Any]

_IN_PODS = {"APIService", "ConfigMap", "Deployment", "Secret", "Service"}
"""What the processes do not need."""
_WEBHOOKS = "WebhookConfiguration"
_TOKEN_LIFE_S = 24 * 3600
_METRICS_FOLDER = '"/etc/kueue/metrics/certs"'
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class WorkloadController:
    """A controller: the names of its program, Go module and package, and its kind.

    ``probe`` is the spec of an object of its kind, in which its webhook sets the field ``default``.
    ``part`` is the folder of the ``go.mod`` that pins it, ``settings`` and ``flags`` are its own.
    """

    name: str
    module: str
    package: str
    api_version: str
    kind: str
    probe: Mapping[str, Any]
    default: str
    part: str = "kubernetes"
    settings: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """The namespace of its manifests."""
        return f"{self.name}-system"

    @property
    def path(self) -> str:
        """The collection of its objects in the namespace ``default``."""
        return f"/apis/{self.api_version}/namespaces/default/{self.kind.lower()}s"


_POD = {"spec": {"containers": [{"name": "probe", "image": "probe"}]}}
JOBSET = WorkloadController(
    name="jobset",
    module="sigs.k8s.io/jobset",
    package="sigs.k8s.io/jobset",
    api_version="jobset.x-k8s.io/v1alpha2",
    kind="JobSet",
    probe={"replicatedJobs": [{"name": "probe", "template": {"spec": {"template": _POD}}}]},
    default="network",
)
LWS = WorkloadController(
    name="lws",
    module="sigs.k8s.io/lws",
    package="sigs.k8s.io/lws/cmd",
    api_version="leaderworkerset.x-k8s.io/v1",
    kind="LeaderWorkerSet",
    probe={"leaderWorkerTemplate": {"workerTemplate": _POD}},
    default="networkConfig",
)
KUEUE = WorkloadController(
    name="kueue",
    module="sigs.k8s.io/kueue",
    package="sigs.k8s.io/kueue/cmd/kueue",
    api_version="kueue.x-k8s.io/v1beta2",
    kind="Workload",
    probe={"podSets": [{"name": "main", "count": 1, "template": _POD}]},
    default="active",
    part="kueue",
    settings={
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "integrations": {
            "frameworks": [
                *("batch/job", "jobset.x-k8s.io/jobset", "pod", "statefulset"),
                "leaderworkerset.x-k8s.io/leaderworkerset",
            ]
        },
    },
    flags=("--feature-gates=VisibilityOnDemand=false",),
)
"""It watches only kinds whose definitions it finds when it starts."""
CONTROLLERS = (JOBSET, LWS)
"""The controllers that `make control-plane` builds."""


def find(
    environment: Mapping[str, str], controllers: Sequence[WorkloadController] = CONTROLLERS
) -> Path | None:
    """Return the folder of the programs and manifests, without a build."""
    built = _cache(environment, controllers)
    return built if built.is_dir() else None


def obtain(
    environment: Mapping[str, str],
    binaries: Binaries,
    print_text: Print,
    controllers: Sequence[WorkloadController] = CONTROLLERS,
) -> Path:
    """Find the folder, or build what is in it; kubectl of ``binaries`` renders the manifests.

    ``controllers`` are `CONTROLLERS`, or `KUEUE` alone. Raises `Unavailable` if the folder is not found
    and cannot be built.
    """
    found = find(environment, controllers)
    if found is not None:
        return found
    if not can_build():
        kinds = " and ".join(one.name for one in controllers)
        raise Unavailable(f"the controllers of {kinds} are not built; install Go")
    target = _cache(environment, controllers)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as folder:
        made = Path(folder) / "made"
        made.mkdir()
        for one in controllers:
            if one is KUEUE:
                _build_kueue(Path(folder) / "source", made / one.name, print_text)
            else:
                go_build(one.part, {one.name: one.package}, str(made / one.name), print_text)
            _manifests(made, one).write_bytes(_render(one, binaries))
        if not target.is_dir():
            made.replace(target)
    return target


def _cache(environment: Mapping[str, str], controllers: Sequence[WorkloadController]) -> Path:
    name = "workload-controllers" if controllers == CONTROLLERS else controllers[0].name
    return folder_in_cache(environment, name, controllers[0].part)


def _build_kueue(source: Path, output: Path, print_text: Print) -> None:
    """Build Kueue with the certificate of its webhooks for its metrics, too.

    Without its own management of certificates it reads one from a folder in ``/etc``, even if it serves
    no metrics.
    """
    shutil.copytree(HERE / KUEUE.part, source)
    text = (download(KUEUE.module, KUEUE.part) / "cmd" / "kueue" / "main.go").read_text()
    assert text.count(_METRICS_FOLDER) == 1, _METRICS_FOLDER
    (source / "main.go").write_text(text.replace(_METRICS_FOLDER, "cfg.Webhook.CertDir"))
    go_build(source, {KUEUE.name: "."}, str(output), print_text)


def _render(controller: WorkloadController, binaries: Binaries) -> bytes:
    folder = download(controller.module, controller.part) / "config" / "default"
    done = subprocess.run(
        [binaries.path("kubectl"), "kustomize", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        raise Unavailable(f"kubectl could not render {folder}:\n{done.stderr.decode()}")
    return done.stdout


def _manifests(folder: Path, controller: WorkloadController) -> Path:
    return folder / f"{controller.name}.yaml"


@contextmanager
def running(plane: OwnControlPlane, folder: Path, controller: WorkloadController) -> Iterator[None]:
    """Install a controller and run it until the block is left; its objects stay.

    Its log is in the control plane's folder. Raises `ControlPlaneError`.
    """
    manifests = [
        one
        for one in yaml.load_all(_manifests(folder, controller).read_text(), _LOADER)
        if one["kind"] not in _IN_PODS
    ]
    for one in manifests:
        # Only the stored version of its kinds is used, so no webhook converts them.
        if one["kind"] == "CustomResourceDefinition":
            one["spec"].pop("conversion", None)
    webhooks = [one for one in manifests if one["kind"].endswith(_WEBHOOKS)]
    _apply(plane, [one for one in manifests if one not in webhooks])
    # A controller that starts before its kinds are discovered tries again after ten seconds.
    plane.wait_until(lambda: all(_is_discovered(plane, one) for one in manifests), "kube-apiserver")
    own = plane.directory / controller.name
    own.mkdir(exist_ok=True)
    ca = CertificateAuthority.create(datetime.now(UTC))
    port, health_port = find_free_ports(2)
    config = _configure(plane, manifests, controller, own, ca, (port, health_port))
    plane.start_program(
        controller.name,
        folder / controller.name,
        f"--kubeconfig={own}/kubeconfig",
        f"--config={config}",
        *controller.flags,
    )
    try:
        plane.wait_until(lambda: _is_healthy(health_port), controller.name)
        _apply(plane, [_at(one, f"https://{LOOPBACK}:{port}", ca) for one in webhooks])
        plane.wait_until(lambda: _is_called(plane, controller), controller.name)
        yield
    finally:
        plane.stop_program(controller.name)


def _apply(plane: OwnControlPlane, manifests: Sequence[Document]) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
    # A client-side apply copies a CRD into an annotation, for which it is too long.
    arguments = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    done = plane.run_kubectl(*arguments, stdin=json.dumps(listed))
    if done.returncode:
        raise ControlPlaneError(f"the manifests were refused: {done.stderr}")


def _is_discovered(plane: OwnControlPlane, manifest: Document) -> bool:
    """Whether the kind of a CRD is discovered; true of other manifests."""
    if manifest["kind"] != "CustomResourceDefinition":
        return True
    spec = manifest["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}"
    code, answer = plane.request("GET", path)
    plurals = [one["name"] for one in answer["resources"]] if code == 200 else []
    return spec["names"]["plural"] in plurals


def _configure(
    plane: OwnControlPlane,
    manifests: Sequence[Document],
    controller: WorkloadController,
    own: Path,
    ca: CertificateAuthority,
    ports: tuple[int, int],
) -> Path:
    """Write its kubeconfig, certificate and configuration; returns the path of the last one."""
    (account,) = (one["metadata"]["name"] for one in manifests if one["kind"] == "ServiceAccount")
    path = f"/api/v1/namespaces/{controller.namespace}/serviceaccounts/{account}/token"
    code, answer = plane.request("POST", path, {"spec": {"expirationSeconds": _TOKEN_LIFE_S}})
    if code != 201:
        raise ControlPlaneError(f"{controller.name} gets no token: {answer}")
    pair = ca.issue_server((LOOPBACK,), datetime.now(UTC))
    config = {
        "apiVersion": f"config.{controller.name}.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "internalCertManagement": {"enable": False},
        "webhook": {"host": LOOPBACK, "port": ports[0], "certDir": str(own)},
        "health": {"healthProbeBindAddress": f"{LOOPBACK}:{ports[1]}"},
        "metrics": {"bindAddress": "0"},
        "leaderElection": {"leaderElect": False},
        **controller.settings,
    }
    for name, text in {
        "kubeconfig": json.dumps(kubeconfig(plane.server, plane.ca_pem, answer["status"]["token"])),
        "tls.crt": pair.certificate_pem,
        "tls.key": pair.key_pem,
        "config.yaml": json.dumps(config),
    }.items():
        (own / name).touch(mode=0o600)
        (own / name).write_text(text)
    return own / "config.yaml"


def _at(configuration: Document, url: str, ca: CertificateAuthority) -> Document:
    """Return a webhook configuration that names a server by URL."""
    webhooks = [
        {
            **one,
            "clientConfig": {
                "url": url + one["clientConfig"]["service"]["path"],
                "caBundle": encode(ca.certificate_pem),
            },
        }
        for one in configuration["webhooks"]
    ]
    return {**configuration, "webhooks": webhooks}


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/readyz", timeout=5):
            return True
    except OSError:
        return False


def _is_called(plane: OwnControlPlane, controller: WorkloadController) -> bool:
    """Whether the API server calls its webhooks, and they answer."""
    probe = {
        "apiVersion": controller.api_version,
        "kind": controller.kind,
        "metadata": {"name": "probe"},
        "spec": controller.probe,
    }
    code, answer = plane.request("POST", f"{controller.path}?dryRun=All", probe)
    if 400 <= code < 500:
        raise ControlPlaneError(f"a {controller.kind} was refused: {answer['message']}")
    return bool(code == 201 and controller.default in answer["spec"])
