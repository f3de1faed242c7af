"""What stands in a request's query, and in the options that some bodies are."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from local.http import Request
from local.kube import errors
from local.kube.bodies import Body, read_object
from local.kube.decoding import strict_decoding_error
from local.kube.kinds import Document, Kind, Version, expand_schema
from local.kube.requests import RequestInfo, is_true
from local.kube.schema import Schema
from local.kube.selectors import parse_field_selector, parse_label_selector
from local.kube.store import Key, Record
from local.kube.users import User
from local.kube.writing import Options, Write


@dataclass(frozen=True)
class Call:
    """A request for a resource, with all that has been found out about it."""

    request: Request
    info: RequestInfo
    user: User
    kind: Kind
    version: Version

    @property
    def key(self) -> Key:
        """The key of the object that the URL names."""
        return (self.info.namespace if self.kind.namespaced else ""), self.info.name

    @property
    def namespace(self) -> str:
        """The namespace that the URL names, or the empty string for all."""
        return self.info.namespace if self.kind.namespaced else ""


def matcher_of(call: Call) -> Callable[[Record], bool]:
    labels = call.request.argument("labelSelector")
    fields = call.request.argument("fieldSelector")
    if not labels and not fields:
        return lambda record: True  # noqa: ARG005
    by_labels = parse_label_selector(labels)
    by_fields = parse_field_selector(fields, call.version.selectable)
    return lambda record: (
        by_labels.matches(record.metadata.get("labels")) and by_fields.matches(record.document)
    )


def number_argument(request: Request, name: str) -> int:
    text = request.argument(name)
    if text and not text.isdecimal():
        raise errors.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text or 0)


def bad_options(kind: str, field: str, why: str) -> errors.ApiError:
    return errors.invalid(f"{kind}.meta.k8s.io", "", [errors.forbidden_field(field, why)])


def bad_list(field: str, why: str) -> errors.ApiError:
    return bad_options("ListOptions", field, why)


def check_watch_arguments(request: Request, *, initial: bool) -> None:
    match = request.argument("resourceVersionMatch")
    if match and not request.argument("sendInitialEvents"):
        raise bad_list(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        )
    if initial and match != "NotOlderThan":
        raise bad_list(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )


_VALIDATIONS = ("Ignore", "Warn", "Strict")


def read_write(
    call: Call, options_kind: str, body: Body | None = None
) -> tuple[Write, tuple[str, ...]]:
    """The write that a request asks for, and what to warn of doubled fields. Raises 400, 422."""
    request = call.request
    validation = request.argument("fieldValidation") or "Warn"
    if validation not in _VALIDATIONS:
        wrong = errors.invalid_value(
            "fieldValidation", validation, 'allowed values are "", Ignore, Warn, Strict'
        )
        raise errors.invalid(f"{options_kind}.meta.k8s.io", "", [wrong])
    options = Options(
        request.argument("fieldManager")
        or request.headers.get("user-agent", "unknown").partition("/")[0],
        _read_dry_run(request.query.get("dryRun", []), options_kind),
        validation,
        is_true(request, "force"),
    )
    doubled = tuple(f'duplicate field "{path}"' for path in (body.doubled if body else ()))
    write = Write(call.kind, call.version, call.user, options, call.info.subresource)
    if doubled and validation == "Strict":
        raise strict_decoding_error(write, doubled)
    return write, () if validation == "Ignore" else doubled


def _read_dry_run(values: list[str], options_kind: str) -> bool:
    for value in values:
        if value != "All":
            wrong = errors.not_supported("dryRun", value, ["All"])
            raise errors.invalid(f"{options_kind}.meta.k8s.io", "", [wrong])
    return bool(values)


def read_wishes(call: Call) -> dict[str, Any]:
    """DeleteOptions from the body or, where it says nothing, from the query."""
    body = read_object(call.request).document if call.request.body else {}
    wishes = check_wishes(body)
    for name in ("propagationPolicy", "gracePeriodSeconds"):
        if call.request.argument(name):
            wishes.setdefault(name, call.request.argument(name))
    dry_run = [*(wishes.get("dryRun") or ()), *call.request.query.get("dryRun", [])]
    wishes["dryRun"] = _read_dry_run(dry_run, "DeleteOptions")
    policy = wishes.get("propagationPolicy") or "Background"
    if policy not in ("Background", "Foreground", "Orphan"):
        wrong = errors.not_supported(
            "propagationPolicy", policy, ["Foreground", "Background", "Orphan"]
        )
        raise errors.invalid("DeleteOptions.meta.k8s.io", "", [wrong])
    return wishes


_DELETE_OPTIONS = Schema(
    expand_schema(
        {
            "apiVersion": "string",
            "kind": "string",
            "gracePeriodSeconds": "integer",
            "preconditions": {"uid": "string", "resourceVersion": "string"},
            "orphanDependents": "boolean",
            "propagationPolicy": "string",
            "dryRun": ["string"],
        }
    )
)


def check_wishes(wishes: Any) -> Document:
    """DeleteOptions as they were sent. Raises 400 for what cannot be decoded."""
    if isinstance(wishes, dict):
        _DELETE_OPTIONS.fill(wishes)
    faults = _DELETE_OPTIONS.validate(wishes, path="deleteOptions")
    if faults:
        raise errors.bad_request(f"the object provided is unrecognized: {faults[0]}")
    return dict(wishes)


def write_token(revision: int, last: Key) -> str:
    token = {"v": "meta.k8s.io/v1", "rv": revision, "start": "/".join(last)}
    return base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")


def read_token(token: str) -> tuple[int, Key]:
    try:
        read = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, _, name = read["start"].partition("/")
        return int(read["rv"]), (namespace, name)
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise errors.bad_request(f"continue key is not valid: {error}") from error
