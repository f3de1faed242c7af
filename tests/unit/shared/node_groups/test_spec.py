"""The functions validate a spec as the CRD does and report each violation at its field."""

from __future__ import annotations

import hashlib
from copy import deepcopy
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shared.base.fields import Violation
from shared.base.jobs import JOB_LABEL, job_key
from shared.base.names import POOL_LABEL
from shared.node_groups import node_group
from shared.node_groups.node_group import (
    InstanceConfig,
    NodeGroup,
    parse_template_uri,
    resource_name,
)
from shared.node_groups.spec import parse_duration_s
from tests.support.builders import CLUSTER, DATA, group, merge, raw_group, readable, spec
from tests.support.specs import (
    ACCEPTED,
    INVALID_NAMES,
    MISFITS,
    OUT_OF_BOUNDS,
    OWN_TEMPLATE,
    REJECTED,
    VALID_NAMES,
    Change,
    shaped,
    shapes,
)

SPECS = yaml.safe_load((DATA / "spec.yaml").read_text())


def params(rows: list[dict[str, Any]]) -> list[Any]:
    """The specs of a list, each with the behaviours that it is an example of."""
    return [
        pytest.param(row, id=row["id"], marks=pytest.mark.conformance(*row.get("shows", [])))
        for row in rows
    ]


RAW = raw_group()


def list_violations(change: Change) -> tuple[Violation, ...]:
    """Return the violations of the example with this change."""
    changed = {**RAW, "spec": merge(RAW["spec"], change)}
    return node_group.parse(changed, CLUSTER).violations


@pytest.mark.parametrize("row", params(SPECS["valid"]))
def test_a_valid_spec_has_no_violation(row: dict[str, Any]) -> None:
    assert list_violations(row["change"]) == ()


@pytest.mark.parametrize("row", params(SPECS["invalid"]))
def test_an_invalid_spec_has_a_violation_at_its_field(row: dict[str, Any]) -> None:
    violations = list_violations(row["change"])

    paths = [violation.path for violation in violations]
    assert any(path.startswith(row["path"]) for path in paths), violations
    if "message" in row:
        assert any(row["message"] in violation.text for violation in violations)


@pytest.mark.conformance(
    cases={"project-of-six": "val-project-too-short", "url": "val-byo-full-url-refused"}
)
@pytest.mark.parametrize("change", ACCEPTED)
def test_a_spec_that_the_crd_accepts_has_no_violation(change: Change) -> None:
    assert list_violations(change) == ()


@pytest.mark.conformance(
    cases={
        "negative-node-count": "val-nodecount-negative",
        "startup-script-with-bootstrap": "tmpl-startup-script-wins",
        "template-of-another-project": "val-byo-other-project",
    }
)
@pytest.mark.parametrize("change, path, _message", [*REJECTED, *OUT_OF_BOUNDS])
def test_a_spec_that_the_crd_rejects_has_a_violation_at_the_same_path(
    change: Change, path: str, _message: str
) -> None:
    violations = list_violations(change)
    assert path in [violation.path for violation in violations], violations


@pytest.mark.parametrize("machine_type, topology, hosts", list(shapes()))
def test_every_documented_shape_has_no_violation(
    machine_type: str, topology: str, hosts: int
) -> None:
    assert list_violations(shaped(machine_type, topology, hosts)) == ()


@pytest.mark.conformance("rules.dims")
@pytest.mark.parametrize("machine_type, topology, hosts, path, _message", MISFITS)
def test_an_inconsistent_shape_has_one_violation_at_the_same_path(
    machine_type: str, topology: str, hosts: int, path: str, _message: str
) -> None:
    violations = list_violations(shaped(machine_type, topology, hosts))
    assert [violation.path for violation in violations] == [path], violations


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"project": None},
            "spec.project: is required",
        ),
        (
            {"nodeCount": 3},
            "spec.nodeCount: 2x2x2 has 8 chips, which are 2 nodes of tpu7x-standard-4t "
            "(4 chips each), not 3",
        ),
        (
            {"nodeCount": 2, "topology": "2x2x4"},
            "spec.nodeCount: 2x2x4 has 16 chips, which are 4 nodes of tpu7x-standard-4t "
            "(4 chips each), not 2",
        ),
        (
            {"nodeCount": 1},
            "spec: targetSizePolicyMode must be INDIVIDUAL when nodeCount is 1 or less",
        ),
        (
            {"nodeCount": "2"},
            "spec.nodeCount: must be a whole number from 1 to 2304, not '2'",
        ),
        (
            {"nodeLocation": "us-central1"},
            "spec.nodeLocation: must be a zone, as in us-central1-c, not 'us-central1'",
        ),
        (
            {"targetSizePolicyMode": "ATOMIC"},
            "spec.targetSizePolicyMode: must be BULK or INDIVIDUAL, not 'ATOMIC'",
        ),
        (
            {"topology": "2x2x3", "nodeCount": 3},
            "spec.topology: tpu7x has no slice of 2x2x3; it has 1x1x1, 2x2x1, 2x2x2, 2x2x4, "
            "2x4x4 and AxBxC of multiples of 4 with A<=B<=C, as 4x4x8",
        ),
        (
            {**OWN_TEMPLATE, "topology": "2x3"},
            "spec.topology: 2x3 is not a slice topology; "
            "ct6e has 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16; "
            "tpu7 and tpu7x have 1x1x1, 2x2x1, 2x2x2, 2x2x4, 2x4x4 and AxBxC of "
            "multiples of 4 with A<=B<=C, as 4x4x8",
        ),
        (
            {"instanceConfig": {"provisioningModel": "FLEX_START", "reservation": None}},
            "spec.instanceConfig.maxRunDuration: is required when provisioningModel is "
            "FLEX_START, as in 168h",
        ),
        (
            {"instanceConfig": {"machineType": "tpu7x-standard-16t"}},
            "spec.instanceConfig.machineType: must end in the chips of a VM (-1t, -2t, -4t or "
            "-8t), as in tpu7x-standard-4t, not 'tpu7x-standard-16t'",
        ),
        (
            {"instanceConfig": {"image": "i" * 600}},
            "spec.instanceConfig.image: has 600 characters; 512 are allowed",
        ),
        (
            {"instanceConfig": {"networkTags": ["a", "B" * 63]}},
            "spec.instanceConfig.networkTags[1]: must be a network tag, as in my-tag, "
            f"not '{'B' * 56}...",
        ),
        (
            {"instanceConfig": {"metadata": {"startup-script": "x"}}},
            "spec.instanceConfig.metadata: must not hold startup-script while "
            "bootstrapKubernetes is set, which brings its own; use user-data (cloud-init) or "
            "leave bootstrapKubernetes out",
        ),
        (
            {"bootstrapKubernetes": {"controlPlaneIP": "not an address"}},
            "spec.bootstrapKubernetes.controlPlaneIP: must be HOST, HOST:PORT, an IPv6 address, "
            "or [IPv6]:PORT, not 'not an address'",
        ),
        (
            {"nodeTaints": [{"key": "a", "effect": "NoExecute"}] * 2},
            "spec.nodeTaints[1]: is there twice: key and effect must differ",
        ),
        ({"instanceConfig": "x"}, "spec.instanceConfig: must be an object, not 'x'"),
        ({"nodeTaints": {}}, "spec.nodeTaints: must be a list, not {}"),
        ({"nodeLabels": []}, "spec.nodeLabels: must be an object, not []"),
        ({"nodeLabels": {"a": "x" * 64}}, "spec.nodeLabels.a: has 64 characters; 63 are allowed"),
    ],
)
def test_a_violation_names_the_valid_values(change: Change, message: str) -> None:
    assert [str(violation) for violation in list_violations(change)] == [message]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
FIELDS = st.sampled_from(
    [
        *(("spec", name) for name in spec()),
        *(("spec", name) for name in ("minNodeCount", "nodeLabels", "nodeTaints", "repair")),
        *(
            ("spec", "instanceConfig", name)
            for name in ("machineType", "metadata", "serviceAccounts", "networkTags", "subnetwork")
        ),
        ("spec", "bootstrapKubernetes", "controlPlaneIP"),
        ("spec",),
    ]
)


@given(changes=st.lists(st.tuples(FIELDS, JSON), min_size=1, max_size=4))
def test_a_spec_with_any_json_values_can_be_parsed(
    changes: list[tuple[tuple[str, ...], Any]],
) -> None:
    raw = deepcopy(RAW)
    for path, value in changes:
        holder = raw
        for name in path[:-1]:
            holder = holder[name] if isinstance(holder.get(name), dict) else {}
        holder[path[-1]] = value
    parsed = node_group.parse(raw, CLUSTER)
    assert parsed.violations or isinstance(parsed, NodeGroup)
    if isinstance(parsed, NodeGroup):
        parsed.node_labels(None)


@pytest.mark.conformance("tmpl-default-reservation-bound")
def test_the_provisioning_model_with_a_reservation_is_reservation_bound() -> None:
    source = group(change={"instanceConfig": {"provisioningModel": None}}).spec.source
    assert isinstance(source, InstanceConfig)
    assert source.provisioning_model == "RESERVATION_BOUND"


@pytest.mark.conformance("tmpl-default-standard")
def test_the_provisioning_model_without_a_reservation_is_standard() -> None:
    change = {"instanceConfig": {"provisioningModel": None, "reservation": None}}
    source = group(change=change).spec.source
    assert isinstance(source, InstanceConfig)
    assert source.provisioning_model == "STANDARD"


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


@pytest.mark.parametrize(
    "uri",
    [
        "my-template",
        "projects/p/regions/us-central1-c/instanceTemplates/t",
        "projects/p/global/instanceTemplates/t\n",
        "http://www.googleapis.com/compute/v1/projects/p/global/instanceTemplates/t",
    ],
)
def test_a_text_that_is_no_template_uri_is_parsed_as_none(uri: str) -> None:
    assert parse_template_uri(uri) is None


def test_a_template_of_another_region_is_a_violation() -> None:
    uri = "projects/my-gcp-project/regions/europe-west4/instanceTemplates/t"
    violations = group(
        change={"instanceConfig": None, "bootstrapKubernetes": None, "instanceTemplateURI": uri}
    ).violations
    assert [str(violation) for violation in violations] == [
        "spec.instanceTemplateURI: the template is of region europe-west4, "
        "the group of zone us-central1-c"
    ]


@pytest.mark.parametrize("name", [*INVALID_NAMES, "-x", "x-", "X", "a\n", ""])
def test_a_name_that_is_no_valid_vm_label_is_a_violation(name: str) -> None:
    violations = node_group.parse(raw_group(name=name), CLUSTER).violations
    assert violations[0].path == "metadata.name"


@pytest.mark.conformance(cases={"1group": "val-name-not-gce-name"})
@pytest.mark.parametrize("name", [*VALID_NAMES, "a" * 44 + "-b"])
def test_a_resource_name_is_valid_on_compute_engine_for_any_group_name(name: str) -> None:
    name_on_gce = resource_name(CLUSTER, name, "uid")
    assert len(name_on_gce) <= 58
    assert name_on_gce.startswith("tng-")
    assert "--" not in name_on_gce[-10:]


def test_resource_names_differ_by_uid_and_by_cluster() -> None:
    names = {
        resource_name(CLUSTER, "a", "uid-1"),
        resource_name(CLUSTER, "a", "uid-2"),
        resource_name("other", "a", "uid-1"),
    }
    assert len(names) == 3


def test_the_names_of_tpu_operators_objects_end_in_eight_digits_of_the_uids_hash() -> None:
    digest = hashlib.sha256(b"u").hexdigest()[:8]
    assert node_group.parse(raw_group(uid="u"), CLUSTER).operator_child_names == {
        "workloadpolicies": f"my-slice-policy-{digest}",
        "instancetemplates": f"my-slice-template-{digest}",
        "managedinstancegroups": f"my-slice-mig-{digest}",
    }


URI = "projects/my-gcp-project/global/instanceTemplates/"


@pytest.mark.parametrize("length, is_too_long", [(255, False), (256, True)])
def test_the_uri_of_a_template_has_255_characters_at_most(length: int, is_too_long: bool) -> None:
    uri = URI.ljust(length, "t")
    change = {"instanceConfig": None, "bootstrapKubernetes": None, "instanceTemplateURI": uri}
    violations = node_group.parse(raw_group(change=change), CLUSTER).violations
    assert any("255" in one.text for one in violations) is is_too_long


@pytest.mark.parametrize(
    "text, seconds",
    [("90s", 90), ("30m", 1800), ("168h", 604800), ("7d", 604800), ("1w", None), ("", None)],
)
def test_a_duration_is_parsed_as_seconds_or_none(text: str, seconds: int | None) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text, is_paused", [("true", True), ("True", True), ("false", False), ("", False)]
)
def test_the_paused_annotation_is_case_insensitive(text: str, is_paused: bool) -> None:
    raw = merge(RAW, {"metadata": {"annotations": {"tpu-functions.dev/paused": text}}})
    assert node_group.parse(raw, CLUSTER).is_paused is is_paused


@pytest.mark.parametrize(
    "length, joined", [(55, f"default-{'g' * 55}"), (56, None)], ids=["63 characters", "64"]
)
def test_a_namespaced_name_that_is_too_long_for_a_label_is_omitted(
    length: int, joined: str | None
) -> None:
    long = readable(node_group.parse(raw_group(name="g" * length), CLUSTER))
    labels = long.node_labels(None)
    assert labels.get("cloud.google.com/tpu-node-group") == joined
    assert labels["cloud.google.com/tpu-node-group-name"] == "g" * length


def test_the_cluster_label_of_a_vm_is_truncated_to_63_characters() -> None:
    found = readable(node_group.parse(raw_group(), "c" * 64))
    assert found.vm_labels()["tpu-functions-cluster"] == "c" * 63


KEY = job_key("default", "train-workers-0")
FOREIGN_KEY = job_key("other", "train-workers-0")
OF_THE_JOB = {"labels": {"tpu-functions.dev/jobset-name": "train", JOB_LABEL: "train-workers-0"}}
LEAVE_OUT = "spec.nodeLabels.%s: must %s; leave it out"
NO_KEY = LEAVE_OUT % ("job-key", "be the key of the Job for which this group was created")
NO_NAME = LEAVE_OUT % (POOL_LABEL, "not be the name of another Job's slice")


@pytest.mark.parametrize(
    "node_labels, metadata, messages",
    [
        pytest.param({"job-key": KEY}, OF_THE_JOB, [], id="the key of its own Job"),
        pytest.param(
            {"job-key": KEY},
            {"annotations": {JOB_LABEL: "train-workers-0"}},
            [],
            id="a Job whose name is too long for a label",
        ),
        pytest.param({"job-key": KEY}, {}, [NO_KEY], id="a key without a Job"),
        pytest.param({"job-key": FOREIGN_KEY}, OF_THE_JOB, [NO_KEY], id="another namespace's key"),
        pytest.param({"job-key": "my-team"}, {}, [], id="a text that is no Job's key"),
        pytest.param({POOL_LABEL: f"train-{KEY[:16]}"}, OF_THE_JOB, [], id="its own name"),
        pytest.param({POOL_LABEL: f"train-{KEY[:16]}"}, {}, [NO_NAME], id="a name without a Job"),
        pytest.param(
            {POOL_LABEL: f"train-{FOREIGN_KEY[:16]}"}, OF_THE_JOB, [NO_NAME], id="another slice"
        ),
        pytest.param({POOL_LABEL: "train"}, {}, [], id="a name that no JobSet's slice has"),
    ],
)
def test_nodes_of_a_group_cannot_be_part_of_the_slice_of_another_job(
    node_labels: dict[str, str], metadata: dict[str, Any], messages: list[str]
) -> None:
    """The Pods of a Job select its slice by these labels, in all namespaces."""
    raw = raw_group(change={"nodeLabels": node_labels})
    raw["metadata"] = {**raw["metadata"], **metadata}
    assert [str(one) for one in node_group.parse(raw, CLUSTER).violations] == messages
