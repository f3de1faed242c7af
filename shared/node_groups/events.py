"""Kubernetes Events about changes of a status.

Events are computed from the difference of two statuses, so every step emits the same Event for the same
change, once. tpu-operator's names are kept, because alerts may use them.
"""

from collections.abc import Iterator

from shared.base.reasons import DELETIONS, Reason
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.readiness import awaiting_message
from shared.node_groups.status import Status, Type
from shared.ports.kubernetes.events import Event

_QUIET = frozenset(
    {
        "Ready",
        Reason.PROVISIONING,
        Reason.AWAITING_NODE_JOIN,
        Reason.PAUSED,
        Reason.INTERCONNECT_NOT_READY,
        Reason.NODE_NOT_READY,
        *DELETIONS,
    }
)
"""Reasons of normal progress, without an Event; NodeNotReady is one until the slice was complete."""


def changes(group: AnyGroup, before: Status, after: Status) -> Iterator[Event]:
    """The Events of a change, in order."""
    new = {kind for kind in Type if after.is_true(kind) and not before.is_true(kind)}
    has_minimum = isinstance(group, NodeGroup) and group.spec.min_node_count is not None
    if not before.resources and after.resources and has_minimum:
        text = "spec.minNodeCount is accepted for compatibility and has no effect"
        yield Event("MinNodeCountIgnored", text, is_warning=True)
    if Type.MIG_READY in new:
        yield Event("ChildResourcesProvisioned", "All child resources provisioned successfully")
    if before.counts.ready == 0 < after.counts.ready < after.counts.desired:
        missing = after.counts.desired - after.counts.ready
        yield Event("NodesJoining", awaiting_message(missing, after.counts.desired))
    if Type.READY in new:
        yield Event("Provisioned", "All nodes are ready")
    template, was = (one.conditions.get(Type.TEMPLATE_READY) for one in (after, before))
    is_invalid = template is not None and template.reason == Reason.INVALID_TEMPLATE
    if template and is_invalid and (was is None or was.reason != template.reason):
        yield Event("InvalidInstanceTemplate", template.message, is_warning=True)
    planned, was = (one.conditions.get(Type.MAINTENANCE_SCHEDULED) for one in (after, before))
    if planned is not None and (was is None or was.message != planned.message):
        yield Event("MaintenanceScheduled", planned.message, is_warning=True)
    is_over = planned is None and was is not None
    if is_over and after.repairs == before.repairs:  # a repair deletes the VMs
        yield Event("MaintenanceOver", "Compute Engine announces no maintenance any more")
    yield from _readiness_events(before, after, is_deleting=group.deleting is not None)


def _readiness_events(before: Status, after: Status, *, is_deleting: bool) -> Iterator[Event]:
    """An Event for a new reason; during a deletion also for a new message, because the creation may have
    failed for the same reason."""
    was, now = before.conditions.get(Type.READY), after.conditions.get(Type.READY)
    if now is None:
        return
    is_same = was is not None and was.reason == now.reason
    if is_same and not (is_deleting and was is not None and was.message != now.message):
        return
    if now.reason in DELETIONS and (was is None or was.reason not in DELETIONS):
        yield Event("Cleanup", "TPU Node Group deletion initiated")
    is_loss = was is not None and was.is_true and now.reason == Reason.NODE_NOT_READY
    if is_loss or now.reason not in _QUIET:
        yield Event(now.reason, now.message, is_warning=True)
