"""Real components for tests: a control plane, the CRD of JobSet, Google's Pub/Sub emulator."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from local.control_plane import jobset_crd, plane, workload_controllers
from local.control_plane.binaries import Binaries, Unavailable, find
from local.tests import pubsub_emulator as emulator

REAL_PARTS = "REAL_PARTS"
"""If this variable is ``required``, a test fails without the real component that it needs; otherwise it
is skipped."""


def miss(what: str) -> NoReturn:
    """Skip the test, or fail if real components are required. ``what`` is the message."""
    if os.environ.get(REAL_PARTS) == "required":
        pytest.fail(what)
    pytest.skip(what)


def get_control_plane_binaries() -> Binaries:
    """The programs of a control plane; without them, the test is skipped or fails."""
    binaries = find(os.environ)
    if binaries is None:
        miss("there is no real control plane here: run `make control-plane`")
    return binaries


def get_jobset_crd() -> Path:
    """The file of JobSet's own CustomResourceDefinition."""
    try:
        return jobset_crd.obtain(os.environ)
    except Unavailable as error:
        miss(str(error))


def get_workload_controllers() -> Path:
    """The folder of the controllers of JobSet and LeaderWorkerSet."""
    folder = workload_controllers.find(os.environ)
    if folder is None:
        miss("JobSet and LeaderWorkerSet are not built: run `make control-plane`")
    return folder


def get_kueue() -> Path:
    """The folder of Kueue."""
    folder = workload_controllers.find(os.environ, [workload_controllers.KUEUE])
    if folder is None:
        miss("Kueue is not built: run `make control-plane ARGS=--kueue`")
    return folder


@contextmanager
def open_control_plane() -> Iterator[plane.ControlPlane]:
    """The cluster that TEST_KUBECONFIG names, or a new control plane."""
    path = os.environ.get("TEST_KUBECONFIG")
    if path:
        with plane.named(path) as cluster:
            yield cluster
        return
    with plane.start(get_control_plane_binaries()) as own:
        yield own


@pytest.fixture(scope="session")
def control_plane() -> Iterator[plane.ControlPlane]:
    """A real control plane, shared by all tests of this process; each test uses its own namespace."""
    with open_control_plane() as cluster:
        yield cluster


@contextmanager
def open_own_control_plane(
    api_server_flags: Sequence[str] = (),
    controller_flags: Sequence[str] = (),
    scheduler_flags: Sequence[str] = (),
) -> Iterator[plane.OwnControlPlane]:
    """A new control plane whose components may be stopped; never the cluster of TEST_KUBECONFIG."""
    flags = api_server_flags, controller_flags, scheduler_flags
    with plane.start(get_control_plane_binaries(), *flags) as own:
        yield own


@pytest.fixture
def own_control_plane() -> Iterator[plane.OwnControlPlane]:
    """A new control plane for this test only, which may stop its components."""
    with open_own_control_plane() as own:
        yield own


@pytest.fixture(scope="session")
def pubsub_emulator() -> Iterator[str]:
    """The address of Google's Pub/Sub emulator, shared by all tests of this process.

    It is the one of PUBSUB_EMULATOR_HOST, or the Cloud SDK's. Each test uses its own project.
    """
    address = os.environ.get("PUBSUB_EMULATOR_HOST")
    if address:
        yield address
        return
    program = emulator.find(os.environ)
    if program is None:
        miss(
            "there is no Pub/Sub emulator here: set PUBSUB_EMULATOR_HOST, or install Java and the "
            "Cloud SDK's pubsub-emulator"
        )
    with emulator.start(program) as own:
        yield own
