"""Features that only the embedded server has: keys to verify its tokens, outages, a port.

All other behaviour is tested in `local.tests.contract.pubsub`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import closing
from typing import Any, TypeVar

import pytest
from google.api_core import exceptions
from google.auth import jwt

from local.pubsub import server
from local.pubsub.push import HttpPusher
from local.tests.contract.pubsub.bench import Bench, Endpoint, connect

EMAIL = "pusher@p.iam.gserviceaccount.com"

T = TypeVar("T")


class Loop:
    """An asyncio loop in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=30)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)
        self.loop.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with closing(Loop()) as loop:
        yield loop


@pytest.fixture
def service(loop: Loop) -> Iterator[server.Server]:
    service = loop.run(server.serve())
    yield service
    loop.run(service.stop())


@pytest.fixture
def bench(service: server.Server) -> Iterator[Bench]:
    with closing(Endpoint()) as endpoint, connect(service.address) as clients:
        yield Bench(clients, endpoint)


def test_the_token_of_a_push_can_be_verified(bench: Bench, service: server.Server) -> None:
    bench.topic()
    receiver = bench.receiver()
    bench.push(receiver, push_config={"oidc_token": {"service_account_email": EMAIL}})
    bench.publish()
    bearer = receiver.wait(1)[0].headers["authorization"].removeprefix("Bearer ")
    claims = jwt.decode(bearer, certs=service.tokens.certificates(), audience=receiver.url)
    assert claims["iss"] == "https://accounts.google.com"
    assert (claims["email"], claims["email_verified"]) == (EMAIL, True)
    assert claims["exp"] - claims["iat"] == 3600
    assert jwt.decode_header(bearer)["alg"] == "RS256"


def test_calls_during_an_outage_are_unavailable(bench: Bench, service: server.Server) -> None:
    bench.topic()
    bench.subscribe()
    service.pubsub.begin_outage()
    with pytest.raises(exceptions.ServiceUnavailable):
        bench.publish()
    with pytest.raises(exceptions.ServiceUnavailable):
        bench.subscriber.pull(subscription=bench.subscription_name(), max_messages=1, retry=None)


def test_serving_on_a_used_port_is_an_error(service: server.Server, loop: Loop) -> None:
    port = int(service.address.rpartition(":")[2])
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
        loop.run(server.serve(port=port))


def test_a_redelivery_that_is_due_after_the_end_is_dropped() -> None:
    async def story() -> set[asyncio.Task[Any]]:
        pusher = HttpPusher(lambda _subscription, _endpoint: None)
        await pusher.close()
        pusher.push("http://127.0.0.1:9/", {"subscription": "s"}, 1.0, lambda _status: None)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(story()) == set(), "a push would raise: its session is closed"
