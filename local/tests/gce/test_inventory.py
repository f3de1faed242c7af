"""The existing resources on the Compute Engine of `make local`: a table, and a file that extends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.gce import InventoryUnreadable, read_inventory
from local.gce.inventory import UnrestrictedInventory


@pytest.mark.parametrize(
    "kind, name",
    [
        ("images", "projects/ubuntu-os-accelerator-images/global/images/family/no-such-image"),
        ("subnetworks", "projects/my-gcp-project/regions/us-central1/subnetworks/nosuch"),
        ("diskTypes", "pd-foo"),
        ("kubernetesVersions", "1.12"),
    ],
)
def test_invented_resources_do_not_exist(kind: str, name: str) -> None:
    assert not read_inventory().has(kind, name)


def test_plausible_names_of_zones_are_not_enough() -> None:
    table = read_inventory()
    assert not table.has_zone("mars-central1-c")
    assert not table.has_region("mars-central1")
    assert not table.has_machine_type("us-east5-b", "tpu7x-standard-4t")
    assert UnrestrictedInventory().has_zone("mars-central1-c")


def test_a_file_adds_to_the_table(tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text(
        "machineTypes: {mars-central1-c: [tpu7x-standard-*], us-east5-b: [tpu7x-standard-4t]}\n"
        "subnetworks: [projects/my-gcp-project/regions/mars-central1/subnetworks/*]\n"
    )
    table = read_inventory(more)
    assert table.has_region("mars-central1")
    assert table.has_machine_type("mars-central1-c", "tpu7x-standard-4t")
    assert table.has_machine_type("us-east5-b", "tpu7x-standard-4t")
    assert table.has_machine_type("us-east5-b", "ct6e-standard-4t"), "existing entries remain"
    assert table.has(
        "subnetworks", "projects/my-gcp-project/regions/mars-central1/subnetworks/dust"
    )
    assert table.has("diskTypes", "hyperdisk-balanced")


@pytest.mark.parametrize(
    "text, why",
    [
        ("- a", "it must be a map of machineTypes, images"),
        ("zones: [a]", "zones is not known; known are machineTypes, images"),
        ("machineTypes: [a]", "machineTypes must be zones, each with a list of machine types"),
        ("machineTypes: {nowhere: [a]}", "machineTypes must be zones"),
        ("machineTypes: {us-east5-b: x}", "machineTypes.us-east5-b must be a list of strings"),
        ("kubernetesVersions: [1.30]", "kubernetesVersions must be a list of strings"),
        ("a: [", "while parsing"),
        ("images: [2026-13-45]", "month must be in 1..12"),
        ("images: !!bool x", "'x'"),
        ("{1: [a], zones: [a]}", "1, zones is not known"),
    ],
)
def test_the_error_about_a_malformed_file_describes_the_violation(
    tmp_path: Path, text: str, why: str
) -> None:
    more = tmp_path / "more.yaml"
    more.write_text(text)
    with pytest.raises(InventoryUnreadable) as error:
        read_inventory(more)
    assert str(error.value).startswith(f"--inventory {more}: ")
    assert why in str(error.value)


def test_the_error_about_an_absent_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(InventoryUnreadable, match="No such file"):
        read_inventory(tmp_path / "nowhere.yaml")
