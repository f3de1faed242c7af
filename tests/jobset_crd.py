"""JobSet's CustomResourceDefinition, as ``tests/data/jobset`` has it.

``python -m tests.jobset_crd FILE`` takes another release's (README there).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

PATH = Path(__file__).parent / "data" / "jobset" / "crd.yaml"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""A long file: the loader in C takes a tenth of the time."""


def read_crd() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    return dict(yaml.load(PATH.read_text(), _LOADER))


def without_descriptions(schema: Any, *, is_map_of_fields: bool = False) -> Any:
    """A schema without what explains it to a person; a field called ``description`` stays."""
    if isinstance(schema, list):
        return [without_descriptions(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_descriptions(value, is_map_of_fields=key == "properties")
        for key, value in schema.items()
        if is_map_of_fields or key != "description"
    }


if __name__ == "__main__":
    original = yaml.load(Path(sys.argv[1]).read_text(), _LOADER)
    trimmed = without_descriptions(original)
    PATH.write_text(yaml.safe_dump(trimmed, sort_keys=False, width=100))
