"""Read the sources of a timeline: a group, its log entries and its Events."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from replay.audit_log import OF_COMPUTE, about_slice, find_projects, read_entries
from replay.cloud_logging import from_functions
from replay.decisions import decide_again
from replay.dependencies import Dependencies
from replay.errors import ReplayError
from replay.output import print_note
from replay.timeline import Timeline, read_timeline
from shared.base.documents import Document, read_mapping, read_texts
from shared.base.names import WORKLOAD_LABEL
from shared.base.timestamps import CLOCKS_DIFFER_BY, guess_time, render_time
from shared.base.topology import MACHINE_TYPE
from shared.node_groups import node_group, status
from shared.node_groups.node_group import AnyGroup, NodeGroup, resource_name
from shared.node_groups.resources import machine_of
from shared.node_groups.status import Type
from shared.ports.errors import CallError
from shared.slices.provider import ASKED_AT

GONE_SINCE = timedelta(days=1)
"""The time range for a group that no longer exists."""
_NAME = re.compile(r"/(tng-[-a-z0-9]*-[0-9a-f]{8})(?:-[a-z0-9]{4})?$")


@dataclass(frozen=True)
class TimelineRequest:
    """The group and the time range of a timeline."""

    namespace: str
    name: str
    since: datetime | None
    """``None``: since it was created."""
    until: datetime
    uid: str = ""
    """Empty: the group of this name, or the last that had it."""
    chips_per_vm: int = 0
    """0: as the group specifies."""
    with_decisions: bool = False
    """Whether the decision of each invocation is made again."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


Read = Callable[[Dependencies, Set[str], datetime, datetime, str], Sequence[dict[str, Any]]]
"""Reads the entries of these projects in a time range that a query finds, the oldest first."""


def read_all(
    deps: Dependencies, projects: Set[str], since: datetime, until: datetime, query: str
) -> list[dict[str, Any]]:
    """A `Read` that reports its progress on a terminal. Raises `CallError`."""
    times = f'timestamp>="{render_time(since)}"\ntimestamp<="{until.isoformat()}"'
    return list(read_entries(deps, projects, f"{times}\n{query}"))


def build_timeline(
    deps: Dependencies,
    request: TimelineRequest,
    read: Read = read_all,
    note: Callable[[str], None] = print_note,
) -> Timeline:
    """The timeline of a group, also of a deleted one. ``note`` gets what it lacks, in a sentence. Raises
    `ReplayError` and `CallError`."""
    cluster = deps.open_cluster()
    cluster_id = cluster.get_cluster_id()
    raw = cluster.find_group(request.namespace, request.name)
    group = node_group.parse(raw, cluster_id) if raw is not None else None
    if group is not None and request.uid not in ("", group.uid):
        group = None
    created, requested = None, None
    if group is not None:
        metadata = group.raw["metadata"]
        requested = guess_time(read_mapping(metadata, "annotations").get(ASKED_AT))
        times = (guess_time(metadata.get("creationTimestamp")), requested)
        created = min(filter(None, times), default=None)
        # The API server's clock may differ from Cloud Logging's.
        created = created - CLOCKS_DIFFER_BY if created is not None else None
    since = request.since or created or request.until - GONE_SINCE
    if created is not None and created < since:
        note("Chip-hours count only VMs that were created in this time range, not earlier ones.")
    known = group.resource_name if group is not None else ""
    labels = read_texts(read_mapping(raw or {}, "spec"), "nodeLabels")
    workload = labels.get(WORKLOAD_LABEL, "")
    name = known or f"tng-{request.name[:45].rstrip('-')}-[0-9a-f]{{8}}"
    asked = f' OR jsonPayload.workload="{workload}"' if workload else ""
    query = (
        f"((\n{from_functions(deps.settings)}\n"
        f'(jsonPayload.group="{request.key}" OR jsonPayload.slice="{request.name}"{asked})\n'
        f") OR (\n{OF_COMPUTE}\n{about_slice(name)}\n))"
    )
    projects = find_projects(deps.settings) | {deps.settings.pubsub_project}
    entries = read(deps, projects, since, request.until, query)
    lives = _find_lives(entries)
    uid = request.uid or (group.uid if group is not None else next(reversed(lives), ""))
    if group is None and request.uid and uid not in lives:
        raise ReplayError(f"Cloud Logging has no line about a group {request.key} of uid {uid}")
    if others := [f"{one} (until {at})" for one, at in lives.items() if one != uid]:
        note(f"This is {uid}. Other groups had this name: {', '.join(others)}; --uid shows one.")
    name = resource_name(cluster_id, request.name, uid) if uid else ""
    begun = created or since
    about = (one for one in entries if _is_about(one, name, uid) or _is_try(one, request, begun))
    own = list(_merge_requests(about, request.name))
    if not own and group is None:
        raise ReplayError(
            f"there is no TPUNodeGroup {request.key}, and Cloud Logging has no entry about one of "
            "this name in this time range; try a longer one, for example --since 7d"
        )
    events: list[dict[str, Any]] = []
    ready, period = None, status.Unusable()
    if group is not None:
        try:
            events = cluster.list_events(request.namespace, uid)
        except CallError as error:
            note(f"The timeline has no Events: {error}")
        ready = status.parse_of(group).conditions.get(Type.READY)
        period = status.parse_of(group).unusable
    chips = request.chips_per_vm or _find_chips(group, own)
    if not chips:
        note("The group has no machine type: set the chips of a VM with --chips-per-vm.")
    again = decide_again if request.with_decisions else None
    has_tries = any("candidate" in read_mapping(one, "jsonPayload") for one in own)
    asked_at = requested if has_tries and requested and requested >= since else None
    given = own, events, request.until, ready, again, asked_at, since
    timeline = read_timeline(request.key, name, chips, *given)
    if period.cause is None or period.since is None or period.since > request.until:
        return timeline
    # The log has a period when it has ended, or lasts an hour.
    lasts = (request.until - max(period.since, since)).total_seconds() / 3600 * period.chips
    sums = timeline.unusable
    return replace(timeline, unusable={**sums, period.cause: sums.get(period.cause, 0) + lasts})


def _find_lives(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The uids of the groups of this name, and the time of the last line about each, the last one last:
    a uid is the trace of its lines."""
    lives: dict[str, str] = {}
    for entry in entries:
        trace = str(entry.get("trace", "")).rpartition("/traces/")[2]
        is_of_group = "slice" not in read_mapping(entry, "jsonPayload")
        if is_of_group and re.fullmatch("[0-9a-f]{32}", trace):
            uid = str(UUID(trace))
            lives.pop(uid, None)
            lives[uid] = f"{str(entry.get('timestamp'))[:16]}Z"
    return lives


def _is_about(entry: Mapping[str, Any], name: str, uid: str) -> bool:
    """Whether an entry is about this group, not about an older one of its name."""
    if "protoPayload" in entry:
        found = _NAME.search(str(read_mapping(entry, "protoPayload").get("resourceName", "")))
        return found is not None and found[1] == name
    trace = str(entry.get("trace", "")).rpartition("/traces/")[2]
    is_own = not trace or trace == uid.replace("-", "")
    return is_own and "slice" not in read_mapping(entry, "jsonPayload")


def _is_try(entry: Mapping[str, Any], request: TimelineRequest, begun: datetime) -> bool:
    """Whether a line is about a ProvisioningRequest, or says which candidate was asked for the slice of
    a Pod, or that none was. One from before the slice was requested is about an older group of its
    name."""
    if (guess_time(entry.get("timestamp")) or begun) < begun:
        return False
    line = read_mapping(entry, "jsonPayload")
    is_try = {"candidate", "request"} & line.keys() or line.get("decision") == "Exhausted"
    asker = str(line.get("pod") or line.get("request"))
    return bool(is_try) and asker.startswith(f"{request.namespace}/")


def _merge_requests(entries: Iterable[Document], slice_name: str) -> Iterator[Document]:
    """The entries without lines that repeat the last decision about a ProvisioningRequest, and without
    the candidates of its other slices."""
    decided = dict[str, object]()
    for entry in entries:
        line = {**read_mapping(entry, "jsonPayload")}
        asker, decision = str(line.get("request", "")), line.get("decision")
        if asker and decided.get(asker) == decision:
            continue
        if asker and line.get("slice") != slice_name:
            line.pop("candidate", None)
        decided[asker] = decision
        yield {**entry, "jsonPayload": line} if asker else entry


def _find_chips(group: AnyGroup | None, entries: Sequence[Mapping[str, Any]]) -> int:
    """Chips of a VM, by the group's machine type or by the template that was inserted; 0: unknown."""
    if isinstance(group, NodeGroup):
        known = status.parse_of(group).machine_type
        machine = machine_of(group, known)
        return machine.chips if machine is not None else 0
    for entry in entries:
        payload = read_mapping(entry, "protoPayload")
        if str(payload.get("methodName", "")).lower().endswith("instancetemplates.insert"):
            found = MACHINE_TYPE.search(str(payload.get("request", "")))
            if found is not None:
                return int(found["chips"])
    return 0
