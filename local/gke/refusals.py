"""The catalogue of refusals: all errors of the simulated GKE.

An error response has the classic ``errors`` and the newer ``status``, as recorded. ``sure`` is the
source of the message, as in `local.gce.refusals`.
"""

from __future__ import annotations

from local.gce.refusals import LogStatus, Refusal, Where

_CALL: tuple[Where, ...] = ("call",)
_OPERATION: tuple[Where, ...] = ("operation",)
_INVALID: LogStatus = (3, "INVALID_ARGUMENT")
_FAILED_PRECONDITION: LogStatus = (9, "FAILED_PRECONDITION")
_DENIED: LogStatus = (7, "PERMISSION_DENIED")
_NOT_FOUND: LogStatus = (5, "NOT_FOUND")


# ---------------------------------------------------------------- any call

UNAUTHENTICATED = Refusal(
    "any", "the bearer token is unknown", _CALL, 401, "authError",
    "Request had invalid authentication credentials.", "seen", (16, "UNAUTHENTICATED"),
    status="UNAUTHENTICATED",
)  # fmt: skip
PERMISSION_MISSING = Refusal(
    "any", "an IAM permission is missing", _CALL, 403, "forbidden",
    'Required "{permission}" permission(s) for "{resource}".', "seen", _DENIED,
    status="PERMISSION_DENIED",
)  # fmt: skip
UNKNOWN_PATH = Refusal(
    "any", "the path names no method", _CALL, 404, "notFound", "Method not found.", "assumed",
    _NOT_FOUND, status="NOT_FOUND",
)  # fmt: skip
UNKNOWN_FIELD = Refusal(
    "any", "a field is unknown", _CALL, 400, "badRequest",
    "Invalid JSON payload received. Unknown name \"{name}\" at '{path}': Cannot find field.", "seen",
    _INVALID, status="INVALID_ARGUMENT",
)  # fmt: skip
WRONG_VALUE = Refusal(
    "any", "a value does not fit its field, or the body is not JSON", _CALL, 400, "badRequest",
    "Invalid JSON payload received. {why}", "assumed", _INVALID, status="INVALID_ARGUMENT",
)  # fmt: skip
CLUSTER_ABSENT = Refusal(
    "any", "the cluster is absent", _CALL, 404, "notFound", "Not found: {resource}.", "seen",
    _NOT_FOUND, status="NOT_FOUND",
)  # fmt: skip
POOL_ABSENT = Refusal(
    "nodePools.get, delete, update", "the pool is absent", _CALL, 404, "notFound",
    'Not found: node pool "{name}" not found.', "seen", _NOT_FOUND, status="NOT_FOUND",
)  # fmt: skip
OPERATION_ABSENT = Refusal(
    "operations.get", "the operation is absent", _CALL, 404, "notFound",
    "Not found: {resource}.", "assumed", _NOT_FOUND, status="NOT_FOUND",
)  # fmt: skip
UNAVAILABLE = Refusal(
    "any", "on demand", _CALL, 503, "backendError",
    "The service is currently unavailable.", "seen", (14, "UNAVAILABLE"), status="UNAVAILABLE",
)  # fmt: skip

# ---------------------------------------------------------------- concurrent changes

POOL_EXISTS = Refusal(
    "nodePools.create", "the name is taken", _CALL, 409, "alreadyExists",
    "Already exists: {resource}.", "seen", (6, "ALREADY_EXISTS"), status="ALREADY_EXISTS",
)  # fmt: skip
POOL_BUSY = Refusal(
    "nodePools.delete, update", "another operation changes the pool", _CALL, 400,
    "failedPrecondition", "Cluster is running incompatible operation {operation}.", "seen",
    _FAILED_PRECONDITION, status="FAILED_PRECONDITION",
)  # fmt: skip
TOO_MANY_OPERATIONS = Refusal(
    "nodePools.create, delete, update", "the cluster's limit of concurrent operations is reached",
    _CALL, 429, "rateLimitExceeded",
    'Too many operations: cluster "{cluster}" hits the concurrent operations quota {limit}, please '
    "try again later.", "seen", (8, "RESOURCE_EXHAUSTED"), status="RESOURCE_EXHAUSTED",
)  # fmt: skip
ETAG = Refusal(
    "nodePools.update", "the etag is stale", _CALL, 409, "aborted",
    "The node pool has changed: etag {etag} is out of date.", "assumed", (10, "ABORTED"),
    status="ABORTED",
)  # fmt: skip

# ---------------------------------------------------------------- the fields of a new pool

_POOL = "nodePools.create"

NAME = Refusal(
    _POOL, "the name is not an RFC 1035 label of at most 40 characters", _CALL, 400, "badRequest",
    "Invalid value for field \"node_pool.name\": \"{name}\". Must be a match of regex "
    "'(?:[a-z](?:[-a-z0-9]{{0,38}}[a-z0-9])?)'.", "assumed", _INVALID, status="INVALID_ARGUMENT",
)  # fmt: skip
AUTO_UPGRADE = Refusal(
    _POOL, "automatic upgrades are off in a cluster on a release channel", _CALL, 400, "badRequest",
    "Auto_upgrade cannot be false when release_channel {channel} is set.", "seen", _INVALID,
    status="INVALID_ARGUMENT",
)  # fmt: skip
MACHINE_TYPE = Refusal(
    _POOL, "the machine type is absent", _CALL, 400, "badRequest",
    "Machine type with name '{machine_type}' does not exist in zone '{zone}'.", "assumed", _INVALID,
    status="INVALID_ARGUMENT",
)  # fmt: skip
SINGLE_HOST = Refusal(
    _POOL, "a slice of one host has a placement", _CALL, 400, "badRequest",
    "TPU topology can't be specified with single-host TPU slice pool; please remove the tpu_topology "
    "from the node pool creation request if the node pool is intented to run with single-host TPU "
    "slice nodes.", "seen", _INVALID, status="INVALID_ARGUMENT",
)  # fmt: skip
SLICE_SIZE = Refusal(
    _POOL, "the node count does not fit the topology", _CALL, 400, "badRequest",
    "Initial node count {count} is not a valid size of TPU pod slice with topology {topology}.",
    "assumed", _INVALID, status="INVALID_ARGUMENT",
)  # fmt: skip
LOCATION = Refusal(
    _POOL, "a zone is in another region", _CALL, 400, "badRequest",
    'Location "{zone}" is not in the region of the cluster "{location}".', "assumed", _INVALID,
    status="INVALID_ARGUMENT",
)  # fmt: skip
MAX_PODS = Refusal(
    _POOL, "a Node may have fewer than 8 or more than 256 Pods", _CALL, 400, "badRequest",
    "Invalid value for field \"node_pool.max_pods_constraint.max_pods_per_node\": {pods}. Must be "
    "between 8 and 256.", "assumed", _INVALID, status="INVALID_ARGUMENT",
)  # fmt: skip
RESERVED_LABEL = Refusal(
    _POOL, "a label has a prefix of Kubernetes", _CALL, 400, "badRequest",
    'Node label key "{key}" is reserved: prefixes kubernetes.io/ and k8s.io/ are.', "assumed",
    _INVALID, status="INVALID_ARGUMENT",
)  # fmt: skip
IMAGE_STREAMING = Refusal(
    _POOL, "there is a secondary boot disk without image streaming", _CALL, 400, "badRequest",
    "Secondary boot disks require image streaming (gcfs_config) to be enabled.", "assumed", _INVALID,
    status="INVALID_ARGUMENT",
)  # fmt: skip
ACT_AS = Refusal(
    _POOL, "the caller may not act as the Nodes' service account", _CALL, 403, "forbidden",
    'The user does not have access to service account "{account}". Ask a project owner to grant you '
    "the iam.serviceAccountUser role on the service account.", "seen", _DENIED,
    status="PERMISSION_DENIED",
)  # fmt: skip
QUOTA = Refusal(
    _POOL, "a quota of chips is used up", _CALL, 403, "forbidden",
    "Insufficient regional quota to satisfy request: resource \"{resource}\": request requires "
    "'{wanted}.0' and is short '{short}.0'. project has a quota of '{quota}.0' with '{left}.0' "
    "available.", "seen", _DENIED, status="PERMISSION_DENIED",
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
