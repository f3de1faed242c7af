"""Functions that take turns: each runs in a thread of its own, never two at the same time.

A function keeps its turn until it ends or hands it back. Whoever has begun or continued it goes on then.
So the order is the callers' alone, and the same in each run. An explorer that interleaves invocations
lets each call hand back (`Harness.hooks`), and chooses which function continues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from local.base.clock import VirtualClock

Continue = Callable[[], None]
"""Continues a function, until it ends or hands its turn back again; raises what the function raises."""


class _Turn:
    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._begins, self._ends = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def take(self) -> None:
        self._begins.release()
        self._ends.acquire()
        if self._error is not None:
            raise self._error

    def hand_back(self) -> None:
        self._ends.release()
        self._begins.acquire()

    def _run(self) -> None:
        self._begins.acquire()
        _own.turn = self
        try:
            self._function()
        except BaseException as error:  # noqa: BLE001 - it is raised where the turn was begun
            self._error = error
        self._ends.release()


_own = threading.local()


def begin(function: Callable[[], None]) -> None:
    """Run a function until it ends or hands its turn back. Raises what it raises."""
    _Turn(function).take()


def hand_back(schedule: Callable[[Continue], object]) -> None:
    """Hand back the turn of the function that calls this; ``schedule`` gets what continues it."""
    turn: _Turn = _own.turn
    schedule(turn.take)
    turn.hand_back()


def sleep(clock: VirtualClock, seconds: float) -> None:
    """Hand back the turn for so many seconds of a virtual clock. Outside of turns, let them pass."""
    if hasattr(_own, "turn"):
        hand_back(lambda go_on: clock.call_later(seconds, go_on))
    else:
        clock.run_for(seconds)
