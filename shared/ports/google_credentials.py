"""Requests to Google's APIs, and the credentials of the process for them.

The client libraries fetch a token inside a call, without a deadline, and send the request afterwards,
however late. Here each call first gets the headers that authorize it, then reads the deadline, then
sends. Requests are made without the libraries, whose message classes take a third of a cold start.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from shared.base.documents import Document, parse_json, read_mappings, read_text
from shared.ports.connection_errors import explain, explain_page, find_error_of_api, show_answer
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
        from requests import HTTPError

        headers = self._get_headers(remaining_s)
        try:
            return send(headers, remaining_s())
        except HTTPError as error:
            if _find_status(error) != HTTPStatus.UNAUTHORIZED:
                raise
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


@dataclass(frozen=True)
class Call:
    """A request. ``name`` is the API's name of the method, as in ``instances.setMetadata``."""

    name: str
    about: About
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None


class RestApi(ABC):
    """One of Google's APIs, called in its JSON form over one HTTP session of the process.

    ``endpoint`` is another address of the API, for a simulator; ``prepare`` is called with the session.
    """

    URL: str
    """The begin of each URL."""

    def __init__(
        self,
        endpoint: str = "",
        *,
        credentials: GoogleCredentials | None = None,
        prepare: Callable[[Any], None] | None = None,
    ) -> None:
        self.credentials = credentials or GoogleCredentials.of_process(endpoint)
        self._url = endpoint + urlsplit(self.URL).path if endpoint else self.URL
        self._prepare = prepare
        self._session: Any = None
        self._lock = threading.Lock()

    @abstractmethod
    def read_error(self, said: Document, reason: str) -> tuple[str, str]:
        """The code and the message of an error. ``said`` is what the API says about it, or empty;
        ``reason`` is the reason in its details."""

    def request(
        self,
        call: Call,
        parse: Callable[[Document], AnswerT],
        remaining_s: Callable[[], float],
        count: Callable[[], None] = lambda: None,
    ) -> AnswerT:
        """Make a request and parse its answer. ``count`` is called when it is sent. Raises `CallError`.

        An error in another form than the API's shows nothing about the resource: a proxy, a load
        balancer or a wrong address may have answered.
        """

        def send(headers: Headers, timeout_s: float) -> AnswerT:
            count()
            answer = self._get_session().request(
                call.method,
                f"{self._url}/{quote(call.path)}",
                params=call.query,
                data=None if call.body is None else json.dumps(call.body),
                headers={"Content-Type": "application/json", **dict(headers)},
                timeout=timeout_s,
                allow_redirects=False,
            )
            answer.raise_for_status()
            try:
                document = parse_json(answer.content)
                if not isinstance(document, dict):
                    raise TypeError
                return parse(document)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                why = f"the answer cannot be parsed ({type(error).__name__})"
                raise CallError(call.name, 0, UNPARSABLE, why, call.about) from error

        from google.auth.exceptions import GoogleAuthError
        from requests import RequestException

        try:
            return self.credentials.call(send, remaining_s)
        except (RequestException, GoogleAuthError) as error:
            raise CallError(call.name, *self._explain(error), call.about) from error

    def _get_session(self) -> Any:
        import requests

        with self._lock:
            if self._session is None:
                self._session = requests.Session()
                if self._prepare is not None:
                    self._prepare(self._session)
            return self._session

    def _explain(self, error: Exception) -> tuple[int, str, str]:
        """HTTP status, code and message of an error of a request."""
        http = _find_status(error)
        if not http:
            return 0, "unreachable", type(error).__name__
        said = find_error_of_api(error)
        if said is None and 400 <= http < 500 and http != HTTPStatus.TOO_MANY_REQUESTS:
            return 0, "unreachable", explain_page(error)
        reasons = (read_text(one, "reason") for one in read_mappings(said or {}, "details"))
        code, message = self.read_error(said or {}, next(filter(None, reasons), ""))
        return http, code, message or show_answer(error)


def _find_status(error: Exception) -> int:
    """The status code of the answer that is this error; 0 if no answer came."""
    return int(getattr(getattr(error, "response", None), "status_code", 0))


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
            if answer.status in DEFAULT_RETRYABLE_STATUS_CODES:
                said = answer.data.decode(errors="replace").strip()[:200]
                raise CallError(_CALL, answer.status, "refused", said)
            return answer

    return SingleAttemptRequest()
