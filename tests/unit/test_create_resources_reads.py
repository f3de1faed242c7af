"""The reads of create_resources, which does not read a resource that is known to exist."""

from __future__ import annotations

from typing import Any

import pytest

from functions.create_resources import ObservedResources, ObservedUnreadable, observe, recover
from shared.base.reasons import Reason
from shared.node_groups.node_group import AnyGroup
from shared.node_groups.status import MIG, POLICY, TEMPLATE, Condition, Status, Type
from shared.ports.errors import CallError
from shared.ports.gce.values import ManagedInstance, Operation
from shared.triggers.audit_log import LogEvent
from shared.triggers.decode import Trigger
from shared.triggers.message import Cause, Message
from tests.unit.builders import NOW, RESOURCE, group, unreadable_group
from tests.unit.reads import reading_work
from tests.unit.test_create_resources import (
    ADDED,
    OWN,
    POLICY_AND_TEMPLATE_READY,
    creating,
    instance_group,
    outcome_status,
    policy,
    ready,
    resources,
    template,
)

RESYNC = Trigger("Resync", NOW, Message("default", "my-slice", "", Cause.RESYNC, NOW))
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


def event(method: str, *, has_failed: bool = False) -> Trigger:
    kind = method.split(".")[1]
    name = f"{RESOURCE}-ab12" if kind == "instances" else RESOURCE
    found = LogEvent(method, "my-gcp-project", "us-central1-c", name, kind, has_failed=has_failed)
    return Trigger(method, NOW, event=found)


POLICY_CREATED = event("compute.resourcePolicies.insert")
VM_FAILED = event("compute.instances.insert", has_failed=True)
REPORTED = {Type.MIG_READY: Condition("False", "QuotaExceeded", "", NOW, 1)}
PAUSED = {Type.MIG_READY: Condition("False", "Paused", "", NOW, 1)}
WAITING = {Type.MIG_READY: Condition("False", "Provisioning", "", NOW, 1)}
ALL_READY = {**POLICY_AND_TEMPLATE_READY, MIG: ready(MIG)}
BEING_CREATED = {POLICY: creating(), TEMPLATE: creating()}
CASES: dict[str, tuple[AnyGroup, Status, Trigger, bool, dict[str, Any], list[str]]] = {
    "a new group: the children of tpu-operator": (
        UNOWNED,
        Status(),
        ADDED,
        True,
        {},
        ["has_operator_children"],
    ),
    "a group whose status was lost: all": (group(), Status(), ADDED, True, {}, ALL),
    "no insert was called yet: nothing": (
        group(),
        Status(resources=resources()),
        ADDED,
        True,
        {},
        [],
    ),
    "no insert was called yet, the first observation was stale: all": (
        group(),
        Status(resources=resources()),
        ADDED,
        False,
        {},
        ALL,
    ),
    "all resources are ready: the MIG": (
        group(),
        Status(resources=ALL_READY),
        RESYNC,
        True,
        {},
        ["find_mig"],
    ),
    "the MIG is being created, the first observation was stale: all": (
        group(),
        Status(resources={**POLICY_AND_TEMPLATE_READY, MIG: creating()}),
        RESYNC,
        False,
        {},
        ALL,
    ),
    "all resources are ready, the first observation was stale: the MIG": (
        group(),
        Status(resources=ALL_READY),
        RESYNC,
        False,
        {},
        ["find_mig"],
    ),
    "an insert has created nothing: its operation": (
        group(),
        Status(resources={**POLICY_AND_TEMPLATE_READY, MIG: creating(operation="op")}),
        RESYNC,
        True,
        ABSENT,
        ["find_mig", "find_operation"],
    ),
    "an insert without an operation has created nothing: the MIG": (
        group(),
        Status(resources={**POLICY_AND_TEMPLATE_READY, MIG: creating()}),
        RESYNC,
        True,
        ABSENT,
        ["find_mig"],
    ),
    "VMs are being created: the members": (
        group(),
        Status(resources=ALL_READY),
        RESYNC,
        True,
        {"find_mig": instance_group(creating=1)},
        ["find_mig", "list_managed_instances"],
    ),
    "VMs are being repaired: the members": (
        group(),
        Status(resources=ALL_READY),
        RESYNC,
        True,
        {"find_mig": instance_group(recreating=1)},
        ["find_mig", "list_managed_instances"],
    ),
    "VMs are being repaired, a resize has ended, and an error is reported: the members": (
        group(),
        Status(resources=ALL_READY, conditions=REPORTED),
        event("compute.instanceGroupManagers.resize"),
        True,
        {"find_mig": instance_group(recreating=1)},
        ["find_mig", "list_managed_instances"],
    ),
    "VMs are being repaired, a resize has ended, and no error is reported: the MIG": (
        group(),
        Status(resources=ALL_READY),
        event("compute.instanceGroupManagers.resize"),
        True,
        {"find_mig": instance_group(recreating=1)},
        ["find_mig"],
    ),
    "the insert of a VM has failed: the members": (
        group(),
        Status(resources=ALL_READY, conditions=WAITING),
        VM_FAILED,
        True,
        {"find_mig": instance_group(creating=1)},
        ["find_mig", "list_managed_instances"],
    ),
    "the insert of a VM has succeeded: the MIG": (
        group(),
        Status(resources=ALL_READY),
        event("compute.instances.insert"),
        True,
        {"find_mig": instance_group(creating=1)},
        ["find_mig"],
    ),
    "the insert of a VM has failed after a reported error: nothing": (
        group(),
        Status(resources=ALL_READY, conditions=REPORTED),
        VM_FAILED,
        True,
        {},
        [],
    ),
    "the insert of a VM has failed while the group is paused: the MIG and its VMs": (
        group(),
        Status(resources=ALL_READY, conditions=PAUSED),
        VM_FAILED,
        True,
        {"find_mig": instance_group(creating=1)},
        ["find_mig", "list_managed_instances"],
    ),
    "the insert of the MIG has failed: the MIG": (
        group(),
        Status(resources=ALL_READY, conditions=REPORTED),
        event("compute.instanceGroupManagers.insert", has_failed=True),
        True,
        {},
        ["find_mig"],
    ),
    "the policy was created: not the template": (
        group(),
        Status(resources={**resources(), **BEING_CREATED}),
        POLICY_CREATED,
        True,
        {},
        ["find_policy"],
    ),
    "the policy was created, the first observation was stale: all": (
        group(),
        Status(resources={**resources(), **BEING_CREATED}),
        POLICY_CREATED,
        False,
        {},
        ALL,
    ),
    "the MIG of a user template is to be inserted: the template": (
        group(change=OWN),
        Status(resources=resources(**{POLICY: ready(POLICY)})),
        ADDED,
        True,
        {},
        ["find_template"],
    ),
    "the MIG of a user template may have to be inserted again: both": (
        group(change=OWN),
        Status(resources=ALL_READY),
        RESYNC,
        True,
        {},
        ["find_template", "find_mig"],
    ),
    "the slice of a user template was complete: the MIG": (
        group(change=OWN),
        Status(resources=ALL_READY, completed_at=NOW),
        RESYNC,
        True,
        {},
        ["find_mig"],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_only_the_resources_that_may_have_changed_are_read(
    case: tuple[AnyGroup, Status, Trigger, bool, dict[str, Any], list[str]],
) -> None:
    about, known, trigger, is_first, answers, calls = case
    work, reads = reading_work(
        about, known, trigger, ANSWERS | answers, is_first_observation=is_first
    )
    observed = observe(work)
    assert reads.calls == calls
    assert isinstance(observed, ObservedResources)
    assert len(observed.operations) == calls.count("find_operation")
    assert bool(observed.members) is ("list_managed_instances" in calls)


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
    "call, condition",
    [
        ("resource_policies.get", Type.POLICY_READY),
        ("region_operations.get", Type.POLICY_READY),
        ("instance_templates.get", Type.TEMPLATE_READY),
        ("region_instance_templates.get", Type.TEMPLATE_READY),
        ("global_operations.get", Type.TEMPLATE_READY),
        ("instance_group_managers.get", Type.MIG_READY),
        ("zone_operations.get", Type.MIG_READY),
        ("GET /api/v1/namespaces", Type.MIG_READY),
    ],
)
def test_an_error_of_a_call_is_reported_with_the_resource_of_the_call(
    call: str, condition: Type
) -> None:
    work, _ = reading_work(group(), Status(), ADDED, {})
    plan = recover(work, CallError(call, 403, "forbidden", "Required 'x' permission"))
    assert plan is not None
    conditions = outcome_status(plan).conditions
    assert [kind for kind in conditions if kind is not Type.READY] == [condition]
    assert conditions[condition].reason == Reason.PERMISSION_DENIED
