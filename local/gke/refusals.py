"""The catalogue of refusals: all errors of the simulated GKE.

An error response has the classic ``errors`` and the newer ``status``, as recorded. ``sure`` is the
source of the message, as in `local.gce.refusals`.
"""

from __future__ import annotations

from local.gce.refusals import LogStatus, Refusal, Sure, Where

_OPERATION: tuple[Where, ...] = ("operation",)
_INVALID: LogStatus = (3, "INVALID_ARGUMENT")
_FAILED_PRECONDITION: LogStatus = (9, "FAILED_PRECONDITION")
_DENIED: LogStatus = (7, "PERMISSION_DENIED")
_NOT_FOUND: LogStatus = (5, "NOT_FOUND")


def _error(
    call: str, when: str, http: int, reason: str, message: str, sure: Sure, log: LogStatus
) -> Refusal:
    """The row of a response's error, whose newer status is that of the log entry."""
    return Refusal(call, when, ("call",), http, reason, message, sure, log, status=log[1])


# ---------------------------------------------------------------- any call

UNAUTHENTICATED = _error(
    "any", "the bearer token is unknown", 401, "authError",
    "Request had invalid authentication credentials.", "seen", (16, "UNAUTHENTICATED"),
)  # fmt: skip
PERMISSION_MISSING = _error(
    "any", "an IAM permission is missing", 403, "forbidden",
    'Required "{permission}" permission(s) for "{resource}".', "seen", _DENIED,
)  # fmt: skip
UNKNOWN_PATH = _error(
    "any", "the path names no method", 404, "notFound", "Method not found.", "assumed", _NOT_FOUND,
)  # fmt: skip
UNKNOWN_FIELD = _error(
    "any", "a field is unknown", 400, "badRequest",
    "Invalid JSON payload received. Unknown name \"{name}\" at '{path}': Cannot find field.", "seen",
    _INVALID,
)  # fmt: skip
WRONG_VALUE = _error(
    "any", "a value does not fit its field, or the body is not JSON", 400, "badRequest",
    "Invalid JSON payload received. {why}", "assumed", _INVALID,
)  # fmt: skip
CLUSTER_ABSENT = _error(
    "any", "the cluster is absent", 404, "notFound", "Not found: {resource}.", "seen", _NOT_FOUND,
)  # fmt: skip
POOL_ABSENT = _error(
    "nodePools.get, delete, update", "the pool is absent", 404, "notFound",
    'Not found: node pool "{name}" not found.', "seen", _NOT_FOUND,
)  # fmt: skip
OPERATION_ABSENT = _error(
    "operations.get", "the operation is absent", 404, "notFound",
    "Not found: {resource}.", "assumed", _NOT_FOUND,
)  # fmt: skip
UNAVAILABLE = _error(
    "any", "on demand", 503, "backendError",
    "The service is currently unavailable.", "seen", (14, "UNAVAILABLE"),
)  # fmt: skip

# ---------------------------------------------------------------- concurrent changes

POOL_EXISTS = _error(
    "nodePools.create", "the name is taken", 409, "alreadyExists",
    "Already exists: {resource}.", "seen", (6, "ALREADY_EXISTS"),
)  # fmt: skip
POOL_BUSY = _error(
    "nodePools.delete, update", "another operation changes the pool", 400,
    "failedPrecondition", "Cluster is running incompatible operation {operation}.", "seen",
    _FAILED_PRECONDITION,
)  # fmt: skip
TOO_MANY_OPERATIONS = _error(
    "nodePools.create, delete, update", "the cluster's limit of concurrent operations is reached",
    429, "rateLimitExceeded",
    'Too many operations: cluster "{cluster}" hits the concurrent operations quota {limit}, please '
    "try again later.", "seen", (8, "RESOURCE_EXHAUSTED"),
)  # fmt: skip
ETAG = _error(
    "nodePools.update", "the etag is stale", 409, "aborted",
    "The node pool has changed: etag {etag} is out of date.", "assumed", (10, "ABORTED"),
)  # fmt: skip

# ---------------------------------------------------------------- the fields of a new pool

_POOL = "nodePools.create"

NAME = _error(
    _POOL, "the name is not an RFC 1035 label of at most 40 characters", 400, "badRequest",
    "Invalid value for field \"node_pool.name\": \"{name}\". Must be a match of regex "
    "'(?:[a-z](?:[-a-z0-9]{{0,38}}[a-z0-9])?)'.", "assumed", _INVALID,
)  # fmt: skip
AUTO_UPGRADE = _error(
    _POOL, "automatic upgrades are off in a cluster on a release channel", 400, "badRequest",
    "Auto_upgrade cannot be false when release_channel {channel} is set.", "seen", _INVALID,
)  # fmt: skip
MACHINE_TYPE = _error(
    _POOL, "the machine type is absent", 400, "badRequest",
    "Machine type with name '{machine_type}' does not exist in zone '{zone}'.", "assumed", _INVALID,
)  # fmt: skip
SINGLE_HOST = _error(
    _POOL, "a slice of one host has a placement", 400, "badRequest",
    "TPU topology can't be specified with single-host TPU slice pool; please remove the tpu_topology "
    "from the node pool creation request if the node pool is intented to run with single-host TPU "
    "slice nodes.", "seen", _INVALID,
)  # fmt: skip
SLICE_SIZE = _error(
    _POOL, "the node count does not fit the topology", 400, "badRequest",
    "Initial node count {count} is not a valid size of TPU pod slice with topology {topology}.",
    "assumed", _INVALID,
)  # fmt: skip
LOCATION = _error(
    _POOL, "a zone is in another region", 400, "badRequest",
    'Location "{zone}" is not in the region of the cluster "{location}".', "assumed", _INVALID,
)  # fmt: skip
MAX_PODS = _error(
    _POOL, "a Node may have fewer than 8 or more than 256 Pods", 400, "badRequest",
    "Invalid value for field \"node_pool.max_pods_constraint.max_pods_per_node\": {pods}. Must be "
    "between 8 and 256.", "assumed", _INVALID,
)  # fmt: skip
RESERVED_LABEL = _error(
    _POOL, "a label has a prefix of Kubernetes", 400, "badRequest",
    'Node label key "{key}" is reserved: prefixes kubernetes.io/ and k8s.io/ are.', "assumed",
    _INVALID,
)  # fmt: skip
IMAGE_STREAMING = _error(
    _POOL, "there is a secondary boot disk without image streaming", 400, "badRequest",
    "Secondary boot disks require image streaming (gcfs_config) to be enabled.", "assumed", _INVALID,
)  # fmt: skip
ACT_AS = _error(
    _POOL, "the caller may not act as the Nodes' service account", 403, "forbidden",
    'The user does not have access to service account "{account}". Ask a project owner to grant you '
    "the iam.serviceAccountUser role on the service account.", "seen", _DENIED,
)  # fmt: skip
QUOTA = _error(
    _POOL, "a quota of chips is used up", 403, "forbidden",
    "Insufficient regional quota to satisfy request: resource \"{resource}\": request requires "
    "'{wanted}.0' and is short '{short}.0'. project has a quota of '{quota}.0' with '{left}.0' "
    "available.", "seen", _DENIED,
)  # fmt: skip

RESERVATION_FULL = _error(
    _POOL, "the reservation has too few free VMs", 429, "rateLimitExceeded",
    "Reservation does not have enough resources for the request: specific reservation "
    "\"{reservation}\" is insufficient for node pool \"{pool}\" at zone \"{zone}\": required {wanted} "
    "and short of {short} VM count of machine type {machine_type}.", "seen",
    (8, "RESOURCE_EXHAUSTED"),
)  # fmt: skip

# ---------------------------------------------------------------- pools in ERROR

STOCKOUT = Refusal(
    _POOL, "the zone has no capacity", _OPERATION, 429, "GCE_STOCKOUT",
    "Google Compute Engine: Not all instances running in IGM after {seconds}s. Expected {count}, "
    "running 0, transitioning {count}. Current errors: [GCE_STOCKOUT]: Instance '{instance}' "
    "creation failed: The zone 'projects/{project}/zones/{zone}' does not have enough resources "
    "available to fulfill the request.  Try a different zone, or try again later.", "seen",
    (8, "RESOURCE_EXHAUSTED"),
)  # fmt: skip
COMPACT_TPU7X = Refusal(
    _POOL, "tpu7x has a placement instead of a workload policy", _OPERATION, 400, "UNKNOWN",
    "Creation of a managed instance group with {machine_type} machine type with placement policy is "
    "not supported. Use workload policy instead.", "seen", _INVALID,
)  # fmt: skip
INTERNAL = Refusal(
    "any operation", "on demand", _OPERATION, 500, "UNKNOWN", "Internal error.", "seen",
    (13, "INTERNAL"),
)  # fmt: skip

CATALOGUE: dict[str, Refusal] = {
    name: value for name, value in list(globals().items()) if isinstance(value, Refusal)
}
"""All refusals by name."""
