"""The lifecycle of slices if the clocks of API server, Compute Engine and functions differ.

The result must not depend on which clock is ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from local import gce, kube
from local.cloud.simulation import Clocks, Options
from local.vm import agents
from shared.base.names import VM_ID_LABEL
from tests.stories import helpers
from tests.stories.helpers import MINUTE, NAME, SPOT, TWO_SINGLE
from tests.support.harness import Harness
from tests.support.manifests import manifest

OFFSETS_S = (-300, -75, -45, 0, 75, 300)
ALONE = (
    *((offset, 0, 0) for offset in OFFSETS_S),
    *((0, offset, 0) for offset in OFFSETS_S if offset),
    *((0, 0, offset) for offset in OFFSETS_S if offset),
)
"""One clock is wrong: that of the API server, of Compute Engine or of the functions."""
TOGETHER = ((-300, 300, 0), (300, -300, 0), (-300, 300, -300), (300, -300, 300), (-300, 0, 300))
"""The largest differences."""
FURTHEST = [
    *TOGETHER[2:4],
    *(pytest.param(one, marks=pytest.mark.slow) for one in (*TOGETHER[:2], *TOGETHER[4:])),
]
"""The fast tests have only those in which all three clocks are wrong."""
REST = tuple(
    offsets
    for offsets in product(OFFSETS_S, repeat=3)
    if offsets not in ALONE and offsets not in TOGETHER
)
READY = ("True", "Ready", "All nodes are ready")


def options_for(offsets: tuple[int, int, int], **change: Any) -> Options:
    """VMs that boot and join in seconds, and kubelets that renew their Leases."""
    quick = {"boot_s": (3.0, 5.0), "prepare_s": (1.0, 2.0), "join_s": (1.0, 3.0), "lease_s": 10.0}
    options = Options(agents=agents.Timings(**{**quick, **change}), kube=kube.ClusterOptions())
    return replace(options, clocks=Clocks(*offsets))


def uids(harness: Harness) -> dict[str, str]:
    return {name: node["metadata"]["uid"] for name, node in helpers.nodes(harness).items()}


def assert_stays_ready(harness: Harness, before: dict[str, str]) -> None:
    """Assert that the slice stays Ready with the same Nodes for some minutes."""
    harness.run_for(6 * MINUTE)
    assert helpers.condition_of(harness) == READY, helpers.describe_state(harness)
    assert uids(harness) == before


def assert_recovers(harness: Harness, disturb: Callable[[], object]) -> None:
    """Disturb a VM, and assert that the slice is Ready again within ten minutes."""
    disturb()
    harness.run_for(MINUTE)
    helpers.until_ready(harness, timeout=10 * MINUTE)
    harness.run_for(2 * MINUTE)
    ids = {helpers.vm_name(path): helpers.get(harness, path)["id"] for path in helpers.vms(harness)}
    labels = {
        name: node["metadata"]["labels"][VM_ID_LABEL]
        for name, node in helpers.nodes(harness).items()
    }
    assert labels == ids
    assert helpers.secrets(harness) == []
    assert helpers.condition_of(harness) == READY


def run_lifecycle(options: Options, **change: Any) -> None:
    """Create a slice, reboot a VM, let two VMs be recreated with the same name, and delete the slice."""
    harness = Harness(options)
    harness.apply(manifest(**TWO_SINGLE, instanceConfig=SPOT, **change))
    helpers.until_ready(harness, timeout=10 * MINUTE)
    joined = uids(harness)
    one, other = helpers.vms(harness)
    assert_stays_ready(harness, joined)
    faults = harness.simulation.gce.faults
    assert_recovers(harness, lambda: faults.act_as_user("POST", f"{one}/reset"))
    assert uids(harness) == joined
    assert_recovers(harness, lambda: faults.act_as_user("DELETE", one))
    assert_recovers(harness, lambda: faults.preempt(other))
    assert set(helpers.vms(harness)) == {one, other}
    assert_stays_ready(harness, uids(harness))
    harness.delete(NAME)
    helpers.until_gone(harness, timeout=10 * MINUTE)
    assert harness.leftovers() == []


@pytest.mark.parametrize(
    "offsets",
    [*ALONE, *TOGETHER, *(pytest.param(one, marks=pytest.mark.slow) for one in REST)],
    ids=str,
)
def test_a_slice_works_with_clock_offsets(offsets: tuple[int, int, int]) -> None:
    run_lifecycle(options_for(offsets))


@pytest.mark.parametrize("offsets", FURTHEST, ids=str)
def test_recreated_vms_with_the_same_id_work_with_clock_offsets(
    offsets: tuple[int, int, int],
) -> None:
    run_lifecycle(replace(options_for(offsets), gce=gce.Timings(repair_keeps_id=True)))


@pytest.mark.parametrize("offsets", FURTHEST, ids=str)
def test_vms_that_join_by_other_means_work_with_clock_offsets(
    offsets: tuple[int, int, int],
) -> None:
    run_lifecycle(options_for(offsets, identity=helpers.by_other_means), bootstrapKubernetes=None)


@pytest.mark.parametrize("offsets", FURTHEST, ids=str)
def test_a_reboot_by_compute_engine_keeps_nodes_with_clock_offsets(
    offsets: tuple[int, int, int],
) -> None:
    harness = helpers.ready(manifest(), options_for(offsets))
    before = uids(harness)
    assert_recovers(
        harness, lambda: harness.simulation.gce.faults.host_error(helpers.vms(harness)[0])
    )
    assert_stays_ready(harness, before)
    harness.delete(NAME)
    helpers.until_gone(harness, timeout=timedelta(minutes=10))
    assert harness.leftovers() == []
