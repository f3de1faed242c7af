"""The Jobs of one replicated Job are the slices of a multislice, unless they are independent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.webhook.workloads import (
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
    """Return a Pod of one slice of two hosts whose template was admitted before."""
    labels = jobset_labels(slices, index)
    made = job(
        *containers, name=f"ms-slice-{index}", count=2, subdomain="ms", labels=labels, pod=pod
    )
    made["spec"]["template"]["metadata"]["annotations"] = dict(annotations or {})
    return Answered(pod_of(Answered(made).target, number))


def requesting(slices: str, **more: str) -> Manifest:
    entries = {"MEGASCALE_NUM_SLICES": slices, **more}
    return container(env=[{"name": name, "value": value} for name, value in entries.items()])


def jax_process(variables: Mapping[str, str]) -> tuple[int, int]:
    """Return JAX's process id and process count, as its ``cloud_tpu_cluster`` computes them."""
    hosts = (variables.get("TPU_PROCESS_ADDRESSES") or variables["TPU_WORKER_HOSTNAMES"]).split(",")
    slices = int(variables.get("MEGASCALE_NUM_SLICES", "1"))
    slice_id = int(variables.get("MEGASCALE_SLICE_ID", "0"))
    return int(variables["TPU_WORKER_ID"]) + slice_id * len(hosts), len(hosts) * slices


def megascale(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith("MEGASCALE")}


def test_the_slices_of_one_replicated_job_are_one_multislice() -> None:
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
        pod_of_slice(requesting("1")),
        pod_of_slice(requesting("1"), pod=TPU7X_TWO_HOSTS),
    ],
    ids=["by annotation", "by its own number", "tpu7x"],
)
def test_an_independent_slice_has_only_its_own_processes(answered: Answered) -> None:
    variables = answered.env()
    assert set(megascale(variables)) <= {"MEGASCALE_NUM_SLICES"}
    assert jax_process(variables) == (1, 2)
    assert (variables["JAX_PROCESS_ID"], variables["JAX_PROCESS_COUNT"]) == ("1", "2")
    assert variables["JAX_COORDINATOR_ADDRESS"] == "ms-slice-1-0.ms:8482"
    assert answered.warnings == []


@pytest.mark.parametrize("annotation", ["enabled", "", "false"])
def test_only_the_value_disabled_makes_slices_independent(annotation: str) -> None:
    assert pod_of_slice(annotations={MULTISLICE: annotation}).env()["MEGASCALE_SLICE_ID"] == "1"


@pytest.mark.parametrize("given", ["1", "2", "3", "4", "x"])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_process_id_of_jax_is_always_below_its_process_count(given: str, index: int) -> None:
    variables = pod_of_slice(requesting(given), slices=3, index=index).env()
    if given != "x":
        process, count = jax_process(variables)
        assert process < count


@pytest.mark.parametrize("given", ["2", "4", "x"])
def test_a_wrong_number_of_slices_is_a_warning_and_no_variable_is_added(given: str) -> None:
    answered = pod_of_slice(requesting(given), slices=3)
    assert answered.warnings == [f"MEGASCALE_NUM_SLICES is {given} and should be 3; leave it out"]
    assert megascale(answered.env()) == {"MEGASCALE_NUM_SLICES": given}
    assert not [name for name in answered.env() if name.startswith("JAX")]


@pytest.mark.parametrize(
    "annotations, expected", [({}, 2), ({MULTISLICE: "disabled"}, 1)], ids=["joined", "independent"]
)
def test_a_number_of_slices_by_a_field_is_compared_like_any_other(
    annotations: dict[str, str], expected: int
) -> None:
    """JobSet's count of all Jobs includes those without chips."""
    name = "jobset.sigs.k8s.io/global-replicas"
    field = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{name}']"}}}
    counted = container(env=[{"name": "MEGASCALE_NUM_SLICES", **field}])
    answered = pod_of_slice(counted, annotations={name: "3", **annotations})
    warning = f"MEGASCALE_NUM_SLICES is 3 and should be {expected}; leave it out"
    assert answered.warnings == [warning]
    assert not [one for one in answered.env() if one.startswith("JAX")]
    assert set(megascale(answered.env())) == {"MEGASCALE_NUM_SLICES"}


@pytest.mark.parametrize("given", ["2", "", "$(SLICES)"])
def test_variables_are_added_to_a_correct_or_unknown_number_of_slices(given: str) -> None:
    answered = pod_of_slice(requesting(given))
    variables = answered.env()
    assert variables["MEGASCALE_SLICE_ID"] == "1"
    assert variables["MEGASCALE_COORDINATOR_ADDRESS"] == COORDINATOR
    assert variables["MEGASCALE_NUM_SLICES"] == given or not given


def test_each_container_of_a_host_has_its_own_megascale_port() -> None:
    """The containers share the Pod's network."""
    both = container("a", 2), container("b", 2)
    answered = pod_of_slice(*both, index=0, pod=TPU7X_TWO_HOSTS)
    ports = [answered.env(name)["MEGASCALE_PORT"] for name in "ab"]
    assert ports == ["8081", "8082"]
    for name in "ab":
        address = answered.env(name)["MEGASCALE_COORDINATOR_ADDRESS"]
        assert address == f"{COORDINATOR}:8081"
    assert "MEGASCALE_PORT" not in pod_of_slice(pod=TPU7X_TWO_HOSTS).env()


def test_a_port_of_the_user_is_used_in_the_address_of_the_coordinator() -> None:
    own = container("a", 2, env=[{"name": "MEGASCALE_PORT", "value": "9000"}])
    answered = pod_of_slice(own, container("b", 2), pod=TPU7X_TWO_HOSTS)
    assert answered.env("a")["MEGASCALE_PORT"] == "9000"
    assert answered.env("b")["MEGASCALE_PORT"] == "8082"
    for name in "ab":
        address = answered.env(name)["MEGASCALE_COORDINATOR_ADDRESS"]
        assert address == f"{COORDINATOR}:9000"


def test_a_port_that_is_not_a_literal_is_a_warning() -> None:
    """A literal address would name another port than the coordinator's."""
    field = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['p']"}}}
    own = container("a", 2, env=[{"name": "MEGASCALE_PORT", **field}])
    answered = pod_of_slice(own, container("b", 2), pod=TPU7X_TWO_HOSTS)
    assert answered.env("b")["MEGASCALE_COORDINATOR_ADDRESS"] == COORDINATOR
    assert answered.warnings == [
        "MEGASCALE_PORT has no port number as its value, so MEGASCALE_COORDINATOR_ADDRESS has no port; "
        "set a number"
    ]
