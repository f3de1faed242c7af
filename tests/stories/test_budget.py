"""The number of calls of slices, counted by the simulated Compute Engine and API server.

Only calls of the steps are counted, not those of the relay and the VMs. The lifecycle of a slice of N
VMs may take 6 + N writes and 17 + 3N reads on Compute Engine, and 70 + 12N calls to the API server, of
which 60 + 7N until Ready. 4 more writes, and a read before each, are allowed for deletes that are
rejected because a resource that was just deleted still uses another one. The steps have read the
cluster's id and CA before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from local.base.http import Request, Response
from shared.triggers.routes import STEPS
from tests.stories import helpers
from tests.stories.calls import CLUSTER_STEPS, CallCounter, Cost
from tests.stories.helpers import HOUR, MINUTE, ONE_HOST, STANDARD, PrintFigure
from tests.support.harness import ROOT, Harness
from tests.support.manifests import manifest

SIZES: dict[str, dict[str, Any]] = {
    "1 host": {**ONE_HOST},
    "2 hosts": {},
    "2 hosts that join by other means": {"bootstrapKubernetes": None},
    "16 hosts": {"nodeCount": 16, "topology": "4x4x4"},
    "64 hosts": {"nodeCount": 64, "topology": "4x8x8"},
}


def max_cost(nodes: int, *, bootstraps: bool = True) -> Cost:
    """The most calls that the lifecycle of a slice may take."""
    if not bootstraps:
        return Cost(6, 16 + 2 * nodes, 50 + 9 * nodes)
    return Cost(6 + nodes, 17 + 3 * nodes, 70 + 12 * nodes)


def excess(cost: Cost, allowed: Cost, rejected_writes: int = 0) -> dict[str, int]:
    """By how many calls a limit is exceeded, by kind."""
    rejected = min(rejected_writes, 4)
    over = cost - allowed - Cost(rejected, rejected, 0)
    return {name: by for name, by in vars(over).items() if by > 0}


@dataclass(frozen=True)
class Budget:
    """The limits in docs/cost.md for the lifecycle of a slice."""

    invocations: int
    calls: int


def read_budget(nodes: int) -> Budget:
    """Read the page's row for this number of VMs, which must agree with the page's formula."""
    page = (ROOT / "docs" / "cost.md").read_text()
    (formula,) = re.findall(r"at most (\d+) \+ (\d+)N invocations and (\d+) \+ (\d+)N calls", page)
    rows = re.findall(rf"^\| {nodes} \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    base, each, base_calls, each_calls = map(int, formula)
    budget = Budget(base + each * nodes, base_calls + each_calls * nodes)
    seconds = 0.1 * (budget.invocations + budget.calls)
    row = (f"{budget.invocations}", f"{budget.calls}", f"{seconds:.1f}")
    assert rows == [(*row, f"{seconds * 0.00002525:.4f}")]
    return budget


def run_lifecycle(
    harness: Harness, applied: dict[str, Any], when_ready: Callable[[], None] = lambda: None
) -> None:
    """Create a slice, wait, delete it, and wait again."""
    harness.apply(applied)
    helpers.until_ready(harness)
    when_ready()
    harness.run_for(5 * MINUTE)
    harness.delete(helpers.NAME)
    helpers.until_gone(harness)
    harness.run_for(5 * MINUTE)
    assert harness.leftovers() == []


@pytest.mark.parametrize("title", SIZES)
def test_the_lifecycle_of_a_slice_stays_within_its_budget(
    title: str, print_figure: PrintFigure
) -> None:
    change = SIZES[title]
    applied = manifest(**change)
    bootstraps = "bootstrapKubernetes" in applied["spec"]
    harness = Harness() if bootstraps else Harness(helpers.JOIN_BY_OTHER_MEANS)
    run_lifecycle(harness, manifest(**{**change, **ONE_HOST}))
    counter = CallCounter(harness)
    before = len(harness.answers)
    to_ready: list[Cost] = []
    run_lifecycle(harness, applied, lambda: to_ready.append(counter.cost()))
    assert to_ready[0].kubernetes <= 60 + 7 * applied["spec"]["nodeCount"]
    invocations = sum(step not in CLUSTER_STEPS for step, _ in harness.answers[before:])
    for row in counter.rows(title):
        print_figure(row)
    allowed = max_cost(applied["spec"]["nodeCount"], bootstraps=bootstraps)
    spent = counter.cost()
    print_figure(
        f"calls, {title:<32} total: {spent.writes} of {allowed.writes} GCE writes, "
        f"{spent.reads} of {allowed.reads} GCE reads, "
        f"{spent.kubernetes} of {allowed.kubernetes} Kubernetes calls; "
        f"{counter.rejected_writes()} rejected writes"
    )
    budget = read_budget(applied["spec"]["nodeCount"])
    calls = sum(vars(counter.cost()).values())
    print_figure(
        f"calls, {title:<32} total: {invocations} of {budget.invocations} invocations, "
        f"{calls} of {budget.calls} calls"
    )
    assert invocations <= budget.invocations
    assert calls - counter.rejected_writes() <= budget.calls
    assert counter.reads("label_node") <= 20, "one list reads the VMs of many Nodes"
    assert counter.agrees_with_the_servers()
    assert excess(counter.cost(), allowed, counter.rejected_writes()) == {}


@pytest.mark.parametrize("seed", range(9, 15))
def test_two_hosts_stay_within_their_budget_whenever_their_changes_happen(seed: int) -> None:
    harness = Harness(seed=seed)
    run_lifecycle(harness, manifest(**ONE_HOST))
    counter = CallCounter(harness)
    run_lifecycle(harness, manifest())
    assert excess(counter.cost(), max_cost(2), counter.rejected_writes()) == {}


@pytest.mark.slow
def test_a_hundred_groups_become_ready_and_are_deleted_each_within_its_budget(
    print_figure: PrintFigure,
) -> None:
    harness = Harness()
    counter = CallCounter(harness)
    names = [f"slice-{number}" for number in range(100)]
    for name in names:
        harness.apply(manifest(name, instanceConfig=STANDARD))
    _until_each(harness, names, lambda name: harness.is_ready(name))
    took = harness.clock.now()
    for name in names:
        harness.delete(name)
    _until_each(harness, names, lambda name: harness.group(name) is None)
    assert harness.leftovers() == []
    for row in counter.rows("100 groups of 2"):
        print_figure(row)
    print_figure(f"calls, 100 groups of 2 hosts: all Ready at {took:%H:%M:%S}; {counter.cost()}")
    each = max_cost(2)
    assert counter.rejected_writes() <= 4 * len(names)
    assert counter.cost().writes - counter.rejected_writes() <= each.writes * len(names)
    assert counter.cost().reads <= each.reads * len(names)
    assert counter.agrees_with_the_servers()


def test_an_hour_of_waiting_for_capacity_costs_few_calls_a_minute(
    print_figure: PrintFigure,
) -> None:
    harness = Harness()
    counter = CallCounter(harness)
    harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 0)
    harness.apply(manifest(instanceConfig=STANDARD))
    helpers.until_reason(harness, "InsufficientCapacity", timeout=5 * MINUTE)
    start, minutes = counter.cost(), []
    for _ in range(60):
        before = counter.cost()
        harness.run_for(MINUTE)
        minutes.append(counter.cost() - before)
    cost = counter.cost() - start
    reads = max(cost.reads for cost in minutes)
    kubernetes = max(cost.kubernetes for cost in minutes)
    print_figure(
        f"calls, an hour of waiting for capacity: {cost}; per minute at most {reads} GCE reads, "
        f"{kubernetes} Kubernetes calls"
    )
    assert cost.writes == 0
    assert reads <= 2
    assert kubernetes <= 4


@pytest.mark.conformance("pol-spec-always-differs")
def test_a_settled_fleet_costs_two_lists_a_minute_and_a_resync_per_group_and_hour(
    print_figure: PrintFigure,
) -> None:
    harness = Harness()
    counter = CallCounter(harness)
    names = [f"slice-{number}" for number in range(20)]
    for name in names:
        harness.apply(manifest(name, instanceConfig=STANDARD))
    _until_each(harness, names, lambda name: harness.is_ready(name))
    harness.run_for(HOUR + 5 * MINUTE)  # in the first hour each token is revoked once more
    lists, before = counter.kubernetes("sweep"), counter.cost()
    start = len(harness.answers)
    harness.run_for(HOUR)
    cost = counter.cost() - before
    resyncs = [step for step, _ in harness.answers[start:] if step not in CLUSTER_STEPS]
    print_figure(f"calls, 20 settled groups in an hour: {cost}; {len(resyncs)} resyncs")
    assert counter.kubernetes("sweep") - lists == 120
    assert resyncs == ["label_node"] * 20
    assert cost == Cost(writes=0, reads=40, kubernetes=40)


def test_nothing_is_listed_per_event_that_grows_with_the_cluster() -> None:
    """Steps list Nodes and groups only with a label selector. The sweep lists all groups each minute,
    and ``report_leaks`` all groups and Nodes each hour."""
    harness = Harness()
    unselective: Counter[tuple[str, str]] = Counter()
    handle = harness.simulation.kube.handle
    tokens = {f"Bearer {step.replace('_', '-')}": step for step in STEPS}

    def watch(request: Request) -> Response:
        step = tokens.get(request.headers.get("authorization", ""))
        is_list = request.method == "GET" and request.path.endswith(("/nodes", "/tpunodegroups"))
        if step and is_list and not request.argument("labelSelector"):
            unselective[step, request.path] += 1
        return handle(request)

    harness.simulation.kube.handle = watch  # type: ignore[method-assign]
    for name in ("one", "two", "three"):
        harness.apply(manifest(name))
    for name in ("one", "two", "three"):
        helpers.until_ready(harness, name)
        harness.delete(name)
        helpers.until_gone(harness, name)
    groups = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
    hourly = {("report_leaks", "/api/v1/nodes")}
    all_groups = {(step, groups) for step in CLUSTER_STEPS}
    assert {("sweep", groups)} <= set(unselective) <= all_groups | hourly


def _until_each(harness: Harness, names: list[str], holds: Callable[[str], bool]) -> None:
    """Let time pass until a condition is true for every group; check every ten seconds, for speed."""
    left = set(names)
    for _ in range(360):
        left -= {name for name in left if holds(name)}
        if not left:
            return
        harness.run_for(timedelta(seconds=10))
    raise AssertionError(f"{sorted(left)}: {helpers.describe_state(harness)}")
