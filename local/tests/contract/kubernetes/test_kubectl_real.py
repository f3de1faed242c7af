"""kubectl's everyday commands on a real kube-apiserver show the same as on the embedded API."""

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
    server.create_definitions()
    yield server
    server.clean_up()


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with open_embedded(tmp_path_factory.mktemp("embedded")) as server:
        yield server


@pytest.fixture(scope="module")
def tally() -> list[int]:
    """The number of commands of each run."""
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
    with real.open_namespace() as known:
        on_real = Terminal(embedded.program, control_plane.kubeconfig, tmp_path, dict(known))
        run(on_real)
    on_embedded = embedded.open_terminal(known["id"])
    run(on_embedded)
    check(on_real.shown, list(compare(on_real.shown, on_embedded.shown)))
    tally.append(len(on_real.shown))


def test_the_number_of_compared_commands_is_printed(
    tally: list[int], print_figure: Callable[[str], None]
) -> None:
    print_figure(
        f"kubectl: {sum(tally)} commands of {len(tally)} runs show the same on a real "
        "kube-apiserver and on the embedded API, but for known differences"
    )
