"""The two that the cases run on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from local.pubsub import server
from local.tests.contract.pubsub.bench import Bench, Clients, Endpoint, connect


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Endpoint]:
    """Where both push to."""
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture(scope="session")
def embedded_clients() -> Iterator[Clients]:
    """Of an embedded Pub/Sub on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    service = asyncio.run_coroutine_threadsafe(server.serve(), loop).result()
    with connect(service.address) as clients:
        yield clients
    asyncio.run_coroutine_threadsafe(service.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def embedded(embedded_clients: Clients, endpoint: Endpoint) -> Iterator[Bench]:
    """A project of one's own in the embedded Pub/Sub."""
    with closing(Bench(embedded_clients, endpoint)) as bench:
        yield bench


@pytest.fixture(scope="session")
def emulator_clients(pubsub_emulator: str) -> Iterator[Clients]:
    """Of Google's emulator."""
    with connect(pubsub_emulator) as clients:
        yield clients


@pytest.fixture
def emulator(emulator_clients: Clients, endpoint: Endpoint) -> Iterator[Bench]:
    """A project of one's own in Google's emulator."""
    with closing(Bench(emulator_clients, endpoint)) as bench:
        yield bench
