"""The cluster of the harnesses of stories on an installation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from local.base.clock import VirtualClock
from local.cloud.simulation import Options
from tests.real.bridge.cluster import RealCluster
from tests.real.bridge.installation import Installation
from tests.support.harness import using_clusters


class _RealClusters:
    """Starts clusters of harnesses on an installation, one at a time, with the real time as start."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._cluster: RealCluster | None = None

    def start(self, options: Options) -> tuple[VirtualClock, tuple[RealCluster, RealCluster]]:
        self.close()
        clock = VirtualClock(datetime.now(UTC).replace(microsecond=0))
        self._cluster = RealCluster(self._installation, clock, options.kube)
        return clock, (self._cluster, self._cluster)

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()


@contextmanager
def on_installation(installation: Installation) -> Iterator[None]:
    """Make harnesses use this installation instead of the embedded cluster until the block ends."""
    clusters = _RealClusters(installation)
    try:
        with using_clusters(clusters):
            yield
    finally:
        clusters.close()
