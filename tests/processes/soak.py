"""A soak: slices and workloads are churned on real processes, while these are killed at random.

A run is rounds. Each draws changes and faults from a seed for a while; then the faults end, and the
system must settle: every slice Ready, no message left. Processes are killed in the first half only, so
that those of the second half live long enough for their memory and open files to be compared.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import psutil
import yaml

from local.base.cluster_client import ClusterClient, Document
from local.base.controls import UnknownFault
from local.base.events import AuditEntry, Event, SubprocessEnded
from local.cloud.simulation import PROJECT
from local.cluster.manifests import (
    GROUPS,
    NODES,
    collection_path,
    item_path,
    label_workload,
    object_path,
)
from local.control_plane.plane import ControlPlane
from local.gce.refusals import Refused
from local.jobsets import PodBehaviour
from local.jobsets.objects import DEPLOYMENTS, JOBSETS, PATHS
from local.run.supervisor import TPU_NODE_GROUP, Setup, Supervisor, open_supervisor
from local.show.workload_demo import OPTIONS, TEMPLATE
from tests.processes.quick import QUICK_AGENTS, QUICK_GCE
from tests.real.inventory import list_everything
from tests.real.life import PODS
from tests.support.harness import ROOT

SETTLES_WITHIN_S = 600.0
"""Less than the promises of docs/reliability.md: the simulated Compute Engine is quick here."""
MIB = 2**20
MEMORY_RATIO, MEMORY_MORE = 1.05, 3 * MIB
"""A process may use so much more memory at the end than when it was warm: a factor, and bytes."""
FILES_MORE = 10
"""And have so many more open files: connections that are kept."""
SWEEP_EVERY_S = 10.0
PAUSES_S = (2.0, 8.0, 25.0)
MOST_GROUPS, MOST_REPLICAS = 6, 2
REMAINING = ("events ", "certificatesigningrequests ", "leases ")
"""What Kubernetes itself deletes later, and Leases: those of simulated kubelets have no owner."""
SHAPES = {
    "1 host": ("2x4", 1, "INDIVIDUAL", "ct6e-standard-8t"),
    "2 slices": ("2x2", 2, "INDIVIDUAL", "ct6e-standard-4t"),
    "2 hosts": ("2x4", 2, "BULK", "ct6e-standard-4t"),
    "4 hosts": ("4x4", 4, "BULK", "ct6e-standard-4t"),
}
"""Topology, VMs, mode, machine type."""
_PAUSED = "tpu-functions.dev/paused"
_RESOURCE = "tpu-functions.dev/resource-name"
_APPLY_AGAIN = "Delete the group and apply it again."
_LIMITS = {"kinds": ["Deployment"], "slices": 8, "chips": 64}
_IN_BACKGROUND = {"propagationPolicy": "Background"}

Change = Callable[[], Awaitable[object]]
Outage = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Usage:
    """What a part uses, with its children: bytes of its own memory (USS), and open files."""

    memory: int
    files: int


class Soak:
    """A run on a supervisor."""

    def __init__(self, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.settled_s: list[float] = []
        self._random = Random(seed)
        self._numbers = iter(range(1, 1_000_000))
        self._faults: set[asyncio.Task[None]] = set()
        self._supervisor: Supervisor
        self._client: ClusterClient
        self._outage: Outage

    def observe(self, event: Event) -> None:
        """Count what happens."""
        if isinstance(event, SubprocessEnded):
            self.ended[event.process] += 1
        if isinstance(event, AuditEntry) and event.entry.get("operation", {}).get("first"):
            method = event.entry["protoPayload"]["methodName"]
            self.counts["VMs"] += method.endswith("instances.insert")
            self.counts["MIGs"] += method.endswith("instanceGroupManagers.insert")

    async def run(
        self, supervisor: Supervisor, client: ClusterClient, outage: Outage, minutes: float
    ) -> str:
        """Churn for so long, delete everything, check, and return the figures.

        The product cannot use the API server within the block of an ``outage``.
        """
        self._supervisor, self._client, self._outage = supervisor, client, outage
        data = yaml.safe_load(TEMPLATE.read_text())["data"]
        data["namespaces"] = yaml.safe_dump({"default": _LIMITS})
        await self._ask("PATCH", OPTIONS, {"data": data})
        plane = ControlPlane(supervisor.kubeconfig, "kubectl")
        before = await asyncio.to_thread(list_everything, plane)
        began = monotonic()
        while monotonic() - began < 30 * minutes:
            await self._churn(min(60.0, 15 * minutes), kills=True)
            await self._settle()
            await self._miss_nothing()
        await self._churn(min(90.0, 10 * minutes), kills=False)
        await self._settle()
        warm = self._measure()
        while True:
            await self._churn(min(60.0, 10 * minutes), kills=False)
            await self._settle()
            if monotonic() - began > 60 * minutes:
                break
        usage = self._measure()
        await self._delete_everything()
        figures = self._figures(warm, usage, monotonic() - began)
        print(figures)  # shown with a failure
        left = await asyncio.to_thread(list_everything, plane)
        assert {one for one in left ^ before if not one.startswith(REMAINING)} == set()
        log = self._supervisor.log.read_text()
        assert "Traceback" not in log, log[log.find("Traceback") - 1000 :][:4000]
        assert not find_growth(warm, usage)
        return figures

    async def _churn(self, seconds: float, *, kills: bool) -> None:
        """Change and break something every second or so; then end what lasts longer."""
        ends = monotonic() + seconds
        changes: list[Change] = [self._delete, self._toggle, self._workload, *[self._create] * 2]
        faults: list[Change] = [self._lose_vm, self._pause, *[self._kill] * (2 * kills)]
        while monotonic() < ends:
            await self._random.choice(changes)()
            if self._random.random() < 0.4:
                await self._random.choice(faults)()
            if self._random.random() < 0.02:
                self._begin(*self._random.choice(self._outages))
            await asyncio.sleep(self._random.uniform(0.5, 2.0))
        await asyncio.gather(*self._faults)

    async def _settle(self) -> None:
        """Wait until everything is as it should be, and record how long that took."""
        began = monotonic()
        for group in await self._client.list(GROUPS):
            if group["metadata"].get("annotations", {}).get(_PAUSED):
                await self._set_paused(group, None)
        await self._until(self._find_unsettled)
        self.settled_s.append(monotonic() - began)

    async def _miss_nothing(self) -> None:
        """Create and delete a slice while the relay is dead and no sweep runs: the relay alone must,
        when it is restarted, report both."""
        with self._stopped("sweep"):
            path = await self._create("1 host", first=partial(self._kill_part, "relay"))
            await self._until(lambda: self._find(path, _is_ready))
            self._kill_part("relay")
            await self._ask("DELETE", path)
            await self._until(lambda: self._find(path))
        await self._settle()

    async def _delete_everything(self) -> None:
        for kind in (JOBSETS, DEPLOYMENTS):
            for one in await self._client.list(PATHS[kind]):
                await self._ask("DELETE", item_path(PATHS[kind], one), _IN_BACKGROUND)
        for group in await self._client.list(GROUPS):
            await self._ask("DELETE", item_path(GROUPS, group))
        await self._until(self._find_left)

    async def _until(self, find: Callable[[], Awaitable[list[str]]]) -> None:
        deadline = monotonic() + SETTLES_WITHIN_S
        while found := await find():
            assert monotonic() < deadline, "\n".join(found)
            await asyncio.sleep(0.5)

    async def _find_unsettled(self) -> list[str]:
        pods = await self._client.list(PODS)
        return [
            *await self._find_unsettled_groups(),
            *(_describe(one) for one in pods if one["status"].get("phase") == "Pending"),
            *self._find_messages(),
        ]

    async def _find_unsettled_groups(self) -> list[str]:
        """Describe the groups that are not Ready. Do what a status says if only a user can do it."""
        groups = await self._client.list(GROUPS)
        unsettled = {_describe(one): one for one in groups if not _is_ready(one)}
        for text, group in unsettled.items():
            if text.endswith(_APPLY_AGAIN) and "deletionTimestamp" not in group["metadata"]:
                await self._ask("DELETE", item_path(GROUPS, group))
                self.counts["Spot slices deleted as the status says"] += 1
        return [*unsettled]

    async def _find(
        self, path: str, but: Callable[[Document], bool] = lambda _: False
    ) -> list[str]:
        """Describe an object if it exists, unless ``but`` is true for it."""
        found = await self._client.find(path)
        return [] if found is None or but(found) else [_describe(found)]

    async def _find_left(self) -> list[str]:
        paths = (GROUPS, NODES, PODS, PATHS[JOBSETS], PATHS[DEPLOYMENTS])
        objects = [one for path in paths for one in await self._client.list(path)]
        return [
            *(_describe(one) for one in objects),
            *self._supervisor.gce.leftovers(),
            *self._find_messages(),
        ]

    def _find_messages(self) -> list[str]:
        found = self._supervisor.pubsub.list_subscriptions(f"projects/{PROJECT}")
        pushing = [one for one in found if one.config.push]  # dead letters are kept
        return [f"{one.backlog} of {one.config.name}" for one in pushing if one.backlog]

    async def _create(self, shape: str = "", first: Callable[[], None] = lambda: None) -> str:
        """Create a group; return its path. ``first`` is called right before."""
        if not shape and len(await self._client.list(GROUPS)) >= MOST_GROUPS:
            return ""
        topology, count, mode, machine = SHAPES[shape or self._random.choice([*SHAPES])]
        template = yaml.safe_load(yaml.safe_load(TEMPLATE.read_text())["data"]["template"])
        config = {**template["spec"]["instanceConfig"], "machineType": machine}
        config["provisioningModel"] = self._random.choice(("STANDARD", "SPOT"))
        group = {
            **template,
            "metadata": {"name": f"soak-{next(self._numbers)}", "namespace": "default"},
            "spec": {
                **template["spec"],
                "acceleratorConnectionMode": "STATIC",
                "topology": topology,
                "nodeCount": count,
                "targetSizePolicyMode": mode,
                "instanceConfig": config,
            },
        }
        first()
        await self._ask("POST", collection_path(group), group)
        self.counts["groups"] += 1
        return object_path(group)

    async def _delete(self) -> None:
        if group := await self._draw_group():
            await self._ask("DELETE", item_path(GROUPS, group))
            self.counts["deletions"] += 1

    async def _toggle(self) -> None:
        """Pause a group, or end that."""
        if group := await self._draw_group():
            is_paused = group["metadata"].get("annotations", {}).get(_PAUSED)
            await self._set_paused(group, None if is_paused else "true")

    async def _set_paused(self, group: Document, value: str | None) -> None:
        change = {"metadata": {"annotations": {_PAUSED: value}}}
        await self._ask("PATCH", item_path(GROUPS, group), change)

    async def _workload(self) -> None:
        """Create or delete a JobSet, or create or scale a Deployment."""
        kind, example = self._random.choice(
            ((JOBSETS, "jobset-v6e-multislice"), (DEPLOYMENTS, "deployment-v6e-2x2"))
        )
        found = await self._client.list(PATHS[kind])
        wanted = label_workload(yaml.safe_load((ROOT / "examples" / f"{example}.yaml").read_text()))
        if not found:
            await self._ask("POST", collection_path(wanted), wanted)
        elif kind == DEPLOYMENTS:
            replicas = self._random.randint(0, MOST_REPLICAS)
            await self._ask("PATCH", object_path(wanted), {"spec": {"replicas": replicas}})
        else:
            await self._ask("DELETE", object_path(wanted), _IN_BACKGROUND)
        self.counts[f"changes of {kind}s"] += 1

    async def _draw_group(self) -> Document | None:
        groups = await self._client.list(GROUPS)
        groups = [one for one in groups if one["metadata"]["name"].startswith("soak-")]
        return self._random.choice(groups) if groups else None

    async def _lose_vm(self) -> None:
        """Preempt or break a VM, or delete one that Compute Engine creates again: another one's slice
        may recover for half an hour."""
        if not (vms := [*self._supervisor.gce.state()["instances"]]):
            return
        faults, vm = self._supervisor.gce.faults, self._random.choice(vms)
        happens: list[Callable[[str], object]] = [faults.preempt, faults.host_error]
        for group in await self._client.list(GROUPS):
            name = group["metadata"].get("labels", {}).get(_RESOURCE)
            is_alone = group["spec"]["targetSizePolicyMode"] == "INDIVIDUAL"
            if name and is_alone and f"/{name}-" in vm:
                happens.append(partial(faults.act_as_user, "DELETE"))
        with suppress(Refused, UnknownFault):
            self._random.choice(happens)(vm)
            self.counts["VMs lost"] += 1

    @property
    def _parts(self) -> list[str]:
        return [*self._supervisor.setup.steps, "relay", "inject_env"]

    async def _kill(self) -> None:
        self._kill_part(self._random.choice(self._parts))

    def _kill_part(self, name: str) -> None:
        """Kill a part, or only its worker; the supervisor restarts the former, the part the latter."""
        process = self._supervisor.subprocesses[name]
        with suppress(psutil.NoSuchProcess):
            workers = psutil.Process(process.pid).children()
            if workers and self._random.random() < 0.5:
                workers[0].kill()
            else:
                process.kill()
            self.counts[f"kills of {name}"] += 1

    async def _pause(self) -> None:
        self._begin("pauses", self._stopped(self._random.choice(self._parts)))

    def _begin(self, name: str, block: AbstractContextManager[None]) -> None:
        """Begin a fault that lasts while the block is entered."""

        async def last() -> None:
            with block:
                await asyncio.sleep(self._random.choice(PAUSES_S))

        self.counts[name] += 1
        task = asyncio.create_task(last())
        self._faults.add(task)
        task.add_done_callback(self._faults.discard)

    @property
    def _outages(self) -> list[tuple[str, AbstractContextManager[None]]]:
        return [("API server outages", self._outage()), ("Pub/Sub outages", self._without_pubsub())]

    @contextmanager
    def _without_pubsub(self) -> Iterator[None]:
        self._supervisor.pubsub.begin_outage()
        try:
            yield
        finally:
            self._supervisor.pubsub.end_outage()

    @contextmanager
    def _stopped(self, name: str) -> Iterator[None]:
        """Stop a part with SIGSTOP until the block is left, as when its machine has no time for it."""
        group = self._supervisor.subprocesses[name].pid
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)

    def _measure(self) -> dict[str, Usage]:
        found = {}
        for part in self._parts:
            process = psutil.Process(self._supervisor.subprocesses[part].pid)
            tree = [process, *process.children(recursive=True)]
            memory = sum(one.memory_full_info().uss for one in tree)
            found[part] = Usage(memory, sum(one.num_fds() for one in tree))
        return found

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Send a request that must succeed, unless the object has gone or a webhook is dead."""
        code, answer = await self._client.request(method, path, body)
        message = answer.get("message", "")
        assert code < 300 or code in (404, 409) or "webhook" in message, (method, path, answer)

    def _figures(self, warm: dict[str, Usage], usage: dict[str, Usage], took_s: float) -> str:
        subscriptions = self._supervisor.pubsub.list_subscriptions(f"projects/{PROJECT}")
        totals: Counter[str] = Counter()
        for one in subscriptions:
            totals.update(vars(one.counts))
        usages = [
            f"  {part}: {warm[part].memory / MIB:.1f} → {one.memory / MIB:.1f} MiB, "
            f"{warm[part].files} → {one.files} files"
            for part, one in usage.items()
        ]
        names = ("received", "delivered", "refused", "dead_lettered")
        return "\n".join(
            [
                f"{took_s / 60:.1f} minutes: {_render(self.counts)}",
                f"messages: {_render({name: totals[name] for name in names})}",
                f"restarts: {self.ended.total()} ({_render(self.ended)})",
                f"settled {len(self.settled_s)} times, in at most {max(self.settled_s):.0f} s",
                *usages,
            ]
        )


def find_growth(warm: Mapping[str, Usage], usage: Mapping[str, Usage]) -> list[str]:
    """Describe the parts whose memory or number of open files is not flat."""
    return [
        f"{part}: {warm[part]}, then {now}"
        for part, now in usage.items()
        if now.memory > warm[part].memory * MEMORY_RATIO + MEMORY_MORE
        or now.files > warm[part].files + FILES_MORE
    ]


async def run_soak(
    folder: Path,
    *,
    seed: int,
    minutes: float,
    outage: Callable[[Supervisor], AbstractContextManager[None]],
    **settings: Any,
) -> str:
    """Run a soak with these settings of the supervisor; return its figures."""
    soak = Soak(seed)
    setup = Setup(
        folder,
        gce=QUICK_GCE,
        agents=QUICK_AGENTS,
        scripts=0,
        slices=TPU_NODE_GROUP,
        workloads=True,
        pods=PodBehaviour(run_s=5.0),
        sweep_every_s=SWEEP_EVERY_S,
        **settings,
    )
    async with open_supervisor(setup, soak.observe) as supervisor, supervisor.client() as client:
        return await soak.run(supervisor, client, partial(outage, supervisor), minutes)


def _is_ready(group: Document) -> bool:
    conditions = group.get("status", {}).get("conditions", [])
    is_true = any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)
    return is_true and "deletionTimestamp" not in group["metadata"]


def _describe(found: Document) -> str:
    metadata, conditions = found["metadata"], found.get("status", {}).get("conditions") or []
    ready = [one.get("message", "") for one in conditions if one["type"] == "Ready"]
    is_deleting = ", which is being deleted" * ("deletionTimestamp" in metadata)
    return f"{metadata['name']}{is_deleting}: {' '.join(ready)}"


def _render(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
