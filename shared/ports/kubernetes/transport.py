"""Requests to the API server: single objects, lists page by page, and errors.

Requests go through the kubernetes client's `ApiClient` (its kubeconfig, TLS, authentication;
`access`), as plain dictionaries: its typed models refuse a whole list for one odd Node, and
cost 0.5 s to import.
An error is a `CallError`; its ``code`` is the reason of the Status, such as ``Conflict``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from shared.base.documents import parse_json, read_text
from shared.ports.connection_errors import explain
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import UNPARSABLE, About, CallError
from shared.ports.kubernetes.access import Session
from shared.ports.kubernetes.connection import Connection

MERGE_PATCH = "application/merge-patch+json"
_PAGE_SIZE = 500
_NOT_SERVED_KEPT = timedelta(minutes=1)
NOT_SERVED = "NotServed"
"""The code of a 404 that is not a ``Status`` of an API server about an object."""
_DISCOVERED = "APIResourceList"
"""The kind of discovery: a list without metadata, of ``resources``."""
_NOT_SERVED = "the cluster does not serve this API, or another server answers in its place"


@dataclass(frozen=True)
class Target:
    """The objects that a request is about: those of a kind, or one of them by its name.

    ``api`` is the path of the API, ``plural`` the kind's name in paths.
    """

    kind: str
    api: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: str = ""

    def within(self, namespace: str) -> Target:
        """The objects in a namespace; in all namespaces, if it is empty."""
        return replace(self, namespace=namespace)

    def one(self, name: str, subresource: str = "") -> Target:
        """The object of that name."""
        return replace(self, name=name, subresource=subresource)

    def select(self, query: Mapping[str, str]) -> Target:
        """The objects that these parameters select."""
        return replace(self, query=urlencode(query))

    @property
    def path(self) -> str:
        parts = ("namespaces", self.namespace) if self.namespace else ()
        named = filter(None, (*parts, self.plural, self.name, self.subresource))
        return "/".join((self.api, *(quote(part, safe="") for part in named)))


class Transport:
    """Requests of one invocation; ``calls`` counts them.

    ``component`` names the step, whose name is ``step``, as the source of Events, and as the user agent,
    which API servers record as the manager of the fields that it writes. ``remaining_s`` says how many
    seconds are left for calls; it raises `OutOfTimeError` at the end.
    """

    def __init__(self, connection: Connection, step: str, remaining_s: Callable[[], float]) -> None:
        self._connection = connection
        self.component = f"tpu-functions-{step.replace('_', '-')}"
        self._remaining_s = remaining_s
        self.calls = 0

    def _find(self, target: Target) -> dict[str, Any] | None:
        try:
            return self._call("GET", target)
        except CallError as error:
            if error.kind is ErrorKind.ABSENT:
                return None
            raise

    def _delete(self, target: Target, uid: str = "") -> None:
        """Delete an object; with a ``uid`` none but this one. It is not an error if it is gone.

        A conflict means that another object has the name, if a uid was named, and nothing if not.
        """
        options = {"preconditions": {"uid": uid}} if uid else {}
        try:
            self._call("DELETE", target, options)
        except CallError as error:
            if not (error.is_stale if uid else error.kind is ErrorKind.ABSENT):
                raise

    def _list(
        self, target: Target, selector: str = "", fields: str = "", *, is_paged: bool = False
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
            page = self._call("GET", target.select(query))
            yield from page["items"]
            token = page["metadata"].get("continue")
            if not token:
                return
            query["continue"] = token

    def _list_if_served(self, target: Target, now: datetime) -> list[dict[str, Any]]:
        """All objects. None, without a read for a minute, if the cluster does not serve them. An API
        server then answers 403, as it does if it has just started or a permission is missing: discovery,
        which everybody may read, decides."""
        cached = self._connection.cached
        if now < cached.get(target.plural, ("", now))[1]:
            return []
        try:
            return list(self._list(target))
        except CallError as error:
            if error.code != NOT_SERVED and (error.http != 403 or self._serves(target)):
                raise
            cached[target.plural] = ("", now + _NOT_SERVED_KEPT)
            return []

    def _serves(self, target: Target) -> bool:
        try:
            self._call("GET", Target(_DISCOVERED, target.api, ""))
        except CallError as error:
            if error.code == NOT_SERVED:
                return False
            raise
        return True

    def _call(
        self,
        method: str,
        target: Target,
        body: Mapping[str, Any] | None = None,
        *,
        media: str = "application/json",
    ) -> dict[str, Any]:
        name, about = f"{method} {target.path}", _find_about(target, body)
        session = self._connection.session(self._remaining_s)
        status, raw = self._send(session, name, (method, target, body, media))
        if status == 401:
            session = self._connection.renew(session, self._remaining_s)
            status, raw = self._send(session, name, (method, target, body, media))
        document = _decode(raw)
        said = read_text(document, "message") or (raw or b"").decode(errors="replace")[:200]
        # Another form proves nothing, such as that an object is absent. A server that is busy or has an
        # error, and one that knows no such user, may answer with a text.
        if not _is_of_api(document, status) and status < 500 and status not in (401, 429):
            code = NOT_SERVED if status == 404 else UNPARSABLE
            raise CallError(name, 503, code, f"{_NOT_SERVED}: {said}", about)
        if status >= 300:
            hint = f" ({self._connection.hint})" if status == 401 else ""
            raise CallError(name, status, read_text(document, "reason"), f"{said}{hint}", about)
        return document

    def _send(
        self, session: Session, name: str, call: tuple[str, Target, Mapping[str, Any] | None, str]
    ) -> tuple[int, bytes | None]:
        from kubernetes.client.exceptions import OpenApiException
        from urllib3.exceptions import HTTPError

        method, target, body, media = call
        url = f"{target.path}?{target.query}" if target.query else target.path
        headers = {"Accept": "application/json", "Content-Type": media, **session.headers}
        client = session.client
        request = client.param_serialize(
            method, url, [], [], headers, body, auth_settings=["BearerToken"]
        )
        request[2]["User-Agent"] = self.component  # param_serialize has written the client's own
        # Read after the token was fetched: nothing but the connection comes between this and the write.
        timeout_s = self._remaining_s()
        self.calls += 1
        try:
            answer = client.call_api(*request, _request_timeout=timeout_s)
            return answer.status, answer.read()
        except (HTTPError, OpenApiException) as error:
            why = f"{client.configuration.host}: {explain(error, self._connection.trust)}"
            raise CallError(name, 0, "unreachable", why, _find_about(target, body)) from error


def _find_about(target: Target, body: Mapping[str, Any] | None) -> About:
    created = (body or {}).get("metadata") or {}
    return About(target.kind, target.name or created.get("name", ""))


def _is_of_api(document: Mapping[str, Any], status: int) -> bool:
    """Whether an answer has the form of an object or a list, or of a refusal."""
    kind = read_text(document, "kind")
    if status >= 300 or kind in ("", "Status"):
        return kind != ""
    if kind == _DISCOVERED:
        return isinstance(document.get("resources"), list)
    items = document.get("items", None if kind.endswith("List") else [])
    return isinstance(items, list) and all(
        isinstance(one, Mapping) and isinstance(one.get("metadata"), Mapping)
        for one in (document, *items)
    )


def _decode(raw: bytes | None) -> dict[str, Any]:
    try:
        document = parse_json(raw or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
