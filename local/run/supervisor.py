"""The wiring of everything on this machine: the product in subprocesses, the cloud in this process.

This process runs the simulated Compute Engine (HTTP), log sinks, Scheduler and VMs, all on one event
loop, Pub/Sub (gRPC, pushes by HTTP), and, unless the user names another, a cluster (TLS).
Its subprocesses are one functions-framework process for each step, started as in the cloud, the
relay and the webhook. They reach this process like the cloud: by addresses, a kubeconfig and topics.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import psutil
import yaml

from local import gce, gke, jobsets, pubsub
from local.base.clock import LoopClock
from local.base.cluster_client import ClusterClient
from local.base.events import AuditEntry, Observe, SubprocessLine, SweepTriggered
from local.base.http import Application
from local.base.ports import LOOPBACK, check_port, find_free_ports
from local.base.web import serve
from local.cloud import container_engine
from local.cloud.logging import CloudLogging
from local.cloud.logging import serve as serve_logging
from local.cloud.simulation import PROJECT, PROJECT_NUMBER, SWEEP_EVERY_S, topic
from local.cloud.sinks import Sinks
from local.cloud.topics import PUSHER, Topics
from local.cluster.credentials import ADMIN, Credentials, write_private
from local.cluster.embedded import Cluster, EmbeddedCluster
from local.cluster.manifests import (
    read_definitions_for_examples,
    read_leader_worker_set_crd,
    read_manifests_for_jobsets,
)
from local.cluster.named import NamedCluster
from local.gce import Inventory, read_inventory
from local.jobsets import LiveStandIn
from local.pubsub.server import serve as serve_pubsub
from local.run.processes import Processes
from local.run.subprocesses import Subprocess, Subprocesses
from local.run.vms import Vms
from local.vm import agents
from local.vm.conversation import Bearer, Identity
from local.vm.kubelet import KubeletBehaviour

STEPS = (
    "create_resources",
    "inject_token",
    "label_node",
    "tear_down",
    "approve_join",
    "sweep",
    "report_leaks",
)
"""The entry points of ``main.py``."""
SLICE_STEPS = ("provision_slice", "release_slice")
"""The steps that create slices for JobSets."""
SLICES = (TPU_NODE_GROUP, GKE) = ("tpu-node-group", "gke")
"""The kinds of slices that JobSets can get."""
IDENTITIES = (*(step.replace("_", "-") for step in (*STEPS, *SLICE_STEPS)), "relay")
ROOT = Path(__file__).resolve().parents[2]
CLASS = Path(__file__).with_name("slice-class.yaml")
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""Where `kubectl apply` keeps what it has applied."""
PAGE = "web"
LOG = "log"
"""The file with the output of all subprocesses."""

_FILTERS = ROOT / "infra" / "terraform" / "filters"
_THREADS = "8"
_MAX_CALLS_KEPT = 100_000
_RESERVATION = f"projects/{PROJECT}/zones/us-central1-c/reservations/my-tpu-reservation"
_V6E_RESERVATION = f"projects/{PROJECT}/zones/us-east5-a/reservations/my-v6e-reservation"
_TEMPLATES = f"projects/{PROJECT}/regions/us-central1/instanceTemplates"
_OWN_TEMPLATE = {
    "name": "my-tpu7x-template",
    "properties": {
        "machineType": "tpu7x-standard-4t",
        "disks": [
            {
                "boot": True,
                "initializeParams": {
                    "sourceImage": f"projects/{PROJECT}/global/images/my-tpu7x-image",
                    "diskType": "hyperdisk-balanced",
                },
            }
        ],
        "networkInterfaces": [{"network": "global/networks/default"}],
    },
}

FAST_GCE = gce.Timings(
    operation_s={
        "resourcePolicies.insert": (0.8, 1.5),
        "resourcePolicies.delete": (0.5, 1.0),
        "instanceTemplates.insert": (0.8, 1.5),
        "instanceTemplates.delete": (0.5, 1.0),
        "regionInstanceTemplates.insert": (0.8, 1.5),
        "regionInstanceTemplates.delete": (0.5, 1.0),
        "instanceGroupManagers.insert": (1.0, 2.0),
        "instanceGroupManagers.delete": (1.0, 2.0),
        "instances.insert": (3.0, 5.0),
        "instances.delete": (3.0, 5.0),
        "instances.setMetadata": (0.3, 0.8),
        "instances.start": (2.0, 4.0),
        "instances.stop": (2.0, 4.0),
    },
    list_lag_s=(0.0, 0.5),
    metadata_propagation_s=(0.2, 0.5),
    template_visibility_lag_s=(0.0, 0.1),
    in_use_lag_s=(0.0, 0.1),
    log_delay_s=(0.2, 0.4),
    bulk_check_s=(5.0, 10.0),
    flex_start_grant_s=(5.0, 10.0),
    ici_activation_s=(1.0, 2.0),
    create_retry_s=(5.0, 10.0),
    create_retry_limit_s=60.0,
    repair_delete_after_s=(2.0, 5.0),
    preemption_s=(3.0, 5.0),
    automatic_restart_after_s=(5.0, 10.0),
)
"""An accelerated Compute Engine: minutes become seconds."""

SHORT_BACKOFF_S = 10
"""With it, a message that no step can read is a dead letter after 90 seconds, not 20 minutes."""
FAST_AGENTS = agents.Timings(
    boot_s=(3.0, 5.0),
    prepare_s=(1.0, 2.0),
    join_s=(1.0, 2.0),
    ready_s=(1.0, 2.0),
    plugin_s=(1.0, 2.0),
)
FAST_PODS = jobsets.PodBehaviour(run_s=5.0)
FAST_KUBELETS = KubeletBehaviour(ready_s=2.0, plugin_s=1.5, label_poll_s=1.0)


@dataclass(frozen=True)
class Ports:
    """The ports of this process on the loopback interface; 0 is any free port."""

    kubernetes: int = 0
    compute: int = 0
    pubsub: int = 0


@dataclass(frozen=True)
class Setup:
    """The settings of a supervisor.

    ``directory`` is for its files, and readable by the owner only. ``kubeconfig`` names a cluster;
    without it, the cluster is embedded. ``calls_webhooks``: its API server runs on this machine, and
    can call the product's webhooks. At most ``scripts`` VMs at a time run their startup script.
    ``for_examples``: create the reservation and the template that the manifests in ``examples/``
    name. ``in_front`` wraps the simulated Compute Engine; ``inventory`` lists its zones, machine types,
    images and networks.
    ``workloads``: on the embedded cluster, Jobs and StatefulSets run on the slices, with the
    webhook inject_env. ``slices`` is the kind of slices of JobSets, `TPU_NODE_GROUP` or, on the
    embedded cluster, `GKE`. ``jobset`` is whose controller runs JobSets (see `NamedCluster`); on the
    embedded cluster it is simulated. ``needs`` is another kind that a named cluster
    must have. ``pods`` is how long the Pods run, and how they end. The slice of what has been suspended
    for ``suspended_release_minutes`` is released; 0: never.
    ``serves_page``: the operator's page is served, too.
    """

    directory: Path
    credentials: Credentials = field(
        default_factory=lambda: Credentials.create(IDENTITIES, datetime.now(UTC))
    )
    kubeconfig: Path | None = None
    calls_webhooks: bool = False
    ports: Ports = Ports()
    gce: gce.Timings = FAST_GCE
    agents: agents.Timings = FAST_AGENTS
    scripts: int = 1
    for_examples: bool = False
    in_front: Callable[[Application], Application] = lambda application: application
    inventory: Inventory = field(default_factory=read_inventory)
    slices: str = ""
    jobset: str = ""
    needs: str = ""
    pods: jobsets.PodBehaviour = FAST_PODS
    workloads: bool = False
    sweep_every_s: float = SWEEP_EVERY_S
    suspended_release_minutes: int = 5
    serves_page: bool = False

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that run."""
        return (*STEPS, *SLICE_STEPS) if self.slices else STEPS

    @property
    def identities(self) -> tuple[str, ...]:
        """The identities that call the cluster."""
        return (*(step.replace("_", "-") for step in self.steps), "relay")


class Supervisor:
    """Starts, connects and ends all parts. Created by `open_supervisor`."""

    def __init__(self, setup: Setup, observe: Observe, processes: Processes) -> None:
        self.setup = setup
        self.processes = processes
        self.subprocesses = Subprocesses(processes, ROOT, observe)
        self.compute_url = ""
        self.pubsub_address = ""
        self.pubsub: pubsub.PubSub
        """The Pub/Sub at this address; known after `start`."""
        self._push_certificates = ""
        self._webhook_url = ""
        self._observe = observe
        self._clock = LoopClock(asyncio.get_running_loop())
        self.cluster = self._choose_cluster()
        self._vms = Vms(
            self._clock,
            self.cluster.network,
            timings=setup.agents,
            behaviour=FAST_KUBELETS,
            random=Random(secrets.randbits(64)),
            scratch=setup.directory / "vms",
            api_server=lambda: self.cluster.url,
            identify=self.cluster.identify,
            joins_by_itself=lambda image: setup.inventory.has("joiningImages", image),
            has_packages=lambda minor: setup.inventory.has("kubernetesVersions", minor),
            exists=lambda name: any(path.endswith(f"/{name}") for path in self.gce.leftovers()),
            observe=observe,
            scripts=setup.scripts,
            spawn=processes.spawn,
        )
        self.gce = gce.Simulator(
            self._clock,
            projects={PROJECT: PROJECT_NUMBER},
            random=Random(secrets.randbits(64)),
            agents=self._vms.boot,
            on_log_entry=self._on_log_entry,
            timings=setup.gce,
        )
        self.gce.restrict(setup.inventory)
        self.pools: gke.Simulator | None = None
        """The simulated GKE, if JobSets get node pools."""
        self._container_environment: Mapping[str, str] = {}
        self.logging = CloudLogging(self._clock, PROJECT)
        self.logging_address = ""
        filters = {path.stem: path.read_text() for path in sorted(_FILTERS.glob("*.txt"))}
        self._sinks = Sinks(filters, self._publish)
        self._topics: Topics | None = None

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig of the cluster's administrator."""
        return self.cluster.kubeconfig_of(ADMIN)

    @property
    def kubernetes_url(self) -> str:
        """The URL of the cluster's API."""
        return self.cluster.url

    @property
    def tool_environment(self) -> dict[str, str]:
        """The environment in which the operator's tool uses these services."""
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "PUBSUB_PROJECT": PROJECT,
            "PUBSUB_EMULATOR_HOST": self.pubsub_address,
            "LOGGING_EMULATOR_HOST": self.logging_address,
            "COMPUTE_ENDPOINT": self.compute_url,
            **({"JOBSET_PROVIDER": TPU_NODE_GROUP} if self.setup.slices == TPU_NODE_GROUP else {}),
        }

    @property
    def log(self) -> Path:
        """The file with the output of all subprocesses."""
        return self.setup.directory / LOG

    def client(self) -> ClusterClient:
        """A client of the cluster as its administrator; a context manager."""
        return self.cluster.client()

    def memory_bytes(self) -> int:
        """The memory of this process and its descendants (PSS; USS where the system has no PSS)."""
        this = psutil.Process()
        return sum(_memory_bytes(one) for one in (this, *this.children(recursive=True)))

    async def start(self, stack: AsyncExitStack) -> None:
        """Start all parts; ``stack`` ends them in reverse order."""
        await self._check()
        await self.cluster.start(stack)
        await self._start_cloud_logging(stack)
        await self._start_compute_engine(stack)
        if self.setup.slices == GKE:
            await self._start_container_engine(stack)
        steps = self.setup.steps
        endpoints = dict(zip(steps, find_free_ports(len(steps)), strict=True))
        await self._start_pubsub(stack, endpoints)
        stack.push_async_callback(self.subprocesses.stop)
        stack.push_async_callback(self._vms.close)
        relay_port, page_port = find_free_ports(2)
        await self.subprocesses.start(
            [
                *(self._function(step, port) for step, port in endpoints.items()),
                self._relay(relay_port),
                *self._webhook(),
                *self._page(page_port),
            ]
        )
        if self._runs_webhook:
            ca_pem = self.setup.credentials.ca.certificate_pem
            await self.cluster.call_webhooks(self._webhook_url, ca_pem)
        scheduler = asyncio.create_task(self._run_scheduler())
        stack.callback(scheduler.cancel)
        if self.setup.slices or self.runs_workloads:
            await self._stand_in_for_controllers(stack)

    async def _check(self) -> None:
        """Check ports and cluster before anything is changed."""
        ports = self.setup.ports
        if ports.compute:
            check_port(ports.compute, "--compute-port")
        if ports.pubsub:
            check_port(ports.pubsub, "--pubsub-port")
        await self.cluster.check()

    @property
    def runs_workloads(self) -> bool:
        """Whether Jobs and StatefulSets run on the slices."""
        return self.setup.workloads and isinstance(self.cluster, EmbeddedCluster)

    @property
    def _runs_webhook(self) -> bool:
        has_workloads = self.setup.workloads or self.setup.jobset == jobsets.REAL_CONTROLLERS
        return has_workloads and self.cluster.calls_webhooks

    async def _stand_in_for_controllers(self, stack: AsyncExitStack) -> None:
        client = await stack.enter_async_context(self.client())
        controllers = (
            self.cluster.controllers
            if self.setup.slices
            else self.cluster.controllers & jobsets.WORKLOADS
        )
        live = LiveStandIn(
            *(client, self.cluster.selector), controllers=controllers, behaviour=self.setup.pods
        )
        await stack.enter_async_context(live.at_work())

    def _choose_cluster(self) -> Cluster:
        setup = self.setup
        if setup.kubeconfig is None:
            return EmbeddedCluster(
                self._clock,
                setup.credentials,
                setup.identities,
                setup.directory,
                setup.ports.kubernetes,
                [
                    *(read_manifests_for_jobsets(setup.slices) if setup.slices else ()),
                    *([read_leader_worker_set_crd()] if setup.slices else ()),
                    *(read_definitions_for_examples() if setup.for_examples else ()),
                    *([read_slice_class()] if setup.for_examples and setup.slices else ()),
                ],
            )
        return NamedCluster(
            setup.kubeconfig,
            setup.identities,
            setup.directory,
            self._observe,
            setup.slices,
            setup.jobset,
            setup.needs,
            calls_webhooks=setup.calls_webhooks,
        )

    async def _start_cloud_logging(self, stack: AsyncExitStack) -> None:
        server, self.logging_address = await serve_logging(self.logging, LOOPBACK)
        stack.push_async_callback(server.stop, None)

    def write_line(self, child: str, line: str) -> None:
        """Write a subprocess's line to Cloud Logging if it is a JSON object."""
        if child not in self.setup.steps:
            return
        try:
            document = json.loads(line)
        except ValueError:
            return
        if isinstance(document, dict):
            # A function has the name of its topic.
            self.logging.write_line(topic(child).rsplit("/", 1)[-1], document)

    async def _start_compute_engine(self, stack: AsyncExitStack) -> None:
        if self.setup.for_examples:
            self.gce.faults.set_reservation(_RESERVATION, "tpu7x-standard-4t", 4096)
            self.gce.faults.set_reservation(_V6E_RESERVATION, "ct6e-standard-4t", 64)
            self.gce.faults.act_as_user("POST", _TEMPLATES, _OWN_TEMPLATE)
        runner, port = await serve(
            self.setup.in_front(self.gce), host=LOOPBACK, port=self.setup.ports.compute
        )
        stack.push_async_callback(runner.cleanup)
        self.compute_url = f"http://{LOOPBACK}:{port}"

    async def _start_container_engine(self, stack: AsyncExitStack) -> None:
        credentials = self.setup.credentials
        administrator = Identity(
            self.cluster.url, credentials.ca.certificate_pem, Bearer(credentials.tokens[ADMIN])
        )
        self.pools = container_engine.simulate(
            self._clock,
            Random(secrets.randbits(64)),
            self.cluster.network,
            administrator,
            FAST_KUBELETS,
            self._on_log_entry,
        )
        runner, port = await serve(self.pools, host=LOOPBACK)
        stack.push_async_callback(runner.cleanup)
        self._container_environment = container_engine.environment(f"http://{LOOPBACK}:{port}")

    async def _start_pubsub(self, stack: AsyncExitStack, ports: dict[str, int]) -> None:
        port = self.setup.ports.pubsub
        server = await serve_pubsub(host=LOOPBACK, port=port, timings=pubsub.Timings())
        stack.push_async_callback(server.stop)
        self.pubsub, self.pubsub_address = server.pubsub, server.address
        self._topics = Topics(server.address, SHORT_BACKOFF_S)
        stack.push_async_callback(self._topics.close)
        runner, port = await serve(server.tokens, host=LOOPBACK)
        stack.push_async_callback(runner.cleanup)
        self._push_certificates = f"http://{LOOPBACK}:{port}/certs"
        await self._topics.create({step: _endpoint(port) for step, port in ports.items()})

    def _function(self, step: str, port: int) -> Subprocess:
        command = ["functions-framework", "--target", step, "--source", "main.py"]
        command += ["--signature-type", "http", "--host", LOOPBACK, "--port", str(port)]
        environment = self._environment(step.replace("_", "-")) | {
            "COMPUTE_ENDPOINT": self.compute_url,
            "PROJECTS": PROJECT,
            "THREADS": _THREADS,
            "JOBSET_PROVIDER": self.setup.slices,
            "JOBSET_SUSPENDED_RELEASE_MINUTES": str(self.setup.suspended_release_minutes),
            "PUSH_SERVICE_ACCOUNT": PUSHER,
            "PUSH_AUDIENCE": _endpoint(port),
            "PUSH_CERTIFICATES_URL": self._push_certificates,
            **self._container_environment,
        }
        # The framework answers 404 here without calling the function.
        return Subprocess(step, command, environment, f"{_endpoint(port)}robots.txt")

    def _webhook(self) -> Iterator[Subprocess]:
        """The webhook, where workloads run and the API server can call it."""
        if not self._runs_webhook:
            return
        ca, folder = self.setup.credentials.ca, self.setup.directory
        pair = ca.issue_server((LOOPBACK,), datetime.now(UTC))
        certificate, key = folder / "webhook.crt", folder / "webhook.key"
        write_private(certificate, pair.certificate_pem)
        write_private(key, pair.key_pem)
        (port,) = find_free_ports(1)
        self._webhook_url = url = f"https://{LOOPBACK}:{port}"
        command = [sys.executable, "-m", "webhook"]
        command += [f"--tls-cert-file={certificate}", f"--tls-key-file={key}"]
        environment = {"PATH": os.defpath, "PYTHONUNBUFFERED": "1"}
        environment |= {"HOST": LOOPBACK, "PORT": str(port), "DRAIN_SECONDS": "0"}
        yield Subprocess("inject_env", command, environment, f"{url}/readyz")

    def _relay(self, port: int) -> Subprocess:
        environment = self._environment("relay") | {
            "PORT": str(port),
            "JOBSETS": "true" if self.setup.slices else "false",
            "SLICE_WORKLOADS": "true" if self.setup.slices else "false",
        }
        command = [sys.executable, "-m", "relay"]
        return Subprocess("relay", command, environment, f"http://{LOOPBACK}:{port}/readyz")

    def _page(self, port: int) -> Iterator[Subprocess]:
        """The operator's page. Its address has a secret, which the page prints."""
        if not self.setup.serves_page:
            return
        command = [sys.executable, "-m", "replay", "web", "--port", str(port)]
        environment = self._environment("relay") | self.tool_environment
        yield Subprocess(PAGE, command, environment, _endpoint(port))

    @property
    def page_url(self) -> str:
        """The address of the operator's page, as the page has printed it."""
        return next(line for line in self.subprocesses[PAGE].tail if line.startswith("http"))

    def _environment(self, name: str) -> dict[str, str]:
        """A fresh environment: no proxy and no credentials of the user."""
        beside = Path(sys.executable).parent
        return {
            "PATH": f"{beside}{os.pathsep}{os.defpath}",
            "PYTHONUNBUFFERED": "1",
            "PUBSUB_PROJECT": PROJECT,
            "PUBSUB_EMULATOR_HOST": self.pubsub_address,
            "KUBECONFIG": str(self.cluster.kubeconfig_of(name)),
        }

    def _on_log_entry(self, entry: dict[str, Any]) -> None:
        self.logging.write(entry)
        is_lost = self.gce.faults.sinks_are_broken
        steps = () if is_lost else tuple(self._sinks.find_steps(entry))
        self._observe(AuditEntry(entry, steps))
        if not is_lost:
            self._sinks.on_log_entry(entry)

    def _publish(self, step: str, data: bytes, attributes: Any) -> None:
        # Entries that are written before the topics exist are lost, as in the cloud.
        if self._topics is not None:
            self._topics.publish(step, data, attributes)

    async def _run_scheduler(self) -> None:
        """Publish to the sweep at each full minute, as the Scheduler does."""
        while True:
            every_s = self.setup.sweep_every_s
            await asyncio.sleep(every_s - self._clock.now().timestamp() % every_s)
            self._observe(SweepTriggered())
            self._publish("sweep", b'{"version": 1, "kind": "Sweep"}', {})
            self._drop_old_records()

    def _drop_old_records(self) -> None:
        """Drop records that would grow without bound."""
        if len(self.gce.calls.records) > _MAX_CALLS_KEPT:
            self.gce.calls.clear()
        if self._clock.now().minute == 0:
            self.gce.faults.forget_operations()


def read_slice_class() -> dict[str, Any]:
    """The TPUSliceClass with three candidates that `make local` has, as `kubectl apply` would create it:
    without the annotation, it warns when the example of the same name is applied."""
    found: dict[str, Any] = yaml.safe_load(CLASS.read_text())
    found["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(found)}
    return found


@asynccontextmanager
async def open_supervisor(setup: Setup, observe: Observe) -> AsyncIterator[Supervisor]:
    """A supervisor that runs until the block is left.

    Raises `local.base.ports.PortTaken`, `local.cluster.embedded.ClusterUnusable`,
    `local.run.processes.ProcessError` when a subprocess does not start, and
    `local.run.processes.Interrupted` when a signal ended it.
    """

    def on_line(text: str) -> None:
        child, _, line = text.partition(" | ")
        supervisor.write_line(child.strip(), line)
        observe(SubprocessLine(child.strip(), line))

    async with AsyncExitStack() as stack:
        processes = Processes(on_line=on_line, log=setup.directory / LOG)
        await stack.enter_async_context(processes)
        supervisor = Supervisor(setup, observe, processes)
        await supervisor.start(stack)
        yield supervisor


def _endpoint(port: int) -> str:
    return f"http://{LOOPBACK}:{port}/"


def _memory_bytes(process: psutil.Process) -> int:
    try:
        info = process.memory_full_info()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return 0
    return int(getattr(info, "pss", info.uss))
