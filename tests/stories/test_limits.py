"""Namespaces with a limit of slices and chips: it is never exceeded, and Pods that wait report it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random

import pytest

from local.cloud.simulation import Options
from shared.settings import GKE, TPU_NODE_GROUP
from shared.slices.kinds.jobset import JobSetKind
from tests.faults.crashes import Point, is_write, kind, run_scenario
from tests.faults.jobsets import SETTINGS, running, slices
from tests.stories.helpers import HOUR, MINUTE, PrintFigure
from tests.stories.jobsets import JOBSETS, MERGE, OPTIONS, RUNS_FOREVER, SECOND, apply, pods, until
from tests.support import jobset_objects as objects
from tests.support import turns
from tests.support.harness import Harness, ProcessKilled
from tests.support.jobset_objects import NAMESPACE

COUNT, SLICES = 50, 4
ONE_HOST = 4
STEP = "provision_slice"
LIMITED = "SliceLimitReached"
LEDGER = f"{OPTIONS}/slice-ledger"


class LimitedHarness(Harness):
    """JobSets whose namespace has a limit. Messages to provision_slice can be collected, to be processed
    together."""

    collected: list[bytes] | None = None

    def __init__(self, provider: str, limit: str, *, workloads: bool = False) -> None:
        super().__init__(Options(workloads=workloads), slices=SETTINGS[provider])
        namespaces = f"{NAMESPACE}: {limit}"
        self.simulation.admin("POST", OPTIONS, objects.config_map(namespaces=namespaces))
        self.jobsets.behaviour = RUNS_FOREVER
        self.most = 0

    def _serve(self, step: str) -> Callable[[bytes], int]:
        serve = super()._serve(step)
        if step != STEP:
            return serve
        self.process = serve

        def collect(body: bytes) -> int:
            if self.collected is None:
                http = serve(body)
                self.check()
                return http
            self.collected.append(body)
            return 204

        return collect

    def check(self) -> None:
        self.most = max(self.most, len(slices(self)))

    def collect(self, count: int) -> list[bytes]:
        """The messages about this many new JobSets, whose Pods are unschedulable."""
        found: list[bytes] = []
        self.collected = found
        for number in range(count):
            apply(self, objects.small_jobset(f"train-{number}"))
        self.run_for(30 * SECOND)
        self.collected = None
        assert len(found) == count
        return found


def limit_events(harness: Harness) -> Counter[str]:
    """How often each Pod says that its namespace has reached its limit."""
    events = harness.simulation.admin("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    return Counter(
        {one["involvedObject"]["name"]: one["count"] for one in events if one["reason"] == LIMITED}
    )


def names(harness: Harness) -> list[str]:
    """The names of the slices."""
    return [name for name, _, _ in slices(harness)]


def has_lost_one(harness: Harness, before: set[str]) -> bool:
    return not before <= {*names(harness)}


def owners(harness: Harness) -> list[str]:
    """The JobSets whose Pods run."""
    return [
        pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"]
        for pod in pods(harness)
        if pod["status"]["phase"] == "Running"
    ]


def interleave(
    harness: LimitedHarness, messages: list[bytes], random: Random, killed: float
) -> int:
    """Process messages together: at each call, any of them goes on. Returns the number of calls."""
    waiting: list[turns.Continue] = []
    failed: list[bytes] = []
    calls = 0

    def before(_step: str, _call: str) -> None:
        nonlocal calls
        calls += 1
        turns.hand_back(waiting.append)
        if random.random() < killed:
            raise ProcessKilled

    def process(body: bytes) -> None:
        if harness.process(body) != 204:
            failed.append(body)

    harness.hooks.before = before
    while messages:
        waiting = [partial(turns.begin, partial(process, body)) for body in messages]
        while waiting:
            waiting.pop(random.randrange(len(waiting)))()
            harness.check()
        messages, failed = failed, []
    harness.hooks.before = lambda _step, _call: None
    return calls


def in_threads(harness: LimitedHarness, messages: list[bytes], _random: Random, _: float) -> int:
    """Process messages in as many threads. Calls are answered one after the other."""
    lock, calls = threading.Lock(), 0

    def before(_step: str, _call: str) -> None:
        nonlocal calls
        lock.acquire()
        calls += 1

    harness.hooks.before, harness.hooks.after = before, lambda _step, _call: lock.release()
    with ThreadPoolExecutor(COUNT) as pool:
        while messages:
            answers = list(pool.map(harness.process, messages))
            messages = [one for one, http in zip(messages, answers, strict=True) if http != 204]
    harness.hooks.before = harness.hooks.after = lambda _step, _call: None
    return calls


@pytest.mark.parametrize(
    "provider, process, seed, killed",
    [
        (TPU_NODE_GROUP, interleave, 1, 0.0),
        (TPU_NODE_GROUP, interleave, 2, 0.1),
        (TPU_NODE_GROUP, in_threads, 3, 0.0),
        (GKE, interleave, 4, 0.1),
    ],
)
def test_fifty_pods_at_once_get_no_more_slices_than_their_namespace_may_have(
    provider: str, process: Callable[..., int], seed: int, killed: float, print_figure: PrintFigure
) -> None:
    harness = LimitedHarness(provider, f"{{kinds: [JobSet], slices: 9, chips: {4 * SLICES + 3}}}")
    calls = process(harness, harness.collect(COUNT), Random(seed), killed)
    print_figure(f"{COUNT} Pods at once, {SLICES} slices ({provider}): {calls} calls")
    until(harness, lambda: running(harness) == SLICES)
    harness.run_for(15 * MINUTE)
    assert harness.most == len(slices(harness)) == running(harness) == SLICES
    assert sorted(limit_events(harness).values()) == [1] * (COUNT - SLICES)


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
def test_a_slice_that_is_released_is_replaced_by_the_next_within_two_minutes(provider: str) -> None:
    harness = LimitedHarness(provider, "{kinds: [JobSet], slices: 2}")
    for number in range(5):
        apply(harness, objects.small_jobset(f"train-{number}"))
    until(harness, lambda: running(harness) == 2)
    harness.run_for(HOUR)  # the Pods that wait are looked at every half an hour
    for _ in range(3):
        harness.simulation.admin("DELETE", f"{JOBSETS}/{next(iter(owners(harness)))}")
        until(harness, partial(has_lost_one, harness, {*names(harness)}))
        harness.run_for(2 * MINUTE)
        assert len(slices(harness)) == 2
        until(harness, lambda: running(harness) == 2)
    assert harness.most == 2
    assert sorted(limit_events(harness).values()) == [1, 1, 1]


def test_a_kind_that_needs_a_switch_gets_slices_only_in_namespaces_that_list_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(JobSetKind, "is_always_on", False)
    harness = LimitedHarness(TPU_NODE_GROUP, "{kinds: [JobSet], slices: 1}", workloads=True)
    options = f"{OPTIONS}/jobsets"
    listed = harness.simulation.admin("GET", options)["data"]["namespaces"]
    for text in ("other: {kinds: [JobSet], slices: 1}", listed):
        harness.simulation.admin("PATCH", options, {"data": {"namespaces": text}}, **MERGE)
        if text is not listed:
            apply(harness, objects.small_jobset())
        harness.run_for(2 * MINUTE)
        assert len(slices(harness)) == (text is listed)
        decisions = {answer.outcome for step, answer in harness.answers if step == STEP}
        assert ("KindOff" in decisions, "Creating" in decisions) == (True, text is listed)


def one_after_the_other(harness: Harness) -> list[int]:
    """Three JobSets have one slice after the other. Returns how often Pods reported that they wait."""
    for number in range(3):
        apply(harness, objects.small_jobset(f"train-{number}"))
    for _ in range(3):
        until(harness, lambda: running(harness) == 1)
        harness.simulation.admin("DELETE", f"{JOBSETS}/{next(iter(owners(harness)))}")
        until(harness, lambda: running(harness) == 0)
    assert isinstance(harness, LimitedHarness)
    assert harness.most == 1
    return sorted(limit_events(harness).values())


def new_harness() -> LimitedHarness:
    return LimitedHarness(TPU_NODE_GROUP, "{kinds: [JobSet], slices: 1}")


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_limit_is_exceeded_if_the_step_is_killed_at_a_call(
    is_whole: bool, print_figure: PrintFigure
) -> None:
    undisturbed = run_scenario(one_after_the_other, make=new_harness, steps=[STEP])
    assert undisturbed.ready == [1, 1]
    calls = undisturbed.calls
    firsts = {kind(call): at for at, call in reversed([*enumerate(calls, 1)])}
    points = [
        Point(at, moment)
        for at in (range(1, len(calls) + 1) if is_whole else sorted(firsts.values()))
        for moment in ("before", *(["after"] if is_write(calls[at - 1]) else []))
    ]
    for point in points:
        outcome = run_scenario(one_after_the_other, point, new_harness, [STEP])
        assert point.is_reached
        assert (outcome.ready, outcome.leftovers) == ([1, 1], []), (point, outcome)
    print_figure(f"limits: provision_slice killed at {len(points)} points")
