"""Explain why a Pod gets a slice or none."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from replay import explain, explain_jobset
from replay.dependencies import Dependencies
from replay.errors import ReplayError
from replay.explain import StepExplanation
from shared.base.documents import Document, read_mapping
from shared.base.names import TOPOLOGY_LABEL, TPU_RESOURCE
from shared.slices.kinds import find_kind
from shared.slices.units import OPT_OUT, has_opted_out, read_demand, waits


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
        note = next((one.note for one in self.steps if one.note), "").rstrip(".")
        return f"Pod {self.namespace}/{self.name} {self.why}.{f' {note}.' if note else ''}"

    @property
    def is_whole(self) -> bool:
        """Whether everything could be observed."""
        return all(answer.has_observed for answer in self.steps)


def explain_pod(deps: Dependencies, namespace: str, name: str) -> PodExplanation:
    """Observe a Pod as provision_slice would. Raises `ReplayError` if there is none, `CallError`."""
    pod = deps.open_cluster().find_pod(namespace, name)
    if pod is None:
        raise ReplayError(f"there is no Pod {namespace}/{name}; kubectl get pods -A lists them")
    demand, why = read_demand(pod), next(_find_reasons(pod), "")
    claim = find_kind(demand)
    unit = claim.kind.find_unit(demand) if claim else None
    if why or unit is None:
        return PodExplanation(namespace, name, why or "waits for a slice")
    explain_jobset.check_provider(deps)
    answers = explain_jobset.explain_pods(deps, unit.owner_key)
    steps = tuple(one for one in answers if one.about in ("", name))
    why = f"of {unit.kind} {unit.owner} waits for a slice"
    return PodExplanation(namespace, name, why, steps)


def _find_reasons(pod: Document) -> Iterator[str]:
    """Why a Pod gets no slice, by itself alone."""
    spec, demand = read_mapping(pod, "spec"), read_demand(pod)
    controller, claim = demand.controller, find_kind(demand)
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
    if claim is None:
        owner = f"is of {controller.kind} {controller.name}" if controller else "has no controller"
        yield (
            f"{owner}, and slices are created for Pods of JobSets only; apply a TPUNodeGroup with "
            f"topology {demand.topology}"
        )
    elif not claim.is_leader:
        yield "waits for the slice of the first Pod of its Job, which has completion index 0"
    if waits(pod) is None:
        yield (
            "does not wait for a slice: the scheduler has not reported it as Unschedulable, or it is "
            "being deleted"
        )


def to_document(explanation: PodExplanation) -> dict[str, Any]:
    """The explanation as JSON."""
    return {
        "pod": f"{explanation.namespace}/{explanation.name}",
        "cause": explanation.cause,
        "steps": [explain.step_document(answer) for answer in explanation.steps],
    }
