"""Tests of the stand-ins with the product: its clients, manifests and programs. Left out without it."""

from __future__ import annotations

from importlib.util import find_spec

from local.tests.contract.pubsub.conftest import (  # noqa: F401
    embedded,
    embedded_clients,
    emulator,
    emulator_clients,
    endpoint,
)
from local.tests.gce.conftest import cloud, slice_cloud  # noqa: F401

collect_ignore_glob = [] if find_spec("shared") else ["test_*.py"]
