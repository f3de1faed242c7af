"""The pages `docs/reference/tpunodegroup.md` and `tpusliceclass.md`: the fields of a kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from tools.pages import crd
from tools.pages.markdown import render_table

Schema = Mapping[str, Any]

_HEAD = """\
# {kind}

<!-- rendered by make pages from {sources}: change those -->

`{group}/{version}`, {scope}; `kubectl get {short}`, or `kubectl get {category}` with the other kinds of
the category. `kubectl explain {short}.spec --recursive` has the same content as this page.

{description}
"""
_LIMITS: Mapping[str, Callable[[Any], str]] = {
    "enum": lambda values: "one of " + ", ".join(f"`{value}`" for value in values),
    "pattern": lambda pattern: f"matches `{pattern}`",
    "minimum": lambda least: f"at least {least}",
    "maximum": lambda most: f"at most {most}",
    "minLength": lambda least: f"at least {_count(least, 'character')}",
    "maxLength": lambda most: f"at most {_count(most, 'character')}",
    "minItems": lambda least: f"at least {_count(least, 'item')}",
    "maxItems": lambda most: f"at most {_count(most, 'item')}",
    "maxProperties": lambda most: f"at most {_count(most, 'key')}",
    "format": lambda name: "RFC 3339" if name == "date-time" else "",
}


def render() -> str:
    """Return the whole page, in Markdown."""
    return render_page(crd.render(), "shared/node_groups/spec.py, spec_rules.py and crd.yaml")


def render_page(definition: str, sources: str) -> str:
    """Return the page of a kind, from the YAML of its definition."""
    spec = yaml.safe_load(definition)["spec"]
    version = spec["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    names = spec["names"]
    head = _HEAD.format(
        kind=names["kind"],
        sources=sources,
        group=spec["group"],
        version=version["name"],
        scope=spec["scope"].lower(),
        short=names["shortNames"][0],
        category=names["categories"][0],
        description=schema["description"],
    )
    properties = schema["properties"]
    parts = [
        head,
        *_sections("spec", properties["spec"]),
        "## Validation rules\n",
        "In addition to the limits in the tables above, with these messages:\n",
        _table(("Field", "Message"), _validation_rules("", schema)),
        *_sections("status", properties["status"]),
        "## Columns\n",
        _table(
            ("Column", "", "Meaning"),
            (_column(entry) for entry in version["additionalPrinterColumns"]),
        ),
    ]
    return "\n".join(parts)


def _sections(path: str, schema: Schema) -> Iterator[str]:
    """Yield a heading, a sentence and a table for this object, then for its nested objects."""
    yield f"{'###' if '.' in path else '##'} {path}\n"
    yield f"{schema['description']}\n"
    yield from _tables(path, schema)


def _tables(path: str, schema: Schema) -> Iterator[str]:
    required = schema.get("required", ())
    fields = schema["properties"]
    rows = (_field(name, fields[name], name in required) for name in fields)
    yield _table(("Field", "Type", "Meaning"), rows)
    for names in _group_by_schema(fields):
        first = fields[names[0]]
        name, description = names[0], first["description"]
        if len(names) > 1:
            name, description = "*", f"Each of {', '.join(names)}."
        heading = f"{path}.{name}{'[]' if 'items' in first else ''}"
        yield from _sections(heading, {**first.get("items", first), "description": description})


def _group_by_schema(fields: Schema) -> list[list[str]]:
    """Return the names of the fields with objects, grouped by schema (a YAML alias)."""
    groups: dict[int, list[str]] = {}
    for name, field in fields.items():
        properties = field.get("items", field).get("properties")
        if properties is not None:
            groups.setdefault(id(properties), []).append(name)
    return list(groups.values())


def _field(name: str, schema: Schema, required: bool) -> tuple[str, str, str]:
    default = schema.get("default")
    notes = [
        "Required." if required else "",
        f"Default: `{_show(default)}`." if default not in (None, "") else "",
        _limits(schema),
    ]
    meaning = " ".join(filter(None, [schema.get("description", ""), *notes]))
    return f"`{name}`", _type(schema), meaning


def _type(schema: Schema) -> str:
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map to {_type(schema['additionalProperties'])}"
    return str(schema["type"])


def _limits(schema: Schema) -> str:
    within = schema.get("items") or schema.get("additionalProperties")
    found = [_LIMITS[key](schema[key]) for key in _LIMITS if key in schema]
    if within is not None and "properties" not in within:
        limits = (_LIMITS[key](within[key]) for key in _LIMITS if key in within)
        found += [f"each {text}" for text in limits if text]
    found = [text for text in found if text]
    return f"{found[0][0].upper()}{', '.join(found)[1:]}." if found else ""


def _show(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _validation_rules(path: str, schema: Schema) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"`{(path + rule.get('fieldPath', '')).lstrip('.')}`", rule["message"]
    for name, field in schema.get("properties", {}).items():
        yield from _validation_rules(f"{path}.{name}", field)
    if "items" in schema:
        yield from _validation_rules(f"{path}[]", schema["items"])


def _column(column: Schema) -> tuple[str, str, str]:
    wide = "`-o wide`" if column.get("priority", 0) else ""
    return column["name"], wide, column["description"]


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    return render_table(head, ((cell.replace("|", r"\|") for cell in row) for row in rows))
