"""The relay's cache of the Pods that wait for a slice. Pods that need no slice are not cached."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from relay.changes.pending import MessageSubject, PendingTriggers, subject_of
from shared.base.documents import read_mapping, read_texts
from shared.slices.kinds import find_leader
from shared.slices.kinds.kind import find_true
from shared.slices.requests import DETAIL, is_open
from shared.triggers import routes
from shared.triggers.message import POD_KIND, REQUEST_KIND, Cause


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A leader that waits; ``wish`` changes with each field that determines its slice.

    ``slice_name`` is empty if the kind's units are assigned: such Pods wait for the sweep.
    """

    subject: MessageSubject
    kind: str
    wish: int
    slice_name: str


class WaitingPods:
    """The cache, and the triggers that follow from its changes."""

    def __init__(self, triggers: PendingTriggers, *, with_workloads: bool) -> None:
        """``with_workloads``: all kinds are reported, not only those that need no switch."""
        self._triggers = triggers
        self._with_workloads = with_workloads
        self.known: dict[tuple[str, str], WaitingPod] = {}

    def count_by_kind(self) -> Mapping[str, int]:
        """The number of Pods that wait for a slice, by the kind of their unit."""
        return Counter(pod.kind for pod in self.known.values())

    def is_obsolete(self, subject: MessageSubject) -> bool:
        """Whether a message about a Pod is obsolete."""
        known = self.known.get(subject.key)
        return known is None or known.subject != subject

    def observe(self, raw: Mapping[str, Any], now: datetime) -> None:
        """A Pod has appeared or changed: it is reported once when it waits, and again when it waits for
        something else."""
        leader = find_leader(raw)
        if leader is None or not (self._with_workloads or leader.kind.is_always_on):
            self.forget(subject_of(raw, POD_KIND).key, now)
            return
        asked = leader.demand
        subject = MessageSubject(asked.namespace, asked.name, asked.uid, POD_KIND)
        wish = asked.labels, asked.annotations, asked.selector, asked.tolerations, asked.chips
        unit, digest = leader.kind.find_unit(asked), hash(json.dumps(wish, sort_keys=True))
        pod = WaitingPod(subject, leader.kind.name, digest, unit.slice_name if unit else "")
        before = self.known.get(pod.subject.key)
        if pod == before:
            return
        if before is not None and before.subject != pod.subject:
            self.forget(before.subject.key, now)
        self.known[pod.subject.key] = pod
        self._triggers.add(pod.subject, routes.PROVISION_SLICE, Cause.UNSCHEDULABLE, now)

    def resync(self, key: tuple[str, str], now: datetime) -> None:
        """The slice with this namespace and name was refused or granted, or is gone."""
        for pod in self.known.values():
            if (pod.subject.namespace, pod.slice_name) == key:
                self._triggers.add(pod.subject, routes.PROVISION_SLICE, Cause.RESYNC, now)

    def forget(self, key: tuple[str, str], _now: datetime) -> None:
        """A Pod was deleted, or waits no longer."""
        known = self.known.pop(key, None)
        if known is not None:
            self._triggers.drop(known.subject, routes.PROVISION_SLICE)


class OpenRequests:
    """The cache of the open ProvisioningRequests of this system's class: of one that is provisioned with
    the key of its workload, of one that waits with ``None``."""

    def __init__(self, triggers: PendingTriggers) -> None:
        self._triggers = triggers
        self.known: dict[tuple[str, str], tuple[MessageSubject, str | None]] = {}

    def observe(self, raw: Mapping[str, Any], now: datetime) -> None:
        """A request has appeared or changed: it is reported once."""
        subject, known = subject_of(raw, REQUEST_KIND), self.known
        if known.get(subject.key, (subject,))[0] != subject or not is_open(raw):
            self.forget(subject.key, now)
        if is_open(raw):
            if subject.key not in known:
                self._triggers.add(subject, routes.PROVISION_SLICE, Cause.ADDED, now)
            details = read_texts(read_mapping(raw, "status"), "provisioningClassDetails")
            is_provisioned = find_true(raw, ("Provisioned",))
            known[subject.key] = subject, details.get(DETAIL, "") if is_provisioned else None

    def resync(self, namespace: str, now: datetime, gone: str = "") -> None:
        """A slice in this namespace was refused or granted, is complete, or is gone: one of the workload
        with the key ``gone``, unless it is empty."""
        for subject, workload in self.known.values():
            is_concerned = workload is None or (workload and workload == gone)
            if is_concerned and subject.namespace == namespace:
                self._triggers.add(subject, routes.PROVISION_SLICE, Cause.RESYNC, now)

    def forget(self, key: tuple[str, str], _now: datetime) -> None:
        """A request was deleted, or has ended."""
        if known := self.known.pop(key, None):
            self._triggers.drop(known[0], routes.PROVISION_SLICE)
