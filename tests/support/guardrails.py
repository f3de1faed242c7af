"""Groups that the guardrails allow or deny, with the messages: a table for several tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.manifests import manifest

NETWORK = "projects/my-gcp-project/regions/us-central1/subnetworks"
_HOST_NETWORK = "projects/network-host/regions/us-central1/subnetworks"
COMPUTE = "https://www.googleapis.com/compute/v1"


@dataclass(frozen=True)
class Case:
    """``limits`` are a ConfigMap's data, ``change`` a merge patch of tpu-operator's README example."""

    id: str
    limits: dict[str, str] | None
    change: dict[str, Any]
    refused: str = ""
    """The violations; empty if the group is allowed."""

    @property
    def group(self) -> dict[str, Any]:
        """The TPUNodeGroup that is created."""
        return manifest(**self.change)

    def message(self, namespace: str) -> str:
        """The message if the ConfigMap is in this namespace; empty if the group is allowed."""
        return f"{self.refused} (ConfigMap {namespace}/tpu-guardrails)" if self.refused else ""


def _instance(**change: Any) -> dict[str, Any]:
    return {"instanceConfig": change}


def _template(uri: str) -> dict[str, Any]:
    return {"instanceConfig": None, "bootstrapKubernetes": None, "instanceTemplateURI": uri}


def _slices(machine: str, topology: str, count: int) -> dict[str, Any]:
    """An INDIVIDUAL group."""
    return {
        "targetSizePolicyMode": "INDIVIDUAL",
        "nodeCount": count,
        "topology": topology,
        "instanceConfig": {"machineType": machine},
    }


def _slice(machine: str, topology: str, count: int) -> dict[str, Any]:
    return {**_slices(machine, topology, count), "targetSizePolicyMode": "BULK"}


_SPOT = {"provisioningModel": "SPOT", "reservation": None}
_ROBOT = "vms@my-gcp-project.iam.gserviceaccount.com"
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_AS_ROBOT = _instance(serviceAccounts=[{"email": _ROBOT, "scopes": _SCOPES}])
_GLOBAL = "projects/my-gcp-project/global/instanceTemplates/mine"
_REGIONAL = "projects/my-gcp-project/regions/us-central1/instanceTemplates/mine"
_LISTS = (
    *("machineTypes", "provisioningModels", "serviceAccounts", "images", "diskTypes"),
    *("subnetworks", "reservations", "scopes", "networkTags", "metadataKeys"),
)
_UBUNTU = "projects/ubuntu-os-accelerator-images/global/images"
_IMAGE = f"{_UBUNTU}/family/ubuntu-accel-2404-amd64-tpu-tpu7x"
_OWN_IMAGE = "projects/my-gcp-project/global/images/tpu-1"
_LOGIN = {
    "metadata": {"ssh-keys": "me:ssh-ed25519 AAAA", "user-data": "#cloud-config", "team": "a"}
}
_TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
_CONTROL_PLANE = {"key": "node.example.com/quiet", "effect": "NoExecute"}
_ALL = {
    "strict": "true",
    "projects": "my-gcp-project",
    "zones": "us-central1-c",
    "machineTypes": "tpu7x-standard-4t",
    "provisioningModels": "RESERVATION_BOUND",
    "reservations": "*",
    "images": f"{_UBUNTU}/*",
    "subnetworks": "*",
    "networkTags": "*",
    "metadataKeys": "*",
    "kubernetesVersions": "*",
    "controlPlanes": "*",
    "maxBootDiskGB": "100",
    "maxChips": "8",
}
"""Limits that allow tpu-operator's README example."""

CASES = [
    Case("no-data-limits-nothing", None, {}),
    Case("no-keys-limit-nothing", {}, _AS_ROBOT),
    # Projects
    Case("a-project-that-is-listed", {"projects": "other-project, my-gcp-project"}, {}),
    Case("a-project-per-line", {"projects": "other-project\nmy-gcp-project\n"}, {}),
    Case(
        "a-project-that-is-not",
        {"projects": "other-project,third-project"},
        {},
        "spec.project: my-gcp-project is not allowed; allowed: other-project, third-project",
    ),
    Case(
        "a-prefix-of-a-listed-name-does-not-match",
        {"projects": "my-gcp-project-2"},
        {},
        "spec.project: my-gcp-project is not allowed; allowed: my-gcp-project-2",
    ),
    Case(
        "an-empty-list-allows-none",
        {"projects": ""},
        {},
        "spec.project: my-gcp-project is not allowed; allowed: none",
    ),
    # Machine types
    Case("a-machine-type-that-is-listed", {"machineTypes": "tpu7x-standard-4t"}, {}),
    Case(
        "a-machine-type-that-is-not",
        {"machineTypes": "ct6e-standard-4t ct6e-standard-8t"},
        {},
        "spec.instanceConfig.machineType: tpu7x-standard-4t is not allowed; "
        "allowed: ct6e-standard-4t, ct6e-standard-8t",
    ),
    # Provisioning models
    Case("a-model-that-is-listed", {"provisioningModels": "SPOT"}, _instance(**_SPOT)),
    Case(
        "a-model-that-is-not",
        {"provisioningModels": "SPOT"},
        {},
        "spec.instanceConfig.provisioningModel: RESERVATION_BOUND is not allowed; allowed: SPOT",
    ),
    Case(
        "the-default-model-is-standard",
        {"provisioningModels": "SPOT"},
        _instance(provisioningModel=None, reservation=None),
        "spec.instanceConfig.provisioningModel: STANDARD is not allowed; allowed: SPOT",
    ),
    # Service accounts
    Case("a-service-account-that-is-listed", {"serviceAccounts": _ROBOT}, _AS_ROBOT),
    Case("no-service-account", {"serviceAccounts": ""}, {}),
    Case(
        "a-service-account-that-is-not",
        {"serviceAccounts": "others@my-gcp-project.iam.gserviceaccount.com"},
        _AS_ROBOT,
        f"spec.instanceConfig.serviceAccounts[0].email: {_ROBOT} is not allowed; "
        "allowed: others@my-gcp-project.iam.gserviceaccount.com",
    ),
    Case(
        "a-service-account-is-not-matched-as-a-subnetwork",
        {"serviceAccounts": "vms"},
        _instance(serviceAccounts=[{"email": f"{NETWORK}/vms", "scopes": _SCOPES}]),
        f"spec.instanceConfig.serviceAccounts[0].email: {NETWORK}/vms is not allowed; allowed: vms",
    ),
    # Subnetworks, in all notations
    *(
        Case(f"a-subnetwork-{how}", {"subnetworks": listed}, _instance(subnetwork=requested))
        for how, listed, requested in (
            ("by-its-name", "tpu", "tpu"),
            ("in-full-listed-by-its-name", "tpu", f"{NETWORK}/tpu"),
            ("by-its-name-listed-in-full", f"{NETWORK}/tpu", "tpu"),
            ("in-full", f"{NETWORK}/tpu", f"{NETWORK}/tpu"),
            ("by-its-region", "tpu", "regions/us-central1/subnetworks/tpu"),
            ("by-its-self-link", "tpu", f"{COMPUTE}/{NETWORK}/tpu"),
            (
                "of-a-shared-network",
                "projects/network-host/regions/us-central1/subnetworks/tpu",
                f"{COMPUTE}/projects/network-host/regions/us-central1/subnetworks/tpu",
            ),
        )
    ),
    Case(
        "the-default-subnetwork",
        {"subnetworks": "tpu"},
        _instance(subnetwork=None),
        "spec.instanceConfig.subnetwork: default is not allowed; allowed: tpu",
    ),
    Case(
        "a-subnetwork-name-does-not-match-another-project",
        {"subnetworks": "tpu"},
        _instance(subnetwork="projects/network-host/regions/us-central1/subnetworks/tpu"),
        "spec.instanceConfig.subnetwork: projects/network-host/regions/us-central1/subnetworks/tpu "
        "is not allowed; allowed: tpu",
    ),
    *(
        Case(
            f"the-prefix-of-a-name-does-not-match-another-project-{key}",
            {f"{key}s": "pro*"},
            _instance(**{key: f"projects/network-host/{path}/tpu"}),
            f"spec.instanceConfig.{key}: projects/network-host/{path}/tpu is not allowed; allowed: pro*",
        )
        for key, path in (
            ("subnetwork", "regions/us-central1/subnetworks"),
            ("reservation", "reservations"),
        )
    ),
    *(
        Case(
            f"a-subnetwork-by-the-prefix-of-{what}",
            {"subnetworks": word},
            _instance(subnetwork=asked),
        )
        for what, word, asked in (
            ("its-name", "tp*", "tpu"),
            ("its-path", f"{NETWORK}/tp*", "tpu"),
            ("its-project", "projects/network-*", f"{_HOST_NETWORK}/tpu"),
            ("all", "*", f"{_HOST_NETWORK}/tpu"),
        )
    ),
    # Disk types
    Case("a-disk-type-that-is-listed", {"diskTypes": "pd-ssd"}, _instance(diskType="pd-ssd")),
    Case(
        "the-default-disk-type",
        {"diskTypes": "pd-ssd"},
        {},
        "spec.instanceConfig.diskType: hyperdisk-balanced is not allowed; allowed: pd-ssd",
    ),
    # User templates
    Case(
        "a-template-without-limits-of-its-fields",
        {"projects": "my-gcp-project"},
        _template(_GLOBAL),
    ),
    *(
        Case(
            f"a-template-hides-{key}",
            {key: "SPOT"},
            _template(_GLOBAL),
            f"spec.instanceTemplateURI: {_GLOBAL} is not allowed; allowed: none",
        )
        for key in _LISTS
    ),
    *(
        Case(
            f"a-listed-template-{how}",
            {"subnetworks": "", "instanceTemplates": uri},
            _template(requested),
        )
        for how, uri, requested in (
            ("as-listed", _GLOBAL, _GLOBAL),
            ("of-a-region", _REGIONAL, _REGIONAL),
            ("by-its-self-link", _GLOBAL, f"{COMPUTE}/{_GLOBAL}"),
            ("by-location", _GLOBAL, _GLOBAL.replace("/global/", "/locations/global/")),
            ("by-its-regions-location", _REGIONAL, _REGIONAL.replace("/regions/", "/locations/")),
        )
    ),
    Case(
        "another-template-than-is-listed",
        {"instanceTemplates": _REGIONAL},
        _template(_GLOBAL),
        f"spec.instanceTemplateURI: {_GLOBAL} is not allowed; allowed: {_REGIONAL}",
    ),
    Case(
        "a-template-hides-the-size-of-a-disk",
        {"maxBootDiskGB": "100"},
        _template(_GLOBAL),
        f"spec.instanceTemplateURI: {_GLOBAL} is not allowed; allowed: none",
    ),
    # Zones
    Case("a-zone-that-is-listed", {"zones": "us-central1-*"}, {}),
    Case(
        "a-zone-that-is-not",
        {"zones": "us-east5-a"},
        {},
        "spec.nodeLocation: us-central1-c is not allowed; allowed: us-east5-a",
    ),
    # Images, in all notations
    *(
        Case(f"an-image-{how}", {"images": listed}, _instance(image=requested))
        for how, listed, requested in (
            ("as-listed", _IMAGE, _IMAGE),
            ("of-a-listed-project", "projects/ubuntu-os-accelerator-images/*", _IMAGE),
            ("by-its-self-link", f"{_UBUNTU}/*", f"{COMPUTE}/{_IMAGE}"),
            ("of-its-own-project", _OWN_IMAGE, "global/images/tpu-1"),
        )
    ),
    *(
        Case(
            f"an-image-{how}",
            {"images": f"{_UBUNTU}/*"},
            _instance(image=requested),
            f"spec.instanceConfig.image: {shown} is not allowed; allowed: {_UBUNTU}/*",
        )
        for how, requested, shown in (
            ("of-its-own-project-that-is-not-listed", "global/images/tpu-1", _OWN_IMAGE),
            (
                "of-a-foreign-project",
                f"{COMPUTE}/projects/x/global/images/y",
                "projects/x/global/images/y",
            ),
            ("whose-name-only-ends-with-a-listed-one", f"x/{_IMAGE}", f"x/{_IMAGE}"),
        )
    ),
    # Metadata
    Case(
        "metadata-keys-that-are-listed",
        {"metadataKeys": "team, ssh-keys user-*"},
        _instance(**_LOGIN),
    ),
    Case("no-metadata", {"metadataKeys": ""}, _instance(metadata=None)),
    Case(
        "ssh-keys-that-are-not-listed",
        {"metadataKeys": "team, user-data"},
        _instance(**_LOGIN),
        "spec.instanceConfig.metadata: ssh-keys is not allowed; allowed: team, user-data",
    ),
    # Labels and taints
    Case("a-label-by-its-key", {"nodeLabels": "team"}, {"nodeLabels": {"team": "research"}}),
    Case(
        "a-label-by-key-and-value", {"nodeLabels": "team=a team=b"}, {"nodeLabels": {"team": "b"}}
    ),
    Case(
        "labels-by-their-prefix",
        {"nodeLabels": "example.com/*"},
        {"nodeLabels": {"example.com/a": "b"}},
    ),
    Case("a-group-without-labels", {"nodeLabels": "", "nodeTaints": ""}, {}),
    Case(
        "a-label-of-another-team",
        {"nodeLabels": "team=research"},
        {"nodeLabels": {"team": "payments"}},
        "spec.nodeLabels: team=payments is not allowed; allowed: team=research",
    ),
    Case("a-taint-by-its-key", {"nodeTaints": "team"}, {"nodeTaints": [_TAINT]}),
    Case("a-taint-in-full", {"nodeTaints": "team=a:NoSchedule"}, {"nodeTaints": [_TAINT]}),
    Case(
        "a-taint-that-is-not-listed",
        {"nodeTaints": "team=a:NoExecute"},
        {"nodeTaints": [_TAINT, _CONTROL_PLANE]},
        "spec.nodeTaints: team=a:NoSchedule, node.example.com/quiet=:NoExecute are not allowed; "
        "allowed: team=a:NoExecute",
    ),
    # Network tags
    Case(
        "tags-that-are-listed",
        {"networkTags": "tpu-node, team-*"},
        _instance(networkTags=["tpu-node", "team-a"]),
    ),
    Case(
        "a-tag-that-is-not-listed",
        {"networkTags": "tpu-node"},
        _instance(networkTags=["tpu-node", "control-plane"]),
        "spec.instanceConfig.networkTags: control-plane is not allowed; allowed: tpu-node",
    ),
    # Scopes
    Case("scopes-that-are-listed", {"scopes": "https://www.googleapis.com/auth/*"}, _AS_ROBOT),
    Case(
        "a-scope-that-is-not",
        {"scopes": "https://www.googleapis.com/auth/devstorage.read_only"},
        _AS_ROBOT,
        f"spec.instanceConfig.serviceAccounts[0].scopes: {_SCOPES[0]} is not allowed; "
        "allowed: https://www.googleapis.com/auth/devstorage.read_only",
    ),
    # Reservations, in all notations
    *(
        Case(f"a-reservation-{how}", {"reservations": listed}, _instance(reservation=requested))
        for how, listed, requested in (
            ("by-its-name", "mine", "mine"),
            ("in-full-listed-by-its-name", "mine", "projects/my-gcp-project/reservations/mine"),
            ("with-a-block", "mine", "mine/reservationBlocks/a/reservationSubBlocks/b"),
            ("by-its-name-listed-in-full", "projects/my-gcp-project/reservations/mine", "mine"),
            (
                "of-another-project",
                "projects/other-project/reservations/*",
                "projects/other-project/reservations/a",
            ),
        )
    ),
    Case("spot-vms-need-no-reservation", {"reservations": ""}, _instance(**_SPOT)),
    Case(
        "a-reservation-that-is-not",
        {"reservations": "mine"},
        _instance(reservation="projects/other-project/reservations/mine"),
        "spec.instanceConfig.reservation: projects/other-project/reservations/mine is not allowed; "
        "allowed: mine",
    ),
    Case(
        "a-block-of-a-reservation-that-is-not",
        {"reservations": "mine"},
        _instance(reservation="other/reservationBlocks/mine"),
        "spec.instanceConfig.reservation: other is not allowed; allowed: mine",
    ),
    # Disks
    Case(
        "a-disk-that-is-listed",
        {"diskTypes": "hyperdisk-balanced", "maxBootDiskGB": "200"},
        _instance(diskType="hyperdisk-balanced", bootDiskSizeGB=200),
    ),
    Case(
        "a-disk-that-is-not",
        {"diskTypes": "hyperdisk-balanced", "maxBootDiskGB": "200"},
        _instance(diskType="hyperdisk-extreme", bootDiskSizeGB=201),
        "spec.instanceConfig.diskType: hyperdisk-extreme is not allowed; allowed: hyperdisk-balanced; "
        "spec.instanceConfig.bootDiskSizeGB: 201 GB; allowed: 200",
    ),
    # Bootstrapping
    Case(
        "a-control-plane-that-is-listed",
        {"controlPlanes": "10.128.0.2:6443"},
        {"bootstrapKubernetes": {"controlPlaneIP": "10.128.0.2:6443", "version": "1.34"}},
    ),
    Case(
        "a-control-plane-that-is-not-listed",
        {"controlPlanes": "10.128.0.2", "kubernetesVersions": "1.34"},
        {"bootstrapKubernetes": {"controlPlaneIP": "192.0.2.1", "version": "1.31"}},
        "spec.bootstrapKubernetes.version: 1.31 is not allowed; allowed: 1.34; "
        "spec.bootstrapKubernetes.controlPlaneIP: 192.0.2.1 is not allowed; allowed: 10.128.0.2",
    ),
    # The strict set
    Case("strict-and-everything-is-listed", _ALL, {}),
    Case("not-strict", {"strict": "false", "projects": "my-gcp-project"}, _instance(**_LOGIN)),
    Case(
        "strict-and-missing-keys-allow-nothing",
        _ALL,
        {**_AS_ROBOT, "nodeLabels": {"team": "payments"}},
        f"spec.instanceConfig.serviceAccounts[0].email: {_ROBOT} is not allowed; allowed: none; "
        f"spec.instanceConfig.serviceAccounts[0].scopes: {_SCOPES[0]} is not allowed; allowed: none; "
        "spec.nodeLabels: team=payments is not allowed; allowed: none",
    ),
    Case(
        "strict-templates-are-listed-or-none",
        _ALL,
        _template(_GLOBAL),
        f"spec.instanceTemplateURI: {_GLOBAL} is not allowed; allowed: none",
    ),
    Case(
        "strict-disks-and-chips",
        {key: value for key, value in _ALL.items() if not key.startswith("max")},
        _instance(bootDiskSizeGB=100),
        "spec.instanceConfig.bootDiskSizeGB: 100 GB; allowed: 0; "
        "spec.topology: 2x2x2 has 8 chips; allowed: 0",
    ),
    # Chips
    Case("as-many-chips-as-allowed", {"maxChips": "8"}, {}),
    Case(
        "one-chip-more-than-allowed",
        {"maxChips": "7"},
        {},
        "spec.topology: 2x2x2 has 8 chips; allowed: 7",
    ),
    Case("two-dimensions", {"maxChips": "64"}, _slice("ct6e-standard-4t", "8x8", 16)),
    Case(
        "two-dimensions-and-too-many",
        {"maxChips": "63"},
        _slice("ct6e-standard-4t", "8x8", 16),
        "spec.topology: 8x8 has 64 chips; allowed: 63",
    ),
    Case("slices-of-one-vm-each", {"maxChips": "32"}, _slices("ct6e-standard-8t", "2x4", 4)),
    Case(
        "slices-of-one-vm-each-and-too-many",
        {"maxChips": "32"},
        _slices("ct6e-standard-8t", "2x4", 5),
        "spec.nodeCount: 5 slices of 2x4 have 40 chips; allowed: 32",
    ),
    # Several violations
    Case(
        "all-violations-are-reported-together",
        {"projects": "other-project", "provisioningModels": "SPOT", "maxChips": "4"},
        {},
        "spec.project: my-gcp-project is not allowed; allowed: other-project; "
        "spec.instanceConfig.provisioningModel: RESERVATION_BOUND is not allowed; allowed: SPOT; "
        "spec.topology: 2x2x2 has 8 chips; allowed: 4",
    ),
]
