# ruff: noqa: E501  (a table reads best with a row on a line)
"""Creating, replacing, statuses and dry runs."""

from __future__ import annotations

import base64

from local.tests.contract.kubernetes.cases.objects import (
    CREATE_WIDGET,
    GADGETS,
    LEASES,
    MAPS,
    NODE,
    NODES,
    READY,
    SECRETS,
    WIDGETS,
    config_map,
    gadget,
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

CREATE = (
    case(
        "a new object gets uid, version, time and generation",
        CREATE_WIDGET.has(
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
        "a create of an existing object is AlreadyExists",
        CREATE_WIDGET,
        CREATE_WIDGET.gives(
            409,
            reason="AlreadyExists",
            message='widgets.cases.example.com "a" already exists',
            details={"name": "a", "group": "cases.example.com", "kind": "widgets"},
        ),
    ),
    case("a generated name begins with its prefix", post(MAPS, {"metadata": {"generateName": "made-"}}).has({"metadata.name": lambda name: name.startswith("made-") and len(name) == 10})),
    case(
        "a create without a name is invalid",
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
        "a name that is no DNS subdomain is invalid",
        post(MAPS, config_map("Big_One"))
        .gives(422)
        .has(
            {
                **invalid(("FieldValueInvalid", "metadata.name")),
                "message": containing('ConfigMap "Big_One" is invalid', "RFC 1123 subdomain"),
            }
        ),
    ),
    case("a label's value with spaces is invalid", post(MAPS, config_map(labels={"a": "no spaces"})) .gives(422) .has(invalid(("FieldValueInvalid", "metadata.labels")))),
    case("a create with a resourceVersion is an error", post(MAPS, config_map(resourceVersion="1")).gives(500, reason=ABSENT, message="resourceVersion should not be set on objects to be created")),
    case("the namespace of object and URL must agree", post(MAPS, config_map(namespace="elsewhere")).gives(400, reason="BadRequest")),
    case("a create in an absent namespace is NotFound", post("/api/v1/namespaces/no-such/configmaps", config_map()).gives(404, reason="NotFound", message='namespaces "no-such" not found')),
    case("a create drops the status", post(WIDGETS, {**widget(), **READY}).has({"status": ABSENT})),
    case("a body that is no JSON is a BadRequest", Step("POST", MAPS, b"{", status=400, expect={"reason": "BadRequest"})),
    case("a body of another media type is UnsupportedMediaType", post(MAPS, "x", "text/plain").gives(415, reason="UnsupportedMediaType")),
    case("a request for an unknown media type is NotAcceptable", get(MAPS, accept="image/png").gives(406, reason="NotAcceptable")),
    case(
        "a secret's stringData becomes data",
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
    case("a secret's data must be base64", post(SECRETS, {"metadata": {"name": "s"}, "data": {"word": "%%"}}).gives(400, reason="BadRequest")),
    case("a secret without a type is Opaque", post(SECRETS, {"metadata": {"name": "s"}}).has({"type": "Opaque"})),
)  # fmt: skip

UPDATE = (
    case(
        "a PUT with the current version replaces the object",
        CREATE_WIDGET.saves(rv="metadata.resourceVersion"),
        put(f"{WIDGETS}/a", widget(size=4, metadata={"resourceVersion": "{rv}"})).has({"spec.size": 4, "metadata.generation": 2}),
    ),
    case(
        "a PUT with an old version conflicts",
        CREATE_WIDGET.saves(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 5}}),
        put(f"{WIDGETS}/a", widget(size=4, metadata={"resourceVersion": "{rv}"})).gives(
            409,
            reason="Conflict",
            message='Operation cannot be fulfilled on widgets.cases.example.com "a": the object '
            "has been modified; please apply your changes to the latest version and try again",
        ),
    ),
    case(
        "a PUT of a custom resource without a version is invalid",
        CREATE_WIDGET,
        put(f"{WIDGETS}/a", widget())
        .gives(422)
        .has(
            {
                **invalid(("FieldValueInvalid", "metadata.resourceVersion")),
                "message": containing("Invalid value: 0: must be specified for an update"),
            }
        ),
    ),
    case("a PUT of most built-in kinds needs no version", post(MAPS, config_map()), put(f"{MAPS}/a", {"metadata": {"name": "a"}, "data": {"k": "w"}}).has({"data.k": "w"})),
    case(
        "a write without a change keeps the resourceVersion",
        CREATE_WIDGET.saves(rv="metadata.resourceVersion"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 3}}).has({"metadata.resourceVersion": "{rv}"}),
    ),
    case(
        "the name of object and URL must agree",
        post(MAPS, config_map()),
        put(f"{MAPS}/a", config_map("b")).gives(400, reason="BadRequest", message="the name of the object (b) does not match the name on the URL (a)"),
    ),
    case("a PUT with another uid conflicts", post(MAPS, config_map()), put(f"{MAPS}/a", config_map(uid="11111111-2222-3333-4444-555555555555")).gives(409, reason="Conflict")),
    case("a PUT of an absent object is NotFound", put(f"{MAPS}/a", config_map()).gives(404, reason="NotFound", message='configmaps "a" not found')),
    case("a change of labels keeps the generation", CREATE_WIDGET, patch(f"{WIDGETS}/a", {"metadata": {"labels": {"x": "y"}}}).has({"metadata.generation": 1, "metadata.labels.x": "y"})),
    case("a PUT without a uid keeps the uid", post(MAPS, config_map()).saves(uid="metadata.uid"), put(f"{MAPS}/a", config_map()).has({"metadata.uid": "{uid}"})),
    case(
        "a secret's type is immutable",
        post(SECRETS, {"metadata": {"name": "s"}, "type": "t/x"}),
        patch(f"{SECRETS}/s", {"type": "t/y"}).gives(422).has({**invalid(("FieldValueInvalid", "type")), "message": containing("field is immutable")}),
    ),
    case(
        "only a PUT with the current version acquires a lease",
        post(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "one"}}).saves(rv="metadata.resourceVersion"),
        put(
            f"{LEASES}/l",
            {
                "metadata": {"name": "l", "resourceVersion": "{rv}"},
                "spec": {"holderIdentity": "two", "renewTime": "2026-01-01T00:00:00.000000Z"},
            },
        ).has({"spec.holderIdentity": "two"}),
        put(f"{LEASES}/l", {"metadata": {"name": "l", "resourceVersion": "{rv}"}, "spec": {"holderIdentity": "three"}}).gives(409, reason="Conflict"),
    ),
)  # fmt: skip

STATUS = (
    case(
        "a write to the object does not change the status",
        CREATE_WIDGET,
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
        "a write to the status changes only the status",
        CREATE_WIDGET,
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
        CREATE_WIDGET.saves(rv="metadata.resourceVersion"),
        put(f"{WIDGETS}/a/status", widget(metadata={"resourceVersion": "{rv}"}, status={"ready": True})).has({"status.ready": True}),
        put(f"{WIDGETS}/a/status", widget(metadata={"resourceVersion": "{rv}"}, status={"ready": False})).gives(409, reason="Conflict"),
    ),
    case(
        "a status is validated",
        CREATE_WIDGET,
        patch(f"{WIDGETS}/a/status", {"status": {"ready": "yes"}})
        .gives(422)
        .has(
            {
                "details.causes.0.reason": "FieldValueTypeInvalid",
                "details.causes.0.field": "status.ready",
            }
        ),
    ),
    case("the status subresource can be read", CREATE_WIDGET, get(f"{WIDGETS}/a/status").has({"spec.size": 3})),
    case(
        "without a status subresource the status is an ordinary field",
        post(GADGETS, gadget(status={"ready": True})).has({"status.ready": True}),
        patch(f"{GADGETS}/g", {"status": {"ready": False}}).has({"status.ready": False, "metadata.generation": 2}),
        Step("GET", f"{GADGETS}/g/status", status=404),
    ),
    case(
        "a write to a node's status can change its labels",
        post(NODES, {"metadata": {"name": "node-{ns}"}}),
        patch(
            f"{NODE}/status",
            {"metadata": {"labels": {"x": "y"}}, "status": {"capacity": {"cpu": "4"}}},
        ).has({"metadata.labels.x": "y", "status.capacity.cpu": "4"}),
    ),
)  # fmt: skip


DRY_RUN = (
    case("a dry run of a create stores nothing", post(f"{WIDGETS}?dryRun=All", widget()).has({"metadata.uid": ANYTHING}), get(f"{WIDGETS}/a").gives(404)),
    case("a dry run of a patch stores nothing", CREATE_WIDGET, patch(f"{WIDGETS}/a?dryRun=All", {"spec": {"size": 9}}).has({"spec.size": 9}), get(f"{WIDGETS}/a").has({"spec.size": 3})),
    case("a dry run of a delete deletes nothing", CREATE_WIDGET, delete(f"{WIDGETS}/a?dryRun=All"), get(f"{WIDGETS}/a")),
    case("a dry run validates", post(f"{WIDGETS}?dryRun=All", widget(size=0)).gives(422)),
    case("a dryRun value other than All is invalid", post(f"{WIDGETS}?dryRun=Some", widget()) .gives(422) .has(invalid(("FieldValueNotSupported", "dryRun")))),
)  # fmt: skip
