"""Is a CRD's schema structural, and the CRD itself in order? In the API server's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from local.kube import errors
from local.kube.cel import CelError, Rule, matches
from local.kube.checks import type_name
from local.kube.errors import FieldError
from local.kube.jsonpath import compile_path
from local.kube.kinds import Document
from local.kube.schema import Schema

_FORBIDDEN = (
    "definitions",
    "dependencies",
    "deprecated",
    "discriminator",
    "id",
    "patternProperties",
    "readOnly",
    "writeOnly",
    "xml",
    "$ref",
)
_FORBIDDEN_IN_JUNCTORS = ("type", "description", "default", "additionalProperties", "nullable")
_JUNCTORS = ("allOf", "anyOf", "oneOf")
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_COLUMN_TYPES = ("integer", "number", "string", "boolean", "date")
_RULE_REASONS = (
    "FieldValueInvalid",
    "FieldValueForbidden",
    "FieldValueRequired",
    "FieldValueDuplicate",
)
_INT_OR_STRING = "x-kubernetes-int-or-string"
_PRESERVE = "x-kubernetes-preserve-unknown-fields"


def find_crd_errors(document: Document, old: Document | None) -> Iterable[FieldError]:
    """What is wrong with a CustomResourceDefinition beyond the types of its fields."""
    del old
    spec = document["spec"]
    yield from _name_errors(document, spec)
    yield from _version_errors(spec["versions"])
    if spec["scope"] not in ("Cluster", "Namespaced"):
        yield errors.not_supported("spec.scope", spec["scope"], ["Cluster", "Namespaced"])
    if spec.get("preserveUnknownFields"):
        yield errors.invalid_value(
            "spec.preserveUnknownFields",
            True,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in "
            "spec.versions[*].schema instead",
        )
    for index, version in enumerate(spec["versions"]):
        single = len(spec["versions"]) == 1
        path = "spec.validation" if single else f"spec.versions[{index}].schema"
        yield from _schema_errors(version, f"{path}.openAPIV3Schema")
        yield from _column_errors(version, f"spec.versions[{index}]")


def _name_errors(document: Document, spec: Mapping[str, Any]) -> Iterator[FieldError]:
    wanted = f"{spec['names']['plural']}.{spec['group']}"
    name = document["metadata"]["name"]
    if name != wanted:
        yield errors.invalid_value(
            "metadata.name", name, 'must be spec.names.plural+"."+spec.group'
        )


def _version_errors(versions: list[Document]) -> Iterator[FieldError]:
    if sum(1 for version in versions if version["storage"]) != 1:
        yield errors.invalid_value(
            "spec.versions",
            [version["name"] for version in versions],
            "must have exactly one version marked as storage version",
        )


def _column_errors(version: Document, path: str) -> Iterator[FieldError]:
    for index, column in enumerate(version.get("additionalPrinterColumns", ())):
        at = f"{path}.additionalPrinterColumns[{index}]"
        if column.get("type") not in _COLUMN_TYPES:
            yield errors.invalid_value(
                f"{at}.type", column.get("type", ""), f"must be one of {','.join(_COLUMN_TYPES)}"
            )
        try:
            compile_path(column.get("jsonPath", ""))
        except ValueError as error:
            yield errors.invalid_value(f"{at}.jsonPath", column.get("jsonPath", ""), str(error))


_KEYWORD_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("type", "format", "description", "title", "pattern"), (str,)),
    **dict.fromkeys(("x-kubernetes-list-type", "x-kubernetes-map-type"), (str,)),
    **dict.fromkeys(("required", "enum", "allOf", "anyOf", "oneOf"), (list,)),
    **dict.fromkeys(("x-kubernetes-validations", "x-kubernetes-list-map-keys"), (list,)),
    **dict.fromkeys(("properties", "items", "not"), (dict,)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (int,)),
    **dict.fromkeys(("minProperties", "maxProperties"), (int,)),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (int, float)),
    **dict.fromkeys(("nullable", "uniqueItems", _INT_OR_STRING, _PRESERVE), (bool,)),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (bool,)),
    "x-kubernetes-embedded-resource": (bool,),
    "additionalProperties": (bool, dict),
}


def _shape_errors(schema: Any, path: str) -> Iterator[FieldError]:
    """Keywords whose value is of a type that cannot be read."""
    if not isinstance(schema, dict):
        yield errors.wrong_type(path, type_name(schema), f"{path} in body must be of type object")
        return
    for keyword, types in _KEYWORD_TYPES.items():
        value = schema.get(keyword)
        if value is None or (isinstance(value, types) and (bool in types or value is not True)):
            continue
        at = f"{path}.{keyword}"
        yield errors.wrong_type(at, type_name(value), f"{at} in body is of the wrong type")
    yield from _member_shape_errors(schema, path)


def _member_shape_errors(schema: Document, path: str) -> Iterator[FieldError]:
    for name in ("required", "x-kubernetes-list-map-keys"):
        if any(not isinstance(one, str) for one in _listed(schema, name)):
            yield errors.wrong_type(f"{path}.{name}", "array", "must hold strings only")
    for rule in _listed(schema, "x-kubernetes-validations"):
        texts = rule if isinstance(rule, dict) else {"rule": None}
        if (
            any(not isinstance(value, str | bool) for value in texts.values())
            or "rule" not in texts
        ):
            yield errors.wrong_type(f"{path}.x-kubernetes-validations", "array", "must hold rules")
        reason = texts.get("reason", "FieldValueInvalid")
        if reason not in _RULE_REASONS:
            at = f"{path}.x-kubernetes-validations.reason"
            yield errors.not_supported(at, reason, _RULE_REASONS)
    for junctor in _JUNCTORS:
        for index, member in enumerate(_listed(schema, junctor)):
            yield from _shape_errors(member, f"{path}.{junctor}[{index}]")
    properties = schema.get("properties")
    for name, child in properties.items() if isinstance(properties, dict) else ():
        yield from _shape_errors(child, f"{path}.properties[{name}]")
    for name in ("items", "not", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from _shape_errors(schema[name], f"{path}.{name}")


def _listed(schema: Document, name: str) -> list[Any]:
    found = schema.get(name)
    return found if isinstance(found, list) else []


def _schema_errors(version: Document, path: str) -> Iterator[FieldError]:
    schema = version.get("schema", {}).get("openAPIV3Schema")
    if schema is None:
        yield errors.required(path, "schemas are required")
        return
    unreadable = list(_shape_errors(schema, path))
    if unreadable:
        yield from unreadable
        return
    if schema.get("type") != "object":
        yield errors.invalid_value(
            f"{path}.type", schema.get("type", ""), "must be object at the root"
        )
        return
    found = list(_structural_errors(schema, path))
    yield from found
    if not found:
        yield from _default_errors(schema, path)


def _structural_errors(
    schema: Document, path: str, *, correlatable: bool = True
) -> Iterator[FieldError]:
    for name in _FORBIDDEN:
        if name in schema:
            yield errors.forbidden_field(f"{path}.{name}", "must not be set")
    if schema.get("uniqueItems"):
        yield errors.forbidden_field(
            f"{path}.uniqueItems",
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        )
    yield from _type_errors(schema, path)
    yield from _junctor_errors(schema, path)
    yield from _list_errors(schema, path)
    yield from _pattern_errors(schema, path)
    yield from _rule_errors(schema, path, correlatable=correlatable)
    for child, child_path in _children(schema, path):
        kept = correlatable and (
            child_path != f"{path}.items" or schema.get("x-kubernetes-list-type") == "map"
        )
        yield from _structural_errors(child, child_path, correlatable=kept)


def _children(schema: Document, path: str) -> Iterator[tuple[Document, str]]:
    for name, child in schema.get("properties", {}).items():
        yield child, f"{path}.properties[{name}]"
    if "items" in schema:
        yield schema["items"], f"{path}.items"
    if isinstance(schema.get("additionalProperties"), dict):
        yield schema["additionalProperties"], f"{path}.additionalProperties"


def _type_errors(schema: Document, path: str) -> Iterator[FieldError]:
    type_ = schema.get("type", "")
    if not type_ and not schema.get(_INT_OR_STRING) and not schema.get(_PRESERVE):
        where = "array items" if path.endswith(".items") else "object fields"
        yield errors.required(f"{path}.type", f"must not be empty for specified {where}")
    if type_ and type_ not in _TYPES:
        yield errors.not_supported(f"{path}.type", type_, _TYPES)
    if type_ == "array" and "items" not in schema:
        yield errors.required(f"{path}.items", "must be specified")
    if schema.get("additionalProperties") is False:
        yield errors.forbidden_field(f"{path}.additionalProperties", "must not be false")
    if "additionalProperties" in schema and schema.get("properties"):
        yield errors.forbidden_field(
            f"{path}.additionalProperties", "must not be used together with properties"
        )
    if path.endswith(".properties[metadata]") and path.count(".properties[") == 1:
        yield from _metadata_errors(schema, path)


def _metadata_errors(schema: Document, path: str) -> Iterator[FieldError]:
    if set(schema.get("properties", {})) - {"name", "generateName"}:
        yield errors.forbidden_field(
            f"{path}.properties", "must not specify anything other than name and generateName"
        )


def _junctor_errors(schema: Document, path: str) -> Iterator[FieldError]:
    members = [
        (member, f"{path}.{junctor}[{index}]")
        for junctor in _JUNCTORS
        for index, member in enumerate(schema.get(junctor, ()))
    ]
    members += [(schema["not"], f"{path}.not")] if "not" in schema else []
    int_or_string = schema.get(_INT_OR_STRING, False)
    for member, member_path in members:
        for name in _FORBIDDEN_IN_JUNCTORS:
            if name in member and not (int_or_string and name == "type"):
                yield errors.forbidden_field(
                    f"{member_path}.{name}", "must be empty to be structural"
                )


def _list_errors(schema: Document, path: str) -> Iterator[FieldError]:
    keys = schema.get("x-kubernetes-list-map-keys")
    if schema.get("x-kubernetes-list-type") == "map" and not keys:
        yield errors.required(
            f"{path}.x-kubernetes-list-map-keys",
            "must not be empty if x-kubernetes-list-type is map",
        )
    required = schema.get("items", {}).get("required", ())
    for key in keys or ():
        child = schema.get("items", {}).get("properties", {}).get(key, {})
        if key not in required and "default" not in child:
            yield errors.required(
                f"{path}.items.properties[{key}].default",
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a "
                "required property",
            )


def _pattern_errors(schema: Document, path: str) -> Iterator[FieldError]:
    if "pattern" not in schema:
        return
    try:
        matches(schema["pattern"], "")
    except CelError as error:
        yield errors.invalid_value(
            f"{path}.pattern", schema["pattern"], f"must be a valid regular expression: {error}"
        )


def _rule_errors(schema: Document, path: str, *, correlatable: bool) -> Iterator[FieldError]:
    for index, document in enumerate(schema.get("x-kubernetes-validations", ())):
        at = f"{path}.x-kubernetes-validations[{index}].rule"
        try:
            rule = Rule.of(document)
        except CelError as error:
            yield errors.invalid_value(at, document.get("rule", ""), f"compilation failed: {error}")
            continue
        if rule.transition and not correlatable:
            yield errors.invalid_value(
                at,
                rule.text,
                "oldSelf cannot be used on the uncorrelatable portion of the schema within " + path,
            )


def _default_errors(schema: Document, path: str) -> Iterator[FieldError]:
    """Defaults must be valid themselves."""
    if "default" in schema:
        yield from Schema(schema).validate(schema["default"], path=f"{path}.default")
    for child, child_path in _children(schema, path):
        yield from _default_errors(child, child_path)
