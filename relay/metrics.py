"""What the relay counts. `docs/reference/relay.md` shows this table; a test keeps them the same.

Label values come from closed lists: kinds, steps and the words below, never names of objects.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_EVENT_LABELS = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})

EVENTS = Counter(
    "tpu_functions_relay_watch_events",
    "Watch events received. event: ADDED, MODIFIED, DELETED, BOOKMARK or OTHER.",
    ("kind", "event"),
)
LISTS = Counter(
    "tpu_functions_relay_lists",
    "Whole lists taken: one at the start, then one each time a version had expired.",
    ("kind",),
)
ENDS = Counter(
    "tpu_functions_relay_watch_ends",
    "Lists and watches ended. end: closed (by the server, in order), expired (410), silent (nothing"
    " heard for too long), unreachable, broken (connection lost), refused (an error of the server).",
    ("kind", "end"),
)
SILENCE = Gauge(
    "tpu_functions_relay_watch_silence_seconds",
    "Time since the last sign of life of any sort; /healthz fails when it is too long.",
    ("kind",),
)
WITHOUT_CONTACT = Gauge(
    "tpu_functions_relay_watch_without_contact_seconds",
    "Time since the API server last sent a list, an event or a bookmark, or closed in order.",
    ("kind",),
)
PUBLISHED = Counter(
    "tpu_functions_relay_published_messages",
    "Messages that Pub/Sub has accepted.",
    ("step",),
)
FAILED = Counter(
    "tpu_functions_relay_failed_messages",
    "Messages that could not be published and were kept for another attempt.",
    ("step",),
)
PUBLISH_DURATION = Histogram(
    "tpu_functions_relay_publish_duration_seconds",
    "Duration of a call to Pub/Sub, whatever came of it.",
    ("step",),
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
REACTION = Histogram(
    "tpu_functions_relay_reaction_seconds",
    "Time from the latest change that a message tells of to its acceptance by Pub/Sub.",
    ("step",),
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
)
UNTOLD = Gauge(
    "tpu_functions_relay_untold_groups",
    "TPUNodeGroups of which the step has yet to be told.",
    ("step",),
)
GROUPS = Gauge("tpu_functions_relay_groups", "TPUNodeGroups known.")
NODES = Gauge("tpu_functions_relay_nodes", "Nodes remembered: those that may be a TPUNodeGroup's.")

ALL = (
    EVENTS,
    LISTS,
    ENDS,
    SILENCE,
    WITHOUT_CONTACT,
    PUBLISHED,
    FAILED,
    PUBLISH_DURATION,
    REACTION,
    UNTOLD,
    GROUPS,
    NODES,
)


def event_label(word: str) -> str:
    """The type of a watch event as a label's value."""
    return word if word in _EVENT_LABELS else "OTHER"
