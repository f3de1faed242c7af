"""What is said when a body, a query or a URL is wrong: the Status in full."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from local.tests.contract.kubernetes.cases.objects import (
    GADGETS,
    MAKE,
    MAPS,
    NODES,
    SECRETS,
    WATCH,
    WIDGETS,
    bad,
    config_map,
    widget,
)
from local.tests.contract.kubernetes.dialogue import (
    ABSENT,
    JSON,
    JSON_PATCH,
    STRATEGIC,
    Step,
    case,
    delete,
    get,
    patch,
    post,
    put,
)


def undecodable(step: Step, why: str, kind: str = "ConfigMap") -> Step:
    """Refused because Go cannot read it as an object of the kind."""
    return bad(step, f'{kind} in version "v1" cannot be handled as a {kind}: {why}')


def unserved(path: str, method: str = "GET") -> Step:
    """404 with a Status."""
    return Step(method, path).gives(
        404,
        reason="NotFound",
        message="the server could not find the requested resource",
        details={},
    )


def unlisted(path: str) -> Step:
    """404 in plain text."""
    return Step("GET", path, status=404)


def not_allowed(step: Step) -> Step:
    """405 with a Status."""
    return step.gives(
        405,
        reason="MethodNotAllowed",
        message="the server does not allow this method on the requested resource",
        details={},
    )


def bad_options(step: Step, kind: str, message: str) -> Step:
    """422 for what stands in the query or in DeleteOptions."""
    return step.gives(422, reason="Invalid").has(
        {
            "message": f'{kind}.meta.k8s.io "" is invalid: {message}',
            "details.group": "meta.k8s.io",
            "details.kind": kind,
            "details.name": ABSENT,
        }
    )


_TIMES = 'as "2006-01-02T15:04:05Z07:00": cannot parse "soon" as "2006"'
_NAMELESS = "was undeterminable: name must be provided"


def meta(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", **fields}}


BODIES = (
    case(
        "a body must be an object",
        bad(
            Step("POST", MAPS, b"[1]"),
            "the object provided is unrecognized (must be of type ConfigMap): couldn't get "
            "version/kind; json parse error: json: cannot unmarshal array into Go value of type "
            'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
            'Kind string "json:\\"kind,omitempty\\"" } (5b315d)',
        ),
        bad(
            Step("POST", WIDGETS, b'"x"'),
            "the object provided is unrecognized (must be of type Widget): couldn't get "
            "version/kind; json parse error: json: cannot unmarshal string into Go value of type "
            'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
            'Kind string "json:\\"kind,omitempty\\"" } (227822)',
        ),
    ),
    case(
        "an unfinished body is refused",
        bad(
            Step("POST", MAPS, b'{"metadata": {"name":'),
            "the object provided is unrecognized (must be of type ConfigMap): couldn't get "
            'version/kind; json parse error: unexpected end of JSON input ({"metadata": {"name":)',
        ),
        bad(
            Step("POST", WIDGETS, b""),
            "the object provided is unrecognized (must be of type Widget): couldn't get "
            "version/kind; json parse error: unexpected end of JSON input (<empty>)",
        ),
    ),
    case(
        "a custom resource must say its kind and version",
        bad(
            Step("POST", WIDGETS, b'{"metadata":{"name":"a"}}'),
            "the object provided is unrecognized (must be of type Widget): Object 'Kind' is missing "
            'in \'{"metadata":{"name":"a"}}\' ({"metadata":{"name":"a"}})',
        ),
        bad(
            post(WIDGETS, {"kind": "Widget", "metadata": {"name": "a"}}),
            "the API version in the data () does not match the expected API version "
            "(cases.example.com/v1)",
        ),
        bad(
            post(WIDGETS, {**widget(), "apiVersion": "v2"}),
            "the API version in the data (v2) does not match the expected API version "
            "(cases.example.com/v1)",
        ),
    ),
    case(
        "a custom resource is of the URL's kind",
        post(WIDGETS, {**widget(), "kind": "Gadget"}).gives(
            422,
            reason="Invalid",
            message='Gadget.cases.example.com "a" is invalid: kind: Invalid value: "Gadget": must '
            "be Widget",
        ),
    ),
    case(
        "a built-in object is of the URL's kind, if it says any",
        bad(
            post(MAPS, {"apiVersion": "v1", "kind": "Secret", **meta()}),
            'Secret in version "v1" cannot be handled as a ConfigMap: converting (v1.Secret) to '
            "(core.ConfigMap): unknown conversion",
        ),
        bad(
            post(MAPS, {"apiVersion": "v2", "kind": "ConfigMap", **meta()}),
            'ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" is '
            'registered for version "v2" in scheme "pkg/runtime/scheme.go:111"',
        ),
        post(MAPS, meta()),
    ),
    case(
        "a value of a wrong type in a built-in object cannot be read",
        undecodable(
            post(MAPS, {**meta(), "data": {"k": 1}}),
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        undecodable(
            post(MAPS, {"metadata": "x"}),
            "json: cannot unmarshal string into Go struct field ConfigMap.metadata of type "
            "v1.ObjectMeta",
        ),
        undecodable(
            post(MAPS, meta(labels={"a": 1})),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type "
            "string",
        ),
        undecodable(post(MAPS, meta(creationTimestamp="soon")), f'parsing time "soon" {_TIMES}'),
        undecodable(
            post(NODES, {"metadata": {"name": "node-{ns}"}, "spec": {"unschedulable": "x"}}),
            "json: cannot unmarshal string into Go struct field NodeSpec.spec.unschedulable of type "
            "bool",
            "Node",
        ),
        undecodable(
            post(NODES, {"metadata": {"name": "node-{ns}"}, "spec": {"taints": [{"key": 1}]}}),
            "json: cannot unmarshal number into Go struct field Taint.spec.taints.key of type string",
            "Node",
        ),
        undecodable(
            post(NODES, {"metadata": {"name": "node-{ns}"}, "spec": []}),
            "json: cannot unmarshal array into Go struct field Node.spec of type v1.NodeSpec",
            "Node",
        ),
    ),
    case(
        "a value of a wrong type in a custom resource's metadata cannot be read",
        undecodable(
            post(WIDGETS, widget(metadata={"labels": {"a": 1}})),
            "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string",
            "Widget",
        ),
        undecodable(
            post(WIDGETS, widget(metadata={"labels": ["a"]})),
            "json: cannot unmarshal array into Go struct field ObjectMeta.labels of type "
            "map[string]string",
            "Widget",
        ),
        undecodable(
            post(WIDGETS, {**widget(), "metadata": "x"}),
            "json: cannot unmarshal string into Go value of type v1.ObjectMeta",
            "Widget",
        ),
        undecodable(
            post(WIDGETS, widget(metadata={"creationTimestamp": "soon"})),
            f'parsing time "soon" {_TIMES}',
            "Widget",
        ),
    ),
    case(
        "null is as good as nothing",
        post(MAPS, {**meta(labels={"a": None}), "data": {"k": None}}).has(
            {"data": {"k": ""}, "metadata.labels": {"a": ""}}
        ),
        post(
            WIDGETS, widget(spec={"limits": {"a": None, "b": 1}, "tags": None, "since": None})
        ).has({"spec.limits": {"b": 1}, "spec.tags": ABSENT, "spec.since": ABSENT}),
    ),
    case(
        "a body is read before it is asked whether its place is there",
        undecodable(
            post("/api/v1/namespaces/no-such/configmaps?fieldValidation=Strict", {"dada": {}}),
            'strict decoding error: unknown field "dada"',
        ),
        undecodable(
            put(f"{MAPS}/no-such?fieldValidation=Strict", {"dada": {}}),
            'strict decoding error: unknown field "dada"',
        ),
    ),
    case(
        "all unknown fields are told, in metadata too",
        post(
            f"{WIDGETS}?fieldValidation=Strict",
            widget(
                metadata={"nope": 1},
                spec={"colour": 1, "owner": {"x": 1}, "parts": [{"name": "a", "y": 1}]},
            ),
        ).gives(
            400,
            message='Widget in version "v1" cannot be handled as a Widget: strict decoding error: '
            'unknown field "metadata.nope", unknown field "spec.colour", unknown field '
            '"spec.owner.x", unknown field "spec.parts[0].y"',
        ),
        post(WIDGETS, widget(spec={"colour": 1, "owner": {"x": 1}}))
        .warns('299 - "unknown field \\"spec.colour\\"", 299 - "unknown field \\"spec.owner.x\\""')
        .has({"spec.owner": {"name": "nobody"}}),
    ),
    case(
        "a doubled field is told",
        Step(
            "POST",
            MAPS,
            b'{"metadata":{"name":"a"},"data":{"k":"v","k":"w"}}',
            status=201,
            warning='299 - "duplicate field \\"data.k\\""',
            expect={"data.k": "w"},
        ),
    ),
    case(
        "a PUT must say the name",
        post(MAPS, meta()),
        bad(
            put(f"{MAPS}/a", {"metadata": {}}),
            f"the name of the object (a based on URL) {_NAMELESS}",
        ),
        bad(
            put(f"{MAPS}/a", {"metadata": {"name": "a", "namespace": "elsewhere"}}),
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
    ),
    case(
        "keys of a config map and a secret have a form",
        post(MAPS, {**meta(), "data": {"a b": "1"}}).gives(
            422,
            reason="Invalid",
            message='ConfigMap "a" is invalid: data[a b]: Invalid value: "a b": a valid config key '
            "must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
            "'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
        ),
        post(SECRETS, {**meta(), "stringData": {"a b": "1"}}).gives(422, reason="Invalid"),
    ),
    case(
        "a finalizer has a domain, or is one of a few",
        post(MAPS, meta(finalizers=["nope"])).gives(
            422,
            reason="Invalid",
            message='ConfigMap "a" is invalid: metadata.finalizers[0]: Invalid value: "nope": name '
            "is neither a standard finalizer name nor is it fully qualified",
        ),
        post(WIDGETS, widget(metadata={"finalizers": ["nope"]})).warns(
            'metadata.finalizers: \\"nope\\": prefer a domain-qualified finalizer name to avoid '
            "accidental conflicts with other finalizer writers"
        ),
        post(WIDGETS, widget("b", metadata={"finalizers": ["a b/c"]})).gives(422, reason="Invalid"),
        patch(f"{WIDGETS}/a", {"metadata": {"finalizers": None}}),
    ),
    case(
        "an owner is named in full",
        post(MAPS, meta(ownerReferences=[{"uid": "x"}])).gives(
            422,
            reason="Invalid",
            message='ConfigMap "a" is invalid: [metadata.ownerReferences.apiVersion: Invalid value: '
            '"": version must not be empty, metadata.ownerReferences.kind: Invalid value: "": must '
            'not be empty, metadata.ownerReferences.name: Invalid value: "": must not be empty]',
        ),
    ),
)

PATCHES = (
    case(
        "a merge patch must be an object",
        MAKE,
        bad(
            patch(f"{WIDGETS}/a", [1]),
            "error decoding patch: json: cannot unmarshal array into Go value of type "
            "map[string]interface {}",
        ),
        bad(
            patch(f"{WIDGETS}/a", b"{"),
            "error decoding patch: unexpected end of JSON input",
        ),
    ),
    case(
        "a JSON patch must be a list of operations",
        MAKE,
        bad(
            patch(f"{WIDGETS}/a", {"op": "add"}, JSON_PATCH),
            "error decoding patch: json: cannot unmarshal object into Go value of type "
            "[]handlers.jsonPatchOp",
        ),
    ),
    case(
        "a JSON patch that cannot be carried out is refused",
        MAKE,
        *(
            patch(f"{WIDGETS}/a", [operation], JSON_PATCH).gives(
                422,
                reason="Invalid",
                message="the server rejected our request due to an error in our request",
                details={},
            )
            for operation in (
                {"op": "remove", "path": "/spec/nope"},
                {"op": "test", "path": "/spec/size", "value": 99},
                {"op": "fly", "path": "/spec/size", "value": 99},
            )
        ),
    ),
    case(
        "a patch of no known type is refused",
        MAKE,
        post(MAPS, meta()),
        patch(f"{WIDGETS}/a", {}, JSON).gives(415, reason="UnsupportedMediaType"),
        patch(f"{MAPS}/a", {}, JSON).gives(415, reason="UnsupportedMediaType"),
    ),
    case(
        "a patch cannot change what an object is called",
        MAKE,
        bad(
            patch(f"{WIDGETS}/a", {"metadata": {"name": "b"}}),
            "the name of the object (b) does not match the name on the URL (a)",
        ),
        bad(
            patch(f"{WIDGETS}/a", {"metadata": {"namespace": "b"}}),
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        bad(
            patch(f"{WIDGETS}/a", {"metadata": None}),
            f"the name of the object (a based on URL) {_NAMELESS}",
        ),
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
        patch(
            f"{NODES}/node-{{ns}}",
            {
                "metadata": {
                    "uid": "11111111-2222-3333-4444-555555555555",
                    "resourceVersion": "1",
                }
            },
        ).gives(409, reason="Conflict"),
    ),
    case(
        "a patch does not delete an object by its deletionTimestamp",
        MAKE,
        patch(f"{WIDGETS}/a", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}).gives(
            422,
            reason="Invalid",
            message='Widget.cases.example.com "a" is invalid: metadata.deletionTimestamp: Invalid '
            'value: "2026-01-01T00:00:00Z": field is immutable',
        ),
        patch(
            f"{WIDGETS}/a",
            {"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z", "generation": 99}},
        ).has({"metadata.generation": 1}),
    ),
    case(
        "a strict patch with an unknown field is invalid",
        MAKE,
        post(MAPS, meta()),
        patch(f"{WIDGETS}/a?fieldValidation=Strict", {"spec": {"colour": 1}})
        .gives(422, reason="Invalid")
        .has(
            {
                "message": lambda text: (
                    text.startswith(' "" is invalid: patch: Invalid value: "{')
                    and text.endswith('strict decoding error: unknown field "spec.colour"')
                )
            }
        ),
        patch(f"{MAPS}/a?fieldValidation=Strict", {"dada": {}}, STRATEGIC).gives(
            422,
            reason="Invalid",
            message=' "" is invalid: patch: Invalid value: "map[dada:map[]]": strict decoding '
            'error: unknown field "dada"',
        ),
        patch(f"{MAPS}/a", {"dada": {}}).warns('unknown field \\"dada\\"'),
    ),
    case(
        "a patch to what Go cannot read is invalid",
        post(MAPS, meta()),
        patch(f"{MAPS}/a", {"data": {"k": 1}})
        .gives(422, reason="Invalid")
        .has(
            {
                "details.causes.0.field": "patch",
                "message": lambda text: text.endswith(
                    "json: cannot unmarshal number into Go struct field ConfigMap.data of type "
                    "string"
                ),
            }
        ),
    ),
)

OPTIONS = (
    case(
        "the options of a write are checked together",
        bad_options(
            post(f"{WIDGETS}?fieldValidation=Nope", widget()),
            "CreateOptions",
            'fieldValidation: Unsupported value: "Nope": supported values: "", "Ignore", "Strict", '
            '"Warn"',
        ),
        bad_options(
            post(f"{WIDGETS}?dryRun=Some&fieldValidation=Nope", widget()),
            "CreateOptions",
            '[dryRun: Unsupported value: ["Some"]: supported values: "All", fieldValidation: '
            'Unsupported value: "Nope": supported values: "", "Ignore", "Strict", "Warn"]',
        ),
    ),
    case(
        "the options of a delete are checked",
        post(MAPS, meta()),
        bad_options(
            delete(f"{MAPS}/a", {"propagationPolicy": "Nope"}),
            "DeleteOptions",
            'propagationPolicy: Unsupported value: "Nope": supported values: "Foreground", '
            '"Background", "Orphan", "nil"',
        ),
        bad_options(
            delete(f"{MAPS}/a?propagationPolicy=Nope"),
            "DeleteOptions",
            'propagationPolicy: Unsupported value: "Nope": supported values: "Foreground", '
            '"Background", "Orphan", "nil"',
        ),
        bad_options(
            delete(f"{MAPS}/a", {"dryRun": ["Some"]}),
            "DeleteOptions",
            'dryRun: Unsupported value: ["Some"]: supported values: "All"',
        ),
        bad_options(
            delete(f"{MAPS}/a", {"orphanDependents": True, "propagationPolicy": "Orphan"}),
            "DeleteOptions",
            'propagationPolicy: Invalid value: "Orphan": orphanDependents and deletionPropagation '
            "cannot be both set",
        ),
        bad(
            delete(f"{MAPS}/a", {"gracePeriodSeconds": "x"}),
            "json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of "
            "type int64",
        ),
        bad(
            delete(f"{MAPS}/a?gracePeriodSeconds=x"),
            'strconv.ParseInt: parsing "x": invalid syntax',
        ),
        bad(
            delete(f"{MAPS}/a", b"{"),
            "couldn't get version/kind; json parse error: unexpected end of JSON input",
        ),
        delete(f"{MAPS}/a", {"kind": "DeleteOptions", "apiVersion": "v1", "nope": 1}),
    ),
    case(
        "the options of a list are checked",
        *(
            bad_options(get(f"{path}?{query}"), "ListOptions", message)
            for path in (MAPS, WIDGETS)
            for query, message in (
                (
                    "resourceVersionMatch=Exact",
                    "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless "
                    "resourceVersion is provided",
                ),
                (
                    "resourceVersionMatch=Exact&resourceVersion=0",
                    'resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for '
                    'resourceVersion "0"',
                ),
                (
                    "resourceVersionMatch=Nope&resourceVersion=1",
                    'resourceVersionMatch: Unsupported value: "Nope": supported values: "Exact", '
                    '"NotOlderThan", ""',
                ),
                (
                    "sendInitialEvents=true",
                    "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
                ),
            )
        ),
        bad(get(f"{MAPS}?limit=x"), 'strconv.ParseInt: parsing "x": invalid syntax'),
        bad(
            get(f"{MAPS}?resourceVersion=abc"),
            'invalid resource version: resourceVersion: Invalid value: "abc": strconv.ParseUint: '
            'parsing "abc": invalid syntax',
        ),
        bad(
            get(f"{MAPS}?continue=abc"),
            "invalid continue token: continue key is not valid: invalid character 'i' looking for "
            "beginning of value",
        ),
        get(f"{WIDGETS}?limit=-1"),
    ),
    case(
        "the options of a watch are checked",
        bad_options(
            get(f"{WATCH}&resourceVersionMatch=Exact&resourceVersion=1"),
            "ListOptions",
            "[resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless "
            "sendInitialEvents is provided, resourceVersionMatch: Unsupported value: "
            '"Exact": supported values: "NotOlderThan"]',
        ),
        bad_options(
            get(f"{WATCH}&sendInitialEvents=false"),
            "ListOptions",
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting "
            "resourceVersionMatch to NotOlderThan",
        ),
        bad(
            get(f"{WIDGETS}?watch=true&timeoutSeconds=x"),
            'strconv.ParseInt: parsing "x": invalid syntax',
        ),
        get(f"{WATCH}&resourceVersion=abc").gives(
            500,
            reason=ABSENT,
            message='resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": '
            "invalid syntax",
        ),
    ),
    case(
        "a version that cannot be read is refused",
        post(MAPS, meta()),
        get(f"{MAPS}/a?resourceVersion=abc").gives(
            500,
            reason=ABSENT,
            message='resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": '
            "invalid syntax",
        ),
        get(f"{MAPS}/a?resourceVersion=99999999").gives(504, reason="Timeout"),
        get(f"{MAPS}/a?resourceVersion=1"),
    ),
)

_KEY_WORDS = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_UNREADABLE_LABELS = {
    "a===b": "unable to parse requirement: found '=', expected: identifier",
    "!": "unable to parse requirement: found '', expected: identifier",
    "a in": "unable to parse requirement: found '' expected: '('",
    "a=b,": "found '', expected: identifier after ','",
    "a b": "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
    "a=b c": "found 'c', expected: ',' or 'end of string'",
    "a!": "unable to parse requirement: found '!', expected: in, notin, =, ==, !=, gt, lt",
    ",": "found ',', expected: !, identifier, or 'end of string'",
    "(a)": "found '(', expected: !, identifier, or 'end of string'",
    "-a": f'unable to parse requirement: <nil>: Invalid value: "-a": {_KEY_WORDS}',
    "a>x": "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' "
    "operators, the value must be an integer",
    "a="
    + "x" * 64: f'unable to parse requirement: values[0][a]: Invalid value: "{"x" * 64}": must '
    "be no more than 63 bytes",
}
_READABLE_LABELS = ("a in ()", "a =b", "a,b", "a==", "a!=", "in in (in)", "a notin (b,)", "a>1", "")


def labelled_by(selector: str) -> Step:
    return get(f"{WIDGETS}?{urlencode({'labelSelector': selector})}")


SELECTIONS = (
    case(
        "a label selector is read as Kubernetes reads it",
        *(bad(labelled_by(text), message) for text, message in _UNREADABLE_LABELS.items()),
        *(labelled_by(text).has({"items": []}) for text in _READABLE_LABELS),
    ),
    case(
        "a field selector is read as Kubernetes reads it",
        bad(
            get(f"{MAPS}?fieldSelector=metadata.name"),
            "invalid selector: 'metadata.name'; can't understand 'metadata.name'",
        ),
        bad(
            get(f"{MAPS}?fieldSelector=metadata.name%3Da%3Db"),
            "invalid field selector: unescaped character in value: 61",
        ),
        bad(
            get(f"{MAPS}?fieldSelector=nope%3Dx"),
            '"nope" is not a known field selector: only "metadata.name", "metadata.namespace"',
        ),
        *(
            bad(get(f"{path}?fieldSelector=nope%3Dx"), "field label not supported: nope")
            for path in (WIDGETS, SECRETS, NODES, "/api/v1/pods", "/api/v1/services")
        ),
    ),
)

URLS = (
    case(
        "what a built-in group does not serve is told in a Status",
        unserved("/api/v1/no-such"),
        unserved("/api/v1/namespaces/{ns}/no-such/a"),
        unserved("/apis/apps/v1/no-such"),
        unserved("/apis/apps/v9"),
        unserved("/api/v1/configmaps/a"),
        unserved("/api/v1/namespaces/{ns}/nodes"),
        unserved(f"{MAPS}/a/no-such"),
    ),
    case(
        "what a CRD's group does not serve is told in plain text",
        unlisted("/apis/no.such"),
        unlisted("/apis/no.such/v1"),
        unlisted("/apis/cases.example.com/v1/no-such"),
        unlisted("/apis/cases.example.com/v9/widgets"),
        unlisted("/apis/cases.example.com/v1/widgets/a"),
        unlisted("/no-such"),
    ),
    case(
        "a custom resource lacks a subresource as if it were not there",
        MAKE,
        get(f"{WIDGETS}/a/no-such").gives(
            404, reason="NotFound", message='widgets.cases.example.com "a" not found'
        ),
        get(f"{GADGETS}/g/status").gives(
            404, reason="NotFound", message='gadgets.cases.example.com "g" not found'
        ),
        delete(f"{WIDGETS}/a/status").gives(
            405,
            reason="MethodNotAllowed",
            message='delete is not supported on resources of kind "widgets.cases.example.com"',
            details={"group": "cases.example.com", "kind": "widgets"},
        ),
    ),
    case(
        "a method that a URL does not take is refused",
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
