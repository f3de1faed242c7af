"""Generates ``fields.json`` from the client library, and two parts of the reference page.

Run ``python -m local.gce.generate`` after an update of google-cloud-compute and after a change of
the faults or the catalogue; a test fails otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from local.base.controls import Fault, describe_fault
from local.gce.refusals import CATALOGUE, Refusal
from local.gce.simulator import FAULTS

BODIES = (
    "Instance",
    "InstanceGroupManager",
    "InstanceGroupManagerResizeRequest",
    "InstanceGroupManagersDeleteInstancesRequest",
    "InstanceGroupManagersRecreateInstancesRequest",
    "InstanceTemplate",
    "Metadata",
    "ResourcePolicy",
)
FIELDS = Path(__file__).with_name("fields.json")
PAGE = Path(__file__).parents[1] / "docs" / "simulated-compute-engine.md"

_SCALARS = {
    1: "number", 2: "number", 3: "int64", 4: "int64", 5: "int32", 8: "bool", 9: "string",
    13: "int32",
}  # fmt: skip
_MORE_WORDS = re.compile(r"technical\s+reasons:(.*?)Values:", re.DOTALL)
"""Some enums are incomplete in the library; their docstrings list the other values."""


def render_fields() -> str:
    """The types of all fields of all request bodies, as JSON."""
    from google.cloud import compute_v1  # costs a second and is needed here only

    shapes: dict[str, dict[str, str]] = {}
    waiting = list(BODIES)
    while waiting:
        name = waiting.pop()
        if name not in shapes:
            shapes[name] = dict(_fields(getattr(compute_v1, name)))
            kinds = (kind.lstrip("[]{}") for kind in shapes[name].values())
            waiting += [kind for kind in kinds if kind[0].isupper()]
    return json.dumps(shapes, indent=1, sort_keys=True) + "\n"


def _fields(message: Any) -> Iterator[tuple[str, str]]:
    for field in message.pb().DESCRIPTOR.fields:
        nested = field.message_type
        if nested is not None and nested.GetOptions().map_entry:
            yield field.json_name, "{}" + _kind(message, nested.fields_by_name["value"])
        else:
            prefix = "[]" if field.is_repeated else ""
            yield field.json_name, prefix + _kind(message, field)


def _kind(message: Any, field: Any) -> str:
    if field.message_type is not None:
        return str(field.message_type.name)
    words = getattr(message, field.json_name[0].upper() + field.json_name[1:], None)
    if field.type != 9 or words is None:
        return _SCALARS[field.type]
    more = _MORE_WORDS.search(words.__doc__ or "")
    listed = {word.name for word in words if not word.name.startswith("UNDEFINED_")}
    return "enum:" + "|".join(sorted(listed | set(more.group(1).split() if more else ())))


def render_refusals(catalogue: Mapping[str, Refusal]) -> str:
    """Render a catalogue as a Markdown table."""
    head = "| call | when | where | HTTP | reason or code | message | how sure |\n"
    return head + "|---|---|---|---|---|---|---|\n" + "".join(map(_row, catalogue.values()))


def _row(refusal: Refusal) -> str:
    words = [word for word in (refusal.reason, refusal.code) if word]
    message = refusal.message.replace("{{", "{").replace("}}", "}").replace("|", "\\|")
    cells = (
        refusal.call, refusal.when, ", ".join(refusal.where), str(refusal.http),
        " / ".join(f"`{word}`" for word in words), f"`{message}`", refusal.sure,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def render_faults(faults: Mapping[str, Fault]) -> str:
    """Render faults as a Markdown list."""
    return "".join(f"- `{name}` {describe_fault(fault)}\n" for name, fault in faults.items())


def with_tables(page: str, faults: Mapping[str, Fault], catalogue: Mapping[str, Refusal]) -> str:
    """A simulator's reference page with its generated parts replaced."""
    tables = {"faults": render_faults(faults), "refusals": render_refusals(catalogue)}
    for name, table in tables.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    FIELDS.write_text(render_fields())
    PAGE.write_text(with_tables(PAGE.read_text(), FAULTS, CATALOGUE))
