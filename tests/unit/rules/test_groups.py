"""Tests of an xdist group run sequentially in one process: they share a control plane or a port."""

from __future__ import annotations

import pytest

GROUP = "sequential tests"


@pytest.mark.xdist_group(GROUP)
def test_the_id_of_a_test_ends_in_its_xdist_group(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config
) -> None:
    """pytest-xdist assigns tests to a process by this suffix."""
    worker = getattr(pytestconfig, "workerinput", {"mainargv": []})
    if "loadgroup" not in worker["mainargv"]:
        pytest.skip("not run with --dist loadgroup, as `make test` does")
    assert request.node.nodeid.endswith(f"@{GROUP}")
