"""Explain why a Pod gets a slice or none."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from functions.provision_slice import STEP, decide, quotas, waiting
from functions.provision_slice.observe import Observed, ObservedImpossible, ObservedPod
from replay import explain, explain_jobset
from replay.dependencies import Dependencies
from replay.errors import ReplayError
from replay.explain import StepExplanation
from shared.base.documents import Document, read_mapping, read_mappings, read_text
from shared.base.names import TOPOLOGY_LABEL, TPU_RESOURCE
from shared.frame.plan import Emit, Plan
from shared.ports.kubernetes.cluster import Cluster
from shared.slices.actions import CreateSlice, DeleteSlice
from shared.slices.create_or_release import PHASES, find_phase
from shared.slices.kinds import Leader, find_kind, find_leader
from shared.slices.limits import PLACE
from shared.slices.units import OPT_OUT, Need, has_opted_out, is_held, read_demand, waits


@dataclass(frozen=True)
class PodExplanation:
    """The explanation of one Pod. ``steps`` is what provision_slice would do, if the Pod waits for a
    slice that may be created for it."""

    namespace: str
    name: str
    why: str
    steps: tuple[StepExplanation, ...] = ()

    @property
    def cause(self) -> str:
        """Why the Pod gets a slice or none, in a sentence."""
        error = next((f". {one.note}" for one in self.steps if not one.has_observed), "")
        return f"Pod {self.namespace}/{self.name} {self.why}{error}".rstrip(".") + "."

    @property
    def is_whole(self) -> bool:
        """Whether everything could be observed."""
        return all(answer.has_observed for answer in self.steps)


def explain_pod(deps: Dependencies, namespace: str, name: str) -> PodExplanation:
    """Observe a Pod as provision_slice would. Raises `ReplayError` if there is none, `CallError`."""
    cluster, now = deps.open_cluster(), deps.now()
    pod = cluster.find_pod(namespace, name)
    if pod is None:
        raise ReplayError(f"there is no Pod {namespace}/{name}; kubectl get pods -A lists them")
    why, leader = next(_find_reasons(cluster, pod), ""), find_leader(pod)
    if why or leader is None:
        return PodExplanation(namespace, name, why)
    if waiting.may_be_tried(leader, now):
        why = "is of a gang that the scheduler has not tried: after a minute it waits for a slice"
        return PodExplanation(namespace, name, why)
    explain_jobset.check_provider(deps)
    held = "is held by the scheduler until its gang is complete, and " if is_held(pod) else ""
    words = ["waits for a slice"]

    def build_plan() -> Plan:
        observed = explain_jobset.observe_pod(deps, leader, now)
        plan = decide.decide(observed, now)
        words.insert(0, _describe(observed, plan))
        return plan

    is_swept = leader.kind.is_always_on or quotas.lists_all(cluster)
    answer = explain.explain_step(STEP.name, is_swept, build_plan, name)
    return PodExplanation(namespace, name, f"{held}{words[0]}", (answer,))


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
    if waits(pod) is None:
        yield "does not wait for a slice: the scheduler has not reported it as Unschedulable"
    if claim and not claim.is_leader and (unit := claim.kind.find_unit(demand)):
        demands = map(read_demand, claim.kind.list_pods(cluster, unit))
        leads = (one.name for one in demands if (own := find_kind(one)) and own.is_leader)
        first = next(leads, "")
        asks = (
            f"Pod {first} asks: explain that one" if first else "no Pod asks: the first is missing"
        )
        yield f"waits for the slice of {unit.shown}, for which {asks}"


def _find_switch(cluster: Cluster, kind: str, namespace: str) -> str:
    """How a kind is switched on in a namespace."""
    entry = f"{namespace}: {{kinds: [{kind}], slices: 4}}, with the limit that it may have,"
    if namespace in quotas.read_limits(cluster).entries:
        entry = f"{kind} to the kinds of {namespace}"
    return (
        f"slices for the kind {kind} are off in namespace {namespace}. Add {entry} in {PLACE}. The "
        "relay must have SLICE_WORKLOADS=true, which the component workloads sets (Terraform: "
        "slice_workloads)"
    )


def _describe(observed: Observed, plan: Plan) -> str:
    """Which slice the Pod waits for, and what delays it."""
    if isinstance(observed, ObservedImpossible):
        return f"gets no slice: {observed.message}"
    assert isinstance(observed, ObservedPod)
    unit = observed.desired.unit
    if observed.need is not Need.NEEDED:
        return f"gets no slice: {unit.kind} {unit.owner} {observed.need}"
    words = [
        one.event.message if isinstance(one, Emit) else f"provision_slice would {one.describe()}"
        for one in plan.list_actions()
        if isinstance(one, CreateSlice | DeleteSlice) or (isinstance(one, Emit) and one.once)
    ]
    state = (*words, PHASES[find_phase(observed.existing)])[0]
    return f"waits for the slice {observed.desired.name} of {unit.shown}. {state}"


def to_document(explanation: PodExplanation) -> dict[str, Any]:
    """The explanation as JSON."""
    return {
        "pod": f"{explanation.namespace}/{explanation.name}",
        "cause": explanation.cause,
        "steps": [explain.step_document(answer) for answer in explanation.steps],
    }
