"""The units of kinds whose Pods do not say which slice is theirs (`kinds.kind.UnitKind.is_assigned`)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from shared.base.names import POOL_LABEL
from shared.base.pods import parse_count
from shared.ports.kubernetes.cluster import Cluster
from shared.slices.assignment import SliceView
from shared.slices.kinds import Leader, get_kind
from shared.slices.kinds.kind import Found, assign_pods
from shared.slices.provider import Provider, Slice, SliceState
from shared.slices.units import Need

OwnerKey = tuple[str, str, str]


def assign_unit(cluster: Cluster, provider: Provider, leader: Leader, found: Found) -> Found:
    """The unit of a Pod that waits, among the slices of its owner."""
    key = found.unit.owner_key
    is_asked = found.state.need is Need.NEEDED and not found.violation
    slices = provider.list_by_owner(*key) if is_asked else []
    views = read_views(cluster, slices).get(key, {})
    assigned = assign_pods(cluster, leader.kind, found.unit, found.pods, views)
    ordinal, state = assigned.get(leader.demand.uid), found.state
    if ordinal is None and is_asked:  # it waits no longer
        state = replace(state, need=Need.NOT_NEEDED)
    return found._replace(unit=replace(found.unit, member=str(ordinal or 0)), state=state)


def read_all_views(
    cluster: Cluster, provider: Provider, slices: Iterable[Slice], *, is_complete: bool
) -> Mapping[OwnerKey, Mapping[int, SliceView]]:
    """The same for all owners of these slices. ``is_complete``: these are all slices."""
    mine = [one for one in slices if get_kind(one.unit.kind).is_assigned]
    if not is_complete:
        keys = dict.fromkeys(one.unit.owner_key for one in mine)
        mine = [one for key in keys for one in provider.list_by_owner(*key)]
    return read_views(cluster, mine)


def read_views(
    cluster: Cluster, slices: Iterable[Slice]
) -> Mapping[OwnerKey, Mapping[int, SliceView]]:
    """Slices by their owners and ordinals, with the Nodes of all."""
    by_name = {one.name: one for one in slices}
    if not by_name:
        return {}
    nodes: dict[str, set[str]] = {}
    for node in cluster.list_nodes_of_slices(sorted(by_name)):
        metadata = node["metadata"]
        nodes.setdefault(metadata["labels"][POOL_LABEL], set()).add(metadata["name"])
    found: dict[OwnerKey, dict[int, SliceView]] = {}
    for name, one in by_name.items():
        ordinal, is_deleting = parse_count(one.unit.member), one.state is SliceState.DELETING
        if ordinal is not None:
            view = SliceView(frozenset(nodes.get(name, ())), is_deleting)
            found.setdefault(one.unit.owner_key, {})[ordinal] = view
    return found
