# ruff: noqa: E501  (a table reads best with a row on a line)
"""Events, as the functions write them and kubectl reads them."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.cases.objects import CREATE_WIDGET, EVENTS, TABLE
from local.tests.contract.kubernetes.dialogue import (
    ABSENT,
    Step,
    case,
    get,
    patch,
    post,
)


def event(name: str = "e", **more: Any) -> dict[str, Any]:
    about = {
        "apiVersion": "cases.example.com/v1",
        "kind": "Widget",
        "name": "a",
        "namespace": "{ns}",
        "uid": "11111111-2222-3333-4444-555555555555",
        **more.pop("about", {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": about,
        "reason": "Grown",
        "message": "It has grown.",
        "type": "Normal",
        "source": {"component": "gardener"},
        "reportingComponent": "",
        "reportingInstance": "",
        "firstTimestamp": "{hour_ago}",
        "lastTimestamp": "{hour_ago}",
        "count": 1,
        **more,
    }


def about(**terms: str) -> str:
    selector = ",".join(f"involvedObject.{name}%3D{value}" for name, value in terms.items())
    return f"{EVENTS}?fieldSelector={selector}&limit=500"


EVENT_CASES = (
    case(
        "an event's count can be patched but the event not created twice",
        post(EVENTS, event()).has({"count": 1}),
        post(EVENTS, event()).gives(409, reason="AlreadyExists", message='events "e" already exists'),
        get(f"{EVENTS}/e"),
        patch(f"{EVENTS}/e", {"count": 2, "lastTimestamp": "{hour_ahead}"}).has({"count": 2}),
    ),
    case("the table of events shows the involved object", post(EVENTS, event()), get(EVENTS, accept=TABLE).has({"rows.0.cells.1": "Normal", "rows.0.cells.2": "Grown", "rows.0.cells.3": "widget/a"})),
    case(
        "events can be selected by all fields that kubectl describe uses",
        CREATE_WIDGET.saves(uid="metadata.uid"),
        post(EVENTS, event(about={"uid": "{uid}"})),
        post(EVENTS, event("other", about={"name": "b"})),
        get(about(namespace="{ns}", kind="Widget", uid="{uid}", name="a")).has({"items.0.metadata.name": "e", "items.1": ABSENT}),
        get(about(name="c")).has({"items": []}),
    ),
    case(
        "an event about a cluster-scoped object must be in default",
        post(EVENTS, event(about={"kind": "Node", "name": "n", "apiVersion": "v1", "namespace": ""})).gives(422, reason="Invalid"),
        post("/api/v1/namespaces/default/events", event("{ns}", about={"kind": "Node", "name": "n", "apiVersion": "v1", "namespace": ""})),
    ),
    case("an event about an object of another namespace is invalid", post(EVENTS, event(about={"namespace": "elsewhere"})).gives(422, reason="Invalid")),
    case(
        "an event with an eventTime needs a reporting component and instance",
        post(
            EVENTS,
            event(
                eventTime="2026-01-01T00:00:00.000000Z",
                firstTimestamp=None,
                lastTimestamp=None,
                count=None,
                source=None,
            ),
        ).gives(422, reason="Invalid"),
        post(
            EVENTS,
            event(
                eventTime="2026-01-01T00:00:00.000000Z",
                action="Growing",
                reportingComponent="example.com/gardener",
                reportingInstance="one",
                firstTimestamp=None,
                lastTimestamp=None,
                count=None,
                source=None,
            ),
        ).has({"eventTime": "2026-01-01T00:00:00.000000Z", "firstTimestamp": None}),
    ),
    case(
        "an event cannot be created in a terminating namespace",
        post("/api/v1/namespaces", {"metadata": {"name": "{ns}-inner"}}),
        post("/api/v1/namespaces/{ns}-inner/configmaps", {"metadata": {"name": "a", "finalizers": ["cases.example.com/hold"]}}),
        Step("DELETE", "/api/v1/namespaces/{ns}-inner"),
        post(
            "/api/v1/namespaces/{ns}-inner/events", event(about={"namespace": "{ns}-inner"})
        ).gives(
            403,
            reason="Forbidden",
            message='events "e" is forbidden: unable to create new content in namespace {ns}-inner '
            "because it is being terminated",
        ),
        patch("/api/v1/namespaces/{ns}-inner/configmaps/a", {"metadata": {"finalizers": None}}),
    ),
)  # fmt: skip
