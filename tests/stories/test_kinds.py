"""The kinds on the API server of the simulation, with the controllers of Deployments, Jobs and
StatefulSets: which slices their Pods ask for, and when these are not needed any more.

A slice is only its Nodes here, which are created and deleted immediately. The permissions are those of
the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from local.jobsets import PodBehaviour
from shared.base.names import POOL_LABEL
from shared.ports.kubernetes.cluster import Cluster
from shared.settings import TPU_NODE_GROUP
from shared.slices.assignment import SliceView
from shared.slices.kinds.deployment import DEPLOYMENT, REPLICA_SET
from shared.slices.kinds.job import JOB
from shared.slices.kinds.kind import Rules, UnitKind, assign_pods
from shared.slices.kinds.leader_worker_set import LEADER_WORKER_SET
from shared.slices.kinds.pod import POD
from shared.slices.kinds.stateful_set import STATEFUL_SET
from shared.slices.units import Need, Unit, waits
from tests.stories import workload_objects as objects
from tests.stories.workload_objects import FOUR_HOSTS, PATHS
from tests.support import jobset_objects
from tests.support.harness import Harness

KINDS: tuple[UnitKind, ...] = (
    LEADER_WORKER_SET,
    JOB,
    STATEFUL_SET,
    DEPLOYMENT,
    REPLICA_SET,
    POD,
)
BY_NAME = {kind.name: kind for kind in KINDS}
MERGE = {"Content-Type": "application/merge-patch+json"}
RUNS = PodBehaviour(ends=lambda _: "")


class Kept:
    """The slices that are kept for units. Each is there as soon as a Pod asks for it."""

    def __init__(self, behaviour: PodBehaviour = RUNS) -> None:
        self.harness = Harness(slices={"slice_provider": TPU_NODE_GROUP})
        self.harness.jobsets.behaviour = behaviour
        self.slices: dict[Unit, list[str]] = {}
        self.bought = 0
        self.peak = 0
        self.reasons: list[str] = []

    def cluster(self, step: str) -> Cluster:
        return Cluster(self.harness.runtime(step).connection, step, lambda: 30.0)

    def apply(self, manifest: dict[str, Any]) -> None:
        answer = self.harness.simulation.admin("POST", PATHS[manifest["kind"]], manifest)
        assert answer["kind"] == manifest["kind"], answer

    def change(self, kind: str, name: str, **spec: Any) -> None:
        path = f"{PATHS[kind]}/{name}"
        answer = self.harness.simulation.admin("PATCH", path, {"spec": spec}, **MERGE)
        assert answer["kind"] == kind, answer

    def delete(self, kind: str, name: str) -> None:
        self.harness.simulation.admin("DELETE", f"{PATHS[kind]}/{name}")

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.harness.simulation.admin("GET", PATHS["Pod"])["items"]
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def running(self) -> int:
        return sum(one["status"].get("phase") == "Running" for one in self.pods())

    def members(self) -> list[str]:
        return sorted(unit.member for unit in self.slices)

    def run(self, seconds: int = 60) -> None:
        """Buy and release what the kinds say, every two seconds."""
        for _ in range(0, seconds, 2):
            self.harness.run_for(timedelta(seconds=2))
            self.provision()
            self.release()

    def provision(self) -> None:
        for pod in self.pods():
            demand = waits(pod)
            if demand is None:
                continue
            cluster = self.cluster("provision_slice")
            claim = next(made for kind in KINDS if (made := kind.claim(demand)))
            if claim.refusal or not claim.is_leader:
                continue
            found = claim.kind.find(cluster, demand)
            if found.violation or found.state.need is not Need.NEEDED:
                continue
            unit = found.unit
            if claim.kind.is_assigned:
                views = self.views(unit.owner_key)
                assigned = assign_pods(cluster, claim.kind, unit, found.pods, views)
                ordinal = assigned.get(demand.uid)
                if ordinal is None:
                    continue
                unit = Unit(unit.kind, unit.namespace, unit.owner, str(ordinal))
            if unit not in self.slices:
                self.buy(unit, demand.topology, found.hosts or 1)

    def release(self) -> None:
        for kind in KINDS:
            mine = [unit for unit in self.slices if unit.kind == kind.name]
            assigned = mine if kind.is_assigned else []
            views = {unit.owner_key: self.views(unit.owner_key) for unit in assigned}
            rules = Rules(self.harness.clock.now(), timedelta(minutes=5), views=views)
            states = kind.read_states(self.cluster("release_slice"), mine, rules) if mine else {}
            for unit, state in states.items():
                used = {
                    one["spec"].get("nodeName")
                    for one in self.pods()
                    if one["status"].get("phase") not in ("Succeeded", "Failed")
                }
                if state.why and used.isdisjoint(self.slices[unit]):
                    self.reasons.append(state.why)
                    for node in self.slices.pop(unit):
                        self.harness.simulation.admin("DELETE", f"/api/v1/nodes/{node}")

    def views(self, key: tuple[str, str, str]) -> dict[int, SliceView]:
        mine = {unit: nodes for unit, nodes in self.slices.items() if unit.owner_key == key}
        return {int(unit.member or 0): SliceView(frozenset(nodes)) for unit, nodes in mine.items()}

    def buy(self, unit: Unit, topology: str, hosts: int) -> None:
        self.bought += 1
        names = [f"node-{self.bought}-{number}" for number in range(hosts)]
        self.slices[unit] = names
        self.peak = max(self.peak, len(self.slices))
        for name in names:
            self.add_node(name, topology)

    def add_node(self, name: str, topology: str) -> None:
        labels = {
            "tpu-functions.dev/resource-name": name,
            POOL_LABEL: name.rpartition("-")[0],
            **jobset_objects.selector(topology=topology),
        }
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "status": {"allocatable": {"google.com/tpu": "4"}},
        }
        self.harness.simulation.admin("POST", "/api/v1/nodes", node)
        self.set_ready(name)

    def set_ready(self, name: str) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"status": {"conditions": [ready]}}
        self.harness.simulation.admin("PATCH", f"/api/v1/nodes/{name}/status", status, **MERGE)


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
def test_replicas_are_scaled_from_1_to_3_to_0(kind: str) -> None:
    make: dict[str, Callable[[], dict[str, Any]]] = {
        "Deployment": objects.deployment,
        "ReplicaSet": objects.replica_set,
        "StatefulSet": objects.stateful_set,
    }
    kept = Kept()
    kept.apply(make[kind]())
    kept.run()
    assert (kept.members(), kept.running()) == (["0"], 1)
    kept.change(kind, "serve", replicas=3)
    kept.run()
    assert (kept.members(), kept.running()) == (["0", "1", "2"], 3)
    kept.change(kind, "serve", replicas=2)
    kept.run()
    assert (len(kept.slices), kept.running()) == (2, 2)
    kept.change(kind, "serve", replicas=0)
    kept.run()
    assert (kept.slices, kept.bought) == ({}, 3)


@pytest.mark.parametrize("surge", [0, 1])
def test_a_rollout_buys_what_surges_and_keeps_what_the_replicas_need(surge: int) -> None:
    kept = Kept()
    kept.apply(objects.deployment(3, surge=surge))
    kept.run()
    before = {one["metadata"]["name"] for one in kept.pods()}
    changed = objects.template()
    changed["metadata"]["labels"]["version"] = "2"
    kept.change("Deployment", "serve", template=changed)
    kept.run(120)
    assert kept.running() == 3
    assert before.isdisjoint(one["metadata"]["name"] for one in kept.pods())
    assert (len(kept.slices), kept.peak) == (3, 3 + surge)


def test_a_pod_that_is_replaced_gets_the_slice_of_its_predecessor() -> None:
    kept = Kept()
    kept.apply(objects.deployment(2))
    kept.run()
    kept.delete("Pod", kept.pods()[0]["metadata"]["name"])
    kept.run()
    assert (kept.running(), kept.bought) == (2, 2)


def test_a_stranger_on_a_slice_costs_no_slice_more_than_pods() -> None:
    kept = Kept()
    kept.apply(objects.deployment())
    kept.run()
    kept.change("Deployment", "serve", replicas=0)
    kept.harness.run_for(timedelta(seconds=10))
    (node,) = next(iter(kept.slices.values()))
    label = {"batch.kubernetes.io/job-name": "another"}
    kept.apply(objects.pod("guest", metadata={"labels": label}, spec={"nodeName": node}))
    kept.change("Deployment", "serve", replicas=1)
    kept.run()
    assert kept.running() == 2
    assert kept.members() == ["0", "1"]
    kept.delete("Pod", "guest")
    kept.run()
    assert (kept.members(), kept.running()) == (["1"], 1)


@pytest.mark.parametrize("end, why", [("Succeeded", "Complete"), ("Failed", "Failed")])
@pytest.mark.parametrize("topology, members", [("2x2", [*"0123"]), (FOUR_HOSTS, [""])])
def test_an_indexed_job_has_a_slice_or_one_for_each_index_until_it_ends(
    topology: str, members: list[str], end: str, why: str
) -> None:
    kept = Kept(PodBehaviour(run_s=90, ends=lambda _: end))
    kept.apply(objects.job(4, topology))
    kept.run()
    assert (kept.members(), kept.running()) == (members, 4)
    kept.run()
    assert not kept.slices
    assert {*kept.reasons} <= {
        f"Job train has ended ({why})",
        *(f"Pod {index} of Job train has completed" for index in range(4)),
    }


def test_a_suspended_job_keeps_its_slice_for_a_time() -> None:
    kept = Kept()
    kept.apply(objects.job(4, FOUR_HOSTS))
    kept.run()
    kept.change("Job", "train", suspend=True)
    kept.run()
    assert (len(kept.slices), kept.running()) == (1, 0)
    kept.change("Job", "train", suspend=False)
    kept.run()
    assert (kept.running(), kept.bought) == (4, 1)
    kept.change("Job", "train", suspend=True)
    kept.run(400)
    assert not kept.slices
    assert kept.reasons == ["Job train has been suspended for 5 minutes"]


def test_a_stateful_set_of_several_hosts_has_one_slice_until_it_is_deleted() -> None:
    kept = Kept()
    kept.apply(objects.stateful_set(4, FOUR_HOSTS))
    kept.run()
    assert (kept.members(), kept.running()) == ([""], 4)
    kept.delete("StatefulSet", "serve")
    kept.run()
    assert not kept.slices
    assert kept.reasons == ["StatefulSet serve no longer exists"]


def test_a_pod_of_its_own_has_a_slice_until_it_ends_or_is_deleted() -> None:
    kept = Kept()
    kept.apply(objects.pod("one"))
    kept.apply(objects.pod("two"))
    kept.run()
    assert sorted(unit.owner for unit in kept.slices) == ["one", "two"]
    kept.delete("Pod", "two")
    kept.run()
    assert kept.reasons == ["Pod two no longer exists"]
    kept.harness.simulation.admin(
        "PATCH", f"{PATHS['Pod']}/one/status", {"status": {"phase": "Succeeded"}}, **MERGE
    )
    kept.run()
    assert not kept.slices


def serving(kept: Kept) -> bool:
    """Whether the Pods of each group run on one slice, and only they."""
    slices: dict[str, set[str]] = {}
    for one in kept.pods():
        group = one["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-index"]
        node = one["spec"].get("nodeName", "")
        slices.setdefault(group, set()).add(node.rpartition("-")[0])
    places = [one for each in slices.values() for one in each]
    return kept.running() == len(kept.pods()) and len(places) == len(set(places)) == len(slices)


@pytest.mark.parametrize("policy", ["Shared", "UniquePerReplica"])
@pytest.mark.parametrize("has_leader", [True, False], ids=["all", "workers"])
def test_each_group_of_a_leader_worker_set_has_a_slice(policy: str, has_leader: bool) -> None:
    kept = Kept()
    size = 4 if has_leader else 5
    kept.apply(objects.leader_worker_set(size, policy, has_leader=has_leader))
    kept.run(120)
    assert (kept.members(), kept.running(), kept.bought) == (["0"], size, 1)
    for replicas, members in ((2, ["0", "1"]), (1, ["0"])):
        kept.change("LeaderWorkerSet", "serve", replicas=replicas)
        kept.run(120)
        assert (kept.members(), kept.running()) == (members, size * replicas)
    assert kept.reasons == ["LeaderWorkerSet serve has no group 1 any more"]
    kept.delete("LeaderWorkerSet", "serve")
    kept.run()
    assert (kept.slices, kept.bought) == ({}, 2)
    assert kept.reasons[1:] == ["LeaderWorkerSet serve no longer exists"]


@pytest.mark.parametrize("surge", [0, 1])
def test_a_rolling_update_of_groups_keeps_their_slices_and_buys_what_surges(surge: int) -> None:
    kept = Kept()
    kept.apply(objects.leader_worker_set(replicas=2, surge=surge))
    kept.run(120)
    assert serving(kept)
    before = {one["metadata"]["uid"] for one in kept.pods()}
    changed = objects.leader_worker_set(replicas=2, surge=surge)["spec"]
    changed["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["image"] = "new"
    kept.change("LeaderWorkerSet", "serve", **changed)
    kept.run(400)
    assert serving(kept)
    assert before.isdisjoint(one["metadata"]["uid"] for one in kept.pods())
    assert (kept.members(), kept.peak, kept.bought) == (["0", "1"], 2 + surge, 2 + surge)


def test_a_group_whose_pod_fails_is_created_again_on_its_slice() -> None:
    kept = Kept()
    kept.apply(objects.leader_worker_set(replicas=2))
    kept.run(120)
    before = {one["metadata"]["name"]: one["metadata"]["uid"] for one in kept.pods()}
    kept.delete("Pod", "serve-1-2")
    kept.run(120)
    after = {one["metadata"]["name"]: one["metadata"]["uid"] for one in kept.pods()}
    assert {name for name in before if before[name] != after[name]} == {
        name for name in before if name.startswith("serve-1")
    }
    assert (serving(kept), kept.bought, kept.reasons) == (True, 2, [])


def test_each_pod_of_a_group_on_single_hosts_has_a_slice() -> None:
    kept = Kept()
    kept.apply(objects.leader_worker_set(3, topology=objects.ONE_HOST))
    kept.run()
    assert (kept.members(), kept.running()) == (["0", "0/1", "0/2"], 3)
    kept.change("LeaderWorkerSet", "serve", replicas=0)
    kept.run()
    assert (kept.slices, kept.bought) == ({}, 3)
