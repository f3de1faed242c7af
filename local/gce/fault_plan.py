"""Which calls and operations of the simulated Compute Engine are to fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

from local.base.clock import Clock
from local.base.faults import FaultPlan, switch
from local.gce.calls import Route
from local.gce.refusals import (
    API_DISABLED,
    RATE_LIMITED,
    RATE_LIMITED_429,
    OperationError,
    Refused,
)


class ComputeFaultPlan(FaultPlan[Refused, OperationError]):
    """The common plan with rate quotas, disabled APIs and failures of interconnects."""

    def __init__(self, clock: Clock, projects: Mapping[str, str]) -> None:
        super().__init__()
        self._clock = clock
        self._projects = projects
        self._rate_limited_calls = 0
        self._rate_limited_until = datetime.min
        self._rate_limit_http = 403
        self._rate_quota: int | None = None
        self._minute = datetime.min
        self._calls_of_minute: Counter[tuple[str, bool]] = Counter()
        self._disabled: set[str] = set()
        self.unreachable: set[str] = set()
        """The scopes that aggregated lists lack."""
        self._interconnect: dict[str, str] = {}

    def limit_rate(self, calls: int, seconds: float, http: int) -> None:
        """Let the next ``calls`` calls, or all calls of ``seconds``, exceed the rate quota."""
        self._rate_limited_calls = calls
        self._rate_limited_until = self._clock.now() + timedelta(seconds=seconds)
        self._rate_limit_http = http

    def set_rate_quota(self, requests: int | None) -> None:
        """Limit the calls a minute of each quota group; ``None`` is unlimited."""
        self._rate_quota = requests

    def set_disabled(self, project: str, disabled: bool) -> None:
        """Disable the API in a project, or enable it."""
        switch(self._disabled, project, disabled)

    def set_interconnect(self, group: str, outcome: str) -> None:
        """Set the final state of the interconnect of a group; ``NEVER``: there is none."""
        self._interconnect[group] = outcome

    def refuse(self, route: Route, project: str) -> None:
        """Raise `Refused` if the next call must fail before it is parsed."""
        number = self._projects[project]
        if project in self._disabled:
            raise API_DISABLED.refused(number=number)
        now = self._clock.now()
        window = self._rate_limited_until != datetime.min and now < self._rate_limited_until
        if window or self._rate_limited_calls > 0:
            self._rate_limited_calls -= 0 if window else 1
            raise self._rate_limit_refusal(route, number)
        if self._rate_quota is not None and self._count(route, now) > self._rate_quota:
            raise self._rate_limit_refusal(route, number)

    def _count(self, route: Route, now: datetime) -> int:
        """Count a call in its quota group of the current minute; returns the count."""
        minute = now.replace(second=0, microsecond=0)
        if minute != self._minute:
            self._minute = minute
            self._calls_of_minute.clear()
        group = _metric(route), " global " in route.pattern
        self._calls_of_minute[group] += 1
        return self._calls_of_minute[group]

    def _rate_limit_refusal(self, route: Route, number: str) -> Refused:
        if self._rate_limit_http == 429:
            return RATE_LIMITED_429.refused()
        return RATE_LIMITED.refused(metric=_metric(route), number=number)

    def interconnect_outcome(self, group: str) -> str:
        """The final state of an interconnect; empty if there is none."""
        outcome = self._interconnect.get(group, "ACTIVE")
        return "" if outcome == "NEVER" else outcome


def _metric(route: Route) -> str:
    """The rate quota of a call, by Compute Engine's page on rate quotas."""
    asks_group = route.verb.endswith((".listManagedInstances", ".listErrors"))
    return "Queries" if route.writes or asks_group else "Read requests"
