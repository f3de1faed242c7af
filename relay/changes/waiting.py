"""The relay's cache of the Pods that wait for a slice. Pods that need no slice are not cached."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from relay.changes.pending import MessageSubject, PendingTriggers, subject_of
from shared.slices.kinds import find_leader
from shared.triggers import routes
from shared.triggers.message import POD_KIND, Cause


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A leader that waits; ``wish`` changes with each field that determines its slice."""

    subject: MessageSubject
    kind: str
    wish: int


class WaitingPods:
    """The cache, and the triggers that follow from its changes."""

    def __init__(self, triggers: PendingTriggers, *, with_workloads: bool) -> None:
        """``with_workloads``: all kinds are reported, not only those that need no switch."""
        self._triggers = triggers
        self._with_workloads = with_workloads
        self._pods: dict[tuple[str, str], WaitingPod] = {}

    def count_by_kind(self) -> Mapping[str, int]:
        """The number of Pods that wait for a slice, by the kind of their unit."""
        return Counter(pod.kind for pod in self._pods.values())

    def is_obsolete(self, subject: MessageSubject) -> bool:
        """Whether a message about a Pod is obsolete."""
        known = self._pods.get(subject.key)
        return known is None or known.subject != subject

    def observe(self, raw: Mapping[str, Any], now: datetime) -> None:
        """A Pod has appeared or changed: it is reported once when it waits, and again when it waits for
        something else."""
        leader = find_leader(raw)
        if leader is None or not (self._with_workloads or leader.kind.is_always_on):
            self.forget(raw)
            return
        asked = leader.demand
        subject = MessageSubject(asked.namespace, asked.name, asked.uid, POD_KIND)
        wish = asked.labels, asked.annotations, asked.selector, asked.tolerations, asked.chips
        pod = WaitingPod(subject, leader.kind.name, hash(json.dumps(wish, sort_keys=True)))
        before = self._pods.get(pod.subject.key)
        if pod == before:
            return
        if before is not None and before.subject != pod.subject:
            self._drop(before)
        self._pods[pod.subject.key] = pod
        self._triggers.add(pod.subject, routes.PROVISION_SLICE, Cause.UNSCHEDULABLE, now)

    def forget(self, raw: Mapping[str, Any]) -> None:
        """A Pod was deleted, or is no longer Pending."""
        known = self._pods.get(subject_of(raw, POD_KIND).key)
        if known is not None:
            self._drop(known)

    def relist(self, raws: Iterable[Mapping[str, Any]], now: datetime) -> None:
        """A new list of all Pods that are watched."""
        listed = set()
        for raw in raws:
            listed.add(subject_of(raw, POD_KIND).key)
            self.observe(raw, now)
        for known in [pod for key, pod in self._pods.items() if key not in listed]:
            self._drop(known)

    def _drop(self, pod: WaitingPod) -> None:
        del self._pods[pod.subject.key]
        self._triggers.drop(pod.subject, routes.PROVISION_SLICE)
