"""The JobSets in examples/: each creates Jobs, and each Job gets a slice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from local.jobsets import Controller
from local.tests.jobsets.cluster import Cluster
from shared.base.environment import Variables
from shared.base.names import POOL_LABEL
from shared.ports.gke_settings import read_gke_settings
from shared.slices.provider import DesiredSlice
from tests.support.jobset_objects import waiting_pod
from tests.support.slices import asked, build_group, build_pool
from webhook.admit_job import AdmissionSettings, admit
from webhook.tpu_env.admission import AdmissionRequest

EXAMPLES = Path(__file__).parents[3] / "examples"
PATHS = sorted(EXAMPLES.glob("jobset-v*.yaml"))
GKE = {
    "GCP_PROJECT_ID": "my-gcp-project",
    "GCP_CLUSTER_LOCATION": "us-central2",
    "GCP_CLUSTER": "my-cluster",
    "GCP_ZONE": "us-central2-b",
}


def read(path: Path) -> dict[str, Any]:
    (document,) = yaml.safe_load_all(path.read_text())
    assert isinstance(document, dict)
    return document


def apply(path: Path) -> Cluster:
    """Return a cluster with the JobSet; only `admit_job` can set the Jobs' selectors."""
    cluster = Cluster(controllers=frozenset(Controller) - {Controller.JOB_SELECTOR})
    stored = cluster.apply(read(path))
    assert stored["kind"] == "JobSet", stored
    cluster.run_for(5)
    return cluster


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_each_job_of_an_example_selects_the_nodes_of_its_own_slice(path: Path) -> None:
    created = apply(path).ask("GET", "/apis/batch/v1/jobs")["items"]
    jobs = read(path)["spec"]["replicatedJobs"]
    assert len(created) == sum(job["replicas"] for job in jobs)
    for job in created:
        answer = admit(AdmissionRequest("u", "CREATE", {**job, "kind": "Job"}), AdmissionSettings())
        patched = jsonpatch.apply_patch(job, list(answer.patch))
        assert "job-key" in patched["spec"]["template"]["spec"]["nodeSelector"]


def build_desired(path: Path, pod: dict[str, Any]) -> DesiredSlice:
    demand, unit = asked(pod)
    if "v4" in path.stem or "gke" in path.stem:
        return build_pool(demand, unit, read_gke_settings(Variables(GKE)))
    return build_group(demand, unit, read(EXAMPLES / "jobset-template.yaml")["data"])


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_slice_of_each_job_has_as_many_hosts_as_the_job_has_pods(path: Path) -> None:
    pods = apply(path).ask("GET", "/api/v1/pods")["items"]
    names = {build_desired(path, pod).name for pod in pods}
    (job,) = read(path)["spec"]["replicatedJobs"]
    assert len(names) == len(pods) == job["replicas"]
    hosts = job["template"]["spec"]["completions"]
    for pod in pods:
        body = build_desired(path, pod).body
        assert hosts in (body.get("spec", {}).get("nodeCount"), body.get("initialNodeCount"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_exclusive_topology_of_an_example_is_the_pool_label(path: Path) -> None:
    annotations = read(path)["metadata"]["annotations"]
    assert annotations == {"alpha.jobset.sigs.k8s.io/exclusive-topology": POOL_LABEL}


# Pages


def kueue(kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind in the example of Kueue."""
    text = (EXAMPLES / "jobset-kueue.yaml").read_text()
    return [one for one in yaml.safe_load_all(text) if one["kind"] == kind]


def flavors_of(queue: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the flavors of a ClusterQueue in the example."""
    by_name = {one["metadata"]["name"]: one for one in kueue("ResourceFlavor")}
    (group,) = queue["spec"]["resourceGroups"]
    return [by_name[one["name"]] for one in group["flavors"]]


def test_each_queue_of_the_kueue_example_admits_the_example_jobset() -> None:
    (jobset,) = (read(path) for path in PATHS if "v6e" in path.stem)
    (job,) = jobset["spec"]["replicatedJobs"]
    requested = job["template"]["spec"]["template"]["spec"]["containers"][0]["resources"][
        "requests"
    ]
    queues = {one["metadata"]["name"]: one for one in kueue("ClusterQueue")}
    served = {local["spec"]["clusterQueue"] for local in kueue("LocalQueue")}
    assert served == set(queues)
    for local in kueue("LocalQueue"):
        assert local["metadata"]["namespace"] == jobset["metadata"]["namespace"]
        assert local["metadata"]["name"] == local["spec"]["clusterQueue"]
    for queue in queues.values():
        (group,) = queue["spec"]["resourceGroups"]
        assert set(requested) == set(group["coveredResources"])
    flavors = [
        flavor["metadata"]["name"] for queue in queues.values() for flavor in flavors_of(queue)
    ]
    assert sorted(flavors) == sorted(one["metadata"]["name"] for one in kueue("ResourceFlavor"))


@pytest.mark.parametrize("queue", kueue("ClusterQueue"), ids=lambda one: one["metadata"]["name"])
def test_the_flavors_of_a_queue_in_the_kueue_example_have_the_same_keys(
    queue: dict[str, Any],
) -> None:
    """Kueue compares a Pod's selectors only with the keys of each flavor itself, and a JobSet that is
    resumed in another flavor keeps the selectors of the first one."""
    assert len({frozenset(one["spec"]["nodeLabels"]) for one in flavors_of(queue)}) == 1


def test_workloads_of_high_priority_preempt_others_in_the_kueue_example() -> None:
    (high,) = kueue("WorkloadPriorityClass")
    for queue in kueue("ClusterQueue"):
        assert queue["spec"]["preemption"] == {"withinClusterQueue": "LowerPriority"}
    assert high["value"] > 0


@pytest.mark.parametrize("provider", ["node pools", "TPUNodeGroups"])
@pytest.mark.parametrize("flavor", kueue("ResourceFlavor"), ids=lambda one: one["metadata"]["name"])
def test_a_pod_that_kueue_admits_to_a_flavor_gets_a_slice_of_that_flavor(
    flavor: dict[str, Any], provider: str
) -> None:
    spec = flavor["spec"]
    pod = waiting_pod(spec={"tolerations": spec.get("tolerations", [])})
    pod["spec"]["nodeSelector"] |= spec["nodeLabels"]
    demand, unit = asked(pod)
    if provider == "node pools":
        config = build_pool(demand, unit, read_gke_settings(Variables(GKE))).body["config"]
        kind = ("spot" in config, (config.get("reservationAffinity") or {}).get("values"))
    else:
        options = read(EXAMPLES / "jobset-template.yaml")["data"]
        config = build_group(demand, unit, options).body["spec"]["instanceConfig"]
        reservation = [config["reservation"]] if "reservation" in config else None
        kind = (config["provisioningModel"] == "SPOT", reservation)
    kinds = {
        "v6e": (False, None),
        "v6e-spot": (True, None),
        "v6e-reserved": (False, ["my-tpu-reservation"]),
    }
    assert kind == kinds[flavor["metadata"]["name"]]


def test_the_migration_page_names_each_variable_of_node_pools() -> None:
    root = EXAMPLES.parent
    page = (root / "docs" / "migrate-from-tpu-provisioner.md").read_text()
    source = (root / "shared" / "slices" / "by_node_pool" / "desired_pool.py").read_text()
    names = set(re.findall(r'"(G(?:CP|KE)_[A-Z_]+)"', source))
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_migration_page_names_each_field_of_node_pools_in_terraform() -> None:
    root = EXAMPLES.parent
    page = (root / "docs" / "migrate-from-tpu-provisioner.md").read_text()
    variables = (root / "infra" / "terraform" / "variables.tf").read_text()
    block = variables.partition('variable "node_pools"')[2].partition("validation")[0]
    fields = set(re.findall(r"^    ([a-z_]+) +=", block, re.MULTILINE))
    assert len(fields) > 10
    assert {name for name in fields if not re.search(rf"`(node_pools\.)?{name}`", page)} == set()
