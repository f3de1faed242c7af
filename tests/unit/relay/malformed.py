"""Objects with random fields missing or of another type."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

from relay.kinds import WatchedKind
from relay.watching.projection import parse
from tests.unit.relay.objects import (
    Raw,
    group,
    jobset,
    node,
    pod,
    provisioning_request,
    settled_group,
    signing_request,
)

VALID: dict[WatchedKind, list[Raw]] = {
    "TPUNodeGroup": [group(), settled_group(), group(deleting=True), group(resource_name="")],
    "Node": [node(), node(ready="False"), node(labels={})],
    "CertificateSigningRequest": [signing_request(), signing_request("AutoApproved")],
    "Pod": [pod(), pod(index="1")],
    "ProvisioningRequest": [provisioning_request(), provisioning_request(end="Failed")],
    "JobSet": [jobset(), jobset(end="Completed"), jobset(completed=1, deleting=True)],
}
JUNK: list[Any] = [
    *(None, True, 0, -1, 2**70, 1.5, "", [], {}, [[]], [None], [1], {"": None}, {"a": 1}),
    *("\ud800", "a/b", "..", ".", "a\nb", "x" * 300, "A", "0001-01-01T00:00:00+14:00"),
]


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
