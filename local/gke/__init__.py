"""A simulated GKE: node pools over HTTP as google-cloud-container speaks it, strict, on a given clock.

See docs/reference/simulated-container-engine.md.
"""

from local.gke.cluster import Cluster
from local.gke.dials import Dials
from local.gke.kubelets import Kubelets
from local.gke.nodes import Nodes, PoolNode
from local.gke.simulator import Simulator

__all__ = ["Cluster", "Dials", "Kubelets", "Nodes", "PoolNode", "Simulator"]
