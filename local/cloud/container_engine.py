"""The simulated GKE of a run: the cluster's own node pools, whose VMs are Nodes of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from local import gke
from local.base.clock import Clock
from local.cloud.simulation import PROJECT, PROJECT_NUMBER
from local.vm.conversation import Identity
from local.vm.kubelet import KubeletBehaviour
from local.vm.transport import Network

CLUSTER, REGION, ZONE = "my-cluster", "us-central2", "us-central2-b"
FAST_GKE = gke.Timings(
    operation_s={
        "nodePools.create": (4.0, 6.0),
        "nodePools.update": (0.5, 1.0),
        "nodePools.delete": (3.0, 5.0),
    },
    pending_s=(0.1, 0.3),
    register_s=(1.0, 3.0),
    log_delay_s=(0.2, 0.4),
)
"""Accelerated: minutes become seconds."""


def simulate(
    clock: Clock,
    random: Random,
    network: Network,
    administrator: Identity,
    behaviour: KubeletBehaviour,
    on_log_entry: Callable[[dict[str, Any]], None],
) -> gke.Simulator:
    """A GKE with one cluster, whose kubelets use the administrator's credential."""
    kubelets = gke.Kubelets(
        clock, network, lambda _: administrator, administrator, behaviour=behaviour
    )
    return gke.Simulator(
        clock,
        clusters=[gke.Cluster(PROJECT, PROJECT_NUMBER, REGION, CLUSTER)],
        random=random,
        nodes=kubelets,
        on_log_entry=on_log_entry,
        timings=FAST_GKE,
    )


def environment(url: str) -> Mapping[str, str]:
    """The functions' settings for it."""
    return {
        "CONTAINER_ENDPOINT": url,
        "GCP_PROJECT_ID": PROJECT,
        "GCP_CLUSTER_LOCATION": REGION,
        "GCP_CLUSTER": CLUSTER,
        "GCP_ZONE": ZONE,
    }
