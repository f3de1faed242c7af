"""A TCP proxy that can be disconnected and reconnected, and counts connections and bytes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from local.base.ports import LOOPBACK

T = TypeVar("T")
_CHUNK_BYTES = 65_536


class Background:
    """An event loop in its own thread, for servers that a synchronous test uses."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    def stop(self) -> None:
        """Cancel all tasks, and stop the loop."""
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Proxy:
    """Forwards a port of loopback to a server's, in both directions. Created by `open_proxy`."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self.bytes_sent = 0
        """By the client."""
        self.bytes_received = 0
        """By the client."""
        self.connections = 0
        self._server_port = server_port
        self._background = Background()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None
        self.reconnect()

    def disconnect(self) -> None:
        """Abort all connections, and accept no new ones."""
        self._background.run(self._disconnect())

    def reconnect(self) -> None:
        """Accept connections on the same port again."""
        self._background.run(self._listen())

    def close(self) -> None:
        """Disconnect, and stop the event loop."""
        self.disconnect()
        self._background.stop()

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._connect, LOOPBACK, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _disconnect(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        with suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection(
                LOOPBACK, self._server_port
            )
            self._writers.add(server_writer)
            await asyncio.gather(
                self._forward(reader, server_writer, by_client=True),
                self._forward(server_reader, writer, by_client=False),
            )
            self._writers.discard(server_writer)
        self._writers.discard(writer)
        writer.close()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, by_client: bool
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                if by_client:
                    self.bytes_sent += len(chunk)
                else:
                    self.bytes_received += len(chunk)
                writer.write(chunk)
                await writer.drain()
        writer.close()


@contextmanager
def open_proxy(server_port: int) -> Iterator[Proxy]:
    """Run a proxy to a port of loopback until the block ends."""
    proxy = Proxy(server_port)
    try:
        yield proxy
    finally:
        proxy.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
