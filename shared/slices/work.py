"""The work of a step on JobSets' slices: the provider, and the reads that both steps share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from shared.base.documents import read_texts
from shared.base.names import JOB_NAME, WORKER_INDEX
from shared.base.pods import find_controller, holds_chips
from shared.base.timestamps import guess_time
from shared.frame.plan import Action, Emit, NothingToDo, Plan, Send, StepRefused, Work
from shared.frame.step import Invocation, work_fields
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import CallError
from shared.ports.gce.calls import Gce
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.nodes import parse_node
from shared.settings import Settings
from shared.slices import classes, create_or_release, requests
from shared.slices.assigned import read_all_views
from shared.slices.classes import SliceClass
from shared.slices.kinds import KINDS, Leader, find_kind, get_kind
from shared.slices.kinds.kind import Rules, list_pods_on_nodes
from shared.slices.provider import Provider, Slice
from shared.slices.units import Need, Unit, UnitState, has_opted_out, read_demand
from shared.triggers.message import Message
from shared.triggers.trigger import LogTrigger, ObjectTrigger

if TYPE_CHECKING:
    from shared.ports.gke import GkeClient

RETRY_REPORTED_AFTER = timedelta(minutes=10)
"""A transient error is reported if a Pod has waited, or no JobSet has needed the slice, this long."""
COUNTED_AFTER_GRACE = timedelta(minutes=10)
"""How long a Pod that is being deleted counts after its grace period: clocks may differ."""
GIVEN_UP = "GivenUp"
"""The outcome of the report of a transient error that only the sweep retries."""
QUEUED = "Queued"
"""The outcome if the provider rejects a call because too many slices are changing."""


@dataclass(kw_only=True)
class SliceWork(Work):
    """Work on slices. ``about`` is the object of the Events: the Pod that waits, or the JobSet."""

    settings: Settings
    provider: Provider
    about: Mapping[str, Any] | None = None
    leader: Leader | None = None
    """The Pod that waits, if the trigger names one."""
    request: Mapping[str, Any] | None = None
    """The ProvisioningRequest, if the trigger names one."""
    _classes: tuple[SliceClass, ...] | None = None

    def list_classes(self) -> tuple[SliceClass, ...]:
        """The TPUSliceClasses of the cluster, read once; none if it does not serve them."""
        if self._classes is None:
            self._classes = tuple(map(classes.parse, self.cluster.list_slice_classes(self.now)))
        return self._classes

    @property
    def subject(self) -> Mapping[str, Any] | None:
        return self.about

    def refuse(self, refusal: StepRefused) -> Plan:
        """Report it on the Pod that waits."""
        event = create_or_release.CREATION_REFUSED.render(self.provider, {"failure": str(refusal)})
        reports = (Emit(event, once=True),) if self.about else ()
        return replace(super().refuse(refusal), first=reports)


def open_slices(invocation: Invocation, is_first_observation: bool) -> SliceWork:
    """The work on slices. Raises `NothingToDo` if slices are switched off, or the trigger is about
    another cluster, and `CallError`."""
    runtime, trigger = invocation.runtime, invocation.trigger
    settings: Settings = runtime.settings
    if not settings.slice_provider:
        raise NothingToDo("SwitchedOff")
    if isinstance(trigger, LogTrigger):
        gke, event = settings.gke, trigger.event
        cluster = (event.project, event.location, event.cluster)
        if gke is None or cluster != (gke.project, gke.location, gke.cluster):
            raise NothingToDo("NotOurs")

    def remaining_s() -> float:
        """Count the calls: the client asks for the time before each call."""
        invocation.facts["gke_calls"] = invocation.facts.get("gke_calls", 0) + 1
        return invocation.remaining_s()

    # The end of an operation has changed a pool. A resync is about what was selected for a slot.
    uses_kept = is_first_observation and isinstance(trigger, ObjectTrigger)
    options = {"uses_kept": uses_kept, "checks_slots": not trigger.is_resync}
    provider = build_provider(
        settings,
        invocation.cluster,
        invocation.gce,
        runtime.gke,
        runtime.now,
        remaining_s,
        **options,
    )
    fields = work_fields(invocation, is_first_observation=is_first_observation)
    return SliceWork(**fields, provider=provider)


def build_provider(
    settings: Settings,
    cluster: Cluster,
    gce: Gce,
    gke: GkeClient | None,
    now: Callable[[], datetime],
    remaining_s: Callable[[], float],
    **options: bool,
) -> Provider:
    """The provider of an installation. ``remaining_s`` is called before each call to GKE; ``options``
    are those of `NodePools`."""
    if gke is None or settings.gke is None:
        from shared.slices.by_node_group.provider import GroupSlices

        return GroupSlices(cluster, gce, now)
    from shared.slices.by_node_pool.provider import NodePools

    def list_readiness(name: str) -> list[bool]:
        return [parse_node(raw).is_ready for raw in cluster.list_nodes_of_slice(name)]

    return NodePools(settings.gke, gke, remaining_s, list_readiness, now, **options)


def set_trace_id(work: SliceWork, existing: Slice) -> None:
    """Use the slice's uid as trace id of the log line, if it is an object of the cluster."""
    metadata = existing.raw.get("metadata") or {}
    if "uid" in metadata:
        work.facts["uid"] = metadata["uid"]


def build_send(step: str, messages: Sequence[Message]) -> tuple[Action, ...]:
    """Publish messages to a step's topic, if there are any."""
    return (Send(step, tuple(messages)),) if messages else ()


def list_users(
    cluster: Cluster, name: str, now: datetime, is_user: Callable[[Mapping[str, Any]], bool]
) -> tuple[str, ...]:
    """Whose Pods run on a slice and keep it from being deleted, because they are its users.

    Only the first such Pod counts: the caller asks whether there is any.
    """
    users = find_users(filter(is_user, list_pods_on_slice(cluster, name)), now)
    return tuple(islice(users, 1))


def list_pods_on_slice(cluster: Cluster, name: str) -> Iterator[dict[str, Any]]:
    """The Pods that are bound to the Nodes of a slice."""
    nodes = {node["metadata"]["name"] for node in cluster.list_nodes_of_slice(name)}
    return list_pods_on_nodes(cluster, nodes)


def find_guests(pods: Iterable[Mapping[str, Any]], unit: Unit) -> Iterator[tuple[Unit, Leader]]:
    """Those of the Pods on a unit's slice that are of other units, with these units."""
    for pod in filter(holds_chips, pods):
        demand = read_demand(pod)
        claim = find_kind(demand)
        guest = claim.kind.find_unit(demand) if claim else None
        is_out = has_opted_out(demand.labels, demand.annotations)
        is_staying = not is_out and "deletionTimestamp" not in pod["metadata"]
        if claim and guest and guest != unit and is_staying:
            yield guest, Leader(demand, claim)


def read_states(
    work: SliceWork, slices: Sequence[Slice], *, is_listed: bool = False, deleted: str = ""
) -> dict[Unit, UnitState]:
    """Whether the units of these slices need them, by their owners (`kinds.kind.Rules`)."""
    units: dict[str, dict[Unit, None]] = {}
    for one in slices:
        units.setdefault(one.unit.kind, {})[one.unit] = None
    rules = Rules(
        work.now,
        work.settings.suspended_release,
        is_listed,
        deleted,
        frozenset(one.unit for one in slices if one.name != one.unit.slice_name),
        work.best_effort,
        read_all_views(work.cluster, work.provider, slices, is_complete=is_listed),
    )
    names = {*units, *(kind.name for kind in KINDS if deleted)}
    states: dict[Unit, UnitState] = {}
    for name in sorted(names):
        kind, own = get_kind(name), units.get(name, {})
        try:
            states |= kind.read_states(work.cluster, own, rules)
        except CallError as error:
            # Not installed, not permitted, or broken for long: the slices of other kinds are released.
            if kind.is_always_on and (deleted or len(units) < 2):
                raise
            # Resyncs report it for each slice; the sweep itself reports that of JobSets.
            need = Need.NEEDED if kind.is_always_on else Need.NOT_NEEDED
            states |= {unit: UnitState(need, error=error) for unit in own}
    return states | requests.find_needed(work.cluster, states, work.now)


def find_users(pods: Iterable[Mapping[str, Any]], now: datetime) -> Iterator[str]:
    """Whose the Pods with TPU chips are that have not ended, without those of DaemonSets.

    A Pod whose deletion is overdue by any clock does not count: its Node may be dead. Nor do the workers
    of such a leader, which are deleted only after it: LeaderWorkerSet gives their StatefulSet its name.
    """
    overdue: set[tuple[str, Any]] = set()
    workers: list[tuple[str, str]] = []
    for pod in pods:
        metadata = pod["metadata"]
        namespace, end = metadata["namespace"], guess_time(metadata.get("deletionTimestamp"))
        owner = find_controller(metadata) or {"kind": "Pod", "name": metadata.get("name")}
        labels = read_texts(metadata, "labels")
        job = labels.get(JOB_NAME)
        kind, name = ("Job", job) if job else (owner.get("kind"), owner.get("name"))
        if end is not None and now >= end + COUNTED_AFTER_GRACE:
            if labels.get(WORKER_INDEX) == "0":
                overdue.add((namespace, metadata.get("name")))
        elif holds_chips(pod) and kind == "StatefulSet":
            workers.append((namespace, f"{name}"))
        elif holds_chips(pod):
            yield f"{kind} {namespace}/{name}"
    for namespace, name in workers:
        if (namespace, name) not in overdue:
            yield f"StatefulSet {namespace}/{name}"


def is_out_of_slots(error: CallError, provider: Provider) -> bool:
    """Whether the provider rejected a call because of its concurrency limit.

    A slot becomes free when an operation ends, which takes minutes. Until then, retries by Pub/Sub would
    have no effect and delay other messages.
    """
    return provider.concurrency_limit is not None and error.kind is ErrorKind.RATE_LIMIT
