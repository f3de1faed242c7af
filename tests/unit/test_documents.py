"""Fields of documents that may be absent or of another type."""

from __future__ import annotations

from typing import Any

import pytest

from shared.base.documents import read_number


@pytest.mark.parametrize("document, number", [({"n": 3}, 3), ({}, 0), ({"n": "3"}, 0)])
def test_a_number_that_is_absent_or_no_number_is_zero(
    document: dict[str, Any], number: int
) -> None:
    assert read_number(document, "n") == number
