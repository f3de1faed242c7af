"""Deployments, Jobs, StatefulSets and Pods get slices, with both providers, from a Pod that waits to the
deletion of what is left."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from math import ceil
from typing import Any

import jsonpatch
import pytest

from local.base.http import Response
from local.cloud.simulation import Options
from local.jobsets import PodBehaviour
from local.kube import KubeApi
from local.kube.writing import Attributes
from shared.settings import GKE, TPU_NODE_GROUP
from shared.slices.units import OPT_OUT, Unit
from tests.faults.jobsets import SETTINGS
from tests.stories import helpers
from tests.stories import workload_objects as objects
from tests.stories.helpers import MINUTE, describe_state
from tests.stories.jobsets import OPTIONS, RUNS_FOREVER, reported_events, until
from tests.stories.workload_objects import FOUR_HOSTS, NAMESPACE, PATHS
from tests.support import jobset_objects
from tests.support.harness import Harness
from webhook.tie_pod import tie
from webhook.tpu_env.admission import AdmissionRequest

MERGE = {"Content-Type": "application/merge-patch+json"}
KINDS = "JobSet, LeaderWorkerSet, Deployment, ReplicaSet, StatefulSet, Job, Pod"
LISTED = f"{NAMESPACE}: {{kinds: [{KINDS}], slices: 8, chips: 64}}"


def new_harness(provider: str, behaviour: PodBehaviour = RUNS_FOREVER) -> Harness:
    harness = Harness(Options(workloads=True), slices=SETTINGS[provider])
    harness.simulation.admin("POST", OPTIONS, jobset_objects.config_map(namespaces=LISTED))
    harness.jobsets.behaviour = behaviour
    return harness


def apply(harness: Harness, manifest: dict[str, Any]) -> None:
    answer = harness.simulation.admin("POST", PATHS[manifest["kind"]], manifest)
    assert answer["kind"] == manifest["kind"], answer


def scale(harness: Harness, kind: str, replicas: int) -> None:
    path = f"{PATHS[kind]}/serve"
    harness.simulation.admin("PATCH", path, {"spec": {"replicas": replicas}}, **MERGE)


def pods(harness: Harness) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = harness.simulation.admin("GET", PATHS["Pod"])["items"]
    return found


def running(harness: Harness) -> int:
    return sum(one["status"].get("phase") == "Running" for one in pods(harness))


def slices(harness: Harness) -> int:
    path = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
    return len(harness.simulation.admin("GET", path)["items"]) + len(harness.gke.leftovers())


def last_sweep(harness: Harness, step: str) -> int:
    """A step's calls to the API server in its last sweep."""
    sweeps = [
        one for one in harness.log.lines if (one["step"], one.get("trigger")) == (step, "Sweep")
    ]
    count: int = sweeps[-1]["calls"]["kubernetes"]
    return count


@pytest.mark.parametrize(
    "manifest, creation, kept",
    [
        (jobset_objects.small_jobset(), 11, 1),
        (objects.leader_worker_set(size=1, topology=objects.ONE_HOST), 11, 1),
        (objects.deployment(), 14, 3),
        (objects.replica_set(), 13, 3),
        (objects.job(), 11, 1),
        (objects.stateful_set(), 11, 1),
        (objects.pod(), 10, 1),
    ],
    ids=lambda one: one["kind"] if isinstance(one, dict) else "",
)
def test_the_life_of_a_slice_of_each_kind_takes_few_calls(
    manifest: dict[str, Any], creation: int, kept: int
) -> None:
    """``creation``: the calls that create a slice in a namespace with a limit, in a new process.
    ``kept``: those of a minute in which the slice is kept, besides the lists of slices and classes."""
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, manifest)
    until(harness, lambda: running(harness) == 1)
    harness.run_for(5 * MINUTE)
    lines = [one for one in harness.log.lines if one["step"].endswith("_slice")]
    spent = {
        one["decision"]: one["calls"]["kubernetes"] for one in lines if one["trigger"] != "Sweep"
    }
    assert spent["Creating"] <= creation
    assert all(one < spent["Creating"] for name, one in spent.items() if name != "Creating"), spent
    assert len(spent) <= 2, "an invocation for the Pod, and one resync"
    assert last_sweep(harness, "release_slice") <= 2 + kept
    assert last_sweep(harness, "provision_slice") <= 2, "the options, and the Pods that wait"
    path = f"{PATHS[manifest['kind']]}/{manifest['metadata']['name']}"
    ended = len(lines)
    harness.simulation.admin("DELETE", path)
    until(harness, lambda: harness.leftovers() == [])
    lines = [one for one in harness.log.lines if one["step"].endswith("_slice")][ended:]
    release = [one["calls"]["kubernetes"] for one in lines if one["trigger"] != "Sweep"]
    lists_of_nodes_and_pods = 1 + 1
    assert sum(release) <= 7 + lists_of_nodes_and_pods + 2 * (kept - 1)


@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.slow)])
def test_pods_without_tpus_cost_the_sweep_only_pages_of_those_without_a_node(count: int) -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.deployment())
    until(harness, lambda: running(harness) == 1)
    harness.run_for(5 * MINUTE)
    steps = ("sweep", "provision_slice", "release_slice")
    before = [last_sweep(harness, step) for step in steps]
    harness.jobsets.controllers = frozenset()  # nobody schedules or runs these Pods
    for number in range(count - 1):  # the relay's own Pod waits, too
        for name, spec in (("waits", {}), ("runs", {"nodeName": "cpu-node"})):
            container = {"name": "serve", "image": "serve", "resources": None}
            given = {**spec, "nodeSelector": None, "containers": [container]}
            apply(harness, objects.pod(f"{name}-{number}", spec=given))
    answers = len(harness.answers)
    harness.run_for(2 * MINUTE)
    after = [last_sweep(harness, step) for step in steps]
    pages = ceil(count / 500)
    assert after == [before[0], before[1] + pages - 1, before[2]]
    assert {step for step, _ in harness.answers[answers:]} <= {*steps}


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
def test_replicas_are_scaled_from_1_to_3_to_0(kind: str, provider: str) -> None:
    make: dict[str, Callable[[], dict[str, Any]]] = {
        "Deployment": objects.deployment,
        "ReplicaSet": objects.replica_set,
        "StatefulSet": objects.stateful_set,
    }
    harness = new_harness(provider)
    apply(harness, make[kind]())
    until(harness, lambda: running(harness) == 1)
    scale(harness, kind, 3)
    until(harness, lambda: running(harness) == 3)
    harness.run_for(5 * MINUTE)
    assert slices(harness) == 3, describe_state(harness)
    scale(harness, kind, 0)
    until(harness, lambda: harness.leftovers() == [])


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
@pytest.mark.parametrize("surge", [0, 1])
def test_a_rollout_buys_only_what_surges(surge: int, provider: str) -> None:
    harness = new_harness(provider)
    apply(harness, objects.deployment(2, surge=surge))
    until(harness, lambda: running(harness) == 2)
    before = {one["metadata"]["name"] for one in pods(harness)}
    changed = objects.template()
    changed["metadata"]["labels"]["version"] = "2"
    path = f"{PATHS['Deployment']}/serve"
    harness.simulation.admin("PATCH", path, {"spec": {"template": changed}}, **MERGE)
    peak = 0

    def is_done() -> bool:
        nonlocal peak
        peak = max(peak, slices(harness))
        now = {one["metadata"]["name"] for one in pods(harness)}
        return before.isdisjoint(now) and running(harness) == 2 and slices(harness) == 2

    until(harness, is_done)
    harness.run_for(5 * MINUTE)
    assert (peak, slices(harness)) == (2 + surge, 2)


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_an_indexed_job_runs_and_leaves_nothing(end: str, provider: str) -> None:
    harness = new_harness(provider, PodBehaviour(run_s=60, ends=lambda _: end))
    apply(harness, objects.job(2))
    until(harness, lambda: running(harness) == 2)
    until(harness, lambda: harness.leftovers() == [])


def select_key(manifest: dict[str, Any]) -> dict[str, Any]:
    """A workload whose Pods select their own slice, as the webhook tie-pods does."""
    unit = Unit(manifest["kind"], NAMESPACE, manifest["metadata"]["name"], "")
    manifest["spec"]["template"]["spec"]["nodeSelector"]["job-key"] = unit.key
    return manifest


def topologies(harness: Harness) -> list[str]:
    path = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
    found = harness.simulation.admin("GET", path)["items"]
    return sorted(one["spec"]["topology"] for one in found)


def test_a_slice_of_all_replicas_is_released_when_each_has_one() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, select_key(objects.stateful_set(4, FOUR_HOSTS)))
    until(harness, lambda: running(harness) == 4)
    changed = objects.template()
    changed["spec"]["nodeSelector"]["job-key"] = None
    path = f"{PATHS['StatefulSet']}/serve"
    harness.simulation.admin("PATCH", path, {"spec": {"template": changed}}, **MERGE)
    until(harness, lambda: topologies(harness).count("2x2") == 4)
    until(harness, lambda: running(harness) == 4 and FOUR_HOSTS not in topologies(harness))
    assert len(topologies(harness)) == 4


def test_slices_of_single_hosts_are_released_when_a_group_has_one_of_several() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.leader_worker_set(topology=objects.ONE_HOST))
    until(harness, lambda: running(harness) == 4)
    changed = objects.leader_worker_set()
    path = f"{PATHS['LeaderWorkerSet']}/serve"
    harness.simulation.admin("PATCH", path, changed, **MERGE)
    until(harness, lambda: running(harness) == 4 and topologies(harness) == [FOUR_HOSTS])


def test_slices_of_a_job_are_released_that_it_does_not_need_when_it_is_applied_again() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.job(4))
    until(harness, lambda: running(harness) == 4)
    harness.simulation.admin("DELETE", f"{PATHS['Job']}/train")
    apply(harness, select_key(objects.job(4, FOUR_HOSTS)))
    until(harness, lambda: running(harness) == 4 and topologies(harness) == [FOUR_HOSTS])


def test_a_stateful_set_that_needs_no_tpus_any_more_keeps_no_slice() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.stateful_set(2))
    until(harness, lambda: running(harness) == 2)
    changed = {"nodeSelector": None, "containers": [{"name": "serve", "image": "serve"}]}
    path = f"{PATHS['StatefulSet']}/serve"
    change = {"spec": {"template": {"spec": changed}}}
    harness.simulation.admin("PATCH", path, change, **MERGE)
    until(harness, lambda: topologies(harness) == [])


def test_an_api_that_fails_for_one_kind_does_not_stop_the_release_of_other_slices() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    for manifest in (objects.stateful_set(), objects.job()):
        apply(harness, manifest)
    until(harness, lambda: running(harness) == 2)
    broken = "GET /apis/apps/v1/namespaces/default/statefulsets"
    words = {"message": "conversion webhook failed", "reason": "InternalError", "code": 500}
    harness.hooks.instead = lambda _, call: (
        Response.of_json(words, 500) if call.startswith(broken) else None
    )
    for kind, name in (("StatefulSet", "serve"), ("Job", "train")):
        harness.simulation.admin("DELETE", f"{PATHS[kind]}/{name}")
    harness.run_for(10 * MINUTE)
    left = Unit("StatefulSet", NAMESPACE, "serve", "0").slice_name
    groups = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
    found = harness.simulation.admin("GET", groups)["items"]
    assert [one["metadata"]["name"] for one in found] == [left]
    harness.hooks.instead = lambda *_: None
    until(harness, lambda: harness.leftovers() == [])


def test_jobsets_that_cannot_be_read_do_not_stop_the_release_of_other_slices() -> None:
    """Another release of JobSet may serve another version."""
    harness = new_harness(TPU_NODE_GROUP)
    for manifest in (jobset_objects.small_jobset(topology="2x4", hosts=2), objects.job()):
        apply(harness, manifest)
    until(harness, lambda: running(harness) == 3)
    jobsets = "GET /apis/jobset.x-k8s.io/v1alpha2/"
    harness.hooks.instead = lambda _, call: (
        Response(404, body=b"404 page not found") if call.startswith(jobsets) else None
    )
    harness.simulation.admin("DELETE", f"{PATHS['Job']}/train")
    harness.run_for(10 * MINUTE)
    groups = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
    (left,) = harness.simulation.admin("GET", groups)["items"]
    assert left["metadata"]["name"] == "train-bfcf5ebea76efcf5"
    assert "tpu-functions.dev/release-after" not in left["metadata"]["annotations"]
    sweeps = [line for line in harness.log.lines if line["step"] == "release_slice"]
    assert "503 NotServed" in sweeps[-1]["note"]
    harness.hooks.instead = lambda *_: None
    harness.simulation.admin("DELETE", f"{PATHS['JobSet']}/train")
    until(harness, lambda: harness.leftovers() == [])


def test_classes_that_cannot_be_read_stop_no_release() -> None:
    """A release only counts what they have."""
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.job())
    until(harness, lambda: running(harness) == 1)
    classes = "GET /apis/tpu-functions.dev/v1alpha1/tpusliceclasses"
    words = {"message": "no permission", "reason": "Forbidden", "code": 403}
    harness.hooks.instead = lambda _, call: (
        Response.of_json(words, 403) if call.startswith(classes) else None
    )
    harness.simulation.admin("DELETE", f"{PATHS['Job']}/train")
    until(harness, lambda: harness.leftovers() == [], 10 * MINUTE)


def test_pods_whose_deployment_was_deleted_without_them_are_told_that_it_is_gone() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.deployment())
    until(harness, lambda: running(harness) == 1)
    orphan = {"propagationPolicy": "Orphan"}
    harness.simulation.admin("DELETE", f"{PATHS['Deployment']}/serve", orphan)
    (left,) = harness.simulation.admin("GET", PATHS["ReplicaSet"])["items"]
    path = f"{PATHS['ReplicaSet']}/{left['metadata']['name']}"
    harness.simulation.admin("PATCH", path, {"spec": {"replicas": 0}}, **MERGE)
    until(harness, lambda: harness.leftovers() == [])
    harness.simulation.admin("PATCH", path, {"spec": {"replicas": 1}}, **MERGE)
    harness.run_for(5 * MINUTE)
    assert reported_events(harness)[-1].startswith(
        "Pod TPUNodeGroupCreationFailed: Deployment serve does not exist or is being deleted, so that "
    )


def test_a_pod_of_a_deployment_that_asks_for_several_hosts_keeps_no_slice() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.deployment(2))
    until(harness, lambda: running(harness) == 2)
    change = {"spec": {"template": objects.template(FOUR_HOSTS)}}
    harness.simulation.admin("PATCH", f"{PATHS['Deployment']}/serve", change, **MERGE)
    until(harness, lambda: (running(harness), slices(harness)) == (1, 1))


def test_a_pod_whose_first_one_does_not_wait_for_their_slice_is_told_that() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.stateful_set(3))
    until(harness, lambda: running(harness) == 3)
    changed = select_key(objects.stateful_set(3, FOUR_HOSTS))
    path = f"{PATHS['StatefulSet']}/serve"
    harness.simulation.admin("PATCH", path, {"spec": changed["spec"]}, **MERGE)
    harness.run_for(20 * MINUTE)
    name = Unit("StatefulSet", NAMESPACE, "serve", "").slice_name
    assert reported_events(harness)[-1] == (
        f"Pod TPUNodeGroupCreationFailed: TPUNodeGroup {name} does not exist, and is created when the "
        "first Pod of StatefulSet serve waits for it. If that Pod runs elsewhere or has ended, delete "
        "StatefulSet serve and apply it again"
    )


def test_a_suspended_job_loses_its_slice_after_a_time_and_gets_one_again() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    harness.configure(suspended_release=timedelta(minutes=5))
    apply(harness, objects.job(1))
    until(harness, lambda: running(harness) == 1)
    path = f"{PATHS['Job']}/train"
    harness.simulation.admin("PATCH", path, {"spec": {"suspend": True}}, **MERGE)
    harness.run_for(3 * MINUTE)
    assert slices(harness) == 1
    until(harness, lambda: harness.leftovers() == [])
    harness.simulation.admin("PATCH", path, {"spec": {"suspend": False}}, **MERGE)
    until(harness, lambda: running(harness) == 1)


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
def test_a_pod_of_its_own_gets_a_slice_until_it_is_deleted(provider: str) -> None:
    harness = new_harness(provider)
    apply(harness, objects.pod("one"))
    until(harness, lambda: running(harness) == 1)
    harness.simulation.admin("DELETE", f"{PATHS['Pod']}/one")
    until(harness, lambda: harness.leftovers() == [])


def test_a_pod_whose_sidecar_has_half_of_the_chips_gets_a_slice_for_all_of_them() -> None:
    harness, made = new_harness(TPU_NODE_GROUP), objects.pod()
    (container,) = made["spec"]["containers"]
    made["spec"]["nodeSelector"] = jobset_objects.selector("tpu7x", "2x2x1")
    half = {"google.com/tpu": "2"}
    container["resources"] = {"requests": half, "limits": half}
    made["spec"]["initContainers"] = [{**container, "name": "data", "restartPolicy": "Always"}]
    apply(harness, made)
    until(harness, lambda: running(harness) == 1)


def test_a_pod_of_which_only_an_init_container_asks_for_chips_gets_a_slice() -> None:
    harness, made = new_harness(TPU_NODE_GROUP), objects.pod()
    (container,) = made["spec"]["containers"]
    made["spec"]["initContainers"] = [{**container, "name": "prepare"}]
    del container["resources"]
    apply(harness, made)
    until(harness, lambda: running(harness) == 1)


def test_a_stranger_costs_no_slice_more_than_pods() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.deployment())
    until(harness, lambda: running(harness) == 1)
    (pod,) = pods(harness)
    apply(harness, objects.pod("guest", spec={"nodeName": pod["spec"]["nodeName"]}))
    harness.simulation.admin("DELETE", f"{PATHS['Pod']}/{pod['metadata']['name']}")
    until(harness, lambda: running(harness) == 2 and slices(harness) == 2)
    harness.simulation.admin("DELETE", f"{PATHS['Pod']}/guest")
    until(harness, lambda: slices(harness) == 1)
    harness.run_for(5 * MINUTE)
    assert (running(harness), slices(harness)) == (1, 1)


def pin(manifest: dict[str, Any], node: str) -> dict[str, Any]:
    """A workload whose Pods run on a Node, whoever has that."""
    spec = manifest["spec"]
    (spec["template"]["spec"] if "template" in spec else spec)["nodeName"] = node
    return manifest


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
@pytest.mark.parametrize("guest", [objects.job(), objects.pod("guest")], ids=["Job", "Pod"])
@pytest.mark.parametrize(
    "host",
    [objects.stateful_set(), objects.leader_worker_set(size=1, topology=objects.ONE_HOST)],
    ids=lambda one: one["kind"],
)
def test_a_unit_on_whose_slice_another_one_runs_gets_the_slice_of_that_for_good(
    host: dict[str, Any], guest: dict[str, Any], provider: str
) -> None:
    harness = new_harness(provider)
    apply(harness, host)
    until(harness, lambda: running(harness) == 1)
    (pod,) = pods(harness)
    apply(harness, pin(deepcopy(guest), pod["spec"]["nodeName"]))
    harness.simulation.admin("DELETE", f"{PATHS['Pod']}/serve-0")
    until(harness, lambda: running(harness) == 2)
    assert slices(harness) == 2
    path = f"{PATHS[guest['kind']]}/{guest['metadata']['name']}"
    harness.simulation.admin("DELETE", path)
    until(harness, lambda: slices(harness) == 1)
    harness.run_for(10 * MINUTE)
    assert (running(harness), slices(harness)) == (1, 1)
    harness.simulation.admin("DELETE", f"{PATHS['Pod']}/serve-0")
    until(harness, lambda: running(harness) == 1)
    assert slices(harness) == 1
    harness.simulation.admin("DELETE", f"{PATHS[host['kind']]}/serve")
    until(harness, lambda: harness.leftovers() == [])


GUEST = objects.pod("guest")
OPTED_OUT = objects.pod("guest", metadata={"labels": {OPT_OUT: "true"}})
UNFIT = "TPUNodeGroupUnfit: .* and Pods of {} run on it: compare"


@pytest.mark.parametrize(
    "guest, options, told",
    [
        (objects.deployment(), {}, UNFIT.format("ReplicaSet default/serve-[0-9a-f]+")),
        (OPTED_OUT, {}, UNFIT.format("Pod default/guest")),
        (GUEST, {"namespaces": LISTED.replace(" 8", " 1")}, "SliceLimitReached: "),
        (GUEST, {"namespaces": LISTED.replace(", Pod", "")}, UNFIT.format("Pod default/guest")),
    ],
    ids=["a Deployment", "opted out", "at the limit", "a kind that is off"],
)  # fmt: skip
def test_a_unit_waits_for_its_slice_while_what_gets_none_runs_on_it_and_is_told_so(
    guest: dict[str, Any], options: dict[str, str], told: str
) -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.stateful_set())
    until(harness, lambda: running(harness) == 1)
    (pod,) = pods(harness)
    harness.simulation.admin("PATCH", f"{OPTIONS}/jobsets", {"data": options}, **MERGE)
    apply(harness, pin(deepcopy(guest), pod["spec"]["nodeName"]))
    harness.simulation.admin("DELETE", f"{PATHS['Pod']}/serve-0")
    harness.run_for(40 * MINUTE)
    assert (running(harness), slices(harness)) == (1, 1)
    assert len([one for one in reported_events(harness) if re.search(told, one)]) == 1
    path = f"{PATHS[guest['kind']]}/{guest['metadata']['name']}"
    harness.simulation.admin("DELETE", path)
    until(harness, lambda: [one["metadata"]["name"] for one in pods(harness)] == ["serve-0"])
    until(harness, lambda: running(harness) == 1)
    assert slices(harness) == 1


def tied(key: str, topology: str = objects.ONE_HOST) -> dict[str, Any]:
    """The template of a Job whose Pods select the Nodes with a key."""
    made = objects.template(topology, "Never")
    made["spec"]["nodeSelector"]["job-key"] = key
    return made


TRAIN = Unit("Job", NAMESPACE, "train", "")
ANOTHER = Unit("JobSet", "other", "train", "train-main-0")


def tie_pods(attributes: Attributes) -> None:
    """Call tie_pod about new Pods, as the API server does."""
    pod = attributes.document
    if pod["kind"] == "Pod" and attributes.operation == "CREATE":
        namespace = pod["metadata"]["namespace"]
        answer = tie(AdmissionRequest("u", "CREATE", pod, namespace=namespace))
        jsonpatch.apply_patch(pod, answer.patch, in_place=True)


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
@pytest.mark.parametrize(
    "manifest",
    [objects.job(4, FOUR_HOSTS), objects.stateful_set(4, FOUR_HOSTS)],
    ids=lambda one: one["kind"],
)
def test_a_workload_of_several_hosts_whose_pods_the_webhook_ties_gets_its_slice_and_leaves_nothing(
    manifest: dict[str, Any], provider: str
) -> None:
    harness = new_harness(provider)
    cluster = harness.simulation.kube
    assert isinstance(cluster, KubeApi)
    cluster.add_admission(tie_pods)
    apply(harness, manifest)
    until(harness, lambda: running(harness) == 4)
    name = manifest["metadata"]["name"]
    key = Unit(manifest["kind"], NAMESPACE, name, "").key
    assert {one["spec"]["nodeSelector"]["job-key"] for one in pods(harness)} == {key}
    assert slices(harness) == 1
    harness.simulation.admin("DELETE", f"{PATHS[manifest['kind']]}/{name}")
    until(harness, lambda: slices(harness) == 0)


def cordon(harness: Harness, node: str, *, is_on: bool = True) -> None:
    path = f"/api/v1/nodes/{node}"
    harness.simulation.admin("PATCH", path, {"spec": {"unschedulable": is_on}}, **MERGE)


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
@pytest.mark.parametrize(
    "manifest, has_guest",
    [
        (jobset_objects.jobset(), False),
        (objects.leader_worker_set(), True),
        (objects.job(4, FOUR_HOSTS, template=tied(TRAIN.key, FOUR_HOSTS)), False),
    ],
    ids=lambda one: one["kind"] if isinstance(one, dict) else "",
)
def test_a_pod_that_waits_beside_a_ready_slice_while_its_leader_runs_is_told_once(
    manifest: dict[str, Any], has_guest: bool, provider: str
) -> None:
    harness = new_harness(provider)
    apply(harness, manifest)
    until(harness, lambda: len(helpers.nodes(harness)) > 0)
    node, others = sorted(helpers.nodes(harness))[-1], ""
    cordon(harness, node)
    until(harness, lambda: running(harness) == 3)
    if has_guest:
        others = ", and Pods of Pod default/guest run on it"
        apply(harness, pin(deepcopy(OPTED_OUT), node))
        until(harness, lambda: running(harness) == 4)
        cordon(harness, node, is_on=False)
    waiting = {one["metadata"]["name"] for one in pods(harness) if not one["spec"].get("nodeName")}
    harness.run_for(14 * MINUTE)
    assert not [one for one in reported_events(harness) if "Unfit" in one]
    began = len(harness.log.lines)
    harness.run_for(timedelta(hours=2))
    events = harness.simulation.admin("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    (told,) = [one for one in events if one["reason"].endswith("Unfit")]
    assert ({told["involvedObject"]["name"]}, told["count"]) == (waiting, 1)
    assert f"the scheduler finds no Node of it for the Pod{others}: compare " in told["message"]
    about = [one["decision"] for one in harness.log.lines[began:] if one.get("pod")]
    assert {*about} <= {"NotWaiting", "Unfit"}
    assert len(about) <= 10, "at growing intervals"
    assert (running(harness), slices(harness)) == (3 + has_guest, 1)

    if has_guest:
        harness.simulation.admin("DELETE", f"{PATHS['Pod']}/guest")
    else:
        cordon(harness, node, is_on=False)
    until(harness, lambda: running(harness) == 4)
    harness.simulation.admin("DELETE", f"{PATHS[manifest['kind']]}/{manifest['metadata']['name']}")
    until(harness, lambda: slices(harness) == 0)


def test_a_job_of_several_hosts_that_selects_its_key_gets_its_slice_and_only_this_one() -> None:
    harness = new_harness(TPU_NODE_GROUP)
    apply(harness, objects.job(4, FOUR_HOSTS, template=tied(TRAIN.key, FOUR_HOSTS)))
    until(harness, lambda: running(harness) == 4)
    assert slices(harness) == 1


@pytest.mark.parametrize(
    "manifest, why",
    [
        (
            objects.deployment(spec={"template": objects.template(FOUR_HOSTS)}),
            "4x4 has 4 hosts of 4 chips, and a Deployment's Pod gets slices of one host only: use a",
        ),
        (objects.job(1, completionMode="NonIndexed"), "Job train is not Indexed"),
        (
            objects.job(4, FOUR_HOSTS),
            "the Pod has no nodeSelector job-key, so that Pods of other owners could take hosts of the "
            f"slice: the Pods of Job train must select job-key: {TRAIN.key}, as the webhook "
            "tie-pods adds to new Pods in namespaces with the label tpu-functions.dev/tie: enabled",
        ),
        (
            objects.job(template=tied(ANOTHER.key)),
            f"the Pod's nodeSelector job-key is '{ANOTHER.key}': only ",
        ),
    ],
)
@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
def test_what_gets_no_slice_is_told_why(manifest: dict[str, Any], why: str, provider: str) -> None:
    harness = new_harness(provider)
    apply(harness, manifest)
    harness.run_for(5 * MINUTE)
    events = harness.simulation.admin("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    assert any(why in one["message"] for one in events), events
    assert slices(harness) == 0


def test_a_namespace_that_is_not_listed_gets_nothing() -> None:
    harness = Harness(Options(workloads=True), slices=SETTINGS[TPU_NODE_GROUP])
    harness.simulation.admin("POST", OPTIONS, jobset_objects.config_map())
    apply(harness, objects.deployment())
    harness.run_for(10 * MINUTE)
    assert slices(harness) == 0
    assert "KindOff" in {answer.outcome for _, answer in harness.answers}
