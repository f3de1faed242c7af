"""CertificateSigningRequests of kubelets, and invalid ones."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AttributeOID, ExtensionOID, NameOID, ObjectIdentifier

from shared.base.names import BOOTSTRAP_GROUP, KUBELET_SIGNER

Parts = Sequence[tuple[ObjectIdentifier, str]]
USAGES = ("digital signature", "client auth")


def kubelets(node: str) -> Parts:
    """The subject of a kubelet's request."""
    return (
        (NameOID.ORGANIZATION_NAME, "system:nodes"),
        (NameOID.COMMON_NAME, f"system:node:{node}"),
    )


@cache
def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


STRANGE_NAMES = bytes.fromhex("3002a300")
"""Alternative names of a kind (x400Address) that Go skips and Python's parser cannot read."""


def pem(
    parts: Parts,
    *,
    names: Iterable[str] = (),
    names_der: bytes = b"",
    attribute: bytes = b"",
) -> bytes:
    """A PKCS#10 with this subject, alternative names and challenge password, signed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        subject = x509.Name([x509.NameAttribute(oid, text, _validate=False) for oid, text in parts])
        request = x509.CertificateSigningRequestBuilder().subject_name(subject)
        san = [x509.DNSName(name) for name in names]
        if san:
            request = request.add_extension(x509.SubjectAlternativeName(san), critical=False)
        if names_der:
            extension = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, names_der)
            request = request.add_extension(extension, critical=False)
        if attribute:
            request = request.add_attribute(AttributeOID.CHALLENGE_PASSWORD, attribute)
        return request.sign(_key(), hashes.SHA256()).public_bytes(Encoding.PEM)


def manifest(text: bytes, *, name: str = "csr-x", usages: Sequence[str] = USAGES) -> dict[str, Any]:
    """The CertificateSigningRequest that a user or a kubelet creates."""
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "request": base64.b64encode(text).decode(),
            "signerName": KUBELET_SIGNER,
            "usages": list(usages),
        },
    }


def raw_request(
    text: bytes,
    *,
    name: str = "csr-x",
    token_id: str = "abcdef",
    usages: Sequence[str] = USAGES,
    created: str = "2026-11-20T09:59:30Z",
    group: str = BOOTSTRAP_GROUP,
    owner: str = "",
    conditions: Sequence[dict[str, str]] = (),
) -> dict[str, Any]:
    """The same as the API server returns it, created with a bootstrap token. ``owner``: the name and id
    of the token's VM, with a colon."""
    raw = manifest(text, name=name, usages=usages)
    raw["metadata"] |= {
        "uid": f"uid-of-{name}",
        "resourceVersion": "5",
        "creationTimestamp": created,
    }
    raw["spec"] |= {
        "username": f"system:bootstrap:{token_id}",
        "groups": ["system:bootstrappers", group, "system:authenticated"],
    }
    if owner:
        raw["spec"]["groups"].append(f"system:bootstrappers:{owner}")
    raw["status"] = {"conditions": [dict(one) for one in conditions]} if conditions else {}
    return raw
