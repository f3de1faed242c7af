"""Errors: who can mend it, what we do about it, what it is called on the object.

Every refusal of Compute Engine or of the cluster passes through `classify`, a table read from top to
bottom. Three kinds come out (`Kind`); the reason of the second and third is a word of the catalogue
`REASONS`, which is also what ``kubectl get tng`` shows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Whose turn it is."""

    OURS = "retry"
    """Ours to retry: the message is not acknowledged and Pub/Sub backs off."""
    WORLD = "world"
    """The world's to change (capacity, quota, rights): a condition; the sweep looks again."""
    USER = "user"
    """The user's to change: a condition, and silence until the spec changes."""


class Reason(StrEnum):
    """Reasons of ``Ready=False``, as released: a word is never renamed."""

    PROVISIONING = "Provisioning"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    QUOTA_EXCEEDED = "QuotaExceeded"
    RESERVATION_NOT_FOUND = "ReservationNotFound"
    RESERVATION_FULL = "ReservationFull"
    RESERVATION_MISMATCH = "ReservationMismatch"
    SUBNET_FULL = "SubnetFull"
    PERMISSION_DENIED = "PermissionDenied"
    API_DISABLED = "ApiDisabled"
    POLICY_VIOLATION = "PolicyViolation"
    REFUSED = "Refused"
    IN_USE = "InUse"
    INVALID_TEMPLATE = "InvalidTemplate"
    INVALID_SPEC = "InvalidSpec"
    RESOURCE_CONFLICT = "ResourceConflict"
    MANAGED_ELSEWHERE = "ManagedElsewhere"
    PAUSED = "Paused"
    AWAITING_NODE_JOIN = "AwaitingNodeJoin"
    NODE_JOIN_TIMEOUT = "NodeJoinTimeout"
    DEVICE_PLUGIN_MISSING = "DevicePluginMissing"
    NODE_NOT_READY = "NodeNotReady"
    NODE_LOST = "NodeLost"
    PREEMPTED = "Preempted"
    NOT_WIRED = "NotWired"
    RESOURCE_LOST = "ResourceLost"
    DELETING_MIG = "DeletingMIG"
    DELETING_TEMPLATE = "DeletingTemplate"
    DELETING_POLICY = "DeletingPolicy"
    DELETING_NODES = "DeletingNodes"


REASONS: dict[Reason, str] = {
    Reason.PROVISIONING: "Compute Engine is making the resources or the VMs. Nothing to do.",
    Reason.INSUFFICIENT_CAPACITY: "The zone has no such TPUs free. The group waits; it goes on by "
    "itself. Another zone, model or a reservation is a new group.",
    Reason.QUOTA_EXCEEDED: "A quota of the project is used up. Raise it or free some of it; the "
    "group goes on by itself.",
    Reason.RESERVATION_NOT_FOUND: "The reservation named in the spec does not exist in the zone. "
    "Create it, or apply a group with the right name.",
    Reason.RESERVATION_FULL: "The reservation has no free VMs. The group waits for them.",
    Reason.RESERVATION_MISMATCH: "The reservation is for other VMs than this group asks for.",
    Reason.SUBNET_FULL: "The subnetwork has no free addresses. Enlarge it or free some.",
    Reason.PERMISSION_DENIED: "A right is missing; the message names it and whom it must be given.",
    Reason.API_DISABLED: "An API is not enabled in the project: gcloud services enable it.",
    Reason.POLICY_VIOLATION: "An organization policy forbids what the spec asks for.",
    Reason.REFUSED: "Compute Engine refused the request; its own words are in the message.",
    Reason.IN_USE: "Something else uses the resource, so that it cannot be deleted. Detach it.",
    Reason.INVALID_TEMPLATE: "The group's own instance template is missing or not fit for TPUs.",
    Reason.INVALID_SPEC: "The spec cannot work; the message names the field. Delete and apply anew.",
    Reason.RESOURCE_CONFLICT: "A resource bears our name but is not as we made it. It is not "
    "touched; a person must look.",
    Reason.MANAGED_ELSEWHERE: "tpu-operator manages this group (its finalizers or children are "
    "there). Nothing is done until they are gone.",
    Reason.PAUSED: "The annotation tpu-functions.dev/paused stops creation. Remove it to go on.",
    Reason.AWAITING_NODE_JOIN: "VMs run, or wait for capacity, and have not joined the cluster yet. "
    "Nothing to do.",
    Reason.NODE_JOIN_TIMEOUT: "A VM has not joined in time. Its serial port says why: "
    "gcloud compute instances get-serial-port-output.",
    Reason.DEVICE_PLUGIN_MISSING: "A Node is Ready but offers no google.com/tpu. Look at the "
    "DaemonSet tpu-device-plugin in kube-system.",
    Reason.NODE_NOT_READY: "A Node has joined and is not Ready: kubectl describe node.",
    Reason.NODE_LOST: "A VM or Node of a slice that was complete is gone.",
    Reason.PREEMPTED: "Compute Engine took VMs back (Spot, host error or maintenance).",
    Reason.NOT_WIRED: "All Nodes are ready, but the links between the chips are not up.",
    Reason.RESOURCE_LOST: "The slice was complete and its managed instance group is gone. It is not "
    "bought again; delete and apply the group to get a new one.",
    Reason.DELETING_MIG: "The managed instance group and its VMs are being deleted.",
    Reason.DELETING_TEMPLATE: "The instance template is being deleted.",
    Reason.DELETING_POLICY: "The workload policy is being deleted.",
    Reason.DELETING_NODES: "The Node objects are being deleted.",
}
"""What each reason means and what a person does about it; the reference page is made from it."""


class CallError(Exception):
    """A call to Compute Engine or to the cluster was refused or failed.

    ``http`` is the status code (0: no answer came, or the error is of a finished operation without
    one), ``reason`` the machine's word for it, ``message`` what the server said.
    """

    def __init__(self, call: str, http: int, reason: str, message: str) -> None:
        super().__init__(f"{call}: {http} {reason}: {message}")
        self.call = call
        self.http = http
        self.reason = reason
        self.message = message


class OutOfTimeError(Exception):
    """The time that an invocation has for its calls is used up; the message is tried again."""


@dataclass(frozen=True)
class Verdict:
    """What an error means for us; ``reason`` is ``None`` when it is ours to retry."""

    kind: Kind
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
    verdict: Kind | Reason, *, http: tuple[int, ...] = (), code: str = "", text: str = ""
) -> _Rule:
    meaning = Verdict(Kind.OURS) if isinstance(verdict, Kind) else Verdict(_kind(verdict), verdict)
    flags = re.IGNORECASE
    return _Rule(
        meaning,
        frozenset(http),
        re.compile(code, flags) if code else None,
        re.compile(text, flags) if text else None,
    )


def _kind(reason: Reason) -> Kind:
    return Kind.USER if reason is Reason.INVALID_SPEC else Kind.WORLD


# Read from top to bottom; the first that matches decides. Reservation trouble has no code of its
# own in Compute Engine, and "UNSUPPORTED_OPERATION" stands for two things: there the text decides.
_TABLE: tuple[_Rule, ...] = (
    _rule(Reason.RESERVATION_NOT_FOUND, text=r"specified reservation .*does not exist"),
    _rule(Reason.RESERVATION_FULL, text=r"reservation .*does not have available resources"),
    _rule(Kind.OURS, text=r"requires reservation to be in READY state"),
    _rule(
        Reason.RESERVATION_MISMATCH,
        text=r"no available resources in specified reservations"
        r"|reservation must exist in the same project"
        r"|must use ReservationAffinity"
        r"|incompatible AggregateReservation",
    ),
    _rule(Reason.INSUFFICIENT_CAPACITY, text=r"failed to start due to preemption"),
    _rule(Reason.INSUFFICIENT_CAPACITY, code=r"RESOURCE_POOL_EXHAUSTED|INSUFFICIENT_?CAPACITY"),
    # GKE tells these apart in words alone. All were seen in reports of its users but for "is being
    # updated", which stands in a public list of what to retry.
    _rule(
        Kind.OURS,
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
    _rule(Kind.OURS, code=r"^rateLimitExceeded$|RATE_LIMIT_EXCEEDED"),
    _rule(Kind.OURS, http=(429,)),
    _rule(Reason.QUOTA_EXCEEDED, code=r"quota"),
    _rule(Reason.SUBNET_FULL, code=r"IP_SPACE_EXHAUSTED"),
    _rule(Reason.API_DISABLED, code=r"^accessNotConfigured$|SERVICE_DISABLED"),
    _rule(
        Reason.POLICY_VIOLATION, text=r"constraints?/[a-zA-Z.]+ violated|Constraint constraints/"
    ),
    _rule(Reason.PERMISSION_DENIED, code=r"PERMISSIONS_ERROR|^forbidden$"),
    _rule(Reason.PERMISSION_DENIED, http=(401, 403)),
    _rule(Reason.INVALID_SPEC, text=r"Unsupported TPU configuration|disk type cannot be used by"),
    _rule(Kind.OURS, code=r"^conditionNotMet$"),
    _rule(
        Kind.OURS,
        code=r"resourceNotReady|RESOURCE_NOT_READY"
        r"|resourceInUseByAnotherResource|RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
    ),
    _rule(Kind.OURS, http=(408, 409, 412, 500, 502, 503, 504)),
    _rule(Kind.OURS, code=r"^INTERNAL_ERROR$|^backendError$|^internalError$|^unreachable$"),
    _rule(Reason.REFUSED),
)


def classify(http: int, code: str, message: str) -> Verdict:
    """What an answer means, by HTTP status, the error's code or reason, and only then its text."""
    return next(rule.verdict for rule in _TABLE if rule.matches(http, code, message))


def verdict_of(error: CallError) -> Verdict:
    """The same for an error that was raised."""
    return classify(error.http, error.reason, error.message)


STALE_ANSWERS = frozenset({404, 409, 412})
"""Answers by which the world says that what was seen is no longer so: the step looks again."""
