"""tear_down: a table of observations of a group that is deleted, and the plan for each of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from functions.tear_down import recover
from functions.tear_down.actions import DeleteResources
from functions.tear_down.decide import decide
from functions.tear_down.observe import ObservedBeginning, ObservedRemains, UnreadableRemains
from shared.base.names import VM_ID_LABEL
from shared.base.reasons import Reason
from shared.frame.plan import Plan
from shared.node_groups import recovery
from shared.node_groups.actions import PatchNode
from shared.node_groups.status import (
    MIG,
    POLICY,
    TEMPLATE,
    Condition,
    Counts,
    Pending,
    Resource,
    ResourceError,
    State,
    Status,
    Type,
)
from shared.node_groups.work import WriteStatus
from shared.ports.errors import About, CallError
from shared.ports.gce.values import GceError, ManagedInstance, Mig, Operation
from shared.ports.kubernetes.nodes import Node
from shared.triggers.message import Cause
from tests.support.builders import NOW, RESOURCE, flat, group, unreadable_group
from tests.support.compute import instance, policy
from tests.unit.functions.tear_down.objects import (
    ALL_READY,
    DELETING,
    EARLIER,
    ENDED,
    GONE,
    OWN_MIG,
    OWN_POLICY,
    OWN_TEMPLATE,
    READY,
    RUNNING,
    UNANNOUNCED,
    VM,
    beginning,
    creating,
    first_status,
    group_work,
    node,
    observed_remains,
)

FAILED = Operation("op", True, GceError("INTERNAL_ERROR", "Internal error", 500))


def failed(seconds_ago: float) -> Resource:
    """Return a resource whose last insert failed, with an intent of this age."""
    return creating(seconds_ago).fail("QuotaExceeded", "quotaExceeded", "no", NOW)


def list_actions(plan: Plan) -> list[str]:
    return [
        f"Delete {', '.join(action.kinds)}"
        if isinstance(action, DeleteResources)
        else type(action).__name__
        for action in flat(plan)
    ]


CASES: dict[str, tuple[ObservedRemains, str, list[str]]] = {
    "the MIG is deleted first": (
        observed_remains(found={MIG: OWN_MIG}),
        "DeletingMIG",
        ["WriteStatus", "Delete managedInstanceGroup"],
    ),
    "Nodes without the proof get it after the delete": (
        observed_remains(
            found={MIG: OWN_MIG}, nodes=(node(proved=False),), instances=(instance(),)
        ),
        "DeletingMIG",
        ["WriteStatus", "Delete managedInstanceGroup", "PatchNode"],
    ),
    "a running delete is awaited": (
        observed_remains({MIG: DELETING}, {MIG: OWN_MIG}, {MIG: RUNNING}),
        "AwaitingDelete",
        ["WriteStatus"],
    ),
    "a delete that ended without an effect is repeated": (
        observed_remains({MIG: DELETING}, {MIG: OWN_MIG}, {MIG: ENDED}),
        "DeletingMIG",
        ["WriteStatus", "Delete managedInstanceGroup"],
    ),
    "a running insert is awaited": (
        observed_remains({MIG: creating(5, "op")}, {MIG: None}, {MIG: RUNNING}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "an intent without an operation may still be in progress": (
        observed_remains({MIG: creating(149)}, {MIG: None}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "an intent without an operation has ended after 150 seconds": (
        observed_remains(
            {MIG: creating(150), POLICY: READY, TEMPLATE: READY},
            {MIG: None, POLICY: OWN_POLICY, TEMPLATE: OWN_TEMPLATE},
        ),
        "DeletingRest",
        ["WriteStatus", "Delete workloadPolicy, instanceTemplate"],
    ),
    "another invocation's insert may follow an insert that failed recently": (
        observed_remains({MIG: failed(149)}, {MIG: None}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "another invocation's insert may follow an intent that was cancelled recently": (
        observed_remains({MIG: replace(failed(149), state=State.PENDING)}, {MIG: None}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "another invocation's insert of a template may follow, too": (
        observed_remains({MIG: GONE, POLICY: GONE, TEMPLATE: failed(149)}, {TEMPLATE: None}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "an insert that failed 150 seconds ago created nothing": (
        observed_remains({MIG: failed(150), POLICY: GONE, TEMPLATE: GONE}, {MIG: None}),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
    "a resource without an intent does not exist": (
        observed_remains({MIG: Resource(RESOURCE), POLICY: GONE, TEMPLATE: GONE}, {MIG: None}),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
    "another invocation's MIG is deleted": (
        observed_remains({MIG: failed(5)}, {MIG: OWN_MIG}),
        "DeletingMIG",
        ["WriteStatus", "Delete managedInstanceGroup"],
    ),
    "a missing entry counts as an intent of this moment": (
        observed_remains({}, {MIG: None}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "template and policy are deleted in parallel, then Nodes": (
        observed_remains(
            {**ALL_READY, MIG: GONE}, {POLICY: OWN_POLICY, TEMPLATE: OWN_TEMPLATE}, nodes=(node(),)
        ),
        "DeletingRest",
        [
            "WriteStatus",
            "Delete workloadPolicy, instanceTemplate",
            "DeleteNode",
        ],
    ),
    "a policy with another ownership mark is not deleted": (
        observed_remains(
            {MIG: GONE, POLICY: creating(5), TEMPLATE: GONE},
            {POLICY: policy("another mark")},
        ),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
    "an owned policy whose ownership mark was changed is reported and not deleted": (
        observed_remains(
            {MIG: GONE, POLICY: READY, TEMPLATE: GONE},
            {POLICY: policy("another mark")},
        ),
        "DeleteFailed",
        ["WriteStatus"],
    ),
    "a MIG whose ownership mark was changed before the deletion is reported": (
        observed_remains(
            {MIG: READY.fail("ResourceConflict", "alreadyExists", "not ours", EARLIER)},
            {MIG: replace(OWN_MIG, description="another mark")},
        ),
        "DeleteFailed",
        ["WriteStatus"],
    ),
    "a MIG that was Gone before the deletion is read again": (
        observed_remains({**ALL_READY, MIG: GONE}, {MIG: OWN_MIG}),
        "DeletingMIG",
        ["WriteStatus", "Delete managedInstanceGroup"],
    ),
    "a failed delete waits for the sweep": (
        replace(observed_remains({MIG: DELETING}, {MIG: OWN_MIG}, {MIG: FAILED}), is_resync=False),
        "DeleteFailed",
        ["WriteStatus"],
    ),
    "a successful insert may have created a MIG that is not visible yet": (
        observed_remains({MIG: creating(5, "op")}, {MIG: None}, {MIG: ENDED}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "a failed insert created nothing": (
        observed_remains(
            {MIG: creating(5, "op"), POLICY: GONE, TEMPLATE: GONE},
            {MIG: None},
            {MIG: FAILED},
        ),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
    "the finalizer is removed after the last resource": (
        observed_remains({MIG: GONE, POLICY: GONE, TEMPLATE: GONE}),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
    "late Nodes are deleted before the group": (
        observed_remains({MIG: GONE, POLICY: GONE, TEMPLATE: GONE}, nodes=(node(),)),
        "Done",
        ["WriteStatus", "DeleteNode", "RevokeTokens", "RemoveFinalizer"],
    ),
    "a Node that is already being deleted is not deleted again": (
        observed_remains(
            {MIG: GONE, POLICY: GONE, TEMPLATE: GONE},
            nodes=(replace(node(), is_deleting=True),),
        ),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
    "a Node of another machine with the group's label is not deleted": (
        observed_remains(
            {MIG: GONE, POLICY: GONE, TEMPLATE: GONE},
            nodes=(node("another-machine"), node(place="gce://other/us-central1-c/x")),
        ),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
}


@pytest.mark.conformance(cases={"the finalizer is removed after the last resource": "del-all-gone"})
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_plan_follows_from_the_resources_that_are_left(
    case: tuple[ObservedRemains, str, list[str]],
) -> None:
    given, outcome, actions = case
    plan = decide(given, NOW)
    assert (plan.outcome, list_actions(plan)) == (outcome, actions)


DELETES_NODES, LEAVES_NODES = "DeleteNode", "WriteStatus"
BESIDE: dict[str, tuple[float, dict[str, Any], str]] = {
    "another invocation has just found the MIG gone": (0, {}, LEAVES_NODES),
    "at the end of its time": (29.9, {}, LEAVES_NODES),
    "its clock is ahead": (-29.9, {}, LEAVES_NODES),
    "it has ended": (30, {}, DELETES_NODES),
    "the time in the status is wrong": (-3600, {}, DELETES_NODES),
    "it was interrupted, or had no time left": (0, {"is_continuation": True}, DELETES_NODES),
    "a resync while a delete is in progress": (0, {"is_resync": True}, LEAVES_NODES),
}


@pytest.mark.parametrize("case", BESIDE.values(), ids=BESIDE)
def test_the_nodes_are_left_to_an_invocation_that_is_deleting_them(
    case: tuple[float, dict[str, Any], str],
) -> None:
    seconds_ago, trigger, expected = case
    gone = replace(GONE, since=NOW - timedelta(seconds=seconds_ago))
    given = observed_remains(
        {MIG: gone, POLICY: GONE, TEMPLATE: DELETING},
        {TEMPLATE: OWN_TEMPLATE},
        {TEMPLATE: RUNNING},
        nodes=(node(),),
    )
    announced = replace(given.status, observed_generation=given.group.generation)
    found = decide(replace(given, status=announced, **trigger), NOW)
    assert (found.outcome, list_actions(found)[-1]) == ("AwaitingDelete", expected)
    assert list_actions(decide(replace(given, **trigger), NOW))[-1] == DELETES_NODES


@pytest.mark.parametrize(
    "is_resync, nodes, outcome",
    [(True, (node(),), "AwaitingNodes"), (True, (), "Done"), (False, (node(),), "Done")],
)
def test_a_resync_leaves_the_finalizer_to_an_invocation_that_deletes_nodes(
    is_resync: bool, nodes: tuple[Node, ...], outcome: str
) -> None:
    entries = dict.fromkeys((MIG, POLICY, TEMPLATE), replace(GONE, since=NOW))
    given = observed_remains(entries, nodes=nodes)
    announced = replace(given.status, observed_generation=given.group.generation)
    plan = decide(replace(given, status=announced, is_resync=is_resync), NOW)
    assert plan.outcome == outcome
    assert ("RemoveFinalizer" in list_actions(plan)) is (outcome == "Done")


def test_the_nodes_of_vms_that_were_not_read_are_awaited_with_a_status() -> None:
    entries = dict.fromkeys((MIG, POLICY, TEMPLATE), replace(GONE, since=NOW))
    plan = decide(replace(observed_remains(entries), has_unread_vms=True), NOW)
    assert (plan.outcome, list_actions(plan)) == ("AwaitingNodes", ["WriteStatus"])
    assert plan.resume is not None


@pytest.mark.conformance("del-byo-template-kept")
def test_a_template_of_the_user_is_not_deleted() -> None:
    change = {
        "instanceConfig": None,
        "bootstrapKubernetes": None,
        "instanceTemplateURI": "projects/my-gcp-project/global/instanceTemplates/t",
    }
    own = group(deleting=True, change=change)
    gone = Status(resources={MIG: GONE, POLICY: GONE, TEMPLATE: replace(READY, name="t")})
    given = ObservedRemains(own, gone)
    assert list_actions(decide(given, NOW)) == ["RemoveFinalizer"]


def test_a_group_that_is_not_deleted_keeps_its_resources_and_is_forwarded() -> None:
    plan = decide(ObservedRemains(group(), Status(resources=ALL_READY)), NOW)
    assert (plan.outcome, list_actions(plan)) == ("NotDeleted", ["Send"])


REPAIRED = group(change={"repair": "Recreate"})
LOST_SLICE = Status(
    provisioning_model="SPOT",
    conditions={Type.MIG_READY: Condition("True", "Ready", "", EARLIER, 1)},
    resources=ALL_READY,
    counts=Counts(desired=2),
    pending=(Pending(VM, Reason.PREEMPTED, EARLIER),),
)
BEGUN = recovery.begin_repair(LOST_SLICE, EARLIER)
STABLE = replace(OWN_MIG, is_stable=True)
WAITING = replace(OWN_MIG, is_bulk_in_progress=True, creating=2, missing=2)
ONE, BOTH = ((ManagedInstance("a", "RUNNING"), ManagedInstance("b", "RUNNING"))[:n] for n in (1, 2))
DELETE_MIG = "Delete managedInstanceGroup"
REPAIRS: dict[str, tuple[Status, Mig | None, tuple[ManagedInstance, ...], str, list[str]]] = {
    "it is lost: the tokens are revoked first": (
        LOST_SLICE, STABLE, ONE, "Repairing", ["WriteStatus", "RevokeTokens", DELETE_MIG],
    ),
    "no VM is lacking": (LOST_SLICE, STABLE, BOTH, "NotLost", ["Send"]),
    "Compute Engine changes it": (LOST_SLICE, OWN_MIG, (), "Waiting", []),
    "it is another's, and changes": (
        LOST_SLICE, replace(OWN_MIG, description="?"), (), "NotLost", ["Send"],
    ),
    "begun, and not deleted yet": (BEGUN, STABLE, ONE, "Repairing", ["WriteStatus", DELETE_MIG]),
    "begun, and empty since somebody has resized it": (
        BEGUN, replace(STABLE, target_size=0), (), "Repairing", ["WriteStatus", DELETE_MIG],
    ),
    "begun, and resized with a VM": (
        BEGUN, replace(STABLE, target_size=1), ONE, "NotLost", ["WriteStatus", "Send"],
    ),
    "begun, and all VMs run: the status was restored": (
        BEGUN, STABLE, BOTH, "NotLost", ["WriteStatus", "Send"],
    ),
    "begun, and a new MIG waits for capacity: the status was restored": (
        BEGUN, WAITING, (), "NotLost", ["WriteStatus", "Send"],
    ),
    "begun, and Compute Engine changes it": (BEGUN, OWN_MIG, (), "AwaitingDelete", ["WriteStatus"]),
    "begun, and gone": (BEGUN, None, (), "Recreating", ["WriteStatus", "Send"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REPAIRS.values(), ids=REPAIRS)
def test_a_repair_deletes_a_mig_that_lacks_vms(
    case: tuple[Status, Mig | None, tuple[ManagedInstance, ...], str, list[str]],
) -> None:
    known, found, members, outcome, actions = case
    given = ObservedRemains(REPAIRED, known, {MIG: found}, members=members, is_resync=True)
    plan = decide(given, NOW)
    assert (plan.outcome, list_actions(plan)) == (outcome, actions)
    if known is BEGUN and outcome == "NotLost":
        assert first_status(plan).resources[MIG].state is State.READY


@pytest.mark.parametrize("found, running", [(STABLE, 1), (None, 0)], ids=["refused", "gone"])
def test_vms_that_run_count_until_the_mig_of_a_repair_is_gone(
    found: Mig | None, running: int
) -> None:
    begun = recovery.begin_repair(replace(LOST_SLICE, counts=Counts(2, 1, 1, 1)), EARLIER)
    given = ObservedRemains(REPAIRED, begun, {MIG: found}, members=ONE, is_resync=True)
    after = first_status(decide(given, NOW))
    assert after.counts == Counts(desired=2, running=running)
    assert after.unusable.chips == 4 * running


def test_the_nodes_that_a_repair_has_no_time_to_delete_are_left_to_a_message() -> None:
    plan = decide(ObservedRemains(REPAIRED, BEGUN, {MIG: None}, is_resync=True), NOW)
    assert plan.resume is not None
    assert (plan.resume.name, plan.resume.cause) == (REPAIRED.name, Cause.CONTINUED)


def test_a_new_slice_waits_until_all_vms_of_the_lost_one_were_read() -> None:
    given = ObservedRemains(REPAIRED, BEGUN, {MIG: None}, is_resync=True, has_unread_vms=True)
    assert list_actions(decide(given, NOW)) == ["WriteStatus"]


def test_the_repair_of_a_slice_that_joins_by_other_means_revokes_no_token() -> None:
    about = group(change={"repair": "Recreate", "bootstrapKubernetes": None})
    given = ObservedRemains(about, LOST_SLICE, {MIG: STABLE}, members=ONE, is_resync=True)
    assert list_actions(decide(given, NOW)) == ["WriteStatus", DELETE_MIG]


def test_a_group_without_the_finalizer_needs_no_action() -> None:
    assert decide(ObservedRemains(group(deleting=True, owned=False), Status()), NOW) == Plan(
        "NoFinalizer"
    )


ANNOUNCED = replace(UNANNOUNCED, observed_generation=group(deleting=True).generation)


def patched(plan: Plan) -> list[str]:
    return [action.name for action in flat(plan) if isinstance(action, PatchNode)]


def test_a_deletion_begins_with_the_status_and_the_nodes() -> None:
    plan = decide(beginning(node(), node(f"{RESOURCE}-zz99"), node("another-machine")), NOW)
    assert (plan.outcome, list_actions(plan)) == (
        "Cordoning",
        ["WriteStatus", "PatchNode", "PatchNode"],
    )
    assert patched(plan) == sorted([VM, f"{RESOURCE}-zz99"])
    after = first_status(plan)
    ready = after.conditions[Type.READY]
    assert (ready.status, ready.reason) == ("False", "DeletingMIG")
    assert ready.message == "Waiting for ManagedInstanceGroup to be deleted"
    assert after.resources[MIG] == Resource(RESOURCE, State.DELETING, NOW, "uri")
    assert after.counts.joined == 2


def test_a_node_without_the_proof_gets_it_and_is_cordoned() -> None:
    given = observed_remains(
        found={MIG: OWN_MIG}, nodes=(node(proved=False),), instances=(instance(),)
    )
    (patch,) = (one for one in flat(decide(given, NOW)) if isinstance(one, PatchNode))
    assert patch.patch["spec"] == {"unschedulable": True}
    assert patch.patch["metadata"]["labels"][VM_ID_LABEL] == instance().id


def test_the_error_of_the_creation_is_removed_when_the_deletion_begins() -> None:
    known = Status(resources={MIG: failed(600)})
    after = first_status(decide(beginning(status=known), NOW))
    assert after.resources[MIG] == replace(failed(600), error=None)
    assert after.conditions[Type.READY].reason == "DeletingMIG"


def test_a_resource_that_was_gone_before_the_deletion_is_deleting_until_it_is_read_again() -> None:
    known = Status(resources={**ALL_READY, MIG: GONE, POLICY: GONE})
    after = first_status(decide(beginning(status=known), NOW))
    deleting = Resource(RESOURCE, State.DELETING, NOW)
    assert after.resources == {MIG: deleting, POLICY: deleting, TEMPLATE: READY}
    error = CallError("instance_group_managers.get", 403, "forbidden", "Required 'x' permission")
    plan = recover(group_work(after), error)
    assert plan is not None
    ready = first_status(plan).conditions[Type.READY]
    assert ready.reason == "PermissionDenied"
    assert ready.message.startswith(
        f"The managed instance group {RESOURCE} cannot be deleted: Required 'x' permission"
    )


def test_a_lost_status_is_replaced_by_an_intent_of_the_mig() -> None:
    after = first_status(decide(beginning(status=Status()), NOW))
    assert after.resources == {MIG: creating(0)}
    assert after.conditions[Type.READY].reason == "DeletingMIG"


BEGINNINGS: dict[str, tuple[ObservedBeginning, list[str]]] = {
    "tokens of VMs that have not joined are revoked": (
        beginning(node(VM, unschedulable=True)),
        ["WriteStatus", "RevokeTokens"],
    ),
    "completed actions are not repeated": (
        beginning(node(VM, unschedulable=True), node(f"{RESOURCE}-cd34"), status=ANNOUNCED),
        ["PatchNode"],
    ),
    "Nodes that cannot be read do not delay the deletion": (
        beginning(note="GET /api/v1/nodes: 503"),
        ["WriteStatus", "RevokeTokens"],
    ),
}


@pytest.mark.parametrize("case", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_deletion_begins_with_the_actions_that_are_missing(
    case: tuple[ObservedBeginning, list[str]],
) -> None:
    given, actions = case
    assert list_actions(decide(given, NOW)) == actions


@pytest.mark.parametrize(
    "given, is_prepared",
    [
        pytest.param(
            beginning(status=UNANNOUNCED), False, id="the status does not report the deletion"
        ),
        pytest.param(beginning(node(), status=ANNOUNCED), False, id="a Node is not cordoned"),
        pytest.param(beginning(status=ANNOUNCED, note="503"), False, id="Nodes were not read"),
        pytest.param(beginning(node("a"), status=ANNOUNCED), True, id="a Node that is not owned"),
        pytest.param(
            beginning(node(unschedulable=True), status=ANNOUNCED), True, id="all Nodes are cordoned"
        ),
    ],
)
def test_a_deletion_is_prepared_when_it_is_reported_and_all_nodes_are_cordoned(
    given: ObservedBeginning, is_prepared: bool
) -> None:
    assert given.is_prepared is is_prepared


def test_joined_nodes_are_counted_if_they_were_read() -> None:
    known = replace(UNANNOUNCED, counts=Counts(2, joined=2))
    assert first_status(decide(beginning(node(), status=known), NOW)).counts.joined == 1
    assert first_status(decide(beginning(status=known, note="503"), NOW)).counts.joined == 2


@pytest.mark.parametrize("entry, are_kept", [(DELETING, True), (GONE, False)])
def test_vms_are_counted_and_named_until_the_mig_is_gone(entry: Resource, are_kept: bool) -> None:
    given = observed_remains({MIG: entry}, {MIG: OWN_MIG} if are_kept else {}, {MIG: RUNNING})
    pending = (Pending(VM, "NodeNotReady", EARLIER),)
    known = replace(given.status, counts=Counts(2, running=2, joined=1), pending=pending)
    after = first_status(decide(replace(given, status=known), NOW))
    expected = (known.counts, pending) if are_kept else (Counts(2), ())
    assert (after.counts, after.pending) == expected


def test_a_failed_delete_is_reported_with_its_error() -> None:
    given = replace(
        observed_remains({MIG: DELETING}, {MIG: OWN_MIG}, {MIG: FAILED}), is_resync=False
    )
    after = first_status(decide(given, NOW))
    assert after.resources[MIG].error == ResourceError(
        Reason.REFUSED, "INTERNAL_ERROR", "Internal error", NOW
    )
    ready = after.conditions[Type.READY]
    assert ready.reason == "Refused"
    assert ready.message.startswith(
        f"The managed instance group {RESOURCE} cannot be deleted: Internal error. An API rejected"
    )


MIG_GONE = {**ALL_READY, MIG: GONE}
CALLS: dict[str, tuple[dict[str, Resource], str, str]] = {
    "the MIG": (ALL_READY, "instanceGroupManagers", MIG),
    "its VMs": (ALL_READY, "instances", MIG),
    "the policy": (MIG_GONE, "resourcePolicies", POLICY),
    "the template": (MIG_GONE, "instanceTemplates", TEMPLATE),
    "a policy that is gone": ({**MIG_GONE, POLICY: GONE}, "resourcePolicies", TEMPLATE),
    "no resource": (MIG_GONE, "Secret", POLICY),
}


@pytest.mark.parametrize("case", CALLS.values(), ids=CALLS)
def test_an_error_is_recorded_at_the_resource_of_the_call_or_the_next_one(
    case: tuple[dict[str, Resource], str, str],
) -> None:
    entries, about, kind = case
    error = CallError("a call", 403, "forbidden", "Required 'x' permission", About(about, "x"))
    plan = recover(group_work(replace(ANNOUNCED, resources=entries)), error)
    assert plan is not None
    after = first_status(plan)
    errors = {name: entry.error for name, entry in after.resources.items() if entry.error}
    assert list(errors) == [kind]
    assert plan.outcome == errors[kind].reason == "PermissionDenied"
    assert errors[kind].message.startswith("Required 'x' permission (a call). ")


REJECTED = {Type.ACCEPTED: Condition("False", Reason.INVALID_SPEC, "no zone", NOW, 1)}
USERS_TEMPLATE = Resource("template-of-the-user", State.READY, NOW)
UNREAD: dict[str, tuple[Status, str, list[str]]] = {
    "no resource was created": (Status(conditions=REJECTED), "Done", ["RemoveFinalizer"]),
    "no resource exists any more": (
        Status(conditions=REJECTED, resources={MIG: GONE, TEMPLATE: USERS_TEMPLATE}),
        "Done",
        ["RemoveFinalizer"],
    ),
    "a resource may exist": (
        Status(conditions=REJECTED, resources=ALL_READY),
        "Unreadable",
        ["WriteStatus"],
    ),
    "its status was lost": (Status(), "Unreadable", ["WriteStatus"]),
}


@pytest.mark.parametrize("case", UNREAD.values(), ids=UNREAD)
def test_a_group_with_an_invalid_spec_keeps_its_finalizer_while_a_resource_may_exist(
    case: tuple[Status, str, list[str]],
) -> None:
    known, outcome, actions = case
    given = UnreadableRemains(unreadable_group(deleting=True), known)
    plan = decide(given, NOW)
    assert (plan.outcome, list_actions(plan)) == (outcome, actions)


def test_the_message_of_an_unreadable_group_names_the_resources_to_delete() -> None:
    uri = f"projects/p/zones/z/instanceGroupManagers/{RESOURCE}"
    entries = {
        POLICY: Resource(RESOURCE, State.READY, NOW),
        TEMPLATE: USERS_TEMPLATE,
        MIG: Resource(RESOURCE, State.READY, NOW, uri),
    }
    given = UnreadableRemains(
        unreadable_group(deleting=True), Status(1, conditions=REJECTED, resources=entries)
    )
    assert find_ready(decide(given, NOW)) == (
        "InvalidSpec",
        "spec.nodeLocation: is required. Without a valid spec tpu-functions cannot delete the group's "
        f"resources: managed instance group {uri}, workload policy {RESOURCE}. Delete them on Compute "
        "Engine in this order, then remove the finalizer tpu-functions.dev/cleanup.",
    )


def test_a_lost_status_of_an_unreadable_group_does_not_mean_that_no_resource_exists() -> None:
    group = unreadable_group(deleting=True)
    plan = decide(UnreadableRemains(group, Status()), NOW)
    reason, message = find_ready(plan)
    assert (reason, f"managed instance group {RESOURCE}" in message) == ("InvalidSpec", True)
    again = decide(UnreadableRemains(group, written(plan)), NOW)
    assert again.outcome == "Unreadable"


def written(plan: Plan) -> Status:
    """Return the status that a plan writes."""
    (write,) = plan.first
    assert isinstance(write, WriteStatus)
    return write.status


def find_ready(plan: Plan) -> tuple[str, str]:
    """Return the reason and the message of Ready that a plan writes."""
    ready = written(plan).conditions[Type.READY]
    return ready.reason, ready.message
