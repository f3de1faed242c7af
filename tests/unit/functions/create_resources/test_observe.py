# ruff: noqa: E501  (a table reads best with a row on a line)
"""The reads of create_resources, which does not read a resource that is known to exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from functions.create_resources import recover
from functions.create_resources.observe import ObservedResources, ObservedUnreadable, observe
from shared.base.reasons import Reason
from shared.node_groups.node_group import AnyGroup
from shared.node_groups.status import MIG, POLICY, TEMPLATE, Condition, Status, Type
from shared.ports.errors import About, CallError
from shared.ports.gce.values import ManagedInstance, Operation
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import LogTrigger, ObjectTrigger, Trigger
from tests.support.builders import NOW, RESOURCE, group, unreadable_group
from tests.support.compute import instance_group, policy, template
from tests.support.reads import reading_work
from tests.unit.functions.create_resources.objects import (
    ADDED,
    OWN,
    POLICY_AND_TEMPLATE_READY,
    creating,
    outcome_status,
    ready,
    resources,
)

RESYNC = ObjectTrigger(Message("default", "my-slice", "", Cause.RESYNC, NOW))
ANSWERS: dict[str, Any] = {
    "has_operator_children": False,
    "find_mig": instance_group(),
    "find_policy": policy(),
    "find_template": template(),
    "find_operation": Operation("op", True),
    "list_managed_instances": (ManagedInstance("a", ""),),
}
UNOWNED = group(owned=False)
ABSENT = {"find_mig": None, "find_policy": None, "find_template": None}
ALL = ["find_policy", "find_template", "find_mig"]


def event(method: str, *, has_failed: bool = False, operation: str = "") -> Trigger:
    kind = method.split(".")[1]
    name = f"{RESOURCE}-ab12" if kind == "instances" else RESOURCE
    found = LogEvent(method, "my-gcp-project", "us-central1-c", name, kind, has_failed=has_failed)
    return LogTrigger(at=NOW, event=replace(found, operation=operation))


POLICY_CREATED = event("compute.resourcePolicies.insert")
VM_FAILED = event("compute.instances.insert", has_failed=True)


def all_ready(reason: str = "", **change: Any) -> Status:
    """The status of a group whose resources are ready, and the reason why its MIG is not complete."""
    conditions = {Type.MIG_READY: Condition("False", reason, "", NOW, 1)} if reason else {}
    known = {**POLICY_AND_TEMPLATE_READY, MIG: ready(MIG)}
    return Status(resources=known, conditions=conditions, **change)


def mig_being_created(operation: str = "") -> Status:
    return Status(resources={**POLICY_AND_TEMPLATE_READY, MIG: creating(operation=operation)})


INTENDED = Status(resources=resources())
BEING_CREATED = Status(resources={**resources(), POLICY: creating(), TEMPLATE: creating()})
INSERTING = Status(
    resources={
        **resources(),
        POLICY: creating(operation="op"),
        TEMPLATE: creating(operation="op-t"),
    }
)
POLICY_IS_READY = Status(resources=resources(**{POLICY: ready(POLICY)}))
CREATING = {"find_mig": instance_group(creating=1)}
BULK_WAITS = {"find_mig": instance_group(creating=2, is_bulk_in_progress=True, missing=2)}
BULK_GRANTED = {"find_mig": instance_group(creating=2, is_bulk_in_progress=True, missing=0)}
REPAIRING = {"find_mig": instance_group(recreating=1)}
RESIZED = event("compute.instanceGroupManagers.resize")
MIG_FAILED = event("compute.instanceGroupManagers.insert", has_failed=True)
MEMBERS = ["find_mig", "list_managed_instances"]
CASES: dict[str, tuple[Status, Trigger, dict[str, Any], list[str]]] = {
    "the status was lost: all": (Status(), ADDED, {}, ALL),
    "no insert was called yet: nothing": (INTENDED, ADDED, {}, []),
    "the policy was created: not the template": (BEING_CREATED, POLICY_CREATED, {}, ALL[:1]),
    "its own insert of the policy has succeeded: nothing": (INSERTING, event("compute.resourcePolicies.insert", operation="op"), {}, []),
    "its own insert of the template has succeeded: nothing": (INSERTING, event("compute.instanceTemplates.insert", operation="op-t"), {}, []),
    "its own insert of the policy has failed: that": (INSERTING, event("compute.resourcePolicies.insert", operation="op", has_failed=True), {}, ALL[:1]),
    "another insert of the policy has succeeded: that": (INSERTING, event("compute.resourcePolicies.insert", operation="x"), {}, ALL[:1]),
    "a delete of the policy has the operation: that": (INSERTING, event("compute.resourcePolicies.delete", operation="op"), {}, ALL[:1]),
    "no VM of a BULK MIG exists yet: not the members": (all_ready(), RESYNC, BULK_WAITS, ["find_mig"]),
    "the VMs of a BULK MIG exist: the members": (all_ready(), RESYNC, BULK_GRANTED, MEMBERS),
    "the end of another insert comes late: not the MIG": (all_ready(), POLICY_CREATED, {}, []),
    "the end of another insert comes twice: not the MIG": (mig_being_created("op"), POLICY_CREATED, {}, []),
    "the end of another insert comes while no insert of the MIG is known: the MIG": (mig_being_created(), POLICY_CREATED, {}, ["find_mig"]),
    "all are ready: the MIG": (all_ready(), RESYNC, {}, ["find_mig"]),
    "an insert has created nothing: its operation": (mig_being_created("op"), RESYNC, ABSENT, ["find_mig", "find_operation"]),
    "VMs are being created: the members": (all_ready(), RESYNC, CREATING, MEMBERS),
    "VMs are being repaired: the members": (all_ready(), RESYNC, REPAIRING, MEMBERS),
    "a resize has ended, an error is reported: the members": (all_ready("QuotaExceeded"), RESIZED, REPAIRING, MEMBERS),
    "the insert of a VM has failed: the members": (all_ready("Provisioning"), VM_FAILED, CREATING, MEMBERS),
    "it has succeeded after a reported error: the members": (all_ready("QuotaExceeded"), event("compute.instances.insert"), CREATING, MEMBERS),
    "it has failed after a reported error: nothing": (all_ready("QuotaExceeded"), VM_FAILED, {}, []),
    "it has failed while the group is paused: the members": (all_ready("Paused"), VM_FAILED, CREATING, MEMBERS),
    "the insert of the MIG has failed after a reported error: the MIG": (all_ready("QuotaExceeded"), MIG_FAILED, {}, ["find_mig"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_only_the_resources_that_may_have_changed_are_read(
    case: tuple[Status, Trigger, dict[str, Any], list[str]],
) -> None:
    known, trigger, answers, calls = case
    work, reads = reading_work(group(), known, trigger, ANSWERS | answers)
    observed = observe(work)
    assert reads.calls == calls
    assert isinstance(observed, ObservedResources)
    assert len(observed.operations) == calls.count("find_operation")
    assert bool(observed.members) is ("list_managed_instances" in calls)


@pytest.mark.parametrize(
    "kind, method, operation, uri",
    [
        (POLICY, "resourcePolicies", "op", "regions/us-central1/resourcePolicies"),
        (TEMPLATE, "instanceTemplates", "op-t", "global/instanceTemplates"),
    ],
)
def test_what_its_own_insert_has_made_is_its_own(
    kind: str, method: str, operation: str, uri: str
) -> None:
    trigger = event(f"compute.{method}.insert", operation=operation)
    work, _ = reading_work(group(), INSERTING, trigger, {})
    observed = observe(work)
    assert isinstance(observed, ObservedResources)
    assert (found := observed.found[kind]) is not None
    assert (found.uri, found.description) == (
        f"projects/my-gcp-project/{uri}/{RESOURCE}",
        group().mark,
    )


@pytest.mark.parametrize(
    "known, trigger, calls",
    [
        (INTENDED, ADDED, ALL),
        (BEING_CREATED, POLICY_CREATED, ALL),
        (INSERTING, event("compute.resourcePolicies.insert", operation="op"), ALL),
        (mig_being_created(), RESYNC, ALL),
        (all_ready(), RESYNC, ["find_mig"]),
    ],
)
def test_all_that_is_not_ready_is_read_after_a_stale_observation(
    known: Status, trigger: Trigger, calls: list[str]
) -> None:
    work, reads = reading_work(group(), known, trigger, ANSWERS, is_first_observation=False)
    observe(work)
    assert reads.calls == calls


@pytest.mark.parametrize(
    "known, calls",
    [
        pytest.param(POLICY_IS_READY, ["find_template"], id="its MIG is to be inserted"),
        pytest.param(
            all_ready(), ["find_template", "find_mig"], id="its MIG may be inserted again"
        ),
        pytest.param(all_ready(completed_at=NOW), ["find_mig"], id="its slice was complete"),
    ],
)
def test_a_user_template_is_read_as_long_as_the_mig_may_be_inserted(
    known: Status, calls: list[str]
) -> None:
    work, reads = reading_work(group(change=OWN), known, RESYNC, ANSWERS)
    observe(work)
    assert reads.calls == calls


@pytest.mark.parametrize(
    "about, calls, is_foreign",
    [
        pytest.param(group(deleting=True), [], False, id="being deleted"),
        pytest.param(UNOWNED, ["has_operator_children"], True, id="of tpu-operator"),
        pytest.param(
            group(owned=False, finalizers=["tpu.google.com/cleanup-mig"]),
            [],
            False,
            id="with tpu-operator's finalizer",
        ),
        pytest.param(group(change={"project": "other-project"}), [], False, id="not served"),
        pytest.param(group(change={"nodeCount": 3}), [], False, id="invalid"),
    ],
)
def test_no_resource_is_read_for_a_group_that_gets_no_insert(
    about: AnyGroup, calls: list[str], is_foreign: bool
) -> None:
    answers = {"has_operator_children": is_foreign}
    work, reads = reading_work(about, Status(), ADDED, answers)
    observed = observe(work)
    assert isinstance(observed, ObservedResources)
    assert observed.has_operator_children is is_foreign
    assert (observed.found, reads.calls) == ({}, calls)


@pytest.mark.parametrize("owned, is_foreign", [(True, False), (False, True)])
def test_an_unreadable_group_that_is_not_owned_may_be_managed_by_tpu_operator(
    owned: bool, is_foreign: bool
) -> None:
    about = unreadable_group(owned=owned)
    work, _ = reading_work(about, Status(), ADDED, {"has_operator_children": True})
    assert observe(work) == ObservedUnreadable(about, Status(), is_foreign)


@pytest.mark.parametrize(
    "kind, condition",
    [
        ("resourcePolicies", Type.POLICY_READY),
        ("instanceTemplates", Type.TEMPLATE_READY),
        ("instanceGroupManagers", Type.MIG_READY),
        ("Namespace", Type.MIG_READY),
    ],
)
def test_an_error_of_a_call_is_reported_with_the_resource_of_the_call(
    kind: str, condition: Type
) -> None:
    work, _ = reading_work(group(), Status(), ADDED, {})
    about = About(kind, "x")
    plan = recover(work, CallError("a call", 403, "forbidden", "Required 'x' permission", about))
    assert plan is not None
    conditions = outcome_status(plan).conditions
    assert [kind for kind in conditions if kind is not Type.READY] == [condition]
    assert conditions[condition].reason == Reason.PERMISSION_DENIED


@pytest.mark.parametrize(
    "about, is_redelivered, is_first, may_repeat",
    [
        pytest.param(UNOWNED, False, True, False, id="another invocation is taking it"),
        pytest.param(UNOWNED, True, True, True, id="that invocation has ended"),
        pytest.param(
            UNOWNED, False, False, True, id="this one has lost a race, and nobody owns it"
        ),
        pytest.param(group(), False, False, False, id="the winner inserts"),
    ],
)
def test_young_intents_are_repeated_by_one_invocation(
    about: AnyGroup, is_redelivered: bool, is_first: bool, may_repeat: bool
) -> None:
    trigger = replace(RESYNC, is_redelivered=is_redelivered)
    answers = {**ABSENT, "has_operator_children": False}
    known = Status(resources={POLICY: creating(NOW), TEMPLATE: creating(NOW)})
    work, _ = reading_work(about, known, trigger, answers, is_first_observation=is_first)
    found = observe(work)
    assert isinstance(found, ObservedResources)
    assert found.may_repeat_insert is may_repeat
