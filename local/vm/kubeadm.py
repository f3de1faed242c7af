"""What ``kubeadm join`` and the kubelet say to an API server, without a socket.

Each is a generator: it yields what it wants to `Send` or how long it wants to `Wait`, and gets the
server's answer back. `local.vm.transport` carries the requests, in one process or over TLS. The order
of the calls, the checks and the words of the errors are kubeadm's, as documented for 1.28 to 1.34.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar

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

from local.base.http import JSON, Request, Response

warnings.filterwarnings("ignore", "Attribute's length must be", UserWarning)

T = TypeVar("T")


@dataclass(frozen=True)
class Anonymous:
    """No credential."""


@dataclass(frozen=True)
class Bearer:
    """A token in the Authorization header. Its holder may impersonate the kubelet of a Node."""

    token: str = field(repr=False)
    node: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """What it is shown by."""
        shown = {"Authorization": f"Bearer {self.token}"}
        if self.node:
            shown |= {
                "Impersonate-User": f"system:node:{self.node}",
                "Impersonate-Group": "system:nodes",
            }
        return shown


@dataclass(frozen=True)
class Certificate:
    """A client certificate and its key, in PEM."""

    cert_pem: str
    key_pem: str = field(repr=False)


Credential = Anonymous | Bearer | Certificate


@dataclass(frozen=True)
class Send:
    """A request to ``server`` (``https://host:port``).

    ``verify_ca`` is the CA in PEM that must have signed the server's certificate; `None` takes any.
    """

    server: str
    request: Request
    credential: Credential
    verify_ca: str | None


@dataclass(frozen=True)
class Wait:
    """Nothing is to be done for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class ConnectionRefused:
    """There is no answer: nobody listens, TLS failed, the connection broke."""

    reason: str


Reply = Response | ConnectionRefused
Conversation = Generator[Send | Wait, Reply | None, T]
Now = Callable[[], datetime]


def run_conversation(
    conversation: Conversation[T], send: Callable[[Send], Reply], wait: Callable[[float], None]
) -> T:
    """Run a conversation to its end and return its result; ``wait`` gets seconds."""
    reply: Reply | None = None
    while True:
        try:
            step = conversation.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(step, Send):
            reply = send(step)
        else:
            wait(step.seconds)
            reply = None


class JoinFailed(Exception):
    """kubeadm has given up. The text is what it prints."""


@dataclass(frozen=True)
class Node:
    """What the kubelet registers: its name, its flags, and how many TPU chips its machine has."""

    name: str
    provider_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    chips: int = 0
    kubelet_version: str = "v1.31.4"
    boot: str = ""
    """What tells this boot of the machine from others; empty where a machine boots once."""


@dataclass(frozen=True)
class JoinConfiguration:
    """What is in a JoinConfiguration file. ``endpoint`` is ``host:port``."""

    endpoint: str
    token: str = field(repr=False)
    ca_hashes: tuple[str, ...]
    node: Node


@dataclass(frozen=True)
class Identity:
    """What a kubelet.conf holds: where the API server is, whom to trust, who one is."""

    server: str
    ca_pem: str
    credential: Credential


@dataclass(frozen=True)
class KubeletBehaviour:
    """How fast a kubelet is. All in seconds.

    ``lease_s`` is how often it renews its Lease (a real one: 10); `None` for a kubelet that falls
    silent when all is said. ``plugin_s`` is how long the device plugin needs from the label that
    draws its DaemonSet to ``google.com/tpu``; `None` for a cluster without the plugin.
    """

    ready_s: float = 10.0
    plugin_s: float | None = 15.0
    label_poll_s: float = 5.0
    lease_s: float | None = 10.0
    status_s: float = 300.0


ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TPU_RESOURCE = "google.com/tpu"

_DISCOVERY_TIMEOUT_S = 300.0
_TLS_BOOTSTRAP_TIMEOUT_S = 300.0
_RETRY_S = 5.0
_CERTIFICATE_POLL_S = 1.0
_STRATEGIC_MERGE = "application/strategic-merge-patch+json"
_CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
_CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


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


def parse_labels(text: str) -> dict[str, str]:
    """Labels from ``a=b,c=d``, as ``--node-labels`` and the metadata key ``kube-labels`` have it."""
    pairs = (entry.partition("=") for entry in text.split(",") if entry)
    return {key: value for key, _, value in pairs}


def chips_of(machine_type: str) -> int:
    """How many chips a TPU machine type has: 4 for ``tpu7x-standard-4t``, 0 for other machines."""
    match = re.fullmatch(r"(?:ct|tpu)[0-9a-z]+-\w+-(\d+)t(?:-tpu)?", machine_type)
    return int(match[1]) if match else 0


# --- kubeadm join ---


def join(configuration: JoinConfiguration, now: Now) -> Conversation[Identity]:
    """Join a worker, up to the kubelet's certificate. Raises `JoinFailed` as kubeadm would."""
    cluster = yield from _discover(configuration, now)
    bootstrap = _Api(cluster.server, cluster.ca_pem, Bearer(configuration.token))
    yield from _fetch_configuration(bootstrap)
    yield from _check_node_name(bootstrap, configuration.node.name)
    _check_labels(configuration.node.labels)
    certificate = yield from _get_certificate(bootstrap, configuration.node.name, now)
    return Identity(cluster.server, cluster.ca_pem, certificate)


class _Api:
    """Calls to one server as one user."""

    def __init__(self, server: str, ca_pem: str | None, credential: Credential) -> None:
        self._server = server
        self._ca_pem = ca_pem
        self._credential = credential

    def get(self, path: str) -> Conversation[Reply]:
        return self._call("GET", path, None, JSON)

    def post(self, path: str, body: Mapping[str, Any]) -> Conversation[Reply]:
        return self._call("POST", path, body, JSON)

    def put(self, path: str, body: Mapping[str, Any]) -> Conversation[Reply]:
        return self._call("PUT", path, body, JSON)

    def patch(self, path: str, body: Mapping[str, Any]) -> Conversation[Reply]:
        return self._call("PATCH", path, body, _STRATEGIC_MERGE)

    def delete(self, path: str) -> Conversation[Reply]:
        return self._call("DELETE", path, {}, JSON)

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, content_type: str
    ) -> Conversation[Reply]:
        headers = {"Accept": JSON, "User-Agent": "kubelet/v1.31.4 (linux/amd64)"}
        if body is not None:
            headers["Content-Type"] = content_type
        if isinstance(self._credential, Bearer):
            headers |= self._credential.headers
        raw = None if body is None else json.dumps(body)
        request = Request.of(method, path, headers=headers, body=raw)
        reply = yield Send(self._server, request, self._credential, self._ca_pem)
        assert reply is not None, "a Send is answered with a reply"
        return reply


def _status(reply: Reply) -> int:
    return reply.status if isinstance(reply, Response) else 0


def _words(reply: Reply) -> str:
    """What the server said, as client-go shows it."""
    if isinstance(reply, ConnectionRefused):
        return reply.reason
    try:
        return str(reply.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {reply.status}"


@dataclass(frozen=True)
class _Cluster:
    server: str
    ca_pem: str


def _discover(configuration: JoinConfiguration, now: Now) -> Conversation[_Cluster]:
    """Token-based discovery: trust the CA because the token signed it and the pin names it."""
    failed = "error execution phase preflight: couldn't validate the identity of the API Server: "
    endpoint = f"https://{configuration.endpoint}"
    token_id = configuration.token.partition(".")[0]
    insecure = _Api(endpoint, None, Anonymous())
    info = yield from _await_cluster_info(insecure, token_id, now, failed)
    kubeconfig = info.get("kubeconfig", "")
    if not _is_signed(info[_jws_key(token_id)], kubeconfig, configuration.token):
        raise JoinFailed(
            failed + "failed to verify JWS signature of received cluster info object,"
            " can't trust this API Server"
        )
    cluster = _parse_kubeconfig(kubeconfig)
    pin = public_key_pin(cluster.ca_pem)
    if configuration.ca_hashes and pin not in configuration.ca_hashes:
        raise JoinFailed(
            failed + "cluster CA found in cluster-info ConfigMap is invalid:"
            f' none of the public keys "{pin}" are pinned'
        )
    secure = _Api(endpoint, cluster.ca_pem, Anonymous())
    again = yield from _await_cluster_info(secure, token_id, now, failed)
    if again.get("kubeconfig") != kubeconfig:
        raise JoinFailed(
            failed + "the second kubeconfig from the cluster-info ConfigMap (using validated TLS)"
            " was different from the first"
        )
    return cluster


def _await_cluster_info(
    api: _Api, token_id: str, now: Now, failed: str
) -> Conversation[dict[str, str]]:
    deadline = now() + timedelta(seconds=_DISCOVERY_TIMEOUT_S)
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
            problem = f"failed to request the cluster-info ConfigMap: {_words(reply)}"
        if now() >= deadline:
            raise JoinFailed(failed + problem)
        yield Wait(_RETRY_S)


def _jws_key(token_id: str) -> str:
    return f"jws-kubeconfig-{token_id}"


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _is_signed(jws: str, payload: str, token: str) -> bool:
    """Whether a detached JWS (RFC 7515, appendix F) is an HMAC over ``payload`` by the token.

    The key is the token's secret part alone, as kube-controller-manager 1.36 signs; the documentation
    of bootstrap tokens says the whole token.
    """
    header, _, signature = jws.partition("..")
    signed = f"{header}.{_base64url(payload.encode())}"
    secret = token.partition(".")[2]
    expected = hmac.new(secret.encode(), signed.encode(), hashlib.sha256).digest()
    return hmac.compare_digest(_base64url(expected), signature)


@lru_cache(maxsize=8)  # a slice's VMs all read the same one
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


def _fetch_configuration(api: _Api) -> Conversation[None]:
    kube_system = "/api/v1/namespaces/kube-system/configmaps"
    reply = yield from api.get(f"{kube_system}/kubeadm-config")
    if _status(reply) != 200:
        raise JoinFailed(
            "error execution phase preflight: unable to fetch the kubeadm-config ConfigMap:"
            f" failed to get config map: {_words(reply)}"
        )
    reply = yield from api.get(f"{kube_system}/kubelet-config")
    if _status(reply) != 200:
        raise JoinFailed(
            "error execution phase preflight: unable to fetch the kubeadm-config ConfigMap:"
            " failed to get component configs: could not download the kubelet configuration"
            f' from ConfigMap "kubelet-config": {_words(reply)}'
        )
    reply = yield from api.get(f"{kube_system}/kube-proxy")
    if _status(reply) not in (200, 403, 404):
        raise JoinFailed(
            "error execution phase preflight: unable to fetch the kubeadm-config ConfigMap:"
            f" failed to get component configs: {_words(reply)}"
        )


def _check_node_name(api: _Api, name: str) -> Conversation[None]:
    reply = yield from api.get(f"/api/v1/nodes/{name}")
    if isinstance(reply, Response) and reply.status == 200 and _is_ready(reply.json()):
        raise JoinFailed(
            f'error execution phase kubelet-start: a Node with name "{name}" and status "Ready"'
            " already exists in the cluster. You must delete the existing Node or change the name"
            " of this new joining Node"
        )
    if _status(reply) not in (200, 404):
        raise JoinFailed(
            f'error execution phase kubelet-start: cannot get Node "{name}": {_words(reply)}'
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


def _get_certificate(api: _Api, node: str, now: Now) -> Conversation[Certificate]:
    """The kubelet's TLS bootstrap: a key, a signing request, and the wait for its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    body = signing_request(key, node)
    deadline = now() + timedelta(seconds=_TLS_BOOTSTRAP_TIMEOUT_S)
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
        if _status(reply) in wanted:
            return reply
        if now() >= deadline:
            raise _kubelet_timeout(f"cannot create certificate signing request: {_words(reply)}")
        yield Wait(_RETRY_S)


def _kubelet_timeout(why: str) -> JoinFailed:
    return JoinFailed(
        f"error execution phase kubelet-start: timed out waiting for the condition: kubelet: {why}"
    )


def _digest(pem: bytes) -> str:
    """As a kubelet has it in the names of its requests, with capitals, hyphens and underscores."""
    return base64.urlsafe_b64encode(hashlib.sha512(pem).digest()).decode().rstrip("=")


def signing_request(key: ec.EllipticCurvePrivateKey, node: str) -> dict[str, Any]:
    """A CertificateSigningRequest for a kubelet's client certificate."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            # X.509 allows 64 bytes; Go, and so the real kubelet and its signer, does not count them.
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


# --- the kubelet ---


def run_kubelet(
    identity: Identity, node: Node, behaviour: KubeletBehaviour, now: Now
) -> Conversation[None]:
    """Register the Node and keep it: Ready after a while, chips, heartbeats.

    Goes on for ever, or ends when ``behaviour.lease_s`` is `None` and nothing is left to say.
    """
    kubelet = _Kubelet(identity, node, behaviour, now)
    yield from kubelet.register()
    yield Wait(behaviour.ready_s)
    kubelet.is_ready = True
    yield from kubelet.keep()


def remove_node(administrator: Identity, name: str) -> Conversation[None]:
    """Delete a Node whose VM is gone, as a cloud's own controller does."""
    api = _Api(administrator.server, administrator.ca_pem, administrator.credential)
    while _status((yield from api.delete(f"/api/v1/nodes/{name}"))) not in (200, 404):
        yield Wait(_RETRY_S)


class _Kubelet:
    def __init__(
        self, identity: Identity, node: Node, behaviour: KubeletBehaviour, now: Now
    ) -> None:
        self._api = _Api(identity.server, identity.ca_pem, identity.credential)
        self._node = node
        self._behaviour = behaviour
        self._now = now
        self._path = f"/api/v1/nodes/{node.name}"
        self._chips: int | None = None
        self._has_plugin = False
        self._ready_since = now()
        self.is_ready = False

    def register(self) -> Conversation[None]:
        """Create the Node; one that exists is taken over, as after a reboot."""
        status = 0
        while status not in (201, 409):
            status = _status((yield from self._api.post("/api/v1/nodes", self._manifest())))
            if status not in (201, 409):
                yield Wait(_RETRY_S)
        if status == 409:
            yield from self._take_over()
        annotation = {"kubeadm.alpha.kubernetes.io/cri-socket": _CRI_SOCKET}
        yield from self._api.patch(self._path, {"metadata": {"annotations": annotation}})

    def _take_over(self) -> Conversation[None]:
        if self._node.chips:
            self._chips = 0  # a kubelet forgets extended resources until their plugin is back
        yield from self._api.patch(self._path, {"metadata": {"labels": self._own_labels()}})
        yield from self._send_status()

    def keep(self) -> Conversation[None]:
        """Do each chore when it is due; a chore says in how many seconds it is due again."""
        self._ready_since = self._now()
        chores: dict[Callable[[], Conversation[float | None]], datetime] = {}
        for chore in (self._report, self._renew_lease, self._find_chips):
            chores[chore] = self._now()
        while chores:
            chore = min(chores, key=lambda each: chores[each])
            delay_s = (chores[chore] - self._now()).total_seconds()
            if delay_s > 0:
                yield Wait(delay_s)
            again_s = yield from chore()
            if again_s is None:
                del chores[chore]
            else:
                chores[chore] = self._now() + timedelta(seconds=again_s)

    def _report(self) -> Conversation[float | None]:
        reply = yield from self._send_status()
        if _status(reply) == 0 or _status(reply) >= 500:
            return _RETRY_S
        return self._behaviour.status_s if self._behaviour.lease_s is not None else None

    def _send_status(self) -> Conversation[Reply]:
        return self._api.patch(f"{self._path}/status", {"status": self._status()})

    def _find_chips(self) -> Conversation[float | None]:
        """The device plugin: its DaemonSet's Pod comes with the label, the chips with the Pod."""
        if self._behaviour.plugin_s is None or not self._node.chips:
            return None
        if not self._has_plugin:
            self._has_plugin = yield from self._is_labelled()
            return self._behaviour.plugin_s if self._has_plugin else self._behaviour.label_poll_s
        self._chips = self._node.chips
        reply = yield from self._send_status()
        return None if _status(reply) == 200 else _RETRY_S

    def _is_labelled(self) -> Conversation[bool]:
        if ACCELERATOR_LABEL in self._node.labels:
            return True
        reply = yield from self._api.get(self._path)
        if not isinstance(reply, Response) or reply.status != 200:
            return False
        return ACCELERATOR_LABEL in reply.json()["metadata"].get("labels", {})

    def _renew_lease(self) -> Conversation[float | None]:
        if self._behaviour.lease_s is None:
            return None
        path = f"{_LEASES}/{self._node.name}"
        reply = yield from self._api.get(path)
        if isinstance(reply, Response) and reply.status == 200:
            lease = reply.json()
            lease["spec"] = self._lease_spec()
            yield from self._api.put(path, lease)
        elif _status(reply) == 404:
            yield from self._api.post(_LEASES, self._lease())
        return self._behaviour.lease_s

    def _lease_spec(self) -> dict[str, Any]:
        return {
            "holderIdentity": self._node.name,
            "leaseDurationSeconds": 40,
            "renewTime": self._now().astimezone(UTC).strftime(_MICRO_TIME),
        }

    def _lease(self) -> dict[str, Any]:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._node.name, "namespace": "kube-node-lease"},
            "spec": self._lease_spec(),
        }

    def _own_labels(self) -> dict[str, str]:
        own = {
            "kubernetes.io/hostname": self._node.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux",
            "beta.kubernetes.io/arch": "amd64",
        }
        return {**own, **self._node.labels}

    def _manifest(self) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        if self._node.provider_id:
            spec["providerID"] = self._node.provider_id
        if self._node.taints:
            spec["taints"] = [_taint(text) for text in self._node.taints]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._node.name, "labels": self._own_labels()},
            "spec": spec,
            "status": self._status(),
        }

    def _status(self) -> dict[str, Any]:
        resources = {"cpu": "224", "memory": "947Gi", "pods": "110", "ephemeral-storage": "100Gi"}
        if self._chips is not None:
            resources[TPU_RESOURCE] = str(self._chips)
        return {
            "capacity": resources,
            "allocatable": resources,
            "conditions": self._conditions(),
            "addresses": [
                {"type": "InternalIP", "address": _address(self._node.name)},
                {"type": "Hostname", "address": self._node.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": _node_info(self._node),
        }

    def _conditions(self) -> list[dict[str, str]]:
        now = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        since = self._ready_since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = (
            ("True", "KubeletReady", "kubelet is posting ready status")
            if self.is_ready
            else ("False", "KubeletNotReady", "container runtime network not ready")
        )
        rows = [
            ("MemoryPressure", "False", "KubeletHasSufficientMemory", "enough memory available"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "enough PID available"),
            ("Ready", *ready),
        ]
        return [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since,
            }
            for kind, status, reason, message in rows
        ]


_CRI_SOCKET = "unix:///run/containerd/containerd.sock"


def _taint(text: str) -> dict[str, str]:
    """A taint from ``key=value:Effect`` or ``key:Effect``."""
    head, _, effect = text.rpartition(":")
    key, _, value = head.partition("=")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def _address(name: str) -> str:
    """An address that is a VM's own and always the same."""
    low, high = hashlib.sha256(name.encode()).digest()[:2]
    return f"10.128.{low}.{high}"


def _node_info(node: Node) -> dict[str, str]:
    seed = hashlib.sha256(node.name.encode()).hexdigest()
    return {
        "architecture": "amd64",
        "bootID": hashlib.sha256(f"{node.name} {node.boot}".encode()).hexdigest()[:32],
        "containerRuntimeVersion": "containerd://1.7.24",
        "kernelVersion": "6.8.0-1024-gcp",
        "kubeProxyVersion": node.kubelet_version,
        "kubeletVersion": node.kubelet_version,
        "machineID": seed[32:],
        "operatingSystem": "linux",
        "osImage": "Ubuntu 24.04.1 LTS",
        "systemUUID": seed[:32],
    }
