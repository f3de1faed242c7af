"""Mask the values in which equal answers of two servers may differ: identities, versions, times, and the
order of unordered items."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from local.tests.contract.kubernetes.dialogue import Answer

_TEXTS = (
    (re.compile(r"-----BEGIN CERTIFICATE-----.*-----END CERTIFICATE-----\s", re.DOTALL), "<pem>"),
    (re.compile(r"eyJ[\w-]+\.\.[\w-]+"), "<signature>"),
    (re.compile(r"MjAyN[\w+/]{22}="), "<time in base64>"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uid>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r"(?<=made-)[a-z0-9]{5}"), "<generated>"),
    (re.compile(r"(?<=\?hash=)[0-9A-F]+"), "<hash>"),
)
_FIELDS = {
    "resourceVersion": "<version>",
    "continue": "<token>",
    "gitVersion": "<version>",
    "platform": "<platform>",
    "kubeconfig": "<kubeconfig>",
    "certificate": "<certificate>",
    "token": "<token>",
}
_TTL_ANNOTATION = "node.alpha.kubernetes.io/ttl"
"""An annotation that a controller adds to a Node at an unpredictable time."""


def mask(value: Any, name: str = "") -> Any:
    """Mask a document, or the value of the field ``name``, where it depends on chance or time."""
    if isinstance(value, Mapping):
        kind = value.get("kind", "" if set(value) == {"paths"} else None)
        value = Served(value) if "gitVersion" in value else value
        reshape = _RESHAPE.get(kind) if isinstance(kind, str) else None
        if reshape is not None:
            value = reshape(value)
        masked = {mask(key): mask(item, key) for key, item in _stable_fields(value).items()}
        return Served(masked) if isinstance(value, Served) else masked
    if isinstance(value, list):
        return [mask(item) for item in value]
    if not isinstance(value, str):
        return value
    if name in _FIELDS and value:
        return _FIELDS[name]
    for pattern, replacement in _TEXTS:
        value = pattern.sub(replacement, value)
    return value


def _stable_fields(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove managedFields, which only a real server has, and the annotation that a Node's controller
    adds at an unpredictable time."""
    document = {key: value for key, value in document.items() if key != "managedFields"}
    annotations = document.get("annotations")
    if not isinstance(annotations, Mapping) or _TTL_ANNOTATION not in annotations:
        return document
    others = {key: value for key, value in annotations.items() if key != _TTL_ANNOTATION}
    rest = {key: value for key, value in document.items() if key != "annotations"}
    return {**rest, "annotations": others} if others else rest


_AGE = re.compile(r"(\d+[smhdy]){1,2}")


class Served(dict[str, Any]):
    """The items that discovery lists, by name. They have no order, and a server may list more."""


def _by_name(documents: Sequence[Mapping[str, Any]], key: str) -> Served:
    return Served({document[key]: document for document in documents})


def _reshape_groups(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"groups": _by_name(document["groups"], "name")}


def _reshape_resources(document: Mapping[str, Any]) -> Mapping[str, Any]:
    rest = {name: value for name, value in document.items() if name != "kind"}
    resources = [
        Served({name: sorted(value) if name == "verbs" else value for name, value in one.items()})
        for one in document["resources"]
    ]
    return {**rest, "resources": _by_name(resources, "name")}


def _reshape_table(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Map cells by column, and mask ages. Only the first Table of a watch names its columns."""
    columns = [one["name"] for one in table["columnDefinitions"] or ()]
    rows = [
        {**row, "cells": Served(zip(columns, map(_mask_age, row["cells"]), strict=False))}
        for row in table["rows"]
    ]
    return {**table, "columnDefinitions": Served(dict.fromkeys(columns, True)), "rows": rows}


def _mask_age(cell: Any) -> Any:
    return "<age>" if isinstance(cell, str) and _AGE.fullmatch(cell) else cell


def _reshape_review(review: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove the reason, which only a real server gives."""
    return {**review, "status": {"allowed": review["status"]["allowed"]}}


def _reshape_identity(review: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove what only a real server knows about the credentials."""
    user = review["status"]["userInfo"]
    known = {name: value for name, value in user.items() if name != "extra"}
    return {**review, "status": {"userInfo": known}}


def _reshape_token_request(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Mask the audiences, by default the server's issuer."""
    spec = request.get("spec")  # the details of an error have the kind, but no spec
    return {**request, "spec": {**spec, "audiences": "<audiences>"}} if spec else request


def _reshape_status(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in status.items() if name != "message"}


def _reshape_index(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return Served(document["paths"])


_RESHAPE: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "Table": _reshape_table,
    "Status": _reshape_status,
    "SelfSubjectAccessReview": _reshape_review,
    "SelfSubjectReview": _reshape_identity,
    "TokenRequest": _reshape_token_request,
    "APIVersions": Served,
    "APIGroupList": _reshape_groups,
    "APIResourceList": _reshape_resources,
    "": _reshape_index,
}


def read(answer: Answer) -> dict[str, Any]:
    """Return the parts of an answer that two servers must have in common: not an error's message."""
    body = mask(_decode(answer.body))
    if answer.status == 404:  # if the kind is not served, a Status or plain text
        return {"status": 404}
    if answer.status >= 400:
        return {"status": answer.status, "body": _read_error(body)}
    return {
        "status": answer.status,
        "type": answer.headers.get("content-type", ""),
        "warning": answer.headers.get("warning", ""),
        "body": body,
    }


def _read_error(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an error's reason and fields. A real server may report more fields than the embedded one,
    and reports some causes twice."""
    details = body.get("details") or {}
    causes = details.get("causes") or ()
    fields = {f"{one.get('reason', '')} {one.get('field', '')}" for one in causes}
    return {
        "reason": body.get("reason", ""),
        "has fields": bool(fields),
        "fields": Served(dict.fromkeys(fields, True)),
    }


def _decode(body: bytes) -> Any:
    """Decode a document or the events of a watch, or return text."""
    try:
        return json.loads(body)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in body.splitlines()]
    except ValueError:
        return body.decode(errors="replace")


def differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the paths at which a real server's masked value and the embedded one's differ, with both
    values (`...` if absent). An item that only the real server lists is no difference."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        names = set(other) if isinstance(other, Served) else {*one, *other}
        for name in sorted(names):
            at = f"{path}.{name.replace('.', '~')}" if path else name
            yield from differences(one.get(name, ...), other.get(name, ...), at)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, theirs, f"{path}.{index}")
    elif one != other or type(one) is not type(other):
        yield path, one, other
