"""With slow APIs, one invocation has no time for all calls about a large slice; later ones complete the
work."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

from local.cloud.simulation import PROJECT
from shared.frame.execution import SECONDS_FOR_OTHER_CALLS
from shared.frame.step import SECONDS_FOR_CALLS
from tests.stories import helpers
from tests.stories.errors import dead_letters
from tests.stories.helpers import HOUR, MINUTE, NAME, SPOT
from tests.stories.jobset_slices import new_harness
from tests.stories.jobsets import apply, are_running
from tests.support.harness import Harness
from tests.support.jobset_objects import small_jobset
from tests.support.manifests import manifest


@dataclass
class SlowCalls:
    """Advances the clocks of the steps by some seconds at each of their calls."""

    harness: Harness
    a_call_s: float = 1.0
    """With 64 Nodes, a second per call needs more than two invocations of 30 seconds."""
    passed_s: float = 0.0

    def __post_init__(self) -> None:
        self.harness.hooks.before = self._before
        for step in self.harness.steps:
            self.harness.runtime(step).monotonic = self._monotonic

    def _before(self, _step: str, _call: str) -> None:
        self.passed_s += self.a_call_s

    def _monotonic(self) -> float:
        return self.harness.clock.now().timestamp() + self.passed_s


_LONG = (pytest.mark.slow, pytest.mark.timeout(7_200))


@pytest.mark.parametrize(
    "hosts, topology, a_call_s",
    [
        pytest.param(64, "4x8x8", 1.0, id="64 hosts"),
        pytest.param(512, "8x16x16", 0.05, id="512 hosts", marks=_LONG),
        pytest.param(512, "8x16x16", 0.25, id="512 hosts, slower", marks=_LONG),
        # A managed instance group has 1,000 VMs at most.
        pytest.param(864, "12x12x24", 0.25, id="864 hosts, slower", marks=_LONG),
    ],
)
def test_later_invocations_complete_what_one_has_no_time_for(
    hosts: int, topology: str, a_call_s: float, print_figure: helpers.PrintFigure
) -> None:
    harness = Harness()
    SlowCalls(harness, a_call_s)
    harness.apply(manifest(nodeCount=hosts, topology=topology, instanceConfig=SPOT))
    helpers.until_ready(harness, timeout=HOUR)
    harness.run_for(10 * MINUTE)
    assert helpers.secrets(harness) == []
    harness.delete(NAME)
    helpers.until_gone(harness, timeout=HOUR)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
    lines = [line for line in harness.log.lines if line["step"] in ("label_node", "tear_down")]
    decisions = Counter((line["step"], line["decision"]) for line in lines)
    longest_s = max(sum(line.get("calls", {}).values()) for line in lines) * a_call_s
    print_figure(
        f"slow calls, {hosts} hosts, {a_call_s} s per call: longest invocation {longest_s:.0f} s; "
        + ", ".join(f"{step} {decision} {count}" for (step, decision), count in decisions.items())
    )
    assert longest_s <= SECONDS_FOR_CALLS - SECONDS_FOR_OTHER_CALLS + 5 * a_call_s
    assert [line for line in lines if "no answer within 30 s" in line.get("note", "")] == []
    assert decisions["tear_down", "Partly"] > 0
    assert decisions["label_node", "Partly"] > 0 or a_call_s < 0.25  # its Nodes join one by one
    assert dead_letters(harness) == []


def test_a_batch_of_tokens_is_continued_by_another_invocation_without_a_nack() -> None:
    harness = Harness(replace(helpers.vm_options(), sinks=False))
    SlowCalls(harness)
    harness.apply(manifest(nodeCount=32, topology="4x4x8", instanceConfig=SPOT))
    helpers.until(harness, lambda: len(helpers.nodes(harness)) == 32, timeout=30 * MINUTE)
    nacks = [
        answer for step, answer in harness.answers if step == "inject_token" and answer.http > 299
    ]
    assert nacks == []


def test_a_node_without_our_label_is_found_among_many_vms_that_never_join() -> None:
    """A resync reads ten Nodes by name, beginning with another VM each time. Without the relay, no
    message names the Node."""
    harness = Harness(replace(helpers.vm_options(joins=False), relays=False))
    single_hosts: dict[str, Any] = {
        "nodeCount": 64,
        "topology": "2x2x1",
        "targetSizePolicyMode": "INDIVIDUAL",
    }
    harness.apply(manifest(**single_hosts, instanceConfig=SPOT, bootstrapKubernetes=None))
    helpers.until(harness, lambda: len(helpers.vms(harness)) == 64)
    harness.run_for(MINUTE)
    SlowCalls(harness)
    name = sorted(map(helpers.vm_name, helpers.vms(harness)))[-1]
    spec = {"providerID": f"gce://{PROJECT}/us-central1-c/{name}"}
    late = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}
    harness.simulation.admin("POST", "/api/v1/nodes", late, **helpers.as_kubelet(name))
    helpers.until(harness, lambda: helpers.summary(harness).get("joined") == 1, timeout=2 * HOUR)


def test_vms_that_never_join_are_reported_and_deleted() -> None:
    """The step reads their Nodes by name, with one call each, for which an invocation has no time."""
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest(nodeCount=64, topology="4x8x8", instanceConfig=SPOT))
    helpers.until(harness, lambda: len(helpers.vms(harness)) == 64)
    harness.run_for(MINUTE)
    SlowCalls(harness)
    helpers.until_reason(harness, "NodeJoinTimeout", timeout=HOUR)
    harness.delete(NAME)
    helpers.until(harness, lambda: helpers.vms(harness) == [], timeout=10 * MINUTE)
    helpers.until_gone(harness, timeout=HOUR)


def test_a_large_slice_of_a_jobset_is_released() -> None:
    """The step lists the Pods of all Nodes of the slice. One call per Node would exceed the time
    limit."""
    harness = new_harness()
    apply(harness, small_jobset(topology="8x16", hosts=32))
    helpers.until(harness, lambda: are_running(harness, 8), timeout=HOUR)
    assert len(helpers.vms(harness)) == 32
    SlowCalls(harness)
    helpers.until(harness, lambda: helpers.vms(harness) == [], timeout=HOUR)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
