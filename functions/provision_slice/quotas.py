"""The limits of the namespaces of Pods that wait, and what these namespaces have."""

from collections.abc import Collection, Iterable

from functions.provision_slice import waiting
from shared.base.names import SYSTEM_NAMESPACE
from shared.ports.kubernetes.cluster import Cluster
from shared.slices.kinds import KINDS, Leader
from shared.slices.kinds.kind import UnitKind
from shared.slices.limits import NAMESPACES_KEY, PLACE, Limit, Limits, Quota, parse
from shared.slices.provider import DesiredSlice, Slice
from shared.slices.units import InputError
from shared.slices.work import SliceWork


def read_limits(cluster: Cluster) -> Limits:
    """The limits in the ConfigMap ``jobsets``."""
    text = cluster.get_jobset_options().get(NAMESPACES_KEY)
    return parse(text, tuple(kind.name for kind in KINDS)) if text else Limits()


def is_switched_on(cluster: Cluster, leader: Leader) -> bool:
    """Whether the Pod's kind gets slices in its namespace. True if that cannot be read: the Pod gets an
    Event then."""
    if leader.kind.is_always_on:
        return True
    try:
        return read_limits(cluster).find(*key_of(leader)) is not None
    except InputError:
        return True


def lists_all(cluster: Cluster) -> bool:
    """Whether all Pods that wait are listed, not only those of JobSets: other kinds may be on."""
    return bool(read_limits(cluster).entries)


def find_limit(cluster: Cluster, kind: UnitKind, desired: DesiredSlice) -> Limit | None:
    """The limit under which a slice may be created or replaced; ``None`` if there is none. Raises
    `InputError` if it may not."""
    limit = read_limits(cluster).find(kind.name, desired.unit.namespace)
    if limit is not None:
        limit.check(desired.chips)
    elif not kind.is_always_on:
        raise InputError(f"{PLACE} does not list {kind.name} for {desired.unit.namespace}")
    return limit


def read_quota(work: SliceWork, limit: Limit) -> Quota:
    """What the namespace of a limit has. Raises `InputError` if that cannot be counted."""
    ledger = work.cluster.find_slice_ledger()
    if ledger is None:
        raise InputError(
            f"namespace {limit.namespace} has a limit, but ConfigMap {SYSTEM_NAMESPACE}/slice-ledger is "
            "missing: apply the manifests of this version again (component jobsets)"
        )
    return Quota.of(limit, work.provider.list_all(limit.namespace, with_nodes=False), ledger)


def key_of(leader: Leader) -> tuple[str, str]:
    """The kind and the namespace of a Pod."""
    return leader.kind.name, leader.demand.namespace


def read_quotas(
    work: SliceWork, leaders: Iterable[Leader], slices: Collection[Slice] = ()
) -> dict[tuple[str, str], Quota]:
    """The quotas for the Pods' kinds and namespaces that have limits. A limit that cannot be read leaves
    no room. ``slices`` are all slices, if they have been listed."""
    limits, found = read_limits(work.cluster), dict[tuple[str, str], Limit]()
    for key in set(map(key_of, leaders)):
        try:
            limit = limits.find(*key)
        except InputError:
            limit = Limit(key[1], frozenset(), 0)
        if limit is not None:
            found[key] = limit
    if not found:
        return {}
    ledger = work.cluster.find_slice_ledger() or {}
    slices = slices or tuple(work.provider.list_all(with_nodes=False))
    return {key: Quota.of(limit, slices, ledger) for key, limit in found.items()}


def select_with_room(work: SliceWork, leaders: Collection[Leader]) -> list[Leader]:
    """In each namespace with a limit, as many of these Pods as it may have more slices."""
    selected: list[Leader] = []
    for key, quota in read_quotas(work, leaders).items() if leaders else ():
        own, room = [one for one in leaders if key_of(one) == key], quota.count_room(work.now)
        fitting = [
            leader
            for leader, desired in waiting.find_leaders_without_slice(own, (), work)
            if desired.name not in quota.existing and quota.has_room(desired, work.now)
        ]
        selected += waiting.select_leaders(fitting, room, work.now)
        # Of Pods that are interchangeable, those that have waited longest have the slices that exist.
        selected += [one for one in reversed(own) if one.kind.is_assigned][:room]
    return selected
