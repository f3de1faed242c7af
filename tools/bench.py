"""``make bench``: figures as ratios within one run, because seconds differ between machines.

- Cold start: CPU time and memory from the start of a process to its answer to a message that took a
  call to Compute Engine and one to Kubernetes (the sweep: one to Kubernetes and one to Pub/Sub), as a
  share of those of the same function with ordinary imports. Other programs influence CPU time least.
  Steps of slices call GKE. All packages are compiled, whatever the environment says, except for the last
  row.
- Warm reaction: time from a push to its answer, in a process that has answered before.
- A waterfall from apply to Ready, by the slice's size, on simulated clouds (`tools.waterfall`).
- Calls for the lifecycle of a slice, compared with the budget and with measured calls of tpu-operator.
- Decisions about 288 and 2,304 hosts: CPU times and their ratio, which is 8 if the time is
  proportional to the number of hosts.
- The CPU time of a sweep over 1, 100 and 1,000 groups of which none is due.
- Reviews of the webhook: latency over a persistent connection, and reviews per second of one process.
  The benchmark fails if the 99th percentile of the latency exceeds 50 ms.

``python -m tools.bench cold-start`` prints one section; `tools.performance` writes the page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from secrets import token_bytes
from typing import Any

import aiohttp
import psutil
import yaml

from local import gce, kube
from local.base.clock import LoopClock
from local.base.http import Request
from local.base.ports import find_free_ports
from local.base.web import serve
from local.cloud import container_engine
from local.cloud.simulation import PROJECT, identity, topic
from local.kube import CertificateAuthority
from local.pubsub.server import serve as serve_pubsub
from local.vm.conversation import Bearer, Identity
from local.vm.kubelet import KubeletBehaviour
from local.vm.transport import InProcess
from shared.base.names import FINALIZER, RESOURCE_NAME_LABEL
from shared.base.signing_requests import token_groups
from shared.node_groups.bootstrap import new_token, token_secret
from shared.node_groups.node_group import resource_name
from shared.settings import GKE
from shared.triggers.message import Cause, message_about_requests
from shared.triggers.routes import GROUP_STEPS, SLICE_STEPS, STEPS
from tests.stories.calls import CallCounter, max_cost, run_lifecycle
from tests.stories.helpers import ONE_HOST, SPOT
from tests.support.builders import DATA
from tests.support.harness import JOBSET_MANIFESTS, Harness, manifests
from tests.support.large_slices import CASES, TOPOLOGIES
from tests.support.manifests import manifest
from tests.support.pushes import push
from tests.support.signing_requests import kubelets, pem
from tests.support.signing_requests import manifest as request_manifest
from tests.unit.webhook.workloads import as_review, stateful_set
from tools import waterfall
from webhook.tpu_env.admission import MAX_VALUES

ALL_STEPS = (*STEPS, *SLICE_STEPS)
ROUNDS = 3
WARM_PUSHES = 30
LARGEST = 2304
CONCURRENCY, MEMORY_MB = 8, 512
"""The largest slice, and what an instance of a function handles at once with which memory."""
REVIEWS = 300
REVIEW_P99_S = 0.05
COSTLY = 10
CONNECTIONS = 8
ROOT = Path(__file__).parents[1]
PLAIN_IMPORTS = Path(__file__).with_name("plain_imports_main.py")
PYTHON = Path(sys.executable)


class _IdleAgent:
    """A VM agent that does nothing."""

    def power_on(self) -> None:
        """Nothing."""

    power_off = metadata_changed = power_on


class Bench:
    """Cluster, Compute Engine and Pub/Sub on loopback, in a thread of this process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        clock = LoopClock(self.loop)
        users = {step.replace("_", "-"): identity(step.replace("_", "-")) for step in ALL_STEPS}
        users["admin"] = kube.User("admin", ("system:masters", "system:authenticated"))
        self.kube = kube.KubeApi(clock, random=Random(0), tokens=users)
        self.gce = gce.Simulator(
            clock,
            projects={PROJECT: "123456789012"},
            random=Random(0),
            agents=lambda _: _IdleAgent(),
            on_log_entry=lambda _: None,
        )
        admin = Identity("http://127.0.0.1", "", Bearer("admin"))
        self.gke = container_engine.simulate(
            clock, Random(0), InProcess(self.kube), admin, KubeletBehaviour(), lambda _: None
        )
        self.ports: dict[str, int] = {}
        self._ready = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        self._ready.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._serve())
        self.loop.run_forever()

    async def _serve(self) -> None:
        self.kube.apply_manifests([*manifests(), *slice_manifests()])
        kube_runner, self.ports["kube"] = await serve(self.kube)
        gce_runner, self.ports["gce"] = await serve(self.gce)
        gke_runner, self.ports["gke"] = await serve(self.gke)
        server = await serve_pubsub(random=Random(0))
        self.emulator = server.address
        for step in ALL_STEPS:
            server.pubsub.create_topic(topic(step))
        self._servers = (
            kube_runner,
            gce_runner,
            gke_runner,
            server,
        )  # without a reference, a server would stop
        self._ready.set()

    def admin(self, method: str, path: str, body: Any = None, **more: str) -> Any:
        """Send a request to the cluster as its administrator, with more headers."""
        raw = json.dumps(body).encode() if body is not None else b""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": "Bearer admin", "Content-Type": kind, **more}
        request = Request.of(method, path, headers=headers, body=raw)

        answer = self.do(lambda: self.kube.handle(request).json())
        if answer.get("status") == "Failure":
            raise RuntimeError(answer["message"])
        return answer

    def do(self, act: Callable[[], Any]) -> Any:
        """Act in the thread of the simulations."""

        async def act_there() -> Any:
            return act()

        return asyncio.run_coroutine_threadsafe(act_there(), self.loop).result()

    def kubeconfig(self, folder: Path, step: str) -> str:
        """A kubeconfig with a step's identity."""
        path = folder / step
        document = kube.kubeconfig(
            f"http://127.0.0.1:{self.ports['kube']}", None, step.replace("_", "-")
        )
        path.write_text(json.dumps(document))
        return str(path)

    def list_vms(self) -> list[str]:
        """The names of the VMs that run."""
        found = self.gce.state()["instances"].items()
        return [path.rpartition("/")[2] for path, status in found if status == "RUNNING"]


GROUPS = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"

NODE_POLICY = (
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/"
    "tpu-functions-node-registrations"
)


def slice_manifests() -> list[dict[str, Any]]:
    """What installations with slices for workloads have, too."""
    texts = (path.read_text() for path in JOBSET_MANIFESTS)
    return [document for text in texts for document in yaml.safe_load_all(text)]


def pool_created() -> bytes:
    """The push of the audit log's entry about the end of a node pool's creation."""
    rows = map(json.loads, (DATA / "node-pool-log-entries.jsonl").read_text().splitlines())
    entry = next(row["entry"] for row in rows if row["name"] == "pool-create-last")
    text = json.dumps(entry).replace("my-project", PROJECT)
    return push(json.loads(text.replace("us-central1-c", container_engine.REGION)))


def make_group(bench: Bench, name: str, step: str, **change: Any) -> bytes:
    """Create a group in a state for which the step calls APIs; return the push about it."""
    if step == "provision_slice":
        return pool_created()
    created = bench.admin("POST", GROUPS, manifest(name, **change))
    uid = created["metadata"]["uid"]
    cluster = bench.admin("GET", "/api/v1/namespaces/kube-system")["metadata"]["uid"]
    resource = resource_name(cluster, name, uid)
    if step in ("inject_token", "label_node", "tear_down", "approve_join"):
        owned = {"finalizers": [FINALIZER], "labels": {RESOURCE_NAME_LABEL: resource}}
        bench.admin("PATCH", f"{GROUPS}/{name}", {"metadata": owned})
    if step == "tear_down":
        bench.admin("DELETE", f"{GROUPS}/{name}")
    if step == "approve_join":
        return request_to_join(bench, name, f"{resource}-ab12")
    if step not in GROUP_STEPS:
        return push({"version": 1, "kind": "Sweep"})
    cause = "Added" if step == "create_resources" else "Resync"
    return push(
        {
            "version": 1,
            "kind": "TPUNodeGroup",
            "namespace": "default",
            "name": name,
            "uid": uid,
            "cause": cause,
            "at": datetime.now(UTC).isoformat(),
        }
    )


def request_to_join(bench: Bench, name: str, vm: str) -> bytes:
    """Create a request for the certificate of a VM's Node; return the push about it."""
    request = request_manifest(pem(kubelets(vm)), name=name)
    at = datetime.now(UTC)
    token = new_token(token_bytes, at)
    secret = token_secret(
        token,
        resource_name=vm.rpartition("-")[0],
        vm=vm,
        bootstrap_group=token_groups(vm, "1"),
    )
    bench.admin("POST", "/api/v1/namespaces/kube-system/secrets", secret)
    bench.admin(
        "POST",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        request,
        Authorization=f"Bearer {token.text}",
    )
    message = message_about_requests(Cause.JOIN_REQUESTED, at, [name])
    return push(json.loads(message.encode()))


@contextmanager
def function(
    bench: Bench, folder: Path, step: str, source: Path, *, is_compiled: bool = True
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A function's process; yields its URL before it listens."""
    port = find_free_ports(1)[0]
    environment = os.environ | {
        "PUBSUB_PROJECT": PROJECT,
        "KUBECONFIG": bench.kubeconfig(folder, step),
        "COMPUTE_ENDPOINT": f"http://127.0.0.1:{bench.ports['gce']}",
        "PUBSUB_EMULATOR_HOST": bench.emulator,
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode") if is_compiled else os.devnull,
        "PYTHONDONTWRITEBYTECODE": "" if is_compiled else "1",
        "MALLOC_ARENA_MAX": "2",
    }
    if step in SLICE_STEPS:
        url = f"http://127.0.0.1:{bench.ports['gke']}"
        environment |= {"JOBSET_PROVIDER": GKE, **container_engine.environment(url)}
    command = [
        str(PYTHON.parent / "functions-framework"),
        f"--target={step}",
        f"--source={source}",
        f"--port={port}",
        "--host=127.0.0.1",
        "--signature-type=http",
    ]
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield f"http://127.0.0.1:{port}/", process
    finally:
        process.terminate()
        process.wait()


def answer(url: str, body: bytes, timeout_s: float = 60.0) -> None:
    """Push until the function listens; raise an error unless it answers 204."""
    deadline = time.monotonic() + timeout_s
    while True:
        request = urllib.request.Request(
            url, data=body, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                if response.status != 204:
                    raise RuntimeError(f"{url} answered {response.status}")
                return
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{url} answered {error.code}: {error.read().decode()}") from error
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise


@dataclass(frozen=True)
class ColdStart:
    """The resources that a function's processes use until the answer to the first message: their total
    CPU time, and the memory of the largest process."""

    cpu_s: float
    memory_mb: float


def cold_start(
    bench: Bench, folder: Path, step: str, source: Path, name: str, *, is_compiled: bool = True
) -> ColdStart:
    """Measure the start of a function and its answer to one message."""
    body = make_group(bench, name, step)
    called = bench.gke.calls if step in SLICE_STEPS else bench.gce.calls
    calls_before = len(called.records)
    with function(bench, folder, step, source, is_compiled=is_compiled) as (url, process):
        answer(url, body)
        parent = psutil.Process(process.pid)
        family = [parent, *parent.children(recursive=True)]
        times = [one.cpu_times() for one in family]
        memory = max(one.memory_info().rss for one in family)
    if step != "sweep" and len(called.records) == calls_before:
        raise RuntimeError(f"{step} has not called Google's API: the figure would be wrong")
    return ColdStart(sum(one.user + one.system for one in times), memory / 2**20)


def bench_cold_start(bench: Bench, folder: Path) -> None:
    """Cold start of each function, compared with ordinary imports."""
    print(f"\ncold start: CPU up to the first answer, and memory (best of {ROUNDS}, interleaved)")
    print(f"{'function':18}{'CPU':>9}{'plain':>9}{'share':>7}{'memory':>9}{'plain':>9}")
    for step in ALL_STEPS:
        _compare_cold_starts(bench, folder, step)
    _compare_cold_starts(bench, folder, "create_resources", is_compiled=False)


def _compare_cold_starts(
    bench: Bench, folder: Path, step: str, *, is_compiled: bool = True
) -> None:
    sources = {ROOT / "main.py": "main", PLAIN_IMPORTS: "plain"}
    found: dict[str, list[ColdStart]] = {name: [] for name in sources.values()}
    rounds = ROUNDS + 1 if is_compiled else 1
    for number in range(rounds):
        for source, name in sources.items():
            group = f"{step.replace('_', '-')}-{number}-{name}{'' if is_compiled else '-slow'}"
            measured = cold_start(bench, folder, step, source, group, is_compiled=is_compiled)
            if number or not is_compiled:  # the first start compiles
                found[name].append(measured)
    ours, plain = (min(one.cpu_s for one in measured) for measured in found.values())
    title = step if is_compiled else "without bytecode"
    print(f"{title:18}{ours:8.2f}s{plain:8.2f}s{ours / plain:7.0%}", end="")
    memories = (min(one.memory_mb for one in measured) for measured in found.values())
    print("".join(f"{memory:6.0f} MB" for memory in memories))


def bench_memory(bench: Bench, folder: Path) -> None:
    """The highest memory of ``label_node``, which reads the VMs and Nodes of a slice, with as many
    messages at once as an instance gets."""
    body = make_large_group(bench, folder)
    with function(bench, folder, "label_node", ROOT / "main.py") as (url, process):
        answer(url, push({"version": 1, "kind": "Sweep"}))  # it listens
        alone = _highest_mb(process)
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            for _ in pool.map(lambda _: _answer_at_last(url, body), range(CONCURRENCY)):
                pass
        highest = _highest_mb(process)
    print(f"\nmemory of label_node: {CONCURRENCY} messages at once about {LARGEST:,} hosts")
    print(f"{'before':10}{alone:6.0f} MB")
    print(f"{'highest':10}{highest:6.0f} MB, {highest / MEMORY_MB:.0%} of {MEMORY_MB} MB")


def make_large_group(bench: Bench, folder: Path) -> bytes:
    """Create a group of the largest size with its VMs and Nodes; return the push about it."""
    bench.do(lambda: bench.gce.faults.set_group_limit(LARGEST))
    shape = {"nodeCount": LARGEST, "topology": TOPOLOGIES[LARGEST]}
    body = make_group(bench, "large", "inject_token", instanceConfig=dict(SPOT), **shape)
    with function(bench, folder, "create_resources", ROOT / "main.py") as (url, _):
        while len(vms := bench.do(bench.list_vms)) < LARGEST:
            answer(url, body)
            time.sleep(1)
    resource = vms[0].rpartition("-")[0]
    bench.admin("DELETE", NODE_POLICY)  # only kubelets may register such Nodes
    for vm in vms:
        bench.admin("POST", "/api/v1/nodes", large_node(vm, resource))
    return body


def large_node(vm: str, resource: str) -> dict[str, Any]:
    """A Node with the images that a kubelet lists: about 9 KB."""
    image = {"names": [f"registry.example/{'image' * 8}@sha256:{'0' * 64}"], "sizeBytes": 1 << 30}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": vm, "labels": {RESOURCE_NAME_LABEL: resource}},
        "spec": {"providerID": f"gce://{PROJECT}/us-central1-c/{vm}"},
        "status": {"images": [image] * 50, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _answer_at_last(url: str, body: bytes) -> None:
    """Push until the answer is 204, as Pub/Sub does."""
    for _ in range(100):
        with suppress(RuntimeError):
            return answer(url, body, timeout_s=300)
        time.sleep(1)
    raise RuntimeError(f"{url} has not answered 204 in 100 attempts")


def _highest_mb(process: subprocess.Popen[bytes]) -> float:
    """The highest memory so far of the largest process."""
    parent = psutil.Process(process.pid)
    family = [parent, *parent.children(recursive=True)]
    texts = (Path(f"/proc/{one.pid}/status").read_text() for one in family)
    return max(int(re.findall(r"^VmHWM:\s+(\d+) kB$", text, re.M)[0]) for text in texts) / 1024


def bench_reaction(bench: Bench, folder: Path) -> None:
    """The time in which a warm function answers."""
    print(f"\nwarm reaction: push to answer, over loopback (median of {WARM_PUSHES})")
    for step in ALL_STEPS:
        body = make_group(bench, f"warm-{step.replace('_', '-')}", step)
        with function(bench, folder, step, ROOT / "main.py") as (url, _):
            answer(url, body)
            took = []
            for _ in range(WARM_PUSHES):
                begun = time.monotonic()
                answer(url, body)
                took.append(time.monotonic() - begun)
        print(f"{step:18}{statistics.median(took) * 1000:8.1f} ms")


SIZES = ((2, "2x2x2"), (16, "4x4x4"), (64, "4x8x8"))


def bench_waterfall() -> None:
    """The durations of the parts of the time from apply to Ready."""
    print("\nwaterfall: apply to Ready, in seconds; * tpu-functions (CPU measured, calls assumed)")
    waterfall.measure(*SIZES[0])  # imports
    for line in waterfall.render({size[0]: waterfall.measure(*size) for size in SIZES}):
        print(line)


PEER = {2: 399 + 14, 16: 724 + 15, 64: 960 + 15}
"""Calls to Compute Engine of tpu-operator for one slice: until Ready, and for its deletion.

Measured in one run each: its controllers (7b61cae, rebuilt) ran as a process with the simulated Compute
Engine, 150 ms a call and the default timings, on the embedded Kubernetes API. 107, 86 and 88 of the
calls until Ready were rejected. Calls while a slice stays Ready are not counted. Without latency there
were 113, 933 and 10,355 calls until Ready: their number depends on the duration of each.
"""
PEER_KUBERNETES = {2: 348 + 99, 16: 222 + 370, 64: 216 + 809}
"""The calls of tpu-operator to the API server in the same runs."""


def bench_calls() -> None:
    """Calls for the lifecycle of a slice, without those that concern all groups."""
    print("\ncalls of a slice's lifecycle (created, Ready, deleted, gone), beside tpu-operator's")
    print(f"{'':6}{'Compute Engine':>32}{'Kubernetes':>32}")
    print(f"{'hosts':6}" + 2 * f"{'ours':>8}{'budget':>8}{'peer':>8}{'share':>8}")
    for hosts, shape in SIZES:
        harness = Harness()
        run_lifecycle(harness, manifest(**ONE_HOST))
        counter = CallCounter(harness)
        run_lifecycle(harness, manifest(nodeCount=hosts, topology=shape))
        cost, allowed = counter.cost(), max_cost(hosts)
        rows = (
            (cost.writes + cost.reads, allowed.writes + allowed.reads, PEER[hosts]),
            (cost.kubernetes, allowed.kubernetes, PEER_KUBERNETES[hosts]),
        )
        cells = (f"{ours:8}{budget:8}{peer:8}{ours / peer:8.0%}" for ours, budget, peer in rows)
        print(f"{hosts:6}" + "".join(cells))


DECISION_ROUNDS = 3


def bench_decisions() -> None:
    """CPU time of decisions about many hosts, and how it grows with their number."""
    small, large = 288, 2304
    print(f"\nCPU of a decision (best of {DECISION_ROUNDS}), by hosts")
    print(f"{'':44}{small:>9,}{large:>12,}{'ratio':>8}")
    for name, make in CASES.items():
        few, many = (
            min(_cpu_s(make(hosts)) for _ in range(DECISION_ROUNDS)) * 1000
            for hosts in (small, large)
        )
        print(f"{name:44}{few:6.1f} ms{many:9.1f} ms{many / few:8.1f}")


def _cpu_s(act: Callable[[], object]) -> float:
    begun = time.process_time()
    act()
    return time.process_time() - begun


def bench_sweep() -> None:
    """The CPU time of a sweep that finds no group due."""
    print("\nCPU of a sweep over groups of which none is due, in one process (best of 3)")
    base = 0.0
    for count in (1, 100, 1_000):
        harness = Harness()
        for number in range(count):
            harness.apply(manifest(f"g-{number}"))
        body = push({"version": 1, "kind": "Sweep"})
        serve_sweep = harness._serve("sweep")
        serve_sweep(body)
        took = min(_cpu_s(lambda: serve_sweep(body)) for _ in range(3))  # noqa: B023
        base = base or took
        print(f"{count:6} groups: {took * 1000:8.1f} ms, {took / base:6.1f} times that of one")


async def _review_s(url: str, ca: CertificateAuthority, bodies: list[bytes]) -> list[float]:
    """The seconds of each review; reviews are sent one after the other over one connection."""
    trust = ssl.create_default_context(cadata=ca.certificate_pem)
    took = []
    async with aiohttp.ClientSession() as session:
        for body in bodies:
            begun = time.perf_counter()
            async with session.post(url, data=body, ssl=trust) as answer:
                assert answer.status == 200
                await answer.read()
            took.append(time.perf_counter() - begun)
    return took


async def _reviews_a_second(url: str, ca: CertificateAuthority, body: bytes) -> float:
    begun = time.perf_counter()
    await asyncio.gather(*(_review_s(url, ca, [body] * REVIEWS) for _ in range(CONNECTIONS)))
    return REVIEWS * CONNECTIONS / (time.perf_counter() - begun)


async def _beside_costly_ones_s(url: str, ca: CertificateAuthority, body: bytes) -> list[float]:
    """The seconds of ordinary reviews while bodies are parsed that cost as much as any may."""
    trust = ssl.create_default_context(cadata=ca.certificate_pem)
    keys = ",".join(f'"{number:x}":"{number:x}"' for number in range(MAX_VALUES - 2))
    costly = f"{{{keys}}}".encode()
    took: list[float] = []
    async with aiohttp.ClientSession() as session:
        for _ in range(COSTLY):
            parsing = asyncio.create_task(session.post(url, data=costly, ssl=trust))
            while not parsing.done():
                took += await _review_s(url, ca, [body])
            (await parsing).close()
    return took


def bench_webhook(folder: Path) -> str:
    """Measure the webhook in its own process, over TLS. Returns an error if it is too slow, or an empty
    text."""
    ca = CertificateAuthority.create(datetime.now(UTC))
    pair = ca.issue_server(("127.0.0.1",), datetime.now(UTC))
    (folder / "tls.crt").write_text(pair.certificate_pem)
    (folder / "tls.key").write_text(pair.key_pem)
    (port,) = find_free_ports(1)
    command = [sys.executable, "-m", "webhook"]
    command += [f"--tls-cert-file={folder}/tls.crt", f"--tls-key-file={folder}/tls.key"]
    body = json.dumps(as_review(stateful_set(replicas=64))).encode()
    environment = os.environ | {"HOST": "127.0.0.1", "PORT": str(port)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert '"started"' in process.stdout.readline()
        threading.Thread(target=process.stdout.read, daemon=True).start()
        url = f"https://127.0.0.1:{port}/mutate"
        asyncio.run(_review_s(url, ca, [body] * 20))
        took = sorted(asyncio.run(_review_s(url, ca, [body] * REVIEWS)))
        rate = asyncio.run(_reviews_a_second(url, ca, body))
        beside = max(asyncio.run(_beside_costly_ones_s(url, ca, body)))
        process.send_signal(signal.SIGINT)
    p50, p99 = took[len(took) // 2], _p99(took)
    print("\nreviews of a StatefulSet of 64 workers, warm, over TLS")
    print(f"p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms: {p99 / REVIEW_P99_S:.2f} of 50 ms")
    print(f"{rate:.0f} a second in one process, {CONNECTIONS} at a time")
    print(
        f"{beside * 1000:.0f} ms at most beside bodies of {MAX_VALUES:,} values, with a connection"
    )
    return find_slowness(took)


def _p99(took: list[float]) -> float:
    return sorted(took)[len(took) * 99 // 100]


def find_slowness(took: list[float]) -> str:
    """Return an error if reviews took too long, or an empty text."""
    p99 = _p99(took)
    if p99 <= REVIEW_P99_S:
        return ""
    return f"too slow: p99 of a review is {p99 * 1000:.1f} ms; at most {REVIEW_P99_S * 1000:.0f} ms"


SECTIONS = (
    "cold-start",
    "reaction",
    "memory",
    "webhook",
    "waterfall",
    "calls",
    "decisions",
    "sweep",
)


def main(arguments: Sequence[str] | None = None) -> str:
    """Print the figures of the chosen sections. Returns an error if they are too bad, or an empty
    text."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"all by default: {', '.join(SECTIONS)}"
    )
    chosen = parser.parse_args(arguments).sections or SECTIONS
    if unknown := sorted({*chosen} - {*SECTIONS}):
        parser.error(f"no section is called {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    error = ""
    with tempfile.TemporaryDirectory() as name:
        if {"cold-start", "reaction", "memory"} & {*chosen}:
            bench = Bench()
            if "cold-start" in chosen:
                bench_cold_start(bench, Path(name))
            if "reaction" in chosen:
                bench_reaction(bench, Path(name))
            if "memory" in chosen:
                bench_memory(bench, Path(name))
        if "webhook" in chosen:
            error = bench_webhook(Path(name))
    if "waterfall" in chosen:
        bench_waterfall()
    if "calls" in chosen:
        bench_calls()
    if "decisions" in chosen:
        bench_decisions()
    if "sweep" in chosen:
        bench_sweep()
    return error


if __name__ == "__main__":
    sys.exit(main() or 0)
