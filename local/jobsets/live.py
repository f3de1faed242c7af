"""The stand-in in real time, on a cluster that it reaches over HTTPS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from local.base.cluster_client import ClusterClient
from local.jobsets.controllers import Controller, PodBehaviour, decide, kinds_of
from local.jobsets.objects import JOBS, JOBSETS, PATHS, PODS, Call, Later, Objects

_DELAY_S = 0.2
_LONG_S = 3600.0


class LiveStandIn:
    """Watches a cluster within `at_work`, with an administrator's ``client``.

    It handles the JobSets, Jobs and Pods that match the label ``selector``; all if it is empty.
    """

    def __init__(
        self,
        client: ClusterClient,
        selector: str = "",
        *,
        controllers: frozenset[Controller],
        behaviour: PodBehaviour = PodBehaviour(),  # noqa: B008 - frozen
    ) -> None:
        self._client = client
        self._selector = selector
        self._controllers = controllers
        self._behaviour = behaviour
        self._objects = Objects()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Run until the block is left. Raises what the block or a task raises."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._follow(kind)) for kind in kinds_of(self._controllers)
                ]
                tasks.append(group.create_task(self._work()))
                try:
                    yield
                finally:
                    for task in tasks:
                        task.cancel()
        except ExceptionGroup as failures:
            if len(failures.exceptions) > 1:
                raise
            raise failures.exceptions[0] from None

    async def _follow(self, kind: str) -> None:
        is_selected = self._selector and kind in (JOBSETS, JOBS, PODS)
        path = f"{PATHS[kind]}?labelSelector={self._selector}" if is_selected else PATHS[kind]
        async for event, item in self._client.watch(path):
            self._objects.note(kind, event, item)
            self._changed.set()

    async def _work(self) -> None:
        delay_s = _LONG_S
        while True:
            try:
                async with asyncio.timeout(delay_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(_DELAY_S)
            self._changed.clear()
            delay_s = await self._execute_due()

    async def _execute_due(self) -> float:
        """Execute what is due; returns the seconds until the next time."""
        steps = list(decide(self._objects, self._controllers, self._behaviour, datetime.now(UTC)))
        for step in steps:
            if isinstance(step, Call):
                await self._client.request(step.method, step.path, step.body)
        due = [step.at for step in steps if isinstance(step, Later)]
        if not due:
            return _LONG_S
        return max(0.0, (min(due) - datetime.now(UTC)).total_seconds())
