"""Render the spec of the CustomResourceDefinition, infra/chart/manifests/base/crd.yaml.

The part of the file between two comments is written from `shared.node_groups.spec` and its rules; the
names, columns and the status are written by hand.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from shared.base.fields import Entries, Field, Items, Must, Number, OneOf, Record, Text
from shared.node_groups import spec, spec_rules
from tools.pages.markdown import ROOT

Schema = dict[str, Any]

CRD = ROOT / "infra" / "chart" / "manifests" / "base" / "crd.yaml"
_BEGIN = (
    "# rendered by make pages from shared/node_groups/spec.py and spec_rules.py: change those\n"
)
_END = "# end of the rendered part\n"
_INDENT = 10 * " "


def render() -> str:
    """Return the text of the file with the rendered part."""
    return replace_part(CRD, _BEGIN, _object_without_status(), _INDENT, f"{_INDENT}  ")


def replace_part(path: Path, begin: str, part: Schema, indent: str, indent_of_end: str) -> str:
    """Return the text of a file with this part, in YAML, after the line ``begin``."""
    before, _, rest = path.read_text().partition(begin)
    _, _, after = rest.partition(_END)
    text = yaml.dump(part, Dumper=_Dumper, sort_keys=False, width=85, allow_unicode=True)
    return f"{before}{begin}{textwrap.indent(text, indent)}{indent_of_end}{_END}{after}"


def _object_without_status() -> Schema:
    # A rule of the name, and not of the object: the API server evaluates the rules of what an update
    # changes, and groups that were stored before the rule must remain deletable.
    name = {"type": "string", "x-kubernetes-validations": [*_render_musts(spec.NAME.musts)]}
    properties = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object", "properties": {"name": name}},
        "spec": render_schema(spec.SPEC),
    }
    return {"properties": properties}


def render_schema(field: Field, path: str = "") -> Schema:
    """Render the OpenAPI schema of a field at a path of the spec."""
    schema: Schema = {"description": field.description or None}
    rules: list[Schema] = []
    match field:
        case Record():
            schema |= {
                "type": "object",
                "required": [*field.required],
                "properties": {
                    name: render_schema(part, f"{path}.{name}".lstrip("."))
                    for name, part in field.fields.items()
                },
            }
        case Text():
            schema |= {
                "type": "string",
                "minLength": field.least or None,
                "maxLength": field.most,
                "pattern": next((must.pattern for must in field.musts if must.pattern), None),
                "default": field.default or None,
            }
            rules += _render_musts(field.musts)
        case OneOf():
            schema |= {"type": "string", "enum": [*field.words], "default": field.default or None}
        case Number():
            most = field.most if field.most != Number.most else None
            schema |= {
                "type": "integer",
                "format": "int32",
                "minimum": field.least,
                "maximum": most,
            }
        case Items():
            schema |= {
                "type": "array",
                "minItems": field.least or None,
                "maxItems": field.most,
                "x-kubernetes-list-type": "map" if field.keys else None,
                "x-kubernetes-list-map-keys": [*field.keys] or None,
                "items": render_schema(field.item, f"{path}[]"),
            }
        case Entries():
            schema |= {
                "type": "object",
                "maxProperties": field.most,
                "additionalProperties": render_schema(field.value, f"{path}[]"),
            }
            rules += _render_musts(field.keys)
    rules += [
        _render_rule(one.cel, one.message, one.cel_message, at=one.at.removeprefix(one.on))
        for one in spec_rules.RULES
        if one.on == path
    ]
    if field is spec.SPEC:
        rules += _keep_fields(spec.SPEC)
    return _drop_none({**schema, "x-kubernetes-validations": rules or None})


def _render_musts(musts: Iterable[Must]) -> Iterator[Schema]:
    for must in musts:
        if must.cel:
            cel_message = f"'{must.message_of}'.format([{must.cel_text}])" if must.cel_text else ""
            yield _render_rule(must.cel, must.message, cel_message)


def _keep_fields(record: Record) -> Iterator[Schema]:
    """A rule for each field that cannot change.

    They are rules of the record: the API server does not evaluate a rule of an optional field that
    compares it with its former value if the field is added or removed.
    """
    for name in record.fields:
        if name in spec.CHANGEABLE:
            continue
        new, old = f"self.{name}", f"oldSelf.{name}"
        rule = f"{new} == {old}"
        if name not in record.required:
            rule = f"has({new}) == has({old}) && (!has({new}) || {rule})"
        yield _render_rule(rule, f"{name[0].upper()}{name[1:]} is immutable", at=name)


def _render_rule(cel: str, message: str, cel_message: str = "", *, at: str = "") -> Schema:
    return _drop_none(
        {
            "rule": " ".join(cel.split()),
            "message": message,
            "messageExpression": " ".join(cel_message.split()) or None,
            "fieldPath": f".{at.lstrip('.')}" if at else None,
        }
    )


def _drop_none(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if value is not None}


class _Dumper(yaml.SafeDumper):
    """YAML as people write it: lists are indented or on one line, long texts folded."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = ">" if len(text) > 65 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.SequenceNode:
    is_flat = all(isinstance(item, str) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=is_flat)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(list, _represent_list)
