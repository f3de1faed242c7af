"""A TPUNodeGroup as a typed value: its violations, defaults and names."""

from __future__ import annotations

import hashlib
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.base.fields import Violation
from shared.base.names import POOL_LABEL, WORKLOAD_LABEL
from shared.base.slice_names import JOB_LABEL, job_key, workload_key
from shared.node_groups import node_group
from shared.node_groups.node_group import (
    InstanceConfig,
    NodeGroup,
    parse_template_uri,
    resource_name,
)
from tests.support.builders import CLUSTER, RESOURCE, group, merge, raw_group, readable, spec
from tests.support.specs import INVALID_NAMES, VALID_NAMES, Change, config, numbered

RAW = raw_group()


def list_violations(change: Change) -> tuple[Violation, ...]:
    """Return the violations of the example with this change."""
    changed = {**RAW, "spec": merge(RAW["spec"], change)}
    return node_group.parse(changed, CLUSTER).violations


CONFIG = "spec.instanceConfig"
EURO = "\N{EURO SIGN}"
"""A character of three bytes."""


@pytest.mark.parametrize(
    "change, message",
    [
        ({"project": None}, "spec.project: is required"),
        ({"nodeCount": "2"}, "spec.nodeCount: must be a whole number from 1 to 2304, not '2'"),
        ({"nodeCount": 0}, "spec.nodeCount: must be a whole number from 1 to 2304, not 0"),
        (
            {"minNodeCount": 2**31},
            "spec.minNodeCount: must be a whole number from 0 to 2147483647, not 2147483648",
        ),
        (
            {"nodeCount": 3},
            "spec.nodeCount: nodeCount must be 2: topology 2x2x2 has 8 chips, a tpu7x-standard-4t has 4",
        ),
        (
            {"nodeLocation": "us-central1"},
            "spec.nodeLocation: nodeLocation must be a zone, as in us-central1-c, not 'us-central1'",
        ),
        (
            {"targetSizePolicyMode": "ATOMIC"},
            "spec.targetSizePolicyMode: must be BULK or INDIVIDUAL, not 'ATOMIC'",
        ),
        (
            {"nodeCount": 1},
            "spec: targetSizePolicyMode must be INDIVIDUAL when nodeCount is 1 or less",
        ),
        (config(image=""), f"{CONFIG}.image: must not be empty"),
        (config(image="i" * 600), f"{CONFIG}.image: has 600 characters; 512 are allowed"),
        (
            config(networkTags=["a", "B" * 63]),
            f"{CONFIG}.networkTags[1]: must be a network tag, as in my-tag, not '{'B' * 56}...",
        ),
        (
            config(networkTags=["a"] * 65),
            f"{CONFIG}.networkTags: must have 0 to 64 items, not 65",
        ),
        (
            config(metadata={"k": EURO * 90_000}),
            f"{CONFIG}.metadata.k: must be at most 262144 bytes, not '{EURO * 56}...",
        ),
        (
            config(metadata={"created-by": "x"}),
            f"{CONFIG}.metadata: metadata must not hold created-by, which is written for each VM when "
            "it is created or joins",
        ),
        (
            {"nodeTaints": [{"key": "a", "effect": "NoExecute"}] * 2},
            "spec.nodeTaints[1]: is there twice: key and effect must differ",
        ),
        (config(machineType=7), f"{CONFIG}.machineType: must be text, not 7"),
        ({"instanceConfig": "x"}, f"{CONFIG}: must be an object, not 'x'"),
        ({"nodeTaints": {}}, "spec.nodeTaints: must be a list, not {}"),
        ({"nodeLabels": []}, "spec.nodeLabels: must be an object, not []"),
        ({"nodeLabels": {"a": "x" * 64}}, "spec.nodeLabels.a: has 64 characters; 63 are allowed"),
        ({"nodeLabels": numbered(33)}, "spec.nodeLabels: has 33 entries; 32 are allowed"),
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
OF_A_GROUP = {"annotations": {JOB_LABEL: "LeaderWorkerSet/serve/3/1"}}
TRAIN = workload_key("default", "JobSet", "train", "train-workers-0")
SERVE = workload_key("default", "LeaderWorkerSet", "serve", "3")
NO_TIE = LEAVE_OUT % (WORKLOAD_LABEL, "be the key of the workload for which this group was created")
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
        pytest.param({WORKLOAD_LABEL: TRAIN}, OF_THE_JOB, [], id="the key of its own JobSet"),
        pytest.param({WORKLOAD_LABEL: SERVE}, OF_A_GROUP, [], id="the key of its own group"),
        pytest.param({WORKLOAD_LABEL: TRAIN}, {}, [NO_TIE], id="a workload's key without one"),
        pytest.param({WORKLOAD_LABEL: TRAIN}, OF_A_GROUP, [NO_TIE], id="another workload's key"),
    ],
)
def test_nodes_of_a_group_cannot_be_part_of_the_slice_of_another_job(
    node_labels: dict[str, str], metadata: dict[str, Any], messages: list[str]
) -> None:
    """The Pods of a Job select its slice by these labels, in all namespaces."""
    raw = raw_group(change={"nodeLabels": node_labels})
    raw["metadata"] = {**raw["metadata"], **metadata}
    assert [str(one) for one in node_group.parse(raw, CLUSTER).violations] == messages


OWN_TEMPLATE = {
    "instanceConfig": None,
    "bootstrapKubernetes": None,
    "instanceTemplateURI": "projects/my-gcp-project/global/instanceTemplates/t",
}
MIG_URI = f"projects/my-gcp-project/zones/us-central1-c/instanceGroupManagers/{RESOURCE}"
POLICY_URI = f"projects/my-gcp-project/regions/us-central1/resourcePolicies/{RESOURCE}"
TEMPLATE_URI = f"projects/my-gcp-project/global/instanceTemplates/{RESOURCE}"
SPEC_SAYS = ("my-gcp-project", "us-central1-c", "us-central1")
RECORDED: dict[str, tuple[dict[str, str], dict[str, Any], tuple[str, str, str], dict[str, str]]] = {
    "what the spec says": (
        {
            "managedInstanceGroup": MIG_URI,
            "workloadPolicy": POLICY_URI,
            "instanceTemplate": TEMPLATE_URI,
        },
        {},
        SPEC_SAYS,
        {},
    ),
    "nothing": (
        {},
        {"nodeLocation": "us-east5-b"},
        ("my-gcp-project", "us-east5-b", "us-east5"),
        {},
    ),
    "a MIG in another zone": (
        {"managedInstanceGroup": MIG_URI},
        {"nodeLocation": "us-central1-b"},
        SPEC_SAYS,
        {"spec.nodeLocation": MIG_URI},
    ),
    "a MIG in another region and project": (
        {"managedInstanceGroup": MIG_URI},
        {"nodeLocation": "us-east5-b", "project": "other-project"},
        SPEC_SAYS,
        {"spec.project": MIG_URI, "spec.nodeLocation": MIG_URI},
    ),
    "a policy in another region": (
        {"workloadPolicy": POLICY_URI, "instanceTemplate": TEMPLATE_URI},
        {"nodeLocation": "us-east5-b"},
        ("my-gcp-project", "us-east5-b", "us-central1"),
        {"spec.nodeLocation": POLICY_URI},
    ),
    "a policy in the same region": (
        {"workloadPolicy": POLICY_URI},
        {"nodeLocation": "us-central1-b"},
        ("my-gcp-project", "us-central1-b", "us-central1"),
        {},
    ),
    "a template in another project": (
        {"instanceTemplate": TEMPLATE_URI},
        {"project": "other-project"},
        SPEC_SAYS,
        {"spec.project": TEMPLATE_URI},
    ),
    "a policy, and the spec needs none": (
        {"workloadPolicy": POLICY_URI},
        {"targetSizePolicyMode": "INDIVIDUAL"},
        SPEC_SAYS,
        {"spec.targetSizePolicyMode": POLICY_URI},
    ),
    "a template, and the user has one": (
        {"instanceTemplate": TEMPLATE_URI},
        OWN_TEMPLATE,
        SPEC_SAYS,
        {"spec.instanceTemplateURI": TEMPLATE_URI},
    ),
    "the MIG of another group": (
        {"managedInstanceGroup": MIG_URI.replace("us-central1-c", "x") + "1"},
        {},
        SPEC_SAYS,
        {},
    ),
    "no URI": ({"managedInstanceGroup": "projects/../zones/x"}, {}, SPEC_SAYS, {}),
    "a project by number": (
        {"managedInstanceGroup": MIG_URI.replace("my-gcp-project", "123")},
        {},
        SPEC_SAYS,
        {},
    ),
}


@pytest.mark.parametrize("case", RECORDED.values(), ids=RECORDED)
def test_a_group_is_where_its_status_has_recorded_it(
    case: tuple[dict[str, str], dict[str, Any], tuple[str, str, str], dict[str, str]],
) -> None:
    uris, change, place, changed = case
    status = {"resources": {kind: {"name": RESOURCE, "uri": uri} for kind, uri in uris.items()}}
    found = group(change=change, status=status)
    assert (found.spec.project, found.spec.zone, found.spec.region) == place
    text = "must not be changed, because the group has "
    moved = {one.path: one.text.removeprefix(text) for one in found.violations if text in one.text}
    assert moved == changed
    given = found.given or found.spec
    assert (given.project, given.zone) == (
        change.get("project", "my-gcp-project"),
        change.get("nodeLocation", "us-central1-c"),
    )


AS_CREATED = {
    "topology": "2x2x2",
    "machineType": "tpu7x-standard-4t",
    "provisioningModel": "RESERVATION_BOUND",
    "nodeSummary": {"desired": 2},
}
ALL_URIS = {
    "workloadPolicy": POLICY_URI,
    "instanceTemplate": TEMPLATE_URI,
    "managedInstanceGroup": MIG_URI,
}
_INSTANCE = "spec.instanceConfig."
DRIFTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str], dict[str, str]]] = {
    "none": ({}, {}, ALL_URIS, {}),
    "topology and count": (
        {},
        {"topology": "2x2x4", "nodeCount": 4},
        ALL_URIS,
        {"spec.topology": f"{POLICY_URI} with 2x2x2", "spec.nodeCount": f"{MIG_URI} with 2 VMs"},
    ),
    "topology, before there is a MIG": (
        {},
        {"topology": "2x2x4", "nodeCount": 4},
        {"workloadPolicy": POLICY_URI},
        {"spec.topology": f"{POLICY_URI} with 2x2x2"},
    ),
    "before anything was created": ({}, {"topology": "2x2x4", "nodeCount": 4}, {}, {}),
    "machine type": (
        {},
        {"instanceConfig": {"machineType": "tpu7x-ultranet-4t"}},
        ALL_URIS,
        {f"{_INSTANCE}machineType": f"{TEMPLATE_URI} with tpu7x-standard-4t"},
    ),
    "model": (
        {},
        {"instanceConfig": {"provisioningModel": "SPOT", "reservation": None}},
        ALL_URIS,
        {f"{_INSTANCE}provisioningModel": f"{TEMPLATE_URI} with RESERVATION_BOUND"},
    ),
    "back to the size of a MIG that is not that of the status": (
        {"conditions": [{"type": "ManagedInstanceGroupReady", "reason": "ResourceConflict"}]},
        {"nodeCount": 4, "topology": "2x2x2"},
        ALL_URIS,
        {},
    ),
    "a status of an earlier version": (
        dict.fromkeys(AS_CREATED),
        {"topology": "2x2x4", "nodeCount": 4, "instanceConfig": {"machineType": "x"}},
        ALL_URIS,
        {},
    ),
    "a status that somebody has edited": (
        {"topology": 3, "machineType": [], "nodeSummary": {"desired": "?"}}, {}, ALL_URIS, {},
    ),
}  # fmt: skip


def test_a_name_that_is_taken_hides_no_changed_size() -> None:
    """Its condition has the same reason as a MIG of another size, and its entry an error."""
    error = {"reason": "ResourceConflict", "message": "exists", "at": "2026-11-20T10:00:00Z"}
    conflict = {"type": "ManagedInstanceGroupReady", "reason": "ResourceConflict"}
    mig = {"name": RESOURCE, "uri": MIG_URI, "error": error}
    recorded = {**AS_CREATED, "conditions": [conflict], "resources": {"managedInstanceGroup": mig}}
    found = group(change={"nodeCount": 4, "topology": "2x2x2"}, status=recorded)
    text = f"must not be changed, because the group has {MIG_URI} with 2 VMs"
    assert ("spec.nodeCount", text) in {(one.path, one.text) for one in found.violations}


@pytest.mark.parametrize("case", DRIFTS.values(), ids=DRIFTS)
def test_a_group_has_the_vms_that_its_status_has_recorded(
    case: tuple[dict[str, Any], dict[str, Any], dict[str, str], dict[str, str]],
) -> None:
    recorded, change, uris, changed = case
    resources = {kind: {"name": RESOURCE, "uri": uri} for kind, uri in uris.items()}
    found = group(change=change, status={**AS_CREATED, **recorded, "resources": resources})
    text = "must not be changed, because the group has "
    moved = {one.path: one.text.removeprefix(text) for one in found.violations if text in one.text}
    assert moved == changed
    assert (found.given is not None) is bool(changed)
    if changed:
        assert found.spec.topology == "2x2x2"
    if "spec.nodeCount" in changed:
        assert found.spec.node_count == 2
    if any(path.startswith(_INSTANCE) for path in changed):
        assert isinstance(found.spec.source, InstanceConfig)
        kept = found.spec.source.machine_type, found.spec.source.provisioning_model
        assert kept == ("tpu7x-standard-4t", "RESERVATION_BOUND")
