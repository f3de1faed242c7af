"""Messages about ProvisioningRequests: when one is added, and while it waits, when a slice changes."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from relay.changes.messages import Outbox
from relay.watching.projection import parse
from shared.triggers.message import REQUEST_KIND
from tests.unit.relay.objects import START, Raw, provisioning_request, settled_group
from tests.unit.relay.objects import group as slice_group


class Relay:
    """An outbox that has listed everything; each change is a minute after the one before."""

    def __init__(self, *requests: Raw) -> None:
        self.outbox, self.now = Outbox(), START
        self.outbox.relisted("Node", [], START)
        self.outbox.relisted("TPUNodeGroup", [settled_group()], START)
        self.outbox.relisted("ProvisioningRequest", [read(one) for one in requests], START)

    def change(self, kind: Any, event: Any, raw: Raw) -> list[str]:
        """The causes of the messages about requests after a change."""
        self.now += timedelta(minutes=1)
        self.outbox.changed(kind, event, read(raw), self.now)
        return self.causes()

    def causes(self) -> list[str]:
        due = self.outbox.take_due(self.now)
        return [str(one.message.cause) for one in due if one.message.kind == REQUEST_KIND]


def read(raw: Raw) -> Raw:
    found: Raw = parse(json.dumps(raw).encode())
    return found


def test_an_open_request_is_reported_once() -> None:
    relay = Relay(provisioning_request(), provisioning_request("b", uid="b", end="Failed"))
    assert relay.causes() == ["Added"]
    assert relay.change(REQUEST_KIND, "MODIFIED", provisioning_request()) == []
    assert relay.change(REQUEST_KIND, "ADDED", provisioning_request("c", uid="c")) == ["Added"]
    again = provisioning_request(uid="request-uid-2")
    assert relay.change(REQUEST_KIND, "ADDED", again) == ["Added"]
    foreign = provisioning_request("d", uid="d")
    foreign["spec"]["provisioningClassName"] = "queued-provisioning.gke.io"
    assert relay.change(REQUEST_KIND, "ADDED", foreign) == []


def test_a_request_that_waits_is_reported_when_a_slice_of_its_namespace_changes() -> None:
    relay = Relay(provisioning_request())
    relay.causes()
    lost = {**settled_group(), "status": {**settled_group()["status"]}}
    lost["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "NodeLost"}]
    assert relay.change("TPUNodeGroup", "MODIFIED", lost) == ["Resync"]
    assert relay.change("TPUNodeGroup", "MODIFIED", lost) == []
    assert relay.change("TPUNodeGroup", "ADDED", slice_group("other", uid="u2")) == []
    assert relay.change("TPUNodeGroup", "DELETED", lost) == ["Resync"]
    relay.change(REQUEST_KIND, "MODIFIED", provisioning_request(end="Provisioned"))
    assert relay.change("TPUNodeGroup", "DELETED", slice_group("other", uid="u2")) == []


def test_a_request_that_is_provisioned_is_reported_when_a_slice_of_its_workload_is_gone() -> None:
    """The Pods that consume it ask for none."""
    done = provisioning_request(end="Provisioned")
    done["status"]["provisioningClassDetails"] = {"WorkloadKey": "0501b2b521eb2305"}
    slices = {
        key: slice_group(f"slice-{number}", uid=f"u{number}")
        for number, key in enumerate(("0501b2b521eb2305", "another", ""))
    }
    for key, raw in slices.items():
        raw["spec"]["nodeLabels"] = {"slices.tpu-functions.dev/workload": key} if key else {}
    relay = Relay(done)
    relay.causes()
    for raw in slices.values():
        assert relay.change("TPUNodeGroup", "ADDED", raw) == []
    gone = {key: relay.change("TPUNodeGroup", "DELETED", raw) for key, raw in slices.items()}
    assert gone == {"0501b2b521eb2305": ["Resync"], "another": [], "": []}


def test_a_request_that_has_ended_or_is_deleted_is_not_reported_any_more() -> None:
    for end in (provisioning_request(end="BookingExpired"), provisioning_request(deleting=True)):
        relay = Relay(provisioning_request())
        assert relay.change(REQUEST_KIND, "MODIFIED", end) == []
        assert relay.change("TPUNodeGroup", "DELETED", settled_group()) == []


def test_a_request_learns_of_a_slice_that_was_deleted_and_created_again_in_an_outage() -> None:
    relay = Relay(provisioning_request())
    relay.causes()
    assert relay.change("TPUNodeGroup", "MODIFIED", settled_group(uid="uid-2")) == ["Resync"]
