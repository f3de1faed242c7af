"""The parameters of a request: its query, and DeleteOptions in its body."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from local.base.http import Request
from local.kube import errors
from local.kube.decoding import read_object
from local.kube.errors import FieldError
from local.kube.field_selectors import parse_field_selector
from local.kube.kinds import Document, Kind, expand_schema
from local.kube.label_selectors import parse_label_selector
from local.kube.requests import RequestInfo
from local.kube.schema import Schema
from local.kube.store import Key, Record
from local.kube.users import User
from local.kube.writing import Write


@dataclass(frozen=True)
class ResourceCall:
    """A request for a resource, with its user and kind."""

    request: Request
    info: RequestInfo
    user: User
    kind: Kind

    @property
    def key(self) -> Key:
        """The key of the object that the URL names."""
        return self.namespace, self.info.name

    @property
    def namespace(self) -> str:
        """The namespace that the URL names, or the empty string for all."""
        return self.info.namespace if self.kind.namespaced else ""


def matcher_of(call: ResourceCall) -> Callable[[Record], bool]:
    """A function that returns whether a record matches the selectors of a list or watch."""
    labels = call.request.argument("labelSelector")
    fields = call.request.argument("fieldSelector")
    if not labels and not fields:
        return lambda record: True  # noqa: ARG005
    by_labels = parse_label_selector(labels)
    by_fields = parse_field_selector(fields, call.kind.selectable)
    return lambda record: (
        by_labels(record.metadata.get("labels") or {}) and by_fields(record.document)
    )


def number_argument(request: Request, name: str) -> int:
    """A number in the query; 0 if there is none. Raises 400."""
    text = request.argument(name)
    if text and not text.removeprefix("-").isdecimal():
        raise errors.bad_request(f"{name}: {text!r} is not a number")
    return int(text or 0)


_VALIDATIONS = ("Ignore", "Strict", "Warn")
_POLICIES = ("Foreground", "Background", "Orphan")


def read_write(call: ResourceCall) -> Write:
    """Parse the options of a write. Raises 422."""
    validation = call.request.argument("fieldValidation") or "Warn"
    dry_run = call.request.query.get("dryRun", [])
    _check_options(_option_errors(dry_run, validation))
    return Write(call.kind, call.user, call.info.subresource, bool(dry_run), validation)


def _check_options(found: Iterator[FieldError]) -> None:
    violations = list(found)
    if violations:
        raise errors.invalid("Options.meta.k8s.io", "", violations)


def _option_errors(
    dry_run: list[str], validation: str = "Warn", policy: str = ""
) -> Iterator[FieldError]:
    if set(dry_run) - {"All"}:
        yield errors.not_supported("dryRun", dry_run, ["All"])
    if validation not in _VALIDATIONS:
        yield errors.not_supported("fieldValidation", validation, _VALIDATIONS)
    if policy and policy not in _POLICIES:
        yield errors.not_supported("propagationPolicy", policy, _POLICIES)


_DELETE_OPTIONS = Schema(
    expand_schema(
        {
            "gracePeriodSeconds": "integer",
            "preconditions": {"uid": "string", "resourceVersion": "string"},
            "propagationPolicy": "string",
            "dryRun": ["string"],
        }
    )
)


def read_delete_options(call: ResourceCall) -> Document:
    """DeleteOptions from the body; the query has the defaults. Raises 400, 422."""
    sent = read_object(call.request) if call.request.body else {}
    wrong = _DELETE_OPTIONS.find_mistyped(sent)
    if wrong is not None:
        raise errors.bad_request(f"DeleteOptions: {wrong}")
    policy = sent.get("propagationPolicy") or call.request.argument("propagationPolicy")
    dry_run = [*(sent.get("dryRun") or ()), *call.request.query.get("dryRun", [])]
    _check_options(_option_errors(dry_run, policy=policy))
    grace_s = sent.get("gracePeriodSeconds")
    if grace_s is None and call.request.argument("gracePeriodSeconds"):
        grace_s = number_argument(call.request, "gracePeriodSeconds")
    return {
        "gracePeriodSeconds": grace_s,
        "preconditions": sent.get("preconditions") or {},
        "propagationPolicy": policy,
        "dryRun": bool(dry_run),
    }


def write_token(revision: int, last: Key) -> str:
    """Render the token with which a list of a revision continues after a key."""
    token = json.dumps([revision, *last])
    return base64.urlsafe_b64encode(token.encode()).decode()


def read_token(token: str) -> tuple[int, Key]:
    """Parse the revision and the key of a token. Raises 400."""
    try:
        read: Any = json.loads(base64.urlsafe_b64decode(token))
        revision, namespace, name = read
        return int(revision), (str(namespace), str(name))
    except (ValueError, TypeError) as error:
        raise errors.bad_request(f"invalid continue token: {error}") from error
