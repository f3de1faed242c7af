"""A simulated GKE: the HTTP API of node pools, strict, on a given clock.

See local/docs/simulated-container-engine.md.
"""

from local.gke.cluster import Cluster
from local.gke.kubelets import Kubelets
from local.gke.nodes import Nodes, PoolNode
from local.gke.simulator import Simulator
from local.gke.timings import Timings

__all__ = ["Cluster", "Kubelets", "Nodes", "PoolNode", "Simulator", "Timings"]
