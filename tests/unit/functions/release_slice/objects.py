"""Slices and JobSets as release_slice observes them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.settings import Settings
from shared.slices.provider import Slice, SliceState
from shared.slices.units import Unit
from tests.support import jobset_objects as objects
from tests.support.builders import NOW, merge
from tests.support.jobset_objects import JOB, with_condition

NAME = "train-bfcf5ebea76efcf5"
SLICE = Slice(NAME, Unit("JobSet", "default", "train", JOB), "hash", SliceState.READY)
WITH_DEADLINE = replace(SLICE, release_after=NOW + timedelta(seconds=1))
DUE = replace(SLICE, release_after=NOW)
LOST = replace(
    SLICE, state=SliceState.FAILED, message="Preempted: gone", since=NOW - timedelta(minutes=30)
)
DEGRADED = replace(LOST, has_ready_nodes=True)
DEFAULTS = Settings("p", "", frozenset(), Kubeconfig(""), "", timedelta(minutes=15))
SETTINGS = replace(DEFAULTS, lost_rebuild=None)
REBUILDS = replace(SETTINGS, lost_rebuild=timedelta(minutes=30))


def completed_job(attempt: str = "1", **change: Any) -> dict[str, Any]:
    """The slice's Job, which has completed after so many restarts of its JobSet."""
    owner = {"kind": "JobSet", "name": "train", "uid": "jobset-uid", "controller": True}
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/restart-attempt": attempt,
    }
    merged: dict[str, Any] = merge(
        {
            "metadata": {
                "name": JOB,
                "namespace": "default",
                "labels": labels,
                "ownerReferences": [owner],
            },
            "status": {"conditions": [{"type": "Complete", "status": "True"}]},
        },
        change,
    )
    return merged


RUNNING = objects.jobset()
COMPLETED = objects.jobset(**with_condition("Completed"))
