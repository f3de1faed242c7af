"""The kubelets, with the device plugin of the chips: a Pod that is bound runs, and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from local.jobsets.objects import (
    CHIPS,
    PODS,
    Document,
    Later,
    Step,
    count_chips,
    delete,
    is_deleting,
    patch_status,
    render,
    with_condition,
)
from local.vm.kubelet import ACCELERATOR_LABEL


@dataclass(frozen=True)
class PodBehaviour:
    """How long Pods run, those of a Job together, and how they end.

    A Pod with ``restartPolicy: Always`` runs without end, also one with ``OnFailure`` that fails.
    ``ends`` returns the last phase of other Pods: ``Succeeded``, ``Failed``, or empty for one that does
    not end. A Pod that is deleted ends after ``stop_s``, at most its grace period; it never ends if
    ``hangs`` is true, as with a process that no signal ends.
    """

    run_s: float = 60.0
    ends: Callable[[Document], str] = lambda _: "Succeeded"
    stop_s: float = 1.0
    hangs: Callable[[Document], bool] = lambda _: False


def step(
    pod: Document, node: Document, behaviour: PodBehaviour, now: datetime, *, began: datetime | None
) -> Iterator[Step]:
    """Decide the next calls of a kubelet for a Pod that is bound to its Node.

    ``began`` is the time at which the last Pod of the Job has started; ``None`` if not all have.
    Then no Pod ends: a program on a slice waits for all its hosts.
    """
    status = pod.get("status") or {}
    if is_deleting(pod):
        yield from _stop(pod, behaviour, now)
    elif status.get("phase", "Pending") == "Pending":
        why = _find_rejection(pod, node)
        yield from patch_status(PODS, pod, _rejected(why) if why else _running(pod, now))
    elif status["phase"] == "Running":
        yield from _continue(pod, behaviour, now, began)


def _find_rejection(pod: Document, node: Document) -> str:
    """Why Google's device plugin does not allocate the chips of a container; empty if it does.

    Only on TPU7x a container may ask for a part (ai-on-gke/tpu-device-plugin, pkg/tpu/manager.go). That
    two chips there share a NUMA node is assumed.
    """
    labels = node["metadata"].get("labels") or {}
    every = int(((node.get("status") or {}).get("allocatable") or {}).get(CHIPS, 0))
    containers = (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    is_whole = all(count_chips(one) in (0, every) for one in containers)
    if is_whole or labels.get(ACCELERATOR_LABEL, "").startswith("tpu7x"):
        return ""
    return (
        f"invalid TPU chip count request, you must request all {every} chips on this node together"
    )


def _rejected(why: str) -> Document:
    words = f"Allocate failed due to rpc error: code = Unknown desc = {why}, which is unexpected"
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
    return {**status, "message": f"Pod was rejected: {words}"}


def _stop(pod: Document, behaviour: PodBehaviour, now: datetime) -> Iterator[Step]:
    if behaviour.hangs(pod):
        return
    metadata = pod["metadata"]
    grace_s = metadata.get("deletionGracePeriodSeconds", 0)
    end = datetime.fromisoformat(metadata["deletionTimestamp"])
    stops_at = end - timedelta(seconds=max(0, grace_s - behaviour.stop_s))
    if now < stops_at:
        yield Later(stops_at)
    else:
        yield delete(PODS, pod, gracePeriodSeconds=0)


def _continue(
    pod: Document, behaviour: PodBehaviour, now: datetime, began: datetime | None
) -> Iterator[Step]:
    phase = behaviour.ends(pod)
    restarts = ("Always", "OnFailure") if phase == "Failed" else ("Always",)
    if not phase or began is None or pod["spec"].get("restartPolicy", "Always") in restarts:
        return
    ends_at = began + timedelta(seconds=behaviour.run_s)
    if now < ends_at:
        yield Later(ends_at)
        return
    reason = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    conditions = with_condition(pod, "Ready", "False", reason, "", now)
    end = {
        "reason": "Completed" if phase == "Succeeded" else "Error",
        "exitCode": int(phase != "Succeeded"),
        "startedAt": pod["status"]["startTime"],
        "finishedAt": render(now),
    }
    statuses = _container_statuses(pod, {"terminated": end}, is_ready=False)
    status = {"phase": phase, "conditions": conditions, "containerStatuses": statuses}
    yield from patch_status(PODS, pod, status)


def _running(pod: Document, now: datetime) -> Document:
    conditions = with_condition(pod, "Ready", "True", "", "", now)
    start = {"running": {"startedAt": render(now)}}
    return {
        "phase": "Running",
        "startTime": render(now),
        "conditions": conditions,
        "containerStatuses": _container_statuses(pod, start, is_ready=True),
    }


def _container_statuses(pod: Document, state: Document, *, is_ready: bool) -> list[Document]:
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "ready": is_ready,
            "restartCount": 0,
            "state": state,
        }
        for container in pod["spec"]["containers"]
    ]
