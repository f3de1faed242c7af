# ruff: noqa: E501  (each row of a table is one line)
"""Contradictory values of a workload are warnings with the right value; intended values are not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.webhook.workloads import (
    Answered,
    Manifest,
    container,
    deployment,
    job,
    pod,
    pod_of,
    selector,
    stateful_set,
)

TWO_HOSTS = {"nodeSelector": selector("tpu7x", "2x2x2")}
ONE_HOST = {"nodeSelector": selector("tpu7x", "2x2x1")}


def given(**values: Any) -> Manifest:
    """Return a container with variables of the user."""
    entries = [
        {"name": name, "value": value} if isinstance(value, str) else {"name": name, **value}
        for name, value in values.items()
    ]
    return container(env=entries)


def plain_pod_of_a_job(**spec: Any) -> Manifest:
    """A Pod of a Job that is not Indexed."""
    return pod(name="j-x7abc", owner="Job", labels={"batch.kubernetes.io/job-name": "j"}, **spec)


CONTRADICTIONS: list[tuple[Manifest, str]] = [
    (stateful_set(given(TPU_ACCELERATOR_TYPE="tpu7x-4"), replicas=2, pod=TWO_HOSTS),
     "TPU_ACCELERATOR_TYPE is tpu7x-4 and should be tpu7x-16; leave it out"),
    (stateful_set(given(TPU_TOPOLOGY="2x2x1"), replicas=2, pod=TWO_HOSTS),
     "TPU_TOPOLOGY is 2x2x1 and should be 2x2x2; leave it out"),
    (stateful_set(given(TPU_HOST_BOUNDS="2,1,1"), replicas=2, pod=TWO_HOSTS),
     "TPU_HOST_BOUNDS is 2,1,1 and should be 1,1,2; leave it out"),
    (stateful_set(given(TPU_WORKER_ID="0"), replicas=2),
     "TPU_WORKER_ID is 0 in all Pods, but each Pod needs its own value; leave it out"),
    (pod(given(TPU_WORKER_ID="0"), name="web-1", owner="StatefulSet", subdomain="s"),
     "TPU_WORKER_ID is 0 and should be 1; leave it out"),
    (stateful_set(given(TPU_WORKER_HOSTNAMES="a:8471,b:8471"), replicas=2),
     "TPU_WORKER_HOSTNAMES has ports, but TPU libraries add their own; leave the ports out"),
    (stateful_set(given(TPU_WORKER_HOSTNAMES="a,b"), replicas=3, pod={"initContainers": [given(TPU_WORKER_HOSTNAMES="a,b")]}),
     "TPU_WORKER_HOSTNAMES has 2 entries for 3 workers"),
    (stateful_set(container(tpu=16), replicas=1, pod={"nodeSelector": selector("tpu-v6e-slice", "4x4")}),
     "no TPU VM has 16 chips; ask for as many google.com/tpu as a host has: 1, 2, 4 or 8"),
    (job(mode="NonIndexed", pod=TWO_HOSTS),
     "topology 2x2x2 needs 2 Pods with names, and Job tpu-job is not Indexed; set completionMode: Indexed"),
    (plain_pod_of_a_job(**TWO_HOSTS),
     "topology 2x2x2 needs 2 Pods with names, and the Pods of this Job are not numbered"),
    (job(count=1, pod=TWO_HOSTS),
     "topology 2x2x2 needs 2 Pods, and there is 1; set their number to 2"),
    (job(count=2, subdomain="", pod=TWO_HOSTS),
     "topology 2x2x2 needs 2 Pods with names, and Job tpu-job has no subdomain; set "
     "spec.template.spec.subdomain to a headless Service"),
]  # fmt: skip


@pytest.mark.parametrize(
    "target, warning", CONTRADICTIONS, ids=[text for _, text in CONTRADICTIONS]
)
def test_a_contradiction_is_a_warning_and_a_rejection_in_strict_mode(
    target: Manifest, warning: str
) -> None:
    answered = Answered(target)
    assert answered.warnings == [warning]
    assert Answered(target, is_strict=True).response["status"]["message"] == warning


def test_an_update_is_rejected_in_strict_mode_only_for_problems_that_are_new() -> None:
    stored = stateful_set(replicas=1, pod=TWO_HOSTS)
    annotated = {**stored, "metadata": {**stored["metadata"], "annotations": {"revision": "2"}}}
    unchanged = Answered(annotated, is_strict=True, operation="UPDATE", oldObject=stored)
    warning = "topology 2x2x2 needs 2 Pods, and there is 1; set their number to 2"
    assert (unchanged.response["allowed"], unchanged.warnings) == (True, [warning])
    # The API server calls again when another webhook has changed the object.
    again: dict[str, Any] = {"is_strict": True, "operation": "UPDATE", "oldObject": stored}
    within = Answered(annotated, is_namespace_marked=True, **again).target
    repeated = Answered(within, is_namespace_marked=True, **again)
    assert (within != annotated, repeated.response["allowed"]) == (True, True)
    scaled = stateful_set(replicas=3, pod=TWO_HOSTS)
    changed = Answered(scaled, is_strict=True, operation="UPDATE", oldObject=stored)
    assert changed.response["status"]["message"] == (
        "topology 2x2x2 needs 2 Pods, and there are 3; set their number to 2"
    )


@pytest.mark.parametrize(
    "stored_mark, new_mark, is_allowed",
    [
        ("disabled", "enabled", False),
        ("disabled", "", False),
        ("", "enabled", False),
        ("enabled", "enabled", True),
        ("", "", True),
    ],
)
def test_the_problems_of_a_stored_workload_count_only_if_it_was_reviewed(
    stored_mark: str, new_mark: str, is_allowed: bool
) -> None:
    """Without any mark, its namespace has it."""

    def marked(mark: str) -> Manifest:
        made = stateful_set(replicas=1, pod=TWO_HOSTS)
        labels = {"tpu-functions.dev/inject": mark} if mark else {}
        return {**made, "metadata": {**made["metadata"], "labels": labels}}

    answered = Answered(
        marked(new_mark), is_strict=True, operation="UPDATE", oldObject=marked(stored_mark)
    )
    assert answered.response["allowed"] is is_allowed


def test_the_unchanged_example_of_tpu_operators_readme_is_injected() -> None:
    """The variables of its manifest; its program sets more."""
    manual = given(
        JAX_PLATFORMS="tpu",
        JAX_PROCESS_COUNT="2",
        TPU_TOPOLOGY="2x2x2",
        TPU_ACCELERATOR_TYPE="tpu7x-4",
        K8S_POD_NAME={"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        NODE_IP={"valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        TPU_CHIPS_PER_HOST_BOUNDS="2,2,1",
        TPU_HOST_BOUNDS="1,1,2",
        VBAR_CONTROL_SERVICE_URL="127.0.0.1:8353",
        TPU_PROCESS_PORT="8470",
        TPU_RUNTIME_METRICS_PORTS="8431,8432,8433,8434",
    )
    name, service = "tpu-worker-v7x", "tpu-svc-v7x"
    target = stateful_set(manual, name=name, service=service, replicas=2, pod=TWO_HOSTS)
    answered = Answered(target)
    assert answered.warnings == [
        "TPU_ACCELERATOR_TYPE is tpu7x-4 and should be tpu7x-16; leave it out"
    ]
    assert answered.entries()[: len(manual["env"])] == manual["env"]
    added = answered.env().items() - Answered({**target, "kind": "Other"}).env().items()
    pod_index = "<metadata.labels['apps.kubernetes.io/pod-index']>"
    assert dict(added) == {
        "TPU_NAME": name,
        "TPU_WORKER_ID": pod_index,
        "TPU_WORKER_HOSTNAMES": f"{name}-0.{service},{name}-1.{service}",
        "TPU_PROCESS_ADDRESSES": f"{name}-0.{service}:8470,{name}-1.{service}:8470",
        "JAX_COORDINATOR_ADDRESS": f"{name}-0.{service}:8482",
        "JAX_PROCESS_ID": pod_index,
    }


REFERENCE = given(
    TPU_WORKER_ID="$(INDEX)",
    TPU_WORKER_HOSTNAMES="$(HOSTS)",
    TPU_TOPOLOGY="$(TOPOLOGY)",
    MEGASCALE_NUM_SLICES="$(SLICES)",
)


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_value_that_refers_to_another_variable_is_not_checked(is_strict: bool) -> None:
    answered = Answered(stateful_set(REFERENCE, replicas=2, pod=TWO_HOSTS), is_strict=is_strict)
    assert (answered.response["allowed"], answered.warnings) == (True, [])
    assert answered.env()["TPU_WORKER_ID"] == "$(INDEX)"


@pytest.mark.parametrize(
    "first, second, more, shared",
    [
        ("8472", "", {}, "8472"),
        ("9000", "9000", {}, "9000"),
        ("", "8482", {}, "8482"),
        ("", "8482", {"JAX_COORDINATOR_ADDRESS": "a:1"}, ""),
        ("9000", "9001", {}, ""),
        ("", "", {}, ""),
    ],
)
def test_a_port_of_two_processes_is_a_warning(
    first: str, second: str, more: dict[str, str], shared: str
) -> None:
    both = (
        {**given(TPU_PROCESS_PORT=first, **more), **container("a", 2)},
        {**given(TPU_PROCESS_PORT=second), **container("b", 2)},
    )
    template = Answered(stateful_set(*both, replicas=2, pod=TWO_HOSTS), is_strict=True)
    notice = (
        f"a Pod has port {shared} twice, in TPU_PROCESS_PORT or JAX_COORDINATOR_ADDRESS; set another "
        "TPU_PROCESS_PORT"
    )
    for answered in (template, Answered(pod_of(template.target, 1), is_strict=True)):
        assert answered.response["allowed"]
        assert answered.warnings == ([notice] if shared else [])


def test_a_contradictory_value_of_the_user_is_kept() -> None:
    target = stateful_set(given(TPU_TOPOLOGY="2x2x1"), replicas=2, pod=TWO_HOSTS)
    assert Answered(target).env()["TPU_TOPOLOGY"] == "2x2x1"


@pytest.mark.parametrize(
    "target",
    [
        stateful_set(given(TPU_NAME="mine", JAX_COORDINATOR_ADDRESS="a:1", TPU_PROCESS_PORT="9000")),
        stateful_set(given(JAX_PROCESS_COUNT="8")),
        stateful_set(given(TPU_TOPOLOGY="2x2x2"), replicas=2, pod=TWO_HOSTS),
        stateful_set(given(TPU_WORKER_ID={"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})),
        stateful_set(replicas=3, pod=ONE_HOST),
        job(count=2, subdomain="", pod=ONE_HOST),
    ],
)  # fmt: skip
def test_values_that_may_be_intended_cause_no_warning(target: Manifest) -> None:
    assert Answered(target).warnings == []


ALONE = {
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_PROCESS_ADDRESSES": "localhost:8471",
    "JAX_PROCESS_COUNT": "1",
    "JAX_PROCESS_ID": "0",
}


@pytest.mark.parametrize(
    "make",
    [
        lambda one: stateful_set(one, replicas=3, pod=ONE_HOST),
        lambda one: deployment(one, replicas=3, pod=ONE_HOST),
        lambda one: job(one, name="", mode="NonIndexed", subdomain="", pod=ONE_HOST),
        lambda one: pod(one, name="", owner="ReplicaSet", nodeSelector=ONE_HOST["nodeSelector"]),
    ],
    ids=["StatefulSet", "Deployment", "Job", "Pod"],
)
def test_a_pod_that_is_a_whole_slice_gives_the_slice_its_name(make: Any) -> None:
    """A name of the user stays: it is right if there is one such Pod."""
    own_name = {
        "name": "TPU_NAME",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
    }
    assert own_name in Answered(make(container())).entries()
    named = Answered(make(given(TPU_NAME="mine")))
    assert (named.env()["TPU_NAME"], named.warnings) == ("mine", [])


@pytest.mark.parametrize(
    "annotation, accelerator, topology, has_addresses",
    [
        (None, "tpu7x", "2x2x2", True),
        ("disabled", "tpu7x", "2x2x2", False),
        (None, "tpu-v6e-slice", "2x4", False),
        ("enabled", "tpu-v6e-slice", "2x4", True),
    ],
)
def test_addresses_are_injected_for_tpu7x_or_by_the_annotation(
    annotation: str | None, accelerator: str, topology: str, has_addresses: bool
) -> None:
    target = stateful_set(replicas=2, pod={"nodeSelector": selector(accelerator, topology)})
    if annotation:
        target["spec"]["template"]["metadata"]["annotations"] = {
            "tpu-functions.dev/process-addresses": annotation
        }
    variables = Answered(target).env()
    assert ("TPU_PROCESS_ADDRESSES" in variables, "TPU_PROCESS_PORT" in variables) == (
        has_addresses,
    ) * 2
