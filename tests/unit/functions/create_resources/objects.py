"""Observations of create_resources."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from functions.create_resources.observe import ObservedResources
from shared.frame.plan import Plan
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import (
    MIG,
    POLICY,
    TEMPLATE,
    Resource,
    State,
    Status,
)
from shared.node_groups.work import WriteStatus
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import ObjectTrigger, Trigger
from tests.support.builders import NOW, RESOURCE, SETTINGS, flat, group
from tests.support.compute import URI

RESYNC = ObjectTrigger(Message("default", "my-slice", "", Cause.RESYNC, NOW))
ADDED = ObjectTrigger(Message("default", "my-slice", "", Cause.ADDED, NOW))
EARLIER = NOW - timedelta(minutes=10)


def resources(**states: Resource) -> dict[str, Resource]:
    pending = Resource(RESOURCE)
    return {POLICY: pending, TEMPLATE: pending, MIG: pending} | states


def ready(kind: str) -> Resource:
    del kind
    return Resource(RESOURCE, State.READY, EARLIER, URI)


def creating(since: datetime = EARLIER, operation: str = "") -> Resource:
    return Resource(RESOURCE, State.CREATING, since, operation=operation)


POLICY_AND_TEMPLATE_READY = {POLICY: ready(POLICY), TEMPLATE: ready(TEMPLATE)}


def observed(
    about: NodeGroup | None = None,
    known: Status | None = None,
    trigger: Trigger = ADDED,
    **rest: Any,
) -> ObservedResources:
    return ObservedResources(
        about or group(), known or Status(), trigger, SETTINGS.projects, **rest
    )


def outcome_status(plan: Plan) -> Status:
    """Return the status that the plan writes first."""
    write = next(action for action in flat(plan) if isinstance(action, WriteStatus))
    return write.status


OWN = {
    "instanceConfig": None,
    "bootstrapKubernetes": None,
    "instanceTemplateURI": "projects/my-gcp-project/global/instanceTemplates/t",
}
