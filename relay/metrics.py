"""The metrics of the slices and of the relay, and the closed lists from which the labels' values come.

`docs/reference/metrics.md` shows both tables; a test keeps them the same. No label ever holds the name
of an object. Every series is there, at zero, from the start.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any, TypeVar

from prometheus_client import Counter, Gauge, Histogram

from relay.kinds import KINDS, TRIGGERED_STEPS, End
from shared.base.reasons import Reason
from shared.slices.kinds import KINDS as UNIT_KINDS

_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)

READY, NOT_REPORTED, OTHER = "Ready", "NotReported", "Other"
"""Reasons that are not in the catalogue."""


class GroupState(StrEnum):
    """The states of a slice."""

    READY = "Ready"
    NOT_READY = "NotReady"
    DELETING = "Deleting"


class CreationPhase(StrEnum):
    """The phases of a slice's creation, in order."""

    RESOURCES = "resources"
    VMS = "vms"
    TOKENS = "tokens"
    NODES = "nodes"
    READY = "ready"


LABELS: Mapping[str, tuple[str, ...]] = {
    "kind": KINDS,
    "step": TRIGGERED_STEPS,
    "event": ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "OTHER"),
    "end": tuple(End),
    "state": tuple(GroupState),
    "reason": (READY, *Reason, NOT_REPORTED, OTHER),
    "phase": tuple(CreationPhase),
    "unit_kind": tuple(one.name for one in UNIT_KINDS),
    "provisioning_model": ("STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START", OTHER),
}
"""The values of each label. The last one of some is for others. tools/pages/relay.py describes them."""


@dataclass(frozen=True)
class Description:
    """A metric as Prometheus shows it."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


DESCRIPTIONS: list[Description] = []
"""All metrics, in the order of this module."""


def _declare(
    type_: type[_Metric],
    name: str,
    labels: tuple[str, ...],
    meaning: str,
    series: Iterable[tuple[str, ...]] | None = None,
    **options: Any,
) -> _Metric:
    """A metric whose series are ``series``, or all that its labels' values make."""
    DESCRIPTIONS.append(Description(name, type_.__name__.lower(), labels, meaning))
    metric = type_(name, meaning, labels, **options)
    if labels:
        for values in series or product(*(LABELS[label] for label in labels)):
            metric.labels(*values)
    return metric


SLICE_SERIES = (
    (GroupState.READY, READY),
    *product((GroupState.NOT_READY, GroupState.DELETING), LABELS["reason"]),
)
_WAITS = (5, 10, 30, 60, 120, 180, 300, 600, 1200, 1800, 3600, 10800, 43200, 172800, 604800)

SLICES = _declare(
    Gauge,
    "tpu_functions_slices",
    ("state", "reason"),
    "TPUNodeGroups, by state and by the reason of `Ready`.",
    SLICE_SERIES,
)
LONGEST_IN_STATE = _declare(
    Gauge,
    "tpu_functions_slice_longest_in_state_seconds",
    ("state", "reason"),
    "Longest time in this state: since `Ready` last changed or, later, the relay saw its reason change; "
    "or since the deletion was requested.",
    SLICE_SERIES,
)
CHIPS = _declare(
    Gauge,
    "tpu_functions_chips",
    ("state",),
    "TPU chips that the slices in a state request; `NotReady`: chips that users wait for.",
)
RUNNING_CHIPS = _declare(
    Gauge,
    "tpu_functions_running_chips",
    ("state",),
    "TPU chips of running VMs, by the state of their slice; `NotReady`: billed, but not usable.",
)
LONGEST_UNUSABLE = _declare(
    Gauge,
    "tpu_functions_slice_longest_unusable_seconds",
    (),
    "Longest time for which VMs of a slice that is not Ready have run, since the relay has started.",
)
IDLE_CHIPS = _declare(
    Gauge,
    "tpu_functions_idle_chips",
    (),
    "TPU chips of Ready slices that no Pod uses, as `report_leaks` observes once an hour.",
)
MAINTENANCE = _declare(
    Gauge,
    "tpu_functions_slices_with_maintenance",
    (),
    "TPUNodeGroups for whose VMs Compute Engine has announced maintenance.",
)
TIME_TO_READY = _declare(
    Histogram,
    "tpu_functions_slice_time_to_ready_seconds",
    ("provisioning_model",),
    "Time from the creation of a TPUNodeGroup until it is Ready for the first time.",
    buckets=_WAITS,
)
PHASE_DURATION = _declare(
    Histogram,
    "tpu_functions_slice_phase_duration_seconds",
    ("phase",),
    "Time that each phase of a slice's creation took; the phases add up to the total.",
    buckets=_WAITS,
)
LOSSES = _declare(
    Counter,
    "tpu_functions_slice_losses_total",
    ("reason",),
    "Slices that were Ready and no longer are, by the first reason; deletions are not counted.",
)
REPAIRS = _declare(
    Counter,
    "tpu_functions_slice_repairs_total",
    (),
    "Slices that were Ready before, were lost, and are Ready again.",
)
TIME_TO_REPAIR = _declare(
    Histogram,
    "tpu_functions_slice_time_to_repair_seconds",
    (),
    "Time from the loss of a slice until it is Ready again.",
    buckets=_WAITS,
)
EVENTS = _declare(
    Counter, "tpu_functions_relay_watch_events_total", ("kind", "event"), "Watch events received."
)
SKIPPED = _declare(
    Counter,
    "tpu_functions_relay_skipped_objects_total",
    ("kind",),
    "Objects in lists and watch events without a valid name, namespace or uid, which were skipped.",
)
LISTS = _declare(
    Counter,
    "tpu_functions_relay_lists_total",
    ("kind",),
    "Complete lists: one at the start, then one whenever the resource version has expired.",
)
ENDS = _declare(
    Counter,
    "tpu_functions_relay_watch_ends_total",
    ("kind", "end"),
    "Lists and watches that have ended.",
)
SILENCE = _declare(
    Gauge,
    "tpu_functions_relay_watch_silence_seconds",
    ("kind",),
    "Time since anything was received, an error included; `/healthz` fails if it is too long.",
)
WITHOUT_CONTACT = _declare(
    Gauge,
    "tpu_functions_relay_watch_without_contact_seconds",
    ("kind",),
    "Time since the API server last sent a list, an event or a bookmark, or closed a watch normally.",
)
PUBLISHED = _declare(
    Counter,
    "tpu_functions_relay_published_messages_total",
    ("step",),
    "Messages that Pub/Sub has accepted.",
)
FAILED = _declare(
    Counter,
    "tpu_functions_relay_failed_messages_total",
    ("step",),
    "Messages that could not be published; they are published again later.",
)
PUBLISH_DURATION = _declare(
    Histogram,
    "tpu_functions_relay_publish_duration_seconds",
    ("step",),
    "Duration of a call to Pub/Sub, successful or not.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
REACTION = _declare(
    Histogram,
    "tpu_functions_relay_reaction_seconds",
    ("step",),
    "Time from the latest change that a message reports to its acceptance by Pub/Sub.",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
)
PENDING = _declare(
    Gauge,
    "tpu_functions_relay_pending_triggers",
    ("step",),
    "TPUNodeGroups, Pods or JobSets with a change that the step has not been sent yet.",
)
GROUPS = _declare(Gauge, "tpu_functions_relay_groups", (), "TPUNodeGroups in the cache.")
NODES = _declare(
    Gauge,
    "tpu_functions_relay_nodes",
    (),
    "Nodes in the cache: those that may belong to a TPUNodeGroup.",
)
WAITING_PODS = _declare(
    Gauge,
    "tpu_functions_relay_waiting_pods",
    ("unit_kind",),
    "Pods that wait for a slice, by the kind of workload. Only the first Pod of a slice counts.",
)
JOBSETS = _declare(
    Gauge, "tpu_functions_relay_jobsets", (), "JobSets in the cache: those that request TPU chips."
)


def limit_label(label: str, word: str) -> str:
    """A label's value for a word: the last one of `LABELS`, for others, if it is not among them."""
    return word if word in LABELS[label] else LABELS[label][-1]
