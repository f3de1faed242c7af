"""The identity token of a push: a JWT as Google signs it for a push service account.

Signed by a key of this process, so a receiver that verifies (Cloud Run does it before a function is
called) is given `PushTokens.certificates` in place of Google's.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from functools import cached_property

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import crypt, jwt

from local.pubsub.model import PushIdentity

ISSUER = "https://accounts.google.com"
LIFETIME_S = 3600


class PushTokens:
    """Signs the tokens of one service; the key is made when the first token is."""

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
        """Public keys in PEM by key id, as ``google.auth.jwt.decode`` takes them."""
        public = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return {self._key_id: public.decode()}

    @cached_property
    def _key(self) -> rsa.RSAPrivateKey:
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @cached_property
    def _key_id(self) -> str:
        number = self._key.public_key().public_numbers().n
        return hashlib.sha1(number.to_bytes(256), usedforsecurity=False).hexdigest()

    @cached_property
    def _signer(self) -> crypt.RSASigner:
        return crypt.RSASigner(self._key, key_id=self._key_id)


def _account_id(email: str) -> str:
    """A service account's numeric id: 21 digits that begin with a 1."""
    digest = int.from_bytes(hashlib.sha256(email.encode()).digest()[:8])
    return f"1{digest:020d}"[:21]
