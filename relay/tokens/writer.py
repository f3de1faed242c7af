"""What the token-writer does for each step whose token is due: mint, verify, store, destroy old ones.

A token is valid for twelve hours and renewed each hour, so the functions work for eleven hours more
after the token-writer has failed.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from google.api_core.exceptions import from_http_response
from requests import Session

from shared.base.documents import Document, read_mapping, read_text
from shared.base.names import SYSTEM_NAMESPACE
from shared.ports.errors import About, CallError
from shared.ports.google_credentials import ApiCalls, GoogleCredentials, Headers
from shared.ports.kubernetes.access import AccessError, read_token
from shared.ports.kubernetes.access_settings import AccountToken, Kubeconfig
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from shared.ports.kubernetes.transport import Target, Transport

LIFE = timedelta(hours=12)
"""The life of a token. An API server may have a lower limit."""
_RENEWED_AFTER = timedelta(hours=1)
_CALL_S = 10.0
_LISTED = 50
_KEPT = 2
_PLACEHOLDER = 1
"""The number of the first version, which Terraform adds. It is never destroyed: Terraform might then add
its text again, as the newest version (a guess)."""
_COMPONENT = "token_writer"
_ACCOUNTS = Target("ServiceAccount", "/api/v1", "serviceaccounts", SYSTEM_NAMESPACE)


@dataclass(frozen=True)
class Written:
    """A version that this process has added."""

    number: int
    at: datetime
    expires: datetime
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Outcome:
    """The end of a round for a step: a new version or none. ``error`` has no token."""

    step: str
    written: Written | None = None
    error: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the round must be repeated soon. Only the end of old versions can wait."""
        return bool(self.error) and self.written is None


def is_due(latest: int, written: Written, now: datetime) -> bool:
    """Whether a step needs a new token. ``latest`` is the version that its functions read; 0 if they
    cannot: they do not fall back to an older one."""
    life = written.expires - written.at
    return latest != written.number or now - written.at >= min(_RENEWED_AFTER, life / 4)


def list_retired(readable: list[int]) -> list[int]:
    """The versions to destroy, of those that can be read. Functions may still read the last but one."""
    return [number for number in sorted(readable)[:-_KEPT] if number != _PLACEHOLDER]


class SecretManager(ApiCalls):
    """Secrets, by names such as ``projects/p/secrets/s``, whose contents are never read. Each call is a
    single request, and raises `CallError`. ``endpoint`` is another address, for tests."""

    def __init__(self, endpoint: str = "", credentials: GoogleCredentials | None = None) -> None:
        super().__init__(credentials or GoogleCredentials.of_process(endpoint))
        self._url = f"{endpoint or 'https://secretmanager.googleapis.com'}/v1"
        self._session = Session()

    def read_error(self, error: Any, said: Document) -> tuple[str, str]:
        """The status, such as NOT_FOUND, and the message."""
        return read_text(said, "status"), read_text(said, "message") or str(error.message)

    def list_newest(self, secret: str) -> dict[int, bool]:
        """The newest versions by number, and whether each can be read; the newest first (documented)."""
        return self._call("versions.list", f"{secret}/versions?pageSize={_LISTED}")

    def add_version(self, secret: str, text: str) -> int:
        """Add a version with this text, and return its number."""
        body = {"payload": {"data": base64.b64encode(text.encode()).decode()}}
        return next(iter(self._call("secrets.addVersion", f"{secret}:addVersion", body)))

    def destroy_version(self, secret: str, number: int) -> None:
        """Destroy what a version holds."""
        self._call("versions.destroy", f"{secret}/versions/{number}:destroy", {})

    def _call(self, name: str, path: str, body: Mapping[str, Any] | None = None) -> dict[int, bool]:
        def send(headers: Headers, timeout_s: float) -> dict[int, bool]:
            method, url = "GET" if body is None else "POST", f"{self._url}/{path}"
            options: Any = {"headers": dict(headers), "allow_redirects": False}
            answer = self._session.request(method, url, json=body, timeout=timeout_s, **options)
            if answer.status_code != 200:
                raise from_http_response(answer)
            found = answer.json()
            versions = found.get("versions", []) if body is None else [found]
            return {int(v["name"].rpartition("/")[2]): v["state"] == "ENABLED" for v in versions}

        return self.send(name, About("secrets", path), send, lambda: _CALL_S)


class AccountTokens(Transport):
    """The call for tokens of ServiceAccounts."""

    def mint(self, account: str) -> str:
        """A token of an account for the API server. Raises `CallError`."""
        body = {"spec": {"expirationSeconds": int(LIFE.total_seconds())}}
        found = self._call("POST", _ACCOUNTS.one(account, "token"), body)
        return read_text(read_mapping(found, "status"), "token")


@dataclass
class TokenWriter:
    """Writes the tokens of all steps. ``secrets`` has the secret of each ServiceAccount; ``server`` and
    ``ca_pem`` are those of the functions, ``kubeconfig`` is the token-writer's own access.
    """

    server: str
    ca_pem: str
    secrets: Mapping[str, str]
    kubeconfig: str
    manager: SecretManager
    now: Callable[[], datetime]
    written: dict[str, Written] = field(default_factory=dict)

    def run_round(self) -> list[Outcome]:
        """Do what is due. The failure of one step stops no other."""
        # Opened in each round, because its CA may change.
        own = Connection(Kubeconfig(self.kubeconfig))
        return [self._try(step, own) for step in self.secrets]

    def _try(self, step: str, own: Connection) -> Outcome:
        try:
            return self._write(step, self.secrets[step], own)
        # A ValueError: a version without a number.
        except (AccessError, CallError, ValueError) as error:
            return Outcome(step, error=str(error))

    def _write(self, step: str, secret: str, own: Connection) -> Outcome:
        now, written = self.now(), self.written.get(step)
        versions = self.manager.list_newest(secret)
        latest, is_readable = next(iter(versions.items()), (0, False))
        if written and not is_due(latest if is_readable else 0, written, now):
            try:
                self._verify(written.token)
                return Outcome(step)
            except CallError as error:
                if error.http != 401:  # its ServiceAccount or the cluster's key was replaced
                    raise
        token = AccountTokens(own, _COMPONENT, lambda: _CALL_S).mint(step)
        self._verify(token)
        number = self.manager.add_version(secret, token)
        expires = read_token(AccountToken("", "", "", token))[1]
        written = self.written[step] = Written(number, now, expires, token)
        try:
            readable = [one for one, can_read in versions.items() if can_read]
            for old in list_retired([number, *readable]):
                self.manager.destroy_version(secret, old)
        except CallError as error:
            return Outcome(step, written, f"old versions are kept: {error}")
        return Outcome(step, written)

    def _verify(self, token: str) -> None:
        """Use a token as a function does. Another cluster, with other keys and accounts, answers 401."""
        connection = Connection(AccountToken(self.server, self.ca_pem, "", token), now=self.now)
        Cluster(connection, _COMPONENT, lambda: _CALL_S).get_cluster_id()
