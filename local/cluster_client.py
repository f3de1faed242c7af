"""A small client of a Kubernetes API, by kubeconfig, for what a person does with kubectl."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

import aiohttp

Document = dict[str, Any]
_NO_LIMIT = aiohttp.ClientTimeout(total=None, sock_connect=10)


class ClusterClient:
    """Asks as the user of a kubeconfig; an asynchronous context manager."""

    def __init__(self, kubeconfig: Mapping[str, Any]) -> None:
        """The kubeconfig holds one cluster with its CA and one user by token."""
        cluster = kubeconfig["clusters"][0]["cluster"]
        token = kubeconfig["users"][0]["user"]["token"]
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._server = cluster["server"]
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"},
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=ca)),
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
        """One request; the answer's code and document."""
        headers = {"Accept": accept or "application/json"}
        async with self._session.request(
            method, self._server + path, json=body, headers=headers
        ) as answer:
            return answer.status, await answer.json()

    async def watch(self, path: str) -> AsyncIterator[tuple[str, Document]]:
        """What there is (``ADDED``) and all changes, for ever: type and object.

        When the stream ends it begins anew, with what there is then.
        """
        while True:
            _, listed = await self.request("GET", path)
            for item in listed["items"]:
                yield "ADDED", item
            version = listed["metadata"]["resourceVersion"]
            url = f"{self._server}{path}?watch=1&resourceVersion={version}"
            async with self._session.get(url, timeout=_NO_LIMIT) as stream:
                async for line in stream.content:
                    event = json.loads(line)
                    yield event["type"], event["object"]
