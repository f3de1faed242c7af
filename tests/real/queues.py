"""JobSets in queues of the real Kueue, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

import pytest
import yaml

from local.cluster.manifests import GROUPS, label_workload
from local.control_plane import workload_controllers
from local.show.workload_demo import OPTIONS, TEMPLATE
from tests.real.life import EXAMPLE, PODS, WITHIN_S, Document, Life

MARKS = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.xdist_group("kueue"),
]
"""Of the modules with Kueue."""
ONE_SLICE = 8
"""The chips of a slice of two hosts."""
LABEL = "kueue.x-k8s.io"
JOBSETS, WORKLOADS = workload_controllers.JOBSET.path, workload_controllers.KUEUE.path


async def queue(
    life: Life,
    name: str,
    queue: str = "tpus",
    *,
    selects: Mapping[str, str] = MappingProxyType({}),
    priority: str = "",
) -> None:
    """Create a JobSet of one Job of two hosts in a queue. Its Pods may select more labels."""
    manifest = label_workload(yaml.safe_load(EXAMPLE.read_text()))
    manifest["metadata"] |= {"name": name}
    own = {f"{LABEL}/queue-name": queue}
    own |= {f"{LABEL}/priority-class": priority} if priority else {}
    manifest["metadata"].setdefault("labels", {}).update(own)
    (replicated,) = manifest["spec"]["replicatedJobs"]
    replicated["replicas"] = 1
    replicated["template"]["spec"]["template"]["spec"]["nodeSelector"] |= selects
    await life.ask("POST", JOBSETS, manifest)


async def set_template(life: Life) -> None:
    """Apply the template of slices."""
    data = yaml.safe_load(TEMPLATE.read_text())["data"]
    await life.ask("PATCH", OPTIONS, {"data": data})


async def run(life: Life, name: str, within_s: float = WITHIN_S) -> dict[str, str]:
    """Wait until the two Pods of a JobSet run, and no others; return their Nodes."""

    def is_running(pods: list[Document]) -> bool:
        phases = [one["status"]["phase"] for one in pods]
        return phases == ["Running"] * 2 and all(
            one["metadata"]["name"].startswith(name) for one in pods
        )

    await life.until(is_running, f"only {name} runs", within_s)
    pods = await life.client.list(PODS)
    return {one["spec"]["hostname"]: one["spec"]["nodeName"] for one in pods}


async def is_suspended(life: Life, name: str) -> bool:
    """Return whether a JobSet is suspended."""
    found = await life.ask("GET", f"{JOBSETS}/{name}")
    return bool(found["spec"]["suspend"])


async def until_without_quota(life: Life, name: str) -> None:
    """Wait until Kueue has found no quota for a JobSet."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            for one in await life.client.list(WORKLOADS):
                if one["metadata"]["name"].startswith(f"jobset-{name}-"):
                    states = one.get("status", {}).get("conditions", ())
                    found = [s["status"] for s in states if s["type"] == "QuotaReserved"]
                    if found == ["False"]:
                        return
            await asyncio.sleep(0.1)


async def group_names(life: Life) -> set[str]:
    """The names of the slices that exist."""
    return {one["metadata"]["name"] for one in await life.client.list(GROUPS)}


async def until_slices_are(life: Life, count: int, within_s: float = WITHIN_S) -> list[Document]:
    """Wait until there is this number of slices; return them."""
    found: list[Document] = []
    async with asyncio.timeout(within_s):
        while len(found := await life.client.list(GROUPS)) != count:
            await asyncio.sleep(0.1)
    return found


async def leave_nothing(life: Life, *names: str) -> None:
    """Delete JobSets and slices, and wait until nothing is left."""
    for name in names:
        await life.ask("DELETE", f"{JOBSETS}/{name}", {"propagationPolicy": "Foreground"})
    await life.until(lambda pods: not pods, "the Pods are gone")
    for group in await life.client.list(GROUPS):
        await life.client.request("DELETE", f"{GROUPS}/{group['metadata']['name']}")
    await life.until_slices_are_gone()
