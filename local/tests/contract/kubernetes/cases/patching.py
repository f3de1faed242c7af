# ruff: noqa: E501  (a table reads best with a row on a line)
"""The three kinds of patches."""

from __future__ import annotations

from local.tests.contract.kubernetes.cases.objects import (
    CREATE_WIDGET,
    MAPS,
    NODE,
    NODES,
    PODS,
    WIDGETS,
    config_map,
    widget,
)
from local.tests.contract.kubernetes.dialogue import (
    ABSENT,
    JSON_PATCH,
    STRATEGIC,
    case,
    get,
    patch,
    post,
)

PATCH = (
    case(
        "a JSON patch adds, tests and removes fields",
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
        patch(f"{WIDGETS}/a", {"spec": {"tags": ["c"], "note": None}}).has({"spec.tags": ["c"], "spec.code": "abc"}),
    ),
    case(
        "a patch with an old version conflicts",
        CREATE_WIDGET.saves(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}}),
        patch(f"{WIDGETS}/a", {"metadata": {"resourceVersion": "{rv}"}, "spec": {"size": 5}}).gives(409, reason="Conflict"),
    ),
    case(
        "a strategic merge merges conditions by type",
        post(NODES, {"metadata": {"name": "node-{ns}"}}),
        patch(f"{NODE}/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, STRATEGIC),
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
        post(NODES, {"metadata": {"name": "node-{ns}"}, "spec": {"taints": [{"key": "old", "effect": "NoSchedule"}]}}),
        patch(NODE, {"spec": {"taints": [{"key": "new", "effect": "NoSchedule"}]}}, STRATEGIC).has({"spec.taints": [{"key": "new", "effect": "NoSchedule"}]}),
    ),
    case(
        "a strategic merge deletes from a keyed list",
        post(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "one", "image": "i"}, {"name": "two", "image": "i"}]}}),
        patch(f"{PODS}/p", {"metadata": {"finalizers": ["x.example.com/a"]}}, STRATEGIC),
        patch(f"{PODS}/p", {"metadata": {"finalizers": ["x.example.com/b"]}}, STRATEGIC).has({"metadata.finalizers": ["x.example.com/b", "x.example.com/a"]}),
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
    case("a strategic merge patch of a custom resource is UnsupportedMediaType", CREATE_WIDGET, patch(f"{WIDGETS}/a", {"spec": {"size": 4}}, STRATEGIC).gives(415, reason="UnsupportedMediaType")),
    case("a patch of an absent object is NotFound", patch(f"{WIDGETS}/a", {}).gives(404, reason="NotFound", message='widgets.cases.example.com "a" not found')),
)  # fmt: skip
