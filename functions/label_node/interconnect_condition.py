"""The condition of a slice's interconnect, the links between its chips, as the MIG reports it."""

from datetime import datetime, timedelta

from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import Status, Type
from shared.ports.gce.values import Mig

_ADVICE = "If it stays so for ten minutes, delete the group and apply it again."
UNKNOWN_AFTER = timedelta(minutes=5)
"""After so long without information the condition is Unknown, which does not block readiness."""


def add_condition(found: Mig | None, group: NodeGroup, known: Status, now: datetime) -> Status:
    """``known`` with the condition of the interconnect, which BULK slices have.

    ``found`` is the MIG if it was read for this.
    """
    if not group.spec.is_bulk:
        return known
    is_complete = known.counts.ready >= known.counts.desired
    if is_complete and found is None:
        return known
    before = known.conditions.get(Type.INTERCONNECT_READY)
    states = {*found.topologies.values()} if found is not None else set()
    # A time far ahead is wrong.
    has_waited = before is not None and abs(now - before.since) >= UNKNOWN_AFTER
    was = before.reason if before is not None else ""
    status: bool | None = False
    if not is_complete:
        status, reason = None, "Incomplete"
        message = "The interconnect is checked when all nodes are ready"
    elif states == {"ACTIVE"}:
        status, reason, message = True, "Active", "The interconnect between the chips is up"
    elif states:
        word = ", ".join(sorted(states))
        reason = "NotActive"
        message = f"Compute Engine reports the interconnect between the chips as {word}. {_ADVICE}"
    elif was == "Unknown" or (was == "Asking" and has_waited):
        status, reason = None, "Unknown"
        message = "Compute Engine reports no state of the interconnect; Ready does not wait for it"
    else:
        reason = "Asking"
        message = (
            "Waiting for Compute Engine to report that the interconnect between the chips is up"
        )
    return known.with_condition(Type.INTERCONNECT_READY, status, reason, message, group, now)
