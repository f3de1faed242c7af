# ruff: noqa: E501  (a table reads best with a row on a line)
"""The node pool for a Job: the request to GKE, the input errors, and how a pool is read as a slice."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from shared.base.environment import SettingsError
from shared.base.reasons import Reason
from shared.base.slice_names import job_key, slice_name
from shared.ports.gke_settings import GkeSettings, Network
from shared.slices.by_node_pool.desired_pool import (
    NETWORKS,
    POOL_GENERATIONS,
    SERVICE_ACCOUNT,
    count_nodes,
    get_generation,
    make_hash,
)
from shared.slices.by_node_pool.found_pools import (
    RELEASE_LABEL,
    is_managed,
    labels_with_deadline,
    older_name,
    read_found,
    read_slice,
)
from shared.slices.classes import Place, SliceClass, parse
from shared.slices.provider import NameConflict, Slice, SliceState
from shared.slices.selectors import COPY_LABELS, SPOT
from shared.slices.units import InputError, Unit
from tests.support.builders import DATA
from tests.support.class_specs import slice_class
from tests.support.slices import build_pool
from tests.unit.shared.slices.by_node_pool.objects import (
    DOCUMENT,
    ENVIRONMENT,
    SETTINGS,
    TOLERATION,
    body,
    labelled,
    leader,
    pool,
    read_settings,
)

ROWS: dict[str, dict[str, Any]] = {row["id"]: row for row in DOCUMENT["rows"]}


HASH = "google.com/tpu-provisioner-nodepool-hash"


def get_input_error(settings: GkeSettings = SETTINGS, **change: Any) -> str:
    with pytest.raises(InputError) as raised:
        build_pool(*leader(**change), settings)
    return str(raised.value)


# Pools as TPU Provisioner creates them

DIFFERS: dict[str, dict[str, Any]] = {
    "nodepool-simple": {"name": "jobset-test-78c32d3b806d5259"},
    "nodepool-spot": {"given": {"tolerations": [TOLERATION]}},
    "nodepool-selector-system-label-copied": {"config.labels_added": {}},
    "nodepool-service-account-annotation-empty": {"config.serviceAccount": "default-sa"},
    "nodepool-tpu7x-single-host": {"placementPolicy": {}},
    "nodepool-v6e-2x4-8-chips": {"initialNodeCount": 1},
    "nodepool-v5e-2x4-8-chips": {"initialNodeCount": 1, "placementPolicy": {}},
    "nodepool-v5e-2x2-4-chips": {"placementPolicy": {}},
    "nodepool-v5p-2x2x1-4-chips": {"placementPolicy": {}},
}
"""The differences from a row."""

_ON_DEMAND = (
    "the Pod's nodeSelector has {}, which no on-demand Node has, and GCP_FORCE_ON_DEMAND is set: the "
    "selector must be taken out, as the admission of Jobs does where FORCE_ON_DEMAND is set there too"
)
INPUT_ERRORS: dict[str, str] = {
    "nodepool-selector-google-prefix-not-copied": "the Pod's nodeSelector has cloud.google.com/gke-nodepool=x, and the Nodes of its slice would have cloud.google.com/gke-nodepool=jobset-test-78c32d3b806d5259: it must be taken out",
    "nodepool-v6e-4x4-16-chips": "the Pod asks for 16 of google.com/tpu: a host of tpu-v6e-slice has 1, 4 or 8, all of which the Pod must ask for",
    "nodepool-spot-forced-on-demand": _ON_DEMAND.format("cloud.google.com/gke-spot"),
    "nodepool-force-on-demand-selector-stays": _ON_DEMAND.format("cloud.google.com/gke-spot"),
    "nodepool-reservation-forced-on-demand": _ON_DEMAND.format("cloud.google.com/reservation-name"),
    "nodepool-copy-labels-can-overwrite-own-labels": "the Pod's annotation tpu-provisioner.cloud.google.com/copy-labels names google.com/tpu-provisioner-jobset-name: labels under google.com and tpu-functions.dev say whose a Node is and are not copied; it must name others",
    "nodepool-spot-and-reservation": "the Pod's nodeSelector has both cloud.google.com/gke-spot and cloud.google.com/reservation-name: VMs of a reservation are never Spot; it must have one of them",
    "nodepool-reservation-project-alone": "the Pod's nodeSelector has cloud.google.com/reservation-project, which no Node has unless its reservation is named: cloud.google.com/reservation-name must name one, or both must be taken out",
    "nodepool-spot-without-toleration": "the Nodes of the Pod's slice would have the taint cloud.google.com/gke-spot=true:NoSchedule: the Pod must tolerate it",
}
BASE_LABELS = ROWS["nodepool-simple"]["expect"]["node_pool"]["config.labels"]
POOLS = [name for name, row in ROWS.items() if row["area"] == "nodepool"]


def of_rows(names: Iterable[str]) -> list[Any]:
    """Cases that are rows, and are marked as their tests."""
    return [pytest.param(name, marks=pytest.mark.conformance(name)) for name in names]


def settings_of(row: Mapping[str, Any]) -> GkeSettings:
    return read_settings({**ENVIRONMENT, **row["given"].get("config", {})})


def without_empty(value: Any) -> Any:
    """Return the value as the API returns it, without fields that are false, empty or 0."""
    if isinstance(value, dict):
        nonempty = {key: without_empty(inner) for key, inner in value.items()}
        return {key: inner for key, inner in nonempty.items() if inner} or None
    return value or None


def read_path(document: Mapping[str, Any], path: str) -> Any:
    found: Any = document
    for part in path.split("."):
        found = (found or {}).get(part)
    return found


def find_value(document: Mapping[str, Any], path: str) -> Any:
    """Return the value in a request's body for a key of a row."""
    labels = {key: value for key, value in document["config"]["labels"].items() if key != HASH}
    if path == "config.labels":
        return labels
    if path == "config.labels_added":
        return {key: value for key, value in labels.items() if key not in BASE_LABELS}
    return read_path(document, path)


@pytest.mark.parametrize("name", of_rows(name for name in POOLS if name not in INPUT_ERRORS))
def test_a_pool_is_requested_as_tpu_provisioner_does(name: str) -> None:
    row, change = ROWS[name], dict(DIFFERS.get(name, {}))
    given = {**row["given"].get("pod", {}), **change.pop("given", {})}
    expected = {**row["expect"]["node_pool"], **change}
    request = body(settings_of(row), **given)
    assert request["config"]["labels"][HASH]
    for path, value in expected.items():
        if path.endswith(("_ignore", "_include")):
            continue
        expected_value = [SETTINGS.zone] if value == ["<GCP_ZONE>"] else value
        assert without_empty(find_value(request, path)) == without_empty(expected_value), path


@pytest.mark.parametrize("name", of_rows(INPUT_ERRORS))
def test_a_pool_that_the_pod_could_not_use_is_an_input_error(name: str) -> None:
    row = ROWS[name]
    assert get_input_error(settings_of(row), **row["given"].get("pod", {})) == INPUT_ERRORS[name]


def test_each_row_that_is_known_to_be_wrong_has_a_difference_and_each_other_one_a_reason() -> None:
    wrong = {name for name in POOLS if ROWS[name]["verdict"] == "known_wrong"}
    changed = {*DIFFERS, *INPUT_ERRORS}
    assert wrong <= changed
    assert changed - wrong <= {*DOCUMENT["differs"]}


@pytest.mark.conformance("hash-value-base-pod")
def test_a_pool_is_requested_with_these_fields() -> None:
    assert body() == {
        "name": "jobset-test-78c32d3b806d5259",
        "initialNodeCount": 512,
        "locations": ["us-east5-a"],
        "config": {
            "machineType": "ct5p-hightpu-4t",
            "labels": {
                "google.com/nodepool-manager": "tpu-provisioner",
                "google.com/tpu-provisioner-parent-kind": "job",
                "google.com/tpu-provisioner-parent-name": "jobset-test-job-1-0",
                "google.com/tpu-provisioner-parent-namespace": "default",
                "google.com/tpu-provisioner-jobset-name": "jobset-test",
                "google.com/tpu-provisioner-jobset-namespace": "default",
                "google.com/tpu-provisioner-nodepool-hash": "57ccb686c7",
            },
            "shieldedInstanceConfig": {"enableIntegrityMonitoring": True, "enableSecureBoot": True},
        },
        "placementPolicy": {"type": "COMPACT", "tpuTopology": "8x16x16"},
        "management": {"autoRepair": True, "autoUpgrade": False},
        "upgradeSettings": {"maxSurge": 1},
        "maxPodsConstraint": {"maxPodsPerNode": 15},
    }


def test_a_desired_slice_has_owner_size_and_hash() -> None:
    desired = build_pool(*leader(), SETTINGS)
    assert desired.unit == Unit("JobSet", "default", "jobset-test", "jobset-test-job-1-0")
    assert desired.size == "512 hosts of ct5p-hightpu-4t (8x16x16)"
    assert desired.hash == desired.body["config"]["labels"][HASH]
    single = build_pool(*leader(node_selector=_selector("tpu-v6e-slice", "2x4"), tpu=8), SETTINGS)
    assert single.size == "1 host of ct6e-standard-8t (2x4)"


def _selector(accelerator: str, topology: str, **more: str) -> dict[str, str]:
    return {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
        **more,
    }


def test_the_zone_that_a_pod_selects_overrides_the_setting() -> None:
    selected = {"topology.kubernetes.io/zone": "us-east5-b"}
    assert body(node_selector=selected)["locations"] == ["us-east5-b"]
    assert body(replace(SETTINGS, zone=""), node_selector=selected)["locations"] == ["us-east5-b"]


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_annotation_does_not_override_the_settings(blank: str) -> None:
    settings = replace(SETTINGS, service_account="sa@p", networks=(Network("n", "s"),))
    request = body(settings, annotations={SERVICE_ACCOUNT: blank, NETWORKS: blank})
    assert request["config"]["serviceAccount"] == "sa@p"
    assert request["networkConfig"] == {
        "additionalNodeNetworkConfigs": [{"network": "n", "subnetwork": "s"}]
    }


def test_a_secondary_disk_enables_image_streaming() -> None:
    disk = "projects/my-project/global/images/cache"
    config = body(replace(SETTINGS, secondary_disk=disk))["config"]
    assert config["secondaryBootDisks"] == [{"diskImage": disk, "mode": "CONTAINER_IMAGE_CACHE"}]
    assert config["gcfsConfig"] == {"enabled": True}


def test_a_selector_becomes_a_label_of_the_nodes_unless_google_owns_its_prefix() -> None:
    copied = {
        "job-key": "abc",
        "kueue.x-k8s.io/flavor": "spot",
        "team": "a",
        "cloud.google.com/gke-tpu-ici-resiliency": "false",
        "node.kubernetes.io/x": "y",
        "a.kubelet.kubernetes.io/x": "y",
    }
    not_copied = dict.fromkeys(
        (
            "iam.gke.io/x",
            "storage.googleapis.com/x",
            "a.google.com/x",
        ),
        "y",
    )
    labels = body(node_selector={**copied, **not_copied})["config"]["labels"]
    assert {
        key: value for key, value in labels.items() if key not in (*BASE_LABELS, HASH)
    } == copied


EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"


@pytest.mark.parametrize(
    "key, added",
    [
        ("rack", {"rack": "jobset-test-78c32d3b806d5259"}),
        ("cloud.google.com/gke-nodepool", {}),
        ("topology.kubernetes.io/zone", {}),
        ("kubernetes.io/hostname", {}),
        ("cloud.google.com/gce-topology-block", {}),
    ],
)
def test_the_nodes_have_the_label_of_the_exclusive_topology(
    key: str, added: dict[str, str]
) -> None:
    labels = body(annotations={EXCLUSIVE: key})["config"]["labels"]
    assert labels == {**body()["config"]["labels"], **added}


@pytest.mark.parametrize(
    "key",
    [
        "topology.kubernetes.io/rack",
        "tpu-functions.dev/rack",
        "cloud.google.com/tpu-node-group-name",
        "cloud.google.com/gke-spot",
    ],
)
def test_an_exclusive_topology_that_no_node_of_the_pool_has_is_an_input_error(key: str) -> None:
    assert get_input_error(annotations={EXCLUSIVE: key}) == (
        f"the exclusive topology of the Pod's JobSet is {key}, which the Nodes of its slice would not have: "
        "it must be cloud.google.com/gke-nodepool, or a label that can be given to Nodes"
    )


def test_a_pod_cannot_override_the_labels_that_name_the_owner_of_its_pool() -> None:
    forged = dict.fromkeys((*BASE_LABELS, HASH), "forged")
    assert "forged" not in body(labels=forged)["config"]["labels"].values()
    for key, value in {**BASE_LABELS, HASH: "57ccb686c7"}.items():
        assert get_input_error(node_selector={key: "forged"}) == (
            f"the Pod's nodeSelector has {key}=forged, and the Nodes of its slice would have {key}={value}: "
            "it must be taken out"
        )


def test_the_label_job_key_is_not_copied_from_a_pod() -> None:
    copied = {"tpu-provisioner.cloud.google.com/copy-labels": "job-key"}
    request = body(labels={"job-key": "forged"}, annotations=copied)
    assert "job-key" not in request["config"]["labels"]


@pytest.mark.parametrize(
    "toleration, tolerates",
    [
        (TOLERATION, True),
        ({"key": SPOT, "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": SPOT, "value": "true"}, True),
        ({"key": SPOT, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": SPOT, "value": "false", "effect": "NoSchedule"}, False),
        ({"key": "google.com/tpu", "operator": "Exists"}, False),
        ({"value": "true"}, False),
    ],
    ids=lambda value: json.dumps(value),
)
def test_a_spot_pool_requires_a_toleration_of_spot(
    toleration: dict[str, str], tolerates: bool
) -> None:
    given: dict[str, Any] = {"node_selector": {SPOT: "true"}, "tolerations": [toleration]}
    if tolerates:
        assert body(**given)["config"]["spot"] is True
    else:
        assert get_input_error(**given) == INPUT_ERRORS["nodepool-spot-without-toleration"]


INPUTS: list[Any] = [
    pytest.param(
        {"node_selector": {"cloud.google.com/gke-tpu-accelerator": None}},
        "the Pod's nodeSelector cloud.google.com/gke-tpu-accelerator is missing: it must be tpu-v4-podslice, tpu-v5-lite-podslice, tpu-v5p-slice, tpu-v6e-slice or tpu7x",
        id="no accelerator",
    ),
    pytest.param(
        {"node_selector": {"cloud.google.com/gke-tpu-accelerator": "gpu"}},
        "the Pod's nodeSelector cloud.google.com/gke-tpu-accelerator is 'gpu': it must be tpu-v4-podslice, tpu-v5-lite-podslice, tpu-v5p-slice, tpu-v6e-slice or tpu7x",
        id="accelerator",
    ),
    pytest.param({"tpu": 8}, "the Pod asks for 8 of google.com/tpu: a host of tpu-v5p-slice has 4, all of which the Pod must ask for", id="chips"),
    pytest.param(
        {"node_selector": _selector("tpu-v6e-slice", "4x4x4")},
        "the Pod's nodeSelector cloud.google.com/gke-tpu-topology is '4x4x4': a topology of tpu-v6e-slice has 2 numbers above 0, as in 4x4",
        id="dimensions",
    ),
    pytest.param(
        {"node_selector": {"cloud.google.com/gke-tpu-topology": "2x0x2"}},
        "the Pod's nodeSelector cloud.google.com/gke-tpu-topology is '2x0x2': a topology of tpu-v5p-slice has 3 numbers above 0, as in 2x2x2",
        id="a zero",
    ),
    pytest.param(
        {"node_selector": _selector("tpu-v6e-slice", "1x1")},
        "the topology 1x1 has 1 chips, which hosts of 4 do not make up: the Pod must ask for as much of google.com/tpu as a host of the slice has",
        id="a topology smaller than a host",
    ),
    pytest.param(
        {"node_selector": _selector("tpu-v6e-slice", "3x3")},
        "the topology 3x3 has 9 chips, which hosts of 4 do not make up: the Pod must ask for as much of google.com/tpu as a host of the slice has",
        id="a topology with a remainder",
    ),
    pytest.param(
        {"node_selector": _selector("tpu-v6e-slice", "99999999999x4")},
        "the topology 99999999999x4 would need 99999999999 hosts: no slice has so many",
        id="too many hosts",
    ),
    pytest.param(
        {"node_selector": _selector("tpu-v6e-slice", "4x4"), "tpu": 8},
        "the topology 4x4 would need 2 hosts of 8 chips: the hosts of a slice with more than one have 4, which the Pod must ask for",
        id="large hosts",
    ),
    pytest.param(
        {"annotations": {COPY_LABELS: RELEASE_LABEL}, "labels": {RELEASE_LABEL: "99999999999"}},
        "the Pod's annotation tpu-provisioner.cloud.google.com/copy-labels names tpu-functions.dev/release-after: labels under google.com and tpu-functions.dev say whose a Node is and are not copied; it must name others",
        id="a release deadline as a label",
    ),
    pytest.param(
        {"node_selector": {RELEASE_LABEL: "99999999999"}},
        "the Pod's nodeSelector has tpu-functions.dev/release-after=99999999999, and the Nodes of its slice would have no such label: it must be taken out",
        id="a release deadline as a selector",
    ),
    pytest.param(
        {"node_selector": {SPOT: "false"}},
        'the Pod\'s nodeSelector cloud.google.com/gke-spot must be "true", or not be there',
        id="Spot with the value false",
    ),
    pytest.param(
        {"node_selector": {"cloud.google.com/reservation-name": ""}},
        "the Pod's nodeSelector has cloud.google.com/reservation-name, which no Node has unless its reservation is named: cloud.google.com/reservation-name must name one, or both must be taken out",
        id="a reservation without a name",
    ),
    pytest.param(
        {"node_selector": {"topology.kubernetes.io/zone": ""}},
        "the Pod's nodeSelector has topology.kubernetes.io/zone=, and the Nodes of its slice would have topology.kubernetes.io/zone=us-east5-a: it must be taken out",
        id="a zone without a name",
    ),
    pytest.param(
        {"annotations": {NETWORKS: "a:b, c"}},
        "the Pod's annotation tpu-provisioner.cloud.google.com/additional-node-networks is 'a:b, c': it must be network:subnetwork pairs, separated by commas",
        id="networks",
    ),
]  # fmt: skip


@pytest.mark.parametrize("given, message", INPUTS)
def test_an_invalid_field_of_a_pod_is_an_input_error_with_the_valid_values(
    given: dict[str, Any], message: str
) -> None:
    assert get_input_error(**given) == message


@pytest.mark.parametrize(
    "key, fits, does_not",
    [
        ("cloud.google.com/gke-nodepool", "jobset-test-78c32d3b806d5259", "x"),
        ("cloud.google.com/gke-accelerator-count", "4", "8"),
        ("node.kubernetes.io/instance-type", "ct5p-hightpu-4t", "ct5p-hightpu-8t"),
        ("topology.kubernetes.io/region", "us-east5", "us-east1"),
        ("kubernetes.io/os", "linux", "windows"),
        ("kubernetes.io/arch", "amd64", "arm64"),
        ("beta.kubernetes.io/os", "linux", "windows"),
        ("beta.kubernetes.io/arch", "amd64", "arm64"),
        ("beta.kubernetes.io/instance-type", "ct5p-hightpu-4t", "ct5p-hightpu-8t"),
        ("failure-domain.beta.kubernetes.io/zone", "us-east5-a", "us-east5-b"),
        ("failure-domain.beta.kubernetes.io/region", "us-east5", "us-east1"),
    ],
)
def test_a_selector_that_no_node_of_the_pool_matches_is_an_input_error(
    key: str, fits: str, does_not: str
) -> None:
    assert key not in body(node_selector={key: fits})["config"]["labels"]
    assert get_input_error(node_selector={key: does_not}) == (
        f"the Pod's nodeSelector has {key}={does_not}, and the Nodes of its slice would have "
        f"{key}={fits}: it must be taken out"
    )


@pytest.mark.parametrize(
    "key",
    [
        "alpha.jobset.sigs.k8s.io/namespaced-job",
        "kubernetes.io/hostname",
        "node-restriction.kubernetes.io/team",
        "example.com.node-restriction.kubernetes.io/team",
        "node-role.kubernetes.io/worker",
        "k8s.io/x",
    ],
)
def test_a_selector_that_gke_accepts_for_no_pool_is_an_input_error(key: str) -> None:
    assert get_input_error(node_selector={key: "x"}) == (
        f"the Pod's nodeSelector has {key}=x, and the Nodes of its slice would have no such label: it "
        "must be taken out, because GKE takes no label under k8s.io or kubernetes.io for the Nodes of a pool"
    )


@pytest.mark.parametrize("name", ["", "-name", "-namespace"])
def test_a_selector_of_a_node_group_is_an_input_error(name: str) -> None:
    key = f"cloud.google.com/tpu-node-group{name}"
    assert get_input_error(node_selector={key: "x"}) == (
        f"the Pod's nodeSelector has {key}=x, and the Nodes of its slice would have no such label: it must "
        "be taken out"
    )


def affinity(*terms: Mapping[str, Any]) -> dict[str, Any]:
    """Return a required node affinity; a term maps each key to an operator with values."""
    listed = [
        {
            "matchExpressions": [
                {"key": key, "operator": text.split()[0], "values": text.split()[1:]}
                for key, text in term.items()
            ]
        }
        for term in terms
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": listed}}
    return {"nodeAffinity": required}


TEAM = {"node_selector": {"team": "a"}}
UNKNOWN = "cloud.google.com/machine-family"
"""A label that GKE may set and this system does not know."""
AFFINITIES: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "a label that the Pod selects": (affinity({"team": "In a b"}), TEAM, None),
    "a label that the Pod does not select": (affinity({"team": "In a b"}), {}, "team In [a, b]"),
    "another value than the Pod selects": (affinity({"team": "NotIn a"}), TEAM, "team NotIn [a]"),
    "the pool's zone": (affinity({"topology.kubernetes.io/zone": "In us-east5-a"}), {}, None),
    "another zone": (
        affinity({"topology.kubernetes.io/zone": "In us-east5-b"}),
        {},
        "topology.kubernetes.io/zone In [us-east5-b]",
    ),
    "the topology": (affinity({"cloud.google.com/gke-tpu-topology": "In 8x16x16"}), {}, None),
    "another topology": (
        affinity({"cloud.google.com/gke-tpu-topology": "NotIn 8x16x16"}),
        {},
        "cloud.google.com/gke-tpu-topology NotIn [8x16x16]",
    ),
    "the pool": (affinity({"cloud.google.com/gke-nodepool": "In other"}), {}, "cloud.google.com/gke-nodepool In [other]"),
    "a label of GKE that is unknown": (affinity({UNKNOWN: "In ct5p"}), {}, None),
    "Spot": (affinity({SPOT: "In true"}), {}, f"{SPOT} In [true]"),
    "Spot, selected": (affinity({SPOT: "In true"}), {"node_selector": {SPOT: "true"}, "tolerations": [TOLERATION]}, None),
    "anything but Spot": (affinity({SPOT: "NotIn true"}), {}, None),
    "a reservation": (affinity({"cloud.google.com/reservation-name": "Exists"}), {}, "cloud.google.com/reservation-name Exists"),
    "a reservation, selected": (affinity({"cloud.google.com/reservation-name": "In r"}), {"node_selector": {"cloud.google.com/reservation-name": "r"}}, None),
    "a host by its name": (affinity({"kubernetes.io/hostname": "In h"}), {}, "kubernetes.io/hostname In [h]"),
    "one of two terms": (affinity({"team": "In a"}, {"team": "DoesNotExist"}), {}, None),
    "none of two terms": (affinity({"team": "In a"}, {"team": "In b"}), {}, "team In [a]"),
    "a term of two labels, one of which is missing": (affinity({"team": "DoesNotExist", "rack": "Exists"}), {}, "rack Exists"),
    "nothing": (affinity({}), {}, "an empty term"),
    "a Node by its name": (
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name"}]}]}}},
        {},
        "matchFields",
    ),
    "a preference": (
        {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "preference": {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
                    }
                ]
            }
        },
        {},
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AFFINITIES.values(), ids=AFFINITIES)
def test_a_required_affinity_that_no_node_would_match_is_an_input_error(
    case: tuple[dict[str, Any], dict[str, Any], str | None],
) -> None:
    required, change, unmet = case
    if unmet is None:
        assert body(affinity=required, **change)
        return
    assert get_input_error(affinity=required, **change) == (
        f"the Pod's required nodeAffinity has {unmet}, which no Node of its slice would match: it must be "
        "taken out, or the nodeSelector must have the label, too: a pool gets labels from nothing else"
    )


@pytest.mark.parametrize(
    "accelerator, topology, chips, own",
    [
        ("tpu-v6e-slice", "1x4", 4, "2x2"),
        ("tpu-v6e-slice", "4x2", 8, "2x4"),
        ("tpu-v5p-slice", "1x2x2", 4, "2x2x1"),
        ("tpu7x", "4x1x1", 4, "2x2x1"),
        ("tpu7x", "1x2x2", 4, "2x2x1"),
    ],
)
def test_a_single_host_slice_must_have_the_topology_of_gke(
    accelerator: str, topology: str, chips: int, own: str
) -> None:
    assert body(node_selector=_selector(accelerator, own), tpu=chips)["initialNodeCount"] == 1
    assert get_input_error(node_selector=_selector(accelerator, topology), tpu=chips) == (
        f"the Pod's nodeSelector cloud.google.com/gke-tpu-topology is '{topology}': a slice of one host "
        f"of {accelerator} with {chips} chips is {own}, which it must be"
    )


@pytest.mark.conformance("config-zone-from-controller")
def test_a_pod_without_a_zone_is_an_input_error_if_no_zone_is_set() -> None:
    assert get_input_error(replace(SETTINGS, zone="")) == (
        "the Pod selects no topology.kubernetes.io/zone and GCP_ZONE is not set: one of them must name the zone"
    )


def test_an_owner_whose_pool_cannot_be_named_after_it_is_told_so() -> None:
    demand, _ = leader()
    with pytest.raises(InputError) as raised:
        build_pool(demand, Unit("Deployment", "default", "70b-serve", "0"), SETTINGS)
    assert str(raised.value) == (
        "Deployment 70b-serve has a name that begins with a digit, and its node pools are named after it: "
        "GKE requires a letter first. Create it again with another name"
    )


def test_the_annotations_of_a_pod_override_the_settings() -> None:
    settings = replace(SETTINGS, service_account="all@x", networks=(Network("n", "s"),))
    own = {SERVICE_ACCOUNT: "mine@x", NETWORKS: "mine:sub"}
    request = body(settings, annotations=own)
    assert request["config"]["serviceAccount"] == "mine@x"
    pairs = request["networkConfig"]["additionalNodeNetworkConfigs"]
    assert pairs == [{"network": "mine", "subnetwork": "sub"}]
    assert body(settings)["config"]["serviceAccount"] == "all@x"


# Machine types and counts


def _machines() -> list[Any]:
    rows = [row for row in ROWS.values() if row["area"] == "machine_type"]
    return [
        pytest.param(
            row["given"]["accelerator"],
            chips,
            expected,
            id=f"{row['id']}-{chips}",
            marks=pytest.mark.conformance(row["id"]),
        )
        for row in rows
        if row["verdict"] == "same" and isinstance(row["expect"].get("machine_type"), list)
        for chips, expected in zip(row["given"]["tpu"], row["expect"]["machine_type"], strict=True)
    ]


@pytest.mark.parametrize("accelerator, chips, expected", _machines())
def test_the_machine_type_follows_from_accelerator_and_chips(
    accelerator: str, chips: int, expected: str
) -> None:
    assert get_generation(accelerator).machine_type(chips) == expected


@pytest.mark.conformance(
    cases={
        "negative": "machine-negative",
        "too many": "machine-v5p-8-not-checked",
        "unknown accelerator": "machine-unknown-accelerator",
    }
)
@pytest.mark.parametrize(
    "accelerator, chips",
    [("not-an-accel", 4), ("tpu-v5p-slice", -1), ("tpu-v5p-slice", 8)],
    ids=["unknown accelerator", "negative", "too many"],
)
def test_a_machine_type_that_does_not_exist_is_an_input_error(accelerator: str, chips: int) -> None:
    with pytest.raises(InputError):
        count_nodes(accelerator, "2x2x1", chips)


@pytest.mark.conformance("machine-sum-over-containers")
def test_the_chips_of_all_containers_are_added() -> None:
    request = body(node_selector=_selector("tpu-v6e-slice", "2x4"), containers=[4, 4])
    assert request["config"]["machineType"] == "ct6e-standard-8t"


def _counts() -> Iterator[Any]:
    rows = [
        row for row in ROWS.values() if row["area"] == "node_count" and "count" in row["expect"]
    ]
    corrected = {"count-tpu-v5-lite-podslice-2x4-by-8": 1, "count-tpu-v6e-slice-2x4-by-8": 1}
    for row in rows:
        if row["expect"]["count"] == 0:
            continue
        given, expected = row["given"], corrected.get(row["id"], row["expect"]["count"])
        topologies = (
            given["topology"] if isinstance(given["topology"], list) else [given["topology"]]
        )
        counts = expected if isinstance(expected, list) else [expected]
        for topology, count in zip(topologies, counts, strict=True):
            if (
                topology == "1x2x2"
            ):  # not the topology of a slice of one host, which is tested above
                continue
            chips = given.get("chips_per_host", 1 if topology == "1x1" else 4)
            yield pytest.param(
                given["accelerator"],
                topology,
                chips,
                count,
                id=f"{row['id']}-{topology}",
                marks=pytest.mark.conformance(row["id"]),
            )


@pytest.mark.parametrize("accelerator, topology, chips, count", list(_counts()))
def test_the_number_of_nodes_follows_from_topology_and_chips(
    accelerator: str, topology: str, chips: int, count: int
) -> None:
    assert count_nodes(accelerator, topology, chips) == count


@pytest.mark.parametrize(
    "row",
    of_rows(
        ["count-unknown-accel", "count-not-a-topology", "count-v6e-three-dims", "count-zero-dim"]
    ),
)
def test_a_topology_without_a_number_of_nodes_is_an_input_error(row: str) -> None:
    given = ROWS[row]["given"]
    with pytest.raises(InputError):
        count_nodes(given["accelerator"], given["topology"], 4)


# Names

KEY = "759730a97e4373f3a0ee12805db065e3a4a649a5"
NAMES: list[Any] = [
    pytest.param("name-short-jobset", "myjobset", "myjobset-759730a97e4373f3", id="short"),
    pytest.param(
        "name-long-jobset",
        f"myjobset-{'a' * 34}",
        f"myjobset-{'a' * 14}-759730a97e4373f3",
        id="long",
    ),
]


@pytest.mark.conformance(cases={"long": "name-long-jobset", "short": "name-short-jobset"})
@pytest.mark.parametrize("row, jobset, name", NAMES)
def test_a_name_has_64_bits_of_the_jobs_key(row: str, jobset: str, name: str) -> None:
    given = ROWS[row]["given"]["labels"]
    assert slice_name(given["jobset.sigs.k8s.io/jobset-name"], KEY) == name
    assert slice_name(jobset, KEY) == name
    assert len(name) <= 40


@pytest.mark.conformance("name-same-after-restart", "name-job-key-algorithm")
def test_the_key_of_a_job_and_the_name_of_its_slice_are_kept_over_restarts() -> None:
    assert job_key("default", "test-job") == ROWS["name-job-key-algorithm"]["expect"]["job_key"]
    again = {"jobset.sigs.k8s.io/restart-attempt": "3"}
    assert build_pool(*leader(labels=again, annotations=again), SETTINGS) == build_pool(
        *leader(), SETTINGS
    )


@pytest.mark.conformance("name-collision-in-one-jobset", "name-collision-two-jobsets")
def test_keys_that_differ_in_their_first_64_bits_have_different_names() -> None:
    prefix = "a" * 34
    names = {slice_name(f"{prefix}-{end}", f"75973{end:0>35}") for end in ("1", "2")}
    assert len(names) == 1, (
        "keys with the same first 64 bits have the same name, and only the owner differs"
    )
    assert slice_name(prefix, f"759730{'0' * 34}") != slice_name(prefix, f"759731{'0' * 34}")


# Hashes

HASHES: list[tuple[str, Callable[[], str], Callable[[], str], bool]] = [
    ("machine types", lambda: make_hash({"machineType": "ct5p-hightpu-4t"}), lambda: make_hash({"machineType": "ct5p-hightpu-8t"}), False),
    ("labels", lambda: make_hash({"machineType": "x", "labels": {"a": "b"}}), lambda: make_hash({"machineType": "x", "labels": {"a": "c"}}), False),
    ("the order of labels", lambda: make_hash({"machineType": "x", "labels": {"a": "b", "c": "d"}}), lambda: make_hash({"machineType": "x", "labels": {"c": "d", "a": "b"}}), True),
    ("no fields", lambda: make_hash({"machineType": ""}), lambda: make_hash({"machineType": ""}), True),
    ("topologies", lambda: _hash(), lambda: _hash(node_selector={"cloud.google.com/gke-tpu-topology": "8x16x32"}), False),
    ("spot", lambda: _hash(), lambda: _hash(node_selector={SPOT: "true"}, tolerations=[TOLERATION]), False),
    ("reservations", lambda: _hash(), lambda: _hash(node_selector={"cloud.google.com/reservation-name": "r"}), False),
    ("selectors", lambda: _hash(), lambda: _hash(node_selector={"team": "a"}), False),
    ("zones", lambda: _hash(), lambda: _hash(node_selector={"topology.kubernetes.io/zone": "us-east5-b"}), False),
    (
        "copied labels",
        lambda: _hash(annotations={COPY_LABELS: "jobset.sigs.k8s.io/restart-attempt"}),
        lambda: _hash(
            annotations={COPY_LABELS: "jobset.sigs.k8s.io/restart-attempt"},
            labels={"jobset.sigs.k8s.io/restart-attempt": "1"},
        ),
        True,
    ),
    (
        "labels copied by settings",
        lambda: _hash(labels={"team": "a"}),
        lambda: _hash(replace(SETTINGS, pod_to_node_labels=("team",)), labels={"team": "a"}),
        True,
    ),
    (
        "all other settings",
        lambda: _hash(),
        lambda: _hash(
            GkeSettings(
                "p",
                "us-east5",
                "c",
                zone="us-east5-c",
                disk_type="d",
                max_pods=20,
                secure_boot=False,
                tags=("t",),
            )
        ),
        True,
    ),
    ("owners", lambda: _hash(), lambda: _hash(owner={"kind": "Job", "name": "another", "controller": True}), True),
]  # fmt: skip


def _hash(settings: GkeSettings = SETTINGS, **change: Any) -> str:
    return build_pool(*leader(**change), settings).hash


@pytest.mark.conformance(
    cases={
        "all other settings": "hash-upgrade-settings-not-hashed hash-config-change-rebuilds",
        "copied labels": "hash-restart-attempt-copied",
        "labels": "hash-labels-differ",
        "machine types": "hash-machine-type-differs",
        "no fields": "hash-two-empty",
        "reservations": "hash-value-base-pod-reservation",
        "spot": "hash-value-base-pod-spot",
    }
)
@pytest.mark.parametrize("case", HASHES, ids=[case[0] for case in HASHES])
def test_the_hash_follows_from_the_fields_that_a_pool_must_have(
    case: tuple[str, Callable[[], str], Callable[[], str], bool],
) -> None:
    _, one, other, are_equal = case
    assert (one() == other()) is are_equal


@pytest.mark.conformance("hash-value-2")
def test_a_hash_is_computed_as_in_tpu_provisioner() -> None:
    assert make_hash({"machineType": "ct5p-hightpu-4t"}) == ROWS["hash-value-2"]["expect"]["hash"]


# Pools that are read as slices


def in_place(zone: str = "us-east5-a", **config: Any) -> dict[str, Any]:
    found = pool()
    return {**found, "locations": [zone], "config": {**found["config"], **config}}


def reserved(name: str) -> dict[str, Any]:
    return {"reservationAffinity": {"values": [name]}}


@pytest.mark.parametrize(
    "found, place",
    [
        (in_place(), Place("us-east5-a")),
        (in_place("us-east5-b", spot=True), Place("us-east5-b", "SPOT")),
        (in_place(**reserved("r/reservationBlocks/b")), Place("us-east5-a", "RESERVATION_BOUND", "r/reservationBlocks/b")),
        (in_place(flexStart=True, maxRunDuration="3600s"), Place("us-east5-a", "FLEX_START", max_run="3600s")),
    ],
)  # fmt: skip
def test_the_candidate_of_a_pool_is_read_from_its_fields(
    found: dict[str, Any], place: Place
) -> None:
    read = read_slice(found).place
    assert read == place
    assert read is not None
    assert read.max_run == place.max_run


NODE_POOL = {
    "serviceAccount": "tpu-nodes@my-project.iam.gserviceaccount.com",
    "tags": ["tpu"],
    "additionalNetworks": [{"network": "n", "subnetwork": "s"}],
    "maxPodsPerNode": 30,
    "secureBoot": False,
    "secondaryDisk": "image",
}
POOL_PLACES: list[dict[str, str]] = [
    {"zone": "us-east5-b"},
    {"zone": "us-east5-b", "provisioningModel": "SPOT"},
    {"zone": "us-east5-c", "provisioningModel": "RESERVATION_BOUND", "reservation": "r/reservationBlocks/b"},
    {"zone": "us-east5-c", "provisioningModel": "FLEX_START", "maxRunDuration": "1h"},
]  # fmt: skip


def of_class(*candidates: dict[str, str]) -> SliceClass:
    change: dict[str, Any] = {"template": None, "nodePool": NODE_POOL, "candidates": [*candidates]}
    return parse(slice_class(isDefault=True, **change))


@pytest.mark.parametrize("candidate", POOL_PLACES, ids=lambda one: one.get("provisioningModel", ""))
def test_a_pool_has_the_place_of_its_candidate_and_the_properties_of_its_class(
    candidate: dict[str, str],
) -> None:
    one = build_pool(*leader(tolerations=[TOLERATION]), SETTINGS, of_class(candidate))
    found = read_slice({**one.body, "status": "RUNNING"})
    assert (found.place, found.class_name) == (one.place, "v6e")
    assert found.asked is not None
    config = one.body["config"]
    assert (config["serviceAccount"], config["tags"]) == (NODE_POOL["serviceAccount"], ["tpu"])
    assert config["shieldedInstanceConfig"] == {"enableIntegrityMonitoring": True}
    assert config["secondaryBootDisks"][0]["diskImage"] == "image"
    assert config.get("maxRunDuration") == ("3600s" if "maxRunDuration" in candidate else None)
    assert one.body["maxPodsConstraint"] == {"maxPodsPerNode": 30}
    assert one.body["networkConfig"] == {
        "additionalNodeNetworkConfigs": NODE_POOL["additionalNetworks"]
    }
    assert one.hash == build_pool(*leader(), SETTINGS).hash


DISKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the defaults": ({}, {}),
    "another type": ({"diskType": "hyperdisk-balanced"}, {"diskType": "hyperdisk-balanced"}),
    "a key of its own": ({"bootDiskKmsKey": "key"}, {"bootDiskKmsKey": "key"}),
    "confidential": ({"confidentialStorage": True}, {"enableConfidentialStorage": True}),
    "not confidential": ({"confidentialStorage": False}, {}),
}


@pytest.mark.parametrize("given, expected", DISKS.values(), ids=DISKS)
def test_a_pool_has_the_disks_of_its_class(given: dict[str, Any], expected: dict[str, Any]) -> None:
    change: dict[str, Any] = {"template": None, "nodePool": {**NODE_POOL, **given}}
    of = parse(slice_class(isDefault=True, candidates=POOL_PLACES[:1], **change))
    config = build_pool(*leader(), SETTINGS, of).body["config"]
    keys = ("diskType", "bootDiskKmsKey", "enableConfidentialStorage")
    assert {key: config[key] for key in keys if key in config} == expected


def test_a_spot_candidate_is_left_out_for_a_pod_that_does_not_tolerate_it() -> None:
    both = of_class({"zone": "us-east5-b", "provisioningModel": "SPOT"}, {"zone": "us-east5-c"})
    assert build_pool(*leader(), SETTINGS, both).place == Place("us-east5-c")
    with pytest.raises(InputError) as raised:
        build_pool(*leader(), SETTINGS, of_class(POOL_PLACES[1]))
    assert str(raised.value).startswith(
        "no candidate of TPUSliceClass v6e (spec.candidates) fits the Pod: the Nodes of the Pod's slice "
        "would have the taint cloud"
    )


def test_a_pod_that_no_candidate_fits_is_told_why_each_does_not() -> None:
    both = of_class(POOL_PLACES[1], {"zone": "us-east5-c"})
    selected = {**leader()[0].selector, "topology.kubernetes.io/zone": "us-east5-x"}
    with pytest.raises(InputError) as raised:
        build_pool(*leader(node_selector=selected), SETTINGS, both)
    assert str(raised.value).startswith(
        "no candidate of TPUSliceClass v6e (spec.candidates) fits the Pod: us-east5-b/SPOT: "
    )


def test_the_class_of_a_pool_and_when_its_pod_began_to_wait_are_read_from_labels() -> None:
    marks = {"tpu-functions.dev/slice-class": "v6e", "tpu-functions.dev/asked-at": "1764230400"}
    found = read_slice(labelled(**marks))
    assert (found.class_name, found.asked) == ("v6e", datetime(2025, 11, 27, 8, tzinfo=UTC))


STOCKOUT = (
    "Google Compute Engine does not have enough resources available to fulfill request: us-east5-a."
)
ENDS: dict[str, tuple[dict[str, Any], bool, Any]] = {
    "it is being created": ({"status": "PROVISIONING"}, False, None),
    "it runs": ({"status": "RUNNING"}, True, None),
    "it runs, with an error": ({"status": "RUNNING_WITH_ERROR", "statusMessage": STOCKOUT}, True, None),
    "it is being deleted": ({"status": "STOPPING"}, True, None),
    "there is no capacity": ({"status": "ERROR", "statusMessage": STOCKOUT}, False, (Reason.INSUFFICIENT_CAPACITY, STOCKOUT)),
    "a condition has the code": (
        {"status": "ERROR", "conditions": [{"code": "GCE_STOCKOUT", "message": "no room"}]},
        False,
        (Reason.INSUFFICIENT_CAPACITY, "no room"),
    ),
    "an error of no candidate": ({"status": "ERROR", "statusMessage": "denied"}, False, (Reason.REFUSED, "denied")),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS.values(), ids=ENDS)
def test_a_pool_that_could_not_be_created_has_the_refusal_in_the_clouds_words(
    case: tuple[dict[str, Any], bool, Any],
) -> None:
    change, has_vms, refusal = case
    found = read_slice(pool(**change))
    assert (found.has_vms, found.refusal, found.can_be_given_up) == (has_vms, refusal, False)
    is_stopping = change["status"] == "STOPPING"  # after it was complete, or after it has failed
    assert found.was_ready is (has_vms and not is_stopping)


@pytest.mark.parametrize(
    "status, state, is_self_healing",
    [
        ("PROVISIONING", SliceState.PROVISIONING, False),
        ("RECONCILING", SliceState.PROVISIONING, False),
        ("RUNNING", SliceState.READY, False),
        ("RUNNING_WITH_ERROR", SliceState.FAILED, True),
        ("ERROR", SliceState.FAILED, False),
        ("STOPPING", SliceState.DELETING, False),
        ("STATUS_UNSPECIFIED", SliceState.PROVISIONING, False),
    ],
)
def test_the_state_of_a_slice_follows_from_the_status_of_its_pool(
    status: str, state: SliceState, is_self_healing: bool
) -> None:
    found = read_slice(pool(status=status))
    assert (found.state, found.is_self_healing) == (state, is_self_healing)


def test_the_message_of_a_failed_pool_contains_each_error_once() -> None:
    stockout = "Google Compute Engine: [GCE_STOCKOUT]: no resources"
    conditions = [
        {"code": "GCE_STOCKOUT", "message": "no resources"},
        {"code": "UNKNOWN", "message": "and more"},
        {"code": "GCE_QUOTA_EXCEEDED"},
    ]
    found = read_slice(pool(status="ERROR", statusMessage=stockout, conditions=conditions))
    assert found.message == f"{stockout}; and more; GCE_QUOTA_EXCEEDED"
    assert read_slice(pool()).message == ""


def test_a_pool_is_read_as_the_slice_that_was_requested() -> None:
    desired = build_pool(*leader(), SETTINGS)
    found = read_found(pool(), desired)
    assert found == Slice(
        desired.name,
        desired.unit,
        desired.hash,
        SliceState.READY,
        chips=2048,
        place=Place("us-east5-a"),
    )
    assert desired.chips == 2048


@pytest.mark.conformance("hash-already-labelled")
def test_the_hash_of_a_pool_is_read_from_its_label() -> None:
    assert read_slice(labelled(hash="zzz")).hash == "zzz"
    assert read_slice(labelled(hash=None)).hash == ""


@pytest.mark.parametrize(
    "found, owner",
    [
        (labelled(manager=None), "a node pool that was not created for a workload"),
        (labelled(manager="another"), "a node pool that was not created for a workload"),
        (labelled(parent="other-job"), "the node pool of Job default/other-job of JobSet jobset-test"),
        (labelled(namespace="other"), "the node pool of Job other/jobset-test-job-1-0 of JobSet jobset-test"),
        (labelled(name="js"), "the node pool of Job default/jobset-test-job-1-0 of JobSet js"),
        ({"name": "jobset-test-78c32d3b806d5259", "status": "RUNNING"}, "a node pool that was not created for a workload"),
    ],
    ids=["no manager", "another manager", "another job", "another namespace", "another jobset", "no labels"],
)  # fmt: skip
def test_a_pool_with_the_name_and_another_owner_is_a_name_conflict(
    found: dict[str, Any], owner: str
) -> None:
    desired = build_pool(*leader(), SETTINGS)
    assert read_found(found, desired) == NameConflict("jobset-test-78c32d3b806d5259", owner)


def test_a_pod_that_selects_its_pool_by_name_does_not_select_an_older_pool() -> None:
    selected = {"cloud.google.com/gke-nodepool": "jobset-test-78c32d3b806d5259"}
    desired = build_pool(*leader(node_selector=selected), SETTINGS)
    current = read_found({**desired.body, "status": "RUNNING"}, desired)
    older = read_found({**desired.body, "name": "jobset-test-75973"}, desired)
    assert isinstance(current, Slice)
    assert isinstance(older, Slice)
    assert (current.is_selected, older.is_selected) == (True, False)


ICI = "cloud.google.com/gke-tpu-ici-resiliency"
LABELS: dict[str, tuple[dict[str, Any], dict[str, str | None], bool]] = {
    "the pool's own label": (TEAM, {}, True),
    "a label that the pool lacks": (TEAM, {"team": None}, False),
    "another value of a label": (TEAM, {"team": "b"}, False),
    "the Job's key, which the pool lacks": ({"node_selector": {"job-key": "k"}}, {"job-key": None}, False),
    "no label, which the pool has": ({}, {"team": "a"}, True),
    "a label by affinity that the pool lacks": ({**TEAM, "affinity": affinity({"team": "Exists"})}, {"team": None}, False),
    "another resiliency": ({"node_selector": {ICI: "true"}}, {ICI: "false"}, False),
    "a label that is copied": ({"labels": {"a": "b"}, "annotations": {COPY_LABELS: "a"}}, {"a": None}, True),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["", "jobset-test-75973"], ids=["the name of this system", "an older name"]
)
@pytest.mark.parametrize("case", LABELS.values(), ids=LABELS)
def test_a_pod_selects_a_pool_only_if_the_pool_has_the_required_labels(
    case: tuple[dict[str, Any], dict[str, str | None], bool], name: str
) -> None:
    change, existing_labels, is_expected = case
    desired = build_pool(*leader(**change), SETTINGS)
    found = json.loads(json.dumps({**desired.body, "status": "RUNNING"}))
    found["name"] = name or desired.name
    labels = {**found["config"]["labels"], **existing_labels}
    if name:
        labels[HASH] = "other"
    found["config"]["labels"] = {key: value for key, value in labels.items() if value is not None}
    one = read_found(found, desired)
    assert isinstance(one, Slice)
    assert (one.is_selected and one.hash in ("", desired.hash)) is is_expected


@pytest.mark.conformance(cases={"the oldest labels": "delete-legacy-id-label"})
@pytest.mark.parametrize(
    "labels, owner",
    [
        ({"google.com/tpu-provisioner-jobset-name": "js", "google.com/tpu-provisioner-jobset-namespace": "ns"}, Unit("JobSet", "ns", "js", "")),
        ({"google.com/tpu-provisioner-jobset-name": "js", "google.com/tpu-provisioner-parent-namespace": "ns"}, Unit("JobSet", "ns", "js", "")),
        ({"provisioner-nodepool-id": "js"}, Unit("JobSet", "default", "js", "")),
    ],
    ids=["current labels", "no label with the JobSet's namespace", "the oldest labels"],
)  # fmt: skip
def test_the_owner_of_a_pool_of_tpu_provisioner_is_read_from_its_labels(
    labels: dict[str, str], owner: Unit
) -> None:
    found = {"name": "js-75973", "config": {"labels": labels}}
    assert not is_managed(found)
    labels = {"google.com/nodepool-manager": "tpu-provisioner", **labels}
    found = {"name": "js-75973", "config": {"labels": labels}}
    assert is_managed(found)
    assert read_slice(found).unit == owner


@pytest.mark.parametrize(
    "copied",
    [{}, {"google.com/tpu-provisioner-jobset-name": "other"}, {"google.com/tpu-provisioner-jobset-namespace": "other"}],
    ids=["nothing", "the JobSet's name", "its namespace"],
)  # fmt: skip
def test_a_pool_of_tpu_provisioner_is_the_jobs_although_a_copied_label_names_another_jobset(
    copied: dict[str, str],
) -> None:
    desired = build_pool(*leader(), SETTINGS)
    labels = {**desired.body["config"]["labels"], **copied}
    name = older_name(desired.unit)
    found = {**desired.body, "name": name, "config": {**desired.body["config"], "labels": labels}}
    assert read_slice(found).unit == desired.unit
    assert isinstance(read_found(found, desired), Slice)


def test_a_release_deadline_is_read_back_and_does_not_change_the_other_labels() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    before = pool()
    labels = labels_with_deadline(before, moment)
    assert labels == {**before["config"]["labels"], RELEASE_LABEL: "1767323045"}
    with_deadline = pool(config={**before["config"], "labels": labels})
    assert read_slice(with_deadline).release_after == moment
    assert labels_with_deadline(with_deadline, None) == before["config"]["labels"]
    assert read_slice(labelled(**{RELEASE_LABEL: "soon"})).release_after is None


# Settings


@pytest.mark.conformance("config-list-spaces")
def test_settings_are_read_from_their_variables() -> None:
    given = {
        **ENVIRONMENT,
        "CONTAINER_ENDPOINT": "http://127.0.0.1:8080",
        "GCP_NODE_SERVICE_ACCOUNT": " nodes@my-project.iam.gserviceaccount.com ",
        "GCP_NODE_TAGS": "foo, bar,",
        "GCP_POD_TO_NODE_LABELS": "abc, xyz",
        "GCP_NODE_SECONDARY_DISK": "projects/p/global/images/i",
        "GCP_NODE_ADDITIONAL_NETWORKS": "n1:s1, n2 : s2",
        "GCP_NODE_DISK_TYPE": "hyperdisk-balanced",
        "GCP_NODE_BOOT_DISK_KMS_KEY": "key",
        "GCP_NODE_SECURE_BOOT": "False",
        "GCP_NODE_CONFIDENTIAL_STORAGE": "true",
        "GCP_FORCE_ON_DEMAND": "1",
        "GKE_MAX_PODS_PER_NODE": "32",
    }
    assert read_settings(given) == GkeSettings(
        project="my-project",
        location="us-east5",
        cluster="my-cluster",
        endpoint="http://127.0.0.1:8080",
        zone="us-east5-a",
        service_account="nodes@my-project.iam.gserviceaccount.com",
        tags=("foo", "bar"),
        pod_to_node_labels=("abc", "xyz"),
        secondary_disk="projects/p/global/images/i",
        networks=(Network("n1", "s1"), Network("n2", "s2")),
        disk_type="hyperdisk-balanced",
        boot_disk_kms_key="key",
        secure_boot=False,
        confidential_storage=True,
        force_on_demand=True,
        max_pods=32,
    )


def test_only_project_location_and_cluster_must_be_set() -> None:
    needed = {key: value for key, value in ENVIRONMENT.items() if key != "GCP_ZONE"}
    assert read_settings(needed) == GkeSettings("my-project", "us-east5", "my-cluster")


def test_the_settings_of_nodes_have_defaults() -> None:
    found = read_settings(ENVIRONMENT)
    assert (found.secure_boot, found.confidential_storage) == (True, False)
    assert (found.force_on_demand, found.max_pods) == (False, 15)


@pytest.mark.parametrize("text", ["true", "True", "1", "t", "false", "FALSE", "0", "f"])
def test_a_boolean_setting_has_the_spellings_of_tpu_provisioner(text: str) -> None:
    names = ("GCP_NODE_SECURE_BOOT", "GCP_NODE_CONFIDENTIAL_STORAGE", "GCP_FORCE_ON_DEMAND")
    found = read_settings({**ENVIRONMENT, **dict.fromkeys(names, text)})
    is_on = text.lower() in ("true", "1", "t")
    assert found.secure_boot is found.confidential_storage is found.force_on_demand is is_on


@pytest.mark.parametrize("pods", [8, 256])
def test_the_maximum_number_of_pods_is_8_to_256(pods: int) -> None:
    assert read_settings({**ENVIRONMENT, "GKE_MAX_PODS_PER_NODE": str(pods)}).max_pods == pods


INVALID: list[Any] = [
    pytest.param({"GCP_PROJECT_ID": ""}, "GCP_PROJECT_ID is not set: it must be the id of the cluster's project"),
    pytest.param({"GCP_CLUSTER_LOCATION": "earth"}, "GCP_CLUSTER_LOCATION='earth' is wrong: it must be the cluster's zone or region"),
    pytest.param({"GCP_CLUSTER": "My Cluster"}, "GCP_CLUSTER='My Cluster' is wrong: it must be the cluster's name"),
    pytest.param({"GCP_ZONE": "us-east5"}, "GCP_ZONE='us-east5' is wrong: it must be a zone, such as us-east5-a"),
    pytest.param({"GCP_ZONE": "us-east1-a"}, "GCP_ZONE='us-east1-a' is wrong: it must be a zone of the cluster's region, us-east5"),
    pytest.param(
        {"GCP_ZONE": "us-east1-a", "GCP_CLUSTER_LOCATION": "us-east5-b"},
        "GCP_ZONE='us-east1-a' is wrong: it must be a zone of the cluster's region, us-east5",
    ),
    pytest.param(
        {"GCP_POD_TO_NODE_LABELS": "a,google.com/b"},
        "GCP_POD_TO_NODE_LABELS='a,google.com/b' is wrong: it must be labels of Pods that are not under google.com or tpu-functions.dev",
    ),
    pytest.param({"GCP_NODE_ADDITIONAL_NETWORKS": "n"}, "GCP_NODE_ADDITIONAL_NETWORKS='n' is wrong: it must be network:subnetwork pairs, separated by commas"),
    pytest.param({"GCP_NODE_SECURE_BOOT": "maybe"}, "GCP_NODE_SECURE_BOOT='maybe' is wrong: it must be true or false"),
    pytest.param({"GKE_MAX_PODS_PER_NODE": "257"}, "GKE_MAX_PODS_PER_NODE='257' is wrong: it must be a whole number from 8 to 256"),
    pytest.param({"GKE_MAX_PODS_PER_NODE": "7"}, "GKE_MAX_PODS_PER_NODE='7' is wrong: it must be a whole number from 8 to 256"),
    pytest.param({"CONTAINER_ENDPOINT": "http://elsewhere"}, "CONTAINER_ENDPOINT='http://elsewhere' is wrong: it must be an https URL (http on this machine)"),
]  # fmt: skip


@pytest.mark.parametrize("given, message", INVALID)
def test_an_invalid_setting_is_reported_with_the_valid_values(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings({**ENVIRONMENT, **given})
    assert str(raised.value) == message


@pytest.mark.parametrize("zone", ["us-east5-a", "us-east5-ai1a"])
def test_a_zone_may_be_an_ai_zone(zone: str) -> None:
    assert read_settings({**ENVIRONMENT, "GCP_ZONE": zone}).zone == zone
    selected = body(node_selector={"topology.kubernetes.io/zone": zone})
    assert selected["locations"] == [zone]


def test_a_pod_that_selects_spot_is_an_input_error_if_on_demand_is_forced() -> None:
    forced = replace(SETTINGS, force_on_demand=True)
    assert body(forced)["name"] == body()["name"]
    assert "no on-demand Node has" in get_input_error(forced, node_selector={SPOT: "true"})


def test_all_invalid_settings_are_reported_together() -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings({"GCP_ZONE": "x", "GCP_FORCE_ON_DEMAND": "x"})
    assert str(raised.value).count("; ") == 4


class _RecordingEnvironment(dict[str, str]):
    """An environment that records which variables are read."""

    def __init__(self) -> None:
        super().__init__(ENVIRONMENT)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = "") -> Any:
        self.names.add(name)
        return super().get(name, default)


def test_the_page_names_every_variable_and_no_other() -> None:
    page = (DATA.parents[1] / "docs" / "reference" / "node-pools.md").read_text()
    environment = _RecordingEnvironment()
    read_settings(environment)
    assert set(re.findall(r"`((?:GCP|GKE|CONTAINER)_[A-Z_]+)`", page)) == environment.names


@pytest.mark.parametrize("accelerator", POOL_GENERATIONS)
def test_the_page_names_every_machine(accelerator: str) -> None:
    page = (DATA.parents[1] / "docs" / "reference" / "node-pools.md").read_text()
    generation = POOL_GENERATIONS[accelerator]
    chips = ", ".join(map(str, generation.single_host_shapes))
    assert f"| `{accelerator}` | `{generation.machine_prefix}-*t` | {chips} |" in page
