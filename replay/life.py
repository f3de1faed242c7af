"""Reads what a timeline is made of: a group, its log entries and its Events."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from replay.audit_log import about_slice
from replay.decisions import decide_again
from replay.errors import ReplayError
from replay.timeline import Timeline, read_timeline
from replay.ways import Ways
from shared.base.timestamps import CLOCKS_DIFFER_BY, guess_time, render_time
from shared.base.topology import MACHINE_TYPE
from shared.node_groups import node_group, status
from shared.node_groups.node_group import AnyGroup, NodeGroup, resource_name
from shared.node_groups.resources import machine_of
from shared.node_groups.status import Type
from shared.ports.errors import CallError

ReadEntries = Callable[[str, datetime], Sequence[Mapping[str, Any]]]
"""The entries that a query finds, the oldest first, and since when. Raises `CallError`."""
GONE_SINCE = timedelta(days=1)
"""The time range for a group that no longer exists."""
_NAME = re.compile(r"/(tng-[-a-z0-9]*-[0-9a-f]{8})(?:-[a-z0-9]{4})?$")


@dataclass(frozen=True)
class Asked:
    """The group and the time range of a timeline."""

    namespace: str
    name: str
    since: datetime | None
    """``None``: since it was created."""
    until: datetime
    chips_per_vm: int = 0
    """0: as the group says."""
    with_decisions: bool = False
    """Whether the decision of each invocation is made again."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def make_timeline(
    ways: Ways, asked: Asked, read: ReadEntries, say: Callable[[str], None]
) -> Timeline:
    """The timeline of a group, of one that is gone too. Raises `ReplayError` and `CallError`."""
    cluster = ways.open_cluster()
    cluster_id = cluster.get_cluster_id()
    raw = cluster.find_group(asked.namespace, asked.name)
    group = node_group.parse(raw, cluster_id) if raw is not None else None
    created = _find_created(group)
    since = asked.since or created or asked.until - GONE_SINCE
    if created is not None and created < since:
        say("Chip-hours count only VMs that were created in this time range, not earlier ones.")
    entries = read(_query(asked, group, since), since)
    uid = group.uid if group is not None else _find_last_uid(entries)
    name = resource_name(cluster_id, asked.name, uid) if uid else ""
    own = [entry for entry in entries if _is_about(entry, name, uid)]
    if not own and group is None:
        raise ReplayError(
            f"there is no TPUNodeGroup {asked.key}, and Cloud Logging has no entry about one of this "
            "name in this time range; try a longer one, for example --since 7d"
        )
    events: list[dict[str, Any]] = []
    if group is not None:
        try:
            events = cluster.list_events(asked.namespace, uid)
        except CallError as error:
            say(f"The timeline has no Events: {error}")
    chips = asked.chips_per_vm or _find_chips(group, own)
    if not chips:
        say("The group has no machine type: set the chips of a VM with --chips-per-vm.")
    again = decide_again if asked.with_decisions else None
    return read_timeline(asked.key, name, chips, own, events, asked.until, _ready(group), again)


def _find_created(group: AnyGroup | None) -> datetime | None:
    """When the group was created, by a clock that may differ from Cloud Logging's."""
    if group is None:
        return None
    created = guess_time(group.raw["metadata"].get("creationTimestamp"))
    return created - CLOCKS_DIFFER_BY if created is not None else None


def _query(asked: Asked, group: AnyGroup | None, since: datetime) -> str:
    """The lines of functions about the group, and the audit log's entries about its resources."""
    known = group.resource_name if group is not None else ""
    name = known or f"tng-{asked.name[:45].rstrip('-')}-[0-9a-f]{{8}}"
    return (
        f'timestamp>="{render_time(since)}"\n'
        f'timestamp<="{asked.until.isoformat()}"\n'
        f'(jsonPayload.group="{asked.key}" OR {about_slice(name)})'
    )


def _find_last_uid(entries: Sequence[Mapping[str, Any]]) -> str:
    """The uid of the last group of this name: it is the trace of the lines about it."""
    for entry in reversed(entries):
        trace = str(entry.get("trace", "")).rpartition("/traces/")[2]
        if re.fullmatch("[0-9a-f]{32}", trace):
            return str(UUID(trace))
    return ""


def _is_about(entry: Mapping[str, Any], name: str, uid: str) -> bool:
    """Whether an entry is about this group, not about an older one of its name."""
    if "protoPayload" in entry:
        found = _NAME.search(str(entry["protoPayload"].get("resourceName", "")))
        return found is not None and found[1] == name
    trace = str(entry.get("trace", "")).rpartition("/traces/")[2]
    return not trace or trace == uid.replace("-", "")


def _find_chips(group: AnyGroup | None, entries: Sequence[Mapping[str, Any]]) -> int:
    """Chips of a VM, by the group's machine type or by the template that was inserted; 0: unknown."""
    if isinstance(group, NodeGroup):
        known = status.parse(group.raw.get("status")).machine_type
        machine = machine_of(group, known)
        return machine.chips if machine is not None else 0
    for entry in entries:
        payload = entry.get("protoPayload", {})
        if str(payload.get("methodName", "")).lower().endswith("instancetemplates.insert"):
            found = MACHINE_TYPE.search(str(payload.get("request", "")))
            if found is not None:
                return int(found["chips"])
    return 0


def _ready(group: AnyGroup | None) -> dict[str, str] | None:
    if group is None:
        return None
    ready = status.parse(group.raw.get("status")).conditions.get(Type.READY)
    if ready is None:
        return None
    return {"reason": ready.reason, "message": ready.message, "since": render_time(ready.since)}
