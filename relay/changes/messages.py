"""Turn watch events into messages for the steps' topics, and decide when each is due.

Pure: no I/O, no clock, no randomness. The daemon passes changes to `Outbox.changed` and
`Outbox.relisted`, gets due messages from `Outbox.take_due`, and returns those that could not be
published to `Outbox.returned`. A message is only a trigger, so an unnecessary one is harmless; the last
change must never be lost.

docs/reference/relay.md lists which change triggers which step.

After a start the state decides instead of the changes, because the relay may have missed some. A settled
group is not reported, so a restart publishes nothing while all groups are settled.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from relay.changes import fingerprints
from relay.changes.cache import ClusterCache
from relay.changes.ends import JobSetEnds
from relay.changes.fingerprints import GroupFingerprint, GroupKey, NodeFingerprint
from relay.changes.pending import MessageSubject, OutgoingMessage, PendingTriggers, subject_of
from relay.changes.waiting import OpenRequests, WaitingPods
from relay.kinds import Change, WatchedKind
from shared.base.documents import read_mapping
from shared.base.names import KIND, SIGNING_REQUEST_KIND, is_path_segment
from shared.base.signing_requests import MAX_REQUESTS_OF_TOKEN, TOO_OLD_AFTER, find_signing_request
from shared.triggers import routes
from shared.triggers.message import POD_KIND, REQUEST_KIND, Cause

_GROUP_KINDS = frozenset[WatchedKind]({"TPUNodeGroup", "Node"})
_OF_THE_CLUSTER = frozenset[WatchedKind]({"Node", "CertificateSigningRequest"})
_Workloads = WaitingPods | JobSetEnds | OpenRequests
_REQUESTS = MessageSubject("", "", "", SIGNING_REQUEST_KIND)
"""All requests are one subject, so that requests within a few seconds are coalesced."""


class Outbox:
    """The cache of the cluster, and the triggers that are pending."""

    def __init__(
        self,
        on_skipped: Callable[[WatchedKind], None] = lambda _: None,
        *,
        with_workloads: bool = False,
    ) -> None:
        """``on_skipped`` is called for each object that has no identity, and so is not read;
        ``with_workloads``: Pods of other workloads than JobSets are reported, too."""
        self._on_skipped = on_skipped
        self.cache = ClusterCache()
        self.triggers = PendingTriggers()
        self.pods = WaitingPods(self.triggers, with_workloads=with_workloads)
        self.jobsets = JobSetEnds(self.triggers)
        self.requests = OpenRequests(self.triggers)
        self._listed: set[WatchedKind] = set()
        self._minute: datetime | None = None
        self._requests_of: Counter[str] = Counter()
        """The number of requests of each token in this minute."""

    def changed(
        self,
        kind: WatchedKind,
        event: Change,
        object: Mapping[str, Any],  # noqa: A002
        now: datetime,
    ) -> None:
        """Record a watch event: an object appeared, changed or was deleted."""
        if not self._is_readable(kind, object):
            return
        match kind, event:
            case "Node", "DELETED":
                self._report_node_gone(fingerprints.fingerprint_node(object).name, now)
            case "Node", _:
                self._observe_node(fingerprints.fingerprint_node(object), now, live=True)
            case "TPUNodeGroup", "DELETED":
                self._forget_group(fingerprints.fingerprint_group(object).key, now)
            case "TPUNodeGroup", _:
                self._observe_group(fingerprints.fingerprint_group(object), now)
            case "CertificateSigningRequest", "DELETED":
                pass
            case "CertificateSigningRequest", _:
                self._request_changed(object, now)
            case "Pod", "DELETED":
                self.pods.forget(subject_of(object, kind).key, now)
            case "Pod", _:
                self.pods.observe(object, now)
            case "JobSet", "DELETED":
                self.jobsets.forget(subject_of(object, kind).key, now)
            case "JobSet", _:
                self.jobsets.observe(object, now)
            case "ProvisioningRequest", "DELETED":
                self.requests.forget(subject_of(object, kind).key, now)
            case "ProvisioningRequest", _:
                self.requests.observe(object, now)

    def relisted(
        self, kind: WatchedKind, objects: Iterable[Mapping[str, Any]], now: datetime
    ) -> None:
        """All objects of a kind in a new list: only differences from the cache are reported.

        At the first list of a kind the cache is empty: what is reported follows from the state, for
        the Nodes of a group as soon as both kinds have been listed.
        """
        first = kind not in self._listed
        self._listed.add(kind)
        objects = [raw for raw in objects if self._is_readable(kind, raw)]
        match kind:
            case "Node":
                self._relist_nodes([*map(fingerprints.fingerprint_node, objects)], first, now)
            case "TPUNodeGroup":
                self._relist_groups([*map(fingerprints.fingerprint_group, objects)], first, now)
            case "CertificateSigningRequest":
                for raw in objects:
                    self._request_changed(raw, now)
            case "Pod":
                self._relist_workloads(self.pods, objects, now)
            case "JobSet":
                self._relist_workloads(self.jobsets, objects, now)
            case "ProvisioningRequest":
                self._relist_workloads(self.requests, objects, now)
        if first and kind in _GROUP_KINDS and self._listed.issuperset(_GROUP_KINDS):
            for group in self.cache.groups.values():
                nodes = self.cache.list_claiming_nodes(group.resource_name)
                if fingerprints.has_missed_node_change(group, nodes):
                    subject, names = _subject(group), [node.name for node in nodes]
                    cause = Cause.NODES_CHANGED
                    self.triggers.add(subject, routes.LABEL_NODE, cause, now, names)

    def next_due(self) -> datetime | None:
        """When `take_due` next returns a message; ``None`` while nothing is pending."""
        return self.triggers.next_due()

    def take_due(self, now: datetime, most: int | None = None) -> list[OutgoingMessage]:
        """The messages that are due, of at most ``most`` objects and steps, oldest first.

        The caller publishes them or gives them back (`returned`).
        """
        return self.triggers.take_due(now, most)

    def returned(self, publications: Sequence[OutgoingMessage], now: datetime) -> None:
        """Return messages that could not be published: due again later, dropped if obsolete."""
        self.triggers.put_back(publications, now, self._is_obsolete)

    def _is_readable(self, kind: WatchedKind, raw: Mapping[str, Any]) -> bool:
        if kind == "CertificateSigningRequest":
            is_readable = is_path_segment(read_mapping(raw, "metadata").get("name"))
        else:
            is_readable = fingerprints.has_identity(raw, is_namespaced=kind not in _OF_THE_CLUSTER)
        if not is_readable:
            self._on_skipped(kind)
        return is_readable

    def _request_changed(self, raw: Mapping[str, Any], now: datetime) -> None:
        """Report a pending request each time it changes; nothing is cached. Requests above the limit of
        a token in a minute are left to the sweep: a flood by one token must not delay other VMs."""
        request = find_signing_request(raw)
        if request is None or (request.is_decided and not request.is_approved_elsewhere):
            return
        if now - request.created >= TOO_OLD_AFTER:
            return
        minute = now.replace(second=0, microsecond=0)
        if minute != self._minute:
            self._minute, self._requests_of = minute, Counter()
        self._requests_of[request.token_id] += 1
        if self._requests_of[request.token_id] <= MAX_REQUESTS_OF_TOKEN:
            cause = Cause.JOIN_REQUESTED
            self.triggers.add(_REQUESTS, routes.APPROVE_JOIN, cause, now, [request.name])

    def _relist_groups(self, groups: list[GroupFingerprint], first: bool, now: datetime) -> None:
        listed = {group.key for group in groups}
        for known in [key for key in self.cache.groups if key not in listed]:
            self._forget_group(known, now)
        for group in groups:
            if first:
                self.cache.put_group(group)
                self._report_group(group, fingerprints.classify_missed_group_change(group), now)
            else:
                self._observe_group(group, now)

    def _relist_nodes(self, nodes: list[NodeFingerprint], first: bool, now: datetime) -> None:
        listed = {node.name for node in nodes}
        for known in [name for name in self.cache.nodes if name not in listed]:
            self._report_node_gone(known, now)
        for node in nodes:
            if first:
                self._remember_node(node)
            else:
                self._observe_node(node, now, live=False)

    def _relist_workloads(
        self, cache: _Workloads, objects: list[Mapping[str, Any]], now: datetime
    ) -> None:
        for raw in objects:
            cache.observe(raw, now)
        listed = {subject_of(raw, "").key for raw in objects}
        for key in [key for key in cache.known if key not in listed]:
            cache.forget(key, now)

    def _observe_group(self, group: GroupFingerprint, now: datetime) -> None:
        before = self.cache.groups.get(group.key)
        if before is not None and before.uid != group.uid:
            self._forget_group(group.key, now)
            before = None
        if before is not None and before.capacity != group.capacity and not group.deleting:
            self.pods.resync(group.key, now)
        if before is not None and (before.ready, before.capacity) != (group.ready, group.capacity):
            self.requests.resync(group.namespace, now)
        self.cache.put_group(group)
        self._report_group(group, fingerprints.classify_group_change(before, group), now)
        if before is None or before.resource_name != group.resource_name:
            self._report_nodes(group, self.cache.list_claiming_nodes(group.resource_name), now)

    def _forget_group(self, key: GroupKey, now: datetime) -> None:
        group = self.cache.groups.get(key)
        if group is not None:
            self.cache.drop_group(key)
            self.pods.resync(key, now)
            self.requests.resync(group.namespace, now, group.workload)
            for step in (routes.CREATE_RESOURCES, routes.TEAR_DOWN, routes.LABEL_NODE):
                self.triggers.drop(_subject(group), step)

    def _observe_node(self, node: NodeFingerprint, now: datetime, *, live: bool) -> None:
        before = self.cache.nodes.get(node.name)
        self._remember_node(node)
        if not fingerprints.is_relevant_node_change(before, node, live=live):
            return
        claims = node.claims | (before.claims if before is not None else frozenset())
        for group in self.cache.list_claimed_groups(claims):
            self._report_nodes(group, [node], now)

    def _report_node_gone(self, name: str, now: datetime) -> None:
        node = self.cache.nodes.get(name)
        if node is None:
            return
        self.cache.drop_node(name)
        for group in self.cache.list_claimed_groups(node.claims):
            self._report_nodes(group, [node], now)

    def _remember_node(self, node: NodeFingerprint) -> None:
        if node.claims:
            self.cache.put_node(node)
        else:
            self.cache.drop_node(node.name)

    def _report_nodes(
        self, group: GroupFingerprint, nodes: Sequence[NodeFingerprint], now: datetime
    ) -> None:
        if not nodes or group.deleting:  # during a deletion, tear_down reads the Nodes itself
            return
        # A user waits for a slice that may just have become complete.
        immediately = False
        if group.ready != fingerprints.TRUE and all(node.is_ready for node in nodes):
            claiming = self.cache.list_claiming_nodes(group.resource_name)
            immediately = sum(node.is_ready for node in claiming) == group.node_count
        subject, names = _subject(group), [node.name for node in nodes]
        step, cause = routes.LABEL_NODE, Cause.NODES_CHANGED
        self.triggers.add(subject, step, cause, now, names, immediately=immediately)

    def _report_group(self, group: GroupFingerprint, cause: Cause | None, now: datetime) -> None:
        if cause is Cause.DELETING:
            # create_resources would only forward it.
            self.triggers.drop(_subject(group), routes.CREATE_RESOURCES)
            self.triggers.add(_subject(group), routes.TEAR_DOWN, cause, now)
        elif cause is not None:
            self.triggers.add(_subject(group), routes.CREATE_RESOURCES, cause, now)

    def _is_obsolete(self, subject: MessageSubject, step: str) -> bool:
        if subject == _REQUESTS:
            return False
        if subject.kind == POD_KIND:
            return self.pods.is_obsolete(subject)
        if subject.kind == REQUEST_KIND:
            return self.requests.known.get(subject.key, (None,))[0] != subject
        if subject.kind != KIND:
            return False
        group = self.cache.groups.get(subject.key)
        if group is None or group.uid != subject.uid:
            return True
        return group.deleting and step == routes.CREATE_RESOURCES


def _subject(group: GroupFingerprint) -> MessageSubject:
    return MessageSubject(group.namespace, group.name, group.uid)
