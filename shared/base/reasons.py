"""The reasons of ``Ready=False``, which ``kubectl get tng`` shows, and the reference page of them.

``python -m shared.base.reasons docs/reference/reasons.md`` writes the page's table.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path

_BEGIN, _END = "<!-- reasons from the code -->\n", "<!-- end -->"


class Reason(StrEnum):
    """Reasons of ``Ready=False``, as released: a word is never renamed."""

    PROVISIONING = "Provisioning"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    QUOTA_EXCEEDED = "QuotaExceeded"
    RESERVATION_NOT_FOUND = "ReservationNotFound"
    RESERVATION_FULL = "ReservationFull"
    RESERVATION_MISMATCH = "ReservationMismatch"
    SUBNET_FULL = "SubnetFull"
    PERMISSION_DENIED = "PermissionDenied"
    API_DISABLED = "ApiDisabled"
    POLICY_VIOLATION = "PolicyViolation"
    REFUSED = "Refused"
    IN_USE = "InUse"
    INVALID_TEMPLATE = "InvalidTemplate"
    INVALID_SPEC = "InvalidSpec"
    RESOURCE_CONFLICT = "ResourceConflict"
    MANAGED_ELSEWHERE = "ManagedElsewhere"
    PAUSED = "Paused"
    AWAITING_NODE_JOIN = "AwaitingNodeJoin"
    NODE_JOIN_TIMEOUT = "NodeJoinTimeout"
    DEVICE_PLUGIN_MISSING = "DevicePluginMissing"
    NODE_NOT_READY = "NodeNotReady"
    NODE_LOST = "NodeLost"
    PREEMPTED = "Preempted"
    NOT_WIRED = "NotWired"
    RESOURCE_LOST = "ResourceLost"
    DELETING_MIG = "DeletingMIG"
    DELETING_TEMPLATE = "DeletingTemplate"
    DELETING_POLICY = "DeletingPolicy"
    DELETING_NODES = "DeletingNodes"


REASONS: dict[Reason, str] = {
    Reason.PROVISIONING: "Compute Engine is making the resources or the VMs. Nothing to do.",
    Reason.INSUFFICIENT_CAPACITY: "The zone has no such TPUs free. The group waits; it goes on by "
    "itself. Another zone, model or a reservation is a new group.",
    Reason.QUOTA_EXCEEDED: "A quota of the project is used up. Raise it or free some of it; the "
    "group goes on by itself.",
    Reason.RESERVATION_NOT_FOUND: "The reservation named in the spec does not exist in the zone. "
    "Create it, or apply a group with the right name.",
    Reason.RESERVATION_FULL: "The reservation has no free VMs. The group waits for them.",
    Reason.RESERVATION_MISMATCH: "The reservation is for other VMs than this group asks for.",
    Reason.SUBNET_FULL: "The subnetwork has no free addresses. Enlarge it or free some.",
    Reason.PERMISSION_DENIED: "A right is missing; the message names it and whom it must be given.",
    Reason.API_DISABLED: "An API is not enabled in the project: gcloud services enable it.",
    Reason.POLICY_VIOLATION: "An organization policy forbids what the spec asks for.",
    Reason.REFUSED: "Compute Engine refused the request; its own words are in the message.",
    Reason.IN_USE: "Something else uses the resource, so that it cannot be deleted. Detach it.",
    Reason.INVALID_TEMPLATE: "The group's own instance template is missing or not fit for TPUs.",
    Reason.INVALID_SPEC: "The spec cannot work; the message names the field. Delete and apply anew.",
    Reason.RESOURCE_CONFLICT: "A resource bears our name but is not as we made it. It is not "
    "touched; a person must look.",
    Reason.MANAGED_ELSEWHERE: "tpu-operator manages this group (its finalizers or children are "
    "there). Nothing is done until they are gone.",
    Reason.PAUSED: "The annotation tpu-functions.dev/paused stops creation. Remove it to go on.",
    Reason.AWAITING_NODE_JOIN: "VMs run, or wait for capacity, and have not joined the cluster yet. "
    "Nothing to do.",
    Reason.NODE_JOIN_TIMEOUT: "A VM has not joined in time. Its serial port says why: "
    "gcloud compute instances get-serial-port-output.",
    Reason.DEVICE_PLUGIN_MISSING: "A Node is Ready but offers no google.com/tpu. Look at the "
    "DaemonSet tpu-device-plugin in kube-system.",
    Reason.NODE_NOT_READY: "A Node has joined and is not Ready: kubectl describe node.",
    Reason.NODE_LOST: "A VM or Node of a slice that was complete is gone.",
    Reason.PREEMPTED: "Compute Engine took VMs back (Spot, host error or maintenance).",
    Reason.NOT_WIRED: "All Nodes are ready, but the links between the chips are not up.",
    Reason.RESOURCE_LOST: "The slice was complete and its managed instance group is gone. It is not "
    "bought again; delete and apply the group to get a new one.",
    Reason.DELETING_MIG: "The managed instance group and its VMs are being deleted.",
    Reason.DELETING_TEMPLATE: "The instance template is being deleted.",
    Reason.DELETING_POLICY: "The workload policy is being deleted.",
    Reason.DELETING_NODES: "The Node objects are being deleted.",
}
"""What each reason means and what a person does about it; the reference page is made from it."""


def find_advice(reason: str) -> str:
    """What a person does about a reason; empty for a word that this version does not know."""
    return REASONS[Reason(reason)] if reason in _WORDS else ""


_WORDS = frozenset(map(str, Reason))


def render_reasons() -> str:
    """The reasons of ``Ready=False``, as a Markdown table."""
    rows = "".join(f"| `{reason}` | {meaning} |\n" for reason, meaning in REASONS.items())
    return f"| Reason | What it means, and what to do |\n| --- | --- |\n{rows}"


def refresh(text: str) -> str:
    """The document with its table as it is now. Raises `ValueError` without a place for it."""
    start = text.index(_BEGIN) + len(_BEGIN)
    return text[:start] + render_reasons() + text[text.index(_END, start) :]


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(refresh(document.read_text()))
