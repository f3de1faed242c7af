"""A small client of the Kubernetes API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

import aiohttp

from local.base.access import Access

Document = dict[str, Any]
_LIMIT = aiohttp.ClientTimeout(total=30, sock_connect=10)
_NO_LIMIT = aiohttp.ClientTimeout(total=None, sock_connect=10)


class Refused(Exception):
    """The API server has answered with an error."""

    def __init__(self, call: str, code: int, answer: Document) -> None:
        super().__init__(f"{call} was answered {code}: {answer.get('message', '')}")
        self.code = code


class ClusterClient:
    """Calls an API server; an asynchronous context manager."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=access.tls()), timeout=_LIMIT
        )

    async def __aenter__(self) -> ClusterClient:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, accept: str = ""
    ) -> tuple[int, Document]:
        """One request; the answer's code and document. Raises `aiohttp.ClientError`, `TimeoutError`."""
        headers = self._headers(accept)
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        raw = None if body is None else json.dumps(body)
        if raw is not None:
            headers.setdefault("Content-Type", "application/json")
        async with self._session.request(
            method, self._access.server + path, data=raw, headers=headers
        ) as answer:
            return answer.status, _decode(await answer.text())

    async def find(self, path: str) -> Document | None:
        """Find an object or a list; ``None`` if it does not exist. Raises `Refused`."""
        code, found = await self.request("GET", path)
        if code == 404:
            return None
        if code != 200:
            raise Refused(f"GET {path}", code, found)
        return found

    async def read_log(self, path: str) -> str:
        """The log of a Pod, by its path. Raises `Refused`."""
        url = f"{self._access.server}{path}/log"
        async with self._session.get(url, headers=self._headers()) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise Refused(f"GET {path}/log", answer.status, _decode(text))
            return text

    async def list(self, path: str) -> list[Document]:
        """List a collection; empty if the kind does not exist. Raises `Refused`."""
        listed = await self.find(path)
        return [] if listed is None else list(listed["items"])

    async def create(self, path: str, body: Mapping[str, Any]) -> Document:
        """Create an object and return it. Raises `Refused`."""
        code, created = await self.request("POST", path, body)
        if code not in (200, 201):
            raise Refused(f"POST {path}", code, created)
        return created

    async def delete(self, path: str, uid: str, **options: Any) -> None:
        """Delete the object with this uid, if it exists. Raises `Refused`."""
        body = {"preconditions": {"uid": uid}, **options}
        code, answer = await self.request("DELETE", path, body)
        if code not in (200, 202, 404, 409):
            raise Refused(f"DELETE {path}", code, answer)

    async def watch(self, path: str) -> AsyncIterator[tuple[str, Document]]:
        """List (``ADDED``) and watch without end: type and object.

        ``path`` may have a query. When the stream ends, it lists and watches again.
        """
        join = "&" if "?" in path else "?"
        while True:
            _, listed = await self.request("GET", path)
            for item in listed["items"]:
                yield "ADDED", item
            version = listed["metadata"]["resourceVersion"]
            url = f"{self._access.server}{path}{join}watch=1&resourceVersion={version}"
            async with self._session.get(url, timeout=_NO_LIMIT, headers=self._headers()) as stream:
                async for line in stream.content:
                    event = json.loads(line)
                    yield event["type"], event["object"]

    def _headers(self, accept: str = "") -> dict[str, str]:
        authorization = self._access.authorization()
        headers = {"Accept": accept or "application/json"}
        return headers | ({"Authorization": authorization} if authorization else {})


def _decode(text: str) -> Document:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"message": text[:200]}
