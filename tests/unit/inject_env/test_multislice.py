"""The Jobs of one replicated Job are the slices of a multislice, unless they are independent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.inject_env.workloads import (
    Answered,
    Manifest,
    container,
    job,
    jobset_labels,
    pod_of,
    selector,
)

V6E_TWO_HOSTS = {"nodeSelector": selector("tpu-v6e-slice", "2x4")}
TPU7X_TWO_HOSTS = {"nodeSelector": selector("tpu7x", "2x2x2")}
MULTISLICE = "tpu-functions.dev/multislice"
COORDINATOR = "ms-slice-0-0.ms"


def pod_of_slice(
    *containers: Manifest,
    slices: int = 2,
    index: int = 1,
    number: int = 1,
    annotations: Mapping[str, str] | None = None,
    pod: Mapping[str, Any] = V6E_TWO_HOSTS,
) -> Answered:
    """A Pod of one slice of two hosts, its template admitted before it."""
    labels = jobset_labels(slices, index)
    made = job(
        *containers, name=f"ms-slice-{index}", count=2, subdomain="ms", labels=labels, pod=pod
    )
    made["spec"]["template"]["metadata"]["annotations"] = dict(annotations or {})
    return Answered(pod_of(Answered(made).target, number))


def asking(slices: str, **more: str) -> Manifest:
    entries = {"MEGASCALE_NUM_SLICES": slices, **more}
    return container(env=[{"name": name, "value": value} for name, value in entries.items()])


def jax_process(seen: Mapping[str, str]) -> tuple[int, int]:
    """The process that JAX is and how many it counts, as its ``cloud_tpu_cluster`` computes them."""
    hosts = (seen.get("TPU_PROCESS_ADDRESSES") or seen["TPU_WORKER_HOSTNAMES"]).split(",")
    slices = int(seen.get("MEGASCALE_NUM_SLICES", "1"))
    place = int(seen.get("MEGASCALE_SLICE_ID", "0"))
    return int(seen["TPU_WORKER_ID"]) + place * len(hosts), len(hosts) * slices


def megascale(seen: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in seen.items() if name.startswith("MEGASCALE")}


def test_slices_of_one_replicated_job_are_joined() -> None:
    answered = pod_of_slice()
    assert megascale(answered.env()) == {
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
        "MEGASCALE_COORDINATOR_ADDRESS": COORDINATOR,
    }
    assert jax_process(answered.env()) == (3, 4)


@pytest.mark.parametrize(
    "answered",
    [
        pod_of_slice(annotations={MULTISLICE: "disabled"}),
        pod_of_slice(asking("1")),
        pod_of_slice(asking("1"), pod=TPU7X_TWO_HOSTS),
    ],
    ids=["by annotation", "by its own number", "tpu7x"],
)
def test_an_independent_slice_knows_itself_alone(answered: Answered) -> None:
    seen = answered.env()
    assert set(megascale(seen)) <= {"MEGASCALE_NUM_SLICES"}
    assert jax_process(seen) == (1, 2)
    assert (seen["JAX_PROCESS_ID"], seen["JAX_PROCESS_COUNT"]) == ("1", "2")
    assert seen["JAX_COORDINATOR_ADDRESS"] == "ms-slice-1-0.ms:8482"
    assert answered.warnings == []


@pytest.mark.parametrize("annotation", ["enabled", "", "false"])
def test_only_the_word_disabled_keeps_slices_apart(annotation: str) -> None:
    assert pod_of_slice(annotations={MULTISLICE: annotation}).env()["MEGASCALE_SLICE_ID"] == "1"


@pytest.mark.parametrize("given", ["1", "2", "3", "4", "x"])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_jax_is_never_a_process_beyond_those_that_it_counts(given: str, index: int) -> None:
    seen = pod_of_slice(asking(given), slices=3, index=index).env()
    if given != "x":
        process, count = jax_process(seen)
        assert process < count


@pytest.mark.parametrize("given", ["2", "4", "x"])
def test_another_number_of_slices_is_a_warning_and_nothing_is_added_to_it(given: str) -> None:
    answered = pod_of_slice(asking(given), slices=3)
    assert answered.warnings == [f"MEGASCALE_NUM_SLICES is {given} and should be 3; leave it out"]
    assert megascale(answered.env()) == {"MEGASCALE_NUM_SLICES": given}
    assert not [name for name in answered.env() if name.startswith("JAX")]


@pytest.mark.parametrize("given", ["2", "", "$(SLICES)"])
def test_a_number_of_slices_that_is_right_or_not_known_here_is_completed(given: str) -> None:
    answered = pod_of_slice(asking(given))
    seen = answered.env()
    assert seen["MEGASCALE_SLICE_ID"] == "1"
    assert seen["MEGASCALE_COORDINATOR_ADDRESS"] == COORDINATOR
    assert seen["MEGASCALE_NUM_SLICES"] == given or not given


def test_the_containers_of_a_host_reach_the_other_slices_at_ports_of_their_own() -> None:
    """They share the Pod's network."""
    both = container("a", 2), container("b", 2)
    answered = pod_of_slice(*both, index=0, pod=TPU7X_TWO_HOSTS)
    ports = [answered.env(name)["MEGASCALE_PORT"] for name in "ab"]
    assert ports == ["8081", "8082"]
    for name in "ab":
        address = answered.env(name)["MEGASCALE_COORDINATOR_ADDRESS"]
        assert address == f"{COORDINATOR}:8081"
    assert "MEGASCALE_PORT" not in pod_of_slice(pod=TPU7X_TWO_HOSTS).env()


def test_a_port_of_the_users_is_the_coordinators_too() -> None:
    own = container("a", 2, env=[{"name": "MEGASCALE_PORT", "value": "9000"}])
    answered = pod_of_slice(own, container("b", 2), pod=TPU7X_TWO_HOSTS)
    assert answered.env("a")["MEGASCALE_PORT"] == "9000"
    assert answered.env("b")["MEGASCALE_PORT"] == "8082"
    for name in "ab":
        address = answered.env(name)["MEGASCALE_COORDINATOR_ADDRESS"]
        assert address == f"{COORDINATOR}:9000"


def test_a_port_from_elsewhere_is_a_warning() -> None:
    """A literal address would name another port than the coordinator's."""
    field = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['p']"}}}
    own = container("a", 2, env=[{"name": "MEGASCALE_PORT", **field}])
    answered = pod_of_slice(own, container("b", 2), pod=TPU7X_TWO_HOSTS)
    assert answered.env("b")["MEGASCALE_COORDINATOR_ADDRESS"] == COORDINATOR
    assert answered.warnings == [
        "MEGASCALE_PORT is no literal port, so MEGASCALE_COORDINATOR_ADDRESS has none; give it one"
    ]
