"""Selectors, lists, tables and watches."""

from __future__ import annotations

from local.tests.contract.kubernetes.cases.objects import (
    EVENTS,
    GADGETS,
    MAKE,
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
    case(
        "a label selector that cannot be read is refused",
        get(f"{MAPS}?labelSelector=a%3D%3D%3Db").gives(400, reason="BadRequest"),
    ),
    case(
        "every kind is selected by name",
        *THREE,
        get(f"{MAPS}?fieldSelector=metadata.name%3Db").has(
            {"items.0.metadata.name": "b", "items.1": ABSENT}
        ),
    ),
    case(
        "events are selected by what they are about",
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
        get(f"{EVENTS}?fieldSelector=involvedObject.name%3Dw,reason%3DGrown").has(
            {"items.0.metadata.name": "e"}
        ),
        get(f"{EVENTS}?fieldSelector=involvedObject.name%3Dw,reason!%3DGrown").has(
            {"items.0": ABSENT}
        ),
        patch(f"{EVENTS}/e", {"count": 2}).has({"count": 2}),
    ),
    case(
        "secrets are selected by type",
        post(SECRETS, {"metadata": {"name": "s"}, "type": "t/x"}),
        get(f"{SECRETS}?fieldSelector=type%3Dt/x").has({"items.0.metadata.name": "s"}),
    ),
    case(
        "a field that is not selectable is refused",
        get(f"{MAPS}?fieldSelector=data.k%3Dv").gives(400, reason="BadRequest"),
    ),
    case(
        "a custom resource is selected by the fields that its CRD names",
        MAKE,
        post(WIDGETS, widget("b", spec={"color": "blue"})),
        get(f"{WIDGETS}?fieldSelector=spec.color%3Dblue").has(
            {"items.0.metadata.name": "b", "items.1": ABSENT}
        ),
        get(f"{WIDGETS}?fieldSelector=spec.size%3D3").gives(400),
    ),
)

LISTS = (
    case(
        "a list of built-in objects leaves out apiVersion and kind",
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
    case(
        "a list of custom resources holds them whole",
        MAKE,
        get(WIDGETS).has({"kind": "WidgetList", "items.0.kind": "Widget"}),
    ),
    case(
        "pages show one version of the list",
        MAKE,
        post(WIDGETS, widget("b")),
        post(WIDGETS, widget("c")),
        get(f"{WIDGETS}?limit=2")
        .has({"items.1.metadata.name": "b", "items.2": ABSENT, "metadata.remainingItemCount": 1})
        .keeps(token="metadata.continue", rv="metadata.resourceVersion"),
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
    case(
        "an empty namespace, even a missing one, lists nothing",
        get("/api/v1/namespaces/no-such/configmaps").has({"items": []}),
    ),
    case(
        "all namespaces are listed together",
        MAKE,
        get("/apis/cases.example.com/v1/widgets?labelSelector=none").has({"items": []}),
    ),
    case(
        "a table has the CRD's columns",
        MAKE,
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
    case(
        "a table can hold whole objects",
        MAKE,
        get(f"{WIDGETS}?includeObject=Object", accept=TABLE).has({"rows.0.object.spec.size": 3}),
    ),
    case(
        "a CRD without columns shows name and age",
        post(GADGETS, gadget()),
        get(f"{GADGETS}/g", accept=TABLE).has(
            {
                "columnDefinitions.0.name": "Name",
                "columnDefinitions.1.name": "Age",
                "columnDefinitions.2": ABSENT,
            }
        ),
    ),
    case(
        "a selected list does not say how much is left",
        *THREE,
        get(f"{MAPS}?limit=1&labelSelector=env").has(
            {"metadata.continue": ANYTHING, "metadata.remainingItemCount": ABSENT}
        ),
    ),
)


WATCHES = (
    case(
        "a watch without a version begins with what is there",
        MAKE,
        get(WATCH).shows(("ADDED", "a")),
    ),
    case(
        "a watch from 0 begins with what is there",
        MAKE,
        get(f"{WATCH}&resourceVersion=0").shows(("ADDED", "a")),
    ),
    case(
        "a watch from a version shows what came after it",
        MAKE.keeps(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}}),
        post(WIDGETS, widget("b")),
        delete(f"{WIDGETS}/a"),
        get(f"{WATCH}&resourceVersion={{rv}}").shows(
            ("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")
        ),
    ),
    case(
        "a watch of one object shows no other",
        MAKE.keeps(rv="metadata.resourceVersion"),
        post(WIDGETS, widget("b")),
        delete(f"{WIDGETS}/a"),
        get(f"{WATCH}&resourceVersion={{rv}}&fieldSelector=metadata.name%3Da").shows(
            ("DELETED", "a")
        ),
    ),
    case(
        "an object that begins or ceases to match comes and goes",
        MAKE.keeps(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"metadata": {"labels": {"x": "y"}}}),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}}),
        patch(f"{WIDGETS}/a", {"metadata": {"labels": {"x": "z"}}}),
        delete(f"{WIDGETS}/a"),
        get(f"{WATCH}&resourceVersion={{rv}}&labelSelector=x%3Dy").shows(
            ("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")
        ),
    ),
    case(
        "a streaming list ends its first part with a bookmark",
        MAKE,
        get(
            f"{WATCH}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
            "&allowWatchBookmarks=true"
        ).shows(("ADDED", "a"), ("BOOKMARK", "")),
    ),
    case(
        "a watch that begins with what is there says where that ends, if it may",
        MAKE,
        get(f"{WATCH}&allowWatchBookmarks=true").shows(("ADDED", "a"), ("BOOKMARK", "")),
        get(f"{WATCH}&allowWatchBookmarks=true&resourceVersion=0").shows(
            ("ADDED", "a"), ("BOOKMARK", "")
        ),
        get(f"{WATCH}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan").shows(
            ("ADDED", "a")
        ),
    ),
    case(
        "a watch gives no bookmark shortly before it ends if that says nothing new",
        MAKE.keeps(rv="metadata.resourceVersion"),
        post(WIDGETS, widget("b")).keeps(later="metadata.resourceVersion"),
        # Waits for the watch cache: an event that arrives during the watch may be bookmarked.
        get(f"{WIDGETS}?resourceVersion={{later}}"),
        get(
            f"{WIDGETS}?watch=true&timeoutSeconds=3&allowWatchBookmarks=true&resourceVersion={{rv}}"
        ).shows(("ADDED", "b")),
    ),
    case(
        "a watch from a version that is forgotten ends with an error",
        MAKE,
        get(f"{WATCH}&resourceVersion=1").shows(("ERROR", "Expired")).after_forgetting(),
    ),
    case(
        "a watch from a version of the future waits",
        MAKE,
        get(f"{WATCH}&resourceVersion=99999999").shows(),
    ),
    case(
        "a watch of tables says its columns once",
        MAKE,
        post(WIDGETS, widget("b")),
        get(WATCH, accept=TABLE).shows(("ADDED", ""), ("ADDED", "")),
    ),
    case(
        "a watch of all namespaces is by label as elsewhere",
        post(WIDGETS, widget(metadata={"labels": {"case": "{ns}"}})),
        get(
            "/apis/cases.example.com/v1/widgets?watch=true&timeoutSeconds=1"
            "&labelSelector=case%3D{ns}"
        ).shows(("ADDED", "a")),
    ),
    case(
        "a watch selects by the fields that the CRD names",
        MAKE,
        post(WIDGETS, widget("b", spec={"color": "blue"})),
        get(f"{WATCH}&fieldSelector=spec.color%3Dblue").shows(("ADDED", "b")),
    ),
    case(
        "an object by its name is not watched",
        MAKE,
        get(f"{WIDGETS}/a?watch=true&timeoutSeconds=1").has({"kind": "Widget"}),
        get(f"{WIDGETS}/b?watch=true&timeoutSeconds=1").gives(404, reason="NotFound"),
    ),
    case(
        "a flag is up unless it says that it is down",
        MAKE,
        get(f"{WIDGETS}?watch=yes&timeoutSeconds=1").shows(("ADDED", "a")),
        get(f"{WIDGETS}?watch=0").has({"kind": "WidgetList"}),
        get(f"{WIDGETS}?watch=false").has({"kind": "WidgetList"}),
    ),
    case(
        "a write that changes nothing is no event",
        MAKE.keeps(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 3}}),
        get(f"{WATCH}&resourceVersion={{rv}}").shows(),
    ),
)
