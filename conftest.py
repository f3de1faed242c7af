"""Fixtures of all tests of the product, besides those of `local.tests.plugin`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.real.bridge.installation import Installation

pytest_plugins = ["local.tests.plugin"]

# All helpers, so that their failing asserts show values as those of a test do.
pytest.register_assert_rewrite("tests", "tools")


@pytest.fixture(scope="session")
def installation() -> Iterator[Installation]:
    """A control plane with the product's manifests, for tests that need a complete cluster.

    Each test begins with `Installation.clean`, so it finds no objects of other tests.
    """
    from local.tests.real_parts import open_own_control_plane
    from shared.triggers.routes import STEPS
    from tests.real.bridge.heartbeats import CONTROLLER_FLAGS
    from tests.real.bridge.installation import install
    from tests.support.harness import manifests

    accounts = [*(step.replace("_", "-") for step in STEPS), "relay"]
    with open_own_control_plane(controller_flags=CONTROLLER_FLAGS) as own:
        installed = install(own, manifests(), accounts)
        yield installed
        installed.close()
