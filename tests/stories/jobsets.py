"""Helpers of stories about JobSets, for both providers of slices."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from local.jobsets import PodBehaviour
from tests.stories import helpers
from tests.stories.helpers import HOUR
from tests.support import jobset_objects as objects
from tests.support.harness import Harness
from tests.support.jobset_objects import JOBSET, NAMESPACE

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
OPTIONS = "/api/v1/namespaces/tpu-functions/configmaps"
MERGE = {"Content-Type": "application/merge-patch+json"}
SECOND = timedelta(seconds=1)
NAME = "train-bfcf5ebea76efcf5"
"""The name of the slice: of the TPUNodeGroup or the node pool."""
RUNS_FOREVER = PodBehaviour(ends=lambda _: "")
"""Pods run until they are deleted."""


def is_first_attempt(pod: dict[str, Any]) -> bool:
    """True if the Pod was created before the first restart of its JobSet."""
    return bool(pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == "0")


FAILS_ONCE = PodBehaviour(ends=lambda pod: "Failed" if is_first_attempt(pod) else "")
"""Pods fail until the JobSet's first restart, and run after it."""


def apply_options(harness: Harness, **data: str) -> None:
    """Create the ConfigMap with the template of slices, and with this data."""
    harness.simulation.admin("POST", OPTIONS, objects.config_map(**data))


def apply(harness: Harness, jobset: dict[str, Any]) -> None:
    """Create a JobSet, which must be accepted."""
    answer = harness.simulation.admin("POST", JOBSETS, jobset)
    assert answer["kind"] == "JobSet", answer


def delete(harness: Harness) -> None:
    """Delete the JobSet."""
    harness.simulation.admin("DELETE", f"{JOBSETS}/{JOBSET}")


def pods(harness: Harness) -> list[dict[str, Any]]:
    """List the Pods."""
    found: list[dict[str, Any]] = harness.simulation.admin("GET", PODS)["items"]
    return found


def phases(harness: Harness) -> list[str]:
    """List the phases of the Pods."""
    return [pod["status"]["phase"] for pod in pods(harness)]


def are_running(harness: Harness, replicas: int = 1) -> bool:
    """True if all Pods run, four for each Job."""
    return phases(harness) == ["Running"] * 4 * replicas


def until(harness: Harness, holds: Callable[[], bool], timeout: timedelta = HOUR) -> None:
    """Let time pass until the condition is true; check every ten seconds, because that is faster than
    after each event."""
    end = harness.clock.now() + timeout
    while not holds():
        assert harness.clock.now() < end, helpers.describe_state(harness)
        harness.run_for(10 * SECOND)


def reported_events(harness: Harness) -> list[str]:
    """List the Events about Pods and JobSets, by the time of their first occurrence."""
    events = harness.simulation.admin("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    reported = [one for one in events if one["involvedObject"]["kind"] in ("Pod", "JobSet")]
    reported.sort(key=lambda one: (one["firstTimestamp"], int(one["metadata"]["resourceVersion"])))
    return [
        f"{one['involvedObject']['kind']} {one['reason']}: {one['message']}" for one in reported
    ]
