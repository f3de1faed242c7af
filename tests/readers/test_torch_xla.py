# ruff: noqa: E501  (one line per table row)
"""PyTorch/XLA reads the injected variables as intended; its own code runs on a machine without TPUs.

The module that reads variables is pure Python. Only this module is imported: PyTorch and the library for
the chips are replaced by empty modules.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from platform import machine
from types import ModuleType
from typing import Any

import pytest

from local.tests.real_parts import miss
from tests.readers.pods import admitted_pod
from tests.support.topology import TOPOLOGY
from tests.unit.webhook.workloads import container, selector

pytestmark = pytest.mark.real

PLUGIN = {"TPU_SKIP_MDS_QUERY": "true"}
"""The variable of the device plugin. Without it, PyTorch/XLA reads the metadata server instead."""
NO_ADDRESSES = {"tpu-functions.dev/process-addresses": "disabled"}


@pytest.fixture(scope="module")
def tpu() -> Iterator[Any]:
    """``torch_xla._internal.tpu``."""
    if (sys.platform, machine()) != ("linux", "x86_64") or sys.version_info >= (3, 14):
        pytest.skip("PyTorch/XLA 2.9 has no package for this platform")
    found = find_spec("torch_xla")
    if found is None or not found.submodule_search_locations:
        miss("PyTorch/XLA is not installed; `make test-real` installs it")
    package = ModuleType("torch_xla")
    package.__path__ = list(found.submodule_search_locations)
    plugins: Any = ModuleType("torch_xla.experimental.plugins")
    plugins.DevicePlugin = object
    experimental: Any = ModuleType("torch_xla.experimental")
    experimental.plugins = plugins
    replacements = [package, plugins, experimental, ModuleType("torch")]
    replacements.append(ModuleType("torch_xla.core.xla_model"))
    before = {name: sys.modules.get(name) for name in ("torch", *_list_modules())}
    sys.modules.update({module.__name__: module for module in replacements})
    yield import_module("torch_xla._internal.tpu")
    for name in ("torch", *_list_modules()):
        sys.modules.pop(name, None)
    sys.modules.update({name: module for name, module in before.items() if module is not None})


def _list_modules() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "torch_xla"]


@pytest.fixture
def set_environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace the environment of this process."""
    return lambda variables: monkeypatch.setattr(os, "environ", dict(variables))


VARIABLES = (
    "TPU_PROCESS_BOUNDS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "CLOUD_TPU_TASK_ID",
    "TPU_PROCESS_PORT",
    "TPU_PROCESS_ADDRESSES",
)


def configured(tpu: Any, rank: int, processes: int = 4) -> list[str]:
    """The variables of one of several processes on a host."""
    tpu.configure_topology(rank, processes)
    return [os.environ[name] for name in VARIABLES]


def ports(*hosts: str, processes: int = 4) -> str:
    """The list of addresses that PyTorch/XLA computes from hosts."""
    return ",".join(f"{host}:{8476 + rank}" for host in hosts for rank in range(processes))


def test_pytorch_xla_reads_variables_as_documented(tpu: Any, set_environment: Any) -> None:
    """val-xla-reads"""
    set_environment({
        "TPU_SKIP_MDS_QUERY": "true", "TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1",
        "TPU_ACCELERATOR_TYPE": "v4-16", "TPU_HOST_BOUNDS": "1,1,2", "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
    })  # fmt: skip
    assert configured(tpu, 0) == ["2,2,2", "1,1,1", "4", "8476", ports("a", "b")]


def test_an_existing_list_of_addresses_is_kept(tpu: Any, set_environment: Any) -> None:
    """val-xla-conflict"""
    pod = admitted_pod(1, 2, nodeSelector=selector("tpu-v4-podslice", "2x2x2")).env()
    set_environment({**PLUGIN, **pod, "TPU_PROCESS_ADDRESSES": "a:8476,b:8476"})
    assert configured(tpu, 0)[-1] == "a:8476,b:8476"


def test_a_pod_of_a_slice_is_the_worker_of_its_index(tpu: Any, set_environment: Any) -> None:
    set_environment(
        {**PLUGIN, **admitted_pod(3, 4, nodeSelector=selector("tpu-v6e-slice", "4x4")).env()}
    )
    hosts = [f"web-{number}.nginx" for number in range(4)]
    assert (tpu.version(), tpu.get_tpu_type()) == (6, "v6e")
    assert (tpu.worker_id(), tpu.num_tpu_workers()) == (3, 4)
    assert tpu.get_worker_ips() == hosts
    assert configured(tpu, 2) == ["4,4,1", "1,1,1", "14", "8478", ports(*hosts)]


def test_pytorch_xla_computes_the_addresses_of_tpu7x_if_none_are_injected(
    tpu: Any, set_environment: Any
) -> None:
    shape = {"nodeSelector": selector("tpu7x", "2x2x2")}
    set_environment({**PLUGIN, **admitted_pod(1, 2, annotations=NO_ADDRESSES, **shape).env()})
    assert (tpu.version(), tpu.get_tpu_type(), tpu.worker_id()) == (7, "tpu7x", 1)
    # The fourth number is the number of cores of a chip.
    assert configured(tpu, 3) == [
        "2,2,2,2",
        "1,1,1",
        "7",
        "8479",
        ports("web-0.nginx", "web-1.nginx"),
    ]
    set_environment({**PLUGIN, **admitted_pod(1, 2, **shape).env()})
    assert configured(tpu, 3)[-2:] == ["8471", "web-0.nginx:8471,web-1.nginx:8471"]


def test_a_slice_of_one_host_is_one_worker(tpu: Any, set_environment: Any) -> None:
    set_environment(
        {**PLUGIN, **admitted_pod(0, 1, nodeSelector=selector("tpu-v6e-slice", "2x2")).env()}
    )
    assert (tpu.worker_id(), tpu.get_worker_ips()) == (0, ["localhost"])


@pytest.mark.parametrize(
    "generation, number", [("v4", 4), ("v5e", 5), ("v5p", 5), ("v6e", 6), ("tpu7x", 7)]
)
def test_every_documented_shape_has_a_process_per_chip(
    generation: str, number: int, tpu: Any, set_environment: Any
) -> None:
    found = TOPOLOGY["generations"][generation]
    for row in found["topologies"]:
        for machine_type, vms in row["vms"].items():
            chips = found["machine_types"][machine_type]["chips"]
            shape = {"nodeSelector": selector(found["gke_label"], row["topology"])}
            pod = admitted_pod(
                0, vms["hosts"], container(tpu=chips), annotations=NO_ADDRESSES, **shape
            )
            set_environment({**PLUGIN, **pod.env()})
            assert tpu.version() == number
            bounds, *_, addresses = configured(tpu, 0, chips)
            assert bounds.split(",")[:3] == [*row["topology"].split("x"), "1"][:3]
            assert len(addresses.split(",")) == vms["hosts"] * chips
