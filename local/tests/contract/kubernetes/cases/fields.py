# ruff: noqa: E501  (a table reads best with a row on a line)
"""Fields of objects: unknown ones, defaults, limits and rules."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.cases.objects import (
    CREATE_WIDGET,
    MAPS,
    WIDGETS,
    config_map,
    invalid,
    widget,
)
from local.tests.contract.kubernetes.dialogue import (
    ABSENT,
    Step,
    case,
    containing,
    patch,
    post,
)

UNKNOWN = widget(spec={"colour": "red"})

FIELDS = (
    case("an unknown field is dropped, with a warning", post(WIDGETS, UNKNOWN) .has({"spec.colour": ABSENT}) .warns('unknown field \\"spec.colour\\"')),
    case(
        "an unknown field is a BadRequest with strict field validation",
        post(f"{WIDGETS}?fieldValidation=Strict", UNKNOWN).gives(
            400,
            reason="BadRequest",
            message=containing('strict decoding error: unknown field "spec.colour"'),
        ),
    ),
    case("an unknown field is dropped without a warning if field validation is ignored", post(f"{WIDGETS}?fieldValidation=Ignore", UNKNOWN).has({"spec.colour": ABSENT}).warns("")),
    case(
        "an unknown field of a built-in kind is a BadRequest with strict field validation",
        post(f"{MAPS}?fieldValidation=Strict", {**config_map(), "dada": {}}).gives(
            400,
            message=containing(
                "cannot be handled as a ConfigMap: strict decoding error", 'unknown field "dada"'
            ),
        ),
    ),
    case("unknown fields are kept where the schema preserves them", post(WIDGETS, widget(spec={"free": {"any": {"thing": 1}}})).has({"spec.free.any.thing": 1}).warns("")),
    case("a default is set for an absent field", CREATE_WIDGET.has({"spec.color": "red", "spec.note": "none"})),
    case("a default within an object is set only if the object exists", CREATE_WIDGET.has({"spec.owner": ABSENT}), post(WIDGETS, widget("b", spec={"owner": {}})).has({"spec.owner.name": "nobody"})),
    case("null for a field with a default is the default", post(WIDGETS, widget(spec={"color": None})).has({"spec.color": "red"})),
    case("null is kept in a nullable field", post(WIDGETS, widget(spec={"note": None})).has({"spec.note": None})),
    case("int-or-string accepts both", post(WIDGETS, widget(spec={"limit": 5})).has({"spec.limit": 5}), post(WIDGETS, widget("b", spec={"limit": "50%"})).has({"spec.limit": "50%"})),
)  # fmt: skip


def bad_widget(cause: tuple[str, str], words: str, **spec: Any) -> Step:
    """Create a widget with one violation."""
    body = widget(spec={name: value for name, value in spec.items() if value is not ABSENT})
    for name, value in spec.items():
        if value is ABSENT:
            del body["spec"][name]
    expected = {"message": containing('Widget.cases.example.com "a"', words)}
    expected |= invalid(cause)
    return post(WIDGETS, body).gives(422).has(expected)


VALIDATION = (
    case("a number below its minimum is invalid", bad_widget(("FieldValueInvalid", "spec.size"), "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1", size=0)),
    case("a number above its maximum is invalid", bad_widget(("FieldValueInvalid", "spec.size"), "should be less than or equal to 1000", size=1001, color="blue")),
    case("a value outside its enum is invalid", bad_widget(("FieldValueNotSupported", "spec.color"), 'Unsupported value: "green": supported values: "red", "blue"', color="green")),
    case("a string that does not match its pattern is invalid", bad_widget(("FieldValueInvalid", "spec.code"), "spec.code in body should match '^[a-z]+$'", code="A1")),
    case("a string below its minimum length is invalid", bad_widget(("FieldValueInvalid", "spec.code"), "should be at least 2 chars long", code="a")),
    case(
        "a string that does not match its format is invalid",
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
    case("a duplicate value in a set is invalid", bad_widget(("FieldValueDuplicate", "spec.tags[1]"), 'Duplicate value: "x"', tags=["x", "x"])),
    case("a duplicate key in a list of type map is invalid", bad_widget(("FieldValueDuplicate", "spec.parts[1]"), 'Duplicate value: {"name":"x"}', parts=[{"name": "x"}, {"name": "x"}])),
    case(
        "rules are not evaluated while a required field is absent",
        post(WIDGETS, {**widget(), "spec": {}})
        .gives(422)
        .has(
            {
                **invalid(("FieldValueRequired", "spec.size")),
                "message": containing("spec.size: Required value"),
            }
        ),
    ),
    case(
        "a value of a wrong type is invalid",
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
    case("a map's value of a wrong type is invalid and its path names the key", post(WIDGETS, widget(spec={"limits": {"x": "y"}})).gives(422).has({"details.causes.0.field": "spec.limits.x"})),
    case(
        "a string above its maximum length is invalid",
        post(WIDGETS, widget(spec={"code": "abcdef"})).gives(422).has({"details.causes.0.reason": "FieldValueTooLong", "message": containing("Too long")}),
    ),
    case(
        "a list above its maximum length is invalid",
        post(WIDGETS, widget(spec={"tags": ["a", "b", "c", "d"]}))
        .gives(422)
        .has(
            {
                "details.causes.0.reason": "FieldValueTooMany",
                "message": containing("Too many: 4: must have at most 3 items"),
            }
        ),
    ),
    case("one error lists all violations", post(WIDGETS, widget(size=0, spec={"color": "green"})).gives(422).has({"message": containing("is invalid: [", "spec.size", "spec.color")})),
)  # fmt: skip

RULES = (
    case("a rule's violation has its messageExpression and fieldPath", bad_widget(("FieldValueInvalid", "spec.size"), "a red widget is at most 99 in size", size=200)),
    case("an object that satisfies a rule is accepted", post(WIDGETS, widget(size=200, spec={"color": "blue"}))),
    case(
        "a rule with oldSelf is evaluated on updates only",
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
        "a field that is immutable once set can be set later and then neither changed nor removed",
        CREATE_WIDGET,
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
        "times in different zones are compared as times",
        bad_widget(("FieldValueInvalid", "spec"), "since must come before until", since="2026-01-01T12:00:00+02:00", until="2026-01-01T10:00:00Z"),
        post(WIDGETS, widget(spec={"since": "2026-01-01T12:00:00+02:00", "until": "2026-01-01T10:00:01Z"})),
    ),
    case("an invalid date-time is invalid", *(post(WIDGETS, widget("b", spec={"since": text})).gives(422) for text in ("2026-02-30T12:00:00Z", "2026-01-01T24:00:00Z", "20260101T12:00:00Z", "now"))),
)  # fmt: skip
