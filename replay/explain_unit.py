"""Explain what both steps of slices would do now, for the Pods and slices of a workload or one Pod."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from functions import provision_slice, release_slice
from functions.provision_slice import quotas, waiting
from functions.provision_slice.observe import Observed, ObservedImpossible, ObservedPod
from functions.release_slice.observe import ObservedSlices, match_states, with_users
from replay import explain
from replay.dependencies import Dependencies
from replay.errors import ReplayError
from replay.explain import StepExplanation
from replay.explain_class import explain_class
from shared.base.documents import (
    Document,
    find_condition,
    read_mapping,
    read_mappings,
    read_text,
)
from shared.base.environment import SettingsError
from shared.base.fields import count
from shared.base.names import JOBSET_KIND, TOPOLOGY_LABEL, TPU_RESOURCE
from shared.base.pods import find_controller
from shared.frame.plan import Emit, Plan
from shared.ports.kubernetes.cluster import Cluster
from shared.settings import TPU_NODE_GROUP
from shared.slices.actions import CreateSlice, DeleteSlice
from shared.slices.create_or_release import PHASES, find_phase
from shared.slices.kinds import KINDS, Leader, find_kind, find_leader, find_waiting, get_kind
from shared.slices.kinds.kind import UnitKind
from shared.slices.limits import PLACE
from shared.slices.requests import CLASS_NAME
from shared.slices.units import (
    OPT_OUT,
    Need,
    Unit,
    find_claims_message,
    has_opted_out,
    is_held,
    read_demand,
    waits,
)
from shared.slices.work import SliceWork, build_provider, read_states
from shared.triggers.message import POD_KIND, REQUEST_KIND, Cause, Message
from shared.triggers.trigger import ObjectTrigger

POD = "pod"
"""The word for a Pod in JSON."""
_CONTROLLED_BY = {"ReplicaSet": "Deployment", "Job": JOBSET_KIND, "StatefulSet": POD_KIND}
"""Whose slices those of a kind are, if the object has such a controller: a LeaderWorkerSet's
StatefulSets have its leader. Users write references, too: those followed form no circle."""


@dataclass(frozen=True)
class UnitExplanation:
    """The explanation of a workload's slices, or of why a Pod gets a slice or none.

    ``cause``: what delays the slices, or the reason, in a sentence. ``steps``: what the steps would do
    for each Pod that waits and each slice. ``state`` of the workload, in a few words. ``groups``: the
    TPUNodeGroups that are its slices, if slices are groups. ``of_class``: the class of a Pod's slice.
    """

    subject: str
    name: str
    cause: str
    steps: tuple[StepExplanation, ...] = ()
    state: str = ""
    groups: tuple[str, ...] = ()
    of_class: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether everything could be observed."""
        return all(answer.has_observed for answer in self.steps)


def explain_owner(name: str, deps: Dependencies, namespace: str, own: str) -> UnitExplanation:
    """Observe an owner of this kind as both steps would; one that another controls as that
    (`_CONTROLLED_BY`). Raises `ReplayError` if there is nothing, `CallError`."""
    _check_provider(deps)
    kind, key = get_kind(name), f"{namespace}/{own}"
    owner = deps.open_cluster().find_owner(name, namespace, own)
    above = find_controller(owner["metadata"]) if owner else None
    if above and above.get("kind") == _CONTROLLED_BY.get(name):
        return BY_KIND[str(above["kind"])](deps, namespace, str(above["name"]))
    answers = (
        *_explain_pods(deps, kind, namespace, own),
        *_explain_slices(deps, name, namespace, own),
    )
    if owner is None and not answers:
        raise ReplayError(
            f"there is no {name} {key}, and no slice of one; kubectl get {name.lower()}s -A lists them"
        )
    are_groups = deps.settings.slice_provider == TPU_NODE_GROUP
    groups = (
        f"{namespace}/{answer.about}"
        for answer in answers
        if are_groups and answer.about and answer.step == release_slice.STEP.name
    )
    state = _describe_state(kind, owner)
    cause = _describe_cause(f"{name} {key} {state}", answers)
    return UnitExplanation(name.lower(), key, cause, answers, state, tuple(groups))


def _describe_state(kind: UnitKind, owner: Document | None) -> str:
    if owner is None:
        return "no longer exists"
    if "deletionTimestamp" in owner["metadata"]:
        return "is being deleted"
    end = kind.find_end(owner)
    return f"has ended ({end})" if end else "has not ended" if kind.finished else "exists"


def _describe_cause(name: str, answers: Sequence[StepExplanation]) -> str:
    """What delays the slices of a workload; otherwise their number."""
    if not answers:
        return f"{name}: none of its Pods waits for a slice, and it has no slice."
    counts = (
        f"{_count(answers, provision_slice.STEP.name, 'Pod')} waiting for a slice, "
        f"{_count(answers, release_slice.STEP.name, 'slice')}"
    )
    # A Pod whose slice is being created needs nothing.
    first = sorted(answers, key=lambda one: one.has_observed and not one.actions)
    note = next((one.note for one in first if one.note), "").rstrip(".")
    return f"{name}: {counts}{f': {note}' if note else ''}."


def _count(answers: Sequence[StepExplanation], step: str, noun: str) -> str:
    own = [one for one in answers if one.step == step]
    is_known = all(one.about for one in own)  # an error of a list is about no object
    return count(len(own), noun) if is_known else f"an unknown number of {noun}s"


def _check_provider(deps: Dependencies) -> None:
    """Raise `SettingsError` if it is not known which slices are created."""
    if not deps.settings.slice_provider:
        raise SettingsError(
            "JOBSET_PROVIDER is not set here, so it is not known which slices are created, if any; set "
            "it to the installation's value, tpu-node-group or gke (Terraform: tool_environment)"
        )


def _explain_pods(
    deps: Dependencies, kind: UnitKind, namespace: str, name: str
) -> Iterator[StepExplanation]:
    """What provision_slice would do for each Pod of this owner that waits."""
    step, now, own = provision_slice.STEP.name, deps.now(), Unit(kind.name, namespace, name, "")
    try:
        pods = deps.open_cluster().list_pending_pods(namespace, with_all=not kind.is_always_on)
        leaders = waiting.find_leaders(pods)
    except explain.API_ERRORS as error:
        yield explain.explain_error(step, error)
        return
    for leader in leaders:
        pod, unit = leader.demand.raw, leader.kind.find_unit(leader.demand)
        if unit.owner_key == own.owner_key if unit else kind.names_unit(pod, own):
            found = _explain_found(deps, pod)
            outcome = "NotWaiting" if waiting.may_be_tried(leader, now) else "KindOff"
            why = found.cause.rstrip(".")
            steps = found.steps or (
                StepExplanation(step, False, outcome, about=leader.demand.name),
            )
            yield from (replace(one, note=one.note or why) for one in steps)


def _observe_pod(deps: Dependencies, leader: Leader, now: datetime) -> tuple[SliceWork, Observed]:
    """What provision_slice observes about a Pod that waits, on a resync. Raises `CallError`."""
    fields = _build_fields(deps, waiting.build_message(leader, now), now)
    work = SliceWork(**fields, leader=leader, about=leader.demand.raw)
    return work, provision_slice.observe.observe(work)


def _explain_slices(
    deps: Dependencies, kind: str, namespace: str, name: str
) -> Iterator[StepExplanation]:
    """What release_slice would do for each slice of this owner."""
    step, now = release_slice.STEP.name, deps.now()
    message = Message(namespace, name, "", Cause.RESYNC, now, kind=kind)
    try:
        work = SliceWork(**_build_fields(deps, message, now))
        found = work.provider.list_by_owner(kind, namespace, name)
        matched = match_states(work, found, read_states(work, found))
        slices = [with_users(work, one) for one in matched]
    except explain.API_ERRORS as error:
        yield explain.explain_error(step, error)
        return
    for one in slices:
        about = one.existing.name
        if one.users_error is not None:
            yield explain.explain_error(step, one.users_error, about)
            continue
        build_plan = partial(release_slice.decide.decide, ObservedSlices((one,)), now)
        yield explain.explain_step(step, release_slice.has_work(one, now), build_plan, about)


def _build_fields(deps: Dependencies, message: Message, now: datetime) -> dict[str, Any]:
    """The fields of a step's work on a resync. It cannot publish."""
    fields = explain.work_fields(deps, ObjectTrigger(message), now)
    ports = fields["cluster"], fields["gce"], deps.gke, deps.now, fields["remaining_s"]
    return {**fields, "provider": build_provider(deps.settings, *ports)}


def explain_pod(deps: Dependencies, namespace: str, name: str) -> UnitExplanation:
    """Observe a Pod as provision_slice would. Raises `ReplayError` if there is none, `CallError`."""
    pod = deps.open_cluster().find_pod(namespace, name)
    if pod is None:
        raise ReplayError(f"there is no Pod {namespace}/{name}; kubectl get pods -A lists them")
    return _explain_found(deps, pod)


def _explain_found(deps: Dependencies, pod: Document) -> UnitExplanation:
    cluster, now = deps.open_cluster(), deps.now()
    why, leader = next(_find_reasons(cluster, pod), ""), find_waiting(pod)
    if why or leader is None:
        return _build_of_pod(pod, why)
    if waiting.may_be_tried(leader, now):
        why = "is of a gang that the scheduler has not tried: after a minute it waits for a slice"
        return _build_of_pod(pod, why)
    _check_provider(deps)
    held = "is held by the scheduler until its gang is complete, and " if is_held(pod) else ""
    words, of_class = ["waits for a slice"], dict[str, Any]()

    def build_plan() -> Plan:
        work, observed = _observe_pod(deps, leader, now)
        plan = provision_slice.decide.decide(observed, now)
        words.insert(0, _describe(observed, plan))
        if isinstance(observed, ObservedPod):
            of_class.update(explain_class(work.provider, observed, now))
        return plan

    is_swept = leader.kind.is_always_on or quotas.lists_all(cluster)
    about = pod["metadata"]["name"]
    answer = explain.explain_step(provision_slice.STEP.name, is_swept, build_plan, about)
    return replace(_build_of_pod(pod, f"{held}{words[0]}", answer), of_class=of_class)


def explain_request(deps: Dependencies, namespace: str, name: str) -> UnitExplanation:
    """What the conditions of a ProvisioningRequest say. Raises `ReplayError` if there is none,
    `CallError`."""
    request = deps.open_cluster().find_owner(REQUEST_KIND, namespace, name)
    if request is None:
        raise ReplayError(
            f"there is no {REQUEST_KIND} {namespace}/{name}; kubectl get provisioningrequests -A lists "
            "them"
        )
    status, of = read_mapping(request, "status"), read_mapping(request, "spec")
    found = (find_condition(status, one) for one in ("Failed", "BookingExpired", "Provisioned"))
    one = next(filter(None, found), {})
    words = "has no conditions yet: provision_slice has not looked at it, and its log says why"
    if (of_class := read_text(of, "provisioningClassName")) != CLASS_NAME:
        words = f"is of the class {of_class}, which another system serves"
    elif one:
        words = f"has {one.get('type')}={one.get('status')}: {read_text(one, 'message')}"
    key = f"{namespace}/{name}"
    return UnitExplanation(
        REQUEST_KIND.lower(), key, f"{REQUEST_KIND} {key} {words}".rstrip(".") + "."
    )


def _build_of_pod(pod: Document, why: str, *steps: StepExplanation) -> UnitExplanation:
    key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    error = next((f". {one.note}" for one in steps if not one.has_observed), "")
    return UnitExplanation(POD, key, f"Pod {key} {why}{error}".rstrip(".") + ".", steps)


def _find_reasons(cluster: Cluster, pod: Document) -> Iterator[str]:
    """Why provision_slice does not look at the Pod. The first is the reason; few are read."""
    metadata, spec = read_mapping(pod, "metadata"), read_mapping(pod, "spec")
    demand = read_demand(pod)
    namespace, claim = demand.namespace, find_kind(demand)
    if spec.get("nodeName"):
        yield f"is on Node {spec['nodeName']}, so that it needs no slice"
    if not demand.chips:
        yield f"requests no {TPU_RESOURCE}, so that it gets no slice"
    if not demand.topology:
        yield f"selects no topology, so that it gets no slice; set the node selector {TOPOLOGY_LABEL}"
    if has_opted_out(demand.labels, demand.annotations):
        yield (
            f"has opted out of slices, by {OPT_OUT} or because a ProvisioningRequest provides its Nodes"
        )
    if "deletionTimestamp" in metadata:
        yield "is being deleted, so that it gets no slice"
    if claim is None:
        owner = demand.controller.kind if demand.controller else ""
        yield f"gets no slice: Pods of a {owner} run on the Nodes that there are"
    elif not quotas.is_switched_on(cluster, Leader(demand, claim)):
        yield f"gets no slice: {claim.refusal or _find_switch(cluster, claim.kind.name, namespace)}"
    gates = [read_text(one, "name") for one in read_mappings(spec, "schedulingGates")]
    if waits(pod) is None and gates:
        yield f"does not wait for a slice yet: it has scheduling gates ({', '.join(gates)})"
    if claims := find_claims_message(read_mapping(pod, "status")):
        yield f"gets no slice before its volume claims are there; the scheduler says: {claims}"
    elif waits(pod) is None:
        yield "does not wait for a slice: the scheduler has not reported it as Unschedulable"
    if claim and not claim.is_leader and (unit := claim.kind.find_unit(demand)):
        demands = map(read_demand, claim.kind.list_pods(cluster, unit))
        leads = (one for one in demands if (own := find_kind(one)) and own.is_leader)
        first, wait = next(leads, None), f"waits for the slice of {unit.shown}, for which"
        if first is None:
            yield f"{wait} no Pod asks: the first is missing"
        elif find_leader(first.raw):
            yield f"{wait} Pod {first.name} asks: explain that one"


def _find_switch(cluster: Cluster, kind: str, namespace: str) -> str:
    """How a kind is switched on in a namespace."""
    entry = f"{namespace}: {{kinds: [{kind}], slices: 4}}, with the limit that it may have,"
    if namespace in quotas.read_limits(cluster).entries:
        entry = f"{kind} to the kinds of {namespace}"
    return (
        f"slices for the kind {kind} are off in namespace {namespace}. Add {entry} in {PLACE}. The "
        "relay must have SLICE_WORKLOADS=true, which slice_workloads sets (Terraform)"
    )


def _describe(observed: Observed, plan: Plan) -> str:
    """Which slice the Pod waits for, and what delays it."""
    if isinstance(observed, ObservedImpossible):
        return f"gets no slice: {observed.message}"
    assert isinstance(observed, ObservedPod)
    unit = observed.desired.unit
    if observed.need is not Need.NEEDED:
        return f"gets no slice: {unit.kind} {unit.owner} {observed.need}"
    words = []
    for one in plan.list_actions():
        event = one.started if isinstance(one, DeleteSlice) else one
        if isinstance(event, Emit) and (event.once or event is not one):
            words.append(event.event.message)
        elif isinstance(one, CreateSlice | DeleteSlice):
            words.append(f"provision_slice would {one.describe()}")
    state = (*words, PHASES[find_phase(observed.existing)])[0]
    return f"waits for the slice {observed.desired.name} of {unit.shown}. {state}"


def to_document(explanation: UnitExplanation) -> dict[str, Any]:
    """The explanation as JSON."""
    of_owner = {"state": explanation.state, "groups": list(explanation.groups)}
    return {
        explanation.subject: explanation.name,
        **(of_owner if explanation.state else {}),
        "cause": explanation.cause,
        **({"class": explanation.of_class} if explanation.of_class else {}),
        "steps": [
            {"about": answer.about or None, **explain.step_document(answer)}
            for answer in explanation.steps
        ],
    }


BY_KIND: Mapping[str, Callable[[Dependencies, str, str], UnitExplanation]] = {
    **{kind.name: partial(explain_owner, kind.name) for kind in KINDS},
    POD_KIND: explain_pod,
    REQUEST_KIND: explain_request,
}
"""What explains an object of a kind."""
