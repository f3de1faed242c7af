# ruff: noqa: E501  (each row of a table is one line)
"""The behaviours of known injectors: inject_env has the same behaviour, or a better one.

Each case is marked by the rows of tests/data/tpu_env.yaml that it shows (tests/conformance).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.webhook.lws import ORDERS, Admitted
from tests.unit.webhook.workloads import (
    SPLIT,
    Answered,
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
from webhook.tpu_env.admission import NoReviewError, review

V7X = "tpu7x"
V6E = "tpu-v6e-slice"
V4 = "tpu-v4-podslice"
WEB = "web-0.nginx,web-1.nginx,web-2.nginx"
POD_INDEX = "<metadata.labels['apps.kubernetes.io/pod-index']>"
NUMBERED = "use a StatefulSet, an Indexed Job, a JobSet or a LeaderWorkerSet"
COMPLETION = "<metadata.annotations['batch.kubernetes.io/job-completion-index']>"


def env(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def of_set(name: str, *containers: Any, labels: Any = None, **spec: Any) -> Any:
    """A Pod of a StatefulSet."""
    labels = {"statefulset.kubernetes.io/pod-name": name, **(labels or {})}
    spec.setdefault("subdomain", "nginx")
    return pod(*containers, name=name, owner="StatefulSet", labels=labels, **spec)


def of_rows(table: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Cases whose first value is the row that they show."""
    return [pytest.param(*case, id=row, marks=pytest.mark.conformance(row)) for row, *case in table]


VALUES: list[tuple[str, Any, dict[str, str | None]]] = [
    ("sts-basic", stateful_set(), {"TPU_WORKER_HOSTNAMES": WEB}),
    ("sts-no-port-no-namespace", stateful_set(name="w", service="s", replicas=2),
     {"TPU_WORKER_HOSTNAMES": "w-0.s,w-1.s"}),
    ("elig-inj-only-set-label", stateful_set(),
     {"TPU_WORKER_HOSTNAMES": WEB, "TPU_WORKER_ID": POD_INDEX, "JAX_PROCESS_ID": POD_INDEX}),
    ("sts-ordinals-start", stateful_set(start=5),
     {"TPU_WORKER_HOSTNAMES": "web-5.nginx,web-6.nginx,web-7.nginx", "TPU_WORKER_ID": None}),
    ("sts-ordinals-start-id",
     of_set("web-6", container(env=[env("TPU_WORKER_HOSTNAMES", "web-5.nginx,web-6.nginx,web-7.nginx")])),
     {"TPU_WORKER_ID": "1", "JAX_PROCESS_ID": "1"}),
    ("sts-replicas-nil", stateful_set(replicas=None), {"TPU_WORKER_HOSTNAMES": "web-0.nginx"}),
    ("sts-own-index-label",
     of_set("web-2", labels={"apps.kubernetes.io/pod-index": "2"}), {"TPU_WORKER_ID": "2"}),
    ("sts-scale-subresource",
     of_set("web-3", nodeSelector=selector(V6E, "4x4")),
     {"TPU_WORKER_ID": "3", "TPU_WORKER_HOSTNAMES": "web-0.nginx,web-1.nginx,web-2.nginx,web-3.nginx"}),
    ("pod-id", of_set("web-2", container(env=[env("A", "b")])), {"A": "b", "TPU_WORKER_ID": "2"}),
    ("pod-id-dashes", of_set("my-big-set-12"), {"TPU_WORKER_ID": "12"}),
    ("pod-second-owner",
     pod(name="web-1", subdomain="nginx", owners=[{"kind": "Foo"}, {"kind": "StatefulSet", "controller": True}]),
     {"TPU_WORKER_ID": "1"}),
    ("pod-no-name-label", pod(name="web-1", owner="StatefulSet", subdomain="nginx"), {"TPU_WORKER_ID": "1"}),
    ("pod-deleting-sibling", of_set("web-1"), {"TPU_WORKER_ID": "1"}),
    ("pod-sibling-without-id", of_set("web-1"), {"TPU_WORKER_ID": "1"}),
    ("pod-user-id-kept", of_set("web-2", container(env=[env("TPU_WORKER_ID", "7")])), {"TPU_WORKER_ID": "7"}),
    ("elig-gke-indexed-job", job(), {"TPU_WORKER_ID": COMPLETION}),
    ("elig-requests-only",
     stateful_set({"name": "c", "resources": {"requests": {"google.com/tpu": "4"}}}),
     {"TPU_WORKER_HOSTNAMES": WEB}),
    ("job-names", job(), {
        "TPU_WORKER_HOSTNAMES":
            "tpu-job-0.headless-svc,tpu-job-1.headless-svc,tpu-job-2.headless-svc,tpu-job-3.headless-svc"}),
    ("job-own-subdomain-missing-service", job(subdomain="s"), {"TPU_WORKER_ID": COMPLETION}),
    ("js-names", job(name="ms-slice-1", subdomain="ms", labels=jobset_labels(1, 1)), {
        "TPU_WORKER_HOSTNAMES": "ms-slice-1-0.ms,ms-slice-1-1.ms,ms-slice-1-2.ms,ms-slice-1-3.ms"}),
    ("js-megascale",
     pod(container(env=[env("TPU_WORKER_HOSTNAMES",
                            "ms-slice-1-0.ms,ms-slice-1-1.ms,ms-slice-1-2.ms,ms-slice-1-3.ms")]),
         name="ms-slice-1-3-x7abc", owner="Job", subdomain="ms",
         labels={**jobset_labels(2, 1), "batch.kubernetes.io/job-name": "ms-slice-1"},
         annotations={"batch.kubernetes.io/job-completion-index": "3"}),
     {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1", "TPU_WORKER_ID": "3",
      "MEGASCALE_COORDINATOR_ADDRESS": "ms-slice-0-0.ms", "JAX_PROCESS_ID": "7", "JAX_PROCESS_COUNT": "8",
      "JAX_COORDINATOR_ADDRESS": "ms-slice-0-0.ms:8482"}),
    ("js-megascale-manual", job(name="ms-slice-1", subdomain="ms", labels=jobset_labels(2, 1)),
     {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1",
      "MEGASCALE_COORDINATOR_ADDRESS": "ms-slice-0-0.ms"}),
    ("js-one-slice", job(name="ms-slice-0", subdomain="ms", labels=jobset_labels(1, 0)),
     {"MEGASCALE_NUM_SLICES": None, "MEGASCALE_SLICE_ID": None, "MEGASCALE_COORDINATOR_ADDRESS": None}),
    ("val-kr-megascale-off", job(),
     {"MEGASCALE_SLICE_ID": None, "MEGASCALE_COORDINATOR_ADDRESS": None, "MEGASCALE_PORT": None}),
    ("val-plugin-v6e-single",
     stateful_set(container(tpu=8), replicas=1, pod={"nodeSelector": selector(V6E, "2x4")}), {
        "TPU_ACCELERATOR_TYPE": "v6e-8", "TPU_TOPOLOGY": "2x4", "TPU_HOST_BOUNDS": "1,1,1",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,4,1", "TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}),
    ("val-plugin-v6e-multi", stateful_set(replicas=4, pod={"nodeSelector": selector(V6E, "4x4")}), {
        "TPU_ACCELERATOR_TYPE": "v6e-16", "TPU_HOST_BOUNDS": "2,2,1", "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1"}),
    ("val-plugin-tpu7x", stateful_set(replicas=2, pod={"nodeSelector": selector(V7X, "2x2x2")}), {
        "TPU_ACCELERATOR_TYPE": "tpu7x-16", "TPU_HOST_BOUNDS": "1,1,2", "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1"}),
    ("val-plugin-tpu7x-single", stateful_set(replicas=1, pod={"nodeSelector": selector(V7X, "2x2x1")}),
     {"TPU_ACCELERATOR_TYPE": "tpu7x-8"}),
    ("val-single-host-tpu7x", stateful_set(replicas=1, pod={"nodeSelector": selector(V7X, "2x2x1")}), {
        "TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_PROCESS_ADDRESSES": "localhost:8471", "TPU_PROCESS_PORT": "8471"}),
    ("val-seed-type", stateful_set(replicas=2, pod={"nodeSelector": selector(V7X, "2x2x2")}),
     {"TPU_ACCELERATOR_TYPE": "tpu7x-16"}),
    ("val-seed-ports", stateful_set(name="d", service="s", replicas=2, pod={"nodeSelector": selector(V7X, "2x2x2")}),
     {"TPU_WORKER_HOSTNAMES": "d-0.s,d-1.s", "TPU_PROCESS_ADDRESSES": "d-0.s:8471,d-1.s:8471"}),
    ("val-ports-in-use", stateful_set(replicas=2, pod={"nodeSelector": selector(V7X, "2x2x2")}),
     {"TPU_PROCESS_PORT": "8471"}),
    ("val-xla-conflict", stateful_set(replicas=4, pod={"nodeSelector": selector(V6E, "4x4")}),
     {"TPU_PROCESS_ADDRESSES": None, "TPU_PROCESS_PORT": None}),
    ("val-kr-v6e", stateful_set(replicas=2, pod={"nodeSelector": selector(V4, "2x2x2")}),
     {"TPU_NAME": "web", "TPU_PROCESS_ADDRESSES": None, "TPU_PROCESS_PORT": None}),
    ("conf-plugin-env", of_set("web-2", container(env=[env("TPU_WORKER_HOSTNAMES", WEB)])),
     {"TPU_WORKER_ID": "2"}),
    ("conf-localhost",
     stateful_set(container(env=[env("TPU_WORKER_HOSTNAMES", "localhost")])), {"TPU_WORKER_HOSTNAMES": WEB}),
    ("conf-user-list",
     stateful_set(container(env=[env("TPU_WORKER_HOSTNAMES", "10.0.0.1,10.0.0.2,10.0.0.3")])),
     {"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2,10.0.0.3"}),
    ("conf-user-list-inj", stateful_set(container(env=[env("TPU_WORKER_HOSTNAMES", "x,y")]), replicas=2),
     {"TPU_WORKER_HOSTNAMES": "x,y"}),
    ("conf-env-from", stateful_set(container(envFrom=[{"configMapRef": {"name": "tpu"}}])),
     {"TPU_WORKER_HOSTNAMES": WEB}),
]  # fmt: skip


@pytest.mark.parametrize("target, expected", of_rows(VALUES))
def test_a_container_gets_the_variables_of_the_row(
    target: Any, expected: dict[str, str | None]
) -> None:
    variables = Answered(target).env()
    assert {name: variables.get(name) for name in expected} == expected


IN_GROUPS: list[tuple[str, Any, dict[str, str | None]]] = [
    ("lws-worker", group_pod(name="test-sample-0-1", index=1), {
        "TPU_WORKER_HOSTNAMES": "test-sample-0.default,test-sample-0-1.default",
        "TPU_WORKER_ID": "1", "TPU_NAME": "test-sample-0"}),
    ("lws-worker-leader-cpu", group_pod(name="test-sample-0-1", index=1, has_leader_tpu=False), {
        "TPU_WORKER_HOSTNAMES": "test-sample-0-1.default", "TPU_WORKER_ID": "0", "TPU_NAME": "test-sample-0"}),
    ("lws-slice-name", group_pod(name="test-sample-0", index=0), {"TPU_NAME": "test-sample-0"}),
    ("lws-subgroup-shifted", group_pod(name="test-sample-1-7", index=7, size=8, subgroup=4), {
        "TPU_WORKER_HOSTNAMES": "test-sample-1-4.default,test-sample-1-5.default,"
                                "test-sample-1-6.default,test-sample-1-7.default",
        "TPU_WORKER_ID": "3", "TPU_NAME": "test-sample-1"}),
    ("lws-subgroup-leader-cpu",
     group_pod(name="test-sample-1-5", index=5, size=9, subgroup=4, has_leader_tpu=False), {
        "TPU_WORKER_HOSTNAMES": "test-sample-1-5.default,test-sample-1-6.default,"
                                "test-sample-1-7.default,test-sample-1-8.default",
        "TPU_WORKER_ID": "0"}),
    ("lws-subgroup-one", group_pod(name="prefill-0-2", index=2, size=3, subgroup=1),
     {"TPU_WORKER_HOSTNAMES": "prefill-0-2.default", "TPU_WORKER_ID": "0"}),
]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("target, expected", of_rows(IN_GROUPS))
def test_a_container_of_a_leader_worker_set_gets_the_variables_of_the_row(
    target: Any, expected: dict[str, str | None], order: str
) -> None:
    admitted = Admitted(target, configuration=order)
    assert {name: admitted.env().get(name) for name in expected} == expected
    assert admitted.warnings == []


NOTHING: list[tuple[str, Any, dict[str, Any]]] = [
    ("elig-kr-cpu-pod", pod(container(tpu=None)), {}),
    ("elig-zero-quantity", stateful_set(container(tpu=0)), {}),
    ("elig-inj-no-tpu", stateful_set(container(tpu=None)), {}),
    ("elig-mirror-pod", pod(name="web-0", owner="StatefulSet", annotations={"kubernetes.io/config.mirror": "x"}), {}),
    ("elig-opt-out", pod(name="web-0", owner="StatefulSet", annotations={"tpu-functions.dev/inject": "disabled"}), {}),
    ("elig-opt-out", stateful_set(template_labels={"tpu-functions.dev/inject": "disabled"}), {}),
    ("cont-ephemeral", of_set("web-0"), {"subResource": "ephemeralcontainers", "operation": "UPDATE"}),
    ("pod-update", of_set("web-0"), {"operation": "UPDATE"}),
    ("proto-other-kind", {"kind": "DaemonSet", "metadata": {"name": "d"}, "spec": {}}, {}),
    ("proto-subresource", of_set("web-0"), {"subResource": "status"}),
    ("conf-lws-owned-by-sts", pod(name="x-0-1", owner="StatefulSet", labels={"leaderworkerset.sigs.k8s.io/name": "x"}), {}),
    ("conf-lws-owned-by-sts", stateful_set(template_labels={"leaderworkerset.sigs.k8s.io/name": "x"}), {}),
    ("conf-ray", pod(name="c1-0", owner="StatefulSet", labels={"ray.io/cluster": "c1"}), {}),
    ("patch-inj-no-containers", stateful_set(pod={"containers": []}), {}),
]  # fmt: skip


@pytest.mark.parametrize("target, request_", of_rows(NOTHING))
def test_no_variable_is_injected_into_such_an_object(target: Any, request_: dict[str, Any]) -> None:
    answered = Answered(target, **request_)
    assert answered.response == {"uid": "u-1", "allowed": True}


SELECT = "no TPU variables are injected: select a topology (gke-tpu-topology)"
NAMES = f"{SELECT}, or give the workers names"
UNNUMBERED: list[tuple[str, Any, str]] = [
    ("elig-lws-not-member", pod(labels={}),
     f"{NAMES}: a Pod without a controller has none; {NUMBERED}"),
    ("pod-owner-replicaset", pod(owner="ReplicaSet"),
     f"{NAMES}: those of the Pods of ReplicaSet o are not known; {NUMBERED}"),
]  # fmt: skip


@pytest.mark.parametrize("target, notice", of_rows(UNNUMBERED))
def test_a_pod_without_variables_is_allowed_with_a_warning(target: Any, notice: str) -> None:
    for is_strict in (False, True):
        answered = Answered(target, is_strict=is_strict)
        assert (answered.patch, answered.warnings) == ([], [notice])
        assert answered.response["allowed"] is True


WITHOUT: list[tuple[str, Any, list[str]]] = [
    ("elig-gke-nonindexed", job(mode="NonIndexed", subdomain="s"),
     [f"{NAMES}: Job tpu-job is not Indexed; set completionMode: Indexed"]),
    ("elig-gke-parallelism-one", job(count=1, subdomain="s"),
     [f"{SELECT}, because there is 1 worker, which may be one of a larger slice"]),
    ("elig-gke-no-subdomain", job(subdomain=""),
     [f"{NAMES}: Job tpu-job has no subdomain; set spec.template.spec.subdomain to a headless Service"]),
]  # fmt: skip


@pytest.mark.parametrize("target, notices", of_rows(WITHOUT))
def test_a_template_without_a_known_slice_is_only_marked(target: Any, notices: list[str]) -> None:
    """The mark makes the API server review its Pods, for example after a scaling from 0 replicas."""
    answered = Answered(target)
    assert answered.warnings == notices
    assert Answered(target, is_strict=True).response["allowed"] is True
    before = target["spec"]["template"]
    labels = {**before["metadata"].get("labels", {}), "tpu-functions.dev/inject": "enabled"}
    assert answered.target["spec"]["template"] == {**before, "metadata": {"labels": labels}}


@pytest.mark.conformance("sts-replicas-zero")
def test_a_template_without_pods_is_only_marked_and_noted() -> None:
    answered = Answered(stateful_set(replicas=0))
    assert (answered.warnings, answered.env()) == ([], {})
    metadata = answered.target["spec"]["template"]["metadata"]
    assert metadata["labels"]["tpu-functions.dev/inject"] == "enabled"
    assert metadata["annotations"] == {"tpu-functions.dev/injected": "{}"}
    assert Answered(answered.target, operation="UPDATE").patch == []


WARNED: list[tuple[str, Any, str]] = [
    ("sts-topology-mismatch",
     stateful_set(name="w", service="s", pod={"nodeSelector": selector(V6E, "4x4")}),
     "topology 4x4 needs 4 Pods, and there are 3; set their number to 4"),
    ("sts-no-service", stateful_set(service=""),
     "StatefulSet web has no spec.serviceName, so its Pods have no stable names; name a headless Service"),
    ("job-partial-parallelism", job(count=8, parallelism=4, subdomain="s"),
     "Job tpu-job: parallelism 4 differs from completions 8: the workers of one slice would not run "
     "together; set both to the number of hosts"),
    ("js-no-dns", job(name="ms-slice-0", subdomain="", labels=jobset_labels(2, 0)),
     "Job ms-slice-0: the JobSet's Pods have no DNS names; set network.enableDNSHostnames"),
    ("conf-count-mismatch",
     stateful_set(container(env=[env("TPU_PROCESS_ADDRESSES", "a:1,b:1")]), replicas=4,
                  pod={"nodeSelector": selector(V7X, "2x2x4")}),
     "TPU_PROCESS_ADDRESSES has 2 entries for 4 workers"),
    ("cont-kr-v6e-two-containers",
     stateful_set(container("a", 2), container("b", 2), replicas=4, pod={"nodeSelector": selector(V6E, "4x4")}),
     SPLIT),
    ("val-size", stateful_set(name="n" * 40, service="s" * 20, replicas=1728),
     "TPU_WORKER_HOSTNAMES is longer than 100000 bytes; choose shorter names"),
    ("val-size", stateful_set(name="n" * 60, service="s" * 20, replicas=1728),
     "a list of all workers is longer than 131000 bytes; choose shorter names"),
]  # fmt: skip


@pytest.mark.parametrize("target, warning", of_rows(WARNED))
def test_an_inconsistent_workload_is_a_warning_and_a_rejection_in_strict_mode(
    target: Any, warning: str
) -> None:
    assert Answered(target).warnings == [warning]
    assert Answered(target).response["allowed"] is True
    rejected = Answered(target, is_strict=True).response
    assert (rejected["allowed"], rejected["status"]) == (
        False,
        {"code": 422, "reason": "Invalid", "message": warning},
    )
    assert "patch" not in rejected


@pytest.mark.conformance("cont-kr-v7x-two-containers", "cont-kr-v7x-hostnames-count")
def test_two_containers_of_a_tpu7x_host_are_two_processes() -> None:
    both = (
        container(
            "a",
            2,
            env=[env("TPU_WORKER_HOSTNAMES", "web-0.nginx,web-0.nginx,web-1.nginx,web-1.nginx")],
        ),
        container("b", 2),
    )
    answered = Answered(of_set("web-1", *both, nodeSelector=selector(V7X, "2x2x2")))
    a, b = answered.env("a"), answered.env("b")
    assert (a["TPU_WORKER_ID"], b["TPU_WORKER_ID"]) == ("2", "3")
    assert b["TPU_PROCESS_PORT"] == "8472"
    assert b["TPU_PROCESS_ADDRESSES"] == (
        "web-0.nginx:8471,web-0.nginx:8472,web-1.nginx:8471,web-1.nginx:8472"
    )
    assert b["TPU_WORKER_HOSTNAMES"] == "web-0.nginx,web-0.nginx,web-1.nginx,web-1.nginx"
    assert (b["JAX_PROCESS_ID"], b["JAX_PROCESS_COUNT"]) == ("3", "4")


@pytest.mark.conformance(
    "cont-inj-every-container", "cont-inj-init-skipped", "cont-kr-only-tpu", "cont-kr-init-ignored"
)
def test_only_containers_and_init_containers_with_chips_get_variables() -> None:
    answered = Answered(
        stateful_set(
            container("side", None),
            container("train"),
            pod={"initContainers": [container("warm"), container("copy", None)]},
        )
    )
    assert answered.entries("side") == answered.entries("copy") == []
    assert answered.env("warm") == answered.env("train")
    assert answered.env("train")["TPU_WORKER_HOSTNAMES"] == WEB
    only_init = Answered(
        stateful_set(container("a", None), pod={"initContainers": [container("i")]})
    )
    assert only_init.env("i")["TPU_WORKER_HOSTNAMES"] == WEB


@pytest.mark.conformance("cont-lws-init", "lws-two-containers")
def test_the_containers_of_a_leader_worker_set_are_numbered() -> None:
    alone = group_pod(container(tpu=None), name="sample-0", index=0, size=1)
    alone["spec"]["initContainers"] = [container("i1", 1)]
    variables = Admitted(alone).env("i1")
    assert {name: variables[name] for name in sorted(variables) if name.startswith("TPU")} == {
        "TPU_WORKER_HOSTNAMES": "sample-0.default",
        "TPU_WORKER_ID": "0",
        "TPU_NAME": "sample-0",
        "TPU_PROCESS_ADDRESSES": "sample-0.default:8476",
        "TPU_PROCESS_PORT": "8476",
    }
    both = group_pod(container("c1", 1), container("c2", 1), name="test-sample-0", index=0)
    c1, c2 = Admitted(both).env("c1"), Admitted(both).env("c2")
    assert c1["TPU_WORKER_HOSTNAMES"] == (
        "test-sample-0.default,test-sample-0.default,test-sample-0-1.default,test-sample-0-1.default"
    )
    assert (c1["TPU_PROCESS_PORT"], c2["TPU_PROCESS_PORT"], c2["TPU_WORKER_ID"]) == (
        "8476",
        "8477",
        "1",
    )
    assert (c2["JAX_PROCESS_ID"], c2["JAX_PROCESS_COUNT"]) == ("1", "4")


@pytest.mark.conformance("sts-existing-env", "conf-exists-valuefrom", "patch-kr-override-default")
def test_an_entry_of_the_user_is_kept_and_not_duplicated() -> None:
    from_field = {
        "name": "TPU_WORKER_ID",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['x']"}},
    }
    answered = Answered(of_set("web-3", container(env=[env("FOO", "BAR"), from_field])))
    names = [entry["name"] for entry in answered.entries()]
    assert names[:2] == ["FOO", "TPU_WORKER_ID"]
    assert len(names) == len(set(names))
    assert answered.entries()[1] == from_field
    empty = Answered(of_set("web-3", container(env=[env("TPU_WORKER_ID", "")])))
    assert [one for one in empty.patch if one["op"] == "replace"] == [
        {"op": "replace", "path": "/spec/containers/0/env/0", "value": env("TPU_WORKER_ID", "3")}
    ]


@pytest.mark.conformance(
    "patch-create-then-append", "patch-pointer-escape", "patch-dependent-order", "patch-kr-affinity"
)
def test_a_patch_is_small_and_creates_missing_parents() -> None:
    target = stateful_set(pod={"affinity": {"nodeAffinity": {}}})
    del target["spec"]["template"]["metadata"]
    patch = Answered(target).patch
    first, second, *_ = patch
    assert first["path"] == "/spec/template/spec/containers/0/env"
    assert isinstance(first["value"], list)
    assert second["path"] == "/spec/template/spec/containers/0/env/-"
    assert {"op": "add", "path": "/spec/template/metadata", "value": {}} in patch
    assert not any("affinity" in one["path"] for one in patch)
    labelled = stateful_set()
    labelled["spec"]["template"]["metadata"]["annotations"] = {"mine": "1"}
    paths = [one["path"] for one in Answered(labelled).patch]
    assert "/spec/template/metadata/annotations/tpu-functions.dev~1injected" in paths


def test_a_workload_that_is_being_deleted_is_neither_changed_nor_rejected() -> None:
    """The garbage collector removes a finalizer by an update."""
    wrong = container(env=[{"name": "TPU_TOPOLOGY", "value": "4x4x4"}])
    target = stateful_set(wrong, replicas=2, pod={"nodeSelector": selector("tpu7x", "2x2x2")})
    rejected = Answered(target, operation="UPDATE", is_strict=True)
    assert not rejected.response["allowed"]
    target["metadata"]["deletionTimestamp"] = "2026-11-20T10:00:00Z"
    deleted = Answered(target, operation="UPDATE", is_strict=True)
    assert deleted.response == {"uid": "u-1", "allowed": True}


@pytest.mark.conformance("elig-opt-out")
@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_an_opt_out_applies_to_the_pods(kind: str) -> None:
    """In a marked namespace the Pods are reviewed separately."""
    target = stateful_set()
    target["metadata"][kind] = {"tpu-functions.dev/inject": "disabled"}
    answered = Answered(target)
    assert answered.entries() == []
    label = {"app": "web", "tpu-functions.dev/inject": "disabled"}
    assert answered.target["spec"]["template"]["metadata"] == {"labels": label}
    assert Answered(answered.target, operation="UPDATE").patch == []
    answered.target["metadata"][kind] = {"tpu-functions.dev/inject": "enabled"}
    assert (
        Answered(answered.target, operation="UPDATE").env() == Answered(stateful_set()).env() != {}
    )


def test_an_opt_out_of_the_user_on_the_template_applies_to_a_marked_workload() -> None:
    target = stateful_set()
    target["metadata"]["labels"] = {"tpu-functions.dev/inject": "enabled"}
    template = target["spec"]["template"]["metadata"]
    template.setdefault("annotations", {})["tpu-functions.dev/inject"] = "disabled"
    assert Answered(target).patch == []


def test_a_copied_opt_out_on_a_template_with_the_old_mark_is_removed() -> None:
    target = stateful_set()
    target["spec"]["template"]["metadata"]["labels"] |= {
        "gke-tpu-env-injector.aaronbatilo.dev/inject": "enabled",
        "tpu-functions.dev/inject": "disabled",
    }
    target["metadata"]["labels"] = {"tpu-functions.dev/inject": "enabled"}
    answered = Answered(target, operation="UPDATE")
    labels = answered.target["spec"]["template"]["metadata"]["labels"]
    assert labels["tpu-functions.dev/inject"] == "enabled"


@pytest.mark.parametrize(
    "mark", ["tpu-functions.dev/inject", "gke-tpu-env-injector.aaronbatilo.dev/inject"]
)
@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_a_template_that_is_marked_is_not_marked_again(mark: str, kind: str) -> None:
    target = stateful_set()
    target["spec"]["template"]["metadata"].setdefault(kind, {})[mark] = "enabled"
    metadata = Answered(target).target["spec"]["template"]["metadata"]
    assert [*metadata["labels"], *metadata["annotations"]].count(mark) == 1
    assert (
        sum(
            "/inject" in key and "injected" not in key for part in metadata.values() for key in part
        )
        == 1
    )


@pytest.mark.conformance("proto-uid", "proto-echo", "proto-dry-run", "proto-error-as-http")
def test_an_answer_repeats_only_the_uid_of_the_request() -> None:
    for version in ("admission.k8s.io/v1", "admission.k8s.io/v1beta1"):
        request = {**as_review(stateful_set(service=""), dryRun=True), "apiVersion": version}
        answer = review(json.dumps(request).encode(), injecting()).document
        assert answer["apiVersion"] == version
        assert answer["kind"] == "AdmissionReview"
        assert set(answer) == {"apiVersion", "kind", "response"}
        assert set(answer["response"]) == {"uid", "allowed", "warnings", "patch", "patchType"}
        assert answer["response"]["uid"] == "u-1"


@pytest.mark.parametrize(
    "body, message",
    [
        (b"{", "the body is not JSON: "),
        (b"[]", "the body is not an AdmissionReview"),
        (b'{"kind": "AdmissionReview", "apiVersion": "v2"}',
         "apiVersion is 'v2'; it must be admission.k8s.io/v1 or admission.k8s.io/v1beta1"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}',
         "the AdmissionReview has no request with a uid"),
    ],
)  # fmt: skip
@pytest.mark.conformance("proto-bad-json", "proto-null-request")
def test_an_invalid_review_is_an_error(body: bytes, message: str) -> None:
    with pytest.raises(NoReviewError) as raised:
        review(body, injecting())
    assert str(raised.value).startswith(message)
