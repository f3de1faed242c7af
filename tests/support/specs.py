# ruff: noqa: E501  (a table reads best with a row on a line)
"""Valid and invalid specs. An invalid one has the path and the message of its violation.

Each is a JSON merge patch of the example in tpu-operator's README.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

Change = dict[str, Any]

DATA = Path(__file__).parents[1] / "data"
SHAPES: Change = yaml.safe_load((DATA / "topology.yaml").read_text())["generations"]

INVALID_NAMES = ("a.b", "a" * 64)
VALID_NAMES = ("1group", "a", "a" * 63)

# Shapes

V6E: Change = {
    "provisioningModel": "STANDARD",
    "reservation": None,
    "image": "projects/my-gcp-project/global/images/my-v6e-image",
}


def shaped(machine_type: str, topology: str, hosts: int) -> Change:
    """Return a group of one slice of this shape; with one host, the group is INDIVIDUAL."""
    return {
        "topology": topology,
        "nodeCount": hosts,
        "targetSizePolicyMode": "INDIVIDUAL" if hosts == 1 else "BULK",
        "instanceConfig": {**V6E, "machineType": machine_type},
    }


def shapes() -> Iterator[tuple[str, str, int]]:
    for generation in ("v6e", "tpu7x"):
        for row in SHAPES[generation]["topologies"]:
            for machine_type, vms in row["vms"].items():
                yield machine_type, row["topology"], vms["hosts"]


NO_SHAPE = (
    "topology must be a shape that exists. v6e: 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16 or 16x16. "
    "TPU7x: 1x1x1, 2x2x1, 2x2x2, 2x2x4, 2x4x4, or AxBxC with A <= B <= C, each a multiple of 4, "
    "and at most 9216 chips"
)


def rejected(id_: str, change: Change, path: str, message: str = "") -> Any:
    return pytest.param(change, path, message, id=id_)


def misfit(
    id_: str, machine: str, topology: str, hosts: int, message: str = NO_SHAPE, at: str = "topology"
) -> Any:
    return rejected(id_, shaped(machine, topology, hosts), f"spec.{at}", message)


MISFITS = [
    misfit("v6e-unsorted", "ct6e-standard-4t", "4x2", 2),
    misfit("v6e-unknown", "ct6e-standard-4t", "2x8", 4),
    misfit("v6e-too-big", "ct6e-standard-4t", "16x32", 128),
    misfit("7x-unsorted", "tpu7x-standard-4t", "8x4x4", 32),
    misfit("7x-no-multiple", "tpu7x-standard-4t", "4x4x6", 24),
    misfit("7x-too-big", "tpu7x-standard-4t", "16x24x28", 2304),
    misfit("leading-zero", "tpu7x-standard-4t", "04x4x4", 16),
    misfit("trailing-x", "tpu7x-standard-4t", "2x2x", 2),
    misfit("zero", "tpu7x-standard-4t", "0x4x4", 2),
    misfit("four-dimensions", "tpu7x-standard-4t", "2x2x2x2", 4),
    misfit("v6e-in-three-dimensions", "ct6e-standard-4t", "2x2x4", 4, "topology must have two dimensions with ct6e-standard-4t, as in 4x4"),
    misfit("7x-in-two-dimensions", "tpu7x-standard-4t", "4x4", 4, "topology must have three dimensions with tpu7x-standard-4t, as in 2x2x2"),
    misfit("smaller-than-a-vm", "ct6e-standard-8t", "2x2", 2, "topology 2x2 cannot be made of ct6e-standard-8t VMs, which are 2x4 chips each"),
    misfit(
        "individual-bigger-than-a-vm",
        "ct6e-standard-8t",
        "4x4",
        1,
        "topology must be 2x4: in an INDIVIDUAL group each ct6e-standard-8t is a slice of its own",
    ),
    misfit(
        "individual-of-one-chip",
        "tpu7x-standard-1t",
        "2x2x1",
        1,
        "topology must be 1x1x1: in an INDIVIDUAL group each tpu7x-standard-1t is a slice of its own",
    ),
    misfit("too-few-vms", "ct6e-standard-4t", "8x8", 15, "nodeCount must be 16: topology 8x8 has 64 chips, a ct6e-standard-4t has 4", at="nodeCount"),
    misfit(
        "chips-for-vms",
        "tpu7x-standard-4t-tpu",
        "4x4x4",
        64,
        "nodeCount must be 16: topology 4x4x4 has 64 chips, a tpu7x-standard-4t-tpu has 4",
        at="nodeCount",
    ),
    misfit(
        "bulk-of-single-hosts",
        "tpu7x-standard-4t", "2x2x1", 3,
        "topology 2x2x1 is one tpu7x-standard-4t: for 3 slices of one VM each set "
        "targetSizePolicyMode to INDIVIDUAL",
        at="nodeCount",
    ),
]  # fmt: skip


# Single fields

OWN_TEMPLATE: Change = {
    "instanceConfig": None,
    "bootstrapKubernetes": None,
    "instanceTemplateURI": "projects/my-gcp-project/global/instanceTemplates/a",
}


def config(**change: Any) -> Change:
    return {"instanceConfig": change}


FLEX: Change = {"provisioningModel": "FLEX_START", "reservation": None}


def flex(duration: str | None) -> Change:
    return config(**FLEX, maxRunDuration=duration)


def endpoint(text: str) -> Change:
    return {"bootstrapKubernetes": {"controlPlaneIP": text}}


def template(uri: str) -> Change:
    return {**OWN_TEMPLATE, "instanceTemplateURI": uri}


def taints(*taints: Change) -> Change:
    return {"nodeTaints": list(taints)}


def account(scopes: list[str]) -> Change:
    return config(serviceAccounts=[{"email": "default", "scopes": scopes}])


def numbered(count: int) -> Change:
    return {f"k{number}": "" for number in range(count)}


MY_TEMPLATES = "projects/my-gcp-project/global/instanceTemplates"


ACCEPTED = [
    # The bounds of each type of field
    pytest.param(config(image="i" * 512, bootDiskSizeGB=65536), id="longest-text-biggest-number"),
    pytest.param(config(image="i", bootDiskSizeGB=10), id="shortest-text-smallest-number"),
    pytest.param({"minNodeCount": 2**31 - 1}, id="biggest-int32"),
    pytest.param(config(networkTags=["t"] * 64), id="the-most-items"),
    pytest.param(account(["a"]), id="the-fewest-items"),
    pytest.param({"nodeLabels": {**numbered(31), "team": "v" * 63}}, id="the-most-entries"),
    pytest.param({"project": "abcdef", **config(subnetwork=None)}, id="project-of-six"),
    pytest.param({"nodeLocation": "us-south1-ai1b", **config(subnetwork=None)}, id="an-ai-zone"),
    pytest.param({"nodeLocation": "northamerica-northeast1-a", **config(subnetwork=None)}, id="a-long-zone"),
    pytest.param(template(f"https://www.googleapis.com/compute/v1/{MY_TEMPLATES}/t"), id="url"),
    pytest.param(template(f"https://compute.googleapis.com/compute/beta/{MY_TEMPLATES}/t"), id="new-url"),
    pytest.param(template("projects/my-gcp-project/locations/global/instanceTemplates/t"), id="locations-global"),
    pytest.param(template("projects/my-gcp-project/locations/us-central1/instanceTemplates/t"), id="locations-region"),
    pytest.param({**template(f"{MY_TEMPLATES}/t"), "nodeCount": 7}, id="user-template-of-unknown-chips"),
    pytest.param(config(machineType="tpu7-standard-4t"), id="tpu7"),
    pytest.param(config(machineType="tpu7x-standard-4t-tpu"), id="machine-type-with-suffix"),
    pytest.param(config(machineType=f"tpu7x-{'a' * 54}-4t"), id="longest-machine-type"),
    pytest.param(config(reservation="projects/other-project/reservations/r"), id="shared"),
    pytest.param(config(reservation="r/reservationBlocks/b"), id="block"),
    pytest.param(config(reservation="projects/other-project/reservations/r/reservationBlocks/b/reservationSubBlocks/s"), id="sub-block"),
    pytest.param(config(provisioningModel="SPOT", reservation=None), id="spot"),
    pytest.param(flex("168h"), id="flex-start"),
    pytest.param(flex("7d"), id="flex-start-of-seven-days"),
    pytest.param(flex("30s"), id="flex-start-of-half-a-minute"),
    pytest.param({"nodeCount": 3, "targetSizePolicyMode": "INDIVIDUAL", "topology": "2x2x1", **flex("90m")}, id="flex-start-of-single-hosts"),
    pytest.param(config(metadata={"kube-labels": "a=b", "user-data": "#!"}), id="metadata"),
    pytest.param({**config(metadata={"startup-script": "#!"}), "bootstrapKubernetes": None}, id="startup-script-without-bootstrap"),
    pytest.param(config(metadata={"k" * 127: "v" * 262144}), id="the-longest-metadata"),
    pytest.param(config(metadata={"a": "v" * 262144, "b": "v" * 196606}), id="the-most-metadata"),
    pytest.param(config(reservation="r", provisioningModel=None), id="no-model"),
    pytest.param({"minNodeCount": 0}, id="min-node-count"),
    pytest.param({"repair": "Never"}, id="repair"),
    pytest.param({"repair": "Recreate"}, id="repair Recreate"),
    pytest.param(endpoint("k8s.example.internal"), id="host"),
    pytest.param(endpoint("k8s.example.internal:443"), id="host-and-port"),
    pytest.param(endpoint("::1"), id="ipv6"),
    pytest.param(endpoint("fd20:0:0:1::2"), id="longer-ipv6"),
    pytest.param(endpoint("[fd20::2]:6443"), id="ipv6-and-port"),
    pytest.param({"nodeLabels": {"team": "a", "example.com/team": ""}}, id="labels"),
    pytest.param({"nodeLabels": {"node.kubernetes.io/instance-type": "a", "x.node.kubernetes.io/y": "b"}}, id="labels-that-a-kubelet-may-set"),
    pytest.param({"nodeLabels": {"topology.kubernetes.io/zone": "z"}}, id="zone-label"),
    pytest.param({"nodeLabels": {"cloud.google.com/other": "z", "components.gke.io/gke-unmanaged-node": "true"}}, id="labels-of-google"),
    pytest.param(taints({"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}, {"key": "google.com/tpu", "effect": "NoExecute"}), id="taints"),
]  # fmt: skip

CONFIG = "spec.instanceConfig"
INDIVIDUAL: Change = {"targetSizePolicyMode": "INDIVIDUAL", "topology": "2x2x1"}
MODEL = "spec.instanceConfig.provisioningModel"
DURATION = "spec.instanceConfig.maxRunDuration"
METADATA = "spec.instanceConfig.metadata"
ENDPOINT = "spec.bootstrapKubernetes.controlPlaneIP"
LABELS = "spec.nodeLabels"
NO_ZONE = "nodeLocation must be a zone, as in us-central1-c"
NO_DURATION = "maxRunDuration must be a number of s, m, h or d, as in 90m or 168h, from 30s to 7d"
NO_ENDPOINT = "controlPlaneIP must be HOST, HOST:PORT, an IPv6 address, or [IPv6]:PORT"
NO_PORT = "controlPlaneIP's port must be from 1 to 65535"
OTHER_PROJECT = "InstanceTemplateURI must belong to the same project as specified in spec.project"
OTHER_REGION = "a regional template must be in the region of nodeLocation"
NOT_BOUND = "ProvisioningModel must be RESERVATION_BOUND when reservation is specified"
NOT_FLEX = "maxRunDuration is for provisioningModel FLEX_START only"
NO_LABEL = "nodeLabels keys must be label keys, as in team or example.com/team"
NO_RESERVATION = (
    "reservation must be a name, or projects/PROJECT/reservations/NAME, and may end in "
    "/reservationBlocks/BLOCK or /reservationBlocks/BLOCK/reservationSubBlocks/SUB_BLOCK"
)
NOT_FOR_KUBELETS = (
    "nodeLabels of kubernetes.io and k8s.io must be topology.kubernetes.io/region, "
    "topology.kubernetes.io/zone, or under node.kubernetes.io/ or kubelet.kubernetes.io/"
)
NOT_RESERVED = (
    "nodeLabels must not be tpu-functions.dev/*, cloud.google.com/gke-tpu-*, "
    "cloud.google.com/gke-accelerator-count or cloud.google.com/tpu-node-group*, "
    "which identify the slice of a Node and are set automatically"
)
RESERVED = (
    "kubeadm-join-token",
    "kubeadm-join-token-expires",
    "kubeadm-control-plane-ip",
    "kubeadm-ca-hash",
    "created-by",
    "instance-template",
)


REJECTED = [
    *MISFITS,
    rejected("no-zone", {"nodeLocation": None}, "spec.nodeLocation"),
    rejected("no-size-mode", {"targetSizePolicyMode": None}, "spec.targetSizePolicyMode"),
    rejected("no-machine-type", config(machineType=None), f"{CONFIG}.machineType"),
    rejected("project-with-underscore", {"project": "My_Project"}, "spec.project"),
    rejected("project-of-five", {"project": "abcde"}, "spec.project"),
    rejected("negative-node-count", {"nodeCount": -1, **INDIVIDUAL}, "spec.nodeCount"),
    rejected("zone-of-one-part", {"nodeLocation": "us"}, "spec.nodeLocation", NO_ZONE),
    rejected("a-region", {"nodeLocation": "us-central1"}, "spec.nodeLocation", NO_ZONE),
    rejected("upper-case-zone", {"nodeLocation": "US-A1-B"}, "spec.nodeLocation", NO_ZONE),
    rejected(
        "subnetwork-elsewhere",
        config(subnetwork="projects/p/regions/us-east1/subnetworks/s"),
        "spec.instanceConfig.subnetwork",
        "subnetwork must be in the region of nodeLocation",
    ),
    rejected("template-of-another-project", template("projects/other-project/global/instanceTemplates/t"), "spec", OTHER_PROJECT),
    rejected("template-of-a-project-with-the-same-prefix", template("projects/my-gcp-project2/global/instanceTemplates/t"), "spec", OTHER_PROJECT),
    rejected("template-at-another-host", template(f"https://example.com/compute/v1/{MY_TEMPLATES}/t"), "spec", OTHER_PROJECT),
    rejected("template-with-a-long-name", template(f"{MY_TEMPLATES}/{'t' * 64}"), "spec", OTHER_PROJECT),
    rejected("template-of-another-region", template("projects/my-gcp-project/regions/us-east1/instanceTemplates/t"), "spec.instanceTemplateURI", OTHER_REGION),
    rejected(
        "template-of-a-region-with-the-same-prefix",
        template("projects/my-gcp-project/regions/us-central11/instanceTemplates/t"),
        "spec.instanceTemplateURI",
        OTHER_REGION,
    ),
    rejected(
        "bootstrap-with-user-template",
        {**OWN_TEMPLATE, "bootstrapKubernetes": {"controlPlaneIP": "10.0.0.2"}},
        "spec",
        "Bootstrapping is not supported when bringing your own instance template",
    ),
    rejected(
        "no-chips-in-machine-type",
        config(machineType="tpu7x-standard"),
        "spec.instanceConfig.machineType",
        "machineType must end in the chips of a VM (-1t, -2t, -4t or -8t), as in tpu7x-standard-4t",
    ),
    rejected("reservation-by-url", config(reservation="zones/us-central1-c/reservations/r"), "spec.instanceConfig.reservation", NO_RESERVATION),
    rejected("reservation-sub-block-without-block", config(reservation="r/reservationSubBlocks/s"), "spec.instanceConfig.reservation", NO_RESERVATION),
    rejected("reservation-with-standard", config(provisioningModel="STANDARD"), MODEL, NOT_BOUND),
    rejected("reservation-with-flex-start", config(provisioningModel="FLEX_START", maxRunDuration="1h"), MODEL, NOT_BOUND),
    rejected("flex-start-without-duration", flex(None), DURATION, "maxRunDuration is required when provisioningModel is FLEX_START, as in 168h"),
    rejected("duration-for-a-reservation", config(maxRunDuration="1h"), DURATION, NOT_FLEX),
    rejected("duration-without-model", config(provisioningModel=None, reservation=None, maxRunDuration="1h"), DURATION, NOT_FLEX),
    rejected("duration-without-unit", flex("3600"), DURATION, NO_DURATION),
    rejected("duration-of-two-units", flex("1h30m"), DURATION, NO_DURATION),
    rejected("duration-with-a-fraction", flex("1.5h"), DURATION, NO_DURATION),
    rejected("empty-duration", flex(""), DURATION, NO_DURATION),
    rejected("duration-too-short", flex("29s"), DURATION, NO_DURATION),
    rejected("duration-too-long", flex("604801s"), DURATION, NO_DURATION),
    rejected("disk-type-by-url", config(diskType="zones/us-central1-c/diskTypes/pd-ssd"), "spec.instanceConfig.diskType"),
    rejected(
        "metadata-key-with-a-dot",
        config(metadata={"a.b": ""}),
        METADATA,
        "metadata keys must be letters, digits, dashes and underscores, at most 127 of them",
    ),
    *(
        rejected(
            f"metadata-{key}",
            config(metadata={key: "x"}),
            METADATA,
            f"metadata must not hold {key}, which is written for each VM when it is created or joins",
        )
        for key in RESERVED
    ),
    rejected(
        "too-much-metadata-in-total",
        config(metadata={"a": "v" * 262144, "b": "v" * 196607}),
        METADATA,
        "metadata must be at most 458752 bytes in all, keys and values",
    ),
    rejected(
        "startup-script-with-bootstrap",
        config(metadata={"startup-script": "#!"}),
        METADATA,
        "metadata must not hold startup-script while bootstrapKubernetes is set, which brings its own",
    ),
    rejected("endpoint-of-several-words", endpoint("not an address"), ENDPOINT, NO_ENDPOINT),
    rejected("endpoint-by-url", endpoint("https://10.0.0.2"), ENDPOINT, NO_ENDPOINT),
    rejected("endpoint-with-a-path", endpoint("10.0.0.2/x"), ENDPOINT, NO_ENDPOINT),
    rejected("endpoint-without-host", endpoint(":6443"), ENDPOINT, NO_ENDPOINT),
    rejected("ipv6-with-one-bracket", endpoint("[fd20::2:6443"), ENDPOINT, NO_ENDPOINT),
    rejected("port-zero", endpoint("10.0.0.2:0"), ENDPOINT, NO_PORT),
    rejected("port-too-high", endpoint("[fd20::2]:65536"), ENDPOINT, NO_PORT),
    rejected("label-key-with-space", {"nodeLabels": {"a b": "c"}}, LABELS, NO_LABEL),
    rejected("label-key-with-two-slashes", {"nodeLabels": {"a/b/c": "c"}}, LABELS, NO_LABEL),
    rejected("label-key-too-long", {"nodeLabels": {"a" * 64: "c"}}, LABELS, NO_LABEL),
    rejected("role-label", {"nodeLabels": {"node-role.kubernetes.io/tpu": ""}}, LABELS, NOT_FOR_KUBELETS),
    rejected("restricted-label", {"nodeLabels": {"node-restriction.kubernetes.io/x": ""}}, LABELS, NOT_FOR_KUBELETS),
    rejected("host-name-label", {"nodeLabels": {"kubernetes.io/hostname": "x"}}, LABELS, NOT_FOR_KUBELETS),
    rejected("label-of-k8s-io", {"nodeLabels": {"a.k8s.io/x": "x"}}, LABELS, NOT_FOR_KUBELETS),
    rejected("label-of-tpu-functions", {"nodeLabels": {"tpu-functions.dev/x": "x"}}, LABELS, NOT_RESERVED),
    rejected("topology-label", {"nodeLabels": {"cloud.google.com/gke-tpu-topology": "x"}}, LABELS, NOT_RESERVED),
    rejected("count-label", {"nodeLabels": {"cloud.google.com/gke-accelerator-count": "4"}}, LABELS, NOT_RESERVED),
    rejected("group-label", {"nodeLabels": {"cloud.google.com/tpu-node-group-name": "x"}}, LABELS, NOT_RESERVED),
    rejected("taint-effect", taints({"key": "a", "effect": "NoRun"}), "spec.nodeTaints[0].effect"),
    rejected("taint-twice", taints({"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute"}), "spec.nodeTaints[1]"),
    rejected("repair", {"repair": "Always"}, "spec.repair"),
    rejected("repair of single VMs", {"repair": "Recreate", "targetSizePolicyMode": "INDIVIDUAL", "topology": "2x2x1"}, "spec.repair"),
    # The bounds of each type of field
    rejected("too-short-a-text", config(image=""), f"{CONFIG}.image"),
    rejected("too-long-a-text", config(image="i" * 513), f"{CONFIG}.image"),
    rejected("too-small-a-number", config(bootDiskSizeGB=9), f"{CONFIG}.bootDiskSizeGB"),
    rejected("too-big-a-number", config(bootDiskSizeGB=65537), f"{CONFIG}.bootDiskSizeGB"),
    rejected("too-many-items", config(networkTags=["t"] * 65), f"{CONFIG}.networkTags"),
    rejected("an-invalid-item", config(networkTags=["t", "T"]), f"{CONFIG}.networkTags[1]"),
    rejected("too-few-items", account([]), f"{CONFIG}.serviceAccounts[0].scopes"),
    rejected("too-short-an-item", account(["a", ""]), f"{CONFIG}.serviceAccounts[0].scopes[1]"),
    rejected("no-key-of-an-item", taints({"effect": "NoSchedule"}), "spec.nodeTaints[0].key"),
    rejected("too-many-entries", {"nodeLabels": numbered(33)}, LABELS),
    rejected("too-long-an-entry", {"nodeLabels": {"team": "v" * 64}}, f"{LABELS}.team"),
    rejected("an-invalid-entry", {"nodeLabels": {"team": "-v"}}, f"{LABELS}.team"),
]  # fmt: skip
