"""Explain what both steps of JobSets would do now, for each Pod that waits and each slice."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from functions import provision_slice, release_slice
from functions.provision_slice.observe import Observed
from functions.provision_slice.waiting import build_message, find_leaders
from functions.release_slice.observe import ObservedSlices
from replay import explain
from replay.dependencies import Dependencies
from replay.errors import ReplayError
from replay.explain import StepExplanation
from shared.base.environment import SettingsError
from shared.base.fields import count
from shared.base.names import JOBSET_KIND
from shared.frame.plan import Plan
from shared.settings import TPU_NODE_GROUP
from shared.slices.kinds import Leader
from shared.slices.kinds.jobset import find_end
from shared.slices.work import SliceWork, build_provider
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import ObjectTrigger


@dataclass(frozen=True)
class JobSetExplanation:
    """The explanation of one JobSet. ``jobset`` is ``None`` if only its slices exist."""

    namespace: str
    name: str
    jobset: Mapping[str, Any] | None
    steps: tuple[StepExplanation, ...]
    groups: tuple[str, ...] = ()
    """The TPUNodeGroups that are its slices, if slices are groups."""

    @property
    def state(self) -> str:
        """The state of the JobSet, in a few words."""
        if self.jobset is None:
            return "no longer exists"
        if "deletionTimestamp" in self.jobset["metadata"]:
            return "is being deleted"
        end = find_end(self.jobset)
        return f"has ended ({end})" if end else "has not ended"

    @property
    def cause(self) -> str:
        """What delays the JobSet's slices, in a sentence; otherwise their number."""
        name = f"JobSet {self.namespace}/{self.name} {self.state}"
        if not self.steps:
            return f"{name}: none of its Pods waits for a slice, and it has no slice."
        counts = (
            f"{self._count(provision_slice.STEP.name, 'Pod')} waiting for a slice, "
            f"{self._count(release_slice.STEP.name, 'slice')}"
        )
        note = next((one.note for one in self.steps if one.note), "").rstrip(".")
        return f"{name}: {counts}{f'. {note}' if note else ''}."

    def _count(self, step: str, noun: str) -> str:
        own = [one for one in self.steps if one.step == step]
        is_known = all(one.about for one in own)  # an error of a list is about no object
        return count(len(own), noun) if is_known else f"an unknown number of {noun}s"

    @property
    def is_whole(self) -> bool:
        """Whether everything could be observed."""
        return all(answer.has_observed for answer in self.steps)


def explain_jobset(deps: Dependencies, namespace: str, name: str) -> JobSetExplanation:
    """Observe a JobSet as both steps would. Raises `ReplayError` if there is nothing, `CallError`."""
    check_provider(deps)
    jobset = deps.open_cluster().find_jobset(namespace, name)
    answers = (
        *_explain_pods(deps, (JOBSET_KIND, namespace, name)),
        *_explain_slices(deps, namespace, name),
    )
    if jobset is None and not answers:
        raise ReplayError(
            f"there is no JobSet {namespace}/{name}, and no slice of one; kubectl get jobsets -A "
            "lists them"
        )
    are_groups = deps.settings.jobset_provider == TPU_NODE_GROUP
    groups = (
        f"{namespace}/{answer.about}"
        for answer in answers
        if are_groups and answer.about and answer.step == release_slice.STEP.name
    )
    return JobSetExplanation(namespace, name, jobset, answers, tuple(groups))


def check_provider(deps: Dependencies) -> None:
    """Raise `SettingsError` if it is not known which slices are created."""
    if not deps.settings.jobset_provider:
        raise SettingsError(
            "JOBSET_PROVIDER is not set here, so it is not known which slices are created, if any; set "
            "it to the installation's value, tpu-node-group or gke (Terraform: tool_environment)"
        )


def _explain_pods(deps: Dependencies, owner: tuple[str, str, str]) -> Iterator[StepExplanation]:
    """What provision_slice would do for each Pod of this JobSet, by its `Unit.owner_key`."""
    step, now = provision_slice.STEP.name, deps.now()
    try:
        leaders = find_leaders(deps.open_cluster().list_pending_pods())
    except explain.API_ERRORS as error:
        yield explain.explain_error(step, error)
        return

    def build_plan(leader: Leader) -> Plan:
        return provision_slice.decide.decide(observe_pod(deps, leader, now), now)

    for leader in leaders:
        unit = leader.kind.find_unit(leader.demand)
        if unit is not None and unit.owner_key == owner:
            yield explain.explain_step(step, True, partial(build_plan, leader), leader.demand.name)


def observe_pod(deps: Dependencies, leader: Leader, now: datetime) -> Observed:
    """What provision_slice observes about a Pod that waits, on a resync. Raises `CallError`."""
    fields = _build_fields(deps, build_message(leader, now), now)
    work = SliceWork(**fields, leader=leader, about=leader.demand.raw)
    return provision_slice.observe.observe(work)


def _explain_slices(deps: Dependencies, namespace: str, name: str) -> Iterator[StepExplanation]:
    step, now = release_slice.STEP.name, deps.now()
    message = Message(namespace, name, "", Cause.RESYNC, now, kind=JOBSET_KIND)
    try:
        work = SliceWork(**_build_fields(deps, message, now))
        observed = release_slice.observe.observe(work)
    except explain.API_ERRORS as error:
        yield explain.explain_error(step, error)
        return
    for one in observed.slices if isinstance(observed, ObservedSlices) else ():
        about = one.existing.name
        if one.users_error is not None:
            yield explain.explain_error(step, one.users_error, about)
            continue
        build_plan = partial(release_slice.decide.decide, ObservedSlices((one,)), now)
        yield explain.explain_step(step, release_slice.has_work(one, now), build_plan, about)


def _build_fields(deps: Dependencies, message: Message, now: datetime) -> dict[str, Any]:
    """The fields of a step's work on a resync. It cannot publish."""
    fields = explain.work_fields(deps, ObjectTrigger(message), now)
    ports = fields["cluster"], deps.gke, deps.now, fields["remaining_s"]
    return {**fields, "provider": build_provider(deps.settings, *ports)}


def to_document(explanation: JobSetExplanation) -> dict[str, Any]:
    """The explanation as JSON."""
    return {
        "jobset": f"{explanation.namespace}/{explanation.name}",
        "state": explanation.state,
        "cause": explanation.cause,
        "groups": list(explanation.groups),
        "steps": [
            {"about": answer.about or None, **explain.step_document(answer)}
            for answer in explanation.steps
        ],
    }
