# ruff: noqa: E501  (a table reads best with a row on a line)
"""Errors about invalid bodies, queries and URLs."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from local.tests.contract.kubernetes.cases.objects import (
    CREATE_WIDGET,
    GADGETS,
    MAPS,
    NODES,
    SECRETS,
    WIDGETS,
    config_map,
    invalid,
    widget,
)
from local.tests.contract.kubernetes.dialogue import (
    ABSENT,
    JSON,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    Step,
    case,
    containing,
    delete,
    get,
    patch,
    post,
    put,
)


def not_allowed(step: Step) -> Step:
    """Expect 405 with a Status."""
    return step.gives(405, reason="MethodNotAllowed")


def meta(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", **fields}}


BODIES = (
    case(
        "a body that is no JSON object is a BadRequest",
        *(Step("POST", path, body).gives(400, reason="BadRequest") for path in (MAPS, WIDGETS) for body in (b"[1]", b'"x"', b'{"metadata": {"name":', b"")),
    ),
    case(
        "a custom resource without kind or apiVersion is a BadRequest",
        post(WIDGETS, {"metadata": {"name": "a"}}).gives(400, reason="BadRequest"),
        post(WIDGETS, {"kind": "Widget", "metadata": {"name": "a"}}).gives(400),
        post(WIDGETS, {**widget(), "apiVersion": "v2"}).gives(400, reason="BadRequest"),
    ),
    case(
        "a built-in object needs no kind, but another kind is a BadRequest",
        post(MAPS, {"apiVersion": "v1", "kind": "Secret", **meta()}).gives(400),
        post(MAPS, {"apiVersion": "v2", "kind": "ConfigMap", **meta()}).gives(400),
        post(MAPS, meta()),
    ),
    case(
        "a value of a wrong type in a built-in object is a BadRequest",
        *(
            post(path, body).gives(400, reason="BadRequest")
            for path, body in (
                (MAPS, {**meta(), "data": {"k": 1}}),
                (MAPS, {"metadata": "x"}),
                (MAPS, meta(labels={"a": 1})),
                (MAPS, meta(creationTimestamp="soon")),
                (NODES, {"metadata": {"name": "node-{ns}"}, "spec": {"unschedulable": "x"}}),
                (NODES, {"metadata": {"name": "node-{ns}"}, "spec": {"taints": [{"key": 1}]}}),
                (NODES, {"metadata": {"name": "node-{ns}"}, "spec": []}),
            )
        ),
    ),
    case(
        "a value of a wrong type in a custom resource's metadata is a BadRequest",
        post(WIDGETS, widget(metadata={"labels": {"a": 1}})).gives(400, reason="BadRequest"),
        post(WIDGETS, widget(metadata={"labels": ["a"]})).gives(400, reason="BadRequest"),
        post(WIDGETS, {**widget(), "metadata": "x"}).gives(400, reason="BadRequest"),
        post(WIDGETS, widget(metadata={"creationTimestamp": "soon"})).gives(400),
    ),
    case(
        "null is treated as an empty or absent value",
        post(MAPS, {**meta(labels={"a": None}), "data": {"k": None}}).has({"data": {"k": ""}, "metadata.labels": {"a": ""}}),
        post(
            WIDGETS, widget(spec={"limits": {"a": None, "b": 1}, "tags": None, "since": None})
        ).has({"spec.limits": {"b": 1}, "spec.tags": ABSENT, "spec.since": ABSENT}),
    ),
    case(
        "a body is validated before the namespace is looked up",
        post("/api/v1/namespaces/no-such/configmaps?fieldValidation=Strict", {"dada": {}}).gives(
            400, message=containing('strict decoding error: unknown field "dada"')
        ),
    ),
    case(
        "one error names all unknown fields, also in metadata",
        post(
            f"{WIDGETS}?fieldValidation=Strict",
            widget(
                metadata={"nope": 1},
                spec={"colour": 1, "owner": {"x": 1}, "parts": [{"name": "a", "y": 1}]},
            ),
        ).gives(
            400,
            message=containing(
                'strict decoding error: unknown field "metadata.nope", unknown field "spec.colour", '
                'unknown field "spec.owner.x", unknown field "spec.parts[0].y"'
            ),
        ),
        post(WIDGETS, widget(spec={"colour": 1, "owner": {"x": 1}}))
        .warns('299 - "unknown field \\"spec.colour\\"", 299 - "unknown field \\"spec.owner.x\\""')
        .has({"spec.owner": {"name": "nobody"}}),
    ),
    case(
        "a PUT without the name or with another namespace is a BadRequest",
        post(MAPS, meta()),
        put(f"{MAPS}/a", {"metadata": {}}).gives(400, reason="BadRequest"),
        put(f"{MAPS}/a", {"metadata": {"name": "a", "namespace": "elsewhere"}}).gives(400),
    ),
    case(
        "a malformed finalizer is invalid",
        post(MAPS, meta(finalizers=["nope"])).gives(422, reason="Invalid"),
        post(WIDGETS, widget("b", metadata={"finalizers": ["a b/c"]})).gives(422, reason="Invalid"),
    ),
)  # fmt: skip

PATCHES = (
    case(
        "a patch that does not match its media type is a BadRequest",
        CREATE_WIDGET,
        patch(f"{WIDGETS}/a", [1]).gives(400, reason="BadRequest"),
        patch(f"{WIDGETS}/a", b"{").gives(400, reason="BadRequest"),
        patch(f"{WIDGETS}/a", {"op": "add"}, JSON_PATCH).gives(400, reason="BadRequest"),
    ),
    case(
        "a JSON patch that cannot be applied is invalid",
        CREATE_WIDGET,
        *(
            patch(f"{WIDGETS}/a", [operation], JSON_PATCH).gives(422, reason="Invalid")
            for operation in (
                {"op": "remove", "path": "/spec/nope"},
                {"op": "test", "path": "/spec/size", "value": 99},
                {"op": "fly", "path": "/spec/size", "value": 99},
            )
        ),
    ),
    case(
        "a patch of an unknown media type is UnsupportedMediaType",
        CREATE_WIDGET,
        post(MAPS, meta()),
        patch(f"{WIDGETS}/a", {}, JSON).gives(415, reason="UnsupportedMediaType"),
        patch(f"{MAPS}/a", {}, JSON).gives(415, reason="UnsupportedMediaType"),
    ),
    case(
        "a patch cannot change an object's name or namespace",
        CREATE_WIDGET,
        patch(f"{WIDGETS}/a", {"metadata": {"name": "b"}}).gives(400, reason="BadRequest"),
        patch(f"{WIDGETS}/a", {"metadata": {"namespace": "b"}}).gives(400, reason="BadRequest"),
        patch(f"{WIDGETS}/a", {"metadata": None}).gives(400, reason="BadRequest"),
    ),
    case(
        "a patch with another object's uid is invalid",
        post(NODES, {"metadata": {"name": "node-{ns}"}}),
        patch(
            f"{NODES}/node-{{ns}}",
            {"metadata": {"uid": "11111111-2222-3333-4444-555555555555"}, "spec": {"a": 1}},
        ).gives(
            422,
            reason="Invalid",
            message='Node "node-{ns}" is invalid: metadata.uid: Invalid value: '
            '"11111111-2222-3333-4444-555555555555": field is immutable',
        ),
        patch(f"{NODES}/node-{{ns}}", {"metadata": {"uid": "11111111-2222-3333-4444-555555555555", "resourceVersion": "1"}}).gives(409, reason="Conflict"),
    ),
    case(
        "a patch cannot set the deletionTimestamp",
        CREATE_WIDGET,
        patch(f"{WIDGETS}/a", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}).gives(
            422,
            reason="Invalid",
            message='Widget.cases.example.com "a" is invalid: metadata.deletionTimestamp: Invalid '
            'value: "2026-01-01T00:00:00Z": field is immutable',
        ),
        patch(f"{WIDGETS}/a", {"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z", "generation": 99}}).has({"metadata.generation": 1}),
    ),
    case(
        "a patch whose result cannot be decoded is invalid",
        CREATE_WIDGET,
        post(MAPS, meta()),
        *(
            patch(f"{path}?fieldValidation=Strict", body, media_type)
            .gives(422)
            .has(invalid(("FieldValueInvalid", "patch")))
            for path, body, media_type in (
                (f"{WIDGETS}/a", {"spec": {"colour": 1}}, MERGE),
                (f"{MAPS}/a", {"dada": {}}, STRATEGIC),
                (f"{MAPS}/a", {"data": {"k": 1}}, MERGE),
            )
        ),
        patch(f"{MAPS}/a", {"dada": {}}).warns('unknown field \\"dada\\"'),
    ),
)  # fmt: skip

OPTIONS = (
    case(
        "one error lists all invalid options of a write",
        post(f"{WIDGETS}?dryRun=Some&fieldValidation=Nope", widget())
        .gives(422)
        .has(
            invalid(
                ("FieldValueNotSupported", "dryRun"), ("FieldValueNotSupported", "fieldValidation")
            )
        ),
    ),
    case(
        "invalid options of a delete are errors",
        post(MAPS, meta()),
        *(
            step.gives(422).has(invalid(("FieldValueNotSupported", field)))
            for step, field in (
                (delete(f"{MAPS}/a", {"propagationPolicy": "Nope"}), "propagationPolicy"),
                (delete(f"{MAPS}/a?propagationPolicy=Nope"), "propagationPolicy"),
                (delete(f"{MAPS}/a", {"dryRun": ["Some"]}), "dryRun"),
            )
        ),
        delete(f"{MAPS}/a", {"gracePeriodSeconds": "x"}).gives(400, reason="BadRequest"),
        delete(f"{MAPS}/a", b"{").gives(400, reason="BadRequest"),
        delete(f"{MAPS}/a", {"kind": "DeleteOptions", "apiVersion": "v1", "nope": 1}),
    ),
    case(
        "an invalid limit, continue token or timeout of a list is a BadRequest",
        get(f"{MAPS}?limit=x").gives(400, reason="BadRequest"),
        get(f"{MAPS}?continue=abc").gives(400, reason="BadRequest"),
        get(f"{WIDGETS}?limit=-1"),
        get(f"{WIDGETS}?watch=true&timeoutSeconds=x").gives(400, reason="BadRequest"),
    ),
)

_UNREADABLE_LABELS = (
    *("a===b", "!", "a in", "a=b,", "a b", "a=b c", "a!", ",", "(a)", "-a", "a>x"),
    f"a={'x' * 64}",
)
_READABLE_LABELS = ("a in ()", "a =b", "a,b", "a==", "a!=", "in in (in)", "a notin (b,)", "a>1", "")


def labelled_by(selector: str) -> Step:
    return get(f"{WIDGETS}?{urlencode({'labelSelector': selector})}")


SELECTIONS = (
    case(
        "label selectors follow the syntax of Kubernetes",
        *(labelled_by(text).gives(400, reason="BadRequest") for text in _UNREADABLE_LABELS),
        *(labelled_by(text).has({"items": []}) for text in _READABLE_LABELS),
    ),
    case(
        "field selectors follow the syntax of Kubernetes",
        get(f"{MAPS}?fieldSelector=metadata.name").gives(400, reason="BadRequest"),
        get(f"{MAPS}?fieldSelector=metadata.name%3Da%3Db").gives(400, reason="BadRequest"),
        *(
            get(f"{path}?fieldSelector=nope%3Dx").gives(400, reason="BadRequest")
            for path in (MAPS, WIDGETS, SECRETS, NODES, "/api/v1/pods", "/api/v1/services")
        ),
    ),
)

URLS = (
    case(
        "a URL that is not served is NotFound",
        *(
            Step("GET", path, status=404)
            for path in (
                "/api/v1/no-such",
                "/apis/apps/v9",
                "/api/v1/configmaps/a",
                "/api/v1/namespaces/{ns}/nodes",
                f"{MAPS}/a/no-such",
                "/apis/no.such",
                "/apis/no.such/v1",
                "/apis/cases.example.com/v1/no-such",
                "/apis/cases.example.com/v9/widgets",
                "/apis/cases.example.com/v1/widgets/a",
                "/no-such",
            )
        ),
    ),
    case(
        "an absent subresource of a custom resource is NotFound",
        CREATE_WIDGET,
        Step("GET", f"{WIDGETS}/a/no-such", status=404),
        Step("GET", f"{GADGETS}/g/status", status=404),
        not_allowed(delete(f"{WIDGETS}/a/status")),
    ),
    case(
        "a method that a URL does not support is MethodNotAllowed",
        not_allowed(put(MAPS, config_map())),
        not_allowed(post(f"{MAPS}/a", config_map())),
        not_allowed(patch(MAPS, {})),
        not_allowed(post("/api/v1/configmaps", config_map())),
        not_allowed(delete("/api/v1/configmaps")),
        not_allowed(delete("/api/v1/namespaces")),
        not_allowed(delete(f"{NODES}/a/status")),
        not_allowed(post("/version", {})),
        not_allowed(get("/apis/authentication.k8s.io/v1/selfsubjectreviews")),
    ),
    case(
        "a slash at the end changes nothing",
        get("/api/").has({"versions": ["v1"]}),
        get("/apis/").has({"kind": "APIGroupList"}),
        get(f"{MAPS}/").has({"kind": "ConfigMapList"}),
    ),
)
