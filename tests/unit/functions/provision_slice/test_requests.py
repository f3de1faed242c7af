# ruff: noqa: E501  (a table reads best with a row on a line)
"""The conditions of ProvisioningRequests: each row of the table, and what is not written again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from functions.provision_slice.observe import ObservedPod
from functions.provision_slice.quotas import IN_PROGRESS
from functions.provision_slice.requests import ObservedRequest, WriteRequestStatus, plan_status
from shared.frame.plan import Emit, Plan
from shared.ports.kubernetes.events import Event
from shared.slices.create_or_release import ROWS as ROWS_OF_SLICES
from shared.slices.create_or_release import SliceTrigger
from shared.slices.requests import RequestSource, is_open
from shared.slices.units import InputError, Unit, UnservableError
from tests.support.builders import NOW

UNIT = Unit("JobSet", "default", "train", "train-workers-0")
SLICES = cast("dict[str, ObservedPod]", {
    name: type("Observed", (), {"desired": type("Desired", (), {"unit": UNIT}), "of": None, "move": None, "existing": None}) for name in ("a", "b")
})  # fmt: skip
CREATING, WAITS = (
    Plan("Creating", first=(Emit(Event("Started", "Creating a")),)),
    Plan("Provisioning"),
)
ALL, ONE = frozenset({"a", "b"}), frozenset({"b"})
ACCEPTED = {"Accepted": ("True", "Accepted", "tpu-functions creates the slices of this request")}
ROWS: dict[str, tuple[dict[str, Any], dict[str, Plan], dict[str, tuple[str, str, str]]]] = {
    "its Pods can never be served": ({"error": UnservableError("a sentence")}, {}, {"Failed": ("True", "Unservable", "a sentence")}),
    "an administrator must act": ({"error": InputError("no class")}, {}, {**ACCEPTED, "Provisioned": ("False", "Refused", "no class")}),
    "its slices are absent": ({"slices": SLICES}, {"a": CREATING, "b": WAITS}, {**ACCEPTED, "Provisioned": ("False", "Creating", "0 of 2 slices ready; Creating a")}),
    "its slices come": ({"slices": SLICES, "ready": ONE}, {"a": WAITS, "b": WAITS}, {**ACCEPTED, "Provisioned": ("False", "Provisioning", "1 of 2 slices ready; a is not complete")}),
    "its slices are complete": ({"slices": SLICES, "ready": ALL}, {"a": WAITS, "b": WAITS}, {**ACCEPTED, "Provisioned": ("True", "Provisioned", "2 of 2 slices ready: a, b")}),
    "a slice was lost after that": ({"slices": SLICES, "was_provisioned": True}, {"a": CREATING, "b": WAITS}, {}),
    "it cannot be served after that": ({"error": UnservableError("x"), "was_provisioned": True}, {}, {}),
    "nobody has used it": ({"slices": SLICES, "was_provisioned": True, "is_unused": True}, {}, {"BookingExpired": ("True", "Unused", "No Pod has used the slices within ten minutes")}),
}  # fmt: skip


def request(*conditions: dict[str, str]) -> dict[str, Any]:
    spec = {"provisioningClassName": "slices.tpu-functions.dev"}
    return {"metadata": {"name": "r"}, "spec": spec, "status": {"conditions": [*conditions]}}


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    at = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {"type": kind, "status": status, "reason": reason, "message": message, **at}


def observed(*conditions: dict[str, str], **fields: Any) -> ObservedRequest:
    return replace(ObservedRequest(RequestSource(request(*conditions), {}, None)), **fields)


@pytest.mark.parametrize("row", ROWS)
def test_a_request_has_these_conditions_and_none_is_written_twice(row: str) -> None:
    fields, plans, expected = ROWS[row]
    plan = plan_status(observed(**fields), plans, NOW)
    status = (
        plan.first[0].status if plan.first and isinstance(plan.first[0], WriteRequestStatus) else {}
    )
    written = {
        one["type"]: (one["status"], one["reason"], one["message"])
        for one in status.get("conditions", ())
    }
    assert written == expected
    is_provisioned = expected.get("Provisioned", ("",))[0] == "True"
    details = {"WorkloadKey": UNIT.workload_key} if is_provisioned else None
    assert status.get("provisioningClassDetails") == details
    again = [condition(kind, *words) for kind, words in expected.items()]
    assert plan_status(observed(*again, **fields), plans, NOW).first == ()


def test_a_condition_keeps_its_time_while_only_its_message_changes_and_others_stay() -> None:
    foreign = condition("CapacityAvailable", "True", "Theirs", "")
    before = condition("Provisioned", "False", "Creating", "0 of 2 slices ready; Creating a")
    fields, plans, _ = ROWS["its slices come"]
    plan = plan_status(observed(foreign, before, **fields), plans, NOW)
    assert isinstance(plan.first[0], WriteRequestStatus)
    found = {one["type"]: one for one in plan.first[0].status["conditions"]}
    assert found["CapacityAvailable"] == foreign
    assert found["Provisioned"]["lastTransitionTime"] == before["lastTransitionTime"]
    assert found["Accepted"]["lastTransitionTime"] != before["lastTransitionTime"]


@pytest.mark.parametrize(
    "change, expected",
    [
        ({}, True),
        ({"spec": {"provisioningClassName": "check-capacity.autoscaling.x-k8s.io"}}, False),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, False),
        ({"status": {"conditions": [condition("Failed", "True", "Unservable", "")]}}, False),
        ({"status": {"conditions": [condition("BookingExpired", "True", "Unused", "")]}}, False),
        ({"status": {"conditions": [condition("Provisioned", "True", "Provisioned", "")]}}, True),
    ],
)
def test_a_request_is_open_until_it_has_ended(change: dict[str, Any], expected: bool) -> None:
    assert is_open({**request(), **change}) is expected


def test_a_request_in_progress_has_the_outcome_of_a_row_without_a_problem() -> None:
    """The sweep observes it each minute; what has a problem is tried at growing intervals."""
    problems = {"LimitReached", "Exhausted", "SlicePaused", "NameConflict", "InUse", "Unfit"}
    no_slice = {"SliceFailed", "OwnerGone", "OwnerEnded", "OptedOut", "Suspended", "NoSuchUnit"}
    of_pods = {
        one.outcome for one in ROWS_OF_SLICES if SliceTrigger.SLICE not in one.cells["trigger"]
    }
    assert of_pods - problems - no_slice == {*IN_PROGRESS}
