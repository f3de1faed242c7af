"""Fixtures that run the cases on the embedded Pub/Sub and on Google's emulator."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from local.pubsub import server
from local.tests.contract.pubsub.bench import Bench, Clients, Endpoint, connect
from local.tests.contract.pubsub.case import Case

CONCURRENT_CASES = 8
"""The number of cases that run at the same time."""
Run = Callable[[Case], Any]
"""Runs a case and returns its outcome."""


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Endpoint]:
    """The HTTP endpoint that both push to."""
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture(scope="session")
def embedded_clients() -> Iterator[Clients]:
    """Clients of an embedded Pub/Sub that runs on its own thread."""
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


@pytest.fixture(scope="module")
def embedded(
    request: pytest.FixtureRequest, embedded_clients: Clients, endpoint: Endpoint
) -> Iterator[Run]:
    """Runs a case in its own project in the embedded Pub/Sub."""
    with run_concurrently(request, embedded_clients, endpoint) as run:
        yield run


@pytest.fixture(scope="session")
def emulator_clients(pubsub_emulator: str) -> Iterator[Clients]:
    """Clients of Google's emulator."""
    with connect(pubsub_emulator) as clients:
        yield clients


@pytest.fixture(scope="module")
def emulator(
    request: pytest.FixtureRequest, emulator_clients: Clients, endpoint: Endpoint
) -> Iterator[Run]:
    """Runs a case in its own project in Google's emulator."""
    with run_concurrently(request, emulator_clients, endpoint) as run:
        yield run


@contextmanager
def run_concurrently(
    request: pytest.FixtureRequest, clients: Clients, endpoint: Endpoint
) -> Iterator[Run]:
    """Run all selected cases of a module at the same time, because they mostly wait."""

    def run(case: Case) -> Any:
        with closing(Bench(clients, endpoint)) as bench:
            return case.run(bench)

    items = [item for item in request.session.items if item.path == request.path]
    cases: list[Case] = [item.callspec.params["case"] for item in items]  # type: ignore[attr-defined]
    # A case may be selected twice: for the embedded Pub/Sub and for the emulator.
    unique = {case.name: case for case in cases}
    with ThreadPoolExecutor(CONCURRENT_CASES) as pool:
        running = {name: pool.submit(run, case) for name, case in unique.items()}
        yield lambda case: running[case.name].result()
