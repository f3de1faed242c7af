"""What becomes of an object's fields: unknown ones, defaults, limits and rules."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.cases.objects import (
    MAKE,
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
                "cannot be handled as a ConfigMap: strict decoding error", 'unknown field "dada"'
            ),
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


def bad_widget(cause: tuple[str, str], words: str, **spec: Any) -> Step:
    """A widget with one fault."""
    body = widget(spec={name: value for name, value in spec.items() if value is not ABSENT})
    for name, value in spec.items():
        if value is ABSENT:
            del body["spec"][name]
    expected = {"message": containing('Widget.cases.example.com "a"', words)}
    expected |= invalid(cause)
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
                **invalid(("FieldValueRequired", "spec.size")),
                "message": containing("spec.size: Required value"),
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
    case(
        "a time must be one",
        *(
            post(WIDGETS, widget("b", spec={"since": text})).gives(422)
            for text in (
                "2026-02-30T12:00:00Z",
                "2026-01-01T24:00:00Z",
                "20260101T12:00:00Z",
                "now",
            )
        ),
    ),
)
