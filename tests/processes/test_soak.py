"""Soaks: hundreds of slices on real processes, which are killed; then nothing is left or has grown.

SOAK_MINUTES and SOAK_SEED change the length and the seed (``make soak MINUTES=2``).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

import pytest

from local.cluster.embedded import EmbeddedCluster
from local.control_plane import workload_controllers
from local.control_plane.plane import OwnControlPlane
from local.jobsets import REAL_CONTROLLERS
from local.run.supervisor import Supervisor
from local.tests.real_parts import get_workload_controllers, open_own_control_plane
from tests.processes.soak import MIB, Usage, find_growth, run_soak


def _minutes(default: float) -> float:
    return float(os.environ.get("SOAK_MINUTES") or default)


@pytest.fixture
def seed(print_figure: Callable[[str], None]) -> int:
    found = int(os.environ.get("SOAK_SEED") or SystemRandom().randrange(10_000))
    print(f"seed {found}")  # shown with a failure
    print_figure(f"soak: seed {found}")
    return found


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
async def test_slices_are_churned_while_parts_die_and_nothing_is_left_stuck_or_grown(
    tmp_path: Path, seed: int, print_figure: Callable[[str], None]
) -> None:
    @contextmanager
    def outage(supervisor: Supervisor) -> Iterator[None]:
        assert isinstance(supervisor.cluster, EmbeddedCluster)
        supervisor.cluster.has_outage = True
        try:
            yield
        finally:
            supervisor.cluster.has_outage = False

    print_figure(await run_soak(tmp_path, seed=seed, minutes=_minutes(30), outage=outage))


@pytest.fixture(scope="module")
def plane() -> Iterator[OwnControlPlane]:
    """A control plane with JobSet."""
    folder = get_workload_controllers()
    with (
        open_own_control_plane() as started,
        workload_controllers.running(started, folder, workload_controllers.JOBSET),
    ):
        yield started


@pytest.mark.real
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
async def test_slices_are_churned_on_a_real_control_plane(
    tmp_path: Path,
    seed: int,
    plane: OwnControlPlane,
    print_figure: Callable[[str], None],
) -> None:
    @contextmanager
    def outage(_: Supervisor) -> Iterator[None]:
        plane.send_signal("kube-apiserver", signal.SIGSTOP)
        try:
            yield
        finally:  # a stopped process does not end
            plane.send_signal("kube-apiserver", signal.SIGCONT)

    figures = await run_soak(
        tmp_path,
        seed=seed,
        minutes=_minutes(10),
        outage=outage,
        kubeconfig=plane.kubeconfig,
        calls_webhooks=True,
        jobset=REAL_CONTROLLERS,
    )
    print_figure(figures)


@pytest.mark.parametrize(
    "memory, files, grows",
    [
        pytest.param(100 * MIB, 40, False, id="the same"),
        pytest.param(107 * MIB, 40, False, id="memory within the ratio"),
        pytest.param(109 * MIB, 40, True, id="more memory"),
        pytest.param(100 * MIB, 50, False, id="some connections"),
        pytest.param(100 * MIB, 51, True, id="more open files"),
    ],
)
def test_a_part_that_grows_is_named(memory: int, files: int, grows: bool) -> None:
    warm = {"relay": Usage(100 * MIB, 40), "sweep": Usage(1, 1)}
    found = find_growth(warm, {"relay": Usage(memory, files), "sweep": Usage(1, 1)})
    assert [one.partition(":")[0] for one in found] == ["relay"] * grows
