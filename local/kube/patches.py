"""Applies PATCH bodies: JSON patch, merge patch and strategic merge patch.

All three are functions of two documents and change neither.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import jsonpatch

from local.kube import errors
from local.kube.kinds import Document
from local.kube.schema import Schema

_DIRECTIVE = "$patch"
_ORDER = "$setElementOrder/"
_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
_RETAIN = "$retainKeys"
_UNKNOWN = Schema({})
"""The schema of a field that no schema describes."""


def json_patch(document: Document, operations: Any) -> Document:
    """Apply a patch of RFC 6902. Raises 400 for an invalid patch, 422 if it cannot be applied."""
    if not isinstance(operations, list) or not all(isinstance(one, dict) for one in operations):
        raise errors.bad_request("a JSON patch must be a list of operations")
    try:
        patched: Document = jsonpatch.apply_patch(document, copy.deepcopy(operations))
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise errors.unprocessable() from error
    return patched


def merge_patch(document: Any, patch: Any) -> Any:
    """Apply a patch of RFC 7386: ``null`` deletes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def strategic_merge(document: Any, patch: Any, schema: Schema) -> Any:
    """Apply Kubernetes' strategic merge patch: like `merge_patch`, but some lists are merged.

    ``schema`` has their merge keys (``x-kubernetes-patch-merge-key``).
    """
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    directive = patch.get(_DIRECTIVE)
    if directive == "delete":
        return {}
    plain = {name: value for name, value in patch.items() if not name.startswith("$")}
    if directive == "replace":
        return copy.deepcopy(plain)
    merged = _retain(document if isinstance(document, dict) else {}, patch.get(_RETAIN))
    for name, gone in _directed(patch, _DELETE_PRIMITIVES).items():
        merged[name] = [item for item in _list_at(merged, name) if item not in gone]
    for name, value in plain.items():
        child = _child(schema, name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, list) and _merges(child):
            merged[name] = _merge_list(_list_at(merged, name), value, child)
        else:
            merged[name] = strategic_merge(merged.get(name), value, child)
    _order_lists(merged, patch, schema)
    return merged


def _list_at(document: Document, name: str) -> list[Any]:
    found = document.get(name)
    return found if isinstance(found, list) else []


def _retain(document: Document, names: Any) -> Document:
    if names is None:
        return dict(document)
    if not isinstance(names, list):
        raise errors.bad_request(f"{_RETAIN} must be a list of names")
    return {name: value for name, value in document.items() if name in names}


def _directed(patch: Mapping[str, Any], prefix: str) -> dict[str, list[Any]]:
    directed = {
        name.removeprefix(prefix): value for name, value in patch.items() if name.startswith(prefix)
    }
    for name, value in directed.items():
        if not isinstance(value, list):
            raise errors.bad_request(f"{prefix}{name} must be a list")
    return directed


def _child(schema: Schema, name: str) -> Schema:
    return schema.properties.get(name, schema.additional) or _UNKNOWN


def _merges(schema: Schema) -> bool:
    return schema.source.get("x-kubernetes-patch-strategy") == "merge"


def _merge_key(schema: Schema) -> str:
    return str(schema.source.get("x-kubernetes-patch-merge-key", ""))


def _merge_list(present: list[Any], patch: list[Any], schema: Schema) -> list[Any]:
    key = _merge_key(schema)
    if not key:
        return present + [item for item in patch if item not in present]
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
        return [copy.deepcopy(item) for item in patch if item != {_DIRECTIVE: "replace"}]
    merged = list(present)
    for item in patch:
        _merge_item(merged, item, key, schema.items or _UNKNOWN)
    return merged


def _merge_item(merged: list[Any], item: Any, key: str, schema: Schema) -> None:
    if not isinstance(item, dict) or key not in item:
        raise errors.bad_request(f"map: {item} does not contain declared merge key: {key}")
    at = next((i for i, one in enumerate(merged) if one.get(key) == item[key]), None)
    if item.get(_DIRECTIVE) == "delete":
        if at is not None:
            del merged[at]
    elif at is None:
        merged.append(strategic_merge({}, item, schema))
    else:
        merged[at] = strategic_merge(merged[at], item, schema)


def _order_lists(merged: Document, patch: Document, schema: Schema) -> None:
    """Order merged lists as in the patch, followed by the items that it does not have."""
    orders = {
        name: items
        for name, items in patch.items()
        if isinstance(items, list) and _merges(_child(schema, name))
    }
    orders.update(_directed(patch, _ORDER))
    for name, order in orders.items():
        key = _merge_key(_child(schema, name))
        wanted = [_identity(one, key) for one in order]
        if name in merged:
            merged[name] = sorted(
                _list_at(merged, name),
                key=lambda item, known=wanted, by=key: (  # type: ignore[misc]
                    known.index(_identity(item, by)) if _identity(item, by) in known else len(known)
                ),
            )


def _identity(item: Any, key: str) -> Any:
    return item.get(key) if key and isinstance(item, dict) else item
