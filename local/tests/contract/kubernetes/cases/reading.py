# ruff: noqa: E501  (a table reads best with a row on a line)
"""Selectors, lists, tables and watches."""

from __future__ import annotations

from local.tests.contract.kubernetes.cases.objects import (
    CREATE_WIDGET,
    EVENTS,
    GADGETS,
    MAPS,
    READY,
    SECRETS,
    TABLE,
    THREE,
    WATCH,
    WIDGETS,
    gadget,
    labelled,
    widget,
)
from local.tests.contract.kubernetes.dialogue import (
    ABSENT,
    ANYTHING,
    Case,
    case,
    delete,
    get,
    patch,
    post,
)


def selected(selector: str, *names: str) -> Case:
    listed = get(f"{MAPS}?labelSelector=case%3D{{ns}}%2C{selector}").has(
        {
            **{f"items.{index}.metadata.name": name for index, name in enumerate(names)},
            f"items.{len(names)}": ABSENT,
        }
    )
    return case(f"label selector {selector}", *THREE, listed)


SELECTORS = (
    selected("env%3Dx", "a"),
    selected("env%3D%3Dx", "a"),
    selected("env!%3Dx", "b", "c"),
    selected("env%20in%20(x,y)", "a", "b"),
    selected("env%20notin%20(x)", "b", "c"),
    selected("env", "a", "b"),
    selected("!env", "c"),
    case("a label selector that cannot be parsed is a BadRequest", get(f"{MAPS}?labelSelector=a%3D%3D%3Db").gives(400, reason="BadRequest")),
    case("every kind can be selected by name", *THREE, get(f"{MAPS}?fieldSelector=metadata.name%3Db").has({"items.0.metadata.name": "b", "items.1": ABSENT})),
    case(
        "events can be selected by their involved object",
        post(
            EVENTS,
            {
                "metadata": {"name": "e"},
                "involvedObject": {"kind": "Widget", "name": "w", "namespace": "{ns}"},
                "reason": "Grown",
                "message": "It has grown.",
                "type": "Normal",
            },
        ),
        get(f"{EVENTS}?fieldSelector=involvedObject.name%3Dw,reason%3DGrown").has({"items.0.metadata.name": "e"}),
        get(f"{EVENTS}?fieldSelector=involvedObject.name%3Dw,reason!%3DGrown").has({"items.0": ABSENT}),
        patch(f"{EVENTS}/e", {"count": 2}).has({"count": 2}),
    ),
    case(
        "events can be selected by their source, in its old or its new field",
        post(EVENTS, {"metadata": {"name": "old"}, "involvedObject": {"kind": "Widget", "namespace": "{ns}"}, "source": {"component": "grower"}}),
        post(EVENTS, {"metadata": {"name": "new"}, "involvedObject": {"kind": "Widget", "namespace": "{ns}"}, "reportingComponent": "grower"}),
        post(EVENTS, {"metadata": {"name": "none"}, "involvedObject": {"kind": "Widget", "namespace": "{ns}"}}),
        get(f"{EVENTS}?fieldSelector=involvedObject.kind%3DWidget,source%3Dgrower").has({"items.0.metadata.name": "new", "items.1.metadata.name": "old", "items.2": ABSENT}),
    ),
    case("secrets can be selected by type", post(SECRETS, {"metadata": {"name": "s"}, "type": "t/x"}), get(f"{SECRETS}?fieldSelector=type%3Dt/x").has({"items.0.metadata.name": "s"})),
    case("a field selector by another field is a BadRequest", get(f"{MAPS}?fieldSelector=data.k%3Dv").gives(400, reason="BadRequest")),
    case(
        "a custom resource can be selected by its CRD's selectable fields",
        CREATE_WIDGET,
        post(WIDGETS, widget("b", spec={"color": "blue"})),
        get(f"{WIDGETS}?fieldSelector=spec.color%3Dblue").has({"items.0.metadata.name": "b", "items.1": ABSENT}),
        get(f"{WIDGETS}?fieldSelector=spec.size%3D3").gives(400),
    ),
)  # fmt: skip

LISTS = (
    case(
        "the items of a list of built-in objects have no apiVersion and kind",
        labelled("a"),
        get(f"{MAPS}?labelSelector=case").has(
            {
                "kind": "ConfigMapList",
                "apiVersion": "v1",
                "metadata.resourceVersion": ANYTHING,
                "items.0.kind": ABSENT,
                "items.0.apiVersion": ABSENT,
                "items.0.data.k": "v",
            }
        ),
    ),
    case("the items of a list of custom resources have apiVersion and kind", CREATE_WIDGET, get(WIDGETS).has({"kind": "WidgetList", "items.0.kind": "Widget"})),
    case(
        "all pages show the same version of a list",
        CREATE_WIDGET,
        post(WIDGETS, widget("b")),
        post(WIDGETS, widget("c")),
        get(f"{WIDGETS}?limit=2")
        .has({"items.1.metadata.name": "b", "items.2": ABSENT, "metadata.remainingItemCount": 1})
        .saves(token="metadata.continue", rv="metadata.resourceVersion"),
        post(WIDGETS, widget("d")),
        get(f"{WIDGETS}?limit=2&continue={{token}}").has(
            {
                "items.0.metadata.name": "c",
                "items.1": ABSENT,
                "metadata.continue": "",
                "metadata.resourceVersion": "{rv}",
            }
        ),
    ),
    case("a list in an empty or absent namespace is empty", get("/api/v1/namespaces/no-such/configmaps").has({"items": []})),
    case("a list can cover all namespaces", CREATE_WIDGET, get("/apis/cases.example.com/v1/widgets?labelSelector=none").has({"items": []})),
    case(
        "a table has the CRD's columns",
        CREATE_WIDGET,
        patch(f"{WIDGETS}/a/status", READY),
        get(WIDGETS, accept=TABLE).has(
            {
                "kind": "Table",
                "columnDefinitions.0.name": "Name",
                "columnDefinitions.1.name": "Size",
                "columnDefinitions.3.priority": 1,
                "rows.0.cells.0": "a",
                "rows.0.cells.1": 3,
                "rows.0.cells.2": "True",
                "rows.0.cells.3": "red",
                "rows.0.cells.4": ANYTHING,
                "rows.0.object.kind": "PartialObjectMetadata",
                "rows.0.object.metadata.name": "a",
                "metadata.resourceVersion": ANYTHING,
            }
        ),
    ),
    case("a table can include whole objects", CREATE_WIDGET, get(f"{WIDGETS}?includeObject=Object", accept=TABLE).has({"rows.0.object.spec.size": 3})),
    case(
        "a table of a CRD without columns has name and age",
        post(GADGETS, gadget()),
        get(f"{GADGETS}/g", accept=TABLE).has({"columnDefinitions.0.name": "Name", "columnDefinitions.1.name": "Age", "columnDefinitions.2": ABSENT}),
    ),
    case("a page of a selected list has no remainingItemCount", *THREE, get(f"{MAPS}?limit=1&labelSelector=env").has({"metadata.continue": ANYTHING, "metadata.remainingItemCount": ABSENT})),
)  # fmt: skip


WATCHES = (
    case("a watch without a version starts with the existing objects", CREATE_WIDGET, get(WATCH).shows(("ADDED", "a"))),
    case("a watch from version 0 starts with the existing objects", CREATE_WIDGET, get(f"{WATCH}&resourceVersion=0").shows(("ADDED", "a"))),
    case(
        "a watch from a version shows the later events",
        CREATE_WIDGET.saves(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}}),
        post(WIDGETS, widget("b")),
        delete(f"{WIDGETS}/a"),
        get(f"{WATCH}&resourceVersion={{rv}}").shows(("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")),
    ),
    case(
        "a watch of one object shows only its events",
        CREATE_WIDGET.saves(rv="metadata.resourceVersion"),
        post(WIDGETS, widget("b")),
        delete(f"{WIDGETS}/a"),
        get(f"{WATCH}&resourceVersion={{rv}}&fieldSelector=metadata.name%3Da").shows(("DELETED", "a")),
    ),
    case(
        "a watch shows ADDED and DELETED when an object starts and stops to match",
        CREATE_WIDGET.saves(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"metadata": {"labels": {"x": "y"}}}),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}}),
        patch(f"{WIDGETS}/a", {"metadata": {"labels": {"x": "z"}}}),
        delete(f"{WIDGETS}/a"),
        get(f"{WATCH}&resourceVersion={{rv}}&labelSelector=x%3Dy").shows(("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")),
    ),
    case(
        "a streaming list ends its initial events with a bookmark",
        CREATE_WIDGET,
        get(f"{WATCH}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true").shows(("ADDED", "a"), ("BOOKMARK", "")),
    ),
    case(
        "a bookmark follows the initial events of a watch if bookmarks are allowed",
        CREATE_WIDGET,
        get(f"{WATCH}&allowWatchBookmarks=true").shows(("ADDED", "a"), ("BOOKMARK", "")),
        get(f"{WATCH}&allowWatchBookmarks=true&resourceVersion=0").shows(("ADDED", "a"), ("BOOKMARK", "")),
        get(f"{WATCH}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan").shows(("ADDED", "a")),
    ),
    case(
        "a watch ends without a bookmark of a version that it has shown",
        CREATE_WIDGET.saves(rv="metadata.resourceVersion"),
        post(WIDGETS, widget("b")).saves(later="metadata.resourceVersion"),
        # Waits for the watch cache: an event that arrives during the watch may be bookmarked.
        get(f"{WIDGETS}?resourceVersion={{later}}"),
        get(f"{WIDGETS}?watch=true&timeoutSeconds=3&allowWatchBookmarks=true&resourceVersion={{rv}}").shows(("ADDED", "b")),
    ),
    case("a watch from an expired version ends with an error", CREATE_WIDGET, get(f"{WATCH}&resourceVersion=1").shows(("ERROR", "Expired")).after_compaction()),
    case("a watch from a future version waits", CREATE_WIDGET, get(f"{WATCH}&resourceVersion=99999999").shows()),
    case("only the first table of a watch has column definitions", CREATE_WIDGET, post(WIDGETS, widget("b")), get(WATCH, accept=TABLE).shows(("ADDED", ""), ("ADDED", ""))),
    case(
        "a watch of all namespaces can select by label",
        post(WIDGETS, widget(metadata={"labels": {"case": "{ns}"}})),
        get("/apis/cases.example.com/v1/widgets?watch=true&timeoutSeconds=1&labelSelector=case%3D{ns}").shows(("ADDED", "a")),
    ),
    case("a watch can select by the CRD's selectable fields", CREATE_WIDGET, post(WIDGETS, widget("b", spec={"color": "blue"})), get(f"{WATCH}&fieldSelector=spec.color%3Dblue").shows(("ADDED", "b"))),
    case(
        "the URL of one object ignores the watch flag",
        CREATE_WIDGET,
        get(f"{WIDGETS}/a?watch=true&timeoutSeconds=1").has({"kind": "Widget"}),
        get(f"{WIDGETS}/b?watch=true&timeoutSeconds=1").gives(404, reason="NotFound"),
    ),
    case(
        "the watch flag is true for any value but 0 and false",
        CREATE_WIDGET,
        get(f"{WIDGETS}?watch=yes&timeoutSeconds=1").shows(("ADDED", "a")),
        get(f"{WIDGETS}?watch=0").has({"kind": "WidgetList"}),
        get(f"{WIDGETS}?watch=false").has({"kind": "WidgetList"}),
    ),
    case("a write without a change causes no event", CREATE_WIDGET.saves(rv="metadata.resourceVersion"), patch(f"{WIDGETS}/a", {"spec": {"size": 3}}), get(f"{WATCH}&resourceVersion={{rv}}").shows()),
)  # fmt: skip
