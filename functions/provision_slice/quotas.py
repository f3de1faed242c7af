"""The limits of the namespaces and classes of Pods that wait, what counts for them, and who may ask."""

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from functions.provision_slice import waiting
from shared.base import backoff
from shared.base.documents import Document, find_condition, read_mapping
from shared.base.fields import is_yes
from shared.base.names import SYSTEM_NAMESPACE
from shared.base.timestamps import parse_time
from shared.ports.kubernetes.cluster import Cluster
from shared.slices import candidates, concurrency
from shared.slices.classes import SliceClass, find_class
from shared.slices.create_or_release import PAUSED_KEY
from shared.slices.kinds import KINDS, Leader
from shared.slices.kinds.kind import UnitKind, find_transition_time
from shared.slices.limits import NAMESPACES_KEY, PLACE, Limit, Limits, Quota, limit_of, parse
from shared.slices.provider import DesiredSlice, Slice
from shared.slices.requests import is_open
from shared.slices.units import (
    InputError,
    Unit,
    find_consumed_request,
    find_wait_start,
    is_unschedulable,
    read_demand,
)
from shared.slices.work import SliceWork
from shared.triggers.message import REQUEST_KIND, Cause, Message

MAX_ASKING = 10
"""How many Pods ask a class for a slice of one shape in a run of the sweep, if one of its candidates has
refused that in the last ten minutes."""


IN_PROGRESS = ("Creating", "Provisioning", "Ready", "Replacing", "NextCandidate", "Deleting")
"""The reasons of a request whose node pool is being changed, or is complete but for its Nodes. It is
observed in each run of the sweep, because no event reports the end to it; as no resync, because what has
failed is created again at growing intervals."""


WAITING = ("LimitReached", "Exhausted")
"""The reasons of a request that waits for the end of another slice, or for a candidate that may be asked
again. The `MAX_ASKING` oldest ones are observed in each run of the sweep, as Pods are: no event reports
that to them."""


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


def list_due_requests(work: SliceWork, pods: Iterable[Document]) -> tuple[Message, ...]:
    """Messages about the open ProvisioningRequests that are due, if a namespace lists their kind. One is
    due by its own age, and by the wait of those of these Pods that consume it: a slice of it may be gone
    that they need again."""
    if REQUEST_KIND not in work.cluster.get_jobset_options().get(NAMESPACES_KEY, ""):
        return ()
    listed, found, asking = list[dict[str, Any]](), [], []
    starts = _list_wait_starts(pods)
    with work.best_effort():  # Pods get their slices without it
        listed = work.cluster.list_requests("", work.now)
    for one in filter(is_open, listed):
        provisioned = find_condition(read_mapping(one, "status"), "Provisioned")
        created = parse_time(one["metadata"]["creationTimestamp"])
        since = {find_transition_time(one, ("Provisioned",)) or created}
        key = one["metadata"]["namespace"], one["metadata"]["name"]
        if any(backoff.is_due(start, work.trigger.at) for start in since | starts.get(key, set())):
            found.append(waiting.build_request_message(one["metadata"], work.now))
        elif work.provider.is_gke and provisioned.get("reason") in IN_PROGRESS:
            message = waiting.build_request_message(one["metadata"], work.now)
            found.append(replace(message, cause=Cause.ADDED))
        elif provisioned.get("reason") in WAITING:
            message = waiting.build_request_message(one["metadata"], work.now)
            asking.append((created, message.uid, replace(message, cause=Cause.ADDED)))
    return (*found, *(message for *_, message in sorted(asking)[:MAX_ASKING]))


def _list_wait_starts(pods: Iterable[Document]) -> Mapping[tuple[str, str], set[datetime]]:
    """Since when Pods have waited for Nodes of a ProvisioningRequest, by its namespace and name."""
    found = defaultdict[tuple[str, str], set[datetime]](set)
    for demand in map(read_demand, pods):
        name = find_consumed_request(demand)
        if name and is_unschedulable(read_mapping(demand.raw, "status")):
            found[demand.namespace, name].add(find_wait_start(demand))
    return found


def find_limits(
    cluster: Cluster, kind: UnitKind, desired: DesiredSlice, of: SliceClass
) -> tuple[Limit, ...]:
    """The limits under which a slice may be created or replaced: its namespace's and its class's. Raises
    `InputError` if it may not."""
    limit = read_limits(cluster).find(kind.name, desired.unit.namespace)
    if limit is None and not kind.is_always_on:
        raise InputError(f"{PLACE} does not list {kind.name} for {desired.unit.namespace}")
    limits = tuple(one for one in (limit, limit_of(of)) if one is not None)
    for one in limits:
        one.check(desired.chips)
    return limits


def read_quota(work: SliceWork, limits: tuple[Limit, ...]) -> Quota:
    """What counts for these limits. Raises `InputError` if that cannot be counted."""
    ledger = work.cluster.find_slice_ledger()
    if ledger is None:
        raise InputError(
            f"{limits[0].shown}, but ConfigMap {SYSTEM_NAMESPACE}/slice-ledger is missing: "
            "upgrade the chart to this version, with slices.workloads"
        )
    namespace = "" if limits[-1].class_name else limits[0].key
    return Quota.of(limits, tuple(work.provider.list_all(namespace, with_nodes=False)), ledger)


def key_of(leader: Leader) -> tuple[str, str]:
    """The kind and the namespace of a Pod."""
    return leader.kind.name, leader.demand.namespace


def read_quotas(
    work: SliceWork, leaders: Iterable[Leader], slices: Collection[Slice] = ()
) -> list[tuple[Quota, list[Leader]]]:
    """The quotas of the Pods whose namespaces or classes have limits, each with its Pods. A limit that
    cannot be read leaves no room. ``slices`` are all slices, if they have been listed."""
    limits, found = read_limits(work.cluster), dict[tuple[Limit, ...], list[Leader]]()
    of_classes = {one.name: limit for one in work.list_classes() if (limit := limit_of(one))}
    for leader in leaders:
        try:
            limit = limits.find(*key_of(leader))
        except InputError:
            limit = Limit(leader.demand.namespace, frozenset(), 0)
        of_class = of_classes.get(_find_class_name(work, leader)) if of_classes else None
        if own := tuple(one for one in (limit, of_class) if one is not None):
            found.setdefault(own, []).append(leader)
    if not found:
        return []
    ledger = work.cluster.find_slice_ledger() or {}
    slices = slices or tuple(work.provider.list_all(with_nodes=False))
    return [(Quota.of(own, slices, ledger), those) for own, those in found.items()]


def _find_class_name(work: SliceWork, leader: Leader) -> str:
    provider = work.provider
    try:
        legacy, is_gke = provider.find_legacy_class, provider.is_gke
        return find_class(leader.demand, work.list_classes(), legacy, is_gke=is_gke).name
    except InputError:
        return ""


def select_with_room(work: SliceWork, leaders: Collection[Leader]) -> list[Leader]:
    """In each namespace and class with a limit, as many of these Pods as it may have more slices."""
    selected: list[Leader] = []
    for quota, own in read_quotas(work, leaders) if leaders else ():
        room = quota.count_room(work.now)
        fitting = [
            leader
            for leader, desired in waiting.find_leaders_without_slice(own, (), work)
            if desired.name not in quota.existing and quota.find_full(desired, work.now) is None
        ]
        selected += waiting.select_leaders(fitting, room, work.now)
        # Of Pods that are interchangeable, those that have waited longest have the slices that exist.
        selected += [one for one in reversed(own) if one.kind.is_assigned][:room]
    return selected


def select_with_candidate(work: SliceWork, leaders: Collection[Leader]) -> list[Leader]:
    """Those of these Pods who may ask a candidate now (`shared.slices.candidates`): instead of the one
    that refuses their slice or lets it wait, or for the slice that they lack. Where a limit holds,
    `select_with_room` selects those who lack one.

    Of a candidate that was refused before, two try to claim the next try. `MAX_ASKING` ask if the class
    has refused the same shape recently, so that the others learn from their answers.
    """
    if not (leaders and work.list_classes()):
        return []
    if is_yes(work.cluster.get_jobset_options().get(PAUSED_KEY, "")):
        return []
    slices = {one.unit: one for one in work.provider.list_all(with_nodes=False)}
    limits = read_limits(work.cluster)
    asking = defaultdict[tuple[object, int], list[Leader]](list)
    for leader in leaders:
        unit = leader.kind.find_unit(leader.demand)
        mine = [slices.get(unit, unit)] if unit else _list_of_owner(leader, slices.values())
        found = (_find_question(work, leader, one) for one in mine)
        question = next(filter(None, found), None)
        if question and (unit is None or unit in slices or not _has_limit(limits, leader)):
            asking[question].append(leader)
    return [
        one
        for (_, most), group in asking.items()
        for one in waiting.select_leaders(group, most, work.now)
    ]


def _has_limit(limits: Limits, leader: Leader) -> bool:
    """Whether the Pod's namespace limits its kind; also if that cannot be read."""
    try:
        return limits.find(*key_of(leader)) is not None
    except InputError:
        return True


def _list_of_owner(leader: Leader, slices: Iterable[Slice]) -> list[Slice]:
    """The slices of which one may be that of a Pod of a kind whose units are assigned."""
    controller = leader.demand.controller
    name = controller.name if controller is not None else ""
    mine = (one for one in slices if (one.unit.kind, one.unit.namespace) == key_of(leader))
    return [one for one in mine if name.startswith(one.unit.owner)]


def _find_question(
    work: SliceWork, leader: Leader, about: Slice | Unit
) -> tuple[object, int] | None:
    """What a Pod may ask now for its slice, which exists or not, and how many Pods may ask that."""
    found = about if isinstance(about, Slice) else None
    unit = about.unit if isinstance(about, Slice) else about
    if found is not None and found.has_vms:
        return None
    try:
        of, offers = waiting.list_desired(leader, unit, work)
    except InputError:
        return None
    shape, eligible = offers[0].shape, [one.place for one in offers]
    if found is not None:
        is_due = candidates.find_next(of, eligible, found, shape, work.now) is not None
        return (unit.owner_key, MAX_ASKING) if is_due and found.class_name == of.name else None
    asker = f"{unit.namespace}/{offers[0].name}"
    place = candidates.choose(of, eligible, shape, asker, work.now)
    if place is None or of.is_legacy or limit_of(of) is not None:
        return None
    if candidates.Forget(place, shape, asker).find(of.refusals) is not None:
        return (of.name, shape, place), concurrency.MIN_SELECTED
    ends = [one.until for one in of.refusals if one.shape == shape]
    is_refused = any(end + candidates.REMEMBERED_FOR > work.now for end in ends)
    return (of.name, shape), MAX_ASKING if is_refused else sys.maxsize
