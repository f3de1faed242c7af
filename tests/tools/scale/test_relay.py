"""The relay in a real cluster with a thousand Nodes, and Pods of JobSets, that belong to no group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import get_jobset_crd
from tests.real.relay.conftest import (
    GROUPS,
    group_with_resources,
    resource_name,
)
from tests.real.relay.manifests import JOBSETS, MANIFESTS
from tests.real.relay.messages import Subscriptions, open_subscriptions
from tests.real.relay.process import RelayProcess, request_token, run_relay, write_kubeconfig
from tests.real.relay.waiting import until
from tests.support.chart import apply
from tools.scale import figures
from tools.scale.foreign_nodes import STATUS_EVERY_S, open_foreign_nodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.timeout(3600),
    pytest.mark.xdist_group("relay at scale"),
]

LISTED = ("TPUNodeGroup", "Node", "CertificateSigningRequest", "Pod", "JobSet")
NODE_COUNT, POD_COUNT = 1_000, 5_000
MINUTES = 5
MAX_MEMORY_MB = 150
MAX_CPU_PERCENT = 10
"""Of one core, while kubelets send their status five times as often as usual."""
TIMEOUT_S = 300.0
GROUP = "train"
OUR_NODE = f"{resource_name(GROUP)}-ab12"


def test_the_relay_needs_little_memory_and_publishes_nothing_about_a_thousand_foreign_nodes(
    own_control_plane: OwnControlPlane, tmp_path: Path, print_figure: Callable[[str], None]
) -> None:
    apply(own_control_plane, {})
    files = [argument for path in (*MANIFESTS, get_jobset_crd()) for argument in ("-f", str(path))]
    own_control_plane.run_kubectl("apply", "--server-side", *files)
    until(lambda: _is_served(own_control_plane, GROUPS), "groups are served")
    until(lambda: _is_served(own_control_plane, JOBSETS), "JobSets are served")
    with open_subscriptions() as subscriptions:
        found = asyncio.run(_measure(own_control_plane, subscriptions, tmp_path))
    figures.report("relay", found, print_figure)
    assert found["messages published"] == 0
    assert float(found["highest memory, MB"]) < MAX_MEMORY_MB
    assert float(found["CPU, % of a core"]) < MAX_CPU_PERCENT


def _is_served(plane: OwnControlPlane, path: str) -> bool:
    return plane.request("GET", path)[0] == 200


async def _measure(
    plane: OwnControlPlane, subscriptions: Subscriptions, folder: Path
) -> Mapping[str, figures.Value]:
    port = urlsplit(plane.server).port
    assert port is not None
    kubeconfig = write_kubeconfig(plane, folder, port, request_token(plane))
    async with open_foreign_nodes(plane, NODE_COUNT, POD_COUNT) as foreign:
        await foreign.register()
        kubelets = asyncio.create_task(foreign.send_heartbeats())
        await foreign.fill()
        await foreign.until_ready()
        began = time.monotonic()
        with run_relay(kubeconfig, subscriptions.address, JOBSETS="true") as relay:
            await asyncio.to_thread(relay.wait_until_listed, kinds=LISTED)
            listed_s = time.monotonic() - began
            before = await asyncio.to_thread(_read, relay)
            heartbeats = foreign.heartbeats
            await asyncio.sleep(60 * MINUTES)
            after = await asyncio.to_thread(_read, relay)
            heartbeats = foreign.heartbeats - heartbeats
            ready = await foreign.count_ready()
            reaction_s = await asyncio.to_thread(_time_reaction, plane, relay, subscriptions)
            kubelets.cancel()
            await asyncio.gather(kubelets, return_exceptions=True)
            await asyncio.to_thread(_list_again, plane, relay)
            highest_mb = _highest_mb(relay.process.pid)
    assert after["events"] - before["events"] >= heartbeats > NODE_COUNT
    cpu_s = after["cpu_s"] - before["cpu_s"]
    return {
        "foreign Nodes": NODE_COUNT,
        "of these, Ready at the end": ready,
        "pending Pods of JobSets that ask for no chips": POD_COUNT,
        "start to all lists read, s": round(listed_s, 1),
        "minutes watched": MINUTES,
        "status of a Node sent every, s": int(STATUS_EVERY_S),
        "watch events a minute": round((after["events"] - before["events"]) / MINUTES),
        "messages published": int(after["published"] - before["published"]),
        "CPU, % of a core": round(100 * cpu_s / (60 * MINUTES), 1),
        "CPU a thousand events, s": round(1000 * cpu_s / (after["events"] - before["events"]), 2),
        "memory after that, MB (PSS)": round(after["pss_mb"], 1),
        "highest memory, MB": round(highest_mb, 1),
        "change of a Node of a group to message, s": round(reaction_s, 2),
    }


def _read(relay: RelayProcess) -> dict[str, float]:
    process = psutil.Process(relay.process.pid)
    times = process.cpu_times()
    return {
        "events": relay.metric("watch_events_total"),
        "published": relay.metric("published_messages_total"),
        "cpu_s": times.user + times.system,
        "pss_mb": process.memory_full_info().pss / 1e6,
    }


def _time_reaction(
    plane: OwnControlPlane, relay: RelayProcess, subscriptions: Subscriptions
) -> float:
    """The time from a kubelet's write to the receipt of the message."""
    assert plane.request("POST", GROUPS, group_with_resources(GROUP))[0] == 201
    until(lambda: relay.metric("groups") == 1, "the relay has read the group")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OUR_NODE}}
    began = time.monotonic()
    assert plane.register_node(node)[0] == 201
    subscriptions.wait_for_message("label_node", GROUP, "NodesChanged")
    return time.monotonic() - began


def _list_again(plane: OwnControlPlane, relay: RelayProcess) -> None:
    """Restart the API server, which forgets old resource versions, so that the relay lists everything
    again while its cache is full."""
    plane.restart_api_server()
    relay.wait_until_listed(times=2, kinds=LISTED)


def _highest_mb(pid: int) -> float:
    """The peak memory of a process (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6
