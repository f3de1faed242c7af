"""The kind of an API's error, such as a stockout, and the reason that the object gets.

`classify` reads a table from top to bottom for every error of Compute Engine, GKE and the cluster; of
several errors the first in `shared.base.reasons.ORDER` counts. The errors themselves call it once
(`errors.CallError`, `gce.values.GceError`). Errors of the environment and of the user have a reason of
`shared.base.reasons`.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from shared.base.reasons import ORDER, Reason


class ErrorKind(StrEnum):
    """The kind of an error.

    An error of the environment or of the user has a reason. Any other is transient: the message is not
    acknowledged, and Pub/Sub redelivers it with backoff, unless the step handles that kind.
    """

    TRANSIENT = "transient"
    RATE_LIMIT = "rate limit"
    """Too many calls, or too many operations at the same time."""
    NOT_READY = "not ready"
    """The resource is being created, changed or deleted; the end of that operation triggers the step."""
    IN_USE = "in use"
    """Another resource uses the one to be deleted, perhaps only for a moment more."""
    ABSENT = "absent"
    """The object does not exist: the observation is stale."""
    CONFLICT = "conflict"
    """The object exists already or has changed since it was read: the observation is stale."""
    ENVIRONMENT = "environment"
    """Capacity, quota, permissions: a condition; the sweep triggers the step again."""
    USER = "user"
    """The spec: a condition, and nothing more until the spec changes."""


@dataclass(frozen=True)
class Verdict:
    """The kind of an error; ``reason`` is ``None`` unless it is of the environment or the user."""

    kind: ErrorKind
    reason: Reason | None = None


@dataclass(frozen=True)
class _Rule:
    meaning: ErrorKind | Reason
    http: tuple[int, ...] = ()
    code: str = ""
    text: str = ""

    def matches(self, http: int, code: str, message: str) -> bool:
        has_status = not self.http or http in self.http
        pairs = ((self.code, code), (self.text, message))
        return has_status and all(re.search(*pair, re.IGNORECASE) for pair in pairs)

    @property
    def verdict(self) -> Verdict:
        if isinstance(self.meaning, ErrorKind):
            return Verdict(self.meaning)
        is_of_user = self.meaning is Reason.INVALID_SPEC
        return Verdict(ErrorKind.USER if is_of_user else ErrorKind.ENVIRONMENT, self.meaning)


NOT_READY = "resourceNotReady"
"""Compute Engine's code for a resource that another operation is changing."""

UNKNOWN_PLACE = re.compile(r"Unknown (zone|region)\b")
"""In Compute Engine's error (400) about a zone or region that does not exist, or that the project may
not use any more: some zones are open only to selected projects. The second may still have resources."""

_NO_PROJECT = r"The resource 'projects/[^/']+' was not found|Failed to find project "
"""In Compute Engine's error (404) about the project of a call, in public reports: it does not exist, or
the account may not see it. It proves nothing about the resource, whose VMs may run."""

BAD_REQUESTS = frozenset({"invalid", "required", "badRequest", "INVALID_FIELD_VALUE"})
"""Compute Engine's codes for a request that it rejects (400) whenever it is repeated: the rows of
tests/data/gce-refusals.yaml, and the codes of operations."""

# Errors of reservations and of capacity have no code of their own, neither in Compute Engine nor in GKE,
# which passes the same texts on. "UNSUPPORTED_OPERATION" is used for two things. So the text decides.
# tests/data/gce-refusals.yaml has each text with its source, except "is being updated", which is in a
# public list of errors to retry, and those of absent zones and machine types: Compute Engine's are in
# public reports; that GKE's are the same is assumed.
_BY_TEXT = (
    _Rule(
        ErrorKind.TRANSIENT,
        text=r"requires reservation to be in READY state"
        r"|running incompatible operation|is currently .*Please wait and try again"
        r"|^(Cluster|Master) is being (updated|upgraded)",
    ),
    _Rule(
        Reason.RESERVATION_NOT_FOUND,
        text=r"specified reservations? .*do(es)? not exist|could not find the given reservation",
    ),
    _Rule(
        Reason.RESERVATION_MISMATCH,
        text=r"no available resources in specified reservations"
        r"|reservation must exist in the same project"
        r"|must use ReservationAffinity"
        r"|incompatible AggregateReservation"
        r"|only compatible with Aggregate Reservations"
        r"|target a reservation with workload_type"
        r"|not supported for aggregate reservations"
        r"|reservation .*is incorrect for the requested resources"
        r"|reservations? .*can ?not be targeted",
    ),
    _Rule(
        Reason.RESERVATION_FULL,
        text=r"reservation .*does not have (available|enough) resources"
        r"|insufficient reserved capacity",
    ),
    _Rule(Reason.QUOTA_EXCEEDED, text=r"GCE_QUOTA_EXCEEDED|\binsufficient (\w+ )?quota"),
    _Rule(
        Reason.INSUFFICIENT_CAPACITY,
        text=r"failed to start due to preemption|GCE_STOCKOUT"
        r"|does not have enough resources available to fulfill"
        r"|does not currently have sufficient capacity|are out of capacity",
    ),
    _Rule(Reason.INSUFFICIENT_CAPACITY, code=r"RESOURCE_POOL_EXHAUSTED|INSUFFICIENT_?CAPACITY"),
    _Rule(
        Reason.NOT_OFFERED,
        text=rf"{UNKNOWN_PLACE.pattern}|machine type with name .* does not exist in zone"
        r"|machineTypes/\S+ (was not found|does not exist)",
    ),
    _Rule(
        Reason.INVALID_SPEC,
        text=r"Unsupported TPU configuration|disk type cannot be used by"
        r"|for given accelerator topology but was|in the gang mode of size"
        r"|Use workload policy instead|is not a valid size of TPU pod slice",
    ),
)
_OF_KUBERNETES = (
    # A ResourceQuota, whose refusal differs from that of a missing permission by its message alone.
    _Rule(Reason.QUOTA_EXCEEDED, http=(403,), text=r" is forbidden: exceeded quota: "),
)
_OF_ALL = (
    _Rule(Reason.PERMISSION_DENIED, http=(404,), text=_NO_PROJECT),
    _Rule(ErrorKind.RATE_LIMIT, code=r"^rateLimitExceeded$|RATE_(LIMIT_)?EXCEEDED"),
    _Rule(ErrorKind.RATE_LIMIT, http=(429,)),
    _Rule(Reason.QUOTA_EXCEEDED, code=r"quota"),
    _Rule(Reason.SUBNET_FULL, code=r"IP_SPACE_EXHAUSTED"),
    _Rule(Reason.API_DISABLED, code=r"^accessNotConfigured$|SERVICE_DISABLED"),
    # "violates constraint", with 412, is what gcp.resourceLocations is remembered to answer (a guess).
    _Rule(
        Reason.POLICY_VIOLATION,
        text=r"constraints?/[a-zA-Z.]+ violated|Constraint constraints/|violates constraint "
        r"|prohibited by organization's policy",
    ),
    _Rule(Reason.PERMISSION_DENIED, code=r"PERMISSIONS_ERROR|^forbidden$"),
    _Rule(Reason.PERMISSION_DENIED, http=(401, 403)),
    _Rule(ErrorKind.TRANSIENT, code=r"^conditionNotMet$"),
    # The code of a call, or of its operation.
    _Rule(ErrorKind.NOT_READY, code=rf"{NOT_READY}|RESOURCE_NOT_READY"),
    _Rule(
        ErrorKind.IN_USE,
        code=r"resourceInUseByAnotherResource|RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
    ),
    _Rule(ErrorKind.TRANSIENT, http=(408, 409, 412, *range(500, 600))),
    _Rule(
        ErrorKind.TRANSIENT,
        code=r"^INTERNAL_ERROR$|^backendError$|^internalError$|^unreachable$|^unparsable$",
    ),
    _Rule(Reason.REFUSED),
)
_TABLE = (*_BY_TEXT, *_OF_KUBERNETES, *_OF_ALL)
"""The rules in order; the first that matches decides."""


_NUMBERED = re.compile(r"\n\s*\(\d+\)")
"""GKE numbers the causes in one message, each on a line of its own."""


def classify(http: int, code: str, message: str) -> Verdict:
    """Classify an error by its HTTP status, its code or reason, and last its text.

    If the message has several numbered causes, their texts decide (the status is about all of them),
    and of them the first in `ORDER`. If no text is known, the status and the code decide.
    """
    causes = list(filter(str.strip, _NUMBERED.split(message)))
    if len(causes) > 1:
        verdict = min((_classify_cause(0, "", cause) for cause in causes), key=rank)
        if verdict.reason is not Reason.REFUSED:
            return verdict
    return _classify_cause(http, code, message)


def _classify_cause(http: int, code: str, cause: str) -> Verdict:
    return next(rule.verdict for rule in _TABLE if rule.matches(http, code, cause))


def rank(verdict: Verdict) -> int:
    """The rank of an error among others: the lowest is reported, a transient one last."""
    return len(ORDER) if verdict.reason is None else ORDER.index(verdict.reason)


def classify_answer(http: int, code: str, message: str) -> Verdict:
    """Classify the answer to a call. Unlike the error of an operation, it may show that the caller's
    observation is stale.

    Compute Engine also answers 412 if an organization policy forbids a call, and 404 if the account may
    not see the project.
    """
    verdict = classify(http, code, message)
    if http == 404 and verdict.reason is not Reason.PERMISSION_DENIED:
        return Verdict(ErrorKind.ABSENT)
    is_conflict = http in (409, 412) and verdict.kind is ErrorKind.TRANSIENT
    return Verdict(ErrorKind.CONFLICT) if is_conflict else verdict
