"""Fixtures for the tests on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import open_own_control_plane


@pytest.fixture(scope="module")
def plane() -> Iterator[OwnControlPlane]:
    """A new control plane that all tests of a module share."""
    with open_own_control_plane() as started:
        yield started
