"""The credentials of the process for Google's APIs, fetched before a call and never inside one.

The client libraries fetch a token inside a call, without a deadline, and send the request afterwards,
however late. Here the libraries' clients are anonymous: each call first gets the headers that
authorize it, then reads the deadline, then sends.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from shared.base.documents import Document
from shared.ports.connection_errors import explain, explain_page, find_error_of_api
from shared.ports.errors import UNPARSABLE, About, CallError

Headers = tuple[tuple[str, str], ...]
AnswerT = TypeVar("AnswerT")

_CALL = "token for Google's APIs"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


class GoogleCredentials:
    """Credentials of google-auth, loaded when first needed and then kept.

    ``load`` returns them; it may take any time.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._loaded: Any = None
        self._lock = threading.Lock()

    @classmethod
    def of_process(cls, endpoint: str) -> GoogleCredentials:
        """The credentials of this process for Google's APIs; none for a simulator's endpoint."""
        return cls(_load_anonymous if endpoint else _load_default)

    def call(
        self, send: Callable[[Headers, float], AnswerT], remaining_s: Callable[[], float]
    ) -> AnswerT:
        """Send a request with headers and a timeout, once more with a new token after a 401.

        The deadline is read after the token was fetched. A request may still be sent late: if the
        process is frozen before the write to the socket, or the connection takes its whole timeout to
        open. Therefore a resource counts as absent only when its last intent is older than
        `SURELY_ABSENT_AFTER`. After an even longer freeze, ``report_leaks`` finds the resource.
        """
        from google.api_core.exceptions import Unauthorized

        headers = self._get_headers(remaining_s)
        try:
            return send(headers, remaining_s())
        except Unauthorized:
            renewed = self._get_headers(remaining_s, refused=headers)
            if renewed == headers:
                raise
        return send(renewed, remaining_s())

    def _get_headers(
        self, remaining_s: Callable[[], float], refused: Headers | None = None
    ) -> Headers:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            if refused is not None and refused == _render(self._loaded):
                self._loaded.token = None
            if not self._loaded.valid:
                self._loaded.refresh(_make_transport(remaining_s))
            return _render(self._loaded)


class ApiCalls(ABC):
    """Calls to an API of Google's, each authorized by ``credentials``, with the API's errors."""

    def __init__(self, credentials: GoogleCredentials) -> None:
        self.credentials = credentials

    @abstractmethod
    def read_error(self, error: Any, said: Document) -> tuple[str, str]:
        """The code and the message of an error. ``said`` is what the API says about it, or empty."""

    def send(
        self,
        name: str,
        about: About,
        call: Callable[[Headers, float], AnswerT],
        remaining_s: Callable[[], float],
    ) -> AnswerT:
        """Make a request. Raises `CallError`.

        An error in another form than the API's shows nothing about the resource: a proxy, a load
        balancer or a wrong address may have answered.
        """
        from google.api_core.exceptions import GoogleAPICallError
        from google.auth.exceptions import GoogleAuthError
        from google.protobuf.json_format import ParseError
        from requests import RequestException

        try:
            return self.credentials.call(call, remaining_s)
        except GoogleAPICallError as error:
            http, said = int(error.code or 0), find_error_of_api(error)
            if said is None and 400 <= http < 500 and http != 429:
                raise CallError(name, 0, "unreachable", explain_page(error), about) from error
            raise CallError(name, http, *self.read_error(error, said or {}), about) from error
        except (RequestException, GoogleAuthError) as error:
            raise CallError(name, 0, "unreachable", type(error).__name__, about) from error
        # The libraries' errors for an answer that they cannot parse. Their texts may quote it.
        except (ParseError, AttributeError, KeyError, TypeError, UnicodeError) as error:
            why = f"the answer cannot be parsed ({type(error).__name__})"
            raise CallError(name, 0, UNPARSABLE, why, about) from error


class LazyClients(ApiCalls):
    """Clients of Google's libraries, each opened when it is first needed and then kept.

    ``endpoint`` is another address of the API, for a simulator; ``prepare`` is called with each new
    client's HTTP session. The clients are anonymous: ``credentials`` authorize each call.
    """

    def __init__(
        self,
        endpoint: str = "",
        *,
        credentials: GoogleCredentials | None = None,
        prepare: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__(credentials or GoogleCredentials.of_process(endpoint))
        self._endpoint = endpoint
        self._prepare = prepare
        self._opened: dict[str, Any] = {}
        self._lock = threading.Lock()

    def get(self, service: str) -> Any:
        """The client of a service."""
        with self._lock:
            if service not in self._opened:
                self._opened[service] = self._open(service)
            return self._opened[service]

    @abstractmethod
    def load_class(self, service: str) -> Callable[..., Any]:
        """Import the class of a service's client."""

    def _open(self, service: str) -> Any:
        from google.api_core.client_options import ClientOptions

        options = {}
        if self._endpoint:
            options["client_options"] = ClientOptions(api_endpoint=self._endpoint)
        client = self.load_class(service)(credentials=_load_anonymous(), **options)
        session = client.transport._session
        # Without this, the session would refresh the token after a 401 and send the request again.
        session._max_refresh_attempts = 0
        session.hooks["response"].append(_check_is_object)
        if self._prepare is not None:
            self._prepare(session)
        return client


def _check_is_object(answer: Any, **_: Any) -> None:
    """Raise an error for a success without a JSON object: the libraries read some as empty lists."""
    from requests.exceptions import InvalidJSONError

    if answer.ok and not answer.content.lstrip().startswith(b"{"):
        raise InvalidJSONError("the answer is not a JSON object")


def _load_default() -> Any:
    """The credentials that google-auth finds: in a function, those of its service account."""
    import google.auth

    credentials, _project = google.auth.default(scopes=_SCOPES)
    return credentials


def _load_anonymous() -> Any:
    from google.auth.credentials import AnonymousCredentials

    return AnonymousCredentials()


def _render(credentials: Any) -> Headers:
    headers: dict[str, str] = {}
    credentials.apply(headers)
    return tuple(headers.items())


def _make_transport(remaining_s: Callable[[], float]) -> Any:
    """google-auth's transport, with what is left as timeout and without google-auth's retries, which
    sleep for 15 s: Pub/Sub tries again."""
    from google.auth.exceptions import TransportError
    from google.auth.transport import DEFAULT_RETRYABLE_STATUS_CODES
    from google.auth.transport.requests import Request

    class SingleAttemptRequest(Request):  # type: ignore[misc]
        def __call__(self, url: str, *, timeout: float | None = None, **options: Any) -> Any:
            left_s = remaining_s()
            timeout_s = left_s if timeout is None else min(timeout, left_s)
            try:
                answer = super().__call__(url, timeout=timeout_s, **options)
            except TransportError as error:
                raise CallError(_CALL, 0, "unreachable", explain(error)) from error
            said = answer.data.decode(errors="replace").strip()[:300]
            if answer.status >= 500 or answer.status in DEFAULT_RETRYABLE_STATUS_CODES:
                raise CallError(_CALL, answer.status, "refused", said)
            # An exchange of credentials, whose refusal google-auth reports without its status.
            if answer.status >= 400 and options.get("method") == "POST":
                raise CallError(_CALL, 401, "refused", f"{urlsplit(url).hostname}: {said}")
            return answer

    return SingleAttemptRequest()
