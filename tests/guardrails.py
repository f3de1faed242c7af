"""What guardrails let pass and what they refuse, in which words: a table for all who can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.manifests import manifest

NETWORK = "projects/my-gcp-project/regions/us-central1/subnetworks"
COMPUTE = "https://www.googleapis.com/compute/v1"


@dataclass(frozen=True)
class Case:
    """``limits`` are a ConfigMap's data, ``change`` a merge patch of tpu-operator's README example."""

    id: str
    limits: dict[str, str] | None
    change: dict[str, Any]
    refused: str = ""
    """Why; empty when it passes."""

    @property
    def group(self) -> dict[str, Any]:
        """The TPUNodeGroup that is asked for."""
        return manifest(**self.change)

    def message(self, namespace: str) -> str:
        """What is said when the ConfigMap stands in this namespace; empty when it passes."""
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
_LISTS = ("machineTypes", "provisioningModels", "serviceAccounts", "subnetworks")

CASES = [
    Case("no-data-limits-nothing", None, {}),
    Case("no-keys-limit-nothing", {}, _AS_ROBOT),
    # Projects
    Case("a-project-that-is-listed", {"projects": "other-project, my-gcp-project"}, {}),
    Case("one-a-line", {"projects": "other-project\nmy-gcp-project\n"}, {}),
    Case(
        "a-project-that-is-not",
        {"projects": "other-project,third-project"},
        {},
        "spec.project: my-gcp-project is not allowed; allowed: other-project, third-project",
    ),
    Case(
        "a-part-of-a-listed-name-is-another-name",
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
        "left-out-it-is-on-demand",
        {"provisioningModels": "SPOT"},
        _instance(provisioningModel=None, reservation=None),
        "spec.instanceConfig.provisioningModel: STANDARD is not allowed; allowed: SPOT",
    ),
    Case(
        "left-out-beside-a-reservation-it-is-the-reservations",
        {"provisioningModels": "SPOT"},
        _instance(provisioningModel=None),
        "spec.instanceConfig.provisioningModel: RESERVATION_BOUND is not allowed; allowed: SPOT",
    ),
    # Service accounts
    Case("a-service-account-that-is-listed", {"serviceAccounts": _ROBOT}, _AS_ROBOT),
    Case("vms-without-one-need-no-leave", {"serviceAccounts": ""}, {}),
    Case(
        "a-service-account-that-is-not",
        {"serviceAccounts": "others@my-gcp-project.iam.gserviceaccount.com"},
        _AS_ROBOT,
        f"spec.instanceConfig.serviceAccounts[0].email: {_ROBOT} is not allowed; "
        "allowed: others@my-gcp-project.iam.gserviceaccount.com",
    ),
    Case(
        "the-projects-default-is-one-too",
        {"serviceAccounts": _ROBOT},
        _instance(serviceAccounts=[{"email": "default", "scopes": _SCOPES}]),
        f"spec.instanceConfig.serviceAccounts[0].email: default is not allowed; allowed: {_ROBOT}",
    ),
    Case(
        "a-service-account-is-no-subnetwork",
        {"serviceAccounts": "vms"},
        _instance(serviceAccounts=[{"email": f"{NETWORK}/vms", "scopes": _SCOPES}]),
        f"spec.instanceConfig.serviceAccounts[0].email: {NETWORK}/vms is not allowed; allowed: vms",
    ),
    # Subnetworks, however they are written
    *(
        Case(f"a-subnetwork-{how}", {"subnetworks": listed}, _instance(subnetwork=asked))
        for how, listed, asked in (
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
        "left-out-it-is-default",
        {"subnetworks": "tpu"},
        _instance(subnetwork=None),
        "spec.instanceConfig.subnetwork: default is not allowed; allowed: tpu",
    ),
    Case(
        "a-name-is-the-groups-own-project-and-no-other",
        {"subnetworks": "tpu"},
        _instance(subnetwork="projects/network-host/regions/us-central1/subnetworks/tpu"),
        "spec.instanceConfig.subnetwork: projects/network-host/regions/us-central1/subnetworks/tpu "
        "is not allowed; allowed: tpu",
    ),
    # Templates of one's own
    Case("a-template-where-no-list-is", {"projects": "my-gcp-project"}, _template(_GLOBAL)),
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
            _template(asked),
        )
        for how, uri, asked in (
            ("as-it-is-listed", _GLOBAL, _GLOBAL),
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
    # Chips
    Case("as-many-chips-as-allowed", {"maxChips": "8"}, {}),
    Case(
        "a-chip-too-many",
        {"maxChips": "7"},
        {},
        "spec.topology: 2x2x2 has 8 chips; allowed: 7",
    ),
    Case(
        "none-at-all",
        {"maxChips": "0"},
        {},
        "spec.topology: 2x2x2 has 8 chips; allowed: 0",
    ),
    Case("two-dimensions", {"maxChips": "64"}, _slice("ct6e-standard-4t", "8x8", 16)),
    Case(
        "two-dimensions-and-too-many",
        {"maxChips": "63"},
        _slice("ct6e-standard-4t", "8x8", 16),
        "spec.topology: 8x8 has 64 chips; allowed: 63",
    ),
    Case(
        "the-largest-slice",
        {"maxChips": "4096"},
        _slice("tpu7x-standard-4t", "16x24x24", 2304),
        "spec.topology: 16x24x24 has 9216 chips; allowed: 4096",
    ),
    Case("slices-of-one-vm-each", {"maxChips": "32"}, _slices("ct6e-standard-8t", "2x4", 4)),
    Case(
        "slices-of-one-vm-each-and-too-many",
        {"maxChips": "32"},
        _slices("ct6e-standard-8t", "2x4", 5),
        "spec.nodeCount: 5 slices of 2x4 have 40 chips; allowed: 32",
    ),
    Case(
        "slices-of-one-chip",
        {"maxChips": "2"},
        _slices("ct6e-standard-1t", "1x1", 3),
        "spec.nodeCount: 3 slices of 1x1 have 3 chips; allowed: 2",
    ),
    # All at once
    Case(
        "all-that-is-wrong-is-said-at-once",
        {"projects": "other-project", "provisioningModels": "SPOT", "maxChips": "4"},
        {},
        "spec.project: my-gcp-project is not allowed; allowed: other-project; "
        "spec.instanceConfig.provisioningModel: RESERVATION_BOUND is not allowed; allowed: SPOT; "
        "spec.topology: 2x2x2 has 8 chips; allowed: 4",
    ),
]
