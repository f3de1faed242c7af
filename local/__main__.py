"""A cluster, a Compute Engine and the functions on this machine, until Ctrl-C (``make local``).

Set KUBECONFIG with the line that it prints, and apply the manifests in examples/. Without --dir,
nothing is left at the end. With --dir DIR, the kubeconfig, the cluster's CA, the tokens and the log
stay in DIR, so that an exported KUBECONFIG stays valid; the objects in the cluster and on Compute
Engine are not kept.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from datetime import UTC, datetime
from pathlib import Path

from local import gce
from local.base.events import ClusterAction, Event, SubprocessEnded, SubprocessLine
from local.cloud.simulation import PROJECT
from local.cluster.credentials import Credentials, CredentialsUnreadable
from local.run.processes import Interrupted
from local.run.supervisor import (
    IDENTITIES,
    TPU_NODE_GROUP,
    Ports,
    Setup,
    Supervisor,
    open_supervisor,
)
from local.show.options import (
    FAILURES,
    add_options,
    chosen_cluster,
    parse_with_controllers,
    run_clean_up,
)
from local.show.timeline import Timeline
from local.show.timeline_printer import TimelinePrinter

DEFAULT_PORTS = Ports(kubernetes=16443, compute=18080, pubsub=18085)
CREDENTIALS = "credentials.json"
TOOL_SETTINGS = "tool.env"
"""Environment variables for the operator's tool, to be sourced by a shell."""
_VM = f"projects/{PROJECT}/zones/ZONE/instances/NAME"


class DirectoryUnusable(Exception):
    """The directory of ``--dir`` cannot be used; the message says why."""


class DecisionLog:
    """Prints a line for each decision of a step and for each failure."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._printer = TimelinePrinter()

    def observe(self, event: Event) -> None:
        """Print a decision or a failure."""
        line = self._printer.render(event)
        if line is None:
            return
        is_decision = (
            isinstance(event, SubprocessLine)
            and line.actor not in ("relay", "sweep")
            and not line.what.startswith("Swept")
        )
        is_rare = isinstance(event, SubprocessEnded | ClusterAction)
        if is_decision or is_rare or line.is_bad:
            self._timeline.print(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; the exit code."""
    options = _parse(arguments)
    timeline = Timeline()
    if options.clean:
        return run_clean_up("make local", options, timeline)
    try:
        with (
            _directory(options.dir) as directory,
            chosen_cluster(options, timeline) as kubeconfig,
        ):
            setup = Setup(
                directory,
                credentials=Credentials.load_or_create(
                    directory / CREDENTIALS, IDENTITIES, datetime.now(UTC)
                ),
                kubeconfig=kubeconfig,
                calls_webhooks=options.real,
                ports=_ports(options),
                for_examples=True,
                slices="" if options.kubeconfig else TPU_NODE_GROUP,
                jobset=options.controllers,
                workloads=True,
                inventory=gce.read_inventory(options.inventory),
                serves_page=True,
            )
            asyncio.run(_serve(setup, timeline))
    except Interrupted as interrupted:
        timeline.print_text(f"{interrupted}; nothing runs any more")
    except KeyboardInterrupt:  # before `Processes` handles Ctrl-C
        timeline.print_text("interrupted before anything had been started")
    except (
        DirectoryUnusable,
        CredentialsUnreadable,
        gce.InventoryUnreadable,
        *FAILURES,
    ) as error:
        timeline.print_text(f"make local: {error}", style="bold red")
        return 1
    return 0


async def _serve(setup: Setup, timeline: Timeline) -> None:
    log = DecisionLog(timeline)
    async with open_supervisor(setup, log.observe) as supervisor:
        timeline.print_verbatim(_greeting(supervisor))
        await asyncio.Event().wait()


def _greeting(supervisor: Supervisor) -> str:
    url = supervisor.compute_url
    settings = supervisor.setup.directory / TOOL_SETTINGS
    settings.write_text(
        "".join(
            f"export {name}={shlex.quote(value)}\n"
            for name, value in supervisor.tool_environment.items()
        )
    )
    return f"""
Kubernetes API  {supervisor.kubernetes_url}
Compute Engine  {url}  (simulated)
Pub/Sub         {supervisor.pubsub_address}
Cloud Logging   {supervisor.logging_address}
Logs            {supervisor.log}
Live page, for a browser:
{supervisor.page_url}

For another terminal:

export KUBECONFIG={supervisor.kubeconfig}
kubectl apply -f examples/tpu7x-2x2x2.yaml
kubectl get tng -w

Why is it not Ready? The operator's tool (docs/reference/replay.md):

. {settings}
.venv/bin/python -m replay explain default/training

State and faults of the simulated Compute Engine:

curl -s {url}/_simulator/state
curl -s {url}/_simulator/faults

curl -X POST {url}/_simulator/host_error \\
  -d '{{"instance": "{_VM}"}}'

Ctrl-C stops it.
"""


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make local",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='Give options to make as ARGS="--dir DIR".',
    )
    add_options(parser)
    parser.add_argument(
        "--dir", type=Path, help="keep kubeconfig, CA, tokens and log here (objects are not kept)"
    )
    parser.add_argument(
        "--inventory",
        type=Path,
        metavar="FILE",
        help="what exists on Compute Engine besides local/gce/inventory.yaml, in the same form",
    )
    ports = DEFAULT_PORTS
    for name, default, what in (
        ("--port", ports.kubernetes, "the Kubernetes API"),
        ("--compute-port", ports.compute, "the simulated Compute Engine"),
        ("--pubsub-port", ports.pubsub, "Pub/Sub"),
    ):
        meaning = f"where {what} listens; 0: any free port (default: {default})"
        parser.add_argument(name, type=_port, metavar="N", help=meaning)
    options = parse_with_controllers(parser, arguments)
    if (options.kubeconfig or options.real) and options.port is not None:
        parser.error("--port is the embedded Kubernetes API's; --kubeconfig and --real are others")
    fixed = [port for port in astuple(_ports(options)) if port]
    if len(set(fixed)) < len(fixed):
        parser.error(
            "--port, --compute-port and --pubsub-port must differ, and would be "
            f"{', '.join(map(str, fixed))}; 0: any free port"
        )
    return options


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)


def _ports(options: argparse.Namespace) -> Ports:
    asked = {
        "kubernetes": 0 if options.kubeconfig or options.real else options.port,
        "compute": options.compute_port,
        "pubsub": options.pubsub_port,
    }
    return replace(
        DEFAULT_PORTS, **{name: port for name, port in asked.items() if port is not None}
    )


@contextmanager
def _directory(directory: Path | None) -> Iterator[Path]:
    """The supervisor's directory; removed at the end unless ``--dir`` names it."""
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="tpu-functions-local-"))
        try:
            yield directory
        finally:
            shutil.rmtree(directory)
        return
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (directory / "lock").open("w")
    except OSError as error:
        raise DirectoryUnusable(f"--dir {directory}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DirectoryUnusable(f"{directory} is in use by another `make local`") from error
        directory = directory.resolve()
        shutil.rmtree(directory / "vms", ignore_errors=True)
        try:
            yield directory
        except OSError as error:
            if not Path(str(error.filename)).is_relative_to(directory):
                raise
            raise DirectoryUnusable(f"--dir: {error.filename}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
