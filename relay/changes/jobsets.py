"""The relay's cache of JobSets: the Pods that wait for a slice, and the ends of JobSets.

Pods that need no slice and JobSets without TPU chips are not cached.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from relay.changes.pending import MessageSubject, PendingTriggers
from shared.base.names import JOBSET_KIND
from shared.slices import jobsets
from shared.triggers import routes
from shared.triggers.message import POD_KIND, Cause

RECENT = timedelta(hours=1)
"""A JobSet that had ended before it was first observed is reported if it ended within this time.

Finished JobSets stay in a cluster until somebody deletes them: messages about thousands of them at
each start would have no effect. The sweep finds every minute which slices are left of JobSets that
have ended; this hour covers a relay that was away for a while."""


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A leader that waits; ``wish`` changes with each field that determines its slice."""

    subject: MessageSubject
    wish: int


@dataclass(frozen=True, slots=True)
class KnownJobSet:
    """A JobSet; ``end``, the cause of a message, is ``None`` until it has ended or is deleted."""

    subject: MessageSubject
    end: str | None
    completed: int


class JobSetTriggers:
    """The cache of Pods and JobSets, and the triggers that follow from their changes."""

    def __init__(self, triggers: PendingTriggers) -> None:
        self._triggers = triggers
        self._pods: dict[tuple[str, str], WaitingPod] = {}
        self._jobsets: dict[tuple[str, str], KnownJobSet] = {}

    @property
    def waiting_count(self) -> int:
        """The number of Pods that wait for a slice."""
        return len(self._pods)

    @property
    def jobset_count(self) -> int:
        """The number of cached JobSets: those that request TPU chips."""
        return len(self._jobsets)

    def is_obsolete(self, subject: MessageSubject) -> bool:
        """Whether a message about it is obsolete. The end of a JobSet never is."""
        known = self._pods.get(subject.key)
        return subject.kind == POD_KIND and (known is None or known.subject != subject)

    def observe_pod(self, raw: Mapping[str, Any], now: datetime) -> None:
        """A Pod has appeared or changed: it is reported once when it waits, and again when it waits for
        something else."""
        leader = jobsets.find_leader(raw)
        if leader is None:
            self.forget_pod(raw)
            return
        subject = MessageSubject(leader.namespace, leader.name, leader.uid, POD_KIND)
        wish = leader.labels, leader.annotations, leader.selector, leader.tolerations, leader.chips
        pod = WaitingPod(subject, hash(json.dumps(wish, sort_keys=True)))
        before = self._pods.get(pod.subject.key)
        if pod == before:
            return
        if before is not None and before.subject != pod.subject:
            self._forget_pod(before)
        self._pods[pod.subject.key] = pod
        self._triggers.add(pod.subject, routes.PROVISION_SLICE, Cause.UNSCHEDULABLE, now)

    def forget_pod(self, raw: Mapping[str, Any]) -> None:
        """A Pod was deleted, or is no longer Pending."""
        known = self._pods.get(_subject(raw, POD_KIND).key)
        if known is not None:
            self._forget_pod(known)

    def relist_pods(self, raws: Iterable[Mapping[str, Any]], now: datetime) -> None:
        """A new list of all Pending Pods of JobSets."""
        listed = set()
        for raw in raws:
            listed.add(_subject(raw, POD_KIND).key)
            self.observe_pod(raw, now)
        for known in [pod for key, pod in self._pods.items() if key not in listed]:
            self._forget_pod(known)

    def observe_jobset(self, raw: Mapping[str, Any], now: datetime) -> None:
        """A JobSet has appeared or changed: its end or deletion, and each completed Job, is reported."""
        if not jobsets.requests_chips(raw):
            return
        is_deleted = "deletionTimestamp" in raw["metadata"]
        end = jobsets.find_end(raw) or (Cause.DELETING if is_deleted else None)
        jobset = KnownJobSet(_subject(raw, JOBSET_KIND), end, jobsets.count_completed(raw))
        before = self._jobsets.get(jobset.subject.key)
        self._jobsets[jobset.subject.key] = jobset
        if before is not None and before.subject != jobset.subject:
            self._report_gone(before, now)
            before = None
        has_ended_before = before is not None and before.end is not None
        ended_at = jobsets.find_end_time(raw)
        is_recent = ended_at is None or now - ended_at <= RECENT
        cause = jobset.end if not has_ended_before and (before or is_recent) else None
        if before is not None and jobset.completed > before.completed:
            cause = cause or Cause.COMPLETED
        if cause is not None:
            self._triggers.add(jobset.subject, routes.RELEASE_SLICE, Cause(cause), now)

    def forget_jobset(self, raw: Mapping[str, Any], now: datetime) -> None:
        """A JobSet was deleted."""
        known = self._jobsets.pop(_subject(raw, JOBSET_KIND).key, None)
        if known is not None:
            self._report_gone(known, now)

    def relist_jobsets(self, raws: Iterable[Mapping[str, Any]], now: datetime) -> None:
        """A new list of all JobSets."""
        listed = set()
        for raw in raws:
            listed.add(_subject(raw, JOBSET_KIND).key)
            self.observe_jobset(raw, now)
        for key in [key for key in self._jobsets if key not in listed]:
            self._report_gone(self._jobsets.pop(key), now)

    def _forget_pod(self, pod: WaitingPod) -> None:
        del self._pods[pod.subject.key]
        self._triggers.drop(pod.subject, routes.PROVISION_SLICE)

    def _report_gone(self, jobset: KnownJobSet, now: datetime) -> None:
        """Report the deletion of a JobSet that had not ended."""
        if jobset.end is None:
            self._triggers.add(jobset.subject, routes.RELEASE_SLICE, Cause.GONE, now)


def _subject(raw: Mapping[str, Any], kind: str) -> MessageSubject:
    metadata = raw["metadata"]
    namespace, name, uid = (str(metadata.get(key)) for key in ("namespace", "name", "uid"))
    return MessageSubject(namespace, name, uid, kind)
