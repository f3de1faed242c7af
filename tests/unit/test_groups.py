"""Tests of a group run in one process, one after the other: they share a control plane, or a port."""

from __future__ import annotations

import os

import pytest

GROUP = "groups hold"


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="there is one process")
@pytest.mark.xdist_group(GROUP)
def test_a_test_of_a_group_is_known_by_it(request: pytest.FixtureRequest) -> None:
    """By this ending pytest-xdist keeps a group together."""
    assert request.node.nodeid.endswith(f"@{GROUP}")
