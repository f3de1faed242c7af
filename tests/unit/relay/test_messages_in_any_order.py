"""After any sequence of changes, each of them is eventually reported, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay.changes.coalescing import WIDEST_RETRY_GAP
from relay.changes.messages import Outbox
from relay.changes.pending import OutgoingMessage
from tests.unit.relay.objects import RESOURCE_NAME, Raw, node, settled_group

NODES = st.sampled_from([f"{RESOURCE_NAME}-{index:04}" for index in range(4)])
READY = st.sampled_from(["True", "False", "Unknown"])
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Changes:
    """The changes that have not been reported yet."""

    nodes: set[str] = field(default_factory=set)
    spec: bool = False
    deletion: bool = False


class ClusterAndPubSub(RuleBasedStateMachine):
    """One group and its Nodes change at random, while Pub/Sub is available or not."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.generation = 1
        self.deleting = False
        self.nodes: dict[str, str] = {}
        self.is_unwatched = False
        self.unreported = Changes()
        self.outbox = Outbox()
        self.outbox.relisted("TPUNodeGroup", [self._group()], self.now)
        self.outbox.relisted("Node", [], self.now)

    @rule(name=NODES, ready=READY, is_unwatched=st.booleans())
    def change_node(self, name: str, ready: str, is_unwatched: bool) -> None:
        if self.nodes.get(name) == ready:
            return
        before = self.nodes.get(name)
        self.nodes[name] = ready
        if before is None or "True" in (
            before,
            ready,
        ):  # False to Unknown is not reported
            self._expect_report(name)
        if is_unwatched:
            self._relist_nodes()
        elif before is None:
            self.outbox.changed("Node", "ADDED", node(name, ready=ready), self.now)
        else:
            self.outbox.changed("Node", "MODIFIED", node(name, ready=ready), self.now)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), is_unwatched=st.booleans())
    def delete_node(self, data: st.DataObject, is_unwatched: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        ready = self.nodes.pop(name)
        self._expect_report(name)
        if is_unwatched:
            self._relist_nodes()
        else:
            self.outbox.changed("Node", "DELETED", node(name, ready=ready), self.now)

    @rule()
    def send_heartbeats(self) -> None:
        for name, ready in self.nodes.items():
            raw = node(name, ready=ready, heartbeat=self.now.isoformat())
            self.outbox.changed("Node", "MODIFIED", raw, self.now)

    @rule()
    def relist(self) -> None:
        self._relist_nodes()
        self.outbox.relisted("TPUNodeGroup", [self._group()], self.now)

    @precondition(lambda self: not self.deleting)
    @rule(is_unwatched=st.booleans())
    def change_spec(self, is_unwatched: bool) -> None:
        self.generation += 1
        self.unreported.spec = True
        self._show_group(is_unwatched)

    @precondition(lambda self: not self.deleting)
    @rule(is_unwatched=st.booleans())
    def delete_group(self, is_unwatched: bool) -> None:
        self.deleting = True
        self.unreported.spec, self.unreported.deletion = False, True
        self._show_group(is_unwatched)

    @rule(seconds=st.floats(0, 30))
    def advance_clock(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def publish(self) -> None:
        self._accept(self.outbox.take_due(self.now))

    @rule(seconds=st.floats(0, 12))
    def fail_to_publish(self, seconds: float) -> None:
        publications = self.outbox.take_due(self.now)
        self.now += timedelta(seconds=seconds)
        self.outbox.returned(publications, self.now)

    @invariant()
    def a_message_is_due_only_and_in_time_if_a_change_is_unreported(self) -> None:
        due = self.outbox.next_due()
        assert (due is not None) == (self.unreported != Changes())
        assert due is None or due <= self.now + WIDEST_RETRY_GAP

    def teardown(self) -> None:
        for _ in range(3):
            self.now += WIDEST_RETRY_GAP
            self._accept(self.outbox.take_due(self.now))
        assert self.unreported == Changes()

    def _expect_report(self, name: str) -> None:
        if not self.deleting:  # Nodes of a group that is being deleted concern only tear_down
            self.unreported.nodes.add(name)

    def _accept(self, publications: list[OutgoingMessage]) -> None:
        for publication in publications:
            names = set(publication.message.nodes)
            if publication.step == "label_node":
                assert names <= self.unreported.nodes
                self.unreported.nodes -= names
            elif publication.step == "create_resources":
                assert self.unreported.spec
                self.unreported.spec = False
            else:
                assert self.unreported.deletion
                self.unreported.deletion = False

    def _show_group(self, is_unwatched: bool) -> None:
        if is_unwatched:
            self.outbox.relisted("TPUNodeGroup", [self._group()], self.now)
        else:
            self.outbox.changed("TPUNodeGroup", "MODIFIED", self._group(), self.now)

    def _relist_nodes(self) -> None:
        objects = [node(name, ready=ready) for name, ready in self.nodes.items()]
        self.outbox.relisted("Node", objects, self.now)

    def _group(self) -> Raw:
        return settled_group(0, generation=self.generation, observed=1, deleting=self.deleting)


TestEveryChangeIsReported = ClusterAndPubSub.TestCase
TestEveryChangeIsReported.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
