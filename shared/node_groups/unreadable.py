"""A group whose spec cannot be read: the resources that may exist, and what the user does about them.

Without a valid spec, project and zone are unknown, so no step can read or delete the resources.
"""

from datetime import datetime

from shared.base.names import FINALIZER
from shared.node_groups.node_group import UnreadableGroup
from shared.node_groups.status import MIG, NOUN, POLICY, TEMPLATE, Resource, State, Status

_DELETION_ORDER = (MIG, TEMPLATE, POLICY)


def restore_entries(group: UnreadableGroup, status: Status, now: datetime) -> Status:
    """The status, with an entry of the MIG if the status was lost.

    The steps write a status before they set the finalizer. A group with our finalizer and an empty
    status has lost it, so its resources may exist.
    """
    if status.conditions or status.resources or not group.has_finalizer:
        return status
    return status.with_resource(MIG, Resource(group.resource_name, State.CREATING, now))


def list_remaining(group: UnreadableGroup, status: Status) -> dict[str, Resource]:
    """The group's own resources that may exist, in the order in which they can be deleted."""
    entries = {kind: status.resources.get(kind) for kind in _DELETION_ORDER}
    return {
        kind: entry
        for kind, entry in entries.items()
        if entry is not None
        and entry.name == group.resource_name  # not a user's own template
        and entry.state not in (State.PENDING, State.GONE)
    }


def describe_deletion(group: UnreadableGroup, status: Status) -> str:
    """Why the deletion waits, and how the user ends it."""
    left = ", ".join(
        f"{NOUN[kind]} {entry.uri or entry.name}"
        for kind, entry in list_remaining(group, status).items()
    )
    return (
        f"{'; '.join(map(str, group.violations))}. Without a valid spec tpu-functions cannot delete "
        f"the group's resources: {left}. Delete them on Compute Engine in this order, then remove the "
        f"finalizer {FINALIZER}."
    )
