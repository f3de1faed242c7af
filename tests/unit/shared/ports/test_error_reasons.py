# ruff: noqa: E501  (a table reads best with a row on a line)
"""How errors of Compute Engine, GKE and the cluster, and calls without an answer, are classified."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from google.cloud import compute_v1

from shared.base.reasons import ORDER, REASONS, Reason
from shared.ports import error_reasons
from shared.ports.error_reasons import ErrorKind, Verdict, classify
from shared.ports.errors import CallError
from shared.ports.gce.values import GceError, parse_operation
from tests.support.builders import DATA

ROWS: dict[str, dict[str, Any]] = {
    f"{row['call']}: {row['when']}": row
    for row in yaml.safe_load((DATA / "gce-refusals.yaml").read_text())["refusals"]
}
RETRY, OBSERVE_AGAIN, BUG = "retry", "observe again", Reason.REFUSED
"""A transient error; a stale observation; a bug of this system, reported with GCE's message."""

EXPECTED: dict[str, str] = {
    "any get: resource absent": OBSERVE_AGAIN,
    "any delete: resource absent": OBSERVE_AGAIN,
    "any: project absent or not visible to the account": Reason.PERMISSION_DENIED,
    "any: project absent or not visible to the account (other words)": Reason.PERMISSION_DENIED,
    "any: a perimeter of VPC Service Controls forbids the call": Reason.POLICY_VIOLATION,
    "any op: too many operations on one source": RETRY,
    "any insert: name taken": OBSERVE_AGAIN,
    "any mutation: requestId is no UUID or the zero UUID": BUG,
    "instanceTemplates.delete: a group uses it": RETRY,
    "resourcePolicies.delete: a group or reservation uses it": RETRY,
    "instanceGroupManagers.delete: already being deleted": RETRY,
    "any mutation: another change of that resource runs": RETRY,
    "instanceGroupManagers.insert: template just made but not readable yet": OBSERVE_AGAIN,
    "instanceGroupManagers.insert: template still being created": RETRY,
    "instanceGroupManagers.insert: workloadPolicy is a bare name": BUG,
    "instanceGroupManagers.insert: target size does not fit the topology": Reason.INVALID_SPEC,
    "any insert: needed field missing": BUG,
    "any insert: unknown JSON field": BUG,
    "any insert: unknown enum word": BUG,
    "VM creation: disk type not for that machine type": Reason.INVALID_SPEC,
    "instances.setMetadata: fingerprint stale": OBSERVE_AGAIN,
    "instances.setMetadata: key breaks the pattern or appears twice": BUG,
    "instances.setMetadata: VM is gone or being recreated": OBSERVE_AGAIN,
    "instances.setMetadata: caller may not act as the VM's service account": (
        Reason.PERMISSION_DENIED
    ),
    "any: IAM permission missing": Reason.PERMISSION_DENIED,
    "any: API not enabled": Reason.API_DISABLED,
    "any: rate quota used up": RETRY,
    "any: rate quota used up (other front end)": RETRY,
    "any insert: resource quota used up": Reason.QUOTA_EXCEEDED,
    "VM creation: resource quota used up": Reason.QUOTA_EXCEEDED,
    "bulk creation: no capacity": Reason.INSUFFICIENT_CAPACITY,
    "VM creation: no capacity": Reason.INSUFFICIENT_CAPACITY,
    "VM creation: no capacity (other words)": Reason.INSUFFICIENT_CAPACITY,
    "VM creation: VM preempted while being made": Reason.INSUFFICIENT_CAPACITY,
    "VM creation: named reservation absent": Reason.RESERVATION_NOT_FOUND,
    "VM creation: reservation full": Reason.RESERVATION_FULL,
    "VM creation: reservation does not match the VM": Reason.RESERVATION_MISMATCH,
    "VM creation: reservation not ready": RETRY,
    "VM creation: reservation misused (project or family)": Reason.RESERVATION_MISMATCH,
    "VM creation: TPU machine and topology do not go together": Reason.INVALID_SPEC,
    "VM creation: external IP forbidden by policy": Reason.POLICY_VIOLATION,
    "VM creation: subnet has no free address": Reason.SUBNET_FULL,
    "VM creation: the group's agent lacks a right": Reason.PERMISSION_DENIED,
    "zoneOperations.get: operation too old": OBSERVE_AGAIN,
    "any: server trouble (408, 500, 502, 503, 504)": RETRY,
    "any op: server trouble": RETRY,
    "VM creation: reservations absent (plural)": Reason.RESERVATION_NOT_FOUND,
    "VM creation: reservation not found by name": Reason.RESERVATION_NOT_FOUND,
    "VM creation: reservation of another shape": Reason.RESERVATION_MISMATCH,
    "VM creation: aggregate reservation misused": Reason.RESERVATION_MISMATCH,
    "VM creation: reservation not targeted specifically": Reason.RESERVATION_MISMATCH,
    "VM creation: no capacity (words of a zone)": Reason.INSUFFICIENT_CAPACITY,
    "VM creation: reserved capacity used up": Reason.RESERVATION_FULL,
    "instanceGroupManagers.insert: size does not fit the topology": Reason.INVALID_SPEC,
    "instanceGroupManagers.resize: size of a gang": Reason.INVALID_SPEC,
    "instanceGroupManagers.insert: placement policy where a workload policy is due": (
        Reason.INVALID_SPEC
    ),
    "nodePools.create: reservation full": Reason.RESERVATION_FULL,
    "nodePools.create: size does not fit": Reason.INVALID_SPEC,
    "nodePools.create: quota": Reason.QUOTA_EXCEEDED,
    "nodePools.create: no capacity": Reason.INSUFFICIENT_CAPACITY,
    "nodePools.create: another operation runs": RETRY,
    "node pool: stockout after 35 minutes": Reason.INSUFFICIENT_CAPACITY,
}
NOT_CLASSIFIED = {
    "any insert: same requestId sent again": "no error: the answer is the existing operation",
    "instanceGroupManagers.insert: workload policy has a TPU topology but mode is not BULK": ("a policy is created for BULK groups only"),
    "instanceGroupManagers.patch: mode of targetSizePolicy changed": "nothing is patched",
    "instanceGroupManagers.patch: fingerprint stale": "nothing is patched",
    "instanceGroupManagers.resize: bulk group that is not empty is grown": "nothing is resized",
    "instanceGroupManagers.resize: " "shrink to a size other than 0 while bulkInstanceOperation.inProgress": "nothing is resized",
    "instanceGroupManagers.insert: FLEX_START template with repairs on": ("the body sets DO_NOTHING for FLEX_START"),
    "instanceGroupManagerResizeRequests.insert: TPU group": "no resize request is inserted",
    "instances.insert with resourcePolicies: a workload policy is attached to one VM": ("only the MIG creates VMs"),
    "any insert: name breaks RFC1035 or is over 63": "names are computed, and tested to fit",
    "instanceGroupManagers.insert: baseInstanceName over 58": "names are computed to fit",
    "instanceTemplates.insert: preemptible or SPOT with automaticRestart true": ("the body sets false for SPOT"),
    "instanceTemplates.insert: FLEX_START without maxRunDuration": ("the spec is rejected before any call"),
    "instances.setMetadata: one value over 262144 bytes or all over 512 KB": ("the spec is rejected before any call"),
    "instanceGroupManagers.delete: a backend service uses the group": ("the reason InUse depends on the deleted resource (test_tear_down)"),
}  # fmt: skip
"""Errors that need no classification, each with the reason."""


def codes(row: dict[str, Any]) -> list[str]:
    """Return the error codes of a row."""
    return re.split(r", | or ", str(row["reason"]))


def outcome(row: dict[str, Any], code: str) -> str:
    """Return the result of an error; the direct answer of a call may mean a stale observation."""
    if "sync" in row["where"]:
        error = CallError(row["call"], row["http"], code, row["message"])
        return OBSERVE_AGAIN if error.is_stale else error.reason or RETRY
    return GceError(code, row["message"], row["http"]).reason or RETRY


def test_each_known_error_is_in_one_of_the_tables() -> None:
    assert {*EXPECTED} | {*NOT_CLASSIFIED} == {*ROWS}
    assert not {*EXPECTED} & {*NOT_CLASSIFIED}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_known_error_is_classified(name: str) -> None:
    row = ROWS[name]
    assert {outcome(row, code) for code in codes(row)} == {EXPECTED[name]}


@pytest.mark.parametrize("name", [name for name in EXPECTED if "condition " in ROWS[name]["ours"]])
def test_the_reason_is_the_condition_that_the_row_names(name: str) -> None:
    found = re.search(r"condition ([A-Z]\w+)", ROWS[name]["ours"])
    assert found is not None
    assert EXPECTED[name] in (found[1], OBSERVE_AGAIN)


OTHER_ERRORS: dict[str, tuple[int, str, str, Verdict]] = {
    "no answer": (0, "unreachable", "ConnectTimeout", Verdict(ErrorKind.TRANSIENT)),
    "the API server is overloaded": (429, "TooManyRequests", "", Verdict(ErrorKind.RATE_LIMIT)),
    "the API server is starting": (503, "ServiceUnavailable", "", Verdict(ErrorKind.TRANSIENT)),
    "a conflict with another write": (409, "Conflict", "", Verdict(ErrorKind.CONFLICT)),
    "a ResourceQuota of the namespace is used up": (
        403,
        "Forbidden",
        'tpunodegroups.tpu.google.com "x" is forbidden: exceeded quota: tpus, requested: '
        "count/tpunodegroups.tpu.google.com=1, used: count/tpunodegroups.tpu.google.com=2, limited: "
        "count/tpunodegroups.tpu.google.com=2",
        Verdict(ErrorKind.ENVIRONMENT, Reason.QUOTA_EXCEEDED),
    ),
    "a permission in the cluster is missing": (
        403,
        "Forbidden",
        'nodes "x" is forbidden: User "u" cannot patch resource "nodes"',
        Verdict(ErrorKind.ENVIRONMENT, Reason.PERMISSION_DENIED),
    ),
    "the function's token is rejected": (
        401,
        "Unauthorized",
        "Unauthorized",
        Verdict(ErrorKind.ENVIRONMENT, Reason.PERMISSION_DENIED),
    ),
    "a rate limit with status 403": (
        403,
        "rateLimitExceeded",
        "Quota exceeded for quota metric 'Queries'",
        Verdict(ErrorKind.RATE_LIMIT),
    ),
    "an organization policy with status 412": (
        412,
        "CONDITION_NOT_MET",
        "Constraint constraints/compute.vmExternalIpAccess violated for project 1",
        Verdict(ErrorKind.ENVIRONMENT, Reason.POLICY_VIOLATION),
    ),
    "a stockout with status 503": (
        503,
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "",
        Verdict(ErrorKind.ENVIRONMENT, Reason.INSUFFICIENT_CAPACITY),
    ),
    "an unsupported operation, whose code a preemption shares": (
        400,
        "UNSUPPORTED_OPERATION",
        "This machine type cannot be used",
        Verdict(ErrorKind.ENVIRONMENT, Reason.REFUSED),
    ),
    "an image that does not exist": (
        404,
        "notFound",
        "The resource 'projects/p/global/images/i' was not found",
        Verdict(ErrorKind.ABSENT),
    ),
    "another operation on a node pool's cluster": (
        400,
        "failedPrecondition",
        "Cluster is running incompatible operation operation-1725969285414-e4d0c1f5.",
        Verdict(ErrorKind.TRANSIENT),
    ),
    "another operation on a node pool": (
        400,
        "failedPrecondition",
        "Operation operation-1634228282393-f0 is currently deleting a node pool for cluster c. "
        "Please wait and try again once it is done.",
        Verdict(ErrorKind.TRANSIENT),
    ),
    "too many operations on a cluster": (
        429,
        "rateLimitExceeded",
        'Too many operations: cluster "c" hits the concurrent operations quota 5, please try again '
        "later.",
        Verdict(ErrorKind.RATE_LIMIT),
    ),
    "a node pool that was changed concurrently": (
        409,
        "ABORTED",
        "",
        Verdict(ErrorKind.CONFLICT),
    ),
    "a node pool for which a quota is used up": (
        403,
        "forbidden",
        "Insufficient regional quota to satisfy request: resource \"TPUS\": request requires '8.0' "
        "and is short '4.0'.",
        Verdict(ErrorKind.ENVIRONMENT, Reason.QUOTA_EXCEEDED),
    ),
    "a permission on a GKE cluster is missing": (
        403,
        "forbidden",
        'Required "container.clusters.update" permission(s) for "projects/p/locations/l/clusters/c".',
        Verdict(ErrorKind.ENVIRONMENT, Reason.PERMISSION_DENIED),
    ),
    "several permissions are missing": (
        403,
        "forbidden",
        "\n\t(1) Required 'compute.networks.get' permission\n\t(2) Required 'compute.images.get' permission",
        Verdict(ErrorKind.ENVIRONMENT, Reason.PERMISSION_DENIED),
    ),
    "several internal errors": (
        503,
        "UNAVAILABLE",
        "\n\t(1) Internal error.\n\t(2) Internal error.",
        Verdict(ErrorKind.TRANSIENT),
    ),
    "two stockouts below a heading": (
        0,
        "RESOURCE_EXHAUSTED",
        "Google Compute Engine: several errors:\n\t(1) GCE_STOCKOUT: a\n\t(2) GCE_STOCKOUT: b",
        Verdict(ErrorKind.ENVIRONMENT, Reason.INSUFFICIENT_CAPACITY),
    ),
    "a node pool for which a zone has no VMs": (
        0,
        "RESOURCE_EXHAUSTED",
        "Google Compute Engine: Not all instances running in IGM after 14.7s. Expected 1, running 0, "
        "transitioning 1. Current errors: [GCE_STOCKOUT]: Instance 'i' creation failed: The zone "
        "'projects/p/zones/z' does not have enough resources available to fulfill the request.",
        Verdict(ErrorKind.ENVIRONMENT, Reason.INSUFFICIENT_CAPACITY),
    ),
    "a zone that does not exist for the project": (
        400,
        "invalid",
        "Invalid value for field 'zone': 'us-x1-a'. Unknown zone.",
        Verdict(ErrorKind.ENVIRONMENT, Reason.NOT_OFFERED),
    ),
    "a region that does not exist for the project": (
        400,
        "invalid",
        "Invalid value for field 'region': 'us-x1'. Unknown region.",
        Verdict(ErrorKind.ENVIRONMENT, Reason.NOT_OFFERED),
    ),
    "a machine type that the zone does not have": (
        400,
        "INVALID_FIELD_VALUE",
        "Invalid value for field 'resource.machineType': 'zones/z/machineTypes/ct6e-standard-4t'. "
        "Machine type with name 'ct6e-standard-4t' does not exist in zone 'z'.",
        Verdict(ErrorKind.ENVIRONMENT, Reason.NOT_OFFERED),
    ),
    "a machine type that the zone does not have, by its path": (
        0,
        "RESOURCE_NOT_FOUND",
        "The resource 'projects/p/zones/z/machineTypes/ct6e-standard-4t' was not found",
        Verdict(ErrorKind.ENVIRONMENT, Reason.NOT_OFFERED),
    ),
    "a cluster on a release channel": (
        400,
        "badRequest",
        "Auto_upgrade cannot be false when release_channel REGULAR is set.",
        Verdict(ErrorKind.ENVIRONMENT, Reason.REFUSED),
    ),
    "an unknown code": (
        400,
        "somethingNew",
        "Something new",
        Verdict(ErrorKind.ENVIRONMENT, Reason.REFUSED),
    ),
}


@pytest.mark.parametrize("case", OTHER_ERRORS.values(), ids=OTHER_ERRORS)
def test_an_error_that_the_table_does_not_have_is_classified(
    case: tuple[int, str, str, Verdict],
) -> None:
    http, code, message, verdict = case
    error = CallError("some.call", http, code, message)
    assert Verdict(error.kind, error.reason) == verdict


BY_STATUS = {
    **dict.fromkeys((401, 403), Verdict(ErrorKind.ENVIRONMENT, Reason.PERMISSION_DENIED)),
    404: Verdict(ErrorKind.ABSENT),
    **dict.fromkeys((409, 412), Verdict(ErrorKind.CONFLICT)),
    429: Verdict(ErrorKind.RATE_LIMIT),
    **dict.fromkeys((408, *range(500, 512)), Verdict(ErrorKind.TRANSIENT)),
}


@pytest.mark.parametrize("http", range(400, 512))
def test_an_error_without_code_and_message_is_classified_by_its_status(http: int) -> None:
    error = CallError("some.call", http, "", "")
    other = Verdict(ErrorKind.ENVIRONMENT, Reason.REFUSED)
    assert Verdict(error.kind, error.reason) == BY_STATUS.get(http, other)


def test_an_exceeded_resource_quota_has_another_reason_than_a_missing_permission() -> None:
    message = (
        'pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1'
    )
    found = [CallError("some.call", http, "", message).reason for http in (400, 403)]
    assert found == [Reason.REFUSED, Reason.QUOTA_EXCEEDED]


def test_the_text_of_an_error_has_call_status_code_and_message() -> None:
    error = CallError("instances.get", 403, "forbidden", "Required 'compute.instances.get'")
    assert str(error) == "instances.get: 403 forbidden: Required 'compute.instances.get'"


@pytest.mark.parametrize("first, second", [(0, 1), (1, 0)])
def test_of_several_causes_the_first_in_the_order_of_reasons_decides(
    first: int, second: int
) -> None:
    causes = (
        "All requested zones (z) are out of capacity",
        'insufficient regional quota to satisfy request: resource "TPUS"',
    )
    message = f"\n\t(1) {causes[first]}\n\t(2) {causes[second]}"
    error = CallError("nodePools.create", 403, "forbidden", message)
    assert error.reason is Reason.QUOTA_EXCEEDED
    listed = [{"code": "", "message": causes[first]}, {"code": "", "message": causes[second]}]
    operation = compute_v1.Operation(error={"errors": listed}, status="DONE")
    assert (failure := parse_operation(operation).error) is not None
    assert failure.reason is Reason.QUOTA_EXCEEDED


def test_the_order_has_each_reason_of_an_error() -> None:
    rules = {rule.verdict.reason for rule in error_reasons._TABLE} - {None}
    assert {*ORDER} == rules


def test_each_reason_has_a_meaning() -> None:
    assert REASONS.keys() == set(Reason)
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", reason) for reason in Reason)
    assert all(meaning.endswith(".") and "|" not in meaning for meaning in REASONS.values())


def test_only_an_invalid_spec_is_a_user_error() -> None:
    verdicts = {
        classify(row["http"], code, row["message"]) for row in ROWS.values() for code in codes(row)
    }
    of_users = {verdict.reason for verdict in verdicts if verdict.kind is ErrorKind.USER}
    assert of_users == {Reason.INVALID_SPEC}


@pytest.mark.parametrize(
    "text",
    [
        "Constraint constraints/compute.vmExternalIpAccess violated for project 1",
        "'us-central1' violates constraint 'constraints/gcp.resourceLocations' on the resource 'x'.",
        "Location us-central1 violates constraint constraints/gcp.resourceLocations on the resource x",
    ],
)
def test_a_412_of_an_organization_policy_does_not_mean_a_stale_observation(text: str) -> None:
    error = CallError("resource_policies.insert", 412, "conditionNotMet", text)
    assert (error.kind, error.reason) == (ErrorKind.ENVIRONMENT, Reason.POLICY_VIOLATION)
    assert not error.is_stale
    changed = CallError("instances.set_metadata", 412, "conditionNotMet", "Invalid fingerprint.")
    assert changed.is_stale
