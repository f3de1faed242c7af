"""Read the Pod that waits and its slice, the end of an operation, or all Pods that wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from functions.provision_slice import quotas, waiting
from shared.base.fields import is_yes
from shared.base.timestamps import guess_time
from shared.slices import candidates, concurrency
from shared.slices.assigned import assign_unit
from shared.slices.classes import Place, SliceClass
from shared.slices.create_or_release import ASKED, DEAD, PAUSED_KEY, find_phase
from shared.slices.kinds import Leader, find_leader, get_kind
from shared.slices.kinds.kind import Found, find_hosts_violation
from shared.slices.limits import Quota
from shared.slices.provider import (
    DesiredSlice,
    NameConflict,
    Slice,
    SliceState,
    Wording,
)
from shared.slices.units import InputError, Need, Unit, find_wait_start, read_demand
from shared.slices.work import (
    SliceWork,
    find_guests,
    find_users,
    list_pods_on_slice,
    list_users,
    set_trace_id,
)
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import Message
from shared.triggers.trigger import LogTrigger

CREATE_METHOD = "container.nodePools.create"
"""The method in the audit log for the end of a creation, whether it succeeded or failed."""


def observe(work: SliceWork) -> Observed:
    """Read what the decision needs: about one Pod, the end of an operation, or all Pods that wait."""
    if work.leader is not None:
        observed = _observe_pod(work, work.leader)
        return _follow_guests(work, observed) if work.trigger.is_resync else observed
    if isinstance(work.trigger, LogTrigger):
        return _observe_operation(work, work.trigger.event)
    provider = work.provider
    listed = work.cluster.list_pending_pods(with_all=quotas.lists_all(work.cluster))
    pods = [pod for pod in listed if read_demand(pod).chips]  # thousands of others may wait
    found = waiting.find_all(pods)
    leaders = [
        one for one in found if one.claim.is_leader and quotas.is_switched_on(work.cluster, one)
    ]
    # Computed for the minute of the sweep's message: this run may begin later.
    due, others = list[Leader](), list[Leader]()
    for one in leaders:
        (due if waiting.is_due(one, work.trigger.at, provider) else others).append(one)
    due += quotas.select_with_room(work, others)
    due += quotas.select_with_candidate(work, [one for one in others if one not in due])
    slots = None
    if provider.concurrency_limit is not None and len(due) > concurrency.MIN_SELECTED:
        slices = provider.list_all(with_nodes=False)
        slots = concurrency.count_slots(provider.concurrency_limit, slices)
    followers = [
        waiting.build_message(one, work.now)
        for one in waiting.list_followers(found, work.now)
        if waiting.is_due(one, work.trigger.at, provider)
        and quotas.is_switched_on(work.cluster, one)
    ]
    messages = (*quotas.list_due_requests(work, pods), *followers)
    return ObservedQueue(len(leaders), tuple(due), slots, messages)


@dataclass(frozen=True)
class ObservedPod:
    """A Pod that waits, and its slice.

    ``need``: whether its owner needs the slice. ``users`` are the owners of Pods that keep the
    existing slice from being replaced (`is_user`), if it is not as asked; or, at a resync, of Pods of
    other units on a slice that is Ready.
    ``wording``: the provider, used only for how its slices are called in Events. ``is_resync``: the
    trigger is a resync. ``quota``: if namespace or class have a limit and the slice would be created.
    ``of`` is the class of the slice, unless it is of former versions, and ``eligible`` are its
    candidates that fit the Pod. ``is_exhausted``: none of them may be asked now. ``move``: another one
    is asked next. ``changes`` are those of what is remembered, if the slice is created or stays.
    """

    leader: Leader
    desired: DesiredSlice
    existing: Slice | NameConflict | None
    need: Need
    wording: Wording
    users: tuple[str, ...] = ()
    is_paused: bool = False
    is_resync: bool = False
    quota: Quota | None = None
    owner: Mapping[str, Any] | None = None
    of: SliceClass | None = None
    eligible: tuple[Place, ...] = ()
    is_exhausted: bool = False
    move: candidates.Move | None = None
    changes: tuple[candidates.Change, ...] = ()


@dataclass(frozen=True)
class ObservedImpossible:
    """A Pod that asks for an impossible slice. ``message`` says what would be valid. ``is_leader``: it
    stands for its unit, or no Pod of the unit can get a slice."""

    message: str
    wording: Wording
    has_opted_out: bool = False
    is_leader: bool = True


@dataclass(frozen=True)
class ObservedOperation:
    """The end of an operation on a node pool.

    ``waiting_pod``: after a deletion that has succeeded, the Pod that waits for the slice.
    ``has_pod``: a Pod exists on which the end of a creation can be reported. ``granted``: the claims
    of a slice that has been created, by class: its Pod may run already, and waits for nothing then.
    """

    event: LogEvent
    wording: Wording
    waiting_pod: ObservedPod | ObservedImpossible | None
    has_pod: bool
    others: waiting.PodsWithoutSlice | None
    """The Pods that may try next; ``None`` if no Pod waits or the provider has no limit."""
    granted: tuple[tuple[SliceClass, candidates.Forget], ...] = ()


@dataclass(frozen=True)
class ObservedQueue:
    """All Pods that wait, once a minute. ``due`` are those whose resync is due in this minute, whose
    namespaces, which have limits, have room for their slices, or who may ask a candidate now.

    ``waiting`` is the number of Pods. ``slots`` is the number of free slots; ``None``: all that are due
    may try.
    """

    waiting: int
    due: tuple[Leader, ...]
    slots: int | None
    others: tuple[Message, ...] = ()
    """Resyncs that are due about ProvisioningRequests, and about Pods whose leaders do not wait."""


Observed = ObservedPod | ObservedImpossible | ObservedOperation | ObservedQueue


def _observe_operation(work: SliceWork, event: LogEvent) -> ObservedOperation:
    """Read the Pod of the operation's slice, and the Pods that may try next.

    Both steps of JobSets get the end of each operation. After a deletion, this step changes a slice in
    the same invocation, and release_slice only publishes resyncs. After a creation it is the reverse.
    """
    cluster, provider = work.cluster, work.provider
    work.facts["slice"] = event.name
    listed = cluster.list_pending_pods(with_all=quotas.lists_all(cluster))
    pods = [pod for pod in listed if read_demand(pod).chips]  # thousands of others may wait
    pod: Mapping[str, Any] | None = _find_leading_pod(pods, event.name)
    observed, others = None, None
    if event.method == CREATE_METHOD and pod is None:
        # The unit's leader may have started.
        unit = next((one.unit for one in provider.list_all() if one.name == event.name), None)
        unit_pods = get_kind(unit.kind).list_pods(cluster, unit) if unit else []
        pod = _find_leading_pod(unit_pods, event.name)
    is_creation = event.method == CREATE_METHOD
    # After a failed creation another candidate may be asked. A deletion that has failed is left to the
    # sweep: repeated here, it might fail in a loop.
    if is_creation is event.has_failed and not (is_creation and not work.list_classes()):
        leader = find_leader(pod) if pod else None
        is_on = leader is not None and quotas.is_switched_on(cluster, leader)
        observed = _observe_pod(work, leader) if leader is not None and is_on else None
    work.about = pod
    # Of the other Pods, those whose slices exist wait for the sweep.
    leaders = [one for one in waiting.find_leaders(pods) if quotas.is_switched_on(cluster, one)]
    if leaders and provider.concurrency_limit is not None:
        slices = tuple(provider.list_all(with_nodes=False))
        found = {
            one.demand.uid: quota
            for quota, own in quotas.read_quotas(work, leaders, slices)
            for one in own
        }
        desired = tuple(
            (leader, one)
            for leader, one in waiting.find_leaders_without_slice(leaders, slices, work)
            if (quota := found.get(leader.demand.uid)) is None or not quota.find_full(one, work.now)
        )
        others = waiting.PodsWithoutSlice(provider.concurrency_limit, desired, slices)
    granted = tuple(_list_granted(work, event)) if is_creation and not event.has_failed else ()
    return ObservedOperation(event, provider, observed, pod is not None, others, granted)


def _list_granted(
    work: SliceWork, event: LogEvent
) -> Iterator[tuple[SliceClass, candidates.Forget]]:
    claimed = [(of, one) for of in work.list_classes() for one in of.refusals if one.asked_by]
    listed = work.provider.list_all(with_nodes=False) if claimed else ()
    made = next((one for one in listed if one.name == event.name), None)
    if made is None or made.place is None:
        return
    asker = candidates.name_asker(made)
    for of, one in claimed:
        if (one.candidate, one.asked_by) == (made.place.key, asker):
            yield of, candidates.Forget(made.place, one.shape, asker)


def _find_leading_pod(pods: Iterable[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The Pod that stands for the unit whose slice has this name."""
    return next((pod for pod in pods if waiting.leads_unit_of(pod, name)), None)


def _observe_pod(work: SliceWork, leader: Leader) -> ObservedPod | ObservedImpossible:
    cluster, provider, demand = work.cluster, work.provider, leader.demand
    found = leader.kind.find(cluster, demand)
    if leader.kind.is_assigned:
        found = assign_unit(cluster, provider, leader, found)
    try:
        return observe_unit(work, leader, found)
    except InputError as error:
        is_out = found.state.need is Need.OPTED_OUT
        is_leader = leader.claim.is_leader or bool(leader.claim.refusal)
        return ObservedImpossible(str(error), provider, is_out, is_leader)


def _follow_guests(
    work: SliceWork, first: ObservedPod | ObservedImpossible
) -> ObservedPod | ObservedImpossible:
    """What is observed of the unit because of whose slice the Pod waits; with users, of the Pod's own.

    Nothing but a node selector keeps units that ask for the same from each other's slices. If another
    unit runs on the Pod's slice, the slice of that unit is missing; or, if a third one runs on it, that
    of the third.
    """
    left, seen = [first], set[Unit]()
    shown: dict[str, Any] = {key: work.facts[key] for key in ("slice", "uid") if key in work.facts}
    while left:
        one = left.pop()
        if not isinstance(one, ObservedPod) or one.need is not Need.NEEDED:
            continue
        existing, asked = one.existing, one.leader.demand
        if not isinstance(existing, Slice) or existing.state is not SliceState.READY:
            return one
        if not is_as_asked(existing, one.desired):
            return one
        seen.add(existing.unit)
        pods = list(list_pods_on_slice(work.cluster, existing.name))
        for unit, guest in find_guests(pods, existing.unit):
            is_same = (guest.demand.selector, guest.demand.chips) == (asked.selector, asked.chips)
            if guest.claim.is_leader and is_same and unit not in seen:
                # It is the Pod that waits.
                raw = {**guest.demand.raw, "status": asked.raw["status"]}
                waiter = guest._replace(demand=replace(guest.demand, raw=raw))
                left.append(_observe_pod(work, waiter))
        if one is first:
            kind = get_kind(existing.unit.kind)
            others = (pod for pod in pods if not kind.names_unit(pod, existing.unit))
            first = replace(one, users=tuple(islice(find_users(others, work.now), 1)))
    work.facts |= shown
    return first


def observe_unit(work: SliceWork, leader: Leader, found: Found) -> ObservedPod:
    """Read a unit's slice, and the quota if it would be created. Raises `InputError`."""
    of, offers = waiting.list_desired(leader, found.unit, work)
    size = find_hosts_violation(found, leader.demand) if leader.claim.is_leader else ""
    if violation := found.violation or size:
        raise InputError(violation)
    cluster, provider, desired, state = work.cluster, work.provider, offers[0], found.state
    work.facts["slice"] = desired.name
    existing = provider.find(desired)
    if isinstance(existing, Slice) and not leader.claim.is_leader:
        existing = replace(existing, is_selected=True, hash="")  # its leader compares it
    users: tuple[str, ...] = ()
    if isinstance(existing, Slice):
        set_trace_id(work, existing)
        start = find_wait_start(leader.demand)
        has_waited = work.now - start >= waiting.UNFIT_AFTER
        is_time_unknown = existing.state is SliceState.READY and existing.since is None
        if is_time_unknown and work.trigger.is_resync and has_waited:
            # GKE does not report how long a slice has been ready: as long as its newest Node exists.
            # Without Nodes, it is counted as ready since now, while they may still register.
            nodes = cluster.list_nodes_of_slice(existing.name)
            times = (guess_time(node["metadata"].get("creationTimestamp")) for node in nodes)
            is_empty = not nodes and work.now - start >= waiting.EMPTY_AFTER
            since = max((one for one in times if one is not None), default=work.now)
            existing = replace(existing, since=start if is_empty else since)
        if not is_as_asked(existing, desired):
            users = list_users(
                cluster, existing.name, work.now, lambda pod: is_user(pod, leader, desired)
            )
    observed = ObservedPod(
        leader=leader,
        desired=desired,
        existing=existing,
        need=state.need,
        wording=provider,
        users=users,
        is_paused=is_yes(cluster.get_jobset_options().get(PAUSED_KEY, "")),
        is_resync=work.trigger.is_resync,
        owner=state.owner,
    )
    if not of.is_legacy and observed.need is Need.NEEDED:
        observed = _observe_candidates(work, observed, of, offers)
    is_kept = existing is not None and not _may_be_replaced(existing, desired)
    is_kept = is_kept or observed.is_paused or observed.is_exhausted
    if is_kept or state.need is not Need.NEEDED:
        return observed
    # Before a slice is replaced, too: deleted, it could not be created again.
    limits = quotas.find_limits(cluster, leader.kind, desired, of)
    if not limits or existing is not None:
        return observed
    return replace(observed, quota=quotas.read_quota(work, limits))


def _observe_candidates(
    work: SliceWork, observed: ObservedPod, of: SliceClass, offers: tuple[DesiredSlice, ...]
) -> ObservedPod:
    """Choose the candidate of a slice that is to be created, or the next one for a slice that exists."""
    existing, first = observed.existing, offers[0]
    shape, asker = first.shape, first.asker
    work.facts["class"] = of.name
    observed = replace(observed, of=of, eligible=tuple(one.place for one in offers))
    if existing is None:
        desired = waiting.choose_candidate(of, offers, work.now)
        if desired is None:
            return replace(observed, is_exhausted=True)
        work.facts["candidate"] = desired.place.key
        claim = candidates.ClaimCandidate(desired.place, shape, asker, of.give_up_after)
        return replace(observed, desired=desired, changes=(claim,))
    if isinstance(existing, NameConflict) or existing.class_name != of.name:
        return observed
    if existing.has_vms and existing.place is not None:
        forget = candidates.Forget(existing.place, shape, asker)
        return replace(observed, changes=(forget,))
    if find_phase(existing) not in ASKED or not is_as_asked(existing, first):
        return observed
    record = candidates.find_record(existing, shape)
    move = candidates.find_next(of, observed.eligible, existing, shape, work.now)
    is_kept = move is not None and move.must_check and not observed.is_paused
    if is_kept and work.provider.has_vm(existing):
        move = None
    changes = (record,) if record else ()
    is_new = candidates.apply(changes, of.refusals, work.now) != of.refusals
    for one in move.changes if move else changes if is_new else ():
        if isinstance(one, candidates.RecordRefusal):
            work.facts |= {"candidate": one.place.key, "refusal": one.reason}
    return replace(observed, move=move, changes=changes)


def _may_be_replaced(existing: Slice | NameConflict, desired: DesiredSlice) -> bool:
    if isinstance(existing, NameConflict):
        return False
    return not is_as_asked(existing, desired) or find_phase(existing) in DEAD


def is_user(pod: Mapping[str, Any], leader: Leader, desired: DesiredSlice) -> bool:
    """Whether a Pod that runs on a slice keeps it from being replaced for the leader's unit.

    These do:

    - a Pod of another unit, or of an older owner of the same name;
    - a Pod of the unit that is being deleted, because it may be writing a checkpoint;
    - any Pod, if a ProvisioningRequest asks for the slice;
    - another Pod that stands for the unit. A unit has only one, so one of the two is not what its labels
      say: anyone can write them. The slice of the one that runs is kept.

    The unit's other Pods do not count, because they cannot work without the first one.
    """
    demand, controller = read_demand(pod), leader.demand.controller
    is_own = not leader.demand.request and leader.kind.names_unit(pod, desired.unit)
    if not is_own or "deletionTimestamp" in pod["metadata"]:
        return True
    if controller is None or not controller.uid:
        return False
    if demand.controller is None or demand.controller.uid != controller.uid:
        return True
    claim = leader.kind.claim(demand)
    return claim is not None and claim.is_leader


def is_as_asked(existing: Slice, desired: DesiredSlice) -> bool:
    """Whether a slice is the one that its unit asks for: the Pods' node selector matches it, and its
    hash, if it has one, is the desired one."""
    return existing.is_selected and existing.hash in ("", desired.hash)
