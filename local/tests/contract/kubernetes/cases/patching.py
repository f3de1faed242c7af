"""The four kinds of patches."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.cases.objects import (
    MAKE,
    MAPS,
    NODE,
    NODES,
    PODS,
    READY,
    WIDGETS,
    config_map,
    invalid,
    widget,
)
from local.tests.contract.kubernetes.dialogue import (
    ABSENT,
    APPLY,
    JSON_PATCH,
    STRATEGIC,
    case,
    containing,
    get,
    patch,
    post,
)

PATCH = (
    case(
        "a JSON patch adds, tests and removes",
        post(MAPS, config_map()),
        patch(
            f"{MAPS}/a",
            [
                {"op": "test", "path": "/data/k", "value": "v"},
                {"op": "add", "path": "/data/l", "value": "w"},
                {"op": "remove", "path": "/data/k"},
            ],
            JSON_PATCH,
        ).has({"data": {"l": "w"}}),
    ),
    case(
        "a JSON patch whose test fails changes nothing",
        post(MAPS, config_map()),
        patch(
            f"{MAPS}/a",
            [
                {"op": "replace", "path": "/data/k", "value": "w"},
                {"op": "test", "path": "/data/k", "value": "other"},
            ],
            JSON_PATCH,
        ).gives(422, reason="Invalid"),
        get(f"{MAPS}/a").has({"data.k": "v"}),
    ),
    case(
        "a merge patch deletes by null and replaces lists",
        post(WIDGETS, widget(spec={"tags": ["a", "b"], "code": "abc"})),
        patch(f"{WIDGETS}/a", {"spec": {"tags": ["c"], "note": None}}).has(
            {"spec.tags": ["c"], "spec.code": "abc"}
        ),
    ),
    case(
        "a patch may insist on a version",
        MAKE.keeps(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}}),
        patch(f"{WIDGETS}/a", {"metadata": {"resourceVersion": "{rv}"}, "spec": {"size": 5}}).gives(
            409, reason="Conflict"
        ),
    ),
    case(
        "a strategic merge merges conditions by type",
        post(NODES, {"metadata": {"name": "node-{ns}"}}),
        patch(
            f"{NODE}/status",
            {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
            STRATEGIC,
        ),
        patch(
            f"{NODE}/status",
            {"status": {"conditions": [{"type": "DiskPressure", "status": "False"}]}},
            STRATEGIC,
        ).has(
            {
                "status.conditions.0.type": "DiskPressure",
                "status.conditions.1.type": "Ready",
            }
        ),
    ),
    case(
        "a strategic merge replaces taints, which have no merge key",
        post(
            NODES,
            {
                "metadata": {"name": "node-{ns}"},
                "spec": {"taints": [{"key": "old", "effect": "NoSchedule"}]},
            },
        ),
        patch(NODE, {"spec": {"taints": [{"key": "new", "effect": "NoSchedule"}]}}, STRATEGIC).has(
            {"spec.taints": [{"key": "new", "effect": "NoSchedule"}]}
        ),
    ),
    case(
        "a strategic merge deletes from a keyed list",
        post(
            PODS,
            {
                "metadata": {"name": "p"},
                "spec": {
                    "containers": [{"name": "one", "image": "i"}, {"name": "two", "image": "i"}]
                },
            },
        ),
        patch(f"{PODS}/p", {"metadata": {"finalizers": ["x.example.com/a"]}}, STRATEGIC),
        patch(f"{PODS}/p", {"metadata": {"finalizers": ["x.example.com/b"]}}, STRATEGIC).has(
            {"metadata.finalizers": ["x.example.com/b", "x.example.com/a"]}
        ),
        patch(
            f"{PODS}/p",
            {
                "metadata": {
                    "$deleteFromPrimitiveList/finalizers": ["x.example.com/a", "x.example.com/b"]
                }
            },
            STRATEGIC,
        ).has({"metadata.finalizers": ABSENT}),
    ),
    case(
        "a custom resource takes no strategic merge",
        MAKE,
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}}, STRATEGIC).gives(
            415,
            reason="UnsupportedMediaType",
            message="the body of the request was in an unknown format - accepted media types "
            "include: application/json-patch+json, application/merge-patch+json, "
            "application/apply-patch+yaml",
        ),
    ),
    case(
        "a missing object is not patched",
        patch(f"{WIDGETS}/a", {}).gives(
            404, reason="NotFound", message='widgets.cases.example.com "a" not found'
        ),
    ),
)


def applied(name: str = "a", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "cases.example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": spec,
    }


ONE = f"{WIDGETS}/a?fieldManager=one"
TWO = f"{WIDGETS}/a?fieldManager=two"

SERVER_SIDE_APPLY = (
    case(
        "apply creates and notes the owner of each field",
        patch(ONE, applied(size=3), APPLY)
        .gives(201)
        .has(
            {
                "metadata.managedFields.0.manager": "one",
                "metadata.managedFields.0.operation": "Apply",
                "metadata.managedFields.0.fieldsV1": {"f:spec": {"f:size": {}}},
            }
        ),
    ),
    case(
        "apply needs a manager",
        patch(f"{WIDGETS}/a", applied(size=3), APPLY)
        .gives(422)
        .has(
            {
                **invalid(("FieldValueRequired", "fieldManager")),
                "message": containing("is required for apply patch"),
            }
        ),
    ),
    case(
        "a field of another manager is not taken",
        patch(ONE, applied(size=3), APPLY).gives(201),
        patch(TWO, applied(size=4), APPLY)
        .gives(409, reason="Conflict")
        .has(
            {
                "message": 'Apply failed with 1 conflict: conflict with "one": .spec.size',
                "details.causes.0.reason": "FieldManagerConflict",
                "details.causes.0.field": ".spec.size",
            }
        ),
    ),
    case(
        "a field of another manager is taken by force",
        patch(ONE, applied(size=3), APPLY).gives(201),
        patch(f"{TWO}&force=true", applied(size=4), APPLY).has(
            {"spec.size": 4, "metadata.managedFields.1": ABSENT}
        ),
    ),
    case(
        "the same value is owned together",
        patch(ONE, applied(size=3), APPLY).gives(201),
        patch(TWO, applied(size=3), APPLY).has(
            {
                "metadata.managedFields.0.fieldsV1": {"f:spec": {"f:size": {}}},
                "metadata.managedFields.1.fieldsV1": {"f:spec": {"f:size": {}}},
            }
        ),
    ),
    case(
        "what is applied no more goes away",
        patch(ONE, applied(size=3, code="abc", limits={"x": 1, "y": 2}), APPLY).gives(201),
        patch(ONE, applied(size=3, code="abc", limits={"y": 2}), APPLY).has(
            {"spec.limits": {"y": 2}}
        ),
    ),
    case(
        "what somebody else owns too stays",
        patch(ONE, applied(size=3, limits={"x": 1}), APPLY).gives(201),
        patch(TWO, applied(size=3, limits={"x": 1}), APPLY),
        patch(ONE, applied(size=3), APPLY).has({"spec.limits": {"x": 1}}),
    ),
    case(
        "items of a keyed list have owners of their own",
        patch(ONE, applied(size=3, parts=[{"name": "p", "count": 1}]), APPLY).gives(201),
        patch(TWO, applied(size=3, parts=[{"name": "q", "count": 2}]), APPLY).has(
            {"spec.parts": [{"name": "p", "count": 1}, {"name": "q", "count": 2}]}
        ),
        patch(ONE, applied(size=3), APPLY).has({"spec.parts": [{"name": "q", "count": 2}]}),
    ),
    case(
        "a plain update is a manager too",
        post(f"{WIDGETS}?fieldManager=maker", widget()).has(
            {
                "metadata.managedFields.0.manager": "maker",
                "metadata.managedFields.0.operation": "Update",
            }
        ),
        patch(ONE, applied(size=9), APPLY)
        .gives(409)
        .has(
            {
                "message": 'Apply failed with 1 conflict: conflict with "maker" using '
                "cases.example.com/v1: .spec.size"
            }
        ),
    ),
    case(
        "a status write is noted apart",
        MAKE,
        patch(f"{WIDGETS}/a/status?fieldManager=teller", READY).has(
            {
                "metadata.managedFields": lambda found: (
                    [one.get("subresource") for one in found if one["manager"] == "teller"]
                    == ["status"]
                )
            }
        ),
    ),
    case(
        "force is for apply only",
        MAKE,
        patch(f"{WIDGETS}/a?force=true", {"spec": {"size": 4}})
        .gives(422)
        .has(invalid(("FieldValueForbidden", "force"))),
    ),
    case(
        "apply takes no managedFields",
        patch(
            ONE,
            {**applied(size=3), "metadata": {"name": "a", "managedFields": [{"manager": "x"}]}},
            APPLY,
        ).gives(400, reason="BadRequest", message=containing("metadata.managedFields must be nil")),
    ),
)
