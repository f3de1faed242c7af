"""A slice's timeline from log entries and Events: what ran when, how long, and why it was not Ready.

Pure: entries are Cloud Logging's, in JSON. A span of the functions is an invocation (its line is written
at its end and has its milliseconds); a span of Compute Engine is an operation, from the first to the
last entry of the audit log; a span of readiness lasts from one line with a ``ready`` to the next.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from replay import decisions
from replay.decisions import Decision
from shared.base.documents import read_mapping
from shared.base.timestamps import LONG_AGO, guess_time, render_time
from shared.node_groups.goodput import UNUSABLE
from shared.node_groups.status import Condition
from shared.triggers import routes

READY, COMPUTE, VM, STEP = "Ready", "Compute Engine", "VM", "step"
"""Kinds of lanes, in the order in which they are shown."""
RUNNING = "running"
_OPERATION = re.compile(r"^(?:v1\.|beta\.|alpha\.)?compute\.(?P<noun>\w+)\.(?P<verb>[\w.]+)$")
_NOUNS = {
    "resourcePolicies": "workload policy",
    "instanceTemplates": "instance template",
    "regionInstanceTemplates": "instance template",
    "instanceGroupManagers": "MIG",
}
_STARTS = ("insert", "start", "automaticRestart")
_ENDS = (
    "delete",
    "stop",
    "preempted",
    "hostError",
    "guestTerminate",
    "terminateOnHostMaintenance",
    "instanceManagerHaltForRestart",
    "repair.recreateInstance",
)
_NO_TIME = timedelta(0)
_MOST = 86_400_000.0
"""A day in milliseconds: no invocation takes as long, or makes as many calls."""

DecideAgain = Callable[[Mapping[str, Any]], Decision]
"""The decision of an invocation, by its line."""


@dataclass(frozen=True)
class Span:
    """A period. ``end`` is ``None`` while it lasts. ``is_bad``: a failure or a loss."""

    kind: str
    lane: str
    what: str
    begin: datetime
    end: datetime | None
    why: str = ""
    is_bad: bool = False

    def until(self, now: datetime) -> datetime:
        return self.end if self.end is not None else now


@dataclass(frozen=True)
class Moment:
    """A line of the timeline: time, source, what, why. ``decision`` is an invocation's, if requested."""

    at: datetime
    who: str
    what: str
    why: str = ""
    is_bad: bool = False
    decision: Decision | None = None


@dataclass(frozen=True)
class NotReadyPeriod:
    """How long a slice was not Ready for one reason, with its last message."""

    reason: str
    took: timedelta
    message: str


@dataclass(frozen=True)
class Timeline:
    """The timeline of a slice between ``since`` and ``until``."""

    group: str
    resource_name: str
    chips_per_vm: int
    since: datetime
    until: datetime
    spans: tuple[Span, ...] = ()
    moments: tuple[Moment, ...] = ()
    unusable: Mapping[str, float] = field(default_factory=dict)
    """Chip-hours that were billed and not usable, by cause, as the steps have added them up."""

    def list_spans(self, kind: str) -> list[Span]:
        return [span for span in self.spans if span.kind == kind]

    @property
    def time_form(self) -> str:
        """How a time in it is shown: with its date if it has several days."""
        return "%H:%M:%S" if self.since.date() == self.until.date() else "%m-%d %H:%M:%S"

    @property
    def lanes(self) -> list[tuple[str, str]]:
        """Kind and name of each lane, in the order in which they are shown."""
        found = dict.fromkeys((span.kind, span.lane) for span in self.spans)
        order = (READY, COMPUTE, VM, STEP)
        return sorted(found, key=lambda lane: (order.index(lane[0]), lane[0] == VM and lane[1]))

    @property
    def phases(self) -> list[NotReadyPeriod]:
        """Why it was not Ready, the longest first."""
        found: dict[str, NotReadyPeriod] = {}
        for span in self.list_spans(READY):
            if span.what != READY:
                before = found.get(span.what, NotReadyPeriod(span.what, _NO_TIME, ""))
                took = before.took + span.until(self.until) - span.begin
                found[span.what] = NotReadyPeriod(span.what, took, span.why)
        return sorted(found.values(), key=lambda phase: phase.took, reverse=True)

    @property
    def not_ready(self) -> timedelta:
        return sum((phase.took for phase in self.phases), _NO_TIME)

    @property
    def first_ready(self) -> timedelta | None:
        """From the beginning to the first Ready; ``None`` if it has never been."""
        ready = [span.begin for span in self.list_spans(READY) if span.what == READY]
        return min(ready) - self.since if ready else None

    @property
    def shares(self) -> dict[str, timedelta]:
        """Of the time not Ready: with an operation of Compute Engine, with a function only, without."""
        waiting = [_interval(span, self) for span in self.list_spans(READY) if span.what != READY]
        operations = [
            _interval(span, self)
            for span in (*self.list_spans(COMPUTE), *self.list_spans(VM))
            if span.what != RUNNING
        ]
        functions = [_interval(span, self) for span in self.list_spans(STEP)]
        gce = _overlap(waiting, operations)
        either = _overlap(waiting, [*operations, *functions])
        return {COMPUTE: gce, "functions": either - gce, "neither": self.not_ready - either}

    @property
    def chip_hours(self) -> float:
        """Chips times the hours for which their VMs have run."""
        running = (span for span in self.list_spans(VM) if span.what == RUNNING)
        took = sum((span.until(self.until) - span.begin for span in running), _NO_TIME)
        return took.total_seconds() / 3600 * self.chips_per_vm


@dataclass
class _Reader:
    """Collects spans and moments, entry by entry, the oldest first."""

    resource_name: str
    decide_again: DecideAgain | None = None
    spans: list[Span] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    begun: dict[str, Span] = field(default_factory=dict)
    """Operations of Compute Engine that have begun and not ended, by their id."""
    running: dict[str, datetime] = field(default_factory=dict)
    """VMs that run, and since when."""
    ready: Span | None = None
    unusable: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def read_line(self, at: datetime, line: Mapping[str, Any]) -> None:
        """A function's line about one message, or about chips that were not usable."""
        step, decision = str(line.get("step", "")), str(line.get("decision", ""))
        if decision == UNUSABLE:
            self.unusable[str(line.get("cause", ""))] += _number(line.get("chip_hours"))
            return
        took = timedelta(milliseconds=_number(line.get("milliseconds")))
        counted = line.get("calls")
        calls = counted if isinstance(counted, Mapping) else {}
        note = f": {line['note']}" if line.get("note") else ""
        refusal = f" refuses ({line['refusal']})" if line.get("refusal") else ""
        place = f"{line['candidate']}{refusal}; " if line.get("candidate") else ""
        counts = "calls: " + ", ".join(f"{_number(calls[key]):.0f} {key}" for key in calls)
        asker = f"ProvisioningRequest {line['request']}; " if line.get("request") else ""
        why = f"{place}{asker}{line.get('trigger', 'a message')}{note}"
        said = "; ".join(part for part in (why, counts, f"{took.total_seconds():.1f} s") if part)
        is_bad = bool(line.get("left_undone")) or decision in ("Crashed", "Poison", "TryAgain")
        self.spans.append(Span(STEP, step, decision, at - took, at, said, is_bad))
        again = self.decide_again(line) if self.decide_again is not None else None
        self.moments.append(Moment(at, step, decision, said, is_bad, again))
        if line.get("candidate"):
            self.read_try(at, decision, str(line["candidate"]), str(line.get("refusal", "")))
        ready = line.get("ready")
        if isinstance(ready, Mapping):
            self.read_ready(at, str(ready.get("reason", "")), str(ready.get("message", "")))
        if (step, decision) == (routes.TEAR_DOWN, "Done"):
            self.end_ready(at)
            self.ready = None

    def read_try(self, at: datetime, decision: str, candidate: str, refusal: str) -> None:
        """A candidate is asked for the slice, or refuses: the slice of each is a TPUNodeGroup of its
        own."""
        if decision == "Creating":
            self.end_ready(at)
            self.ready = Span(READY, READY, candidate, at, None, "asked", True)
        elif refusal and self.ready is not None and self.ready.what == candidate:
            self.ready = replace(self.ready, why=f"refuses ({refusal})")

    def read_ready(self, at: datetime, reason: str, message: str) -> None:
        """A change of Ready that a status write reports."""
        if self.ready is not None and self.ready.what == reason:
            self.ready = replace(self.ready, why=message)
            return
        self.end_ready(at)
        self.ready = Span(READY, READY, reason, at, None, message, reason != READY)
        what = "Ready" if reason == READY else f"not Ready: {reason}"
        self.moments.append(Moment(at, "status", what, message))

    def end_ready(self, at: datetime | None) -> None:
        if self.ready is not None:
            self.spans.append(replace(self.ready, end=at))

    def read_entry(self, at: datetime, entry: Mapping[str, Any]) -> None:
        """An entry of the audit log about one of the slice's resources."""
        payload = entry["protoPayload"]
        method = _OPERATION.match(str(payload.get("methodName", "")))
        if method is None:
            return
        name = str(payload.get("resourceName", "")).rpartition("/")[2]
        is_vm = method["noun"] == "instances"
        lane = name.removeprefix(f"{self.resource_name}-") if is_vm else method["noun"]
        kind, lane = (VM, f"VM {lane}") if is_vm else (COMPUTE, _NOUNS.get(lane, lane))
        self._read_operation(at, entry, Span(kind, lane, method["verb"], at, None))

    def _read_operation(self, at: datetime, entry: Mapping[str, Any], span: Span) -> None:
        operation = read_mapping(entry, "operation")
        status = read_mapping(entry["protoPayload"], "status")
        error = str(status.get("message") or "")
        is_bad, is_shown = bool(status.get("code")), span.what != "setMetadata"
        is_first, is_last = bool(operation.get("first")), bool(operation.get("last"))
        key = str(operation.get("id", ""))
        if is_first and not is_last:
            self.begun[key] = span
            if is_shown:
                self.moments.append(Moment(at, span.lane, f"{span.what} begins"))
            return
        begun = self.begun.pop(key, span)
        self.spans.append(replace(begun, end=at, why=error, is_bad=is_bad))
        if is_shown or is_bad:
            took = (at - begun.begin).total_seconds()
            what, why = span.what, error
            if not (is_first and is_last):
                end = "failed" if is_bad else "ended"
                what = f"{span.what} {end if operation else 'was refused'}"
                why = "; ".join(part for part in (f"{took:.1f} s" if took else "", error) if part)
            is_loss = span.what in _ENDS[2:]
            self.moments.append(Moment(at, span.lane, what, why, is_bad or is_loss))
        if span.kind != VM or is_bad:
            return
        if span.what in _STARTS:
            self.running.setdefault(span.lane, at)
        elif span.what in _ENDS and span.lane in self.running:
            since = self.running.pop(span.lane)
            end_of_vm = max(since, begun.begin)
            self.spans.append(Span(VM, span.lane, RUNNING, since, end_of_vm, f"until {span.what}"))


def read_timeline(
    group: str,
    resource_name: str,
    chips_per_vm: int,
    entries: Iterable[Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]],
    until: datetime,
    ready: Condition | None = None,
    decide_again: DecideAgain | None = None,
    asked: datetime | None = None,
    since: datetime = LONG_AGO,
) -> Timeline:
    """A timeline of entries, the oldest first, and of a group's Events.

    ``ready`` is the group's condition now; the timeline ends with it if no line reports Ready.
    ``decide_again`` repeats the decision of each invocation from its line. ``asked``: when the slice was
    requested from a class. ``since``: when the time range begins, of which nothing earlier was read.
    """
    reader = _Reader(resource_name, decide_again)
    if asked is not None:
        reader.read_ready(asked, "Requested", "no candidate was asked yet")
    for entry in entries:
        at = guess_time(entry.get("timestamp"))
        if at is None or at > until:
            continue
        if isinstance(entry.get("jsonPayload"), Mapping):
            reader.read_line(at, entry["jsonPayload"])
        elif isinstance(entry.get("protoPayload"), Mapping):
            reader.read_entry(at, entry)
    for event in events:
        at = guess_time(event.get("firstTimestamp") or event.get("eventTime"))
        if at is not None and since <= at <= until:
            times = f" (x{event['count']})" if _number(event.get("count")) > 1 else ""
            what = f"{event.get('reason', '')}{times}"
            is_bad = event.get("type") == "Warning"
            reader.moments.append(Moment(at, "event", what, str(event.get("message", "")), is_bad))
    if reader.ready is None and ready is not None:
        begin = min(max(ready.since, since), until)
        reader.read_ready(begin, str(ready.reason), ready.message)
    reader.end_ready(None)
    reader.spans += [Span(VM, lane, RUNNING, at, None) for lane, at in reader.running.items()]
    reader.spans += reader.begun.values()
    moments = sorted(reader.moments, key=lambda moment: moment.at)
    begins = [span.begin for span in reader.spans] + [moment.at for moment in moments]
    begin = max(since, min(begins, default=until))
    lanes = tuple(reader.spans), tuple(moments), dict(reader.unusable)
    return Timeline(group, resource_name, chips_per_vm, begin, until, *lanes)


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= _MOST else 0.0


Interval = tuple[datetime, datetime]


def _interval(span: Span, timeline: Timeline) -> Interval:
    return max(span.begin, timeline.since), span.until(timeline.until)


def _overlap(some: Sequence[Interval], others: Sequence[Interval]) -> timedelta:
    """How long one of ``some`` and one of ``others`` lasted at the same time."""
    return _cover(some) + _cover(others) - _cover([*some, *others])


def _cover(intervals: Sequence[Interval]) -> timedelta:
    """How long at least one of the intervals lasted."""
    total, covered_until = _NO_TIME, datetime.min.replace(tzinfo=UTC)
    for begin, end in sorted(intervals):
        total += max(_NO_TIME, end - max(begin, covered_until))
        covered_until = max(covered_until, end)
    return total


def to_document(timeline: Timeline, price: float | None) -> dict[str, Any]:
    """The timeline as JSON."""
    first_ready = timeline.first_ready
    return {
        "group": timeline.group,
        "resourceName": timeline.resource_name,
        "since": render_time(timeline.since),
        "until": render_time(timeline.until),
        "firstReadyAfterSeconds": first_ready.total_seconds() if first_ready is not None else None,
        "notReady": [
            {
                "reason": phase.reason,
                "seconds": phase.took.total_seconds(),
                "message": phase.message,
            }
            for phase in timeline.phases
        ],
        "notReadySharesSeconds": {
            name: share.total_seconds() for name, share in timeline.shares.items()
        },
        "chipHours": round(timeline.chip_hours, 4),
        "unusableChipHours": {
            cause: round(timeline.unusable[cause], 4) for cause in timeline.unusable
        },
        "cost": round(timeline.chip_hours * price, 2) if price is not None else None,
        "spans": list(map(_fields_of, timeline.spans)),
        "moments": list(map(_fields_of, timeline.moments)),
    }


def _fields_of(one: Span | Moment) -> dict[str, Any]:
    fields = {("isBad" if name == "is_bad" else name): value for name, value in vars(one).items()}
    for name, value in fields.items():
        if isinstance(value, datetime):
            fields[name] = value.isoformat()
    decision = fields.pop("decision", None)
    return {**fields, "decision": decisions.to_document(decision)} if decision else fields
