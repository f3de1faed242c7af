"""The cluster of a supervisor: the embedded one, or one that the user names (`local.cluster.named`)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Protocol

from local import kube
from local.base.access import Access
from local.base.clock import Clock
from local.base.cluster_client import ClusterClient
from local.base.http import Request, Response
from local.base.ports import LOOPBACK, check_port
from local.base.web import serve
from local.cluster.credentials import ADMIN, Credentials, write_private
from local.cluster.manifests import (
    Manifest,
    read_manifests,
    read_webhook_configuration,
)
from local.cluster.webhooks import Webhooks
from local.jobsets import Controller
from local.vm.conversation import Bearer, Identity
from local.vm.transport import InProcess, Network

KUBECONFIG = "kubeconfig"


class ClusterUnusable(Exception):
    """A cluster cannot be used or cleaned up; the message says what to do."""


class Cluster(Protocol):
    """The cluster of a supervisor, which calls the methods in this order."""

    network: Network
    """The network between VMs and API server."""
    controllers: frozenset[Controller]
    """The controllers that must be simulated; known after `start`."""
    selector: str
    """The label selector of the JobSets, Jobs and Pods that these controllers handle; empty for all."""
    calls_webhooks: bool
    """Whether its API server can call webhooks on this machine."""

    async def check(self) -> None:
        """Check without a change. Raises `ClusterUnusable` with the first obstacle."""

    async def start(self, stack: AsyncExitStack) -> None:
        """Apply the manifests and create the identities; ``stack`` removes them."""

    async def call_webhooks(self, url: str, ca_pem: str) -> None:
        """Call the product's webhooks at ``url``, whose certificate this CA has issued."""

    def identify(self) -> Identity:
        """The identity of the kubelet of a VM with a custom image."""

    @property
    def url(self) -> str:
        """The URL of its API."""

    def client(self) -> ClusterClient:
        """A client as the cluster's administrator; a context manager."""

    def kubeconfig_of(self, name: str) -> Path:
        """The kubeconfig of an identity: the administrator's, a step's (with dashes), the relay's."""


class EmbeddedCluster:
    """The embedded API in this process, behind TLS."""

    def __init__(
        self,
        clock: Clock,
        credentials: Credentials,
        identities: Iterable[str],
        directory: Path,
        port: int,
        manifests: Iterable[Manifest] = (),
    ) -> None:
        """``port`` 0 is any free one. ``manifests`` are applied in addition to those of the base."""
        self._manifests = tuple(manifests)
        self._clock = clock
        self._credentials = credentials
        self._identities = identities
        self._directory = directory
        self._port = port
        self._url = ""
        self.controllers = frozenset(Controller)
        self.selector = ""
        self.calls_webhooks = True
        self.has_outage = False
        """Whether requests get 503, except those of the administrator and of VMs. May be changed."""
        self._api = kube.KubeApi(
            clock,
            random=Random(secrets.randbits(64)),
            ca=credentials.ca,
            tokens=credentials.users(),
        )
        self.network: Network = InProcess(self._api)
        self._webhooks: Webhooks | None = None

    @property
    def url(self) -> str:
        return self._url

    async def check(self) -> None:
        if self._port:
            check_port(self._port, "--port")

    async def start(self, stack: AsyncExitStack) -> None:
        self._api.apply_manifests([*read_manifests(), *self._manifests])
        tls = self._credentials.ca.server_context(("localhost", LOOPBACK), self._clock.now())
        runner, port = await serve(
            self._api, host=LOOPBACK, port=self._port, tls=tls, admit=self._admit
        )
        stack.push_async_callback(runner.cleanup)
        self._url = f"https://{LOOPBACK}:{port}"
        self._api.advertise(self._url)
        for name in (ADMIN, *self._identities):
            write_private(self.kubeconfig_of(name), self._credentials.kubeconfig(self._url, name))

    async def call_webhooks(self, url: str, ca_pem: str) -> None:
        # The stand-in for JobSet's controller does the work of admit_jobs.
        self._webhooks = Webhooks(read_webhook_configuration(), url, ca_pem, self._labels_of)

    async def _admit(self, request: Request) -> Request | Response:
        token = f"Bearer {self._credentials.tokens[ADMIN]}"
        if self.has_outage and request.headers.get("authorization") != token:
            status = {"kind": "Status", "code": 503, "reason": "ServiceUnavailable"}
            return Response.of_json({**status, "message": "the server is unavailable"}, 503)
        return request if self._webhooks is None else await self._webhooks.admit(request)

    def _labels_of(self, namespace: str) -> Mapping[str, str]:
        token = {"Authorization": f"Bearer {self._credentials.tokens[ADMIN]}"}
        path = f"/api/v1/namespaces/{namespace}"
        found = self._api.handle(Request.of("GET", path, headers=token)).json()
        labels: Mapping[str, str] = found.get("metadata", {}).get("labels") or {}
        return labels

    def identify(self) -> Identity:
        ca, token = self._credentials.ca, self._credentials.tokens[ADMIN]
        return Identity(self._url, ca.certificate_pem, Bearer(token), impersonates=True)

    def client(self) -> ClusterClient:
        ca, token = self._credentials.ca, self._credentials.tokens[ADMIN]
        return ClusterClient(Access(self._url, ca.certificate_pem, lambda: f"Bearer {token}"))

    def kubeconfig_of(self, name: str) -> Path:
        return self._directory / (KUBECONFIG if name == ADMIN else f"{name}.{KUBECONFIG}")
