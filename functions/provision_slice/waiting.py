"""The Pods that wait for slices: since when, whether they need one, which are due, which try next."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from shared.base import backoff
from shared.base.documents import Document
from shared.slices import candidates, concurrency, provider
from shared.slices.classes import SliceClass
from shared.slices.kinds import Leader, find_kind, find_waiting
from shared.slices.kinds.kind import find_fence_violation
from shared.slices.provider import DesiredSlice, Provider, Slice
from shared.slices.units import (
    InputError,
    Unit,
    UnservableError,
    find_split_violation,
    find_wait_start,
    is_held,
    read_demand,
)
from shared.slices.work import SliceWork
from shared.triggers.message import POD_KIND, REQUEST_KIND, Cause, Message

UNFIT_AFTER = timedelta(minutes=15)
"""A Pod that still waits so long after it began to wait, and after its slice became ready, does not fit
the slice's Nodes."""
EMPTY_AFTER = timedelta(hours=1)
"""A node pool without Nodes has lost them, or was resized to 0, if a Pod has waited so long for it: GKE
does not take so long to create one."""
HELD_FOR = timedelta(minutes=1)
"""A Pod of a gang that the scheduler has not tried is held only if it still waits so long after its
creation: free Nodes may suffice for one that it is just about to try."""


@dataclass(frozen=True)
class PodsWithoutSlice:
    """The Pods that wait for slices that do not exist and can be created, and all existing slices.

    The provider changes at most ``limit`` slices at the same time.
    """

    limit: int
    desired: tuple[tuple[Leader, DesiredSlice], ...]
    slices: tuple[Slice, ...]


def find_all(pods: Iterable[Mapping[str, Any]]) -> list[Leader]:
    """The Pods that wait for a slice, also those that do not lead, the longest wait first."""
    found = (one for pod in pods if (one := find_waiting(pod)))
    return sorted(found, key=lambda one: (find_wait_start(one.demand), one.demand.uid))


def find_leaders(pods: Iterable[Mapping[str, Any]]) -> list[Leader]:
    """The Pods that wait for a slice and stand for their units, the longest wait first."""
    return [one for one in find_all(pods) if one.claim.is_leader]


def list_followers(waiting: Iterable[Leader], now: datetime) -> list[Leader]:
    """Of each unit whose leader does not wait, the Pod that has waited longest, if it may be unfit or
    gets no slice."""
    found: dict[Unit | None, Leader] = {}
    for one in sorted(waiting, key=lambda one: not one.claim.is_leader):
        found.setdefault(one.kind.find_unit(one.demand), one)
    return [
        one
        for one in found.values()
        if not one.claim.is_leader
        and (one.claim.refusal or now - find_wait_start(one.demand) >= UNFIT_AFTER)
    ]


def is_due(leader: Leader, at: datetime, provider: Provider) -> bool:
    """Whether the Pod's resync is due in this minute. With a concurrency limit, Pods that were created
    together are spread over the minutes."""
    lag = 0.0 if provider.concurrency_limit is None else concurrency.hash_to_unit(leader.demand.uid)
    return backoff.is_due(find_wait_start(leader.demand), at, lag)


def may_be_tried(leader: Leader, now: datetime) -> bool:
    """Whether the scheduler may be just about to try the Pod, so that it must not get a slice yet."""
    return is_held(leader.demand.raw) and now - find_wait_start(leader.demand) < HELD_FOR


def build_message(leader: Leader, now: datetime) -> Message:
    """A resync about a Pod that waits, or about the ProvisioningRequest that asks for it."""
    demand = leader.demand
    if request := demand.request:
        return build_request_message(request, now)
    return Message(demand.namespace, demand.name, demand.uid, Cause.RESYNC, now, kind=POD_KIND)


def build_request_message(metadata: Document, now: datetime) -> Message:
    """A resync about a ProvisioningRequest."""
    namespace, name, uid = (str(metadata[key]) for key in ("namespace", "name", "uid"))
    return Message(namespace, name, uid, Cause.RESYNC, now, kind=REQUEST_KIND)


def leads_unit_of(pod: Document, name: str) -> bool:
    """Whether a Pod, waiting or not, stands for the unit whose slice has this name.

    The key of the unit is computed, not read from the Pod's label: anyone can write that.
    """
    demand = read_demand(pod)
    claim = find_kind(demand)
    unit = claim.kind.find_unit(demand) if claim is not None and claim.is_leader else None
    return unit is not None and unit.slice_name == name


def list_desired(
    leader: Leader, unit: Unit, work: SliceWork
) -> tuple[SliceClass, tuple[DesiredSlice, ...]]:
    """The class of the slice that a leader asks for, and the slice at each candidate that fits. Raises
    `InputError`."""
    demand, kind = leader.demand, leader.kind
    own = "" if demand.request else kind.find_pod_violation(demand, unit)
    if violation := leader.claim.refusal or own:
        raise UnservableError(violation)
    found = provider.list_desired(work.provider, demand, unit, work.list_classes())
    violation = find_fence_violation(kind, demand, unit) or find_split_violation(demand) or ""
    if violation:
        raise UnservableError(violation)
    return found


def choose_candidate(
    of: SliceClass, offers: Sequence[DesiredSlice], now: datetime
) -> DesiredSlice | None:
    """The slice at the first candidate that may be asked now, if there is one."""
    first = offers[0]
    if of.is_legacy:
        return first
    places = [one.place for one in offers]
    place = candidates.choose(of, places, first.shape, first.asker, now)
    return next((one for one in offers if one.place == place), None)


def find_leaders_without_slice(
    leaders: Iterable[Leader], slices: Iterable[Slice], work: SliceWork
) -> Iterable[tuple[Leader, DesiredSlice]]:
    """The leaders for whom a slice could be created and does not exist, with that slice. Those whose
    units are assigned wait for the sweep."""
    existing = list(slices)
    names, units = {one.name for one in existing}, {one.unit for one in existing}
    for leader in leaders:
        unit = leader.kind.find_unit(leader.demand)
        if unit is None:
            continue
        try:
            desired = choose_candidate(*list_desired(leader, unit, work), work.now)
        except InputError:
            continue
        if desired is not None and desired.name not in names and desired.unit not in units:
            yield leader, desired


def select_leaders(leaders: Sequence[Leader], slots: int, now: datetime) -> list[Leader]:
    """Select Pods for the free slots (`concurrency.select`)."""
    return concurrency.select(
        leaders, slots, now, lambda one: (one.demand.namespace, one.demand.uid)
    )


def select_next(
    pods: PodsWithoutSlice, changed: Collection[str], now: datetime, *, rejected: str = ""
) -> tuple[int, list[Leader]]:
    """How many Pods are left without a slice, and those of them that may try next.

    ``changed`` names the slices that are about to be changed: their changes count as begun. ``rejected``
    names the slice whose creation has just been rejected: its Pod does not try again at once.
    """
    left = [one for one in pods.desired if one[1].name not in changed]
    others = [leader for leader, desired in left if desired.name != rejected]
    slots = concurrency.count_slots(pods.limit, pods.slices, 1, changed)
    return len(left), select_leaders(others, slots, now)
