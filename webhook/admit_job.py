"""admit_job: an admission webhook that ties each Job of a JobSet to its own slice.

It concerns new Jobs with JobSet's label ``jobset.sigs.k8s.io/job-key`` whose Pods request TPUs and
select a topology, unless the Job or its Pod template opts out (`units.has_opted_out`). The
Pods get a node selector ``job-key`` (without JobSet's prefix) with the label's value. The Nodes of the
slice that is created for the Job have the label ``job-key`` with this value, so Jobs that restart do not
use each other's slices.

By its settings it also sets a location hint, or removes the selectors of reservations and of Spot.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shared.base.names import JOB_KEY, TOPOLOGY_LABEL
from shared.base.pods import count_pod_chips
from shared.base.slice_names import JOB_KEY_SELECTOR
from shared.slices.units import has_opted_out
from webhook.tpu_env.admission import (
    AdmissionRequest,
    AdmissionResponse,
    Object,
    Operation,
    escape,
    set_keys,
)
from webhook.tpu_env.workloads import TEMPLATE

LOCATION_HINT = "cloud.google.com/gke-location-hint"
RESERVED_OR_SPOT = (
    "cloud.google.com/reservation-name",
    "cloud.google.com/reservation-project",
    "cloud.google.com/gke-spot",
)
"""Selectors that ask for anything but on-demand capacity."""


@dataclass(frozen=True)
class AdmissionSettings:
    """The settings of the webhook. They mean the same as TPU Provisioner's."""

    is_on_demand_forced: bool = False
    """Whether selectors of reservations and of Spot are removed."""
    location_hint: str = ""
    """The node selector ``cloud.google.com/gke-location-hint`` of each patched Job; empty: none."""


def admit(request: AdmissionRequest, settings: AdmissionSettings) -> AdmissionResponse:
    """The patch that adds and removes node selectors of a Job's Pods."""
    job = request.target
    if request.operation != "CREATE" or request.sub_resource or job.get("kind") != "Job":
        return AdmissionResponse()
    labels = _part(job, "metadata", "labels")
    pod = _part(job, "spec", "template", "spec")
    if not labels.get(JOB_KEY):
        return AdmissionResponse()
    for part in (job, _part(job, "spec", "template")):
        if has_opted_out(_part(part, "metadata", "labels"), _part(part, "metadata", "annotations")):
            return AdmissionResponse()
    if not count_pod_chips(pod) or TOPOLOGY_LABEL not in _part(pod, "nodeSelector"):
        return AdmissionResponse()
    return AdmissionResponse(patch=tuple(_build_patch(pod, str(labels[JOB_KEY]), settings)))


def _build_patch(pod: Object, job_key: str, settings: AdmissionSettings) -> Iterator[Operation]:
    base = f"{TEMPLATE}/spec"
    selectors = {JOB_KEY_SELECTOR: job_key}
    if settings.location_hint:
        selectors[LOCATION_HINT] = settings.location_hint
    yield from set_keys(pod, base, "nodeSelector", selectors)
    if settings.is_on_demand_forced:
        for key in RESERVED_OR_SPOT:
            if key in pod["nodeSelector"]:
                yield {"op": "remove", "path": f"{base}/nodeSelector/{escape(key)}"}


def _part(holder: Object, *path: str) -> Object:
    for key in path:
        holder = holder.get(key) or {}
    return holder
