# ruff: noqa: E501  (a table reads best with a row on a line)
"""Any request has an answer, and a second review of an injected object changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.webhook.workloads import (
    Answered,
    Manifest,
    as_review,
    container,
    group_pod,
    injecting,
    job,
    jobset_labels,
    pod,
    selector,
    stateful_set,
)
from webhook.tpu_env.admission import AdmissionRequest, NoReviewError, Operation, review, set_keys
from webhook.tpu_env.workloads import MAX_WORKERS

TPU7X = selector("tpu7x", "2x2x2")
WORKLOADS: list[Manifest] = [
    stateful_set(replicas=2, start=3, pod={"nodeSelector": TPU7X}, annotations={"a": "b"}),
    stateful_set(
        container("a", 2, env=[{"name": "TPU_PROCESS_PORT", "value": "9000"}]),
        container("b", 2, restartPolicy="Always"),
        pod={"nodeSelector": TPU7X, "initContainers": [container("i")]},
    ),
    job(name="ms-slice-1", subdomain="ms", labels=jobset_labels(2, 1), pod={"nodeSelector": TPU7X}),
    pod(
        container(
            env=[{"name": "TPU_WORKER_HOSTNAMES", "value": "ms-slice-1-0.ms,ms-slice-1-1.ms"}]
        ),
        name="ms-slice-1-1-x7abc",
        owner="Job",
        subdomain="ms",
        labels={**jobset_labels(2, 1), "batch.kubernetes.io/job-name": "ms-slice-1"},
        annotations={"batch.kubernetes.io/job-completion-index": "1"},
    ),
    group_pod(name="test-sample-1-7", index=7, size=8, subgroup=4),
]
TEXTS = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["0", "1", "16", "9" * 5000, "٣", "2x2x2", "4x4", "Job", "localhost", ","]),
)
NUMBERS = st.one_of(st.integers(-2, 20), st.sampled_from([2**31 - 1, -(2**31), 2**63]))
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all parts of a document except the document itself."""
    if path:
        yield path
    if isinstance(value, dict):
        inner = list(value.items())
    else:
        inner = list(enumerate(value)) if isinstance(value, list) else []
    for key, part in inner:
        yield from list_paths(part, (*path, key))


def put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_an_object_of_any_form_has_an_answer(data: st.DataObject) -> None:
    document = as_review(deepcopy(data.draw(st.sampled_from(WORKLOADS))))
    for _ in range(data.draw(st.integers(1, 3))):
        put(document, data.draw(st.sampled_from(list(list_paths(document)))), data.draw(JSON))
    try:
        reviewed = review(json.dumps(document).encode(), injecting())
    except NoReviewError:
        return
    assert reviewed.document["response"]["uid"] == document["request"]["uid"]


@pytest.mark.conformance("patch-twice", "patch-nothing", "sts-update-unchanged")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_valid_object_is_injected_once_and_not_changed_again(
    data: st.DataObject,
) -> None:
    """The API server rejects unusual texts and numbers, but only after the webhook."""
    target = deepcopy(data.draw(st.sampled_from(WORKLOADS)))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(list_paths(target))))
        old: Any = target
        for key in path:
            old = old[key]
        if isinstance(old, str) and path != ("kind",):
            put(target, path, data.draw(TEXTS))
        elif isinstance(old, int) and not isinstance(old, bool):
            put(target, path, data.draw(NUMBERS))
        elif isinstance(old, list):
            put(target, path, data.draw(st.sampled_from([[], old[:1], old[::-1]])))
    once = Answered(target)
    operation = "CREATE" if target["kind"] == "Pod" else "UPDATE"
    assert Answered(once.target, operation=operation).patch == []


@pytest.mark.parametrize(
    "body",
    [b"[" * 1_000_000, b'{"a":' * 1_000_000, b"\xff\xfe", b"9" * 10_000, b"", b"null"],
    ids=["deep", "deep objects", "not UTF-8", "a long number", "empty", "null"],
)
def test_a_body_of_any_form_has_an_answer(body: bytes) -> None:
    with pytest.raises(NoReviewError):
        review(body, injecting())


MALFORMED: list[tuple[str, str, str]] = [
    ("infinite replicas", '{"kind": "StatefulSet", "metadata": {}, "spec": {"replicas": 1e999}}',
     "the StatefulSet is malformed"),
    ("infinite completions",
     '{"kind": "Job", "metadata": {}, "spec": {"completionMode": "Indexed", "completions": -1e999}}',
     "the Job is malformed"),
    ("Infinity", '{"kind": "StatefulSet", "spec": {"replicas": Infinity}}',
     "the body is not JSON: Infinity is not a number"),
    ("NaN", '{"kind": "StatefulSet", "spec": {"replicas": NaN}}',
     "the body is not JSON: NaN is not a number"),
    ("a list", "[]", "request.object of CREATE is not an object"),
    ("a text", '"Pod"', "request.object of CREATE is not an object"),
    ("nothing", "null", "request.object of CREATE is not an object"),
    ("metadata of no object", '{"kind": "Node", "metadata": "x"}',
     "request.object.metadata is not an object"),
]  # fmt: skip


@pytest.mark.parametrize(
    "target, message", [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED]
)
def test_an_invalid_object_is_an_error_that_names_it(target: str, message: str) -> None:
    body = json.dumps(as_review("HERE")).replace('"HERE"', target)
    with pytest.raises(NoReviewError) as raised:
        review(body.encode(), injecting())
    assert str(raised.value) == message


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_a_review_without_an_object_is_allowed(operation: str) -> None:
    assert Answered(None, operation=operation).response == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize("depth", [10, 300, 900, 5000])
def test_an_entry_of_any_depth_has_an_answer(depth: int) -> None:
    """The note contains a digest of the entry."""
    target = stateful_set(container(env=[{"name": "TPU_NAME", "valueFrom": "HERE"}]))
    key = {"tpu-functions.dev/injected": '{"c/TPU_NAME":"00000000"}'}
    target["spec"]["template"]["metadata"]["annotations"] = key
    deep = '{"a":' * depth + "{}" + "}" * depth
    body = json.dumps(as_review(target)).replace('"HERE"', deep).encode()
    try:
        assert review(body, injecting()).document["response"]["allowed"] is True
    except NoReviewError:
        assert depth > 300


def test_a_malformed_annotation_is_ignored() -> None:
    for note in ("[" * 100_000, "{", "[]", '{"c/TPU_NAME": 3}'):
        target = stateful_set()
        target["spec"]["template"]["metadata"]["annotations"] = {"tpu-functions.dev/injected": note}
        assert Answered(target).env()["TPU_NAME"] == "web"


HUGE: list[tuple[str, Manifest, str]] = [
    ("replicas", stateful_set(replicas=2**31 - 1), "StatefulSet web has 2147483647 replicas, but a slice has at most 9216"),
    ("completions", job(count=2**31 - 1), "Job tpu-job has 2147483647 completions, but a slice has at most 9216"),
    (
        "topology",
        pod(
            name="web-1",
            owner="StatefulSet",
            subdomain="s",
            nodeSelector=selector("tpu7x", "999x999x999"),
        ),
        "topology 999x999x999 has 997002999 chips, but a slice has at most 9216",
    ),
    ("digits", stateful_set(pod={"nodeSelector": selector("tpu7x", f"{'9' * 5000}x2")}), "the node selector cloud.google.com/gke-tpu-topology=999"),
    ("containers", stateful_set(*(container(f"c{number}", 1) for number in range(2000))), "2000 containers ask for google.com/tpu; at most 32 may"),
]  # fmt: skip


@pytest.mark.parametrize("target, warning", [row[1:] for row in HUGE], ids=[row[0] for row in HUGE])
def test_an_impossible_slice_is_answered_with_one_short_warning(
    target: Manifest, warning: str
) -> None:
    (answered,) = Answered(target).warnings
    assert answered.startswith(warning)
    assert len(answered) < 256


LONG = ",".join(f"web-{number}.s" for number in range(300_000))


@pytest.mark.parametrize(
    "target",
    [
        group_pod(name="s-0", index=0, size=2**31),
        pod(
            container(env=[{"name": "TPU_WORKER_HOSTNAMES", "value": LONG}]),
            container("d"),
            name="web-0",
            owner="StatefulSet",
            subdomain="s",
        ),
    ],
    ids=["a group", "a list"],
)
def test_a_pod_with_impossible_values_gets_no_process_count(target: Manifest) -> None:
    assert "JAX_PROCESS_COUNT" not in str(Answered(target).patch)


def test_the_largest_slice_is_injected() -> None:
    hosts = Answered(stateful_set(name="w", service="s", replicas=MAX_WORKERS)).env()
    assert len(hosts["TPU_WORKER_HOSTNAMES"].split(",")) == MAX_WORKERS


# Admission


@pytest.mark.parametrize(
    "parent, patch",
    [
        ({}, [{"op": "add", "path": "/m/labels", "value": {"a/b": "1", "c~d": "2"}}]),
        ({"labels": {"a/b": "1"}}, [{"op": "add", "path": "/m/labels/c~0d", "value": "2"}]),
        ({"labels": {"c~d": "2"}}, [{"op": "add", "path": "/m/labels/a~1b", "value": "1"}]),
        ({"labels": {"a/b": "1", "c~d": "2"}}, []),
    ],
)
def test_keys_are_added_to_a_missing_and_to_an_existing_map(
    parent: Manifest, patch: list[Operation]
) -> None:
    assert list(set_keys(parent, "/m", "labels", {"a/b": "1", "c~d": "2"})) == patch


def test_a_mutation_receives_the_content_of_the_review() -> None:
    requests: list[AdmissionRequest] = []

    def note(request: AdmissionRequest) -> Any:
        requests.append(request)
        raise KeyError("spec")

    body = as_review({"kind": "Pod"}, operation="UPDATE", namespace="ml", subResource="status")
    with pytest.raises(NoReviewError) as raised:
        review(json.dumps(body).encode(), note)
    assert str(raised.value) == "the Pod is malformed"
    assert requests == [
        AdmissionRequest("u-1", "UPDATE", {"kind": "Pod"}, namespace="ml", sub_resource="status")
    ]
