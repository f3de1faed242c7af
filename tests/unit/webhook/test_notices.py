"""A workload without injected variables gets a warning with a solution; one host needs no index."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.webhook.workloads import (
    ACCELERATOR,
    TOPOLOGY,
    Answered,
    Manifest,
    container,
    deployment,
    group_pod,
    pod,
    selector,
    stateful_set,
)

ONE_HOST: dict[str, Any] = {"nodeSelector": selector("tpu7x", "2x2x1")}
FOUR_HOSTS: dict[str, Any] = {"nodeSelector": selector("tpu-v6e-slice", "4x4")}
NUMBERED = "use a StatefulSet, an Indexed Job, a JobSet or a LeaderWorkerSet"
NOTHING = (
    "no TPU variables are injected: select a topology (gke-tpu-topology), or give the workers "
    "names: "
)


def owned(kind: str, **spec: Any) -> Manifest:
    return pod(name="bert-worker-0", owner=kind, **spec)


ALONE = [
    deployment(pod=ONE_HOST),
    deployment(replicas=3, pod=ONE_HOST),
    pod(name="trial", **ONE_HOST),
    owned("ReplicaSet", **ONE_HOST),
    owned("DaemonSet", **ONE_HOST),
    owned("PyTorchJob", **ONE_HOST),
    owned("Workflow", **ONE_HOST),
]


@pytest.mark.parametrize("target", ALONE, ids=lambda it: str(it["kind"]))
def test_a_slice_of_one_host_is_injected_under_any_controller(target: Manifest) -> None:
    """The device plugin does not set these on a host of tpu7x either."""
    answered = Answered(target, is_strict=True)
    variables = answered.env()
    assert answered.warnings == []
    assert {
        name: variables[name]
        for name in (
            "TPU_WORKER_ID",
            "TPU_WORKER_HOSTNAMES",
            "TPU_PROCESS_ADDRESSES",
            "TPU_ACCELERATOR_TYPE",
            "JAX_PROCESS_COUNT",
        )
    } == {
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_PROCESS_ADDRESSES": "localhost:8471",
        "TPU_ACCELERATOR_TYPE": "tpu7x-8",
        "JAX_PROCESS_COUNT": "1",
    }


def test_the_pods_of_a_deployment_have_the_variables_of_its_template() -> None:
    template = Answered(deployment(pod=ONE_HOST)).target["spec"]["template"]
    assert template["metadata"]["labels"]["tpu-functions.dev/inject"] == "enabled"
    made = pod(owner="ReplicaSet", **template["spec"])
    made["metadata"] |= template["metadata"]
    assert Answered(made).response == {"uid": "u-1", "allowed": True}


def test_the_variables_of_a_deployment_follow_a_change_of_its_topology() -> None:
    stored = Answered(deployment(pod=ONE_HOST)).target
    stored["spec"]["template"]["spec"]["nodeSelector"] = selector("tpu-v6e-slice", "2x2")
    variables = Answered(stored, operation="UPDATE").env()
    assert variables["TPU_ACCELERATOR_TYPE"] == "v6e-4"
    assert "TPU_PROCESS_ADDRESSES" not in variables


NOT_INJECTED: list[tuple[Manifest, str]] = [
    (deployment(), f"{NOTHING}those of the Pods of Deployment serve are not known; {NUMBERED}"),
    (pod(name="trial"), f"{NOTHING}a Pod without a controller has none; {NUMBERED}"),
    (
        owned("PyTorchJob"),
        f"{NOTHING}those of the Pods of PyTorchJob o are not known; {NUMBERED}",
    ),
    (owned("MPIJob"), f"{NOTHING}those of the Pods of MPIJob o are not known; {NUMBERED}"),
    (pod(owner="StatefulSet"), f"{NOTHING}the number of this Pod is not known"),
]


ORDERED = (
    "each Pod waits until the one before it is ready, but a readinessProbe may wait for all Pods of the "
    "slice; set podManagementPolicy: Parallel"
)


@pytest.mark.parametrize(
    "nodes, replicas, policy, probe, warnings",
    [
        (FOUR_HOSTS, 4, "OrderedReady", {"httpGet": {"port": 80}}, [ORDERED]),
        ({}, 2, "", {"httpGet": {"port": 80}}, [ORDERED]),
        ({}, 2, "Parallel", {"httpGet": {"port": 80}}, []),
        ({}, 2, "OrderedReady", {}, []),
        (ONE_HOST, 4, "OrderedReady", {"httpGet": {"port": 80}}, []),
    ],
)
def test_pods_of_a_slice_that_wait_for_each_other_are_a_warning(
    nodes: dict[str, Any], replicas: int, policy: str, probe: Manifest, warnings: list[str]
) -> None:
    target = stateful_set(container(readinessProbe=probe), replicas=replicas, pod=nodes)
    target["spec"]["podManagementPolicy"] = policy
    answered = Answered(target, is_strict=True)
    assert (answered.response["allowed"], answered.warnings) == (True, warnings)


@pytest.mark.parametrize("target, notice", NOT_INJECTED, ids=[text for _, text in NOT_INJECTED])
def test_a_workload_without_variables_is_allowed_with_a_warning_even_in_strict_mode(
    target: Manifest, notice: str
) -> None:
    for is_strict in (False, True):
        answered = Answered(target, is_strict=is_strict)
        assert answered.warnings == [notice]
        assert answered.response["allowed"] is True
        assert answered.entries() == []


UNFIT: list[tuple[Manifest, str]] = [
    (
        deployment(pod=FOUR_HOSTS),
        "topology 4x4 needs 4 Pods with names, and those of the Pods of Deployment serve are not known; "
        + NUMBERED,
    ),
    (
        pod(name="trial", **FOUR_HOSTS),
        f"topology 4x4 needs 4 Pods with names, and a Pod without a controller has none; {NUMBERED}",
    ),
    (
        owned("PyTorchJob", **FOUR_HOSTS),
        "topology 4x4 needs 4 Pods with names, and those of the Pods of PyTorchJob o are not known; "
        + NUMBERED,
    ),
]


def test_a_job_of_another_group_is_not_taken_for_kubernetes_own() -> None:
    made = pod(
        owners=[
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "name": "t",
                "controller": True,
            }
        ],
        **FOUR_HOSTS,
    )
    assert Answered(made).warnings == [
        f"topology 4x4 needs 4 Pods with names, and those of the Pods of Job t are not known; {NUMBERED}"
    ]


@pytest.mark.parametrize("target, warning", UNFIT, ids=[text for _, text in UNFIT])
def test_a_slice_of_several_hosts_without_indexes_is_a_warning_or_rejected(
    target: Manifest, warning: str
) -> None:
    answered = Answered(target)
    assert (answered.entries(), answered.warnings) == ([], [warning])
    assert Answered(target, is_strict=True).response["status"]["message"] == warning


@pytest.mark.parametrize("spec", [{}, FOUR_HOSTS], ids=["no topology", "four hosts"])
def test_a_workload_with_its_own_list_of_hosts_causes_no_warning(spec: Any) -> None:
    entries = [
        {"name": "TPU_WORKER_HOSTNAMES", "value": "a,b,c,d"},
        {"name": "TPU_WORKER_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['n']"}}},
    ]
    target = owned("PyTorchJob", **spec)
    target["spec"]["containers"] = [container(env=entries)]
    assert Answered(target).response == {"uid": "u-1", "allowed": True}


def by_affinity(**labels: str) -> Manifest:
    expressions = [
        {"key": key, "operator": "In", "values": [value]} for key, value in labels.items()
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms},
        }
    }


def test_a_slice_that_is_selected_by_affinity_is_a_warning() -> None:
    target = stateful_set(pod=by_affinity(**selector("tpu7x", "2x2x2")))
    answered = Answered(target, is_strict=True)
    assert answered.warnings == [
        f"{label} is read from nodeSelector only; move it there from nodeAffinity"
        for label in (TOPOLOGY, ACCELERATOR)
    ]
    assert answered.env()["TPU_NAME"] == "web"


def test_affinity_with_a_node_selector_causes_no_warning() -> None:
    both = by_affinity(**selector("tpu7x", "2x2x2")) | {"nodeSelector": selector("tpu7x", "2x2x2")}
    assert Answered(stateful_set(replicas=2, pod=both)).warnings == []
    other = by_affinity(zone="a") | {"affinity": {"podAffinity": {}}}
    assert Answered(stateful_set(pod=other)).warnings == []


@pytest.mark.parametrize(
    "target",
    [
        pod(container(tpu=0), name="trial"),
        deployment(container(tpu=0)),
        pod(name="c1", labels={"ray.io/cluster": "c1"}),
        stateful_set(template_labels={"leaderworkerset.sigs.k8s.io/name": "x"}),
        group_pod(name="s-0", index=0),
        stateful_set(template_labels={"tpu-functions.dev/inject": "disabled"}),
    ],
)
def test_a_workload_of_another_webhook_or_without_chips_causes_no_warning(target: Manifest) -> None:
    assert Answered(target).warnings == []
