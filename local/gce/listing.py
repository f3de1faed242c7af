"""Filters and pages of lists."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from local.gce import links
from local.gce.calls import Call
from local.gce.refusals import BAD_FILTER, BAD_PAGE_TOKEN, BAD_VALUE
from local.gce.schema import Document

Test = Callable[[Document], bool]

_MAX_PAGE = 500
_LABELLED = frozenset({"instances"})
"""Collections whose resources have labels; for others, a filter by labels is an error."""
_LABELS = re.compile(r"(?<![\w.])labels\b")
_REGULAR = re.compile(r"\s(eq|ne)\s")
_COMPARISON = re.compile(
    r'\s*([A-Za-z][\w.\-/]*)\s*(?:(!=|=|:)|\s(eq|ne)\s)\s*("[^"]*"|[^\s()"]+)\s*'
)


def answer_list(call: Call, kind: str, documents: Iterable[Document]) -> Document:
    """The response to a list call: one page of the matches."""
    page, token = paginate(call, matching(call, documents))
    answer: Document = {
        "kind": kind,
        "id": call.collection,
        "selfLink": links.url(call.collection),
    }
    if page:
        answer["items"] = page
    if token:
        answer["nextPageToken"] = token
    return answer


def answer_aggregated(
    call: Call, kind: str, documents: Iterable[Document], unreachable: Iterable[str] = ()
) -> Document:
    """The answer to an aggregated list: one page of all, by zone or region, or as ``global``.

    Each page has a warning about each scope that is unreachable, and none of its resources. The code and
    the key ``scope`` are in the API's reference; the text is a guess. Scopes without resources are
    omitted; the real service lists each with the warning NO_RESULTS_ON_PAGE.
    """
    scopes: dict[str, Document] = {
        scope: {
            "warning": {
                "code": "UNREACHABLE",
                "message": f"The scope '{scope}' cannot be reached.",
                "data": [{"key": "scope", "value": scope}],
            }
        }
        for scope in sorted(unreachable)
    }
    hidden = tuple(f"/projects/{call.project}/{scope}/" for scope in scopes)
    found = [one for one in documents if not any(scope in one["selfLink"] for scope in hidden)]
    page, token = paginate(call, matching(call, found))
    for document in page:
        scope = document["selfLink"].partition(f"/projects/{call.project}/")[2]
        scope = scope.partition(f"/{call.route.collection}/")[0]
        scopes.setdefault(scope, {call.route.collection: []})[call.route.collection].append(
            document
        )
    answer: Document = {
        "kind": kind,
        "id": call.collection,
        "items": scopes,
        "selfLink": links.url(call.collection),
    }
    if token:
        answer["nextPageToken"] = token
    return answer


def matching(call: Call, documents: Iterable[Document]) -> list[Document]:
    """The documents that match the call's ``filter``. Raises `Refused` for an invalid filter."""
    text = call.request.argument("filter")
    if call.route.collection not in _LABELLED and _LABELS.search(text):
        raise BAD_FILTER.refused(value=text)
    tests = parse_filter(text) if text else ()
    return [document for document in documents if all(test(document) for test in tests)]


def paginate(call: Call, documents: Sequence[Document]) -> tuple[list[Document], str]:
    """One page, and the token of the next page, empty at the end."""
    size = call.integer("maxResults", _MAX_PAGE)
    if not 0 <= size <= _MAX_PAGE:
        raise BAD_VALUE.refused(
            field="maxResults", value=size, why="Values must be within the range: [0, 500]"
        )
    size = size or _MAX_PAGE
    start = _offset(call.request.argument("pageToken"))
    end = start + size
    token = base64.urlsafe_b64encode(b"page:%d" % end).decode() if end < len(documents) else ""
    return list(documents[start:end]), token


def _offset(token: str) -> int:
    if not token:
        return 0
    try:
        word, _, offset = base64.urlsafe_b64decode(token).decode().partition(":")
    except ValueError:
        word, offset = "", ""
    if word != "page" or not offset.isdecimal():
        raise BAD_PAGE_TOKEN.refused(value=token)
    return int(offset)


def parse_filter(text: str) -> tuple[Test, ...]:
    """Parse a filter into tests that must all be true.

    Supported are comparisons with ``=``, ``!=``, ``:`` (has), ``eq`` and ``ne`` (regular expressions),
    with or without parentheses, joined by AND or by spaces. ``eq`` and ``ne`` cannot be mixed with the
    others. Raises `Refused` for other filters.
    """
    clauses = re.split(r"\s+AND\s+|\)\s*\(", text.strip())
    if len({bool(_REGULAR.search(clause)) for clause in clauses}) > 1:
        raise BAD_FILTER.refused(value=text)
    return tuple(_parse_comparison(clause.strip("() "), text) for clause in clauses)


def _parse_comparison(clause: str, text: str) -> Test:
    match = _COMPARISON.fullmatch(clause)
    if match is None:
        raise BAD_FILTER.refused(value=text)
    field, operator, word, value = match.groups()
    return _test(field.split("."), operator or word, value.strip('"'), text)


def _test(path: list[str], operator: str, value: str, text: str) -> Test:
    if operator in ("eq", "ne"):
        try:
            expression = re.compile(value)
        except re.error as error:
            raise BAD_FILTER.refused(value=text) from error
        wanted = operator == "eq"
        return lambda document: bool(expression.fullmatch(_field(document, path))) is wanted
    if operator == ":":
        return lambda document: _has(document, path, value)
    wanted = operator == "="
    return lambda document: (_field(document, path) == value) is wanted


def _has(document: Document, path: list[str], value: str) -> bool:
    found = _field(document, path)
    return bool(found) if value == "*" else value in found


def _field(document: Document, path: list[str]) -> str:
    value: Any = document
    for part in path:
        value = value.get(part, "") if isinstance(value, dict) else ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
