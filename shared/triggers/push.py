"""Verify the ID token that Pub/Sub sends with each push, in one of two modes.

``signature`` verifies the token completely. ``platform`` is for Cloud Run, which verifies the token,
admits only accounts with ``run.invoker``, and then replaces the signature: only the claims can be
checked. The settings select the mode, never the token: anybody can write a replaced signature.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shared.ports.id_tokens import (
    ALGORITHM,
    KeysError,
    TokenError,
    fetch_certificates,
    find_key_id,
    read_claims,
    read_verified_claims,
)

UNAUTHORIZED, FORBIDDEN, UNAVAILABLE = 401, 403, 503

_ISSUERS = ("https://accounts.google.com", "accounts.google.com")
_REMOVED = ".SIGNATURE_REMOVED_BY_GOOGLE"
_REFETCH_AFTER_S = 60.0
"""The minimum interval between fetches for unknown keys: anybody can send an invented key id."""
_RETRY_AFTER_S = 5.0

GOOGLES_CERTIFICATES = "https://www.googleapis.com/oauth2/v1/certs"
"""Where Google publishes the keys that sign its ID tokens, as X.509 by key id."""


class PushVerification(StrEnum):
    """Who verifies the signature of a push's token."""

    PLATFORM = "platform"
    """Cloud Run: IAM lets only the push account call the service, and the signature is removed."""
    SIGNATURE = "signature"
    """The function itself, wherever it runs."""


@dataclass(frozen=True)
class Pusher:
    """The push account, as in the OIDC tokens of the push subscriptions."""

    service_account: str
    audience: str
    certificates_url: str
    verification: PushVerification = PushVerification.SIGNATURE


@dataclass(frozen=True)
class RejectedPush:
    """Why a request is rejected: the HTTP status, and a note for the log."""

    http: int
    note: str


Fetch = Callable[[str], tuple[Mapping[str, str], float]]
"""Fetches from a URL certificates in PEM by key id, and for how many seconds they are valid."""


class Gate:
    """Admits requests with a token of the push account. Thread-safe."""

    def __init__(
        self,
        pusher: Pusher,
        *,
        fetch: Fetch | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._pusher = pusher
        self._now = now
        self._keys = _Keys(pusher.certificates_url, fetch or fetch_certificates, monotonic)

    def refuse(self, authorization: str) -> RejectedPush | None:
        """The refusal of a request with this ``Authorization`` header; ``None`` if it is admitted.

        No note contains the token.
        """
        scheme, _, token = authorization.strip().partition(" ")
        if scheme.lower() != "bearer" or not token:
            return RejectedPush(UNAUTHORIZED, "there is no bearer token")
        pusher = self._pusher
        try:
            claims = self._read_claims(token)
        except TokenError as error:
            return RejectedPush(UNAUTHORIZED, str(error))
        except KeysError as error:
            return RejectedPush(UNAVAILABLE, str(error))
        issuer, audience, email = (claims.get(name) for name in ("iss", "aud", "email"))
        if issuer not in _ISSUERS:
            return RejectedPush(
                UNAUTHORIZED, f"the token's issuer is {issuer!r}, not {_ISSUERS[0]}"
            )
        if audience != pusher.audience:
            why = f"the token's audience is {audience!r}, not PUSH_AUDIENCE={pusher.audience!r}"
            return RejectedPush(UNAUTHORIZED, why)
        is_verified = claims.get("email_verified") is True
        if email != pusher.service_account or not is_verified:
            how, wanted = "" if is_verified else " (not verified)", pusher.service_account
            why = f"the token's e-mail is {email!r}{how}, not PUSH_SERVICE_ACCOUNT={wanted!r}"
            return RejectedPush(FORBIDDEN, why)
        return None

    def _read_claims(self, token: str) -> Mapping[str, Any]:
        """Verify a token and return its claims. Raises `TokenError` and `KeysError`."""
        if self._pusher.verification is PushVerification.PLATFORM:
            return read_verified_claims(token, self._now())
        if token.endswith(_REMOVED):
            raise TokenError(_SIGNATURE_REMOVED)
        key_id = find_key_id(token)
        if key_id is None:
            raise TokenError(f"the token is not a JWT that {ALGORITHM} signs with a named key")
        certificate = self._keys.find(key_id)
        if certificate is None:
            raise TokenError(f"{self._pusher.certificates_url} does not have the token's key")
        return read_claims(token, certificate)


_SIGNATURE_REMOVED = (
    "Cloud Run has verified the token itself and removed its signature, so that it cannot be verified "
    "again: set PUSH_VERIFICATION=platform if this is a Cloud Run service that is not public"
)


class _Keys:
    """The issuer's certificates, fetched when needed and cached while they are valid."""

    def __init__(self, url: str, fetch: Fetch, monotonic: Callable[[], float]) -> None:
        self._url = url
        self._fetch = fetch
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._certificates: Mapping[str, str] = {}
        self._valid_until = self._fetch_after = float("-inf")
        self._error = ""

    def find(self, key_id: str) -> str | None:
        """The certificate of a key; ``None`` if the issuer has none. Raises `KeysError`."""
        with self._lock:
            now = self._monotonic()
            if now >= self._valid_until:
                self._certificates = {}
            if key_id not in self._certificates and now >= self._fetch_after:
                self._refresh(now)
            if key_id not in self._certificates and self._error:
                raise KeysError(self._error)
            return self._certificates.get(key_id)

    def _refresh(self, now: float) -> None:
        try:
            self._certificates, valid_s = self._fetch(self._url)
        except KeysError as error:
            self._error = str(error)
            self._fetch_after = now + _RETRY_AFTER_S
        else:
            self._error = ""
            self._valid_until = now + valid_s
            self._fetch_after = now + min(valid_s, _REFETCH_AFTER_S)
