"""Pods of a gang on the real scheduler, with its feature gates: which of them wait for a slice."""

from __future__ import annotations

from typing import Any

import pytest

from local.tests.real_parts import open_own_control_plane
from shared.base.names import ACCELERATOR_LABEL, TOPOLOGY_LABEL, TPU_RESOURCE
from shared.slices.units import is_held, is_unschedulable, waits
from tests.real.relay.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("gangs")]

GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
SERVED = "--runtime-config=scheduling.k8s.io/v1alpha2=true"
GANGS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
PODS = "/api/v1/namespaces/default/pods"


def test_the_pods_of_an_incomplete_gang_have_no_condition_and_wait_for_a_slice() -> None:
    with open_own_control_plane([GATES, SERVED], [GATES], [GATES]) as plane:

        def post(path: str, body: dict[str, Any]) -> None:
            code, answer = plane.request("POST", path, body)
            assert code == 201, answer

        def read(name: str) -> dict[str, Any]:
            found: dict[str, Any] = plane.request("GET", f"{PODS}/{name}")[1]
            return found

        post(GANGS, _gang(2))
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
