"""All controllers: decide their next calls from the observed objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import Enum

from local.gke.kubelets import SIMULATED
from local.jobsets import (
    deployment,
    job,
    jobset,
    kubelet,
    leader_worker_set,
    scheduler,
    statefulset,
)
from local.jobsets.kubelet import PodBehaviour as PodBehaviour
from local.jobsets.objects import (
    DEPLOYMENTS,
    JOBS,
    JOBSETS,
    LEADER_WORKER_SETS,
    NODES,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Document,
    Later,
    Objects,
    Step,
    condition,
    delete,
    is_deleting,
)
from local.kube.controllers.nodes import UNREACHABLE

_TOLERATED = timedelta(seconds=300)
"""How long Pods tolerate an unreachable Node by default (documented)."""
_SLICE = "tpu-functions.dev/resource-name"
"""The label of the Nodes of slices, which only have simulated kubelets."""


class Controller(Enum):
    """The components that the stand-in simulates."""

    JOBSET_CONTROLLER = "JobSet's controller"
    JOB_SELECTOR = "the webhook that writes the selector job-key into Jobs"
    LEADER_WORKER_SET_CONTROLLER = "LeaderWorkerSet's controller and its webhook"
    JOB_CONTROLLER = (
        "the controllers of Jobs, Deployments and StatefulSets, Pod garbage collection, eviction"
    )
    SCHEDULER = "the scheduler"
    KUBELETS = "kubelets"


_KINDS = {
    Controller.JOBSET_CONTROLLER: (JOBSETS, JOBS),
    Controller.LEADER_WORKER_SET_CONTROLLER: (LEADER_WORKER_SETS, STATEFUL_SETS, PODS, NODES),
    Controller.JOB_CONTROLLER: (JOBS, STATEFUL_SETS, DEPLOYMENTS, REPLICA_SETS, PODS, NODES),
    Controller.SCHEDULER: (PODS, NODES),
    Controller.KUBELETS: (JOBS, PODS, NODES),
}
SIMULATED_CONTROLLERS, REAL_CONTROLLERS = "simulated", "real"
"""Whose controllers run JobSets and LeaderWorkerSets: this package's, or their own ones."""
OF_JOBSET = frozenset({Controller.JOBSET_CONTROLLER, Controller.JOB_SELECTOR})
"""The components of an installation of JobSet with the webhook."""
WORKLOADS = frozenset(Controller) - OF_JOBSET - {Controller.LEADER_WORKER_SET_CONTROLLER}
"""The components that run Jobs, Deployments and StatefulSets."""
BESIDE_A_CONTROL_PLANE = OF_JOBSET | {Controller.KUBELETS}
"""The components that a control plane does not have."""


def kinds_of(controllers: frozenset[Controller]) -> frozenset[str]:
    """The kinds that these controllers watch."""
    return frozenset(kind for one in controllers for kind in _KINDS.get(one, ()))


def decide(
    objects: Objects, controllers: frozenset[Controller], behaviour: PodBehaviour, now: datetime
) -> Iterator[Step]:
    """Decide the calls of the controllers at this time."""
    if Controller.JOBSET_CONTROLLER in controllers:
        adds_selector = Controller.JOB_SELECTOR in controllers
        jobs = objects.by_owner(JOBS)
        for one in objects.all(JOBSETS):
            mine = jobs.get(one["metadata"]["uid"], [])
            yield from jobset.step(one, mine, now, adds_selector=adds_selector)
    pods, nodes = objects.all(PODS), objects.all(NODES)
    if Controller.JOB_CONTROLLER in controllers:
        owned = objects.by_owner(PODS)
        for one in objects.all(JOBS):
            yield from job.step(one, owned.get(one["metadata"]["uid"], []), now)
        for one in objects.all(STATEFUL_SETS):
            yield from statefulset.step(one, owned.get(one["metadata"]["uid"], []), now)
        sets = objects.by_owner(REPLICA_SETS)
        for one in objects.all(DEPLOYMENTS):
            yield from deployment.step(one, sets.get(one["metadata"]["uid"], []))
        for one in objects.all(REPLICA_SETS):
            yield from deployment.step_set(one, owned.get(one["metadata"]["uid"], []), now)
    by_name = {node["metadata"]["name"]: node for node in nodes}
    if Controller.LEADER_WORKER_SET_CONTROLLER in controllers:
        yield from _decide_leader_worker_sets(objects, by_name, now)
    if Controller.JOB_CONTROLLER in controllers:
        for pod in pods:
            yield from _evict(pod, by_name, now)
    if Controller.SCHEDULER in controllers:
        yield from scheduler.step(pods, nodes, now)
    if Controller.KUBELETS in controllers:
        ours = {node["metadata"]["name"]: node for node in nodes if _has_kubelet(node)}
        together = _find_start_times(objects)
        for pod in pods:
            node = ours.get(pod["spec"].get("nodeName", ""))
            if node is not None:
                began = together.get(pod["metadata"]["uid"], _started(pod))
                yield from kubelet.step(pod, node, behaviour, now, began=began)


def _decide_leader_worker_sets(
    objects: Objects, nodes: Mapping[str, Document], now: datetime
) -> Iterator[Step]:
    def of(kind: str, metadata: Document) -> list[Document]:
        key = metadata["namespace"], metadata["name"]
        return [one for one in objects.all(kind) if leader_worker_set.find_key(one) == key]

    for one in objects.all(LEADER_WORKER_SETS):
        sets, pods = of(STATEFUL_SETS, one["metadata"]), of(PODS, one["metadata"])
        yield from leader_worker_set.step(one, sets, pods, nodes, now)


def _evict(pod: Document, nodes: Mapping[str, Document], now: datetime) -> Iterator[Step]:
    """Delete a Pod whose Node is gone; ask for its end if its Node has been unreachable for long."""
    name = pod["spec"].get("nodeName")
    if not name:
        return
    if name not in nodes:
        yield delete(PODS, pod, gracePeriodSeconds=0)
        return
    taints = nodes[name].get("spec", {}).get("taints") or ()
    times = [taint["timeAdded"] for taint in taints if _is_unreachable(taint)]
    if times and not is_deleting(pod):
        evicted_at = datetime.fromisoformat(times[0]) + _TOLERATED
        yield delete(PODS, pod) if now >= evicted_at else Later(evicted_at)


def _is_unreachable(taint: Document) -> bool:
    return (taint["key"], taint["effect"]) == (UNREACHABLE, "NoExecute")


def _find_start_times(objects: Objects) -> Mapping[str, datetime | None]:
    """The time at which all Pods of a Job have started, by Pod uid; ``None`` if not all have."""
    found: dict[str, datetime | None] = {}
    owned = objects.by_owner(PODS)
    for one in objects.all(JOBS):
        pods = owned.get(one["metadata"]["uid"], [])
        running = [pod for pod in pods if _phase(pod) == "Running"]
        succeeded = sum(_phase(pod) == "Succeeded" for pod in pods)
        starts = [start for start in map(_started, running) if start is not None]
        is_whole = len(running) >= job.count_running(one, succeeded)
        began = max(starts) if is_whole and starts else None
        found |= {pod["metadata"]["uid"]: began for pod in running}
    return found


def _phase(pod: Document) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _started(pod: Document) -> datetime | None:
    start = (pod.get("status") or {}).get("startTime")
    return datetime.fromisoformat(start) if start else None


def _has_kubelet(node: Document) -> bool:
    """Whether a Node has a simulated kubelet that works. Other Nodes have real kubelets."""
    labels = node["metadata"].get("labels") or {}
    ready = condition(node, "Ready") or {}
    return (_SLICE in labels or SIMULATED in labels) and ready.get("status") != "Unknown"
