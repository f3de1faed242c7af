# ruff: noqa: E501  (a table reads best with a row on a line)
"""Pods of a LeaderWorkerSet: inject_env never contradicts the numbers that its webhook sets."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tests.unit.webhook.lws import (
    CONFIGURATION,
    ORDERS,
    OWN_CONFIGURATION,
    PREFIX,
    Admitted,
    mutate,
)
from tests.unit.webhook.workloads import Answered, Manifest, container, group_pod, selector
from webhook.tpu_env.workloads import name_hosts

TWO_HOSTS: dict[str, Any] = {"nodeSelector": selector("tpu7x", "2x2x2")}
LISTED = (
    "TPU_WORKER_HOSTNAMES",
    "TPU_PROCESS_ADDRESSES",
    "TPU_NAME",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_PROCESS_COUNT",
)
"""The variables that must be equal in all Pods of a group."""


def group(
    *containers: Manifest, policy: str = "Shared", subgroup: int | None = None, **spec: Any
) -> tuple[Manifest, Manifest]:
    """Return the leader and the worker of a group of two, as its controllers create them."""
    leader = group_pod(
        *containers, name="test-0", index=0, subdomain="test", subgroup=subgroup, **spec
    )
    subdomain = "test" if policy == "Shared" else "test-0"
    worker = group_pod(
        *containers, name="test-0-1", index=1, subdomain=subdomain, subgroup=subgroup, **spec
    )
    leader["metadata"]["annotations"][f"{PREFIX}/subdomainPolicy"] = policy
    return leader, worker


def test_the_webhook_is_called_after_that_of_leader_worker_set() -> None:
    """Mutating webhooks are called in the order of their configurations' names."""
    assert CONFIGURATION < OWN_CONFIGURATION


GROUPS: dict[str, tuple[Manifest, Manifest]] = {
    "no topology": group(),
    "two containers": group(container("c", 2), container("d", 2), **TWO_HOSTS),
    "an init container": group(container(), initContainers=[container("warm")], **TWO_HOSTS),
    "a sidecar": group(
        container(tpu=2),
        initContainers=[container("side", 2, restartPolicy="Always")],
        **TWO_HOSTS,
    ),
    "one host": group(nodeSelector=selector("tpu7x", "2x2x1")),
    "subgroups": group(container("c", 2), container("d", 2), subgroup=2, **TWO_HOSTS),
    "a port": group(container(env=[{"name": "TPU_PROCESS_PORT", "value": "9000"}]), **TWO_HOSTS),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize("annotation", ["", "enabled", "disabled"])
def test_a_marked_pod_agrees_with_a_pod_that_only_leader_worker_set_changed(
    case: str, order: str, annotation: str
) -> None:
    leader, worker = deepcopy(GROUPS[case])
    for made in (leader, worker):
        if annotation:
            made["metadata"]["annotations"]["tpu-functions.dev/process-addresses"] = annotation
    marked = Admitted(leader, configuration=order), Admitted(worker, configuration=order)
    unmarked = Answered({**mutate(worker), "kind": "Other"})
    for name in {one["name"] for one in leader["spec"]["containers"]}:
        numbered = [one.env(name) for one in (*marked, unmarked)]
        for variable in LISTED[:3]:
            assert len({one.get(variable) for one in numbered}) == 1
        for variable in LISTED[3:]:
            assert len({one.get(variable) for one in numbered[:2]}) == 1
        assert numbered[1].get("TPU_WORKER_ID") == numbered[2].get("TPU_WORKER_ID")
        if "TPU_WORKER_ID" in numbered[0]:
            assert numbered[0]["TPU_WORKER_ID"] != numbered[1]["TPU_WORKER_ID"]


def own(hosts: str, worker: str) -> list[Manifest]:
    """The variables that a user sets, and LeaderWorkerSet's webhook keeps."""
    both = {"TPU_WORKER_HOSTNAMES": hosts, "TPU_WORKER_ID": worker}
    return [{"name": name, "value": value} for name, value in both.items()]


FIRST_PORT = {
    "name": "TPU_PROCESS_PORT",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['p']"}},
}
WITHOUT_WARNINGS = {
    "two containers": GROUPS["two containers"][0],
    "a sidecar": GROUPS["a sidecar"][0],
    "only an init container": group(
        container("c", None), initContainers=[container("warm")], **TWO_HOSTS
    )[0],
    "one host": group(
        container(env=own("localhost", "0")), nodeSelector=selector("tpu7x", "2x2x1")
    )[1],
    "subgroups and one container": group(container(), subgroup=2, **TWO_HOSTS)[0],
}


@pytest.mark.parametrize("case", WITHOUT_WARNINGS.values(), ids=WITHOUT_WARNINGS)
def test_a_supported_group_has_no_warning_about_containers(case: Manifest) -> None:
    warnings = " ".join(Admitted(case).warnings)
    assert "init container" not in warnings
    assert "one container only" not in warnings
    assert "localhost" not in warnings


@pytest.mark.parametrize("length, count", [(253, 2), (254, 0)])
def test_host_names_are_at_most_as_long_as_a_dns_name(length: int, count: int) -> None:
    assert len(name_hosts("a" * 50, range(2), "b" * (length - 50))) == count


WARNED: list[tuple[Manifest, str]] = [
    (group(subgroup=2, **TWO_HOSTS)[0], "TPU_WORKER_ID is -1: LeaderWorkerSet 0.9 numbers a leader with google.com/tpu so in subgroups; use a newer version, or subgroups without the leader (LeaderExcluded)"),
    (
        group(container(env=own("localhost", "0")), **TWO_HOSTS)[1],
        "the list of workers is localhost in a group of 2 Pods, and LeaderWorkerSet keeps it; let nothing else set TPU_WORKER_HOSTNAMES",
    ),
    (group(nodeSelector=selector("tpu-v6e-slice", "4x4"))[0], "topology 4x4 needs 4 Pods, and there are 2; set their number to 4"),
    (
        group(nodeSelector=selector("tpu7x", "2x2x1"))[1],
        "topology 2x2x1 is one host, so each Pod is a slice of its own, but LeaderWorkerSet lists 2 hosts; "
        "set size to 1, or TPU_WORKER_ID to 0 and TPU_WORKER_HOSTNAMES to localhost",
    ),
    (
        group(container(env=own("test-0.test,test-0-1.test", "2")), **TWO_HOSTS)[1],
        "TPU_WORKER_ID is 2, and there are 2 entries in the list of workers; leave both out: "
        "LeaderWorkerSet sets them",
    ),
    (
        GROUPS["an init container"][0],
        "LeaderWorkerSet counts an init container with google.com/tpu as one more process of each Pod; "
        "ask for it in containers only",
    ),
    (GROUPS["subgroups"][0], "with subgroups, LeaderWorkerSet sets TPU variables in one container only; ask for " "google.com/tpu in one"),
    (
        group(container(env=[FIRST_PORT]))[0],
        "TPU_PROCESS_PORT has no port number as its value, and LeaderWorkerSet builds addresses from "
        "it; set a number, or leave it out",
    ),
    (group(container(env=[{"name": "TPU_WORKER_ID", "value": "0"}]))[0], "LeaderWorkerSet sets no TPU variables where TPU_WORKER_ID is set; leave it out"),
]  # fmt: skip


@pytest.mark.parametrize("made, warning", WARNED, ids=[text for _, text in WARNED])
def test_a_group_that_leader_worker_set_numbers_wrongly_is_a_warning_or_rejected(
    made: Manifest, warning: str
) -> None:
    for order in ORDERS:
        assert Admitted(made, configuration=order).warnings == [warning]
    assert Admitted(made, is_strict=True).response["status"]["message"] == warning


def test_disabled_addresses_of_a_leader_worker_set_are_a_warning() -> None:
    leader, _ = group()
    leader["metadata"]["annotations"]["tpu-functions.dev/process-addresses"] = "disabled"
    assert Admitted(leader).warnings == [
        "tpu-functions.dev/process-addresses has no effect on TPU_PROCESS_ADDRESSES, which "
        "LeaderWorkerSet sets; leave it out"
    ]


@pytest.mark.parametrize("name", ["", "sample", "sample-x"])
def test_a_pod_with_a_name_that_leader_worker_set_rejects_gets_no_hosts(name: str) -> None:
    made = group_pod(name=name, index=1, **TWO_HOSTS)
    assert {"TPU_WORKER_HOSTNAMES", "JAX_PROCESS_ID"}.isdisjoint(Answered(made).env())
