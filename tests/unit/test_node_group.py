"""The functions read a spec as the CRD does: what works passes, what cannot is named."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from shared import node_group
from shared.node_group import parse_duration_s, parse_template_uri, resource_name
from tests.unit.builders import CLUSTER, DATA, group, raw_group

SPECS = yaml.safe_load((DATA / "spec.yaml").read_text())


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


@pytest.mark.parametrize("row", SPECS["valid"], ids=ids(SPECS["valid"]))
def test_a_spec_that_can_work_has_no_problem(row: dict[str, Any]) -> None:
    assert group(change=row["change"]).problems == ()


@pytest.mark.parametrize("row", SPECS["invalid"], ids=ids(SPECS["invalid"]))
def test_a_spec_that_cannot_work_is_refused_at_its_field(row: dict[str, Any]) -> None:
    problems = group(change=row["change"]).problems

    paths = [problem.path for problem in problems]
    assert any(path.startswith(row["path"]) for path in paths), problems
    if "message" in row:
        assert any(row["message"] in problem.text for problem in problems)


@pytest.mark.parametrize(
    "change, said",
    [
        (
            {"nodeCount": 3},
            "spec.nodeCount: 2x2x2 has 8 chips, which are 2 nodes of tpu7x-standard-4t "
            "(4 chips each), not 3",
        ),
        (
            {"nodeLocation": "us-central1"},
            "spec.nodeLocation: 'us-central1' is no zone; a zone is like us-central1-c",
        ),
        (
            {"topology": "2x2x3", "nodeCount": 3},
            "spec.topology: 2x2x3 is no shape of tpu7x; there are 1x1x1, 2x2x1, 2x2x2, 2x2x4, "
            "2x4x4 and AxBxC of multiples of 4 with A<=B<=C, as 4x4x8",
        ),
        (
            {"instanceConfig": {"provisioningModel": "FLEX_START", "reservation": None}},
            "spec.instanceConfig.maxRunDuration: is required with provisioningModel FLEX_START, "
            "as in 168h",
        ),
        (
            {"instanceConfig": {"machineType": "tpu7x-standard-16t"}},
            "spec.instanceConfig.machineType: 'tpu7x-standard-16t' must end in -1t, -2t, -4t or "
            "-8t, the chips of one VM",
        ),
        (
            {"instanceConfig": {"metadata": {"startup-script": "x"}}},
            "spec.instanceConfig.metadata: key 'startup-script' is the system's own while "
            "bootstrapKubernetes is set; use user-data (cloud-init) or leave "
            "bootstrapKubernetes out",
        ),
        (
            {"bootstrapKubernetes": {"controlPlaneIP": "not an address"}},
            "spec.bootstrapKubernetes.controlPlaneIP: 'not an address' must be an address, a "
            "host, or either with a port, as 10.0.0.2:6443",
        ),
    ],
)
def test_a_refusal_says_what_would_be_right(change: dict[str, Any], said: str) -> None:
    assert [str(problem) for problem in group(change=change).problems] == [said]


@pytest.mark.parametrize(
    "endpoint", ["10.0.0.2", "10.0.0.2:6443", "api.example.com", "[::1]:6443", "2001:db8::1"]
)
def test_an_endpoint_may_be_an_address_or_a_host_with_or_without_port(endpoint: str) -> None:
    assert group(change={"bootstrapKubernetes": {"controlPlaneIP": endpoint}}).problems == ()


def test_the_model_follows_from_the_reservation() -> None:
    config = group(change={"instanceConfig": {"provisioningModel": None}}).spec
    assert config is not None
    assert config.instance is not None
    assert config.instance.provisioning_model == "RESERVATION_BOUND"


def test_without_reservation_the_model_is_standard() -> None:
    change = {"instanceConfig": {"provisioningModel": None, "reservation": None}}
    config = group(change=change).spec
    assert config is not None
    assert config.instance is not None
    assert config.instance.provisioning_model == "STANDARD"


@pytest.mark.parametrize(
    "uri, region",
    [
        ("projects/my-gcp-project/global/instanceTemplates/t", ""),
        ("projects/my-gcp-project/locations/global/instanceTemplates/t", ""),
        ("projects/my-gcp-project/regions/us-central1/instanceTemplates/t", "us-central1"),
        (
            "https://www.googleapis.com/compute/v1/projects/my-gcp-project/global/"
            "instanceTemplates/t",
            "",
        ),
    ],
)
def test_a_template_is_read_from_the_scope_that_its_uri_names(uri: str, region: str) -> None:
    ref = parse_template_uri(uri)
    assert ref is not None
    assert (ref.project, ref.name, ref.region) == ("my-gcp-project", "t", region)


def test_a_template_of_another_region_is_refused() -> None:
    uri = "projects/my-gcp-project/regions/europe-west4/instanceTemplates/t"
    problems = group(
        change={"instanceConfig": None, "bootstrapKubernetes": None, "instanceTemplateURI": uri}
    ).problems
    assert [str(problem) for problem in problems] == [
        "spec.instanceTemplateURI: the template is of region europe-west4, "
        "the group of zone us-central1-c"
    ]


@pytest.mark.parametrize("name", ["a.b", "-x", "x-", "X", "x" * 64])
def test_a_name_that_is_no_label_of_a_vm_is_refused(name: str) -> None:
    problems = node_group.parse(raw_group(name=name), CLUSTER).problems
    assert problems[0].path == "metadata.name"


@pytest.mark.parametrize("name", ["a", "1group", "x" * 63, "a" * 44 + "-b"])
def test_resource_names_fit_compute_engine_whatever_the_group_is_called(name: str) -> None:
    made = resource_name(CLUSTER, name, "uid")
    assert len(made) <= 58
    assert made.startswith("tng-")
    assert "--" not in made[-10:]


def test_a_group_applied_again_and_one_of_another_cluster_have_other_names() -> None:
    names = {
        resource_name(CLUSTER, "a", "uid-1"),
        resource_name(CLUSTER, "a", "uid-2"),
        resource_name("other", "a", "uid-1"),
    }
    assert len(names) == 3


@pytest.mark.parametrize(
    "text, seconds",
    [("90s", 90), ("30m", 1800), ("168h", 604800), ("7d", 604800), ("1w", None), ("", None)],
)
def test_durations(text: str, seconds: int | None) -> None:
    assert parse_duration_s(text) == seconds


def test_a_joined_name_that_fits_no_label_is_left_out() -> None:
    long = node_group.parse(raw_group(name="g" * 60), CLUSTER)
    labels = long.node_labels(None)
    assert "cloud.google.com/tpu-node-group" not in labels
    assert labels["cloud.google.com/tpu-node-group-name"] == "g" * 60
