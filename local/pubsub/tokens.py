"""The identity token of a push: a JWT as Google signs it for a push service account.

It is signed by a key of this process, so receivers verify it with `PushTokens.certificates` instead of
Google's. Served by `local.base.web`, they have the form of ``https://www.googleapis.com/oauth2/v1/certs``.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from google.auth import crypt, jwt

from local.base.http import Request, Response
from local.pubsub.model import PushIdentity

ISSUER = "https://accounts.google.com"
LIFETIME_S = 3600
_KEPT = {"Cache-Control": "public, max-age=3600, must-revalidate"}
_KEYS_LIFE = timedelta(days=30)


class PushTokens:
    """Signs the tokens of one service; the key is created with the first token."""

    def render(self, identity: PushIdentity, endpoint: str, now: datetime) -> str:
        """A token for a push to ``endpoint``, which is the audience if the identity names none."""
        issued = int(now.timestamp())
        claims = {
            "aud": identity.audience or endpoint,
            "azp": _account_id(identity.email),
            "email": identity.email,
            "email_verified": True,
            "exp": issued + LIFETIME_S,
            "iat": issued,
            "iss": ISSUER,
            "sub": _account_id(identity.email),
        }
        encoded: bytes = jwt.encode(self._signer, claims)
        return encoded.decode()

    def certificates(self) -> dict[str, str]:
        """X.509 certificates in PEM by key id, as ``google.auth.jwt.decode`` takes them."""
        return {self._key_id: self._certificate}

    def handle(self, _: Request) -> Response:
        """The certificates, and their cache lifetime."""
        return Response.of_json(self.certificates(), headers=_KEPT)

    @cached_property
    def _certificate(self) -> str:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "federated-signon")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _KEYS_LIFE)
            .not_valid_after(now + _KEYS_LIFE)
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM).decode()

    @cached_property
    def key(self) -> rsa.RSAPrivateKey:
        """The signer."""
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @cached_property
    def _key_id(self) -> str:
        number = self.key.public_key().public_numbers().n
        return hashlib.sha1(number.to_bytes(256), usedforsecurity=False).hexdigest()

    @cached_property
    def _signer(self) -> crypt.RSASigner:
        return crypt.RSASigner(self.key, key_id=self._key_id)


def _account_id(email: str) -> str:
    """A service account's numeric id: 21 digits that begin with a 1."""
    digest = int.from_bytes(hashlib.sha256(email.encode()).digest()[:8])
    return f"1{digest:020d}"[:21]
