"""Which kubelets are alive by the virtual clock, so that the real controller hears the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from local.base.clock import Clock


@dataclass(frozen=True)
class Grace:
    """How long a kubelet may be silent on a real control plane, in real seconds, and when its Lease
    is renewed.

    Kubernetes' grace of 50 would be waited for in each story of a silent kubelet. Hundreds of Nodes
    need a longer one: it takes some milliseconds to renew a Lease.
    """

    real_s: float = 20.0
    renewed_after_s: float = 5.0

    @property
    def controller_flags(self) -> tuple[str, ...]:
        """For kube-controller-manager."""
        return "--node-monitor-period=1s", f"--node-monitor-grace-period={self.real_s:.0f}s"


USUAL = Grace()
CONTROLLER_FLAGS = USUAL.controller_flags


class Hearts:
    """When each Node was last heard of, in both times.

    ``renew`` renews a Node's Lease for real; ``fall_silent`` is called when a Node has been silent
    for ``grace_s`` by the virtual clock.
    """

    def __init__(
        self,
        clock: Clock,
        grace_s: float,
        renew: Callable[[str], None],
        fall_silent: Callable[[str], None],
        real_now_s: Callable[[], float] = time.monotonic,
        real: Grace = USUAL,
    ) -> None:
        self._clock = clock
        self._grace = timedelta(seconds=grace_s)
        self._renew = renew
        self._fall_silent = fall_silent
        self._real_now_s = real_now_s
        self._real = real
        self._heard: dict[str, tuple[datetime, float]] = {}
        self._watched: set[str] = set()

    def beat(self, node: str) -> None:
        """A kubelet has sent something to the API server."""
        self._heard[node] = (self._clock.now(), self._real_now_s())
        if node not in self._watched:
            self._watched.add(node)
            self._clock.call_later(self._grace.total_seconds(), lambda: self._check(node))

    def forget(self, node: str) -> None:
        """The Node is no more."""
        self._heard.pop(node, None)

    def carry(self) -> None:
        """Renew, for real, the Leases of those that are not half as silent as they may be."""
        now, real = self._clock.now(), self._real_now_s()
        for node, (heard, renewed) in list(self._heard.items()):
            if now - heard >= self._grace / 2 or real - renewed <= self._real.renewed_after_s:
                continue
            late_s = real - renewed
            assert late_s < self._real.real_s, (
                f"too slow to play {node}: no heartbeat for {late_s:.0f} s"
            )
            self._renew(node)
            self._heard[node] = (heard, real)

    def _check(self, node: str) -> None:
        self._watched.discard(node)
        if node not in self._heard:
            return
        heard, _ = self._heard[node]
        left = heard + self._grace - self._clock.now()
        if left > timedelta(0):
            self._watched.add(node)
            self._clock.call_later(left.total_seconds(), lambda: self._check(node))
        else:
            del self._heard[node]
            self._fall_silent(node)


def lease_of(node: str) -> dict[str, Any]:
    """A Lease that is renewed now."""
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
