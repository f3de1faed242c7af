"""Errors of messages, specs, Compute Engine and the cluster, and how the status reports them.

The status reports each error with the valid values or the next step. No message is lost or retried
forever, and the group continues without help when the cause is fixed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from local.base.http import Response
from local.cloud.simulation import PROJECT
from shared.base.reasons import REASONS, Reason
from shared.triggers.routes import STEPS
from tests.stories import helpers
from tests.stories.errors import (
    INJECTED_ERRORS,
    InjectedError,
    dead_letters,
    define_children,
    denied,
    notes,
)
from tests.stories.helpers import (
    HOUR,
    MINUTE,
    NAME,
    TWO_SINGLE,
)
from tests.support.builders import DATA
from tests.support.harness import Harness, manifests
from tests.support.manifests import manifest

NO_PROJECT = (
    f"The resource 'projects/{PROJECT}' was not found",
    f"Failed to find project {PROJECT}",
)
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def most_attempts(harness: Harness) -> int:
    """The largest number of deliveries of a message."""
    attempts: list[int] = [line.get("attempt", 0) for line in harness.log.lines]
    return max(attempts)


# messages


def test_an_unreadable_message_becomes_a_dead_letter() -> None:
    harness, data = Harness(), b'{"version": 2, "kind": "TPUNodeGroup"}'
    harness.simulation.publish("label_node", data, {})
    harness.run_for(2 * HOUR)
    (letter,) = harness.simulation.pubsub.dead_letters
    assert (letter.message.data, letter.attempts) == (data, 10)
    poison = [line for line in harness.log.lines if line["decision"] == "Poison"]
    assert len(poison) == 10
    assert {line["severity"] for line in poison} == {"WARNING"}
    assert f"message {letter.message.id}: version 2 is not known" in poison[0]["note"]


def test_audit_entries_that_trigger_no_step_change_nothing() -> None:
    harness = helpers.ready()
    rows = map(json.loads, (DATA / "audit-log-entries.jsonl").read_text().splitlines())
    entries = [row["entry"] for row in rows if row["wakes"] == "none"]
    assert len(entries) > 10
    before, calls = harness.group(NAME), len(harness.simulation.gce.calls.records)
    for step in STEPS:
        for entry in entries:
            harness.simulation.publish(step, json.dumps(entry).encode(), {})
    harness.run_for(timedelta(seconds=30))
    assert harness.group(NAME) == before
    assert len(harness.simulation.gce.calls.records) == calls
    assert dead_letters(harness) == []
    assert most_attempts(harness) == 1


@pytest.mark.conformance("stat-gone")
def test_a_message_about_a_group_whose_namespace_is_gone_is_acknowledged() -> None:
    harness = Harness()
    message = {
        "version": 1,
        "kind": "TPUNodeGroup",
        "namespace": "gone",
        "name": "my-slice",
        "uid": "1",
        "cause": "Deleting",
        "at": "2026-01-01T00:00:00Z",
    }
    for step in ("create_resources", "inject_token", "label_node", "tear_down"):
        harness.simulation.publish(step, json.dumps(message).encode(), {})
    harness.run_for(timedelta(seconds=5))
    assert [answer.outcome for _, answer in harness.answers] == ["GroupGone"] * 4
    assert most_attempts(harness) == 1


# namespaces


def make_namespace(harness: Harness, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    harness.simulation.admin("POST", "/api/v1/namespaces", body)


@pytest.mark.parametrize("after_s", [1, 6, 40, 300], ids=lambda s: f"after {s} s")
def test_deleting_a_namespace_deletes_its_groups(after_s: int) -> None:
    harness = Harness()
    make_namespace(harness, "team")
    harness.apply(manifest(namespace="team"))
    harness.run_for(timedelta(seconds=after_s))
    harness.simulation.admin("DELETE", "/api/v1/namespaces/team")
    helpers.until(harness, lambda: harness.group(NAME, "team") is None)
    harness.run_for(MINUTE)
    assert harness.simulation.admin("GET", "/api/v1/namespaces/team")["reason"] == "NotFound"
    harness.run_for(HOUR)
    assert harness.leftovers() == []
    assert most_attempts(harness) <= 5
    undone = [str(line["left_undone"]) for line in harness.log.lines if "left_undone" in line]
    assert undone
    assert all("it is being terminated" in text for text in undone)


# specs


ADVICE = ". Delete the group, correct the spec and apply it again."


def test_the_functions_reject_what_an_older_definition_accepts() -> None:
    harness = Harness()
    helpers.remove_validation(harness)
    harness.apply(manifest(nodeCount=3))
    text = (
        "spec.nodeCount: nodeCount must be 2: topology 2x2x2 has 8 chips, a tpu7x-standard-4t has 4"
    )
    helpers.until_reason(harness, "InvalidSpec", timeout=MINUTE)
    message = helpers.condition_of(harness)[2]
    assert text in message.removesuffix(ADVICE).split("; ")
    assert ("Warning", "InvalidSpec", helpers.condition_of(harness)[2]) in helpers.events(harness)
    before = len(harness.answers)
    harness.run_for(59 * MINUTE)
    answers = [
        step for step, _ in harness.answers[before:] if step not in ("sweep", "report_leaks")
    ]
    assert len(answers) <= 1
    assert harness.simulation.gce.calls.writes() == 0
    helpers.assert_deleted_completely(harness)


def test_a_project_that_is_not_served_is_rejected_by_name() -> None:
    harness = Harness(projects=frozenset({"other-project", "third-project"}))
    harness.apply(manifest())
    helpers.until_reason(harness, "InvalidSpec", timeout=MINUTE)
    assert helpers.condition_of(harness)[2] == (
        f"spec.project: {PROJECT} is not served by this installation; it serves other-project, "
        "third-project (Terraform's variable projects). Add the project to this variable, and the "
        "group continues within an hour, or delete the group, correct the spec and apply it again."
    )
    assert len(harness.simulation.gce.calls.records) == 0
    helpers.assert_deleted_completely(harness)


def test_a_ready_slice_reports_within_an_hour_that_its_project_is_not_served_any_more() -> None:
    harness = helpers.ready()
    writes = harness.simulation.gce.calls.writes()
    harness.configure(projects=frozenset({"other-project"}))
    helpers.until_reason(harness, "InvalidSpec", timeout=HOUR + MINUTE)
    assert helpers.condition_of(harness, "Accepted")[1] == "InvalidSpec"
    harness.configure(projects=frozenset({PROJECT}))
    helpers.until_reason(harness, "Ready", timeout=HOUR + MINUTE)
    assert harness.simulation.gce.calls.writes() == writes
    helpers.assert_deleted_completely(harness)


def test_a_slice_in_a_project_that_is_not_served_any_more_is_not_deleted_until_it_is() -> None:
    harness = helpers.ready()
    name, writes = helpers.resource_name(harness), harness.simulation.gce.calls.writes()
    harness.configure(projects=frozenset({"other-project"}))
    helpers.until_reason(harness, "InvalidSpec", timeout=HOUR + MINUTE)
    unserved = (
        f"spec.project: {PROJECT} is not served by this installation; it serves other-project "
        "(Terraform's variable projects). "
    )
    assert helpers.condition_of(harness)[2] == (
        f"{unserved}Add the project to this variable, and the group continues within an hour. Until "
        "then its resources there are not deleted, even if the group is."
    )
    calls = len(_calls_about_the_group(harness))
    harness.delete(NAME)
    helpers.until(harness, lambda: "Nothing is deleted" in helpers.condition_of(harness)[2])
    harness.run_for(20 * MINUTE)
    message = (
        f"{unserved}Nothing is deleted there. Add the project to this variable, and the deletion "
        f"continues within half an hour. If the resources {name} are another installation's, remove "
        "the finalizer tpu-functions.dev/cleanup."
    )
    assert helpers.condition_of(harness) == ("False", "InvalidSpec", message)
    assert len(_calls_about_the_group(harness)) == calls
    harness.configure(projects=frozenset({PROJECT}))
    helpers.until_reason(harness, "DeletingMIG", timeout=30 * MINUTE)
    assert harness.simulation.gce.calls.writes() == writes + 1
    helpers.until_gone(harness)
    assert harness.leftovers() == []


# tpu-operator


MANAGED_ELSEWHERE = (
    "tpu-operator manages this group: it has its finalizers or children. Until they are removed, "
    "tpu-functions creates and repairs nothing. Migrate the group, or leave it to tpu-operator."
)


def test_a_group_with_finalizers_of_tpu_operator_is_not_handled_until_they_are_gone() -> None:
    harness = Harness()
    applied = manifest()
    applied["metadata"]["finalizers"] = ["tpu.google.com/cleanup-mig"]
    harness.apply(applied)
    harness.run_for(HOUR)
    assert helpers.condition_of(harness) == ("False", "ManagedElsewhere", MANAGED_ELSEWHERE)
    assert _calls_about_the_group(harness) == []
    group = harness.group(NAME)
    assert group is not None
    assert group["metadata"]["finalizers"] == ["tpu.google.com/cleanup-mig"]
    helpers.patch(harness, helpers.group_path(), {"metadata": {"finalizers": []}})
    helpers.until_ready(harness, timeout=5 * MINUTE)
    helpers.assert_deleted_completely(harness)


def test_a_group_with_children_of_tpu_operator_is_not_handled_until_they_are_gone() -> None:
    harness = Harness()
    define_children(harness)
    created = harness.apply(manifest())
    suffix = hashlib.sha256(created["metadata"]["uid"].encode()).hexdigest()[:8]
    path = "/apis/tpu.google.com/v1alpha1/namespaces/default/managedinstancegroups"
    child = {
        "apiVersion": "tpu.google.com/v1alpha1",
        "kind": "ManagedInstanceGroup",
        "metadata": {"name": f"my-slice-mig-{suffix}"},
    }
    harness.simulation.admin("POST", path, child)
    harness.run_for(HOUR)
    assert helpers.condition_of(harness) == ("False", "ManagedElsewhere", MANAGED_ELSEWHERE)
    assert _calls_about_the_group(harness) == []
    harness.simulation.admin("DELETE", f"{path}/my-slice-mig-{suffix}")
    helpers.until_ready(harness, timeout=40 * MINUTE)
    helpers.assert_deleted_completely(harness)


def _calls_about_the_group(harness: Harness) -> list[str]:
    """Calls to Compute Engine, without the lists by which leaked slices are found."""
    verbs = [record.verb for record in harness.simulation.gce.calls.records]
    return [verb for verb in verbs if not verb.endswith(".aggregatedList")]


# errors of Compute Engine that end


CASES = [
    pytest.param(injected, mode, id=f"{name}, {word}")
    for name, injected in INJECTED_ERRORS.items()
    for word, mode in {"BULK": {}, "INDIVIDUAL": dict(TWO_SINGLE)}.items()
    if word == "BULK" or name in ("stockout", "quota of MIGs")
]


@pytest.mark.conformance(cases={"stockout, BULK": "mig-creation-failed"})
@pytest.mark.parametrize("injected, mode", CASES)
def test_an_error_is_quoted_and_cleared_when_its_cause_is_fixed(
    injected: InjectedError, mode: dict[str, Any]
) -> None:
    harness = Harness()
    injected.begin(harness.simulation.gce.faults)
    harness.apply(manifest(**{**mode, **injected.change}))
    helpers.until_reason(harness, injected.reason, timeout=5 * MINUTE)
    harness.run_for(40 * MINUTE)
    status, reason, message = helpers.condition_of(harness)
    assert (status, reason) == ("False", injected.reason)
    assert injected.text in message
    assert [event for event in helpers.events(harness) if event[1] == injected.reason]
    assert most_attempts(harness) <= 5
    assert harness.simulation.gce.calls.writes() <= 25
    injected.end(harness.simulation.gce.faults)
    helpers.until_ready(harness, timeout=40 * MINUTE)
    assert dead_letters(harness) == []
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize(
    "permission, condition",
    [
        ("resourcePolicies.create", "WorkloadPolicyReady"),
        ("instanceGroupManagers.get", "ManagedInstanceGroupReady"),
    ],
)
def test_a_missing_permission_is_reported_in_the_condition_that_it_concerns(
    permission: str, condition: str
) -> None:
    injected = denied(f"compute.{permission}")
    harness = Harness()
    injected.begin(harness.simulation.gce.faults)
    harness.apply(manifest())
    helpers.until_reason(harness, "PermissionDenied", timeout=5 * MINUTE)
    assert helpers.condition_of(harness, condition)[:2] == ("False", "PermissionDenied")
    assert injected.text in helpers.condition_of(harness)[2]
    injected.end(harness.simulation.gce.faults)
    helpers.until_ready(harness, timeout=10 * MINUTE)
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize("permission", ["resourcePolicies.get", "instanceTemplates.get"])
def test_a_permission_that_only_a_deletion_needs_is_reported_by_it(permission: str) -> None:
    injected = denied(f"compute.{permission}")
    harness = Harness()
    injected.begin(harness.simulation.gce.faults)
    harness.apply(manifest())
    helpers.until_ready(harness)
    harness.delete("my-slice")
    helpers.until_reason(harness, "PermissionDenied", timeout=5 * MINUTE)
    assert injected.text in helpers.condition_of(harness)[2]
    assert helpers.vms(harness) == []
    injected.end(harness.simulation.gce.faults)
    helpers.until(harness, lambda: harness.leftovers() == [], timeout=10 * MINUTE)


@pytest.mark.parametrize("permission", ["instances.setMetadata", "instances.get"])
def test_missing_permission_to_write_tokens_is_reported(permission: str) -> None:
    injected = denied(f"compute.{permission}")
    harness = Harness()
    injected.begin(harness.simulation.gce.faults)
    harness.apply(manifest())
    harness.run_for(5 * MINUTE)
    assert helpers.condition_of(harness, "TokensInjected")[:2] == ("False", "PermissionDenied")
    assert injected.text in helpers.condition_of(harness, "TokensInjected")[2]
    assert helpers.condition_of(harness)[1] == "PermissionDenied"
    injected.end(harness.simulation.gce.faults)
    helpers.until_ready(harness, timeout=10 * MINUTE)
    helpers.assert_deleted_completely(harness)


# user templates


TEMPLATE_URI = f"projects/{PROJECT}/global/instanceTemplates/my-template"
OWN: dict[str, Any] = {
    "instanceConfig": None,
    "bootstrapKubernetes": None,
    "instanceTemplateURI": TEMPLATE_URI,
}


def test_a_missing_template_is_reported_and_used_once_it_exists() -> None:
    harness = Harness(helpers.JOIN_BY_OTHER_MEANS)
    harness.apply(manifest(**OWN))
    helpers.until_reason(harness, "InvalidTemplate", timeout=MINUTE)
    harness.run_for(20 * MINUTE)
    text = (
        f"instance template my-template: failed to fetch external template: {TEMPLATE_URI} does "
        "not exist (notFound). The group's own instance template is missing or does not fit. Create or "
        "replace it. The group continues by itself."
    )
    assert helpers.condition_of(harness) == ("False", "InvalidTemplate", text)
    assert ("Warning", "InvalidInstanceTemplate", text) in helpers.events(harness)
    helpers.create_template(harness, helpers.template())
    helpers.until_ready(harness, timeout=40 * MINUTE)
    harness.delete(NAME)
    helpers.until_gone(harness)
    assert harness.leftovers() == [TEMPLATE_URI]


# errors during a deletion


def test_a_mig_in_use_by_a_backend_service_is_deleted_when_it_is_no_longer_used() -> None:
    harness = helpers.ready()
    (path,) = helpers.of_kind(harness, "instanceGroupManagers")
    harness.simulation.gce.faults.use_group(path, "serving")
    harness.delete(NAME)
    helpers.until_reason(harness, "InUse", timeout=5 * MINUTE)
    assert "is already being used by " in helpers.condition_of(harness)[2]
    assert "serving" in helpers.condition_of(harness)[2]
    assert [event for event in helpers.events(harness) if event[1] == "InUse"]
    harness.run_for(HOUR)
    assert harness.group(NAME) is not None
    assert most_attempts(harness) <= 5
    harness.simulation.gce.faults.use_group(path)
    helpers.until_gone(harness, timeout=40 * MINUTE)
    assert harness.leftovers() == []


def is_reported(harness: Harness) -> bool:
    """True if an Event reports a missing permission."""
    return "PermissionDenied" in {reason for _, reason, _ in helpers.events(harness)}


@pytest.mark.parametrize(
    "permission",
    [
        "instanceGroupManagers.delete",
        "instanceTemplates.delete",
        "resourcePolicies.delete",
        "instanceGroupManagers.get",
        "instances.list",
    ],
)
def test_a_delete_without_permission_is_reported_and_executed_once_permitted(
    permission: str,
) -> None:
    injected = denied(f"compute.{permission}")
    harness = helpers.ready()
    injected.begin(harness.simulation.gce.faults)
    harness.delete(NAME)
    helpers.until(
        harness, lambda: permission == "instances.list" or is_reported(harness), 2 * MINUTE
    )
    harness.run_for(20 * MINUTE)
    if permission != "instances.list":  # needed only if a Node is missing
        assert REASONS[Reason.PERMISSION_DENIED] in helpers.condition_of(harness)[2]
        assert helpers.condition_of(harness)[:2] == ("False", "PermissionDenied")
        assert injected.text in helpers.condition_of(harness)[2]
    injected.end(harness.simulation.gce.faults)
    helpers.until_gone(harness, timeout=40 * MINUTE)
    assert harness.leftovers() == []


# transient errors


VERBS = (
    "resourcePolicies.insert",
    "instanceTemplates.insert",
    "instanceGroupManagers.insert",
    "instances.setMetadata",
    "instanceGroupManagers.delete",
    "instanceTemplates.delete",
    "resourcePolicies.delete",
)


def assert_each_operation_once(harness: Harness) -> None:
    """Assert that each resource was created and deleted once."""
    three = ("resourcePolicies", "instanceTemplates", "instanceGroupManagers")
    operations = {f"{kind}.{verb}": 1 for kind in three for verb in ("insert", "delete")}
    assert harness.operations == {**operations, "instances.insert": 2, "instances.delete": 2}


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("verb", VERBS)
def test_a_lost_answer_creates_nothing_twice(verb: str, calls: int) -> None:
    harness = Harness()
    harness.simulation.gce.faults.fail_next(verb, calls=calls, executed=True)
    harness.apply(manifest())
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)
    assert_each_operation_once(harness)
    assert dead_letters(harness) == []


@pytest.mark.conformance("del-child-error")
@pytest.mark.parametrize("verb", VERBS)
def test_a_failed_call_is_retried(verb: str) -> None:
    harness = Harness()
    harness.simulation.gce.faults.fail_next(verb, calls=3)
    harness.apply(manifest())
    helpers.until_ready(harness)
    assert [event for event in helpers.events(harness) if event[0] == "Warning"] == []
    helpers.assert_deleted_completely(harness)
    assert_each_operation_once(harness)


@pytest.mark.conformance("mig-op-failed", "del-op-failed")
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "instances.setMetadata"])
def test_a_failed_operation_is_retried(verb: str) -> None:
    harness = Harness()
    harness.simulation.gce.faults.fail_operations(verb, operations=2)
    harness.apply(manifest())
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize("http", [403, 429])
@pytest.mark.parametrize("after_s", [0, 3, 30, 200], ids=lambda s: f"after {s} s")
def test_a_slice_survives_minutes_of_rate_limiting(http: int, after_s: int) -> None:
    harness = Harness()
    harness.apply(manifest())
    harness.run_for(timedelta(seconds=after_s))
    harness.simulation.gce.faults.rate_limit(seconds=300, http=http)
    harness.run_for(timedelta(seconds=300))
    helpers.until_ready(harness, timeout=15 * MINUTE)
    harness.simulation.gce.faults.rate_limit(seconds=300, http=http)
    helpers.assert_deleted_completely(harness)
    assert_each_operation_once(harness)
    assert dead_letters(harness) == []
    assert most_attempts(harness) <= 5


def begin_deletion(harness: Harness) -> list[bool]:
    """Delete the group; return for each Node whether it is cordoned five seconds later."""
    harness.delete(NAME)
    harness.run_for(timedelta(seconds=5))
    nodes = helpers.nodes(harness).values()
    return [node["spec"].get("unschedulable", False) for node in nodes]


CLEANUP = ("Normal", "Cleanup", "TPU Node Group deletion initiated")


def test_a_deletion_is_reported_and_cordons_while_compute_engine_answers_503() -> None:
    harness = helpers.ready()
    faults = harness.simulation.gce.faults
    faults.fail_next("*", calls=100_000)
    assert begin_deletion(harness) == [True, True]
    waiting = "Waiting for ManagedInstanceGroup to be deleted"
    assert helpers.condition_of(harness) == ("False", "DeletingMIG", waiting)
    assert CLEANUP in helpers.events(harness)
    harness.run_for(20 * MINUTE)
    status, reason, message = helpers.condition_of(harness)
    assert (status, reason) == ("False", "DeletingMIG")
    assert message.startswith(f"{waiting}. tear_down has failed since 20")
    assert "and is retried: instance_group_managers.get: 503 backendError" in message
    faults.fail_next("*", calls=0)
    helpers.until_gone(harness, timeout=40 * MINUTE)
    assert harness.leftovers() == []


def test_a_deletion_is_reported_and_cordons_without_permission_to_read_the_mig() -> None:
    harness = helpers.ready()
    injected = denied("compute.instanceGroupManagers.get")
    injected.begin(harness.simulation.gce.faults)
    assert begin_deletion(harness) == [True, True]
    assert helpers.condition_of(harness)[:2] == ("False", "PermissionDenied")
    assert injected.text in helpers.condition_of(harness)[2]
    assert CLEANUP in helpers.events(harness)
    injected.end(harness.simulation.gce.faults)
    helpers.until_gone(harness, timeout=40 * MINUTE)
    assert harness.leftovers() == []


def test_a_deletion_reports_why_it_waits_and_not_why_the_creation_waited() -> None:
    harness = Harness()
    faults = harness.simulation.gce.faults
    faults.set_capacity("us-central1-c", "tpu7x", 0)
    harness.apply(manifest(instanceConfig=helpers.STANDARD))
    helpers.until_reason(harness, "InsufficientCapacity", timeout=5 * MINUTE)
    faults.fail_next("*", calls=100_000)
    begin_deletion(harness)
    waiting = "Waiting for ManagedInstanceGroup to be deleted"
    assert helpers.condition_of(harness) == ("False", "DeletingMIG", waiting)
    assert CLEANUP in helpers.events(harness)
    faults.fail_next("*", calls=0)
    helpers.until_gone(harness, timeout=40 * MINUTE)


@pytest.mark.conformance("mig-op-expired")
@pytest.mark.parametrize("message", NO_PROJECT)
@pytest.mark.parametrize("have_joined", [True, False])
def test_a_project_that_the_functions_cannot_see_proves_nothing_about_its_slices(
    have_joined: bool, message: str
) -> None:
    """Compute Engine answers 404 about the project, also if the account may not see it any more."""
    harness = helpers.ready() if have_joined else Harness()
    if not have_joined:
        harness.apply(manifest())
        helpers.until(harness, lambda: bool(helpers.vms(harness)))
    vms, nodes = helpers.vms(harness), set(helpers.nodes(harness))
    assert bool(nodes) is have_joined

    def hidden(_step: str, call: str) -> Response | None:
        error = {"code": 404, "message": message, "errors": [{"reason": "notFound"}]}
        return Response.of_json({"error": error}, 404) if "/compute/" in call else None

    harness.hooks.instead = hidden
    if have_joined:
        harness.run_for(2 * HOUR)
        assert set(helpers.nodes(harness)) == nodes
    harness.delete(NAME)
    harness.run_for(HOUR)
    _, reason, text = helpers.condition_of(harness)
    assert (reason, message in text) == ("PermissionDenied", True), text
    assert helpers.vms(harness) == vms
    harness.hooks.instead = lambda _step, _call: None
    helpers.until_gone(harness)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []


def test_a_slice_works_although_its_operations_no_longer_exist() -> None:
    harness = Harness()
    harness.apply(manifest())
    for _ in range(90):
        harness.run_for(timedelta(seconds=2))
        harness.simulation.gce.faults.forget_operations()
    helpers.until_ready(harness)
    harness.delete(NAME)
    for _ in range(90):
        harness.run_for(timedelta(seconds=2))
        harness.simulation.gce.faults.forget_operations()
    helpers.until_gone(harness)
    assert harness.leftovers() == []
    assert_each_operation_once(harness)


@pytest.mark.parametrize("verbs", ["*.insert", "*.delete", "instances.setMetadata"])
def test_operations_that_take_ten_minutes_are_awaited(verbs: str) -> None:
    harness = Harness()
    harness.simulation.gce.faults.slow_operations(verbs, 600)
    harness.apply(manifest())
    helpers.until_ready(harness, timeout=2 * HOUR)
    harness.delete(NAME)
    helpers.until_gone(harness, timeout=2 * HOUR)
    assert harness.leftovers() == []
    assert_each_operation_once(harness)


# errors of the cluster


@pytest.mark.parametrize(
    "content", [None, "", "apiVersion: v1\nkind: Config\n"], ids=["missing", "empty", "no context"]
)
def test_a_kubeconfig_that_cannot_be_used_is_named_in_the_log(content: str | None) -> None:
    harness = Harness()
    path = harness.kubeconfig("create_resources")
    valid = path.read_text()
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    harness.apply(manifest())
    harness.run_for(5 * MINUTE)
    text = notes(harness, "create_resources")
    assert f"KUBECONFIG='{path}' cannot be used: " in text
    assert "It must name a file in kubeconfig form with a current context." in text
    assert dead_letters(harness) == []
    path.write_text(valid)
    helpers.until_ready(harness, timeout=10 * MINUTE)
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize(
    "step, message",
    [
        ("create_resources", 'cannot get resource "namespaces"'),
        ("inject_token", 'cannot get resource "namespaces"'),
        ("label_node", 'cannot get resource "namespaces"'),
        ("sweep", 'cannot get resource "namespaces"'),
    ],
)
def test_missing_permissions_are_named_and_used_once_granted(step: str, message: str) -> None:
    harness = Harness()
    name = f"tpu-functions-{step.replace('_', '-')}"
    binding = _delete_and_return(harness, f"{RBAC}/clusterrolebindings/{name}")
    harness.apply(manifest())
    harness.run_for(10 * MINUTE)
    assert message in notes(harness, step)
    assert f"system:serviceaccount:tpu-functions:{step.replace('_', '-')}" in notes(harness, step)
    assert most_attempts(harness) <= 5
    assert dead_letters(harness) == []
    harness.simulation.admin("POST", f"{RBAC}/clusterrolebindings", binding)
    helpers.until_ready(harness, timeout=40 * MINUTE)
    helpers.assert_deleted_completely(harness)


def test_messages_while_a_starting_api_server_refuses_everyone_are_not_lost() -> None:
    """An API server that has not read the roles yet answers 403, although the permission exists."""
    harness = helpers.ready(manifest(instanceConfig=helpers.SPOT))
    binding = _delete_and_return(harness, f"{RBAC}/clusterrolebindings/tpu-functions-label-node")
    harness.simulation.gce.faults.preempt(helpers.vms(harness)[0])
    helpers.until(harness, lambda: "cannot list resource" in notes(harness, "label_node"))
    harness.simulation.admin("POST", f"{RBAC}/clusterrolebindings", binding)
    helpers.until_reason(harness, "Preempted", timeout=MINUTE)


def test_missing_permission_to_read_nodes_is_reported_in_the_condition() -> None:
    harness = Harness()
    complete = _drop_rule(harness, "clusterroles/tpu-functions-label-node", "nodes")
    harness.apply(manifest())
    harness.run_for(10 * MINUTE)
    status, reason, message = helpers.condition_of(harness, "NodesJoined")
    assert (status, reason) == ("False", "PermissionDenied")
    assert 'User "system:serviceaccount:tpu-functions:label-node"' in message
    assert 'cannot list resource "nodes"' in message
    harness.simulation.admin("PUT", f"{RBAC}/clusterroles/tpu-functions-label-node", complete)
    helpers.until_ready(harness, timeout=40 * MINUTE)
    helpers.assert_deleted_completely(harness)


def test_without_permission_to_write_the_status_the_log_reports_it_and_nothing_is_created() -> None:
    harness = Harness()
    complete = _drop_rule(
        harness, "clusterroles/tpu-functions-create-resources", "tpunodegroups/status"
    )
    harness.apply(manifest())
    harness.run_for(10 * MINUTE)
    assert 'cannot update resource "tpunodegroups/status"' in notes(harness, "create_resources")
    assert harness.simulation.gce.calls.writes() == 0
    harness.simulation.admin("PUT", f"{RBAC}/clusterroles/tpu-functions-create-resources", complete)
    helpers.until_ready(harness, timeout=40 * MINUTE)
    helpers.assert_deleted_completely(harness)


def test_missing_permission_to_write_events_stops_nothing() -> None:
    harness = Harness()
    for step in ("create-resources", "label-node", "tear-down"):
        _drop_rule(harness, f"clusterroles/tpu-functions-{step}", "events")
    harness.apply(manifest())
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)
    assert helpers.events(harness) == []
    undone = [str(line["left_undone"]) for line in harness.log.lines if "left_undone" in line]
    assert any('cannot create resource "events"' in text for text in undone)


def test_a_deletion_without_permissions_continues_once_they_are_granted() -> None:
    harness = helpers.ready()
    binding = _delete_and_return(harness, f"{RBAC}/clusterrolebindings/tpu-functions-tear-down")
    harness.delete(NAME)
    harness.run_for(10 * MINUTE)
    assert 'cannot get resource "namespaces"' in notes(harness, "tear_down")
    harness.simulation.admin("POST", f"{RBAC}/clusterrolebindings", binding)
    helpers.until_gone(harness, timeout=40 * MINUTE)
    assert harness.leftovers() == []


def test_refused_secrets_are_reported_with_the_missing_permission() -> None:
    harness = Harness()
    path = f"{RBAC}/namespaces/kube-system/rolebindings"
    binding = _delete_and_return(harness, f"{path}/tpu-functions-inject-token")
    harness.apply(manifest())
    harness.run_for(10 * MINUTE)
    status, reason, message = helpers.condition_of(harness, "TokensInjected")
    assert (status, reason) == ("False", "PermissionDenied")
    assert 'in the namespace "kube-system"' in message
    assert "system:serviceaccount:tpu-functions:inject-token" in message
    assert helpers.secrets(harness) == []
    harness.simulation.admin("POST", path, binding)
    helpers.until_ready(harness, timeout=40 * MINUTE)
    helpers.assert_deleted_completely(harness)


def _delete_and_return(harness: Harness, path: str) -> dict[str, Any]:
    """Delete an object of the installation; return the manifest that creates it again."""
    found = harness.simulation.admin("DELETE", path)
    assert found["kind"] != "Status" or found["status"] == "Success"
    name = path.rpartition("/")[2]
    kinds = {"clusterrolebindings": "ClusterRoleBinding", "rolebindings": "RoleBinding"}
    kind = kinds[path.split("/")[-2]]
    return next(
        document
        for document in manifests()
        if document["kind"] == kind and document["metadata"]["name"] == name
    )


def _drop_rule(harness: Harness, role: str, resource: str) -> dict[str, Any]:
    """Remove a rule from a role; return the complete role, to be written again later."""
    path = f"{RBAC}/{role}"
    found = harness.simulation.admin("GET", path)
    rules = [rule for rule in found["rules"] if resource not in rule["resources"]]
    assert rules != found["rules"]
    left = harness.simulation.admin("PUT", path, {**found, "rules": rules})
    return {**found, "metadata": left["metadata"]}


PAGE = Response(404, {"Content-Type": "text/html"}, b"<!DOCTYPE html><title>Error 404</title>")
"""The answer of a load balancer that has no route to Compute Engine."""


@pytest.mark.parametrize("change", [{}, TWO_SINGLE], ids=["BULK", "INDIVIDUAL"])
def test_a_404_that_is_not_an_answer_of_compute_engine_does_not_mean_that_a_slice_is_gone(
    change: dict[str, Any],
) -> None:
    harness = helpers.ready(manifest(**change), helpers.with_heartbeats())
    before = harness.simulation.gce.leftovers()
    nodes = helpers.nodes(harness).keys()
    harness.hooks.instead = lambda _step, call: PAGE if "/compute/" in call else None
    (vm, _) = helpers.vms(harness)
    harness.simulation.gce.faults.host_error(vm)
    harness.run_for(HOUR)
    assert helpers.nodes(harness).keys() == nodes
    harness.delete(NAME)
    harness.run_for(HOUR)
    assert harness.simulation.gce.leftovers() == before
    message = helpers.condition_of(harness)[2]
    assert "tear_down has failed since" in message
    assert "another server answers in place of the API (404); check its address, DNS" in message
    harness.hooks.instead = lambda _step, _call: None
    helpers.until_gone(harness)
    assert harness.leftovers() == []


@pytest.mark.parametrize("page", [PAGE, replace(PAGE, status=200)], ids=["404", "200"])
def test_a_page_in_place_of_the_api_servers_answer_does_not_mean_that_an_object_is_gone(
    page: Response,
) -> None:
    harness = helpers.ready(manifest(), helpers.with_heartbeats())
    harness.hooks.instead = lambda _step, call: None if "/compute/" in call else page
    lines = len(harness.log.lines)
    (vm, _) = helpers.vms(harness)
    harness.simulation.gce.faults.host_error(vm)
    harness.delete(NAME)
    harness.run_for(10 * MINUTE)
    decisions = {line["decision"] for line in harness.log.lines[lines:]}
    assert decisions <= {"TryAgain", "LeftToTheSweep"}
    notes = " ".join(line.get("note", "") for line in harness.log.lines[lines:])
    assert "the cluster does not serve this API, or another server answers in its place" in notes
    harness.hooks.instead = lambda _step, _call: None
    helpers.until_gone(harness)
    assert harness.leftovers() == []


def test_a_very_long_error_is_cut_in_the_middle_so_that_the_advice_stays() -> None:
    harness = Harness()
    text = f"Quota 'TPUS' exceeded.{' in region us-central1,' * 2_600} Limit: 8."
    harness.simulation.gce.faults.fail_next(
        "instanceGroupManagers.insert", 100_000, 403, "quotaExceeded", text
    )
    harness.apply(manifest())
    helpers.until_reason(harness, "QuotaExceeded")
    for kind in ("ManagedInstanceGroupReady", "Ready"):
        message = helpers.condition_of(harness, kind)[2]
        assert len(message) == 1024
        assert message.startswith(
            f"managed instance group {helpers.resource_name(harness)}: Quota 'T"
        )
        assert message.endswith(f"Limit: 8. (quotaExceeded). {REASONS[Reason.QUOTA_EXCEEDED]}")


LOCATION = (
    "'us-central1' violates constraint 'constraints/gcp.resourceLocations' on the resource "
    "'projects/my-gcp-project/regions/us-central1/resourcePolicies/x'."
)


@pytest.mark.parametrize(
    "verb, condition",
    [
        ("resourcePolicies.insert", "WorkloadPolicyReady"),
        ("instanceTemplates.insert", "InstanceTemplateReady"),
        ("instanceGroupManagers.insert", "ManagedInstanceGroupReady"),
        ("instances.setMetadata", "TokensInjected"),
    ],
)
def test_an_organization_policy_that_refuses_a_call_is_reported_immediately(
    verb: str, condition: str
) -> None:
    """Compute Engine answers 412, as it does if a fingerprint is stale."""
    harness = Harness()
    faults = harness.simulation.gce.faults
    faults.fail_next(verb, 100_000, 412, "conditionNotMet", LOCATION)
    harness.apply(manifest())
    helpers.until_reason(harness, "PolicyViolation", timeout=5 * MINUTE)
    status, reason, message = helpers.condition_of(harness, condition)
    assert (status, reason) == ("False", "PolicyViolation")
    assert LOCATION[:-1] in message
    assert message.endswith(REASONS[Reason.POLICY_VIOLATION])
    faults.fail_next(verb, 0)
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize("verb", ["resourcePolicies.insert", "instanceGroupManagers.insert"])
def test_a_condition_that_no_rule_knows_is_reported_while_it_is_retried(verb: str) -> None:
    harness = Harness()
    faults = harness.simulation.gce.faults
    faults.fail_next(verb, 100_000, 412, "conditionNotMet", "Something is not met.")
    harness.apply(manifest())
    harness.run_for(20 * MINUTE)
    message = helpers.condition_of(harness)[2]
    assert "create_resources has failed since " in message
    assert "Something is not met" in message
    faults.fail_next(verb, 0)
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)
