"""Pods of a gang on the real scheduler, with its feature gates: which of them wait for a slice."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest

from local.tests.real_parts import get_control_plane_binaries, open_own_control_plane
from shared.base.names import ACCELERATOR_LABEL, TOPOLOGY_LABEL, TPU_RESOURCE
from shared.slices.units import is_held, is_unschedulable, waits
from tests.real.relay.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("gangs")]

GATES = {
    (1, 36): ("v1alpha2", "GenericWorkload=true,GangScheduling=true"),
    (1, 37): ("v1beta1", "GenericWorkload=true"),
}
"""The version of the API and the feature gates, from a version of Kubernetes on. In both they are off by
default. CI runs the former; KUBEBUILDER_ASSETS names the programs of another version."""
PODS = "/api/v1/namespaces/default/pods"


def test_the_pods_of_an_incomplete_gang_have_no_condition_and_wait_for_a_slice() -> None:
    api, gates = GATES[max(version for version in GATES if version <= _version())]
    flag, served = f"--feature-gates={gates}", f"--runtime-config=scheduling.k8s.io/{api}"
    with open_own_control_plane([flag, served], [flag], [flag]) as plane:

        def post(path: str, body: dict[str, Any]) -> None:
            code, answer = plane.request("POST", path, body)
            assert code == 201, answer

        def read(name: str) -> dict[str, Any]:
            found: dict[str, Any] = plane.request("GET", f"{PODS}/{name}")[1]
            return found

        # Each cluster has a Node: the relay runs there. Without one, 1.37.2 reports the Pods of a
        # complete gang as SchedulerError.
        post("/api/v1/nodes", {"metadata": {"name": "cpu"}})
        post(f"/apis/scheduling.k8s.io/{api}/namespaces/default/podgroups", _gang(2))
        post(PODS, _pod("first"))
        post(PODS, _pod("alone", gang=None))
        until(
            lambda: is_unschedulable(read("alone")["status"]), "the scheduler has tried the other"
        )
        first = read("first")
        assert first["status"].get("conditions") is None
        assert is_held(first)
        assert waits(first) is not None

        post(PODS, _pod("second"))
        until(lambda: is_unschedulable(read("first")["status"]), "the complete gang has been tried")
        assert not is_held(read("first"))
        assert waits(read("first")) is not None


def _version() -> tuple[int, ...]:
    command = [get_control_plane_binaries().path("kube-scheduler"), "--version"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(map(int, re.findall(r"\d+", output)[:2]))


def _gang(count: int) -> dict[str, Any]:
    policy = {"gang": {"minCount": count}}
    return {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": policy}}


def _pod(name: str, gang: str | None = "g") -> dict[str, Any]:
    chips = {"limits": {TPU_RESOURCE: "4"}}
    spec: dict[str, Any] = {
        "nodeSelector": {TOPOLOGY_LABEL: "2x2x2", ACCELERATOR_LABEL: "tpu7x"},
        "containers": [{"name": "train", "image": "train", "resources": chips}],
    }
    if gang is not None:
        spec["schedulingGroup"] = {"podGroupName": gang}
    return {"metadata": {"name": name}, "spec": spec}
