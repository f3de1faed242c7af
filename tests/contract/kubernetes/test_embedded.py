"""The cases, asked of the embedded server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.kubernetes.cases import CASES
from tests.contract.kubernetes.dialogue import Case, run
from tests.contract.kubernetes.embedded import Embedded


@pytest.mark.parametrize("asked", CASES, ids=lambda asked: asked.name)
def test_case(asked: Case) -> None:
    server = Embedded("abc123")
    run(asked, server, server.known)


def test_case_names_are_unique(say: Callable[[str], None]) -> None:
    names = [asked.name for asked in CASES]
    assert len(set(names)) == len(names)
    say(f"Kubernetes contract: {len(names)} cases for the embedded API")
