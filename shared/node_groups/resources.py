"""The three GCE resources of a group: the bodies of their inserts, and their calls.

The bodies have the field names of the Compute client library (snake_case), and are built by pure
functions. The calls are in one table, `KINDS`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shared.base.names import KUBE_LABELS_KEY, MIGS, POLICIES, STARTUP_SCRIPT_KEY, TEMPLATES
from shared.base.timestamps import render_time
from shared.base.topology import Machine, find_machine
from shared.node_groups.bootstrap import render_startup_script
from shared.node_groups.node_group import AnyGroup, InstanceConfig, NodeGroup, Spec
from shared.node_groups.status import MIG, POLICY, TEMPLATE, Resource
from shared.ports.errors import About
from shared.ports.gce.calls import Gce
from shared.ports.gce.values import Mig, Operation, Policy, Template, TemplateRef

_REQUESTS = uuid.UUID("5f0c7f0e-6e0e-4a4e-9e54-0d2f7a0b8f11")
_DEFAULT_DISK_TYPE = "hyperdisk-balanced"
_TERMINATION = {"SPOT": "STOP", "RESERVATION_BOUND": "DELETE", "FLEX_START": "DELETE"}
"""The termination action of a VM by provisioning model. SPOT and RESERVATION_BOUND are as in
tpu-operator."""

Found = Policy | Template | Mig


def request_id(group: AnyGroup, kind: str, since: datetime, body: Mapping[str, Any]) -> str:
    """The request id of an insert. It is the same for each call of one attempt, so Compute Engine
    recognizes a repetition."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    text = f"{group.mark} {kind} {render_time(since)} {canonical}"
    return str(uuid.uuid5(_REQUESTS, text))


def machine_of(group: NodeGroup, template_type: str) -> Machine | None:
    """The machine of the group's VMs. ``template_type`` is the machine type of its own template."""
    source = group.spec.source
    if isinstance(source, InstanceConfig):
        return find_machine(source.machine_type)
    return find_machine(template_type)


def policy_body(group: NodeGroup) -> dict[str, Any]:
    """A workload policy that connects the VMs of one group to a slice."""
    spec = group.spec
    return {
        "name": group.resource_name,
        "description": group.mark,
        "workload_policy": {"type_": "HIGH_THROUGHPUT", "accelerator_topology": spec.topology},
    }


def template_body(group: NodeGroup, config: InstanceConfig) -> dict[str, Any]:
    """An instance template for the group's TPU VMs."""
    spec = group.spec
    properties: dict[str, Any] = {
        "machine_type": config.machine_type,
        "metadata": {"items": _metadata_items(group, config)},
        "labels": group.vm_labels(),
        "disks": [_boot_disk(config)],
        "scheduling": _scheduling(config),
        "network_interfaces": [{"subnetwork": _subnetwork(spec, config.subnetwork)}],
    }
    if config.network_tags:
        properties["tags"] = {"items": list(config.network_tags)}
    if config.service_account:
        email, scopes = config.service_account
        properties["service_accounts"] = [{"email": email, "scopes": list(scopes)}]
    if config.reservation:
        properties["reservation_affinity"] = {
            "consume_reservation_type": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [config.reservation],
        }
    if config.provisioning_model == "FLEX_START":
        properties["reservation_affinity"] = {"consume_reservation_type": "NO_RESERVATION"}
    return {"name": group.resource_name, "description": group.mark, "properties": properties}


def mig_body(group: NodeGroup, template: Template | None) -> dict[str, Any]:
    """A managed instance group; ``template`` is the user's own one, if the group has one."""
    spec = group.spec
    name = group.resource_name
    body: dict[str, Any] = {
        "name": name,
        "description": group.mark,
        "base_instance_name": name,
        "instance_template": f"projects/{spec.project}/global/instanceTemplates/{name}",
        "target_size": spec.node_count,
        "target_size_policy": {"mode": spec.mode},
        "instance_lifecycle_policy": {"default_action_on_failure": _on_failure(spec, template)},
    }
    if spec.is_bulk:
        policy = f"projects/{spec.project}/regions/{spec.region}/resourcePolicies/{name}"
        body["resource_policies"] = {"workload_policy": policy}
    if spec.user_template is not None and template is not None:
        body["instance_template"] = spec.user_template.uri
        labels = kube_labels(group, machine_of(group, template.machine_type))
        body["all_instances_config"] = {
            "properties": {
                "labels": group.vm_labels(),
                "metadata": {
                    KUBE_LABELS_KEY: merge_kube_labels(
                        template.metadata.get(KUBE_LABELS_KEY, ""), labels
                    )
                },
            }
        }
    return body


def kube_labels(group: NodeGroup, machine: Machine | None) -> dict[str, str]:
    """The Node labels that the metadata key ``kube-labels`` announces to the device plugin."""
    return {
        key: value
        for key, value in group.node_labels(machine).items()
        if key.startswith("cloud.google.com/gke-")
    }


def merge_kube_labels(existing: str, labels: Mapping[str, str]) -> str:
    """The value of ``kube-labels`` with these labels and the user's: a sorted list of ``key=value``,
    separated by commas.

    A user's entry that has another form is kept, after the others.
    """
    entries = [entry.strip() for entry in existing.split(",") if entry.strip()]
    pairs = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    merged = [f"{key}={value}" for key, value in sorted({**pairs, **labels}.items())]
    return ",".join([*merged, *(entry for entry in entries if "=" not in entry)])


def _on_failure(spec: Spec, template: Template | None) -> str:
    """The action on a VM's failure. VMs of BULK slices are never repaired one by one; flex start
    requires the same of all groups."""
    source: Template | InstanceConfig | TemplateRef = template or spec.source
    model = "" if isinstance(source, TemplateRef) else source.provisioning_model
    return "DO_NOTHING" if spec.is_bulk or model == "FLEX_START" else "REPAIR"


def _metadata_items(group: NodeGroup, config: InstanceConfig) -> list[dict[str, str]]:
    machine = find_machine(config.machine_type)
    spec = group.spec
    metadata = dict(config.metadata)
    metadata[KUBE_LABELS_KEY] = merge_kube_labels(
        metadata.get(KUBE_LABELS_KEY, ""), kube_labels(group, machine)
    )
    if spec.bootstrap is not None:
        # The startup script writes to a guest attribute what it waits for, or why it failed.
        metadata.setdefault("enable-guest-attributes", "TRUE")
        metadata[STARTUP_SCRIPT_KEY] = render_startup_script(
            version=spec.bootstrap.version,
            project=spec.project,
            zone=spec.zone,
            node_labels=group.node_labels(machine),
            node_taints=[str(taint) for taint in spec.node_taints],
        )
    return [{"key": key, "value": value} for key, value in sorted(metadata.items())]


def _boot_disk(config: InstanceConfig) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "source_image": config.image,
        "disk_type": config.disk_type or _DEFAULT_DISK_TYPE,
    }
    if config.boot_disk_gb:
        parameters["disk_size_gb"] = config.boot_disk_gb
    return {"boot": True, "auto_delete": True, "initialize_params": parameters}


def _scheduling(config: InstanceConfig) -> dict[str, Any]:
    model = config.provisioning_model
    scheduling: dict[str, Any] = {"on_host_maintenance": "TERMINATE", "provisioning_model": model}
    if model in _TERMINATION:
        scheduling["instance_termination_action"] = _TERMINATION[model]
    if model == "SPOT":
        scheduling["automatic_restart"] = False
    if config.max_run_s:
        scheduling["max_run_duration"] = {"seconds": config.max_run_s}
    return scheduling


def _subnetwork(spec: Spec, subnetwork: str) -> str:
    """The URI of the subnetwork. A bare name is of the group's project and region."""
    if "/" in subnetwork:
        return subnetwork
    return f"projects/{spec.project}/regions/{spec.region}/subnetworks/{subnetwork}"


@dataclass(frozen=True)
class ResourceKind:
    """The calls of one kind of resource, and the scope of its operations: a zone, region or global."""

    collection: str
    """Its name in Compute Engine's API, as in the events of the audit log."""
    find: Callable[[Gce, Spec, str], Found | None]
    insert: Callable[[Gce, Spec, Mapping[str, Any], str], Operation]
    delete: Callable[[Gce, Spec, str], Operation | None]
    scope: Callable[[Spec], str]


KINDS: Mapping[str, ResourceKind] = {
    POLICY: ResourceKind(
        collection=POLICIES,
        find=lambda gce, spec, name: gce.find_policy(spec.project, spec.region, name),
        insert=lambda gce, spec, body, request: gce.insert_policy(
            spec.project, spec.region, body, request
        ),
        delete=lambda gce, spec, name: gce.delete_policy(spec.project, spec.region, name),
        scope=lambda spec: spec.region,
    ),
    TEMPLATE: ResourceKind(
        collection=TEMPLATES,
        find=lambda gce, spec, name: gce.find_template(
            spec.user_template or TemplateRef(spec.project, name)
        ),
        insert=lambda gce, spec, body, request: gce.insert_template(spec.project, body, request),
        delete=lambda gce, spec, name: gce.delete_template(spec.project, name),
        scope=lambda _: "",
    ),
    MIG: ResourceKind(
        collection=MIGS,
        find=lambda gce, spec, name: gce.find_mig(spec.project, spec.zone, name),
        insert=lambda gce, spec, body, request: gce.insert_mig(
            spec.project, spec.zone, body, request
        ),
        delete=lambda gce, spec, name: gce.delete_mig(spec.project, spec.zone, name),
        scope=lambda spec: spec.zone,
    ),
}


def find_kind(about: About) -> str | None:
    """The kind of a group's resource that a call was about."""
    return next((kind for kind, one in KINDS.items() if one.collection == about.kind), None)


def find_operation(gce: Gce, spec: Spec, kind: str, resource: Resource) -> Operation | None:
    """The operation that a resource's entry names; ``None`` if Compute Engine has forgotten it."""
    about = About(KINDS[kind].collection, resource.name)
    return gce.find_operation(spec.project, KINDS[kind].scope(spec), resource.operation, about)
