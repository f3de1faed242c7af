# ruff: noqa: E501  (a table reads best with a row on a line)
"""CustomResourceDefinitions: validation, and their effect on objects."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from local.kube import ApiError
from local.tests.contract.kubernetes.definitions import WIDGETS, crd
from local.tests.contract.kubernetes.embedded import Embedded

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THINGS = "/apis/cases.example.com/v1/namespaces/default/things"


def thing_crd(spec: dict[str, Any], **version: Any) -> dict[str, Any]:
    """Build a CRD whose objects have a ``spec`` of this schema."""
    schema = {"type": "object", "properties": {"spec": spec}}
    return crd("things", "Thing", {"schema": {"openAPIV3Schema": schema}, **version})


def serve(spec: dict[str, Any], **version: Any) -> Embedded:
    server = Embedded()
    server.api.apply_manifests([thing_crd(spec, **version)])
    return server


def thing(spec: Any, name: str = "t", version: str = "v1") -> dict[str, Any]:
    """Build an object of that CRD."""
    return {
        "apiVersion": f"cases.example.com/{version}",
        "kind": "Thing",
        "metadata": {"name": name},
        "spec": spec,
    }


def make(server: Embedded, spec: Any, name: str = "t") -> Any:
    return server.ask("POST", THINGS, thing(spec, name))


def refusal(server: Embedded, method: str, path: str, body: Any, **more: Any) -> str:
    answer = server.send(method, path, body, **more)
    assert answer.status == 422, answer.body.decode()
    return str(answer.document["message"])


def change(server: Embedded, spec: Any) -> Any:
    return server.ask(
        "PATCH", f"{THINGS}/t", {"spec": spec}, content_type="application/merge-patch+json"
    )


def failure(server: Embedded, spec: Any) -> str:
    return refusal(
        server,
        "PATCH",
        f"{THINGS}/t",
        {"spec": spec},
        content_type="application/merge-patch+json",
    )


AT = "spec.versions[0].schema.openAPIV3Schema"
INVALID_SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "an invalid pattern": ({"type": "string", "pattern": "a("}, f"{AT}: Invalid value: "),
    "a rule that does not compile": (
        {"type": "object", "x-kubernetes-validations": [{"rule": "self.a =="}]},
        f"{AT}: Invalid value: the expression 'self.a ==' does not compile",
    ),
    "a rule that uses an undeclared field": ({"type": "object", "x-kubernetes-validations": [{"rule": "other.a == 1"}]}, "undeclared reference to 'other.a'"),
    "a rule with an unknown reason": (
        {"type": "object", "x-kubernetes-validations": [{"rule": "true", "reason": "x"}]},
        "the rule 'true' has the unknown reason 'x'",
    ),
    "a rule that runs on creates with an optional oldSelf": (
        {
            "type": "object",
            "x-kubernetes-validations": [{"rule": "true", "optionalOldSelf": True}],
        },
        "the rule 'true' has optionalOldSelf, which is not served here",
    ),
    "a keyword of the wrong type": ({"type": "object", "properties": []}, f"{AT}.properties[spec].properties must be of type object, and not array"),
    "a limit that is not a number": ({"type": "string", "maxLength": "3"}, f"{AT}.properties[spec].maxLength must be of type integer, and not string"),
    "items that are not a schema": (
        {"type": "array", "items": {"type": "object", "properties": {"a": 1}}},
        f"{AT}.properties[spec].items.properties[a] must be an object",
    ),
    "an enum that is not a list": ({"type": "string", "enum": "a"}, f"{AT}.properties[spec].enum: Invalid value: "),
    "map values that are not a schema": ({"type": "object", "additionalProperties": "string"}, f"{AT}.properties[spec].additionalProperties must be an object"),
    "a limit that is null": ({"type": "string", "maxLength": None}, f"{AT}.properties[spec] must be an object, and none of its keywords null"),
    "a required name that is not a string": ({"type": "object", "required": [1]}, f"{AT}.properties[spec].required[0] must be of type string, and not integer"),
}  # fmt: skip


@pytest.mark.parametrize("spec, message", INVALID_SCHEMAS.values(), ids=INVALID_SCHEMAS.keys())
def test_a_schema_that_cannot_be_compiled_is_invalid(spec: dict[str, Any], message: str) -> None:
    assert message in refusal(Embedded(), "POST", CRDS, thing_crd(spec))


_VERSION = WIDGETS["spec"]["versions"][0]
_INVALID_COLUMN = {"name": "x", "type": "string", "jsonPath": "a..b"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a name that is not plural.group": (
        {"metadata": {"name": "other.example.com"}},
        'metadata.name: Invalid value: "other.example.com": must be spec.names.plural+"."+spec.group',
    ),
    "no storage version": ({"spec": {"versions": [{**_VERSION, "storage": False}]}}, "must have exactly one version marked as storage version"),
    "an unknown scope": ({"spec": {"scope": "Global"}}, 'spec.scope: Unsupported value: "Global": supported values: "Cluster", "Namespaced"'),
    "a version without a schema": ({"spec": {"versions": [{"name": "v1", "served": True, "storage": True}]}}, f"{AT}: Required value: schemas are required"),
    "a schema that is not of an object": (
        {"spec": {"versions": [{**_VERSION, "schema": {"openAPIV3Schema": {"type": "string"}}}]}},
        f'{AT}.type: Invalid value: "string": must be object at the root',
    ),
    "a column with an invalid path": (
        {"spec": {"versions": [{**_VERSION, "additionalPrinterColumns": [_INVALID_COLUMN]}]}},
        "spec.versions[0].additionalPrinterColumns[0].jsonPath: Invalid value: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change, message", WRONG.values(), ids=WRONG.keys())
def test_an_invalid_crd_is_an_error(change: dict[str, Any], message: str) -> None:
    document = copy.deepcopy(WIDGETS)
    for part, fields in change.items():
        document[part].update(fields)
    assert message in refusal(Embedded(), "POST", CRDS, document)


def test_the_scope_and_kind_of_a_crd_cannot_be_changed() -> None:
    server = serve({"type": "object"})
    message = refusal(
        server,
        "PATCH",
        f"{CRDS}/things.cases.example.com",
        {"spec": {"scope": "Cluster"}},
        content_type="application/merge-patch+json",
    )
    assert 'spec.scope: Invalid value: "Cluster": field is immutable' in message


def test_the_storage_version_of_a_crd_cannot_be_changed() -> None:
    server = serve({"type": "object"})
    document = server.ask("GET", f"{CRDS}/things.cases.example.com")
    document["spec"]["versions"][0]["name"] = "v2"
    message = refusal(server, "PUT", f"{CRDS}/things.cases.example.com", document)
    assert "the embedded API cannot change the version that is stored" in message


def test_a_crd_is_served_immediately() -> None:
    server = Embedded()
    assert server.send("GET", THINGS).status == 404
    server.ask("POST", CRDS, thing_crd({"type": "object"}))
    assert server.ask("GET", THINGS)["kind"] == "ThingList"


def test_the_objects_of_a_deleted_crd_are_deleted_first_with_events() -> None:
    server = serve({"type": "object"})
    make(server, {})
    watch = server.watch(THINGS)
    server.ask("DELETE", f"{CRDS}/things.cases.example.com")
    server.run_controllers()
    assert watch.event_names() == [("ADDED", "t"), ("DELETED", "t")]
    assert watch.ended
    assert server.send("GET", THINGS).status == 404


def test_a_changed_crd_applies_to_the_next_write() -> None:
    server = serve({"type": "object", "properties": {"a": {"type": "integer"}}})
    make(server, {"a": 1})
    wider = thing_crd(
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    )
    server.api.apply_manifests([wider])
    assert change(server, {"b": 2})["spec"] == {"a": 1, "b": 2}


def test_an_unchanged_invalid_value_is_accepted_after_the_crd_got_stricter() -> None:
    server = serve(
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    )
    make(server, {"a": "long", "b": "x"})
    stricter = {"type": "string", "maxLength": 2}
    server.api.apply_manifests(
        [thing_crd({"type": "object", "properties": {"a": stricter, "b": stricter}})]
    )
    assert change(server, {"b": "y"})["spec"] == {"a": "long", "b": "y"}
    assert "spec.a: Too long" in failure(server, {"a": "longer"})


def ruled(*rules: dict[str, Any], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "x-kubernetes-validations": list(rules)}


INTEGER = {"type": "integer"}
STRING = {"type": "string"}


def test_a_map_can_have_values_of_any_type() -> None:
    created = make(serve({"type": "object", "additionalProperties": True}), {"a": {"b": 1}})
    assert created["spec"] == {"a": {"b": 1}}


def test_the_message_of_a_rule_without_one_is_the_rule() -> None:
    server = serve(ruled({"rule": "self.a < 3"}, a=INTEGER))
    assert "spec: Invalid value: failed rule: self.a < 3" in refusal(
        server, "POST", THINGS, thing({"a": 3})
    )


def test_a_rule_whose_evaluation_fails_is_a_violation() -> None:
    server = serve(ruled({"rule": "self.a < 3"}, a=INTEGER))
    message = refusal(server, "POST", THINGS, thing({}))
    assert "no such key: a" in message
    assert "evaluating rule: failed rule: self.a < 3" in message


@pytest.mark.parametrize(
    "expression",
    ["self.b", "'two\\nlines'", "''", "'x'.format([])  + self.missing"],
    ids=["no text", "two lines", "empty", "fails"],
)
def test_a_failed_message_expression_falls_back_to_the_message(expression: str) -> None:
    rule = {"rule": "self.a < 3", "message": "too big", "messageExpression": expression}
    server = serve(ruled(rule, a=INTEGER, b=INTEGER))
    assert "spec: Invalid value: too big" in refusal(
        server, "POST", THINGS, thing({"a": 3, "b": 1})
    )


@pytest.mark.parametrize(
    "reason, words",
    [
        ("FieldValueInvalid", "spec.a: Invalid value: 3: no"),
        ("FieldValueForbidden", "spec.a: Forbidden: no"),
        ("FieldValueRequired", "spec.a: Required value: no"),
        ("FieldValueDuplicate", "spec.a: Duplicate value: 3"),
    ],
)
def test_the_reason_of_a_rule_is_in_the_error(reason: str, words: str) -> None:
    rule = {"rule": "self < 3", "message": "no", "reason": reason}
    server = serve(
        {"type": "object", "properties": {"a": {**INTEGER, "x-kubernetes-validations": [rule]}}}
    )
    assert words in refusal(server, "POST", THINGS, thing({"a": 3}))


def test_old_items_of_a_keyed_list_are_matched_by_key() -> None:
    item = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": STRING, "size": INTEGER},
        "x-kubernetes-validations": [{"rule": "self.size >= oldSelf.size", "message": "shrinks"}],
    }
    parts = {
        "type": "array",
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    server = serve({"type": "object", "properties": {"parts": parts}})
    make(server, {"parts": [{"name": "a", "size": 5}, {"name": "b", "size": 1}]})
    change(server, {"parts": [{"name": "b", "size": 2}, {"name": "a", "size": 5}]})
    message = failure(server, {"parts": [{"name": "new", "size": 0}, {"name": "a", "size": 4}]})
    assert "spec.parts[1]: Invalid value: shrinks" in message


ESCAPED = {
    "a dash": ("a-b", "self.a__dash__b"),
    "a dot": ("a.b", "self.a__dot__b"),
    "a slash": ("a/b", "self.a__slash__b"),
    "two underscores": ("a__b", "self.a__underscores__b"),
    "a reserved word": ("namespace", "self.__namespace__"),
}


@pytest.mark.parametrize("name, written", ESCAPED.values(), ids=ESCAPED.keys())
def test_field_names_that_are_no_cel_identifiers_are_escaped(name: str, written: str) -> None:
    server = serve(ruled({"rule": f"{written} == 1"}, **{name: INTEGER}))
    make(server, {name: 1})
    assert "failed rule" in failure(server, {name: 2})


TYPED = {
    "a whole number in a number field is a double": ({"type": "number"}, "self.a / 2.0 == 1.5", 3),
    "a time": ({"type": "string", "format": "date-time"}, "self.a < timestamp('2026-02-01T00:00:00Z')", "2026-01-31T00:00:00Z"),
    "int-or-string": ({"x-kubernetes-int-or-string": True}, "type(self.a) == string", "50%"),
    "a map": ({"type": "object", "additionalProperties": {"type": "integer"}}, "self.a.all(k, self.a[k] > 0)", {"x-y": 1}),
    "parts of a string": ({"type": "string"}, "self.a.split('x').map(p, int(p)).all(n, n > 0)", "2x2"),
}  # fmt: skip


@pytest.mark.parametrize("schema, rule, value", TYPED.values(), ids=TYPED.keys())
def test_rules_see_values_with_their_types(schema: dict[str, Any], rule: str, value: Any) -> None:
    make(serve(ruled({"rule": rule}, a=schema)), {"a": value})


RULES_OF_NAMES = {
    "at the root": ("self.metadata.name.startsWith('t')", False, "<nil>: Invalid value"),
    "of the name": ("self.startsWith('t')", True, 'metadata.name: Invalid value: "x"'),
}


@pytest.mark.parametrize("rule, is_of_name, found", RULES_OF_NAMES.values(), ids=RULES_OF_NAMES)
def test_a_rule_can_use_the_name(rule: str, is_of_name: bool, found: str) -> None:
    document = thing_crd({"type": "object"})
    schema = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rules = {"x-kubernetes-validations": [{"rule": rule, "message": "must begin with t"}]}
    if is_of_name:
        name = {"type": "string", **rules}
        schema["properties"]["metadata"] = {"type": "object", "properties": {"name": name}}
    else:
        schema |= rules
    server = Embedded()
    server.api.apply_manifests([document])
    make(server, {})
    assert f'Thing.cases.example.com "x" is invalid: {found}: must begin with t' in (
        refusal(server, "POST", THINGS, thing({}, "x"))
    )


def test_applying_invalid_manifests_in_process_is_an_error() -> None:
    with pytest.raises(ApiError, match='strict decoding error: unknown field "nope"'):
        Embedded().api.apply_manifests([{**WIDGETS, "nope": 1}])
    with pytest.raises(ApiError, match='no matches for kind "Nope" in version "v1"'):
        Embedded().api.apply_manifests([{"apiVersion": "v1", "kind": "Nope"}])


def test_a_version_that_is_not_served_is_not_found_and_keeps_its_objects() -> None:
    server = serve({"type": "object"})
    make(server, {})
    path, merge = f"{CRDS}/things.cases.example.com", "application/merge-patch+json"
    versions = server.ask("GET", path)["spec"]["versions"]
    for served, status in ((False, 404), (True, 200)):
        change = {"spec": {"versions": [{**versions[0], "served": served}]}}
        server.ask("PATCH", path, change, content_type=merge)
        assert server.send("GET", f"{THINGS}/t").status == status
        assert server.send("GET", "/apis/cases.example.com/v1").status == status


def test_a_date_time_can_have_an_invalid_offset() -> None:
    time = {"type": "string", "format": "date-time"}
    server = serve({"type": "object", "properties": {"since": time}})
    make(server, {"since": "2026-01-01T12:00:00+99:00"})
    assert "must be of type date-time" in failure(server, {"since": "2026-02-30T12:00:00Z"})
