"""The parts that somebody may bring along, a cluster and a Pub/Sub, as options of a command."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from local.base.ports import PortTaken
from local.cloud.topics import PubSubUnusable, Topics
from local.cluster.embedded import ClusterUnusable
from local.cluster.named import clean
from local.control_plane import binaries, plane
from local.run.processes import ProcessError
from local.run.supervisor import JOBSET_STEPS, STEPS
from local.show.timeline import Timeline

FAILURES = (
    ClusterUnusable,
    PubSubUnusable,
    PortTaken,
    ProcessError,
    binaries.Unavailable,
    plane.ControlPlaneError,
)
"""What may be wrong with the parts of a supervisor; each message says what to do."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--kubeconfig`` or ``--real``, ``--pubsub`` and ``--clean``."""
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
        "--pubsub",
        default="",
        metavar="HOST:PORT",
        help="Google's Pub/Sub emulator, on this machine, instead of the embedded one",
    )
    parser.add_argument(
        "--clean",
        action="store_true",
        help="only remove what a killed run has left in that cluster and that Pub/Sub",
    )


@contextmanager
def chosen_cluster(options: argparse.Namespace, timeline: Timeline) -> Iterator[Path | None]:
    """The kubeconfig of the cluster that the options ask for; ``None`` for the embedded API.

    A control plane of ``--real`` ends with the block. Raises `binaries.Unavailable` and
    `plane.ControlPlaneError`.
    """
    if not options.real:
        yield options.kubeconfig
        return
    found = binaries.obtain(os.environ, timeline.say)
    with plane.start(found) as started:
        yield started.kubeconfig


def run_clean_up(program: str, options: argparse.Namespace, timeline: Timeline) -> int:
    """Do what ``--clean`` asks for, and say it; the exit code."""
    if options.kubeconfig is None and not options.pubsub:
        timeline.say(f"{program}: --clean needs a KUBECONFIG=PATH or a --pubsub HOST:PORT to clean")
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="tpu-functions-clean-") as scratch:
            removed = asyncio.run(_clean_up(options, Path(scratch)))
    except FAILURES as error:
        timeline.say(f"{program}: {error}", style="bold red")
        return 1
    for one in removed:
        timeline.say(f"removed {one}")
    if not removed:
        timeline.say("No run has left anything there.")
    return 0


async def _clean_up(options: argparse.Namespace, scratch: Path) -> Sequence[str]:
    removed: list[str] = []
    if options.kubeconfig is not None:
        removed += await clean(options.kubeconfig, scratch)
    if options.pubsub:
        topics = Topics(options.pubsub)
        try:
            removed += await topics.find((*STEPS, *JOBSET_STEPS))
            await topics.remove((*STEPS, *JOBSET_STEPS))
        finally:
            await topics.close()
    return removed


def _existing(text: str) -> Path:
    path = Path(text).expanduser().resolve()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {path}")
    return path
