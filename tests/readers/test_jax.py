# ruff: noqa: E501  (one line per table row)
"""JAX reads the injected variables as intended; its own code runs on a machine without TPUs.

Its use of libtpu and of the metadata server is patched; the code that reads variables is unchanged.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from local.tests.real_parts import miss
from tests.readers.pods import admitted_pod
from tests.unit.webhook.workloads import Answered, container, jobset_labels, pod, selector

pytestmark = pytest.mark.real


def read(variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the configuration that JAX reads from variables."""
    try:
        from jax._src.clusters import cloud_tpu_cluster
    except ImportError:
        miss("JAX is not installed; `make test-real` installs it")
    monkeypatch.setattr(os, "environ", dict(variables))
    monkeypatch.setattr(cloud_tpu_cluster, "get_tpu_env_value_from_metadata", lambda _: None)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: name)
    cluster = cloud_tpu_cluster.GkeTpuCluster
    port = os.environ.get("JAX_COORDINATOR_PORT")
    return {
        "process_count": cluster.get_process_count(),
        "process_id": cluster.get_process_id(),
        "coordinator": cluster.get_coordinator_address(5, port),
    }


KNOWN_RESULTS = [
    ("val-jax-prefers-addresses",
     {"TPU_PROCESS_ADDRESSES": "a:8476,b:8476", "TPU_WORKER_HOSTNAMES": "a", "TPU_WORKER_ID": "1"},
     (2, 1, "a:8482")),
    ("val-jax-megascale",
     {"TPU_WORKER_HOSTNAMES": "a,b,c,d", "TPU_WORKER_ID": "3", "MEGASCALE_NUM_SLICES": "2",
      "MEGASCALE_SLICE_ID": "1", "MEGASCALE_COORDINATOR_ADDRESS": "m:8081"},
     (8, 7, "m:8482")),
    ("val-jax-port-override",
     {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0", "JAX_COORDINATOR_PORT": "1234"},
     (2, 0, "a:1234")),
    ("val-jax-empty-list", {"TPU_WORKER_HOSTNAMES": "", "TPU_WORKER_ID": "0"}, (1, 0, ":8482")),
    ("val-jax-ipv6", {"TPU_WORKER_HOSTNAMES": "fd00::1,fd00::2", "TPU_WORKER_ID": "0"}, (2, 0, "fd00:8482")),
]  # fmt: skip


@pytest.mark.parametrize(
    "row, variables, expected", KNOWN_RESULTS, ids=[row for row, *_ in KNOWN_RESULTS]
)
def test_jax_reads_variables_as_documented(
    row: str,
    variables: dict[str, str],
    expected: tuple[int, int, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert row.startswith("val-jax")
    assert tuple(read(variables, monkeypatch).values()) == expected


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_pod_of_a_stateful_set_is_the_process_of_its_index(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = admitted_pod(number, 4, nodeSelector=selector("tpu-v6e-slice", "4x4")).env()
    found = read(variables, monkeypatch)
    assert found == {"process_count": 4, "process_id": number, "coordinator": "web-0.nginx:8482"}
    assert found["coordinator"] == variables["JAX_COORDINATOR_ADDRESS"]
    assert (str(found["process_count"]), str(found["process_id"])) == (
        variables["JAX_PROCESS_COUNT"],
        variables["JAX_PROCESS_ID"],
    )


def test_two_containers_of_a_tpu7x_host_are_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    both = (container("a", 2), container("b", 2))
    answered = admitted_pod(1, 2, *both, nodeSelector=selector("tpu7x", "2x2x2"))
    found = [read(answered.env(name), monkeypatch) for name in ("a", "b")]
    assert [one["process_id"] for one in found] == [2, 3]
    assert {one["process_count"] for one in found} == {4}


def test_processes_of_the_second_slice_follow_those_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = ",".join(f"ms-slice-1-{number}.ms" for number in range(4))
    target = pod(
        container(env=[{"name": "TPU_WORKER_HOSTNAMES", "value": hosts}]),
        name="ms-slice-1-3-x7abc",
        owner="Job",
        subdomain="ms",
        labels={**jobset_labels(2, 1), "batch.kubernetes.io/job-name": "ms-slice-1"},
        annotations={"batch.kubernetes.io/job-completion-index": "3"},
    )
    variables = Answered(target).env()
    found = read(variables, monkeypatch)
    assert found == {"process_count": 8, "process_id": 7, "coordinator": "ms-slice-0-0.ms:8482"}
    assert found["coordinator"] == variables["JAX_COORDINATOR_ADDRESS"]


def test_a_slice_of_one_host_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = admitted_pod(0, 1, nodeSelector=selector("tpu7x", "2x2x1")).env()
    assert read(variables, monkeypatch) == {
        "process_count": 1,
        "process_id": 0,
        "coordinator": "localhost:8482",
    }
