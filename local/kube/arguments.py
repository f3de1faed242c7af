"""What stands in a request's query, and in the options that some bodies are."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from local.base.http import Request
from local.kube import errors
from local.kube.bodies import Body, read_options
from local.kube.decoding import strict_decoding_error
from local.kube.errors import FieldError
from local.kube.field_selectors import parse_field_selector
from local.kube.go_words import json_fault, unmarshal_fault
from local.kube.kinds import Document, Kind, Version, expand_schema
from local.kube.label_selectors import parse_label_selector
from local.kube.requests import RequestInfo
from local.kube.schema import Schema
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
    own = call.kind.custom or bool(call.version.selectable)
    by_fields = parse_field_selector(fields, call.version.selectable, own=own)
    return lambda record: (
        by_labels.matches(record.metadata.get("labels")) and by_fields.matches(record.document)
    )


def number_argument(request: Request, name: str) -> int:
    text = request.argument(name)
    if text and not text.removeprefix("-").isdecimal():
        raise errors.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text or 0)


def version_argument(request: Request) -> int:
    """The query's resourceVersion, 0 for none. Raises 500, as kube-apiserver does but in lists."""
    text = request.argument("resourceVersion")
    if text and not text.isdecimal():
        raise errors.ApiError(500, "", _unreadable_version(text))
    return int(text or 0)


def _unreadable_version(text: str) -> str:
    fault = f'strconv.ParseUint: parsing "{text}": invalid syntax'
    return str(errors.invalid_value("resourceVersion", text, fault))


def check_watch_arguments(request: Request) -> None:
    """Raises 422 for arguments that do not go together."""
    _refuse_list_options(_watch_option_errors(request))


def _watch_option_errors(request: Request) -> Iterator[FieldError]:
    match = request.argument("resourceVersionMatch")
    streams = bool(request.argument("sendInitialEvents"))
    if streams and match != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        yield errors.forbidden_field("resourceVersionMatch", why)
    elif match and not streams:
        why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        yield errors.forbidden_field("resourceVersionMatch", why)
    if match and match != "NotOlderThan":
        yield errors.not_supported("resourceVersionMatch", match, ["NotOlderThan"])


def check_list_arguments(request: Request) -> None:
    """Raises 422 for arguments that do not go together, 400 for what is no version."""
    _refuse_list_options(_list_option_errors(request))
    version = request.argument("resourceVersion")
    if version and not version.isdecimal():
        raise errors.bad_request(f"invalid resource version: {_unreadable_version(version)}")


def _list_option_errors(request: Request) -> Iterator[FieldError]:
    match, version = request.argument("resourceVersionMatch"), request.argument("resourceVersion")
    if request.argument("sendInitialEvents"):
        why = "sendInitialEvents is forbidden for list"
        yield errors.forbidden_field("sendInitialEvents", why)
    if not match:
        return
    if not version:
        why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        yield errors.forbidden_field("resourceVersionMatch", why)
    if request.argument("continue"):
        why = "resourceVersionMatch is forbidden when continue is provided"
        yield errors.forbidden_field("resourceVersionMatch", why)
    if match not in ("Exact", "NotOlderThan"):
        yield errors.not_supported("resourceVersionMatch", match, ["Exact", "NotOlderThan", ""])
    if match == "Exact" and version == "0":
        why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        yield errors.forbidden_field("resourceVersionMatch", why)


def _refuse_list_options(found: Iterator[FieldError]) -> None:
    faults = list(found)
    if faults:
        raise errors.invalid("ListOptions.meta.k8s.io", "", faults)


_VALIDATIONS = ("Ignore", "Strict", "Warn")
_POLICIES = ("Foreground", "Background", "Orphan")


def read_write(
    call: Call, options_kind: str, body: Body | None = None
) -> tuple[Write, tuple[str, ...]]:
    """The write that a request asks for, and what to warn of doubled fields. Raises 400, 422."""
    request = call.request
    validation = request.argument("fieldValidation") or "Warn"
    dry_run = request.query.get("dryRun", [])
    found = list(_option_errors(dry_run, validation))
    if found:
        raise errors.invalid(f"{options_kind}.meta.k8s.io", "", found)
    options = Options(bool(dry_run), validation)
    doubled = tuple(f'duplicate field "{path}"' for path in (body.doubled if body else ()))
    write = Write(call.kind, call.version, call.user, options, call.info.subresource)
    if doubled and validation == "Strict":
        raise strict_decoding_error(write, doubled)
    return write, () if validation == "Ignore" else doubled


def _option_errors(dry_run: list[str], validation: str) -> Iterator[FieldError]:
    if set(dry_run) - {"All"}:
        yield errors.not_supported("dryRun", dry_run, ["All"])
    if validation not in _VALIDATIONS:
        yield errors.not_supported("fieldValidation", validation, ("", *_VALIDATIONS))


def read_wishes(call: Call) -> dict[str, Any]:
    """DeleteOptions from the body or, where it says nothing, from the query."""
    body = read_options(call.request) if call.request.body else {}
    wishes = check_wishes(body)
    if call.request.argument("propagationPolicy"):
        wishes.setdefault("propagationPolicy", call.request.argument("propagationPolicy"))
    if call.request.argument("gracePeriodSeconds"):
        wishes.setdefault("gracePeriodSeconds", number_argument(call.request, "gracePeriodSeconds"))
    dry_run = [*(wishes.get("dryRun") or ()), *call.request.query.get("dryRun", [])]
    found = [*_policy_errors(wishes), *_option_errors(dry_run, "Warn")]
    if found:
        raise errors.invalid("DeleteOptions.meta.k8s.io", "", found)
    wishes["dryRun"] = bool(dry_run)
    return wishes


def _policy_errors(wishes: Document) -> Iterator[FieldError]:
    policy = wishes.get("propagationPolicy")
    if policy and wishes.get("orphanDependents") is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        yield errors.invalid_value("propagationPolicy", policy, why)
    elif policy and policy not in _POLICIES:
        yield errors.not_supported("propagationPolicy", policy, (*_POLICIES, "nil"))


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


_GO_OPTION_TYPES = {
    "gracePeriodSeconds": "int64",
    "orphanDependents": "bool",
    "preconditions": "v1.Preconditions",
    "dryRun": "[]string",
    "propagationPolicy": "v1.DeletionPropagation",
}


def check_wishes(wishes: Any) -> Document:
    """DeleteOptions as they were sent. Raises 400 for what cannot be decoded."""
    if not isinstance(wishes, dict):
        raise errors.bad_request(unmarshal_fault(wishes, "v1.DeleteOptions"))
    for name, value in wishes.items():
        schema = _DELETE_OPTIONS.properties.get(name)
        if value is not None and schema is not None and not schema.accepts(value):
            wanted = _GO_OPTION_TYPES.get(name, "string")
            fault = unmarshal_fault(value, wanted, f"DeleteOptions.{name}")
            raise errors.bad_request(fault)
    return {name: value for name, value in wishes.items() if value is not None}


GO_ON = -1
"""The revision of a token that shows what is there now, whatever was there before."""


def write_token(revision: int, last: Key) -> str:
    token = {"v": "meta.k8s.io/v1", "rv": revision, "start": "/".join(last)}
    return base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")


def read_token(token: str) -> tuple[int, Key]:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        text = raw.decode(errors="replace")
        read = json.loads(text)
        namespace, _, name = read["start"].partition("/")
        return int(read["rv"]), (namespace, name)
    except json.JSONDecodeError as error:
        raise _bad_token(json_fault(error, text)) from error
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise _bad_token(str(error)) from error


def _bad_token(why: str) -> errors.ApiError:
    return errors.bad_request(f"invalid continue token: continue key is not valid: {why}")
