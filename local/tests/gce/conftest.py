"""Fixtures of the tests of the simulated Compute Engine."""

import pytest

from local.tests.gce.small_cloud import Cloud


@pytest.fixture
def cloud() -> Cloud:
    """An empty project."""
    return Cloud()


@pytest.fixture
def slice_cloud() -> Cloud:
    """A project with a workload policy 2x4 and a template of four chips."""
    cloud = Cloud()
    cloud.make_parts()
    return cloud
