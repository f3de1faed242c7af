"""Metrics of the groups: their states and reasons, the times of their creation, losses and repairs.

The relay watches every TPUNodeGroup and keeps a `GroupRecord` of each, with a few fields. Gauges are
computed from them at each scrape, counters and histograms from differences. Changes during a restart are
not counted: the first list only fills the cache. No series has the name of an object.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from math import prod
from typing import Any

from relay import metrics
from relay.changes.fingerprints import TRUE, GroupKey, has_identity
from relay.kinds import Change
from relay.metrics import CreationPhase, GroupState
from shared.base.documents import find_condition, read_mapping, read_number, read_text
from shared.base.timestamps import guess_time

MAX_COUNT = 100_000
"""A larger number of Nodes or chips is wrong: it would make the sum useless."""

_TOPOLOGY = re.compile(r"[1-9][0-9]{0,4}(x[1-9][0-9]{0,4}){1,2}")
_PHASE_ENDS: tuple[tuple[CreationPhase, str], ...] = (
    (CreationPhase.VMS, "ManagedInstanceGroupReady"),
    (CreationPhase.TOKENS, "TokensInjected"),
    (CreationPhase.NODES, "NodesJoined"),
)
"""These parts of a creation end when a condition becomes True."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The cached fields of a TPUNodeGroup. ``since`` is when it entered its state."""

    uid: str
    state: GroupState
    reason: str
    since: datetime | None
    chips: int
    running_chips: int
    is_complete: bool
    """Whether it was Ready at least once. A repair clears ``completedAt``."""
    is_idle: bool
    """Whether it is Ready and no Pod uses its chips."""
    has_maintenance: bool
    """Whether maintenance of its VMs is announced."""
    unusable_since: datetime | None = None
    """Since when the relay has seen VMs of it run while it is not Ready."""
    reason_since: datetime | None = None
    """When the relay has seen its reason change while it was not Ready; ``since`` stays then."""


def read_record(raw: Mapping[str, Any]) -> GroupRecord:
    """The record of a TPUNodeGroup. Malformed fields count as absent."""
    metadata, status = read_mapping(raw, "metadata"), read_mapping(raw, "status")
    ready = find_condition(status, "Ready")
    state, reason = GroupState.NOT_READY, read_text(ready, "reason") or metrics.NOT_REPORTED
    since = guess_time(ready.get("lastTransitionTime") or metadata.get("creationTimestamp"))
    if deletion := metadata.get("deletionTimestamp"):
        state, since = GroupState.DELETING, guess_time(deletion)
    elif read_text(ready, "status") == TRUE:
        state, reason = GroupState.READY, metrics.READY
    spec = read_mapping(raw, "spec")
    nodes = read_mapping(status, "nodeSummary")
    running = _limit(read_number(nodes, "running"))
    repaired_at = read_mapping(status, "repairs").get("lastAt")
    topology, hosts = read_text(spec, "topology"), _limit(read_number(spec, "nodeCount"))
    chips, is_individual = 0, read_text(spec, "targetSizePolicyMode") == "INDIVIDUAL"
    if is_individual and state == GroupState.NOT_READY:
        # VMs that are slices of their own are usable without the others.
        running = max(0, running - _limit(read_number(nodes, "ready")))
    if hosts and _TOPOLOGY.fullmatch(topology):
        chips = _limit(prod(map(int, topology.split("x"))) * (hosts if is_individual else 1))
    return GroupRecord(
        uid=read_text(metadata, "uid"),
        state=state,
        reason=metrics.limit_label("reason", reason),
        since=since,
        chips=chips,
        running_chips=min(chips, chips // max(1, hosts) * running),
        is_complete=guess_time(status.get("completedAt") or repaired_at) is not None,
        has_maintenance=bool(find_condition(status, "MaintenanceScheduled")),
        is_idle=state == GroupState.READY and guess_time(status.get("idleSince")) is not None,
    )


def read_phases(raw: Mapping[str, Any]) -> Mapping[CreationPhase, float]:
    """How many seconds each part of a creation took, from the status of a slice that is complete.

    The parts follow each other and add up to the whole. A time that is missing, or that differs from its
    neighbours because clocks differ, makes its part empty and another one longer.
    """
    status = read_mapping(raw, "status")
    created = guess_time(read_mapping(raw, "metadata").get("creationTimestamp"))
    completed = guess_time(status.get("completedAt"))
    if created is None or completed is None:
        return {}
    mig = read_mapping(read_mapping(status, "resources"), "managedInstanceGroup")
    has_mig = mig.get("state") == "Ready"
    ends = {CreationPhase.RESOURCES: guess_time(mig.get("since")) if has_mig else None}
    for phase, kind in _PHASE_ENDS:
        condition = find_condition(status, kind)
        is_true = read_text(condition, "status") == TRUE
        ends[phase] = guess_time(condition.get("lastTransitionTime")) if is_true else None
    boundaries = [created]
    for end in (*ends.values(), completed):
        boundaries.append(max(boundaries[-1], min(end or boundaries[-1], completed)))
    spans = [(end - begin).total_seconds() for begin, end in pairwise(boundaries)]
    return dict(zip((*ends, CreationPhase.READY), spans, strict=True))


class GroupMetrics:
    """The records of all groups, and the counters of their changes."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._records: dict[GroupKey, GroupRecord] = {}
        self._is_listed = False

    def changed(self, event: Change, raw: Mapping[str, Any]) -> None:
        """Record a watch event of a TPUNodeGroup."""
        if not has_identity(raw, is_namespaced=True):
            return
        if event == "DELETED":
            self._records.pop(_key(raw), None)
        else:
            self._observe(raw)

    def relisted(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """A new list of all TPUNodeGroups. The first list is only cached."""
        known = [raw for raw in objects if has_identity(raw, is_namespaced=True)]
        listed = {_key(raw) for raw in known}
        self._records = {key: one for key, one in self._records.items() if key in listed}
        for raw in known:
            if self._is_listed:
                self._observe(raw)
            else:
                self._store(_key(raw), read_record(raw), None)
        self._is_listed = True

    def update_metrics(self) -> None:
        """Set the gauges to the current values."""
        count: Counter[tuple[str, str]] = Counter()
        longest: defaultdict[tuple[str, str], float] = defaultdict(float)
        chips: Counter[str] = Counter()
        running: Counter[str] = Counter()
        now = self._now()
        for one in self._records.values():
            series = one.state, one.reason
            count[series] += 1
            since = max(filter(None, (one.since, one.reason_since)), default=None)
            longest[series] = max(longest[series], _seconds(since, now))
            chips[one.state] += one.chips
            running[one.state] += one.running_chips
        for series in metrics.SLICE_SERIES:
            metrics.SLICES.labels(*series).set(count[series])
            metrics.LONGEST_IN_STATE.labels(*series).set(longest[series])
        for state in GroupState:
            metrics.CHIPS.labels(state).set(chips[state])
            metrics.RUNNING_CHIPS.labels(state).set(running[state])
        unusable = (one.unusable_since for one in self._records.values() if one.unusable_since)
        metrics.LONGEST_UNUSABLE.set(_seconds(min(unusable, default=None), now))
        metrics.MAINTENANCE.set(sum(one.has_maintenance for one in self._records.values()))
        metrics.IDLE_CHIPS.set(sum(one.chips for one in self._records.values() if one.is_idle))

    def _store(self, key: GroupKey, record: GroupRecord, before: GroupRecord | None) -> None:
        unusable_since = reason_since = None
        if record.state == GroupState.NOT_READY and record.running_chips:
            unusable_since = (before.unusable_since if before else None) or self._now()
        if before is not None and before.state == record.state == GroupState.NOT_READY:
            is_same = before.reason == record.reason
            reason_since = before.reason_since if is_same else self._now()
        self._records[key] = replace(
            record, unusable_since=unusable_since, reason_since=reason_since
        )

    def _observe(self, raw: Mapping[str, Any]) -> None:
        """Replace the record of a group, and count its creation, loss or repair."""
        key, after = _key(raw), read_record(raw)
        before = self._records.get(key)
        if before is None or before.uid != after.uid:
            before = None
        elif before.is_complete:
            after = replace(after, is_complete=True)  # a status may be lost, and written again
        self._store(key, after, before)
        if after.is_complete and not (before is not None and before.is_complete):
            model = read_text(read_mapping(raw, "status"), "provisioningModel")
            model = metrics.limit_label("provisioning_model", model)
            if phases := read_phases(raw):
                metrics.TIME_TO_READY.labels(model).observe(sum(phases.values()))
            for phase, seconds in phases.items():
                metrics.PHASE_DURATION.labels(phase).observe(seconds)
        elif before is not None:
            match before.state, after.state:
                case GroupState.READY, GroupState.NOT_READY:
                    metrics.LOSSES.labels(after.reason).inc()
                case GroupState.NOT_READY, GroupState.READY if before.is_complete:
                    metrics.REPAIRS.inc()
                    if before.since is not None and after.since is not None:
                        metrics.TIME_TO_REPAIR.observe(_seconds(before.since, after.since))


def _key(raw: Mapping[str, Any]) -> GroupKey:
    metadata = read_mapping(raw, "metadata")
    return read_text(metadata, "namespace"), read_text(metadata, "name")


def _limit(count: int) -> int:
    return count if 0 <= count <= MAX_COUNT else 0


def _seconds(begin: datetime | None, end: datetime) -> float:
    return max(0.0, (end - begin).total_seconds()) if begin is not None else 0.0
