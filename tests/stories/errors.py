"""Injected errors, and what is reported of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from local.cloud.simulation import PROJECT
from local.gce.faults import Faults
from tests.stories.helpers import (
    SERVICE_AGENT_EMAIL,
    STANDARD,
    STEPS_EMAIL,
)
from tests.support.harness import RESERVATION, Harness

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def dead_letters(harness: Harness) -> list[bytes]:
    return [letter.message.data for letter in harness.simulation.pubsub.dead_letters]


def notes(harness: Harness, step: str) -> str:
    """The notes of a step in the log."""
    return "\n".join(
        str(line["note"]) for line in harness.log.lines if line["step"] == step and "note" in line
    )


def define_children(harness: Harness) -> None:
    """Create the CRDs of tpu-operator's child objects."""
    kinds = ("WorkloadPolicy", "InstanceTemplate", "ManagedInstanceGroup")
    plurals = ("workloadpolicies", "instancetemplates", "managedinstancegroups")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind, plural in zip(kinds, plurals, strict=True):
        version = {
            "name": "v1alpha1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
        }
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.tpu.google.com"},
            "spec": {
                "group": "tpu.google.com",
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [version],
            },
        }
        harness.simulation.admin("POST", CRD, definition)


@dataclass(frozen=True)
class InjectedError:
    """An error of Compute Engine, how it is injected, and how its cause is fixed."""

    begin: Callable[[Faults], object]
    end: Callable[[Faults], object]
    reason: str
    text: str
    change: dict[str, Any] = field(default_factory=dict)


def denied(permission: str, email: str = STEPS_EMAIL) -> InjectedError:
    return InjectedError(
        lambda faults: faults.remove_permission(email, permission),
        lambda faults: faults.remove_permission(email, permission, removed=False),
        "PermissionDenied",
        f"Required '{permission}' permission for ",
    )


INJECTED_ERRORS: dict[str, InjectedError] = {
    "reservation full": InjectedError(
        lambda faults: faults.set_reservation(RESERVATION, "tpu7x-standard-4t", 1),
        lambda faults: faults.set_reservation(RESERVATION, "tpu7x-standard-4t", 16),
        "ReservationFull",
        f"Specified reservation '{RESERVATION}' does not have available resources",
    ),
    "stockout": InjectedError(
        lambda faults: faults.set_capacity("us-central1-c", "tpu7x", 0),
        lambda faults: faults.set_capacity("us-central1-c", "tpu7x"),
        "InsufficientCapacity",
        "does not have enough resources available to fulfill the request.",
        {"instanceConfig": STANDARD},
    ),
    "quota of chips": InjectedError(
        lambda faults: faults.set_chip_quota("us-central1", "tpu7x", 3),
        lambda faults: faults.set_chip_quota("us-central1", "tpu7x", None),
        "QuotaExceeded",
        "Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 3.0 in region us-central1.",
    ),
    "quota of MIGs": InjectedError(
        lambda faults: faults.set_count_quota("instanceGroupManagers", 0),
        lambda faults: faults.set_count_quota("instanceGroupManagers", None),
        "QuotaExceeded",
        "Quota 'INSTANCE_GROUP_MANAGERS' exceeded.  Limit: 0.0",
    ),
    "API disabled": InjectedError(
        lambda faults: faults.disable_api(PROJECT),
        lambda faults: faults.disable_api(PROJECT, disabled=False),
        "ApiDisabled",
        "Compute Engine API has not been used in project 123456789012 before or it is disabled.",
    ),
    "agent may not create VMs": denied("compute.instances.create", SERVICE_AGENT_EMAIL),
    "steps may not create templates": denied("compute.instanceTemplates.create"),
    "steps may not create MIGs": denied("compute.instanceGroupManagers.create"),
}
