"""Sends pushes over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp

from local.pubsub.subscription import Done

USER_AGENT = "CloudPubSub-Google"
MAX_CONNECTIONS = 256
"""Far below the limit of open files; the service has no such limit."""

Authorize = Callable[[str, str], str | None]
"""Maps a push identity and an endpoint to a bearer token; `None` for a push without token."""


class HttpPusher:
    """A `local.pubsub.subscription.Pusher` on the running asyncio loop; no redirect is followed."""

    def __init__(self, authorize: Authorize) -> None:
        self._authorize = authorize
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS),
            headers={"User-Agent": USER_AGENT},
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def push(self, endpoint: str, envelope: dict[str, Any], timeout_s: float, done: Done) -> None:
        """Send the request; ``done`` is called on the loop when it has ended.

        Does nothing after `close`: a redelivery may be due then.
        """
        if self._session.closed:
            return
        task = asyncio.get_running_loop().create_task(
            self._push(endpoint, envelope, timeout_s, done)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel pushes in progress without calling ``done``."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    async def _push(
        self, endpoint: str, envelope: dict[str, Any], timeout_s: float, done: Done
    ) -> None:
        token = self._authorize(envelope["subscription"], endpoint)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.post(
                endpoint, json=envelope, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                status: int | None = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            status = None
        done(status)
