"""The limits of the namespaces of Pods that wait, and what these namespaces have."""

from collections.abc import Collection, Iterable

from functions.provision_slice import waiting
from shared.base.names import JOBSET_KIND, SYSTEM_NAMESPACE
from shared.ports.kubernetes.cluster import Cluster
from shared.slices.kinds import Leader
from shared.slices.limits import NAMESPACES_KEY, Limit, Limits, Quota, parse
from shared.slices.provider import DesiredSlice, Slice
from shared.slices.units import InputError
from shared.slices.work import SliceWork


def read_limits(cluster: Cluster) -> Limits:
    """The limits in the ConfigMap ``jobsets``."""
    text = cluster.get_jobset_options().get(NAMESPACES_KEY)
    return parse(text, (JOBSET_KIND,)) if text else Limits()


def find_quota(work: SliceWork, kind: str, desired: DesiredSlice) -> Quota | None:
    """The quota of the namespace in which a slice would be created; ``None`` if it has no limit. Raises
    `InputError`."""
    limit = read_limits(work.cluster).find(kind, desired.unit.namespace)
    if limit is None:
        return None
    limit.check(desired.chips)
    ledger = work.cluster.find_slice_ledger()
    if ledger is None:
        raise InputError(
            f"namespace {limit.namespace} has a limit, but ConfigMap {SYSTEM_NAMESPACE}/slice-ledger is "
            "missing: apply the manifests of this version again (component jobsets)"
        )
    return Quota.of(limit, work.provider.list_all(limit.namespace, with_nodes=False), ledger)


def read_quotas(
    work: SliceWork, leaders: Iterable[Leader], slices: Collection[Slice] = ()
) -> dict[str, Quota]:
    """The quotas of the Pods' namespaces that have limits. A limit that cannot be read leaves no room.
    ``slices`` are all slices, if they have been listed."""
    limits, found = read_limits(work.cluster), dict[str, Limit]()
    for namespace in {leader.demand.namespace for leader in leaders}:
        try:
            limit = limits.find(JOBSET_KIND, namespace)
        except InputError:
            limit = Limit(namespace, frozenset(), 0)
        if limit is not None:
            found[namespace] = limit
    if not found:
        return {}
    ledger = work.cluster.find_slice_ledger() or {}
    slices = slices or tuple(work.provider.list_all(with_nodes=False))
    return {name: Quota.of(limit, slices, ledger) for name, limit in found.items()}


def select_with_room(work: SliceWork, leaders: Collection[Leader]) -> list[Leader]:
    """In each namespace with a limit, as many of these Pods as it may have more slices."""
    selected: list[Leader] = []
    for name, quota in read_quotas(work, leaders).items() if leaders else ():
        own = (one for one in leaders if one.demand.namespace == name)
        fitting = [
            leader
            for leader, desired in waiting.find_leaders_without_slice(own, (), work.provider)
            if desired.name not in quota.existing and quota.has_room(desired, work.now)
        ]
        selected += waiting.select_leaders(fitting, quota.count_room(work.now), work.now)
    return selected
