"""The relay's cache of JobSets, and their ends. JobSets without TPU chips are not cached."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from relay.changes.pending import MessageSubject, PendingTriggers, subject_of
from shared.base.names import JOBSET_KIND
from shared.slices.kinds import jobset as jobsets
from shared.slices.kinds.kind import find_transition_time
from shared.triggers import routes
from shared.triggers.message import Cause

RECENT = timedelta(hours=1)
"""A JobSet that had ended before it was first observed is reported if it ended within this time.

Finished JobSets stay in a cluster until somebody deletes them: messages about thousands of them at
each start would have no effect. The sweep finds every minute which slices are left of JobSets that
have ended; this hour covers a relay that was away for a while."""


@dataclass(frozen=True, slots=True)
class KnownJobSet:
    """A JobSet; ``end``, the cause of a message, is ``None`` until it has ended or is deleted."""

    subject: MessageSubject
    end: str | None
    completed: int


class JobSetEnds:
    """The cache, and the triggers that follow from its changes. A message about an end is never
    obsolete."""

    def __init__(self, triggers: PendingTriggers) -> None:
        self._triggers = triggers
        self.known: dict[tuple[str, str], KnownJobSet] = {}

    def observe(self, raw: Mapping[str, Any], now: datetime) -> None:
        """A JobSet has appeared or changed: its end or deletion, and each completed Job, is reported."""
        if not jobsets.requests_chips(raw):
            return
        is_deleted = "deletionTimestamp" in raw["metadata"]
        end = jobsets.JOBSET.find_end(raw) or (Cause.DELETING if is_deleted else None)
        jobset = KnownJobSet(subject_of(raw, JOBSET_KIND), end, jobsets.count_completed(raw))
        before = self.known.get(jobset.subject.key)
        self.known[jobset.subject.key] = jobset
        if before is not None and before.subject != jobset.subject:
            self._report_gone(before, now)
            before = None
        has_ended_before = before is not None and before.end is not None
        ended_at = find_transition_time(raw, jobsets.JOBSET.finished)
        is_recent = ended_at is None or now - ended_at <= RECENT
        cause = jobset.end if not has_ended_before and (before or is_recent) else None
        if before is not None and jobset.completed > before.completed:
            cause = cause or Cause.COMPLETED
        if cause is not None:
            self._triggers.add(jobset.subject, routes.RELEASE_SLICE, Cause(cause), now)

    def forget(self, key: tuple[str, str], now: datetime) -> None:
        """A JobSet was deleted."""
        known = self.known.pop(key, None)
        if known is not None:
            self._report_gone(known, now)

    def _report_gone(self, jobset: KnownJobSet, now: datetime) -> None:
        """Report the deletion of a JobSet that had not ended."""
        if jobset.end is None:
            self._triggers.add(jobset.subject, routes.RELEASE_SLICE, Cause.GONE, now)
