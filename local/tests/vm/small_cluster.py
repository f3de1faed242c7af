"""A minimal cluster: only the requests that a joining VM sends to an API server.

The agents are tested against this cluster, so that a bug of the embedded API cannot hide one of the
agents, and against the embedded API too.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from local.base.http import Request, Response

Answer = Callable[[Request, str], Response]


@dataclass
class SmallCluster:
    """Accepts tokens until they expire, and signs CSRs immediately.

    ``calls`` are the requests, as ``user METHOD path``. ``answers`` overrides the answer to a method and
    path.
    """

    now: Callable[[], datetime]
    tokens: dict[str, datetime] = field(default_factory=dict)
    answers: dict[str, Response] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    approves: bool = True

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
        self._ca = self._sign(self._key.public_key(), name, name)
        self.ca_pem = self._ca.public_bytes(Encoding.PEM).decode()
        info = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "",
                    "cluster": {
                        "server": "https://10.128.0.2:6443",
                        "certificate-authority-data": base64.b64encode(
                            self.ca_pem.encode()
                        ).decode(),
                    },
                }
            ],
        }
        self.kubeconfig: str = yaml.safe_dump(info)

    def _sign(
        self, key: ec.EllipticCurvePublicKey, subject: x509.Name, issuer: x509.Name
    ) -> x509.Certificate:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now() - timedelta(days=1))
            .not_valid_after(self.now() + timedelta(days=365))
            .add_extension(x509.BasicConstraints(subject == issuer, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def tls(self, folder: Path) -> ssl.SSLContext:
        """Return the TLS context of a server on 127.0.0.1, with a certificate of the CA."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
        certificate = self._sign(key.public_key(), name, self._ca.subject)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file = folder / "api-server.pem"
        file.write_bytes(certificate.public_bytes(Encoding.PEM) + private)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        context.load_verify_locations(cadata=self.ca_pem)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def handle(self, request: Request) -> Response:
        """Answer one request, as an `Application`."""
        user = self._user(request)
        place = f"{request.method} {request.path}"
        self.calls.append(f"{user} {place}")
        if place in self.answers:
            return self.answers[place]
        if user is None:
            return _refusal(401, "Unauthorized")
        kind, _, name = request.path.removesuffix("/status").rpartition("/")
        routes: dict[str, Answer] = {
            "GET /api/v1/namespaces/kube-public/configmaps": self._cluster_info,
            "GET /api/v1/namespaces/kube-system/configmaps": self._configmap,
            "GET /api/v1/nodes": self._get_node,
            "POST /api/v1": self._create_node,
            "PATCH /api/v1/nodes": self._patch_node,
            "POST /apis/certificates.k8s.io/v1": self._create_csr,
            "GET /apis/certificates.k8s.io/v1/certificatesigningrequests": self._get_csr,
            "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases": self._get_lease,
            "POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease": self._put_lease,
            "PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases": self._put_lease,
        }
        return routes[f"{request.method} {kind}"](request, name)

    def _user(self, request: Request) -> str | None:
        if request.peer_certificate is not None:
            certificate = x509.load_der_x509_certificate(request.peer_certificate)
            return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not token:
            return "system:anonymous"
        is_known = token in self.tokens and self.now() < self.tokens[token]
        return f"system:bootstrap:{token[:6]}" if is_known else None

    def _cluster_info(self, _request: Request, _name: str) -> Response:
        data = {"kubeconfig": self.kubeconfig}
        for token in self.tokens:
            data[f"jws-kubeconfig-{token[:6]}"] = sign_detached(self.kubeconfig, token)
        return Response.of_json({"data": data})

    def _configmap(self, _request: Request, name: str) -> Response:
        if name == "kube-proxy":
            return _refusal(404, 'configmaps "kube-proxy" not found')
        return Response.of_json({"data": {}})

    def _get_node(self, _request: Request, name: str) -> Response:
        if name not in self.nodes:
            return _refusal(404, f'nodes "{name}" not found')
        return Response.of_json(self.nodes[name])

    def _create_node(self, request: Request, _name: str) -> Response:
        node = json.loads(request.body)
        name = node["metadata"]["name"]
        if name in self.nodes:
            return _refusal(409, f'nodes "{name}" already exists')
        self.nodes[name] = node
        return Response.of_json(node, 201)

    def _patch_node(self, request: Request, name: str) -> Response:
        node = self.nodes.get(name)
        if node is None:
            return _refusal(404, f'nodes "{name}" not found')
        patch = json.loads(request.body)
        node["status"].update(patch.get("status", {}))
        for key, value in patch.get("metadata", {}).items():
            node["metadata"].setdefault(key, {}).update(value)
        return Response.of_json(node)

    def _create_csr(self, request: Request, _name: str) -> Response:
        document = json.loads(request.body)
        self.requests[document["metadata"]["name"]] = document
        return Response.of_json(document, 201)

    def _get_csr(self, _request: Request, name: str) -> Response:
        document = self.requests[name]
        if self.approves:
            pem = base64.b64decode(document["spec"]["request"])
            asked = x509.load_pem_x509_csr(pem)
            key = asked.public_key()
            assert isinstance(key, ec.EllipticCurvePublicKey)
            issued = self._sign(key, asked.subject, self._ca.subject).public_bytes(Encoding.PEM)
            document = {
                **document,
                "status": {"certificate": base64.b64encode(issued).decode()},
            }
        return Response.of_json(document)

    def _get_lease(self, _request: Request, name: str) -> Response:
        if name not in self.leases:
            return _refusal(404, "leases not found")
        return Response.of_json(self.leases[name])

    def _put_lease(self, request: Request, _name: str) -> Response:
        lease = json.loads(request.body)
        self.leases[lease["metadata"]["name"]] = lease
        return Response.of_json(lease, 201 if request.method == "POST" else 200)


def _refusal(status: int, message: str) -> Response:
    return Response.of_json({"kind": "Status", "message": message, "code": status}, status)


def sign_detached(payload: str, token: str) -> str:
    """Sign ``payload`` with a bootstrap token as the bootstrap signer does: a detached JWS."""

    def encode(raw: bytes) -> str:
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    header = encode(f'{{"alg":"HS256","kid":"{token[:6]}"}}'.encode())
    signed = f"{header}.{encode(payload.encode())}"
    secret = token.partition(".")[2]
    return f"{header}..{encode(hmac.digest(secret.encode(), signed.encode(), hashlib.sha256))}"
