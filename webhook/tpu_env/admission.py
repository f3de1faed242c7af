"""Mutating admission: parse an AdmissionReview, call a mutation, and render the answer.

A `Mutation` is pure: it knows nothing but the review. So a dry run is like any other review, and the
same review gets the same answer.
"""

import base64
import json
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_BYTES = 7 * 1024 * 1024
"""Two objects, the new and the old one, each with at most 3 MiB, the API server's limit."""
MAX_VALUES = 320_000
"""Each opening bracket and each comma counts as a value, also in strings. To parse as many takes up to
95 MiB and 0.2 s. A large object has one in ten bytes: variables of containers, with managed fields."""
MAX_PATCH_BYTES = 3 * 512 * 1024
"""An API server stores no larger object."""
MAX_UID = 253
API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
OUTCOMES = ("patched", "unchanged", "warned", "refused")
_MAX_WARNING = 256
"""The API server truncates longer warnings."""
_UNREADABLE = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""What malformed documents raise, such as a list in the place of an object."""

Object = Mapping[str, Any]
Operation = dict[str, Any]
"""An operation of a JSON Patch (RFC 6902)."""


class NoReviewError(ValueError):
    """The request is not an AdmissionReview of an API server; the message says what would be valid."""


@dataclass(frozen=True)
class AdmissionRequest:
    """The request of an AdmissionReview. ``target`` is the object, ``old`` the stored one of an UPDATE;
    both are empty if there is none."""

    uid: str
    operation: str
    target: Object
    old: Object = field(default_factory=dict)
    namespace: str = ""
    sub_resource: str = ""


@dataclass(frozen=True)
class AdmissionResponse:
    """The response of a mutation. With a ``refusal`` the other fields have no effect."""

    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`, the most important one."""
        if self.refusal:
            return "refused"
        if self.warnings:
            return "warned"
        return "patched" if self.patch else "unchanged"


Mutation = Callable[[AdmissionRequest], AdmissionResponse]


@dataclass(frozen=True)
class Reviewed:
    """An AdmissionReview's request, the mutation's response, and the AdmissionReview to return."""

    request: AdmissionRequest
    answer: AdmissionResponse
    document: Object


def review(body: bytes, mutate: Mutation) -> Reviewed:
    """Apply a mutation to an AdmissionReview. Raises `NoReviewError`."""
    version, request = _decode(body)
    try:
        answer = mutate(request)
        response = {"uid": request.uid, **_render(answer)}
    except NoReviewError:
        raise
    except _UNREADABLE as error:
        kind = request.target.get("kind") or "object"
        raise NoReviewError(f"the {kind} is malformed") from error
    return Reviewed(
        request, answer, {"apiVersion": version, "kind": "AdmissionReview", "response": response}
    )


def _decode(body: bytes) -> tuple[str, AdmissionRequest]:
    if sum(map(body.count, (b"{", b"[", b","))) > MAX_VALUES:
        raise NoReviewError(f"the body has more than {MAX_VALUES} values")
    try:
        document = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise NoReviewError(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview":
        raise NoReviewError("the body is not an AdmissionReview")
    version = document.get("apiVersion")
    if version not in API_VERSIONS:
        found = reprlib.repr(version)
        raise NoReviewError(f"apiVersion is {found}; it must be {' or '.join(API_VERSIONS)}")
    request = document.get("request")
    uid = request.get("uid") if isinstance(request, dict) else None
    # The answer repeats it.
    if not (isinstance(request, dict) and isinstance(uid, str) and len(uid) <= MAX_UID):
        raise NoReviewError("the AdmissionReview has no request with a uid")
    operation, target = str(request.get("operation") or ""), request.get("object")
    if target is None and operation not in ("CREATE", "UPDATE"):
        target = {}
    if not isinstance(target, dict):
        raise NoReviewError(f"request.object of {operation or 'the review'} is not an object")
    if not isinstance(target.get("metadata") or {}, dict):
        raise NoReviewError("request.object.metadata is not an object")
    return version, AdmissionRequest(
        uid=uid,
        operation=operation,
        target=target,
        old=request.get("oldObject") or {},
        namespace=str(request.get("namespace") or ""),
        sub_resource=str(request.get("subResource") or ""),
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _render(answer: AdmissionResponse) -> dict[str, Any]:
    if answer.refusal:
        status = {"code": 422, "reason": "Invalid", "message": answer.refusal}
        return {"allowed": False, "status": status}
    response: dict[str, Any] = {"allowed": True}
    if answer.warnings:
        texts = (f"tpu-functions: {one}" for one in answer.warnings)
        response["warnings"] = [
            one if len(one) <= _MAX_WARNING else f"{one[: _MAX_WARNING - 3]}..." for one in texts
        ]
    if answer.patch:
        raw = json.dumps(answer.patch, separators=(",", ":")).encode()
        if len(raw) > MAX_PATCH_BYTES:
            raise NoReviewError(f"the patch has {len(raw)} bytes, more than {MAX_PATCH_BYTES}")
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(raw).decode()}
    return response


def set_keys(
    parent: Object, path: str, name: str, values: Mapping[str, str]
) -> Iterator[Operation]:
    """Set keys of a map such as ``metadata.labels``, which may be absent.

    ``path`` is the JSON pointer of the map's ``parent``. Keys that have the value need no operation.
    """
    existing = parent.get(name)
    if not existing:
        yield {"op": "add", "path": f"{path}/{name}", "value": dict(values)}
        return
    for key, value in values.items():
        if existing.get(key) != value:
            yield {"op": "add", "path": f"{path}/{name}/{escape(key)}", "value": value}


def escape(key: str) -> str:
    """Escape a key as a part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
