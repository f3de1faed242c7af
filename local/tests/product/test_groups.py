"""The cases about TPUNodeGroups, on the embedded API and on a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.cluster.manifests import read_manifests
from local.control_plane.plane import ControlPlane
from local.tests.contract.kubernetes.dialogue import Case, run
from local.tests.contract.kubernetes.differences import check, compare
from local.tests.contract.kubernetes.embedded import Embedded
from local.tests.contract.kubernetes.real import Real
from local.tests.product.group_cases import CASES

DEFINITIONS = [one for one in read_manifests() if one["kind"] == "CustomResourceDefinition"]


@pytest.fixture(scope="module")
def real(control_plane: ControlPlane) -> Iterator[Real]:
    server = Real(control_plane)
    server.create_definitions(DEFINITIONS)
    yield server
    server.clean_up()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    server = Embedded("abc123", DEFINITIONS)
    run(case, server, server.known)


@pytest.mark.real
@pytest.mark.xdist_group("kubernetes contract")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_on_a_real_api_server(case: Case, real: Real) -> None:
    with real.open_namespace() as known:
        answers = run(case, real, known)
    embedded = Embedded(known["id"], DEFINITIONS)
    check(case.name, list(compare(answers, run(case, embedded, embedded.known))))
