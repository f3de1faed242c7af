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


class CredentialsUnreadable(Exception):
    """The file holds no credentials; the message names it."""


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
    def load_or_create(cls, path: Path, identities: Iterable[str], now: datetime) -> Credentials:
        """The credentials of a file that only its owner can read; what it lacks is new, and saved.

        Raises `CredentialsUnreadable` for another file.
        """
        found = cls.create(identities, now)
        if path.exists():
            try:
                saved = json.loads(path.read_text())
                ca = CertificateAuthority.load(KeyPair(**saved["ca"]))
                tokens = {
                    name: saved["tokens"].get(name, new) for name, new in found.tokens.items()
                }
                if not all(token.isascii() for token in tokens.values()):
                    raise ValueError("a token is not ASCII")
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise CredentialsUnreadable(f"{path} holds no credentials; remove it") from error
            found = cls(ca, tokens)
        write_private(path, {"ca": asdict(found.ca.export()), "tokens": dict(found.tokens)})
        return found

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
