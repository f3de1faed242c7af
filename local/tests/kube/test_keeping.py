"""State of the embedded API: copies of manifests, determinism and the record of calls."""

from __future__ import annotations

import copy
import json
from random import Random

from local.base.clock import VirtualClock
from local.base.http import Request
from local.kube import ADMIN, Call, KubeApi
from local.tests.contract.kubernetes.cases.objects import widget
from local.tests.contract.kubernetes.definitions import ALL, WIDGETS
from local.tests.contract.kubernetes.embedded import Embedded

PATH = "/apis/cases.example.com/v1/namespaces/default/widgets"


def test_applied_manifests_are_copied() -> None:
    manifest = copy.deepcopy(WIDGETS)
    server = Embedded()
    server.api.apply_manifests([manifest])
    assert manifest == WIDGETS
    manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clear()
    assert server.send("POST", PATH, widget(size=0)).status == 422


def create_objects(seed: int) -> list[str]:
    """Create objects with a seed, and return their names and uids."""
    clock = VirtualClock()
    api = KubeApi(clock, random=Random(seed), tokens={"t": ADMIN})
    clock.run_for(1)
    headers = {"authorization": "Bearer t"}
    body = json.dumps({"metadata": {"generateName": "x-"}})
    path = "/api/v1/namespaces/default/configmaps"
    created = [
        api.handle(Request.of("POST", path, headers=headers, body=body)).json()["metadata"]
        for _ in range(3)
    ]
    return [
        text for meta in created for text in (meta["name"], meta["uid"], meta["resourceVersion"])
    ]


def test_the_same_seed_gives_the_same_names_and_uids() -> None:
    assert create_objects(7) == create_objects(7)
    assert create_objects(7) != create_objects(8)


def test_every_call_is_recorded_with_its_code() -> None:
    server = Embedded()
    server.api.apply_manifests(ALL)
    server.api.calls.clear()
    server.ask("POST", PATH, widget(), user="admin")
    server.send("PATCH", f"{PATH}/a/status", {}, "application/merge-patch+json", user="nobody")
    server.send("GET", PATH, user="token:nonsense")
    server.send("GET", f"{PATH}?watch=true&timeoutSeconds=1")
    assert list(server.api.calls) == [
        Call("admin", "create", "widgets", "", "default", "", 201),
        Call("nobody", "patch", "widgets", "status", "default", "a", 403),
        Call("system:anonymous", "list", "widgets", "", "default", "", 401),
        Call("admin", "watch", "widgets", "", "default", "", 200),
    ]


def test_calls_can_be_counted_by_their_attributes() -> None:
    server = Embedded()
    server.api.calls.clear()
    for _ in range(3):
        server.ask("GET", "/api/v1/nodes")
    server.ask("POST", "/api/v1/nodes", {"metadata": {"name": "n"}})
    server.send("GET", "/api/v1/nodes", user="nobody")
    calls = server.api.calls
    assert (len(calls), calls.by_user["admin"]) == (5, 4)
    assert calls.count(user="admin", resource="nodes", verb="list", code=200) == 3


def test_internal_writes_are_not_recorded_as_calls() -> None:
    server = Embedded()
    server.api.calls.clear()
    server.api.apply_manifests(
        [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}]
    )
    server.run_controllers()
    assert len(server.api.calls) == 0
    assert server.ask("GET", "/api/v1/namespaces/x/configmaps/kube-root-ca.crt")["data"]
