"""deploy.sh in a copy of the tree, with simulated cloud tools and a real kubectl."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from local.control_plane.plane import ControlPlane
from local.tests.real_parts import miss
from tests.real.deploy.outputs import KUBECONFIGS, PROJECT, Outputs
from tests.support.chart import HELM

ROOT = Path(__file__).parents[3]
TOKEN = "ya29.a-secret-access-token"
APIS = ("cloudresourcemanager", "compute", "iam", "serviceusage")
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
"""The digest of the built images."""
DIGESTS = {name: f"sha256:{digit * 64}" for name, digit in (("relay", "a"), ("inject-env", "b"))}
GKE_VERSION = '{"major": "1", "minor": "33", "gitVersion": "v1.33.4-gke.1134000"}'
LOCAL_STATE = 'terraform {\n  backend "local" {}\n}\n'
ELSEWHERE = {
    "installation_id": "0123456789abcdef0123456789abcdef",
    "cluster_identity": "11111111-2222-3333-4444-555555555555 10.128.0.2",
}
"""What the state of an installation in another cluster remembers."""
Rule = tuple[str, str, int]
GCLOUD: tuple[Rule, ...] = (
    ("auth print-access-token", TOKEN, 0),
    ("config get account", "me@example.com", 0),
    ("services list", "\n".join(f"{name}.googleapis.com" for name in APIS), 0),
    ("artifacts docker images describe", DIGEST, 0),
    ("topics publish", "1234567890", 0),
    ("logging read", "GroupGone", 0),
)
TERRAFORM: tuple[Rule, ...] = (
    ("workspace show", "default", 0),
    ("state list", "No state file was found!", 1),
)

OLD_STATE: Rule = (
    "state list",
    'data.google_project.this\ngoogle_pubsub_topic.step["sweep"]\n'
    'google_service_account.step["label_node"]',
    0,
)
"""Terraform's state has resources of a version without ids of installations."""
HAS_STATE: Rule = (
    "state list",
    f"{OLD_STATE[1]}\nterraform_data.cluster\nterraform_data.installation",
    0,
)
"""Terraform's state of an installation."""


@dataclass
class Ran:
    """The exit code and the output of a run, and the command lines that it called."""

    code: int
    output: str
    calls: list[str]

    def says(self, text: str) -> bool:
        """Whether the output has lines; a failed run says after them what it has left."""
        return f"\n{text}" in self.output

    def changing_calls(self) -> list[str]:
        """Return the calls that change something in the cloud; `kubectl auth` only reads."""
        words = re.compile(
            r" (annotate|build|push|create|submit|publish|apply|destroy|enable|delete|add|"
            r"upgrade|uninstall|"
            r"set-iam-policy)\b"
        )
        others = (call for call in self.calls if not call.startswith("kubectl auth "))
        return [call for call in others if words.search(call)]


@dataclass
class Settings:
    """The values that Terraform reads from the settings' file."""

    prefix: str = "tpu-functions"
    jobset_provider: str = ""
    secrets: Sequence[str] = ()
    federation: bool = False
    node_pools: str = ""
    """Project, location and name of the cluster."""
    sweep_region: str = "us-central1"
    join_approval: str = "approve_join"
    slice_workloads: bool = False
    projects: str = PROJECT
    """All projects, separated by spaces."""
    tokens: bool = False
    """Whether the functions use tokens of the token-writer."""

    def console_output(self) -> str:
        """Return the output of ``terraform console``."""
        federation = "federation" if self.federation else ""
        secrets = " ".join(self.secrets)
        values = (PROJECT, "us-central1", self.prefix, self.jobset_provider, self.projects)
        workloads = str(self.slice_workloads).lower()
        rest = (
            secrets,
            federation,
            self.node_pools,
            self.sweep_region,
            self.join_approval,
            workloads,
        )
        tokens = "tokens" if self.tokens else ""
        return f'"{"|".join((*values, *rest, tokens))}"'


@dataclass
class Installer:
    """A separate checkout, and a folder of settings, for one cluster."""

    tree: Path
    folder: Path
    """The folder of ``--dir``, which outputs show as DIR."""
    plane: ControlPlane
    permissions_url: str
    outputs: Outputs
    lacking: set[str] = field(default_factory=set)
    """Permissions that the caller lacks."""
    unknown: set[str] = field(default_factory=set)
    """Permissions that cannot be checked on a project."""
    settings: Settings = field(default_factory=Settings)
    gcloud: list[Rule] = field(default_factory=list)
    """Answers that take precedence over the usual ones."""
    terraform: list[Rule] = field(default_factory=list)
    kubectl: list[Rule] = field(default_factory=list)
    """Answers that replace the cluster's."""
    helm: list[Rule] = field(default_factory=list)
    docker: list[Rule] = field(default_factory=list)
    sleep: list[Rule] = field(default_factory=list)
    """Waits that are skipped."""
    recorded: dict[str, str] = field(default_factory=lambda: dict(ELSEWHERE))
    """What Terraform's state remembers, until a run applies."""
    environment: dict[str, str] = field(default_factory=dict)
    """Other variables of the user's shell."""
    nodes_pull: bool = True
    """``--nodes-pull``: Nodes can pull from Artifact Registry."""

    def run(self, *arguments: str, answer: str = "", path: str | None = None) -> Ran:
        """Run deploy.sh; ``answer`` is typed in."""
        flags = ["--dir", str(self.folder), *(["--nodes-pull"] if self.nodes_pull else [])]
        return self.run_as_given(*flags, *arguments, answer=answer, path=path)

    def run_as_given(self, *arguments: str, answer: str = "", path: str | None = None) -> Ran:
        """Run deploy.sh with these arguments only."""
        return self._run(["./deploy.sh", *arguments], answer, path)

    def run_shell(self, text: str) -> Ran:
        """Run the commands of a page."""
        return self._run(["bash", "-euo", "pipefail", "-c", text], "", None)

    def secret(self, name: str) -> str:
        """Return the data that was written to a secret of Secret Manager by ``--data-file=-``."""
        return (self.tree / "secrets" / name).read_text()

    def _run(self, command: list[str], answer: str, path: str | None) -> Ran:
        calls = self.tree / "calls"
        calls.write_text("")
        kept = self.tree / "state"
        recorded = json.loads(kept.read_text()) if kept.exists() else self.recorded
        outputs = [(f"output -raw {name}$", it, 0) for name, it in asdict(self.outputs).items()]
        for name, resource in (
            ("installation_id", "installation"),
            ("cluster_identity", "cluster"),
        ):
            shown = f'    id     = "1"\n    output = "{recorded[name]}"\n'
            outputs.append((f"state show -no-color terraform_data.{resource}$", shown, 0))
        relay = {"PUBSUB_PROJECT": PROJECT, "TOPIC_PREFIX": f"{self.settings.prefix}-"}
        of_relay = json.dumps(relay, separators=(",", ":"))
        outputs.append(("output -json relay_settings$", of_relay, 0))
        answers = {
            "gcloud": [*self.gcloud, *GCLOUD],
            "terraform": [
                *self.terraform,
                ("console", self.settings.console_output(), 0),
                *([HAS_STATE] if kept.exists() else []),
                *TERRAFORM,
                *outputs,
            ],
            "kubectl": self.kubectl,
            "helm": self.helm,
            "docker": self.docker,
            "sleep": self.sleep,
        }
        (self.tree / "answers").write_text(json.dumps(answers))
        search_path = f"{self.tree / 'bin'}{os.pathsep}{os.defpath}"
        done = subprocess.run(
            command,
            cwd=self.tree,
            env={
                "PATH": search_path if path is None else path,
                "HOME": str(self.tree),
                "KUBECONFIG": str(self.plane.kubeconfig),
                "CALLS": str(calls),
                "ANSWERS": str(self.tree / "answers"),
                "SECRETS": str(self.tree / "secrets"),
                "STATE": str(kept),
                "REAL": json.dumps(
                    {
                        "kubectl": str(self.plane.kubectl),
                        "helm": str(HELM),
                        "sleep": str(shutil.which("sleep")),
                    }
                ),
                "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER": self.permissions_url,
                **self.environment,
            },
            input=answer,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=240,
        )
        assert TOKEN not in done.stdout
        output, called = (
            text.replace(str(self.folder), "DIR") for text in (done.stdout, calls.read_text())
        )
        return Ran(done.returncode, output, called.splitlines())


@contextmanager
def installer(
    directory: Path,
    plane: ControlPlane,
    outputs: Outputs = KUBECONFIGS,
    unpacked: Path | None = None,
) -> Iterator[Installer]:
    """deploy.sh for the cluster ``prod``, with its settings and the simulated tools.

    ``unpacked``: a folder with the files of a release, instead of a copy of what deploy.sh needs.
    """
    tree = unpacked or directory / "tree"
    if unpacked is None:
        for part in ("infra", "relay", "shared"):
            shutil.copytree(ROOT / part, tree / part)
        for name in ("deploy.sh", "CHANGELOG.md"):
            shutil.copy(ROOT / name, tree)
    settings = directory / "settings"
    settings.mkdir()
    (settings / "prod.tfvars").write_text(f'project_id = "{PROJECT}"\n')
    (settings / "backend.tf").write_text(LOCAL_STATE)
    (tree / "bin").mkdir()
    (tree / "secrets").mkdir()
    script = (Path(__file__).parent / "stand_in.py").read_text()
    # Without site-packages it starts in less time, and a run starts it a hundred times.
    script = script.replace("#!/usr/bin/env python3", f"#!{sys.executable} -IS", 1)
    for name in ("docker", "gcloud", "helm", "kubectl", "sleep", "terraform"):
        (tree / "bin" / name).write_text(script)
        (tree / "bin" / name).chmod(0o755)
    made = Installer(tree, settings, plane, "", outputs)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requested = json.loads(self.rfile.read(int(self.headers["Content-Length"])))[
                "permissions"
            ]
            assert self.headers["Authorization"] == f"Bearer {TOKEN}"
            granted = [one for one in requested if one not in made.lacking]
            body = json.dumps({"permissions": granted}).encode()
            self.send_response(400 if made.unknown & set(requested) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made.permissions_url = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def with_terraform(folder: Path, plane: ControlPlane) -> Iterator[Installer]:
    """deploy.sh with the real Terraform, and of the module only the variables and the identity."""
    program = shutil.which("terraform")
    if program is None:
        miss("there is no terraform here")
    with installer(folder, plane) as made:
        for path in (made.tree / "infra" / "terraform").glob("*.tf"):
            if path.name not in ("variables.tf", "identity.tf"):
                path.unlink()
        (made.tree / "bin" / "terraform").unlink()
        (made.tree / "bin" / "terraform").symlink_to(program)
        made.gcloud = [("secrets versions list", "1", 0)]
        yield made


@contextmanager
def simulated_kubelet(plane: ControlPlane) -> Iterator[None]:
    """A Node whose Pods are Ready once bound with existing Secrets; deleted Pods are removed."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "control-plane"},
        "spec": {},
    }
    plane.request("POST", "/api/v1/nodes", node)
    resources = {"cpu": "8", "memory": "32Gi", "pods": "100"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    merge = "application/merge-patch+json"
    is_over = threading.Event()

    def exists(secret: str) -> bool:
        path = f"/api/v1/namespaces/tpu-functions/secrets/{secret}"
        return plane.request("GET", path)[0] == 200

    def report() -> None:
        """Without heartbeats, the Node controller taints the Node after 50 s, and evicts its Pods."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [{**ready, "lastHeartbeatTime": now}]
        status = {"capacity": resources, "allocatable": resources, "conditions": conditions}
        plane.request("PATCH", "/api/v1/nodes/control-plane/status", {"status": status}, merge)
        plane.request("PATCH", "/api/v1/nodes/control-plane", {"spec": {"taints": []}}, merge)

    report()

    def simulate() -> None:
        while not is_over.wait(0.3):
            report()
            _, listed = plane.request("GET", "/api/v1/namespaces/tpu-functions/pods")
            for pod in listed["items"]:
                path = f"/api/v1/namespaces/tpu-functions/pods/{pod['metadata']['name']}"
                if pod["metadata"].get("deletionTimestamp"):
                    plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
                elif is_bound(pod) and all(map(exists, secrets_of(pod))):
                    running = {"status": {"phase": "Running", "conditions": [ready]}}
                    plane.request("PATCH", f"{path}/status", running, merge)

    simulation = threading.Thread(target=simulate)
    simulation.start()
    try:
        yield
    finally:
        is_over.set()
        simulation.join()
        plane.request("DELETE", "/api/v1/nodes/control-plane")


def is_bound(pod: Mapping[str, Any]) -> bool:
    """Return whether a Pod is bound to a Node but not yet started."""
    return "nodeName" in pod["spec"] and pod["status"]["phase"] == "Pending"


def secrets_of(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield the Secrets that must exist before a kubelet starts a Pod."""
    for volume in pod["spec"].get("volumes", ()):
        if "secret" in volume:
            yield volume["secret"]["secretName"]
