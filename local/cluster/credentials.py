"""The credentials of a local cluster: its CA, and a bearer token for each identity."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from local import kube
from local.cloud.simulation import identity
from local.kube import CertificateAuthority, KeyPair

ADMIN = "admin"


@dataclass(frozen=True, repr=False)
class Credentials:
    """A CA and tokens by identity: ``admin``, ``relay``, and the steps' names with dashes."""

    ca: CertificateAuthority
    tokens: Mapping[str, str]

    @classmethod
    def create(cls, identities: Iterable[str], now: datetime) -> Credentials:
        """Create credentials."""
        tokens = {name: secrets.token_urlsafe(24) for name in (ADMIN, *identities)}
        return cls(CertificateAuthority.create(now), tokens)

    @classmethod
    def load(cls, path: Path) -> Credentials:
        """Load credentials. Raises `ValueError` or `KeyError` for another file."""
        saved = json.loads(path.read_text())
        return cls(CertificateAuthority.load(KeyPair(**saved["ca"])), saved["tokens"])

    def save(self, path: Path) -> None:
        """Save the credentials in a file that only the owner can read."""
        write_private(path, {"ca": asdict(self.ca.export()), "tokens": dict(self.tokens)})

    def users(self) -> dict[str, kube.User]:
        """The identities by token."""
        return {token: _user(name) for name, token in self.tokens.items()}

    def kubeconfig(self, server: str, name: str) -> dict[str, Any]:
        """The kubeconfig of an identity."""
        return kube.kubeconfig(server, self.ca.certificate_pem, self.tokens[name])


def write_private(path: Path, content: Mapping[str, Any] | str) -> None:
    """Replace a file atomically by text or JSON that only the owner can read."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_text(content if isinstance(content, str) else json.dumps(content))
    new.replace(path)


def _user(name: str) -> kube.User:
    if name == ADMIN:
        return kube.User(ADMIN, ("system:masters", "system:authenticated"))
    return identity(name)
