"""The example of Kueue with slices before admission: its parts fit, and each flavor buys as it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.base.names import WORKLOAD_LABEL
from shared.settings import TPU_NODE_GROUP
from shared.slices.classes import COMPUTE_CLASS
from shared.slices.requests import CLASS_NAME, DETAIL
from tests.stories import request_objects as requests
from tests.stories.helpers import MINUTE
from tests.stories.jobsets import until
from tests.stories.request_objects import RequestHarness, jobset
from tests.support.class_specs import CLASSES

EXAMPLE = Path(__file__).parents[3] / "examples" / "kueue-slices-first.yaml"
GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"


def list_objects(kind: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(EXAMPLE.read_text()) if one["kind"] == kind]


def test_the_queue_has_all_flavors_and_each_flavor_names_a_class_by_one_key() -> None:
    (queue,), (local,) = list_objects("ClusterQueue"), list_objects("LocalQueue")
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    (group,) = queue["spec"]["resourceGroups"]
    flavors = {one["metadata"]["name"]: one["spec"] for one in list_objects("ResourceFlavor")}
    assert [one["name"] for one in group["flavors"]] == [*flavors]
    assert len({frozenset(one["nodeLabels"]) for one in flavors.values()}) == 1
    named = [one["nodeLabels"][COMPUTE_CLASS] for one in flavors.values()]
    assert named == [one["metadata"]["name"] for one in list_objects("TPUSliceClass")]


def test_the_check_asks_for_slices_and_ties_the_pods_to_them() -> None:
    (queue,), (check,) = list_objects("ClusterQueue"), list_objects("AdmissionCheck")
    (config,) = list_objects("ProvisioningRequestConfig")
    strategy = queue["spec"]["admissionChecksStrategy"]
    assert strategy == {"admissionChecks": [{"name": check["metadata"]["name"]}]}
    assert check["spec"]["controllerName"] == "kueue.x-k8s.io/provisioning-request"
    assert check["spec"]["parameters"]["name"] == config["metadata"]["name"]
    assert config["spec"]["provisioningClassName"] == CLASS_NAME
    assert config["spec"]["podSetUpdates"]["nodeSelector"] == [
        {"key": WORKLOAD_LABEL, "valueFromProvisioningClassDetail": DETAIL}
    ]


@pytest.mark.parametrize(
    "flavor, model",
    [
        ("v6e-class-reserved", "RESERVATION_BOUND"),
        ("v6e-class-spot", "SPOT"),
        ("v6e-class-flex-start", "FLEX_START"),
    ],
)
def test_a_request_in_a_flavor_gets_a_slice_of_its_class(flavor: str, model: str) -> None:
    harness = RequestHarness(TPU_NODE_GROUP)
    for manifest in list_objects("TPUSliceClass"):
        assert "uid" in harness.simulation.admin("POST", CLASSES, manifest)["metadata"]
    (spec,) = (
        one["spec"] for one in list_objects("ResourceFlavor") if one["metadata"]["name"] == flavor
    )
    made = jobset()
    pods = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pods["nodeSelector"] |= spec["nodeLabels"]
    harness.queue(made)
    until(harness, lambda: harness.created == 1, MINUTE)
    (group,) = harness.simulation.admin("GET", GROUPS)["items"]
    assert group["spec"]["instanceConfig"]["provisioningModel"] == model
    assert group["spec"]["nodeLabels"][COMPUTE_CLASS] == spec["nodeLabels"][COMPUTE_CLASS]
    assert requests.conditions(harness)["Accepted"] == "True"
