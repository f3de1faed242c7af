"""The relay with the embedded Kubernetes API and the permissions that the manifests grant."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml
from aiohttp import web

from local.base.clock import LoopClock
from local.base.http import Request
from local.base.web import serve
from local.kube import ADMIN, KubeApi
from local.kube.options import ClusterOptions
from local.kube.users import ALL_AUTHENTICATED, User
from shared.base.names import FINALIZER, GROUP, PLURAL, RESOURCE_NAME_LABEL
from tests.unit.relay.objects import RESOURCE_NAME, Raw
from tests.unit.relay.scripted_api import NODES, write_kubeconfig
from tests.unit.relay.test_daemon import TIMEOUT_S, Recorder, relaying

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "infra" / "kubernetes" / "base"
RELAY = User("system:serviceaccount:tpu-functions:relay", (ALL_AUTHENTICATED,))
NAMESPACED = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NOT_DEFINED = (
    "TPUNodeGroup: 404: the API server does not know"
    " /apis/tpu.google.com/v1alpha1/tpunodegroups; its CustomResourceDefinition must be applied"
)
HISTORY = 20
NODE: Raw = {"apiVersion": "v1", "kind": "Node"}

EXAMPLE: Raw = {
    "apiVersion": "tpu.google.com/v1alpha1",
    "kind": "TPUNodeGroup",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": next(
        document["spec"]
        for path in sorted((ROOT / "examples").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document["kind"] == "TPUNodeGroup"
    ),
}


@dataclass
class Cluster:
    """An embedded API behind a port that can be closed and opened."""

    api: KubeApi
    port: int = 0
    runner: web.AppRunner | None = None

    async def open(self) -> None:
        self.runner, self.port = await serve(self.api, port=self.port)

    async def close(self) -> None:
        assert self.runner is not None
        await self.runner.cleanup()

    def call(self, method: str, path: str, body: Raw, content_type: str = "json") -> Raw:
        """Call the API as the cluster's admin; return the answer. Fails on an error."""
        headers = {
            "authorization": "Bearer admin",
            "content-type": f"application/{content_type}",
            "accept": "application/json",
        }
        request = Request.of(method, path, headers=headers, body=json.dumps(body))
        response = self.api.handle(request)
        assert response.status < 300, response.body.decode()
        answer: Raw = response.json()
        return answer

    def patch(self, path: str, patch: Raw) -> Raw:
        return self.call("PATCH", path, patch, "merge-patch+json")


def relay_manifests() -> list[dict[str, Any]]:
    """The CRD, the namespace, and the permissions of the relay."""
    permissions = yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text())
    return [
        yaml.safe_load((MANIFESTS / "crd.yaml").read_text()),
        yaml.safe_load((MANIFESTS / "namespace.yaml").read_text()),
        *(
            one
            for one in permissions
            if one["metadata"]["name"] in ("relay", "tpu-functions-relay")
        ),
    ]


@asynccontextmanager
async def embedded() -> AsyncIterator[Cluster]:
    """A cluster with the CRD and the permissions of the relay."""
    clock = LoopClock(asyncio.get_running_loop())
    users = {"admin": ADMIN, "relay": RELAY}
    api = KubeApi(clock, random=Random(0), tokens=users, options=ClusterOptions(history=HISTORY))
    api.apply_manifests(relay_manifests())
    cluster = Cluster(api)
    await cluster.open()
    try:
        yield cluster
    finally:
        await cluster.close()


def test_the_messages_about_a_group_have_the_clusters_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        recorder = Recorder()
        async with embedded() as cluster:
            kubeconfig = write_kubeconfig(tmp_path / "k", cluster.port, "relay")
            async with relaying(kubeconfig, recorder, cluster_id=""):
                cluster.call("POST", NAMESPACED, EXAMPLE)
                assert await recorder.next() == ("create_resources", "train", "")
                ownership = {
                    "labels": {RESOURCE_NAME_LABEL: RESOURCE_NAME},
                    "finalizers": [FINALIZER],
                }
                cluster.patch(f"{NAMESPACED}/train", {"metadata": ownership})
                name = f"{RESOURCE_NAME}-ab12"
                cluster.call("POST", NODES, {**NODE, "metadata": {"name": name}})
                assert await recorder.next() == ("label_node", "train", name)
                cluster.call("DELETE", f"{NAMESPACED}/train", {})
                assert await recorder.next() == ("tear_down", "train", "")
            system = cluster.call("GET", "/api/v1/namespaces/kube-system", {})
            assert recorder.cluster_ids == {system["metadata"]["uid"]}

    asyncio.run(scenario())


def test_readyz_names_a_deleted_crd_until_it_exists_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        recorder = Recorder()
        async with embedded() as cluster:
            kubeconfig = write_kubeconfig(tmp_path / "k", cluster.port, "relay")
            async with relaying(kubeconfig, recorder) as (relay, _, _):
                cluster.call("POST", NAMESPACED, EXAMPLE)
                assert await recorder.next() == ("create_resources", "train", "")
                cluster.call("DELETE", f"{DEFINITIONS}/{PLURAL}.{GROUP}", {})
                await until(lambda: relay.health.list_not_ready() == [NOT_DEFINED])
                assert relay.health.list_stuck() == []
                cluster.call("POST", DEFINITIONS, relay_manifests()[0])
                await until(lambda: relay.health.list_not_ready() == [])
                cluster.call("POST", NAMESPACED, EXAMPLE)
                assert await recorder.next() == ("create_resources", "train", "")

    asyncio.run(scenario())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0)


def test_a_version_that_has_expired_causes_a_list_that_reports_only_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        recorder = Recorder()
        async with embedded() as cluster:
            cluster.call("POST", NAMESPACED, EXAMPLE)
            kubeconfig = write_kubeconfig(tmp_path / "k", cluster.port, "relay")
            async with relaying(kubeconfig, recorder):
                assert await recorder.next() == ("create_resources", "train", "")
                await cluster.close()
                for number in range(HISTORY + 5):
                    note = {"metadata": {"annotations": {"example.com/note": str(number)}}}
                    cluster.patch(f"{NAMESPACED}/train", note)
                second = {**EXAMPLE, "metadata": {"name": "second", "namespace": "default"}}
                cluster.call("POST", NAMESPACED, second)
                await cluster.open()
                assert await recorder.next() == ("create_resources", "second", "")
            assert recorder.attempts.qsize() == 2

    asyncio.run(scenario())
