"""Certificates of certificate authorities."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

NOW = datetime(2026, 3, 1, 12, 0, 0, 654321, tzinfo=UTC)


def make_ca(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
        .sign(key, algorithm)
    )
    return certificate.public_bytes(Encoding.PEM).decode()


# Created with `openssl x509 -req`: version 1 has no version field, unlike later versions.
V1_CA = """\
-----BEGIN CERTIFICATE-----
MIIBFzCBvwIUb2YXAcW07BB5BjWgki6PTlX/WeYwCgYIKoZIzj0EAwIwDjEMMAoG
A1UEAwwDb2xkMCAXDTI2MTEyMDIyMjc1NFoYDzIxMjYxMDI3MjIyNzU0WjAOMQww
CgYDVQQDDANvbGQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATJh59Jff4rKdwF
qSC/7KAKB+7lXcc1POb9raozdT27D7GV+CVMtMqe23Im5wZ7bytyEOd3t9XuZUX5
gCOpDnHIMAoGCCqGSM49BAMCA0cAMEQCIDoVWzChKmf/rd8uSSqiEUvSHkF+pNrT
Z/7NAYxPCpUyAiAEjdBUiuMtxZ6ABhsoi+T0koFzK2xEkBLDRndZ8nJFSQ==
-----END CERTIFICATE-----
"""
EC_CA = make_ca(ec.generate_private_key(ec.SECP256R1()))
