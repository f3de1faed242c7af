# ruff: noqa: E501  (a table reads best with a row on a line)
"""Deletion, owners and namespaces."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.cases.objects import (
    CREATE_WIDGET,
    MAPS,
    PODS,
    READY,
    THREE,
    WATCH,
    WIDGETS,
    config_map,
    invalid,
    widget,
)
from local.tests.contract.kubernetes.dialogue import (
    ABSENT,
    ANYTHING,
    Step,
    case,
    containing,
    delete,
    get,
    patch,
    post,
    put,
)

CREATE_WITH_FINALIZER = post(WIDGETS, widget(metadata={"finalizers": ["cases.example.com/hold"]}))
REMOVE_FINALIZERS = {"metadata": {"finalizers": None}}

DELETES = (
    case(
        "the answer to a delete has the uid",
        CREATE_WIDGET.saves(uid="metadata.uid"),
        delete(f"{WIDGETS}/a").has(
            {
                "kind": "Status",
                "status": "Success",
                "details.name": "a",
                "details.group": "cases.example.com",
                "details.kind": "widgets",
                "details.uid": "{uid}",
            }
        ),
        get(f"{WIDGETS}/a").gives(
            404,
            reason="NotFound",
            message='widgets.cases.example.com "a" not found',
            details={"name": "a", "group": "cases.example.com", "kind": "widgets"},
        ),
    ),
    case("a delete of an absent object is NotFound", delete(f"{WIDGETS}/a").gives(404, reason="NotFound")),
    case(
        "a delete with another uid conflicts",
        CREATE_WIDGET,
        delete(f"{WIDGETS}/a", {"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}}).gives(409, reason="Conflict"),
        get(f"{WIDGETS}/a"),
    ),
    case(
        "a delete with an old version conflicts",
        CREATE_WIDGET.saves(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}}),
        delete(f"{WIDGETS}/a", {"preconditions": {"resourceVersion": "{rv}"}}).gives(409, reason="Conflict"),
    ),
    case(
        "a deleted object exists until its finalizers are removed",
        CREATE_WITH_FINALIZER,
        delete(f"{WIDGETS}/a").has(
            {
                "kind": "Widget",
                "metadata.deletionTimestamp": ANYTHING,
                "metadata.deletionGracePeriodSeconds": 0,
                "metadata.generation": 2,
            }
        ),
        get(f"{WIDGETS}/a"),
        patch(f"{WIDGETS}/a", REMOVE_FINALIZERS),
        get(f"{WIDGETS}/a").gives(404),
    ),
    case(
        "a second delete changes nothing",
        CREATE_WITH_FINALIZER,
        delete(f"{WIDGETS}/a").saves(rv="metadata.resourceVersion"),
        delete(f"{WIDGETS}/a").has({"metadata.resourceVersion": "{rv}"}),
        patch(f"{WIDGETS}/a", REMOVE_FINALIZERS),
    ),
    case(
        "adding a finalizer during a deletion is invalid",
        CREATE_WITH_FINALIZER,
        delete(f"{WIDGETS}/a"),
        patch(
            f"{WIDGETS}/a",
            {"metadata": {"finalizers": ["cases.example.com/hold", "cases.example.com/new"]}},
        )
        .gives(422)
        .has(
            {
                **invalid(("FieldValueForbidden", "metadata.finalizers")),
                "message": containing(
                    "no new finalizers can be added if the object is being deleted"
                ),
            }
        ),
        patch(f"{WIDGETS}/a", REMOVE_FINALIZERS),
    ),
    case(
        "an object can be changed during its deletion",
        CREATE_WITH_FINALIZER,
        delete(f"{WIDGETS}/a"),
        patch(f"{WIDGETS}/a/status", READY).has({"status.conditions.0.type": "Ready"}),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}}).has({"spec.size": 4}),
        patch(f"{WIDGETS}/a", REMOVE_FINALIZERS),
    ),
    case(
        "removing the last finalizer causes a DELETED event",
        CREATE_WITH_FINALIZER,
        delete(f"{WIDGETS}/a").saves(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", REMOVE_FINALIZERS),
        get(f"{WATCH}&resourceVersion={{rv}}").shows(("DELETED", "a")),
    ),
    case("a collection can be deleted by labels", *THREE, delete(f"{MAPS}?labelSelector=env"), get(f"{MAPS}?labelSelector=case").has({"items.0.metadata.name": "c", "items.1": ABSENT})),
    case(
        "the system's namespaces cannot be deleted",
        delete("/api/v1/namespaces/kube-system").gives(
            403,
            reason="Forbidden",
            message='namespaces "kube-system" is forbidden: this namespace may not be deleted',
        ),
    ),
)  # fmt: skip


def without_owner(name: str) -> Step:
    """Create a ConfigMap whose owner has never existed: the garbage collector deletes it."""
    owner = {
        "apiVersion": "cases.example.com/v1",
        "kind": "Widget",
        "name": "a",
        "uid": "11111111-2222-3333-4444-555555555555",
    }
    return post(MAPS, config_map(name, ownerReferences=[owner]))


def owned(name: str, *, blocks: bool = False) -> Step:
    owner: dict[str, Any] = {
        "apiVersion": "cases.example.com/v1",
        "kind": "Widget",
        "name": "a",
        "uid": "{owner}",
    }
    if blocks:
        owner["blockOwnerDeletion"] = True
    return post(MAPS, config_map(name, ownerReferences=[owner]))


OWNERS = (
    case(
        "background deletion deletes dependents after their owner",
        CREATE_WIDGET.saves(owner="metadata.uid"),
        owned("child"),
        delete(f"{WIDGETS}/a", {"propagationPolicy": "Background"}),
        get(f"{MAPS}/child").gives(404).eventually(),
    ),
    case(
        "foreground deletion deletes dependents before their owner",
        CREATE_WIDGET.saves(owner="metadata.uid"),
        owned("child", blocks=True),
        delete(f"{WIDGETS}/a", {"propagationPolicy": "Foreground"}).has({"metadata.finalizers": ["foregroundDeletion"]}),
        get(f"{MAPS}/child").gives(404).eventually(),
        get(f"{WIDGETS}/a").gives(404).eventually(),
    ),
    case(
        "orphan deletion keeps dependents",
        CREATE_WIDGET.saves(owner="metadata.uid"),
        owned("child"),
        # Its end shows that the garbage collector has also seen what was created before it.
        without_owner("stray"),
        get(f"{MAPS}/stray").gives(404).eventually(),
        delete(f"{WIDGETS}/a", {"propagationPolicy": "Orphan"}),
        get(f"{WIDGETS}/a").gives(404).eventually(),
        get(f"{MAPS}/child").has({"metadata.ownerReferences": ABSENT}),
    ),
    case(
        "an object whose owner's uid does not exist is deleted",
        CREATE_WIDGET,
        without_owner("child"),
        get(f"{MAPS}/child").gives(404).eventually(),
    ),
)  # fmt: skip


def pod(node: str = "node-{ns}", **metadata: Any) -> Step:
    """Create a Pod. No scheduler and no kubelet handles it."""
    place = {"nodeName": node} if node else {"schedulerName": "nobody"}
    spec = {"containers": [{"name": "jax", "image": "jax"}], **place}
    return post(PODS, {"metadata": {"name": "a", **metadata}, "spec": spec})


A_POD, OF_PODS = f"{PODS}/a", f"{PODS}?watch=true&timeoutSeconds=1"
FORCE = {"gracePeriodSeconds": 0}
GRACE = "metadata.deletionGracePeriodSeconds"
IS_DELETED = {"metadata.deletionTimestamp": ANYTHING}
BLOCKS = {
    "apiVersion": "cases.example.com/v1",
    "kind": "Widget",
    "name": "a",
    "uid": "{owner}",
    "blockOwnerDeletion": True,
}

PODS_OF_NODES = (
    case(
        "a pod on a node exists until its kubelet ends the deletion",
        pod().saves(rv="metadata.resourceVersion"),
        delete(A_POD).has({**IS_DELETED, GRACE: 30}),
        get(A_POD).has({**IS_DELETED, GRACE: 30}),
        patch(f"{A_POD}/status", {"status": {"phase": "Failed"}}).has(IS_DELETED),
        delete(A_POD, FORCE).has({"kind": "Pod", **IS_DELETED, GRACE: 0}),
        get(A_POD).gives(404),
        get(f"{OF_PODS}&resourceVersion={{rv}}").shows(("MODIFIED", "a"), ("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "a")),
    ),
    case(
        "a grace period can be shortened but not extended",
        pod(),
        delete(A_POD, {"gracePeriodSeconds": 20}).has({GRACE: 20}).saves(rv="metadata.resourceVersion"),
        delete(A_POD, {"gracePeriodSeconds": 40}).has({GRACE: 20, "metadata.resourceVersion": "{rv}"}),
        delete(A_POD).has({GRACE: 20, "metadata.resourceVersion": "{rv}"}),
        delete(f"{A_POD}?gracePeriodSeconds=5").has({GRACE: 5}),
        delete(A_POD, {"gracePeriodSeconds": -1}).has({GRACE: 1}),
        delete(A_POD, FORCE),
        get(A_POD).gives(404),
    ),
    case("a pod without a node is deleted immediately", pod(node=""), delete(A_POD).has({"kind": "Pod", **IS_DELETED, GRACE: 0}), get(A_POD).gives(404)),
    case(
        "a pod that has ended is deleted immediately",
        pod(),
        patch(f"{A_POD}/status", {"status": {"phase": "Succeeded"}}),
        delete(A_POD, {"gracePeriodSeconds": 20}).has({GRACE: 0}),
        get(A_POD).gives(404),
    ),
    case(
        "a pod waits for its finalizers and for its grace period",
        pod(finalizers=["cases.example.com/hold"]),
        delete(A_POD),
        patch(A_POD, REMOVE_FINALIZERS).has({**IS_DELETED, GRACE: 30}),
        delete(A_POD, FORCE),
        get(A_POD).gives(404),
        pod(finalizers=["cases.example.com/hold"]),
        delete(A_POD, FORCE).has({GRACE: 0}),
        patch(A_POD, REMOVE_FINALIZERS),
        get(A_POD).gives(404),
    ),
    case("a dry run of a delete leaves a pod as it is", pod(), delete(A_POD, {"dryRun": ["All"]}).has({GRACE: 30}), get(A_POD).has({GRACE: ABSENT})),
    case("pods that are deleted together have the same grace period", pod(), delete(PODS, {"gracePeriodSeconds": 20}), get(A_POD).has({**IS_DELETED, GRACE: 20})),
    case(
        "foreground deletion waits for a pod that does not end",
        CREATE_WIDGET.saves(owner="metadata.uid"),
        pod(ownerReferences=[BLOCKS]),
        delete(f"{WIDGETS}/a", {"propagationPolicy": "Foreground"}),
        get(A_POD).has({**IS_DELETED, "metadata.finalizers": ABSENT, GRACE: 30}).eventually(),
        get(f"{WIDGETS}/a").has({"metadata.finalizers": ["foregroundDeletion"]}),
        delete(f"{WIDGETS}/a").has({"metadata.finalizers": ["foregroundDeletion"]}),
        delete(A_POD, FORCE),
        get(f"{WIDGETS}/a").gives(404).eventually(),
    ),
    case(
        "a second delete in the background does not wait for a pod any more",
        CREATE_WIDGET.saves(owner="metadata.uid"),
        pod(ownerReferences=[BLOCKS]),
        delete(f"{WIDGETS}/a", {"propagationPolicy": "Foreground"}),
        delete(f"{WIDGETS}/a", {"propagationPolicy": "Background"}).has({"status": "Success"}),
        get(f"{WIDGETS}/a").gives(404),
        get(A_POD).has({**IS_DELETED, GRACE: 30}).eventually(),
    ),
)  # fmt: skip

INNER = "/api/v1/namespaces/{ns}-inner"
CREATE_INNER = post("/api/v1/namespaces", {"metadata": {"name": "{ns}-inner"}})

NAMESPACES = (
    case(
        "a new namespace is Active and has a label with its name",
        get("/api/v1/namespaces/{ns}").has(
            {
                "metadata.labels.kubernetes~io/metadata~name": "{ns}",
                "status.phase": "Active",
                "spec.finalizers": ["kubernetes"],
            }
        ),
    ),
    case(
        "a new namespace has the cluster's CA and a service account",
        get(f"{MAPS}/kube-root-ca.crt").has({"data.ca~crt": ANYTHING}).eventually(),
        get("/api/v1/namespaces/{ns}/serviceaccounts/default"),
    ),
    case(
        "objects in a terminating namespace can be changed but not created",
        CREATE_INNER,
        post(f"{INNER}/configmaps", config_map(finalizers=["cases.example.com/hold"])),
        delete(INNER).has({"status.phase": "Terminating"}),
        post(f"{INNER}/configmaps", config_map("b"))
        .gives(403, reason="Forbidden")
        .has(
            {
                "message": 'configmaps "b" is forbidden: unable to create new content in '
                "namespace {ns}-inner because it is being terminated",
                "details.causes.0.reason": "NamespaceTerminating",
            }
        ),
        patch(f"{INNER}/configmaps/a", {"data": {"k": "w"}}).has({"data.k": "w"}),
        patch(f"{INNER}/configmaps/a", REMOVE_FINALIZERS).eventually(),
        get(INNER).gives(404).eventually(),
    ),
    case(
        "a PUT of a namespace keeps its finalizer and the label with its name",
        CREATE_INNER,
        put(INNER, {"metadata": {"name": "{ns}-inner", "labels": {"a": "b"}}}).has(
            {
                "spec.finalizers": ["kubernetes"],
                "status.phase": "Active",
                "metadata.labels.a": "b",
                "metadata.labels.kubernetes~io/metadata~name": "{ns}-inner",
            }
        ),
        delete(INNER),
    ),
    case(
        "a deleted namespace is emptied and then removed",
        CREATE_INNER,
        post(f"{INNER}/secrets", {"metadata": {"name": "s"}}),
        post("/apis/cases.example.com/v1/namespaces/{ns}-inner/widgets", widget()),
        delete(INNER),
        get(INNER).gives(404).eventually(),
        get(f"{INNER}/secrets/s").gives(404),
    ),
)
