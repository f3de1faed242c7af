"""The units of kinds whose Pods do not say which slice is theirs (`kinds.kind.UnitKind.is_assigned`)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from shared.base.names import POOL_LABEL
from shared.base.pods import parse_count
from shared.slices.assignment import SliceView
from shared.slices.kinds import Leader, get_kind
from shared.slices.kinds.kind import Found, assign_pods
from shared.slices.provider import Slice, SliceState
from shared.slices.units import Need
from shared.slices.work import SliceWork

OwnerKey = tuple[str, str, str]


def assign_unit(work: SliceWork, leader: Leader, found: Found) -> Found:
    """The unit of a Pod that waits, among the slices of its owner."""
    if found.state.need is not Need.NEEDED or found.violation:
        return found
    key = found.unit.owner_key
    views = read_views(work, work.provider.list_by_owner(*key)).get(key, {})
    assigned = assign_pods(work.cluster, leader.kind, found.unit, found.pods, views)
    ordinal = assigned.by_pod.get(leader.demand.uid)
    if ordinal is None:  # it waits no longer
        return found._replace(state=replace(found.state, need=Need.NOT_NEEDED))
    return found._replace(unit=replace(found.unit, member=str(ordinal)))


def read_views(
    work: SliceWork, slices: Iterable[Slice]
) -> Mapping[OwnerKey, Mapping[int, SliceView]]:
    """The slices of assigned kinds, by their owners, with the Nodes of all."""
    mine = [one for one in slices if get_kind(one.unit.kind).is_assigned]
    nodes: dict[str, set[str]] = {}
    for node in work.cluster.list_nodes_of_slices(sorted({one.name for one in mine})):
        metadata = node["metadata"]
        nodes.setdefault(metadata["labels"][POOL_LABEL], set()).add(metadata["name"])
    found: dict[OwnerKey, dict[int, SliceView]] = {}
    for one in mine:
        ordinal, is_deleting = parse_count(one.unit.member), one.state is SliceState.DELETING
        if ordinal is not None:
            view = SliceView(frozenset(nodes.get(one.name, ())), is_deleting)
            found.setdefault(one.unit.owner_key, {})[ordinal] = view
    return found
