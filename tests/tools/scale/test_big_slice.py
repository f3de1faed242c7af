"""A slice of 512 hosts on a real API server: it becomes Ready, all VMs are preempted, and it is deleted.

The clock is virtual: the durations of Compute Engine and of the VMs are simulated, and calls take no
time. The number of calls is measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest

from local.tests.real_parts import open_own_control_plane
from shared.triggers.routes import STEPS
from tests.real.bridge.clusters import on_installation
from tests.real.bridge.heartbeats import Grace
from tests.real.bridge.installation import Installation, install
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME, SPOT
from tests.support.harness import Harness, manifests
from tests.support.manifests import manifest
from tools.scale import figures
from tools.scale.meter import Meter, Reading

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
    """An installation whose node controller has a long grace period, for hundreds of kubelets."""
    accounts = [*(step.replace("_", "-") for step in STEPS), "relay"]
    with open_own_control_plane(controller_flags=LONG_GRACE.controller_flags) as own:
        installed = install(own, manifests(), accounts, LONG_GRACE)
        yield installed
        installed.close()


class Lifecycle:
    """The phases of a slice, with the cost of each."""

    def __init__(self, hosts: int) -> None:
        self.harness = Harness()
        self.meter = Meter(self.harness)
        self.hosts = hosts
        self.found: dict[str, figures.Value] = {"hosts": hosts}

    def create(self) -> None:
        """Apply the group, and wait until it is Ready."""
        applied = manifest(
            nodeCount=self.hosts, topology=TOPOLOGIES[self.hosts], instanceConfig=SPOT
        )
        with self._phase("to Ready"):
            self.harness.apply(applied)
            began = self.harness.clock.now()
            joined = self._until(lambda: len(helpers.nodes(self.harness)) == self.hosts, HOUR)
            ready = self._until(lambda: self.harness.is_ready(NAME), HOUR)
            self.found["apply to the last Node registered, s"] = _seconds(joined - began)
            self.found["last Node registered to Ready, s"] = _seconds(ready - joined)
            self.harness.run_for(2 * MINUTE)

    def lose_all(self) -> Reading:
        """Preempt all VMs at the same time."""
        with self._phase("all preempted"):
            before = self.meter.read()
            for vm in helpers.vms(self.harness):
                self.harness.simulation.gce.faults.preempt(vm)
            began = self.harness.clock.now()
            reported = self._until(
                lambda: helpers.condition_of(self.harness)[1] == "Preempted", 5 * MINUTE
            )
            self.found["preemption to its condition, s"] = _seconds(reported - began)
            self.harness.run_for(5 * MINUTE)
            return self.meter.read() - before

    def delete(self) -> None:
        """Delete the group, and wait until it is gone."""
        with self._phase("to gone"):
            self.harness.delete(NAME)
            began = self.harness.clock.now()
            gone = self._until(lambda: self.harness.group(NAME) is None, HOUR)
            self.found["delete to gone, s"] = _seconds(gone - began)
            self.harness.run_for(10 * MINUTE)

    def _until(self, holds: Callable[[], bool], timeout: timedelta) -> datetime:
        helpers.until(self.harness, holds, timeout)
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
        lifecycle = Lifecycle(HOSTS)
        lifecycle.create()
        lost = lifecycle.lose_all()
        condition = helpers.condition_of(lifecycle.harness)
        lifecycle.delete()
    for step, most in lifecycle.meter.max_calls_of_an_invocation().items():
        lifecycle.found[f"most calls of one invocation: {step}"] = most
    figures.report("slice", lifecycle.found, print_figure)
    assert condition[:2] == ("False", "Preempted")
    assert condition[2].startswith(f"{HOSTS} of {HOSTS} nodes are not ready: ")
    assert lost.status_writes.total() <= 10
    assert lost.nacks.total() == 0
    assert lifecycle.harness.leftovers() == []


def _row(spent: Reading, step: str) -> str:
    megabytes = spent.bytes_read[step] / 1e6
    return (
        f"{spent.invocations[step]:,} invocations, {spent.kubernetes[step]:,} calls to the API server, "
        f"{megabytes:,.1f} MB read, {spent.compute[step]:,} calls to Compute Engine"
    )


def _seconds(span: timedelta) -> float:
    return round(span.total_seconds(), 1)
