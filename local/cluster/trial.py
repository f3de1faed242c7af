"""Tries whether VMs can join a cluster: joins as kubeadm does, up to the kubelet's certificate."""

from __future__ import annotations

import asyncio
import secrets
import string
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from local.base.clock import LoopClock
from local.base.cluster_client import ClusterClient, Document
from local.cluster.leftovers import TOKENS
from local.cluster.manifests import LABEL, LABEL_VALUE, item_path
from local.cluster.removal import CSRS, node_of
from local.vm.agents import Boot
from local.vm.conversation import Identity
from local.vm.kubeadm import JoinConfiguration, JoinFailed, join, public_key_pin
from local.vm.kubelet import Node
from local.vm.transport import Network

TRIAL_NODE = "tng-trial"
_GROUP = "system:bootstrappers:tpu-functions"
_WITHIN_S = 20.0
_POLL_S = 0.2
_ROOT_CA = "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt"
_ALPHABET = string.ascii_lowercase + string.digits


async def try_to_join(client: ClusterClient, server: str, network: Network) -> None:
    """Join with a bootstrap token of the run; remove the token and the signing request again.

    The manifests must be applied: they let holders of such a token join. Raises `JoinFailed` with the
    message of kubeadm, and `local.base.cluster_client.Refused`.
    """
    token = f"{_draw(6)}.{_draw(16)}"
    secret = await client.create(TOKENS, _token_manifest(token))
    approving = asyncio.create_task(_approve(client))
    try:
        root = await client.find(_ROOT_CA)
        if root is None:
            raise JoinFailed("there is no ConfigMap kube-root-ca.crt in kube-system")
        pins = (public_key_pin(root["data"]["ca.crt"]),)
        endpoint = urlsplit(server).netloc
        await _join(
            JoinConfiguration(endpoint, token, pins, Node(TRIAL_NODE), 0.0, _WITHIN_S), network
        )
    finally:
        approving.cancel()
        await asyncio.gather(approving, return_exceptions=True)
        await client.delete(item_path(TOKENS, secret), secret["metadata"]["uid"])
        for request in await _list_requests(client):
            await client.delete(item_path(CSRS, request), request["metadata"]["uid"])


async def _join(configuration: JoinConfiguration, network: Network) -> None:
    """Join, again and again for a time: the cluster learns of token and permissions a little later."""
    loop = asyncio.get_running_loop()
    clock = LoopClock(loop)
    deadline = loop.time() + _WITHIN_S
    while True:
        joined: asyncio.Future[Identity] = loop.create_future()
        boot = Boot(clock, network)
        boot.converse(join(configuration, clock.now), joined.set_result, joined.set_exception)
        try:
            await joined
            return
        except JoinFailed:
            if loop.time() > deadline:
                raise
        finally:
            boot.end()
        await asyncio.sleep(_POLL_S)


async def _approve(client: ClusterClient) -> None:
    """Approve the requests of the trial, unless the cluster's own approver is faster."""
    while True:
        for request in await _list_requests(client):
            if not request.get("status", {}).get("conditions"):
                approval = {"type": "Approved", "status": "True", "reason": "TrialJoin"}
                request["status"] = {"conditions": [approval]}
                await client.request("PUT", f"{item_path(CSRS, request)}/approval", request)
        await asyncio.sleep(_POLL_S)


async def _list_requests(client: ClusterClient) -> list[Document]:
    return [one for one in await client.list(CSRS) if node_of(one) == TRIAL_NODE]


def _draw(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _token_manifest(token: str) -> Document:
    token_id, _, secret = token.partition(".")
    expires = datetime.now(UTC) + timedelta(minutes=5)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": f"bootstrap-token-{token_id}", "labels": {LABEL: LABEL_VALUE}},
        "stringData": {
            "token-id": token_id,
            "token-secret": secret,
            "expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": _GROUP,
        },
    }
