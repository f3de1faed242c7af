"""A user's own instance template: whether a group's slice can be made of it."""

from shared.base.topology import find_count_violation, find_machine, find_shape_violation
from shared.node_groups.node_group import MARK_PREFIX, Spec
from shared.ports.gce.values import Template

TEMPLATE_MODELS = ("", "STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START")


def find_template_violation(spec: Spec, template: Template) -> str | None:
    """What makes a user's own template unfit for this group, or ``None``."""
    machine = find_machine(template.machine_type)
    model, action = template.provisioning_model, template.termination_action
    is_reserved = model == "RESERVATION_BOUND"
    violations = {
        "its description is that of a TPUNodeGroup's template, which is deleted with its group; use a "
        "template with another description": template.description.startswith(MARK_PREFIX),
        f'machine type "{template.machine_type}" is not supported': machine is None,
        "scheduling properties must be specified": not template.has_scheduling,
        f'provisioning model "{model}" is not supported': model not in TEMPLATE_MODELS,
        "maintenance policy must be TERMINATE": template.maintenance != "TERMINATE",
        "instance termination action must be DELETE when provisioning model is "
        "RESERVATION_BOUND": is_reserved and action != "DELETE",
        "a specific reservation must be named when provisioning model is RESERVATION_BOUND": (
            is_reserved and template.reservation_type != "SPECIFIC_RESERVATION"
        ),
        "a boot disk must be specified": not template.has_boot_disk,
    }
    violation = next((text for text, is_so in violations.items() if is_so), None)
    if violation is None and machine is not None:
        violation = find_shape_violation(spec.topology, machine) or find_count_violation(
            spec.topology, machine, spec.node_count, spec.mode
        )
    return f"invalid external template: {violation}" if violation else None
