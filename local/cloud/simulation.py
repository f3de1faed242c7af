"""The whole simulation in one process: cluster, Compute Engine, Pub/Sub, log sinks and Scheduler.

The product is an argument: the steps as functions from a push request's body to an HTTP status, the
relay as its outbox. On a `VirtualClock`, creating and deleting a slice takes a second. No ports or
threads are used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from types import MappingProxyType
from typing import Any, Protocol

from local import gce, kube, pubsub
from local.base.clock import Clock, OffsetClock, Timer
from local.base.http import Application, Request
from local.base.machine import Machine, VmAgent
from local.cloud.sinks import Sinks
from local.pubsub.model import DeadLetterPolicy, PushConfig, RetryPolicy, SubscriptionConfig
from local.vm import agents
from local.vm.transport import InProcess, Network

PROJECT = "my-gcp-project"
PROJECT_NUMBER = "123456789012"
SYSTEM_NAMESPACE = "tpu-functions"
DEAD_LETTERS = "tpu-functions-dead-letters"
ACK_DEADLINE_S = 120
MAX_DELIVERY_ATTEMPTS = 10
MIN_BACKOFF_S, MAX_BACKOFF_S = 2.0, 600.0
SWEEP_EVERY_S = 60.0
RETRY_S = 10.0
RELAY_BACKOFF_S, RELAY_MAX_BACKOFF_S = 0.5, 30.0
LAZY_LEASE_S = 600.0
"""Kubelets renew their Leases rarely, unless a test is about lost Nodes."""

Serve = Callable[[bytes], int]
"""A step's HTTP function: the push request's body in, the status out."""
Begin = Callable[[Callable[[], None]], None]
"""Runs a push, perhaps only its beginning: what handles it may wait, and it ends later."""


class Publication(Protocol):
    """A message of the relay for a topic."""

    @property
    def step(self) -> str:
        """The step of the topic."""

    @property
    def message(self) -> Any:
        """The message, with ``encode()`` and ``attributes(cluster)``."""


class Outbox(Protocol):
    """The relay without its I/O."""

    def changed(self, kind: Any, event: Any, object: Mapping[str, Any], now: datetime) -> None:  # noqa: A002
        """Handle a watch event."""

    def relisted(self, kind: Any, objects: Iterable[Mapping[str, Any]], now: datetime) -> None:
        """Handle a new list."""

    def next_due(self) -> datetime | None:
        """The time of the next publication."""

    def take_due(self, now: datetime) -> Sequence[Publication]:
        """Remove and return the publications that are due."""

    def returned(self, publications: Sequence[Any], now: datetime) -> None:
        """Handle a failed publication."""


class Cluster(Application, Protocol):
    """A Kubernetes API, embedded or real.

    It takes the bearer tokens ``admin``, ``relay`` and the steps' names, with dashes.
    """

    @property
    def calls(self) -> kube.CallLog:
        """The log of the received calls."""

    def apply_manifests(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Create or replace objects as the cluster's administrator."""


@dataclass(frozen=True)
class Clocks:
    """The offsets of machines' clocks from the true time.

    VMs have Compute Engine's clock; Pub/Sub, Scheduler and relay have the true time. A cluster other
    than the embedded one has its own clock.
    """

    api_server_s: float = 0.0
    compute_engine_s: float = 0.0
    functions_s: float = 0.0


@dataclass(frozen=True)
class Options:
    """The options of a simulation."""

    gce: gce.Timings = field(default_factory=gce.Timings)
    agents: agents.Timings = field(default_factory=lambda: agents.Timings(lease_s=LAZY_LEASE_S))
    kube: kube.ClusterOptions = field(
        default_factory=lambda: kube.ClusterOptions(node_grace_s=4 * LAZY_LEASE_S)
    )
    pubsub: pubsub.Timings = field(default_factory=pubsub.Timings)
    clocks: Clocks = field(default_factory=Clocks)
    sweeps: bool = True
    """Whether the Scheduler publishes every minute."""
    relays: bool = True
    """Whether the relay's messages are delivered."""
    sinks: bool = True
    """Whether the log sinks' messages are delivered."""
    workloads: bool = False
    """Whether the relay watches the Pods of all workloads, not only of JobSets."""


def identity(name: str) -> kube.User:
    """The ServiceAccount of a step or of the relay."""
    account = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{name}"
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{SYSTEM_NAMESPACE}")
    return kube.User(account, (*groups, "system:authenticated"))


def topic(step: str) -> str:
    """The full name of a step's topic."""
    return f"projects/{PROJECT}/topics/tpu-functions-{step.replace('_', '-')}"


class Simulation:
    """The simulation around the product; `start` starts it.

    ``cluster`` replaces the embedded cluster: the cluster and the network between it and the VMs.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        steps: Mapping[str, Serve],
        outbox: Outbox,
        manifests: Iterable[Mapping[str, Any]],
        filters: Mapping[str, str],
        cluster: tuple[Cluster, Network] | None = None,
        options: Options | None = None,
        seed: int = 0,
        observe: Callable[[dict[str, Any]], None] = lambda _: None,
        callers: Mapping[str, gce.Principal] = MappingProxyType({}),
        projects: Mapping[str, str] = MappingProxyType({PROJECT: PROJECT_NUMBER}),
        begin: Begin = lambda push: push(),
    ) -> None:
        """``observe`` gets every entry of the audit log, whether a sink matches it or not.

        ``callers`` are Compute Engine's principals by bearer token; a request without token may do
        everything. ``projects``: ids and numbers of those on Compute Engine.
        """
        self.clock = clock
        self.options = options or Options()
        self._steps = steps
        self._begin = begin
        self._outbox = outbox
        self._timer: Timer | None = None
        self.kube, self._network = cluster or self._embedded_cluster(seed)
        self.kube.apply_manifests([dict(manifest) for manifest in manifests])
        self.pubsub = pubsub.PubSub(
            clock, random=Random(seed + 1), push=self._push, timings=self.options.pubsub
        )
        sinks = Sinks(filters, self._sink)

        def on_log_entry(entry: dict[str, Any]) -> None:
            observe(entry)
            if not self.gce.faults.sinks_are_broken:
                sinks.on_log_entry(entry)

        self.on_log_entry = on_log_entry
        """The receiver of other services' audit logs, too."""
        self._gce_clock = OffsetClock(clock, self.options.clocks.compute_engine_s)
        self.gce = gce.Simulator(
            self._gce_clock,
            projects=projects,
            random=Random(seed + 2),
            agents=self._agent,
            on_log_entry=on_log_entry,
            timings=self.options.gce,
            principals=callers,
        )
        self._agents_random = Random(seed + 3)

    def _embedded_cluster(self, seed: int) -> tuple[Cluster, Network]:
        names = [step.replace("_", "-") for step in self._steps]
        tokens = {name: identity(name) for name in (*names, "relay")}
        tokens["admin"] = kube.User("admin", ("system:masters", "system:authenticated"))
        random = Random(seed)
        clock = OffsetClock(self.clock, self.options.clocks.api_server_s)
        api = kube.KubeApi(clock, random=random, tokens=tokens, options=self.options.kube)
        return api, InProcess(api)

    def start(self) -> None:
        """Create topics and subscriptions, connect the relay, start the Scheduler."""
        self._create_topics()
        watched = _WATCHED | (_WATCHED_FOR_JOBSETS if "provision_slice" in self._steps else {})
        if self.options.workloads:
            watched["Pod"] = _PODS_OF_WORKLOADS
        for kind, path in watched.items():
            self._watch(kind, path)
        self._relay_what_is_due()
        if self.options.sweeps:
            self.clock.call_later(SWEEP_EVERY_S, self._run_scheduler)

    def publish(self, step: str, data: bytes, attributes: Mapping[str, str]) -> None:
        """Publish to a step's topic."""
        self.pubsub.publish(topic(step), data, attributes)

    def admin(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Call the cluster as its administrator; returns the document of any response."""
        raw = json.dumps(body).encode() if body is not None else b""
        kind = {"Content-Type": "application/json", "Authorization": "Bearer admin"}
        return self.kube.handle(Request.of(method, path, headers=kind | headers, body=raw)).json()

    def _create_topics(self) -> None:
        dead = f"projects/{PROJECT}/topics/{DEAD_LETTERS}"
        self.pubsub.create_topic(dead)
        for step in self._steps:
            self.pubsub.create_topic(topic(step))
            self.pubsub.create_subscription(
                SubscriptionConfig(
                    name=topic(step).replace("/topics/", "/subscriptions/"),
                    topic=topic(step),
                    push=PushConfig(step),
                    ack_deadline_s=ACK_DEADLINE_S,
                    retry=RetryPolicy(MIN_BACKOFF_S, MAX_BACKOFF_S),
                    dead_letter=DeadLetterPolicy(dead, MAX_DELIVERY_ATTEMPTS),
                )
            )

    def _push(
        self,
        endpoint: str,
        envelope: dict[str, Any],
        _timeout_s: float,
        done: Callable[[int | None], None],
    ) -> None:
        body = json.dumps(envelope).encode()
        self._begin(lambda: done(self._steps[endpoint](body)))

    def _sink(self, step: str, data: bytes, attributes: Mapping[str, str]) -> None:
        """Publish an entry; retry while Pub/Sub is down, as the service does."""
        if not self.options.sinks:
            return
        if self.pubsub.has_outage:
            self.clock.call_later(RETRY_S, lambda: self._sink(step, data, attributes))
        else:
            self.publish(step, data, attributes)

    def _run_scheduler(self) -> None:
        if not self.pubsub.has_outage:
            self.publish("sweep", b'{"version": 1, "kind": "Sweep"}', {})
        self.clock.call_later(SWEEP_EVERY_S, self._run_scheduler)

    def _agent(self, machine: Machine) -> VmAgent:
        seed = self._agents_random.random()
        return agents.KubeAgent(
            machine, self._gce_clock, self._network, self.options.agents, Random(seed)
        )

    def _watch(self, kind: str, path: str, failures: int = 0) -> None:
        """List and watch; ``path`` has a query. Retries refused lists, as the real relay does."""
        listed = self._ask_as_relay(path)
        if listed.status != 200:
            delay_s = min(RELAY_BACKOFF_S * 2 ** min(failures, 10), RELAY_MAX_BACKOFF_S)
            self.clock.call_later(delay_s, lambda: self._watch(kind, path, failures + 1))
            return
        items = [{"kind": kind, **item} for item in listed.json()["items"]]
        self._outbox.relisted(kind, items, self.clock.now())
        version = listed.json()["metadata"]["resourceVersion"]
        stream = self._ask_as_relay(f"{path}&watch=1&resourceVersion={version}").stream
        assert stream is not None
        stream.subscribe(
            lambda chunk: self._on_change(kind, chunk), lambda: self._watch(kind, path)
        )

    def _ask_as_relay(self, path: str) -> Any:
        return self.kube.handle(Request.of("GET", path, headers={"Authorization": "Bearer relay"}))

    def _on_change(self, kind: str, chunk: bytes) -> None:
        for line in chunk.splitlines():
            event = json.loads(line)
            if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                self._outbox.changed(kind, event["type"], event["object"], self.clock.now())
        self._relay_what_is_due()

    def _relay_what_is_due(self) -> None:
        due = self._outbox.next_due()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            delay = (due - self.clock.now()).total_seconds()
            self._timer = self.clock.call_later(delay, self._relay_now)

    def _relay_now(self) -> None:
        self._timer = None
        publications = self._outbox.take_due(self.clock.now())
        if self.pubsub.has_outage:
            self._outbox.returned(publications, self.clock.now())
            publications = []
        for publication in publications:
            if self.options.relays:
                message = publication.message
                self.publish(publication.step, message.encode(), message.attributes("local"))
        self._relay_what_is_due()


_WATCHED = {
    "TPUNodeGroup": "/apis/tpu.google.com/v1alpha1/tpunodegroups?",
    "Node": "/api/v1/nodes?",
    "CertificateSigningRequest": "/apis/certificates.k8s.io/v1/certificatesigningrequests?"
    "fieldSelector=spec.signerName%3Dkubernetes.io/kube-apiserver-client-kubelet",
}
_WATCHED_FOR_JOBSETS = {
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/jobsets?",
    "Pod": "/api/v1/pods?labelSelector=jobset.sigs.k8s.io/job-key"
    "&fieldSelector=status.phase%3DPending",
    "ProvisioningRequest": "/apis/autoscaling.x-k8s.io/v1/provisioningrequests?",
}
_PODS_OF_WORKLOADS = "/api/v1/pods?fieldSelector=spec.nodeName%3D,status.phase%3DPending"
