"""The tables of `infra/terraform/README.md`: the inputs of variables.tf, the outputs of outputs.tf."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import hcl2
from hcl2.utils import SerializationOptions

from tools.pages.markdown import ROOT, render_table

MODULE = ROOT / "infra" / "terraform"
_OPTIONS = SerializationOptions(
    with_comments=False, explicit_blocks=False, strip_string_quotes=True
)


def render() -> dict[str, str]:
    """Render both tables, with headings."""
    inputs = [
        (f"`{name}`", _type(body), _default(body), body["description"])
        for name, body in _named("variables.tf", "variable")
    ]
    outputs = [(f"`{name}`", body["description"]) for name, body in _named("outputs.tf", "output")]
    tables = (
        "## Inputs\n\n"
        + render_table(("Name", "Type", "Default", "Meaning"), inputs)
        + "\n## Outputs\n\n"
        + render_table(("Name", "Meaning"), outputs)
    )
    return {"inputs and outputs": tables}


def _named(file: str, kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    with (MODULE / file).open() as text:
        document = hcl2.load(text, serialization_options=_OPTIONS)
    return [(name, body) for entry in document[kind] for name, body in entry.items()]


def _type(body: Mapping[str, Any]) -> str:
    """Render the type, without the attributes of an object, which the description explains."""
    written = str(body["type"]).removeprefix("${").removesuffix("}")
    before, is_object, _ = written.partition("object(")
    return f"{before}object{')' * before.count('(')}" if is_object else written


def _default(body: Mapping[str, Any]) -> str:
    return f"`{json.dumps(body['default'])}`" if "default" in body else "required"
