"""Reading of JSON documents of any shape: a field that is absent or of another type reads as empty."""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Document = Mapping[str, Any]
MAX_DEPTH = 64
"""Parts that are nested deeper are dropped from a document that is nested too deeply to be parsed."""
_TAG_ERRORS = (LookupError, AttributeError)
"""What PyYAML raises for a value that does not have the type of its tag: ``!!bool x``."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def parse_json(text: bytes, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Parse JSON of any depth. Raises `ValueError` for invalid JSON.

    API servers store some parts as they are, such as those of managedFields, to a depth of 10,000.
    """
    try:
        return json.loads(text, object_hook=object_hook)
    except RecursionError:
        return json.loads(_cut(text), object_hook=object_hook)


def parse_yaml(text: str) -> Any:
    """Parse a document of YAML as `parse_yaml_documents` does. Raises `ValueError`, also for several."""
    documents = parse_yaml_documents(text)
    if len(documents) > 1:
        raise ValueError(f"expected one document, and found {len(documents)}")
    return documents[0] if documents else None


def parse_yaml_documents(text: str) -> list[Any]:
    """Parse YAML through JSON, as kubectl does: keys that YAML parses as numbers become text, and a time
    is the text that is written. Raises `ValueError`."""
    import yaml

    try:
        documents: list[Any] = json.loads(json.dumps(list(yaml.load_all(text, _yaml_loader()))))
        return documents
    except (yaml.YAMLError, *_TAG_ERRORS, ValueError, TypeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error


@functools.cache
def _yaml_loader() -> type[Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads times as text."""

    def read_time(loader: Loader, node: yaml.ScalarNode) -> str:
        return str(loader.construct_scalar(node))

    Loader.add_constructor("tag:yaml.org,2002:timestamp", read_time)
    return Loader


def _cut(text: bytes) -> bytes:
    """JSON with ``null`` in the place of each part that is nested deeper than `MAX_DEPTH`."""
    parts: list[bytes] = []
    depth, kept_from = 0, 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in b"[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                parts += [text[kept_from : match.start()], b"null"]
        elif token in b"]}":
            depth -= 1
            if depth == MAX_DEPTH:
                kept_from = match.end()
    if depth <= MAX_DEPTH:
        parts.append(text[kept_from:])
    return b"".join(parts)


def read_mapping(holder: Document, key: str) -> Document:
    """The mapping in a field."""
    value = holder.get(key)
    return value if isinstance(value, Mapping) else {}


def read_list(holder: Document, key: str) -> list[Any]:
    """The list in a field."""
    value = holder.get(key)
    return value if isinstance(value, list) else []


def read_mappings(holder: Document, key: str) -> Iterator[Document]:
    """The mappings among the items of a list."""
    return (one for one in read_list(holder, key) if isinstance(one, Mapping))


def read_text(holder: Document, key: str) -> str:
    """The text in a field."""
    value = holder.get(key)
    return value if isinstance(value, str) else ""


def read_texts(holder: Document, key: str) -> dict[str, str]:
    """The entries of a mapping whose values are text, such as labels."""
    return {name: one for name, one in read_mapping(holder, key).items() if isinstance(one, str)}


def find_condition(status: Document, kind: str) -> Document:
    """The condition of this type in a status; empty if there is none."""
    return next((one for one in read_mappings(status, "conditions") if one.get("type") == kind), {})


def read_number(holder: Document, key: str) -> int:
    """The whole number in a field."""
    value = holder.get(key)
    return value if isinstance(value, int) else 0


def without_empty(document: Document) -> dict[str, Any]:
    """The fields that have a value: no empty text, mapping or list, no zero, no ``null``."""
    return {key: value for key, value in document.items() if value}
