"""LeaderWorkerSets with their own controller and webhooks, and with the webhook inject_env."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.control_plane import workload_controllers
from local.control_plane.plane import ControlPlaneError, OwnControlPlane
from local.tests.jobsets.cluster import Cluster
from local.tests.real_parts import get_workload_controllers, open_own_control_plane
from shared.base.slice_names import job_key
from tests.real.pods import COMPONENT, OWN_MARK, complete, kubectl, marked
from tests.real.relay.waiting import until
from tests.real.webhooks import Served, serving
from tests.unit.webhook import lws
from tests.unit.webhook.workloads import Manifest, container, injecting, selector, stateful_set
from tests.unit.webhook.workloads import pod as make_pod
from webhook.tie_pod import tie

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("leader worker sets")]

ALONE, AFTER, BEFORE = "alone", "after", "before"
"""Namespaces: without inject_env, and with it after or before LeaderWorkerSet's webhook."""
NAMESPACES = (ALONE, AFTER, BEFORE)
TIE_PODS = COMPONENT.parent / "tie-pods"
TIE_NAMES = {AFTER: "tpu-functions-tie-pods", BEFORE: "a-tie-pods"}
"""The second name precedes those of LeaderWorkerSet's webhook and of inject_env."""
GROUPS = 2
TWO_HOSTS = selector("tpu7x", "2x2x2")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnControlPlane]:
    """A cluster with LeaderWorkerSet, in whose namespaces inject_env is called in both orders."""
    folder = get_workload_controllers()
    with (
        open_own_control_plane() as plane,
        workload_controllers.running(plane, folder, workload_controllers.LWS),
        serving(
            tmp_path_factory.mktemp("tls"), {"/mutate": injecting(), "/mutate-pods": tie}
        ) as served,
    ):
        names = dict(zip((AFTER, BEFORE), lws.ORDERS, strict=True))
        for namespace in NAMESPACES:
            kubectl(plane, "create", "namespace", namespace)
        for namespace, name in names.items():
            kubectl(plane, "label", "namespace", namespace, "tpu-functions.dev/tie=enabled")
            for path, one in ((COMPONENT, name), (TIE_PODS, TIE_NAMES[namespace])):
                configuration = configure(served, path, one, namespace)
                kubectl(plane, "apply", "-f", "-", stdin=json.dumps(configuration))
        until(lambda: all(is_injected(plane, one) for one in names), "inject_env is called")
        yield plane


def configure(served: Served, component: Path, name: str, namespace: str) -> Manifest:
    """The configuration of a component's webhook under a name, for one namespace."""
    configuration = served.configure(component / "webhook.yaml")
    configuration["metadata"]["name"] = name
    only = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace]}
    for webhook in configuration["webhooks"]:
        webhook["namespaceSelector"]["matchExpressions"].append(only)
    return configuration


def is_injected(plane: OwnControlPlane, namespace: str) -> bool:
    """Return whether the API server calls inject_env in a namespace."""
    on_hosts = stateful_set(name="probe", replicas=2, pod={"nodeSelector": TWO_HOSTS})
    probe = complete(marked(on_hosts))
    probe["metadata"]["namespace"] = namespace
    made = kubectl(
        plane, *("create", "--dry-run=server", "-o", "json", "-f", "-"), stdin=json.dumps(probe)
    )
    return "TPU_WORKER_HOSTNAMES" in made


def leader_worker_set(
    name: str, size: int, topology: str, leader: Manifest, subgroups: Manifest, policy: str
) -> Manifest:
    """A LeaderWorkerSet of `GROUPS` groups; the leader's container may differ from the workers'."""
    metadata = {"labels": {OWN_MARK: "enabled"}}
    hosts = {"nodeSelector": selector("tpu7x", topology)}
    template = {
        "size": size,
        "leaderTemplate": {"metadata": metadata, "spec": {"containers": [leader], **hosts}},
        "workerTemplate": {"metadata": metadata, "spec": {"containers": [container()], **hosts}},
        **({"subGroupPolicy": subgroups} if subgroups else {}),
    }
    return {
        "apiVersion": workload_controllers.LWS.api_version,
        "kind": workload_controllers.LWS.kind,
        "metadata": {"name": name},
        "spec": {
            "replicas": GROUPS,
            "leaderWorkerTemplate": template,
            "networkConfig": {"subdomainPolicy": policy},
        },
    }


LED = {"subGroupPolicyType": "LeaderWorker", "subGroupSize": 2}
"""Subgroups in which LeaderWorkerSet 0.9 numbers the leader -1: nothing is injected beside that."""
WITHOUT_LEADER = {"subGroupPolicyType": "LeaderExcluded", "subGroupSize": 2}


@pytest.mark.parametrize("policy", ["Shared", "UniquePerReplica"])
@pytest.mark.parametrize(
    "name, size, topology, leader, subgroups",
    [
        ("all", 4, "2x2x4", container(), {}),
        ("workers", 3, "2x2x2", container(tpu=None), {}),
        ("led", 4, "2x2x2", container(), LED),
        ("halves", 5, "2x2x2", container(tpu=None), WITHOUT_LEADER),
    ],
    ids=["all", "workers", "led subgroups", "subgroups of workers"],
)
def test_the_pods_of_a_group_have_the_same_variables_in_each_order_of_the_webhooks(
    name: str,
    size: int,
    topology: str,
    leader: Manifest,
    subgroups: Manifest,
    policy: str,
    cluster: OwnControlPlane,
) -> None:
    name = f"{name}-{policy.lower()}"
    manifest = leader_worker_set(name, size, topology, leader, subgroups, policy)
    for namespace in NAMESPACES:
        kubectl(cluster, "-n", namespace, "create", "-f", "-", stdin=json.dumps(manifest))
    alone, after, before = (await_pods(cluster, one, name, GROUPS * size) for one in NAMESPACES)
    for name, pod in alone.items():
        own, variables = env_of(pod), env_of(after[name])
        assert own.items() <= variables.items()
        assert variables == env_of(before[name])
        has_number = own.get("TPU_WORKER_ID", "-1") != "-1"
        assert ("JAX_PROCESS_ID" in variables) is (has_number and subgroups != LED)
        assert env_of(lws.mutate(without_env(pod))) == own, "tests of inject_env imitate it"


@pytest.mark.parametrize("policy", ["Shared", "UniquePerReplica"])
@pytest.mark.parametrize("is_exclusive", [False, True], ids=["everywhere", "exclusive"])
@pytest.mark.parametrize("chips", ["4", None], ids=["all", "workers"])
def test_the_stand_in_creates_the_same_objects(
    policy: str, is_exclusive: bool, chips: str | None, cluster: OwnControlPlane
) -> None:
    name = f"same-{policy.lower()}-{chips or 0}-{'one' if is_exclusive else 'any'}"
    manifest = leader_worker_set(name, 3, "2x2x2", container(tpu=chips), {}, policy)
    manifest["metadata"] |= {"namespace": ALONE, "annotations": dict(EXCLUSIVE[is_exclusive])}
    kubectl(cluster, "create", "-f", "-", stdin=json.dumps(manifest))
    count = GROUPS if is_exclusive else GROUPS * 3
    await_pods(cluster, ALONE, name, count)
    simulated = Cluster()
    simulated.ask("POST", "/api/v1/namespaces", {"metadata": {"name": ALONE}})
    simulated.ask("POST", f"/apis/{workload_controllers.LWS.api_version}/{LISTED}", manifest)
    simulated.run_for(10)
    for path in (
        f"/api/v1/namespaces/{ALONE}/pods",
        f"/apis/apps/v1/namespaces/{ALONE}/statefulsets",
    ):
        query = f"{path}?labelSelector={lws.PREFIX}/name={name}"
        real = cluster.request("GET", query)[1]["items"]
        assert describe(simulated.items(query)) == describe(real)


EXCLUSIVE = {False: {}, True: {f"{lws.PREFIX}/exclusive-topology": "cloud.google.com/gke-nodepool"}}
LISTED = f"namespaces/{ALONE}/leaderworkersets"
RANDOM = {f"{lws.PREFIX}/template-revision-hash", "controller-revision-hash"}
"""Labels whose values are hashes of other inputs in the stand-in."""


def describe(items: list[Manifest]) -> dict[str, Manifest]:
    """What slices depend on of StatefulSets and Pods, by their names."""
    parts = ("replicas", "podManagementPolicy", "ordinals", "selector", "serviceName")
    places = ("nodeSelector", "subdomain", "hostname", "affinity")

    def read(item: Manifest) -> Manifest:
        metadata, spec = item["metadata"], item["spec"]
        template = spec.get("template")
        owners = [(one["kind"], one["name"]) for one in metadata.get("ownerReferences", ())]
        labels = metadata["labels"].items()
        return {
            "labels": {key: key in RANDOM or value for key, value in labels},
            "annotations": metadata.get("annotations") or {},
            "owners": owners,
            "spec": {key: spec[key] for key in (*parts, *places) if key in spec},
            "template": read({**template, "name": ""}) if template else None,
        }

    return {one["metadata"]["name"]: read(one) for one in items}


def await_pods(
    plane: OwnControlPlane, namespace: str, name: str, count: int
) -> dict[str, Manifest]:
    """Return the Pods of a LeaderWorkerSet, when all have been created, by their names."""

    def read() -> list[Manifest]:
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector={lws.PREFIX}/name={name}"
        found: list[Manifest] = plane.request("GET", path)[1]["items"]
        return found

    until(lambda: len(read()) == count, f"{count} Pods are created")
    return {pod["metadata"]["name"]: pod for pod in read()}


def env_of(pod: Manifest) -> dict[str, str]:
    """Return the variables of the container, without LeaderWorkerSet's own."""
    entries: list[Manifest] = pod["spec"]["containers"][0].get("env", [])
    return {one["name"]: one["value"] for one in entries if not one["name"].startswith("LWS_")}


@pytest.mark.parametrize("namespace", [AFTER, BEFORE])
def test_the_pods_of_each_group_select_its_own_slice_in_each_order_of_the_webhooks(
    namespace: str, cluster: OwnControlPlane
) -> None:
    manifest = leader_worker_set("tied", 2, "2x2x2", container(), {}, "Shared")
    kubectl(cluster, "-n", namespace, "create", "-f", "-", stdin=json.dumps(manifest))
    pods = await_pods(cluster, namespace, "tied", GROUPS * 2)
    for name, pod in pods.items():
        key = job_key(namespace, f"LeaderWorkerSet/tied/{name.split('-')[1]}")
        assert pod["spec"]["nodeSelector"]["job-key"] == key
        assert env_of(pod)


@pytest.mark.parametrize("namespace", [AFTER, BEFORE])
def test_the_pods_of_a_stateful_set_select_its_slice_and_a_selector_of_another_one_is_kept(
    namespace: str, cluster: OwnControlPlane
) -> None:
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "u"}
    owner = {**reference, "controller": True}
    foreign = {"job-key": job_key("other", "StatefulSet/web/")}
    own = {"job-key": job_key(namespace, "StatefulSet/web/")}
    cpu, one_host = {"tpu": None}, selector("tpu7x", "2x2x1")
    rows: list[tuple[dict[str, Any], Manifest, Manifest]] = [
        ({}, TWO_HOSTS, own),
        ({}, {**TWO_HOSTS, **foreign}, foreign),
        ({}, one_host, {}),
        (cpu, TWO_HOSTS, {}),
    ]
    for chips, selected, expected in rows:
        made = make_pod(container(**chips), name="web-0", owners=[owner], nodeSelector=selected)
        made["metadata"] |= {"namespace": namespace, "labels": {OWN_MARK: "enabled"}}
        text = json.dumps(made)
        shown = ("create", "--dry-run=server", "-o", "json", "-f", "-")
        done = cluster.run_kubectl(*shown, stdin=text)
        stored = json.loads(done.stdout)["spec"]["nodeSelector"]
        assert {key: stored[key] for key in stored.keys() & {"job-key"}} == expected
        assert ("only " + own["job-key"] in done.stderr) is (expected == foreign)


def without_env(pod: Manifest) -> Manifest:
    """Return the Pod without variables."""
    pod["spec"]["containers"][0].pop("env")
    return pod


def test_the_error_about_a_controller_that_ends_has_its_last_lines(
    cluster: OwnControlPlane, tmp_path: Path
) -> None:
    shutil.copy(get_workload_controllers() / "jobset.yaml", tmp_path)
    program = tmp_path / "jobset"
    program.write_text("#!/bin/sh\necho unable to load the configuration\nexit 1\n")
    program.chmod(0o755)
    with (
        pytest.raises(ControlPlaneError) as raised,
        workload_controllers.running(cluster, tmp_path, workload_controllers.JOBSET),
    ):
        raise AssertionError("it does not run")
    assert str(raised.value) == (
        "jobset is not ready; its last lines:\nunable to load the configuration"
    )
