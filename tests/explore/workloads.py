"""Workloads of a world, whose slices are TPUNodeGroups or node pools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

from local.base.controls import UnknownFault
from local.base.http import Request
from local.cloud.simulation import PROJECT
from shared.base.names import POOL_LABEL
from shared.slices.by_node_group.marks import JOB_KEY_LABEL
from shared.slices.by_node_pool.desired_pool import JOBSET_LABEL, PARENT, UNIT_LABEL
from shared.slices.selectors import SPOT
from tests.explore.rules import GROUPS, NODES, Rules, ready_of
from tests.explore.world import KINDS, Fault, World
from tests.stories import request_objects as requests
from tests.stories import workload_objects as objects
from tests.stories.jobsets import MERGE, OPTIONS, RUNS_FOREVER
from tests.stories.workload_objects import PATHS
from tests.support import jobset_objects
from tests.support.harness import Harness

_ENDS = ("Complete", "Completed", "Failed")
_UNIT_LABELS = (JOBSET_LABEL, f"{PARENT}name", UNIT_LABEL)
"""The labels of a node pool that name its unit."""


def build(kind: str, replicas: int) -> dict[str, Any]:
    """The manifest of a workload, named after its kind. Its Pods tolerate the taint of GKE's Spot
    Nodes."""
    made = deepcopy(_build(kind, replicas))
    made["metadata"]["name"] = kind.lower()
    for spec in _list_pod_specs(made):
        spec["tolerations"] = [{"key": SPOT, "operator": "Exists"}]
    return made


def _list_pod_specs(part: Any) -> Iterator[dict[str, Any]]:
    """The specs of Pods in a manifest."""
    if isinstance(part, dict) and "containers" in part:
        yield part
    elif isinstance(part, dict | list):
        for one in part.values() if isinstance(part, dict) else part:
            yield from _list_pod_specs(one)


def _build(kind: str, replicas: int) -> dict[str, Any]:
    match kind:
        case "JobSet":
            made = jobset_objects.small_jobset(topology="2x4", hosts=2)
            made["spec"]["failurePolicy"] = {"maxRestarts": 2}
            return made
        case "LeaderWorkerSet":
            return objects.leader_worker_set(size=2, topology="2x4", replicas=replicas)
        case "Deployment":
            return objects.deployment(replicas)
        case "StatefulSet":
            return objects.stateful_set(replicas)
        case "Job":
            return objects.job()
    return objects.pod()


class Queue:
    """A queue, as Kueue's: workloads are suspended until their ProvisioningRequests are provisioned."""

    def __init__(self, harness: Harness, kinds: Iterable[str]) -> None:
        self.kinds = frozenset(kinds)
        self._harness, self._admin = harness, harness.simulation.admin
        self._attempts, self._evicted = Counter[str](), set[str]()
        if self.kinds:
            self._serve_all()

    def evict(self, kind: str, seconds: float) -> None:
        """Suspend a workload and delete its request; quota returns after a time."""
        owner = self._admin("GET", _path(kind))
        if read_uid(owner):
            self._evicted.add(kind)
            self._harness.clock.call_later(seconds, partial(self._evicted.discard, kind))
            self._admin("PATCH", _path(kind), {"spec": {"suspend": True}}, **MERGE)
            self._delete_request(kind)

    def _serve_all(self) -> None:
        for kind in sorted(self.kinds):
            self._serve(kind)
        self._harness.clock.call_later(5.0, self._serve_all)

    def _serve(self, kind: str) -> None:
        owner, path = self._admin("GET", _path(kind)), f"{requests.WORKLOADS}/{kind.lower()}"
        workload = self._admin("GET", f"{path}-{kind.lower()}")
        is_needed = read_uid(owner) and not _has_ended(owner)
        is_needed = is_needed and "deletionTimestamp" not in owner["metadata"]
        if read_uid(workload):
            (reference,) = workload["metadata"]["ownerReferences"]
            if not is_needed or reference["uid"] != read_uid(owner):
                self._admin("DELETE", f"{path}-{kind.lower()}")
                self._delete_request(kind)
        elif is_needed:
            workload = requests.queue(self._harness, owner)
        if not is_needed or kind in self._evicted or not read_uid(workload):
            return
        name = self._name(kind)
        if not read_uid(self._admin("GET", f"{requests.REQUESTS}/{name}")):
            if owner["spec"].get("suspend"):
                self._attempts[kind] += 1
                sets = requests.pod_sets(build(kind, 1))
                requests.request(self._harness, sets, workload, self._name(kind))
        elif {"Failed", "BookingExpired"} & requests.conditions(self._harness, name).keys():
            self.evict(kind, 60.0)
        elif owner["spec"].get("suspend") and requests.is_provisioned(self._harness, name):
            requests.admit(self._harness, owner, name)

    def _name(self, kind: str) -> str:
        return f"{kind.lower()}-{self._attempts[kind]}"

    def _delete_request(self, kind: str) -> None:
        self._admin("DELETE", f"{requests.REQUESTS}/{self._name(kind)}")


def read_uid(found: Mapping[str, Any]) -> str:
    """The uid of an object; empty if there is none."""
    return str(found.get("metadata", {}).get("uid", ""))


class Workloads:
    """The workloads of a world: kinds, and how many slices each needs."""

    def __init__(self, harness: Harness, rules: Rules, world: World) -> None:
        self._harness, self._rules, self._wanted = harness, rules, world.workloads
        self._admin = harness.simulation.admin
        most = 2 + sum(world.workloads.values())
        self._most = min(most, world.limit) if world.candidates else most
        kinds = ", ".join((*PATHS, "ProvisioningRequest"))
        listed = f"{objects.NAMESPACE}: {{kinds: [{kinds}], slices: {most}}}"
        self._admin("POST", OPTIONS, jobset_objects.config_map(namespaces=listed))
        harness.jobsets.behaviour = RUNS_FOREVER
        self.queue = Queue(harness, world.queued)

    def apply(self) -> None:
        """Create what is not there; create again what has ended, as people do."""
        for kind, replicas in self._wanted.items():
            made = build(kind, replicas)
            if kind in self.queue.kinds:
                made["spec"]["suspend"] = True
            path = _path(kind)
            found = self._admin("GET", path)
            if _has_ended(found) and "deletionTimestamp" not in found["metadata"]:
                self._admin("DELETE", path, {"propagationPolicy": "Background"})
            elif not read_uid(found):
                self._admin("POST", PATHS[kind], made)

    def delete(self) -> None:
        """Delete all."""
        for kind in self._wanted:
            self._delete(kind, "Background")

    def heal(self) -> None:
        """End what people have begun."""
        self._set_paused(None)
        for kind in self._wanted:
            if kind not in self.queue.kinds:
                self._change(kind, self._wanted[kind], suspend=False)

    def slices(self) -> list[str]:
        """The names of all slices, also of strangers'."""
        groups = [one["metadata"]["name"] for one in self._rules.items(GROUPS)]
        return groups + [path.rpartition("/")[2] for path in self._harness.gke.leftovers()]

    def pods(self) -> list[dict[str, Any]]:
        """The Pods that have not ended."""
        found = self._rules.items(PATHS["Pod"])
        return [one for one in found if one["status"].get("phase") not in ("Succeeded", "Failed")]

    def are_right(self) -> bool:
        """Whether each Pod runs on a Node that is Ready, and each slice is needed. The Nodes of a pool
        that is being deleted are Ready for a while."""
        nodes = {one["metadata"]["name"]: one for one in self._rules.items(NODES)}
        used = set()
        for pod in self.pods():
            node = nodes.get(pod["spec"].get("nodeName", ""))
            is_running = pod["status"].get("phase") == "Running"
            if "deletionTimestamp" in pod["metadata"] or not is_running or node is None:
                return False
            if ready_of(node) != "True":
                return False
            used.add(node["metadata"]["labels"][POOL_LABEL])
        hosts = {"JobSet": 2, "LeaderWorkerSet": 2}
        count = sum(hosts.get(kind, 1) * number for kind, number in self._wanted.items())
        is_whole = len(self.pods()) == count and len(used) == sum(self._wanted.values())
        pools = map(self._harness.gke.find_pool, used)
        is_deleting = any(pool is not None and pool.status == "STOPPING" for pool in pools)
        return is_whole and not is_deleting and sorted(used) == sorted(self.slices())

    def act(self, fault: Fault) -> None:
        """What a person does to a workload, its Pods or its slices."""
        kinds = list(self._wanted)
        kind = kinds[fault.number % len(kinds)]
        later = partial(self._harness.clock.call_later, fault.seconds)
        pods, slices = self.pods(), self.slices()
        match fault.kind:
            case "delete workload":
                self._delete(kind, ("Background", "Foreground")[fault.number // 2 % 2])
                later(self.apply)
            case "delete Pod" if pods:
                name = pods[fault.number % len(pods)]["metadata"]["name"]
                self._admin("DELETE", f"{PATHS['Pod']}/{name}")
            case "scale" | "suspend" if kind in self.queue.kinds:
                self.queue.evict(kind, fault.seconds)
            case "scale":
                self._change(kind, fault.number % (1 + KINDS[kind]), suspend=False)
                later(lambda: self._change(kind, self._wanted[kind], suspend=False))
            case "suspend":
                self._change(kind, self._wanted[kind], suspend=True)
                later(lambda: self._change(kind, self._wanted[kind], suspend=False))
            case "pause slices":
                self._set_paused("true")
                later(lambda: self._set_paused(None))
            case "delete slice" if slices:
                self._delete_slice(slices[fault.number % len(slices)])
            case "lose Nodes" if slices:
                try:
                    self._harness.gke.faults.lose_nodes(slices[fault.number % len(slices)])
                except UnknownFault:
                    return
            case "failing pools":
                verbs = ("nodePools.create", "nodePools.delete", "nodePools.update")
                self._harness.gke.faults.fail_operations(verbs[fault.number % 3])

    def replace_broken(self) -> None:
        """Delete the slices that have lost hosts for good, as their messages advise."""
        for name in self.slices():
            pool = self._harness.gke.find_pool(name)
            if pool.status != "RUNNING" if pool is not None else not self._harness.is_ready(name):
                self._delete_slice(name)

    def _delete_slice(self, name: str) -> None:
        for path in self._harness.gke.leftovers():
            if path.endswith(f"/{name}"):
                self._harness.gke.handle(Request.of("DELETE", f"/v1/projects/{PROJECT}/{path}"))
        self._harness.delete(name, objects.NAMESPACE)

    def _delete(self, kind: str, policy: str) -> None:
        self._admin("DELETE", _path(kind), {"propagationPolicy": policy})

    def _change(self, kind: str, replicas: int, *, suspend: bool) -> None:
        spec: dict[str, Any] = {"suspend": suspend} if kind in ("Job", "JobSet") else {}
        if kind in ("Deployment", "LeaderWorkerSet", "StatefulSet"):
            spec = {"replicas": replicas}
        if spec:
            self._admin("PATCH", _path(kind), {"spec": spec}, **MERGE)

    def _set_paused(self, value: str | None) -> None:
        self._admin("PATCH", f"{OPTIONS}/jobsets", {"data": {"paused": value}}, **MERGE)

    def problem(self) -> str:
        """What is wrong now; empty if nothing is."""
        names = [one for one in self.slices() if one not in self._rules.strangers]
        if len(names) > self._most:
            return f"{len(names)} slices, but there may be {self._most}: {names}"
        twice = [unit for unit, count in Counter(self._units()).items() if count > 1]
        return f"two slices for {twice[0]}: {names}" if twice else ""

    def _units(self) -> Iterator[str]:
        """The units that the labels of the slices name."""
        for group in self._rules.items(GROUPS):
            yield group["metadata"]["labels"].get(JOB_KEY_LABEL, group["metadata"]["name"])
        for path in self._harness.gke.leftovers():
            pool = self._harness.gke.find_pool(path.rpartition("/")[2])
            labels = pool.content["config"]["labels"] if pool is not None else {}
            yield " ".join(labels.get(key, "") for key in _UNIT_LABELS)


def _path(kind: str) -> str:
    return f"{PATHS[kind]}/{kind.lower()}"


def _has_ended(found: Mapping[str, Any]) -> bool:
    status = found.get("status")
    if not isinstance(status, Mapping):
        return False  # there is none
    ends = [one for one in status.get("conditions") or () if one["type"] in _ENDS]
    return status.get("phase") in ("Succeeded", "Failed") or any(
        one["status"] == "True" for one in ends
    )
