"""Deployments, ReplicaSets, Pods, Indexed Jobs and StatefulSets: whose slice a Pod waits for, and until
when it is needed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

from shared.ports.kubernetes.cluster import Cluster
from shared.slices.assignment import SliceView
from shared.slices.kinds.deployment import DEPLOYMENT, REPLICA_SET
from shared.slices.kinds.job import JOB
from shared.slices.kinds.kind import Rules, UnitKind, assign_pods, find_fence_violation
from shared.slices.kinds.pod import POD
from shared.slices.kinds.stateful_set import STATEFUL_SET
from shared.slices.units import Need, Unit, read_demand
from tests.support.builders import NOW, merge

KINDS: tuple[UnitKind, ...] = (JOB, STATEFUL_SET, DEPLOYMENT, REPLICA_SET, POD)
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
INDEX = "batch.kubernetes.io/job-completion-index"
OPT_OUT = "tpu-provisioner.cloud.google.com/disable-autoprovisioning"


def pod(
    name: str = "one", *, owner: str = "", topology: str = "2x2", **change: Any
) -> dict[str, Any]:
    """A Pod that asks for 4 chips; ``owner``: kind and name of its controller."""
    kind, _, controller = owner.partition(" ")
    version = {"Job": "batch/v1", "RayCluster": "ray.io/v1"}.get(kind, "apps/v1")
    reference = {"apiVersion": version, "kind": kind, "name": controller, "uid": "u"}
    references = [{**reference, "controller": True}]
    made: dict[str, Any] = merge(
        {
            "metadata": {
                "namespace": "ns",
                "name": name,
                "uid": name,
                "creationTimestamp": "2026-11-20T10:00:00Z",
                "ownerReferences": references if owner else [],
            },
            "spec": {
                "nodeSelector": {TOPOLOGY: topology},
                "containers": [{"resources": {"requests": {"google.com/tpu": "4"}}}],
            },
            "status": {"phase": "Pending"},
        },
        change,
    )
    return made


def job_pod(index: str = "0", topology: str = "2x2", **metadata: Any) -> dict[str, Any]:
    given = {"annotations": {INDEX: index}, **metadata}
    return pod(f"train-{index}-x", owner="Job train", topology=topology, metadata=given)


def web(ordinal: str, topology: str = "2x2", **change: Any) -> dict[str, Any]:
    return pod(f"web-{ordinal}", owner="StatefulSet web", topology=topology, **change)


def replica(name: str, node: str = "", **change: Any) -> dict[str, Any]:
    """A Pod of Deployment ``serve``; it runs if it has a Node."""
    given: dict[str, Any] = {"metadata": {"labels": {"pod-template-hash": "5d", "app": "serve"}}}
    if node:
        given |= {"spec": {"nodeName": node}, "status": {"phase": "Running"}}
    return pod(name, owner="ReplicaSet serve-5d", **merge(given, change))


def owner(name: str, spec: Any = None, status: Any = None, **metadata: Any) -> dict[str, Any]:
    given = {"namespace": "ns", "name": name, **metadata}
    return {"metadata": given, "spec": spec or {}, "status": status or {}}


SERVE = owner("serve", {"selector": {"matchLabels": {"app": "serve"}}})
OF_SERVE = [{"kind": "Deployment", "name": "serve", "uid": "d", "controller": True}]
SERVE_5D = {
    **SERVE,
    "metadata": {"namespace": "ns", "name": "serve-5d", "ownerReferences": OF_SERVE},
}


class FakeCluster:
    """Answers the reads of kinds from these owners, by kind, and Pods."""

    def __init__(self, *pods: dict[str, Any], **owners: Any) -> None:
        self.pods = pods
        self.owners = {key: one if isinstance(one, list) else [one] for key, one in owners.items()}
        self.calls: Counter[str] = Counter()

    def find_owner(self, kind: str, namespace: str, name: str) -> Any:
        self.calls["get"] += 1
        if kind == "Pod":
            return self.find_pod(namespace, name)
        return next(
            (one for one in self.owners.get(kind, ()) if one["metadata"]["name"] == name), None
        )

    def list_owners(self, kind: str, _namespace: str) -> Iterator[Any]:
        self.calls["list"] += 1
        yield from self.owners[kind]

    def find_pod(self, _namespace: str, name: str) -> Any:
        return next((one for one in self.pods if one["metadata"]["name"] == name), None)

    def list_selected_pods(self, _namespace: str, labels: str) -> list[Any]:
        self.calls[f"list {labels}"] += 1
        return list(self.pods)

    def list_pods_on(self, node: str) -> list[Any]:
        self.calls["list on"] += 1
        return [one for one in self.pods if one["spec"].get("nodeName") == node]

    def list_bound_pods(self) -> Iterator[Any]:
        self.calls["list bound"] += 1
        yield from self.pods


def fake(*pods: dict[str, Any], **owners: Any) -> Cluster:
    return cast("Cluster", FakeCluster(*pods, **owners))


LED, FOLLOWS = True, False
NOT_INDEXED = (
    "Job train is not Indexed: slices are created only for those with completionMode: Indexed"
)
SEVERAL = (
    "the topology 4x4 has 4 hosts of 4 chips, and {} gets slices of one host only: use a "
    "LeaderWorkerSet or an Indexed Job"
)
GROUPED = (
    "no slices are created for Kueue's Pod groups, as g: use a JobSet, a LeaderWorkerSet or an Indexed "
    "Job"
)
OF_RAY = "no slices are created for Pods of RayCluster.ray.io ray"
OF_VOLCANO = "no slices are created for Pods of Job.batch.volcano.sh train"
CLAIMS: dict[str, tuple[dict[str, Any], str, bool, str, str]] = {
    "a Job's index": (job_pod("2"), "Job", LED, "", "train/2"),
    "a Job's first Pod": (job_pod("0", "4x4"), "Job", LED, "", "train/"),
    "a Job's next Pod": (job_pod("3", "4x4"), "Job", FOLLOWS, "", "train/"),
    "a Job without index": (pod(owner="Job train"), "Job", LED, NOT_INDEXED, "train/0"),
    "an ordinal": (web("3"), "StatefulSet", LED, "", "web/3"),
    "ordinal 0": (web("0", "4x4"), "StatefulSet", LED, "", "web/"),
    "ordinal 1": (web("1", "4x4"), "StatefulSet", FOLLOWS, "", "web/"),
    "ordinal 4 of 3 to 6": (web("4", "4x4"), "StatefulSet", LED, "", "web/"),
    "a Deployment's": (replica("a"), "Deployment", LED, "", ""),
    "a large Deployment's": (
        replica("a", spec={"nodeSelector": {TOPOLOGY: "4x4"}}), "Deployment", LED,
        SEVERAL.format("a Deployment's Pod"), "",
    ),
    "a ReplicaSet's": (pod(owner="ReplicaSet web"), "ReplicaSet", LED, "", ""),
    "a large ReplicaSet's": (
        pod(owner="ReplicaSet web", topology="4x4"), "ReplicaSet", LED,
        SEVERAL.format("a ReplicaSet's Pod"), "",
    ),
    "a bare Pod": (pod("one"), "Pod", LED, "", "one/"),
    "a large bare Pod": (pod("one", topology="4x4"), "Pod", LED, SEVERAL.format("a Pod"), "one/"),
    "a Pod of a group": (
        pod("one", metadata={"labels": {"kueue.x-k8s.io/pod-group-name": "g"}}), "Pod", LED, GROUPED,
        "one/",
    ),
    "another project's Job": (
        job_pod(ownerReferences=[{
            "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "train", "uid": "u",
            "controller": True,
        }]), "Pod", LED, OF_VOLCANO, "train-0-x/",
    ),
    "a Pod of an unknown controller": (pod("one", owner="RayCluster ray"), "Pod", LED, OF_RAY, "one/"),
}  # fmt: skip


@pytest.mark.parametrize("case", CLAIMS.values(), ids=CLAIMS)
def test_each_pod_has_one_kind_which_knows_its_unit_and_why_it_gets_no_slice(
    case: tuple[dict[str, Any], str, bool, str, str],
) -> None:
    raw, kind, is_leader, refusal, unit = case
    demand = read_demand(raw)
    claims = [made for one in KINDS if (made := one.claim(demand))]
    claim = claims[0]
    assert len(claims) == 1 or claims[1:] == [POD.claim(demand)]
    assert (claim.kind.name, claim.is_leader, claim.refusal) == (kind, is_leader, refusal)
    found = claim.kind.find_unit(demand)
    assert claim.kind.is_assigned is (found is None)
    assert found is None or f"{found.owner}/{found.member}" == unit
    assert found is None or kind == "Job" or claim.refusal or claim.kind.names_unit(raw, found)
    assert claim.kind.find_pod_violation(demand, Unit(kind, "ns", "a", "")) == ""


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(job_pod(labels={JOBSET_NAME: "a"}), id="a JobSet's Job, by its label"),
        pytest.param(job_pod(annotations={INDEX: "0", JOBSET_NAME: "a"}), id="by its annotation"),
        pytest.param(
            web("0", metadata={"labels": {"leaderworkerset.sigs.k8s.io/name": "w"}}),
            id="a LeaderWorkerSet's StatefulSet",
        ),
        pytest.param(pod(owner="DaemonSet plugin"), id="a DaemonSet"),
        pytest.param(pod(owner="Node n"), id="a Node's own"),
    ],
)  # fmt: skip
def test_pods_of_other_kinds_and_of_nodes_are_not_claimed(raw: dict[str, Any]) -> None:
    demand = read_demand(raw)
    claims = [one.claim(demand) for one in KINDS]
    assert not any(claims[:-1])
    assert claims[-1] is None or claims[-1].refusal


def keyed(raw: dict[str, Any], owner: str) -> dict[str, Any]:
    """The Pod, which selects the key of this Job, as in ``ns/Job/train/``."""
    key = hashlib.sha1(owner.encode(), usedforsecurity=False).hexdigest()
    made: dict[str, Any] = merge(raw, {"spec": {"nodeSelector": {"job-key": key}}})
    return made


OPEN = (
    "the Pod has no nodeSelector job-key, so that Pods of other owners could take hosts of the "
    "slice: the Pods of {} must select job-key: "
)
FENCES: dict[str, tuple[UnitKind, dict[str, Any], str]] = {
    "a host of its own": (JOB, job_pod("0"), ""),
    "no fence": (JOB, job_pod("0", "4x4"), OPEN.format("Job train")),
    "no fence of ordinals": (STATEFUL_SET, web("0", "4x4"), OPEN.format("StatefulSet web")),
    "its own key": (JOB, keyed(job_pod("0", "4x4"), "ns/Job/train/"), ""),
    "the key of another namespace": (
        JOB,
        keyed(job_pod("0", "4x4"), "other/Job/train/"),
        "the Pod's nodeSelector job-key is '",
    ),
    "the key of another Pod": (
        POD,
        keyed(pod("one"), "ns/Pod/two/"),
        "the Pod's nodeSelector job-key",
    ),
}


@pytest.mark.parametrize("kind, raw, start", FENCES.values(), ids=FENCES)
def test_pods_of_other_owners_are_kept_from_the_hosts_of_a_slice(
    kind: UnitKind, raw: dict[str, Any], start: str
) -> None:
    demand = read_demand(raw)
    unit = kind.find_unit(demand)
    assert unit is not None
    violation = find_fence_violation(kind, demand, unit)
    assert violation.startswith(start)
    assert (unit.key in violation) is bool(start) is bool(violation)


UNEQUAL = (
    "Job train has parallelism 2 and completions 4: they must be equal, because all hosts of a slice "
    "run together"
)
STARTED = (
    "StatefulSet web has ordinals.start 3: it must be 0, because the Pods of a slice of several hosts "
    "are its workers 0 and on"
)
GOES = {"deletionTimestamp": "x"}
DONE = {"completedIndexes": "1,3-5,7"}
FINISHED = {
    "conditions": [
        {"type": "Complete", "status": "True", "lastTransitionTime": "2026-11-20T10:00:00Z"}
    ]
}
FOUR = {"parallelism": 4, "completions": 4}


def job(status: Any = None, metadata: Any = None, **spec: Any) -> dict[str, Any]:
    """Job ``train`` of four Pods, changed."""
    return owner("train", {**FOUR, **spec}, status, **(metadata or {}))


def stateful(replicas: int, start: int = 0) -> dict[str, Any]:
    return owner("web", {"replicas": replicas, "ordinals": {"start": start}})


def template(topology: str = "2x2", chips: int = 4) -> dict[str, Any]:
    """A template of Pods; without a topology, a queue adds it to the Pods."""
    spec = pod(topology=topology)["spec"]
    spec["containers"][0]["resources"]["requests"]["google.com/tpu"] = str(chips)
    return {"spec": spec}


def rolled(updated: int, topology: str = "2x2", chips: int = 4) -> dict[str, Any]:
    """StatefulSet ``web`` of four Pods, of which so many are of this template."""
    spec = {"replicas": 4, "template": template(topology, chips)}
    return owner("web", spec, {"updatedReplicas": updated})


NOW_LARGE = "the Pods of StatefulSet web ask for slices of topology 4x4 now"


BIG, SMALL = job_pod("0", "4x4"), job_pod("2")
WEB = web("2")
ROLLOUT = [{"kind": "Rollout", "name": "r", "uid": "r", "controller": True}]
FOUND: dict[str, tuple[dict[str, Any], dict[str, Any], Need, int, str]] = {
    "a Job": (BIG, {"Job": job()}, Need.NEEDED, 4, ""),
    "a Job in parts": (BIG, {"Job": job(parallelism=2)}, Need.NEEDED, 2, UNEQUAL),
    "an index of a Job in parts": (SMALL, {"Job": job(parallelism=2)}, Need.NEEDED, 1, ""),
    "a Job that is gone": (BIG, {}, Need.OWNER_GONE, 1, ""),
    "a Job that goes": (BIG, {"Job": job(metadata=GOES)}, Need.OWNER_GONE, 4, ""),
    "a Job that has ended": (BIG, {"Job": job(FINISHED)}, Need.OWNER_ENDED, 4, ""),
    "a Job that is suspended": (BIG, {"Job": job(suspend=True)}, Need.SUSPENDED, 4, ""),
    "a Job that has opted out": (
        BIG, {"Job": job(metadata={"labels": {OPT_OUT: "true"}})}, Need.OPTED_OUT, 4, "",
    ),
    "an index that has completed": (
        SMALL, {"Job": job({"completedIndexes": "0,2"})},
        Need.NOT_NEEDED, 1, "",
    ),
    "an index too many": (SMALL, {"Job": job(completions=2)}, Need.NOT_NEEDED, 1, ""),
    "an index that asks for another slice than the template": (
        SMALL, {"Job": job(template=template("4x4"))}, Need.NEEDED, 1, "",
    ),
    "an ordinal": (WEB, {"StatefulSet": stateful(3)}, Need.NEEDED, 1, ""),
    "an ordinal too many": (WEB, {"StatefulSet": stateful(2)}, Need.NOT_NEEDED, 1, ""),
    "a StatefulSet of several hosts": (
        web("0", "4x4"), {"StatefulSet": stateful(3)}, Need.NEEDED, 3, "",
    ),
    "a StatefulSet of several hosts with a start": (
        web("4", "4x4"), {"StatefulSet": stateful(4, 3)}, Need.NEEDED, 4, STARTED,
    ),
    "a Pod": (pod("one"), {}, Need.NEEDED, 1, ""),
    "a Deployment": (replica("a"), {"ReplicaSet": SERVE_5D, "Deployment": SERVE}, Need.NEEDED, 1, ""),
    "a Deployment that has opted out": (
        replica("a"),
        {"ReplicaSet": SERVE_5D, "Deployment": merge(SERVE, {"metadata": {"labels": {OPT_OUT: "yes"}}})},
        Need.OPTED_OUT, 1, "",
    ),
    "a Deployment that is gone": (replica("a"), {"ReplicaSet": SERVE_5D}, Need.OWNER_GONE, 1, ""),
    "its ReplicaSet is gone": (replica("a"), {"Deployment": SERVE}, Need.OWNER_GONE, 1, ""),
    "a ReplicaSet": (pod(owner="ReplicaSet serve"), {"ReplicaSet": SERVE}, Need.NEEDED, 1, ""),
    "another controller's ReplicaSet": (
        pod(owner="ReplicaSet serve"),
        {"ReplicaSet": merge(SERVE, {"metadata": {"ownerReferences": ROLLOUT}})}, Need.NEEDED, 1,
        "ReplicaSet serve is controlled by Rollout r: no slices are created for its Pods",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND)
def test_a_pod_that_waits_is_needed_by_its_owner_or_not(
    case: tuple[dict[str, Any], dict[str, Any], Need, int, str],
) -> None:
    raw, owners, need, hosts, violation = case
    demand = read_demand(raw)
    claim = next(made for one in KINDS if (made := one.claim(demand)))
    found = claim.kind.find(fake(raw, **owners), demand)
    assert (found.state.need, found.hosts, found.violation) == (need, hosts, violation)
    assert found.state.owner is not None or need is Need.OWNER_GONE
    is_assigned = claim.kind.is_assigned and need in (Need.NEEDED, Need.OPTED_OUT) and not violation
    assert [one.uid for one in found.pods] == ([demand.uid] if is_assigned else [])


HOUR = timedelta(hours=1)
SUSPENDED = {
    "conditions": [
        {
            "type": "Suspended",
            "status": "True",
            "lastTransitionTime": f"{NOW - HOUR:%Y-%m-%dT%H:%M:%SZ}",
        }
    ]
}
SLEEPS = owner("train", {**FOUR, "suspend": True}, SUSPENDED)
STATES: dict[str, tuple[UnitKind, str, Any, Need, str]] = {
    "a Job": (JOB, "train/", job(), Need.NEEDED, ""),
    "an ended Job": (JOB, "train/", job(FINISHED), Need.OWNER_ENDED, "Job train has ended (Complete)"),
    "a deleted Job": (JOB, "train/", None, Need.OWNER_GONE, "Job train no longer exists"),
    "a Job that goes": (
        JOB, "train/", job(metadata=GOES), Need.OWNER_GONE,
        "Job train is being deleted",
    ),
    "a suspended Job": (
        JOB, "train/", SLEEPS, Need.NOT_NEEDED,
        "Job train has been suspended for 60 minutes",
    ),
    "one without a time": (JOB, "train/", job(suspend=True), Need.SUSPENDED, ""),
    "a completed index": (
        JOB, "train/4", job(DONE, completions=9), Need.NOT_NEEDED,
        "Pod 4 of Job train has completed",
    ),
    "another index": (JOB, "train/6", job(DONE, completions=9), Need.NEEDED, ""),
    "a failed index": (
        JOB, "train/4", job({"failedIndexes": "2,4"}, completions=9), Need.NOT_NEEDED,
        "Pod 4 of Job train has failed",
    ),
    "a Job without parallelism": (
        JOB, "train/", job(parallelism=0), Need.NOT_NEEDED, "Job train has parallelism 0",
    ),
    "an index of a Job that was applied again for one slice": (
        JOB, "train/1", job(template=template("4x4")), Need.NOT_NEEDED,
        "the Pods of Job train ask for slices of topology 4x4 now",
    ),
    "the slice of a Job whose Pods have one each now": (
        JOB, "train/", job(template=template("2x2")), Need.NOT_NEEDED,
        "the Pods of Job train ask for slices of topology 2x2 now",
    ),
    "a Job whose queue adds the topology": (
        JOB, "train/", job(template=template("")), Need.NEEDED, "",
    ),
    "a Job that was applied again without TPUs": (
        JOB, "train/1", job(template=template("", 0)), Need.NOT_NEEDED,
        "the Pods of Job train ask for no TPUs now",
    ),
    "a webhook may add the chips": (
        JOB, "train/1", job(template=template(chips=0)), Need.NEEDED, "",
    ),
    "an index of its template": (JOB, "train/1", job(template=template()), Need.NEEDED, ""),
    "a Pod of a StatefulSet of its template": (STATEFUL_SET, "web/1", rolled(4), Need.NEEDED, ""),
    "all Pods are updated": (STATEFUL_SET, "web/1", rolled(4, "4x4"), Need.NOT_NEEDED, NOW_LARGE),
    "three Pods are updated": (STATEFUL_SET, "web/1", rolled(3, "4x4"), Need.NEEDED, ""),
    "the slice of all, of its template": (STATEFUL_SET, "web/", rolled(4, "4x4"), Need.NEEDED, ""),
    "no Pod asks for the slice of all": (
        STATEFUL_SET, "web/", rolled(4), Need.NOT_NEEDED,
        "the Pods of StatefulSet web ask for slices of topology 2x2 now",
    ),
    "an index too many": (
        JOB, "train/6", job(completions=6), Need.NOT_NEEDED,
        "Job train has no Pod 6 any more",
    ),
    "an index that is none": (
        JOB, "train/x", job(), Need.NOT_NEEDED, "Job train has no Pod x any more",
    ),
    "an ordinal that is none": (
        STATEFUL_SET, "web/x", stateful(2), Need.NOT_NEEDED, "StatefulSet web has no Pod x any more",
    ),
    "a StatefulSet": (STATEFUL_SET, "web/", owner("web"), Need.NEEDED, ""),
    "no replicas": (
        STATEFUL_SET, "web/", stateful(0), Need.NOT_NEEDED,
        "StatefulSet web has no replicas",
    ),
    "an ordinal": (STATEFUL_SET, "web/5", stateful(2, 4), Need.NEEDED, ""),
    "before the first": (
        STATEFUL_SET, "web/3", stateful(2, 4), Need.NOT_NEEDED,
        "StatefulSet web has no Pod 3 any more",
    ),
    "after the last": (
        STATEFUL_SET, "web/6", stateful(2, 4), Need.NOT_NEEDED,
        "StatefulSet web has no Pod 6 any more",
    ),
    "a Deployment's": (DEPLOYMENT, "serve/1", SERVE, Need.NEEDED, ""),
    "one that no Pod needs": (
        DEPLOYMENT, "serve/0", SERVE, Need.NOT_NEEDED,
        "no Pod of Deployment serve needs it",
    ),
    "a deleted Deployment's": (
        DEPLOYMENT, "serve/1", None, Need.OWNER_GONE,
        "Deployment serve no longer exists",
    ),
    "a bare Pod's": (POD, "a/", None, Need.NEEDED, ""),
    "a Pod's that was created again without TPUs": (
        POD, "cpu/", None, Need.NOT_NEEDED, "Pod cpu asks for no TPUs now",
    ),
    "an ended Pod's": (POD, "done/", None, Need.OWNER_ENDED, "Pod done has ended (Succeeded)"),
    "a deleted Pod's": (POD, "gone/", None, Need.OWNER_GONE, "Pod gone no longer exists"),
}  # fmt: skip


@pytest.mark.parametrize("case", STATES.values(), ids=STATES)
def test_a_unit_keeps_its_slice_until_its_owner_does_not_need_it(
    case: tuple[UnitKind, str, Any, Need, str],
) -> None:
    kind, text, found, need, why = case
    name, _, member = text.partition("/")
    unit = Unit(kind.name, "ns", name, member)
    views = {number: SliceView(frozenset({f"n{number}"})) for number in range(2)}
    rules = Rules(NOW, suspended_release=HOUR, views={unit.owner_key: views})
    cpu = pod("cpu", spec={"containers": [{"resources": {}}]})
    pods = (replica("a", "n1"), pod("done", status={"phase": "Succeeded"}), cpu)
    cluster = fake(*pods, **({kind.name: found} if found else {}))
    state = kind.read_states(cluster, [unit], rules)[unit]
    assert (state.need, state.why) == (need, why)


def test_many_owners_are_listed_and_few_are_read() -> None:
    for count, calls in ((8, {"get": 8}), (9, {"list": 1})):
        units = [Unit("Job", "ns", f"j{number}", "") for number in range(count)] * 2
        cluster = FakeCluster(Job=[owner(f"j{number}") for number in range(20)])
        states = JOB.read_states(cast("Cluster", cluster), units, Rules(NOW))
        assert {one.need for one in states.values()} == {Need.NEEDED}
        assert cluster.calls == calls


@pytest.mark.parametrize(
    "raw, is_there",
    [
        (replica("a"), True),
        (replica("a", "n"), True),
        (replica("a", spec={"schedulingGates": [{"name": "g"}]}), False),
        (replica("a", metadata={"labels": {OPT_OUT: "true"}}), False),
        (replica("a", "n", metadata={"labels": {OPT_OUT: "true"}}), True),
        (replica("a", metadata={"deletionTimestamp": "x"}), False),
        (replica("a", "n", status={"phase": "Failed"}), False),
        (replica("a", spec={"containers": [{}]}), False),
        (replica("a", spec={"nodeSelector": {TOPOLOGY: ""}}), False),
        (
            pod("a", owner="ReplicaSet other-5d", metadata={"labels": {"pod-template-hash": "5d"}}),
            False,
        ),
    ],
)
def test_pods_count_that_run_or_wait_for_a_slice_of_this_deployment(
    raw: dict[str, Any], is_there: bool
) -> None:
    first = replica("first")
    cluster = FakeCluster(first, raw, ReplicaSet=SERVE_5D, Deployment=SERVE)
    found = DEPLOYMENT.find(cast("Cluster", cluster), read_demand(first))
    assert [one.uid for one in found.pods] == ["first", "a"][: 1 + is_there]
    assert cluster.calls == {"get": 2, "list app=serve": 1}


OF_NODES = {"kind": "DaemonSet", "name": "x", "controller": True}
STRANGER = pod("guest", owner="Job x", spec={"nodeName": "n0"}, status={"phase": "Running"})


@pytest.mark.parametrize(
    "guest, ordinal",
    [
        (STRANGER, 1),
        (merge(STRANGER, {"metadata": {"deletionTimestamp": "x"}}), 0),
        (merge(STRANGER, {"status": {"phase": "Succeeded"}}), 0),
        (merge(STRANGER, {"spec": {"containers": [{}]}}), 0),
        (merge(STRANGER, {"metadata": {"ownerReferences": [OF_NODES]}}), 0),
        (replica("own", "n0"), 0),
    ],
)  # fmt: skip
def test_a_stranger_occupies_a_slice_but_not_a_pod_that_was_bound_since(
    guest: dict[str, Any], ordinal: int
) -> None:
    waiting = replica("a")
    cluster = fake(waiting, ReplicaSet=SERVE_5D, Deployment=SERVE)
    found = DEPLOYMENT.find(cluster, read_demand(waiting))
    views = {0: SliceView(frozenset({"n0"}))}
    now = FakeCluster(guest)
    assigned = assign_pods(cast("Cluster", now), DEPLOYMENT, found.unit, found.pods, views)
    assert assigned == {"a": ordinal}
    assert now.calls == {"list on": 1}


def test_pods_on_many_nodes_are_listed_once() -> None:
    waiting = replica("a")
    found = DEPLOYMENT.find(
        fake(waiting, ReplicaSet=SERVE_5D, Deployment=SERVE), read_demand(waiting)
    )
    views = {number: SliceView(frozenset({f"n{number}"})) for number in range(9)}
    now = FakeCluster(STRANGER)
    assigned = assign_pods(cast("Cluster", now), DEPLOYMENT, found.unit, found.pods, views)
    assert assigned == {"a": 1}
    assert now.calls == {"list bound": 1}


@pytest.mark.parametrize(
    "kind, unit, names",
    [
        (JOB, Unit("Job", "ns", "train", "2"), ["train-2-x"]),
        (STATEFUL_SET, Unit("StatefulSet", "ns", "web", "2"), ["web-2"]),
        (STATEFUL_SET, Unit("StatefulSet", "ns", "web", "1"), []),
        (DEPLOYMENT, Unit("Deployment", "ns", "serve", "0"), ["a"]),
        (DEPLOYMENT, Unit("Deployment", "ns", "other", "0"), []),
        (POD, Unit("Pod", "ns", "one", ""), ["one"]),
    ],
)
def test_the_pods_of_a_unit_are_listed(kind: UnitKind, unit: Unit, names: list[str]) -> None:
    cluster = fake(pod("one"), WEB, SMALL, job_pod("1"), replica("a"), Deployment=SERVE)
    assert [one["metadata"]["name"] for one in kind.list_pods(cluster, unit)] == names
    is_of_job = kind is JOB
    assert (
        cast("FakeCluster", cluster).calls["list batch.kubernetes.io/job-name=train"] == is_of_job
    )


QUEUED: dict[str, Any] = {"labels": {"kueue.x-k8s.io/queue-name": "tpus"}}
HELD: dict[str, Any] = {
    "metadata": {"creationTimestamp": f"{NOW - HOUR:%Y-%m-%dT%H:%M:%SZ}"},
    "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
}
WHY_HELD = "a queue has held the Pods of Pod 1 of StatefulSet web for 60 minutes"
HOLDS: dict[str, tuple[dict[str, Any], timedelta | None, list[Any], str]] = {
    "held for an hour": (QUEUED, HOUR, [web("1", **HELD)], WHY_HELD),
    "held for less": (QUEUED, HOUR + timedelta(seconds=1), [web("1", **HELD)], ""),
    "suspension releases nothing": (QUEUED, None, [web("1", **HELD)], ""),
    "in no queue": ({}, HOUR, [web("1", **HELD)], ""),
    "not held": (QUEUED, HOUR, [web("1", metadata=HELD["metadata"])], ""),
    "about to be created again": (QUEUED, HOUR, [], ""),
    "created at an unknown time": (
        QUEUED, HOUR, [web("1", **merge(HELD, {"metadata": {"creationTimestamp": "x"}}))], "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOLDS.values(), ids=HOLDS)
def test_pods_that_a_queue_holds_lose_their_slice_as_suspended_jobs_do(
    case: tuple[dict[str, Any], timedelta | None, list[Any], str],
) -> None:
    metadata, after, pods, why = case
    found = owner("web", {"replicas": 2}, {"readyReplicas": 1}, **metadata)
    unit = Unit("StatefulSet", "ns", "web", "1")
    rules = Rules(NOW, suspended_release=after)
    state = STATEFUL_SET.read_states(fake(*pods, StatefulSet=found), [unit], rules)[unit]
    assert (state.why, state.need is Need.NOT_NEEDED) == (why, bool(why))
    assert state.since == (NOW if why else None)


@pytest.mark.parametrize("kind", [STATEFUL_SET, JOB, POD], ids=lambda one: one.name)
def test_pods_are_read_only_if_those_of_a_workload_in_a_queue_are_not_ready(kind: UnitKind) -> None:
    """Jobs and Pods have no replicas: a queue suspends or deletes them."""
    status = {"readyReplicas": 2} if kind is STATEFUL_SET else {}
    spec = {"replicas": 2} if kind is STATEFUL_SET else FOUR if kind is JOB else {}
    cluster = FakeCluster(pod("web", **HELD), **{kind.name: owner("web", spec, status, **QUEUED)})
    unit = Unit(kind.name, "ns", "web", "" if kind is POD else "1")
    rules = Rules(NOW, suspended_release=HOUR)
    assert kind.read_states(cast("Cluster", cluster), [unit], rules)[unit].why == ""
    assert cluster.calls == {"get": 1}
