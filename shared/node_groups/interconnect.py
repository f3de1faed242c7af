"""The interconnect of a slice: whether the links between its chips are up, as the MIG reports it."""

from __future__ import annotations

from datetime import datetime, timedelta

from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import Condition, Status, Type
from shared.ports.gce.values import Mig

UNKNOWN_AFTER = timedelta(minutes=5)
"""After so long without information the interconnect is Unknown, and no obstacle."""


def describe(found: Mig | None, group: NodeGroup, known: Status, now: datetime) -> Status:
    """``known`` with the condition of the interconnect, which slices of several hosts have.

    ``found`` is the MIG, if it was asked whether the links between the chips are up.
    """
    if not group.spec.is_bulk:
        return known
    if known.counts.ready < known.counts.desired:
        message = "Compute Engine is asked when all nodes are ready"
        return known.with_condition(
            Type.SLICE_WIRED, None, "Incomplete", message, group=group, now=now
        )
    if found is None:
        return known
    return _describe_links(found, group, known, now)


def _describe_links(found: Mig, group: NodeGroup, known: Status, now: datetime) -> Status:
    states = set(found.topologies.values())
    before = known.conditions.get(Type.SLICE_WIRED)
    if states == {"ACTIVE"}:
        said: tuple[bool | None, str, str] = (True, "Active", "The links between the chips are up")
    elif states:
        word = ", ".join(sorted(states))
        said = (False, "NotActive", f"Compute Engine says that the links are {word}")
    elif _is_asked_long(before, now):
        said = (None, "Unknown", "Compute Engine says nothing of the links; not waiting for it")
    else:
        said = (False, "Asking", "Waiting for Compute Engine to say that the links are up")
    status, reason, message = said
    return known.with_condition(Type.SLICE_WIRED, status, reason, message, group=group, now=now)


def _is_asked_long(before: Condition | None, now: datetime) -> bool:
    if before is None:
        return False
    return before.reason == "Unknown" or (
        before.reason == "Asking" and abs(now - before.since) >= UNKNOWN_AFTER
    )
