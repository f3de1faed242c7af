"""Shows the lifecycle of a slice: applied, Ready, deleted, gone (``make demo``).

Exits with 0 only if nothing is left: no resource on Compute Engine, no Node, token or TPUNodeGroup, and
no process.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import yaml

from local.base.cluster_client import ClusterClient
from local.base.events import ClusterAction, Event, SubprocessLine
from local.cluster.manifests import GROUPS, NODES, TOKENS, collection_path, object_path
from local.run.processes import Interrupted
from local.run.supervisor import LOG, ROOT, Setup, Supervisor, open_supervisor
from local.show.options import FAILURES, add_options, chosen_cluster, run_clean_up
from local.show.timeline import Line, Timeline
from local.show.timeline_printer import (
    TimelinePrinter,
    render_group,
    render_node,
    render_pod,
    render_secret,
)

EXAMPLE = ROOT / "examples" / "tpu7x-2x2x2.yaml"
WORKLOAD = ROOT / "examples" / "workload" / "job.yaml"
COMPLETE_WITHIN_S = 60.0
QUIET_S = 3.0
"""After so long without a line, a demo says what it waits for."""
READY_WITHIN_S = 120.0
GONE_WITHIN_S = 90.0
JOBS = "/apis/batch/v1/jobs"
PODS = "/api/v1/pods"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_POD = "/api/v1/namespaces/default/pods/{}"
WITH_PODS = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
_APIS = ("gce", "kubernetes")
_MIB = 1024 * 1024
_ENDED_WITHIN_S = 5.0


@dataclass(frozen=True)
class Kind:
    """A watched path, and a function that renders a change from its type, the old and the new object."""

    path: str
    render: Callable[[str, dict[str, Any], dict[str, Any]], Line | None]


WORKLOAD_KINDS = (Kind(JOBS, lambda *_: None), Kind(PODS, render_pod))
WORKLOAD_LEFTOVERS = {"Jobs": JOBS, "Pods": PODS}


class DemoFailed(Exception):
    """The demo has failed; the message says why."""


class Demo:
    """A run that shows a TPUNodeGroup; subclasses show other objects."""

    kinds: Sequence[Kind] = (
        Kind(GROUPS, lambda _, before, found: render_group(before, found)),
        Kind(NODES, render_node),
        Kind(TOKENS, lambda kind, _, found: render_secret(kind, found)),
    )
    """The watched kinds."""
    leftover_paths: Mapping[str, str] = {"Nodes": NODES, "TPUNodeGroups, and so finalizers": GROUPS}
    """The kinds of the leftover check, besides tokens: description and path."""
    shows_sweeps = True
    subject = "The slice"
    """What the last line is about."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.printer = TimelinePrinter(shows_sweeps=self.shows_sweeps)
        self.memory_bytes = 0
        self.last_lines: dict[str, str] = {}
        self.processes: set[psutil.Process] = set()
        self._others = set[psutil.Process]()
        self._is_over = False
        self.took: list[str] = []
        self._known: frozenset[str] = frozenset()

    def observe(self, event: Event) -> None:
        """Print an event while the demo runs."""
        if self._is_over and not isinstance(event, ClusterAction):
            return
        if isinstance(event, SubprocessLine):
            self.last_lines[event.process] = event.line
        line = self.printer.render(event)
        if line is not None:
            self.timeline.print(line)

    async def run(self, setup: Setup) -> None:
        """Run the demo. Raises `DemoFailed`, and what `open_supervisor` raises."""
        self.timeline.print_heading("Setting up")
        count = len(setup.steps)
        self.timeline.print(Line("setup", f"starts {count} functions and the services they use"))
        self._others.update(psutil.Process().children(recursive=True))
        async with open_supervisor(setup, self.observe) as supervisor:
            async with supervisor.client() as client:
                if supervisor.runs_workloads:
                    self.kinds = (*self.kinds, *WORKLOAD_KINDS)
                    self.leftover_paths = {**self.leftover_paths, **WORKLOAD_LEFTOVERS}
                self._introduce(supervisor)
                before = await self._list_all(supervisor, client)
                self._known = frozenset[str]().union(*before.values())
                await self.show(supervisor, client)
                self.measure(supervisor)
                await self._check(supervisor, client, before)
                self._summarize(supervisor)
            self._is_over = True
            self.timeline.print_heading("Stopping")
        self._check_processes()

    async def show(self, supervisor: Supervisor, client: ClusterClient) -> None:
        """Show the object's lifecycle. Raises `DemoFailed`."""
        manifest = yaml.safe_load(EXAMPLE.read_text())
        name = manifest["metadata"]["name"]
        async with self.watching(client) as seen:
            began = time.monotonic()
            await self._apply(client, manifest)
            await self.until(
                lambda: _is_ready(seen.find(GROUPS, name)), READY_WITHIN_S, "the slice is not Ready"
            )
            self.took.append(f"Ready after {time.monotonic() - began:.0f} s")
            self.measure(supervisor)
            await self.show_tables(client, {"kubectl get tng": GROUPS, "kubectl get nodes": NODES})
            if supervisor.runs_workloads:
                await self._run_workload(client, seen)
            began = time.monotonic()
            await self._delete(client, manifest)
            await self.until(
                lambda: not seen.find(GROUPS, name), GONE_WITHIN_S, "the slice is not gone"
            )
            self.took.append(f"gone after {time.monotonic() - began:.0f} s")

    async def _run_workload(self, client: ClusterClient, seen: WatchedObjects) -> None:
        """Run a Job on the slice; its Pods get their TPU variables from the webhook inject_env."""
        manifests = list(yaml.safe_load_all(WORKLOAD.read_text()))
        job = next(one for one in manifests if one["kind"] == "Job")
        name, count = job["metadata"]["name"], job["spec"]["completions"]
        self.timeline.print_heading(f"kubectl apply -f {WORKLOAD.relative_to(ROOT)}")
        self.timeline.print(Line("person", f"applies Job {name}", f"{count} Pods, a host each"))
        began = time.monotonic()
        for manifest in manifests:
            await self.ask(client, "POST", collection_path(manifest), manifest)
        await self.until(
            lambda: _is_complete(seen.find(JOBS, name)),
            COMPLETE_WITHIN_S,
            "the Job is not complete",
        )
        self.took.append(f"its Job complete after {time.monotonic() - began:.0f} s")
        await self.show_tables(client, {"kubectl get jobs": JOBS})
        pods = sorted((one["metadata"]["name"] for one in seen.all(PODS)), reverse=True)
        if not pods:
            raise DemoFailed("the Pods of the Job are gone")
        self.timeline.print_heading(f"kubectl logs {pods[0]}")
        for line in (await client.read_log(_POD.format(pods[0]))).splitlines():
            self.timeline.print_row(f"  {line}")
        for manifest in manifests:
            await self.ask(client, "DELETE", object_path(manifest), WITH_PODS)

    def _introduce(self, supervisor: Supervisor) -> None:
        for name, where in (
            ("Kubernetes API", supervisor.kubernetes_url),
            ("Compute Engine", supervisor.compute_url),
            ("Pub/Sub", supervisor.pubsub_address),
        ):
            self.timeline.print(Line("setup", f"{name} at {where}"))
        count = len(supervisor.setup.steps)
        self.timeline.print(
            Line("setup", f"{count} functions under functions-framework, relay and webhook")
            if supervisor.runs_workloads
            else Line("setup", f"{count} functions under functions-framework, and the relay")
        )
        self.measure(supervisor)

    async def _apply(self, client: ClusterClient, manifest: dict[str, Any]) -> None:
        spec = manifest["spec"]
        self.timeline.print_heading(f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}")
        what = f"applies TPUNodeGroup {manifest['metadata']['name']}"
        why = f"{spec['nodeCount']} hosts, topology {spec['topology']}"
        self.timeline.print(Line("person", what, why))
        await self.ask(client, "POST", _collection(manifest), manifest)

    async def _delete(self, client: ClusterClient, manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        self.timeline.print_heading(f"kubectl delete -f {EXAMPLE.relative_to(ROOT)}")
        self.timeline.print(Line("person", f"deletes TPUNodeGroup {name}"))
        await self.ask(client, "DELETE", f"{_collection(manifest)}/{name}")

    async def ask(
        self, client: ClusterClient, method: str, path: str, body: dict[str, Any] | None = None
    ) -> None:
        """Send a request that must succeed. Raises `DemoFailed`."""
        code, answer = await client.request(method, path, body)
        if code not in (200, 201):
            raise DemoFailed(f"the API server answered {code}: {answer.get('message')}")

    async def show_tables(self, client: ClusterClient, paths: Mapping[str, str]) -> None:
        """Print the tables that kubectl shows, by command."""
        for command, path in paths.items():
            self.timeline.print_heading(command)
            _, table = await client.request("GET", path, accept=_TABLE)
            for row in _render_table(table):
                self.timeline.print_row(row)

    @asynccontextmanager
    async def watching(self, client: ClusterClient) -> AsyncIterator[WatchedObjects]:
        """Watch the kinds, and print their changes."""
        seen = WatchedObjects(self.timeline, self._known)
        tasks = [asyncio.create_task(seen.follow(client, kind)) for kind in self.kinds]
        try:
            yield seen
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def until(
        self,
        condition: Callable[[], bool],
        within_s: float,
        otherwise: str,
        meanwhile: Callable[[], str] = str,
    ) -> None:
        """Wait for ``condition``. Raises `DemoFailed` with the message ``otherwise``.

        After some seconds without a line, prints ``meanwhile`` or, if that is empty, ``otherwise``.
        """
        began = time.monotonic()
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    await asyncio.sleep(0.05)
                    if self.timeline.quiet_s >= QUIET_S:
                        what = meanwhile() or f"waits: {otherwise} yet"
                        waited = f"{time.monotonic() - began:.0f} s so far"
                        self.timeline.print(Line("demo", what, waited))
        except TimeoutError as error:
            raise DemoFailed(f"{otherwise} after {within_s:g} seconds") from error

    async def _list_all(self, supervisor: Supervisor, client: ClusterClient) -> dict[str, set[str]]:
        """The names of all objects, by kind."""
        tokens = {
            name for name in await _names(client, TOKENS) if name.startswith("bootstrap-token")
        }
        pools = {"node pools": set(supervisor.pools.leftovers())} if supervisor.pools else {}
        return {
            "resources on Compute Engine": set(supervisor.gce.leftovers()),
            **pools,
            "bootstrap tokens": tokens,
            **{what: await _names(client, path) for what, path in self.leftover_paths.items()},
        }

    async def _check(
        self, supervisor: Supervisor, client: ClusterClient, before: dict[str, set[str]]
    ) -> None:
        self.timeline.print_heading("What is left")
        after = await self._list_all(supervisor, client)
        left = {what: sorted(found - before[what]) for what, found in after.items()}
        for what, found in left.items():
            self._print_left(found, what)
        if any(left.values()):
            raise DemoFailed("something is left")

    def _print_left(self, found: Sequence[str], what: str) -> None:
        self.timeline.print_text(f"  {', '.join(found) or 'none':<6}  {what}")

    def measure(self, supervisor: Supervisor) -> None:
        self.memory_bytes = max(self.memory_bytes, supervisor.memory_bytes())
        self.processes.update({*psutil.Process().children(recursive=True)} - self._others)

    def _check_processes(self) -> None:
        _, alive = psutil.wait_procs(list(self.processes), timeout=_ENDED_WITHIN_S)
        left = [process for process in alive if _is_more_than_a_zombie(process)]
        self._print_left([str(one.pid) for one in left], f"processes, of {len(self.processes)}")
        if left:
            raise DemoFailed("processes are left")

    def _summarize(self, supervisor: Supervisor) -> None:
        self.timeline.print_heading("Calls")
        for step, counts in self.printer.step_calls.items():
            self.timeline.print_row(
                f"  {step:<18}{counts.invocations:3} invocations {counts.gce:4} calls to Compute Engine"
                f" {counts.kubernetes:4} to Kubernetes, slowest {counts.slowest_ms} ms"
            )
        calls = supervisor.gce.calls
        self.timeline.print_text(
            f"  Compute Engine received {calls.writes()} writes and {calls.reads()} reads"
        )
        self.timeline.print_text(
            f"  at most {self.memory_bytes // _MIB} MiB of memory in all (PSS)"
        )
        if self.took:
            step_calls = self.printer.step_calls.values()
            gce, kubernetes = (sum(getattr(one, api) for one in step_calls) for api in _APIS)
            asked = f"{gce} calls to Compute Engine and {kubernetes} to Kubernetes"
            self.timeline.print_text(f"\n{self.subject}: {', '.join(self.took)}; {asked} in all.")


class WatchedObjects:
    """The watched objects; prints changes, except of objects that were ``known`` before."""

    def __init__(self, timeline: Timeline, known: frozenset[str]) -> None:
        self._timeline = timeline
        self._known = known
        self._objects: dict[str, dict[str, dict[str, Any]]] = {}

    def find(self, path: str, name: str) -> dict[str, Any]:
        """Find an object; empty if it does not exist."""
        return self._objects.get(path, {}).get(name, {})

    def all(self, path: str) -> list[dict[str, Any]]:
        """The objects of a path."""
        return list(self._objects.get(path, {}).values())

    async def follow(self, client: ClusterClient, kind: Kind) -> None:
        """Watch one kind."""
        async for change, found in client.watch(kind.path):
            self._print_change(kind, change, found)

    def _print_change(self, kind: Kind, change: str, found: dict[str, Any]) -> None:
        name = found["metadata"]["name"]
        if name in self._known:
            return
        objects = self._objects.setdefault(kind.path, {})
        before = objects.pop(name, {})
        if change != "DELETED":
            objects[name] = found
        line = kind.render(change, before, found)
        if line is not None:
            self._timeline.print(line)


def _is_more_than_a_zombie(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _is_ready(group: dict[str, Any]) -> bool:
    conditions = group.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _is_complete(job: dict[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return any(one["type"] == "Complete" and one["status"] == "True" for one in conditions)


def _collection(manifest: dict[str, Any]) -> str:
    namespace = manifest["metadata"].get("namespace", "default")
    return f"/apis/tpu.google.com/v1alpha1/namespaces/{namespace}/tpunodegroups"


async def _names(client: ClusterClient, path: str) -> set[str]:
    return {item["metadata"]["name"] for item in await client.list(path)}


def _render_table(table: dict[str, Any]) -> list[str]:
    """The columns that kubectl shows without ``-o wide``."""
    shown = [n for n, one in enumerate(table["columnDefinitions"]) if not one["priority"]]
    names = [table["columnDefinitions"][n]["name"].upper() for n in shown]
    rows = [names, *([_cell(row["cells"][n]) for n in shown] for row in table["rows"])]
    widths = [max(len(row[n]) for row in rows) for n in range(len(shown))]
    return [
        "  "
        + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _cell(content: Any) -> str:
    return "" if content is None else str(content)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--keep-logs", action="store_true", help="leave the logs of all processes, and say where"
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.clean:
        return run_clean_up("make demo", options, Timeline())
    return run_demo(Demo, options, workloads=True)


def run_demo(make: Callable[[Timeline], Demo], options: argparse.Namespace, **setup: Any) -> int:
    """Run a demo under a supervisor of its own; the exit code."""
    timeline = Timeline()
    directory = Path(tempfile.mkdtemp(prefix="tpu-functions-demo-"))
    demo = make(timeline)
    code = _run(demo, options, Setup(directory, **setup))
    if options.keep_logs or (code == 1 and demo.last_lines):
        timeline.print_text(f"The output of all processes is in {directory / LOG}.")
    else:
        shutil.rmtree(directory)
    return code


def _run(demo: Demo, options: argparse.Namespace, setup: Setup) -> int:
    timeline = demo.timeline
    began = time.monotonic()
    try:
        with chosen_cluster(options, timeline) as kubeconfig:
            chosen = replace(setup, kubeconfig=kubeconfig, calls_webhooks=options.real)
            asyncio.run(demo.run(chosen))
    except Interrupted as interrupted:
        timeline.print_text(f"{interrupted}; nothing runs any more")
        return interrupted.exit_code
    except KeyboardInterrupt:  # before `Processes` handles Ctrl-C
        timeline.print_text("interrupted before anything had been started")
        return 128 + signal.SIGINT
    except (DemoFailed, *FAILURES) as error:
        _explain(demo, error)
        return 1
    timeline.print_text(f"Done in {time.monotonic() - began:.0f} seconds.", style="bold green")
    return 0


def _explain(demo: Demo, error: Exception) -> None:
    demo.timeline.print_text(f"\nFAILED: {error}", style="bold red")
    for child, line in demo.last_lines.items():
        demo.timeline.print_text(f"  the last line of {child}: {line}")


if __name__ == "__main__":
    sys.exit(main())
