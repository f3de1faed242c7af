"""What the status records decides where a group's resources are, and not what the spec says by now.

The spec is changed under a CRD without rules, the status is edited, or a backup brings back an old one.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from local.cloud.simulation import PROJECT
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME, TWO_SINGLE
from tests.support.harness import Harness
from tests.support.manifests import manifest

OWN_TEMPLATE = f"projects/{PROJECT}/global/instanceTemplates/my-template"
BY_OTHER_MEANS: dict[str, Any] = {**TWO_SINGLE, "bootstrapKubernetes": None}
USERS_TEMPLATE = {"instanceConfig": None, "instanceTemplateURI": OWN_TEMPLATE}
ZONE_B = {"nodeLocation": "us-central1-b"}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "zone of BULK": ({}, ZONE_B, "spec.nodeLocation"),
    "zone of INDIVIDUAL": ({**TWO_SINGLE}, ZONE_B, "spec.nodeLocation"),
    "zone, with the user's template": (
        BY_OTHER_MEANS | USERS_TEMPLATE,
        ZONE_B,
        "spec.nodeLocation",
    ),
    "region": ({}, {"nodeLocation": "europe-west4-b"}, "spec.nodeLocation"),
    "project": ({}, {"project": "other-project"}, "spec.project"),
    "mode": ({}, {"targetSizePolicyMode": "INDIVIDUAL"}, "spec.targetSizePolicyMode"),
    "template": (BY_OTHER_MEANS, USERS_TEMPLATE, "spec.instanceTemplateURI"),
    "size of BULK": ({}, {"topology": "2x2x4", "nodeCount": 4}, "spec.topology"),
    "size of INDIVIDUAL": ({**TWO_SINGLE}, {"nodeCount": 3}, "spec.nodeCount"),
    "size, with the user's template": (
        BY_OTHER_MEANS | USERS_TEMPLATE,
        {"nodeCount": 3},
        "spec.nodeCount",
    ),
    "machine type": (
        {**TWO_SINGLE},
        {"instanceConfig": {"machineType": "tpu7x-ultranet-4t"}},
        "spec.instanceConfig.machineType",
    ),
    "model of BULK": (
        {"instanceConfig": helpers.STANDARD},
        {"instanceConfig": {"provisioningModel": "SPOT"}},
        "spec.instanceConfig.provisioningModel",
    ),
    "model of INDIVIDUAL": (
        {**TWO_SINGLE, "instanceConfig": helpers.STANDARD},
        {"instanceConfig": {"provisioningModel": "SPOT"}},
        "spec.instanceConfig.provisioningModel",
    ),
}


def ready(change: dict[str, Any]) -> Harness:
    """A Ready slice, and a CRD without rules."""
    joins = "bootstrapKubernetes" not in change
    options = None if joins else helpers.JOIN_BY_OTHER_MEANS
    harness = Harness(options, projects=frozenset({PROJECT, "other-project"}))
    helpers.create_template(harness, helpers.template())
    helpers.ready_slice(harness, manifest(**change))
    helpers.remove_validation(harness)
    return harness


def edit_spec(harness: Harness, change: dict[str, Any]) -> None:
    """Edit the spec, which no rule of the CRD forbids here."""
    answer = helpers.patch(harness, helpers.group_path(), {"spec": change})
    assert answer["kind"] == "TPUNodeGroup", answer


def edit_entry(harness: Harness, kind: str, **change: Any) -> None:
    """Edit an entry of ``status.resources`` manually."""
    status = {"resources": {kind: change}}
    helpers.patch(harness, f"{helpers.group_path()}/status", {"status": status})


def own_resources(harness: Harness) -> list[str]:
    """The paths of all resources of the group, its VMs included."""
    return [path for path in harness.simulation.gce.leftovers() if "/tng-" in path]


def assert_all_deleted(harness: Harness) -> None:
    """Nothing is left of the group: at most the user's own template."""
    helpers.until_gone(harness, timeout=10 * MINUTE)
    harness.run_for(10 * MINUTE)
    assert [one for one in harness.leftovers() if one != OWN_TEMPLATE] == []


@pytest.mark.parametrize("case", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("after", [timedelta(), 2 * HOUR], ids=["immediately", "after 2 hours"])
def test_a_deletion_finds_what_the_status_has_recorded_whatever_the_spec_says_by_now(
    case: tuple[dict[str, Any], dict[str, Any], str], after: timedelta
) -> None:
    before, change, _ = case
    harness = ready(before)
    edit_spec(harness, change)
    harness.run_for(after)
    harness.delete(NAME)
    assert_all_deleted(harness)


@pytest.mark.parametrize("case", CHANGES.values(), ids=CHANGES)
def test_a_changed_spec_is_reported_and_creates_nothing_until_it_is_changed_back(
    case: tuple[dict[str, Any], dict[str, Any], str],
) -> None:
    before, change, field = case
    harness = ready(before)
    spec, resources, nodes = manifest(**before)["spec"], own_resources(harness), helpers.nodes
    joined, operations = list(nodes(harness)), dict(harness.operations)
    edit_spec(harness, change)
    harness.run_for(2 * HOUR)
    status, reason, message = helpers.condition_of(harness)
    assert (status, reason) == ("False", "InvalidSpec")
    assert message.startswith(f"{field}: must not be changed, because the group has projects/")
    assert message.endswith(". Change it back, or delete the group and apply it again.")
    assert list(nodes(harness)) == joined
    assert own_resources(harness) == resources
    back = {**dict.fromkeys(change), **{key: spec[key] for key in change if key in spec}}
    edit_spec(harness, back)
    helpers.until_ready(harness, timeout=5 * MINUTE)
    assert harness.operations == operations


@pytest.mark.parametrize(
    "kinds", [("workloadPolicy", "instanceTemplate"), ("managedInstanceGroup",)]
)
@pytest.mark.parametrize("seconds", [0, 5, 20, 40, 60])
def test_what_is_called_gone_by_hand_during_a_deletion_is_deleted_all_the_same(
    kinds: tuple[str, ...], seconds: int
) -> None:
    harness = helpers.ready()
    harness.delete(NAME)
    harness.run_for(timedelta(seconds=seconds))
    if harness.group(NAME) is not None:
        for kind in kinds:
            edit_entry(harness, kind, state="Gone", operation=None)
    assert_all_deleted(harness)


MIG_OF = "instanceGroupManagers/"
RIGHT = f"projects/{PROJECT}/zones/us-central1-c/{MIG_OF}"


@pytest.mark.parametrize(
    "uri, is_served",
    [
        (f"projects/{PROJECT}/zones/us-central1-b/{MIG_OF}", True),
        (f"projects/other-project/zones/us-central1-c/{MIG_OF}", True),
        (f"projects/not-served/zones/us-central1-c/{MIG_OF}", False),
    ],
)
def test_a_recorded_place_that_is_wrong_loses_nothing(uri: str, is_served: bool) -> None:
    harness = ready({})
    name, resources = helpers.resource_name(harness), own_resources(harness)
    nodes = list(helpers.nodes(harness))
    edit_entry(harness, "managedInstanceGroup", uri=uri + name)
    harness.run_for(2 * HOUR)
    assert own_resources(harness) == resources
    assert list(helpers.nodes(harness)) == nodes
    edit_entry(harness, "managedInstanceGroup", uri=uri + name)
    harness.delete(NAME)
    if not is_served:
        harness.run_for(HOUR)
        assert own_resources(harness) == resources
        assert "not-served is not served" in helpers.condition_of(harness)[2]
        edit_entry(harness, "managedInstanceGroup", uri=RIGHT + name)
        helpers.until_gone(harness)
    assert_all_deleted(harness)


def back_up(harness: Harness, *, finalizers: bool, status: bool) -> dict[str, Any]:
    """The group as a backup has it: Velero restores finalizers, and the status if it is told to."""
    group = harness.group(NAME)
    assert group is not None
    kept = ("name", "namespace", "labels", *(("finalizers",) if finalizers else ()))
    metadata = {key: group["metadata"][key] for key in kept}
    return {**group, "metadata": metadata, "status": group["status"] if status else {}}


def restore(harness: Harness, backup: dict[str, Any]) -> None:
    """Create the group again, with another uid, and bring its old status back."""
    created = harness.apply({key: value for key, value in backup.items() if key != "status"})
    if backup["status"]:
        status = {**created, "status": backup["status"]}
        answer = harness.simulation.admin("PUT", f"{helpers.group_path()}/status", status)
        assert answer["kind"] == "TPUNodeGroup", answer


BACKUPS = {
    f"{'with' if finalizers else 'without'} finalizer, {'with' if status else 'without'} status": (
        finalizers,
        status,
    )
    for finalizers in (False, True)
    for status in (False, True)
}


@pytest.mark.parametrize("case", BACKUPS.values(), ids=BACKUPS)
@pytest.mark.parametrize("change", [{}, TWO_SINGLE, BY_OTHER_MEANS | USERS_TEMPLATE])
def test_a_restored_group_is_a_new_one_whatever_its_old_status_says(
    case: tuple[bool, bool], change: dict[str, Any]
) -> None:
    finalizers, status = case
    harness = ready(change)
    before, first = helpers.summary(harness), helpers.resource_name(harness)
    backup = back_up(harness, finalizers=finalizers, status=status)
    harness.delete(NAME)
    assert_all_deleted(harness)
    start, told = harness.clock.now(), len(helpers.events(harness))
    restore(harness, backup)
    helpers.until(harness, lambda: len(helpers.nodes(harness)) == 2)
    helpers.until_ready(harness)
    took = harness.clock.now() - start
    assert took < 3 * MINUTE
    assert helpers.summary(harness) == before
    assert helpers.resource_name(harness) != first
    entries = (harness.group(NAME) or {})["status"]["resources"].values()
    assert {one["name"] for one in entries} <= {helpers.resource_name(harness), "my-template"}
    assert not [text for _, _, text in helpers.events(harness)[told:] if "is gone" in text]
    harness.delete(NAME)
    assert_all_deleted(harness)


def test_a_restored_group_that_is_deleted_immediately_leaves_nothing() -> None:
    harness = ready({})
    backup = back_up(harness, finalizers=True, status=True)
    harness.delete(NAME)
    assert_all_deleted(harness)
    for seconds in (0, 1, 5, 20, 60):
        restore(harness, backup)
        harness.run_for(timedelta(seconds=seconds))
        harness.delete(NAME)
        assert_all_deleted(harness)


def test_a_mig_of_a_spec_that_was_edited_before_its_place_was_recorded_is_reported() -> None:
    harness = Harness()
    helpers.remove_validation(harness)
    harness.apply(manifest(**TWO_SINGLE))
    helpers.until(harness, lambda: bool(helpers.of_kind(harness, "instanceGroupManagers")))
    edit_spec(harness, ZONE_B)
    harness.run_for(3 * HOUR)
    first = f"projects/{PROJECT}/zones/us-central1-c/instanceGroupManagers/"
    assert [one for one in own_resources(harness) if one.startswith(first)]
    (note, *_) = (
        line["note"] for line in harness.log.lines if line["message"].endswith("LeakedSlice")
    )
    assert (
        f"or its slice has another name or place, and project {PROJECT} still has its managed "
        "instance" in note
    )
