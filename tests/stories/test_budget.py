"""The number of calls of slices, counted by the simulated Compute Engine and API server.

Only calls of the steps are counted, not those of the relay and the VMs. `max_cost` is the budget of a
slice's lifecycle, with the sweep's calls to the API server from apply to Ready and from delete to gone;
`max_kubernetes_to_ready` is a part of it. 4 more writes, and a
read before each, are allowed for deletes that are rejected because a resource that was just deleted
still uses another one. The steps have read the cluster's id and CA before.

docs/cost.md and docs/performance.md have the budget and these counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from local import pubsub
from local.base.http import Request, Response
from local.cloud.simulation import Options
from shared.triggers.routes import STEPS
from tests.stories import helpers
from tests.stories.calls import (
    CLUSTER_STEPS,
    CallCounter,
    Cost,
    max_cost,
    max_kubernetes_to_ready,
    run_lifecycle,
)
from tests.stories.helpers import HOUR, MINUTE, ONE_HOST, STANDARD, TWO_SINGLE, PrintFigure
from tests.support.harness import ROOT, Harness
from tests.support.manifests import manifest

SIZES: dict[str, dict[str, Any]] = {
    "1 host": {**ONE_HOST},
    "2 hosts": {},
    "2 hosts that join by other means": {"bootstrapKubernetes": None},
    "16 hosts": {"nodeCount": 16, "topology": "4x4x4"},
    "64 hosts": {"nodeCount": 64, "topology": "4x8x8"},
}


def excess(cost: Cost, allowed: Cost, rejected_writes: int = 0) -> dict[str, int]:
    """By how many calls a limit is exceeded, by kind."""
    rejected = min(rejected_writes, 4)
    over = cost - allowed - Cost(rejected, rejected, 0)
    return {name: by for name, by in vars(over).items() if by > 0}


def nearly(counted: int) -> Any:
    """What a page may have for a count, so that not each change of one call changes pages."""
    return pytest.approx(counted, rel=0.03, abs=1)


def read_budget(nodes: int) -> tuple[int, int, list[int]]:
    """Read docs/cost.md, whose formula and row for this number of VMs agree with the budget.

    Returns the most invocations and calls, and the row's counted ones.
    """
    page = (ROOT / "docs" / "cost.md").read_text()
    (formula,) = re.findall(r"at most (\d+) \+ (\d+)N invocations and (\d+) \+ (\d+)N calls", page)
    base, each, base_calls, each_calls = map(int, formula)
    invocations, calls = base + each * nodes, base_calls + each_calls * nodes
    assert calls == max_cost(nodes).calls
    seconds = 0.1 * (invocations + calls)
    row = (
        str(nodes),
        str(invocations),
        str(calls),
        f"{seconds:.1f}",
        f"{seconds * 0.00002525:.4f}",
    )
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    (found,) = [cells for cells in rows if len(cells) == 7 and cells[0] == row[0]]
    assert tuple(found[:5]) == row
    return invocations, calls, [int(cell) for cell in found[5:]]


def check_table_of_calls(nodes: int, counted: Counter[tuple[str, str]]) -> None:
    """docs/cost.md has each call to the API server of this lifecycle."""
    lines = (ROOT / "docs" / "cost.md").read_text().splitlines()
    rows = [
        re.findall(r"`([a-z_]+)` \| `([a-z/ ]+)` \| (\d+) \| (\d+) \| (\d+) \|", line)
        for line in lines
    ]
    column = [2, 16, 64].index(nodes) + 2
    table = {row[:2]: int(row[column]) for found in rows for row in found if row[column] != "0"}
    assert table == {call: pytest.approx(number, rel=0.03) for call, number in counted.items()}


def check_performance_page(nodes: int, to_ready: Cost, cost: Cost) -> None:
    """docs/performance.md has what this lifecycle took, and the budget."""
    lines = (ROOT / "docs" / "performance.md").read_text().splitlines()
    rows = [line.split() for line in lines if re.fullmatch(rf" +{nodes}( +\d+%?){{8}}", line)]
    allowed = max_cost(nodes)
    gce, budget = cost.writes + cost.reads, allowed.writes + allowed.reads
    (page,) = [[int(row[column]) for column in (1, 2, 5, 6)] for row in rows]
    assert page == [nearly(gce), budget, nearly(cost.kubernetes), allowed.kubernetes]
    column = 2 * [2, 16, 64].index(nodes)

    def read_cell(title: str) -> int:
        (cells,) = [line.split("|")[2:] for line in lines if line.startswith(f"| {title} |")]
        return int(cells[column])

    gone = cost - to_ready
    assert read_cell("Compute Engine calls to Ready") == nearly(to_ready.writes + to_ready.reads)
    assert read_cell("Kubernetes calls to Ready") == nearly(to_ready.kubernetes)
    assert read_cell("Compute Engine calls, from delete to gone") == nearly(
        gone.writes + gone.reads
    )
    assert read_cell("Kubernetes calls, from delete to gone") == nearly(gone.kubernetes)


def _count_gce(nodes: int) -> int:
    return max_cost(nodes).reads + max_cost(nodes).writes


BUDGETS: list[tuple[str, str, Callable[[int], int]]] = [
    ("performance.md", "until Ready, N calls to the API server", max_kubernetes_to_ready),
    ("cost.md", "with six of the sweep, exceed N", lambda nodes: max_cost(nodes).kubernetes),
    ("cost.md", "invocations and N calls", lambda nodes: max_cost(nodes).calls),
    ("cost.md", "of which N calls are to Compute Engine", _count_gce),
    ("scale.md", "makes at most N reads", lambda nodes: max_cost(nodes).reads),
    ("scale.md", "reads and N other calls to Compute Engine", lambda nodes: max_cost(nodes).writes),
    ("../CHANGELOG.md", "hosts takes at most N calls", lambda nodes: max_cost(nodes).kubernetes),
]


@pytest.mark.parametrize(
    "page, words, budget", BUDGETS, ids=[f"{row[0]}: {row[1]}" for row in BUDGETS]
)
def test_each_published_formula_is_the_budget(
    page: str, words: str, budget: Callable[[int], int]
) -> None:
    text = " ".join((ROOT / "docs" / page).read_text().split())
    ((base, each),) = re.findall(words.replace("N", r"(\d+) \+ (\d*)N"), text)
    for nodes in (1, 2, 2_304):
        assert budget(nodes) == int(base) + int(each or 1) * nodes


@pytest.mark.parametrize("title", SIZES)
def test_the_lifecycle_of_a_slice_stays_within_its_budget(
    title: str, print_figure: PrintFigure, request: pytest.FixtureRequest
) -> None:
    change = SIZES[title]
    applied = manifest(**change)
    bootstraps = "bootstrapKubernetes" in applied["spec"]
    harness = Harness() if bootstraps else Harness(helpers.JOIN_BY_OTHER_MEANS)
    run_lifecycle(harness, manifest(**{**change, **ONE_HOST}))
    counter = CallCounter(harness)
    before = len(harness.answers)
    to_ready: list[Cost] = []
    with_sweep: list[int] = []

    def note() -> None:
        to_ready.append(counter.cost())
        with_sweep.append(counter.with_sweep())

    run_lifecycle(harness, applied, note)
    nodes, (ready, deleted, gone) = applied["spec"]["nodeCount"], with_sweep
    print_figure(
        f"calls, {title:<32} with the sweep: {ready} to Ready, {gone - deleted + ready} in all"
    )
    if bootstraps:
        assert to_ready[0].kubernetes <= max_kubernetes_to_ready(nodes)
        assert ready <= max_kubernetes_to_ready(nodes) + 4, "two lists of each run of the sweep"
        assert gone - deleted + ready <= max_cost(nodes).kubernetes
    invocations = sum(step not in CLUSTER_STEPS for step, _ in harness.answers[before:])
    for row in counter.rows(title):
        print_figure(row)
    allowed = max_cost(applied["spec"]["nodeCount"], bootstraps=bootstraps)
    spent = counter.cost()
    print_figure(
        f"calls, {title:<32} total: {spent.writes} of {allowed.writes} GCE writes, "
        f"{spent.reads} of {allowed.reads} GCE reads, "
        f"{spent.kubernetes} of {allowed.kubernetes} Kubernetes calls; "
        f"{counter.rejected_writes()} rejected writes; "
        f"{invocations} invocations; to Ready: {to_ready[0]}"
    )
    max_invocations, max_calls, counted = read_budget(applied["spec"]["nodeCount"])
    assert invocations <= max_invocations
    assert spent.calls - counter.rejected_writes() <= max_calls
    if request.node.callspec.params["cluster"] == "embedded" and bootstraps:
        assert counted == [nearly(invocations), nearly(spent.calls)]
        if applied["spec"]["nodeCount"] > 1:
            check_performance_page(applied["spec"]["nodeCount"], to_ready[0], spent)
            check_table_of_calls(applied["spec"]["nodeCount"], counter.kubernetes_by_call())
    assert counter.reads("label_node") <= 20, "one list reads the VMs of many Nodes"
    assert counter.agrees_with_the_servers()
    assert excess(counter.cost(), allowed, counter.rejected_writes()) == {}


@pytest.mark.parametrize("title", ["2 hosts", "16 hosts", "64 hosts"])
def test_messages_that_are_delivered_twice_cost_few_more_calls(title: str) -> None:
    spent = []
    for duplicates in (0.0, 1.0):
        harness = Harness(Options(pubsub=pubsub.Timings(duplicates=duplicates)))
        run_lifecycle(harness, manifest(**ONE_HOST))
        counter = CallCounter(harness)
        run_lifecycle(harness, manifest(**SIZES[title]))
        spent.append(counter.cost())
        assert counter.rejected_writes() == 0
    once, twice = spent
    assert twice.writes == once.writes
    assert twice.reads + twice.writes <= 1.4 * (once.reads + once.writes)
    assert twice.kubernetes <= 1.4 * once.kubernetes


@pytest.mark.parametrize("seed", range(9, 15))
def test_two_hosts_stay_within_their_budget_whenever_their_changes_happen(seed: int) -> None:
    harness = Harness(seed=seed)
    run_lifecycle(harness, manifest(**ONE_HOST))
    counter, before = CallCounter(harness), len(harness.log.lines)
    run_lifecycle(harness, manifest())
    ready = {"step": "label_node", "trigger": "Resync", "decision": "AllReady"}
    hourly = sum(ready.items() <= line.items() for line in harness.log.lines[before:])
    spent = counter.cost() - Cost(
        0, 2 * hourly, 2 * hourly
    )  # the group's minute may be in its life
    assert excess(spent, max_cost(2), counter.rejected_writes()) == {}


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


@pytest.mark.parametrize(
    "change, expected", [({}, (2, 3)), (TWO_SINGLE, (1, 3))], ids=["BULK", "INDIVIDUAL"]
)
def test_a_further_settled_slice_costs_at_most_four_calls_an_hour_to_each_api(
    change: dict[str, Any], expected: tuple[int, int], print_figure: PrintFigure
) -> None:
    """All calls of all steps, with the sweep and the hourly look for idle slices. Its first Node is in
    use: of an idle slice, each Node is looked at."""
    spent = []
    for count in (1, 6):
        harness = Harness()
        names = [f"slice-{number}" for number in range(count)]
        for name in names:
            harness.apply(manifest(name, **{**change, "instanceConfig": STANDARD}))
        _until_each(harness, names, harness.is_ready)
        for node in helpers.nodes(harness):
            helpers.bind_pod(harness, node)
        harness.run_for(2 * HOUR + 5 * MINUTE)
        counter = CallCounter(harness)
        harness.run_for(HOUR)
        counted = counter.cost()
        spent.append((counted.reads + counted.writes, counter.with_sweep()))
    gce, kubernetes = ((after - before) / 5 for before, after in zip(*spent, strict=True))
    print_figure(
        f"calls, a further settled slice in an hour: {gce:g} GCE, {kubernetes:g} Kubernetes"
    )
    assert (gce, kubernetes) == expected
    assert max(expected) <= 4


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
