"""tie_pod: each Pod of a unit selects the Nodes of the unit's slice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.base.slice_names import job_key
from tests.support.admission import evaluate
from tests.unit.webhook.workloads import container, pod, selector
from webhook.tie_pod import tie
from webhook.tpu_env.admission import AdmissionRequest, AdmissionResponse

OPT_OUT = "tpu-provisioner.cloud.google.com/disable-autoprovisioning"
LWS = "leaderworkerset.sigs.k8s.io"
GROUP_3 = {f"{LWS}/name": "o", f"{LWS}/group-index": "3", f"{LWS}/worker-index": "1"}
INDEX = {"batch.kubernetes.io/job-completion-index": "2"}
SIDECAR = {**container("s"), "restartPolicy": "Always"}
VERSIONS = {"Job": "batch/v1", "RayCluster": "ray.io/v1"}
COMPONENT = Path(__file__).parents[3] / "infra" / "chart" / "manifests" / "tie-pods"
(WEBHOOK,) = yaml.safe_load((COMPONENT / "webhook.yaml").read_text())["webhooks"]


def make(owner: str, topology: str = "4x4", tpu: int | None = 4, **more: Any) -> dict[str, Any]:
    one = container(tpu=tpu)
    if tpu is not None:
        one["resources"]["requests"] = one["resources"]["limits"]
    reference = {"apiVersion": VERSIONS.get(owner, "apps/v1"), "kind": owner, "name": "o"}
    owners = [{**reference, "controller": True}] if owner else None
    selected = {**selector("tpu-v6e-slice", topology), **more.pop("also", {})}
    return pod(one, name="o-1", owners=owners, nodeSelector=selected, **more)


def review(target: dict[str, Any], **fields: Any) -> AdmissionResponse:
    given: dict[str, Any] = {"operation": "CREATE", "namespace": "serving", **fields}
    return tie(AdmissionRequest("u", target=target, **given))


def is_sent(target: dict[str, Any]) -> bool:
    """Evaluate the match conditions as the API server does."""
    return all(
        evaluate(one["expression"], {"object": target}) for one in WEBHOOK["matchConditions"]
    )


TIED: dict[str, tuple[dict[str, Any], str]] = {
    "a StatefulSet's": (make("StatefulSet"), "StatefulSet/o/"),
    "an Indexed Job's": (make("Job", annotations=INDEX), "Job/o/"),
    "a group's": (make("StatefulSet", labels=GROUP_3), "LeaderWorkerSet/o/3"),
    "chips of a sidecar only": (
        make("StatefulSet", tpu=None, initContainers=[SIDECAR]),
        "StatefulSet/o/",
    ),
    "chips of an init container only": (
        make("Job", tpu=None, annotations=INDEX, initContainers=[container("i")]),
        "Job/o/",
    ),
}


@pytest.mark.parametrize("made, unit", TIED.values(), ids=TIED)
def test_a_pod_of_a_slice_of_several_hosts_selects_the_slice_of_its_own_unit(
    made: dict[str, Any], unit: str
) -> None:
    answer, key = review(made), job_key("serving", unit)
    assert answer.patch == ({"op": "add", "path": "/spec/nodeSelector/job-key", "value": key},)
    assert is_sent(made)
    made["spec"]["nodeSelector"] |= {"job-key": key}
    assert review(made) == AdmissionResponse()
    # The namespace is the request's, so that no Pod selects another namespace's slice.
    made["spec"]["nodeSelector"] |= {"job-key": job_key("other", unit)}
    (warning,) = review(made).warnings
    assert f"only {key}, the key of " in warning
    assert review(made).patch == ()


LEFT: dict[str, tuple[dict[str, Any], dict[str, str], bool]] = {
    "one host": (make("StatefulSet", "2x2"), {}, True),
    "no chips": (make("StatefulSet", tpu=None), {}, False),
    "a Deployment's": (make("ReplicaSet"), {}, False),
    "no controller": (make(""), {}, False),
    "another project's": (make("RayCluster"), {}, False),
    "a JobSet's": (
        make("Job", annotations={**INDEX, "jobset.sigs.k8s.io/jobset-name": "o"}),
        {},
        False,
    ),
    "not Indexed": (make("Job"), {}, True),
    "opted out": (make("StatefulSet", labels={OPT_OUT: "true"}), {}, True),
    "a group without its number yet": (make("StatefulSet", labels={f"{LWS}/name": "o"}), {}, True),
    "a group with subgroups": (
        make("StatefulSet", labels=GROUP_3, annotations={f"{LWS}/subgroup-size": "2"}),
        {},
        True,
    ),
    "an update": (make("StatefulSet"), {"operation": "UPDATE"}, True),
    "a status": (make("StatefulSet"), {"sub_resource": "status"}, True),
}


@pytest.mark.parametrize("made, request_, sent", LEFT.values(), ids=LEFT)
def test_any_other_pod_is_left_alone(
    made: dict[str, Any], request_: dict[str, str], sent: bool
) -> None:
    assert review(made, **request_) == AdmissionResponse()
    assert is_sent(made) is sent


def test_a_pod_is_reviewed_only_when_it_is_created_in_a_namespace_with_the_label() -> None:
    asked = {"key": "tpu-functions.dev/tie", "operator": "In", "values": ["enabled"]}
    assert asked in WEBHOOK["namespaceSelector"]["matchExpressions"]
    assert [(rule["resources"], rule["operations"]) for rule in WEBHOOK["rules"]] == [
        (["pods"], ["CREATE"])
    ]
    assert WEBHOOK["clientConfig"]["service"]["path"] == "/mutate-pods"
    assert (WEBHOOK["reinvocationPolicy"], WEBHOOK["failurePolicy"]) == ("IfNeeded", "Fail")
