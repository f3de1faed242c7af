"""The real scheduler binds Pods to a slice's Nodes by their labels.

VMs join by bootstrap tokens, the product labels their Nodes, and Pods request chips with the usual
selectors.
"""

from __future__ import annotations

import copy
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from local.control_plane.plane import OwnControlPlane
from tests.processes.program import Local, running
from tests.real.relay.waiting import until
from tests.support.harness import ROOT
from tests.support.real_parts import open_own_control_plane

pytestmark = [pytest.mark.real, pytest.mark.processes, pytest.mark.xdist_group("scheduling")]

PODS = "/api/v1/namespaces/default/pods"
CLEAN_WITHIN_S = 120.0
GROUP = "my-tpu-node-group"
DATA = ROOT / "tests" / "data" / "spec.yaml"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnControlPlane]:
    """A cluster in which the slice of tpu-operator's README is Ready."""
    folder = tmp_path_factory.mktemp("local")
    with open_own_control_plane() as plane:
        kubeconfig = ("--kubeconfig", str(plane.kubeconfig))
        ports = ("--compute-port", "0", "--pubsub-port", "0")
        with running(folder, "local", *kubeconfig, *ports) as program:
            local = Local(program, plane.kubectl)
            local.kubectl("apply", "-f", "examples/tpu-operator-readme.yaml")
            local.kubectl("wait", "--for=condition=Ready", f"tng/{GROUP}", "--timeout=110s")
            yield plane
            assert program.stop(signal.SIGINT, CLEAN_WITHIN_S) == 0, program.output


def test_the_pods_of_tpu_operators_readme_are_bound_one_to_each_host(
    cluster: OwnControlPlane,
) -> None:
    for number in range(2):
        _create(cluster, _readme_pod(f"tpu-worker-v7x-{number}"))
    until(lambda: all(_node_of(pod) for pod in _pods(cluster)), "both Pods are bound")
    assert sorted(map(_node_of, _pods(cluster))) == _slice_nodes(cluster)


def test_the_job_of_the_examples_runs_on_a_slice(cluster: OwnControlPlane) -> None:
    documents = list(yaml.safe_load_all((ROOT / "examples" / "job.yaml").read_text()))
    (job,) = [document for document in documents if document["kind"] == "Job"]
    selector = job["spec"]["template"]["spec"]["nodeSelector"]
    selector["cloud.google.com/tpu-node-group-name"] = GROUP
    applied = cluster.run_kubectl("apply", "-f", "-", stdin=json.dumps(job))
    assert (applied.returncode, applied.stderr) == (0, "")
    until(lambda: len(_pods(cluster)) == 2, "the Job has two Pods")
    until(lambda: all(_node_of(pod) for pod in _pods(cluster)), "both Pods are bound")
    assert sorted(map(_node_of, _pods(cluster))) == _slice_nodes(cluster)


def _readme_pod(name: str) -> dict[str, Any]:
    """Return a Pod of the README's StatefulSet, with the fields that the scheduler reads."""
    workload = copy.deepcopy(yaml.safe_load(DATA.read_text())["original_workload"])
    container = {
        "name": "jax",
        "image": workload["image"],
        "resources": {"limits": workload["resources"]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "hostNetwork": workload["hostNetwork"],
            "nodeSelector": workload["nodeSelector"],
            "tolerations": workload["tolerations"],
            "containers": [container],
        },
    }


def _create(cluster: OwnControlPlane, pod: dict[str, Any]) -> dict[str, Any]:
    code, made = cluster.request("POST", PODS, pod)
    assert code == 201, made
    found: dict[str, Any] = made
    return found


def _pods(cluster: OwnControlPlane) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.request("GET", PODS)[1]["items"]
    return found


def _node_of(pod: dict[str, Any]) -> str:
    return str(pod["spec"].get("nodeName", ""))


def _slice_nodes(cluster: OwnControlPlane) -> list[str]:
    label = f"cloud.google.com/tpu-node-group-name={GROUP}"
    found = cluster.request("GET", f"/api/v1/nodes?labelSelector={label}")[1]["items"]
    return sorted(node["metadata"]["name"] for node in found)
