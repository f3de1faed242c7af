"""Approves certificate signing requests of kubelets if the requestor has the permission; signs them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from local.base.clock import Clock
from local.kube.authorization import Authorizer
from local.kube.certificates import CertificateAuthority
from local.kube.controllers.queue import Cluster, WorkQueue
from local.kube.kinds import Document
from local.kube.requests import RequestInfo
from local.kube.resources import Resources
from local.kube.store import Change, Record
from local.kube.users import NODE_PREFIX, NODES, User, controller

CSRS = "certificatesigningrequests.certificates.k8s.io"
KUBELET_CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
_LIFE_S = 365 * 86400
_USAGES = (
    frozenset({"digital signature", "client auth"}),
    frozenset({"digital signature", "client auth", "key encipherment"}),
)


class CsrController:
    """The approving and the signing controller, for kubelets' client certificates only."""

    def __init__(
        self,
        resources: Resources,
        authorizer: Authorizer,
        clock: Clock,
        ca: CertificateAuthority,
    ) -> None:
        self._cluster = Cluster(resources, controller("certificate-controller"))
        self._authorizer = authorizer
        self._clock = clock
        self._ca = ca
        self._queue: WorkQueue[str] = WorkQueue(clock, self._reconcile)
        resources.store.listen(self._follow, CSRS)

    def _follow(self, change: Change) -> None:
        if change.type != "DELETED":
            self._queue.add(change.record.key[1])

    def _reconcile(self, name: str) -> None:
        record = self._cluster.find(CSRS, ("", name))
        if record is None or record.document["spec"]["signerName"] != KUBELET_CLIENT_SIGNER:
            return
        status, spec = record.document.get("status") or {}, record.document["spec"]
        conditions = {one["type"] for one in status.get("conditions") or ()}
        if conditions & {"Denied", "Failed"} or status.get("certificate"):
            return
        request = _load(record)
        violation = (
            "unable to parse the request" if request is None else find_violation(request, spec)
        )
        if "Approved" not in conditions:
            if request is not None and violation is None and self._may_request(spec, request):
                why = "Auto approving kubelet client certificate after SubjectAccessReview."
                self._add_condition(record, "Approved", "AutoApproved", why, "approval")
        elif request is None or violation is not None:
            why = str(violation)
            self._add_condition(record, "Failed", "SignerValidationFailure", why, "status")
        else:
            pem = self._issue(request, spec)
            self._cluster.modify(CSRS, record.key, lambda csr: _set_certificate(csr, pem), "status")

    def _may_request(
        self, spec: Mapping[str, Any], request: x509.CertificateSigningRequest
    ) -> bool:
        user = User(spec["username"], tuple(spec.get("groups") or ()))
        own = spec["username"] == _common_name(request)
        return any(
            self._authorizer.allows(user, _permission(subresource))
            for subresource in ("nodeclient", *(("selfnodeclient",) if own else ()))
        )

    def _issue(self, request: x509.CertificateSigningRequest, spec: Mapping[str, Any]) -> str:
        key = request.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
            raise TypeError("find_violation accepts only EC and RSA keys")
        life = timedelta(seconds=min(spec.get("expirationSeconds") or _LIFE_S, _LIFE_S))
        return self._ca.sign_client(request.subject, key, self._clock.now(), life)

    def _add_condition(
        self, record: Record, type_: str, reason: str, message: str, subresource: str
    ) -> None:
        condition = {"type": type_, "status": "True", "reason": reason, "message": message}

        def add(csr: Document) -> None:
            status = csr.get("status") or {}
            conditions = [*(status.get("conditions") or ()), condition]
            csr["status"] = {**status, "conditions": conditions}

        self._cluster.modify(CSRS, record.key, add, subresource)


def find_violation(request: x509.CertificateSigningRequest, spec: Mapping[str, Any]) -> str | None:
    """Why a request is not valid for a kubelet's client certificate, or ``None`` if it is (documented
    for the signer ``kubernetes.io/kube-apiserver-client-kubelet``)."""
    names = [attribute.oid for attribute in request.subject]
    organizations = request.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if [one.value for one in organizations] != [NODES]:
        return "subject organization is not system:nodes"
    if names.count(NameOID.COMMON_NAME) != 1 or not _common_name(request).startswith(NODE_PREFIX):
        return "subject common name does not begin with system:node:"
    if _has_alternative_names(request):
        return "subjectAltNames are not allowed"
    if frozenset(_usages(spec)) not in _USAGES or len(_usages(spec)) != len(set(_usages(spec))):
        return "usages did not match expected ones: digital signature, client auth"
    if not isinstance(request.public_key(), ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        return "the public key is neither an EC nor an RSA key"
    return None if request.is_signature_valid else "the request is not signed by its own key"


def _usages(spec: Mapping[str, Any]) -> Sequence[str]:
    usages: Sequence[str] = spec.get("usages") or ()
    return usages


def _has_alternative_names(request: x509.CertificateSigningRequest) -> bool:
    try:
        request.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return False
    except Exception:  # noqa: BLE001 - Go ignores names of unknown types
        return False
    return True


def _common_name(request: x509.CertificateSigningRequest) -> str:
    found = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _load(record: Record) -> x509.CertificateSigningRequest | None:
    try:
        pem = base64.b64decode(record.document["spec"]["request"])
        return x509.load_pem_x509_csr(pem)
    except ValueError:
        return None


def _permission(subresource: str) -> RequestInfo:
    return RequestInfo(
        "create",
        "",
        "certificates.k8s.io",
        "v1",
        "certificatesigningrequests",
        subresource,
    )


def _set_certificate(csr: Document, pem: str) -> None:
    encoded = base64.b64encode(pem.encode()).decode()
    csr["status"] = {**(csr.get("status") or {}), "certificate": encoded}
