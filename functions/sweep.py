"""sweep: once a minute, one list of the groups, and a SYNC for each that somebody must look at.

Compute Engine logs nothing while a BULK group waits for capacity, nor when its links are up, and
messages can be lost. A group that is not settled gets a SYNC at gaps that grow from a minute to half
an hour with the time since its last progress; a settled one once an hour, at its own minute.

Where JobSets get slices, the steps that see to it hear of the minute too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime

from shared.base import backoff
from shared.base.errors import CallError
from shared.base.names import JOBSET_STEPS
from shared.base.reasons import Reason
from shared.frame.message import SWEEP_KIND, Cause, Message
from shared.frame.step import ACKNOWLEDGED, Answer, Invocation, message_about
from shared.node_groups import node_group, status
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import MIG, State, Status, Type

SETTLED_EVERY_MINUTES = 60


def run(invocation: Invocation) -> Answer:
    """List the groups, and wake the steps that have to look at them."""
    cluster_id = invocation.cluster.get_cluster_id()
    now = invocation.runtime.now()
    failures = _forward_the_minute(invocation, now)
    groups = [node_group.parse(raw, cluster_id) for raw in invocation.cluster.list_groups()]
    inboxes: dict[str, list[Message]] = {}
    for group in groups:
        for step in decide(group, status.parse(group.raw.get("status")), now):
            inboxes.setdefault(step, []).append(message_about(group, Cause.SYNC, now))
    invocation.facts |= {
        "groups": len(groups),
        "woken": {step: len(messages) for step, messages in inboxes.items()},
    }
    failures += _publish_all(invocation, inboxes)
    if failures:
        raise failures[0]
    return Answer(ACKNOWLEDGED, "Swept")


def _forward_the_minute(invocation: Invocation, now: datetime) -> list[CallError]:
    if not invocation.runtime.settings.jobset_provider:
        return []
    minute = [Message("", "", "", Cause.SYNC, now, kind=SWEEP_KIND)]
    return _publish_all(invocation, dict.fromkeys(JOBSET_STEPS, minute))


def _publish_all(invocation: Invocation, inboxes: Mapping[str, list[Message]]) -> list[CallError]:
    failures = [_find_failure(invocation, step, inboxes[step]) for step in inboxes]
    return [error for error in failures if error is not None]


def _find_failure(invocation: Invocation, step: str, messages: list[Message]) -> CallError | None:
    """Publish to one inbox; that it fails keeps no other from hearing of its groups."""
    try:
        invocation.runtime.publish(step, messages)
    except CallError as error:
        return error
    return None


def decide(group: NodeGroup, known: Status, now: datetime) -> tuple[str, ...]:
    """The inboxes that get a SYNC about a group in this minute."""
    return inboxes(group, known) if is_due(group, known, now) else ()


def inboxes(group: NodeGroup, known: Status) -> tuple[str, ...]:
    """The inboxes in which a SYNC about a group in this state has something to find."""
    return tuple(_steps(group, known))


def is_due(group: NodeGroup, known: Status, now: datetime) -> bool:
    """Whether this minute is one of the group's."""
    minute = int(now.timestamp() // 60)
    if is_settled(group, known):
        return minute % SETTLED_EVERY_MINUTES == _own_minute(group)
    return backoff.is_due(now - last_progress(group, known))


def is_settled(group: NodeGroup, known: Status) -> bool:
    """Ready, paused or refused by our own validation, with label and finalizer in place."""
    if group.deleting is not None or not group.is_owned:
        return False
    accepted = known.conditions.get(Type.ACCEPTED)
    if accepted is not None and accepted.reason == Reason.INVALID_SPEC:
        return known.observed_generation == group.generation
    return known.is_true(Type.READY) or (group.is_paused and not _has_begun(known))


def last_progress(group: NodeGroup, known: Status) -> datetime:
    """When something last changed for the better or the worse; trouble that lasts is no change."""
    moments = [group.created, group.deleting]
    moments += [condition.since for condition in known.conditions.values()]
    moments += [
        resource.trouble.since if resource.trouble else resource.since
        for resource in known.resources.values()
    ]
    moments += [entry.since for entry in known.pending]
    return max(moment for moment in moments if moment is not None)


def _own_minute(group: NodeGroup) -> int:
    digest = hashlib.sha256(group.uid.encode()).digest()
    return int.from_bytes(digest[:4], "big") % SETTLED_EVERY_MINUTES


def _has_begun(known: Status) -> bool:
    """Whether Compute Engine has been asked for anything: then it is not over yet."""
    return any(
        resource.state not in (State.PENDING, State.GONE) for resource in known.resources.values()
    )


def _steps(group: NodeGroup, known: Status) -> Iterator[str]:
    if group.deleting is not None:
        yield "tear_down"
        return
    if not group.is_owned or not known.is_true(Type.MIG_READY):
        yield "create_resources"
    resource = known.resources.get(MIG)
    stands = resource is not None and resource.state is State.READY
    is_bulk = group.spec is not None and group.spec.is_bulk
    if not stands or (is_bulk and not known.is_true(Type.MIG_READY)):
        return
    is_made, counts = known.is_true(Type.MIG_READY), known.counts
    if not known.is_true(Type.NODES_JOINED) and (is_made or counts.running > counts.joined):
        yield "inject_token"
    if is_made or counts.running != counts.ready:
        yield "label_node"
