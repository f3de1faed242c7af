"""``kubeadm join``, as a conversation with an API server.

The order of the calls, the checks and the error messages are kubeadm's, as documented for 1.28 to 1.34;
those about versions as in the source of 1.36. By the version skew policy a kubelet may be three minor
versions older than the API server, and not newer. Neither program enforces the policy: kubeadm rejects
what `_check_format` and `_check_version` do.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from local.base.http import Response
from local.vm.conversation import (
    RETRY_S,
    Anonymous,
    Api,
    Bearer,
    Certificate,
    Conversation,
    Identity,
    Now,
    Reply,
    Wait,
    message_of,
    status_of,
)
from local.vm.kubelet import Node, parse_labels

warnings.filterwarnings("ignore", "Attribute's length must be", UserWarning)


class JoinFailed(Exception):
    """kubeadm has failed; the text is its output."""


@dataclass(frozen=True)
class JoinConfiguration:
    """The content of a JoinConfiguration file. ``endpoint`` is ``host:port``."""

    endpoint: str
    token: str = field(repr=False)
    ca_hashes: tuple[str, ...]
    node: Node
    discovery_timeout_s: float = 300.0
    bootstrap_timeout_s: float = 300.0


_CERTIFICATE_POLL_S = 1.0
_DISCOVERY_FAILED = (
    "error execution phase preflight: couldn't validate the identity of the API Server: "
)
_CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
_CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def parse_join_configuration(text: str, *, chips: int = 0) -> JoinConfiguration:
    """Read a kubeadm JoinConfiguration, v1beta3 or v1beta4.

    Raises `JoinFailed` for anything else.
    """
    document = yaml.safe_load(text)
    readers = {
        "kubeadm.k8s.io/v1beta3": dict,
        "kubeadm.k8s.io/v1beta4": lambda args: {arg["name"]: arg["value"] for arg in args},
    }
    version = document.get("apiVersion")
    if version not in readers or document.get("kind") != "JoinConfiguration":
        raise JoinFailed(f"no kind JoinConfiguration is registered for version {version!r}")
    registration = document["nodeRegistration"]
    flags = readers[version](registration.get("kubeletExtraArgs") or {})
    discovery = document["discovery"]["bootstrapToken"]
    node = Node(
        name=registration["name"],
        provider_id=flags.get("provider-id", ""),
        labels=parse_labels(flags.get("node-labels", "")),
        taints=tuple(taint for taint in flags.get("register-with-taints", "").split(",") if taint),
        chips=chips,
    )
    return JoinConfiguration(
        discovery["apiServerEndpoint"],
        discovery["token"],
        tuple(discovery.get("caCertHashes") or ()),
        node,
    )


def join(configuration: JoinConfiguration, now: Now) -> Conversation[Identity]:
    """Join a worker, up to the kubelet's certificate. Raises `JoinFailed` as kubeadm would."""
    cluster = yield from _discover(configuration, now)
    bootstrap = Api(cluster.server, cluster.ca_pem, Bearer(configuration.token))
    yield from _fetch_configuration(bootstrap, _minor(configuration.node.kubelet_version))
    yield from _check_node_name(bootstrap, configuration.node.name)
    _check_labels(configuration.node.labels)
    timeout_s = configuration.bootstrap_timeout_s
    certificate = yield from _get_certificate(bootstrap, configuration.node.name, timeout_s, now)
    return Identity(cluster.server, cluster.ca_pem, certificate)


@dataclass(frozen=True)
class _Cluster:
    server: str
    ca_pem: str


def _discover(configuration: JoinConfiguration, now: Now) -> Conversation[_Cluster]:
    """Token-based discovery: trust the CA because the token signed it and the pin names it."""
    endpoint = f"https://{configuration.endpoint}"
    token_id = configuration.token.partition(".")[0]
    insecure = Api(endpoint, None, Anonymous())
    info = yield from _await_cluster_info(insecure, token_id, configuration, now)
    kubeconfig = info.get("kubeconfig", "")
    if not _is_signed(info[_jws_key(token_id)], kubeconfig, configuration.token):
        raise JoinFailed(
            _DISCOVERY_FAILED + "failed to verify JWS signature of received cluster info object,"
            " can't trust this API Server"
        )
    cluster = _parse_kubeconfig(kubeconfig)
    pin = public_key_pin(cluster.ca_pem)
    if configuration.ca_hashes and pin not in configuration.ca_hashes:
        raise JoinFailed(
            _DISCOVERY_FAILED + "cluster CA found in cluster-info ConfigMap is invalid:"
            f' none of the public keys "{pin}" are pinned'
        )
    secure = Api(endpoint, cluster.ca_pem, Anonymous())
    again = yield from _await_cluster_info(secure, token_id, configuration, now)
    if again.get("kubeconfig") != kubeconfig:
        raise JoinFailed(
            _DISCOVERY_FAILED
            + "the second kubeconfig from the cluster-info ConfigMap (using validated TLS)"
            " was different from the first"
        )
    return cluster


def _await_cluster_info(
    api: Api, token_id: str, configuration: JoinConfiguration, now: Now
) -> Conversation[dict[str, str]]:
    deadline = now() + timedelta(seconds=configuration.discovery_timeout_s)
    while True:
        reply = yield from api.get(_CLUSTER_INFO)
        data: dict[str, str] = {}
        if isinstance(reply, Response) and reply.status == 200:
            data = reply.json().get("data") or {}
            if _jws_key(token_id) in data:
                return data
            problem = (
                "could not find a JWS signature in the cluster-info ConfigMap"
                f' for token ID "{token_id}"'
            )
        else:
            problem = f"failed to request the cluster-info ConfigMap: {message_of(reply)}"
        if now() >= deadline:
            raise JoinFailed(_DISCOVERY_FAILED + problem)
        yield Wait(RETRY_S)


def _jws_key(token_id: str) -> str:
    return f"jws-kubeconfig-{token_id}"


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _is_signed(jws: str, payload: str, token: str) -> bool:
    """Whether a detached JWS (RFC 7515, appendix F) is an HMAC over ``payload`` by the token.

    The key is only the token's secret part, as in kube-controller-manager 1.36; the documentation of
    bootstrap tokens names the whole token.
    """
    header, _, signature = jws.partition("..")
    signed = f"{header}.{_base64url(payload.encode())}"
    secret = token.partition(".")[2]
    expected = hmac.new(secret.encode(), signed.encode(), hashlib.sha256).digest()
    return hmac.compare_digest(_base64url(expected), signature)


@lru_cache(maxsize=8)  # the VMs of a slice read the same kubeconfig
def _parse_kubeconfig(text: str) -> _Cluster:
    cluster = yaml.safe_load(text)["clusters"][0]["cluster"]
    ca_pem = base64.b64decode(cluster["certificate-authority-data"]).decode()
    return _Cluster(cluster["server"], ca_pem)


@lru_cache(maxsize=8)
def public_key_pin(ca_pem: str) -> str:
    """``sha256:<hex>`` of the certificate's DER SubjectPublicKeyInfo."""
    key = x509.load_pem_x509_certificate(ca_pem.encode()).public_key()
    info = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(info).hexdigest()}"


_FETCH_FAILED = "error execution phase preflight: unable to fetch the kubeadm-config ConfigMap: "
_V1BETA4_SINCE = 31
"""The first minor version of kubeadm that reads the format."""


def _fetch_configuration(api: Api, minor: int) -> Conversation[None]:
    """``minor`` is kubeadm's version: 34 for 1.34."""
    kube_system = "/api/v1/namespaces/kube-system/configmaps"
    reply = yield from api.get(f"{kube_system}/kubeadm-config")
    if not isinstance(reply, Response) or reply.status != 200:
        raise JoinFailed(f"{_FETCH_FAILED}failed to get config map: {message_of(reply)}")
    text = (reply.json().get("data") or {}).get("ClusterConfiguration", "")
    cluster = yaml.safe_load(text) or {}
    _check_format(str(cluster.get("apiVersion", "")), minor)
    reply = yield from api.get(f"{kube_system}/kubelet-config")
    if status_of(reply) != 200:
        raise JoinFailed(
            f"{_FETCH_FAILED}failed to get component configs: could not download the kubelet"
            f' configuration from ConfigMap "kubelet-config": {message_of(reply)}'
        )
    reply = yield from api.get(f"{kube_system}/kube-proxy")
    if status_of(reply) not in (200, 403, 404):
        raise JoinFailed(f"{_FETCH_FAILED}failed to get component configs: {message_of(reply)}")
    _check_version(str(cluster.get("kubernetesVersion", "")), minor)


def _check_format(version: str, minor: int) -> None:
    if version == "kubeadm.k8s.io/v1beta4" and minor < _V1BETA4_SINCE:
        # The line number is that of some versions.
        raise JoinFailed(
            f"{_FETCH_FAILED}failed to decode cluster configuration data: no kind"
            f' "ClusterConfiguration" is registered for version "{version}" in scheme'
            ' "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm/scheme/scheme.go:31"'
        )


def _check_version(cluster: str, minor: int) -> None:
    if cluster and _minor(cluster) < minor - 1:
        raise JoinFailed(
            f"{_FETCH_FAILED}this version of kubeadm only supports deploying clusters with the"
            f" control plane version >= 1.{minor - 1}.0. Current version: {cluster}"
        )


def _minor(version: str) -> int:
    """The minor version: 34 of ``v1.34.2``."""
    return int(version.split(".")[1])


def _check_node_name(api: Api, name: str) -> Conversation[None]:
    reply = yield from api.get(f"/api/v1/nodes/{name}")
    if isinstance(reply, Response) and reply.status == 200 and _is_ready(reply.json()):
        raise JoinFailed(
            f'error execution phase kubelet-start: a Node with name "{name}" and status "Ready"'
            " already exists in the cluster. You must delete the existing Node or change the name"
            " of this new joining Node"
        )
    if status_of(reply) not in (200, 404):
        raise JoinFailed(
            f'error execution phase kubelet-start: cannot get Node "{name}": {message_of(reply)}'
        )


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


_KUBELET_LABELS = re.compile(
    r"""kubernetes\.io/(hostname|os|arch) | beta\.kubernetes\.io/(os|arch|instance-type)
    | topology\.kubernetes\.io/(zone|region) | failure-domain\.beta\.kubernetes\.io/(zone|region)
    | ([^/]+\.)?(kubelet|node)\.kubernetes\.io/.+""",
    re.VERBOSE,
)
_KUBERNETES_DOMAIN = re.compile(r"([^/]+\.)?(kubernetes|k8s)\.io/.+")


def _check_labels(labels: Iterable[str]) -> None:
    refused = [
        key
        for key in labels
        if _KUBERNETES_DOMAIN.fullmatch(key) and not _KUBELET_LABELS.fullmatch(key)
    ]
    if refused:
        raise JoinFailed(
            "error execution phase kubelet-start: timed out waiting for the condition:"
            " kubelet: unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels:"
            f" [{' '.join(refused)}]"
        )


def _get_certificate(api: Api, node: str, timeout_s: float, now: Now) -> Conversation[Certificate]:
    """The kubelet's TLS bootstrap: a key, a signing request, and the wait for its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    body = signing_request(key, node)
    deadline = now() + timedelta(seconds=timeout_s)
    reply = yield from _retry(lambda: api.post(_CSRS, body), (201, 409), deadline, now)
    path = f"{_CSRS}/{body['metadata']['name']}"
    while now() < deadline:
        reply = yield from api.get(path)
        certificate = _issued(reply)
        if certificate:
            private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            return Certificate(certificate, private.decode())
        yield Wait(_CERTIFICATE_POLL_S)
    raise _kubelet_timeout("certificate signing request is not approved or not signed")


def _retry(
    call: Callable[[], Conversation[Reply]], wanted: Sequence[int], deadline: datetime, now: Now
) -> Conversation[Reply]:
    while True:
        reply = yield from call()
        if status_of(reply) in wanted:
            return reply
        if now() >= deadline:
            raise _kubelet_timeout(
                f"cannot create certificate signing request: {message_of(reply)}"
            )
        yield Wait(RETRY_S)


def _kubelet_timeout(why: str) -> JoinFailed:
    return JoinFailed(
        f"error execution phase kubelet-start: timed out waiting for the condition: kubelet: {why}"
    )


def _digest(pem: bytes) -> str:
    """The digest in the name of a kubelet's request, with capitals, hyphens and underscores."""
    return base64.urlsafe_b64encode(hashlib.sha512(pem).digest()).decode().rstrip("=")


def signing_request(key: ec.EllipticCurvePrivateKey, node: str) -> dict[str, Any]:
    """A CertificateSigningRequest for a kubelet's client certificate."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            # X.509 allows 64 bytes; Go, and so the kubelet and its signer, does not enforce this.
            x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}", _validate=False),
        ]
    )
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    pem = request.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": f"node-csr-{_digest(pem)}"},
        "spec": {
            "request": base64.b64encode(pem).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
        },
    }


def _issued(reply: Reply) -> str | None:
    if not isinstance(reply, Response) or reply.status != 200:
        return None
    encoded = reply.json().get("status", {}).get("certificate")
    return base64.b64decode(encoded).decode() if encoded else None
