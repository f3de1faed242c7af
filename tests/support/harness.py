"""The product in the simulation, for tests (`local.simulate.harness`)."""

from local.simulate.harness import (
    GKE_CLUSTER,
    GKE_REGION,
    JOBSET_MANIFESTS,
    MANIFESTS,
    RESERVATION,
    ROOT,
    Clusters,
    Harness,
    ProcessKilled,
    filters,
    manifests,
    using_clusters,
)

__all__ = [
    "GKE_CLUSTER",
    "GKE_REGION",
    "JOBSET_MANIFESTS",
    "MANIFESTS",
    "RESERVATION",
    "ROOT",
    "Clusters",
    "Harness",
    "ProcessKilled",
    "filters",
    "manifests",
    "using_clusters",
]
