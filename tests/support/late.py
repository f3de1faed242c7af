"""Fakes that are slow: credentials whose token is fetched slowly, and an API that answers slowly."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from google.auth.credentials import Credentials

from local.base.clock import VirtualClock
from local.base.http import Application, Request, Response
from shared.ports.errors import OutOfTimeError

TIME_FOR_CALLS_S = 30.0
NEVER = datetime.max


class SlowCredentials(Credentials):  # type: ignore[misc]
    """Credentials without a token; ``fetch`` returns one slowly."""

    def __init__(self, fetch: Callable[[], str]) -> None:
        super().__init__()
        self._fetch = fetch

    def refresh(self, _request: Any) -> None:
        """Fetch a token."""
        self.token = self._fetch()
        self.expiry = NEVER - timedelta(days=1)


class SlowApplication:
    """An application that takes some seconds for each answer."""

    def __init__(self, application: Application, clock: VirtualClock, seconds: float) -> None:
        self._application = application
        self._clock = clock
        self._seconds = seconds

    def handle(self, request: Request) -> Response:
        self._clock.run_for(self._seconds)
        return self._application.handle(request)


def time_left(clock: VirtualClock) -> Callable[[], float]:
    """The time limit of an invocation that has started now."""
    start = clock.now()

    def remaining_s() -> float:
        left = TIME_FOR_CALLS_S - (clock.now() - start).total_seconds()
        if left <= 0:
            raise OutOfTimeError("no answer within 30 s")
        return left

    return remaining_s
