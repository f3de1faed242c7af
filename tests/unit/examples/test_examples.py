"""Each file in examples/ can be applied to the cluster of `make local`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import yaml

from local.base.clock import VirtualClock
from local.cluster.manifests import (
    read_definitions_for_examples,
    read_leader_worker_set_crd,
    read_manifests,
    read_manifests_for_jobsets,
)
from local.kube import ADMIN, KubeApi
from local.run.supervisor import TPU_NODE_GROUP
from shared.slices.units import read_demand
from webhook.inject_env import InjectionSettings, inject
from webhook.tpu_env.admission import AdmissionRequest

EXAMPLES = Path(__file__).parents[3] / "examples"
PATHS = sorted(EXAMPLES.rglob("*.yaml"))


@pytest.fixture(scope="module")
def cluster() -> KubeApi:
    api = KubeApi(VirtualClock(), random=Random(1), tokens={"admin": ADMIN})
    api.apply_manifests(
        [
            *read_manifests(),
            *read_manifests_for_jobsets(TPU_NODE_GROUP),
            *read_definitions_for_examples(),
            read_leader_worker_set_crd(),
        ]
    )
    return api


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_each_example_is_accepted_with_every_field(cluster: KubeApi, path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    assert documents
    cluster.apply_manifests(documents)


@pytest.mark.parametrize(
    "name, path, pods",
    [
        ("deployment-v6e-2x2", ("template",), 1),
        ("indexed-job-v6e-2x2", ("template",), 1),
        ("indexed-job-v6e-2x4", ("template",), 2),
        ("leaderworkerset-v6e-2x4", ("leaderWorkerTemplate", "workerTemplate"), 2),
    ],
)
def test_as_many_pods_share_a_slice_of_an_example_as_it_has_hosts(
    name: str, path: tuple[str, ...], pods: int
) -> None:
    spec = next(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))["spec"]
    size = spec.get("leaderWorkerTemplate", {}).get("size", 1)
    assert pods in (size, spec.get("completions"))
    for key in path:
        spec = spec[key]
    demand = read_demand(spec)
    assert (demand.chips, demand.hosts) == (4, pods)


@pytest.mark.parametrize("name", ["indexed-job-v6e-2x4", "workload/job"])
def test_the_pods_of_a_job_on_several_hosts_are_told_of_each_other(name: str) -> None:
    found = yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())
    by_kind = {one["kind"]: one for one in found}
    job, service = by_kind["Job"], by_kind["Service"]
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["metadata"]["labels"] == {"tpu-functions.dev/inject": "enabled"}
    request = AdmissionRequest(
        uid="", operation="CREATE", target=job, old={}, namespace="default", sub_resource=""
    )
    answer = inject(request, InjectionSettings(False), is_namespace_marked=False)
    assert answer.warnings == ()
    assert "TPU_WORKER_HOSTNAMES" in str(answer.patch)
