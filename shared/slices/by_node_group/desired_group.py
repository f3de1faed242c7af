"""Build the TPUNodeGroup that a Pod asks for its unit.

The ConfigMap ``jobsets`` has a template with the fields that all groups of an installation share
(project, zone, image, how VMs join). The other fields follow from the Pod.
"""

from collections.abc import Mapping
from typing import Any

from shared.base import names, topology
from shared.base.accelerators import CHIP_BOUNDS, SLICE_HOST_CHIPS
from shared.base.documents import parse_yaml
from shared.base.fields import any_of
from shared.base.topology import Machine
from shared.node_groups.spec_rules import Given
from shared.slices.by_node_group.marks import write_marks
from shared.slices.by_node_group.node_fit import NodeFit
from shared.slices.classes import TEMPLATE_ANNOTATION
from shared.slices.kinds import get_kind
from shared.slices.provider import DesiredSlice, short_hash
from shared.slices.selectors import (
    RESERVATION,
    SPOT,
    reservation_path,
)
from shared.slices.units import Demand, InputError, Unit

HASH_ANNOTATION = "tpu-functions.dev/slice-hash"
TEMPLATE_HASH_ANNOTATION = "tpu-functions.dev/template-hash"
"""The hash of the template from which a group was built."""

_MAX_TOPOLOGY = 11
_FROM_THE_POD = (
    "nodeCount",
    "minNodeCount",
    "topology",
    "targetSizePolicyMode",
    "instanceTemplateURI",
)
_MAPPINGS = (
    "",
    "metadata",
    "metadata.labels",
    "metadata.annotations",
    "spec",
    "spec.instanceConfig",
    "spec.nodeLabels",
)
"""The parts of a template that must be mappings, if they are present."""


def build_desired_slice(demand: Demand, unit: Unit, options: Mapping[str, str]) -> DesiredSlice:
    """Build the group that a Pod asks for its unit, from the ConfigMap's data. Raises `InputError`."""
    key = _template_key(demand)
    template = _read_template(key, options.get(key))
    template_hash = short_hash(template)
    machine = _find_machine(demand)
    count = _count_hosts(demand, machine)
    name, domain = unit.slice_name, get_kind(unit.kind).exclusive_topology
    spec = template["spec"]
    selected = NodeFit(demand, unit, domain, machine, spec)
    selected.check()
    spec |= {
        "nodeCount": count,
        "acceleratorConnectionMode": "STATIC",
        "topology": demand.topology,
        "targetSizePolicyMode": "BULK" if count > 1 else "INDIVIDUAL",
        "nodeLabels": selected.node_labels(),
    }
    spec["instanceConfig"] |= {"machineType": machine.machine_type}
    _set_provisioning_model(demand, spec["instanceConfig"])
    violations = Given(spec).violations
    if violations:
        listed = "; ".join(map(str, violations))
        raise InputError(f"with {_place(key)} the TPUNodeGroup would be invalid: {listed}")
    digest = _make_hash(spec, selected.asked)
    hashes = {HASH_ANNOTATION: digest, TEMPLATE_HASH_ANNOTATION: template_hash}
    return DesiredSlice(
        name=name,
        unit=unit,
        hash=digest,
        size=f"{count} host{'s' if count > 1 else ''} of {machine.machine_type} ({demand.topology})",
        body={
            "apiVersion": f"{names.GROUP}/{names.VERSION}",
            "kind": names.KIND,
            "metadata": _metadata(template.get("metadata", {}), unit, hashes),
            "spec": spec,
        },
        selection=selected.selection,
        chips=count * machine.chips,
    )


def _template_key(demand: Demand) -> str:
    name = demand.annotations.get(TEMPLATE_ANNOTATION, "")
    return f"template.{name}" if name else "template"


def _place(key: str) -> str:
    return f"the key {key!r} of the ConfigMap {names.SYSTEM_NAMESPACE}/jobsets"


def _read_template(key: str, text: str | None) -> Any:
    """Parse a template. It has ``spec`` and ``spec.instanceConfig``, and the caller may change it."""
    if text is None:
        raise InputError(
            f"{_place(key)} is missing: it must be a TPUNodeGroup in YAML with project, nodeLocation "
            "and instanceConfig, without a name and what follows from the Pod, as in "
            "examples/jobset-template.yaml"
        )
    try:
        template = parse_yaml(text)
    except ValueError as error:
        raise InputError(f"{_place(key)} is not valid YAML: {error}") from error
    for path in _MAPPINGS:
        if not isinstance(_at(template, path), dict):
            what = path or "it"
            raise InputError(f"{_place(key)} must be a TPUNodeGroup: {what} must be a mapping")
    spec = template["spec"]
    given = [f"spec.{name}" for name in _FROM_THE_POD if name in spec]
    given += ["spec.instanceConfig.machineType"] if "machineType" in spec["instanceConfig"] else []
    if given:
        raise InputError(f"{_place(key)} must not have {', '.join(given)}: the Pod decides it")
    return template


def _at(template: Any, path: str) -> Any:
    """The part of a template at a path; empty if it is absent and optional."""
    *above, name = path.split(".")
    if not path:
        return template
    holder = template.get(above[0], {}) if above else template
    return holder.get(name, None if name in ("spec", "instanceConfig") else {})


def _find_machine(demand: Demand) -> Machine:
    generations = {one.accelerator: one for one in topology.GROUP_GENERATIONS.values()}
    generation = generations.get(demand.accelerator)
    if generation is None:
        wrong = f"is {demand.accelerator!r}" if demand.accelerator else "is missing"
        raise InputError(
            f"the Pod's nodeSelector {names.ACCELERATOR_LABEL} {wrong}: it must be "
            f"{any_of(generations)}, which TPUNodeGroups are made of"
        )
    machine = topology.find_machine(generation.machine_type(demand.chips))
    if machine is None:
        raise InputError(
            f"the Pod asks for {demand.chips} of {names.TPU_RESOURCE}: it must ask for as many as a "
            f"host has, {any_of(map(str, CHIP_BOUNDS))}"
        )
    return machine


def _count_hosts(demand: Demand, machine: Machine) -> int:
    shape = demand.topology
    if len(shape) > _MAX_TOPOLOGY or not topology.TOPOLOGY.fullmatch(shape):
        raise InputError(
            f"the Pod's nodeSelector {names.TOPOLOGY_LABEL} is {shape!r}: it must be a shape, as in "
            "2x2x2 or 4x4"
        )
    violation = topology.find_shape_violation(shape, machine)
    if violation:
        raise InputError(f"the Pod's nodeSelector {names.TOPOLOGY_LABEL}: {violation}")
    count = topology.chips_of(shape) // machine.chips
    if count > 1 and machine.chips != SLICE_HOST_CHIPS:
        raise InputError(
            f"the topology {shape} would need {count} hosts of {machine.chips} chips: hosts of a slice "
            f"with more than one have {SLICE_HOST_CHIPS}, which the Pod must ask for"
        )
    return count


def _set_provisioning_model(demand: Demand, config: dict[str, Any]) -> None:
    """Set the provisioning model and reservation that the Pod selects, if any."""
    is_spot = SPOT in demand.selector
    if not is_spot and RESERVATION not in demand.selector:
        return
    for name in ("reservation", "maxRunDuration"):
        config.pop(name, None)
    if is_spot:
        config["provisioningModel"] = "SPOT"
        return
    config["provisioningModel"] = "RESERVATION_BOUND"
    config["reservation"] = reservation_path(demand)


def _metadata(template: Mapping[str, Any], unit: Unit, hashes: Mapping[str, str]) -> dict[str, Any]:
    labels, annotations = write_marks(unit)
    return {
        "name": unit.slice_name,
        "namespace": unit.namespace,
        "labels": {**template.get("labels", {}), **labels},
        "annotations": {**template.get("annotations", {}), **hashes, **annotations},
    }


def _make_hash(spec: Mapping[str, Any], asked: Mapping[str, str]) -> str:
    """The hash of the properties that a Pod needs of its group.

    Fields that only the template has, and labels that are only copied, are not part of it: their change
    does not replace a slice.
    """
    config = {"labels": dict(asked), "machineType": spec["instanceConfig"]["machineType"]}
    wanted = {"config": config, "nodeCount": spec["nodeCount"], "topology": spec["topology"]}
    return short_hash(wanted)
