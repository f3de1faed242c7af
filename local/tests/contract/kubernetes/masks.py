"""What may differ between two servers that give the same answer: identities, versions, times, and
the order of what has none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from local.tests.contract.kubernetes.dialogue import Answer

_TEXTS = (
    (re.compile(r'(?<=Invalid value: )"\{\\".*\}"(?=: )', re.DOTALL), "<object>"),
    (re.compile(r"-----BEGIN CERTIFICATE-----.*-----END CERTIFICATE-----\s", re.DOTALL), "<pem>"),
    (re.compile(r"eyJ[\w-]+\.\.[\w-]+"), "<signature>"),
    (re.compile(r"MjAyN[\w+/]{22}="), "<time in base64>"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uid>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r"(?<=made-)[a-z0-9]{5}"), "<generated>"),
    (re.compile(r"(?<=ersion: \d \()\d+"), "<version>"),
    (re.compile(r"(?<=current: )\d+"), "<version>"),
    (re.compile(r"(?<=the precondition \()\d+"), "<version>"),
    (re.compile(r"(?<=in record \()\d+"), "<version>"),
    (re.compile(r"(?<=\?hash=)[0-9A-F]+"), "<hash>"),
)
_BUILD = frozenset({"gitCommit", "gitVersion", "goVersion", "buildDate", "compiler", "platform"})
_FIELDS = {
    "resourceVersion": "<version>",
    "continue": "<token>",
    "serverAddress": "<address>",
    "kubeconfig": "<kubeconfig>",
    "certificate": "<certificate>",
}
_OF_NODE_CONTROLLERS = "node.alpha.kubernetes.io/ttl"
"""An annotation that comes to a Node when its controller finds the time."""


def mask(value: Any, name: str = "") -> Any:
    """A document, or what stands under ``name`` in one, without what chance and time put there."""
    if isinstance(value, Mapping):
        kind = value.get("kind", "" if set(value) == {"paths"} else None)
        reshape = _RESHAPE.get(kind) if isinstance(kind, str) else None
        if reshape is not None:
            value = reshape(value)
        masked = {mask(key): mask(item, key) for key, item in _settled(value).items()}
        return Served(masked) if isinstance(value, Served) else masked
    if isinstance(value, list):
        return [mask(item) for item in value]
    if not isinstance(value, str):
        return value
    if name in _BUILD:
        return "<build>"
    if name in _FIELDS and value:
        return _FIELDS[name]
    for pattern, shown in _TEXTS:
        value = pattern.sub(shown, value)
    return value


def _settled(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without managedFields, which only a real server keeps, and what a Node's controllers add at
    their own time."""
    document = {key: value for key, value in document.items() if key != "managedFields"}
    annotations = document.get("annotations")
    if not isinstance(annotations, Mapping) or _OF_NODE_CONTROLLERS not in annotations:
        return document
    kept = {key: value for key, value in annotations.items() if key != _OF_NODE_CONTROLLERS}
    rest = {key: value for key, value in document.items() if key != "annotations"}
    return {**rest, "annotations": kept} if kept else rest


_AGE = re.compile(r"(\d+[smhdy]){1,2}")


def _mask_ages(table: Mapping[str, Any]) -> Mapping[str, Any]:
    rows = [
        {
            **row,
            "cells": [
                "<age>" if isinstance(cell, str) and _AGE.fullmatch(cell) else cell
                for cell in row["cells"]
            ],
        }
        for row in table["rows"]
    ]
    return {**table, "rows": rows}


def _sort_causes(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Causes come in no order, and some of them two or three times."""
    causes = (status.get("details") or {}).get("causes")
    if not causes:
        return status
    rendered = sorted({json.dumps(cause, sort_keys=True) for cause in causes})
    distinct = [json.loads(cause) for cause in rendered]
    message = status["message"]
    joined = [f"{one.get('field')}: {one['message']}" for one in distinct]
    head, bracket, rest = message.partition("[")
    if bracket and len(rest) == len(", ".join(joined)) + 1 and all(one in rest for one in joined):
        message = f"{head}[{', '.join(joined)}]"
    return {**status, "message": message, "details": {**status["details"], "causes": distinct}}


class Served(dict[str, Any]):
    """What discovery lists, by its names: in no order, and a server may list more than another."""


def _by_name(documents: Sequence[Mapping[str, Any]], key: str) -> Served:
    return Served({document[key]: document for document in documents})


def _reshape_groups(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"groups": _by_name(document["groups"], "name")}


def _reshape_resources(document: Mapping[str, Any]) -> Mapping[str, Any]:
    rest = {name: value for name, value in document.items() if name != "kind"}
    return {**rest, "resources": _by_name(document["resources"], "name")}


def _reshape_aggregated(document: Mapping[str, Any]) -> Mapping[str, Any]:
    groups = [
        {
            "name": group["metadata"].get("name", ""),
            "versions": [
                {**version, "resources": _by_name(_with_subresources(version), "resource")}
                for version in group["versions"]
            ],
        }
        for group in document["items"]
    ]
    return {"apiVersion": document["apiVersion"], "groups": _by_name(groups, "name")}


def _with_subresources(version: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {**one, "subresources": _by_name(one.get("subresources", ()), "subresource")}
        for one in version["resources"]
    ]


def _reshape_index(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return Served(document["paths"])


_RESHAPE: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "Table": _mask_ages,
    "Status": _sort_causes,
    "APIGroupList": _reshape_groups,
    "APIResourceList": _reshape_resources,
    "APIGroupDiscoveryList": _reshape_aggregated,
    "": _reshape_index,
}


def read(answer: Answer) -> dict[str, Any]:
    """All of an answer that two servers should have in common."""
    return {
        "status": answer.status,
        "type": answer.headers.get("content-type", ""),
        "warning": answer.headers.get("warning", ""),
        "body": mask(_decode(answer.body)),
    }


def _decode(body: bytes) -> Any:
    """A document, or the events of a watch, or text."""
    try:
        return json.loads(body)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in body.splitlines()]
    except ValueError:
        return body.decode(errors="replace")


def differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The paths at which a real server's masked value and the embedded one's differ, with what
    stands there (`...` for nothing). What only the real one serves is no difference."""
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
