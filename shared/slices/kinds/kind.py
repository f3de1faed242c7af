"""What a kind of workload answers about its Pods and their units. Each module beside this one is a
kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from shared.base.documents import Document, read_mapping, read_mappings, read_text, read_texts
from shared.base.fields import count
from shared.base.names import HOSTNAME_LABEL, JOBSET_KIND, POOL_LABEL
from shared.base.pods import holds_chips, read_count
from shared.base.slice_names import JOB_KEY_SELECTOR
from shared.base.timestamps import guess_time
from shared.base.topology import TOPOLOGY
from shared.slices import units
from shared.slices.assignment import PodView, SliceView, assign
from shared.slices.units import Demand, Need, Unit, UnitState, has_opted_out, read_demand

if TYPE_CHECKING:
    from shared.ports.kubernetes.cluster import Cluster

TIE = "tpu-functions.dev/tie: enabled"
"""The label of the namespaces in which the webhook ``tie_pod`` ties Pods to their slices."""
INDEXED = "Indexed"
"""The completionMode of Jobs whose Pods have numbers."""
FEW_NODES = 8
"""Up to so many Nodes, Pods are listed Node by Node. For hundreds of Nodes that would take too long."""
QUEUE = "kueue.x-k8s.io/queue-name"
"""The label of a workload in a queue of Kueue."""
FEW_OWNERS = 8
"""More owners in a namespace than this are listed together instead of read one by one."""


@dataclass(frozen=True)
class Claim:
    """A kind's answer that a Pod is one of its own.

    ``is_leader``: the Pod stands for its unit's slice; another is looked at only if it waits when the
    leader does not. ``refusal``: why the Pod gets no slice, if that follows from the Pod alone.
    """

    kind: UnitKind
    is_leader: bool
    refusal: str = ""


class Entry(NamedTuple):
    """A podSet of a ProvisioningRequest, with the name of its PodTemplate."""

    name: str
    pods: int
    demand: Demand


Entries = Sequence[Entry]
Members = Iterator[tuple[str, Entry, Document]]


class Found(NamedTuple):
    """The unit of a Pod that waits, read from its owners.

    ``hosts``: the Pods with TPU chips in the unit; ``None``: they are not compared with the slice's
    hosts. ``violation``: why the unit gets no slice, if that follows from its owner. If the kind is
    assigned, the unit has no member yet, and ``pods`` are all of the owner (`assign_pods`).
    """

    unit: Unit
    state: UnitState
    hosts: int | None
    violation: str = ""
    pods: tuple[PodView, ...] = ()


@dataclass(frozen=True)
class Rules:
    """The rules by which a unit's need is decided.

    ``suspended_release``: how long a suspended owner keeps its slices; ``None``: until it is resumed.
    ``is_listed``: all slices are looked at, so one list of the owners may replace many reads.
    ``deleted``: the name of a node pool whose deletion has ended, if any. A kind that can tell whose it
    was also returns the state of that unit. ``named_by_others``: units whose slices have names of
    another system, whose marks may name no member. ``best_effort``: for reads without which a need can
    be decided.
    ``views``: the slices of owners whose kind is assigned, by the owner's key and the slice's ordinal.
    """

    now: datetime
    suspended_release: timedelta | None = None
    is_listed: bool = False
    deleted: str = ""
    named_by_others: frozenset[Unit] = frozenset()
    best_effort: Callable[[], AbstractContextManager[None]] = nullcontext
    views: Mapping[tuple[str, str, str], Mapping[int, SliceView]] = field(default_factory=dict)


class UnitKind:
    """A kind of workload whose units get slices. Reads may raise `CallError`.

    The methods here are for kinds whose Pods Kubernetes' own controllers create, or users: the owner
    alone decides how long each unit is needed.

    ``name`` is the row's key, the switch's name and the value of the label
    ``tpu-functions.dev/unit-kind``; ``api_version`` that of its owners. ``is_always_on``: it needs no
    switch. ``exclusive_topology``: the annotation of its own fence, or empty. ``is_assigned``: which
    unit a Pod belongs to follows from the owner's Pods and slices together, not from the Pod.
    ``foreign``: the labels or annotations of Pods that another kind has. ``finished``: the conditions
    of an owner that has ended.
    """

    name: str
    api_version = "apps/v1"
    is_always_on = False
    exclusive_topology = ""
    is_assigned = False
    foreign: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()

    def find_index(self, _demand: Demand) -> int | None:
        """The number of a Pod in its owner, if it has one."""
        return 0

    def find_size(self, _owner: Document) -> tuple[int, str]:
        """The Pods of a slice of several hosts, and the violation if the owner gets no such slice."""
        return 1, ""

    def find_end(self, owner: Document) -> str:
        """How an owner has ended; empty if it has not."""
        return read_text(find_true(owner, self.finished), "type")

    def find_unneeded_reason(self, _unit: Unit, _owner: Document) -> str:
        """Why an owner that has not ended does not need the unit; empty if it does."""
        return ""

    def is_for_next(self, _unit: Unit, _owner: Document) -> bool:
        """Whether the slice of a unit that is not needed is for the next ones of its owner, if a
        ProvisioningRequest asks for it: their Pods ask for none."""
        return False

    def find_change(self, _unit: Unit, _owner: Document) -> str:
        """Why the Pods of an owner ask for another slice than that of the unit since the owner was
        changed or created again; empty if they do not, or some are not of its template yet."""
        return ""

    def claim(self, demand: Demand) -> Claim | None:
        """Whether the Pod, waiting or not, is of this kind."""
        owner, given = demand.controller, demand.labels.keys() | demand.annotations.keys()
        kind = (self.api_version.rpartition("/")[0], self.name)
        is_mine = owner is not None and (owner.group, owner.kind) == kind
        if owner is None or not is_mine or not given.isdisjoint(self.foreign):
            return None
        index = self.find_index(demand)
        refusal = "" if index is not None else refuse_without_index(f"{self.name} {owner.name}")
        # Of as many Pods as there are hosts, whatever the first number is, one leads.
        is_leader = (index or 0) % demand.hosts == 0
        return Claim(self, is_leader, refusal)

    def find_unit(self, demand: Demand) -> Unit | None:
        """The unit by the Pod alone: the owner if its slice has several hosts, otherwise the Pod's
        number in it. ``None`` if the kind is assigned."""
        assert demand.controller is not None
        member = "" if demand.hosts > 1 else str(self.find_index(demand) or 0)
        return Unit(self.name, demand.namespace, demand.controller.name, member)

    def show_unit(self, demand: Demand) -> str:
        """The unit in words; of a kind that is assigned, its owner."""
        unit = self.find_unit(demand)
        assert unit is not None
        return unit.shown

    def find(self, cluster: Cluster, demand: Demand) -> Found:
        """The unit of a Pod that waits, and whether its owner needs a slice for it."""
        unit = self.find_unit(demand)
        assert unit is not None
        owner = cluster.find_owner(self.name, unit.namespace, unit.owner)
        hosts, violation = self.find_size(owner) if owner and demand.hosts > 1 else (1, "")
        return Found(unit, add_opt_out(self.decide_state(unit, owner)), hosts, violation)

    def read_states(
        self, cluster: Cluster, units: Collection[Unit], rules: Rules
    ) -> Mapping[Unit, UnitState]:
        """The state of each of these units, which have slices. Owners are read once."""
        owners = _read_owners(cluster, self.name, units)
        states = {one: self.decide_state(one, owners.get(one.owner_key), rules) for one in units}
        return {one: self._add_hold(cluster, one, state, rules) for one, state in states.items()}

    def _add_hold(self, cluster: Cluster, unit: Unit, state: UnitState, rules: Rules) -> UnitState:
        """The state of a unit whose Pods a queue has preempted, if their owner cannot be suspended: the
        queue holds their successors by scheduling gates."""
        owner, after = state.owner or {}, rules.suspended_release
        is_queued = QUEUE in read_texts(read_mapping(owner, "metadata"), "labels")
        # Jobs, which can be suspended, have no replicas.
        ready = read_count(read_mapping(owner, "status"), "readyReplicas", 0)
        is_ready = ready >= read_count(read_mapping(owner, "spec"), "replicas", 0)
        if state.need is not Need.NEEDED or is_ready or not (is_queued and after):
            return state
        pods = self.list_pods(cluster, unit)
        times = [guess_time(one["metadata"].get("creationTimestamp")) for one in pods]
        is_held = all(any(read_mappings(one["spec"], "schedulingGates")) for one in pods)
        since = max((one for one in times if one is not None), default=rules.now)
        if not is_held or rules.now - since < after:
            return state
        minutes = int((rules.now - since) / timedelta(minutes=1))
        why = f"a queue has held the Pods of {unit.shown} for {minutes} minutes"
        return UnitState(Need.NOT_NEEDED, why, since + after, owner)

    def decide_state(
        self, unit: Unit, owner: Document | None, rules: Rules | None = None
    ) -> UnitState:
        """Whether the owner needs the unit. Without rules, as for a Pod that asks for the slice, neither
        suspension nor a change of the template releases anything."""
        shown = f"{self.name} {unit.owner}"
        if owner is None:
            return UnitState(Need.OWNER_GONE, f"{shown} no longer exists")
        end, is_ending = self.find_end(owner), "deletionTimestamp" in owner["metadata"]
        if end:
            since = find_transition_time(owner, self.finished)
            return UnitState(
                Need.OWNER_ENDED, f"{shown} has ended ({end})", since, owner, is_ending
            )
        if is_ending:
            why = f"{shown} is being deleted"
            return UnitState(Need.OWNER_GONE, why, owner=owner, is_ending=True)
        changed = self.find_change(unit, owner) if rules else ""
        if why := self.find_unneeded_reason(unit, owner) or changed:
            return build_state(owner, why)
        # A user or a queue has suspended it, so that it has no Pods.
        is_suspended = read_mapping(owner, "spec").get("suspend") is True
        since = find_transition_time(owner, ("Suspended",)) if is_suspended else None
        after = rules and rules.suspended_release
        if rules and after and since is not None and rules.now - since >= after:
            minutes = int((rules.now - since) / timedelta(minutes=1))
            why = f"{shown} has been suspended for {minutes} minutes"
            return UnitState(Need.NOT_NEEDED, why, since + after, owner)
        return UnitState(Need.SUSPENDED if is_suspended else Need.NEEDED, owner=owner)

    def list_units(self, _owner: Document, _workload: Document, _entries: Entries) -> Members:
        """The members of an owner that a ProvisioningRequest for its Workload asks slices for, each with
        its Pods and the holder of the annotation `exclusive_topology`. Raises `UnservableError`."""
        raise units.UnservableError("only JobSets, Indexed Jobs and LeaderWorkerSets get slices so")

    def find_entry(self, entries: Entries, podset: str, own: Document) -> Entry:
        """The entry for a podset, whose template in the owner is ``own``: the one that Kueue names after
        it, else one for the same slices, because Kueue merges podsets. Users can change a PodTemplate
        after Kueue has counted its chips."""
        chips, topology = read_demand(own).chips, read_demand(own).topology
        fitting = [one for one in entries if one.demand.chips == chips]
        fitting = [one for one in fitting if topology in ("", one.demand.topology)]
        if not fitting:
            raise units.UnservableError(f"no PodTemplate asks for the slices of {podset}")
        named = [one for one in fitting if one.name.endswith(f"-{podset}")]
        return min(named or fitting[:1], key=lambda one: len(one.name))  # a-b ends with -b, too

    def find_pod_violation(self, _demand: Demand, _unit: Unit) -> str:
        """What in the Pod's labels contradicts its unit; empty if nothing does, as where controllers
        set what names the unit."""
        return ""

    def names_unit(self, pod: Document, unit: Unit) -> bool:
        """Whether a Pod is one of this unit."""
        demand = read_demand(pod)
        return self.claim(demand) is not None and self.find_unit(demand) == unit

    def list_pods(self, cluster: Cluster, unit: Unit) -> list[dict[str, Any]]:
        """The Pods of a unit, with kind and apiVersion; here the one that leads it, if it exists."""
        name = f"{unit.owner}-{unit.member or 0}" if self.name != "Pod" else unit.owner
        pod = cluster.find_pod(unit.namespace, name)
        return [pod] if pod is not None and self.names_unit(pod, unit) else []


def build_state(owner: Document, why: str) -> UnitState:
    """Not needed for this reason; needed if it is empty."""
    return UnitState(Need.NOT_NEEDED if why else Need.NEEDED, why, owner=owner)


def find_template_change(unit: Unit, template: Document) -> str:
    """Why the Pods of a template do not ask for the slice of a unit, whose member is empty if it has
    several hosts. Empty if they do, or may: a queue or a webhook may add the topology or the chips."""
    demand = read_demand(template)
    is_known = TOPOLOGY.fullmatch(demand.topology) if demand.chips else not demand.topology
    if not template or not is_known or (demand.chips and bool(unit.member) is (demand.hosts == 1)):
        return ""
    asked = f"slices of topology {demand.topology}" if demand.chips else "no TPUs"
    return f"the Pods of {unit.kind} {unit.owner} ask for {asked} now"


def add_opt_out(state: UnitState, templates: Iterable[Document] = ()) -> UnitState:
    """The state for a Pod that waits: its owner, or a template in it, may have opted out of slices."""
    holders = [read_mapping(one, "metadata") for one in (state.owner or {}, *templates)]
    is_out = state.need in (Need.NEEDED, Need.SUSPENDED) and any(
        has_opted_out(read_texts(one, "labels"), read_texts(one, "annotations")) for one in holders
    )
    return UnitState(Need.OPTED_OUT, owner=state.owner) if is_out else state


def refuse_without_index(owner: str) -> str:
    """Why the Pods of an owner that do not have indexes get no slice."""
    return (
        f"{owner} is not Indexed: slices are created only for those with completionMode: {INDEXED}"
    )


def refuse_sequence(owner: str, parallelism: int, completions: int) -> str:
    """Why a Job gets no slice of several hosts whose Pods do not all run together."""
    return (
        f"{owner} has parallelism {parallelism} and completions {completions}: they must be equal, "
        "because all hosts of a slice run together"
    )


def refuse_number(owner: str, pods: int, hosts: int) -> str:
    """Why an owner gets no slice that has another number of hosts than it has Pods."""
    numbers = f"{count(pods, 'Pod')}, and a slice has {count(hosts, 'host')}"
    return f"{owner} has {numbers}: they must be equal"


def _read_owners(
    cluster: Cluster, kind: str, units: Iterable[Unit]
) -> dict[tuple[str, str, str], Document]:
    """The owners of units that exist, by their key: a few one by one, else those of a namespace."""
    by_namespace: dict[str, set[str]] = {}
    for unit in units:
        by_namespace.setdefault(unit.namespace, set()).add(unit.owner)
    found: dict[tuple[str, str, str], Document] = {}
    for namespace, owners in by_namespace.items():
        each = (cluster.find_owner(kind, namespace, name) for name in sorted(owners))
        is_few = len(owners) <= FEW_OWNERS
        for one in each if is_few else cluster.list_owners(kind, namespace):
            if one is not None and one["metadata"]["name"] in owners:
                found[kind, namespace, one["metadata"]["name"]] = one
    return found


def assign_pods(
    cluster: Cluster,
    kind: UnitKind,
    owner: Unit,
    pods: Collection[PodView],
    slices: Mapping[int, SliceView],
) -> Mapping[str, int]:
    """The ordinal of the slice of each Pod of an owner, by uid. ``owner`` is any of its units."""

    def find_occupied(nodes: Collection[str]) -> Iterator[str]:
        for pod in list_pods_on_nodes(cluster, nodes):
            is_ending = "deletionTimestamp" in read_mapping(pod, "metadata")
            if holds_chips(pod) and not is_ending and not kind.names_unit(pod, owner):
                yield read_mapping(pod, "spec")["nodeName"]

    return assign(pods, slices, find_occupied)


def list_pods_on_nodes(cluster: Cluster, nodes: Collection[str]) -> Iterator[dict[str, Any]]:
    """The Pods that are bound to these Nodes: Node by Node, or those of many Nodes from one list."""
    if len(nodes) <= FEW_NODES:
        return chain.from_iterable(map(cluster.list_pods_on, sorted(nodes)))
    return (pod for pod in cluster.list_bound_pods() if pod["spec"]["nodeName"] in nodes)


def find_true(document: Document, types: Sequence[str]) -> Document:
    """The first condition of these types that is true; empty if there is none."""
    for condition in read_mappings(read_mapping(document, "status"), "conditions"):
        if condition.get("type") in types and condition.get("status") == "True":
            return condition
    return {}


def find_transition_time(document: Document, types: Sequence[str]) -> datetime | None:
    """When the first true condition of these types became true; ``None`` if that is unknown."""
    return guess_time(str(find_true(document, types).get("lastTransitionTime") or ""))


def find_fence_violation(kind: UnitKind, demand: Demand, unit: Unit) -> str:
    """The violation if Pods of other units could take some hosts of the slice; empty if not."""
    key, selected = kind.exclusive_topology, demand.selector.get(JOB_KEY_SELECTOR)
    if selected not in (None, unit.key):
        return (
            f"the Pod's nodeSelector {JOB_KEY_SELECTOR} is {selected!r}: only {unit.key}, the key of "
            f"{unit.shown}, keeps Pods of other owners away; leave it out or set this"
        )
    if demand.hosts == 1:
        return ""
    if demand.annotations.get(key) == HOSTNAME_LABEL:
        return (
            f"the exclusive topology of the {kind.name} is {HOSTNAME_LABEL}, so that all Pods of a "
            f"slice would have to run on one of its hosts: it must be {POOL_LABEL}"
        )
    if selected or key in demand.annotations:
        return ""
    if not key:
        return (
            f"the Pod has no nodeSelector {JOB_KEY_SELECTOR}, so that Pods of other owners could take "
            f"hosts of the slice: the Pods of {unit.shown} must select {JOB_KEY_SELECTOR}: {unit.key}, "
            f"as the webhook tie-pods adds to new Pods in namespaces with the label {TIE}"
        )
    instead = f", or the namespace the label {TIE} and the cluster the webhook tie-pods"
    if unit.kind == JOBSET_KIND:
        instead = ", or the webhook admit-jobs be installed"
    if demand.request:  # its Pods do not exist yet, so a webhook has not tied them
        instead = ""
    return (
        f"the {kind.name} has no annotation {key}, and the Pod no nodeSelector {JOB_KEY_SELECTOR}, so "
        f"that Pods of other Jobs could take hosts of the slice: the {kind.name} must have {key}: "
        f"{POOL_LABEL}{instead}"
    )


def find_hosts_violation(found: Found, demand: Demand) -> str:
    """The violation if a slice has more or fewer hosts than the unit has Pods with chips."""
    is_gone = found.state.owner is None
    if is_gone or found.hosts is None or found.hosts == demand.hosts:
        return ""
    hosts, pods = count(demand.hosts, "host"), count(found.hosts, "Pod")
    return (
        f"a slice of topology {demand.topology} has {hosts} with {demand.chips} chips, and "
        f"{found.unit.shown} has {pods} with TPUs: the numbers must be equal"
    )
