"""Requests to the API server: single objects, lists page by page, and errors.

Requests go through the kubernetes client's `ApiClient` (its kubeconfig, TLS, authentication;
`access`), as plain dictionaries: its typed models refuse a whole list for one odd Node, and
cost 0.5 s to import.
What is refused is a `CallError` whose ``reason`` is the Status' own, as in ``Conflict``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from shared.base.documents import parse_json
from shared.ports.connection_errors import explain
from shared.ports.errors import CallError
from shared.ports.kubernetes.access import Session
from shared.ports.kubernetes.connection import Connection

MERGE_PATCH = "application/merge-patch+json"
_PAGE_SIZE = 500
NOT_SERVED = "NotServed"
"""The reason of a 404 that is not a ``Status`` of an API server about an object."""
_NOT_SERVED = "the cluster does not serve this API, or another server answers in its place"


class Transport:
    """Requests of one invocation; ``calls`` counts them.

    ``step`` is the name of the step that asks. ``remaining_s`` says how many seconds are left for
    calls; it raises `OutOfTimeError` at the end.
    """

    def __init__(self, connection: Connection, step: str, remaining_s: Callable[[], float]) -> None:
        self._connection = connection
        self._step = step
        self._remaining_s = remaining_s
        self.calls = 0

    def _find(self, path: str) -> dict[str, Any] | None:
        try:
            return self._call("GET", path)
        except CallError as error:
            if error.http == 404:
                return None
            raise

    def _delete(self, path: str, options: Mapping[str, Any]) -> None:
        try:
            self._call("DELETE", path, options)
        except CallError as error:
            if error.http not in (404, 409):
                raise

    def _list(
        self, path: str, selector: str = "", fields: str = "", *, is_paged: bool = False
    ) -> Iterator[dict[str, Any]]:
        """All objects, page by page; those with a label, a slice's at most, in one answer.

        An API server of 1.31 to 1.33 has a list in memory, unless a limit is asked for: then it reads
        every object of the kind from etcd.
        """
        query = {"limit": str(_PAGE_SIZE)} if is_paged or not selector else {}
        if selector:
            query["labelSelector"] = selector
        if fields:
            query["fieldSelector"] = fields
        while True:
            page = self._call("GET", f"{path}?{urlencode(query)}")
            yield from page["items"]
            token = page["metadata"].get("continue")
            if not token:
                return
            query["continue"] = token

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        kind: str = "application/json",
    ) -> dict[str, Any]:
        name = f"{method} {path.partition('?')[0]}"
        session = self._connection.session(self._remaining_s)
        status, raw = self._send(session, name, (method, path, body, kind))
        if status == 401:
            session = self._connection.renew(session, self._remaining_s)
            status, raw = self._send(session, name, (method, path, body, kind))
        document = _decode(raw)
        if "kind" not in document and (status < 300 or status == 404):
            # No proof that an object is absent.
            said = (raw or b"").decode(errors="replace")[:200]
            raise CallError(name, 503, NOT_SERVED, f"{_NOT_SERVED}: {said}")
        if status >= 300:
            said = document.get("message") or (raw or b"").decode(errors="replace")[:200]
            hint = f" ({self._connection.hint})" if status == 401 else ""
            raise CallError(name, status, document.get("reason") or "", f"{said}{hint}")
        return document

    def _send(
        self, session: Session, name: str, call: tuple[str, str, Mapping[str, Any] | None, str]
    ) -> tuple[int, bytes | None]:
        from kubernetes.client.exceptions import OpenApiException
        from urllib3.exceptions import HTTPError

        method, path, body, kind = call
        headers = {"Accept": "application/json", "Content-Type": kind, **session.headers}
        client = session.client
        request = client.param_serialize(
            method, path, [], [], headers, body, auth_settings=["BearerToken"]
        )
        # Read after the token was fetched: nothing but the connection comes between this and the write.
        timeout_s = self._remaining_s()
        self.calls += 1
        try:
            answer = client.call_api(*request, _request_timeout=timeout_s)
            return answer.status, answer.read()
        except (HTTPError, OpenApiException) as error:
            why = f"{client.configuration.host}: {explain(error, self._connection.trust)}"
            raise CallError(name, 0, "unreachable", why) from error


def quoted(name: str) -> str:
    """Escape a name as a part of a URL's path."""
    return quote(name, safe="")


def _decode(raw: bytes | None) -> dict[str, Any]:
    try:
        document = parse_json(raw or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
