"""The cases, run against a real kube-apiserver; its answers are compared with the embedded API's."""

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
    """The numbers of cases and answers so far, and the cases that differ."""

    cases: int = 0
    answers: int = 0
    differing: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def tally() -> Tally:
    return Tally()


@pytest.fixture(scope="module")
def real(control_plane: ControlPlane) -> Iterator[Real]:
    server = Real(control_plane)
    server.create_definitions()
    yield server
    server.clean_up()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, real: Real, tally: Tally) -> None:
    with real.open_namespace() as known:
        answers = run(case, real, known)
    embedded = Embedded(known["id"])
    found = list(compare(answers, run(case, embedded, embedded.known)))
    check(case.name, found)
    tally.cases += 1
    tally.answers += len(answers)
    tally.differing.update({case.name} if found else ())


def test_the_number_of_compared_answers_is_printed(
    tally: Tally, print_figure: Callable[[str], None]
) -> None:
    print_figure(
        f"Kubernetes contract: {tally.cases} cases hold on a real kube-apiserver; of its "
        f"{tally.answers} answers the embedded API gives the same, but for known differences in "
        f"{len(tally.differing)} cases"
    )
