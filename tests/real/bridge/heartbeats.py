"""Heartbeats of kubelets by the virtual clock, repeated for the real controller."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from local.base.clock import Clock


@dataclass(frozen=True)
class Grace:
    """The grace period of a real control plane and the age at which a Lease is renewed, in real seconds.

    A story with a silent kubelet takes as long as the grace period, so it is shorter than Kubernetes'
    50 s. Hundreds of Nodes need a longer one, because each renewal of a Lease takes some milliseconds.
    """

    real_s: float = 20.0
    renewed_after_s: float = 5.0

    @property
    def controller_flags(self) -> tuple[str, ...]:
        """The flags of kube-controller-manager."""
        return "--node-monitor-period=1s", f"--node-monitor-grace-period={self.real_s:.0f}s"


DEFAULT = Grace()
CONTROLLER_FLAGS = DEFAULT.controller_flags


class Heartbeats:
    """The last heartbeat of each Node, in real and virtual time.

    ``renew`` renews a Node's real Lease; ``on_silence`` is called after ``grace_s`` of the virtual clock
    without a heartbeat.
    """

    def __init__(
        self,
        clock: Clock,
        grace_s: float,
        renew: Callable[[str], None],
        on_silence: Callable[[str], None],
        real_now_s: Callable[[], float] = time.monotonic,
        real: Grace = DEFAULT,
    ) -> None:
        self._clock = clock
        self._grace = timedelta(seconds=grace_s)
        self._renew = renew
        self._on_silence = on_silence
        self._real_now_s = real_now_s
        self._real = real
        self._last: dict[str, tuple[datetime, float]] = {}
        self._watched: set[str] = set()

    def record(self, node: str) -> None:
        """Record a request of a kubelet to the API server."""
        self._last[node] = (self._clock.now(), self._real_now_s())
        if node not in self._watched:
            self._watched.add(node)
            self._clock.call_later(self._grace.total_seconds(), lambda: self._check(node))

    def forget(self, node: str) -> None:
        """Forget a deleted Node."""
        self._last.pop(node, None)

    def renew_leases(self) -> None:
        """Renew the real Leases of Nodes whose last heartbeat is less than half the grace period ago."""
        now, real = self._clock.now(), self._real_now_s()
        for node, (last, renewed) in list(self._last.items()):
            if now - last >= self._grace / 2 or real - renewed <= self._real.renewed_after_s:
                continue
            late_s = real - renewed
            assert late_s < self._real.real_s, (
                f"too slow to simulate {node}: no heartbeat for {late_s:.0f} s"
            )
            self._renew(node)
            self._last[node] = (last, real)

    def _check(self, node: str) -> None:
        self._watched.discard(node)
        if node not in self._last:
            return
        last, _ = self._last[node]
        left = last + self._grace - self._clock.now()
        if left > timedelta(0):
            self._watched.add(node)
            self._clock.call_later(left.total_seconds(), lambda: self._check(node))
        else:
            del self._last[node]
            self._on_silence(node)


def lease_of(node: str) -> dict[str, Any]:
    """Return a Lease that is renewed now."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node, "namespace": "kube-node-lease"},
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": 40,
            "renewTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        },
    }
