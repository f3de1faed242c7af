"""Clocks: a protocol, a virtual clock for tests, and the clock of an event loop.

Everything in ``local/`` that takes time (an operation that runs, a VM that boots, a push that is
retried) is a callback on a `Clock`. On a `VirtualClock` hours take milliseconds, and callbacks always
run in the same order. A `LoopClock` is real time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

Callback = Callable[[], None]


class Timer(Protocol):
    """A scheduled callback that can be cancelled."""

    def cancel(self) -> None:
        """Cancel it; does nothing if it has run or was cancelled."""


class Clock(Protocol):
    """The current time, and scheduled callbacks."""

    def now(self) -> datetime:
        """The current time, aware, in UTC."""

    def call_later(self, delay_s: float, callback: Callback) -> Timer:
        """Run ``callback`` once, ``delay_s`` seconds from now, never inside this call."""


class _VirtualTimer:
    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """A clock that moves only in `step` and `run_*`; callbacks that are due together run in order."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._order = itertools.count()
        self._queue: list[tuple[datetime, int, _VirtualTimer]] = []

    def now(self) -> datetime:
        return self._now

    def call_later(self, delay_s: float, callback: Callback) -> Timer:
        timer = _VirtualTimer(callback)
        due = self._now + timedelta(seconds=max(0.0, delay_s))
        heapq.heappush(self._queue, (due, next(self._order), timer))
        return timer

    def step(self) -> bool:
        """Move to the next callback and run it; ``False`` when there is none left."""
        while self._queue:
            due, _, timer = heapq.heappop(self._queue)
            if timer.callback is None:
                continue
            self._now = max(self._now, due)
            callback, timer.callback = timer.callback, None
            callback()
            return True
        return False

    def run_for(self, seconds: float) -> None:
        """Let ``seconds`` pass and run what is due."""
        self.run_until(lambda: False, timeout_s=seconds)

    def run_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Run callbacks until ``condition`` is true or ``timeout_s`` seconds have passed.

        Returns whether the condition was true. If so, the time is that of the callback after which it
        was true; otherwise it is the deadline.
        """
        deadline = self._now + timedelta(seconds=timeout_s)
        while not condition():
            due = self._next_due()
            if due is None or due > deadline:
                self._now = deadline
                return condition()
            self.step()
        return True

    def _next_due(self) -> datetime | None:
        while self._queue and self._queue[0][2].callback is None:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None


class OffsetClock:
    """The clock of a machine that is ``offset_s`` seconds ahead of ``clock``. Delays are the same."""

    def __init__(self, clock: Clock, offset_s: float) -> None:
        self._clock = clock
        self._offset = timedelta(seconds=offset_s)

    def now(self) -> datetime:
        return self._clock.now() + self._offset

    def call_later(self, delay_s: float, callback: Callback) -> Timer:
        return self._clock.call_later(delay_s, callback)


class LoopClock:
    """Real time, on an asyncio event loop; callbacks run on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> datetime:
        return datetime.now(UTC)

    def call_later(self, delay_s: float, callback: Callback) -> Timer:
        return self._loop.call_later(max(0.0, delay_s), callback)
