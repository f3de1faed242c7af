# ruff: noqa: E501  (a table reads best with a row on a line)
"""A cluster with its token-writer, its secrets and functions, on a virtual clock."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from google.oauth2.credentials import Credentials

from local.base.clock import VirtualClock
from local.base.http import Request
from local.base.ports import LOOPBACK
from local.cloud.secret_manager import SecretManager as Secrets
from local.cluster.manifests import BASE, read_manifests
from local.kube import CertificateAuthority, ClusterOptions, KubeApi, User
from relay.tokens.writer import SecretManager, TokenWriter
from shared.ports.errors import CallError
from shared.ports.google_credentials import GoogleCredentials
from shared.ports.kubernetes.access import AccessError
from shared.ports.kubernetes.access_settings import AccountToken
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from tests.support.loopback import Loopback, kubeconfig

MANIFESTS = read_manifests((*BASE, "token-writer"))
STEPS = ("sweep", "label-node")
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLACEHOLDER = b"the token-writer has not run yet"
AUDIENCE = "https://kubernetes.default.svc.cluster.local"

DENIED = "ValidatingAdmissionPolicy 'tpu-functions-account-tokens' with binding 'tpu-functions-account-tokens' denied request: "
BOUND = {"apiVersion": "v1", "kind": "Secret", "name": "s"}
POLICY: dict[str, tuple[str, dict[str, Any], str]] = {
    "as the token-writer does": ("sweep", {"expirationSeconds": 43200}, ""),
    "for the API server by name": ("sweep", {"audiences": [AUDIENCE]}, ""),
    "for longer": (
        "sweep",
        {"expirationSeconds": 43201},
        "the token-writer may only mint tokens for at most twelve hours",
    ),
    "for another system": (
        "sweep",
        {"audiences": ["vault"]},
        f"the token-writer may only mint tokens for the API server, whose audience here is {AUDIENCE}",
    ),
    "for another system, too": (
        "sweep",
        {"audiences": [AUDIENCE, "vault"]},
        f"the token-writer may only mint tokens for the API server, whose audience here is {AUDIENCE}",
    ),
    "bound to an object": (
        "sweep",
        {"boundObjectRef": BOUND},
        "the token-writer may only mint tokens that are bound to no object",
    ),
}
"""The account and the spec of a request of the token-writer, and why the policy denies it."""


class WriterCredentials(Credentials):  # type: ignore[misc]
    """Google's credentials of the token-writer."""

    def refresh(self, _request: Any) -> None:
        """Fetch the same token again."""
        self.token = "writer"


@dataclass
class World:
    """A cluster, its secrets and the token-writer, whose process `restart` begins again."""

    loopback: Loopback
    clock: VirtualClock
    ca: CertificateAuthority
    api: KubeApi
    server: str
    secrets: Secrets
    endpoint: str
    folder: Path
    writer: TokenWriter = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, **settings: Any) -> None:
        """Begin a process of the token-writer, perhaps with other settings."""
        options: dict[str, Any] = {
            "server": self.server,
            "ca_pem": self.ca.certificate_pem,
            "secrets": {step: f"projects/p/secrets/tokens-{step}" for step in STEPS},
            "kubeconfig": str(self.folder / "kubeconfig"),
            "manager": SecretManager(
                self.endpoint, credentials=GoogleCredentials(lambda: WriterCredentials("writer"))
            ),
            "now": self.clock.now,
        }
        self.writer = TokenWriter(**options | settings)
        self.write_kubeconfig(self.ca.certificate_pem)

    def write_kubeconfig(self, ca_pem: str) -> None:
        """Write the token-writer's access, which trusts this CA."""
        own = self.mint("token-writer", expirationSeconds=172_800)
        (self.folder / "kubeconfig").write_text(kubeconfig(self.server, ca_pem, own))

    def ask(self, method: str, path: str, body: Any = None, user: str = "admin") -> Any:
        """Send a request to the API server in process."""
        headers = {"authorization": f"Bearer {user}"}
        request = Request.of(method, path, headers=headers, body=json.dumps(body) if body else None)
        return self.loopback.call(lambda: self.api.handle(request)).json()

    def mint(
        self, account: str, user: str = "admin", namespace: str = "tpu-functions", **spec: Any
    ) -> str:
        """Return a token, or the message of the error."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.ask("POST", path, {"spec": spec}, user)
        return str(
            answer.get("status", {}).get("token")
            if answer["kind"] == "TokenRequest"
            else answer["message"]
        )

    def wait(self, time: timedelta) -> None:
        """Let time pass."""
        self.loopback.call(lambda: self.clock.run_for(time.total_seconds()))

    def run_round(self) -> dict[str, str]:
        """Run a round; return ``stored``, or the error, of each step that was not up to date."""
        return {
            one.step: "stored" if one.written else one.error
            for one in self.writer.run_round()
            if one.error or one.written
        }

    def run_for(self, time: timedelta) -> None:
        """Run rounds each five minutes, without a failure."""
        for _ in range(time // (5 * MINUTE)):
            self.wait(5 * MINUTE)
            assert not any(one.has_failed for one in self.writer.run_round())

    def states(self, step: str = "sweep") -> dict[int, str]:
        """Return the states of a step's versions."""
        return self.secrets.list_states(f"tokens-{step}")


@dataclass
class Function:
    """A process of a step, and its volume, which reads the newest version at each read."""

    world: World
    step: str = "sweep"

    def __post_init__(self) -> None:
        path = self.world.folder / f"volume-{self.step}"
        access = AccountToken(self.world.server, self.world.ca.certificate_pem, str(path))
        self.connection = Connection(access, now=self.world.clock.now)

    def call(self) -> str:
        """Call the API server; returns how that ended."""
        secret = self.world.secrets.secrets[f"tokens-{self.step}"]
        volume = self.world.folder / f"volume-{self.step}"
        volume.unlink(missing_ok=True)
        if secret[-1].state == "ENABLED":
            volume.write_bytes(secret[-1].payload)
        self.connection.constants.clear()
        try:
            Cluster(self.connection, self.step, lambda: 5.0).get_cluster_id()
        except (CallError, AccessError) as error:
            return str(getattr(error, "http", "no token"))
        return "ok"


def open_world(loopback: Loopback, folder: Path, ca: CertificateAuthority, **options: Any) -> World:
    """Return a cluster with the installed manifests, and the secrets that Terraform creates."""
    clock = VirtualClock()
    tokens = {"admin": User("admin", ("system:masters",))}

    def start() -> KubeApi:
        api = KubeApi(
            clock, random=Random(1), ca=ca, tokens=tokens, options=ClusterOptions(**options)
        )
        api.apply_manifests(MANIFESTS)
        return api

    api = loopback.call(start)
    port = loopback.serve(api, ca.server_context((LOOPBACK,), datetime.now(UTC)))
    secrets = Secrets(clock, "p")
    for step in STEPS:
        secrets.add(f"tokens-{step}", PLACEHOLDER)
        secrets.grant(
            "writer",
            f"tokens-{step}",
            *(f"versions.{one}" for one in ("add", "list", "destroy")),
        )
    endpoint = f"http://{LOOPBACK}:{loopback.serve(secrets)}"
    server = f"https://{LOOPBACK}:{port}"
    world = World(loopback, clock, ca, api, server, secrets, endpoint, folder)
    world.wait(timedelta(seconds=1))  # for the controllers
    return world
