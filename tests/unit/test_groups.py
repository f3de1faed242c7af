"""Tests of a group run in one process, one after the other: they share a control plane, or a port."""

from __future__ import annotations

import pytest

GROUP = "groups hold"


@pytest.mark.xdist_group(GROUP)
def test_a_test_of_a_group_is_known_by_it(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config
) -> None:
    """By this ending pytest-xdist keeps a group together."""
    worker = getattr(pytestconfig, "workerinput", {"mainargv": []})
    if "loadgroup" not in worker["mainargv"]:
        pytest.skip("not run with --dist loadgroup, as `make test` does")
    assert request.node.nodeid.endswith(f"@{GROUP}")
