"""Request and response bodies, parsed strictly with Google's own message types.

Internally, a document is the API's JSON with the names of enums. A client may send numbers, and may
request numbers in responses (``$alt=json;enum-encoding=int``).
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from local.base.http import Request
from local.gke.refusals import UNKNOWN_FIELD, WRONG_VALUE

Document = dict[str, Any]

_NO_FIELD = re.compile(r'has no field named "(?P<name>[^"]+)"(?: at "\w+\.?(?P<path>[^"]*)")?')
_WHERE = re.compile(r"Failed to (?:parse \w+ field|load JSON): ")


def parse(raw: bytes, message: str) -> Document:
    """Parse a body as the message of that name. Raises `local.gce.refusals.Refused`."""
    from google.protobuf import json_format

    try:
        parsed = json_format.Parse(raw or b"{}", _type_of(message)())
    except (json_format.ParseError, UnicodeDecodeError) as error:
        found = _NO_FIELD.search(str(error))
        if found:
            path = re.sub(r"(?<!^)(?=[A-Z])", "_", found["path"] or "").lower()
            raise UNKNOWN_FIELD.refused(name=found["name"], path=path) from error
        why = _WHERE.sub("", str(error).split("\n")[0]).rstrip(".")
        raise WRONG_VALUE.refused(why=f"{why}.") from error
    document: Document = json_format.MessageToDict(parsed)
    return document


def wants_numbers(request: Request) -> bool:
    """Whether a client requests the numbers of enums."""
    return "enum-encoding=int" in request.argument("$alt")


def numbered(document: Document, message: str) -> Document:
    """The document with numbers of enums instead of names."""
    from google.protobuf import json_format

    parsed = json_format.ParseDict(document, _type_of(message)(), ignore_unknown_fields=True)
    found: Document = json_format.MessageToDict(parsed, use_integers_for_enums=True)
    return found


@cache
def _type_of(message: str) -> Any:
    from google.cloud.container_v1 import types  # costs 0.25 s, at the first request only

    return getattr(types, message).pb()


def copy(document: Document) -> Document:
    """A deep copy."""
    copied: Document = json.loads(json.dumps(document))
    return copied
