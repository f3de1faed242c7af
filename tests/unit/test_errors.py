"""What each refusal means: Compute Engine's by a table of them, the cluster's, and no answer at all."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from shared.base.errors import STALE_ANSWERS, CallError
from shared.base.reasons import REASONS, Reason, refresh
from shared.ports.classify import ErrorKind, Verdict, classify, verdict_of
from tests.unit.builders import DATA

ROWS: dict[str, dict[str, Any]] = {
    f"{row['call']}: {row['when']}": row
    for row in yaml.safe_load((DATA / "gce-refusals.yaml").read_text())["refusals"]
}
RETRY, LOOK_AGAIN, LOUD = "retry", "look again", Reason.REFUSED
"""Ours to retry; the world has moved, so the step looks again; a bug of ours, said in GCE's words."""

EXPECTED: dict[str, str] = {
    "any get: resource absent": LOOK_AGAIN,
    "any delete: resource absent": LOOK_AGAIN,
    "any insert: name taken": LOOK_AGAIN,
    "any mutation: requestId is no UUID or the zero UUID": LOUD,
    "instanceTemplates.delete: a group uses it": RETRY,
    "resourcePolicies.delete: a group or reservation uses it": RETRY,
    "instanceGroupManagers.delete: already being deleted": RETRY,
    "any mutation: another change of that resource runs": RETRY,
    "instanceGroupManagers.insert: template just made but not readable yet": LOOK_AGAIN,
    "instanceGroupManagers.insert: template still being created": RETRY,
    "instanceGroupManagers.insert: workloadPolicy is a bare name": LOUD,
    "instanceGroupManagers.insert: target size does not fit the topology": Reason.INVALID_SPEC,
    "any insert: needed field missing": LOUD,
    "any insert: unknown JSON field": LOUD,
    "any insert: unknown enum word": LOUD,
    "VM creation: disk type not for that machine type": Reason.INVALID_SPEC,
    "instances.setMetadata: fingerprint stale": LOOK_AGAIN,
    "instances.setMetadata: key breaks the pattern or appears twice": LOUD,
    "instances.setMetadata: VM is gone or being recreated": LOOK_AGAIN,
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
    "zoneOperations.get: operation too old": LOOK_AGAIN,
    "any: server trouble (408, 500, 502, 503, 504)": RETRY,
    "any op: server trouble": RETRY,
}
NEVER_MET = {
    "any insert: same requestId sent again": "no refusal: the operation is taken up again",
    "instanceGroupManagers.insert: workload policy has a TPU topology but mode is not BULK": (
        "a policy is made for BULK groups only"
    ),
    "instanceGroupManagers.patch: mode of targetSizePolicy changed": "nothing is patched",
    "instanceGroupManagers.patch: fingerprint stale": "nothing is patched",
    "instanceGroupManagers.resize: bulk group that is not empty is grown": "nothing is resized",
    "instanceGroupManagers.resize: "
    "shrink to a size other than 0 while bulkInstanceOperation.inProgress": "nothing is resized",
    "instanceGroupManagers.insert: FLEX_START template with repairs on": (
        "the body says DO_NOTHING for flex start"
    ),
    "instanceGroupManagerResizeRequests.insert: TPU group": "none is ever asked for",
    "instances.insert with resourcePolicies: a workload policy is attached to one VM": (
        "VMs are the MIG's to make"
    ),
    "any insert: name breaks RFC1035 or is over 63": "names are computed, and tested to fit",
    "instanceGroupManagers.insert: baseInstanceName over 58": "names are computed to fit",
    "instanceTemplates.insert: preemptible or SPOT with automaticRestart true": (
        "the body says false for SPOT"
    ),
    "instanceTemplates.insert: FLEX_START without maxRunDuration": (
        "the spec is refused before any call"
    ),
    "instances.setMetadata: one value over 262144 bytes or all over 512 KB": (
        "the spec is refused before any call"
    ),
    "instanceGroupManagers.delete: a backend service uses the group": (
        "met, and told apart by what is being deleted: InUse (test_tear_down)"
    ),
}
"""Refusals that no classification has to tell apart, and why."""


def codes(row: dict[str, Any]) -> list[str]:
    """The codes that a row names."""
    return re.split(r", | or ", str(row["reason"]))


def outcome(row: dict[str, Any], code: str) -> str:
    """What we make of a refusal; what a call itself answers may say that the world has moved."""
    if "sync" in row["where"] and row["http"] in STALE_ANSWERS:
        return LOOK_AGAIN
    verdict = classify(row["http"], code, row["message"])
    return verdict.reason or RETRY


def test_every_refusal_that_is_known_is_in_one_of_the_tables() -> None:
    assert {*EXPECTED} | {*NEVER_MET} == {*ROWS}
    assert not {*EXPECTED} & {*NEVER_MET}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_refusal_is_taken_for(name: str) -> None:
    row = ROWS[name]
    assert {outcome(row, code) for code in codes(row)} == {EXPECTED[name]}


@pytest.mark.parametrize("name", [name for name in EXPECTED if "condition " in ROWS[name]["ours"]])
def test_the_condition_is_the_one_that_the_row_names(name: str) -> None:
    found = re.search(r"condition ([A-Z]\w+)", ROWS[name]["ours"])
    assert found is not None
    assert EXPECTED[name] in (found[1], LOOK_AGAIN)


MORE: dict[str, tuple[int, str, str, Verdict]] = {
    "no answer": (0, "unreachable", "ConnectTimeout", Verdict(ErrorKind.TRANSIENT)),
    "the API server is overloaded": (429, "TooManyRequests", "", Verdict(ErrorKind.TRANSIENT)),
    "the API server is starting": (503, "ServiceUnavailable", "", Verdict(ErrorKind.TRANSIENT)),
    "another has written the object": (409, "Conflict", "", Verdict(ErrorKind.TRANSIENT)),
    "a ResourceQuota of the namespace is used up": (
        403,
        "Forbidden",
        'tpunodegroups.tpu.google.com "x" is forbidden: exceeded quota: tpus, requested: '
        "count/tpunodegroups.tpu.google.com=1, used: count/tpunodegroups.tpu.google.com=2, limited: "
        "count/tpunodegroups.tpu.google.com=2",
        Verdict(ErrorKind.ENVIRONMENT, Reason.QUOTA_EXCEEDED),
    ),
    "a right in the cluster is missing": (
        403,
        "Forbidden",
        'nodes "x" is forbidden: User "u" cannot patch resource "nodes"',
        Verdict(ErrorKind.ENVIRONMENT, Reason.PERMISSION_DENIED),
    ),
    "the token of our identity is refused": (
        401,
        "Unauthorized",
        "Unauthorized",
        Verdict(ErrorKind.ENVIRONMENT, Reason.PERMISSION_DENIED),
    ),
    "a rate limit that stands as 403": (
        403,
        "rateLimitExceeded",
        "Quota exceeded for quota metric 'Queries'",
        Verdict(ErrorKind.TRANSIENT),
    ),
    "an organization policy that stands as 412": (
        412,
        "CONDITION_NOT_MET",
        "Constraint constraints/compute.vmExternalIpAccess violated for project 1",
        Verdict(ErrorKind.ENVIRONMENT, Reason.POLICY_VIOLATION),
    ),
    "a stockout that stands as 503": (
        503,
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "",
        Verdict(ErrorKind.ENVIRONMENT, Reason.INSUFFICIENT_CAPACITY),
    ),
    "real misuse, whose code a preemption shares": (
        400,
        "UNSUPPORTED_OPERATION",
        "This machine type cannot be used",
        Verdict(ErrorKind.ENVIRONMENT, Reason.REFUSED),
    ),
    "an image that is not there": (
        404,
        "notFound",
        "The resource 'projects/p/global/images/i' was not found",
        Verdict(ErrorKind.ENVIRONMENT, Reason.REFUSED),
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
        Verdict(ErrorKind.TRANSIENT),
    ),
    "a node pool that another has changed meanwhile": (
        409,
        "ABORTED",
        "",
        Verdict(ErrorKind.TRANSIENT),
    ),
    "a node pool for which a quota is used up": (
        403,
        "forbidden",
        "Insufficient regional quota to satisfy request: resource \"TPUS\": request requires '8.0' "
        "and is short '4.0'.",
        Verdict(ErrorKind.ENVIRONMENT, Reason.QUOTA_EXCEEDED),
    ),
    "a right on a GKE cluster is missing": (
        403,
        "forbidden",
        'Required "container.clusters.update" permission(s) for "projects/p/locations/l/clusters/c".',
        Verdict(ErrorKind.ENVIRONMENT, Reason.PERMISSION_DENIED),
    ),
    "a node pool for which a zone has no VMs": (
        0,
        "RESOURCE_EXHAUSTED",
        "Google Compute Engine: Not all instances running in IGM after 14.7s. Expected 1, running 0, "
        "transitioning 1. Current errors: [GCE_STOCKOUT]: Instance 'i' creation failed: The zone "
        "'projects/p/zones/z' does not have enough resources available to fulfill the request.",
        Verdict(ErrorKind.ENVIRONMENT, Reason.INSUFFICIENT_CAPACITY),
    ),
    "a cluster on a release channel": (
        400,
        "badRequest",
        "Auto_upgrade cannot be false when release_channel REGULAR is set.",
        Verdict(ErrorKind.ENVIRONMENT, Reason.REFUSED),
    ),
    "what nobody has seen yet": (
        400,
        "somethingNew",
        "Something new",
        Verdict(ErrorKind.ENVIRONMENT, Reason.REFUSED),
    ),
}


@pytest.mark.parametrize("case", MORE.values(), ids=MORE)
def test_of_refusals_that_the_table_does_not_have(case: tuple[int, str, str, Verdict]) -> None:
    http, code, message, verdict = case
    assert verdict_of(CallError("some.call", http, code, message)) == verdict


ENVIRONMENT = {401: Reason.PERMISSION_DENIED, 403: Reason.PERMISSION_DENIED}
TRANSIENT = {408, 409, 412, 429, 500, 502, 503, 504}


@pytest.mark.parametrize("http", range(400, 512))
def test_a_refusal_that_gives_nothing_but_its_status(http: int) -> None:
    if http in TRANSIENT:
        verdict = Verdict(ErrorKind.TRANSIENT, None)
    else:
        verdict = Verdict(ErrorKind.ENVIRONMENT, ENVIRONMENT.get(http, Reason.REFUSED))
    assert verdict_of(CallError("some.call", http, "", "")) == verdict


def test_an_exceeded_resource_quota_is_told_from_a_missing_permission_with_the_same_status() -> (
    None
):
    words = (
        'pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1'
    )
    found = [verdict_of(CallError("some.call", http, "", words)).reason for http in (400, 403, 404)]
    assert found == [Reason.REFUSED, Reason.QUOTA_EXCEEDED, Reason.REFUSED]


def test_an_error_says_which_call_was_refused_and_how() -> None:
    error = CallError("instances.get", 403, "forbidden", "Required 'compute.instances.get'")
    assert str(error) == "instances.get: 403 forbidden: Required 'compute.instances.get'"


def test_every_reason_says_what_it_means() -> None:
    assert REASONS.keys() == set(Reason)
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", reason) for reason in Reason)
    assert all(meaning.endswith(".") and "|" not in meaning for meaning in REASONS.values())


def test_only_what_the_user_must_change_is_the_users() -> None:
    verdicts = {
        classify(row["http"], code, row["message"]) for row in ROWS.values() for code in codes(row)
    }
    of_users = {verdict.reason for verdict in verdicts if verdict.kind is ErrorKind.USER}
    assert of_users == {Reason.INVALID_SPEC}


def test_the_page_of_reasons_is_up_to_date() -> None:
    page = DATA.parents[1] / "docs" / "reference" / "reasons.md"
    text = page.read_text()
    assert refresh(text) == text, "run: python -m shared.base.reasons docs/reference/reasons.md"


def test_a_page_without_a_place_for_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="substring not found"):
        refresh("# Nothing")
