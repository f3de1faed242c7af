"""The condition of a slice's interconnect, the links between its chips, as the MIG reports it."""

from __future__ import annotations

from datetime import datetime, timedelta

from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import Condition, Status, Type
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
    if known.counts.ready < known.counts.desired:
        message = "The interconnect is checked when all nodes are ready"
        return known.with_condition(
            Type.INTERCONNECT_READY, None, "Incomplete", message, group, now
        )
    if found is None:
        return known
    return _add_links(found, group, known, now)


def _add_links(found: Mig, group: NodeGroup, known: Status, now: datetime) -> Status:
    states = set(found.topologies.values())
    before = known.conditions.get(Type.INTERCONNECT_READY)
    if states == {"ACTIVE"}:
        condition: tuple[bool | None, str, str] = (
            True,
            "Active",
            "The interconnect between the chips is up",
        )
    elif states:
        word = ", ".join(sorted(states))
        text = f"Compute Engine reports the interconnect between the chips as {word}. {_ADVICE}"
        condition = (False, "NotActive", text)
    elif _has_waited_long(before, now):
        condition = (
            None,
            "Unknown",
            "Compute Engine reports no state of the interconnect; Ready does not wait for it",
        )
    else:
        text = "Waiting for Compute Engine to report that the interconnect between the chips is up"
        condition = (False, "Asking", text)
    status, reason, message = condition
    return known.with_condition(Type.INTERCONNECT_READY, status, reason, message, group, now)


def _has_waited_long(before: Condition | None, now: datetime) -> bool:
    if before is None:
        return False
    has_waited = abs(now - before.since) >= UNKNOWN_AFTER  # a time far ahead is wrong
    return before.reason == "Unknown" or (before.reason == "Asking" and has_waited)
