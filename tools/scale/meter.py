"""Counts the calls of the steps to the API server and Compute Engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from local.base.http import Request, Response
from local.cloud.simulation import topic
from local.pubsub.subscription import Subscription
from shared.triggers.routes import STEPS
from tests.support.harness import Harness

_TOKENS = {f"Bearer {step.replace('_', '-')}": step for step in STEPS}


@dataclass(frozen=True)
class Reading:
    """Counts by step."""

    messages: Counter[str]
    """Messages in the step's topic."""
    invocations: Counter[str]
    kubernetes: Counter[str]
    """Calls to the API server."""
    bytes_read: Counter[str]
    """The size of the API server's answers, uncompressed."""
    compute: Counter[str]
    """Calls to Compute Engine."""
    status_writes: Counter[str]
    nacks: Counter[str]

    def __sub__(self, other: Reading) -> Reading:
        """The differences; counts that did not change are omitted."""
        own, others = vars(self), vars(other)
        return Reading(**{name: own[name] - others[name] for name in own})


@dataclass
class Meter:
    """Counts from its creation on."""

    harness: Harness
    _kubernetes: Counter[str] = field(default_factory=Counter)
    _bytes_read: Counter[str] = field(default_factory=Counter)
    _compute: Counter[str] = field(default_factory=Counter)
    _status_writes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        kube = self.harness.simulation.kube
        handle = kube.handle

        def counted(request: Request) -> Response:
            response = handle(request)
            step = _TOKENS.get(request.headers.get("authorization", ""))
            if step is not None:
                self._note(step, request, response)
            return response

        kube.handle = counted  # type: ignore[method-assign]
        self.harness.hooks.before = self._before

    def read(self) -> Reading:
        """The counts so far."""
        subscriptions = {step: self._subscription(step) for step in STEPS}
        return Reading(
            messages=Counter({step: one.counts.received for step, one in subscriptions.items()}),
            invocations=Counter(step for step, _ in self.harness.answers),
            kubernetes=self._kubernetes.copy(),
            bytes_read=self._bytes_read.copy(),
            compute=self._compute.copy(),
            status_writes=self._status_writes.copy(),
            nacks=Counter({step: one.counts.refused for step, one in subscriptions.items()}),
        )

    def max_calls_of_an_invocation(self) -> dict[str, int]:
        """By step: the largest number of calls of one invocation, to all APIs."""
        most: dict[str, int] = {}
        for line in self.harness.log.lines:
            calls = line.get("calls")
            if calls:
                most[line["step"]] = max(most.get(line["step"], 0), sum(calls.values()))
        return most

    def _before(self, step: str, call: str) -> None:
        self._compute[step] += call.partition(" ")[2].startswith("/compute/")

    def _note(self, step: str, request: Request, response: Response) -> None:
        self._kubernetes[step] += 1
        self._bytes_read[step] += len(response.body)
        is_status = request.method == "PUT" and request.path.endswith("/status")
        self._status_writes[step] += is_status

    def _subscription(self, step: str) -> Subscription:
        name = topic(step).replace("/topics/", "/subscriptions/")
        return self.harness.simulation.pubsub.get_subscription(name)
