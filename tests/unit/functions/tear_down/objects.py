"""Observations of tear_down, by what is left of a group."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from functions.tear_down.observe import ObservedBeginning, ObservedRemains
from shared.base.names import VM_ID_LABEL
from shared.frame.plan import Plan
from shared.node_groups.resources import Found
from shared.node_groups.status import (
    MIG,
    POLICY,
    TEMPLATE,
    Resource,
    State,
    Status,
    render,
)
from shared.node_groups.work import GroupWork, WriteStatus
from shared.ports.gce.values import Instance, Operation
from shared.ports.kubernetes.nodes import Node, parse_node
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import ObjectTrigger
from tests.support.builders import NOW, RESOURCE, group
from tests.support.compute import instance_group, policy, template

EARLIER = NOW - timedelta(minutes=10)
VM = f"{RESOURCE}-ab12"
READY = Resource(RESOURCE, State.READY, EARLIER, "uri")
GONE = Resource(RESOURCE, State.GONE, EARLIER, "uri")
DELETING = Resource(RESOURCE, State.DELETING, EARLIER, "uri", operation="op")
RUNNING, ENDED = Operation("op", False), Operation("op", True)
ALL_READY = {POLICY: READY, TEMPLATE: READY, MIG: READY}


def creating(seconds_ago: float, operation: str = "") -> Resource:
    since: datetime = NOW - timedelta(seconds=seconds_ago)
    return Resource(RESOURCE, State.CREATING, since, operation=operation)


def node(name: str = VM, *, proved: bool = True, place: str = "", **spec: Any) -> Node:
    labels = {VM_ID_LABEL: "42"} if proved else {}
    provider = place or f"gce://my-gcp-project/us-central1-c/{name}"
    return parse_node(
        {
            "metadata": {
                "name": name,
                "uid": f"uid-of-{name}",
                "creationTimestamp": "2026-11-20T09:30:00Z",
                "labels": labels,
            },
            "spec": {"providerID": provider, **spec},
        }
    )


def observed_remains(
    entries: dict[str, Resource] | None = None,
    found: dict[str, Found | None] | None = None,
    operations: dict[str, Operation | None] | None = None,
    nodes: tuple[Node, ...] = (),
    instances: tuple[Instance, ...] = (),
) -> ObservedRemains:
    known = Status(resources=ALL_READY if entries is None else entries)
    return ObservedRemains(
        group(deleting=True),
        known,
        found or {},
        operations or {},
        nodes,
        instances,
        is_resync=True,
    )


OWN_MIG, OWN_POLICY, OWN_TEMPLATE = instance_group(), policy(), template()
UNANNOUNCED = Status(resources=ALL_READY)


def beginning(*nodes: Node, status: Status = UNANNOUNCED, note: str = "") -> ObservedBeginning:
    return ObservedBeginning(group(deleting=True), status, nodes, note)


def first_status(plan: Plan) -> Status:
    """Return the status that the plan writes first."""
    write = plan.first[0]
    assert isinstance(write, WriteStatus)
    return write.status


def group_work(known: Status) -> GroupWork:
    """Return the work on a group that is being deleted; it can make no call."""
    nothing: Any = None
    about = replace(group(deleting=True), raw={"status": render(known)})
    return GroupWork(
        settings=nothing,
        gce=nothing,
        cluster=nothing,
        publish=nothing,
        random_bytes=bytes,
        now=NOW,
        trigger=ObjectTrigger(Message("default", "my-slice", "", Cause.RESYNC, NOW)),
        remaining_s=lambda: 30.0,
        group=about,
        status=known,
        reported=known,
    )
