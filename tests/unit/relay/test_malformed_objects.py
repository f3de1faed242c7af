"""Objects of any form in lists and watch events: one is skipped and counted, the others are read."""

from __future__ import annotations

import copy
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from relay.changes.outbox import Outbox
from relay.kinds import KINDS, Change, WatchedKind
from relay.watching.projection import parse
from shared.base.names import is_dns_label, is_dns_subdomain, is_path_segment
from tests.unit.relay.objects import (
    Raw,
    group,
    jobset,
    node,
    pod,
    settled_group,
    signing_request,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
VALID: dict[WatchedKind, list[Raw]] = {
    "TPUNodeGroup": [group(), settled_group(), group(deleting=True), group(resource_name="")],
    "Node": [node(), node(ready="False"), node(labels={})],
    "CertificateSigningRequest": [signing_request(), signing_request("AutoApproved")],
    "Pod": [pod(), pod(index="1")],
    "JobSet": [jobset(), jobset(end="Completed")],
}
JUNK: list[Any] = [
    *(None, True, 0, -1, 2**70, 1.5, "", [], {}, [[]], [None], [1], {"": None}, {"a": 1}),
    *("\ud800", "a/b", "..", ".", "a\nb", "x" * 300, "A", "0001-01-01T00:00:00+14:00"),
]
NAMESPACED = tuple(kind for kind in KINDS if kind not in ("Node", "CertificateSigningRequest"))
CHANGES: list[Change] = ["ADDED", "MODIFIED", "DELETED"]


def mutate(random: Random, document: Raw) -> None:
    """Replace or remove something at a random place."""
    places: list[tuple[Any, Any]] = [(document, key) for key in document]
    at = 0
    while at < len(places):
        holder, key = places[at]
        part = holder[key]
        keys = (
            part if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        )
        places += [(part, inner) for inner in keys]
        at += 1
    holder, key = random.choice(places)
    if random.random() < 0.3:
        del holder[key]
    else:
        holder[key] = copy.deepcopy(random.choice(JUNK))


def make_object(random: Random, kind: WatchedKind) -> Raw:
    """Return a random object as the relay parses it."""
    document = copy.deepcopy(random.choice(VALID[kind]))
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        if document:
            mutate(random, document)
    read: Raw = parse(json.dumps(document).encode())
    return read


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
