"""A VM that records what its software writes, and a metadata server for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from local.vm.metadata_server import MetadataServer

TIMEOUT_S = 20.0


@dataclass
class Machine:
    """A VM with the interface that its metadata server and its agent use."""

    project: str = "my-project"
    zone: str = "us-central1-c"
    name: str = "tng-train-0a1b2c3d-x1y2"
    id: str = "4711"
    machine_type: str = "tpu7x-standard-4t"
    image: str = "projects/my-project/global/images/ubuntu"
    metadata: dict[str, str] = field(default_factory=lambda: {"enable-guest-attributes": "TRUE"})
    serial: str = ""
    guest_attributes: dict[str, str] = field(default_factory=dict)

    def attributes(self) -> Mapping[str, str]:
        return self.metadata

    def write_serial(self, text: str) -> None:
        self.serial += text

    def set_guest_attribute(self, namespace: str, key: str, value: str) -> None:
        self.guest_attributes[f"{namespace}/{key}"] = value


class MetadataThread:
    """A `MetadataServer` on its own event loop."""

    def __init__(self, machine: Machine, port: int = 0) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def start() -> tuple[MetadataServer, str]:
            server = MetadataServer(machine)
            return server, await server.start(port)

        self.server, self.address = self._run(start())

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)

    def do(self, change: Callable[[], None]) -> None:
        """Change the metadata on the server's own thread, and answer the waiting requests."""

        async def change_and_notify() -> None:
            change()
            self.server.changed()

        self._run(change_and_notify())

    def stop(self) -> None:
        self._run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
