"""What the examples name exists on the Compute Engine of `make local`."""

from __future__ import annotations

import pytest
import yaml

from local.gce import read_inventory
from tests.support.harness import ROOT

EXAMPLES = [
    document
    for path in sorted((ROOT / "examples").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
    if document["kind"] == "TPUNodeGroup"
]


@pytest.mark.parametrize("group", EXAMPLES, ids=lambda group: group["metadata"]["name"])
def test_resources_named_in_the_examples_exist(group: dict[str, dict[str, dict[str, str]]]) -> None:
    table = read_inventory()
    spec = group["spec"]
    zone, config = str(spec["nodeLocation"]), spec.get("instanceConfig", {})
    assert table.has_zone(zone)
    assert table.has_region(zone.rpartition("-")[0])
    for kind, name in (
        ("images", config.get("image")),
        ("subnetworks", config.get("subnetwork")),
        ("diskTypes", config.get("diskType")),
        ("kubernetesVersions", spec.get("bootstrapKubernetes", {}).get("version", "1.31")),
    ):
        assert name is None or table.has(kind, name), (kind, name)
    assert not config or table.has_machine_type(zone, config["machineType"])
