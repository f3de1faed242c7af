"""What stories of JobSets share, whichever kind of slice they get."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from local.jobsets import PodBehaviour
from tests import jobset_objects as objects
from tests.harness import Harness
from tests.jobset_objects import JOBSET, NAMESPACE
from tests.stories import life
from tests.stories.life import HOUR

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
OPTIONS = "/api/v1/namespaces/tpu-functions/configmaps"
MERGE = {"Content-Type": "application/merge-patch+json"}
SECOND = timedelta(seconds=1)
NAME = "train-bfcf5ebea76efcf5"
"""Of the slice, be it a TPUNodeGroup or a node pool."""
RUNS_ON = PodBehaviour(ends=lambda _: "")
"""Pods run until somebody deletes them."""


def is_first_attempt(pod: dict[str, Any]) -> bool:
    """Whether a Pod is from before the first restart of its JobSet."""
    return bool(pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == "0")


FAILS_ONCE = PodBehaviour(ends=lambda pod: "Failed" if is_first_attempt(pod) else "")
"""Pods fail until the JobSet's first restart, and run on from then."""


def apply_options(harness: Harness) -> None:
    """Create the ConfigMap that says what slices are made of."""
    harness.simulation.admin("POST", OPTIONS, objects.config_map())


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
    """Let time pass until something holds, by ten seconds: to ask after each event takes long."""
    end = harness.clock.now() + timeout
    while not holds():
        assert harness.clock.now() < end, life.describe_state(harness)
        harness.run_for(10 * SECOND)


def reported_events(harness: Harness) -> list[str]:
    """List the Events about Pods and JobSets, by the time of their first occurrence."""
    events = harness.simulation.admin("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    mine = [one for one in events if one["involvedObject"]["kind"] in ("Pod", "JobSet")]
    mine.sort(key=lambda one: (one["firstTimestamp"], int(one["metadata"]["resourceVersion"])))
    return [f"{one['involvedObject']['kind']} {one['reason']}: {one['message']}" for one in mine]
