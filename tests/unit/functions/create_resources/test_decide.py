# ruff: noqa: E501  (a table reads best with a row on a line)
"""The decisions of create_resources: tables of observations and plans."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from functions.create_resources.actions import InsertCall, InsertResources, TakeOwnership
from functions.create_resources.decide import decide
from functions.create_resources.observe import ObservedResources, ObservedUnreadable
from functions.create_resources.user_template import find_template_violation
from shared.base.names import FINALIZER
from shared.base.reasons import REASONS, Reason
from shared.frame.plan import Action, Plan, Send
from shared.node_groups.resources import Found
from shared.node_groups.status import (
    MIG,
    POLICY,
    TEMPLATE,
    Condition,
    Pending,
    Resource,
    State,
    Status,
    Type,
)
from shared.node_groups.work import WriteStatus
from shared.ports.gce.values import GceError, ManagedInstance, Mig, Operation
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import ObjectTrigger
from tests.support.builders import NOW, RESOURCE, flat, group, unreadable_group
from tests.support.compute import URI, instance_group, policy, template
from tests.unit.functions.create_resources.objects import (
    EARLIER,
    OWN,
    POLICY_AND_TEMPLATE_READY,
    RESYNC,
    creating,
    observed,
    outcome_status,
    ready,
    resources,
)

JUST_NOW = NOW - timedelta(seconds=2)


def inserts(plan: Plan) -> list[str]:
    return [insert.kind for insert in list_inserts(plan)]


def list_inserts(plan: Plan) -> list[InsertCall]:
    actions = (action for action in flat(plan) if isinstance(action, InsertResources))
    return [insert for action in actions for insert in action.inserts]


def kinds(plan: Plan) -> list[type[Action]]:
    return [type(action) for action in plan.list_actions()]


@pytest.mark.conformance("stat-finalizers")
def test_a_new_group_gets_finalizer_and_label_before_the_first_insert() -> None:
    plan = decide(observed(group(owned=False)), NOW)

    assert kinds(plan) == [
        WriteStatus,
        TakeOwnership,
        InsertResources,
    ]
    assert inserts(plan) == [POLICY, TEMPLATE]


@pytest.mark.parametrize(
    "may_repeat, actions",
    [(False, [WriteStatus]), (True, [WriteStatus, TakeOwnership, InsertResources])],
    ids=["another invocation takes it now", "that invocation has ended, or has lost it"],
)
def test_one_invocation_takes_ownership_of_a_new_group(
    may_repeat: bool, actions: list[type]
) -> None:
    """It has written its intents. If another one took the ownership meanwhile, it could insert nothing,
    and the other one would not, because the intents are not its own."""
    intents = Status(
        resources={POLICY: creating(NOW), TEMPLATE: creating(NOW), MIG: Resource(RESOURCE)}
    )
    given = observed(group(owned=False), intents, may_repeat_insert=may_repeat)
    plan = decide(replace(given, found={POLICY: None, TEMPLATE: None}), NOW)
    assert kinds(plan) == actions


def test_nothing_is_inserted_for_a_group_that_nobody_owns() -> None:
    begun = Status(resources={POLICY: creating(NOW), MIG: Resource(RESOURCE)})
    absent: dict[str, Found | None] = {POLICY: None, TEMPLATE: None, MIG: None}
    plan = decide(replace(observed(group(owned=False), begun), found=absent), NOW)
    assert inserts(plan) == []

    restored = replace(group(owned=False), finalizers=(FINALIZER,))
    plan = decide(replace(observed(restored), found=absent), NOW)
    assert kinds(plan) == [WriteStatus, TakeOwnership, InsertResources]


def test_a_group_with_an_unreadable_spec_is_owned_and_reports_the_invalid_field() -> None:
    plan = decide(ObservedUnreadable(unreadable_group(owned=False), Status()), NOW)
    accepted = outcome_status(plan).conditions[Type.ACCEPTED]
    assert (plan.outcome, kinds(plan)) == ("InvalidSpec", [WriteStatus, TakeOwnership])
    assert (accepted.status, accepted.reason) == ("False", "InvalidSpec")
    assert accepted.message.startswith("spec.nodeLocation")


def test_a_group_whose_spec_becomes_unreadable_keeps_the_entries_of_its_resources() -> None:
    known = Status(resources={MIG: Resource(RESOURCE, State.READY, NOW)})
    plan = decide(ObservedUnreadable(unreadable_group(), known), NOW)
    assert outcome_status(plan).resources == known.resources


def test_an_owned_group_without_status_and_spec_has_an_entry_for_a_possible_mig() -> None:
    plan = decide(ObservedUnreadable(unreadable_group(), Status()), NOW)
    assert outcome_status(plan).resources == {MIG: Resource(RESOURCE, State.CREATING, NOW)}


def test_the_first_status_has_an_entry_for_each_required_resource() -> None:
    given = observed(group(owned=False))
    first = outcome_status(decide(given, NOW))

    assert {kind: entry.state for kind, entry in first.resources.items()} == {
        POLICY: State.CREATING,
        TEMPLATE: State.CREATING,
        MIG: State.PENDING,
    }


CASES: dict[str, tuple[dict[str, Resource], dict[str, Found | None], list[str], str]] = {
    "policy and template exist: the MIG is inserted": ({POLICY: creating(operation="op"), TEMPLATE: ready(TEMPLATE)}, {POLICY: policy()}, [MIG], "Inserting"),
    "only the policy exists: wait for the template": (
        {POLICY: creating(operation="op"), TEMPLATE: creating(operation="op")},
        {POLICY: policy()},
        [],
        "Waiting",
    ),
    "a recent intent is of an invocation that is still inserting": ({POLICY: creating(JUST_NOW), TEMPLATE: ready(TEMPLATE)}, {POLICY: None}, [], "Waiting"),
    "an old intent without an operation is of an invocation that crashed": (
        {POLICY: creating(), TEMPLATE: ready(TEMPLATE)},
        {POLICY: None},
        [POLICY],
        "Inserting",
    ),
    "the MIG was deleted before the slice was complete: it is inserted again": (POLICY_AND_TEMPLATE_READY | {MIG: ready(MIG)}, {MIG: None}, [MIG], "Inserting"),
    "all are ready": (POLICY_AND_TEMPLATE_READY | {MIG: ready(MIG)}, {MIG: instance_group()}, [], "ResourcesReady"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_create_resources_inserts_the_resources_that_are_missing(
    case: tuple[dict[str, Resource], dict[str, Found | None], list[str], str],
) -> None:
    entries, found, expected, outcome = case
    known = Status(resources=resources(**entries))
    plan = decide(observed(known=known, found=found), NOW)

    assert (inserts(plan), plan.outcome) == (expected, outcome)


OPERATIONS: dict[str, tuple[Operation | None, State, str]] = {
    "is running": (Operation("op", False), State.CREATING, ""),
    "does not exist any more": (None, State.CREATING, POLICY),
    "succeeded, and the resource does not exist": (Operation("op", True), State.CREATING, POLICY),
    "failed with an environment error": (
        Operation("op", True, GceError("QUOTA_EXCEEDED", "Quota 'X' exceeded.", 403)),
        State.FAILED,
        "",
    ),
    "failed with an internal error": (
        Operation("op", True, GceError("INTERNAL_ERROR", "Internal error. Please try again", 500)),
        State.FAILED,
        "",
    ),
}


@pytest.mark.conformance(cases={"is running": "mig-op-still-running"})
@pytest.mark.parametrize("case", OPERATIONS.values(), ids=OPERATIONS)
def test_the_operation_of_an_insert_without_a_resource_decides_about_a_retry(
    case: tuple[Operation | None, State, str],
) -> None:
    operation, state, expected = case
    known = Status(resources=resources(**{POLICY: creating(operation="op")}))
    known = known.with_resource(TEMPLATE, ready(TEMPLATE))
    given = observed(known=known, found={POLICY: None}, operations={POLICY: operation})
    plan = decide(given, NOW)

    assert inserts(plan) == ([expected] if expected else [])
    assert outcome_status(plan).resources[POLICY].state is state


def test_the_mig_of_a_slice_that_was_complete_is_not_inserted_again() -> None:
    known = Status(
        resources=resources(**POLICY_AND_TEMPLATE_READY, **{MIG: ready(MIG)}), completed_at=EARLIER
    )
    given = observed(known=known, found={MIG: None})
    plan = decide(given, NOW)

    condition = outcome_status(plan).conditions[Type.READY]
    assert inserts(plan) == []
    assert condition.reason == Reason.RESOURCE_LOST
    assert condition.message == (
        f"The managed instance group {RESOURCE} is gone. The slice was complete and its managed "
        "instance group is gone. It is not created again: delete the group and apply it again."
    )


@pytest.mark.parametrize("mig, is_gone", [(None, True), (instance_group(), False)])
def test_a_mig_that_is_created_again_has_lost_no_vms(mig: Mig | None, is_gone: bool) -> None:
    known = Status(
        resources=resources(**POLICY_AND_TEMPLATE_READY, **{MIG: ready(MIG)}),
        conditions={Type.NODES_JOINED: Condition("False", Reason.NODE_LOST, "lost", EARLIER, 1)},
        pending=(Pending(f"{RESOURCE}-aaaa", Reason.NODE_LOST, EARLIER),),
    )
    given = observed(known=known, found={MIG: mig}, may_repeat_insert=True)
    plan = decide(given, NOW)

    after = outcome_status(plan)
    assert inserts(plan) == ([MIG] if is_gone else [])
    assert (after.pending == (), Type.NODES_JOINED not in after.conditions) == (is_gone, is_gone)


@pytest.mark.conformance("tmpl-never-updated")
def test_a_resource_with_another_ownership_mark_is_a_conflict_and_not_inserted() -> None:
    known = Status(resources=resources(**{POLICY: creating(), TEMPLATE: ready(TEMPLATE)}))
    given = observed(known=known, found={POLICY: policy("another mark")})
    plan = decide(given, NOW)

    condition = outcome_status(plan).conditions[Type.READY]
    assert inserts(plan) == []
    assert condition.reason == Reason.RESOURCE_CONFLICT
    assert "Delete it, or delete the group and apply it again." in condition.message


def test_a_failed_insert_is_retried_on_a_resync_and_keeps_the_time_of_its_first_error() -> None:
    failed = creating().fail(Reason.QUOTA_EXCEEDED, "quotaExceeded", "no", EARLIER)
    known = Status(resources=resources(**{POLICY: failed, TEMPLATE: ready(TEMPLATE)}))
    young = replace(failed, since=JUST_NOW)

    plan = decide(observed(known=known, trigger=RESYNC, found={POLICY: None}), NOW)
    on_event_plan = decide(
        observed(known=known.with_resource(POLICY, young), found={POLICY: None}), NOW
    )

    assert (inserts(plan), inserts(on_event_plan)) == ([POLICY], [])
    again = outcome_status(plan).resources[POLICY]
    assert again.error is not None
    assert again.error.since == EARLIER


def test_an_owned_group_without_status_gets_entries_for_all_resources() -> None:
    given = observed(found={POLICY: None, TEMPLATE: None, MIG: instance_group()})
    plan = decide(given, NOW)

    entries = outcome_status(plan).resources
    assert entries[POLICY].state is State.CREATING
    assert entries[MIG].state is State.READY


def test_a_paused_group_gets_no_insert() -> None:
    paused = group(annotations={"tpu-functions.dev/paused": "true"})
    given = observed(paused, Status(resources=resources()))
    plan = decide(given, NOW)

    assert (inserts(plan), plan.outcome) == ([], "Paused")
    assert outcome_status(plan).conditions[Type.READY].reason == Reason.PAUSED


def test_a_group_that_is_being_deleted_triggers_tear_down() -> None:
    plan = decide(observed(group(deleting=True)), NOW)
    assert [action.step for action in flat(plan) if isinstance(action, Send)] == ["tear_down"]


LOST = Status(
    resources=resources(**POLICY_AND_TEMPLATE_READY, **{MIG: ready(MIG)}),
    pending=(Pending(f"{RESOURCE}-aaaa", Reason.PREEMPTED, NOW - timedelta(hours=1)),),
    completed_at=NOW - timedelta(hours=2),
)
DUE_REPAIRS: dict[str, tuple[Cause, dict[str, Any], list[str]]] = {
    "repair was changed": (Cause.SPEC_CHANGED, {}, ["tear_down"]),
    "a pause was removed": (Cause.METADATA_CHANGED, {}, ["tear_down"]),
    "it is not repaired": (Cause.SPEC_CHANGED, {"change": {"repair": "Never"}}, []),
    "tear_down did not find it lost": (Cause.FORWARDED, {}, []),
    "a resync, which tear_down gets, too": (Cause.RESYNC, {}, []),
}


@pytest.mark.parametrize("cause, options, steps", DUE_REPAIRS.values(), ids=DUE_REPAIRS)
def test_a_change_that_makes_a_repair_due_triggers_tear_down(
    cause: Cause, options: dict[str, Any], steps: list[str]
) -> None:
    trigger = ObjectTrigger(Message("default", "my-slice", "", cause, NOW))
    about = group(**{"change": {"repair": "Recreate"}, **options})
    plan = decide(observed(about, LOST, trigger, found={MIG: instance_group()}), NOW)
    assert [action.step for action in flat(plan) if isinstance(action, Send)] == steps


@pytest.mark.conformance(cases={"children": "del-child-finalizers"})
@pytest.mark.parametrize(
    "given",
    [
        observed(group(owned=False, finalizers=["tpu.google.com/cleanup-mig"])),
        observed(group(owned=False), has_operator_children=True),
    ],
    ids=["finalizer", "children"],
)
def test_a_group_of_tpu_operator_is_not_owned(given: ObservedResources) -> None:
    plan = decide(given, NOW)

    assert kinds(plan) == [WriteStatus]
    assert outcome_status(plan).conditions[Type.READY].reason == Reason.MANAGED_ELSEWHERE


def test_the_condition_of_an_invalid_spec_names_the_field() -> None:
    given = observed(group(owned=False, change={"nodeCount": 3}))
    plan = decide(given, NOW)

    assert kinds(plan) == [WriteStatus, TakeOwnership]
    condition = outcome_status(plan).conditions[Type.READY]
    assert (condition.reason, condition.message) == (
        Reason.INVALID_SPEC,
        "spec.nodeCount: nodeCount must be 2: topology 2x2x2 has 8 chips, a tpu7x-standard-4t has "
        "4. Delete the group, correct the spec and apply it again.",
    )


WITHDRAWN = Resource(RESOURCE, State.PENDING, NOW - timedelta(hours=1))


@pytest.mark.parametrize(
    "entries, advice",
    [
        ({}, ", or delete the group, correct the spec and apply it again."),
        ({POLICY: WITHDRAWN}, ", or delete the group, correct the spec and apply it again."),
        (
            {MIG: ready(MIG)},
            ". Until then its resources there are not deleted, even if the group is.",
        ),
        (
            {MIG: WITHDRAWN},
            ". Until then its resources there are not deleted, even if the group is.",
        ),
    ],
    ids=["new", "a withdrawn policy", "a MIG", "a withdrawn MIG"],
)
def test_a_group_is_not_to_be_deleted_if_it_may_have_resources_in_a_project_that_is_not_served(
    entries: dict[str, Resource], advice: str
) -> None:
    known = Status(resources=resources(**entries) if entries else {})
    given = observed(group(owned=False, change={"project": "other-project"}), known)
    condition = outcome_status(decide(given, NOW)).conditions[Type.READY]
    assert condition.message == (
        "spec.project: other-project is not served by this installation; it serves my-gcp-project "
        "(Terraform's variable projects). Add the project to this variable, and the group continues "
        f"within an hour{advice}"
    )


BULK_STOCKOUT = GceError("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "waiting for resources")
MIGS: dict[str, tuple[Mig, tuple[ManagedInstance, ...], bool, str]] = {
    "is waiting for capacity": (instance_group(creating=2, is_bulk_in_progress=True, errors=(BULK_STOCKOUT,)), (), False, Reason.INSUFFICIENT_CAPACITY),
    "is creating its VMs": (instance_group(creating=2), (), False, Reason.PROVISIONING),
    "is creating its last VM": (instance_group(creating=1), (), False, Reason.PROVISIONING),
    "is creating its VMs in bulk": (instance_group(is_bulk_in_progress=True), (), False, Reason.PROVISIONING),
    "could not create a VM": (instance_group(creating=1), (ManagedInstance("a", "", (GceError("QUOTA_EXCEEDED", "no"),)),), False, Reason.QUOTA_EXCEEDED),
    "cannot repair a VM": (
        instance_group(recreating=1),
        (ManagedInstance("a", "", (GceError("ZONE_RESOURCE_POOL_EXHAUSTED", "no"),)),),
        False,
        Reason.INSUFFICIENT_CAPACITY,
    ),
    "is repairing a VM": (instance_group(recreating=1), (ManagedInstance("a", ""),), True, "Ready"),
    "was resized by a user": (instance_group(target_size=1), (), False, Reason.RESOURCE_CONFLICT),
    "is complete, with an error of an earlier check": (instance_group(errors=(BULK_STOCKOUT,)), (), True, "Ready"),
}  # fmt: skip


@pytest.mark.parametrize("case", MIGS.values(), ids=MIGS)
def test_the_condition_of_the_mig_follows_from_its_state(
    case: tuple[Mig, tuple[ManagedInstance, ...], bool, str],
) -> None:
    found, members, is_ready, reason = case
    known = Status(resources=resources(**POLICY_AND_TEMPLATE_READY, **{MIG: ready(MIG)}))
    given = observed(known=known, found={MIG: found}, members=members)
    condition = outcome_status(decide(given, NOW)).conditions[Type.MIG_READY]

    assert (condition.is_true, condition.reason) == (is_ready, reason)


def test_a_mig_that_shrinks_with_the_end_of_a_run_was_not_resized() -> None:
    """In an INDIVIDUAL group the other VMs end later."""
    known = Status(
        resources=resources(**POLICY_AND_TEMPLATE_READY, **{MIG: ready(MIG)}),
        pending=(Pending("vm", Reason.MAX_RUN_DURATION_REACHED, NOW),),
    )
    shrunk = instance_group(target_size=1)
    given = observed(known=known, found={MIG: shrunk})
    assert outcome_status(decide(given, NOW)).is_true(Type.MIG_READY)
    lost = replace(known, pending=(Pending("vm", Reason.NODE_LOST, NOW),))
    given = observed(known=lost, found={MIG: shrunk})
    assert not outcome_status(decide(given, NOW)).is_true(Type.MIG_READY)


def test_a_resource_whose_insert_runs_is_said_to_be_created() -> None:
    known = Status(resources=resources(**{POLICY: creating(operation="op")}))
    given = observed(known=known, operations={POLICY: Operation("op", False)})
    condition = outcome_status(decide(given, NOW)).conditions[Type.POLICY_READY]
    assert (condition.is_true, condition.reason, condition.message) == (
        False,
        Reason.PROVISIONING,
        f"Compute Engine is creating the workload policy {RESOURCE}",
    )


def test_a_mig_that_is_being_deleted_is_said_to_be_created_again() -> None:
    entry = replace(ready(MIG), state=State.DELETING)
    known = Status(resources=resources(**POLICY_AND_TEMPLATE_READY, **{MIG: entry}))
    given = observed(known=known, found={MIG: instance_group()})
    condition = outcome_status(decide(given, NOW)).conditions[Type.MIG_READY]
    assert (condition.is_true, condition.reason, condition.message) == (
        False,
        Reason.PROVISIONING,
        f"The managed instance group {RESOURCE} is being deleted, and is created again",
    )


TEMPLATES: dict[str, tuple[dict[str, Any], str | None]] = {
    "is valid": ({}, None),
    "names its machine type by a URL": ({"machine_type": "https://x/zones/us-central1-c/machineTypes/tpu7x-standard-4t"}, None),
    "is of a machine type without TPUs": ({"machine_type": "n1-standard-1"}, 'invalid external template: machine type "n1-standard-1" is not supported'),
    "has no scheduling": ({"has_scheduling": False}, "invalid external template: scheduling properties must be specified"),
    "migrates VMs on maintenance": ({"maintenance": "MIGRATE"}, "invalid external template: maintenance policy must be TERMINATE"),
    "stops reserved VMs": (
        {"provisioning_model": "RESERVATION_BOUND", "termination_action": "STOP"},
        "invalid external template: instance termination action must be DELETE when "
        "provisioning model is RESERVATION_BOUND",
    ),
    "names no reservation": (
        {"provisioning_model": "RESERVATION_BOUND", "termination_action": "DELETE"},
        "invalid external template: a specific reservation must be named when provisioning "
        "model is RESERVATION_BOUND",
    ),
    "deletes Spot VMs, which is valid": ({"provisioning_model": "SPOT", "termination_action": "DELETE"}, None),
    "has no disk": ({"has_boot_disk": False}, "invalid external template: a boot disk must be specified"),
    "belongs to a group": (
        {"description": group(uid="another").mark},
        "invalid external template: its description is that of a TPUNodeGroup's template, which is "
        "deleted with its group; use a template with another description",
    ),
    "has another shape": (
        {"machine_type": "ct6e-standard-4t"},
        "invalid external template: topology must have two dimensions with ct6e-standard-4t, as in 4x4",
    ),
}  # fmt: skip


@pytest.mark.conformance(
    cases={
        "deletes Spot VMs, which is valid": "byo-spot-action",
        "has another shape": "byo-not-checked",
        "has no scheduling": "byo-no-scheduling",
        "migrates VMs on maintenance": "byo-maintenance",
        "names its machine type by a URL": "byo-machine-type-url",
        "stops reserved VMs": "byo-reservation-bound-action",
    }
)
@pytest.mark.parametrize("case", TEMPLATES.values(), ids=TEMPLATES)
def test_a_user_template_is_accepted_or_rejected_with_the_violation(
    case: tuple[dict[str, Any], str | None],
) -> None:
    change, violation = case
    user_template = template(**{"description": "", **change})
    assert find_template_violation(group(change=OWN).spec, user_template) == violation


def test_a_group_waits_for_a_user_template_that_does_not_exist() -> None:
    given = observed(group(change=OWN), found={TEMPLATE: None, POLICY: policy(), MIG: None})
    plan = decide(given, NOW)

    condition = outcome_status(plan).conditions[Type.READY]
    assert inserts(plan) == []
    assert condition.reason == Reason.INVALID_TEMPLATE
    assert condition.message.startswith(
        "instance template t: failed to fetch external template: "
        "projects/my-gcp-project/global/instanceTemplates/t does not exist (notFound). The "
        "group's own instance template is missing or does not fit. Create or replace it."
    )


def test_the_mig_of_a_user_template_adds_the_node_labels_to_the_metadata_of_its_vms() -> None:
    own = replace(
        template(), metadata={"kube-labels": "foo=bar"}, description="a template of the user"
    )
    known = Status(
        resources=resources(
            **{POLICY: ready(POLICY), TEMPLATE: Resource("t", State.READY, EARLIER, URI)}
        )
    )
    plan = decide(observed(group(change=OWN), known, found={TEMPLATE: own}), NOW)

    (body,) = (insert.body for insert in list_inserts(plan))
    assert body["all_instances_config"]["properties"]["metadata"]["kube-labels"] == (
        "cloud.google.com/gke-accelerator-count=4,cloud.google.com/gke-tpu-accelerator=tpu7x,"
        "cloud.google.com/gke-tpu-topology=2x2x2,foo=bar"
    )


def test_a_condition_keeps_its_transition_time_while_its_status_is_the_same() -> None:
    before = Condition("False", "Provisioning", "", EARLIER, 1)
    known = Status(
        conditions={Type.MIG_READY: before},
        resources=resources(**POLICY_AND_TEMPLATE_READY, **{MIG: ready(MIG)}),
    )
    found = instance_group(creating=2, is_bulk_in_progress=True, errors=(BULK_STOCKOUT,))
    given = observed(known=known, found={MIG: found})
    condition = outcome_status(decide(given, NOW)).conditions[Type.MIG_READY]

    assert (condition.reason, condition.since) == (Reason.INSUFFICIENT_CAPACITY, EARLIER)


@pytest.mark.parametrize(
    "code, message, reason, field",
    [
        ("UNSUPPORTED_OPERATION", "pd-balanced disk type cannot be used by ct6e-standard-4t machine type.", Reason.INVALID_SPEC, "spec.instanceConfig.diskType"),
        ("CONDITION_NOT_MET", "Unsupported TPU configuration: 4x4.", Reason.INVALID_SPEC, "spec.topology"),
        ("INVALID_FIELD_VALUE", "Target size should be 8 for given accelerator topology but was 2.", Reason.INVALID_SPEC, "spec.nodeCount"),
        ("INVALID_FIELD_VALUE", "Invalid value for field 'resource.disks[0].initializeParams.sourceImage': 'i'. The referenced image resource cannot be found.", Reason.REFUSED, "spec.instanceConfig.image"),
        ("INVALID_FIELD_VALUE", "Invalid value for field 'resource.networkInterfaces[0].subnetwork': 's'. The referenced subnetwork resource cannot be found.", Reason.REFUSED, "spec.instanceConfig.subnetwork"),
        ("INVALID_FIELD_VALUE", "Invalid value for field 'resource.machineType': 'm'. Machine type with name 'm' does not exist in zone 'z'.", Reason.NOT_OFFERED, "spec.instanceConfig.machineType"),
        ("invalid", "Invalid value for field 'zone': 'us-x1-a'. Unknown zone.", Reason.NOT_OFFERED, "spec.nodeLocation"),
    ],
)  # fmt: skip
def test_the_condition_of_a_spec_that_compute_engine_rejects_names_the_field(
    code: str, message: str, reason: Reason, field: str
) -> None:
    known = Status(resources=resources(**POLICY_AND_TEMPLATE_READY, **{MIG: ready(MIG)}))
    mig = instance_group(creating=2, is_bulk_in_progress=True, errors=(GceError(code, message),))
    condition = outcome_status(decide(observed(known=known, found={MIG: mig}), NOW)).conditions[
        Type.READY
    ]
    assert condition.reason == reason
    assert condition.message == f"{field}: {mig.uri}: {message} ({code}). {REASONS[reason]}"


def test_the_message_about_a_vm_that_cannot_be_repaired_has_the_error_and_what_to_do() -> None:
    known = Status(
        resources=resources(**POLICY_AND_TEMPLATE_READY, **{MIG: ready(MIG)}), completed_at=EARLIER
    )
    failed = ManagedInstance(
        "vm-a", "", (GceError("ZONE_RESOURCE_POOL_EXHAUSTED", "no TPUs left"),)
    )
    mig = instance_group(recreating=1)
    plan = decide(observed(known=known, found={MIG: mig}, members=(failed,)), NOW)
    assert outcome_status(plan).conditions[Type.READY].message == (
        f"VM vm-a of {mig.uri}: no TPUs left (ZONE_RESOURCE_POOL_EXHAUSTED). "
        f"{REASONS[Reason.INSUFFICIENT_CAPACITY]}"
    )
