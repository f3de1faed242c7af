# ruff: noqa: E501  (a table reads best with a row on a line)
"""The VMs of `make local` join only if the real ones could."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from local.base.clock import VirtualClock
from local.gce import read_inventory
from local.run.vms import Vms
from local.tests.vm.machine import Machine
from local.tests.vm.small_cluster import SmallCluster
from local.vm import agents
from local.vm.conversation import Bearer, Identity
from local.vm.kubelet import KubeletBehaviour
from local.vm.script_agent import _spawn
from local.vm.transport import InProcess

ADMIN = "admin0.0123456789abcdef"
IMAGES = "projects/my-gcp-project/global/images"
UBUNTU = (
    "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2404-amd64-tpu-tpu7x"
)


@pytest.mark.parametrize(
    "image, metadata, joins, serial",
    [
        (f"{IMAGES}/my-tpu7x-image", {}, True, ""),
        (UBUNTU, {}, False, "tng-train-0a1b2c3d-x1y2 login: \n"),
        (UBUNTU, {"startup-script": "readonly KUBERNETES_MINOR=1.12"}, False, "setup failed (see /var/log/tpu-functions-startup.log) and is retried\n"),
        (UBUNTU, {"startup-script": "readonly KUBERNETES_MINOR=1.33"}, False, "waiting: for kubeadm-join-token"),
    ],
    ids=["image that joins", "image that does not", "version without packages", "no token yet"],
)  # fmt: skip
def test_a_vm_joins_by_its_image_or_its_startup_script(
    tmp_path: Path, image: str, metadata: dict[str, str], joins: bool, serial: str
) -> None:
    clock, inventory = VirtualClock(), read_inventory()
    cluster = SmallCluster(clock.now, {ADMIN: clock.now() + timedelta(days=1)})
    vms = Vms(
        *(clock, InProcess(cluster)),
        timings=agents.Timings(),
        behaviour=KubeletBehaviour(),
        random=Random(1),
        scratch=tmp_path,
        api_server=lambda: "https://10.128.0.2:6443",
        identify=lambda: Identity("https://10.128.0.2:6443", "", Bearer(ADMIN)),
        joins_by_itself=lambda name: inventory.has("joiningImages", name),
        has_packages=lambda minor: inventory.has("kubernetesVersions", minor),
        exists=lambda _: True,
        observe=lambda _: None,
        scripts=0,
        spawn=_spawn,
    )
    machine = Machine(image=image, metadata=metadata)
    vms.boot(machine).power_on()
    clock.run_for(600)
    assert (machine.name in cluster.nodes) is joins
    assert serial in machine.serial
