"""The stand-in on a `Clock`, in one process with its API server."""

from __future__ import annotations

import json

from local.base.clock import Clock, Timer
from local.base.http import Application, Request, Response
from local.jobsets.controllers import Controller, PodBehaviour, decide, kinds_of
from local.jobsets.objects import PATHS, Call, Later, Objects

DELAY_S = 0.2
"""The delay from a watch event to the decisions; later events until then are included."""
_MERGE_PATCH = "application/merge-patch+json"


class StandIn:
    """Watches a cluster after `start`. Not thread-safe."""

    def __init__(
        self,
        clock: Clock,
        cluster: Application,
        *,
        token: str,
        controllers: frozenset[Controller] = frozenset(Controller),
        behaviour: PodBehaviour = PodBehaviour(),  # noqa: B008 - frozen
    ) -> None:
        """``token`` is an administrator's."""
        self.behaviour = behaviour
        self.controllers = controllers
        self._clock = clock
        self._cluster = cluster
        self._authorization = f"Bearer {token}"
        self._objects = Objects()
        self._turn: Timer | None = None
        self._wakeup: Timer | None = None

    def start(self) -> None:
        """List and watch."""
        for kind in sorted(kinds_of(self.controllers)):
            self._watch(kind)

    def _watch(self, kind: str) -> None:
        listed = self._execute(Call("GET", PATHS[kind])).json()
        self._objects.replace(kind, listed["items"])
        version = listed["metadata"]["resourceVersion"]
        answer = self._execute(Call("GET", f"{PATHS[kind]}?watch=1&resourceVersion={version}"))
        assert answer.stream is not None
        answer.stream.subscribe(
            lambda chunk: self._on_change(kind, chunk), lambda: self._watch(kind)
        )
        self._soon()

    def _on_change(self, kind: str, chunk: bytes) -> None:
        for line in chunk.splitlines():
            event = json.loads(line)
            self._objects.note(kind, event["type"], event["object"])
        self._soon()

    def _soon(self) -> None:
        if self._turn is None:
            self._turn = self._clock.call_later(DELAY_S, self._execute_due)

    def _execute_due(self) -> None:
        self._turn = None
        now = self._clock.now()
        steps = list(decide(self._objects, self.controllers, self.behaviour, now))
        for step in steps:
            if isinstance(step, Call):
                self._execute(step)
        self._wake_at([step for step in steps if isinstance(step, Later)])

    def _wake_at(self, laters: list[Later]) -> None:
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        if laters:
            delay = min(later.at for later in laters) - self._clock.now()
            self._wakeup = self._clock.call_later(delay.total_seconds(), self._soon)

    def _execute(self, call: Call) -> Response:
        """Execute a call; conflicts are ignored, because a watch event follows."""
        kind = _MERGE_PATCH if call.method == "PATCH" else "application/json"
        headers = {"Content-Type": kind, "Authorization": self._authorization}
        return self._cluster.handle(
            Request.of(call.method, call.path, headers=headers, body=call.encode())
        )
