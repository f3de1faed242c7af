"""What lives cost, counted where the calls arrive: at Compute Engine and at the API server.

The steps' calls only: the relay watches, and VMs make calls of their own. A whole life of N VMs may
cost Compute Engine 6 + N writes (4 more when races are lost: what is deleted is still in use by what
has just gone) and 16 + 3N reads, and the API server 70 + 12N calls, 60 + 7N of them to Ready, in
processes that know the cluster's id and CA already: they ask for those once. Less is better.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from local.base.http import Request, Response
from local.cloud.simulation import identity
from shared.base.names import STEPS
from tests.harness import ROOT, Harness
from tests.manifests import manifest
from tests.stories import life
from tests.stories.life import HOUR, MINUTE, ONE_HOST, STANDARD, Say

OF_THE_CLUSTER = frozenset({"sweep", "report_leaks"})
"""The steps whose calls are about all groups."""

SIZES: dict[str, dict[str, Any]] = {
    "1 host": {**ONE_HOST},
    "2 hosts": {},
    "2 hosts that join by other means": {"bootstrapKubernetes": None},
    "16 hosts": {"nodeCount": 16, "topology": "4x4x4"},
    "64 hosts": {"nodeCount": 64, "topology": "4x8x8"},
}


@dataclass(frozen=True)
class Cost:
    """Calls that arrived."""

    writes: int
    reads: int
    kubernetes: int

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.writes - other.writes,
            self.reads - other.reads,
            self.kubernetes - other.kubernetes,
        )


class Ledger:
    """Who calls whom how often from now on.

    Steps are told apart on their way out, and that is held against what has arrived.
    """

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._writes: Counter[str] = Counter()
        self._reads: Counter[str] = Counter()
        self._of_the_fleet = 0
        harness.simulation.gce.calls.clear()
        harness.simulation.kube.calls.clear()
        harness.hooks.before = self._note

    def _note(self, step: str, call: str) -> None:
        method, _, path = call.partition(" ")
        if path.startswith("/compute/") and step in OF_THE_CLUSTER:
            self._of_the_fleet += 1
        elif path.startswith("/compute/"):
            (self._reads if method == "GET" else self._writes)[step] += 1

    def kubernetes(self, step: str) -> int:
        """A step's calls to the API server."""
        return self._harness.simulation.kube.calls.by_user[identity(step.replace("_", "-")).name]

    def reads(self, step: str) -> int:
        """A step's reads of Compute Engine."""
        return self._reads[step]

    def cost(self) -> Cost:
        """All calls of all steps that are a group's: not those about all groups of the cluster."""
        gce = self._harness.simulation.gce.calls
        kubernetes = sum(self.kubernetes(step) for step in STEPS if step not in OF_THE_CLUSTER)
        return Cost(gce.writes(), gce.reads() - self._of_the_fleet, kubernetes)

    def lost_races(self) -> int:
        """Writes to Compute Engine that were refused."""
        calls = self._harness.simulation.gce.calls.records
        return sum(call.is_write and call.status >= 400 for call in calls)

    def rows(self, title: str) -> Iterable[str]:
        """A table: what each step has cost."""
        for step in STEPS:
            yield (
                f"calls, {title:<32} {step:<16} GCE writes {self._writes[step]:>4}"
                f"  reads {self._reads[step]:>4}  Kubernetes {self.kubernetes(step):>5}"
            )

    def agrees_with_the_servers(self) -> bool:
        """Whether all that steps have sent has arrived, once."""
        cost = self.cost()
        return (self._writes.total(), self._reads.total()) == (cost.writes, cost.reads)


def budget(nodes: int, *, bootstraps: bool = True) -> Cost:
    """What a whole life may cost."""
    if not bootstraps:
        return Cost(6, 16 + 2 * nodes, 50 + 9 * nodes)
    return Cost(6 + nodes, 16 + 3 * nodes, 70 + 12 * nodes)


def excess(spent: Cost, allowed: Cost, lost_races: int = 0) -> dict[str, int]:
    """By how much a budget is passed, where it is."""
    over = spent - allowed - Cost(min(lost_races, 4), 0, 0)
    return {name: by for name, by in vars(over).items() if by > 0}


@dataclass(frozen=True)
class Promise:
    """What docs/operate.md says that a whole life costs at most."""

    invocations: int
    calls: int


def promise(nodes: int) -> Promise:
    """The page's row for so many VMs, which must be what the page's own sums make of it."""
    page = (ROOT / "docs" / "operate.md").read_text()
    (sums,) = re.findall(r"at most (\d+) \+ (\d+)N invocations and (\d+) \+ (\d+)N calls", page)
    rows = re.findall(rf"^\| {nodes} \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    base, each, base_calls, each_calls = map(int, sums)
    promised = Promise(base + each * nodes, base_calls + each_calls * nodes)
    seconds = 0.1 * (promised.invocations + promised.calls)
    told = (f"{promised.invocations}", f"{promised.calls}", f"{seconds:.1f}")
    assert rows == [(*told, f"{seconds * 0.00002525:.4f}")]
    return promised


def live_and_go(
    harness: Harness, wanted: dict[str, Any], when_ready: Callable[[], None] = lambda: None
) -> None:
    """A whole life, with some quiet minutes in it and after it."""
    harness.apply(wanted)
    life.until_ready(harness)
    when_ready()
    harness.run_for(5 * MINUTE)
    harness.delete(life.NAME)
    life.until_gone(harness)
    harness.run_for(5 * MINUTE)
    assert harness.leftovers() == []


@pytest.mark.parametrize("title", SIZES)
def test_a_whole_life_stays_within_its_budget(title: str, say: Say) -> None:
    change = SIZES[title]
    wanted = manifest(**change)
    bootstraps = "bootstrapKubernetes" in wanted["spec"]
    harness = Harness() if bootstraps else Harness(life.JOINED_OTHERWISE)
    live_and_go(harness, manifest(**{**change, **ONE_HOST}))
    ledger = Ledger(harness)
    before = len(harness.answers)
    to_ready: list[Cost] = []
    live_and_go(harness, wanted, lambda: to_ready.append(ledger.cost()))
    assert to_ready[0].kubernetes <= 60 + 7 * wanted["spec"]["nodeCount"]
    invocations = sum(step not in OF_THE_CLUSTER for step, _ in harness.answers[before:])
    for row in ledger.rows(title):
        say(row)
    allowed = budget(wanted["spec"]["nodeCount"], bootstraps=bootstraps)
    say(f"calls, {title:<32} ~ all {ledger.cost()} of {allowed}, {ledger.lost_races()} races lost")
    promised = promise(wanted["spec"]["nodeCount"])
    calls = sum(vars(ledger.cost()).values())
    say(f"calls, {title:<32} ~ {invocations} invocations, {calls} calls of {promised}")
    assert invocations <= promised.invocations
    assert calls - ledger.lost_races() <= promised.calls
    assert ledger.reads("label_node") <= 20, "the VMs of many Nodes are read by one list"
    assert ledger.agrees_with_the_servers()
    assert excess(ledger.cost(), allowed, ledger.lost_races()) == {}


@pytest.mark.parametrize("seed", range(9, 15))
def test_two_hosts_stay_within_their_budget_whenever_their_changes_happen(seed: int) -> None:
    harness = Harness(seed=seed)
    live_and_go(harness, manifest(**ONE_HOST))
    ledger = Ledger(harness)
    live_and_go(harness, manifest())
    assert excess(ledger.cost(), budget(2), ledger.lost_races()) == {}


@pytest.mark.slow
def test_a_hundred_groups_become_ready_and_are_deleted_each_within_its_budget(say: Say) -> None:
    harness = Harness()
    ledger = Ledger(harness)
    names = [f"slice-{number}" for number in range(100)]
    for name in names:
        harness.apply(manifest(name, instanceConfig=STANDARD))
    _until_each(harness, names, lambda name: harness.is_ready(name))
    took = harness.clock.now()
    for name in names:
        harness.delete(name)
    _until_each(harness, names, lambda name: harness.group(name) is None)
    assert harness.leftovers() == []
    for row in ledger.rows("100 groups of 2"):
        say(row)
    say(f"calls, 100 groups of 2: all Ready at {took:%H:%M:%S}, {ledger.cost()}")
    each = budget(2)
    assert ledger.lost_races() <= 4 * len(names)
    assert ledger.cost().writes - ledger.lost_races() <= each.writes * len(names)
    assert ledger.cost().reads <= each.reads * len(names)
    assert ledger.agrees_with_the_servers()


def test_an_hour_of_waiting_for_capacity_costs_few_calls_a_minute(say: Say) -> None:
    harness = Harness()
    ledger = Ledger(harness)
    harness.simulation.gce.faults.set_capacity("us-central1-c", "tpu7x", 0)
    harness.apply(manifest(instanceConfig=STANDARD))
    life.until_reason(harness, "InsufficientCapacity", timeout=5 * MINUTE)
    start, minutes = ledger.cost(), []
    for _ in range(60):
        before = ledger.cost()
        harness.run_for(MINUTE)
        minutes.append(ledger.cost() - before)
    spent = ledger.cost() - start
    reads = max(cost.reads for cost in minutes)
    kubernetes = max(cost.kubernetes for cost in minutes)
    say(
        f"calls, an hour of waiting: {spent}; at most {reads} reads, {kubernetes} Kubernetes a minute"
    )
    assert spent.writes == 0
    assert reads <= 2
    assert kubernetes <= 4


def test_a_settled_fleet_costs_two_lists_a_minute_and_a_resync_per_group_and_hour(say: Say) -> None:
    harness = Harness()
    ledger = Ledger(harness)
    names = [f"slice-{number}" for number in range(20)]
    for name in names:
        harness.apply(manifest(name, instanceConfig=STANDARD))
    _until_each(harness, names, lambda name: harness.is_ready(name))
    harness.run_for(5 * MINUTE)
    lists, before = ledger.kubernetes("sweep"), ledger.cost()
    looks = len(harness.answers)
    harness.run_for(HOUR)
    spent = ledger.cost() - before
    looked = [step for step, _ in harness.answers[looks:] if step not in OF_THE_CLUSTER]
    say(f"calls, a settled fleet of 20 in an hour: {spent}, {len(looked)} looks")
    assert ledger.kubernetes("sweep") - lists == 120
    assert looked == ["label_node"] * 20
    assert spent == Cost(writes=0, reads=40, kubernetes=40)


def test_nothing_is_listed_per_event_that_grows_with_the_cluster() -> None:
    """Of Nodes and groups only those of a name are listed; all groups by the sweep, each minute, and
    by ``report_leaks``, each hour."""
    harness = Harness()
    whole: Counter[tuple[str, str]] = Counter()
    handle = harness.simulation.kube.handle
    tokens = {f"Bearer {step.replace('_', '-')}": step for step in STEPS}

    def watch(request: Request) -> Response:
        step = tokens.get(request.headers.get("authorization", ""))
        is_list = request.method == "GET" and request.path.endswith(("/nodes", "/tpunodegroups"))
        if step and is_list and not request.argument("labelSelector"):
            whole[step, request.path] += 1
        return handle(request)

    harness.simulation.kube.handle = watch  # type: ignore[method-assign]
    for name in ("one", "two", "three"):
        harness.apply(manifest(name))
    for name in ("one", "two", "three"):
        life.until_ready(harness, name)
        harness.delete(name)
        life.until_gone(harness, name)
    groups = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
    assert {("sweep", groups)} <= set(whole) <= {(step, groups) for step in OF_THE_CLUSTER}


def _until_each(harness: Harness, names: list[str], holds: Callable[[str], bool]) -> None:
    """Let time pass until something holds of every group; asked now and then, for speed."""
    left = set(names)
    for _ in range(360):
        left -= {name for name in left if holds(name)}
        if not left:
            return
        harness.run_for(timedelta(seconds=10))
    raise AssertionError(f"{sorted(left)}: {life.describe_state(harness)}")
