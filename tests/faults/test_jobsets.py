"""The steps of slices are killed at each kind of call, or process a message twice; the result is the
same.

The scenarios are about a small workload of each kind whose slices are TPUNodeGroups or node pools. Only
calls of the steps of slices are disturbed; `tests/explore/exhaustive.py` covers the other steps. The
sweep repeats the same calls each minute, so the fast test disturbs the first read and the first two
writes of each kind. After a read is the same point as before the next call. With node pools, the fast
test disturbs only writes to GKE; of other kinds than JobSets, only writes. In scenarios that delete the
JobSet, it begins at the deletion, because the calls before it are those of the complete lifecycle. The
slow test disturbs all calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from local.cloud.simulation import Options
from local.jobsets import PodBehaviour
from shared.settings import GKE, TPU_NODE_GROUP
from shared.triggers.routes import SLICE_STEPS
from tests.explore.explorer import ExploredHarness
from tests.faults.crashes import AFTER, AGAIN, BEFORE, anonymous, is_write, kind, run_disturbed
from tests.faults.jobsets import (
    SETTINGS,
    count_most,
    make_class,
    post,
    prepare,
    running,
    slices,
)
from tests.stories import request_objects, workload_objects
from tests.stories.helpers import PrintFigure
from tests.stories.jobsets import MERGE, delete, pods, until
from tests.support import jobset_objects
from tests.support.harness import Harness

Scenario = Callable[[Harness], Any]


def new_harness(provider: str, scenario: Scenario) -> ExploredHarness:
    namespaces = LISTED.get(scenario, "")
    options = Options(workloads=bool(namespaces))
    harness = ExploredHarness(options, slices=SETTINGS[provider])
    prepare(harness, namespaces)
    return harness


def observe(harness: Harness) -> Any:
    """The observable state of a running JobSet, without times, ids and random suffixes of names."""
    return {
        "slices": slices(harness),
        "pods": sorted(pod["spec"]["hostname"] for pod in pods(harness)),
        "nodes": len({pod["spec"]["nodeName"] for pod in pods(harness)}),
        "compute": sorted(anonymous(path)[:60] for path in harness.simulation.gce.leftovers()),
    }


def complete_lifecycle(harness: Harness) -> Any:
    """A JobSet is applied, runs and completes; its slice is deleted."""
    post(harness)
    until(harness, lambda: running(harness) == 1)
    state = observe(harness)
    harness.jobsets.behaviour = PodBehaviour(run_s=0)
    until(harness, lambda: not slices(harness))
    return state


def recreated_immediately(harness: Harness) -> Any:
    """A JobSet is deleted and created again before its slice is deleted: the slice is kept."""
    post(harness)
    until(harness, lambda: running(harness) == 1)
    delete(harness)
    harness.run_for(timedelta(seconds=10))
    post(harness)
    until(harness, lambda: running(harness) == 1)
    harness.run_for(timedelta(minutes=3))
    state = observe(harness)
    delete(harness)
    until(harness, lambda: not slices(harness))
    return state


def recreated_with_another_topology(harness: Harness) -> Any:
    """A JobSet is deleted and created again with another topology: the slice is replaced."""
    post(harness)
    until(harness, lambda: running(harness) == 1)
    delete(harness)
    harness.run_for(timedelta(seconds=10))
    post(harness, topology="2x4")
    until(harness, lambda: running(harness) == 2)
    harness.run_for(timedelta(minutes=3))
    state = observe(harness)
    delete(harness)
    until(harness, lambda: not slices(harness))
    return state


def deleted_during_creation(harness: Harness) -> Any:
    """A JobSet is deleted while its slice is being created."""
    post(harness)
    until(harness, lambda: bool(slices(harness)))
    delete(harness)
    until(harness, lambda: not slices(harness))


def two_candidates_refuse(harness: Harness) -> Any:
    """The first two candidates of a JobSet's class refuse, one after the other."""
    make_class(harness)
    most = count_most(harness)
    state = recreated_immediately(harness)
    assert most == [1]
    return state


def deployment_is_scaled(harness: Harness) -> Any:
    """A Deployment is scaled from 1 to 3 Pods, as many slices as it may have, and to 0."""
    return scale(harness, workload_objects.deployment(), (1, 3, 0))


def leader_worker_set_is_scaled(harness: Harness) -> Any:
    """A LeaderWorkerSet is scaled from 1 to 2 groups of 2 hosts, to 1, and to 0."""
    applied = workload_objects.leader_worker_set(size=2, topology="2x4")
    return scale(harness, applied, (1, 2, 1, 0))


def replica_set_is_scaled(harness: Harness) -> Any:
    """A ReplicaSet is scaled from 1 to 2 Pods, and to 0."""
    return scale(harness, workload_objects.replica_set(), (1, 2, 0))


def stateful_set_is_scaled(harness: Harness) -> Any:
    """A StatefulSet is scaled from 1 to 2 Pods, and to 0."""
    return scale(harness, workload_objects.stateful_set(), (1, 2, 0))


def job_completes(harness: Harness) -> Any:
    """An Indexed Job of one host runs and completes."""
    return run_to_end(harness, workload_objects.job())


def pod_completes(harness: Harness) -> Any:
    """A Pod of its own runs and completes."""
    return run_to_end(harness, workload_objects.pod())


def request_is_provisioned(harness: Harness) -> Any:
    """A queue asks for the slice of a suspended JobSet, then resumes it; later it is deleted."""
    jobset = jobset_objects.small_jobset()
    jobset["spec"]["suspend"] = True
    owner = request_objects.post(harness, workload_objects.PATHS["JobSet"], jobset)
    workload = request_objects.queue(harness, owner)
    request_objects.request(harness, request_objects.pod_sets(owner), workload)
    until(harness, lambda: request_objects.is_provisioned(harness))
    request_objects.admit(harness, owner)
    until(harness, lambda: running(harness) == 1)
    harness.run_for(timedelta(minutes=12))
    state = observe(harness), request_objects.conditions(harness)
    delete(harness)
    harness.simulation.admin("DELETE", f"{request_objects.REQUESTS}/train-1")
    until(harness, lambda: not slices(harness))
    check_events(harness, 2)
    return state


def run_to_end(harness: Harness, applied: dict[str, Any]) -> Any:
    """The state while it runs; its slice is deleted when it has completed."""
    harness.simulation.admin("POST", workload_objects.PATHS[applied["kind"]], applied)
    until(harness, lambda: running(harness) == 1)
    harness.run_for(timedelta(minutes=3))
    state = len(slices(harness)), running(harness)
    harness.jobsets.behaviour = PodBehaviour(run_s=0)
    until(harness, lambda: not slices(harness))
    check_events(harness, 2)
    return state


def scale(harness: Harness, applied: dict[str, Any], sizes: tuple[int, ...]) -> Any:
    """The states with these numbers of replicas, each of which has a slice."""
    path = workload_objects.PATHS[applied["kind"]]
    size = applied["spec"].get("leaderWorkerTemplate", {"size": 1})["size"]
    harness.simulation.admin("POST", path, applied)
    states = []

    def is_settled(replicas: int) -> bool:
        return (running(harness), len(slices(harness))) == (replicas * size, replicas)

    for replicas in sizes:
        change = {"spec": {"replicas": replicas}}
        harness.simulation.admin("PATCH", f"{path}/serve", change, **MERGE)
        until(harness, partial(is_settled, replicas))
        if replicas:
            harness.run_for(timedelta(minutes=3))
        states.append((len(slices(harness)), running(harness)))
    check_events(harness, 2 * max(sizes))
    return states


def check_events(harness: Harness, most: int) -> None:
    """Nothing was reported twice. A process that is killed after a change does not report it."""
    found = harness.simulation.admin("GET", "/api/v1/namespaces/default/events")["items"]
    about = [one for one in found if one["involvedObject"]["kind"] != "TPUNodeGroup"]
    messages = [one["message"] for one in about if one["reason"].endswith("Started")]
    assert {one["count"] for one in about} == {1}, about
    assert most - 1 <= len({*messages}) == len(messages) <= most, messages


LISTED: dict[Scenario, str] = {
    request_is_provisioned: "default: {kinds: [JobSet, ProvisioningRequest], slices: 1}",
    deployment_is_scaled: "default: {kinds: [Deployment], slices: 3}",
    leader_worker_set_is_scaled: "default: {kinds: [LeaderWorkerSet], slices: 2}",
    replica_set_is_scaled: "default: {kinds: [ReplicaSet], slices: 2}",
    stateful_set_is_scaled: "default: {kinds: [StatefulSet], slices: 2}",
    job_completes: "default: {kinds: [Job], slices: 1}",
    pod_completes: "default: {kinds: [Pod], slices: 1}",
}
"""What the namespace may have."""
SCENARIOS: tuple[Any, ...] = (
    pytest.param((TPU_NODE_GROUP, complete_lifecycle)),
    pytest.param((TPU_NODE_GROUP, recreated_immediately)),
    pytest.param((TPU_NODE_GROUP, recreated_with_another_topology), marks=pytest.mark.slow),
    pytest.param((TPU_NODE_GROUP, deleted_during_creation)),
    pytest.param((GKE, complete_lifecycle)),
    pytest.param((GKE, recreated_immediately), marks=pytest.mark.slow),
    pytest.param((GKE, recreated_with_another_topology), marks=pytest.mark.slow),
    pytest.param((GKE, deleted_during_creation), marks=pytest.mark.slow),
    pytest.param((TPU_NODE_GROUP, two_candidates_refuse)),
    pytest.param((GKE, two_candidates_refuse)),
    pytest.param((TPU_NODE_GROUP, request_is_provisioned)),
    pytest.param((GKE, request_is_provisioned), marks=pytest.mark.slow),
    pytest.param((TPU_NODE_GROUP, deployment_is_scaled)),
    pytest.param((TPU_NODE_GROUP, leader_worker_set_is_scaled), marks=pytest.mark.slow),
    pytest.param((GKE, deployment_is_scaled), marks=pytest.mark.slow),
    pytest.param((GKE, leader_worker_set_is_scaled)),
    *(
        pytest.param((provider, scenario), marks=pytest.mark.slow)
        for provider in (TPU_NODE_GROUP, GKE)
        for scenario in (
            replica_set_is_scaled,
            stateful_set_is_scaled,
            job_completes,
            pod_completes,
        )
    ),
)


@pytest.fixture(params=SCENARIOS, ids=lambda case: f"{case[1].__name__}-{case[0]}")
def case(request: pytest.FixtureRequest) -> tuple[str, Scenario]:
    found: tuple[str, Scenario] = request.param
    return found


def is_in_sample(call: str, provider: str, scenario: Scenario) -> bool:
    if provider == GKE:
        return "/nodePools" in call and is_write(call)
    return scenario not in LISTED or is_write(call)


def test_a_step_of_jobsets_may_be_disturbed_at_each_kind_of_call(
    case: tuple[str, Scenario], print_figure: PrintFigure
) -> None:
    has_begun = case[1] in (complete_lifecycle, two_candidates_refuse, *LISTED)
    times = Counter[str]()

    def choose(call: str) -> list[str]:
        nonlocal has_begun
        has_begun |= call.startswith("release_slice: ")
        times[kind(call)] += has_begun and is_in_sample(call, *case)
        if not has_begun or not is_in_sample(call, *case):
            return []
        if is_write(call):
            return [BEFORE, AFTER, AGAIN] if times[kind(call)] <= 2 else []
        return [BEFORE] if times[kind(call)] == 1 else []

    check(case, choose, print_figure)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_step_of_jobsets_may_be_disturbed_at_any_call(
    case: tuple[str, Scenario], print_figure: PrintFigure
) -> None:
    def choose(call: str) -> list[str]:
        return [BEFORE, AFTER, AGAIN] if is_write(call) else [BEFORE, AGAIN]

    check(case, choose, print_figure)


def check(
    case: tuple[str, Scenario], choose: Callable[[str], list[str]], print_figure: PrintFigure
) -> None:
    """Each disturbed run has the result of the undisturbed one."""
    provider, scenario = case
    usual, failures, count = run_disturbed(
        scenario, choose, partial(new_harness, *case), SLICE_STEPS
    )
    assert usual.leftovers == []
    assert count
    assert failures == []
    print_figure(f"{scenario.__name__} with {provider}: {count} calls disturbed")
