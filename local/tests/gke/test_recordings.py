"""Recorded conversations with the real GKE, held again with the simulated one.

The recordings are not part of this repository; they are read from ../shared/conformance/recordings,
and without that folder these tests are skipped. What they taught stands on its own in test_answers.py.
Compared are keys and types, and values wherever the recording has not masked them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase

import pytest

from local.tests.gce.test_recordings import FOLDER, flatten
from local.tests.gke.small_gke import CLUSTER, NUMBER, PROJECT, Document, Gke

CONTAINER = "https://container.googleapis.com/"
ZONE = "us-central1-a"
POOL = "nodepool-1"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="there are no recordings in ../shared/conformance/recordings"
)

NAMES = {
    "cluster-sample-${uniqueId}": CLUSTER,
    "nodepool-sample-${uniqueId}": POOL,
    "${projectId}": PROJECT,
    "${projectNumber}": NUMBER,
}
ANY = (
    "startTime", "endTime", "etag", "version", "instanceGroupUrls.0", "networkConfig.podRange",
    "networkConfig.podIpv4CidrBlock",
)  # fmt: skip
"""What says nothing but its type: masked, or drawn by GKE."""
DIFFERENCES: Mapping[tuple[str, str], str] = {
    ("np-swap-*", "config.nodeImageConfig.*"): "an answer of the service after it had the field",
    ("np-swap-*", "kubeletCertInfo.*"): "an answer of the service after it had the field",
    ("np-022", "autoscaling.maxNodeCount"): "it was changed by an update of the cluster",
}
"""Where the simulated answer is known to differ: entry, key, reason."""
_CLUSTERS = ("001", "002", "033", "cluster-000", "cluster-003", "cluster-032")
NOT_HELD_AGAIN = {
    **{f"np-{number}": "clusters are given, not made" for number in _CLUSTERS},
    "np-017": "an update of the cluster, which is given",
    "np-018": "its operation",
}


def recorded(pattern: str) -> list[Document]:
    """The conversations with the real GKE whose ids match."""
    if not FOLDER.is_dir():
        return []
    entries = json.loads((FOLDER / "node_pools.json").read_text())
    return [
        entry
        for entry in entries
        if entry["recorded_against"] == "real" and fnmatchcase(entry["id"], pattern)
    ]


def named(text: str, operation: str) -> str:
    for placeholder, name in {**NAMES, "${operationID}": operation}.items():
        text = text.replace(placeholder, name)
    return text


def find_differences(entry: str, theirs: Document, ours: Document) -> list[str]:
    """What is different and not known to be: in keys, types, values."""
    wanted, found = dict(flatten(theirs)), dict(flatten(ours))

    def known(key: str) -> bool:
        return any(fnmatchcase(entry, ids) and fnmatchcase(key, keys) for ids, keys in DIFFERENCES)

    differences = [
        f"{key}: {'missing' if key in wanted else 'invented'}"
        for key in wanted.keys() ^ found.keys()
        if not known(key)
    ]
    for key in wanted.keys() & found.keys():
        same = type(wanted[key]) is type(found[key]) if key in ANY else wanted[key] == found[key]
        if not same and not known(key):
            differences.append(f"{key}: {wanted[key]!r} there, {found[key]!r} here")
    return differences


@pytest.mark.parametrize("entries", ["np-0*", "np-swap-*"])
def test_recorded_conversations_are_reproduced(entries: str) -> None:
    gke, operation = Gke(location=ZONE), ""
    held = [entry for entry in recorded(entries) if entry["id"] not in NOT_HELD_AGAIN]
    for entry in held:
        request, answer = entry["request"], entry["response"]
        version, _, path = request["path"].removeprefix(CONTAINER).partition("/")
        body = named(json.dumps(request["body"]), operation).encode() if request["body"] else None
        status, ours = gke.send(request["method"], named(path, operation), body, version=version)
        operation = ours["name"] if "operationType" in ours else operation
        theirs = json.loads(named(json.dumps(answer["body"]), operation))
        assert status == answer["status"], (entry["id"], ours)
        assert find_differences(entry["id"], theirs, ours) == [], entry["id"]
        gke.clock.run_for(1000)
    assert len(held) > 4


def test_every_known_difference_still_exists() -> None:
    ids = {entry["id"] for entry in recorded("*")}
    assert set(NOT_HELD_AGAIN) <= ids
    assert all(any(fnmatchcase(one, pattern) for one in ids) for pattern, _ in DIFFERENCES)
