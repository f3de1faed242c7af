"""Recorded conversations with the real Compute Engine are repeated with the simulated one.

The recordings are not part of this repository. They are read from ../shared/conformance/recordings;
without that folder these tests are skipped. test_answers.py has separate tests of the findings. Keys and
types are compared, and values unless the recording has masked them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import pytest

from local.gce import Timings
from local.tests.gce.small_cloud import (
    NUMBER,
    PROJECT,
    TEMPLATE,
    Cloud,
    Document,
    group_body,
    template_body,
)
from local.tests.recordings import FOLDER, OF_VMS, TIME, compare, flatten

FILES = ("instance_templates", "instances", "instance_group_managers", "operations", "errors")
COMPUTE = "https://compute.googleapis.com/compute/v1/"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="there are no recordings in ../shared/conformance/recordings"
)

NAMES = {
    "${projectId}": PROJECT,
    "${projectNumber}": NUMBER,
    "${instanceID}": "instance-1",
    "${instanceTemplateID}": "template-1",
    "${networkID}": "default",
    "${resourcePolicyID}": "policy-1",
}
MASKS = re.compile(rf"0{{21}}|{TIME}|[\w-]{{11}}=|user@example\.com|\$\{{\w+\}}|10\.128\.\d+\.\d+")
"""Values of which only the type is compared: masked ones, times, fingerprints, addresses."""

DIFFERENCES: Mapping[tuple[str, str], str] = {
    **{("inst-real-0*", key): reason for key, reason in OF_VMS.items()},
    ("mig-gke-swap-*", "satisfiesPzi"): "an answer of the service before it had the field",
    ("mig-gke-swap-*", "serviceAccount"): "GKE had its own service agent for these",
}
"""Known differences of the simulated answers: entry, key, reason."""

NOT_REPEATED = {
    "inst-real-016": "zones are no resources here",
    "inst-real-021": "disks are no resources here",
    "inst-real-030": "disks are no resources here",
    "err-404-image": "images are no resources here",
    "err-404-reservation": "reservations are created by a fault, not by the API",
    "err-404-futureReservation": "future reservations are not simulated",
    "err-400-operation-in-use": "of a network; repeated with a template below",
}
NOT_REPEATED |= {
    f"op-{kind}-net-{number}": "networks are no resources here"
    for kind, numbers in {
        "global": ("001", "002", "004", "005", "007", "008"),
        "error": ("058", "059", "085", "093"),
    }.items()
    for number in numbers
}


def recorded(name: str) -> list[Document]:
    """Return the conversations with the real Compute Engine in a file."""
    if not FOLDER.is_dir():
        return []
    entries = json.loads((FOLDER / f"{name}.json").read_text())
    return [
        entry
        for entry in entries
        if entry["recorded_against"] == "real" and entry["request"]["path"].startswith(COMPUTE)
    ]


def named(text: str, operation: str) -> str:
    for placeholder, name in {**NAMES, "${operationID}": operation}.items():
        text = text.replace(placeholder, name)
    return text.replace("/compute/beta/", "/compute/v1/")


def known(entry: str, key: str) -> bool:
    return any(
        fnmatchcase(entry, pattern) and fnmatchcase(key, keys) for pattern, keys in DIFFERENCES
    )


def find_differences(entry: str, theirs: Document, ours: Document, operation: str) -> list[str]:
    """Return the unknown differences in keys, types and values."""
    return compare(
        theirs,
        ours,
        lambda key: known(entry, key),
        lambda key, recorded, found: same(key, recorded, found, operation),
    )


def same(key: str, theirs: Any, ours: Any, operation: str) -> bool:
    if isinstance(theirs, str) and (key == "targetId" or MASKS.fullmatch(theirs)):
        return isinstance(ours, str)
    if isinstance(theirs, str):
        theirs = named(theirs, operation)
    return type(theirs) is type(ours) and bool(theirs == ours)


def repeat(cloud: Cloud, entry: Document, operation: str) -> tuple[int, Document]:
    request = entry["request"]
    path = named(request["path"], operation).removeprefix(COMPUTE)
    query = named((request.get("query") or "").replace("%2F", "/"), operation)
    text = json.dumps(request["body"]) if request.get("body") is not None else ""
    return cloud.send(request["method"], f"{path}?{query}", named(text, operation).encode())


def make_template(cloud: Cloud) -> None:
    """Create the template of the recorded VMs."""
    insert = next(entry for entry in recorded("instance_templates") if "-010" in entry["id"])
    repeat(cloud, insert, "")
    cloud.clock.run_for(10)


@pytest.mark.parametrize(
    "file, entries, from_template",
    [
        ("instance_templates", "*", False),
        ("instances", "*", True),
        ("operations", "op-zone-*", True),
        ("operations", "op-global-*", False),
        ("errors", "*", False),
    ],
)
def test_recorded_conversations_are_reproduced(
    file: str, entries: str, from_template: bool
) -> None:
    cloud = Cloud(Timings(running_after_insert_s=(0, 0)))
    operation = ""
    if from_template:
        make_template(cloud)
    repeated = [entry for entry in recorded(file) if fnmatchcase(entry["id"], entries)]
    for entry in repeated:
        if entry["id"] in NOT_REPEATED:
            continue
        status, answer = repeat(cloud, entry, operation)
        operation = answer["name"] if answer.get("kind") == "compute#operation" else operation
        assert status == entry["response"]["status"]
        assert find_differences(entry["id"], entry["response"]["body"], answer, operation) == []
        cloud.clock.run_for(200)
    assert repeated


def test_recorded_migs_are_reproduced() -> None:
    for entry in recorded("instance_group_managers"):
        theirs = entry["response"]["body"]
        cloud = Cloud()
        _create_mig_as_gke_does(cloud, theirs["targetSize"])
        ours = cloud.get(GKE_GROUP)
        text = json.dumps(theirs).replace(theirs["name"], "slice")
        text = text.replace(theirs["baseInstanceName"], "slice")
        text = re.sub(r"instanceTemplates/[\w-]+", "instanceTemplates/slice", text)
        assert find_differences(entry["id"], json.loads(text), ours, "") == []


GKE_GROUP = f"projects/{PROJECT}/zones/us-central1-a/instanceGroupManagers/slice"


def _create_mig_as_gke_does(cloud: Cloud, size: int) -> None:
    """Create a MIG of VMs without TPU, from a regional template."""
    template = TEMPLATE.replace("global", "regions/us-central1")
    cloud.settle("POST", template.rpartition("/")[0], template_body("n1-standard-1"))
    cloud.clock.run_for(5)
    body = group_body(size, bulk=False, repair=True, instanceTemplate=template)
    body["instanceLifecyclePolicy"]["forceUpdateOnRepair"] = "YES"
    body["listManagedInstancesResults"] = "PAGINATED"
    cloud.settle("POST", GKE_GROUP.rpartition("/")[0], body)
    cloud.clock.run_for(120)


def test_the_error_about_a_template_in_use_matches_the_recorded_one_about_a_network() -> None:
    cloud = Cloud(Timings(in_use_refused_by="operation"))
    cloud.make_parts()
    cloud.make_group(size=0)
    ours = dict(flatten(cloud.settle("DELETE", TEMPLATE)))
    entry = next(one for one in recorded("errors") if one["id"] == "err-400-operation-in-use")
    theirs = dict(flatten(entry["response"]["body"]))
    assert set(theirs) == set(ours)
    for key in ("status", "httpErrorStatusCode", "httpErrorMessage", "error.errors.0.code"):
        assert theirs[key] == ours[key]


def test_every_known_difference_still_exists() -> None:
    ids = {entry["id"] for name in FILES for entry in recorded(name)}
    assert set(NOT_REPEATED) <= ids
    assert all(any(fnmatchcase(one, pattern) for one in ids) for pattern, _ in DIFFERENCES)
