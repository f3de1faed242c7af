"""A real join: the rendered script in bash, a metadata server, and kubeadm over TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from local.base.clock import LoopClock
from local.base.http import Request, Response
from local.base.machine import VmAgent
from local.base.web import serve
from local.tests.vm.machine import Machine
from local.tests.vm.small_cluster import SmallCluster
from local.vm.agents import KubeAgent, Timings
from local.vm.conversation import Anonymous, ConnectionRefused, Reply, Send
from local.vm.kubeadm import public_key_pin
from local.vm.kubelet import KubeletBehaviour
from local.vm.script_agent import ScriptAgent
from local.vm.transport import Https, send_https
from shared.node_groups.bootstrap import join_metadata, new_token, render_startup_script

pytestmark = pytest.mark.processes

TIMEOUT_S = 60.0
QUICK = KubeletBehaviour(ready_s=0.0, plugin_s=0.0, label_poll_s=0.1, lease_s=0.1)
NOW = (0.0, 0.0)
IMMEDIATELY = Timings(boot_s=NOW, prepare_s=NOW, join_s=NOW, ready_s=NOW, plugin_s=NOW, lease_s=0.1)


class Bench:
    """One VM and one cluster behind real TLS."""

    def __init__(self, cluster: SmallCluster, url: str) -> None:
        self.cluster, self.url = cluster, url
        self.vm = Machine()
        self.vm.metadata["startup-script"] = render_startup_script(
            version="1.31",
            project=self.vm.project,
            zone=self.vm.zone,
            node_labels={"cloud.google.com/gke-tpu-accelerator": "tpu7x"},
            node_taints=["google.com/tpu=present:NoSchedule"],
        )

    def inject(self, agent: VmAgent) -> None:
        token = new_token(lambda length: bytes(range(length)), datetime.now(UTC))
        self.cluster.tokens[token.text] = token.expires
        pin = public_key_pin(self.cluster.ca_pem)
        self.vm.metadata |= join_metadata(token, endpoint="10.128.0.2", ca_hash=pin)
        agent.metadata_changed()

    def has_chips(self) -> bool:
        node = self.cluster.nodes.get(self.vm.name, {})
        return bool(node) and node["status"]["allocatable"].get("google.com/tpu") == "4"

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                await asyncio.sleep(0.02)


@asynccontextmanager
async def bench_in(folder: Path) -> AsyncIterator[Bench]:
    cluster = SmallCluster(lambda: datetime.now(UTC))
    runner, port = await serve(cluster, tls=cluster.tls(folder))
    try:
        yield Bench(cluster, f"https://127.0.0.1:{port}")
    finally:
        await runner.cleanup()


def on_bench(folder: Path, story: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with bench_in(folder) as bench:
            await story(bench)

    asyncio.run(run())


def test_a_vm_joins_over_tls_by_running_its_script(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        agent = ScriptAgent(bench.vm, lambda: bench.url, tmp_path / "disk", QUICK)
        agent.power_on()
        await bench.until(lambda: "waiting: for a bootstrap token" in bench.vm.serial)
        bench.inject(agent)
        await bench.until(bench.has_chips)
        await bench.until(lambda: "startup-script exit status 0" in bench.vm.serial)

        agent.power_off()
        await agent.closed()
        bench.cluster.tokens.clear()
        calls = len(bench.cluster.calls)
        agent.power_on()
        await bench.until(lambda: "joined: before this boot" in bench.vm.serial)
        await bench.until(lambda: len(bench.cluster.calls) > calls)
        assert {call.split()[0] for call in bench.cluster.calls[calls:]} == {
            f"system:node:{bench.vm.name}"
        }
        agent.power_off()
        await agent.closed()

    on_bench(tmp_path, story)


def test_the_scripts_changes_of_the_machine_are_only_recorded(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        agent = ScriptAgent(bench.vm, lambda: bench.url, tmp_path / "disk", QUICK)
        bench.inject(agent)
        agent.power_on()
        await bench.until(lambda: "joined: " in bench.vm.serial)
        agent.power_off()
        await agent.closed()
        calls = (tmp_path / "disk/calls").read_text().splitlines()
        assert "swapoff --all" in calls
        assert "systemctl enable kubelet" in calls
        assert [call for call in calls if call.startswith("apt-get")] == []

    on_bench(tmp_path, story)


def test_a_failed_join_is_logged_on_the_serial_port(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        agent = ScriptAgent(bench.vm, lambda: bench.url, tmp_path / "disk", QUICK)
        bench.inject(agent)
        bench.vm.metadata["kubeadm-ca-hash"] = "sha256:" + "0" * 64
        agent.power_on()
        await bench.until(lambda: "failed: kubeadm join: " in bench.vm.serial)
        agent.power_off()
        await agent.closed()
        assert "none of the public keys" in bench.vm.serial

    on_bench(tmp_path, story)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")  # the first look at cluster-info
def test_a_vm_agent_on_the_event_loop_joins_over_tls(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        network = Https(lambda _: bench.url)
        clock = LoopClock(asyncio.get_running_loop())
        agent = KubeAgent(bench.vm, clock, network, IMMEDIATELY)
        agent.power_on()
        bench.inject(agent)
        await bench.until(bench.has_chips)
        agent.power_off()
        network.close()

    on_bench(tmp_path, story)


CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


def ask(url: str, *, verify_ca: str | None) -> Reply:
    step = Send("https://10.128.0.2:6443", Request.of("GET", CLUSTER_INFO), Anonymous(), verify_ca)
    return send_https(step, lambda _: url)


def test_connecting_without_a_listener_is_a_refused_connection() -> None:
    reply = ask("https://127.0.0.1:1", verify_ca=None)
    assert isinstance(reply, ConnectionRefused)
    assert "refused" in reply.reason


@pytest.mark.parametrize("trusted", [True, False])
def test_a_server_is_trusted_only_with_the_expected_ca(tmp_path: Path, *, trusted: bool) -> None:
    other = SmallCluster(lambda: datetime.now(UTC))

    async def story(bench: Bench) -> None:
        ca_pem = (bench.cluster if trusted else other).ca_pem
        reply = await asyncio.to_thread(ask, bench.url, verify_ca=ca_pem)
        assert isinstance(reply, Response if trusted else ConnectionRefused)

    on_bench(tmp_path, story)
