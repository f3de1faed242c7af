"""Bootstrap tokens, and requests for certificates of kubelets."""

from __future__ import annotations

import base64
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from local.tests.contract.kubernetes.embedded import Embedded

SECRETS = "/api/v1/namespaces/kube-system/secrets"
TOKEN = "abcdef.0123456789abcdef"
JOINERS = "system:bootstrappers:kubeadm:default-node-token"


def token_secret(**changes: str | None) -> dict[str, Any]:
    data: dict[str, str | None] = {
        "token-id": "abcdef",
        "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "expiration": "2026-01-01T01:00:00Z",
        "auth-extra-groups": JOINERS,
    }
    data |= {name.replace("_", "-"): value for name, value in changes.items()}
    return {
        "metadata": {"name": "bootstrap-token-abcdef"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {name: value for name, value in data.items() if value is not None},
    }


def der(pem: str) -> bytes:
    return base64.b64decode("".join(pem.splitlines()[1:-1]))


CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
KUBELET_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
KEY = ec.generate_private_key(ec.SECP256R1())


def signing_request(
    organization: str = "system:nodes",
    name: str = "system:node:n1",
    host: str = "",
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = KEY,
) -> str:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if host:
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def csr(pem: str | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "csr"},
        "spec": {
            "request": base64.b64encode((pem or signing_request()).encode()).decode(),
            "signerName": KUBELET_SIGNER,
            "usages": ["digital signature", "client auth"],
            **spec,
        },
    }


def submit(server: Embedded, body: dict[str, Any], user: str = f"token:{TOKEN}") -> Any:
    """Create a CSR, let the controllers finish, and return its status."""
    server.ask("POST", CSRS, body, user=user)
    server.run_controllers()
    return server.ask("GET", f"{CSRS}/csr")["status"]


def certificate_of(status: Any) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(status["certificate"]))
