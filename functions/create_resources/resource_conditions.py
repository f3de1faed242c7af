"""The conditions of a group's resources on Compute Engine, until the group is deleted."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from shared.base.fields import count
from shared.base.reasons import REASONS, RUN_ENDS, Reason, find_advice
from shared.node_groups.node_group import InstanceConfig, NodeGroup
from shared.node_groups.recovery import describe_gone
from shared.node_groups.resources import Found, machine_of
from shared.node_groups.status import (
    CONDITION_OF,
    MIG,
    NOUN,
    POLICY,
    TEMPLATE,
    Resource,
    State,
    Status,
    Type,
)
from shared.ports.error_reasons import rank
from shared.ports.gce.values import UP, ManagedInstance, Mig, Template

Finding = tuple[bool, str, str]
"""A condition's status, reason and message."""
_CONFIG = "spec.instanceConfig."
_FIELDS = {
    r"disk type|\.diskType'": "spec.instanceConfig.diskType",
    r"Unsupported TPU configuration": "spec.topology",
    r"for given accelerator topology but was": "spec.nodeCount",
    r"\.sourceImage'|/images/\S+ was not found": "spec.instanceConfig.image",
    r"\.(sub)?network'|/subnetworks/\S+ was not found": "spec.instanceConfig.subnetwork",
    r"\.machineType'": "spec.instanceConfig.machineType",
    r"Unknown (zone|region)": "spec.nodeLocation",
}
"""The field of the spec that an error message of Compute Engine concerns, by the message's words."""
_CREATED = {
    POLICY: "WorkloadPolicy provisioned successfully",
    TEMPLATE: "InstanceTemplate provisioned successfully",
    MIG: "ManagedInstanceGroup provisioned successfully",
}


@dataclass(frozen=True)
class CreationReport:
    """The resources that were read (``None``: absent), and the VMs of the MIG, if they were read."""

    found: Mapping[str, Found | None]
    members: tuple[ManagedInstance, ...] = ()

    def add_conditions(self, group: NodeGroup, known: Status, now: datetime) -> Status:
        """``known`` with what follows from its entries and this report: Accepted, the conditions of the
        resources, machine type, model, counts and generation."""
        source, template = group.spec.source, self.found.get(TEMPLATE)
        machine_type, model = known.machine_type, known.provisioning_model
        if isinstance(source, InstanceConfig):
            machine_type, model = source.machine_type, source.provisioning_model
        elif isinstance(template, Template):
            machine = machine_of(group, template.machine_type)
            machine_type = machine.machine_type if machine else ""
            model = template.provisioning_model or "STANDARD"
            known = replace(known, max_run_s=template.max_run_s)
        counts = replace(known.counts, desired=group.spec.node_count)
        if self.members:  # the sweep decides by the number of running VMs which steps to trigger
            running = sum(member.status == "RUNNING" for member in self.members)
            counts = replace(counts, running=running)
        known = replace(
            known,
            observed_generation=group.generation,
            machine_type=machine_type,
            provisioning_model=model,
            topology=group.spec.topology,
            counts=counts,
        )
        text = "The spec is valid" + (f". {REASONS[Reason.PAUSED]}" if group.is_paused else "")
        known = known.with_condition(Type.ACCEPTED, True, "Accepted", text, group, now)
        for kind, resource in known.resources.items():
            finding = self._describe_resource(group, known, kind, resource, now)
            if finding is not None:
                known = known.with_condition(CONDITION_OF[kind], *finding, group, now)
        return known

    def _describe_resource(
        self, group: NodeGroup, known: Status, kind: str, resource: Resource, now: datetime
    ) -> Finding | None:
        """The condition of a resource; ``None``: unchanged."""
        noun, found, own = NOUN[kind], self.found.get(kind), group.spec.user_template
        if resource.state is State.READY:
            if isinstance(found, Mig):
                return self._describe_mig(group, known, found, now)
            if kind == MIG:
                return None  # it was not read
            if kind == TEMPLATE and own is not None:
                return True, "ExternalTemplate", f"Using {own.uri}"
            return True, "Ready", _CREATED[kind]
        if resource.state is State.GONE:
            text = f"The {noun} {resource.name} is gone. {describe_gone(group, known)}"
            return False, Reason.RESOURCE_LOST, text
        is_begun = resource.state is State.CREATING and resource.operation
        if group.is_paused and not is_begun:
            last = f" The last error: {resource.error.message}" if resource.error else ""
            return False, Reason.PAUSED, f"{REASONS[Reason.PAUSED]}{last}"
        if resource.error is not None:
            error = resource.error
            code = f" ({error.code})" if error.code else ""
            text = f"{noun} {resource.name}: {error.message}{code}. {find_advice(error.reason)}"
            return False, error.reason, _with_field(group, error.reason, text).rstrip()
        if resource.state is State.DELETING:
            text = f"The {noun} {resource.name} is being deleted, and is created again"
            return False, Reason.PROVISIONING, text
        if resource.state is State.PENDING:
            return False, Reason.PROVISIONING, f"The {noun} {resource.name} is not created yet"
        text = f"Compute Engine is creating the {noun} {resource.name}"
        return False, Reason.PROVISIONING, text

    def _describe_mig(self, group: NodeGroup, known: Status, found: Mig, now: datetime) -> Finding:
        desired = group.spec.node_count
        # Compute Engine shrinks the MIG of flex-start VMs at the end of their run, which is not the same
        # for all VMs of an INDIVIDUAL group.
        has_ended = known.find_end(now) is not None or any(
            one.why in RUN_ENDS for one in known.pending
        )
        is_end = found.target_size < desired and has_ended
        if found.target_size != desired and not is_end:
            # A MIG in BULK mode grows only from 0.
            can_return = not group.spec.is_bulk or found.target_size == 0
            text = (
                f"{found.uri} was resized: its targetSize is {found.target_size}, and the spec has "
                f"{desired} nodes. {'Resize it back, or delete' if can_return else 'Delete'} the group "
                "and apply it again."
            )
            return False, Reason.RESOURCE_CONFLICT, text
        if found.is_bulk_in_progress or found.creating > 0 or found.recreating > 0:
            # VMs of a BULK MIG exist: there was capacity for all, and its last check is outdated.
            is_granted = group.spec.is_bulk and any(vm.status in UP for vm in self.members)
            errors = [] if is_granted else [(found.uri, error) for error in found.errors]
            for member in self.members:
                errors += [(f"VM {member.name} of {found.uri}", error) for error in member.errors]
            first = min(errors, key=lambda one: (rank(one[1].verdict), one[0]), default=None)
            if first is not None and (reason := first[1].reason) is not None:
                subject, error = first
                text = f"{subject}: {error.message} ({error.code}). {REASONS[reason]}"
                return False, reason, _with_field(group, reason, text)
        if found.is_bulk_in_progress or (found.creating > 0 and known.completed_at is None):
            vms = count(found.creating or desired, "VM")
            return False, Reason.PROVISIONING, f"Waiting for Compute Engine to create {vms}"
        return True, "Ready", _CREATED[MIG]


def _with_field(group: NodeGroup, reason: str, message: str) -> str:
    """The message, prefixed with the field of the spec that it concerns, if that is known.

    The status keeps the text of an error alone, so the field is found by its words.
    """
    if reason not in (Reason.INVALID_SPEC, Reason.NOT_OFFERED, Reason.REFUSED):
        return message
    field = next((path for words, path in _FIELDS.items() if re.search(words, message)), "")
    if field.startswith(_CONFIG) and not isinstance(group.spec.source, InstanceConfig):
        field = "spec.instanceTemplateURI"
    return f"{field}: {message}" if field else message
