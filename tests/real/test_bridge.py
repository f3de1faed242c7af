"""What lies between a story's virtual time and a real control plane, without either."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local.base.clock import VirtualClock
from tests.real.bridge import hearts
from tests.real.bridge.rest import unrest
from tests.real.bridge.times import Times

START = datetime(2026, 1, 1, tzinfo=UTC)
REAL, VIRTUAL = "2030-05-05T00:00:00Z", "2026-01-01T00:01:00Z"


def document(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"uid": "u", "name": "n", **metadata}}


# times


def test_an_object_bears_the_virtual_time_of_its_creation_and_goes_back_with_its_own() -> None:
    now = START + timedelta(minutes=1)
    times = Times(lambda: now)
    times.created(document(creationTimestamp=REAL))
    now += timedelta(hours=1)
    read = document(creationTimestamp=REAL)
    times.to_virtual(read)
    assert read == document(creationTimestamp=VIRTUAL)
    times.to_real(read)
    assert read == document(creationTimestamp=REAL)


def test_an_object_that_was_there_before_the_story_keeps_its_time() -> None:
    times = Times(lambda: START)
    read = document(creationTimestamp=REAL)
    times.to_virtual(read)
    assert read == document(creationTimestamp=REAL)


def test_a_deletion_bears_the_virtual_time_at_which_it_was_first_seen() -> None:
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
def test_times_are_put_into_whatever_holds_objects(shape: Any) -> None:
    times = Times(lambda: START + timedelta(minutes=1))
    times.created(document(creationTimestamp=REAL))
    read = shape(document(creationTimestamp=REAL))
    times.to_virtual(read)
    assert read == shape(document(creationTimestamp=VIRTUAL))


# rest


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
GOING = {"metadata": {**GROUP["metadata"], "deletionTimestamp": REAL}}
STATES: dict[str, tuple[Mapping[str, Any], list[str]]] = {
    "nothing": ({}, []),
    "a Node that nobody has annotated": (
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
        ["Node n: the evicting taint unreachable is still there"],
    ),
    "a Node that has just been cordoned": (
        {"nodes": [node("True", unschedulable=True)]},
        ["Node n: the taint unschedulable"],
    ),
    "a request that waits": (
        {"certificatesigningrequests": [request()]},
        ["CertificateSigningRequest n: its certificate"],
    ),
    "a request that waits for somebody to approve it": (
        {"certificatesigningrequests": [request("system:bootstrappers:tpu-functions")]},
        [],
    ),
    "a request that somebody has approved": (
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
        ["cluster-info: the signature of abcdef is still there"],
    ),
    "a namespace that goes": (
        {"namespaces": [{"metadata": DELETED}], "tpunodegroups": [GROUP]},
        ["Namespace n: the deletion of g"],
    ),
    "a namespace that waits for a group": (
        {"namespaces": [{"metadata": DELETED}], "tpunodegroups": [GOING]},
        [],
    ),
    "a namespace that is empty": (
        {"namespaces": [{"metadata": DELETED}]},
        ["Namespace n is still there"],
    ),
}
KINDS = ("nodes", "tpunodegroups", "secrets", "configmaps", "namespaces")


@pytest.mark.parametrize("objects, missing", STATES.values(), ids=STATES.keys())
def test_rest(objects: Mapping[str, Any], missing: list[str]) -> None:
    none: dict[str, Any] = {kind: [] for kind in (*KINDS, "certificatesigningrequests")}
    assert list(unrest({**none, **objects})) == missing


# hearts


class Beating:
    """A kubelet's heart with a grace of 50 s, and what becomes of it."""

    def __init__(self) -> None:
        self.clock = VirtualClock(START)
        self.renewed: list[str] = []
        self.silent: list[datetime] = []
        self.real_s = 0.0
        self.hearts = hearts.Hearts(
            self.clock,
            50.0,
            self.renewed.append,
            lambda _: self.silent.append(self.clock.now()),
            lambda: self.real_s,
        )


def test_a_node_is_silent_when_it_was_not_heard_for_the_grace_period() -> None:
    beating = Beating()
    for _ in range(7):
        beating.hearts.beat("n")
        beating.clock.run_for(10.0)
    assert beating.silent == []
    beating.clock.run_for(600.0)
    assert beating.silent == [START + timedelta(seconds=110)]


def test_a_node_that_is_no_more_is_not_silent() -> None:
    beating = Beating()
    beating.hearts.beat("n")
    beating.hearts.forget("n")
    beating.clock.run_for(600.0)
    assert beating.silent == []


def test_a_lease_is_renewed_for_real_while_its_kubelet_is_alive() -> None:
    beating = Beating()
    beating.hearts.beat("n")
    beating.hearts.carry()
    assert beating.renewed == []
    beating.real_s += hearts.USUAL.renewed_after_s + 1
    beating.hearts.carry()
    assert beating.renewed == ["n"]
    beating.clock.run_for(30.0)  # more than half of its grace
    beating.real_s += hearts.USUAL.renewed_after_s + 1
    beating.hearts.carry()
    assert beating.renewed == ["n"]
