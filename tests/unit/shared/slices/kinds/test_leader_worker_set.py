"""LeaderWorkerSets: whose slice a Pod waits for, why it gets none, and until when it is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from shared.ports.kubernetes.cluster import Cluster
from shared.slices.kinds.kind import Rules
from shared.slices.kinds.leader_worker_set import LEADER_WORKER_SET
from shared.slices.units import Need, Unit, read_demand
from tests.support.builders import NOW, merge

LWS = "leaderworkerset.sigs.k8s.io"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
OPT_OUT = "tpu-provisioner.cloud.google.com/disable-autoprovisioning"
TPU_LEADER: Any = {"metadata": {"annotations": {f"{LWS}/leader-requests-tpus": "true"}}}


def container(chips: int = 4, part: str = "requests") -> dict[str, Any]:
    return {"resources": {part: {"google.com/tpu": str(chips)} if chips else {}}}


def pod(name: str = "serve-3", topology: str = "2x4", chips: int = 4, **change: Any) -> Any:
    """A Pod of LeaderWorkerSet ``serve`` whose groups have two Pods, changed."""
    _, group, *worker = name.split("-")
    owner = {"kind": "StatefulSet", "name": f"serve-{group}" if worker else "serve", "uid": "u"}
    index = {f"{LWS}/name": "serve", f"{LWS}/group-index": group}
    return merge(
        {
            "metadata": {
                "namespace": "ns",
                "name": name,
                "labels": {**index, f"{LWS}/worker-index": worker[0] if worker else "0"},
                "annotations": {f"{LWS}/size": "2"},
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {"nodeSelector": {TOPOLOGY: topology}, "containers": [container(chips)]},
        },
        change,
    )


def serve(replicas: int = 4, size: int = 2, leader: Any = None, **metadata: Any) -> dict[str, Any]:
    """LeaderWorkerSet ``serve``; ``leader``: the spec of its leaders' Pods, if it differs."""
    worker = {"nodeSelector": {TOPOLOGY: "2x4"}, "containers": [container(part="limits")]}
    template = {"size": size, "workerTemplate": {"spec": worker}}
    if leader is not None:
        template["leaderTemplate"] = {"spec": leader}
    return {
        "metadata": {"namespace": "ns", "name": "serve", **metadata},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": template},
    }


class FakeCluster:
    """Answers the reads of owners, by kind, and Pods; counts them."""

    def __init__(self, *pods: Any, surged: int | None = None, owners: tuple[Any, ...] = ()) -> None:
        self.pods, self.owners, self.surged = pods, owners, surged
        self.calls: Counter[str] = Counter()

    def find_owner(self, kind: str, namespace: str, name: str) -> Any:
        self.calls[f"get {kind}"] += 1
        if kind == "StatefulSet":
            return None if self.surged is None else {"spec": {"replicas": self.surged}}
        key = (namespace, name)
        named = ((one["metadata"]["namespace"], one["metadata"]["name"]) for one in self.owners)
        return dict(zip(named, self.owners, strict=True)).get(key)

    def list_owners(self, kind: str, namespace: str) -> Iterator[Any]:
        self.calls[f"list {kind} in {namespace}"] += 1
        yield from self.owners

    def list_selected_pods(self, namespace: str, labels: str) -> list[Any]:
        self.calls[f"list {labels} in {namespace}"] += 1
        return list(self.pods)


def fake(*pods: Any, surged: int | None = None, owners: tuple[Any, ...] = ()) -> Cluster:
    return cast("Cluster", FakeCluster(*pods, surged=surged, owners=owners))


LEADS, FOLLOWS = True, False
SUBGROUPS = "no slices are created for subgroups of a LeaderWorkerSet: use a group for each slice"
UNLABELLED = f"the Pod has no number in its label {LWS}/{{}}-index: LeaderWorkerSet sets it"
HALVES: Any = {"metadata": {"annotations": {f"{LWS}/subgroup-size": "1"}}}
CLAIMS: dict[str, tuple[Any, bool, str, str]] = {
    "a leader": (pod(), LEADS, "", "3"),
    "a worker beside a leader with chips": (pod("serve-3-1", **TPU_LEADER), FOLLOWS, "", "3"),
    "a leader without chips": (pod(chips=0), FOLLOWS, "", "3"),
    "the first worker beside it": (pod("serve-3-1"), LEADS, "", "3"),
    "its second worker": (pod("serve-3-2"), FOLLOWS, "", "3"),
    "a leader on a host of its own": (pod(topology="2x2"), LEADS, "", "3"),
    "a worker on a host of its own": (
        pod("serve-3-1", topology="2x2", **TPU_LEADER), LEADS, "", "3/1",
    ),
    "a subgroup": (pod(**HALVES), LEADS, SUBGROUPS, "3"),
    "without its group": (
        pod(metadata={"labels": {f"{LWS}/group-index": None}}), LEADS,
        UNLABELLED.format("group"), "",
    ),
    "without its index": (
        pod(metadata={"labels": {f"{LWS}/worker-index": "x"}}), LEADS,
        UNLABELLED.format("worker"), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CLAIMS.values(), ids=CLAIMS)
def test_one_pod_of_a_group_leads_and_knows_its_unit(case: tuple[Any, bool, str, str]) -> None:
    raw, is_leader, refusal, member = case
    demand = read_demand(raw)
    claim = LEADER_WORKER_SET.claim(demand)
    assert claim is not None
    assert (claim.is_leader, claim.refusal) == (is_leader, refusal)
    if member:
        unit = LEADER_WORKER_SET.find_unit(demand)
        assert unit == Unit("LeaderWorkerSet", "ns", "serve", member)
        assert LEADER_WORKER_SET.names_unit(raw, unit)
        assert LEADER_WORKER_SET.find_pod_violation(demand, unit) == ""


def test_a_pod_without_the_label_is_not_claimed() -> None:
    raw = pod(metadata={"labels": {f"{LWS}/name": None}})
    assert LEADER_WORKER_SET.claim(read_demand(raw)) is None


@pytest.mark.parametrize(
    "raw, name, controller",
    [
        (pod(metadata={"name": "other-3"}), "serve-3", "serve"),
        (pod(metadata={"name": "serve-2"}), "serve-3", "serve"),
        (pod("serve-3-1", metadata={"name": "serve-3-2"}), "serve-3-1", "serve-3"),
        (pod(metadata={"ownerReferences": []}), "serve-3", "serve"),
        (pod("serve-3-1", metadata={"ownerReferences": pod()["metadata"]["ownerReferences"]}),
         "serve-3-1", "serve-3"),
    ],
)  # fmt: skip
def test_a_pod_with_the_labels_of_another_gets_no_slice(
    raw: Any, name: str, controller: str
) -> None:
    demand = read_demand(raw)
    unit = LEADER_WORKER_SET.find_unit(demand)
    assert unit is not None
    assert LEADER_WORKER_SET.find_pod_violation(demand, unit) == (
        f"the Pod's labels are those of Pod {name} of StatefulSet {controller}: only Pods that "
        "LeaderWorkerSet serve creates get its slices"
    )


MIXED = (
    "the leaderTemplate of LeaderWorkerSet serve asks for other chips, topologies or accelerators than "
    "its workerTemplate: they must be equal, because a group has one slice"
)
SPREAD = (
    "a slice of topology 2x2 has 1 host with 4 chips, so each Pod of a group gets its own; by the "
    f"annotation {LWS}/exclusive-topology, all would have to run on the leader's: remove it, or request "
    "the chips of one host of a larger slice"
)
TOGETHER: Any = {"annotations": {f"{LWS}/exclusive-topology": "cloud.google.com/gke-nodepool"}}
OTHER = {"nodeSelector": {TOPOLOGY: "2x2"}, "containers": [container()]}
FASTER = {
    "nodeSelector": {TOPOLOGY: "2x4", "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"},
    "containers": [container()],
}
FOUND: dict[str, tuple[Any, Any, int | None, Need, int, str]] = {
    "a group": (pod(), serve(), None, Need.NEEDED, 2, ""),
    "a group whose leader has no chips": (
        pod("serve-3-1"), serve(leader={"containers": [container(0)]}), None, Need.NEEDED, 1, "",
    ),
    "equal templates": (
        pod(), serve(leader={"nodeSelector": {TOPOLOGY: "2x4"}, "containers": [container()]}), None,
        Need.NEEDED, 2, "",
    ),
    "a leader with a slice of one host": (
        pod(topology="2x2"), serve(leader=OTHER), None, Need.NEEDED, 1, MIXED,
    ),
    "Pods of one host that are to run on one slice": (
        pod(topology="2x2", metadata=TOGETHER), serve(), None, Need.NEEDED, 1, SPREAD,
    ),
    "a group of one Pod that does": (
        pod(topology="2x2", metadata=merge(TOGETHER, {"annotations": {f"{LWS}/size": "1"}})), serve(),
        None, Need.NEEDED, 1, "",
    ),
    "another number of chips": (
        pod(), serve(leader={"nodeSelector": {TOPOLOGY: "2x4"}, "containers": [container(8)]}), None,
        Need.NEEDED, 2, MIXED,
    ),
    "another accelerator": (
        pod(), serve(leader=FASTER), None, Need.NEEDED, 2, MIXED,
    ),
    "a group of a rolling update": (pod("serve-4"), serve(), 5, Need.NEEDED, 2, ""),
    "a group too many": (pod("serve-5"), serve(), 5, Need.NOT_NEEDED, 2, ""),
    "without a number": (
        pod(metadata={"labels": {f"{LWS}/group-index": None}}), serve(), 4, Need.NOT_NEEDED, 2, "",
    ),
    "gone": (pod(), None, None, Need.OWNER_GONE, 2, ""),
    "being deleted": (pod(), serve(deletionTimestamp="x"), None, Need.OWNER_GONE, 2, ""),
    "opted out": (pod(), serve(annotations={OPT_OUT: "true"}), None, Need.OPTED_OUT, 2, ""),
    "opted out in a rolling update": (
        pod("serve-4"), serve(labels={OPT_OUT: "true"}), 5, Need.OPTED_OUT, 2, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND)
def test_a_pod_that_waits_is_needed_by_its_group_or_not(
    case: tuple[Any, Any, int | None, Need, int, str],
) -> None:
    raw, owner, surged, need, hosts, violation = case
    cluster = fake(surged=surged, owners=(owner,) if owner else ())
    found = LEADER_WORKER_SET.find(cluster, read_demand(raw))
    assert (found.state.need, found.hosts, found.violation) == (need, hosts, violation)


NO_GROUP = "LeaderWorkerSet serve has no group {} any more"


def updated(replicas: int, chips: int = 4, leader: Any = None) -> dict[str, Any]:
    """LeaderWorkerSet ``serve`` of four groups, of which so many are of its template."""
    changed = serve(leader=leader) | {"status": {"updatedReplicas": replicas}}
    worker = changed["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    worker["containers"] = [container(chips)]
    worker["nodeSelector"] = worker["nodeSelector"] if chips else {}
    return changed


NO_POD = "group 0 of LeaderWorkerSet serve has no Pod 2 any more"
STATES: dict[str, tuple[str, Any, int | None, Need, str]] = {
    "a group": ("3", serve(), None, Need.NEEDED, ""),
    "a default of one group": ("0", {**serve(), "spec": {}}, None, Need.NEEDED, ""),
    "scaled down": ("1", serve(1), 1, Need.NOT_NEEDED, NO_GROUP.format(1)),
    "its controller has not removed the group yet": ("1", serve(1), 2, Need.NEEDED, ""),
    "scaled to zero": ("0", serve(0), 0, Need.NOT_NEEDED, NO_GROUP.format(0)),
    "the leaders' set is gone": ("1", serve(1), None, Need.NOT_NEEDED, NO_GROUP.format(1)),
    "added by a rolling update": ("4", serve(), 5, Need.NEEDED, ""),
    "after the rolling update": ("4", serve(), 4, Need.NOT_NEEDED, NO_GROUP.format(4)),
    "a Pod with a host": ("0/1", serve(), None, Need.NEEDED, ""),
    "a group that shrank": ("0/2", serve(), 4, Need.NOT_NEEDED, NO_POD),
    "a group that is no number": ("x", serve(), 4, Need.NOT_NEEDED, NO_GROUP.format("x")),
    "a group of the template": ("0", updated(4), None, Need.NEEDED, ""),
    "a Pod of a group that has one slice now": (
        "0/1", updated(4), None, Need.NOT_NEEDED,
        "the Pods of LeaderWorkerSet serve ask for slices of topology 2x4 now",
    ),
    "the same, not updated everywhere": ("0/1", updated(3), None, Need.NEEDED, ""),
    "a group whose leader alone asks for chips": (
        "0", updated(4, 0, {"containers": [container()]}), None, Need.NEEDED, "",
    ),
    "a group of leaders without chips": (
        "0", updated(4, leader={"containers": [container(0)]}), None, Need.NEEDED, "",
    ),
    "no Pod asks for chips": (
        "0", updated(4, 0), None, Need.NOT_NEEDED,
        "the Pods of LeaderWorkerSet serve ask for no TPUs now",
    ),
    "gone": ("0", None, None, Need.OWNER_GONE, "LeaderWorkerSet serve no longer exists"),
    "being deleted": (
        "0", serve(deletionTimestamp="x"), None, Need.OWNER_GONE,
        "LeaderWorkerSet serve is being deleted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STATES.values(), ids=STATES)
def test_a_group_keeps_its_slice_until_it_is_removed(
    case: tuple[str, Any, int | None, Need, str],
) -> None:
    member, owner, surged, need, why = case
    unit = Unit("LeaderWorkerSet", "ns", "serve", member)
    cluster = fake(surged=surged, owners=(owner,) if owner else ())
    state = LEADER_WORKER_SET.read_states(cluster, [unit], Rules(NOW))[unit]
    assert (state.need, state.why) == (need, why)
    assert state.owner == owner
    assert state.is_ending is (owner is not None and need is Need.OWNER_GONE)


def test_the_leaders_set_is_read_once_for_all_groups_that_are_beyond_the_replicas() -> None:
    units = [Unit("LeaderWorkerSet", "ns", "serve", str(number)) for number in range(20)]
    cluster = FakeCluster(surged=12, owners=(serve(10),))
    states = LEADER_WORKER_SET.read_states(cast("Cluster", cluster), units, Rules(NOW))
    assert [states[one].need is Need.NEEDED for one in units] == [True] * 12 + [False] * 8
    assert cluster.calls == {"get LeaderWorkerSet": 1, "get StatefulSet": 1}


def test_the_pods_with_chips_of_a_group_are_listed() -> None:
    pods = (pod(), pod("serve-3-1", **TPU_LEADER), pod("serve-2"))
    cluster = FakeCluster(*pods)
    unit = Unit("LeaderWorkerSet", "ns", "serve", "3")
    found = LEADER_WORKER_SET.list_pods(cast("Cluster", cluster), unit)
    assert [one["metadata"]["name"] for one in found] == ["serve-3", "serve-3-1"]
    assert cluster.calls == {f"list {LWS}/name=serve,{LWS}/group-index=3 in ns": 1}
