"""All parts together: from what there is to what they do next."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import Enum

from local.gke.kubelets import SIMULATED
from local.jobsets import job, jobset, kubelet, scheduler
from local.jobsets.kubelet import Habits as Habits
from local.jobsets.objects import (
    JOBS,
    JOBSETS,
    NODES,
    PODS,
    Document,
    Objects,
    Step,
    delete,
    is_deleting,
)

_SLICE = "tpu-functions.dev/resource-name"
"""On the Nodes of VMs that the product has made, which there is no kubelet on but a simulated one."""


class Part(Enum):
    """Whom the stand-in stands in for."""

    JOBSET_CONTROLLER = "JobSet's controller"
    JOB_SELECTOR = "the webhook that writes the selector job-key into Jobs"
    JOB_CONTROLLER = "the Job controller and the Pod garbage collector"
    SCHEDULER = "the scheduler"
    KUBELETS = "kubelets"


OF_JOBSET = frozenset({Part.JOBSET_CONTROLLER, Part.JOB_SELECTOR})
"""What a cluster has in which JobSet is installed, and perhaps the webhook."""
BESIDE_A_CONTROL_PLANE = OF_JOBSET | {Part.KUBELETS}
"""What a control plane does not have by itself."""


def decide(
    objects: Objects, parts: frozenset[Part], habits: Habits, now: datetime
) -> Iterator[Step]:
    """All that the parts would do now; what has been done already follows from what there is."""
    if Part.JOBSET_CONTROLLER in parts:
        adds_selector = Part.JOB_SELECTOR in parts
        jobs = objects.by_owner(JOBS)
        for one in objects.all(JOBSETS):
            mine = jobs.get(one["metadata"]["uid"], [])
            yield from jobset.step(one, mine, now, adds_selector=adds_selector)
    pods, nodes = objects.all(PODS), objects.all(NODES)
    if Part.JOB_CONTROLLER in parts:
        owned = objects.by_owner(PODS)
        for one in objects.all(JOBS):
            yield from job.step(one, owned.get(one["metadata"]["uid"], []), now)
    names = {node["metadata"]["name"] for node in nodes}
    if Part.JOB_CONTROLLER in parts:
        for pod in pods:
            node = pod["spec"].get("nodeName")
            if node and node not in names and not is_deleting(pod):
                yield delete(PODS, pod)
    if Part.SCHEDULER in parts:
        yield from scheduler.step(pods, nodes, now)
    if Part.KUBELETS in parts:
        ours = {node["metadata"]["name"] for node in nodes if _is_simulated(node)}
        for pod in pods:
            if pod["spec"].get("nodeName") in ours:
                yield from kubelet.step(pod, habits, now)


def _is_simulated(node: Document) -> bool:
    """The Nodes of a cluster of somebody's have kubelets of their own."""
    labels = node["metadata"].get("labels") or {}
    return _SLICE in labels or SIMULATED in labels
