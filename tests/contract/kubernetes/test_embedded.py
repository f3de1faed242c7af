"""The cases, asked of the embedded server."""

from __future__ import annotations

import pytest

from tests.contract.kubernetes.cases import CASES
from tests.contract.kubernetes.definitions import ALL
from tests.contract.kubernetes.dialogue import Case, run
from tests.contract.kubernetes.embedded import Embedded


@pytest.mark.parametrize("asked", CASES, ids=lambda asked: asked.name)
def test_case(asked: Case) -> None:
    server = Embedded("case")
    server.api.apply_manifests(
        [*ALL, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "case"}}]
    )
    server.settle()
    run(asked, server, server.known)


def test_case_names_are_unique() -> None:
    names = [asked.name for asked in CASES]
    assert len(set(names)) == len(names)
