"""What the relay counts, and the closed lists from which the labels' values come.

`docs/reference/relay.md` shows both tables; a test keeps them the same. No label ever holds the name
of an object. Every series is there, at zero, from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from prometheus_client import Counter, Gauge, Histogram

from relay.kinds import KINDS, TRIGGERED_STEPS
from relay.outcomes import MEANINGS

_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)

LABELS: Mapping[str, Mapping[str, str]] = {
    "kind": dict.fromkeys(KINDS, "the kind of object that is watched"),
    "step": dict.fromkeys(TRIGGERED_STEPS, "the step whose inbox it is"),
    "event": {
        "ADDED": "an object has appeared",
        "MODIFIED": "an object has changed",
        "DELETED": "an object is gone",
        "BOOKMARK": "nothing has changed up to this version",
        "OTHER": "a type that this relay does not know",
    },
    "end": {str(end): meaning for end, meaning in MEANINGS.items()},
}


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
    type_: type[_Metric], name: str, labels: tuple[str, ...], meaning: str, **options: Any
) -> _Metric:
    DESCRIPTIONS.append(Description(name, type_.__name__.lower(), labels, meaning))
    metric = type_(name, meaning, labels, **options)
    for values in product(*(LABELS[label] for label in labels)) if labels else ():
        metric.labels(*values)
    return metric


EVENTS = _declare(
    Counter,
    "tpu_functions_relay_watch_events_total",
    ("kind", "event"),
    "Watch events received.",
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
    "Whole lists taken: one at the start, then one each time a version had expired.",
)
ENDS = _declare(
    Counter,
    "tpu_functions_relay_watch_ends_total",
    ("kind", "end"),
    "Lists and watches that have come to an end.",
)
SILENCE = _declare(
    Gauge,
    "tpu_functions_relay_watch_silence_seconds",
    ("kind",),
    "Time since the last sign of life of any sort; `/healthz` fails when it is too long.",
)
WITHOUT_CONTACT = _declare(
    Gauge,
    "tpu_functions_relay_watch_without_contact_seconds",
    ("kind",),
    "Time since the API server last sent a list, an event or a bookmark, or closed in order.",
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
    "Messages that could not be published; what they told is told again later.",
)
PUBLISH_DURATION = _declare(
    Histogram,
    "tpu_functions_relay_publish_duration_seconds",
    ("step",),
    "Duration of a call to Pub/Sub, whatever came of it.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
REACTION = _declare(
    Histogram,
    "tpu_functions_relay_reaction_seconds",
    ("step",),
    "Time from the latest change that a message tells of to its acceptance by Pub/Sub.",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
)
PENDING = _declare(
    Gauge,
    "tpu_functions_relay_untold_groups",
    ("step",),
    "TPUNodeGroups, Pods or JobSets of which the step has yet to be told.",
)
GROUPS = _declare(Gauge, "tpu_functions_relay_groups", (), "TPUNodeGroups known.")
NODES = _declare(
    Gauge,
    "tpu_functions_relay_nodes",
    (),
    "Nodes remembered: those that may be a TPUNodeGroup's.",
)
WAITING_PODS = _declare(
    Gauge, "tpu_functions_relay_waiting_pods", (), "Pods of JobSets that wait for a slice."
)
JOBSETS = _declare(
    Gauge,
    "tpu_functions_relay_jobsets",
    (),
    "JobSets remembered: those that ask for TPU chips.",
)


def event_label(word: str) -> str:
    """The type of a watch event as a label's value."""
    return word if word in LABELS["event"] else "OTHER"
