"""Google's ID tokens: the key that signs a token, its claims, and the certificates of the keys."""

import json
import re
from collections.abc import Mapping
from typing import Any

from shared.ports.connection_errors import explain

ALGORITHM = "RS256"
_CLOCKS_DIFFER_S = 10
_FETCH_TIMEOUT_S = 5.0
_KEPT_S = (60.0, 86_400.0)
"""Keys are cached for the time in the answer's header, within these limits."""
_KEPT_UNSAID_S = 300.0


class TokenError(Exception):
    """A token is not valid; the text never quotes it."""


class KeysError(Exception):
    """The keys that sign tokens could not be fetched; the message says why."""


def find_key_id(token: str) -> str | None:
    """The name of the key that signs a token by `ALGORITHM`; ``None`` if the header names none."""
    from google.auth import jwt

    try:
        header = jwt.decode_header(token)
    except (ValueError, TypeError):  # their texts quote the token
        return None
    key_id = header.get("kid")
    return key_id if header.get("alg") == ALGORITHM and isinstance(key_id, str) else None


def read_claims(token: str, certificate: str) -> Mapping[str, Any]:
    """Verify a token with this certificate, and return its claims. Raises `TokenError`."""
    from google.auth import jwt
    from google.auth.exceptions import InvalidValue

    try:
        claims: Mapping[str, Any] = jwt.decode(
            token, certs=certificate, clock_skew_in_seconds=_CLOCKS_DIFFER_S
        )
    except InvalidValue as error:
        raise TokenError(str(error)) from None
    except (ValueError, TypeError):
        raise TokenError("the token's signature or its times are wrong") from None
    return claims


def read_verified_claims(token: str, now: float) -> Mapping[str, Any]:
    """The claims of a token whose signature the platform has verified. Raises `TokenError`.

    ``now`` is in seconds since 1970: a token that has ended is not valid.
    """
    from google.auth import jwt

    try:
        claims = jwt.decode(token, verify=False)
    except (ValueError, TypeError):
        claims = None
    if not isinstance(claims, dict):
        raise TokenError("the token is not a JWT")
    end = claims.get("exp")
    if not isinstance(end, int | float) or not end + _CLOCKS_DIFFER_S >= now:
        raise TokenError(f"the token expired at {end!r} (seconds since 1970)")
    return claims


def fetch_certificates(url: str) -> tuple[Mapping[str, str], float]:
    """Fetch certificates (PEM) by key id, and their lifetime in seconds. Raises `KeysError`."""
    from google.auth.exceptions import TransportError
    from google.auth.transport.requests import Request

    try:
        answer = Request()(url, timeout=_FETCH_TIMEOUT_S)
    except TransportError as error:
        raise KeysError(f"the keys at {url} cannot be fetched: {explain(error)}") from error
    if answer.status != 200:
        raise KeysError(f"the keys at {url} cannot be fetched: {answer.status}")
    try:
        found = json.loads(answer.data)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(pem, str) for pem in found.values()):
        raise KeysError(f"{url} did not return certificates in PEM form by key id")
    headers = {name.lower(): value for name, value in answer.headers.items()}
    stated = re.search(r"max-age=(\d{1,9})", headers.get("cache-control", ""))
    kept_s = float(stated[1]) if stated else _KEPT_UNSAID_S
    age = headers.get("age", "")
    left_s = kept_s - (float(age) if age.isdecimal() else 0.0)
    return found, max(_KEPT_S[0], min(_KEPT_S[1], left_s))
