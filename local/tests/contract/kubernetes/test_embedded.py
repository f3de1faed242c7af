"""The cases, run against the embedded server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from local.tests.contract.kubernetes import differences
from local.tests.contract.kubernetes.cases import CASES
from local.tests.contract.kubernetes.dialogue import Case, run
from local.tests.contract.kubernetes.embedded import Embedded
from local.tests.contract.kubernetes.kubectl import differences as of_kubectl

PAGE = (Path(__file__).parents[3] / "docs" / "embedded-kubernetes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    server = Embedded("abc123")
    run(case, server, server.known)


def test_case_names_are_unique(print_figure: Callable[[str], None]) -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    print_figure(f"Kubernetes contract: {len(names)} cases for the embedded API")


@pytest.mark.parametrize("words", [*differences.KNOWN, *of_kubectl.KNOWN])
def test_the_page_documents_each_known_difference(words: str) -> None:
    assert words in " ".join(PAGE.split())
