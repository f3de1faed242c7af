"""How a VM joins: its bootstrap token, the CA's pin, the metadata that carries both, the script.

A token belongs to one VM. What is written to the VM's metadata is the record of it: `parse_token`
reads it back, and `token_secret` makes the same Secret of it every time. Everything here is pure;
time and randomness are arguments.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shared.base.names import (
    BOOTSTRAP_GROUP,
    CA_HASH_KEY,
    CONTROL_PLANE_KEY,
    RESOURCE_NAME_LABEL,
    TOKEN_EXPIRY_KEY,
    TOKEN_KEY,
)

VM_LABEL = "tpu-functions.dev/vm"
"""On a token's Secret: the VM that the token belongs to."""

TOKEN_LIFE = timedelta(hours=1)
_CLOCKS_APART = timedelta(minutes=5)
KUBEADM_GROUP = "system:bootstrappers:kubeadm:default-node-token"
"""The group in kubeadm's own role bindings, which `kubeadm init` creates: the cluster approves requests
of its tokens for any Node."""

CA_CONFIG_MAP = "kube-system/kube-root-ca.crt"
CA_KEY = "ca.crt"

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_LENGTH, _SECRET_LENGTH = 6, 16
_TOKEN = re.compile(rf"([a-z0-9]{{{_ID_LENGTH}}})\.([a-z0-9]{{{_SECRET_LENGTH}}})")
_PEM_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----\s(.*?)-----END CERTIFICATE-----", re.DOTALL
)
_SCRIPT = Path(__file__).with_name("startup.sh")
_PLAIN = re.compile(r"[A-Za-z0-9._:/=,+-]*")


@dataclass(frozen=True, repr=False)
class Token:
    """A bootstrap token. ``expires`` is aware, in UTC, to the second.

    Only `text` shows the secret: neither ``repr`` nor ``str`` does, so that no log line, error or
    failed assertion can.
    """

    id: str
    secret: str
    expires: datetime

    @property
    def text(self) -> str:
        """The token in kubeadm's form, ``<id>.<secret>``."""
        return f"{self.id}.{self.secret}"

    @property
    def expiry_text(self) -> str:
        """The token's expiry, in RFC 3339."""
        return self.expires.strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def secret_name(self) -> str:
        """The name that Kubernetes requires for the token's Secret in kube-system."""
        return f"bootstrap-token-{self.id}"

    def __repr__(self) -> str:
        return f"Token(id={self.id!r}, expires={self.expiry_text})"


def new_token(
    random_bytes: Callable[[int], bytes], now: datetime, life: timedelta = TOKEN_LIFE
) -> Token:
    """A fresh token that ends ``life`` from ``now``.

    ``random_bytes`` returns so many random bytes: `secrets.token_bytes`, other than in tests.
    """
    characters = _pick_characters(random_bytes, _ID_LENGTH + _SECRET_LENGTH)
    expires = (now + life).astimezone(UTC).replace(microsecond=0)
    return Token(characters[:_ID_LENGTH], characters[_ID_LENGTH:], expires)


def _pick_characters(random_bytes: Callable[[int], bytes], length: int) -> str:
    # A byte modulo 36 favours the first letters; bytes past the last multiple of 36 are drawn anew.
    limit = 256 - 256 % len(_ALPHABET)
    drawn = ""
    while len(drawn) < length:
        usable = (byte for byte in random_bytes(length) if byte < limit)
        drawn += "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in usable)
    return drawn[:length]


def parse_token(text: str, expires: str) -> Token:
    """The token that a VM's metadata holds under `TOKEN_KEY` and `TOKEN_EXPIRY_KEY`.

    Raises `ValueError` when either is not what `join_metadata` writes. The error does not show the
    value, which may be most of a secret.
    """
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise ValueError(f"metadata {TOKEN_KEY} is not of the form [a-z0-9]{{6}}.[a-z0-9]{{16}}")
    return Token(match[1], match[2], _parse_expiry(expires))


def _parse_expiry(text: str) -> datetime:
    try:
        expires = datetime.fromisoformat(text)
        if expires.tzinfo is not None:
            return expires.astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError):
        pass  # no date, or one that is none in UTC
    raise ValueError(f"metadata {TOKEN_EXPIRY_KEY} is not an RFC 3339 time with a zone")


def token_secret(
    token: Token, *, resource_name: str, vm: str, bootstrap_group: str = BOOTSTRAP_GROUP
) -> dict[str, Any]:
    """The Secret that makes the API server accept ``token``, to be created in kube-system.

    ``resource_name`` is the group's name on Compute Engine, ``vm`` the instance's; ``bootstrap_group``
    says what the token may do.
    """
    data = {
        "token-id": token.id,
        "token-secret": token.secret,
        "expiration": token.expiry_text,
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "auth-extra-groups": bootstrap_group,
        "description": f"tpu-functions: lets VM {vm} of {resource_name} join",
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": token.secret_name,
            "namespace": "kube-system",
            "labels": {RESOURCE_NAME_LABEL: resource_name, VM_LABEL: vm},
        },
        "type": "bootstrap.kubernetes.io/token",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


def join_metadata(token: Token, *, endpoint: str, ca_hash: str) -> dict[str, str]:
    """The metadata that a VM needs to join; ``endpoint`` is written as the user gave it."""
    return {
        TOKEN_KEY: token.text,
        TOKEN_EXPIRY_KEY: token.expiry_text,
        CONTROL_PLANE_KEY: endpoint,
        CA_HASH_KEY: ca_hash,
    }


def ca_hash(ca_pem: str) -> str:
    """The pin that kubeadm checks a cluster's CA against, ``sha256:<hex>``.

    It is the SHA-256 of the DER SubjectPublicKeyInfo of the first certificate in ``ca_pem``, the
    value of `CA_KEY` in the ConfigMap `CA_CONFIG_MAP`. Raises `ValueError` when there is none.
    """
    if not ca_pem.strip():
        raise ValueError(f"{CA_KEY} not found in configmap {CA_CONFIG_MAP}")
    try:
        public_key = _public_key_info(_first_certificate(ca_pem))
    except ValueError as error:
        raise ValueError(
            f"failed to decode PEM CA certificate in configmap {CA_CONFIG_MAP}: {error}"
        ) from error
    return f"sha256:{hashlib.sha256(public_key).hexdigest()}"


def _first_certificate(pem: str) -> bytes:
    match = _PEM_CERTIFICATE.search(pem)
    if match is None:
        raise ValueError("no certificate in it")
    try:
        return base64.b64decode("".join(match[1].split()), validate=True)
    except binascii.Error as error:
        raise ValueError(f"the certificate is not base64: {error}") from error


# A reader for the little DER that the pin needs. The alternatives cost each cold start more than
# the rest of this module: 42 ms for cryptography, 21 ms for pyasn1.
_SEQUENCE = 0x30
_EXPLICIT_0 = 0xA0


@dataclass(frozen=True)
class _Element:
    """A DER element in ``der``: its tag, where it begins, its content and its end."""

    tag: int
    start: int
    content: int
    end: int


def _element(der: bytes, start: int, limit: int) -> _Element:
    header = der[start : start + 2]
    if len(header) < 2:
        raise ValueError("the certificate is cut short")
    content, length = start + 2, header[1]
    if length & 0x80:  # the long form: so many bytes of length follow
        content += length & 0x7F
        length = int.from_bytes(der[start + 2 : content])
    if content + length > limit:
        raise ValueError("the certificate is cut short")
    return _Element(header[0], start, content, content + length)


def _sequence(der: bytes, start: int, limit: int) -> _Element:
    element = _element(der, start, limit)
    if element.tag != _SEQUENCE:
        raise ValueError("not an X.509 certificate")
    return element


def _public_key_info(der: bytes) -> bytes:
    """The bytes of ``subjectPublicKeyInfo`` (RFC 5280, 4.1).

    Certificate is a SEQUENCE that begins with TBSCertificate, a SEQUENCE too: version [0]
    (optional), serialNumber, signature, issuer, validity, subject, subjectPublicKeyInfo.
    """
    certificate = _sequence(der, 0, len(der))
    to_be_signed = _sequence(der, certificate.content, certificate.end)
    field = _element(der, to_be_signed.content, to_be_signed.end)
    fields_before = 6 if field.tag == _EXPLICIT_0 else 5
    for _ in range(fields_before - 1):
        field = _element(der, field.end, to_be_signed.end)
    public_key = _sequence(der, field.end, to_be_signed.end)
    return der[public_key.start : public_key.end]


def render_startup_script(
    *,
    version: str,
    project: str,
    zone: str,
    node_labels: Mapping[str, str],
    node_taints: Sequence[str],
) -> str:
    """The startup script of a slice's VMs; the same for all of them, so it stands in the template.

    ``version`` is a Kubernetes minor (``1.31``); labels and taints (``key=value:Effect``) are what
    each kubelet registers its Node with. Raises `ValueError` for a value with a character that no
    label, taint, project or zone can have: beyond the script such a value goes through kubeadm's
    flags file and systemd, where quotes would not hold it.
    """
    labels = ",".join(f"{key}={value}" for key, value in sorted(node_labels.items()))
    values = {
        "KUBERNETES_MINOR": version,
        "PROJECT": project,
        "ZONE": zone,
        "NODE_LABELS": labels,
        "NODE_TAINTS": ",".join(node_taints),
    }
    script = _SCRIPT.read_text(encoding="utf-8")
    for name, value in values.items():
        if _PLAIN.fullmatch(value) is None:
            raise ValueError(f"{name} of the startup script has an unusable character: {value!r}")
        script = script.replace(f"@{name}@", shlex.quote(value))
    return script


def find_token(metadata: Mapping[str, str], now: datetime) -> Token | None:
    """The token in a VM's metadata; ``None`` when there is none that can be read.

    Whoever may write a VM's metadata could write a token that lives longer than ours do: such a one
    is none.
    """
    try:
        token = parse_token(metadata.get(TOKEN_KEY, ""), metadata.get(TOKEN_EXPIRY_KEY, ""))
    except ValueError:
        return None
    return token if token.expires <= now + TOKEN_LIFE + _CLOCKS_APART else None
