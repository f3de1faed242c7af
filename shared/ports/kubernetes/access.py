"""The access to the cluster: a kubeconfig, or a token for a server whose CA is given.

A `Source` opens a `Session`, which has the client and the credentials of requests. `Connection` keeps
one, and opens another when it is stale or the API server has rejected it with a 401.
"""

import base64
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from shared.base.documents import parse_json
from shared.ports.connection_errors import explain
from shared.ports.errors import CallError
from shared.ports.kubernetes.access_settings import (
    Access,
    AccountToken,
    GoogleToken,
    Kubeconfig,
    TokenKind,
)
from shared.ports.unloaded import KUBERNETES, leave_unloaded

_METADATA_CALL = "token from the metadata server"
_SCOPES = (
    "https://www.googleapis.com/auth/cloud-platform",
    # Without it, GKE identifies the account by its number and not by its e-mail.
    "https://www.googleapis.com/auth/userinfo.email",
)
_JWT = re.compile(r"[\w-]+\.([\w-]+)\.[\w-]+", re.ASCII)
_MIN_READ_INTERVAL = timedelta(minutes=1)
"""Between two reads of a token that has no half-life left: each read of a secret's volume is a call."""
_MAX_READ_INTERVAL = timedelta(hours=6)
"""A foreign token that lives for a year must not be kept after the token-writer has replaced it."""


class AccessError(Exception):
    """The access to the cluster is missing or invalid; the message says what would be valid."""


@dataclass(frozen=True)
class Session:
    """The means to send a request: a kubernetes `ApiClient`, and headers with the credentials."""

    client: Any
    headers: dict[str, str] = field(default_factory=dict, repr=False)


class Source(Protocol):
    """Opens sessions."""

    trust: str
    """The variable that names the CA."""

    def open(self, timeout_s: float) -> Session:
        """Open a session. Raises `AccessError` and `CallError`."""

    def is_stale(self) -> bool:
        """Whether the session that was opened last should no longer be used."""

    @property
    def hint(self) -> str:
        """Why the API server may have rejected a new session."""


def source_of(access: Access, now: Callable[[], datetime]) -> Source:
    """The source of sessions for the settings."""
    if isinstance(access, Kubeconfig):
        return KubeconfigFile(access)
    return TokenFile(access, now) if isinstance(access, AccountToken) else ServiceAccount(access)


class KubeconfigFile:
    """A kubeconfig. It is read again after a change, so that a new version of a secret is used."""

    trust = "KUBECONFIG"

    def __init__(self, access: Kubeconfig) -> None:
        self._path, self._context = access.path, access.context
        self._stamp: object = None

    def open(self, timeout_s: float) -> Session:  # noqa: ARG002 - it is a file
        """Read the file."""
        leave_unloaded(*KUBERNETES)
        from kubernetes.client.configuration import Configuration
        from kubernetes.config import ConfigException
        from kubernetes.config.kube_config import load_kube_config
        from yaml import YAMLError

        configuration = Configuration()
        self._stamp = self._look()
        try:
            load_kube_config(self._path, self._context or None, client_configuration=configuration)
        # The client library reads a file of another shape with TypeErrors and the like.
        except (
            ConfigException,
            OSError,
            ValueError,
            YAMLError,
            TypeError,
            AttributeError,
        ) as error:
            self._stamp = None
            raise AccessError(
                f"KUBECONFIG={self._path!r} cannot be used: {str(error).rstrip('.')}. It must name a "
                "file in kubeconfig form with a current context."
            ) from error
        return Session(_client(configuration))

    def is_stale(self) -> bool:
        """Whether the file has changed since it was read."""
        return self._stamp != self._look()

    @property
    def hint(self) -> str:
        """The credentials in the file."""
        return f"KUBECONFIG={self._path!r} was read again, and its credentials are still refused"

    def _look(self) -> object:
        return [_stamp(path) for path in self._path.split(os.pathsep)]


class ServiceAccount:
    """Tokens of the service account that the function runs as, from the metadata server.

    google-auth keeps a token until shortly before it expires, and the client its connections.
    """

    trust = "CLUSTER_CA"

    def __init__(self, access: GoogleToken) -> None:
        self._access = access
        self._credentials: Any = None
        self._client: Any = None

    def open(self, timeout_s: float) -> Session:
        """Fetch a token."""
        if self._client is None:
            self._client = _client_of_server(self._access)
            self._credentials = _credentials(self._access)
        _refresh(self._credentials, self._access.kind, timeout_s)
        return Session(self._client, {"authorization": f"Bearer {self._credentials.token}"})

    def is_stale(self) -> bool:
        """Whether the token will expire soon."""
        return not self._credentials.valid

    @property
    def hint(self) -> str:
        """How the API server must be configured for this token."""
        if self._access.kind is TokenKind.ACCESS:
            return (
                f"the API server does not accept the token: CLUSTER_TOKEN={TokenKind.ACCESS} is for "
                f"GKE, others need {TokenKind.ID}"
            )
        return (
            "the API server does not accept the token: is https://accounts.google.com among its "
            f"issuers, and is CLUSTER_AUDIENCE, here {self._access.audience!r}, among the audiences?"
        )


class TokenFile:
    """A ServiceAccount's token in a file, which another program replaces long before it expires.

    The file is read at the start, at half of the token's remaining life but at least each six hours,
    and after a 401.
    """

    trust = "CLUSTER_CA"

    def __init__(self, access: AccountToken, now: Callable[[], datetime]) -> None:
        self._access = access
        self._now = now
        self._client: Any = None
        self._token = ""
        self._read_at = self._expires = datetime.min.replace(tzinfo=UTC)

    def open(self, timeout_s: float) -> Session:  # noqa: ARG002 - it is a file
        """Read the file. A token that has not expired is kept if a due read fails."""
        now, is_due = self._now(), self.is_stale()
        try:
            self._token, self._expires = read_token(self._access)
        except AccessError:
            if not is_due or now >= self._expires:
                raise
        if self._client is None:
            self._client = _client_of_server(self._access)
        half = min(_MAX_READ_INTERVAL, (self._expires - now) / 2)
        self._read_at = now + max(_MIN_READ_INTERVAL, half)
        return Session(self._client, {"authorization": f"Bearer {self._token}"})

    def is_stale(self) -> bool:
        """Whether the file is to be read again."""
        return self._now() >= self._read_at

    @property
    def hint(self) -> str:
        """Who writes the file."""
        if self._access.token:
            return "the API server does not accept the token: is it that of another cluster?"
        return (
            f"the token in CLUSTER_TOKEN_FILE={self._access.path!r} was read again, and is still "
            "refused: does the token-writer run, and is it that of this cluster?"
        )


def read_token(access: AccountToken) -> tuple[str, datetime]:
    """The token, and when it expires. Its signature is not verified: the API server does that.

    Raises `AccessError`, whose text never quotes the file.
    """
    try:
        token = access.token or Path(access.path).read_text(encoding="ascii").strip()
        found = _JWT.fullmatch(token)
        claims = parse_json(base64.urlsafe_b64decode(f"{found[1]}===")) if found else {}
        return token, datetime.fromtimestamp(claims["exp"], UTC)
    except OSError as error:
        why = f"cannot be read: {error.strerror or type(error).__name__}"
    except (ValueError, LookupError, TypeError, OverflowError):
        why = "has no token that expires: the token-writer has not run yet, or something else wrote it"
    raise AccessError(f"CLUSTER_TOKEN_FILE={access.path!r} {why}.")


def _client_of_server(access: GoogleToken | AccountToken) -> Any:
    leave_unloaded(*KUBERNETES)
    from kubernetes.client.configuration import Configuration

    return _client(Configuration(access.server, ca_cert_data=access.ca_pem))


def _client(configuration: Any) -> Any:
    from kubernetes.client.api_client import ApiClient
    from urllib3 import Retry

    # A second connection would begin after the deadline that was read for the first.
    configuration.retries = Retry(total=None, connect=0, read=0, redirect=0, status=0, other=0)
    return ApiClient(configuration)


def _stamp(path: str) -> tuple[int, ...] | None:
    with suppress(OSError):
        found = os.stat(os.path.expanduser(path))
        return (found.st_mtime_ns, found.st_size, found.st_ino)
    return None


def _credentials(access: GoogleToken) -> Any:
    from google.auth import compute_engine

    if access.kind is TokenKind.ACCESS:
        return compute_engine.Credentials(scopes=_SCOPES)
    return compute_engine.IDTokenCredentials(
        None,
        target_audience=access.audience,
        use_metadata_identity_endpoint=True,
        # A token that is bound to a client certificate is of no use without that.
        bind_id_token=False,
    )


def _refresh(credentials: Any, kind: TokenKind, timeout_s: float) -> None:
    """Fetch a token now. google-auth's errors may quote a malformed token, so they are not reported."""
    from google.auth.exceptions import GoogleAuthError

    try:
        credentials.refresh(_metadata_transport(kind, timeout_s))
    except (GoogleAuthError, ValueError, KeyError, TypeError):
        text = f"CLUSTER_TOKEN={kind}: the metadata server did not return such a token"
        raise AccessError(text) from None


def _metadata_transport(kind: TokenKind, timeout_s: float) -> Any:
    """google-auth's transport to the metadata server, without its retries, which sleep for 15 s and
    more: Pub/Sub retries the message. A proxy of the environment is not for the metadata server.
    """
    import requests
    from google.auth.exceptions import TransportError
    from google.auth.transport.requests import Request

    class MetadataRequest(Request):  # type: ignore[misc]
        def __call__(self, url: str, *, timeout: float, **options: Any) -> Any:
            try:
                answer = super().__call__(url, timeout=min(timeout, timeout_s), **options)
            except TransportError as error:
                only = f"CLUSTER_TOKEN={kind} is for functions that run on Google Cloud"
                said = f"{explain(error)}; {only}"
                raise CallError(_METADATA_CALL, 0, "unreachable", said) from error
            if answer.status == 404:
                raise AccessError(
                    f"CLUSTER_TOKEN={kind}: the metadata server knows no service account; the function "
                    "must run as one"
                )
            if answer.status != 200:
                said = answer.data.decode(errors="replace").strip()[:200]
                raise CallError(_METADATA_CALL, answer.status, "refused", said)
            return answer

    session = requests.Session()
    session.trust_env = False
    return MetadataRequest(session)
