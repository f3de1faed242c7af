"""Objects of any form in lists and watch events: one is skipped and counted, the others are read."""

from __future__ import annotations

import copy
from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from relay.changes.messages import Outbox
from relay.kinds import KINDS, Change, WatchedKind
from shared.base.names import is_dns_label, is_dns_subdomain, is_path_segment
from tests.unit.relay.malformed import VALID, make_object
from tests.unit.relay.objects import (
    group,
    node,
    settled_group,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMESPACED = tuple(kind for kind in KINDS if kind not in ("Node", "CertificateSigningRequest"))
CHANGES: list[Change] = ["ADDED", "MODIFIED", "DELETED"]


@pytest.mark.parametrize(
    "count, seed",
    [
        pytest.param(1_000, 1, id="daily"),
        pytest.param(20_000, 2, id="long", marks=pytest.mark.slow),
    ],
)
def test_objects_of_any_form_are_read_or_skipped_and_messages_stay_valid(
    count: int, seed: int
) -> None:
    random, skipped, now = Random(seed), Counter[str](), START
    outbox = Outbox(lambda kind: skipped.update([kind]))
    for _ in range(count):
        now += timedelta(seconds=random.random() * 20)
        kind = random.choice(KINDS)
        if random.random() < 0.1:
            outbox.relisted(kind, [make_object(random, kind) for _ in range(3)], now)
        else:
            outbox.changed(kind, random.choice(CHANGES), make_object(random, kind), now)
        for publication in outbox.take_due(now):
            message = publication.message
            if message.kind == "CertificateSigningRequest":
                assert message.requests
            else:
                assert is_dns_label(message.namespace)
                assert is_dns_subdomain(message.name)
            assert all(map(is_dns_subdomain, message.nodes))
            assert all(map(is_path_segment, message.requests))
            message.encode()
    assert set(skipped) == set(KINDS)


@pytest.mark.parametrize(
    "kind, field",
    [
        *((kind, field) for kind in KINDS for field in ("metadata", "name")),
        *((kind, field) for kind in NAMESPACED for field in ("namespace", "uid")),
    ],
)
def test_an_object_without_identity_is_skipped_and_counted_and_the_next_is_read(
    kind: WatchedKind, field: str
) -> None:
    skipped: list[WatchedKind] = []
    outbox = Outbox(skipped.append)
    for one in KINDS:
        outbox.relisted(one, [], START)
    outbox.changed("TPUNodeGroup", "ADDED", settled_group(), START)
    outbox.take_due(START)
    raw = copy.deepcopy(VALID[kind][0])
    del (raw if field == "metadata" else raw["metadata"])[field]
    outbox.changed(kind, "ADDED", raw, START)
    outbox.relisted(kind, [raw], START)
    assert skipped == [kind, kind]
    later = START + timedelta(minutes=1)
    outbox.changed("Node", "ADDED", node(), later)
    outbox.changed("TPUNodeGroup", "ADDED", group("other", uid="uid-2"), later)
    published = {publication.message.name for publication in outbox.take_due(later)}
    assert "other" in published
