"""The catalogue of refusals: all errors of the simulated Compute Engine.

A refusal is the HTTP answer of the call itself (``call``), the error of an operation that is DONE
(``operation``), or in the status of a managed instance group (``MIG``). Reasons of calls are
camelCase, codes of operations and MIGs UPPER_CASE, as in the real service. ``sure`` is the source of
the message: ``documented`` by Google, ``seen`` in recordings, public client code or bug reports, ``seen
in part`` if only a part of it was published, or ``assumed``: nobody has seen these words, even if the
rule is documented.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

Where = Literal["call", "operation", "MIG"]
Sure = Literal["documented", "seen", "seen in part", "assumed"]
LogStatus = tuple[int, str]
"""``status.code`` and ``status.message`` in the audit log."""

INVALID_ARGUMENT: LogStatus = (3, "INVALID_ARGUMENT")
FAILED_PRECONDITION: LogStatus = (9, "FAILED_PRECONDITION")


@dataclass(frozen=True)
class OperationError:
    """Why an operation failed, or why a MIG's VM could not be created."""

    code: str
    message: str
    http: int = 400
    log: LogStatus = FAILED_PRECONDITION
    details: tuple[dict[str, Any], ...] = ()

    def document(self) -> dict[str, Any]:
        """The error as an entry of ``error.errors[]``."""
        document: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.details:
            document["errorDetails"] = list(self.details)
        return document


class Refused(Exception):
    """The call is rejected with an HTTP error."""

    def __init__(
        self,
        http: int,
        reason: str,
        message: str,
        *,
        log: LogStatus = INVALID_ARGUMENT,
        domain: str = "global",
        status: str = "",
    ) -> None:
        super().__init__(message)
        self.http = http
        self.reason = reason
        self.message = message
        self.log = log
        self._domain = domain
        self._status = status

    def document(self) -> dict[str, Any]:
        """The body of the response."""
        detail = {"message": self.message, "domain": self._domain, "reason": self.reason}
        error: dict[str, Any] = {"code": self.http, "message": self.message, "errors": [detail]}
        if self._status:
            error["status"] = self._status
        return {"error": error}


@dataclass(frozen=True)
class Refusal:
    """One row of the catalogue. ``message`` is a template; its fields are in braces."""

    call: str
    when: str
    where: tuple[Where, ...]
    http: int
    reason: str
    message: str
    sure: Sure
    log: LogStatus = INVALID_ARGUMENT
    code: str = ""
    domain: str = "global"
    status: str = ""

    def refused(self, **fields: object) -> Refused:
        """The exception for a call."""
        return Refused(
            self.http,
            self.reason,
            self.message.format(**fields),
            log=self.log,
            domain=self.domain,
            status=self.status,
        )

    def error(self, *details: dict[str, Any], **fields: object) -> OperationError:
        """The same as the error of an operation or of a MIG."""
        return OperationError(
            self.code or self.reason,
            self.message.format(**fields),
            self.http,
            self.log,
            details,
        )


_CALL: tuple[Where, ...] = ("call",)
_VM: tuple[Where, ...] = ("operation", "MIG")

# ---------------------------------------------------------------- any call

UNAUTHENTICATED = Refusal(
    "any", "the bearer token is unknown", _CALL, 401, "authError",
    "Request had invalid authentication credentials.", "seen", (16, "UNAUTHENTICATED"),
    status="UNAUTHENTICATED",
)  # fmt: skip
PERMISSION_MISSING = Refusal(
    "any", "an IAM permission is missing", _CALL, 403, "forbidden",
    "Required '{permission}' permission for '{resource}'", "seen", (7, "PERMISSION_DENIED"),
)  # fmt: skip
ACT_AS_MISSING = Refusal(
    "any insert, instances.setMetadata", "the caller may not act as the VM's service account",
    _CALL, 403, "forbidden",
    "The user does not have access to service account '{account}'.  User: '{user}'.  Ask a "
    "project owner to grant you the iam.serviceAccountUser role on the service account",
    "seen", (7, "PERMISSION_DENIED"),
)  # fmt: skip
API_DISABLED = Refusal(
    "any", "the API is not enabled in the project", _CALL, 403, "accessNotConfigured",
    "Compute Engine API has not been used in project {number} before or it is disabled. Enable "
    "it by visiting https://console.developers.google.com/apis/api/compute.googleapis.com/"
    "overview?project={number} then retry.", "seen", (7, "PERMISSION_DENIED"),
    domain="usageLimits", status="PERMISSION_DENIED",
)  # fmt: skip
RATE_LIMITED = Refusal(
    "any", "a rate quota is used up", _CALL, 403, "rateLimitExceeded",
    "Quota exceeded for quota metric '{metric}' and limit '{metric} per minute' of service "
    "'compute.googleapis.com' for consumer 'project_number:{number}'.", "documented",
    (8, "RESOURCE_EXHAUSTED"), domain="usageLimits",
)  # fmt: skip
RATE_LIMITED_429 = Refusal(
    "any", "a rate quota is used up (the other front end)", _CALL, 429, "rateLimitExceeded",
    "RESOURCE_EXHAUSTED", "seen", (8, "RESOURCE_EXHAUSTED"),
    domain="usageLimits", status="RESOURCE_EXHAUSTED",
)  # fmt: skip
BACKEND_ERROR = Refusal(
    "any", "an internal error", _CALL, 503, "backendError",
    "Internal error. Please try again or contact Google Support.", "seen", (14, "UNAVAILABLE"),
)  # fmt: skip
INTERNAL_ERROR = Refusal(
    "any", "an internal error after the call was accepted", ("operation",), 500,
    "INTERNAL_ERROR", "Internal error. Please try again or contact Google Support.", "seen",
    (13, "INTERNAL"),
)  # fmt: skip
UNKNOWN_PATH = Refusal(
    "any", "the URL names no method", _CALL, 404, "notFound",
    "The requested URL {path} was not found on this server.", "assumed", (5, "NOT_FOUND"),
)  # fmt: skip
NOT_FOUND = Refusal(
    "any", "the resource is absent", _CALL, 404, "notFound",
    "The resource '{resource}' was not found", "seen", (5, "NOT_FOUND"),
)  # fmt: skip
UNKNOWN_ZONE = Refusal(
    "any", "the zone does not exist", _CALL, 400, "invalid",
    "Invalid value for field 'zone': '{zone}'. Unknown zone.", "seen",
)  # fmt: skip
UNKNOWN_REGION = Refusal(
    "any", "the region does not exist", _CALL, 400, "invalid",
    "Invalid value for field 'region': '{region}'. Unknown region.", "seen",
)  # fmt: skip
NOT_READY = Refusal(
    "any mutation", "the resource is being created, deleted or changed by another operation",
    _CALL, 400, "resourceNotReady", "The resource '{resource}' is not ready", "seen",
    FAILED_PRECONDITION,
)  # fmt: skip
ALREADY_EXISTS = Refusal(
    "any insert", "the name is taken", _CALL, 409, "alreadyExists",
    "The resource '{resource}' already exists", "seen", (6, "ALREADY_EXISTS"),
)  # fmt: skip
BAD_REQUEST_ID = Refusal(
    "any mutation", "requestId is not a UUID, or is the zero UUID", _CALL, 400, "invalid",
    "Invalid value for field 'requestId': '{value}'. Must be a valid, non-zero UUID.", "assumed",
)  # fmt: skip
REQUEST_ID_REUSED = Refusal(
    "any mutation", "requestId was used for another request", _CALL, 400, "invalid",
    "Invalid value for field 'requestId': '{value}'. It was used for a different request.",
    "assumed",
)  # fmt: skip
RESOURCE_QUOTA = Refusal(
    "any insert", "a quota of resources is used up", _CALL, 403, "quotaExceeded",
    "Quota '{metric}' exceeded.  Limit: {limit} in region {region}.", "seen", (8, "QUOTA_EXCEEDED"),
)  # fmt: skip

# ---------------------------------------------------------------- bodies

MALFORMED_JSON = Refusal(
    "any mutation", "the body is not a JSON object", _CALL, 400, "parseError", "Parse Error", "seen",
)  # fmt: skip
UNKNOWN_FIELD = Refusal(
    "any insert", "a JSON field is unknown", _CALL, 400, "badRequest",
    'Invalid JSON payload received. Unknown name "{name}" at \'{parent}\': Cannot find field.',
    "seen", status="INVALID_ARGUMENT",
)  # fmt: skip
WRONG_VALUE = Refusal(
    "any insert", "a value has the wrong type, or is not in its enum", _CALL, 400,
    "badRequest", "Invalid value at '{field}' ({kind}), {value}", "seen", status="INVALID_ARGUMENT",
)  # fmt: skip
REQUIRED = Refusal(
    "any insert", "a required field is missing", _CALL, 400, "required",
    "Required field '{field}' not specified", "assumed",
)  # fmt: skip
BAD_NAME = Refusal(
    "any insert", "a name is not an RFC 1035 label of at most 63 characters", _CALL, 400, "invalid",
    "Invalid value for field '{field}': '{value}'. Must be a match of regex "
    "'(?:[a-z](?:[-a-z0-9]{{0,61}}[a-z0-9])?)'", "seen",
)  # fmt: skip
BAD_VALUE = Refusal(
    "any", "a value is out of range or contradicts another", _CALL, 400, "invalid",
    "Invalid value for field '{field}': '{value}'. {why}", "seen",
)  # fmt: skip
MALFORMED_URL = Refusal(
    "any insert", "a reference is not a URL or partial URL, for example only a name", _CALL,
    400, "invalid", "Invalid value for field '{field}': '{value}'. The URL is malformed.", "seen",
)  # fmt: skip
BAD_FILTER = Refusal(
    "any list", "the filter cannot be parsed", _CALL, 400, "invalid",
    "Invalid value for field 'filter': '{value}'. Invalid list filter expression.", "seen",
)  # fmt: skip
BAD_PAGE_TOKEN = Refusal(
    "any list", "the page token is unknown", _CALL, 400, "invalid",
    "Invalid value for field 'pageToken': '{value}'. Invalid page token", "assumed",
)  # fmt: skip

# ---------------------------------------------------------------- policies and templates

POLICY_SHAPE = Refusal(
    "resourcePolicies.insert", "maxTopologyDistance is combined with a topology or a mode", _CALL,
    400, "invalid", "Invalid value for field 'resource.workloadPolicy.maxTopologyDistance': "
    "'{value}'. It cannot be set together with acceleratorTopology or acceleratorTopologyMode.",
    "assumed",
)  # fmt: skip
TEMPLATE_IN_USE = Refusal(
    "instanceTemplates.delete", "a MIG uses the template", ("call", "operation"), 400,
    "resourceInUseByAnotherResource",
    "The instance_template resource '{resource}' is already being used by '{user}'", "seen",
    (3, "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"), code="RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
)  # fmt: skip
POLICY_IN_USE = Refusal(
    "resourcePolicies.delete", "a MIG uses the policy", ("call", "operation"), 400,
    "resourceInUseByAnotherResource",
    "The resource_policy resource '{resource}' is already being used by '{user}'", "assumed",
    (3, "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"), code="RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
)  # fmt: skip
SPOT_RESTARTS = Refusal(
    "instanceTemplates.insert, instances.insert", "a SPOT or preemptible VM has automaticRestart true",
    _CALL, 400, "invalid", "Invalid value for field '{field}.preemptible': 'true'. Scheduling must "
    "have preemptible be false when AutomaticRestart is true.", "seen in part",
)  # fmt: skip
FLEX_START_ENDLESS = Refusal(
    "instanceTemplates.insert, instances.insert", "a FLEX_START VM has no maxRunDuration", _CALL, 400,
    "invalid", "Invalid value for field '{field}.maxRunDuration': ''. Max run duration is required "
    "for the FLEX_START provisioning model.", "assumed",
)  # fmt: skip
TPU_MIGRATES = Refusal(
    "instanceTemplates.insert, instances.insert", "a TPU VM has onHostMaintenance MIGRATE", _CALL,
    400, "invalid", "Invalid value for field '{field}.onHostMaintenance': 'MIGRATE'. TPU instances "
    "do not support live migration.", "assumed",
)  # fmt: skip

# ---------------------------------------------------------------- groups

GROUP_IN_USE = Refusal(
    "instanceGroupManagers.delete", "a backend service uses the MIG", _CALL, 400,
    "resourceInUseByAnotherResource",
    "The instance_group_manager resource '{resource}' is already being used by '{user}'", "seen",
    (3, "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"),
)  # fmt: skip
BASE_NAME = Refusal(
    "instanceGroupManagers.insert", "baseInstanceName does not match its pattern, or is too long", _CALL,
    400, "invalid", "Invalid value for field 'resource.baseInstanceName': '{value}'. Must be a "
    "match of regex '[a-z](([-a-z0-9]{{0,57}})|([-a-z0-9]{{0,51}}-#{{1,10}}(\\[[0-9]{{1,10}}\\])?))'",
    "seen in part",
)  # fmt: skip
BULK_NEEDED = Refusal(
    "instanceGroupManagers.insert", "the workload policy has a TPU topology, the mode is not BULK",
    _CALL, 400, "invalid",
    "MIGs with TPU accelerator topology require BULK mode in target size policy.", "seen",
)  # fmt: skip
SIZE_AND_TOPOLOGY = Refusal(
    "instanceGroupManagers.insert", "the size does not fit the topology", ("operation",), 400,
    "INVALID_FIELD_VALUE", "Invalid value for field 'operation': ''. Target size should be {needed} "
    "for given accelerator topology but was {size}.", "seen",
)  # fmt: skip
GANG_SIZE = Refusal(
    "instanceGroupManagers.resize", "the size does not fit the topology", _CALL, 400, "invalid",
    "Requested invalid target size '{size}' for a Managed Instance Group in the gang mode of size "
    "'{needed}'. Should be equal to the gang size.", "seen",
)  # fmt: skip
BULK_REFUSES_CONFIG = Refusal(
    "instanceGroupManagers.insert", "allInstancesConfig is set in BULK mode (an option)",
    _CALL, 400, "invalid", "Invalid value for field 'resource.allInstancesConfig'. All-instances "
    "configuration is not supported in BULK mode.", "assumed",
)  # fmt: skip
FLEX_START_REPAIRS = Refusal(
    "instanceGroupManagers.insert", "a FLEX_START MIG has repairs on", _CALL, 400, "invalid",
    "Invalid value for field 'resource.instanceLifecyclePolicy.defaultActionOnFailure': "
    "'{value}'. It must be DO_NOTHING for the FLEX_START provisioning model.", "assumed",
)  # fmt: skip
BULK_GROWS = Refusal(
    "instanceGroupManagers.resize", "a BULK MIG that is not empty would grow", _CALL,
    400, "invalid", "Invalid value for field 'size': '{size}'. A group in BULK mode can grow only "
    "from size 0.", "assumed",
)  # fmt: skip
BULK_SHRINKS = Refusal(
    "instanceGroupManagers.resize",
    "a BULK MIG whose VMs are being created would shrink, but not to 0", _CALL,
    400, "invalid", "Invalid value for field 'size': '{size}'. A bulk operation is in progress.",
    "assumed",
)  # fmt: skip

# ---------------------------------------------------------------- VMs: calls

WORKLOAD_POLICY_ON_VM = Refusal(
    "instances.insert", "a workload policy is attached to a single VM", _CALL, 400, "invalid",
    "Invalid value for field 'resource.resourcePolicies[0]': '{value}'. Resource policy must have "
    "one of [VmMaintenancePolicy, GroupPlacementPolicy, InstanceSchedulePolicy].", "seen in part",
)  # fmt: skip
METADATA_FINGERPRINT = Refusal(
    "instances.setMetadata", "the fingerprint is stale or missing", _CALL, 412, "conditionNotMet",
    "Supplied fingerprint does not match current metadata fingerprint.", "seen",
    FAILED_PRECONDITION,
)  # fmt: skip
METADATA_TOO_LARGE = Refusal(
    "instances.setMetadata, any insert", "a value is over 262144 bytes, or all are over 512 KB", _CALL,
    400, "invalid", "Value for field '{field}' is too large: maximum size {limit} character(s); "
    "actual size {size}.", "assumed",
)  # fmt: skip
METADATA_KEY = Refusal(
    "instances.setMetadata, any insert", "a metadata key does not match its pattern, or is a duplicate",
    _CALL, 400, "invalid", "Invalid value for field '{field}': '{value}'. {why}", "assumed",
)  # fmt: skip
VM_IS_DOWN = Refusal(
    "instances.reset, instances.stop", "the VM is not in a status that allows it", _CALL, 400,
    "resourceNotReady", "The resource '{resource}' is not ready", "assumed", FAILED_PRECONDITION,
)  # fmt: skip

# ---------------------------------------------------------------- VMs: creation

NO_CAPACITY = Refusal(
    "VM creation", "no capacity", ("operation", "MIG"), 503, "ZONE_RESOURCE_POOL_EXHAUSTED",
    "The zone 'projects/{project}/zones/{zone}' does not have enough resources available to "
    "fulfill the request.  Try a different zone, or try again later.", "seen",
    (8, "ZONE_RESOURCE_POOL_EXHAUSTED"),
)  # fmt: skip
NO_BULK_CAPACITY = Refusal(
    "bulk creation", "no capacity for all VMs; the MIG keeps waiting", ("MIG",), 503,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    "Waiting for resources. The zone 'projects/{project}/zones/{zone}' does not have enough "
    "resources available to fulfill the request.", "assumed",
    (8, "ZONE_RESOURCE_POOL_EXHAUSTED"),
)  # fmt: skip
VM_QUOTA = Refusal(
    "VM creation", "a quota of resources is used up", _VM, 403, "QUOTA_EXCEEDED",
    "Quota '{metric}' exceeded.  Limit: {limit} in region {region}.", "documented",
    (8, "QUOTA_EXCEEDED"),
)  # fmt: skip
PREEMPTED_AT_START = Refusal(
    "VM creation", "the VM is preempted during its creation", _VM, 400, "UNSUPPORTED_OPERATION",
    "Instance failed to start due to preemption.", "seen",
)  # fmt: skip
RESERVATION_ABSENT = Refusal(
    "VM creation", "the named reservation is absent", _VM, 400, "INVALID_USAGE",
    "Specified reservation {reservation} does not exist.", "seen", INVALID_ARGUMENT,
)  # fmt: skip
RESERVATION_FULL = Refusal(
    "VM creation", "the reservation is full", _VM, 400, "RESOURCE_NOT_READY",
    "Specified reservation '{reservation}' does not have available resources for the request.",
    "seen",
)  # fmt: skip
RESERVATION_MISMATCH = Refusal(
    "VM creation", "the reservation is for other VMs", _VM, 400, "INVALID_USAGE",
    "No available resources in specified reservations '{reservation}'", "seen", INVALID_ARGUMENT,
)  # fmt: skip
RESERVATION_FAMILY = Refusal(
    "VM creation", "the reservation is for another machine family", _VM, 400, "INVALID_USAGE",
    "Incompatible AggregateReservation VMFamily: reservation '{reservation}' is for {family}.",
    "seen in part", INVALID_ARGUMENT,
)  # fmt: skip
RESERVATION_NOT_READY = Refusal(
    "VM creation", "the reservation is not READY", _VM, 400, "RESOURCE_NOT_READY",
    "Cannot use reservation '{reservation}' as it requires reservation to be in READY state.",
    "seen in part",
)  # fmt: skip
RESERVATION_NEEDED = Refusal(
    "VM creation", "a RESERVATION_BOUND VM names no reservation", _VM, 400, "INVALID_USAGE",
    "RESERVATION_BOUND instances must use ReservationAffinity of SPECIFIC_RESERVATION.", "assumed",
    INVALID_ARGUMENT,
)  # fmt: skip
TPU_MISMATCH = Refusal(
    "VM creation", "the machine type cannot form the topology", _VM, 412,
    "CONDITION_NOT_MET", "Unsupported TPU configuration: machine type {machine_type} cannot form "
    "accelerator topology {topology}.", "seen in part",
)  # fmt: skip
ORG_POLICY = Refusal(
    "VM creation", "an organization policy forbids it", _VM, 412, "CONDITION_NOT_MET",
    "Constraint {constraint} violated for project {project}.", "seen",
)  # fmt: skip
SUBNET_FULL = Refusal(
    "VM creation", "the subnet has no free address", _VM, 400, "IP_SPACE_EXHAUSTED",
    "IP space of '{subnetwork}' is exhausted.", "seen", (8, "IP_SPACE_EXHAUSTED"),
)  # fmt: skip
AGENT_LACKS_PERMISSION = Refusal(
    "VM creation", "the service agent lacks a permission", _VM, 403, "PERMISSIONS_ERROR",
    "Required '{permission}' permission for '{resource}'", "seen", (7, "PERMISSION_DENIED"),
)  # fmt: skip
IMAGE_ABSENT = Refusal(
    "VM creation", "the image is absent", ("call", "operation", "MIG"), 400, "invalid",
    "Invalid value for field 'resource.disks[0].initializeParams.sourceImage': '{image}'. The "
    "referenced image resource cannot be found.", "seen", code="INVALID_FIELD_VALUE",
)  # fmt: skip
SUBNETWORK_ABSENT = Refusal(
    "VM creation", "the network or subnetwork is absent", ("call", "operation", "MIG"), 400,
    "invalid", "Invalid value for field 'resource.networkInterfaces[0].{kind}': '{network}'. The "
    "referenced {kind} resource cannot be found.", "seen", code="INVALID_FIELD_VALUE",
)  # fmt: skip
MACHINE_TYPE_ABSENT = Refusal(
    "VM creation", "the zone does not have the machine type", ("call", "operation", "MIG"), 400,
    "invalid", "Invalid value for field 'resource.machineType': '{machine_type}'. Machine type with "
    "name '{name}' does not exist in zone '{zone}'.", "seen", code="INVALID_FIELD_VALUE",
)  # fmt: skip
DISK_TYPE_ABSENT = Refusal(
    "VM creation", "the disk type is absent", ("call", "operation", "MIG"), 400, "invalid",
    "Invalid value for field 'resource.disks[0].initializeParams.diskType': '{disk_type}'. The "
    "referenced diskType resource cannot be found.", "assumed", code="INVALID_FIELD_VALUE",
)  # fmt: skip
DISK_TYPE = Refusal(
    "VM creation", "the disk type is not for that machine type", _VM, 400, "UNSUPPORTED_OPERATION",
    "[{disk_type}] features are not compatible for creating instance: {disk_type} disk type cannot "
    "be used by {machine_type} machine type.", "seen",
)  # fmt: skip
CANCELED = Refusal(
    "VM creation", "the VM was deleted during its creation", ("operation",), 400,
    "OPERATION_CANCELED_BY_USER", "Operation was canceled by user.", "assumed", (1, "CANCELLED"),
)  # fmt: skip

LOG_STATUSES: dict[int, LogStatus] = {
    400: INVALID_ARGUMENT,
    403: (7, "PERMISSION_DENIED"),
    404: (5, "NOT_FOUND"),
    409: (10, "ABORTED"),
    412: FAILED_PRECONDITION,
    429: (8, "RESOURCE_EXHAUSTED"),
    500: (13, "INTERNAL"),
    503: (14, "UNAVAILABLE"),
}
"""The status in the audit log of a failure on demand, by its HTTP code."""

CATALOGUE: dict[str, Refusal] = {
    name: value for name, value in list(globals().items()) if isinstance(value, Refusal)
}
"""All refusals by name."""


def phrase(http: int) -> str:
    """``httpErrorMessage`` of an operation: the status in capitals, as in ``BAD REQUEST``."""
    return HTTPStatus(http).phrase.upper()
