"""A state machine of Hypothesis: what people, Compute Engine and the network do to slices.

Hypothesis draws the rules and shrinks what fails to a story, which it prints as code: pasted under
``state = Machine()``, it is a test. While time passes the explorer's rules are checked, and at the end
all is healed and must be what people want.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from local import gce, kube
from local.base.http import Request, Response
from local.cloud.simulation import Options
from local.gce.refusals import Refused
from local.vm import agents
from shared.base.names import FINALIZER, PAUSED_ANNOTATION
from shared.triggers.routes import STEPS
from tests.explore.explorer import GONE_WITHIN, HEALS_WITHIN, Explorer, Run
from tests.explore.planted import planted
from tests.explore.rules import GROUPS
from tests.explore.world import CALLS, CLOUD, HTTP, INDIVIDUAL, MESSAGES, TARGETS, Fault, World
from tests.stories import helpers
from tests.stories.helpers import ONE_HOST, SPOT, TWO_SINGLE

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "two hosts": {},
    "two hosts that are repaired": {"repair": "Recreate", "instanceConfig": SPOT},
    "one host": ONE_HOST,
    "two single hosts": TWO_SINGLE,
    "two single hosts on demand": INDIVIDUAL,
}
EDITS = ({"repair": "Recreate"}, {"repair": "Never"}, {"nodeCount": 3}, {"topology": "2x2x4"})
BY_HAND = (
    "delete Node",
    "wipe status",
    "wipe entry",
    "wipe condition",
    "edit labels",
    "edit VM id",
    "foreign VM",
    "foreign Node",
    "foreign slice",
    "unknown words",
)
"""What an administrator does in the cluster and beside the slice: of `world.PEOPLE`."""
TO_A_VM = ("preempt", "host error", "reset", "delete VM", "stop VM")
STOPS_WITHIN = timedelta(seconds=35)
"""So long an invocation may insert that began before its group was paused: no call starts later."""
NAMES = ("one", "two")
STEPS_OF_LIFE = 20
SECONDS = st.sampled_from((1, 5, 20, 60, 300, 1200))
NUMBERS = st.integers(0, 2)


class Lives(Explorer):
    """The lives of slices that people want: ``wanted`` has their specs, ``paused`` from when on nothing
    is inserted for them."""

    def __init__(self) -> None:
        options = Options(
            gce=gce.Timings(list_lag_s=(0.0, 2.0), in_use_lag_s=(0.0, 4.0)),
            agents=agents.Timings(boot_s=(3.0, 20.0), lease_s=20.0),
            kube=kube.ClusterOptions(node_grace_s=50.0),
        )
        self.wanted: dict[str, Mapping[str, Any]] = {}
        self.paused: dict[str, datetime] = {}
        self._deleted_migs = False
        self._created: dict[str, datetime] = {}
        self._stalls_until = datetime.min.replace(tzinfo=UTC)
        self._resized: set[str] = set()
        run = Run(World(0, options, self.wanted))
        super().__init__(run.world, run)
        self.counts = run.counts
        self._watch(15.0)

    # what people want

    def create(self, shape: str) -> str:
        """Apply a group, when a former one of its name is gone. Return its name."""
        name = next(one for one in NAMES if one not in self.wanted)
        self._until("gone", partial(self._is_gone, name), GONE_WITHIN)
        self.wanted[name], self._created[name] = SHAPES[shape], self.harness.clock.now()
        self._apply(name)
        return name

    def delete(self, name: str) -> None:
        self.rules.begin_state()
        self.harness.delete(name)
        del self.wanted[name]
        self.paused.pop(name, None)

    def pause(self, name: str) -> None:
        helpers.annotate(self.harness, PAUSED_ANNOTATION, "true", name)
        now = self.harness.clock.now()
        is_begun = self._created[name] < now
        self.paused.setdefault(name, now + STOPS_WITHIN if is_begun else now)

    def resume(self, name: str) -> None:
        helpers.annotate(self.harness, PAUSED_ANNOTATION, None, name)
        self.paused.pop(name, None)

    def edit(self, name: str, change: dict[str, Any]) -> None:
        """Edit the spec: ``repair`` is the only field that may change, and of BULK alone."""
        is_individual = "targetSizePolicyMode" in self.wanted[name]
        is_allowed = change.get("repair") == "Never" or ("repair" in change and not is_individual)
        answer = helpers.patch(self.harness, helpers.group_path(name), {"spec": change})
        assert (answer["kind"] == "TPUNodeGroup") == is_allowed, answer
        if is_allowed:
            self.wanted[name] = {**self.wanted[name], **change}

    def wait(self, seconds: float) -> None:
        self.harness.run_for(timedelta(seconds=seconds))
        self.rules.check_state()

    # what others do

    def act_by_hand(self, name: str, what: str, number: int) -> None:
        vms = sorted(self._vms(self.harness.group(name)))
        vm = vms[number % len(vms)] if vms else ""
        self._act_as_person(Fault(0, what, number=number), name, vm)

    def remove_finalizer(self, name: str) -> None:
        """Remove ours, and wait until it is back: a deletion before that would leave the slice."""
        path = helpers.group_path(name)
        helpers.patch(self.harness, path, {"metadata": {"finalizers": None}})
        self._until("owned", partial(self._is_owned, name), HEALS_WITHIN)

    def _is_gone(self, name: str) -> bool:
        return self.harness.group(name) is None

    def _is_owned(self, name: str) -> bool:
        group = self.harness.group(name)
        return group is not None and FINALIZER in group["metadata"].get("finalizers", ())

    def hurt(self, name: str, how: str, number: int) -> None:
        vms = sorted(self._vms(self.harness.group(name)))
        vm = vms[number % len(vms)] if vms else ""
        if how == "stop VM" and vm:
            self._lost_vms = True
            self._as_user("POST", f"{vm}/stop")
        elif vm:
            self._hurt(how, vm)

    def _mig(self, name: str) -> str:
        group = self.harness.group(name)
        assert group is not None
        resource = self.rules.resource_name(group["metadata"])
        return f"{helpers.ZONE}/instanceGroupManagers/{resource}"

    def delete_mig(self, name: str) -> None:
        self._lost_vms = self._deleted_migs = True
        self._as_user("DELETE", self._mig(name))

    def resize_mig(self, name: str, size: int) -> None:
        self._lost_vms = True
        if self._as_user("POST", f"{self._mig(name)}/resize?size={size}"):
            self._resized.add(name)

    def disturb(self, kind: str, step: str, target: str, seconds: float, number: int) -> None:
        """Disturb the next call or message."""
        self._faults.append(Fault(self._seconds(), kind, step, target, seconds, number))

    def _take(self, kinds: tuple[str, ...], step: str, request: Request | None) -> Fault | None:
        fault = super()._take(kinds, step, request)
        if fault is not None:
            self.rules.begin_state()  # any number of faults may follow each other
        if fault is not None and fault.kind == "pause":
            ends_at = self.harness.clock.now() + timedelta(seconds=fault.seconds) + STOPS_WITHIN
            self._stalls_until = max(self._stalls_until, ends_at)
        return fault

    def act_in_cloud(self, what: str, seconds: float, number: int) -> None:
        if what == "outage":
            self.harness.clock.call_later(seconds, self.rules.begin_state)
        self._act(Fault(self._seconds(), what, seconds=seconds, number=number))

    def _send(
        self,
        step: str,
        request: Request,
        server: Callable[[Request], Response],
        *,
        is_late: bool = False,
    ) -> Response:
        if request.method == "POST" and request.path.startswith("/compute/") and not is_late:
            self._check_insert(step, request)
        return super()._send(step, request, server, is_late=is_late)

    def _check_insert(self, step: str, request: Request) -> None:
        name = json.loads(request.body or b"{}").get("name", "")
        for group, since in self.paused.items():
            is_over = self.harness.clock.now() > max(since, self._stalls_until)
            if is_over and name == self._mig(group).rpartition("/")[2] and not self.rules.broken:
                self.rules.broken = f"{step} inserts {request.path} of {group}, which is paused"

    # the end

    def end(self) -> None:
        """Heal all, demand what is wanted, then delete it and demand that nothing is left."""
        paused = dict(self.paused)
        self._heal()
        if self._resized:
            self.harness.run_for(timedelta(minutes=1))  # the last resize may be under way
        for name in self._resized & self.wanted.keys():
            self._until("resized", partial(self._is_resized_back, name), GONE_WITHIN)
        self._until("as wanted", self._is_as_wanted, GONE_WITHIN)
        if paused:
            self.harness.run_for(timedelta(minutes=20))
        for name in paused:
            self._until("paused", partial(self._says_paused, name), HEALS_WITHIN)
        for name in paused:
            self.resume(name)
        if self._deleted_migs:
            self.harness.run_for(timedelta(minutes=20))
            self._replace_lost()
        if self.wanted:
            self._converge()
        assert self._is_as_wanted(), f"not {list(self.wanted)}\n{self._describe()}"
        self._delete_all()

    def _resume(self) -> None:
        """People resume their slices themselves."""

    def _is_resized_back(self, name: str) -> bool:
        """Whether a MIG has the wanted size again, or is gone; Compute Engine may refuse at first."""
        size, mig = self.wanted[name].get("nodeCount", 2), self.rules.find(self._mig(name))
        if mig is None or mig["targetSize"] == size:
            return True
        self._as_user("POST", f"{self._mig(name)}/resize?size={size}")
        return False

    def _replace_lost(self) -> None:
        """As the reason ResourceLost advises."""
        for name in self.wanted:
            if self.harness.condition(name, "Ready").get("reason") == "ResourceLost":
                self.harness.delete(name)
                self._until("gone", partial(self._is_gone, name), GONE_WITHIN)
                self._apply(name)

    def _is_as_wanted(self) -> bool:
        groups = {one["metadata"]["name"]: one["spec"] for one in self.rules.items(GROUPS)}
        sizes = {name: spec["nodeCount"] for name, spec in groups.items()}
        return sizes == {name: one.get("nodeCount", 2) for name, one in self.wanted.items()}

    def _says_paused(self, name: str) -> bool:
        """Whether a group that has no MIG says that it is paused."""
        reason = self.harness.condition(name, "Ready").get("reason")
        return self.rules.find(self._mig(name)) is not None or reason == "Paused"


@dataclass
class Lived:
    """What lives have shown."""

    lives: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Invocations, calls, and faults that hit something."""

    def __str__(self) -> str:
        return f"{self.lives} lives, {dict(self.counts)}"


class Machine(RuleBasedStateMachine):
    """The rules. ``group`` is the name of a group that somebody wants."""

    groups = Bundle("group")
    lived = Lived()

    def __init__(self) -> None:
        super().__init__()
        self.lives = Lives()
        self.lived.lives += 1

    @initialize(target=groups, shape=st.sampled_from(list(SHAPES)))
    def create_first(self, shape: str) -> str:
        return self.lives.create(shape)

    @precondition(lambda self: len(self.lives.wanted) < len(NAMES))
    @rule(target=groups, shape=st.sampled_from(list(SHAPES)))
    def create(self, shape: str) -> str:
        return self.lives.create(shape)

    @rule(group=consumes(groups))
    def delete(self, group: str) -> None:
        self.lives.delete(group)

    @rule(group=groups)
    def pause(self, group: str) -> None:
        self.lives.pause(group)

    @precondition(lambda self: self.lives.paused)
    @rule(group=groups)
    def resume(self, group: str) -> None:
        self.lives.resume(group)

    @rule(group=groups, change=st.sampled_from(EDITS))
    def edit(self, group: str, change: dict[str, Any]) -> None:
        self.lives.edit(group, change)

    @rule(group=groups, what=st.sampled_from(BY_HAND), number=NUMBERS)
    def act_by_hand(self, group: str, what: str, number: int = 0) -> None:
        self.lives.act_by_hand(group, what, number)

    @rule(group=groups)
    def remove_finalizer(self, group: str) -> None:
        if group not in self.lives.paused:
            self.lives.remove_finalizer(group)

    @rule(group=groups, how=st.sampled_from(TO_A_VM), number=NUMBERS)
    def hurt_a_vm(self, group: str, how: str, number: int = 0) -> None:
        self.lives.hurt(group, how, number)

    @rule(group=groups)
    def delete_mig(self, group: str) -> None:
        self.lives.delete_mig(group)

    @rule(group=groups, size=st.integers(0, 3))
    def resize_mig(self, group: str, size: int) -> None:
        self.lives.resize_mig(group, size)

    @rule(
        kind=st.sampled_from(CALLS),
        step=st.sampled_from(("", *STEPS)),
        of=st.sampled_from(sorted({*TARGETS, "node"})),
        seconds=st.sampled_from((1, 20, 55)),
        status=st.sampled_from(HTTP),
    )
    def disturb_next_call(
        self, kind: str, step: str = "", of: str = "", seconds: float = 1, status: int = 503
    ) -> None:
        self.lives.disturb(kind, step, of, seconds, status)

    @rule(
        kind=st.sampled_from(MESSAGES),
        step=st.sampled_from(("", *STEPS)),
        seconds=st.sampled_from((20, 300)),
        messages=st.integers(1, 4),
    )
    def disturb_next_message(
        self, kind: str, step: str = "", seconds: float = 20, messages: int = 1
    ) -> None:
        self.lives.disturb(kind, step, "", seconds, messages)

    @rule(what=st.sampled_from(CLOUD), seconds=st.sampled_from((5, 60, 300)), number=NUMBERS)
    def disturb_cloud(self, what: str, seconds: float = 60, number: int = 0) -> None:
        self.lives.act_in_cloud(what, seconds, number)

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.lives.wait(seconds)

    def teardown(self) -> None:
        # Hypothesis calls this also after a failure, which is the one to be seen.
        if sys.exc_info()[0] is None:
            self.lives.end()
        self.lived.counts += self.lives.counts


def live(most: int, **given: Any) -> Lived:
    """Live at most so many lives; the first that fails is shrunk, and printed as a story."""
    return _live(Lived(), max_examples=most, **given)


def _live(lived: Lived, **given: Any) -> Lived:
    counted = type("Machine", (Machine,), {"lived": lived})
    chosen = settings(stateful_step_count=STEPS_OF_LIFE, deadline=None, **given)
    run_state_machine_as_test(counted, settings=chosen)
    return lived


def count_lives(name: str, most: int) -> tuple[int, str]:
    """How many lives a planted bug needs, and what is found; 0 if it is not found."""
    lived, given = Lived(), {"phases": [Phase.generate], "report_multiple_bugs": False}
    try:
        with planted(name):
            _live(lived, max_examples=most, derandomize=True, **given)
    except (AssertionError, Refused) as error:
        return lived.lives - 1, str(error)  # the last is lived again, to be printed
    return 0, ""
