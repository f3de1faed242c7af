# ruff: noqa: E501  (a table reads best with a row on a line)
"""The TPUNodeGroup for a Job: the object that follows from Pod and template, and the input errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from shared.base.slice_names import job_key
from shared.node_groups.node_group import InstanceConfig, parse
from shared.slices import classes
from shared.slices.by_node_group.provider import read_slice
from shared.slices.classes import COMPUTE_CLASS
from shared.slices.provider import DesiredSlice
from shared.slices.units import Demand, InputError, Unit
from tests.support.builders import CLUSTER, NOW, readable
from tests.support.class_specs import slice_class
from tests.support.jobset_objects import NAMESPACE, options, selector, waiting_pod
from tests.support.slices import asked, build_group
from tests.support.specs import shapes

NAME = "train-bfcf5ebea76efcf5"
KEY = "bfcf5ebea76efcf5a9add9af4c26c7d637c630a1"
ACCELERATOR_OF = {"ct6e": "tpu-v6e-slice", "tpu7x": "tpu7x", "tpu7": "tpu7"}
TEMPLATE = "the key 'template' of the ConfigMap tpu-functions/jobsets"
OF_THE_POD = {
    "nodeCount": 4,
    "minNodeCount": 4,
    "topology": "4x4",
    "targetSizePolicyMode": "BULK",
    "instanceTemplateURI": "t",
}
SPOT, RESERVATION = "cloud.google.com/gke-spot", "cloud.google.com/reservation-name"
OTHERS = {RESERVATION: "r", "cloud.google.com/reservation-project": "other-project"}
COPY = "tpu-provisioner.cloud.google.com/copy-labels"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
ZONE = "topology.kubernetes.io/zone"


def leader(chips: int = 4, **change: Any) -> tuple[Demand, Unit]:
    return asked(waiting_pod(chips, **change))


def selecting(**labels: str) -> dict[str, Any]:
    """Return a change that adds these node selectors to the Pod."""
    return {"spec": {"nodeSelector": labels}}


def annotated(**annotations: str) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}}


def build_desired(change: dict[str, Any] | None = None, **template: Any) -> DesiredSlice:
    demand, unit = leader(**(change or {}))
    return build_group(demand, unit, options(**template))


def spec(change: dict[str, Any] | None = None, **template: Any) -> Any:
    return build_desired(change, **template).body["spec"]


def node_labels(change: dict[str, Any] | None = None, **template: Any) -> Any:
    return spec(change, **template)["nodeLabels"]


def test_a_group_has_the_fields_of_the_template_and_of_the_pod() -> None:
    one = build_desired(selecting(**{"job-key": KEY, "team": "red"}))
    assert (one.name, one.unit) == (NAME, Unit("JobSet", NAMESPACE, "train", "train-workers-0"))
    assert one.size == "4 hosts of ct6e-standard-4t (4x4)"
    assert one.body == {
        "apiVersion": "tpu.google.com/v1alpha1",
        "kind": "TPUNodeGroup",
        "metadata": {
            "name": NAME,
            "namespace": NAMESPACE,
            "labels": {
                "tpu-functions.dev/jobset-name": "train",
                "tpu-functions.dev/job-name": "train-workers-0",
                "tpu-functions.dev/job-key": KEY,
            },
            "annotations": {
                "tpu-functions.dev/slice-hash": one.hash,
                "tpu-functions.dev/template-hash": "65bddd4d88",
            },
        },
        "spec": {
            "project": "my-gcp-project",
            "nodeLocation": "us-central1-c",
            "nodeCount": 4,
            "acceleratorConnectionMode": "STATIC",
            "topology": "4x4",
            "targetSizePolicyMode": "BULK",
            "instanceConfig": {
                "machineType": "ct6e-standard-4t",
                "provisioningModel": "STANDARD",
                "image": "projects/my-gcp-project/global/images/my-v6e-image",
            },
            "bootstrapKubernetes": {"version": "1.33", "controlPlaneIP": "10.128.0.2"},
            "nodeLabels": {
                "job-key": KEY,
                "team": "red",
                "cloud.google.com/gke-nodepool": NAME,
            },
        },
    }


@pytest.mark.parametrize("machine_type, topology, hosts", list(shapes()))
def test_a_pod_can_request_each_documented_shape(
    machine_type: str, topology: str, hosts: int
) -> None:
    family, chips = machine_type.split("-")[0], int(machine_type.split("-")[2][0])
    requested = selector(ACCELERATOR_OF[family], topology)
    one = build_group(*leader(chips, spec={"nodeSelector": requested}), options())
    manifest = {**one.body, "metadata": {**one.body["metadata"], "uid": "u"}}
    manifest["metadata"]["creationTimestamp"] = "2026-11-20T10:00:00Z"
    group = readable(parse(manifest, CLUSTER))
    assert group.violations == ()
    assert isinstance(group.spec.source, InstanceConfig)
    assert group.spec.source.machine_type == machine_type
    assert (group.spec.node_count, group.spec.is_bulk) == (hosts, hosts > 1)


def test_a_pod_with_eight_chips_gets_a_slice_of_one_host() -> None:
    one = build_group(*leader(8, spec={"nodeSelector": selector(topology="2x4")}), options())
    assert one.size == "1 host of ct6e-standard-8t (2x4)"
    assert one.body["spec"]["targetSizePolicyMode"] == "INDIVIDUAL"


PROVISIONING_MODELS: dict[str, tuple[dict[str, str], dict[str, Any], dict[str, Any]]] = {
    "the template's model": ({}, {"provisioningModel": "FLEX_START", "maxRunDuration": "24h"}, {"provisioningModel": "FLEX_START", "maxRunDuration": "24h"}),
    "Spot": ({SPOT: "true"}, {}, {"provisioningModel": "SPOT"}),
    "Spot, where the template has a reservation": (
        {SPOT: "true"},
        {"provisioningModel": "RESERVATION_BOUND", "reservation": "of-the-template"},
        {"provisioningModel": "SPOT"},
    ),
    "a reservation": ({RESERVATION: "r"}, {}, {"provisioningModel": "RESERVATION_BOUND", "reservation": "r"}),
    "a reservation of another project": (
        OTHERS,
        {"provisioningModel": "FLEX_START", "maxRunDuration": "24h"},
        {
            "provisioningModel": "RESERVATION_BOUND",
            "reservation": "projects/other-project/reservations/r",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PROVISIONING_MODELS.values(), ids=PROVISIONING_MODELS)
def test_the_pods_selectors_override_the_provisioning_model_of_the_template(
    case: tuple[dict[str, str], dict[str, Any], dict[str, Any]],
) -> None:
    labels, config, expected = case
    one = spec(selecting(**labels), spec={"instanceConfig": config})
    names = ("provisioningModel", "reservation", "maxRunDuration")
    assert {
        name: one["instanceConfig"][name] for name in names if name in one["instanceConfig"]
    } == expected
    assert one["nodeLabels"].items() >= labels.items()


LABELS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "only the slice's name": ({}, {}, {}),
    "selectors": (selecting(team="red"), {}, {"team": "red"}),
    "selectors that the Nodes match without a label of the group": (
        selecting(
            **{
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "cloud.google.com/gke-accelerator-count": "4",
                "cloud.google.com/tpu-node-group-name": NAME,
                "cloud.google.com/gke-nodepool": NAME,
            }
        ),
        {},
        {},
    ),
    "the location of the Nodes": (
        selecting(**{ZONE: "us-central1-c", "topology.kubernetes.io/region": "us-central1"}),
        {},
        {ZONE: "us-central1-c", "topology.kubernetes.io/region": "us-central1"},
    ),
    "a hint of GKE": (selecting(**{"cloud.google.com/gke-location-hint": "cell"}), {}, {"cloud.google.com/gke-location-hint": "cell"}),
    "labels of the template": (
        selecting(**{"cloud.google.com/gke-flex-start": "true"}),
        {"cloud.google.com/gke-flex-start": "true"},
        {"cloud.google.com/gke-flex-start": "true"},
    ),
    "copied from the Pod": ({"metadata": {"labels": {"a": "1", "b": "2"}, "annotations": {COPY: " a, ,b,,missing"}}}, {}, {"a": "1", "b": "2"}),
    "copied, except labels that are set otherwise": (
        {
            "metadata": {
                "labels": {
                    "job-key": "of another Job",
                    "team": "blue",
                    "cloud.google.com/gke-nodepool": "other",
                    "cloud.google.com/gke-tpu-topology": "2x2",
                    "tpu-functions.dev/resource-name": "other",
                    "google.com/tpu-provisioner-jobset-name": "other",
                },
                "annotations": {
                    COPY: "team,job-key,cloud.google.com/gke-nodepool,cloud.google.com/gke-tpu-topology,"
                    "tpu-functions.dev/resource-name,google.com/tpu-provisioner-jobset-name,"
                    "jobset.sigs.k8s.io/restart-attempt"
                },
            },
            **selecting(team="red"),
        },
        {},
        {"team": "red"},
    ),
    "another exclusive topology of the JobSet": (annotated(**{EXCLUSIVE: "rack"}), {}, {"rack": NAME}),
    "an exclusive topology that is already a label of the Nodes": (annotated(**{EXCLUSIVE: "cloud.google.com/tpu-node-group-name"}), {}, {}),
    "a zone for each Job": (annotated(**{EXCLUSIVE: ZONE}), {}, {ZONE: "us-central1-c"}),
    "a host for each Job": (annotated(**{EXCLUSIVE: "kubernetes.io/hostname"}), {}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", LABELS.values(), ids=LABELS)
def test_the_nodes_get_the_labels_of_the_template_and_of_the_pod(
    case: tuple[dict[str, Any], dict[str, Any], dict[str, str]],
) -> None:
    change, template, labels = case
    expected = {**labels, "cloud.google.com/gke-nodepool": NAME}
    assert node_labels(change, spec={"nodeLabels": template}) == expected


def requiring(key: str, operator: str, *values: str) -> dict[str, Any]:
    """Return a change by which the Pod's node affinity requires this."""
    expression = {"key": key, "operator": operator, "values": list(values)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return {"spec": {"affinity": {"nodeAffinity": required}}}


GKE_COUNT = "cloud.google.com/gke-accelerator-count"


@pytest.mark.parametrize(
    "change, fits",
    [
        (requiring("cloud.google.com/gke-tpu-topology", "In", "4x4", "8x8"), True),
        (requiring("cloud.google.com/gke-tpu-topology", "In", "8x8"), False),
        (requiring("cloud.google.com/gke-tpu-topology", "NotIn", "4x4"), False),
        (requiring("team", "NotIn", "red"), True),
        (requiring("team", "Exists"), False),
        (requiring("team", "DoesNotExist"), True),
        (requiring("team", "In", "red"), False),
        (requiring("cloud.google.com/gke-nodepool", "DoesNotExist"), False),
        (requiring(GKE_COUNT, "Gt", "3"), True),
        (requiring(GKE_COUNT, "Gt", "4"), False),
        (requiring(GKE_COUNT, "Lt", "4"), False),
        (requiring(GKE_COUNT, "Lt", "5"), True),
        (requiring(GKE_COUNT, "Lt", "x"), False),
        (requiring(GKE_COUNT, "Lt", "9" * 5_000), False),
    ],
)
def test_a_required_affinity_that_no_node_would_match_is_an_input_error(
    change: dict[str, Any], fits: bool
) -> None:
    if fits:
        assert build_desired(change).name == NAME
        return
    with pytest.raises(InputError) as raised:
        build_desired(change)
    required = change["spec"]["affinity"]["nodeAffinity"]
    (term,) = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (one,) = term["matchExpressions"]
    values = f" [{', '.join(one['values'])}]" if one["values"] else ""
    unmet = f"{one['key']} {one['operator']}{values}"
    assert str(raised.value) == (
        f"the Pod's required nodeAffinity has {unmet}, which no Node of its slice would match: it must "
        "be taken out, or fulfilled by the template's nodeLabels"
    )


NAMED = {"key": "metadata.name", "operator": "In", "values": ["n"]}
FITTING = {"key": "team", "operator": "DoesNotExist"}
TERMS: dict[str, tuple[dict[str, Any], bool]] = {
    "a term that fits": ({"matchExpressions": [FITTING]}, True),
    "an empty term, which matches no Node": ({"matchExpressions": []}, False),
    "a term by a Node's name": ({"matchFields": [NAMED]}, False),
    "a term that fits, and a Node's name": (
        {"matchExpressions": [FITTING], "matchFields": [NAMED]},
        False,
    ),
}


@pytest.mark.parametrize("case", TERMS.values(), ids=TERMS)
def test_one_matching_term_of_a_required_affinity_is_enough(
    case: tuple[dict[str, Any], bool],
) -> None:
    term, fits = case
    both = requiring("team", "Exists")
    terms = both["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    terms.append(term)
    if fits:
        assert build_desired(both).name == NAME
        return
    with pytest.raises(InputError, match="has team Exists, which no Node"):
        build_desired(both)


TAINT = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
TOLERATIONS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "none": ([], False),
    "the same": ([{"key": "google.com/tpu", "value": "present"}], True),
    "any value": ([{"key": "google.com/tpu", "operator": "Exists"}], True),
    "any taint": ([{"operator": "Exists"}], True),
    "another value": ([{"key": "google.com/tpu", "value": "absent"}], False),
    "another effect": (
        [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoExecute"}],
        False,
    ),
    "another key": ([{"key": "other", "operator": "Exists"}], False),
}


@pytest.mark.parametrize("case", TOLERATIONS.values(), ids=TOLERATIONS)
def test_a_taint_of_the_template_that_the_pod_does_not_tolerate_is_an_input_error(
    case: tuple[list[dict[str, Any]], bool],
) -> None:
    tolerations, fits = case
    change = {"spec": {"tolerations": tolerations}}
    if fits:
        assert build_desired(change, spec={"nodeTaints": [TAINT]}).name == NAME
        return
    with pytest.raises(InputError) as raised:
        build_desired(change, spec={"nodeTaints": [TAINT]})
    assert str(raised.value) == (
        "the Nodes of the Pod's slice would have the taint google.com/tpu=present:NoSchedule, of the "
        "template's nodeTaints: the Pod must tolerate it"
    )


def test_a_taint_with_prefer_no_schedule_needs_no_toleration() -> None:
    assert (
        build_desired(spec={"nodeTaints": [{**TAINT, "effect": "PreferNoSchedule"}]}).name == NAME
    )


def mismatch(
    key: str, value: str, has: str, or_else: str = ", or fulfilled by the template's nodeLabels"
) -> str:
    return (
        f"the Pod's nodeSelector has {key}={value}, and the Nodes of its slice would have {has}: it "
        f"must be taken out{or_else}"
    )


INPUT_ERRORS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no accelerator": (
        selecting(**{"cloud.google.com/gke-tpu-accelerator": None}),  # type: ignore[arg-type]
        {},
        "the Pod's nodeSelector cloud.google.com/gke-tpu-accelerator is missing: it must be "
        "tpu-v6e-slice, tpu7 or tpu7x, which TPUNodeGroups are made of",
    ),
    "an accelerator that groups do not have": (
        selecting(**{"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice"}),
        {},
        "the Pod's nodeSelector cloud.google.com/gke-tpu-accelerator is 'tpu-v5p-slice': it must be "
        "tpu-v6e-slice, tpu7 or tpu7x, which TPUNodeGroups are made of",
    ),
    "a selector of GKE that groups cannot fulfil": (
        selecting(**{"cloud.google.com/gke-tpu-ici-resiliency": "true"}),
        {},
        mismatch("cloud.google.com/gke-tpu-ici-resiliency", "true", "no such label", ""),
    ),
    "a number of chips that no host has": ({"chips": 3}, {}, "the Pod asks for 3 of google.com/tpu: it must ask for as many as a host has, 1, 2, 4 or 8"),
    "an invalid topology": (
        selecting(**{"cloud.google.com/gke-tpu-topology": "big"}),
        {},
        "the Pod's nodeSelector cloud.google.com/gke-tpu-topology is 'big': it must be a shape, as in "
        "2x2x2 or 4x4",
    ),
    "a topology of another generation": (
        selecting(**{"cloud.google.com/gke-tpu-topology": "2x2x2"}),
        {},
        "the Pod's nodeSelector cloud.google.com/gke-tpu-topology: topology must have two dimensions with "
        "ct6e-standard-4t, as in 4x4",
    ),
    "large hosts in a slice of several": (
        {"chips": 8},
        {},
        "the topology 4x4 would need 2 hosts of 8 chips: hosts of a slice with more than one have 4, "
        "which the Pod must ask for",
    ),
    "Spot and reserved": (
        selecting(**{SPOT: "true", RESERVATION: "r"}),
        {},
        f"the Pod's nodeSelector has both {SPOT} and {RESERVATION}: VMs of a reservation are never "
        "Spot; it must have one of them",
    ),
    "Spot with the value false": (selecting(**{SPOT: "false"}), {}, f'the Pod\'s nodeSelector {SPOT} must be "true", or not be there'),
    "another node pool": (
        selecting(**{"cloud.google.com/gke-nodepool": "pool-1"}),
        {},
        mismatch(
            "cloud.google.com/gke-nodepool", "pool-1", f"cloud.google.com/gke-nodepool={NAME}"
        ),
    ),
    "another zone": (selecting(**{ZONE: "a"}), {}, mismatch(ZONE, "a", f"{ZONE}=us-central1-c")),
    "another architecture": (selecting(**{"kubernetes.io/arch": "arm64"}), {}, mismatch("kubernetes.io/arch", "arm64", "kubernetes.io/arch=amd64", "")),
    "one host": (selecting(**{"kubernetes.io/hostname": "a"}), {}, mismatch("kubernetes.io/hostname", "a", "no such label", "")),
    "a class that does not exist": (
        selecting(**{"cloud.google.com/compute-class": "x"}),
        {},
        "the Pod names the TPUSliceClass x, which does not exist",
    ),
    "a label that has another value in the template": (selecting(team="red"), {"spec": {"nodeLabels": {"team": "blue"}}}, mismatch("team", "red", "team=blue")),
    "an exclusive topology that no Node can have": (
        annotated(**{EXCLUSIVE: "beta.kubernetes.io/rack"}),
        {},
        "the exclusive topology of the Pod's JobSet is beta.kubernetes.io/rack, which the Nodes of its "
        "slice would not have: it must be cloud.google.com/gke-nodepool, or a label that can be given "
        "to Nodes",
    ),
    "a missing template": (
        annotated(**{"tpu-functions.dev/slice-template": "big"}),
        {},
        "the Pod names the TPUSliceClass big, which does not exist",
    ),
    "a template with fields of the Pod": (
        {},
        {"spec": {**OF_THE_POD, "instanceConfig": {"machineType": "ct6e-standard-4t"}}},
        f"{TEMPLATE} must not have {', '.join(f'spec.{name}' for name in OF_THE_POD)}, "
        "spec.instanceConfig.machineType: the Pod decides it",
    ),
    "a template that asks for repairs": (
        {},
        {"spec": {"repair": "Recreate"}},
        f"{TEMPLATE} must not have spec.repair: Recreate: jobset_lost_rebuild_minutes replaces its "
        "slices",
    ),
    "a template without an instanceConfig": (
        {},
        {"spec": {"instanceConfig": None}},
        f"{TEMPLATE} must be a TPUNodeGroup: spec.instanceConfig must be a mapping",
    ),
    "a template without a spec": ({}, {"spec": None}, f"{TEMPLATE} must be a TPUNodeGroup: spec must be a mapping"),
    "a template whose labels are a list": ({}, {"spec": {"nodeLabels": ["a"]}}, f"{TEMPLATE} must be a TPUNodeGroup: spec.nodeLabels must be a mapping"),
    "a template whose own labels are a list": ({}, {"metadata": {"labels": ["a"]}}, f"{TEMPLATE} must be a TPUNodeGroup: metadata.labels must be a mapping"),
    "a template whose annotations are text": (
        {},
        {"metadata": {"annotations": "a"}},
        f"{TEMPLATE} must be a TPUNodeGroup: metadata.annotations must be a mapping",
    ),
    "a template whose labels have a number for a key": (
        {},
        {"spec": {"nodeLabels": {1: 2}}},
        f"with {TEMPLATE} the TPUNodeGroup would be invalid: spec.nodeLabels.1: must be text, not 2",
    ),
    "a template with an invalid field": (
        {},
        {"spec": {"project": "P", "instanceConfig": {"image": None}}},
        f"with {TEMPLATE} the TPUNodeGroup would be invalid: spec.project: must be a project id, as in "
        "my-project, not 'P'; spec.instanceConfig.image: is required",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", INPUT_ERRORS.values(), ids=INPUT_ERRORS)
def test_an_impossible_value_of_a_pod_or_a_template_is_an_input_error(
    case: tuple[dict[str, Any], dict[str, Any], str],
) -> None:
    change, template, message = case
    with pytest.raises(InputError) as raised:
        build_desired(change, **template)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "must be a TPUNodeGroup: it must be a mapping"),
        ("- a", "must be a TPUNodeGroup: it must be a mapping"),
        ("{", "is not valid YAML: while parsing a flow node expected the node content"),
        ("spec: !!int x", "is not valid YAML: invalid literal for int()"),
        ("[" * 9_999, "is not valid YAML: maximum recursion depth exceeded"),
        ("spec: &a {spec: *a}", "is not valid YAML: Circular reference detected"),
        ("spec: !!bool x", "is not valid YAML: 'x'"),
    ],
)
def test_an_invalid_template_is_reported(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        build_group(*leader(), {"template": text})
    assert str(raised.value).startswith(f"{TEMPLATE} {message}")


def test_an_annotation_of_the_pod_selects_another_template() -> None:
    change = annotated(**{"tpu-functions.dev/slice-template": "east"})
    east = options(spec={"nodeLocation": "us-east5-b"})["template"]
    one = build_group(*leader(**change), {**options(), "template.east": east})
    assert one.body["spec"]["nodeLocation"] == "us-east5-b"


MODELS = [
    {"zone": "us-east5-b"},
    {"zone": "us-east5-b", "provisioningModel": "SPOT", "subnetwork": "other"},
    {"zone": "us-east5-a", "provisioningModel": "RESERVATION_BOUND", "reservation": "r/reservationBlocks/b/reservationSubBlocks/s"},
    {"zone": "us-east5-a", "provisioningModel": "FLEX_START", "maxRunDuration": "7d", "project": "other-project"},
]  # fmt: skip


@pytest.mark.parametrize("candidate", MODELS, ids=lambda one: one.get("provisioningModel", ""))
def test_a_group_has_the_place_of_its_candidate_and_the_marks_of_its_class(
    candidate: dict[str, str],
) -> None:
    demand, unit = leader()
    of = classes.parse(slice_class(candidates=[candidate], isDefault=True))
    one = build_group(demand, unit, {}, of)
    found = read_slice({**one.body, "metadata": {**one.body["metadata"], "uid": "u"}}, NOW)
    assert found is not None
    assert (found.place, found.class_name) == (one.place, "v6e")
    assert (found.asked, one.shape) == (NOW, ("ct6e-standard-4t", "4x4"))
    config = one.body["spec"]["instanceConfig"]
    given = {"project": "my-project", "provisioningModel": "STANDARD", **candidate}
    spec = {
        **config,
        "zone": one.body["spec"]["nodeLocation"],
        "project": one.body["spec"]["project"],
    }
    assert given.items() <= spec.items()
    assert one.hash == build_group(demand, unit, options()).hash


def test_a_pod_of_a_compute_class_gets_its_slice_and_the_label() -> None:
    demand, unit = leader(spec=selecting(**{COMPUTE_CLASS: "v6e"})["spec"])
    one = build_group(demand, unit, options(), classes.parse(slice_class()))
    assert one.body["spec"]["nodeLabels"][COMPUTE_CLASS] == "v6e"


FILTERS: dict[str, tuple[dict[str, str], str]] = {
    "none": ({}, "us-east5-b/STANDARD"),
    "the zone": ({"topology.kubernetes.io/zone": "us-east5-a"}, "us-east5-a/RESERVATION_BOUND/res-1"),
    "Spot": ({SPOT: "true"}, "us-east5-b/SPOT"),
    "the reservation": ({RESERVATION: "res-1"}, "us-east5-a/RESERVATION_BOUND/res-1"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILTERS.values(), ids=FILTERS)
def test_the_selectors_of_a_pod_leave_the_candidates_that_fit(
    case: tuple[dict[str, str], str],
) -> None:
    selected, key = case
    demand, unit = leader(spec=selecting(**selected)["spec"])
    one = build_group(demand, unit, {}, classes.parse(slice_class(isDefault=True)))
    assert one.place.key == f"my-project:{key}"


def test_a_pod_that_no_candidate_fits_is_told_what_is_wrong_with_each() -> None:
    demand, unit = leader(spec=selecting(**{RESERVATION: "res-2"})["spec"])
    candidates = [{"zone": "us-east5-b"}, {"zone": "us-east5-a"}]
    with pytest.raises(InputError, match="the Pod selects the reservation res-2"):
        build_group(
            demand, unit, {}, classes.parse(slice_class(candidates=candidates, isDefault=True))
        )


def test_the_labels_and_annotations_of_the_template_are_copied() -> None:
    metadata = {"labels": {"team": "red"}, "annotations": {"note": "x"}}
    written = build_desired(metadata=metadata).body["metadata"]
    assert written["labels"]["team"] == "red"
    assert written["annotations"]["note"] == "x"


def test_the_name_of_a_job_that_is_too_long_for_a_label_is_an_annotation() -> None:
    job = "j" * 64
    owner = {"kind": "Job", "name": job, "controller": True}
    labels = {"jobset.sigs.k8s.io/job-key": job_key(NAMESPACE, job)}
    written = build_desired({"metadata": {"ownerReferences": [owner], "labels": labels}}).body[
        "metadata"
    ]
    assert written["annotations"]["tpu-functions.dev/job-name"] == job
    assert "tpu-functions.dev/job-name" not in written["labels"]


Change = Callable[[], DesiredSlice]
SAME: dict[str, Change] = {
    "a label that is copied": lambda: build_desired(
        {"metadata": {"labels": {"a": "1"}, "annotations": {COPY: "a"}}}
    ),
    "another image": lambda: build_desired(spec={"instanceConfig": {"image": "other"}}),
    "another zone of the installation": lambda: build_desired(spec={"nodeLocation": "us-east5-b"}),
    "another attempt": lambda: build_desired(
        {"metadata": {"labels": {"jobset.sigs.k8s.io/restart-attempt": "1"}}}
    ),
}
OTHER: dict[str, Change] = {
    "another topology": lambda: build_desired(
        selecting(**{"cloud.google.com/gke-tpu-topology": "4x8"})
    ),
    "Spot": lambda: build_desired(selecting(**{SPOT: "true"})),
    "a reservation": lambda: build_desired(selecting(**{RESERVATION: "r"})),
    "another selector": lambda: build_desired(selecting(team="red")),
    "another machine": lambda: build_desired(
        {"chips": 8, **selecting(**{"cloud.google.com/gke-tpu-topology": "2x4"})}
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_a_change_that_the_existing_slice_also_fulfils_keeps_the_hash(case: str) -> None:
    assert SAME[case]().hash == build_desired().hash


@pytest.mark.parametrize("case", OTHER)
def test_a_change_that_needs_another_slice_changes_the_hash(case: str) -> None:
    assert OTHER[case]().hash != build_desired().hash


@pytest.mark.conformance("state-other-jobset")
def test_the_slice_of_another_jobset_has_another_name() -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "train-2"}
    assert build_desired({"metadata": {"labels": labels}}).name == "train-2-bfcf5ebea76efcf5"


def test_the_manifest_is_plain_data() -> None:
    body = build_desired().body
    assert yaml.safe_load(yaml.safe_dump(body)) == body
