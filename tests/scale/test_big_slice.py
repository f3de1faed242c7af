"""The largest slice there is, 512 hosts, on a real API server: to Ready, lost at once, and gone.

On a virtual clock: what it takes Compute Engine and the VMs is as they are simulated, calls to the
API server and to Compute Engine take no time. What is measured is how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest

from shared.base.names import STEPS
from tests.harness import Harness, manifests
from tests.manifests import manifest
from tests.real.bridge.clusters import on_installation
from tests.real.bridge.heartbeats import Grace
from tests.real.bridge.installation import Installation, install
from tests.real_parts import open_own_control_plane
from tests.scale import figures
from tests.scale.meter import Meter, Reading
from tests.stories import life
from tests.stories.life import HOUR, MINUTE, NAME, SPOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.timeout(14_400),
    pytest.mark.xdist_group("big slice"),
]

HOSTS = int(os.environ.get("SCALE_HOSTS", "512"))
TOPOLOGIES = {2: "2x2x2", 16: "4x4x4", 64: "4x8x8", 512: "8x16x16"}


LONG_GRACE = Grace(real_s=120, renewed_after_s=60)


@pytest.fixture
def installation() -> Iterator[Installation]:
    """One whose controller is patient with hundreds of kubelets."""
    accounts = [*(step.replace("_", "-") for step in STEPS), "relay"]
    with open_own_control_plane(controller_flags=LONG_GRACE.controller_flags) as own:
        installed = install(own, manifests(), accounts, LONG_GRACE)
        yield installed
        installed.close()


class Life:
    """A slice's life in phases, and what each has cost."""

    def __init__(self, hosts: int) -> None:
        self.harness = Harness()
        self.meter = Meter(self.harness)
        self.hosts = hosts
        self.found: dict[str, figures.Value] = {"hosts": hosts}

    def rise(self) -> None:
        """From apply to Ready."""
        wanted = manifest(
            nodeCount=self.hosts, topology=TOPOLOGIES[self.hosts], instanceConfig=SPOT
        )
        with self._phase("to Ready"):
            self.harness.apply(wanted)
            began = self.harness.clock.now()
            joined = self._until(lambda: len(life.nodes(self.harness)) == self.hosts, HOUR)
            ready = self._until(lambda: self.harness.is_ready(NAME), HOUR)
            self.found["apply to the last Node registered, s"] = _seconds(joined - began)
            self.found["last Node registered to Ready, s"] = _seconds(ready - joined)
            self.harness.run_for(2 * MINUTE)

    def lose_all(self) -> Reading:
        """All VMs preempted in the same moment."""
        with self._phase("all preempted at once"):
            before = self.meter.read()
            for vm in life.vms(self.harness):
                self.harness.simulation.gce.faults.preempt(vm)
            began = self.harness.clock.now()
            told = self._until(
                lambda: life.condition_of(self.harness)[1] == "Preempted", 5 * MINUTE
            )
            self.found["preemption to its condition, s"] = _seconds(told - began)
            self.harness.run_for(5 * MINUTE)
            return self.meter.read() - before

    def go(self) -> None:
        """From delete to gone."""
        with self._phase("to gone"):
            self.harness.delete(NAME)
            began = self.harness.clock.now()
            gone = self._until(lambda: self.harness.group(NAME) is None, HOUR)
            self.found["delete to gone, s"] = _seconds(gone - began)
            self.harness.run_for(10 * MINUTE)

    def _until(self, holds: Callable[[], bool], timeout: timedelta) -> datetime:
        life.until(self.harness, holds, timeout)
        return self.harness.clock.now()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        before = self.meter.read()
        yield
        spent = self.meter.read() - before
        for step in STEPS:
            if spent.invocations[step]:
                self.found[f"{name}: {step}"] = _row(spent, step)
        self.found[f"{name}: status writes"] = spent.status_writes.total()


def test_the_largest_slice_becomes_ready_is_preempted_and_leaves_nothing(
    installation: Installation, print_figure: Callable[[str], None]
) -> None:
    with on_installation(installation):
        story = Life(HOSTS)
        story.rise()
        lost = story.lose_all()
        said = life.condition_of(story.harness)
        story.go()
    for step, most in story.meter.most_calls_of_an_invocation().items():
        story.found[f"most calls of one invocation: {step}"] = most
    figures.tell("slice", story.found, print_figure)
    assert said[:2] == ("False", "Preempted")
    assert said[2].startswith(f"{HOSTS} of {HOSTS} nodes are not ready: ")
    assert lost.status_writes.total() <= 10
    assert lost.nacks.total() == 0
    assert story.harness.leftovers() == []


def _row(spent: Reading, step: str) -> str:
    megabytes = spent.bytes_read[step] / 1e6
    return (
        f"{spent.invocations[step]:,} invocations, {spent.kubernetes[step]:,} calls to the API server, "
        f"{megabytes:,.1f} MB read, {spent.compute[step]:,} calls to Compute Engine"
    )


def _seconds(span: timedelta) -> float:
    return round(span.total_seconds(), 1)
