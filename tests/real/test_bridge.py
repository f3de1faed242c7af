"""The bridge between a story's virtual time and a real control plane, tested without either."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local.base.clock import VirtualClock
from tests.real.bridge import heartbeats
from tests.real.bridge.pending import pending_work
from tests.real.bridge.times import Times

START = datetime(2026, 1, 1, tzinfo=UTC)
REAL, VIRTUAL = "2030-05-05T00:00:00Z", "2026-01-01T00:01:00Z"


def document(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"uid": "u", "name": "n", **metadata}}


# times


def test_a_creation_time_is_translated_to_virtual_time_and_back() -> None:
    now = START + timedelta(minutes=1)
    times = Times(lambda: now)
    times.created(document(creationTimestamp=REAL))
    now += timedelta(hours=1)
    read = document(creationTimestamp=REAL)
    times.to_virtual(read)
    assert read == document(creationTimestamp=VIRTUAL)
    times.to_real(read)
    assert read == document(creationTimestamp=REAL)


def test_an_object_that_existed_before_the_story_keeps_its_time() -> None:
    times = Times(lambda: START)
    read = document(creationTimestamp=REAL)
    times.to_virtual(read)
    assert read == document(creationTimestamp=REAL)


def test_a_deletion_time_is_the_virtual_time_of_its_first_observation() -> None:
    now = START + timedelta(minutes=1)
    times = Times(lambda: now)
    for _ in range(2):
        read = document(deletionTimestamp=REAL)
        times.to_virtual(read)
        assert read == document(deletionTimestamp=VIRTUAL)
        now += timedelta(hours=1)


@pytest.mark.parametrize(
    "shape",
    [lambda it: {"items": [it]}, lambda it: {"rows": [{"object": it}]}, lambda it: it],
    ids=["list", "table", "object"],
)
def test_times_are_translated_in_objects_lists_and_tables(shape: Any) -> None:
    times = Times(lambda: START + timedelta(minutes=1))
    times.created(document(creationTimestamp=REAL))
    read = shape(document(creationTimestamp=REAL))
    times.to_virtual(read)
    assert read == shape(document(creationTimestamp=VIRTUAL))


# pending work


def node(ready: str, *taints: str, effect: str = "NoSchedule", **spec: Any) -> dict[str, Any]:
    keys = [{"key": f"node.kubernetes.io/{word}", "effect": effect} for word in taints]
    return {
        "metadata": {"name": "n", "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
        "spec": {"taints": keys, **spec},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def request(group: str = "system:nodes", **status: Any) -> dict[str, Any]:
    spec = {"signerName": "kubernetes.io/kube-apiserver-client-kubelet", "groups": [group]}
    return {"metadata": {"name": "n"}, "spec": spec, "status": status}


def encoded(**data: str) -> dict[str, str]:
    return {
        key.replace("_", "-"): base64.b64encode(it.encode()).decode() for key, it in data.items()
    }


SECRET = {
    "metadata": {"name": "bootstrap-token-abcdef"},
    "type": "bootstrap.kubernetes.io/token",
    "data": encoded(token_id="abcdef", token_secret="0123456789abcdef"),
}
UNSIGNED = {"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": ""}}
SIGNED = {"metadata": {"name": "cluster-info"}, "data": {"jws-kubeconfig-abcdef": "x"}}
DELETED = {"name": "n", "deletionTimestamp": REAL}
GROUP = {"metadata": {"name": "g", "namespace": "n"}}
DELETED_GROUP = {"metadata": {**GROUP["metadata"], "deletionTimestamp": REAL}}
STATES: dict[str, tuple[Mapping[str, Any], list[str]]] = {
    "nothing": ({}, []),
    "a Node without its annotation": (
        {"nodes": [{"metadata": {"name": "n"}}]},
        ["Node n: the annotation node.alpha.kubernetes.io/ttl"],
    ),
    "a Node that is Ready": ({"nodes": [node("True")]}, []),
    "a Node that is not Ready": ({"nodes": [node("False", "not-ready")]}, []),
    "a Node that is not yet tainted": (
        {"nodes": [node("Unknown")]},
        ["Node n: the taint unreachable"],
    ),
    "a Node that is still tainted": (
        {"nodes": [node("True", "not-ready")]},
        ["Node n: the taint not-ready"],
    ),
    "a Node whose Pods are still evicted": (
        {"nodes": [node("True", "unreachable", effect="NoExecute")]},
        ["Node n: the evicting taint unreachable still exists"],
    ),
    "a Node that has just been cordoned": (
        {"nodes": [node("True", unschedulable=True)]},
        ["Node n: the taint unschedulable"],
    ),
    "a kubelet's request without a certificate": (
        {"certificatesigningrequests": [request()]},
        ["CertificateSigningRequest n: its certificate"],
    ),
    "a request without an approval": (
        {"certificatesigningrequests": [request("system:bootstrappers:tpu-functions")]},
        [],
    ),
    "an approved request without a certificate": (
        {
            "certificatesigningrequests": [
                request(
                    "system:bootstrappers:tpu-functions",
                    conditions=[{"type": "Approved", "status": "True"}],
                )
            ]
        },
        ["CertificateSigningRequest n: its certificate"],
    ),
    "a request that is granted": ({"certificatesigningrequests": [request(certificate="x")]}, []),
    "a request that is denied": (
        {
            "certificatesigningrequests": [
                request(conditions=[{"type": "Denied", "status": "True"}])
            ]
        },
        [],
    ),
    "a token without signature": (
        {"secrets": [SECRET], "configmaps": [UNSIGNED]},
        ["cluster-info: the signature of abcdef"],
    ),
    "a token with its signature": ({"secrets": [SECRET], "configmaps": [SIGNED]}, []),
    "a signature without token": (
        {"configmaps": [SIGNED]},
        ["cluster-info: the signature of abcdef still exists"],
    ),
    "a namespace that is being deleted": (
        {"namespaces": [{"metadata": DELETED}], "tpunodegroups": [GROUP]},
        ["Namespace n: the deletion of g"],
    ),
    "a namespace that waits for a group": (
        {"namespaces": [{"metadata": DELETED}], "tpunodegroups": [DELETED_GROUP]},
        [],
    ),
    "a namespace that is empty": (
        {"namespaces": [{"metadata": DELETED}]},
        ["Namespace n still exists"],
    ),
}
KINDS = ("nodes", "tpunodegroups", "secrets", "configmaps", "namespaces")


@pytest.mark.parametrize("objects, missing", STATES.values(), ids=STATES.keys())
def test_the_pending_work_of_the_controllers_is_described(
    objects: Mapping[str, Any], missing: list[str]
) -> None:
    none: dict[str, Any] = {kind: [] for kind in (*KINDS, "certificatesigningrequests")}
    assert list(pending_work({**none, **objects})) == missing


# heartbeats


class HeartbeatCase:
    """Heartbeats of kubelets with a grace period of 50 s, and their effects."""

    def __init__(self) -> None:
        self.clock = VirtualClock(START)
        self.renewed: list[str] = []
        self.silent: list[datetime] = []
        self.real_s = 0.0
        self.heartbeats = heartbeats.Heartbeats(
            self.clock,
            50.0,
            self.renewed.append,
            lambda _: self.silent.append(self.clock.now()),
            lambda: self.real_s,
        )


def test_a_node_is_silent_after_the_grace_period_without_a_heartbeat() -> None:
    case = HeartbeatCase()
    for _ in range(7):
        case.heartbeats.record("n")
        case.clock.run_for(10.0)
    assert case.silent == []
    case.clock.run_for(600.0)
    assert case.silent == [START + timedelta(seconds=110)]


def test_a_deleted_node_is_not_silent() -> None:
    case = HeartbeatCase()
    case.heartbeats.record("n")
    case.heartbeats.forget("n")
    case.clock.run_for(600.0)
    assert case.silent == []


def test_the_real_lease_is_renewed_while_the_kubelet_sends_heartbeats() -> None:
    case = HeartbeatCase()
    case.heartbeats.record("n")
    case.heartbeats.renew_leases()
    assert case.renewed == []
    case.real_s += heartbeats.DEFAULT.renewed_after_s + 1
    case.heartbeats.renew_leases()
    assert case.renewed == ["n"]
    case.clock.run_for(30.0)  # more than half of the grace period
    case.real_s += heartbeats.DEFAULT.renewed_after_s + 1
    case.heartbeats.renew_leases()
    assert case.renewed == ["n"]
