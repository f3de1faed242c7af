"""The options that choose the cluster of a run."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from local.base.ports import PortTaken
from local.cluster.embedded import ClusterUnusable
from local.cluster.named import clean
from local.control_plane import binaries, plane, workload_controllers
from local.jobsets import REAL_CONTROLLERS, SIMULATED_CONTROLLERS
from local.run.processes import ProcessError
from local.show.timeline import Timeline

FAILURES = (
    ClusterUnusable,
    PortTaken,
    ProcessError,
    binaries.Unavailable,
    plane.ControlPlaneError,
)
"""Why a run cannot start or end; each message says what to do."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--kubeconfig``, ``--real`` and ``--clean``."""
    cluster = parser.add_mutually_exclusive_group()
    cluster.add_argument(
        "--real",
        action="store_true",
        help="a real control plane on this machine instead of the embedded API: of KUBEBUILDER_ASSETS, "
        "of PATH, or as `make control-plane` has built it",
    )
    cluster.add_argument(
        "--kubeconfig",
        type=_existing,
        metavar="PATH",
        help="a cluster for tests instead of the embedded API, as its administrator "
        "(with make: KUBECONFIG=PATH)",
    )
    parser.add_argument(
        "--clean",
        action="store_true",
        help="only remove what a killed run has left in that cluster",
    )
    parser.set_defaults(controllers="", kind="")


def parse_with_controllers(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> argparse.Namespace:
    """Add ``--controllers`` to the options, and parse them."""
    parser.add_argument(
        "--controllers",
        choices=(SIMULATED_CONTROLLERS, REAL_CONTROLLERS),
        default="",
        help="whose controllers run JobSets and LeaderWorkerSets: simulated ones (beside a control "
        "plane, of JobSets only), or their own with their webhooks, which --real starts and which "
        "KUBECONFIG's cluster must have (default there if it has JobSet's CRD)",
    )
    options = parser.parse_args(arguments)
    if options.controllers == REAL_CONTROLLERS and not (options.kubeconfig or options.real):
        parser.error(
            "--controllers=real needs --real or --kubeconfig: the embedded API has no controllers"
        )
    return options


@contextmanager
def chosen_cluster(options: argparse.Namespace, timeline: Timeline) -> Iterator[Path | None]:
    """The kubeconfig of the cluster that the options name; ``None`` for the embedded API.

    A control plane of ``--real`` ends with the block. Raises `binaries.Unavailable` and
    `plane.ControlPlaneError`.
    """
    if not options.real:
        yield options.kubeconfig
        return
    found = binaries.obtain(os.environ, timeline.print_text)
    timeline.print_text("Starting a control plane, in ten seconds or so ...")
    with ExitStack() as stack:
        started = stack.enter_context(plane.start(found))
        is_real = options.controllers == REAL_CONTROLLERS
        for controller in workload_controllers.CONTROLLERS if is_real else ():
            if options.kind in ("", controller.name):
                folder = workload_controllers.obtain(os.environ, found, timeline.print_text)
                what = f"the controller of {controller.kind}"
                timeline.print_text(f"Starting {what}, in five seconds or so ...")
                stack.enter_context(workload_controllers.running(started, folder, controller))
        yield started.kubeconfig


def run_clean_up(program: str, options: argparse.Namespace, timeline: Timeline) -> int:
    """Remove what a killed run has left, and print it; returns the exit code."""
    if options.kubeconfig is None:
        timeline.print_text(f"{program}: --clean needs KUBECONFIG=PATH: the cluster to clean")
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="tpu-functions-clean-") as scratch:
            removed = asyncio.run(clean(options.kubeconfig, Path(scratch)))
    except FAILURES as error:
        timeline.print_text(f"{program}: {error}", style="bold red")
        return 1
    for one in removed:
        timeline.print_text(f"removed {one}")
    if not removed:
        timeline.print_text("No run has left anything there.")
    return 0


def _existing(text: str) -> Path:
    path = Path(text).expanduser().resolve()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {path}")
    return path
