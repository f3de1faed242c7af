"""tear_down decides what goes next, and what is surely gone."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from functions.tear_down import (
    ObservedBeginning,
    ObservedRemains,
    UnreadableRemains,
    decide,
    recover,
)
from shared.base.errors import CallError
from shared.base.names import VM_ID_LABEL
from shared.base.reasons import Reason
from shared.frame.decode import Trigger
from shared.frame.message import Cause, Message
from shared.frame.plan import Plan
from shared.node_groups.actions import Delete, PatchNode
from shared.node_groups.resources import Found
from shared.node_groups.status import (
    MIG,
    POLICY,
    TEMPLATE,
    Condition,
    Counts,
    Resource,
    ResourceError,
    State,
    Status,
    Type,
    render,
)
from shared.node_groups.work import GroupWork, WriteStatus
from shared.ports.gce.values import GceError, Instance, Operation
from shared.ports.kubernetes.nodes import Node, parse_node
from tests.unit.builders import NOW, RESOURCE, flat, group, unreadable_group
from tests.unit.test_create_resources import instance_group, policy, template
from tests.unit.test_inject_token import instance

EARLIER = NOW - timedelta(minutes=10)
VM = f"{RESOURCE}-ab12"
READY = Resource(RESOURCE, State.READY, EARLIER, "uri")
GONE = Resource(RESOURCE, State.GONE, EARLIER, "uri")
DELETING = Resource(RESOURCE, State.DELETING, EARLIER, "uri", operation="op")
RUNS, ENDED = Operation("op", False), Operation("op", True)
FAULTY = Operation("op", True, GceError("INTERNAL_ERROR", "Internal error", 500))
ALL_READY = {POLICY: READY, TEMPLATE: READY, MIG: READY}


def creating(seconds_ago: float, operation: str = "") -> Resource:
    since: datetime = NOW - timedelta(seconds=seconds_ago)
    return Resource(RESOURCE, State.CREATING, since, operation=operation)


def refused(seconds_ago: float) -> Resource:
    """By the last insert, whose intent was written so long ago."""
    return creating(seconds_ago).fail("QuotaExceeded", "quotaExceeded", "no", NOW)


def node(name: str = VM, *, proved: bool = True, place: str = "", **spec: Any) -> Node:
    labels = {VM_ID_LABEL: "42"} if proved else {}
    provider = place or f"gce://my-gcp-project/us-central1-c/{name}"
    return parse_node(
        {
            "metadata": {
                "name": name,
                "uid": f"uid-of-{name}",
                "creationTimestamp": "2026-11-20T09:30:00Z",
                "labels": labels,
            },
            "spec": {"providerID": provider, **spec},
        }
    )


def seen(
    entries: dict[str, Resource] | None = None,
    found: dict[str, Found | None] | None = None,
    operations: dict[str, Operation | None] | None = None,
    nodes: tuple[Node, ...] = (),
    instances: tuple[Instance, ...] = (),
) -> ObservedRemains:
    known = Status(resources=ALL_READY if entries is None else entries)
    return ObservedRemains(
        group(deleting=True),
        known,
        found or {},
        operations or {},
        nodes,
        instances,
    )


def in_words(plan: Plan) -> list[str]:
    return [
        f"Delete {action.kind}" if isinstance(action, Delete) else type(action).__name__
        for action in flat(plan)
    ]


STANDING, POL, TPL = instance_group(), policy(), template()
CASES: dict[str, tuple[ObservedRemains, str, list[str]]] = {
    "the MIG goes first": (
        seen(found={MIG: STANDING}),
        "DeletingMIG",
        ["WriteStatus", "Delete managedInstanceGroup", "WriteResults"],
    ),
    "Nodes that lack our label get it afterwards": (
        seen(found={MIG: STANDING}, nodes=(node(proved=False),), instances=(instance(),)),
        "DeletingMIG",
        ["WriteStatus", "Delete managedInstanceGroup", "WriteResults", "PatchNode"],
    ),
    "a delete that runs is waited for": (
        seen({MIG: DELETING}, {MIG: STANDING}, {MIG: RUNS}),
        "AwaitingDelete",
        ["WriteStatus"],
    ),
    "a delete that ended without success is repeated": (
        seen({MIG: DELETING}, {MIG: STANDING}, {MIG: ENDED}),
        "DeletingMIG",
        ["WriteStatus", "Delete managedInstanceGroup", "WriteResults"],
    ),
    "an insert that runs is waited for": (
        seen({MIG: creating(5, "op")}, {MIG: None}, {MIG: RUNS}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "an intent without operation may still be under way": (
        seen({MIG: creating(149)}, {MIG: None}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "after 150 seconds it is surely absent": (
        seen(
            {MIG: creating(150), POLICY: READY, TEMPLATE: READY},
            {MIG: None, POLICY: POL, TEMPLATE: TPL},
        ),
        "DeletingRest",
        ["WriteStatus", "Delete workloadPolicy", "Delete instanceTemplate", "WriteResults"],
    ),
    "the last insert was refused a moment ago, a rival's may yet arrive": (
        seen({MIG: refused(149)}, {MIG: None}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "the last intent was taken back a moment ago, a rival's insert may yet arrive": (
        seen({MIG: replace(refused(149), state=State.PENDING)}, {MIG: None}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "so may a rival's insert of a template": (
        seen({MIG: GONE, POLICY: GONE, TEMPLATE: refused(149)}, {TEMPLATE: None}),
        "AwaitingDelete",
        ["WriteStatus"],
    ),
    "what was refused long ago is surely absent": (
        seen({MIG: refused(150), POLICY: GONE, TEMPLATE: GONE}, {MIG: None}),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
    "what was never asked for is surely absent": (
        seen({MIG: Resource(RESOURCE), POLICY: GONE, TEMPLATE: GONE}, {MIG: None}),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
    "a rival's insert that has arrived is deleted": (
        seen({MIG: refused(5)}, {MIG: STANDING}),
        "DeletingMIG",
        ["WriteStatus", "Delete managedInstanceGroup", "WriteResults"],
    ),
    "an entry that was lost is under way since now": (
        seen({}, {MIG: None}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "template and policy go side by side, Nodes after them": (
        seen({**ALL_READY, MIG: GONE}, {POLICY: POL, TEMPLATE: TPL}, nodes=(node(),)),
        "DeletingRest",
        [
            "WriteStatus",
            "Delete workloadPolicy",
            "Delete instanceTemplate",
            "WriteResults",
            "DeleteNode",
        ],
    ),
    "what bears our name and not our mark stays": (
        seen(
            {MIG: GONE, POLICY: creating(5), TEMPLATE: GONE},
            {POLICY: policy("somebody's")},
        ),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
    "what was ours, and whose mark somebody has changed, is told and kept": (
        seen(
            {MIG: GONE, POLICY: READY, TEMPLATE: GONE},
            {POLICY: policy("somebody's")},
        ),
        "AwaitingDelete",
        ["WriteStatus"],
    ),
    "what was called gone before the deletion is looked for": (
        seen({**ALL_READY, MIG: GONE}, {MIG: STANDING}),
        "DeletingMIG",
        ["WriteStatus", "Delete managedInstanceGroup", "WriteResults"],
    ),
    "a delete that has failed waits for the sweep": (
        replace(seen({MIG: DELETING}, {MIG: STANDING}, {MIG: FAULTY}), is_retry_due=False),
        "AwaitingDelete",
        ["WriteStatus"],
    ),
    "an insert that ended well may have made what is not seen yet": (
        seen({MIG: creating(5, "op")}, {MIG: None}, {MIG: ENDED}),
        "AwaitingCreate",
        ["WriteStatus"],
    ),
    "an insert that failed has made nothing": (
        seen(
            {MIG: creating(5, "op"), POLICY: GONE, TEMPLATE: GONE},
            {MIG: None},
            {MIG: FAULTY},
        ),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
    "when all is gone the group goes": (
        seen({MIG: GONE, POLICY: GONE, TEMPLATE: GONE}),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
    "late Nodes go before the group": (
        seen({MIG: GONE, POLICY: GONE, TEMPLATE: GONE}, nodes=(node(),)),
        "Done",
        ["WriteStatus", "DeleteNode", "RevokeTokens", "RemoveFinalizer"],
    ),
    "a Node that a finalizer keeps is not deleted again": (
        seen(
            {MIG: GONE, POLICY: GONE, TEMPLATE: GONE},
            nodes=(replace(node(), is_deleting=True),),
        ),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
    "a Node that merely bears our label stays": (
        seen(
            {MIG: GONE, POLICY: GONE, TEMPLATE: GONE},
            nodes=(node("somebody-else"), node(place="gce://other/us-central1-c/x")),
        ),
        "Done",
        ["RevokeTokens", "RemoveFinalizer"],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_goes_next(case: tuple[ObservedRemains, str, list[str]]) -> None:
    given, outcome, wanted = case
    plan = decide(given, NOW)
    assert (plan.outcome, in_words(plan)) == (outcome, wanted)


def test_a_template_of_ones_own_is_not_deleted() -> None:
    change = {
        "instanceConfig": None,
        "bootstrapKubernetes": None,
        "instanceTemplateURI": "projects/my-gcp-project/global/instanceTemplates/t",
    }
    own = group(deleting=True, change=change)
    gone = Status(resources={MIG: GONE, POLICY: GONE, TEMPLATE: READY})
    given = ObservedRemains(own, gone)
    assert in_words(decide(given, NOW)) == ["RemoveFinalizer"]


def test_a_group_that_is_not_deleted_keeps_all_and_somebody_looks() -> None:
    plan = decide(ObservedRemains(group(), Status(resources=ALL_READY)), NOW)
    assert (plan.outcome, in_words(plan)) == ("NotDeleted", ["Send"])


def test_what_we_never_owned_is_nothing_to_us() -> None:
    assert decide(ObservedRemains(group(deleting=True, owned=False), Status()), NOW) == Plan(
        "NoFinalizer"
    )


UNANNOUNCED = Status(resources=ALL_READY)
ANNOUNCED = replace(UNANNOUNCED, observed_generation=group(deleting=True).generation)


def beginning(*nodes: Node, status: Status = UNANNOUNCED, note: str = "") -> ObservedBeginning:
    return ObservedBeginning(group(deleting=True), status, nodes, note)


def announced(plan: Plan) -> Status:
    write = plan.actions[0]
    assert isinstance(write, WriteStatus)
    return write.status


def patched(plan: Plan) -> list[str]:
    return [action.name for action in flat(plan) if isinstance(action, PatchNode)]


def test_a_deletion_begins_with_the_status_and_the_nodes() -> None:
    plan = decide(beginning(node(), node(f"{RESOURCE}-zz99"), node("somebody-else")), NOW)
    assert (plan.outcome, in_words(plan)) == (
        "Cordoning",
        ["WriteStatus", "PatchNode", "PatchNode", "ObserveAgain"],
    )
    assert patched(plan) == sorted([VM, f"{RESOURCE}-zz99"])
    after = announced(plan)
    ready = after.conditions[Type.READY]
    assert (ready.status, ready.reason) == ("False", "DeletingMIG")
    assert ready.message == "Waiting for ManagedInstanceGroup to be deleted"
    assert after.resources[MIG] == Resource(RESOURCE, State.DELETING, NOW, "uri")
    assert after.counts.joined == 2


def test_why_the_creation_waited_is_not_why_the_deletion_waits() -> None:
    known = Status(resources={MIG: refused(600)})
    after = announced(decide(beginning(status=known), NOW))
    assert after.resources[MIG] == replace(refused(600), error=None)
    assert after.conditions[Type.READY].reason == "DeletingMIG"


def test_a_status_that_was_lost_shows_that_a_mig_may_be_there() -> None:
    after = announced(decide(beginning(status=Status()), NOW))
    assert after.resources == {MIG: creating(0)}
    assert after.conditions[Type.READY].reason == "DeletingMIG"


BEGINNINGS: dict[str, tuple[ObservedBeginning, list[str]]] = {
    "tokens of VMs that have not joined are revoked": (
        beginning(node(VM, unschedulable=True)),
        ["WriteStatus", "RevokeTokens", "ObserveAgain"],
    ),
    "what has been done is not done again": (
        beginning(node(VM, unschedulable=True), node(f"{RESOURCE}-cd34"), status=ANNOUNCED),
        ["PatchNode", "ObserveAgain"],
    ),
    "Nodes that cannot be read hold nothing up": (
        beginning(note="GET /api/v1/nodes: 503"),
        ["WriteStatus", "RevokeTokens", "ObserveAgain"],
    ),
}


@pytest.mark.parametrize("case", BEGINNINGS.values(), ids=BEGINNINGS)
def test_how_a_deletion_begins(case: tuple[ObservedBeginning, list[str]]) -> None:
    given, wanted = case
    assert in_words(decide(given, NOW)) == wanted


@pytest.mark.parametrize(
    "given, is_prepared",
    [
        pytest.param(beginning(status=UNANNOUNCED), False, id="the status does not show it"),
        pytest.param(beginning(node(), status=ANNOUNCED), False, id="a Node is not cordoned"),
        pytest.param(beginning(status=ANNOUNCED, note="503"), False, id="Nodes were not read"),
        pytest.param(beginning(node("a"), status=ANNOUNCED), True, id="somebody else's Node"),
        pytest.param(
            beginning(node(unschedulable=True), status=ANNOUNCED), True, id="all is cordoned"
        ),
    ],
)
def test_whether_the_beginning_of_a_deletion_is_over(
    given: ObservedBeginning, is_prepared: bool
) -> None:
    assert given.is_prepared is is_prepared


def test_joined_nodes_are_counted_if_they_were_read() -> None:
    known = replace(UNANNOUNCED, counts=Counts(2, joined=2))
    assert announced(decide(beginning(node(), status=known), NOW)).counts.joined == 1
    assert announced(decide(beginning(status=known, note="503"), NOW)).counts.joined == 2


def test_a_delete_that_has_failed_shows_why() -> None:
    given = replace(seen({MIG: DELETING}, {MIG: STANDING}, {MIG: FAULTY}), is_retry_due=False)
    after = announced(decide(given, NOW))
    assert after.resources[MIG].error == ResourceError(
        Reason.REFUSED, "INTERNAL_ERROR", "Internal error", NOW
    )
    ready = after.conditions[Type.READY]
    assert ready.reason == "Refused"
    assert ready.message.startswith(
        f"The managed instance group {RESOURCE} cannot be deleted: Internal error. The API rejected"
    )


SINCE_DELETION = replace(GONE, since=NOW)
MIG_GONE = {**ALL_READY, MIG: SINCE_DELETION}
LEFT: dict[str, tuple[dict[str, Resource], str, str]] = {
    "the MIG": (ALL_READY, "instance_group_managers.delete", MIG),
    "its VMs": (ALL_READY, "instances.list", MIG),
    "the MIG was gone before the deletion only": ({**ALL_READY, MIG: GONE}, "instances.list", MIG),
    "the policy": (MIG_GONE, "resource_policies.delete", POLICY),
    "the policy's operation": (MIG_GONE, "region_operations.get", POLICY),
    "the template": (MIG_GONE, "instance_templates.get", TEMPLATE),
    "the template's operation": (MIG_GONE, "global_operations.get", TEMPLATE),
    "a policy that is gone": (
        {**MIG_GONE, POLICY: SINCE_DELETION},
        "resource_policies.get",
        TEMPLATE,
    ),
    "no resource": (MIG_GONE, "GET /api/v1/secrets", POLICY),
}


@pytest.mark.parametrize("case", LEFT.values(), ids=LEFT)
def test_a_refusal_is_recorded_with_the_resource_of_the_call_or_the_next_one(
    case: tuple[dict[str, Resource], str, str],
) -> None:
    entries, call, kind = case
    refusal = CallError(call, 403, "forbidden", "Required 'x' permission")
    plan = recover(group_work(Status(resources=entries)), refusal)
    assert plan is not None
    after = announced(plan)
    errors = {name: entry.error for name, entry in after.resources.items() if entry.error}
    assert list(errors) == [kind]
    assert plan.outcome == errors[kind].reason == "PermissionDenied"
    assert errors[kind].message.startswith(f"Required 'x' permission ({call}). ")


def group_work(known: Status) -> GroupWork:
    """The work on a group that is being deleted; no call is made with it."""
    nothing: Any = None
    about = replace(group(deleting=True), raw={"status": render(known)})
    return GroupWork(
        settings=nothing,
        gce=nothing,
        cluster=nothing,
        publish=nothing,
        random_bytes=bytes,
        now=NOW,
        trigger=Trigger("Resync", NOW, Message("default", "my-slice", "", Cause.RESYNC, NOW)),
        remaining_s=lambda: 30.0,
        group=about,
        status=known,
        reported=known,
    )


REJECTED = {Type.ACCEPTED: Condition("False", Reason.INVALID_SPEC, "no zone", NOW, 1)}
USERS_TEMPLATE = Resource("template-of-the-user", State.READY, NOW)
UNREAD: dict[str, tuple[Status, str, list[str]]] = {
    "nothing was ever created": (Status(conditions=REJECTED), "Done", ["RemoveFinalizer"]),
    "nothing is there any more": (
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
def test_of_a_group_whose_spec_cannot_be_read(case: tuple[Status, str, list[str]]) -> None:
    known, outcome, words = case
    given = UnreadableRemains(unreadable_group(deleting=True), known)
    plan = decide(given, NOW)
    assert (plan.outcome, in_words(plan)) == (outcome, words)


def test_a_user_reads_which_resources_of_an_unreadable_group_to_delete() -> None:
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


def test_a_lost_status_of_an_unreadable_group_is_not_taken_for_no_resources() -> None:
    group = unreadable_group(deleting=True)
    plan = decide(UnreadableRemains(group, Status()), NOW)
    reason, message = find_ready(plan)
    assert (reason, f"managed instance group {RESOURCE}" in message) == ("InvalidSpec", True)
    again = decide(UnreadableRemains(group, written(plan)), NOW)
    assert again.outcome == "Unreadable"


def written(plan: Plan) -> Status:
    """The status that a plan writes."""
    (write,) = plan.actions
    assert isinstance(write, WriteStatus)
    return write.status


def find_ready(plan: Plan) -> tuple[str, str]:
    """The reason and the message of Ready that a plan writes."""
    ready = written(plan).conditions[Type.READY]
    return ready.reason, ready.message
