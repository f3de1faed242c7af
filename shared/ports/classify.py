"""Classify an API's error: transient, environment or user, and the reason that the object gets.

`classify` reads a table from top to bottom for every error of Compute Engine, GKE and the cluster.
Errors of the environment and of the user have a reason of `shared.base.reasons`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from shared.base.reasons import Reason
from shared.ports.errors import CallError


class ErrorKind(StrEnum):
    """The kind of an error."""

    TRANSIENT = "transient"
    """Transient: the message is not acknowledged, and Pub/Sub redelivers it with backoff."""
    ENVIRONMENT = "environment"
    """Environment (capacity, quota, permissions): a condition; the sweep triggers the step again."""
    USER = "user"
    """User: a condition, and nothing more until the spec changes."""


@dataclass(frozen=True)
class Verdict:
    """The kind of an error; ``reason`` is ``None`` for a transient one."""

    kind: ErrorKind
    reason: Reason | None = None


@dataclass(frozen=True)
class _Rule:
    verdict: Verdict
    http: frozenset[int] = frozenset()
    code: re.Pattern[str] | None = None
    text: re.Pattern[str] | None = None

    def matches(self, http: int, code: str, message: str) -> bool:
        return (
            (not self.http or http in self.http)
            and (self.code is None or self.code.search(code) is not None)
            and (self.text is None or self.text.search(message) is not None)
        )


def _rule(
    verdict: ErrorKind | Reason, *, http: tuple[int, ...] = (), code: str = "", text: str = ""
) -> _Rule:
    meaning = (
        Verdict(ErrorKind.TRANSIENT)
        if isinstance(verdict, ErrorKind)
        else Verdict(_kind(verdict), verdict)
    )
    flags = re.IGNORECASE
    return _Rule(
        meaning,
        frozenset(http),
        re.compile(code, flags) if code else None,
        re.compile(text, flags) if text else None,
    )


def _kind(reason: Reason) -> ErrorKind:
    return ErrorKind.USER if reason is Reason.INVALID_SPEC else ErrorKind.ENVIRONMENT


IN_USE_CODES = ("resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE")
"""How Compute Engine refuses to delete what something else uses: the call, or its operation."""

# Errors of reservations have no code of their own in Compute Engine, and "UNSUPPORTED_OPERATION" is used
# for two things: the text decides.
_OF_COMPUTE_ENGINE = (
    _rule(Reason.RESERVATION_NOT_FOUND, text=r"specified reservation .*does not exist"),
    _rule(Reason.RESERVATION_FULL, text=r"reservation .*does not have available resources"),
    _rule(ErrorKind.TRANSIENT, text=r"requires reservation to be in READY state"),
    _rule(
        Reason.RESERVATION_MISMATCH,
        text=r"no available resources in specified reservations"
        r"|reservation must exist in the same project"
        r"|must use ReservationAffinity"
        r"|incompatible AggregateReservation",
    ),
    _rule(Reason.INSUFFICIENT_CAPACITY, text=r"failed to start due to preemption"),
    _rule(Reason.INSUFFICIENT_CAPACITY, code=r"RESOURCE_POOL_EXHAUSTED|INSUFFICIENT_?CAPACITY"),
)
# GKE distinguishes these only in the message. Users have reported all of them except "is being
# updated", which is in a public list of errors to retry.
_OF_GKE = (
    _rule(
        ErrorKind.TRANSIENT,
        text=r"running incompatible operation|is currently .*Please wait and try again"
        r"|^(Cluster|Master) is being (updated|upgraded)",
    ),
    _rule(
        Reason.INSUFFICIENT_CAPACITY,
        text=r"GCE_STOCKOUT|does not have enough resources available to fulfill",
    ),
    _rule(
        Reason.QUOTA_EXCEEDED, text=r"GCE_QUOTA_EXCEEDED|^Insufficient (regional |project )?quota"
    ),
)
_OF_KUBERNETES = (
    # A ResourceQuota, whose refusal differs from that of a missing permission by its message alone.
    _rule(Reason.QUOTA_EXCEEDED, http=(403,), text=r" is forbidden: exceeded quota: "),
)
_OF_ALL = (
    _rule(ErrorKind.TRANSIENT, code=r"^rateLimitExceeded$|RATE_LIMIT_EXCEEDED"),
    _rule(ErrorKind.TRANSIENT, http=(429,)),
    _rule(Reason.QUOTA_EXCEEDED, code=r"quota"),
    _rule(Reason.SUBNET_FULL, code=r"IP_SPACE_EXHAUSTED"),
    _rule(Reason.API_DISABLED, code=r"^accessNotConfigured$|SERVICE_DISABLED"),
    # "violates constraint", with 412, is what gcp.resourceLocations is remembered to answer (a guess).
    _rule(
        Reason.POLICY_VIOLATION,
        text=r"constraints?/[a-zA-Z.]+ violated|Constraint constraints/|violates constraint ",
    ),
    _rule(Reason.PERMISSION_DENIED, code=r"PERMISSIONS_ERROR|^forbidden$"),
    _rule(Reason.PERMISSION_DENIED, http=(401, 403)),
    _rule(Reason.INVALID_SPEC, text=r"Unsupported TPU configuration|disk type cannot be used by"),
    _rule(ErrorKind.TRANSIENT, code=r"^conditionNotMet$"),
    _rule(
        ErrorKind.TRANSIENT,
        code="|".join(("resourceNotReady", "RESOURCE_NOT_READY", *IN_USE_CODES)),
    ),
    _rule(ErrorKind.TRANSIENT, http=(408, 409, 412, 500, 502, 503, 504)),
    _rule(
        ErrorKind.TRANSIENT, code=r"^INTERNAL_ERROR$|^backendError$|^internalError$|^unreachable$"
    ),
    _rule(Reason.REFUSED),
)
_TABLE = (*_OF_COMPUTE_ENGINE, *_OF_GKE, *_OF_KUBERNETES, *_OF_ALL)
"""The rules in order; the first that matches decides."""


def classify(http: int, code: str, message: str) -> Verdict:
    """Classify an answer by its HTTP status, the error's code or reason, and last its text."""
    return next(rule.verdict for rule in _TABLE if rule.matches(http, code, message))


def verdict_of(error: CallError) -> Verdict:
    """Classify an error that was raised."""
    return classify(error.http, error.reason, error.message)
