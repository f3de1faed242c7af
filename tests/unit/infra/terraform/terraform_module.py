"""The Terraform module as data: its blocks, their references, and the schemas of the providers.

No expression is evaluated here; Terraform does this (`tests/terraform`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hcl2
import yaml
from hcl2.utils import SerializationOptions

ROOT = Path(__file__).parents[4]
MODULE = ROOT / "infra" / "terraform"
SCHEMAS = ROOT / "tests" / "data" / "terraform" / "provider-schema.json"
"""Resources that the module uses, of the providers' versions in `tests.terraform.workspace`, in the form
of ``terraform providers schema -json``, whose output can replace it. It was written manually from the
providers' documentation and source: only ``project`` and the arguments whose source was read have
``computed``."""

_OPTIONS = SerializationOptions(with_comments=False, strip_string_quotes=True)
_META = frozenset({"for_each", "count", "depends_on", "lifecycle", "dynamic", "__is_block__"})
_REFERENCE = re.compile(
    r"(?<![\w.])(?:(var|local)\.(\w+)|(data\.)?((?:google|archive|time|terraform)_\w+)\.(\w+)(?:\[[^]]*])?(?:\.(\w+))?)"
)

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Block:
    """A resource or a data source."""

    mode: str
    """``resource`` or ``data``."""
    type: str
    name: str
    body: Body

    @property
    def address(self) -> str:
        """The address as Terraform writes it, without an instance's key."""
        prefix = "data." if self.mode == "data" else ""
        return f"{prefix}{self.type}.{self.name}"


@dataclass(frozen=True)
class Module:
    """All files of one folder."""

    variables: Mapping[str, Body]
    outputs: Mapping[str, Body]
    locals: Mapping[str, Any]
    blocks: Mapping[str, Block]
    calls: Mapping[str, Body]
    """The modules that it uses."""

    def __getitem__(self, address: str) -> Body:
        return self.blocks[address].body

    def of_type(self, kind: str) -> list[Block]:
        """The resources of a type."""
        return [block for block in self.blocks.values() if block.type == kind]

    def references(self) -> Iterator[tuple[str, str]]:
        """Yield each referenced address with the referenced attribute or ``""``."""
        bodies = (block.body for block in self.blocks.values())
        everything = (*bodies, self.locals, self.outputs, self.variables, self.calls)
        for text in _texts(everything):
            for kind, name, data, owner, block, attribute in _REFERENCE.findall(text):
                if kind:
                    yield f"{kind}.{name}", ""
                else:
                    yield f"{data}{owner}.{block}", attribute


def read(folder: Path = MODULE) -> Module:
    """The module in a folder."""
    documents = [_parse(path) for path in sorted(folder.glob("*.tf"))]
    blocks = [
        Block(mode, kind, name, body)
        for mode in ("resource", "data")
        for document in documents
        for entry in document.get(mode, ())
        for kind, named in entry.items()
        for name, body in named.items()
    ]
    return Module(
        variables=_named(documents, "variable"),
        outputs=_named(documents, "output"),
        locals={
            name: value
            for document in documents
            for entry in document.get("locals", ())
            for name, value in entry.items()
            if name != "__is_block__"
        },
        blocks={block.address: block for block in blocks},
        calls=_named(documents, "module"),
    )


def read_settings(path: Path) -> dict[str, Any]:
    """The values of a ``.tfvars`` file."""
    return _parse(path)


def read_permissions() -> dict[str, Any]:
    """Return the permissions of each identity, by scope, with their reasons."""
    permissions: dict[str, Any] = yaml.safe_load((MODULE / "permissions.yaml").read_text())
    return permissions


def read_schemas() -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the schemas of the providers, by ``resource`` or ``data`` and type."""
    providers = json.loads(SCHEMAS.read_text())["provider_schemas"].values()
    return {
        (mode, name): schema["block"]
        for provider in providers
        for mode, key in (("resource", "resource_schemas"), ("data", "data_source_schemas"))
        for name, schema in provider[key].items()
    }


def list_errors(body: Body, schema: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yield the arguments of a block that its provider does not know or that are missing."""
    attributes, nested = schema["attributes"], schema.get("block_types", {})
    dynamic = {
        name: entry["content"] for each in body.get("dynamic", ()) for name, entry in each.items()
    }
    given = {**{key: value for key, value in body.items() if key not in _META}, **dynamic}
    for name, value in given.items():
        if name in nested:
            if len(value) > nested[name].get("max_items", len(value)):
                yield f"{at}{name}: too many"
            for inner in value:
                yield from list_errors(inner, nested[name]["block"], f"{at}{name}.")
        elif name not in attributes:
            yield f"{at}{name}: not known"
        elif not {"required", "optional"} & attributes[name].keys():
            yield f"{at}{name}: cannot be set"
    for name, entry in attributes.items():
        if entry.get("required") and name not in given:
            yield f"{at}{name}: missing"
    for name, entry in nested.items():
        if entry.get("min_items") and name not in given:
            yield f"{at}{name}: missing"


def _parse(path: Path) -> dict[str, Any]:
    with path.open() as file:
        document: dict[str, Any] = hcl2.load(file, serialization_options=_OPTIONS)
    return document


def _named(documents: list[dict[str, Any]], kind: str) -> dict[str, Body]:
    return {
        name: body
        for document in documents
        for entry in document.get(kind, ())
        for name, body in entry.items()
    }


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
