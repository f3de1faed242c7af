"""The reasons of ``Ready=False``, which ``kubectl get tng`` shows."""

from enum import StrEnum


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
    NOT_OFFERED = "NotOffered"
    REFUSED = "Refused"
    IN_USE = "InUse"
    INVALID_TEMPLATE = "InvalidTemplate"
    INVALID_SPEC = "InvalidSpec"
    RESOURCE_CONFLICT = "ResourceConflict"
    MANAGED_ELSEWHERE = "ManagedElsewhere"
    OTHER_INSTALLATION = "OtherInstallation"
    PAUSED = "Paused"
    AWAITING_NODE_JOIN = "AwaitingNodeJoin"
    NODE_JOIN_TIMEOUT = "NodeJoinTimeout"
    JOIN_NOT_APPROVED = "JoinNotApproved"
    JOIN_DENIED = "JoinDenied"
    DEVICE_PLUGIN_MISSING = "DevicePluginMissing"
    NODE_NOT_READY = "NodeNotReady"
    NODE_LOST = "NodeLost"
    NODE_DELETED = "NodeDeleted"
    NODE_NAME_MISMATCH = "NodeNameMismatch"
    PREEMPTED = "Preempted"
    MAX_RUN_DURATION_REACHED = "MaxRunDurationReached"
    RUN_ENDED = "RunEnded"
    INTERCONNECT_NOT_READY = "InterconnectNotReady"
    RESOURCE_LOST = "ResourceLost"
    REPAIRING = "Repairing"
    DELETING_MIG = "DeletingMIG"
    DELETING_TEMPLATE = "DeletingTemplate"
    DELETING_POLICY = "DeletingPolicy"
    DELETING_NODES = "DeletingNodes"
    OTHER_FINALIZERS = "OtherFinalizers"


PROGRESS = frozenset(
    {
        Reason.PROVISIONING,
        Reason.AWAITING_NODE_JOIN,
        Reason.INTERCONNECT_NOT_READY,
        Reason.REPAIRING,
    }
)
"""Reasons of a start, or of a repair, that makes progress."""
DELETIONS = frozenset(
    {
        Reason.DELETING_MIG,
        Reason.DELETING_TEMPLATE,
        Reason.DELETING_POLICY,
        Reason.DELETING_NODES,
        Reason.OTHER_FINALIZERS,
    }
)
"""Reasons of a deletion that makes progress."""
RUN_ENDS = frozenset({Reason.MAX_RUN_DURATION_REACHED, Reason.RUN_ENDED})
"""Reasons of a VM that Compute Engine has ended at a time that was known before."""
VM_LOSSES = frozenset({Reason.PREEMPTED, Reason.NODE_LOST}) | RUN_ENDS
"""Reasons of a VM that is gone or does not run any more."""

ORDER = (
    Reason.INVALID_SPEC,
    Reason.API_DISABLED,
    Reason.PERMISSION_DENIED,
    Reason.POLICY_VIOLATION,
    Reason.RESERVATION_NOT_FOUND,
    Reason.RESERVATION_MISMATCH,
    Reason.QUOTA_EXCEEDED,
    Reason.SUBNET_FULL,
    Reason.NOT_OFFERED,
    Reason.REFUSED,
    Reason.RESERVATION_FULL,
    Reason.INSUFFICIENT_CAPACITY,
)
"""Of several errors of an API at the same time, the first in this order is reported: what a person must
correct comes before what is waited for. The order in which an API lists them changes."""

_CONTINUES = "The group continues by itself."
_WAIT = "Nothing to do."
REASONS: dict[Reason, str] = {
    Reason.PROVISIONING: f"Compute Engine creates the resources or the VMs. {_WAIT}",
    Reason.INSUFFICIENT_CAPACITY: "The zone has no free TPU VMs of this kind. The group keeps "
    "waiting and continues when capacity is available. To use another zone, provisioning model or "
    "reservation, create a new TPUNodeGroup.",
    Reason.QUOTA_EXCEEDED: f"A quota is used up. Raise it or free some of it. {_CONTINUES}",
    Reason.RESERVATION_NOT_FOUND: "The reservation named in the spec does not exist in the zone. "
    "Create it, or create a new TPUNodeGroup that names another one.",
    Reason.RESERVATION_FULL: "The reservation has no free VMs. The group waits for them. Free some, or "
    "enlarge the reservation.",
    Reason.RESERVATION_MISMATCH: "The reservation is for other VMs than the group needs. Create a new "
    "TPUNodeGroup that names a matching one.",
    Reason.SUBNET_FULL: f"The subnetwork has no free addresses. Enlarge it or free some. {_CONTINUES}",
    Reason.PERMISSION_DENIED: "A permission is missing. Grant it to the account that needs it. "
    f"{_CONTINUES}",
    Reason.API_DISABLED: "An API is not enabled in the project. Enable it: gcloud services enable. "
    f"{_CONTINUES}",
    Reason.POLICY_VIOLATION: "An organization policy forbids what the spec asks for. Ask for an "
    "exception, or create a new TPUNodeGroup with another spec.",
    Reason.NOT_OFFERED: "The zone does not exist for the project, or does not have the machine type. "
    "Create a new TPUNodeGroup with another zone or machine type. A rejected request (400) is repeated "
    "once an hour.",
    Reason.REFUSED: "An API rejected the request or failed. Correct what its error names; for another "
    "spec, create a new TPUNodeGroup. A rejected request (400) is repeated once an hour. After an "
    "internal error, wait: the request is repeated.",
    Reason.IN_USE: "Something else uses the resource, so it cannot be deleted. Detach or delete what "
    "uses it. The deletion continues by itself.",
    Reason.INVALID_TEMPLATE: "The group's own instance template is missing or does not fit. Create or "
    f"replace it. {_CONTINUES}",
    Reason.INVALID_SPEC: "The spec is invalid. Delete the group, correct the field and apply it again.",
    Reason.RESOURCE_CONFLICT: "A resource has the group's name but is not what the group needs. It is "
    "not changed. Correct or delete it.",
    Reason.MANAGED_ELSEWHERE: "tpu-operator manages this group: it has its finalizers or children. "
    "Migrate the group, or leave it to tpu-operator.",
    Reason.OTHER_INSTALLATION: "The cluster is not the one of this installation, so nothing is created, "
    "changed or deleted on Google Cloud. If it was restored from a backup, run "
    "./deploy.sh --dir DIR --restored CLUSTER. If it is a copy, its slices are the original's: "
    "delete its groups (remove the finalizers by hand) and the annotation, "
    "then deploy it with a Terraform state of its own.",
    Reason.PAUSED: "The annotation tpu-functions.dev/paused stops creation. Remove it to continue. What "
    "Compute Engine has begun to create is not stopped, nor are its repairs: to stop them, delete the "
    "group.",
    Reason.AWAITING_NODE_JOIN: "VMs run, or wait for capacity, and have not joined the cluster yet, or "
    f"their Nodes have just joined or were restarted and are not Ready yet. {_WAIT}",
    Reason.NODE_JOIN_TIMEOUT: "A VM has not joined in time. Read the cause in its serial port output "
    "(gcloud compute instances get-serial-port-output); when it is corrected, the VM tries again, or "
    "reset it.",
    Reason.JOIN_NOT_APPROVED: "A VM's request for its Node's certificate is not approved. An Event and "
    "the log of approve_join name the request and the obstacle. Remove the obstacle: the request is "
    "observed again each minute.",
    Reason.JOIN_DENIED: "With the VM's token, the certificate of another Node was requested, or one in "
    "a form that no kubelet requests. The request is denied, and the token revoked; an Event names the "
    "request. Find out who had the token, then delete the VM.",
    Reason.DEVICE_PLUGIN_MISSING: "A Node is Ready but does not offer all of its google.com/tpu chips. "
    "Check the DaemonSet tpu-device-plugin in kube-system.",
    Reason.NODE_NOT_READY: "A Node has joined and is not Ready. Read its conditions: kubectl describe "
    "node.",
    Reason.NODE_LOST: "A VM or Node of the slice is gone, or a VM does not run. The message says who "
    "restores it, and until when: Compute Engine recreates VMs of an INDIVIDUAL group, except "
    "flex-start VMs, and restarts those of a BULK slice together, except Spot VMs and deleted ones. "
    "Otherwise, with repair: Recreate, the slice is created again; without it, delete the group and "
    "apply it again.",
    Reason.NODE_DELETED: "A Node was deleted, and its VM runs. Restart its kubelet or reset the VM.",
    Reason.NODE_NAME_MISMATCH: "A Node has the providerID of a VM of the group and not its name, or the "
    "name and not the providerID. Correct --hostname-override or --provider-id of its kubelet, delete "
    "the Node, and restart the kubelet.",
    Reason.PREEMPTED: "Compute Engine took VMs back (Spot, host error or maintenance). VMs that it "
    "restarts or recreates join again; the message says until when it may take. Spot VMs of a BULK "
    "slice are not restarted: with repair: Recreate, the slice is created again; without it, delete "
    "the group and apply it again.",
    Reason.MAX_RUN_DURATION_REACHED: "The VMs have run for the maxRunDuration of the spec or the "
    "template and were ended. To run them again, delete the group and apply it again.",
    Reason.RUN_ENDED: "Compute Engine has ended the VMs at status.runEndsAt, such as the end of their "
    "reservation. To run them again, delete the group, and apply one that has capacity.",
    Reason.INTERCONNECT_NOT_READY: "All Nodes are ready, but the interconnect between the chips is not "
    "up. If it stays so for ten minutes, delete the group and apply it again.",
    Reason.RESOURCE_LOST: "The slice was complete and its managed instance group is gone. It is not "
    "created again: delete the group and apply it again.",
    Reason.REPAIRING: "The slice has lost VMs, and spec.repair is Recreate: its managed instance group "
    f"is being deleted and is created again, with all VMs. {_WAIT}",
    Reason.DELETING_MIG: f"The managed instance group and its VMs are being deleted. {_WAIT}",
    Reason.DELETING_TEMPLATE: f"The instance template is being deleted. {_WAIT}",
    Reason.DELETING_POLICY: f"The workload policy is being deleted. {_WAIT}",
    Reason.DELETING_NODES: f"The Node objects are being deleted. {_WAIT}",
    Reason.OTHER_FINALIZERS: "Finalizers of others keep the group. All its resources are deleted, and "
    "tpu-functions has removed its finalizer. Find out why the owners of the others do not.",
}
"""What each reason means and what to do; the reference page is generated from it."""


def find_advice(reason: str) -> str:
    """What a reason means and what to do; empty for an unknown reason."""
    return REASONS[Reason(reason)] if reason in _WORDS else ""


_WORDS = frozenset(map(str, Reason))


def find_entry(reason: str) -> str:
    """The page and anchor of a reason's entry in troubleshooting; empty for an unknown reason."""
    return f"docs/troubleshooting.md#{reason.lower()}" if reason in _WORDS else ""
