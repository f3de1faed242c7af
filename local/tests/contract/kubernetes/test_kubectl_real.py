"""The same commands on a real kube-apiserver: a person sees what the embedded API shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local.control_plane.plane import ControlPlane
from local.tests.contract.kubernetes.kubectl import RUNS, Run, Terminal
from local.tests.contract.kubernetes.kubectl.differences import check, compare
from local.tests.contract.kubernetes.kubectl.embedded import Embedded, open_embedded
from local.tests.contract.kubernetes.real import Real

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("kubernetes contract")]


@pytest.fixture(scope="module")
def real(control_plane: ControlPlane) -> Iterator[Real]:
    server = Real(control_plane)
    server.define()
    yield server
    server.leave()


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with open_embedded(tmp_path_factory.mktemp("embedded")) as server:
        yield server


@pytest.fixture(scope="module")
def tally() -> list[int]:
    """How many commands each run has taken."""
    return []


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_run(
    run: Run,
    real: Real,
    embedded: Embedded,
    control_plane: ControlPlane,
    tmp_path: Path,
    tally: list[int],
) -> None:
    with real.place() as known:
        there = Terminal(embedded.program, control_plane.kubeconfig, tmp_path, dict(known))
        run(there)
    here = embedded.open_terminal(known["id"])
    run(here)
    check(there.shown, list(compare(there.shown, here.shown)))
    tally.append(len(there.shown))


def test_how_many_commands_show_the_same(
    tally: list[int], print_figure: Callable[[str], None]
) -> None:
    print_figure(
        f"kubectl: {sum(tally)} commands of {len(tally)} runs show the same on a real "
        "kube-apiserver and on the embedded API, but for known differences"
    )
