"""Mutating admission: a review in, a review out. What is to be changed, each mutation decides.

A `Mutation` is pure: what a review says is all that is known, nothing is looked up or remembered. So a
dry run is like any other, and the answer to the same review is the same.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 7 * 1024 * 1024
"""An object and the one before it, each of at most 3 MiB, as the API server takes them."""
API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
OUTCOMES = ("patched", "unchanged", "warned", "refused")
_MAX_WARNING = 256
"""The API server cuts longer warnings."""
_UNREADABLE = (
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a list in the place of an object, an infinite number and the like raise."""

Object = Mapping[str, Any]
Operation = dict[str, Any]
"""Of a JSON Patch (RFC 6902)."""


class NoReviewError(ValueError):
    """The request is no admission review of an API server; the message says what would be one."""


@dataclass(frozen=True)
class AdmissionRequest:
    """What an API server asks about. ``target`` is the object, empty where there is none."""

    uid: str
    operation: str
    target: Object
    namespace: str = ""
    sub_resource: str = ""


@dataclass(frozen=True)
class AdmissionResponse:
    """What a mutation makes of a request. With a ``refusal`` nothing else counts."""

    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`: what is most worth knowing of it."""
        if self.refusal:
            return "refused"
        if self.warnings:
            return "warned"
        return "patched" if self.patch else "unchanged"


Mutation = Callable[[AdmissionRequest], AdmissionResponse]


@dataclass(frozen=True)
class Reviewed:
    """An AdmissionReview's request, what was decided, and the AdmissionReview to send back."""

    request: AdmissionRequest
    answer: AdmissionResponse
    document: Object


def review(body: bytes, mutate: Mutation) -> Reviewed:
    """Have a mutation decide about an AdmissionReview. Raises `NoReviewError`."""
    version, request = _decode(body)
    try:
        answer = mutate(request)
        response = {"uid": request.uid, **_render(answer)}
    except _UNREADABLE as error:
        kind = request.target.get("kind") or "object"
        raise NoReviewError(f"the {kind} is not formed as an API server sends it") from error
    return Reviewed(
        request, answer, {"apiVersion": version, "kind": "AdmissionReview", "response": response}
    )


def _decode(body: bytes) -> tuple[str, AdmissionRequest]:
    try:
        document = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise NoReviewError(f"the body is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview":
        raise NoReviewError("the body is no AdmissionReview")
    version = document.get("apiVersion")
    if version not in API_VERSIONS:
        raise NoReviewError(f"apiVersion is {version!r}; it must be {' or '.join(API_VERSIONS)}")
    request = document.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise NoReviewError("the AdmissionReview has no request with a uid")
    operation = str(request.get("operation") or "")
    return version, AdmissionRequest(
        uid=request["uid"],
        operation=operation,
        target=_read_target(request.get("object"), operation),
        namespace=str(request.get("namespace") or ""),
        sub_resource=str(request.get("subResource") or ""),
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _read_target(target: Any, operation: str) -> Object:
    """The object under review; empty where the operation has none."""
    if target is None and operation not in ("CREATE", "UPDATE"):
        return {}
    if not isinstance(target, dict):
        raise NoReviewError(f"request.object of {operation or 'the review'} is no object")
    if not isinstance(target.get("metadata") or {}, dict):
        raise NoReviewError("request.object.metadata is no object")
    return target


def _render(answer: AdmissionResponse) -> dict[str, Any]:
    if answer.refusal:
        status = {"code": 422, "reason": "Invalid", "message": answer.refusal}
        return {"allowed": False, "status": status}
    response: dict[str, Any] = {"allowed": True}
    if answer.warnings:
        response["warnings"] = [_cut(f"tpu-functions: {one}") for one in answer.warnings]
    if answer.patch:
        raw = json.dumps(answer.patch, separators=(",", ":")).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(raw).decode()}
    return response


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_WARNING else f"{text[: _MAX_WARNING - 3]}..."


def set_keys(
    parent: Object, path: str, name: str, values: Mapping[str, str]
) -> Iterator[Operation]:
    """Write keys of a map such as ``metadata.labels`` that may not be there yet.

    ``path`` is the JSON pointer of the map's ``parent``. No operation for what it says already.
    """
    existing = parent.get(name)
    if not existing:
        yield {"op": "add", "path": f"{path}/{name}", "value": dict(values)}
        return
    for key, value in values.items():
        if existing.get(key) != value:
            yield {"op": "add", "path": f"{path}/{name}/{escape(key)}", "value": value}


def escape(key: str) -> str:
    """A key as a part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
