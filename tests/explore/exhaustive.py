"""Exhaustively: a life of a slice in which one thing goes wrong, at each call and in each way.

At each call and message the run branches once for each fault. Some branches branch again at later
calls: in these lives two things go wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from local.base.http import Request
from local.cloud.simulation import Options
from tests.explore.explorer import Explorer, Run
from tests.explore.rules import GROUPS, NODES, SECRETS, ready_of
from tests.explore.world import HTTP, Fault, World
from tests.faults.crashes import Outcome, differences, end_state
from tests.stories import helpers
from tests.stories.helpers import NAME, ONE_HOST
from tests.support.forks import Branches
from tests.support.harness import ProcessKilled

CRASHES = ("crash", "crash after", "again", "double")
"""After one of these, a life has the same operations, too, and is at most `MAX_DELAY` longer."""
TRANSIENT = ("reset (0", "error (500", "error (503")
"""After one of these, a life is at most `MAX_DELAY` longer."""
MAX_DELAY = timedelta(seconds=15)
WITHIN = timedelta(minutes=100)
"""A slice is Ready and gone so soon after what goes wrong in the life."""
READ = (
    *(Fault(0, "error", number=status) for status in HTTP),
    *(Fault(0, "page", number=number) for number in range(2)),
    Fault(0, "reset"),
    Fault(0, "pause", seconds=45),
    Fault(0, "crash"),
    Fault(0, "again"),
)
WRITE = (
    *READ,
    Fault(0, "error after"),
    Fault(0, "crash after"),
    *(Fault(0, "late", seconds=seconds) for seconds in (3, 55)),
)
PUBLICATION = tuple(Fault(0, kind) for kind in ("crash", "crash after", "again"))
MESSAGE = (
    Fault(0, "drop"),
    Fault(0, "double"),
    *(Fault(0, "delay", seconds=seconds) for seconds in (20, 300)),
)
READY, RESOURCES, VMS = "Ready", "its resources are created", "its VMs are created"
"""When a slice is deleted."""
Choose = Callable[[str, tuple[Fault, ...]], Iterable[Fault]]
"""Chooses the faults of a call: a text such as ``sweep: GET /path``, and all that it can have."""


@dataclass
class Lives:
    """What lives have shown."""

    failures: list[str] = field(default_factory=list)
    lives: int = 0
    calls: int = 0
    states: set[int] = field(default_factory=set)
    """Hashes of the different states before calls."""

    def __str__(self) -> str:
        return f"{self.lives:,} lives, {self.calls:,} calls, {len(self.states):,} states"


@dataclass
class _End:
    """How a life ended: as it should, or with a problem."""

    outcome: Outcome | None
    problem: str
    calls: int
    states: set[int]


def live_all(hosts: int, deleted_when: str, choose: Choose, pairs: float = 0.0) -> Lives:
    """Live one life without a fault, and one with each chosen fault.

    ``pairs``: how probable a second fault is at each call after the first.
    """
    life = _Life(hosts, deleted_when, choose, pairs)
    ends: dict[tuple[str, ...], _End] = life.branches.end(life.live_whole())
    usual, lives = ends[()].outcome, Lives(lives=len(ends))
    assert usual is not None, ends[()].problem
    for path, end in ends.items():
        lives.calls += end.calls
        lives.states |= end.states
        found = [end.problem] if end.outcome is None else _compare(usual, end.outcome, path)
        lives.failures += [f"{', '.join(path)}: {one}" for one in found]
    return lives


def _compare(usual: Outcome, outcome: Outcome, path: tuple[str, ...]) -> list[str]:
    found = differences(usual, outcome)
    is_crash = len(path) == 1 and path[0].partition(" (")[0] in CRASHES
    if not is_crash:
        found = [one for one in found if one.startswith(("state", "left"))]
    is_short = is_crash or (len(path) == 1 and path[0].startswith(TRANSIENT))
    if is_short and outcome.took > usual.took + MAX_DELAY:
        found.append(f"took {outcome.took}, not {usual.took}")
    return found


class _Life(Explorer):
    """One life. Calls take no time; invocations run in the thread that forks, so one that waits goes on
    after all that it waited for."""

    def __init__(self, hosts: int, deleted_when: str, choose: Choose, pairs: float) -> None:
        run = Run(World(0, Options(), {NAME: ONE_HOST if hosts == 1 else {}}))
        super().__init__(run.world, run)
        self._deleted_when, self._choose, self._pairs = deleted_when, choose, pairs
        self.branches, self._states = Branches(), set[int]()
        # Up to its deletion, a life that is deleted early is the same as another.
        self._has_begun = deleted_when == READY
        self._is_over, self._dies_after_publication = False, False
        self.harness.hooks.after = self._after
        self.harness.begin = lambda push: push()

    def live_whole(self) -> _End:
        """Live from the creation to the end of all tokens."""
        outcome, problem = None, ""
        try:
            outcome = self._live()
        except BaseException as error:  # noqa: BLE001 - also in a child, which ends then
            problem = self.rules.broken or f"{type(error).__name__}: {error}"
        return _End(outcome, problem, self._run.counts["calls"], self._states)

    def _live(self) -> Outcome:
        harness, begun, state = self.harness, self.harness.clock.now(), None
        self._apply(NAME)
        self._watch(15.0)
        helpers.until(harness, self._is_time, WITHIN)
        if self._deleted_when == READY:
            harness.run_for(timedelta(minutes=6))  # after messages that come late
            helpers.until_ready(harness, NAME, WITHIN)
            state = end_state(harness)
        harness.delete(NAME)
        helpers.until_gone(harness, NAME, WITHIN)
        took = harness.clock.now() - begun
        self._is_over = True
        # A token whose creation was late expires.
        harness.run_for(timedelta(minutes=70 if helpers.secrets(harness) else 10))
        self.rules.check_end()
        return Outcome(state, harness.operations, harness.node_deletes(), [], [], took)

    def _is_time(self) -> bool:
        if self._deleted_when == READY:
            return self.harness.is_ready(NAME)
        if self._deleted_when == VMS:
            return bool(helpers.of_kind(self.harness, "instanceGroupManagers"))
        return "instanceTemplates.insert" in self.harness.operations

    def _watch(self, every_s: float) -> None:
        super()._watch(120.0 if self._is_over else every_s)

    def _let_others_run(self) -> None:
        self._states.add(self._hash_state())

    def _before(self, step: str, call: str) -> None:
        fault = self._branch(f"{step} {call}", PUBLICATION) if call.startswith("publish ") else None
        if fault is None:
            return
        if fault.kind == "crash":
            raise ProcessKilled
        self._dies_after_publication = fault.kind == "crash after"
        if fault.kind == "again":
            self._begin_again()

    def _after(self, _step: str, call: str) -> None:
        if call.startswith("publish ") and self._dies_after_publication:
            self._dies_after_publication = False
            raise ProcessKilled

    def _begin_again(self) -> None:
        super()._begin_again()
        self.harness.run_for(timedelta())

    def _take(self, _: tuple[str, ...], step: str, request: Request | None) -> Fault | None:
        if request is None:
            return self._branch(f"message to {step}", MESSAGE)
        faults = READ if request.method == "GET" else WRITE
        return self._branch(f"{step} {request.method} {request.path}", faults)

    def _branch(self, call: str, faults: tuple[Fault, ...]) -> Fault | None:
        """Branch off for each fault that is chosen: the branch has it, this life has none."""
        self._has_begun |= call.startswith("tear_down ")
        if self._is_over or not self._has_begun:
            return None
        chosen: Iterable[Fault] = () if self.branches.path else self._choose(call, faults)
        if len(self.branches.path) == 1 and self._random.random() < self._pairs:
            chosen = [self._random.choice(faults)]
        for fault in chosen:
            at = f"{self._seconds():.0f} s, {call}"
            if self.branches.take(f"{fault.kind} ({fault.number}, {fault.seconds} s) at {at}"):
                self._random, self._states = Random(str(self.branches.path)), set()
                self._run.counts.clear()
                return fault
        return None

    def _hash_state(self) -> int:
        """The state without times: of the group, of Compute Engine, Nodes, tokens and requests."""
        gce, seen = self.harness.simulation.gce.state(), list[Any]()
        seen += [gce["policies"], gce["templates"], gce["groups"], gce["instances"]]
        for group in self.rules.items(GROUPS):
            meta, status = group["metadata"], group.get("status", {})
            seen.append((meta.get("finalizers"), meta.get("labels"), "deletionTimestamp" in meta))
            conditions = status.get("conditions", [])
            seen += [(one["type"], one["status"], one["reason"]) for one in conditions]
            seen += [(kind, it["state"]) for kind, it in status.get("resources", {}).items()]
        for node in self.rules.items(NODES):
            is_cordoned = node["spec"].get("unschedulable")
            seen.append((node["metadata"].get("labels"), is_cordoned, ready_of(node)))
        requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
        seen += [len(self.rules.items(path)) for path in (SECRETS, requests)]
        return hash(repr(seen))
