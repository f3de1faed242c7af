# ruff: noqa: E501  (a table reads best with a row on a line)
"""The reads of tear_down in the order of a deletion, and the errors of reads that do not delay it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from functions.tear_down import recover
from functions.tear_down.decide import decide
from functions.tear_down.observe import (
    ObservedBeginning,
    ObservedRemains,
    UnreadableRemains,
    list_kinds,
    observe,
)
from shared.base.reasons import REASONS, Reason
from shared.frame.plan import StepRefused
from shared.node_groups.node_group import AnyGroup
from shared.node_groups.recovery import begin_repair
from shared.node_groups.status import (
    MIG,
    POLICY,
    TEMPLATE,
    Condition,
    Counts,
    Resource,
    State,
    Status,
    Type,
    render,
)
from shared.ports.errors import About, CallError, OutOfTimeError
from shared.ports.gce.values import Mig
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import LogTrigger, ObjectTrigger, Trigger
from tests.support.builders import NOW, RESOURCE, SETTINGS, group, unreadable_group
from tests.support.compute import instance
from tests.support.reads import reading_work
from tests.unit.functions.tear_down.objects import (
    ALL_READY,
    DELETING,
    ENDED,
    GONE,
    OWN_MIG,
    OWN_POLICY,
    OWN_TEMPLATE,
    READY,
    VM,
    creating,
    first_status,
    group_work,
    node,
)

RESYNC = ObjectTrigger(Message("default", "my-slice", "", Cause.RESYNC, NOW))
DELETED = group(deleting=True)
BY_OTHER_MEANS = group(deleting=True, change={"bootstrapKubernetes": None})
OTHER = f"{RESOURCE}-cd34"
FORBIDDEN = CallError("GET nodes", 403, "Forbidden", "may not list")
SLOW = OutOfTimeError("no answer within 19 s")


def event(method: str) -> Trigger:
    kind = method.split(".")[1]
    found = LogEvent(method, "my-gcp-project", "us-central1-c", RESOURCE, kind)
    return LogTrigger(at=NOW, event=found)


def failure(method: str) -> Trigger:
    found = event(method)
    assert isinstance(found, LogTrigger)
    return replace(found, event=replace(found.event, has_failed=True))


def reported_status(entries: Mapping[str, Resource], joined: int = 0) -> Status:
    """Return the status of a deletion that has been reported."""
    return Status(
        observed_generation=1, resources=dict(entries), counts=Counts(desired=2, joined=joined)
    )


ANSWERS: dict[str, Any] = {
    "list_nodes": [],
    "find_mig": OWN_MIG,
    "find_policy": OWN_POLICY,
    "find_template": OWN_TEMPLATE,
    "find_operation": ENDED,
    "list_instances": [],
    "find_nodes": lambda names: dict.fromkeys(names),
}
MIG_GONE = {**ALL_READY, MIG: GONE}
PARALLEL = {MIG: GONE, POLICY: DELETING, TEMPLATE: DELETING}
OPERATION = "find_operation"
BOTH = ["find_policy", OPERATION, "find_template", OPERATION, "list_nodes"]
ABSENT = {"find_mig": None, "find_policy": None, "find_template": None}
TEMPLATE_EXISTS = {"find_template": OWN_TEMPLATE}
NOT_OURS = {"find_mig": replace(OWN_MIG, description="another mark")}
CASES: dict[str, tuple[Mapping[str, Resource], int, Trigger, dict[str, Any], list[str]]] = {
    "all had joined: the MIG": (ALL_READY, 2, RESYNC, {}, ["find_mig"]),
    "not all had joined: Nodes and VMs, too": (ALL_READY, 1, RESYNC, {}, ["find_mig", "list_nodes", "list_instances", "find_nodes"]),
    "its MIG waits, and no VM exists: Nodes": (ALL_READY, 1, RESYNC, {"find_mig": replace(OWN_MIG, is_bulk_in_progress=True, missing=OWN_MIG.target_size)}, ["find_mig", "list_nodes"]),
    "the delete has begun: the MIG and the operation": ({**ALL_READY, MIG: DELETING}, 0, RESYNC, {}, ["find_mig", OPERATION]),
    "the create has not ended: first its operation": ({**ALL_READY, MIG: creating(5, "op")}, 2, RESYNC, {}, [OPERATION, "find_mig"]),
    "the MIG of this name was never ours: policy, template and Nodes": (
        {**ALL_READY, MIG: creating(5)},
        0,
        RESYNC,
        NOT_OURS,
        ["find_mig", "find_policy", "find_template", "list_nodes"],
    ),
    "MIG and policy are called gone: MIG, template and Nodes": ({**MIG_GONE, POLICY: GONE}, 0, RESYNC, ABSENT | TEMPLATE_EXISTS, ["find_mig", "find_template", "list_nodes"]),
    "the delete of the policy has ended first: none": (PARALLEL, 0, event("compute.resourcePolicies.delete"), {}, []),
    "the delete of the template has ended first: none": (PARALLEL, 0, event("compute.instanceTemplates.delete"), {}, []),
    "the delete of the policy has failed: not the template": (PARALLEL, 0, failure("compute.resourcePolicies.delete"), {}, [*BOTH[:2], "list_nodes"]),
    "the delete of the policy has ended, the other's end was reported: both": (
        {**PARALLEL, TEMPLATE: replace(DELETING, operation="")},
        0,
        event("compute.resourcePolicies.delete"),
        ABSENT,
        ["find_policy", "find_template", "list_nodes"],
    ),
    "the last delete has ended: also what only the status calls gone": (
        {**PARALLEL, POLICY: GONE},
        0,
        event("compute.instanceTemplates.delete"),
        ABSENT,
        ["find_template", "find_policy", "list_nodes"],
    ),
    "all are called gone": ({MIG: GONE, POLICY: GONE, TEMPLATE: GONE}, 0, RESYNC, ABSENT, ["find_mig", "find_policy", "find_template", "list_nodes"]),
    "the delete of the MIG has ended: both": (PARALLEL, 0, event("compute.instanceGroupManagers.delete"), {}, BOTH),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_only_the_resources_that_the_deletion_waits_for_are_read(
    case: tuple[Mapping[str, Resource], int, Trigger, dict[str, Any], list[str]],
) -> None:
    entries, joined, trigger, answers, calls = case
    known = reported_status(entries, joined)
    is_first = entries[MIG] in (GONE, DELETING)  # else the deletion begins
    work, reads = reading_work(
        DELETED, known, trigger, ANSWERS | answers, is_first_observation=is_first
    )
    observed = observe(work)
    assert isinstance(observed, ObservedRemains)
    assert reads.calls == calls
    assert observed.is_resync is trigger.is_resync
    assert observed.notes == ()
    assert len(observed.operations) == calls.count(OPERATION)


WITHOUT_LABEL = node(f"{RESOURCE}-zz99")
AT_THE_END: dict[str, tuple[AnyGroup, Mapping[str, Resource], dict[str, Any], bool, list[str]]] = {
    "all are gone": (BY_OTHER_MEANS, dict.fromkeys(ALL_READY, GONE), {}, True, [VM, WITHOUT_LABEL.name]),
    "there is no time": (BY_OTHER_MEANS, dict.fromkeys(ALL_READY, GONE), {"list_unlabelled_nodes": SLOW}, True, [VM]),
    "the template is not gone": (BY_OTHER_MEANS, {**MIG_GONE, POLICY: GONE}, TEMPLATE_EXISTS, False, [VM]),
    "kubelets set the label": (DELETED, dict.fromkeys(ALL_READY, GONE), {}, False, [VM]),
}  # fmt: skip


@pytest.mark.parametrize("case", AT_THE_END.values(), ids=AT_THE_END)
def test_nodes_without_the_label_are_looked_for_at_the_end_if_kubelets_do_not_set_it(
    case: tuple[AnyGroup, Mapping[str, Resource], dict[str, Any], bool, list[str]],
) -> None:
    about, entries, change, is_looked_for, names = case
    answers = ANSWERS | ABSENT | {
        "list_nodes": [node()],
        "list_unlabelled_nodes": [WITHOUT_LABEL],
        "find_instances": {},
    }  # fmt: skip
    work, reads = reading_work(
        about, reported_status(entries), RESYNC, answers | change, is_first_observation=False
    )
    observed = observe(work)
    assert isinstance(observed, ObservedRemains)
    assert ("list_unlabelled_nodes" in reads.calls) is is_looked_for
    assert [one.name for one in observed.nodes] == names
    assert [one.name for one in decide(observed, NOW).each] == names


OWN_TEMPLATE_URI = "projects/my-gcp-project/global/instanceTemplates/t"
BY_USERS_TEMPLATE = {
    "instanceConfig": None,
    "bootstrapKubernetes": None,
    "instanceTemplateURI": OWN_TEMPLATE_URI,
}
ONE_BY_ONE = {"targetSizePolicyMode": "INDIVIDUAL"}
USERS = {TEMPLATE: replace(READY, name="t")}
KINDS_CASES: dict[str, tuple[dict[str, Any], Mapping[str, Resource], tuple[str, ...]]] = {
    "what the spec needs, without a status": ({}, {}, (MIG, POLICY, TEMPLATE)),
    "no policy, without a status": (ONE_BY_ONE, {}, (MIG, TEMPLATE)),
    "no template of the user": (BY_USERS_TEMPLATE, {MIG: READY, **USERS}, (MIG, POLICY)),
    "no template of the user, without a status": (BY_USERS_TEMPLATE, {}, (MIG, POLICY)),
    "a policy that the spec does not need by now": (ONE_BY_ONE, ALL_READY, (MIG, TEMPLATE, POLICY)),
    "a template that the spec does not need by now": (BY_USERS_TEMPLATE, ALL_READY, (MIG, POLICY, TEMPLATE)),
    "also a template of another name, if the spec needs one": ({}, {**ALL_READY, **USERS}, (MIG, POLICY, TEMPLATE)),
}  # fmt: skip


@pytest.mark.parametrize("case", KINDS_CASES.values(), ids=KINDS_CASES)
def test_what_the_spec_needs_and_what_the_status_has_recorded_is_deleted(
    case: tuple[dict[str, Any], Mapping[str, Resource], tuple[str, ...]],
) -> None:
    change, entries, kinds = case
    about = group(deleting=True, change=change)
    assert list_kinds(about, reported_status(entries)) == kinds


PLACE = f"projects/my-gcp-project/zones/us-central1-c/instanceGroupManagers/{RESOURCE}"
WRONG = PLACE.replace("us-central1-c", "us-central1-f")
OTHER = WRONG.replace("my-gcp-project", "other")
ELSEWHERE: dict[str, tuple[str, frozenset[str], list[str], str]] = {
    "in the spec's zone": (WRONG, SETTINGS.projects, ["us-central1-f", "us-central1-c"], PLACE),
    "not in a project that is not served": (OTHER, frozenset({"other"}), ["us-central1-f"], OTHER),
    "once, where both say the same": (PLACE, SETTINGS.projects, ["us-central1-c"], PLACE),
}


@pytest.mark.parametrize("case", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_resource_that_is_not_where_the_status_says_is_looked_for(
    case: tuple[str, frozenset[str], list[str], str],
) -> None:
    uri, projects, zones, recorded = case
    known = reported_status({**ALL_READY, MIG: replace(DELETING, uri=uri)}, 2)
    about = group(deleting=True, status=render(known))
    read: list[str] = []

    def find_mig(_project: str, zone: str, _name: str) -> Mig | None:
        read.append(zone)
        return replace(OWN_MIG, uri=PLACE) if zone == "us-central1-c" else None

    answers = ANSWERS | ABSENT | {"find_mig": find_mig}
    settings = replace(SETTINGS, projects=projects)
    work, _ = reading_work(about, known, RESYNC, answers, settings=settings)
    observed = observe(work)
    assert isinstance(observed, ObservedRemains)
    assert (read, observed.status.resources[MIG].uri) == (zones, recorded)


@pytest.mark.parametrize(
    "entries, is_first", [(PARALLEL, False), ({**PARALLEL, TEMPLATE: READY}, True)]
)
def test_both_are_read_after_a_stale_observation_or_if_a_delete_has_not_begun(
    entries: Mapping[str, Resource], is_first: bool
) -> None:
    trigger = event("compute.resourcePolicies.delete")
    work, reads = reading_work(
        DELETED, reported_status(entries), trigger, ANSWERS, is_first_observation=is_first
    )
    observe(work)
    assert {"find_policy", "find_template"} <= {*reads.calls}


@pytest.mark.parametrize(
    "about, observed",
    [
        pytest.param(unreadable_group(deleting=True), UnreadableRemains, id="unreadable"),
        pytest.param(group(), ObservedRemains, id="not deleted"),
        pytest.param(group(deleting=True, finalizers=[]), ObservedRemains, id="not owned"),
    ],
)
def test_nothing_is_read_for_a_group_without_resources_to_delete(
    about: AnyGroup, observed: type
) -> None:
    work, reads = reading_work(about, reported_status(ALL_READY), RESYNC, {})
    assert type(observe(work)) is observed
    assert reads.calls == []


@pytest.mark.parametrize(
    "known, is_beginning",
    [
        pytest.param(
            Status(resources=ALL_READY), True, id="the status was written by another step"
        ),
        pytest.param(reported_status(ALL_READY), False, id="a Node could not be cordoned"),
    ],
)
def test_a_second_observation_repeats_the_beginning_only_if_the_status_was_not_written(
    known: Status, is_beginning: bool
) -> None:
    answers = ANSWERS | {"list_nodes": [node()]}
    work, _ = reading_work(DELETED, known, RESYNC, answers, is_first_observation=False)
    assert isinstance(observe(work), ObservedBeginning) is is_beginning


BEGINNING: dict[str, tuple[Status, Any, bool, str]] = {
    "the deletion is not reported yet": (Status(resources=ALL_READY), [], True, ""),
    "a Node is not cordoned": (reported_status(ALL_READY), [node()], True, ""),
    "all Nodes are cordoned": (
        reported_status(ALL_READY, 2),
        [node(unschedulable=True)],
        False,
        "",
    ),
    "the Nodes cannot be listed": (reported_status(ALL_READY), FORBIDDEN, True, str(FORBIDDEN)),
    "there is no time to list the Nodes": (reported_status(ALL_READY), SLOW, True, str(SLOW)),
}


@pytest.mark.parametrize("case", BEGINNING.values(), ids=BEGINNING)
def test_a_deletion_is_observed_as_beginning_until_it_is_reported_and_all_nodes_are_cordoned(
    case: tuple[Status, Any, bool, str],
) -> None:
    known, nodes, is_beginning, note = case
    work, _ = reading_work(DELETED, known, RESYNC, ANSWERS | {"list_nodes": nodes})
    observed = observe(work)
    assert isinstance(observed, ObservedBeginning) is is_beginning
    assert getattr(observed, "note", "") == note


MEMBERS = [replace(instance(name), name=name) for name in (VM, OTHER)]
UNPROVED: dict[str, tuple[dict[str, Any], list[str], list[str], tuple[str, ...]]] = {
    "all are proved": ({"list_nodes": [node(), node(OTHER)]}, [VM, OTHER], [], ()),
    "a Node is missing": (
        {
            "list_nodes": [node()],
            "list_instances": MEMBERS,
            "find_nodes": lambda _: {OTHER: node(OTHER, proved=False)},
        },
        [VM, OTHER],
        [VM, OTHER],
        (),
    ),
    "the missing Node does not exist": ({"list_nodes": [node()], "list_instances": MEMBERS}, [VM], [VM, OTHER], ()),
    "there was no time to read the missing Node": (
        {"list_nodes": [node()], "list_instances": MEMBERS, "find_nodes": lambda _: {}},
        [VM],
        [VM, OTHER],
        ("the Nodes of 1 VM by name",),
    ),
    "the VMs cannot be listed": ({"list_nodes": [node()], "list_instances": FORBIDDEN}, [VM], [], (str(FORBIDDEN),)),
    "there is no time to list the VMs": ({"list_nodes": [node()], "list_instances": SLOW}, [VM], [], (str(SLOW),)),
}  # fmt: skip


@pytest.mark.parametrize("case", UNPROVED.values(), ids=UNPROVED)
def test_nodes_without_the_proof_are_read_before_the_mig_is_deleted(
    case: tuple[dict[str, Any], list[str], list[str], tuple[str, ...]],
) -> None:
    answers, nodes, instances, notes = case
    work, _ = reading_work(
        DELETED, reported_status(ALL_READY), RESYNC, ANSWERS | answers, is_first_observation=False
    )
    observed = observe(work)
    assert isinstance(observed, ObservedRemains)
    assert observed.found == {MIG: OWN_MIG}
    assert [one.name for one in observed.nodes] == nodes
    assert [one.name for one in observed.instances] == instances
    assert len(observed.notes) == len(notes)
    assert all(text in note for text, note in zip(notes, observed.notes, strict=True))


ALL_GONE = dict.fromkeys(ALL_READY, GONE)


@pytest.mark.parametrize(
    "entries, found, kind, is_shown",
    [
        pytest.param(ALL_READY, {}, "Node", False, id="a Node cannot be deleted"),
        pytest.param(ALL_GONE, {}, "Node", True, id="all resources are gone"),
        pytest.param(
            {**ALL_GONE, POLICY: DELETING},
            {POLICY: None},
            "TPUNodeGroup",
            True,
            id="the last resource was found to be gone",
        ),
    ],
)
def test_an_error_without_a_resource_is_reported_by_nodes_joined(
    entries: dict[str, Resource], found: dict[str, None], kind: str, is_shown: bool
) -> None:
    """Ready shows the error when the deletion does not wait for a resource any more."""
    error = CallError("a call", 403, "forbidden", "may not", About(kind))
    known = reported_status(entries)
    work = group_work(known)
    work.observed = ObservedRemains(DELETED, known, found) if found else None
    plan = recover(work, error)
    assert plan is not None
    after = first_status(plan)
    condition = after.conditions[Type.NODES_JOINED]
    assert (condition.status, condition.reason) == ("False", "PermissionDenied")
    assert condition.message == f"may not (a call). {REASONS[Reason.PERMISSION_DENIED]}"
    assert {name: entry.error for name, entry in after.resources.items() if entry.error} == {}
    ready = after.conditions[Type.READY]
    assert (ready.message == condition.message) is is_shown


def test_ready_shows_why_the_finalizer_of_an_unreadable_group_cannot_be_removed() -> None:
    error = CallError("PATCH tpunodegroups/my-slice", 422, "Invalid", "may not")
    known = Status(conditions=reported_status(ALL_GONE).conditions)
    about = replace(unreadable_group(deleting=True), raw={"status": render(known)})
    work = replace(group_work(known), group=about)
    work.observed = UnreadableRemains(about, known)
    plan = recover(work, error)
    assert plan is not None
    after = first_status(plan)
    ready = after.conditions[Type.READY]
    assert ready.message.startswith("may not (PATCH tpunodegroups/my-slice).")
    assert ready.reason == after.conditions[Type.NODES_JOINED].reason


LONG_AGO = NOW - timedelta(days=1)
REJECTED, WITHDRAWN = (Resource(RESOURCE, one, LONG_AGO) for one in (State.FAILED, State.PENDING))
ENTRIES: dict[str, tuple[str, Resource, bool]] = {
    "MIG: no intent": (MIG, Resource(RESOURCE), True),
    "MIG: an insert that was rejected long ago": (MIG, REJECTED, False),
    "MIG: an intent that was withdrawn long ago": (MIG, WITHDRAWN, False),
    "MIG: an insert that was rejected at an unknown time": (MIG, Resource(RESOURCE, State.FAILED), False),
    "MIG: it existed": (MIG, replace(Resource(RESOURCE), uri=READY.uri), False),
    "MIG: an insert that has begun": (MIG, replace(Resource(RESOURCE), operation="op"), False),
    "policy: rejected long ago": (POLICY, REJECTED, True),
    "policy: withdrawn long ago": (POLICY, WITHDRAWN, True),
    "policy: rejected now": (POLICY, Resource(RESOURCE, State.FAILED, NOW), False),
    "template: rejected long ago": (TEMPLATE, REJECTED, True),
    "template: it existed": (TEMPLATE, replace(READY, state=State.FAILED), False),
}  # fmt: skip
FINDS = {MIG: "find_mig", POLICY: "find_policy", TEMPLATE: "find_template"}
AWAY = CallError("x.get", 503, "backendError", "away")
REJECTED_READ = CallError("x.get", 403, "forbidden", "may not get")


@pytest.mark.parametrize("kind, entry, never_inserted", ENTRIES.values(), ids=ENTRIES)
@pytest.mark.parametrize(
    "answer", [OWN_MIG, None, AWAY, REJECTED_READ], ids=["found", "none", "503", "403"]
)
def test_what_the_status_calls_never_inserted_is_read_too_but_a_rejected_read_delays_nothing(
    kind: str, entry: Resource, never_inserted: bool, answer: Any
) -> None:
    """The API that rejected an insert may also reject reads: then the group could not be deleted."""
    entries = {**(ALL_READY if kind == MIG else MIG_GONE), kind: entry}
    answers = ANSWERS | {"find_mig": None, FINDS[kind]: answer}
    work, reads = reading_work(
        DELETED, reported_status(entries, joined=2), RESYNC, answers, is_first_observation=False
    )
    if answer is AWAY or (answer is REJECTED_READ and not never_inserted):
        with pytest.raises(CallError, match="get"):
            observe(work)
        return
    observed = observe(work)
    assert isinstance(observed, ObservedRemains)
    assert observed.found[kind] == (None if answer is REJECTED_READ else answer)
    assert FINDS[kind] in reads.calls


@pytest.mark.parametrize("kind, entry, never_inserted", ENTRIES.values(), ids=ENTRIES)
def test_in_a_project_that_is_not_served_only_what_was_never_inserted_counts_as_gone(
    kind: str, entry: Resource, never_inserted: bool
) -> None:
    never = dict.fromkeys(FINDS, Resource(RESOURCE))
    known = reported_status({**never, kind: entry})
    work, reads = reading_work(DELETED, known, RESYNC, ANSWERS, is_first_observation=False)
    work = replace(work, settings=replace(SETTINGS, projects=frozenset()))
    if never_inserted:
        observe(work)
        assert reads.calls == ["list_nodes"]
    else:
        with pytest.raises(StepRefused, match="Nothing is deleted there"):
            observe(work)


def test_the_repair_of_a_group_whose_project_is_not_served_any_more_is_not_called_a_deletion() -> (
    None
):
    lost = Status(
        conditions={Type.MIG_READY: Condition("True", "Ready", "", NOW, 1)}, resources=ALL_READY
    )
    work, _ = reading_work(group(), begin_repair(lost, NOW), RESYNC, ANSWERS)
    work = replace(work, settings=replace(SETTINGS, projects=frozenset({"other-project"})))
    with pytest.raises(StepRefused) as refused:
        observe(work)
    assert str(refused.value).endswith(
        "Nothing is deleted there. Add the project to this variable, and the repair continues within "
        "half an hour."
    )


REPORTING = [node(f"{RESOURCE}-{number:04}") for number in range(3)]


def test_vms_that_there_is_no_time_to_read_keep_their_nodes_and_the_finalizer() -> None:
    """The list shows VMs for some seconds after their delete, perhaps hundreds."""
    names = [one.name for one in REPORTING]
    answers = ANSWERS | ABSENT | {
        "list_nodes": REPORTING,
        "list_instances": [instance(name) for name in names],
        "find_instances": {names[0]: instance(names[0]), names[1]: None},
    }  # fmt: skip
    work, _ = reading_work(
        DELETED, reported_status(ALL_GONE), RESYNC, answers, is_first_observation=False
    )
    observed = observe(work)
    assert isinstance(observed, ObservedRemains)
    assert sorted(observed.vms_left) == [names[0], names[2]]
    plan = decide(observed, NOW)
    assert plan.outcome == "AwaitingNodes"
    assert [one.name for one in plan.each] == [names[1]]
    assert plan.if_all_succeeded == ()
