"""ProvisioningRequests: their conditions, and their slices, about which the table of slices decides."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from functions.provision_slice import decide as slices
from functions.provision_slice import observe as pods
from functions.provision_slice import quotas, waiting
from shared.base.documents import Document, read_mapping, read_mappings
from shared.base.timestamps import render_time
from shared.frame.plan import Each, Emit, Plan
from shared.ports.kubernetes.nodes import parse_node
from shared.slices import concurrency
from shared.slices.create_or_release import VARYING
from shared.slices.kinds import Leader, get_kind, kind
from shared.slices.limits import PLACE, Limit, limit_of
from shared.slices.provider import Slice, SliceState
from shared.slices.requests import (
    DETAIL,
    RequestSource,
    find_source,
    is_for_next,
    list_units,
    read_entry,
)
from shared.slices.units import InputError, Need, UnservableError
from shared.slices.work import SliceWork, list_users
from shared.triggers.message import REQUEST_KIND

EXPIRES_AFTER = timedelta(minutes=10)
"""A request expires if nobody uses its slices so long after they were complete."""


@dataclass(frozen=True)
class ObservedRequest:
    """A request, with its slices by name. ``error``: why it gets none. ``was_provisioned``: that was
    reported; slices may have been lost since. ``is_unused``: nobody has used them. ``slots``: how many
    slices the provider creates now; ``None``: all."""

    source: RequestSource
    was_provisioned: bool = False
    slices: Mapping[str, pods.ObservedPod] = field(default_factory=dict)
    ready: frozenset[str] = frozenset()
    error: InputError | None = None
    is_unused: bool = False
    slots: int | None = None


AnyObserved = pods.Observed | ObservedRequest | None
Conditions = Mapping[str, tuple[str, str, str]]  # status, reason and message by type
Plans = Mapping[str, Plan]


def observe(work: SliceWork) -> AnyObserved:
    """Read the slices of a request, if the trigger is about one; ``None`` if its workload has ended."""
    if work.request is None:
        return pods.observe(work)
    source = find_source(work.cluster, work.request)
    if source is None:
        return None
    since = kind.find_transition_time(source.request, ("Provisioned",))
    observed = ObservedRequest(source, since is not None)
    try:
        found = dict(_observe_slices(work, source))
        _check_limits(work, found)
        found = _join_quotas(found)
        observed = replace(observed, slices=found, slots=_count_slots(work, found))
    except InputError as error:
        observed = replace(observed, error=error)
    if since is None:
        ready = frozenset(name for name, one in observed.slices.items() if _is_ready(work, one))
        return replace(observed, ready=ready)
    is_late = work.now - since >= EXPIRES_AFTER
    if source.owner is None or not is_late or kind.find_true(source.workload, ("Admitted",)):
        return observed
    named, metadata = [*observed.slices], source.owner["metadata"]
    if observed.error:  # its slices are billed nevertheless
        key = source.owner["kind"], metadata["namespace"], metadata["name"]
        named = [one.name for one in work.provider.list_by_owner(*key)]
    users = (list_users(work.cluster, name, work.now, lambda _: True) for name in named)
    return replace(observed, is_unused=not any(users))


def _count_slots(work: SliceWork, found: Mapping[str, pods.ObservedPod]) -> int | None:
    limit = work.provider.concurrency_limit
    missing = [one for one in found.values() if one.existing is None]
    if limit is None or len(missing) <= concurrency.MIN_SELECTED:
        return None
    return concurrency.count_slots(limit, work.provider.list_all(with_nodes=False))


def _observe_slices(
    work: SliceWork, source: RequestSource
) -> Iterator[tuple[str, pods.ObservedPod]]:
    """Raises `InputError`."""
    cluster, request = work.cluster, source.request
    namespace, limits = request["metadata"]["namespace"], quotas.read_limits(cluster)
    entries = []
    for one in read_mappings(read_mapping(request, "spec"), "podSets"):
        name = one["podTemplateRef"]["name"]
        template = cluster.find_owner("PodTemplate", namespace, name)
        if template is None:
            raise InputError(f"the PodTemplate {name} does not exist")
        entries.append(read_entry(request, name, one["count"], read_mapping(template, "template")))
    demands = list_units(source, entries)
    own = get_kind(next(iter(demands)).kind)
    for name in {REQUEST_KIND, REQUEST_KIND if own.is_always_on else own.name}:
        if limits.find(name, namespace) is None:
            raise UnservableError(f"{PLACE} does not list {name} for {namespace}")
    states = own.read_states(cluster, demands.keys(), kind.Rules(work.now))
    for unit, demand in demands.items():
        work.facts["workload"] = unit.workload_key
        state = kind.add_opt_out(states[unit])
        if state.need is Need.OPTED_OUT:
            raise UnservableError(f"{unit.kind} {unit.owner} has opted out of slices")
        # A queue resumes what is suspended when it has slices.
        if state.need is Need.SUSPENDED or is_for_next(unit, state):
            state = replace(state, need=Need.NEEDED)
        leader = Leader(demand, kind.Claim(own, is_leader=True))
        yield unit.slice_name, pods.observe_unit(work, leader, kind.Found(unit, state, None))


def _check_limits(work: SliceWork, found: Mapping[str, pods.ObservedPod]) -> None:
    """Raise `InputError` if a limit is too small for all slices together: a part of them would be
    billed, and wait for the rest. A limit that was lowered when all exist refuses none."""
    if all(one.existing is not None for one in found.values()):
        return
    asked = defaultdict[Limit, list[int]](list)
    for one in found.values():
        own = quotas.read_limits(work.cluster).find(
            one.leader.kind.name, one.desired.unit.namespace
        )
        for limit in (own, limit_of(one.of) if one.of else None):
            if limit is not None and one.need is Need.NEEDED:
                asked[limit].append(one.desired.chips)
    for limit, chips in asked.items():
        limit.check(sum(chips), len(chips))


def _join_quotas(found: Mapping[str, pods.ObservedPod]) -> dict[str, pods.ObservedPod]:
    """The slices, of which those that would be created need room for all of them."""
    together = defaultdict[Limit, dict[str, int]](dict)
    for one in found.values():
        for limit in one.quota.list_limits() if one.quota else ():
            together[limit][one.desired.name] = one.desired.chips
    return {
        name: replace(one, quota=one.quota and one.quota.join(together))
        for name, one in found.items()
    }


def _is_ready(work: SliceWork, one: pods.ObservedPod) -> bool:
    """Whether a slice is complete. GKE does not report whether the Nodes of a node pool are ready."""
    existing, demand = one.existing, one.leader.demand
    if not isinstance(existing, Slice) or not pods.is_as_asked(existing, one.desired):
        return False
    if existing.state is not SliceState.READY or not work.provider.is_gke:
        return existing.state is SliceState.READY
    nodes = map(parse_node, work.cluster.list_nodes_of_slice(existing.name))
    return sum(node.is_ready and node.offers(demand.chips) for node in nodes) >= demand.hosts


def decide(observed: AnyObserved, now: datetime) -> Plan:
    """Decide about the slices of a request, then about its conditions."""
    if observed is None:
        return Plan("RequestClosed")
    if not isinstance(observed, ObservedRequest):
        return slices.decide(observed, now)
    if observed.is_unused:  # what is lost is not created again
        return plan_status(observed, {}, now)
    plans = {name: slices.decide(one, now) for name, one in observed.slices.items()}
    missing = [name for name, one in observed.slices.items() if one.existing is None]
    for name in missing[observed.slots :] if observed.slots is not None else ():
        del plans[name]  # the provider would reject it
    status = plan_status(observed, plans, now)
    if status.outcome == "Failed":
        return status
    each = tuple(Each(name, one.first, one.outcome) for name, one in plans.items())
    rest = tuple(action for one in plans.values() for action in one.best_effort)
    resume = waiting.build_request_message(observed.source.request["metadata"], now)
    return Plan(
        status.outcome, each=each, resume=resume, best_effort=rest, if_all_succeeded=status.first
    )


def find_conditions(observed: ObservedRequest, plans: Plans, now: datetime) -> Conditions:
    """The conditions that a request is to have; others stay as they are. Never `CapacityRevoked`: Kueue
    would deactivate a Workload that runs."""
    if observed.was_provisioned:
        words = "True", "Unused", "No Pod has used the slices within ten minutes"
        return {"BookingExpired": words} if observed.is_unused else {}
    if isinstance(observed.error, UnservableError):
        return {"Failed": ("True", "Unservable", str(observed.error))}
    left, count = [*observed.slices.keys() - observed.ready], len(observed.slices)
    words = "True", "Provisioned", f"{count} of {count} slices ready: {', '.join(observed.slices)}"
    if observed.error:
        words = "False", "Refused", str(observed.error)
    elif left:
        name = min(left, key=lambda one: (one not in plans or not plans[one].first, one))
        plan = plans.get(name, Plan("Provisioning"))
        events = [one.event.message for one in plan.first if isinstance(one, Emit)]
        refusals = slices.describe_candidates(observed.slices[name], now).get("refusals")
        text = events[0] if events else f"{name} is not complete. {refusals or ''}".rstrip(". ")
        words = "False", plan.outcome, f"{count - len(left)} of {count} slices ready; {text}"
    accepted = "True", "Accepted", "tpu-functions creates the slices of this request"
    return {"Accepted": accepted, "Provisioned": words}


def plan_status(observed: ObservedRequest, plans: Plans, now: datetime) -> Plan:
    """Write the conditions of a request, if they differ from those that it has."""
    request, found = observed.source.request, find_conditions(observed, plans, now)
    known = read_mapping(request, "status")
    before = {one["type"]: one for one in read_mappings(known, "conditions")}
    conditions = dict(before)
    for one, (word, reason, text) in found.items():
        old = before.get(one, {})
        new = {"type": one, "status": word, "reason": reason, "message": text[:1024]}
        at = old["lastTransitionTime"] if old.get("status") == word else render_time(now)
        # Durations and times in a message differ at each observation.
        said, text = (VARYING.sub("", str(other.get("message"))) for other in (old, new))
        if said != text or {**old, **new, "message": ""} != {**old, "message": ""}:
            conditions[one] = {**new, "lastTransitionTime": at}
    outcome = ["Kept", *found][-1]
    if conditions == before:
        return Plan(outcome)
    status = {**known, "conditions": [*conditions.values()]}
    if found.get("Provisioned", ("",))[0] == "True":
        unit = next(iter(observed.slices.values())).desired.unit
        status["provisioningClassDetails"] = {DETAIL: unit.workload_key}
    return Plan(outcome, first=(WriteRequestStatus(request, status),))


@dataclass(frozen=True)
class WriteRequestStatus:
    """Write the status of a request, if it is unchanged."""

    request: Document
    status: Document

    def apply(self, work: SliceWork) -> None:
        work.cluster.replace_request_status(self.request, self.status)

    def describe(self) -> str:
        return f"write the conditions of {REQUEST_KIND} {self.request['metadata']['name']}"
