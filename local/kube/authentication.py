"""Authentication: client certificates, static tokens, tokens of ServiceAccounts and bootstrap tokens,
anonymous."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from dataclasses import replace

from local.base.clock import Clock
from local.base.http import Request
from local.kube import errors
from local.kube.account_tokens import AccountTokens
from local.kube.certificates import CertificateAuthority
from local.kube.formats import parse_time
from local.kube.store import Record, Store
from local.kube.users import ALL_AUTHENTICATED, ANONYMOUS, User

BOOTSTRAP_SECRET_TYPE = "bootstrap.kubernetes.io/token"
BOOTSTRAP_SECRET_PREFIX = "bootstrap-token-"
_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_EXTRA_GROUP = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")


class Authenticator:
    """Authenticates requests. Unknown credentials are an error; without any, the user is anonymous."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ca: CertificateAuthority,
        tokens: Mapping[str, User],
        issuer: AccountTokens,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ca = ca
        self._tokens = dict(tokens)
        self._issuer = issuer

    def authenticate(self, request: Request) -> User:
        """The user of a request. Raises 401."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not token and request.peer_certificate is None:
            return ANONYMOUS
        user = None
        if request.peer_certificate is not None:
            user = self._ca.find_user(request.peer_certificate, self._clock.now())
        if user is None and scheme.lower() == "bearer":
            user = self._find_by_token(token.strip())
        if user is None:
            raise errors.unauthorized()
        if ALL_AUTHENTICATED in user.groups:
            return user
        return replace(user, groups=(*user.groups, ALL_AUTHENTICATED))

    def _find_by_token(self, token: str) -> User | None:
        if token in self._tokens:
            return self._tokens[token]
        found = _TOKEN.fullmatch(token)
        if found is None:
            return self._issuer.find_user(token)
        name = BOOTSTRAP_SECRET_PREFIX + found[1]
        secret = self._store.find("secrets", ("kube-system", name))
        return None if secret is None else self._find_bootstrapper(secret, found[1], found[2])

    def _find_bootstrapper(self, record: Record, token_id: str, secret: str) -> User | None:
        data = read_token_secret(record)
        usable = (
            record.document.get("type") == BOOTSTRAP_SECRET_TYPE
            and "deletionTimestamp" not in record.metadata
            and data.get("token-id") == token_id
            and hmac.compare_digest(data.get("token-secret", ""), secret)
            and data.get("usage-bootstrap-authentication") == "true"
            and not is_expired(data, self._clock)
        )
        extra = [group for group in data.get("auth-extra-groups", "").split(",") if group]
        if not usable or not all(_EXTRA_GROUP.fullmatch(group) for group in extra):
            return None
        groups = ("system:bootstrappers", *sorted(extra), ALL_AUTHENTICATED)
        return User(f"system:bootstrap:{token_id}", groups)


def read_token_secret(record: Record) -> dict[str, str]:
    """A Secret's data as text, without values that are not UTF-8."""
    found = {}
    for name, encoded in (record.document.get("data") or {}).items():
        try:
            found[name] = base64.b64decode(encoded).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
    return found


def is_expired(data: Mapping[str, str], clock: Clock) -> bool:
    """Whether a bootstrap token has expired. True if its expiration cannot be parsed."""
    if "expiration" not in data:
        return False
    try:
        return parse_time(data["expiration"]) <= clock.now()
    except ValueError:
        return True
