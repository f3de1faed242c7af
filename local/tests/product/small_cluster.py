"""A cluster with a kubeconfig: the embedded API, where each request takes a second."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from local import kube
from local.base.access import Access
from local.base.clock import VirtualClock
from local.base.cluster_client import ClusterClient
from local.base.http import Request, Response
from local.base.web import serve
from local.cluster.manifests import LABEL, LABEL_VALUE, collection_path

Manifest = dict[str, Any]
OURS = {LABEL: LABEL_VALUE}
_JOINING = ("system:authenticated", "system:bootstrappers:kubeadm:default-node-token")
USERS = {
    "admin": kube.ADMIN,
    "guest": kube.User("guest", _JOINING),
    "vm": kube.User("vm", (*_JOINING, "system:bootstrappers:tpu-functions")),
}
"""The users of the cluster, by token."""


class SmallCluster:
    """The API of a cluster. ``client`` is the administrator's."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.url = ""
        self.ca_pem = ""
        self.client: ClusterClient
        self._clock = VirtualClock()
        self._api = kube.KubeApi(
            self._clock,
            random=Random(1),
            tokens=USERS,
            options=kube.ClusterOptions(node_grace_s=86400.0),
        )

    def handle(self, request: Request) -> Response:
        """Answer a request, and advance the clock by a second."""
        response = self._api.handle(request)
        self._clock.run_for(1.0)
        return response

    def client_of(self, token: str) -> ClusterClient:
        """Return a client of a user, as a context manager."""
        return ClusterClient(Access(self.url, self.ca_pem, lambda: f"Bearer {token}"))

    async def create(self, *manifests: Manifest) -> None:
        """Create objects unchanged."""
        for manifest in manifests:
            await self.client.create(collection_path(manifest), manifest)

    async def list_names(self, *paths: str) -> list[str]:
        """Return the names of the objects in these lists."""
        return [one["metadata"]["name"] for path in paths for one in await self.client.list(path)]


@asynccontextmanager
async def open_cluster(folder: Path) -> AsyncIterator[SmallCluster]:
    """Serve a cluster within the context."""
    cluster = SmallCluster(folder)
    now = datetime.now(UTC)
    authority = kube.CertificateAuthority.create(now)
    runner, port = await serve(cluster, tls=authority.server_context(["127.0.0.1"], now))
    cluster.url, cluster.ca_pem = f"https://127.0.0.1:{port}", authority.certificate_pem
    content = kube.kubeconfig(cluster.url, cluster.ca_pem, "admin")
    cluster.kubeconfig.write_text(json.dumps(content))
    async with cluster.client_of("admin") as cluster.client:
        yield cluster
    await runner.cleanup()


def manifest(kind: str, name: str, version: str = "v1", **content: Any) -> Manifest:
    """Build an object; ``namespace`` and ``labels`` belong to its metadata."""
    metadata = {key: content.pop(key) for key in ("namespace", "labels") if key in content}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, **content}


def claim(process: str = "process 1 on elsewhere") -> Manifest:
    """Build the namespace of a run."""
    namespace = manifest("Namespace", "tpu-functions", labels=OURS)
    namespace["metadata"]["annotations"] = {"tpu-functions.dev/local-run": process}
    return namespace
