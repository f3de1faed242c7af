"""Namespaces and classes with a limit of slices and chips: it is never exceeded, and Pods that wait
report it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any

import pytest

from local.base import turns
from local.cloud.simulation import Options
from shared.settings import GKE, TPU_NODE_GROUP
from shared.slices.classes import CLASS_ANNOTATION
from shared.slices.kinds.jobset import JobSetKind
from tests.faults.crashes import AFTER, BEFORE, is_write, kind, run_disturbed
from tests.faults.jobsets import GROUPS, SETTINGS, pools, running, slices
from tests.stories.helpers import HOUR, MINUTE, PrintFigure
from tests.stories.jobsets import JOBSETS, MERGE, OPTIONS, RUNS_FOREVER, SECOND, apply, pods, until
from tests.support import jobset_objects as objects
from tests.support.builders import merge
from tests.support.class_specs import CLASSES, class_of_stories
from tests.support.harness import Harness, ProcessKilled
from tests.support.jobset_objects import NAMESPACE

COUNT, SLICES = 50, 4
ONE_HOST = 4
STEP = "provision_slice"
LIMITED = "SliceLimitReached"
LEDGER = f"{OPTIONS}/slice-ledger"


class LimitedHarness(Harness):
    """JobSets whose namespace or classes have limits; they name one class after the other. Messages to
    provision_slice can be collected, to be processed together."""

    collected: list[bytes] | None = None

    def __init__(
        self,
        provider: str,
        limit: str,
        classes: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
        *,
        workloads: bool = False,
    ) -> None:
        super().__init__(Options(workloads=workloads), slices=SETTINGS[provider])
        namespaces = {"namespaces": f"{NAMESPACE}: {limit}"} if limit else {}
        self.simulation.admin("POST", OPTIONS, objects.config_map(**namespaces))
        self.classes = [*classes]
        for name, limits in classes.items():
            made = class_of_stories(name, is_gke=provider == GKE, limits=limits)
            self.simulation.admin("POST", CLASSES, made)
        self.jobsets.behaviour = RUNS_FOREVER
        self.most = 0
        self.most_of: Counter[str] = Counter()

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
        self.most_of |= Counter(self.list_classes())

    def list_classes(self) -> list[str]:
        """The class of each slice."""
        groups = self.simulation.admin("GET", GROUPS)["items"]
        found = [one["metadata"]["annotations"] for one in groups]
        for name in pools(self):
            pool = self.gke.find_pool(name)
            found += [pool.content["config"]["labels"]] if pool else []
        return [one[CLASS_ANNOTATION] for one in found if CLASS_ANNOTATION in one]

    def new_jobset(self, number: int) -> dict[str, Any]:
        """A JobSet, which names the next class."""
        found = objects.small_jobset(f"train-{number}")
        (job,) = found["spec"]["replicatedJobs"]
        if self.classes:
            named = {CLASS_ANNOTATION: self.classes[number % len(self.classes)]}
            template = job["template"]["spec"]["template"]
            template["metadata"] = merge(template.get("metadata", {}), {"annotations": named})
        return found

    def collect(self, count: int) -> list[bytes]:
        """The messages about this many new JobSets, whose Pods are unschedulable."""
        found: list[bytes] = []
        self.collected = found
        for number in range(count):
            apply(self, self.new_jobset(number))
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


Limited = tuple[str, Mapping[str, Mapping[str, int]]]
OF_NAMESPACE: Limited = (f"{{kinds: [JobSet], slices: 9, chips: {4 * SLICES + 3}}}", {})
OF_CLASS: Limited = ("", {"v6e": {"slices": 9, "chips": 4 * SLICES + 3}})
OF_BOTH: Limited = (
    f"{{kinds: [JobSet], slices: {SLICES}}}",
    {"a": {"slices": 1}, "b": {"chips": 12}},
)
"""The limits of a namespace and of classes, by which all Pods together may have as many slices."""


@pytest.mark.parametrize(
    "provider, process, seed, killed, limits",
    [
        (TPU_NODE_GROUP, interleave, 1, 0.0, OF_NAMESPACE),
        (TPU_NODE_GROUP, interleave, 2, 0.1, OF_NAMESPACE),
        (TPU_NODE_GROUP, in_threads, 3, 0.0, OF_NAMESPACE),
        (GKE, interleave, 4, 0.1, OF_NAMESPACE),
        (TPU_NODE_GROUP, in_threads, 5, 0.0, OF_CLASS),
        (GKE, interleave, 6, 0.1, OF_CLASS),
        (TPU_NODE_GROUP, interleave, 7, 0.1, OF_BOTH),
        (TPU_NODE_GROUP, in_threads, 8, 0.0, OF_BOTH),
        (GKE, interleave, 9, 0.0, OF_BOTH),
    ],
)
def test_fifty_pods_at_once_get_no_more_slices_than_namespace_and_class_may_have(
    provider: str,
    process: Callable[..., int],
    seed: int,
    killed: float,
    limits: Limited,
    print_figure: PrintFigure,
) -> None:
    harness = LimitedHarness(provider, *limits)
    calls = process(harness, harness.collect(COUNT), Random(seed), killed)
    print_figure(f"{COUNT} Pods at once, {SLICES} slices ({provider}): {calls} calls")
    until(harness, lambda: running(harness) == SLICES)
    harness.run_for(15 * MINUTE)
    assert harness.most == len(slices(harness)) == running(harness) == SLICES
    assert sorted(limit_events(harness).values()) == [1] * (COUNT - SLICES)
    if limits == OF_BOTH:
        assert harness.most_of["a"] <= 1
        assert harness.most_of["b"] <= 3


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
@pytest.mark.parametrize("is_of_class", [False, True], ids=["namespace", "class"])
def test_a_slice_that_is_released_is_replaced_by_the_next_within_two_minutes(
    provider: str, is_of_class: bool
) -> None:
    limits = ("", {"v6e": {"slices": 2}}) if is_of_class else ("{kinds: [JobSet], slices: 2}", {})
    harness = LimitedHarness(provider, *limits)
    for number in range(5):
        apply(harness, harness.new_jobset(number))
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
    if is_of_class:
        harness.run_for(2 * MINUTE)
        status = harness.simulation.admin("GET", f"{CLASSES}/v6e")["status"]
        assert status["usage"] == {"slices": 2, "chips": 2 * ONE_HOST, "waiting": []}
        assert len(status["waits"]["seconds"]) == 5
        assert all(one < HOUR.total_seconds() for one in status["waits"]["seconds"][:2])


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
    seen = set[str]()

    def choose(call: str) -> list[str]:
        is_first = kind(call) not in seen
        seen.add(kind(call))
        moments = [BEFORE, AFTER] if is_write(call) else [BEFORE]
        return moments if is_whole or is_first else []

    usual, failures, count = run_disturbed(one_after_the_other, choose, new_harness, [STEP])
    assert (usual.ready, usual.leftovers, count > 10) == ([1, 1], [], True)
    assert failures == []
    print_figure(f"limits: provision_slice killed at {count} points")
