"""Deletes, owners and namespaces."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.cases.objects import (
    MAKE,
    MAPS,
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

HELD = post(WIDGETS, widget(metadata={"finalizers": ["cases.example.com/hold"]}))
RELEASE = {"metadata": {"finalizers": None}}

DELETES = (
    case(
        "a delete answers with the uid",
        MAKE.keeps(uid="metadata.uid"),
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
    case("a missing object is not deleted", delete(f"{WIDGETS}/a").gives(404, reason="NotFound")),
    case(
        "a delete with another uid conflicts",
        MAKE,
        delete(
            f"{WIDGETS}/a", {"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}}
        ).gives(409, reason="Conflict"),
        get(f"{WIDGETS}/a"),
    ),
    case(
        "a delete with an old version conflicts",
        MAKE.keeps(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}}),
        delete(f"{WIDGETS}/a", {"preconditions": {"resourceVersion": "{rv}"}}).gives(
            409, reason="Conflict"
        ),
    ),
    case(
        "a finalizer holds an object until it is taken away",
        HELD,
        delete(f"{WIDGETS}/a").has(
            {
                "kind": "Widget",
                "metadata.deletionTimestamp": ANYTHING,
                "metadata.deletionGracePeriodSeconds": 0,
                "metadata.generation": 2,
            }
        ),
        get(f"{WIDGETS}/a"),
        patch(f"{WIDGETS}/a", RELEASE),
        get(f"{WIDGETS}/a").gives(404),
    ),
    case(
        "a second delete changes nothing",
        HELD,
        delete(f"{WIDGETS}/a").keeps(rv="metadata.resourceVersion"),
        delete(f"{WIDGETS}/a").has({"metadata.resourceVersion": "{rv}"}),
        patch(f"{WIDGETS}/a", RELEASE),
    ),
    case(
        "no finalizer is added to an object that is being deleted",
        HELD,
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
        patch(f"{WIDGETS}/a", RELEASE),
    ),
    case(
        "an object that is being deleted can still be changed",
        HELD,
        delete(f"{WIDGETS}/a"),
        patch(f"{WIDGETS}/a/status", READY).has({"status.conditions.0.type": "Ready"}),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}}).has({"spec.size": 4}),
        patch(f"{WIDGETS}/a", RELEASE),
    ),
    case(
        "its end is a DELETED event",
        HELD,
        delete(f"{WIDGETS}/a").keeps(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", RELEASE),
        get(f"{WATCH}&resourceVersion={{rv}}").shows(("DELETED", "a")),
    ),
    case(
        "many are deleted by their labels",
        *THREE,
        delete(f"{MAPS}?labelSelector=env"),
        get(f"{MAPS}?labelSelector=case").has({"items.0.metadata.name": "c", "items.1": ABSENT}),
    ),
    case(
        "the system's namespaces stay",
        delete("/api/v1/namespaces/kube-system").gives(
            403,
            reason="Forbidden",
            message='namespaces "kube-system" is forbidden: this namespace may not be deleted',
        ),
    ),
)


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
        "what is owned goes after its owner",
        MAKE.keeps(owner="metadata.uid"),
        owned("child"),
        delete(f"{WIDGETS}/a", {"propagationPolicy": "Background"}),
        get(f"{MAPS}/child").gives(404).after_a_while(),
    ),
    case(
        "what is owned goes before its owner, if asked for",
        MAKE.keeps(owner="metadata.uid"),
        owned("child", blocks=True),
        delete(f"{WIDGETS}/a", {"propagationPolicy": "Foreground"}).has(
            {"metadata.finalizers": ["foregroundDeletion"]}
        ),
        get(f"{MAPS}/child").gives(404).after_a_while(),
        get(f"{WIDGETS}/a").gives(404).after_a_while(),
    ),
    case(
        "what is owned stays as an orphan, if asked for",
        MAKE.keeps(owner="metadata.uid"),
        owned("child"),
        delete(f"{WIDGETS}/a", {"propagationPolicy": "Orphan"}),
        get(f"{WIDGETS}/a").gives(404).after_a_while(),
        get(f"{MAPS}/child").has({"metadata.ownerReferences": ABSENT}),
    ),
    case(
        "an owner of that name and another uid is no owner",
        MAKE,
        post(
            MAPS,
            config_map(
                "child",
                ownerReferences=[
                    {
                        "apiVersion": "cases.example.com/v1",
                        "kind": "Widget",
                        "name": "a",
                        "uid": "11111111-2222-3333-4444-555555555555",
                    }
                ],
            ),
        ),
        get(f"{MAPS}/child").gives(404).after_a_while(),
    ),
)

INNER = "/api/v1/namespaces/{ns}-inner"
MAKE_INNER = post("/api/v1/namespaces", {"metadata": {"name": "{ns}-inner"}})

NAMESPACES = (
    case(
        "a namespace has a label with its name, and is active",
        get("/api/v1/namespaces/{ns}").has(
            {
                "metadata.labels.kubernetes~io/metadata~name": "{ns}",
                "status.phase": "Active",
                "spec.finalizers": ["kubernetes"],
            }
        ),
    ),
    case(
        "a namespace has the cluster's CA and a service account",
        get(f"{MAPS}/kube-root-ca.crt").has({"data.ca~crt": ANYTHING}).after_a_while(),
        get("/api/v1/namespaces/{ns}/serviceaccounts/default"),
    ),
    case(
        "a deleted namespace takes nothing new, and what is there can change",
        MAKE_INNER,
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
        patch(f"{INNER}/configmaps/a", RELEASE).after_a_while(),
        get(INNER).gives(404).after_a_while(),
    ),
    case(
        "a write to a namespace cannot take away what holds it, nor its name's label",
        MAKE_INNER,
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
        "a deleted namespace is emptied and goes",
        MAKE_INNER,
        post(f"{INNER}/secrets", {"metadata": {"name": "s"}}),
        post("/apis/cases.example.com/v1/namespaces/{ns}-inner/widgets", widget()),
        delete(INNER),
        get(INNER).gives(404).after_a_while(),
        get(f"{INNER}/secrets/s").gives(404),
    ),
)
