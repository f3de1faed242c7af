"""Admission plugins besides NodeRestriction."""

from __future__ import annotations

from local.kube import errors
from local.kube.authorization import Authorizer
from local.kube.kinds import Document
from local.kube.requests import RequestInfo
from local.kube.writing import Admission, Attributes

_CSRS = "certificatesigningrequests.certificates.k8s.io"

_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def taint_new_nodes(attributes: Attributes) -> None:
    """TaintNodesByCondition: taint a new Node until it is ready."""
    if attributes.kind.resource != "nodes" or attributes.operation != "CREATE":
        return
    spec = attributes.document.get("spec") or {}
    taints = spec.get("taints") or []
    if not any(taint.get("key") == _NOT_READY["key"] for taint in taints):
        attributes.document["spec"] = {**spec, "taints": [*taints, dict(_NOT_READY)]}


def approve_for_signers(authorizer: Authorizer) -> Admission:
    """CertificateApproval: approving and denying need the permission ``approve`` for the signer."""

    def check(attributes: Attributes) -> None:
        document, old = attributes.document, attributes.old
        if (
            attributes.kind.resource != _CSRS
            or old is None
            or _decisions(document) == _decisions(old)
        ):
            return
        signer = old["spec"]["signerName"]
        names = (signer, f"{signer.partition('/')[0]}/*")
        allowed = any(authorizer.allows(attributes.user, _approval(name)) for name in names)
        if not allowed:
            why = f'user not permitted to approve requests with signerName "{signer}"'
            raise errors.forbidden(_CSRS, document["metadata"]["name"], why)

    return check


def _approval(signer: str) -> RequestInfo:
    return RequestInfo("approve", "", "certificates.k8s.io", "*", "signers", name=signer)


def _decisions(document: Document) -> list[str]:
    conditions = (document.get("status") or {}).get("conditions") or ()
    return sorted(one["type"] for one in conditions if one["type"] in ("Approved", "Denied"))
