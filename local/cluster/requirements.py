"""What a cluster must have so that VMs can join it as kubeadm joins them, checked all at once.

Where a look is enough, there is only a look. That tokens are honoured and certificates signed shows
in a trial: a bootstrap token and a signing request, both labelled, removed right afterwards.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import string
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import yaml

from local.base.access import Access, decode
from local.base.cluster_client import ClusterClient, Document, Refused
from local.cluster.leftovers import TOKENS
from local.cluster.manifests import LABEL, LABEL_VALUE
from local.cluster.node_certificates import NotSigned, request_certificate
from local.vm.kubeadm import public_key_pin

OLDEST_MINOR = 30
TRIAL_NODE = "tng-trial"
_TRIAL_S = 15.0
_POLL_S = 0.2
_CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
_KUBE_SYSTEM = "/api/v1/namespaces/kube-system/configmaps"
_REVIEWS = "/apis/authorization.k8s.io/v1"
_BOOTSTRAP_TOKEN = "kubeadm init phase bootstrap-token"
_UPLOAD_CONFIG = "kubeadm init phase upload-config all"


@dataclass(frozen=True)
class UnmetRequirement:
    """What is missing, and what would be right."""

    what: str
    right: str


async def check_user(client: ClusterClient) -> Sequence[UnmetRequirement]:
    """What must be right before anything else can be asked. Raises as `check_cluster` does."""
    return [*await _check_version(client), *await _check_administrator(client)]


async def check_cluster(client: ClusterClient, access: Access) -> Sequence[UnmetRequirement]:
    """All that is missing. Raises `aiohttp.ClientError` or `TimeoutError` when nobody answers."""
    looks = await asyncio.gather(
        _check_cluster_info(client, access), _check_configmaps(client), _check_kubelets(client)
    )
    async with _trial_token(client) as token:
        trials = await asyncio.gather(
            _check_token(access, token), _check_signer(client, token), _check_signing(client)
        )
    return [one for found in (*looks, *trials) for one in found]


async def _check_version(client: ClusterClient) -> Sequence[UnmetRequirement]:
    code, version = await client.request("GET", "/version")
    if code != 200:
        what = f"the API server answers {code} to who asks for its version"
        return [UnmetRequirement(what, "the kubeconfig of a user that the cluster knows")]
    minor = int("".join(filter(str.isdigit, version["minor"])))
    if (int(version["major"]), minor) >= (1, OLDEST_MINOR):
        return []
    right = f"Kubernetes 1.{OLDEST_MINOR} or newer, for ValidatingAdmissionPolicies"
    return [UnmetRequirement(f"the cluster is {version['gitVersion']}", right)]


async def _check_administrator(client: ClusterClient) -> Sequence[UnmetRequirement]:
    wanted = {"verb": "*", "group": "*", "resource": "*"}
    review = {"spec": {"resourceAttributes": wanted}}
    code, answer = await client.request("POST", f"{_REVIEWS}/selfsubjectaccessreviews", review)
    right = "a user that is bound to cluster-admin: a CRD and ClusterRoles are applied"
    if code != 201:
        return [
            UnmetRequirement(f"the API server does not know the kubeconfig's user ({code})", right)
        ]
    if not answer["status"]["allowed"]:
        return [UnmetRequirement("the kubeconfig's user is not the cluster's administrator", right)]
    return []


async def _check_cluster_info(client: ClusterClient, access: Access) -> Sequence[UnmetRequirement]:
    info = await client.find(_CLUSTER_INFO)
    if info is None or "kubeconfig" not in info.get("data", {}):
        what = "there is no ConfigMap cluster-info in kube-public, by which VMs find the cluster"
        return [UnmetRequirement(what, f"{_BOOTSTRAP_TOKEN} (it is made along with it)")]
    async with ClusterClient(access.anonymous()) as nobody:
        code, _ = await nobody.request("GET", _CLUSTER_INFO)
    if code != 200:
        what = f"who has not joined yet may not read kube-public/cluster-info (it says {code})"
        right = f"anonymous authentication for it in kube-apiserver, and {_BOOTSTRAP_TOKEN}"
        return [UnmetRequirement(what, right)]
    return await _check_ca(client, access, info["data"]["kubeconfig"])


async def _check_ca(
    client: ClusterClient, access: Access, kubeconfig: str
) -> Sequence[UnmetRequirement]:
    cluster = yaml.safe_load(kubeconfig)["clusters"][0]["cluster"]
    ca_pem = decode(cluster["certificate-authority-data"])
    try:
        async with ClusterClient(access.trusting(ca_pem)) as nobody:
            await nobody.request("GET", "/version")
    except (aiohttp.ClientConnectorCertificateError, ssl.SSLError):
        what = f"the CA in kube-public/cluster-info has not signed what {access.server} shows"
        return [
            UnmetRequirement(what, "a kubeconfig with the server that joining VMs are to reach")
        ]
    root = await client.find(f"{_KUBE_SYSTEM}/kube-root-ca.crt")
    if root is None:
        what = (
            "there is no ConfigMap kube-root-ca.crt in kube-system, from which VMs get the CA's pin"
        )
        return [
            UnmetRequirement(
                what, "kube-controller-manager with root-ca-certificate-publisher-controller"
            )
        ]
    if public_key_pin(root["data"]["ca.crt"]) != public_key_pin(ca_pem):
        what = "kube-system/kube-root-ca.crt and kube-public/cluster-info name different CAs"
        return [
            UnmetRequirement(
                what, "the cluster's CA in both: VMs are told the one and meet the other"
            )
        ]
    return []


async def _check_configmaps(client: ClusterClient) -> Sequence[UnmetRequirement]:
    unmet = []
    for name in ("kubeadm-config", "kubelet-config"):
        if await client.find(f"{_KUBE_SYSTEM}/{name}") is None:
            what = f"there is no ConfigMap {name} in kube-system, which kubeadm join reads"
            unmet.append(UnmetRequirement(what, _UPLOAD_CONFIG))
    return unmet


async def _check_kubelets(client: ClusterClient) -> Sequence[UnmetRequirement]:
    """What holders of join tokens may do, the installation brings; what kubelets may do, the cluster."""
    spec = {
        "user": f"system:node:{TRIAL_NODE}",
        "groups": ["system:nodes", "system:authenticated"],
        "resourceAttributes": {"verb": "create", "group": "", "resource": "nodes"},
    }
    answer = await client.create(f"{_REVIEWS}/subjectaccessreviews", {"spec": spec})
    if answer["status"]["allowed"]:
        return []
    right = "kube-apiserver --authorization-mode=Node,RBAC"
    return [UnmetRequirement("kubelets may not register their Nodes", right)]


# --- the trial ---


@asynccontextmanager
async def _trial_token(client: ClusterClient) -> Any:
    token_id, secret = _draw(6), _draw(16)
    made = await client.create(TOKENS, _token_manifest(token_id, secret))
    try:
        yield f"{token_id}.{secret}"
    finally:
        await client.delete(f"{TOKENS}/{made['metadata']['name']}", made["metadata"]["uid"])


def _draw(length: int) -> str:
    alphabet = string.ascii_lowercase + string.digits
    return "".join(secrets.choice(alphabet) for _ in range(length))


def _token_manifest(token_id: str, secret: str) -> Document:
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
        },
    }


async def _check_token(access: Access, token: str) -> Sequence[UnmetRequirement]:
    async with ClusterClient(access.with_token(token)) as joining:

        async def is_known() -> bool:
            path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
            return (await joining.request("POST", path, {}))[0] != 401

        if await _becomes_true(is_known):
            return []
    right = "kube-apiserver --enable-bootstrap-token-auth"
    return [UnmetRequirement("bootstrap tokens are not honoured", right)]


async def _check_signer(client: ClusterClient, token: str) -> Sequence[UnmetRequirement]:
    key = f"jws-kubeconfig-{token.partition('.')[0]}"

    async def is_signed() -> bool:
        info = await client.find(_CLUSTER_INFO)
        return info is None or key in info.get("data", {})  # that there is none is told elsewhere

    if await _becomes_true(is_signed):
        return []
    what = "kube-public/cluster-info is not signed for a new bootstrap token"
    return [
        UnmetRequirement(
            what, "kube-controller-manager --controllers=*,bootstrapsigner,tokencleaner"
        )
    ]


async def _check_signing(client: ClusterClient) -> Sequence[UnmetRequirement]:
    try:
        await request_certificate(client, TRIAL_NODE, _TRIAL_S)
    except (NotSigned, Refused) as error:
        right = "kube-controller-manager with --cluster-signing-cert-file and -key-file of the CA"
        return [UnmetRequirement(f"kubelets get no certificate: {error}", right)]
    return []


async def _becomes_true(condition: Callable[[], Awaitable[bool]]) -> bool:
    deadline = asyncio.get_running_loop().time() + _TRIAL_S
    while not await condition():
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True
