"""What an API server does, request by request: true of the embedded one and of a real one."""

from __future__ import annotations

import base64
from typing import Any

from tests.contract.kubernetes.dialogue import (
    ABSENT,
    ANYTHING,
    APPLY,
    JSON_PATCH,
    STRATEGIC,
    Case,
    Step,
    case,
    containing,
    delete,
    get,
    patch,
    post,
    put,
)

WIDGETS = "/apis/cases.example.com/v1/namespaces/{ns}/widgets"
GADGETS = "/apis/cases.example.com/v1/namespaces/{ns}/gadgets"
MAPS = "/api/v1/namespaces/{ns}/configmaps"
SECRETS = "/api/v1/namespaces/{ns}/secrets"
PODS = "/api/v1/namespaces/{ns}/pods"
EVENTS = "/api/v1/namespaces/{ns}/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings"
NODES = "/api/v1/nodes"
NODE = f"{NODES}/node-{{ns}}"
TOKENS = "/api/v1/namespaces/kube-system/secrets"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"


def widget(name: str = "a", size: int = 3, **more: Any) -> dict[str, Any]:
    spec = {"size": size, **more.pop("spec", {})}
    return {
        "apiVersion": "cases.example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name, **more.pop("metadata", {})},
        "spec": spec,
        **more,
    }


def gadget(**more: Any) -> dict[str, Any]:
    meta = {"name": "g"}
    return {"apiVersion": "cases.example.com/v1", "kind": "Gadget", "metadata": meta, **more}


def config_map(name: str = "a", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "data": {"k": "v"}}


def invalid(*causes: tuple[str, str]) -> dict[str, Any]:
    """The causes of a 422: reasons and fields, in any order, and as often as the server likes."""

    def agree(found: Any) -> bool:
        return {(one["reason"], one["field"]) for one in found} == set(causes)

    return {"reason": "Invalid", "details.causes": agree}


MAKE = post(WIDGETS, widget())
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}

CREATE = (
    case(
        "a new object gets uid, version, time and generation",
        MAKE.has(
            {
                "metadata.uid": ANYTHING,
                "metadata.resourceVersion": ANYTHING,
                "metadata.creationTimestamp": ANYTHING,
                "metadata.generation": 1,
                "metadata.namespace": "{ns}",
                "apiVersion": "cases.example.com/v1",
                "kind": "Widget",
            }
        ),
    ),
    case(
        "an object that is there is not created again",
        MAKE,
        MAKE.gives(
            409,
            reason="AlreadyExists",
            message='widgets.cases.example.com "a" already exists',
            details={"name": "a", "group": "cases.example.com", "kind": "widgets"},
        ),
    ),
    case(
        "a generated name begins with its prefix",
        post(MAPS, {"metadata": {"generateName": "made-"}}).has(
            {"metadata.name": lambda name: name.startswith("made-") and len(name) == 10}
        ),
    ),
    case(
        "an object needs a name",
        post(MAPS, {"metadata": {}})
        .gives(422)
        .has(
            {
                **invalid(("FieldValueRequired", "metadata.name")),
                "message": containing("name or generateName is required"),
            }
        ),
    ),
    case(
        "a name is a DNS subdomain",
        post(MAPS, config_map("Big_One"))
        .gives(422)
        .has(
            {
                **invalid(("FieldValueInvalid", "metadata.name")),
                "message": containing('ConfigMap "Big_One" is invalid', "RFC 1123 subdomain"),
            }
        ),
    ),
    case(
        "a label's value has a form",
        post(MAPS, config_map(labels={"a": "no spaces"}))
        .gives(422)
        .has(invalid(("FieldValueInvalid", "metadata.labels"))),
    ),
    case(
        "a new object must not have a version",
        post(MAPS, config_map(resourceVersion="1")).gives(
            500,
            reason=ABSENT,
            message="resourceVersion should not be set on objects to be created",
        ),
    ),
    case(
        "the namespace of object and URL must agree",
        post(MAPS, config_map(namespace="elsewhere")).gives(
            400,
            reason="BadRequest",
            message="the namespace of the provided object does not match the namespace sent on "
            "the request",
        ),
    ),
    case(
        "a namespace must be there",
        post("/api/v1/namespaces/no-such/configmaps", config_map()).gives(
            404, reason="NotFound", message='namespaces "no-such" not found'
        ),
    ),
    case(
        "what is sent of a status at creation is dropped",
        post(WIDGETS, {**widget(), **READY}).has({"status": ABSENT}),
    ),
    case(
        "a body that is no JSON is refused",
        Step("POST", MAPS, b"{", status=400, expect={"reason": "BadRequest"}),
    ),
    case(
        "a body of another media type is refused",
        post(MAPS, "x", "text/plain").gives(415, reason="UnsupportedMediaType"),
    ),
    case(
        "an answer in an unknown media type is refused",
        get(MAPS, accept="image/png").gives(406, reason="NotAcceptable"),
    ),
    case(
        "a secret's plain text becomes data",
        post(
            SECRETS, {"metadata": {"name": "s"}, "stringData": {"word": "hush"}, "type": "t/x"}
        ).has(
            {
                "data.word": base64.b64encode(b"hush").decode(),
                "stringData": ABSENT,
                "type": "t/x",
            }
        ),
    ),
    case(
        "a secret's data must be base64",
        post(SECRETS, {"metadata": {"name": "s"}, "data": {"word": "%%"}}).gives(
            400, reason="BadRequest"
        ),
    ),
    case(
        "a secret without a type is opaque",
        post(SECRETS, {"metadata": {"name": "s"}}).has({"type": "Opaque"}),
    ),
)

UPDATE = (
    case(
        "a PUT with the present version replaces",
        MAKE.keeps(rv="metadata.resourceVersion"),
        put(f"{WIDGETS}/a", widget(size=4, metadata={"resourceVersion": "{rv}"})).has(
            {"spec.size": 4, "metadata.generation": 2}
        ),
    ),
    case(
        "a PUT with an old version conflicts",
        MAKE.keeps(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 5}}),
        put(f"{WIDGETS}/a", widget(size=4, metadata={"resourceVersion": "{rv}"})).gives(
            409,
            reason="Conflict",
            message='Operation cannot be fulfilled on widgets.cases.example.com "a": the object '
            "has been modified; please apply your changes to the latest version and try again",
        ),
    ),
    case(
        "a custom resource is not replaced without a version",
        MAKE,
        put(f"{WIDGETS}/a", widget())
        .gives(422)
        .has(
            {
                **invalid(("FieldValueInvalid", "metadata.resourceVersion")),
                "message": containing("Invalid value: 0: must be specified for an update"),
            }
        ),
    ),
    case(
        "most built-in kinds are replaced without a version",
        post(MAPS, config_map()),
        put(f"{MAPS}/a", {"metadata": {"name": "a"}, "data": {"k": "w"}}).has({"data.k": "w"}),
    ),
    case(
        "a write that changes nothing makes no version",
        MAKE.keeps(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 3}}).has({"metadata.resourceVersion": "{rv}"}),
    ),
    case(
        "the name of object and URL must agree",
        post(MAPS, config_map()),
        put(f"{MAPS}/a", config_map("b")).gives(
            400,
            reason="BadRequest",
            message="the name of the object (b) does not match the name on the URL (a)",
        ),
    ),
    case(
        "another object's uid conflicts",
        post(MAPS, config_map()),
        put(f"{MAPS}/a", config_map(uid="11111111-2222-3333-4444-555555555555")).gives(
            409, reason="Conflict"
        ),
    ),
    case(
        "a missing object is not replaced",
        put(f"{MAPS}/a", config_map()).gives(
            404, reason="NotFound", message='configmaps "a" not found'
        ),
    ),
    case(
        "labels and annotations do not count for the generation",
        MAKE,
        patch(f"{WIDGETS}/a", {"metadata": {"labels": {"x": "y"}}}).has(
            {"metadata.generation": 1, "metadata.labels.x": "y"}
        ),
    ),
    case(
        "the uid stays when a PUT leaves it out",
        post(MAPS, config_map()).keeps(uid="metadata.uid"),
        put(f"{MAPS}/a", config_map()).has({"metadata.uid": "{uid}"}),
    ),
    case(
        "a secret's type is immutable",
        post(SECRETS, {"metadata": {"name": "s"}, "type": "t/x"}),
        patch(f"{SECRETS}/s", {"type": "t/y"})
        .gives(422)
        .has(
            {**invalid(("FieldValueInvalid", "type")), "message": containing("field is immutable")}
        ),
    ),
    case(
        "an immutable config map keeps its data",
        post(MAPS, {**config_map(), "immutable": True}),
        patch(f"{MAPS}/a", {"data": {"k": "w"}})
        .gives(422)
        .has(invalid(("FieldValueForbidden", "data"))),
    ),
    case(
        "a lease is taken by whoever has its version",
        post(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "one"}}).keeps(
            rv="metadata.resourceVersion"
        ),
        put(
            f"{LEASES}/l",
            {
                "metadata": {"name": "l", "resourceVersion": "{rv}"},
                "spec": {"holderIdentity": "two", "renewTime": "2026-01-01T00:00:00.000000Z"},
            },
        ).has({"spec.holderIdentity": "two"}),
        put(
            f"{LEASES}/l",
            {
                "metadata": {"name": "l", "resourceVersion": "{rv}"},
                "spec": {"holderIdentity": "three"},
            },
        ).gives(409, reason="Conflict"),
    ),
)

STATUS = (
    case(
        "a write to the object leaves the status alone",
        MAKE,
        patch(f"{WIDGETS}/a/status", READY),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}, "status": {"ready": True}}).has(
            {
                "spec.size": 4,
                "status.ready": ABSENT,
                "status.conditions.0.status": "True",
                "metadata.generation": 2,
            }
        ),
    ),
    case(
        "a write to the status leaves all else alone",
        MAKE,
        patch(
            f"{WIDGETS}/a/status",
            {**READY, "spec": {"size": 9}, "metadata": {"labels": {"x": "y"}}},
        ).has(
            {
                "spec.size": 3,
                "metadata.labels": ABSENT,
                "metadata.generation": 1,
                "status.conditions.0.type": "Ready",
            }
        ),
    ),
    case(
        "a PUT of a status checks the version",
        MAKE.keeps(rv="metadata.resourceVersion"),
        put(
            f"{WIDGETS}/a/status",
            widget(metadata={"resourceVersion": "{rv}"}, status={"ready": True}),
        ).has({"status.ready": True}),
        put(
            f"{WIDGETS}/a/status",
            widget(metadata={"resourceVersion": "{rv}"}, status={"ready": False}),
        ).gives(409, reason="Conflict"),
    ),
    case(
        "a status is validated",
        MAKE,
        patch(f"{WIDGETS}/a/status", {"status": {"ready": "yes"}})
        .gives(422)
        .has(
            {
                "details.causes.0.reason": "FieldValueTypeInvalid",
                "details.causes.0.field": "status.ready",
            }
        ),
    ),
    case("a status can be read by itself", MAKE, get(f"{WIDGETS}/a/status").has({"spec.size": 3})),
    case(
        "without the subresource the status is a field like others",
        post(GADGETS, gadget(status={"ready": True})).has({"status.ready": True}),
        patch(f"{GADGETS}/g", {"status": {"ready": False}}).has(
            {"status.ready": False, "metadata.generation": 2}
        ),
        Step("GET", f"{GADGETS}/g/status", status=404),
    ),
    case(
        "a node's status write may change its labels",
        post(NODES, {"metadata": {"name": "node-{ns}"}}),
        patch(
            f"{NODE}/status",
            {"metadata": {"labels": {"x": "y"}}, "status": {"capacity": {"cpu": "4"}}},
        ).has({"metadata.labels.x": "y", "status.capacity.cpu": "4"}),
    ),
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

DRY_RUN = (
    case(
        "a dry run of a create stores nothing",
        post(f"{WIDGETS}?dryRun=All", widget()).has({"metadata.uid": ANYTHING}),
        get(f"{WIDGETS}/a").gives(404),
    ),
    case(
        "a dry run of a change stores nothing",
        MAKE,
        patch(f"{WIDGETS}/a?dryRun=All", {"spec": {"size": 9}}).has({"spec.size": 9}),
        get(f"{WIDGETS}/a").has({"spec.size": 3}),
    ),
    case(
        "a dry run of a delete deletes nothing",
        MAKE,
        delete(f"{WIDGETS}/a?dryRun=All"),
        get(f"{WIDGETS}/a"),
    ),
    case("a dry run validates", post(f"{WIDGETS}?dryRun=All", widget(size=0)).gives(422)),
    case(
        "a dry run is of everything or nothing",
        post(f"{WIDGETS}?dryRun=Some", widget())
        .gives(422)
        .has(invalid(("FieldValueNotSupported", "dryRun"))),
    ),
)

UNKNOWN = widget(spec={"colour": "red"})

FIELDS = (
    case(
        "an unknown field is dropped, with a warning",
        post(WIDGETS, UNKNOWN)
        .has({"spec.colour": ABSENT})
        .warns('unknown field \\"spec.colour\\"'),
    ),
    case(
        "an unknown field is refused if the client is strict",
        post(f"{WIDGETS}?fieldValidation=Strict", UNKNOWN).gives(
            400,
            reason="BadRequest",
            message=containing('strict decoding error: unknown field "spec.colour"'),
        ),
    ),
    case(
        "an unknown field is dropped in silence if the client does not care",
        post(f"{WIDGETS}?fieldValidation=Ignore", UNKNOWN).has({"spec.colour": ABSENT}).warns(""),
    ),
    case(
        "an unknown field of a built-in kind is refused if the client is strict",
        post(f"{MAPS}?fieldValidation=Strict", {**config_map(), "dada": {}}).gives(
            400,
            message=containing(
                'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding '
                'error: unknown field "dada"'
            ),
        ),
    ),
    case(
        "a doubled field is refused if the client is strict",
        Step(
            "POST",
            f"{WIDGETS}?fieldValidation=Strict",
            b'{"apiVersion":"cases.example.com/v1","kind":"Widget","metadata":{"name":"a"},'
            b'"spec":{"size":3,"size":4}}',
            status=400,
            expect={"message": containing('strict decoding error: duplicate field "spec.size"')},
        ),
    ),
    case(
        "unknown fields stay where the schema lets them",
        post(WIDGETS, widget(spec={"free": {"any": {"thing": 1}}}))
        .has({"spec.free.any.thing": 1})
        .warns(""),
    ),
    case(
        "a default fills what is missing",
        MAKE.has({"spec.color": "red", "spec.note": "none"}),
    ),
    case(
        "a default within an object waits for the object",
        MAKE.has({"spec.owner": ABSENT}),
        post(WIDGETS, widget("b", spec={"owner": {}})).has({"spec.owner.name": "nobody"}),
    ),
    case(
        "null for a field with a default is the default",
        post(WIDGETS, widget(spec={"color": None})).has({"spec.color": "red"}),
    ),
    case(
        "null stays where it is allowed",
        post(WIDGETS, widget(spec={"note": None})).has({"spec.note": None}),
    ),
    case(
        "int-or-string takes both",
        post(WIDGETS, widget(spec={"limit": 5})).has({"spec.limit": 5}),
        post(WIDGETS, widget("b", spec={"limit": "50%"})).has({"spec.limit": "50%"}),
    ),
)


BLOCKING = ("FieldValueNotSupported",)
"""Reasons that keep rules from being checked, which is one more cause."""


def bad_widget(cause: tuple[str, str], words: str, **spec: Any) -> Step:
    """A widget with one fault."""
    body = widget(spec={name: value for name, value in spec.items() if value is not ABSENT})
    for name, value in spec.items():
        if value is ABSENT:
            del body["spec"][name]
    expected = {"message": containing('Widget.cases.example.com "a"', words)}
    expected |= invalid(cause, *((("FieldValueInvalid", "<nil>"),) if cause[0] in BLOCKING else ()))
    return post(WIDGETS, body).gives(422).has(expected)


VALIDATION = (
    case(
        "a number has a minimum",
        bad_widget(
            ("FieldValueInvalid", "spec.size"),
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
            size=0,
        ),
    ),
    case(
        "a number has a maximum",
        bad_widget(
            ("FieldValueInvalid", "spec.size"),
            "should be less than or equal to 1000",
            size=1001,
            color="blue",
        ),
    ),
    case(
        "a value is one of its enumeration",
        bad_widget(
            ("FieldValueNotSupported", "spec.color"),
            'Unsupported value: "green": supported values: "red", "blue"',
            color="green",
        ),
    ),
    case(
        "a text matches its pattern",
        bad_widget(
            ("FieldValueInvalid", "spec.code"),
            "spec.code in body should match '^[a-z]+$'",
            code="A1",
        ),
    ),
    case(
        "a text has a least length",
        bad_widget(("FieldValueInvalid", "spec.code"), "should be at least 2 chars long", code="a"),
    ),
    case(
        "a format is checked",
        post(WIDGETS, widget(spec={"since": "soon"}))
        .gives(422)
        .has(
            {
                "details.causes.0.reason": "FieldValueTypeInvalid",
                "details.causes.0.field": "spec.since",
                "message": containing('spec.since in body must be of type date-time: "soon"'),
            }
        ),
    ),
    case(
        "a set has no value twice",
        bad_widget(
            ("FieldValueDuplicate", "spec.tags[1]"), 'Duplicate value: "x"', tags=["x", "x"]
        ),
    ),
    case(
        "a keyed list has no key twice",
        bad_widget(
            ("FieldValueDuplicate", "spec.parts[1]"),
            'Duplicate value: {"name":"x"}',
            parts=[{"name": "x"}, {"name": "x"}],
        ),
    ),
    case(
        "a required field must be there, and rules wait until it is",
        post(WIDGETS, {**widget(), "spec": {}})
        .gives(422)
        .has(
            {
                **invalid(("FieldValueRequired", "spec.size"), ("FieldValueInvalid", "<nil>")),
                "message": containing(
                    "spec.size: Required value", "some validation rules were not"
                ),
            }
        ),
    ),
    case(
        "a value has a type",
        post(WIDGETS, widget(spec={"code": 7}))
        .gives(422)
        .has(
            {
                "details.causes.0.reason": "FieldValueTypeInvalid",
                "details.causes.0.field": "spec.code",
                "message": containing("spec.code in body must be of type string"),
            }
        ),
    ),
    case(
        "a map's values have a type, and the path says which",
        post(WIDGETS, widget(spec={"limits": {"x": "y"}}))
        .gives(422)
        .has({"details.causes.0.field": "spec.limits.x"}),
    ),
    case(
        "a text has a greatest length",
        post(WIDGETS, widget(spec={"code": "abcdef"}))
        .gives(422)
        .has({"details.causes.0.reason": "FieldValueTooLong", "message": containing("Too long")}),
    ),
    case(
        "a list has a greatest length",
        post(WIDGETS, widget(spec={"tags": ["a", "b", "c", "d"]}))
        .gives(422)
        .has(
            {
                "details.causes.0.reason": "FieldValueTooMany",
                "message": containing("Too many: 4: must have at most 3 items"),
            }
        ),
    ),
    case(
        "one of several must hold",
        post(WIDGETS, widget(spec={"either": {"a": "x", "b": "y"}}))
        .gives(422)
        .has({"message": containing("must validate one and only one schema (oneOf)")}),
        post(WIDGETS, widget(spec={"either": {"a": "x"}})),
    ),
    case(
        "all faults come at once",
        post(WIDGETS, widget(size=0, spec={"color": "green"}))
        .gives(422)
        .has({"message": containing("is invalid: [", "spec.size", "spec.color")}),
    ),
)

RULES = (
    case(
        "a rule's message is worked out, at the field that it names",
        bad_widget(
            ("FieldValueInvalid", "spec.size"), "a red widget is at most 99 in size", size=200
        ),
    ),
    case(
        "a rule that holds lets pass",
        post(WIDGETS, widget(size=200, spec={"color": "blue"})),
    ),
    case(
        "a rule with oldSelf does not run on a create, and does on a change",
        post(WIDGETS, widget(spec={"zone": "a"})),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}}),
        patch(f"{WIDGETS}/a", {"spec": {"zone": "b"}})
        .gives(422)
        .has(
            {
                **invalid(("FieldValueInvalid", "spec.zone")),
                "message": containing("zone cannot be changed"),
            }
        ),
    ),
    case(
        "immutable once set: may be set later, and then neither changed nor removed",
        MAKE,
        patch(f"{WIDGETS}/a", {"spec": {"code": "abc"}}),
        patch(f"{WIDGETS}/a", {"spec": {"code": "abd"}})
        .gives(422)
        .has(
            {
                **invalid(("FieldValueForbidden", "spec")),
                "message": containing("spec: Forbidden: code cannot be changed once it is set"),
            }
        ),
        patch(f"{WIDGETS}/a", {"spec": {"code": None}}).gives(422),
    ),
    case(
        "times are compared as times",
        bad_widget(
            ("FieldValueInvalid", "spec"),
            "since must come before until",
            since="2026-01-01T12:00:00+02:00",
            until="2026-01-01T10:00:00Z",
        ),
        post(
            WIDGETS,
            widget(
                spec={"since": "2026-01-01T12:00:00+02:00", "until": "2026-01-01T10:00:01Z"},
            ),
        ),
    ),
)


def labelled(name: str, **labels: str) -> Step:
    return post(MAPS, config_map(name, labels={"case": "{ns}", **labels}))


THREE = (labelled("a", env="x"), labelled("b", env="y"), labelled("c"))


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
        "a list from the cache knows no pages",
        MAKE,
        post(WIDGETS, widget("b")),
        get(f"{WIDGETS}?limit=1&resourceVersion=0").has(
            {"items.1.metadata.name": "b", "metadata.continue": ""}
        ),
    ),
    case(
        "an exact version can be listed",
        MAKE.keeps(rv="metadata.resourceVersion"),
        post(WIDGETS, widget("b")),
        get(f"{WIDGETS}?resourceVersion={{rv}}&resourceVersionMatch=Exact").has(
            {"items.0.metadata.name": "a", "items.1": ABSENT, "metadata.resourceVersion": "{rv}"}
        ),
    ),
    case(
        "a version from the future is waited for, in vain",
        get(f"{WIDGETS}?resourceVersion=99999999")
        .gives(504, reason="Timeout")
        .has({"details.causes.0.reason": "ResourceVersionTooLarge"}),
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
        "an object's metadata can be had alone",
        MAKE,
        get(f"{WIDGETS}/a", accept=PARTIAL).has(
            {"kind": "PartialObjectMetadata", "metadata.name": "a", "spec": ABSENT}
        ),
    ),
)

WATCH = f"{WIDGETS}?watch=true&timeoutSeconds=1"

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
        "a streaming list must say how old it may be",
        get(f"{WATCH}&sendInitialEvents=true&allowWatchBookmarks=true").gives(
            422, reason="Invalid"
        ),
    ),
    case(
        "a list takes no sendInitialEvents",
        get(f"{WIDGETS}?sendInitialEvents=true").gives(422, reason="Invalid"),
    ),
    case(
        "a write that changes nothing is no event",
        MAKE.keeps(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 3}}),
        get(f"{WATCH}&resourceVersion={{rv}}").shows(),
    ),
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
                    "no new finalizers can be added if the object is being deleted, found new "
                    'finalizers []string{"cases.example.com/new"}'
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
        get(f"{WIDGETS}/a").gives(404),
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


def rule(verbs: str, resources: str, **more: Any) -> dict[str, Any]:
    group = more.pop("group", "")
    return {
        "verbs": verbs.split(","),
        "apiGroups": [group],
        "resources": resources.split(","),
        **more,
    }


def allow(*rules: dict[str, Any]) -> tuple[Step, ...]:
    """Give the reader rights in the case's namespace."""
    return (
        post(ROLES, {"metadata": {"name": "r"}, "rules": list(rules)}),
        post(
            BINDINGS,
            {
                "metadata": {"name": "r"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "Role",
                    "name": "r",
                },
                "subjects": [
                    {
                        "kind": "Group",
                        "apiGroup": "rbac.authorization.k8s.io",
                        "name": "case-readers",
                    }
                ],
            },
        ),
    )


RIGHTS = (
    case(
        "who is unknown is refused",
        get(MAPS).by("token:nonsense").gives(401, reason="Unauthorized", message="Unauthorized"),
    ),
    case(
        "without a rule nothing is allowed",
        get(f"{WIDGETS}/a")
        .by("nobody")
        .gives(
            403,
            reason="Forbidden",
            message='widgets.cases.example.com "a" is forbidden: User "nobody" cannot get resource '
            '"widgets" in API group "cases.example.com" in the namespace "{ns}"',
            details={"name": "a", "group": "cases.example.com", "kind": "widgets"},
        ),
    ),
    case(
        "at the cluster's scope the words differ",
        get(NODES)
        .by("nobody")
        .gives(
            403,
            message='nodes is forbidden: User "nobody" cannot list resource "nodes" in API group '
            '"" at the cluster scope',
        ),
    ),
    case(
        "nobody in particular is anonymous",
        get(NODES)
        .by("anonymous")
        .gives(
            403,
            message='nodes is forbidden: User "system:anonymous" cannot list resource "nodes" in '
            'API group "" at the cluster scope',
        ),
    ),
    case(
        "a role gives what it says and no more",
        *allow(rule("get,list", "configmaps")),
        post(MAPS, config_map()),
        get(f"{MAPS}/a").by("reader"),
        get(f"{MAPS}?watch=true&timeoutSeconds=1").by("reader").gives(403),
        delete(f"{MAPS}/a").by("reader").gives(403),
        get("/api/v1/configmaps").by("reader").gives(403),
    ),
    case(
        "a role can be for named objects",
        *allow(rule("get", "configmaps", resourceNames=["a"])),
        post(MAPS, config_map()),
        get(f"{MAPS}/a").by("reader"),
        get(f"{MAPS}/b").by("reader").gives(403),
        get(MAPS).by("reader").gives(403),
    ),
    case(
        "a list of one name needs the right to list that name",
        *allow(rule("list", "configmaps", resourceNames=["a"])),
        get(f"{MAPS}?fieldSelector=metadata.name%3Da").by("reader"),
        get(f"{MAPS}?fieldSelector=metadata.name%3Db").by("reader").gives(403),
    ),
    case(
        "a subresource is a right of its own",
        MAKE,
        *allow(rule("patch", "widgets/status", group="cases.example.com")),
        patch(f"{WIDGETS}/a/status", READY).by("reader"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}})
        .by("reader")
        .gives(
            403,
            message='widgets.cases.example.com "a" is forbidden: User "reader" cannot patch '
            'resource "widgets" in API group "cases.example.com" in the namespace "{ns}"',
        ),
    ),
    case(
        "secrets may be created and deleted without being read",
        *allow(rule("create,delete", "secrets")),
        post(SECRETS, {"metadata": {"name": "s"}}).by("reader"),
        get(f"{SECRETS}/s").by("reader").gives(403),
        get(SECRETS).by("reader").gives(403),
        delete(f"{SECRETS}/s").by("reader"),
    ),
    case(
        "rights end with their binding",
        *allow(rule("get", "configmaps")),
        post(MAPS, config_map()),
        get(f"{MAPS}/a").by("reader"),
        delete(f"{BINDINGS}/r"),
        get(f"{MAPS}/a").by("reader").gives(403),
    ),
    case(
        "everybody may ask what they may do",
        *allow(rule("get", "configmaps")),
        post(
            REVIEWS,
            {
                "spec": {
                    "resourceAttributes": {
                        "namespace": "{ns}",
                        "verb": "get",
                        "resource": "configmaps",
                    }
                }
            },
        )
        .by("reader")
        .has({"status.allowed": True}),
        post(
            REVIEWS,
            {
                "spec": {
                    "resourceAttributes": {
                        "namespace": "{ns}",
                        "verb": "delete",
                        "resource": "configmaps",
                    }
                }
            },
        )
        .by("reader")
        .has({"status.allowed": False}),
    ),
    case(
        "everybody may ask who they are",
        post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
        .by("reader")
        .has(
            {
                "status.userInfo.username": "reader",
                "status.userInfo.groups": ["case-readers", "system:authenticated"],
            }
        ),
    ),
    case(
        "a path is no resource",
        get("/metrics")
        .by("nobody")
        .gives(403, message='forbidden: User "nobody" cannot get path "/metrics"'),
    ),
    case(
        "how joining nodes find the cluster is for all to read",
        get("/api/v1/namespaces/kube-public/configmaps/cluster-info").by("anonymous"),
    ),
)

AS_NODE = "system:node:node-{ns}"
REGISTER = post(NODES, {"metadata": {"name": "node-{ns}"}}).by(AS_NODE)
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

NODE_RIGHTS = (
    case(
        "a kubelet registers its own node, which takes nothing before it is ready",
        REGISTER.has(
            {"spec.taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}
        ),
        get(NODE).by(AS_NODE),
    ),
    case(
        "a kubelet registers no other node",
        post(NODES, {"metadata": {"name": "other-{ns}"}})
        .by(AS_NODE)
        .gives(
            403,
            reason="Forbidden",
            message='nodes "other-{ns}" is forbidden: node "node-{ns}" is not allowed to modify '
            'node "other-{ns}"',
        ),
    ),
    case(
        "a kubelet sets labels that are its own business",
        post(
            NODES,
            {
                "metadata": {
                    "name": "node-{ns}",
                    "labels": {
                        "cloud.google.com/gke-tpu-topology": "2x2",
                        "kubernetes.io/hostname": "node-{ns}",
                        "node.kubernetes.io/anything": "x",
                    },
                }
            },
        ).by(AS_NODE),
    ),
    case(
        "a kubelet sets no label that others trust",
        post(
            NODES,
            {
                "metadata": {
                    "name": "node-{ns}",
                    "labels": {"node-restriction.kubernetes.io/x": "y"},
                }
            },
        )
        .by(AS_NODE)
        .gives(403, message=containing("is not allowed to set the following labels")),
        REGISTER,
        patch(NODE, {"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}})
        .by(AS_NODE)
        .gives(
            403,
            message=containing("is not allowed to modify labels: node-restriction.kubernetes.io/x"),
        ),
        patch(NODE, {"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}}),
    ),
    case(
        "a kubelet does not change taints once it is registered",
        REGISTER,
        patch(NODE, {"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]}})
        .by(AS_NODE)
        .gives(403, message=containing("is not allowed to modify taints")),
    ),
    case(
        "a kubelet does not delete its node",
        REGISTER,
        delete(NODE).by(AS_NODE).gives(403, reason="Forbidden"),
    ),
    case(
        "a kubelet keeps its own lease and no other",
        post(NODE_LEASES, {"metadata": {"name": "node-{ns}"}}).by(AS_NODE),
        get(f"{NODE_LEASES}/node-{{ns}}").by(AS_NODE),
        get(f"{NODE_LEASES}/other")
        .by(AS_NODE)
        .gives(
            403,
            message=containing(
                "can only access node lease with the same name as the requesting node"
            ),
        ),
    ),
    case(
        "a kubelet reads no secret that no pod of its own names",
        post(SECRETS, {"metadata": {"name": "s"}}),
        get(f"{SECRETS}/s")
        .by(AS_NODE)
        .gives(
            403,
            message='secrets "s" is forbidden: User "system:node:node-{ns}" cannot get resource '
            '"secrets" in API group "" in the namespace "{ns}": no relationship found between node '
            "'node-{ns}' and this object",
        ),
    ),
    case(
        "a kubelet reports its status",
        REGISTER,
        patch(f"{NODE}/status", {"status": {"capacity": {"google.com/tpu": "4"}}})
        .by(AS_NODE)
        .has({"status.capacity.google~com/tpu": "4"}),
    ),
    case(
        "a provider id that is set stays",
        post(NODES, {"metadata": {"name": "node-{ns}"}, "spec": {"providerID": "gce://p/z/one"}}),
        patch(NODE, {"spec": {"providerID": "gce://p/z/two"}})
        .gives(422)
        .has(
            {
                **invalid(("FieldValueForbidden", "spec.providerID")),
                "message": containing("node updates may not change providerID except from"),
            }
        ),
    ),
    case(
        "a new node may report its status at once",
        post(
            NODES,
            {
                "metadata": {"name": "node-{ns}"},
                "status": {"capacity": {"google.com/tpu": "4"}},
            },
        ).has({"status.capacity.google~com/tpu": "4"}),
    ),
)

DISCOVERY = (
    case("it is alive", Step("GET", "/healthz"), Step("GET", "/readyz"), Step("GET", "/livez")),
    case("it says its version", get("/version").has({"major": "1", "gitVersion": ANYTHING})),
    case("the core group is old", get("/api").has({"kind": "APIVersions", "versions": ["v1"]})),
    case(
        "groups are listed",
        get("/apis").has({"kind": "APIGroupList", "groups": ANYTHING}),
        get("/apis/cases.example.com").has(
            {"kind": "APIGroup", "preferredVersion.groupVersion": "cases.example.com/v1"}
        ),
    ),
    case(
        "a group version lists its resources",
        get("/apis/cases.example.com/v1").has(
            {
                "kind": "APIResourceList",
                "groupVersion": "cases.example.com/v1",
                "resources": lambda found: (
                    {one["name"]: one.get("shortNames") for one in found}
                    == {
                        "widgets": ["wd"],
                        "widgets/status": None,
                        "gadgets": None,
                    }
                ),
            }
        ),
    ),
    case(
        "a client that knows aggregated discovery gets it",
        get(
            "/apis",
            accept="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
            "application/json",
        ).has({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2"}),
    ),
    case(
        "OpenAPI is told by group version",
        get("/openapi/v3").has(
            {"paths.apis/cases~example~com/v1.serverRelativeURL": containing("?hash=")}
        ),
    ),
    case("what is not served is not found", Step("GET", "/apis/no.such/v1/things", status=404)),
    case(
        "a verb that a resource lacks is not allowed",
        put(MAPS, config_map()).gives(405, reason="MethodNotAllowed"),
    ),
    case(
        "a CRD is established and says what it stores",
        get(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.cases.example.com"
        ).has(
            {
                "status.storedVersions": ["v1"],
                "status.acceptedNames.singular": "widget",
                "status.conditions": lambda found: (
                    {"NamesAccepted", "Established"}
                    <= {one["type"] for one in found if one["status"] == "True"}
                ),
            }
        ),
    ),
)

CASES: tuple[Case, ...] = (
    *CREATE,
    *UPDATE,
    *STATUS,
    *PATCH,
    *SERVER_SIDE_APPLY,
    *DRY_RUN,
    *FIELDS,
    *VALIDATION,
    *RULES,
    *SELECTORS,
    *LISTS,
    *WATCHES,
    *DELETES,
    *OWNERS,
    *NAMESPACES,
    *RIGHTS,
    *NODE_RIGHTS,
    *DISCOVERY,
)
