"""Which Events follow from a change of a group's status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.base.reasons import REASONS, Reason
from shared.node_groups import readiness
from shared.node_groups.events import changes
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.recovery import begin_repair
from shared.node_groups.status import MIG, Condition, Resource, ResourceError, State, Status, Type
from tests.support.builders import NOW, RESOURCE, group

DENIED = ResourceError(Reason.PERMISSION_DENIED, "forbidden", "Required 'x' permission", NOW)


def status_with_mig(state: State, error: ResourceError | None, about: NodeGroup) -> Status:
    known = Status(resources={MIG: Resource(RESOURCE, state, NOW, error=error)})
    return readiness.conclude(about, known, NOW)


def reasons(about: NodeGroup, before: Status, after: Status) -> list[str]:
    return [event.reason for event in changes(about, before, after)]


def test_a_rejected_delete_is_reported_with_its_resource_and_what_to_do() -> None:
    gone = group(deleting=True)
    before = status_with_mig(State.DELETING, None, gone)
    (event,) = changes(gone, before, status_with_mig(State.DELETING, DENIED, gone))
    assert (event.reason, event.is_warning) == ("PermissionDenied", True)
    assert event.message == (
        f"The managed instance group {RESOURCE} cannot be deleted: Required 'x' permission. "
        f"{REASONS[Reason.PERMISSION_DENIED]}"
    )


def test_a_rejected_delete_is_reported_even_if_the_creation_failed_for_the_same_reason() -> None:
    gone = group(deleting=True)
    failed = Condition("False", Reason.PERMISSION_DENIED, "the group cannot be created", NOW, 1)
    before = Status(conditions={Type.READY: failed})
    after = status_with_mig(State.DELETING, DENIED, gone)
    assert reasons(gone, before, after) == ["PermissionDenied"]
    assert reasons(gone, after, after) == []


def test_a_field_without_effect_is_reported_once_when_resources_are_created() -> None:
    with_minimum = group(change={"minNodeCount": 1})
    created = status_with_mig(State.CREATING, None, with_minimum)
    (event,) = changes(with_minimum, Status(), created)
    text = "spec.minNodeCount is accepted for compatibility and has no effect"
    assert (event.reason, event.message, event.is_warning) == ("MinNodeCountIgnored", text, True)
    assert reasons(with_minimum, created, created) == []
    assert reasons(group(), Status(), created) == []


@pytest.mark.parametrize(
    "change", [{}, {"message": "another message"}], ids=["same", "another message"]
)
def test_a_repeated_reason_emits_no_event(change: dict[str, Any]) -> None:
    def with_message(message: str = "a message") -> Status:
        condition = Condition("False", Reason.QUOTA_EXCEEDED, message, NOW, 1)
        return Status(conditions={Type.READY: condition})

    assert reasons(group(), with_message(), with_message(**change)) == []


def test_maintenance_is_over_if_the_condition_goes_and_not_if_a_repair_deletes_the_vms() -> None:
    announced = Condition("True", "Pending", "a window", NOW, 1)
    mig = {MIG: Resource(RESOURCE, State.READY, NOW)}
    before = Status(conditions={Type.MAINTENANCE_SCHEDULED: announced}, resources=mig)
    assert reasons(group(), before, replace(before, conditions={})) == ["MaintenanceOver"]
    assert reasons(group(), before, begin_repair(before, NOW)) == []
