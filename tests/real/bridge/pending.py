"""The pending work of the cluster's controllers."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Document = Mapping[str, Any]
Objects = Mapping[str, Iterable[Document]]
"""Objects by the plural of their kind."""

BOOTSTRAP_TOKEN = "bootstrap.kubernetes.io/token"
_KUBELET_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
_AUTO_APPROVED = {"system:bootstrappers:kubeadm:default-node-token", "system:nodes"}
"""The groups whose requests are approved automatically, by kubeadm's bindings."""
_TTL = "node.alpha.kubernetes.io/ttl"
_LIFECYCLE = "node.kubernetes.io/"
_TAINTS = {
    ("Ready", "False"): "not-ready",
    ("Ready", "Unknown"): "unreachable",
    ("MemoryPressure", "True"): "memory-pressure",
    ("DiskPressure", "True"): "disk-pressure",
    ("PIDPressure", "True"): "pid-pressure",
    ("NetworkUnavailable", "True"): "network-unavailable",
}


def pending_work(objects: Objects) -> Iterator[str]:
    """Yield a description of each pending work."""
    for node in objects["nodes"]:
        yield from _node(node)
    for request in objects["certificatesigningrequests"]:
        yield from _signing_request(request)
    yield from _signatures(objects["secrets"], objects["configmaps"])
    for namespace in objects["namespaces"]:
        yield from _namespace(namespace, objects["tpunodegroups"])


def name_of(document: Document) -> str:
    """Return an object's name."""
    return str(document["metadata"]["name"])


def condition(document: Document, kind: str) -> str:
    """Return the status of a condition, or ``""``."""
    conditions = document.get("status", {}).get("conditions") or ()
    return next((str(each["status"]) for each in conditions if each["type"] == kind), "")


def token_of(secret: Document) -> str:
    """Return the bootstrap token of a Secret, or ``""``."""
    data = secret.get("data") or {}
    if secret.get("type") != BOOTSTRAP_TOKEN or not {"token-id", "token-secret"} <= data.keys():
        return ""
    return f"{_text(data['token-id'])}.{_text(data['token-secret'])}"


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def _node(node: Document) -> Iterator[str]:
    """A Node without a Ready condition has no expected taints: its kubelet has not sent a status yet."""
    if _TTL not in (node["metadata"].get("annotations") or {}):
        yield f"Node {name_of(node)}: the annotation {_TTL}"
    ready = condition(node, "Ready")
    if not ready:
        return
    taints = {(each["key"], each["effect"]) for each in node["spec"].get("taints") or ()}
    expected = {
        suffix for (kind, status), suffix in _TAINTS.items() if condition(node, kind) == status
    }
    if node["spec"].get("unschedulable"):
        expected.add("unschedulable")
    for suffix in (*_TAINTS.values(), "unschedulable"):
        if ((f"{_LIFECYCLE}{suffix}", "NoSchedule") in taints) is not (suffix in expected):
            yield f"Node {name_of(node)}: the taint {suffix}"
    for suffix in ("not-ready", "unreachable"):  # added within five seconds, removed immediately
        if ready == "True" and (f"{_LIFECYCLE}{suffix}", "NoExecute") in taints:
            yield f"Node {name_of(node)}: the evicting taint {suffix} still exists"


def _signing_request(request: Document) -> Iterator[str]:
    is_kubelets = request["spec"]["signerName"] == _KUBELET_CLIENT
    is_answered = any(condition(request, kind) == "True" for kind in ("Denied", "Failed"))
    is_approved = condition(request, "Approved") == "True"
    is_expected = is_approved or not _AUTO_APPROVED.isdisjoint(request["spec"]["groups"])
    has_certificate = request.get("status", {}).get("certificate")
    if is_kubelets and is_expected and not is_answered and not has_certificate:
        yield f"CertificateSigningRequest {name_of(request)}: its certificate"


def _signatures(secrets: Iterable[Document], config_maps: Iterable[Document]) -> Iterator[str]:
    tokens = {token_of(secret).partition(".")[0] for secret in secrets} - {""}
    for info in config_maps:
        if name_of(info) == "cluster-info":
            keys = [key for key in info.get("data") or {} if key.startswith("jws-kubeconfig-")]
            signed = {key.removeprefix("jws-kubeconfig-") for key in keys}
            yield from (f"cluster-info: the signature of {it}" for it in sorted(tokens - signed))
            for it in sorted(signed - tokens):
                yield f"cluster-info: the signature of {it} still exists"


def _namespace(namespace: Document, groups: Iterable[Document]) -> Iterator[str]:
    if not namespace["metadata"].get("deletionTimestamp"):
        return
    name = name_of(namespace)
    remaining = [group for group in groups if group["metadata"]["namespace"] == name]
    undeleted = [group for group in remaining if not group["metadata"].get("deletionTimestamp")]
    yield from (f"Namespace {name}: the deletion of {name_of(group)}" for group in undeleted)
    if not remaining:
        yield f"Namespace {name} still exists"
