"""Garbage collection of the dependents of a deleted owner."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.cases.objects import config_map
from local.tests.contract.kubernetes.embedded import Embedded

MAPS = "/api/v1/namespaces/default/configmaps"
FOREGROUND = {"propagationPolicy": "Foreground"}


def make(server: Embedded, name: str, **metadata: Any) -> dict[str, Any]:
    """Create a ConfigMap, and return an owner reference to it."""
    made = server.ask("POST", MAPS, config_map(name, **metadata))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": name,
        "uid": made["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }


def test_an_object_with_a_remaining_owner_drops_only_the_other_reference() -> None:
    server = Embedded()
    deleted, remaining = make(server, "deleted"), make(server, "remaining")
    make(server, "child", ownerReferences=[deleted, remaining])
    server.ask("DELETE", f"{MAPS}/deleted")
    server.run_controllers()
    assert server.ask("GET", f"{MAPS}/child")["metadata"]["ownerReferences"] == [remaining]


def test_an_object_whose_owners_kind_is_not_served_remains() -> None:
    server = Embedded()
    owner = {"apiVersion": "example.com/v1", "kind": "Nope", "name": "n", "uid": "x"}
    make(server, "child", ownerReferences=[owner])
    server.run_controllers()
    assert server.ask("GET", f"{MAPS}/child")["metadata"]["ownerReferences"] == [owner]


def test_foreground_deletion_includes_indirect_dependents() -> None:
    server = Embedded()
    root = make(server, "root")
    child = make(server, "child", ownerReferences=[root])
    make(server, "grandchild", ownerReferences=[child], finalizers=["example.com/hold"])
    server.ask("DELETE", f"{MAPS}/root", FOREGROUND)
    server.run_controllers()
    found = server.ask("GET", MAPS)["items"]
    names = [one["metadata"]["name"] for one in found if one["metadata"].get("deletionTimestamp")]
    assert names == ["child", "grandchild", "root"]
    merge = "application/merge-patch+json"
    server.ask(
        "PATCH", f"{MAPS}/grandchild", {"metadata": {"finalizers": None}}, content_type=merge
    )
    server.run_controllers()
    assert server.send("GET", f"{MAPS}/root").status == 404
