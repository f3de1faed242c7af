"""create_resources decides from what it has seen: tables of worlds and plans."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from functions.create_resources import ObservedResources, ObservedUnreadable, WriteCreated, decide
from shared.base.reasons import REASONS, Reason
from shared.frame.decode import Trigger
from shared.frame.message import Cause, Message
from shared.frame.plan import Action, Plan, Send
from shared.frame.settings import Settings
from shared.node_groups.actions import Insert, TakeOwnership
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.resources import Found
from shared.node_groups.status import (
    MIG,
    POLICY,
    TEMPLATE,
    Condition,
    Resource,
    State,
    Status,
    Type,
)
from shared.node_groups.user_template import find_template_violation
from shared.node_groups.work import WriteStatus
from shared.ports.gce.values import GceError, ManagedInstance, Mig, Operation, Policy, Template
from shared.ports.kubernetes.access_settings import Kubeconfig
from tests.unit.builders import NOW, RESOURCE, group, unreadable_group

URI = "projects/my-gcp-project/x/" + RESOURCE
RESYNC = Trigger("Resync", NOW, message=Message("default", "my-slice", "", Cause.RESYNC, NOW))
ADDED = Trigger("Added", NOW, message=Message("default", "my-slice", "", Cause.ADDED, NOW))
SETTINGS = Settings(
    "my-gcp-project", "t-", frozenset({"my-gcp-project"}), Kubeconfig(""), "", timedelta(minutes=15)
)
EARLIER = NOW - timedelta(minutes=10)
JUST_NOW = NOW - timedelta(seconds=2)


def policy(description: str | None = None) -> Policy:
    return Policy(URI, group().mark if description is None else description)


def template(**change: Any) -> Template:
    made = Template(
        uri=URI,
        description=group().mark,
        machine_type="tpu7x-standard-4t",
        has_scheduling=True,
        maintenance="TERMINATE",
        provisioning_model="STANDARD",
        termination_action="",
        reservation_type="",
        has_boot_disk=True,
    )
    return replace(made, **change)


def instance_group(**change: Any) -> Mig:
    made = Mig(
        uri=URI,
        description=group().mark,
        target_size=2,
        creating=0,
        is_bulk_in_progress=False,
        recreating=0,
    )
    return replace(made, **change)


def resources(**states: Resource) -> dict[str, Resource]:
    pending = Resource(RESOURCE)
    return {POLICY: pending, TEMPLATE: pending, MIG: pending} | states


def ready(kind: str) -> Resource:
    del kind
    return Resource(RESOURCE, State.READY, EARLIER, URI)


def creating(since: datetime = EARLIER, operation: str = "") -> Resource:
    return Resource(RESOURCE, State.CREATING, since, operation=operation)


STAND = {POLICY: ready(POLICY), TEMPLATE: ready(TEMPLATE)}


def seen(
    about: NodeGroup | None = None,
    known: Status | None = None,
    trigger: Trigger = ADDED,
    **rest: Any,
) -> ObservedResources:
    return ObservedResources(
        about or group(), known or Status(), trigger, SETTINGS.projects, **rest
    )


def inserts(plan: Plan) -> list[str]:
    return [action.kind for action in plan.actions if isinstance(action, Insert)]


def kinds(plan: Plan) -> list[type[Action]]:
    return [type(action) for action in plan.list_actions()]


def outcome_status(plan: Plan) -> Status:
    """The status that the plan's first write leads to, concluded."""
    write = next(action for action in plan.actions if isinstance(action, WriteStatus))
    return write.status


def test_a_new_group_is_owned_before_anything_is_asked_of_compute_engine() -> None:
    plan = decide(seen(group(owned=False)), NOW)

    assert kinds(plan) == [
        WriteStatus,
        TakeOwnership,
        WriteStatus,
        Insert,
        Insert,
        WriteCreated,
    ]
    assert inserts(plan) == [POLICY, TEMPLATE]


def test_a_group_whose_spec_cannot_be_read_is_refused_by_field_and_owned() -> None:
    plan = decide(ObservedUnreadable(unreadable_group(owned=False), Status()), NOW)
    accepted = outcome_status(plan).conditions[Type.ACCEPTED]
    assert (plan.outcome, kinds(plan)) == ("InvalidSpec", [WriteStatus, TakeOwnership])
    assert (accepted.status, accepted.reason) == ("False", "InvalidSpec")
    assert accepted.message.startswith("spec.nodeLocation")


def test_a_group_whose_spec_cannot_be_read_any_more_keeps_the_entries_of_its_resources() -> None:
    known = Status(resources={MIG: Resource(RESOURCE, State.READY, NOW)})
    plan = decide(ObservedUnreadable(unreadable_group(), known), NOW)
    assert outcome_status(plan).resources == known.resources


def test_a_group_that_has_lost_status_and_spec_may_still_have_a_mig() -> None:
    plan = decide(ObservedUnreadable(unreadable_group(), Status()), NOW)
    assert outcome_status(plan).resources == {MIG: Resource(RESOURCE, State.CREATING, NOW)}


def test_the_first_status_names_every_resource_that_is_needed() -> None:
    given = seen(group(owned=False))
    first = outcome_status(decide(given, NOW))

    assert {kind: entry.state for kind, entry in first.resources.items()} == {
        POLICY: State.PENDING,
        TEMPLATE: State.PENDING,
        MIG: State.PENDING,
    }


CASES: dict[str, tuple[dict[str, Resource], dict[str, Found | None], list[str], str]] = {
    "policy and template stand: the MIG is made": (
        {POLICY: creating(operation="op"), TEMPLATE: ready(TEMPLATE)},
        {POLICY: policy()},
        [MIG],
        "Inserting",
    ),
    "only one stands: wait for the other": (
        {POLICY: creating(operation="op"), TEMPLATE: creating(operation="op")},
        {POLICY: policy()},
        [],
        "Waiting",
    ),
    "an intent of just now is somebody's who inserts": (
        {POLICY: creating(JUST_NOW), TEMPLATE: ready(TEMPLATE)},
        {POLICY: None},
        [],
        "Waiting",
    ),
    "an old intent without operation is of one that died": (
        {POLICY: creating(), TEMPLATE: ready(TEMPLATE)},
        {POLICY: None},
        [POLICY],
        "Inserting",
    ),
    "the MIG that vanished before the slice was complete is made again": (
        STAND | {MIG: ready(MIG)},
        {MIG: None},
        [MIG],
        "Inserting",
    ),
    "all are ready": (STAND | {MIG: ready(MIG)}, {MIG: instance_group()}, [], "ResourcesReady"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_inserted(
    case: tuple[dict[str, Resource], dict[str, Found | None], list[str], str],
) -> None:
    entries, found, wanted, outcome = case
    known = Status(resources=resources(**entries))
    plan = decide(seen(known=known, found=found), NOW)

    assert (inserts(plan), plan.outcome) == (wanted, outcome)


OPERATIONS: dict[str, tuple[Operation | None, State, str]] = {
    "runs": (Operation("op", False), State.CREATING, ""),
    "is forgotten": (None, State.CREATING, POLICY),
    "ended well, and yet it is not there": (Operation("op", True), State.CREATING, POLICY),
    "failed for a reason of the world": (
        Operation("op", True, GceError("QUOTA_EXCEEDED", "Quota 'X' exceeded.", 403)),
        State.FAILED,
        "",
    ),
    "failed for a reason of Google's": (
        Operation("op", True, GceError("INTERNAL_ERROR", "Internal error. Please try again", 500)),
        State.FAILED,
        "",
    ),
}


@pytest.mark.parametrize("case", OPERATIONS.values(), ids=OPERATIONS)
def test_an_insert_that_left_no_resource_is_judged_by_its_operation(
    case: tuple[Operation | None, State, str],
) -> None:
    operation, state, wanted = case
    known = Status(resources=resources(**{POLICY: creating(operation="op")}))
    known = known.with_resource(TEMPLATE, ready(TEMPLATE))
    given = seen(known=known, found={POLICY: None}, operations={POLICY: operation})
    plan = decide(given, NOW)

    assert inserts(plan) == ([wanted] if wanted else [])
    assert outcome_status(plan).resources[POLICY].state is state


def test_a_complete_slice_whose_mig_is_gone_is_not_bought_again() -> None:
    known = Status(resources=resources(**STAND, **{MIG: ready(MIG)}), completed_at=EARLIER)
    given = seen(known=known, found={MIG: None})
    plan = decide(given, NOW)

    said = outcome_status(plan).conditions[Type.READY]
    assert inserts(plan) == []
    assert said.reason == Reason.RESOURCE_LOST
    assert said.message == (
        f"The managed instance group {RESOURCE} is gone. The slice was complete and its managed "
        "instance group is gone. It is not created again: delete the group and apply it again."
    )


def test_what_bears_our_name_and_not_our_mark_is_not_touched() -> None:
    known = Status(resources=resources(**{POLICY: creating(), TEMPLATE: ready(TEMPLATE)}))
    given = seen(known=known, found={POLICY: policy("somebody's")})
    plan = decide(given, NOW)

    said = outcome_status(plan).conditions[Type.READY]
    assert inserts(plan) == []
    assert said.reason == Reason.RESOURCE_CONFLICT
    assert "Delete it, or delete the group and apply it again." in said.message


def test_a_failure_is_tried_again_on_a_sync_and_keeps_its_first_time() -> None:
    failed = creating().fail(Reason.QUOTA_EXCEEDED, "quotaExceeded", "no", EARLIER)
    known = Status(resources=resources(**{POLICY: failed, TEMPLATE: ready(TEMPLATE)}))
    young = replace(failed, since=JUST_NOW)

    on_resync = decide(seen(known=known, trigger=RESYNC, found={POLICY: None}), NOW)
    on_event = decide(seen(known=known.with_resource(POLICY, young), found={POLICY: None}), NOW)

    assert (inserts(on_resync), inserts(on_event)) == ([POLICY], [])
    again = outcome_status(on_resync).resources[POLICY]
    assert again.error is not None
    assert again.error.since == EARLIER


def test_a_group_without_status_that_has_our_finalizer_may_have_resources_under_way() -> None:
    given = seen(found={POLICY: None, TEMPLATE: None, MIG: instance_group()})
    plan = decide(given, NOW)

    entries = outcome_status(plan).resources
    assert entries[POLICY].state is State.CREATING
    assert entries[MIG].state is State.READY


def test_while_paused_nothing_is_made() -> None:
    paused = group(annotations={"tpu-functions.dev/paused": "true"})
    given = seen(paused, Status(resources=resources()))
    plan = decide(given, NOW)

    assert (inserts(plan), plan.outcome) == ([], "Paused")
    assert outcome_status(plan).conditions[Type.READY].reason == Reason.PAUSED


def test_a_group_being_deleted_is_handed_over() -> None:
    plan = decide(seen(group(deleting=True)), NOW)
    assert [action.step for action in plan.actions if isinstance(action, Send)] == ["tear_down"]


@pytest.mark.parametrize(
    "given",
    [
        seen(group(owned=False, finalizers=["tpu.google.com/cleanup-mig"])),
        seen(group(owned=False), has_operator_children=True),
    ],
    ids=["finalizer", "children"],
)
def test_a_group_of_tpu_operator_is_left_alone(given: ObservedResources) -> None:
    plan = decide(given, NOW)

    assert kinds(plan) == [WriteStatus]
    assert outcome_status(plan).conditions[Type.READY].reason == Reason.MANAGED_ELSEWHERE


def test_a_spec_that_cannot_work_is_refused_in_words_that_name_the_field() -> None:
    given = seen(group(owned=False, change={"nodeCount": 3}))
    plan = decide(given, NOW)

    assert kinds(plan) == [WriteStatus, TakeOwnership]
    said = outcome_status(plan).conditions[Type.READY]
    assert (said.reason, said.message) == (
        Reason.INVALID_SPEC,
        "spec.nodeCount: 2x2x2 has 8 chips, which are 2 nodes of tpu7x-standard-4t "
        "(4 chips each), not 3. Delete the group, correct the spec and apply it again.",
    )


def test_a_project_that_is_not_served_is_refused_with_those_that_are() -> None:
    given = seen(group(owned=False, change={"project": "other-project"}))
    said = outcome_status(decide(given, NOW)).conditions[Type.READY]
    assert said.message == (
        "spec.project: other-project is not served by this installation; it serves my-gcp-project. "
        "Delete the group, correct the spec and apply it again."
    )


BULK_STOCKOUT = GceError("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "waiting for resources")
GROUPS: dict[str, tuple[Mig, tuple[ManagedInstance, ...], bool, str]] = {
    "is waiting for capacity": (
        instance_group(creating=2, is_bulk_in_progress=True, errors=(BULK_STOCKOUT,)),
        (),
        False,
        Reason.INSUFFICIENT_CAPACITY,
    ),
    "is at its VMs": (instance_group(creating=2), (), False, Reason.PROVISIONING),
    "is at its last VM": (instance_group(creating=1), (), False, Reason.PROVISIONING),
    "is at its VMs, all in one": (
        instance_group(is_bulk_in_progress=True),
        (),
        False,
        Reason.PROVISIONING,
    ),
    "has a VM that failed": (
        instance_group(creating=1),
        (ManagedInstance("a", "", (GceError("QUOTA_EXCEEDED", "no"),)),),
        False,
        Reason.QUOTA_EXCEEDED,
    ),
    "cannot repair a VM": (
        instance_group(recreating=1),
        (ManagedInstance("a", "", (GceError("ZONE_RESOURCE_POOL_EXHAUSTED", "no"),)),),
        False,
        Reason.INSUFFICIENT_CAPACITY,
    ),
    "is at a repair": (instance_group(recreating=1), (ManagedInstance("a", ""),), True, "Ready"),
    "was resized by somebody": (
        instance_group(target_size=1),
        (),
        False,
        Reason.RESOURCE_CONFLICT,
    ),
    "is done, whatever the last check said": (
        instance_group(errors=(BULK_STOCKOUT,)),
        (),
        True,
        "Ready",
    ),
}


@pytest.mark.parametrize("case", GROUPS.values(), ids=GROUPS)
def test_what_is_said_of_a_mig_that(
    case: tuple[Mig, tuple[ManagedInstance, ...], bool, str],
) -> None:
    found, members, is_ready, reason = case
    known = Status(resources=resources(**STAND, **{MIG: ready(MIG)}))
    given = seen(known=known, found={MIG: found}, members=members)
    said = outcome_status(decide(given, NOW)).conditions[Type.MIG_READY]

    assert (said.is_true, said.reason) == (is_ready, reason)


OWN = {
    "instanceConfig": None,
    "bootstrapKubernetes": None,
    "instanceTemplateURI": "projects/my-gcp-project/global/instanceTemplates/t",
}
TEMPLATES: dict[str, tuple[dict[str, Any], str | None]] = {
    "fits": ({}, None),
    "names its machine type by a URL": (
        {"machine_type": "https://x/zones/us-central1-c/machineTypes/tpu7x-standard-4t"},
        None,
    ),
    "is no TPU's": (
        {"machine_type": "n1-standard-1"},
        'invalid external template: machine type "n1-standard-1" is not supported',
    ),
    "has no scheduling": (
        {"has_scheduling": False},
        "invalid external template: scheduling properties must be specified",
    ),
    "would migrate": (
        {"maintenance": "MIGRATE"},
        "invalid external template: maintenance policy must be TERMINATE",
    ),
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
    "deletes Spot VMs, which is legal": (
        {"provisioning_model": "SPOT", "termination_action": "DELETE"},
        None,
    ),
    "has no disk": (
        {"has_boot_disk": False},
        "invalid external template: a boot disk must be specified",
    ),
    "belongs to a group": (
        {"description": group(uid="another").mark},
        "invalid external template: its description is that of a TPUNodeGroup's template, which is "
        "deleted with its group; use a template with another description",
    ),
    "has another shape": (
        {"machine_type": "ct6e-standard-4t"},
        "invalid external template: ct6e slices have 2 dimensions, as in 4x4; 2x2x2 has 3",
    ),
}


@pytest.mark.parametrize("case", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_of_ones_own_that(case: tuple[dict[str, Any], str | None]) -> None:
    change, said = case
    users = template(**{"description": "", **change})
    assert find_template_violation(group(change=OWN).spec, users) == said


def test_a_template_that_does_not_exist_yet_is_waited_for() -> None:
    given = seen(group(change=OWN), found={TEMPLATE: None, POLICY: policy(), MIG: None})
    plan = decide(given, NOW)

    said = outcome_status(plan).conditions[Type.READY]
    assert inserts(plan) == []
    assert said.reason == Reason.INVALID_TEMPLATE
    assert said.message.startswith(
        "instance template t: failed to fetch external template: "
        "projects/my-gcp-project/global/instanceTemplates/t does not exist (notFound). The "
        "group's own instance template is missing or does not fit. Create or replace it."
    )


def test_the_mig_of_ones_own_template_announces_its_node_labels_to_every_vm() -> None:
    own = replace(template(), metadata={"kube-labels": "foo=bar"}, description="theirs")
    known = Status(
        resources=resources(
            **{POLICY: ready(POLICY), TEMPLATE: Resource("t", State.READY, EARLIER, URI)}
        )
    )
    plan = decide(seen(group(change=OWN), known, found={TEMPLATE: own}), NOW)

    body = next(action.body for action in plan.actions if isinstance(action, Insert))
    assert body["all_instances_config"]["properties"]["metadata"]["kube-labels"] == (
        "cloud.google.com/gke-accelerator-count=4,cloud.google.com/gke-tpu-accelerator=tpu7x,"
        "cloud.google.com/gke-tpu-topology=2x2x2,foo=bar"
    )


def test_a_condition_keeps_its_time_while_its_status_is_the_same() -> None:
    before = Condition("False", "Provisioning", "", EARLIER, 1)
    known = Status(
        conditions={Type.MIG_READY: before},
        resources=resources(**STAND, **{MIG: ready(MIG)}),
    )
    found = instance_group(creating=2, is_bulk_in_progress=True, errors=(BULK_STOCKOUT,))
    given = seen(known=known, found={MIG: found})
    said = outcome_status(decide(given, NOW)).conditions[Type.MIG_READY]

    assert (said.reason, said.since) == (Reason.INSUFFICIENT_CAPACITY, EARLIER)


@pytest.mark.parametrize(
    "code, words, field",
    [
        (
            "UNSUPPORTED_OPERATION",
            "pd-balanced disk type cannot be used by ct6e-standard-4t machine type.",
            "spec.instanceConfig.diskType",
        ),
        ("CONDITION_NOT_MET", "Unsupported TPU configuration: 4x4.", "spec.topology"),
    ],
)
def test_a_spec_that_compute_engine_refuses_is_refused_with_the_field(
    code: str, words: str, field: str
) -> None:
    known = Status(resources=resources(**STAND, **{MIG: ready(MIG)}))
    mig = instance_group(creating=2, is_bulk_in_progress=True, errors=(GceError(code, words),))
    said = outcome_status(decide(seen(known=known, found={MIG: mig}), NOW)).conditions[Type.READY]
    assert said.reason == Reason.INVALID_SPEC
    assert said.message == f"{field}: {mig.uri}: {words} ({code}). {REASONS[Reason.INVALID_SPEC]}"


def test_a_vm_that_cannot_be_repaired_is_named_with_the_clouds_words_and_what_to_do() -> None:
    known = Status(resources=resources(**STAND, **{MIG: ready(MIG)}), completed_at=EARLIER)
    failed = ManagedInstance(
        "vm-a", "", (GceError("ZONE_RESOURCE_POOL_EXHAUSTED", "no TPUs left"),)
    )
    mig = instance_group(recreating=1)
    plan = decide(seen(known=known, found={MIG: mig}, members=(failed,)), NOW)
    assert outcome_status(plan).conditions[Type.READY].message == (
        f"VM vm-a of {mig.uri}: no TPUs left (ZONE_RESOURCE_POOL_EXHAUSTED). "
        f"{REASONS[Reason.INSUFFICIENT_CAPACITY]}"
    )
