"""What Pods ask of slices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from shared.ports.gce.calls import Gce
from shared.ports.gke import GkeClient
from shared.ports.gke_settings import GkeSettings
from shared.ports.kubernetes.cluster import Cluster
from shared.slices.by_node_group.provider import GroupSlices
from shared.slices.by_node_pool.provider import NodePools
from shared.slices.classes import SliceClass
from shared.slices.kinds import find_leader
from shared.slices.provider import DesiredSlice, Provider, list_desired
from shared.slices.units import Demand, Unit
from tests.support.builders import NOW
from tests.support.reads import Reads


def asked(pod: dict[str, Any]) -> tuple[Demand, Unit]:
    """What a Pod that waits asks for, and its unit."""
    leader = find_leader(pod)
    assert leader is not None
    unit = leader.kind.find_unit(leader.demand)
    assert unit is not None
    return leader.demand, unit


def build_first(
    provider: Provider, demand: Demand, unit: Unit, *classes: SliceClass
) -> DesiredSlice:
    """The slice at the first candidate that fits, of one of these classes or of former versions'."""
    return list_desired(provider, demand, unit, classes)[1][0]


def build_group(
    demand: Demand, unit: Unit, options: Mapping[str, str], *classes: SliceClass
) -> DesiredSlice:
    """The TPUNodeGroup for a Pod, if this is the data of the ConfigMap ``jobsets``."""
    cluster = cast("Cluster", Reads({"get_jobset_options": options}))
    provider = GroupSlices(cluster, cast("Gce", None), lambda: NOW)
    return build_first(provider, demand, unit, *classes)


def build_pool(
    demand: Demand, unit: Unit, settings: GkeSettings, *classes: SliceClass
) -> DesiredSlice:
    """The node pool for a Pod by these settings."""
    provider = NodePools(settings, cast("GkeClient", None), lambda: 1.0, lambda _: (), lambda: NOW)
    return build_first(provider, demand, unit, *classes)
