"""How a VM joins: its bootstrap token, the CA's hash, its metadata and the startup script.

A token belongs to one VM, whose metadata records it: `parse_token` reads it, and `token_secret` builds
the same Secret from it each time. All functions are pure; time and randomness are arguments.
"""

import base64
import binascii
import hashlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    TOKEN_VM_LABEL,
    VM_STARTED_KEY,
)
from shared.base.timestamps import CLOCKS_DIFFER_BY

TOKEN_LIFE = timedelta(hours=1)
KUBEADM_GROUP = "system:bootstrappers:kubeadm:default-node-token"
"""The group in the role bindings that `kubeadm init` creates: with its tokens, the cluster approves
requests for any Node."""

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
    """A bootstrap token. ``expires`` is in UTC, to the second.

    Only `text` shows the secret. ``repr`` and ``str`` do not, so that it is in no log line, error or
    failed assertion.
    """

    id: str
    secret: str = field(repr=False)
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
    def given(self) -> datetime:
        """When it was made."""
        return self.expires - TOKEN_LIFE

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
    # Bytes from the last multiple of 36 on are skipped: modulo 36 they would favour some letters.
    length, limit = _ID_LENGTH + _SECRET_LENGTH, 256 - 256 % len(_ALPHABET)
    picked = ""
    while len(picked) < length:
        usable = (byte for byte in random_bytes(length) if byte < limit)
        picked += "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in usable)
    expires = (now + life).astimezone(UTC).replace(microsecond=0)
    return Token(picked[:_ID_LENGTH], picked[_ID_LENGTH:length], expires)


def parse_token(text: str, expires: str) -> Token:
    """Parse the values of `TOKEN_KEY` and `TOKEN_EXPIRY_KEY` in a VM's metadata.

    Raises `ValueError` for values that `join_metadata` does not write. The error does not show them:
    they may contain most of a secret.
    """
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise ValueError(f"metadata {TOKEN_KEY} is not of the form [a-z0-9]{{6}}.[a-z0-9]{{16}}")
    try:
        moment = datetime.fromisoformat(expires)
        if moment.tzinfo is not None:
            return Token(match[1], match[2], moment.astimezone(UTC).replace(microsecond=0))
    except (ValueError, OverflowError):
        pass  # not a date, or not one in UTC
    raise ValueError(f"metadata {TOKEN_EXPIRY_KEY} is not an RFC 3339 time with a zone")


def token_secret(
    token: Token, *, resource_name: str, vm: str, bootstrap_group: str = BOOTSTRAP_GROUP
) -> dict[str, Any]:
    """The Secret in kube-system that makes a token valid.

    ``resource_name`` is the group's name on Compute Engine, ``vm`` the VM's. ``bootstrap_group`` decides
    the permissions of the token; after a comma, a second group names the VM (`token_groups`).
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
            "labels": {RESOURCE_NAME_LABEL: resource_name, TOKEN_VM_LABEL: vm},
        },
        "type": "bootstrap.kubernetes.io/token",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


def join_metadata(
    token: Token, *, endpoint: str, ca_hash: str, started: datetime | None = None
) -> dict[str, str]:
    """The metadata that a VM needs to join. ``endpoint`` is as in the spec, ``started`` the VM's last
    start."""
    return {
        TOKEN_KEY: token.text,
        TOKEN_EXPIRY_KEY: token.expiry_text,
        CONTROL_PLANE_KEY: endpoint,
        CA_HASH_KEY: ca_hash,
        VM_STARTED_KEY: started.isoformat() if started is not None else "",
    }


def ca_hash(ca_pem: str) -> str:
    """The hash by which kubeadm verifies a cluster's CA, ``sha256:<hex>``.

    It is the SHA-256 of the DER SubjectPublicKeyInfo of the first certificate in ``ca_pem``, the value
    of `CA_KEY` in the ConfigMap `CA_CONFIG_MAP`. Raises `ValueError` if there is no certificate.
    """
    if not ca_pem.strip():
        raise ValueError(f"{CA_KEY} not found in configmap {CA_CONFIG_MAP}")
    try:
        match = _PEM_CERTIFICATE.search(ca_pem)
        if match is None:
            raise ValueError("no certificate in it")
        try:
            certificate = base64.b64decode("".join(match[1].split()), validate=True)
        except binascii.Error as error:
            raise ValueError(f"the certificate is not base64: {error}") from error
        public_key = _public_key_info(certificate)
    except ValueError as error:
        raise ValueError(
            f"failed to decode PEM CA certificate in configmap {CA_CONFIG_MAP}: {error}"
        ) from error
    return f"sha256:{hashlib.sha256(public_key).hexdigest()}"


# A parser for the little DER that the hash needs. The libraries slow down each cold start: cryptography
# by 42 ms, pyasn1 by 21 ms.
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
    topology_manager_policy: str = "",
) -> str:
    """The startup script of a slice's VMs. It is the same for all VMs, so the template has it.

    ``version`` is a minor version of Kubernetes (``1.31``). Each kubelet registers its Node with the
    labels and taints (``key=value:Effect``). ``topology_manager_policy`` is the kubelet's. Raises
    `ValueError` for a value with a character that no label, taint, project or zone can have: kubeadm's
    flags file and systemd, where the values are used later, do not respect quotes.
    """
    labels = ",".join(f"{key}={value}" for key, value in sorted(node_labels.items()))
    values = {
        "KUBERNETES_MINOR": version,
        "PROJECT": project,
        "ZONE": zone,
        "NODE_LABELS": labels,
        "NODE_TAINTS": ",".join(node_taints),
        "TOPOLOGY_MANAGER_POLICY": topology_manager_policy,
    }
    script = _SCRIPT.read_text(encoding="utf-8")
    for name, value in values.items():
        if _PLAIN.fullmatch(value) is None:
            raise ValueError(f"{name} of the startup script has an unusable character: {value!r}")
        script = script.replace(f"@{name}@", shlex.quote(value))
    return script


def find_token(metadata: Mapping[str, str], now: datetime) -> Token | None:
    """The token in a VM's metadata, which may have expired; ``None`` if there is none of this system.

    One that lives longer than this system's own is not of this system: somebody else has written it.
    """
    try:
        token = parse_token(metadata.get(TOKEN_KEY, ""), metadata.get(TOKEN_EXPIRY_KEY, ""))
    except ValueError:
        return None
    return token if token.expires <= now + TOKEN_LIFE + CLOCKS_DIFFER_BY else None
