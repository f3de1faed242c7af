"""A kubelet's certificate by an administrator, for a Node that joins by means of its owner's."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from local.base.access import decode
from local.base.cluster_client import ClusterClient, Document, Refused
from local.cluster.leftovers import CSRS
from local.cluster.manifests import LABEL, LABEL_VALUE
from local.vm.conversation import Certificate
from local.vm.kubeadm import signing_request

_POLL_S = 0.2


class NotSigned(Exception):
    """Nobody has signed a request in time."""


async def request_certificate(client: ClusterClient, node: str, within_s: float) -> Certificate:
    """Ask, approve, and wait for the certificate; the request itself is removed again.

    Raises `NotSigned` and `local.base.cluster_client.Refused`.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    body = signing_request(key, node)
    body["metadata"]["labels"] = {LABEL: LABEL_VALUE}
    made = await client.create(CSRS, body)
    path = f"{CSRS}/{made['metadata']['name']}"
    try:
        await _approve(client, path)
        issued = await _await_certificate(client, path, within_s)
    finally:
        await client.delete(path, made["metadata"]["uid"])
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(issued, private.decode())


async def _approve(client: ClusterClient, path: str) -> None:
    """Approve, unless the cluster's own approver has been faster."""
    while True:
        request = await client.find(path)
        if request is None or request.get("status", {}).get("conditions"):
            return
        request["status"] = {"conditions": [_approval()]}
        code, answer = await client.request("PUT", f"{path}/approval", request)
        if code == 200:
            return
        if code != 409:
            raise Refused(f"PUT {path}/approval", code, answer)


def _approval() -> Document:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": "Approved",
        "status": "True",
        "reason": "ApprovedByAdministrator",
        "message": "for a simulated VM with an image of its owner's",
        "lastUpdateTime": now,
        "lastTransitionTime": now,
    }


async def _await_certificate(client: ClusterClient, path: str, within_s: float) -> str:
    deadline = asyncio.get_running_loop().time() + within_s
    while asyncio.get_running_loop().time() < deadline:
        request = await client.find(path) or {}
        certificate = request.get("status", {}).get("certificate")
        if certificate:
            return decode(certificate)
        await asyncio.sleep(_POLL_S)
    raise NotSigned(f"a signing request that is approved is not signed within {within_s:g} seconds")
