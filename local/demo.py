"""A slice's whole life on this machine, live: applied, Ready, deleted, gone (``make demo``).

Exits 0 only after a look that finds nothing left: no resource on Compute Engine, no Node, no token,
no TPUNodeGroup, no process; and nothing of ours in a cluster that has been named.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from local.cluster_client import ClusterClient
from local.happenings import ChildLine, Happening, Housekeeping
from local.narrator import Narrator, tell_group, tell_node, tell_secret
from local.parts import FAILURES, add_options, run_clean_up
from local.processes import Interrupted
from local.station import LOG, ROOT, Setup, Station, open_station
from local.timeline import Line, Timeline
from local.traces import GROUPS, NODES, TOKENS, find_traces

EXAMPLE = ROOT / "examples" / "tpu7x-2x2x2.yaml"
READY_WITHIN_S = 120.0
GONE_WITHIN_S = 90.0
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_MIB = 1024 * 1024
_ENDED_WITHIN_S = 5.0


class DemoFailed(Exception):
    """The demo did not come to its end; the message says why."""


class Demo:
    """One run."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.narrator = Narrator()
        self.memory_bytes = 0
        self.last_lines: dict[str, str] = {}
        self.processes: set[psutil.Process] = set()
        self._is_over = False

    def observe(self, happening: Happening) -> None:
        """Print what happens, as long as the demo goes on."""
        if self._is_over and not isinstance(happening, Housekeeping):
            return
        if isinstance(happening, ChildLine):
            self.last_lines[happening.child] = happening.line
        line = self.narrator.tell(happening)
        if line is not None:
            self.timeline.print(line)

    async def run(self, setup: Setup) -> None:
        """Show it all. Raises `DemoFailed`, and what `open_station` raises."""
        self.timeline.head("Setting up")
        async with open_station(setup, self.observe) as station:
            async with station.client() as client:
                await self._show(station, client)
            self._is_over = True
            self.timeline.head("Stopping")
        self._check_processes()
        if setup.kubeconfig is not None:
            async with station.client() as client:
                await self._check_cluster(client)

    async def _show(self, station: Station, client: ClusterClient) -> None:
        self._introduce(station)
        before = await _list_all(station, client)
        manifest = yaml.safe_load(EXAMPLE.read_text())
        name = manifest["metadata"]["name"]
        known = frozenset[str]().union(*before.values())
        async with self._watching(client, known) as seen:
            await self._apply(client, manifest)
            await self._until(lambda: _is_ready(seen.group(name)), READY_WITHIN_S, "Ready")
            self._measure(station)
            await self._show_tables(client)
            await self._delete(client, manifest)
            await self._until(lambda: not seen.group(name), GONE_WITHIN_S, "gone")
        self._measure(station)
        await self._check(station, client, before)
        self._summarize(station)

    def _introduce(self, station: Station) -> None:
        for name, where in (
            ("Kubernetes API", station.kubernetes_url),
            ("Compute Engine", station.compute_url),
            ("Pub/Sub", station.pubsub_address),
        ):
            self.timeline.print(Line("setup", f"{name} at {where}"))
        self.timeline.print(
            Line("setup", "five functions under functions-framework, and the relay")
        )
        self._measure(station)

    async def _apply(self, client: ClusterClient, manifest: dict[str, Any]) -> None:
        spec = manifest["spec"]
        self.timeline.head(f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}")
        what = f"applies TPUNodeGroup {manifest['metadata']['name']}"
        why = f"{spec['nodeCount']} hosts, topology {spec['topology']}"
        self.timeline.print(Line("person", what, why))
        await _expect(201, *await client.request("POST", _collection(manifest), manifest))

    async def _delete(self, client: ClusterClient, manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        self.timeline.head(f"kubectl delete -f {EXAMPLE.relative_to(ROOT)}")
        self.timeline.print(Line("person", f"deletes TPUNodeGroup {name}"))
        path = f"{_collection(manifest)}/{name}"
        await _expect(200, *await client.request("DELETE", path))

    async def _show_tables(self, client: ClusterClient) -> None:
        for command, path in (("kubectl get tng", GROUPS), ("kubectl get nodes", NODES)):
            self.timeline.head(command)
            _, table = await client.request("GET", path, accept=_TABLE)
            for row in _render_table(table):
                self.timeline.say(row)

    @asynccontextmanager
    async def _watching(self, client: ClusterClient, known: frozenset[str]) -> AsyncIterator[_Seen]:
        seen = _Seen(self.timeline, known)
        tasks = [asyncio.create_task(seen.follow(client, path)) for path in (GROUPS, NODES, TOKENS)]
        try:
            yield seen
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until(self, condition: Callable[[], bool], within_s: float, word: str) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise DemoFailed(f"the slice is not {word} after {within_s:g} seconds") from error

    async def _check(
        self, station: Station, client: ClusterClient, before: dict[str, set[str]]
    ) -> None:
        self.timeline.head("What is left")
        after = await _list_all(station, client)
        left = {what: sorted(found - before[what]) for what, found in after.items()}
        for what, found in left.items():
            self._say_left(found, what)
        if any(left.values()):
            raise DemoFailed("something is left")

    async def _check_cluster(self, client: ClusterClient) -> None:
        traces = await find_traces(client)
        self._say_left(traces.earlier_run, "objects that this demo has put into the cluster")
        if traces.earlier_run:
            raise DemoFailed("something is left in the cluster")

    def _say_left(self, found: Sequence[str], what: str) -> None:
        self.timeline.say(f"  {', '.join(found) or 'none':<6}  {what}")

    def _measure(self, station: Station) -> None:
        self.memory_bytes = max(self.memory_bytes, station.memory_bytes())
        self.processes.update(psutil.Process().children(recursive=True))

    def _check_processes(self) -> None:
        _, alive = psutil.wait_procs(list(self.processes), timeout=_ENDED_WITHIN_S)
        left = [process for process in alive if _is_more_than_a_zombie(process)]
        self._say_left([str(one.pid) for one in left], f"processes, of {len(self.processes)}")
        if left:
            raise DemoFailed("processes are left")

    def _summarize(self, station: Station) -> None:
        self.timeline.head("Who did how much")
        for step, tally in self.narrator.tallies.items():
            self.timeline.say(
                f"  {step:<18}{tally.invocations:3} invocations {tally.gce:4} calls to Compute Engine"
                f" {tally.kubernetes:4} to Kubernetes, slowest {tally.slowest_ms} ms"
            )
        calls = station.gce.calls
        self.timeline.say(f"  Compute Engine saw {calls.writes()} writes and {calls.reads()} reads")
        self.timeline.say(f"  at most {self.memory_bytes // _MIB} MiB of memory in all (PSS)")


class _Seen:
    """What the watches have shown; says what is new, but for things that were ``known`` before."""

    def __init__(self, timeline: Timeline, known: frozenset[str]) -> None:
        self._timeline = timeline
        self._known = known
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}

    def group(self, name: str) -> dict[str, Any]:
        """The TPUNodeGroup, empty while there is none."""
        return self._objects.get((GROUPS, name), {})

    async def follow(self, client: ClusterClient, path: str) -> None:
        """Watch one kind."""
        async for kind, found in client.watch(path):
            self._tell(path, kind, found)

    def _tell(self, path: str, kind: str, found: dict[str, Any]) -> None:
        key = (path, found["metadata"]["name"])
        if key[1] in self._known:
            return
        before = self._objects.pop(key, {})
        if kind != "DELETED":
            self._objects[key] = found
        tell = {
            GROUPS: lambda: tell_group(before, found),
            NODES: lambda: tell_node(kind, before, found),
            TOKENS: lambda: tell_secret(kind, found),
        }
        line = tell[path]()
        if line is not None:
            self._timeline.print(line)


def _is_more_than_a_zombie(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _is_ready(group: dict[str, Any]) -> bool:
    conditions = group.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _collection(manifest: dict[str, Any]) -> str:
    namespace = manifest["metadata"].get("namespace", "default")
    return f"/apis/tpu.google.com/v1alpha1/namespaces/{namespace}/tpunodegroups"


async def _list_all(station: Station, client: ClusterClient) -> dict[str, set[str]]:
    """All that a slice consists of, by name."""
    tokens = {name for name in await _names(client, TOKENS) if name.startswith("bootstrap-token")}
    return {
        "resources on Compute Engine": set(station.gce.leftovers()),
        "Nodes": await _names(client, NODES),
        "bootstrap tokens": tokens,
        "TPUNodeGroups, and so finalizers": await _names(client, GROUPS),
    }


async def _names(client: ClusterClient, path: str) -> set[str]:
    return {item["metadata"]["name"] for item in await client.list(path)}


async def _expect(code: int, got: int, answer: dict[str, Any]) -> None:
    if got != code:
        raise DemoFailed(f"the API server answered {got}: {answer.get('message')}")


def _render_table(table: dict[str, Any]) -> list[str]:
    """The columns that kubectl shows without ``-o wide``."""
    shown = [n for n, one in enumerate(table["columnDefinitions"]) if not one["priority"]]
    names = [table["columnDefinitions"][n]["name"].upper() for n in shown]
    rows = [names, *([str(row["cells"][n]) for n in shown] for row in table["rows"])]
    widths = [max(len(row[n]) for row in rows) for n in range(len(shown))]
    return [
        "  "
        + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--keep-logs", action="store_true", help="leave the logs of all processes, and say where"
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    timeline = Timeline()
    if options.clean:
        return run_clean_up("make demo", options, timeline)
    directory = Path(tempfile.mkdtemp(prefix="tpu-functions-demo-"))
    demo = Demo(timeline)
    code = _run(demo, Setup(directory, kubeconfig=options.kubeconfig, pubsub=options.pubsub))
    if options.keep_logs or (code == 1 and demo.last_lines):
        timeline.say(f"All that the processes wrote is in {directory / LOG}.")
    else:
        shutil.rmtree(directory)
    return code


def _run(demo: Demo, setup: Setup) -> int:
    timeline = demo.timeline
    began = time.monotonic()
    try:
        asyncio.run(demo.run(setup))
    except Interrupted as interrupted:
        timeline.say(f"{interrupted}; nothing runs any more")
        return interrupted.exit_code
    except KeyboardInterrupt:  # before `Processes` has taken over what Ctrl-C means
        timeline.say("interrupted before anything had been started")
        return 128 + signal.SIGINT
    except (DemoFailed, *FAILURES) as error:
        _explain(demo, error)
        return 1
    timeline.say(f"Done in {time.monotonic() - began:.0f} seconds.", style="bold green")
    return 0


def _explain(demo: Demo, error: Exception) -> None:
    demo.timeline.say(f"\nFAILED: {error}", style="bold red")
    for child, line in demo.last_lines.items():
        demo.timeline.say(f"  the last line of {child}: {line}")


if __name__ == "__main__":
    sys.exit(main())
