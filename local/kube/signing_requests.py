"""The rules for writes of CertificateSigningRequests."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence

from local.kube import errors
from local.kube.errors import FieldError
from local.kube.kinds import Document
from local.kube.writing import Attributes

_MIN_EXPIRATION_S = 600
_SIGNER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/[^/]+")
_DECISIONS = ("Approved", "Denied")
_LASTING = (*_DECISIONS, "Failed")


def prepare_request(attributes: Attributes) -> None:
    """Set the requesting user, restore an unchangeable spec, and set the times of conditions."""
    document, old, user = attributes.document, attributes.old, attributes.user
    if old is not None:
        document["spec"] = old["spec"]
        _date_conditions(document, attributes.now)
        return
    document["spec"] = {
        **document.get("spec", {}),
        "username": user.name,
        "groups": list(user.groups),
        **({"uid": user.uid} if user.uid else {}),
    }


def _date_conditions(document: Document, now: str) -> None:
    if _conditions(document):
        undated = {"lastUpdateTime": now, "lastTransitionTime": now}
        dated = [
            {**one, **{name: one.get(name) or time for name, time in undated.items()}}
            for one in _conditions(document)
        ]
        document["status"] = {**document["status"], "conditions": dated}


def find_csr_errors(document: Document, old: Document | None) -> Iterator[FieldError]:
    """The violations of a request or its conditions."""
    if old is None:
        yield from _request_errors(document["spec"])
        return
    yield from _condition_errors(_conditions(document), _conditions(old))


def _request_errors(spec: Document) -> Iterator[FieldError]:
    if not spec.get("usages"):
        yield errors.required("spec.usages")
    if b"BEGIN CERTIFICATE REQUEST" not in base64.b64decode(spec.get("request") or ""):
        why = "PEM block type must be CERTIFICATE REQUEST"
        yield errors.invalid_value("spec.request", spec.get("request"), why)
    signer = spec.get("signerName")
    if not signer:
        yield errors.required("spec.signerName")
    elif not _SIGNER.fullmatch(signer):
        why = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        yield errors.invalid_value("spec.signerName", signer, why)
    if spec.get("expirationSeconds", _MIN_EXPIRATION_S) < _MIN_EXPIRATION_S:
        why = "may not specify a duration less than 600 seconds (10 minutes)"
        yield errors.invalid_value("spec.expirationSeconds", spec["expirationSeconds"], why)


def _condition_errors(now: Sequence[Document], before: Sequence[Document]) -> Iterator[FieldError]:
    types = [one["type"] for one in now]
    for index, one in enumerate(now):
        if one["type"] in _LASTING and one["status"] != "True":
            path = f"status.conditions[{index}].status"
            yield errors.not_supported(path, one["status"], ["True"])
    for one in before:
        if one["type"] in _LASTING and one["type"] not in types:
            why = f'updates may not remove a condition of type "{one["type"]}"'
            yield errors.forbidden_field("status.conditions", why)
    if set(_DECISIONS) <= set(types):
        last = next(name for name in reversed(types) if name in _DECISIONS)
        why = "Approved and Denied conditions are mutually exclusive"
        yield errors.invalid_value("status.conditions", last, why)


def _conditions(document: Document) -> Sequence[Document]:
    conditions: Sequence[Document] = (document.get("status") or {}).get("conditions") or ()
    return conditions
