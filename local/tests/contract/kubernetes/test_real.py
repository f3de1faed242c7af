"""The cases, asked of a real kube-apiserver, and its answers held against the embedded one's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from local.control_plane.plane import ControlPlane
from local.tests.contract.kubernetes.cases import CASES
from local.tests.contract.kubernetes.dialogue import Case, run
from local.tests.contract.kubernetes.differences import check, compare
from local.tests.contract.kubernetes.embedded import Embedded
from local.tests.contract.kubernetes.real import Real

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("kubernetes contract")]


@dataclass
class Tally:
    """What has been done so far."""

    cases: int = 0
    answers: int = 0
    differing: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def tally() -> Tally:
    return Tally()


@pytest.fixture(scope="module")
def real(control_plane: ControlPlane) -> Iterator[Real]:
    server = Real(control_plane)
    server.define()
    yield server
    server.leave()


@pytest.mark.parametrize("asked", CASES, ids=lambda asked: asked.name)
def test_case(asked: Case, real: Real, tally: Tally) -> None:
    with real.place() as known:
        answers = run(asked, real, known)
    embedded = Embedded(known["id"])
    found = list(compare(answers, run(asked, embedded, embedded.known)))
    check(asked.name, found)
    tally.cases += 1
    tally.answers += len(answers)
    tally.differing.update({asked.name} if found else ())


def test_how_many_answers_are_alike(tally: Tally, print_figure: Callable[[str], None]) -> None:
    print_figure(
        f"Kubernetes contract: {tally.cases} cases hold on a real kube-apiserver; of its "
        f"{tally.answers} answers the embedded API gives the same, but for known differences in "
        f"{len(tally.differing)} cases"
    )
