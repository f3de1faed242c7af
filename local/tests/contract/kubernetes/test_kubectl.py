"""kubectl's everyday commands on the embedded API, behind a real port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.tests.contract.kubernetes.kubectl import RUNS, Run
from local.tests.contract.kubernetes.kubectl.embedded import Embedded, open_embedded

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("kubectl")]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with open_embedded(tmp_path_factory.mktemp("kubectl")) as server:
        yield server


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_run(run: Run, embedded: Embedded) -> None:
    run(embedded.open_terminal(f"{RUNS.index(run)}"))
