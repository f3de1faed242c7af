"""Write the tables of README.md: the inputs of variables.tf and the outputs of outputs.tf.

python infra/terraform/render_readme.py           # write the tables
python infra/terraform/render_readme.py --check   # exit 1 if the tables are out of date
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import hcl2
from hcl2.utils import SerializationOptions

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
_OPTIONS = SerializationOptions(
    with_comments=False, explicit_blocks=False, strip_string_quotes=True
)
_TABLES = re.compile(r"(<!-- from variables.tf and outputs.tf -->\n).*(<!-- end -->\n)", re.DOTALL)


def render(readme: str) -> str:
    """Return the page with its tables rendered again."""
    inputs = [
        (f"`{name}`", _type(body), _default(body), body["description"])
        for name, body in _named("variables.tf", "variable")
    ]
    outputs = [(f"`{name}`", body["description"]) for name, body in _named("outputs.tf", "output")]
    tables = (
        "## Inputs\n\n"
        + _table(("Name", "Type", "Default", "Meaning"), inputs)
        + "\n## Outputs\n\n"
        + _table(("Name", "Meaning"), outputs)
    )
    return _TABLES.sub(lambda found: found[1] + tables + found[2], readme)


def _named(file: str, kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    with (HERE / file).open() as text:
        document = hcl2.load(text, serialization_options=_OPTIONS)
    return [(name, body) for entry in document[kind] for name, body in entry.items()]


def _type(body: Mapping[str, Any]) -> str:
    """Render the type, without the attributes of an object, which the description explains."""
    written = str(body["type"]).removeprefix("${").removesuffix("}")
    before, is_object, _ = written.partition("object(")
    return f"{before}object{')' * before.count('(')}" if is_object else written


def _default(body: Mapping[str, Any]) -> str:
    return f"`{json.dumps(body['default'])}`" if "default" in body else "required"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [tuple(head), *map(tuple, rows)]
    lines.insert(1, tuple("---" for _ in lines[0]))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    text = README.read_text()
    if "--check" in sys.argv:
        sys.exit(text != render(text))
    README.write_text(render(text))
