"""The cluster's certificate authority: signs the certificates of servers, clients and kubelets, and
recognizes them."""

from __future__ import annotations

import ipaddress
import ssl
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from local.kube.users import User

warnings.filterwarnings("ignore", "Attribute's length must be", UserWarning)
"""The certificate of a Node with a long name has a longer CN than X.509 allows; Go accepts that, too."""
_CA_LIFE = timedelta(days=3650)
_CERTIFICATE_LIFE = timedelta(days=365)
_BACKDATE = timedelta(minutes=5)
"""Clocks differ. kube-controller-manager backdates certificates by the same time."""

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, both in PEM."""

    certificate_pem: str
    key_pem: str


class CertificateAuthority:
    """A CA with an EC P-256 key. Built by `create`, or by `load` from an exported one."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key
        self._signed: dict[bytes, x509.Certificate | None] = {}
        """The client certificates that were shown; ``None`` for one that is not of this CA."""

    @classmethod
    def create(cls, now: datetime, name: str = "kubernetes") -> CertificateAuthority:
        """A new CA that is valid for ten years from ``now``."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, subject, key.public_key(), now, _CA_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(ca=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, exported: KeyPair) -> CertificateAuthority:
        """A CA from its exported certificate and key. Raises `ValueError` if they cannot be used."""
        key = load_pem_private_key(exported.key_pem.encode(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the CA's key must be an EC key")
        return cls(x509.load_pem_x509_certificate(exported.certificate_pem.encode()), key)

    def export(self) -> KeyPair:
        """The certificate and the private key, for `load`. Only their owner may be able to read them."""
        return KeyPair(self.certificate_pem, _render_key(self._key))

    @property
    def certificate_pem(self) -> str:
        """The CA certificate."""
        return _render_certificate(self._certificate)

    def issue_server(self, hosts: Iterable[str], now: datetime) -> KeyPair:
        """A serving certificate for host names and IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        certificate = (
            self._leaf(
                subject, key.public_key(), now, _CERTIFICATE_LIFE, ExtendedKeyUsageOID.SERVER_AUTH
            )
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return KeyPair(_render_certificate(certificate), _render_key(key))

    def issue_client(self, user: User, now: datetime) -> KeyPair:
        """A client certificate: the user's name as CN, the groups as O."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in user.groups),
                x509.NameAttribute(NameOID.COMMON_NAME, user.name),
            ]
        )
        return KeyPair(
            self.sign_client(subject, key.public_key(), now, _CERTIFICATE_LIFE), _render_key(key)
        )

    def sign_client(
        self, subject: x509.Name, public_key: PublicKey, now: datetime, life: timedelta
    ) -> str:
        """A client certificate in PEM for a given public key."""
        leaf = self._leaf(subject, public_key, now, life, ExtendedKeyUsageOID.CLIENT_AUTH)
        return _render_certificate(leaf.sign(self._key, hashes.SHA256()))

    def _leaf(
        self,
        subject: x509.Name,
        public_key: PublicKey,
        now: datetime,
        life: timedelta,
        usage: x509.ObjectIdentifier,
    ) -> x509.CertificateBuilder:
        issuer_key = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        return (
            _builder(subject, self._certificate.subject, public_key, now, life)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key.value),
                critical=False,
            )
        )

    def find_user(self, der: bytes, now: datetime) -> User | None:
        """Find the user of a client certificate; ``None`` unless it is valid and signed by this CA."""
        if der not in self._signed:  # an agent shows its certificate with each call
            found = x509.load_der_x509_certificate(der)
            is_right = self._has_signed(found) and _is_for_clients(found)
            self._signed[der] = found if is_right else None
        certificate = self._signed[der]
        if certificate is None:
            return None
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            return None
        names = _attributes(certificate.subject, NameOID.COMMON_NAME)
        groups = _attributes(certificate.subject, NameOID.ORGANIZATION_NAME)
        return User(names[0], tuple(groups)) if names else None

    def _has_signed(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def server_context(self, hosts: Sequence[str], now: datetime) -> ssl.SSLContext:
        """TLS for `local.base.web.serve`: a fresh serving certificate, client certificates optional."""
        pair = self.issue_server(hosts, now)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.certificate_pem)
        with tempfile.TemporaryDirectory() as directory:  # ssl reads keys from files only
            both = Path(directory, "server.pem")
            both.touch(mode=0o600)
            both.write_text(pair.certificate_pem + pair.key_pem, encoding="ascii")
            context.load_cert_chain(both)
        return context


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: PublicKey,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + life)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _is_for_clients(certificate: x509.Certificate) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return ExtendedKeyUsageOID.CLIENT_AUTH in usage


def _attributes(name: x509.Name, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in name.get_attributes_for_oid(oid)]


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _render_certificate(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode("ascii")


def _render_key(key: ec.EllipticCurvePrivateKey) -> str:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem.decode("ascii")
