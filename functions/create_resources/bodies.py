"""The bodies of the inserts of a group's resources, with the field names of the Compute client library
(snake_case)."""

import json
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shared.base.names import KUBE_LABELS_KEY, STARTUP_SCRIPT_KEY
from shared.base.timestamps import render_time
from shared.base.topology import Machine, find_machine
from shared.node_groups.bootstrap import render_startup_script
from shared.node_groups.node_group import AnyGroup, InstanceConfig, NodeGroup
from shared.node_groups.resources import machine_of
from shared.ports.gce.values import Template, TemplateRef

_REQUESTS = uuid.UUID("5f0c7f0e-6e0e-4a4e-9e54-0d2f7a0b8f11")
_DEFAULT_DISK_TYPE = "hyperdisk-balanced"
_TERMINATION = {"SPOT": "STOP", "RESERVATION_BOUND": "DELETE", "FLEX_START": "DELETE"}
"""The termination action of a VM by provisioning model. SPOT and RESERVATION_BOUND are as in
tpu-operator."""


def policy_body(group: NodeGroup) -> dict[str, Any]:
    """A workload policy that connects the VMs of one group to a slice."""
    return {
        "name": group.resource_name,
        "description": group.mark,
        "workload_policy": {
            "type_": "HIGH_THROUGHPUT",
            "accelerator_topology": group.spec.topology,
        },
    }


_DIVISIBLE = "tpu7x-"
"""Machine types whose chips can be split among containers."""


def template_body(group: NodeGroup, config: InstanceConfig) -> dict[str, Any]:
    """An instance template for the group's TPU VMs."""
    spec, model = group.spec, config.provisioning_model
    disk: dict[str, Any] = {
        "source_image": config.image,
        "disk_type": config.disk_type or _DEFAULT_DISK_TYPE,
    }
    if config.boot_disk_gb:
        disk["disk_size_gb"] = config.boot_disk_gb
    scheduling: dict[str, Any] = {"on_host_maintenance": "TERMINATE", "provisioning_model": model}
    if model in _TERMINATION:
        scheduling["instance_termination_action"] = _TERMINATION[model]
    if model == "SPOT":
        scheduling["automatic_restart"] = False
    if config.max_run_s:
        scheduling["max_run_duration"] = {"seconds": config.max_run_s}
    subnetwork = config.subnetwork
    if "/" not in subnetwork:  # a bare name is of the group's project and region
        subnetwork = f"projects/{spec.project}/regions/{spec.region}/subnetworks/{subnetwork}"
    metadata = _build_metadata(group, config)
    properties: dict[str, Any] = {
        "machine_type": config.machine_type,
        "metadata": {"items": [{"key": key, "value": metadata[key]} for key in sorted(metadata)]},
        "labels": group.vm_labels(),
        "disks": [{"boot": True, "auto_delete": True, "initialize_params": disk}],
        "scheduling": scheduling,
        "network_interfaces": [{"subnetwork": subnetwork}],
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
    if model == "FLEX_START":
        properties["reservation_affinity"] = {"consume_reservation_type": "NO_RESERVATION"}
    return {"name": group.resource_name, "description": group.mark, "properties": properties}


def _build_metadata(group: NodeGroup, config: InstanceConfig) -> dict[str, str]:
    spec, machine = group.spec, find_machine(config.machine_type)
    metadata = dict(config.metadata)
    metadata[KUBE_LABELS_KEY] = merge_kube_labels(
        metadata.get(KUBE_LABELS_KEY, ""), _kube_labels(group, machine)
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
            # Chips of one container must share a NUMA node (Google's device plugin). The
            # policy ``single-numa-node`` would refuse a container that asks for the chips of both.
            topology_manager_policy="restricted"
            if config.machine_type.startswith(_DIVISIBLE)
            else "",
        )
    return metadata


def mig_body(group: NodeGroup, template: Template | None) -> dict[str, Any]:
    """A managed instance group; ``template`` is the user's own one, if the group has one."""
    spec, name = group.spec, group.resource_name
    # VMs of BULK slices are never repaired one by one; flex start requires the same of all groups.
    source: Template | InstanceConfig | TemplateRef = template or spec.source
    model = "" if isinstance(source, TemplateRef) else source.provisioning_model
    on_failure = "DO_NOTHING" if spec.is_bulk or model == "FLEX_START" else "REPAIR"
    body: dict[str, Any] = {
        "name": name,
        "description": group.mark,
        "base_instance_name": name,
        "instance_template": f"projects/{spec.project}/global/instanceTemplates/{name}",
        "target_size": spec.node_count,
        "target_size_policy": {"mode": spec.mode},
        "instance_lifecycle_policy": {"default_action_on_failure": on_failure},
    }
    if spec.is_bulk:
        policy = f"projects/{spec.project}/regions/{spec.region}/resourcePolicies/{name}"
        body["resource_policies"] = {"workload_policy": policy}
    if spec.user_template is not None and template is not None:
        body["instance_template"] = spec.user_template.uri
        own = _kube_labels(group, machine_of(group, template.machine_type))
        labels = merge_kube_labels(template.metadata.get(KUBE_LABELS_KEY, ""), own)
        properties = {"labels": group.vm_labels(), "metadata": {KUBE_LABELS_KEY: labels}}
        body["all_instances_config"] = {"properties": properties}
    return body


def _kube_labels(group: NodeGroup, machine: Machine | None) -> dict[str, str]:
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


def request_id(group: AnyGroup, kind: str, since: datetime, body: Mapping[str, Any]) -> str:
    """The request id of an insert. It is the same for each call of one attempt, so Compute Engine
    recognizes a repetition."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    text = f"{group.mark} {kind} {render_time(since)} {canonical}"
    return str(uuid.uuid5(_REQUESTS, text))
