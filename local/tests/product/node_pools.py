"""The product's port to GKE, whose requests a simulator answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from local.gce.inprocess import mount
from local.tests.gke.small_gke import CLUSTER, LOCATION, PROJECT, ZONE, Gke
from shared.ports.gke import GkeClient
from shared.ports.gke_settings import GkeSettings
from shared.slices.by_node_pool.provider import NodePools
from tests.unit.shared.slices.by_node_pool.objects import leader

SETTINGS = GkeSettings(PROJECT, LOCATION, CLUSTER, zone=ZONE)
V6E = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
    "cloud.google.com/gke-tpu-topology": "2x4",
}
LEADER = leader(node_selector=V6E)


def provider(
    gke: Gke,
    settings: GkeSettings = SETTINGS,
    *,
    remaining_s: Callable[[], float] = lambda: 30.0,
    list_readiness: Callable[[str], Sequence[bool]] = lambda _: (),
) -> NodePools:
    """Return the product's port to this GKE."""
    client = GkeClient(
        "http://simulator.test", prepare=lambda session: mount(session, gke.simulator)
    )
    return NodePools(settings, client, remaining_s, list_readiness, gke.clock.now)
