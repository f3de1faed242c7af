# ruff: noqa: E501  (a table reads best with a row on a line)
"""Nodes without heartbeats, and the taints that follow from a Node's conditions."""

from __future__ import annotations

from typing import Any

import pytest

from local.kube.formats import render_time
from local.tests.contract.kubernetes.embedded import Embedded

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
MERGE = "application/merge-patch+json"
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"


@pytest.fixture
def server() -> Embedded:
    server = Embedded()
    server.ask("POST", NODES, {"metadata": {"name": "n"}})
    server.run_controllers()
    return server


def report(server: Embedded, **conditions: str) -> None:
    """Report conditions as a kubelet does."""
    now = render_time(server.clock.now())
    body = [
        {"type": type_, "status": status, "lastHeartbeatTime": now, "reason": "R", "message": "m"}
        for type_, status in conditions.items()
    ]
    server.ask("PATCH", f"{NODES}/n/status", {"status": {"conditions": body}}, content_type=MERGE)
    server.run_controllers()


def renew_lease(server: Embedded) -> None:
    """Renew the Lease as a kubelet does."""
    lease = {
        "metadata": {"name": "n"},
        "spec": {"renewTime": server.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
    }
    if server.send("GET", f"{LEASES}/n").status == 404:
        server.ask("POST", LEASES, lease)
    else:
        server.ask("PATCH", f"{LEASES}/n", lease, content_type=MERGE)


def node(server: Embedded) -> Any:
    return server.ask("GET", f"{NODES}/n")


def taints(server: Embedded) -> list[tuple[str, str]]:
    return [(one["key"], one["effect"]) for one in node(server)["spec"].get("taints", ())]


def ready(server: Embedded) -> tuple[str, str]:
    conditions = {one["type"]: one for one in node(server)["status"]["conditions"]}
    return conditions["Ready"]["status"], conditions["Ready"]["reason"]


def test_a_new_node_has_a_taint_until_it_is_ready(server: Embedded) -> None:
    assert taints(server) == [(NOT_READY, "NoSchedule")]
    report(server, Ready="True")
    assert taints(server) == []


CONDITIONS = {
    "not ready": ({"Ready": "False"}, {(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")}),
    "memory pressure": ({"Ready": "True", "MemoryPressure": "True"}, {("node.kubernetes.io/memory-pressure", "NoSchedule")}),
    "network unavailable": ({"Ready": "True", "NetworkUnavailable": "True"}, {("node.kubernetes.io/network-unavailable", "NoSchedule")}),
    "ready without pressure": ({"Ready": "True", "MemoryPressure": "False"}, set()),
}  # fmt: skip


@pytest.mark.parametrize("conditions, expected", CONDITIONS.values(), ids=CONDITIONS.keys())
def test_conditions_become_taints(
    server: Embedded, conditions: dict[str, str], expected: set[tuple[str, str]]
) -> None:
    report(server, **conditions)
    assert set(taints(server)) == expected


def test_a_cordoned_node_is_tainted_and_an_uncordoned_one_is_not(server: Embedded) -> None:
    report(server, Ready="True")
    server.ask("PATCH", f"{NODES}/n", {"spec": {"unschedulable": True}}, content_type=MERGE)
    server.run_controllers()
    assert taints(server) == [("node.kubernetes.io/unschedulable", "NoSchedule")]
    server.ask("PATCH", f"{NODES}/n", {"spec": {"unschedulable": None}}, content_type=MERGE)
    server.run_controllers()
    assert taints(server) == []


def test_other_taints_are_kept(server: Embedded) -> None:
    mine = {"key": "mine", "effect": "NoSchedule", "value": "x"}
    server.ask("PATCH", f"{NODES}/n", {"spec": {"taints": [mine]}}, content_type=MERGE)
    report(server, Ready="True")
    assert node(server)["spec"]["taints"] == [mine]


def test_a_node_whose_lease_is_renewed_stays_ready(server: Embedded) -> None:
    report(server, Ready="True")
    for _ in range(30):
        renew_lease(server)
        server.clock.run_for(10)
    assert ready(server)[0] == "True"


def test_a_node_without_heartbeats_is_unknown_after_the_grace_period(server: Embedded) -> None:
    report(server, Ready="True")
    renew_lease(server)
    server.clock.run_for(49)
    assert ready(server)[0] == "True"
    server.clock.run_for(2)
    assert ready(server) == ("Unknown", "NodeStatusUnknown")
    assert set(taints(server)) == {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")}


def test_a_node_is_ready_again_after_a_new_heartbeat(server: Embedded) -> None:
    report(server, Ready="True")
    server.clock.run_for(60)
    assert ready(server)[0] == "Unknown"
    report(server, Ready="True")
    assert (ready(server)[0], taints(server)) == ("True", [])


def test_a_node_that_never_reports_is_unknown_after_a_minute(server: Embedded) -> None:
    server.clock.run_for(62)
    assert ready(server) == ("Unknown", "NodeStatusNeverUpdated")
    assert (UNREACHABLE, "NoExecute") in taints(server)


def test_a_recreated_node_counts_as_new(server: Embedded) -> None:
    report(server, Ready="True")
    server.clock.run_for(30)
    server.ask("DELETE", f"{NODES}/n")
    server.ask("POST", NODES, {"metadata": {"name": "n"}})
    report(server, Ready="True")
    server.clock.run_for(40)
    assert ready(server)[0] == "True"
