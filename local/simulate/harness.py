"""The product in the simulation: the real steps with their real client libraries, in one process.

Only sockets are replaced: the compute client's HTTP session and the kubernetes client's connection
pool call the simulated servers directly. Each step has its identity and permissions of a cluster.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Protocol

import yaml

from local import gce, gke, jobsets
from local.base import turns
from local.base.clock import OffsetClock, VirtualClock
from local.base.http import Application, Request, Response
from local.cloud.simulation import PROJECT, PROJECT_NUMBER, Cluster, Options, Simulation
from local.cluster.manifests import WITH_PODS, read_manifests
from local.gce.inprocess import mount
from local.vm.conversation import Bearer, Identity
from local.vm.kubelet import KubeletBehaviour
from local.vm.transport import InProcess, Network
from relay.changes.messages import Outbox
from relay.changes.pending import OutgoingMessage
from shared.frame.execution import Answer
from shared.frame.step import Runtime, handle
from shared.node_groups.bootstrap import KUBEADM_GROUP
from shared.ports.errors import CallError
from shared.ports.gce.clients import Clients
from shared.ports.gke import GkeClient
from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.ports.kubernetes.connection import Connection
from shared.runtime import find_refusal
from shared.settings import Settings
from shared.triggers.message import Message
from shared.triggers.routes import ROUTES, SLICE_STEPS, STEPS

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "infra" / "chart" / "manifests"
JOBSET_MANIFESTS = (
    Path(jobsets.__file__).parent / "crd.yaml",
    Path(jobsets.__file__).parent / "leader_worker_set.yaml",
    Path(jobsets.__file__).parent / "provisioning_request.yaml",
    MANIFESTS / "jobsets" / "class-crd.yaml",
    MANIFESTS / "jobsets" / "class-policy.yaml",
    MANIFESTS / "jobsets" / "request-policy.yaml",
    MANIFESTS / "jobsets" / "roles.yaml",
    MANIFESTS / "jobsets" / "relay.yaml",
    MANIFESTS / "jobsets" / "ledger.yaml",
    MANIFESTS / "jobsets-node-groups" / "roles.yaml",
    MANIFESTS / "jobsets-node-groups" / "policy.yaml",
    MANIFESTS / "workloads" / "roles.yaml",
)
"""The CRDs of the stand-ins, and the permissions of the steps that create slices."""
RESERVATION = f"projects/{PROJECT}/zones/us-central1-c/reservations/my-tpu-reservation"
"""The reservation in tpu-operator's README; it exists in the simulation."""
FILTERS = ROOT / "infra" / "terraform" / "filters"
GKE_REGION, GKE_CLUSTER = "us-central1", "research"
"""The GKE cluster in which JobSets get node pools."""


_COUNTED = frozenset({"insert", "delete", "CreateNodePool", "DeleteNodePool"})


class ProcessKilled(BaseException):
    """Ends a step as if its process were killed: no handler catches it."""


class Hooks:
    """Callbacks of a test for each outgoing call of a step; by default they do nothing.

    ``before(step, call)`` and ``after(step, call)`` may raise `ProcessKilled`; ``call`` is a text such
    as ``GET /path``. ``instead(step, call)`` may return an answer that replaces the server's.
    """

    def __init__(self) -> None:
        self.before: Callable[[str, str], None] = _do_nothing
        self.instead: Callable[[str, str], Response | None] = _do_nothing
        self.after: Callable[[str, str], None] = _do_nothing
        self.around: Callable[[str, Request, Callable[[Request], Response]], Response] = _send
        """Called for each request in place of the server; its last argument is the server."""
        self.on_entry: Callable[[dict[str, Any]], None] = lambda _entry: None
        """Called with each entry of the audit log."""


class _CheckedOutbox(Outbox):
    """The relay's outbox, which publishes only what the table of routes has."""

    def take_due(self, now: datetime, most: int | None = None) -> list[OutgoingMessage]:
        due = super().take_due(now, most)
        for one in due:
            _check_route(one.step, one.message)
        return due


def _check_route(step: str, message: Message) -> None:
    assert message.cause in ROUTES[step].causes[message.kind], (step, message)


def _do_nothing(_step: str, _call: str) -> None:
    """Do nothing."""


def _send(_step: str, request: Request, server: Callable[[Request], Response]) -> Response:
    return server(request)


class _Hooked:
    """An application with `Hooks`; ``token`` is sent with each request, if it is given."""

    def __init__(
        self, application: Application, step: str, hooks: Hooks, token: str | None = None
    ) -> None:
        self._application = application
        self._step = step
        self._hooks = hooks
        self._token = token

    def handle(self, request: Request) -> Response:
        call = f"{request.method} {request.path}"
        if self._token is not None:
            headers = {**request.headers, "authorization": f"Bearer {self._token}"}
            request = replace(request, headers=headers)
        self._hooks.before(self._step, call)
        response = self._hooks.instead(self._step, call)
        if response is None:
            response = self._hooks.around(self._step, request, self._application.handle)
        self._hooks.after(self._step, call)
        return response


class _Urllib3Response:
    """The part of urllib3's response that the kubernetes client uses."""

    def __init__(self, response: Response) -> None:
        self.status = response.status
        self.reason = ""
        self.headers = response.headers
        self.data = response.body

    def read(self) -> bytes:
        return self.data


class _Pool:
    """A urllib3 pool manager in front of an application."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def request(
        self, method: str, url: str, *, body: Any = None, headers: Any = None, **_: Any
    ) -> _Urllib3Response:
        return _Urllib3Response(
            self._application.handle(Request.of(method, url, headers=headers, body=body))
        )


class Log:
    """The structured log of all steps, as a list."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def info(self, message: str, **fields: Any) -> None:
        self.add({"severity": "INFO", "message": message, **fields})

    def warning(self, message: str, **fields: Any) -> None:
        self.add({"severity": "WARNING", "message": message, **fields})

    def error(self, message: str, **fields: Any) -> None:
        self.add({"severity": "ERROR", "message": message, **fields})

    def add(self, line: dict[str, Any]) -> None:
        """Add a line."""
        self.lines.append(line)


def manifests(*, external_approval: bool = False) -> list[dict[str, Any]]:
    """The manifests of the chart with its default values, in an order in which they can be applied.

    ``external_approval``: with ``joinApproval: external``.
    """
    documents: list[dict[str, Any]] = json.loads(_manifests_as_json())
    if external_approval:
        (policy,) = (
            document
            for document in documents
            if document["kind"] == "ValidatingAdmissionPolicy"
            and document["metadata"]["name"] == "tpu-functions-bootstrap-tokens"
        )
        (groups,) = (one for one in policy["spec"]["variables"] if one["name"] == "groups")
        kubeadms = base64.b64encode(KUBEADM_GROUP.encode()).decode()
        groups["expression"] = groups["expression"].replace("]", f", '{kubeadms}']")
    return documents


@cache
def _manifests_as_json() -> str:
    """Read the files once: parsing YAML takes longer than many tests."""
    return json.dumps(read_manifests(WITH_PODS))


@cache
def _manifests_of_jobsets_as_json() -> str:
    texts = (path.read_text() for path in JOBSET_MANIFESTS)
    return json.dumps([document for text in texts for document in yaml.safe_load_all(text)])


def filters() -> dict[str, str]:
    """The log sinks' filters, by step."""
    return {path.stem: path.read_text() for path in sorted(FILTERS.glob("*.txt"))}


class Clusters(Protocol):
    """Starts the clusters of harnesses."""

    def start(self, options: Options) -> tuple[VirtualClock, tuple[Cluster, Network] | None]:
        """Return a clock, and a cluster with the network of its VMs; ``None`` for the embedded one."""


class _Embedded:
    def start(self, _options: Options) -> tuple[VirtualClock, None]:
        return VirtualClock(), None


_clusters: Clusters = _Embedded()


@contextmanager
def using_clusters(clusters: Clusters) -> Iterator[None]:
    """Within this block, harnesses use these clusters instead of embedded ones."""
    global _clusters
    before, _clusters = _clusters, clusters
    try:
        yield
    finally:
        _clusters = before


class Harness:
    """A simulation with the product, on a virtual clock."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        seed: int = 0,
        projects: frozenset[str] = frozenset({PROJECT}),
        callers: Mapping[str, gce.Principal] | None = None,
        slices: Mapping[str, Any] | None = None,
    ) -> None:
        """``callers``: the principals of steps on Compute Engine, if they have limited permissions.

        ``slices``: settings with which JobSets get slices; by default there are no JobSets.
        """
        self.callers = callers or {}
        self.steps = STEPS if slices is None else (*STEPS, *SLICE_STEPS)
        options = options or Options()
        self.clock, cluster = _clusters.start(options)
        self.hooks = Hooks()
        self.begin: Callable[[Callable[[], None]], None] = turns.begin
        """Runs a push."""
        self.may_crash = False
        """Whether a step may crash; otherwise a crash fails the test."""
        self.log = Log()
        self.answers: list[tuple[str, Answer]] = []
        self.operations: Counter[str] = Counter()
        """The number of inserts and deletes that the cloud has begun, by method."""
        # A real API server keeps the owner of a token for ten seconds, also for the next story.
        self._random = Random(seed + 10 if cluster is None else None)
        self._kubeconfigs = tempfile.TemporaryDirectory()
        self.settings = {
            step: replace(self._settings(step, projects), **(slices or {})) for step in self.steps
        }
        self._runtimes: dict[str, Runtime] = {}
        self.simulation = Simulation(
            self.clock,
            steps={step: self._serve(step) for step in self.steps},
            outbox=_CheckedOutbox(with_workloads=options.workloads),
            manifests=manifests() + self._manifests_of_jobsets(),
            filters=filters(),
            cluster=cluster,
            options=options,
            seed=seed,
            observe=self._observe,
            callers=self.callers,
            projects=_number(projects),
            begin=lambda push: self.begin(push),
        )
        self.simulation.gce.faults.set_reservation(RESERVATION, "tpu7x-standard-4t", 4096)
        self.simulation.start()
        self.gke = self._simulate_gke(seed)
        self.jobsets = jobsets.StandIn(self.clock, self.simulation.kube, token="admin")
        if slices is not None:
            self.jobsets.start()

    def _simulate_gke(self, seed: int) -> gke.Simulator:
        """Simulate GKE, whose node pools join the cluster; used only if JobSets get node pools."""
        admin = Identity("https://10.128.0.2:6443", "", Bearer("admin"))
        behaviour = KubeletBehaviour(
            ready_s=5.0, plugin_s=10.0, lease_s=self.simulation.options.agents.lease_s
        )
        network = InProcess(self.simulation.kube)
        kubelets = gke.Kubelets(self.clock, network, lambda _: admin, admin, behaviour=behaviour)
        return gke.Simulator(
            self.clock,
            clusters=[gke.Cluster(PROJECT, PROJECT_NUMBER, GKE_REGION, GKE_CLUSTER)],
            random=Random(seed + 20),
            nodes=kubelets,
            on_log_entry=self.simulation.on_log_entry,
        )

    def _manifests_of_jobsets(self) -> list[dict[str, Any]]:
        if self.steps == STEPS:
            return []
        documents: list[dict[str, Any]] = json.loads(_manifests_of_jobsets_as_json())
        return documents

    def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create a TPUNodeGroup as a user does; return the API server's answer."""
        namespace = manifest["metadata"].get("namespace", "default")
        path = f"/apis/tpu.google.com/v1alpha1/namespaces/{namespace}/tpunodegroups"
        answer: dict[str, Any] = self.simulation.admin("POST", path, manifest)
        return answer

    def group(self, name: str, namespace: str = "default") -> dict[str, Any] | None:
        """Return the current group, or ``None``."""
        found: dict[str, Any] = self.simulation.admin("GET", _group_path(namespace, name))
        return found if found["kind"] == "TPUNodeGroup" else None

    def delete(self, name: str, namespace: str = "default") -> None:
        """Delete a group as a user does."""
        self.simulation.admin("DELETE", _group_path(namespace, name))

    def is_ready(self, name: str, namespace: str = "default") -> bool:
        """Whether ``kubectl wait --for=condition=Ready`` would return."""
        return self.condition(name, "Ready", namespace).get("status") == "True"

    def condition(self, name: str, kind: str, namespace: str = "default") -> dict[str, Any]:
        """Return a condition of a group; empty if the group has none of that type."""
        group = self.group(name, namespace) or {}
        conditions = group.get("status", {}).get("conditions", [])
        return next((entry for entry in conditions if entry["type"] == kind), {})

    def run_until(self, condition: Callable[[], bool], timeout: timedelta) -> bool:
        """Let time pass until the condition is true; return False if it was not within the timeout."""
        return self.clock.run_until(condition, timeout.total_seconds())

    def run_for(self, duration: timedelta) -> None:
        """Let time pass."""
        self.clock.run_for(duration.total_seconds())

    def leftovers(self) -> list[str]:
        """List the remaining resources of the cloud, Nodes, Secrets and groups."""
        nodes = self.simulation.admin("GET", "/api/v1/nodes")["items"]
        secrets = self.simulation.admin("GET", "/api/v1/namespaces/kube-system/secrets")["items"]
        groups = self.simulation.admin("GET", "/apis/tpu.google.com/v1alpha1/tpunodegroups")[
            "items"
        ]
        return [
            *self.simulation.gce.leftovers(),
            *self.gke.leftovers(),
            *(f"Node {node['metadata']['name']}" for node in nodes),
            *(f"Secret {secret['metadata']['name']}" for secret in secrets),
            *(f"TPUNodeGroup {group['metadata']['name']}" for group in groups),
        ]

    def node_deletes(self) -> int:
        """Return the number of Nodes that the steps have deleted."""
        calls = self.simulation.kube.calls
        return calls.count(verb="delete", resource="nodes", code=200)

    def _observe(self, entry: dict[str, Any]) -> None:
        self.hooks.on_entry(entry)
        if entry.get("operation", {}).get("first"):
            method = entry["protoPayload"]["methodName"].split("compute.")[-1]
            if method.rpartition(".")[2] in _COUNTED:
                self.operations[method] += 1

    def kubeconfig(self, step: str) -> Path:
        """Return the path of a step's kubeconfig."""
        access = self.settings[step].access
        assert isinstance(access, Kubeconfig)
        return Path(access.path)

    def runtime(self, step: str) -> Runtime:
        """Return the runtime of a step's process; it is the same until the process is killed."""
        if step not in self._runtimes:
            self._runtimes[step] = self._make_runtime(step)
        return self._runtimes[step]

    def configure(self, **settings: Any) -> None:
        """Deploy the steps again with changed settings."""
        for step in self.steps:
            self.settings[step] = replace(self.settings[step], **settings)
        self._runtimes.clear()

    def _serve(self, step: str) -> Callable[[bytes], int]:
        run = import_module(f"functions.{step}").STEP.run

        def serve(body: bytes) -> int:
            try:
                answer = handle(step, run, body, self.runtime(step))
            except ProcessKilled:
                self._runtimes.pop(step, None)
                return 500
            self.answers.append((step, answer))
            if answer.outcome == "Crashed" and not self.may_crash:
                raise AssertionError(self.log.lines[-1])
            return answer.http

        return serve

    def _settings(self, step: str, projects: frozenset[str]) -> Settings:
        path = Path(self._kubeconfigs.name) / step
        path.write_text(json.dumps(_kubeconfig(step.replace("_", "-"))))
        return Settings(
            pubsub_project=PROJECT,
            topic_prefix="tpu-functions-",
            projects=projects,
            access=Kubeconfig(str(path)),
            compute_endpoint="http://compute.local",
            join_timeout=timedelta(minutes=15),
        )

    def _make_runtime(self, step: str) -> Runtime:
        kube = _Hooked(self.simulation.kube, step, self.hooks)
        token = step if step in self.callers else None
        compute = _Hooked(self.simulation.gce, step, self.hooks, token)

        def connect(client: Any) -> None:
            client.rest_client.pool_manager = _Pool(kube)

        now = OffsetClock(self.clock, self.simulation.options.clocks.functions_s).now
        connection = Connection(self.settings[step].access, prepare=connect, now=now)

        def publish(topic: str, messages: Sequence[Message]) -> None:
            cluster = connection.cluster_id
            assert cluster, f"{step} publishes to {topic} before it has read the cluster's id"
            for one in messages:
                _check_route(topic, one)
            self._publish(
                step, topic, [(one.encode(), one.attributes(cluster)) for one in messages]
            )

        return Runtime(
            routes=ROUTES,
            project=PROJECT,
            settings=self.settings[step],
            connection=connection,
            clients=Clients("http://compute.local", prepare=lambda it: mount(it, compute)),
            publish=publish,
            find_refusal=partial(find_refusal, self.settings[step]),
            now=now,
            monotonic=lambda: self.clock.now().timestamp(),
            random_bytes=self._random.randbytes,
            log=self.log,
            gke=GkeClient(
                "http://container.local",
                prepare=lambda it: mount(it, _Hooked(self.gke, step, self.hooks)),
            ),
        )

    def _publish(
        self, step: str, topic: str, messages: Sequence[tuple[bytes, Mapping[str, str]]]
    ) -> None:
        call = f"publish {topic}"
        self.hooks.before(step, call)
        if self.simulation.pubsub.has_outage:
            raise CallError(call, 0, "unreachable", "Pub/Sub is unavailable")
        for message in messages:
            self.simulation.publish(topic, *message)
        self.hooks.after(step, call)


def _number(projects: frozenset[str]) -> dict[str, str]:
    """Projects with numbers; that of all tests always exists."""
    others = sorted(projects - {PROJECT})
    numbers = {name: str(int(PROJECT_NUMBER) + at) for at, name in enumerate(others, 1)}
    return {PROJECT: PROJECT_NUMBER, **numbers}


def _group_path(namespace: str, name: str) -> str:
    return f"/apis/tpu.google.com/v1alpha1/namespaces/{namespace}/tpunodegroups/{name}"


def _kubeconfig(token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {"server": "https://kubernetes.local"}}],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "me"}}],
        "current-context": "local",
    }
