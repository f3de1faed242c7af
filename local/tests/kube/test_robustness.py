# ruff: noqa: E501  (a table reads best with a row on a line)
"""Every request is answered, and none makes the server raise."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local.tests.contract.kubernetes.cases.objects import widget
from local.tests.contract.kubernetes.definitions import ALL, WIDGETS
from local.tests.contract.kubernetes.dialogue import JSON, JSON_PATCH, MERGE, STRATEGIC
from local.tests.contract.kubernetes.embedded import Embedded

BODIES: dict[str, Any] = {
    "/api/v1/nodes": {
        "metadata": {"name": "n", "labels": {"a": "b"}, "ownerReferences": []},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    },
    "/api/v1/namespaces/default/secrets": {
        "metadata": {"name": "s", "finalizers": ["a/b"], "generateName": "x-"},
        "stringData": {"a": "b"},
        "data": {"c": "ZA=="},
        "type": "x/y",
    },
    "/api/v1/namespaces/default/pods": {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 1}]}]}},
    "/apis/apps/v1/namespaces/default/daemonsets": {
        "metadata": {"name": "d"},
        "spec": {"selector": {}, "template": {"spec": {"containers": [], "nodeSelector": {}}}},
    },
    "/apis/batch/v1/namespaces/default/jobs": {"metadata": {"name": "j"}, "spec": {"template": {"metadata": {"labels": {}}, "spec": {"containers": []}}}},
    "/apis/certificates.k8s.io/v1/certificatesigningrequests": {
        "metadata": {"name": "c"},
        "spec": {"request": "ZA==", "signerName": "a/b", "usages": ["client auth"]},
    },
    "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings": {
        "metadata": {"name": "b"},
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "u"}],
    },
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}},
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": WIDGETS,
    "/apis/cases.example.com/v1/namespaces/default/widgets": widget(spec={"parts": [{"name": "p"}], "tags": ["t"], "since": "2026-01-01T00:00:00Z"}),
}  # fmt: skip
JUNK: list[Any] = [
    {"$patch": "delete"},
    {"$patch": "replace", "x": 1},
    {"$setElementOrder/conditions": 1, "$retainKeys": 1},
    [{"$patch": "replace"}, 1],
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "x",
    "\u00e9",
    [],
    [1],
    ["x"],
    [None],
    {},
    {"x": 1},
]
AS_KUBERNETES = "resourceVersion should not be set"
"""The message of an error that kube-apiserver itself answers with a 500, without a reason."""
QUERIES = ("", "limit=x", "fieldSelector=%3D", "labelSelector=((", "continue=%20", "dryRun=All")


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document."""
    yield at
    if isinstance(value, dict):
        for name, item in value.items():
            yield from paths(item, (*at, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths(item, (*at, index))


def with_junk(document: Any, path: tuple[Any, ...], junk: Any) -> Any:
    """Replace the value at one path of a document by junk."""
    if not path:
        return junk
    changed = copy.deepcopy(document)
    parent = changed
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = junk
    return changed


@st.composite
def corrupted_requests(draw: st.DrawFn) -> tuple[str, Any]:
    path = draw(st.sampled_from(sorted(BODIES)))
    body = BODIES[path]
    for _ in range(draw(st.integers(1, 2))):
        body = with_junk(
            body, draw(st.sampled_from(list(paths(body)))), draw(st.sampled_from(JUNK))
        )
    return path, body


SERVER = Embedded()
SERVER.api.apply_manifests(ALL)
SERVER.run_controllers()


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    corrupted_requests(),
    st.sampled_from(["POST", "PUT", "PATCH", "DELETE", "GET"]),
    st.sampled_from([JSON, MERGE, STRATEGIC, JSON_PATCH]),
    st.sampled_from(QUERIES),
    st.sampled_from(["", "/status", "/nope"]),
)
def test_no_request_makes_the_server_raise(
    sent: tuple[str, Any], method: str, content_type: str, query: str, subresource: str
) -> None:
    path, body = sent
    meta = BODIES[path].get("metadata", {"name": "x"})
    target = path if method == "POST" else f"{path}/{meta['name']}{subresource}"
    if method != "POST":
        SERVER.send("POST", path, BODIES[path])
    media_type = content_type if method == "PATCH" else JSON
    answer = SERVER.send(method, f"{target}?{query}", json.dumps(body).encode(), media_type)
    SERVER.run_controllers()
    assert 200 <= answer.status < 500 or answer.document["message"].startswith(AS_KUBERNETES)


@pytest.mark.parametrize(
    "spec, missing",
    [(None, "spec"), ({}, "spec.template"), ({"template": {}}, "spec.template.spec.containers")],
)
def test_a_job_without_a_template_is_invalid(spec: Any, missing: str) -> None:
    body = {"metadata": {"name": "bare"}, "spec": spec}
    answer = SERVER.send("POST", "/apis/batch/v1/namespaces/default/jobs", body)
    assert answer.status == 422
    assert f"{missing}: Required value" in answer.document["message"]


@pytest.mark.parametrize("missing", ["apiVersion", "kind", "name", "uid"])
def test_an_incomplete_owner_reference_is_invalid(missing: str) -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "x"}
    metadata = {"name": "m", "ownerReferences": [{**owner, missing: ""}]}
    answer = SERVER.send("POST", "/api/v1/namespaces/default/configmaps", {"metadata": metadata})
    assert answer.status == 422
    assert f"metadata.ownerReferences[0].{missing}: Required value" in answer.document["message"]


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=60),
    st.sampled_from([JSON, "application/vnd.kubernetes.protobuf"]),
)
def test_no_body_makes_the_server_raise(body: bytes, content_type: str) -> None:
    answer = SERVER.send("POST", "/api/v1/namespaces/default/configmaps", body, content_type)
    assert answer.status in (400, 415, 422)
