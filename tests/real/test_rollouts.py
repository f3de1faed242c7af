"""The order in which LeaderWorkerSet replaces, removes and restarts groups, and the stand-in does.

There are no Nodes: each time nothing changes any more, the test ends Pods that a user has deleted, and
reports all others as ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from local.control_plane import workload_controllers
from local.control_plane.plane import OwnControlPlane
from local.jobsets import Controller
from local.tests.jobsets.cluster import Cluster
from local.tests.real_parts import get_workload_controllers, open_own_control_plane

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.xdist_group("leader worker sets")]

PODS = "/api/v1/namespaces/default/pods"
SETS = workload_controllers.LWS.path
MERGE = "application/merge-patch+json"
GROUPS = 4
STABLE_S = 1.5
MAX_STEPS = 20
RUNS = "tests.tpu-functions.dev/runs"
"""The finalizer of a Pod that a user deletes, until it ends."""
PREFIX = "leaderworkerset.sigs.k8s.io"

Document = dict[str, Any]
Ask = Callable[[str, str, Any], Document]
State = dict[str, str]
"""The image of each Pod, and how often it has been created."""


@dataclass(frozen=True)
class Case:
    """The limits of a rollout, and what changes before each step.

    The Pod ``unready`` is not reported as ready while it has its first image.
    """

    surge: int = 0
    unavailable: int = 1
    images: Mapping[int, str] = field(default_factory=lambda: {0: "new"})
    replicas: Mapping[int, int] = field(default_factory=dict)
    deleted: Mapping[int, str] = field(default_factory=dict)
    partitions: Mapping[int, int] = field(default_factory=dict)
    unready: str = ""


CASES = {
    "one": Case(),
    "two": Case(unavailable=2),
    "surge": Case(surge=1, unavailable=0),
    "both": Case(surge=1),
    "most": Case(surge=1, unavailable=2),
    "smaller": Case(replicas={1: 2}),
    "shrunk": Case(surge=1, unavailable=0, replicas={1: 2}),
    "grown": Case(replicas={1: 6}),
    "again": Case(images={0: "new", 1: "newer"}),
    "worker": Case(images={}, deleted={0: "-1-1"}),
    "leader": Case(images={}, deleted={0: "-1"}),
    "during": Case(deleted={1: "-3-1"}),
    "unready-leader": Case(unready="-1"),
    "unready-worker": Case(unready="-1-1"),
    "unready-last": Case(unready="-3-1", unavailable=2),
    "unready-surge": Case(unready="-1-1", surge=1, unavailable=0),
    "partition": Case(partitions={0: 2}),
    "partition-surge": Case(partitions={0: 2}, surge=1, unavailable=0),
    "canary": Case(partitions={0: 3, 2: 1, 6: 0}),
}


def manifest(name: str, case: Case) -> Document:
    """A LeaderWorkerSet of groups of two Pods."""
    pod = {"spec": {"containers": [{"name": "serve", "image": "old"}]}}
    limits = {"maxSurge": case.surge, "maxUnavailable": case.unavailable}
    return {
        "apiVersion": workload_controllers.LWS.api_version,
        "kind": workload_controllers.LWS.kind,
        "metadata": {"name": name},
        "spec": {
            "replicas": GROUPS,
            "rolloutStrategy": {"rollingUpdateConfiguration": limits},
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": pod},
        },
    }


def trace(ask: Ask, settle: Callable[[], None]) -> dict[str, list[State]]:
    """Return the states of each case, one after the other."""
    for name, case in CASES.items():
        ask("POST", SETS, manifest(name, case))
    uids: dict[str, list[str]] = {}
    while True:
        settle()
        if not report_ready(ask):
            break
    found: dict[str, list[State]] = {name: [] for name in CASES}
    for step in range(MAX_STEPS):
        observe(ask, uids, found)
        is_changed = [change(ask, name, case, step) for name, case in CASES.items()]
        if not is_changed.count(True) and not report_ready(ask):
            return found
        if any(is_changed):
            settle()
            observe(ask, uids, found)
            report_ready(ask)
        settle()
    raise AssertionError(f"not at rest after {MAX_STEPS} steps: {found}")


def change(ask: Ask, name: str, case: Case, step: int) -> bool:
    """Make the changes of a step; return whether there are any."""
    spec: Document = {}
    if step in case.images:
        container = {"name": "serve", "image": case.images[step]}
        spec["leaderWorkerTemplate"] = {"workerTemplate": {"spec": {"containers": [container]}}}
    if step in case.partitions:
        limits = {"partition": case.partitions[step]}
        spec["rolloutStrategy"] = {"rollingUpdateConfiguration": limits}
    if step in case.replicas:
        spec["replicas"] = case.replicas[step]
    if spec:
        ask("PATCH", f"{SETS}/{name}", {"spec": spec})
    if step in case.deleted:
        # The API server removes a Pod without a Node at once.
        pod = f"{PODS}/{name}{case.deleted[step]}"
        ask("PATCH", pod, {"metadata": {"finalizers": [RUNS]}})
        ask("DELETE", pod, None)
    return bool(spec or step in case.deleted)


def observe(ask: Ask, uids: dict[str, list[str]], found: dict[str, list[State]]) -> None:
    """Add the states that differ from the last ones."""
    states: dict[str, State] = {name: {} for name in CASES}
    for pod in ask("GET", PODS, None)["items"]:
        metadata = pod["metadata"]
        seen = uids.setdefault(metadata["name"], [])
        if metadata["uid"] not in seen:
            seen.append(metadata["uid"])
        image = pod["spec"]["containers"][0]["image"]
        states[metadata["labels"][f"{PREFIX}/name"]][metadata["name"]] = f"{image} {len(seen)}"
    for name, state in states.items():
        if found[name][-1:] != [state]:
            found[name].append(state)


def is_ready(pod: Document) -> bool:
    """Return whether a Pod has been reported as ready."""
    return bool((pod.get("status") or {}).get("phase") == "Running")


def stays_unready(pod: Document) -> bool:
    """Return whether a Pod is never reported as ready."""
    name = pod["metadata"]["labels"][f"{PREFIX}/name"]
    suffix = pod["metadata"]["name"].removeprefix(name)
    return bool(suffix == CASES[name].unready and pod["spec"]["containers"][0]["image"] == "old")


def report_ready(ask: Ask) -> int:
    """Report all Pods as ready, and end deleted ones; return how many there were."""
    pods = ask("GET", PODS, None)["items"]
    ending = [one for one in pods if RUNS in one["metadata"].get("finalizers", ())]
    for pod in ending:
        kept = [one for one in pod["metadata"]["finalizers"] if one != RUNS]
        ask("PATCH", f"{PODS}/{pod['metadata']['name']}", {"metadata": {"finalizers": kept}})
    waiting = [one for one in pods if not (is_ready(one) or stays_unready(one) or one in ending)]
    at = "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": at}
    for pod in waiting:
        status = {"phase": "Running", "conditions": [ready]}
        ask("PATCH", f"{PODS}/{pod['metadata']['name']}/status", {"status": status})
    return len(ending) + len(waiting)


@pytest.fixture(scope="module")
def real() -> Iterator[dict[str, list[State]]]:
    """What LeaderWorkerSet does."""
    folder = get_workload_controllers()
    with (
        open_own_control_plane() as plane,
        workload_controllers.running(plane, folder, workload_controllers.LWS),
    ):
        ask = asking(plane)

        def settle() -> None:
            before, since = "", time.monotonic()
            while time.monotonic() < since + STABLE_S:
                time.sleep(0.2)
                items = [
                    (one["metadata"]["name"], one["metadata"]["resourceVersion"])
                    for path in (PODS, "/apis/apps/v1/statefulsets", SETS)
                    for one in ask("GET", path, None)["items"]
                ]
                if str(items) != before:
                    before, since = str(items), time.monotonic()

        yield trace(ask, settle)


def asking(plane: OwnControlPlane) -> Ask:
    """Return a function that sends requests, which must succeed, to a control plane."""

    def ask(method: str, path: str, body: Any) -> Document:
        kind = MERGE if method == "PATCH" else "application/json"
        code, answer = plane.request(method, path, body, kind)
        assert code < 300, answer
        return dict(answer)

    return ask


@pytest.fixture(scope="module")
def simulated() -> dict[str, list[State]]:
    """What the stand-in does."""
    without = {Controller.KUBELETS, Controller.SCHEDULER}
    cluster = Cluster(controllers=frozenset(Controller) - without)

    def ask(method: str, path: str, body: Any) -> Document:
        kind = MERGE if method == "PATCH" else "application/json"
        answer = cluster.ask(method, path, body, **{"Content-Type": kind})
        assert answer["kind"] != "Status" or answer["status"] == "Success", answer
        return answer

    return trace(ask, lambda: cluster.run_for(20))


@pytest.mark.parametrize("name", CASES)
def test_the_stand_in_replaces_groups_in_the_same_order(
    name: str, real: dict[str, list[State]], simulated: dict[str, list[State]]
) -> None:
    assert simulated[name] == real[name]
