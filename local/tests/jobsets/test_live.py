"""The stand-in in real time does not hide an error of the code that runs next to it."""

from __future__ import annotations

import asyncio

import pytest

from local.base.access import Access
from local.base.cluster_client import ClusterClient
from local.jobsets import LiveStandIn
from local.show.demo import DemoFailed


def test_an_error_in_the_block_is_raised_unchanged() -> None:
    async def fail() -> None:
        nowhere = Access("https://127.0.0.1:9", None, lambda: "")
        async with (
            ClusterClient(nowhere) as client,
            LiveStandIn(client, controllers=frozenset()).at_work(),
        ):
            raise DemoFailed("not all Pods run after 120 seconds")

    with pytest.raises(DemoFailed, match="not all Pods run after 120 seconds"):
        asyncio.run(fail())
