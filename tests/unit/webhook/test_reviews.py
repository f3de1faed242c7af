"""Reviews as an API server sent them (recorded by tests/real/test_reviews.py), and their patches."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.webhook.workloads import injecting
from webhook.tpu_env.admission import Operation, review

RECORDINGS = Path(__file__).parents[2] / "data" / "reviews"
TEMPLATE = "/spec/template"

Entry = dict[str, Any]


def entries(**variables: str) -> list[Entry]:
    """Return variables of a container; a value in angle brackets is the path of a field."""
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": value[1:-1]}}}
        if value.startswith("<")
        else {"name": name, "value": value}
        for name, value in variables.items()
    ]


def added(base: str, variables: list[Entry]) -> list[Operation]:
    """Return the operations that add variables to a container without any."""
    path = f"{base}/spec/containers/0/env"
    return [
        {"op": "add", "path": path, "value": variables[:1]},
        *({"op": "add", "path": f"{path}/-", "value": one} for one in variables[1:]),
    ]


def marked() -> Operation:
    path = f"{TEMPLATE}/metadata/labels/tpu-functions.dev~1inject"
    return {"op": "add", "path": path, "value": "enabled"}


def noted(variables: list[Entry]) -> str:
    """Return the annotation that lists the injected variables."""
    digests = {
        f"c/{one['name']}": hashlib.sha256(compact(one).encode()).hexdigest()[:8]
        for one in variables
    }
    return compact(digests)


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def injected(variables: list[Entry]) -> list[Operation]:
    """Return the operations that inject variables into a template for the first time."""
    note = {"tpu-functions.dev/injected": noted(variables)}
    return [
        *added(TEMPLATE, variables),
        marked(),
        {"op": "add", "path": f"{TEMPLATE}/metadata/annotations", "value": note},
    ]


def of_set(name: str) -> list[Entry]:
    return entries(
        TPU_TOPOLOGY="2x2x2",
        TPU_ACCELERATOR_TYPE="tpu7x-16",
        TPU_HOST_BOUNDS="1,1,2",
        TPU_CHIPS_PER_HOST_BOUNDS="2,2,1",
        TPU_NAME=name,
        TPU_WORKER_ID="<metadata.labels['apps.kubernetes.io/pod-index']>",
        TPU_WORKER_HOSTNAMES=f"{name}-0.nginx,{name}-1.nginx",
        TPU_PROCESS_ADDRESSES=f"{name}-0.nginx:8471,{name}-1.nginx:8471",
        TPU_PROCESS_PORT="8471",
        JAX_COORDINATOR_ADDRESS=f"{name}-0.nginx:8482",
        JAX_PROCESS_COUNT="2",
        JAX_PROCESS_ID="<metadata.labels['apps.kubernetes.io/pod-index']>",
    )


OF_GROUP = entries(
    TPU_TOPOLOGY="2x2x2",
    TPU_ACCELERATOR_TYPE="tpu7x-16",
    TPU_HOST_BOUNDS="1,1,2",
    TPU_CHIPS_PER_HOST_BOUNDS="2,2,1",
)
"""The variables that LeaderWorkerSet's webhook does not set, before its own variables."""
SECOND_SLICE = entries(
    TPU_TOPOLOGY="2x2x2",
    TPU_ACCELERATOR_TYPE="tpu7x-16",
    TPU_HOST_BOUNDS="1,1,2",
    TPU_CHIPS_PER_HOST_BOUNDS="2,2,1",
    TPU_NAME="ms-slice-1",
    TPU_WORKER_ID="<metadata.annotations['batch.kubernetes.io/job-completion-index']>",
    TPU_WORKER_HOSTNAMES="ms-slice-1-0.ms,ms-slice-1-1.ms",
    TPU_PROCESS_ADDRESSES="ms-slice-1-0.ms:8471,ms-slice-1-1.ms:8471",
    TPU_PROCESS_PORT="8471",
    JAX_COORDINATOR_ADDRESS="ms-slice-0-0.ms:8482",
    JAX_PROCESS_COUNT="4",
    MEGASCALE_NUM_SLICES="2",
    MEGASCALE_SLICE_ID="1",
    MEGASCALE_COORDINATOR_ADDRESS="ms-slice-0-0.ms",
)
FOUR = {
    1: ("TPU_ACCELERATOR_TYPE", "tpu7x-32"),
    6: ("TPU_WORKER_HOSTNAMES", "side-0.nginx,side-1.nginx,side-2.nginx,side-3.nginx"),
    7: (
        "TPU_PROCESS_ADDRESSES",
        "side-0.nginx:8471,side-1.nginx:8471,side-2.nginx:8471,side-3.nginx:8471",
    ),
    10: ("JAX_PROCESS_COUNT", "4"),
    0: ("TPU_TOPOLOGY", "2x2x4"),
    2: ("TPU_HOST_BOUNDS", "1,1,4"),
}
"""The variables that differ with four hosts, by their position among those of two hosts."""


def patch_of_growth() -> list[Operation]:
    """Server-side apply keeps the fields of other managers, so the injected variables are updated."""
    variables = of_set("side")
    for position, (name, value) in FOUR.items():
        assert variables[position]["name"] == name
        variables[position] = {"name": name, "value": value}
    path = f"{TEMPLATE}/spec/containers/0/env"
    note = f"{TEMPLATE}/metadata/annotations/tpu-functions.dev~1injected"
    return [
        *(
            {"op": "replace", "path": f"{path}/{position}", "value": variables[position]}
            for position in sorted(FOUR)
        ),
        {"op": "add", "path": note, "value": noted(variables)},
    ]


def noted_on_pod(variables: list[Entry]) -> Operation:
    """Return the operation that lists the injected variables on a Pod, for the next call."""
    path = "/metadata/annotations/tpu-functions.dev~1injected"
    return {"op": "add", "path": path, "value": noted(variables)}


NUMBER = entries(JAX_PROCESS_ID="3")
"""The variable of a JobSet's Pod that its template cannot have as the path of a field."""
PATCHES: dict[str, list[Operation]] = {
    "stateful-set-created": injected(of_set("web")),
    "stateful-set-dry-run": injected(of_set("trial")),
    "stateful-set-applied-server-side": injected(of_set("side")),
    "stateful-set-updated": [],
    "stateful-set-grown-server-side": patch_of_growth(),
    # Its template has all variables.
    "pod-of-a-stateful-set": [],
    "job-of-a-jobset": injected(SECOND_SLICE),
    "pod-of-a-jobsets-job": [
        {"op": "add", "path": "/spec/containers/0/env/-", "value": NUMBER[0]},
        noted_on_pod([*SECOND_SLICE, *NUMBER]),
    ],
    "leader-of-a-group": [*added("", OF_GROUP), noted_on_pod(OF_GROUP)],
    "worker-of-a-group": [*added("", OF_GROUP), noted_on_pod(OF_GROUP)],
}


@pytest.mark.parametrize("case", PATCHES)
def test_a_recorded_review_is_answered_with_this_patch(case: str) -> None:
    body = (RECORDINGS / f"{case}.json").read_bytes()
    answer = review(body, injecting()).document
    expected = {"uid": json.loads(body)["request"]["uid"], "allowed": True}
    patch = answer["response"].pop("patch", "")
    assert json.loads(base64.b64decode(patch) or "[]") == PATCHES[case]
    if patch:
        expected["patchType"] = "JSONPatch"
    assert answer == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": expected,
    }


def test_every_recording_has_an_expected_patch() -> None:
    assert {path.stem for path in RECORDINGS.iterdir()} == set(PATCHES)
