"""kubectl's everyday commands on the embedded API, on a real port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.tests.contract.kubernetes.kubectl import RUNS, Run
from local.tests.contract.kubernetes.kubectl.embedded import Embedded, open_embedded
from local.tests.contract.kubernetes.kubectl.runs import manifest

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("kubectl")]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with open_embedded(tmp_path_factory.mktemp("kubectl")) as server:
        yield server


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_run(run: Run, embedded: Embedded) -> None:
    run(embedded.open_terminal(f"{RUNS.index(run)}"))


def test_the_error_about_protobuf_names_an_alternative(embedded: Embedded) -> None:
    kubectl = embedded.open_terminal("protobuf")
    for command in (
        ("create", "configmap", "c", "--from-literal=a=b"),
        ("create", "namespace", "made"),
        ("auth", "can-i", "get", "pods"),
    ):
        error = kubectl(*command, code=1)
        assert "use `kubectl apply -f` with a manifest" in error


def test_server_side_apply_is_not_available(embedded: Embedded) -> None:
    kubectl = embedded.open_terminal("applied")
    error = kubectl("apply", "--server-side", "-f", "-", stdin=manifest("a"), code=1)
    assert "Server-side apply not available on the server" in error
