"""Build the TPUNodeGroup that a Pod asks for its unit.

The template of its class has the fields that all groups of the class share (image, how VMs join). The
candidate has the zone and the provisioning model. The other fields follow from the Pod.
"""

from collections.abc import Mapping
from typing import Any

from shared.base import names, topology
from shared.base.accelerators import CHIP_BOUNDS, SLICE_HOST_CHIPS
from shared.base.documents import parse_yaml, without_empty
from shared.base.fields import any_of
from shared.base.timestamps import render_time
from shared.base.topology import Machine
from shared.node_groups.spec import RECREATE
from shared.node_groups.spec_rules import Given
from shared.slices.by_node_group.marks import read_place, write_marks
from shared.slices.by_node_group.node_fit import NodeFit
from shared.slices.classes import CLASS_ANNOTATION, Place, Shape, SliceClass
from shared.slices.kinds import get_kind
from shared.slices.provider import ASKED_AT, DesiredSlice, short_hash
from shared.slices.units import Demand, InputError, Unit, UnservableError, find_wait_start

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


def build_desired_slice(demand: Demand, unit: Unit, cls: SliceClass, place: Place) -> DesiredSlice:
    """Build the group that a Pod asks for its unit at a candidate of a class. Raises `InputError`."""
    template = _check_template(cls.shown, cls.template)
    machine = _find_machine(demand)
    count = _count_hosts(demand, machine)
    name, domain = unit.slice_name, get_kind(unit.kind).exclusive_topology
    spec = _add_place(template["spec"], place)
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
    violations = Given(spec).violations
    if violations:
        listed = "; ".join(map(str, violations))
        raise InputError(f"with {cls.shown} the TPUNodeGroup would be invalid: {listed}")
    digest = _make_hash(spec, selected.asked)
    marks = {HASH_ANNOTATION: digest, TEMPLATE_HASH_ANNOTATION: short_hash(template)}
    if not cls.is_legacy:
        asked_at = render_time(find_wait_start(demand))
        marks |= {CLASS_ANNOTATION: cls.name, ASKED_AT: asked_at}
    return DesiredSlice(
        name=name,
        unit=unit,
        hash=digest,
        size=f"{count} host{'s' if count > 1 else ''} of {machine.machine_type} ({demand.topology})",
        body={
            "apiVersion": f"{names.GROUP}/{names.VERSION}",
            "kind": names.KIND,
            "metadata": _metadata(template.get("metadata", {}), unit, marks),
            "spec": spec,
        },
        selection=selected.selection,
        chips=count * machine.chips,
        place=place,
        shape=Shape(machine.machine_type, demand.topology),
    )


def read_legacy_class(name: str, options: Mapping[str, str]) -> SliceClass | None:
    """The template of former versions as a class, from the ConfigMap's data; ``None`` if there is none
    of this name. Raises `InputError`."""
    key = f"template.{name}" if name else "template"
    if key not in options:
        return None
    shown = f"the key {key!r} of the ConfigMap {names.SYSTEM_NAMESPACE}/jobsets"
    try:
        template = _check_template(shown, parse_yaml(options[key]))
    except ValueError as error:
        raise InputError(f"{shown} is not valid YAML: {error}") from error
    return SliceClass(shown, (read_place(template["spec"]),), template, is_legacy=True)


def _add_place(template: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """A copy of a template's spec with a candidate, unless it has that already."""
    config = dict(template["instanceConfig"])
    spec = {**template, "instanceConfig": config}
    if place == read_place(template):
        return spec
    fields = {"provisioningModel": place.model, "reservation": place.reservation}
    fields = without_empty({**fields, "maxRunDuration": place.max_run})
    for name in ("reservation", "maxRunDuration"):
        config.pop(name, None)
    config |= fields | without_empty({"subnetwork": place.subnetwork})
    return spec | {"project": place.project, "nodeLocation": place.zone}


def _check_template(shown: str, template: Any) -> Any:
    """The template, which has ``spec`` and ``spec.instanceConfig``. Raises `InputError`."""
    for path in _MAPPINGS:
        if not isinstance(_at(template, path), dict):
            what = path or "it"
            raise InputError(f"{shown} must be a TPUNodeGroup: {what} must be a mapping")
    spec = template["spec"]
    given = [f"spec.{name}" for name in _FROM_THE_POD if name in spec]
    given += ["spec.instanceConfig.machineType"] if "machineType" in spec["instanceConfig"] else []
    if given:
        raise InputError(f"{shown} must not have {', '.join(given)}: the Pod decides it")
    if spec.get("repair") == RECREATE:
        text = (
            "must not have spec.repair: Recreate: jobset_lost_rebuild_minutes replaces its slices"
        )
        raise InputError(f"{shown} {text}")
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
        raise UnservableError(
            f"the Pod's nodeSelector {names.ACCELERATOR_LABEL} {wrong}: it must be "
            f"{any_of(generations)}, which TPUNodeGroups are made of"
        )
    machine = topology.find_machine(generation.machine_type(demand.chips))
    if machine is None:
        raise UnservableError(
            f"the Pod asks for {demand.chips} of {names.TPU_RESOURCE}: it must ask for as many as a "
            f"host has, {any_of(map(str, CHIP_BOUNDS))}"
        )
    return machine


def _count_hosts(demand: Demand, machine: Machine) -> int:
    shape = demand.topology
    if len(shape) > _MAX_TOPOLOGY or not topology.TOPOLOGY.fullmatch(shape):
        raise UnservableError(
            f"the Pod's nodeSelector {names.TOPOLOGY_LABEL} is {shape!r}: it must be a shape, as in "
            "2x2x2 or 4x4"
        )
    violation = topology.find_shape_violation(shape, machine)
    if violation:
        raise UnservableError(f"the Pod's nodeSelector {names.TOPOLOGY_LABEL}: {violation}")
    count = topology.chips_of(shape) // machine.chips
    if count > 1 and machine.chips != SLICE_HOST_CHIPS:
        raise UnservableError(
            f"the topology {shape} would need {count} hosts of {machine.chips} chips: hosts of a slice "
            f"with more than one have {SLICE_HOST_CHIPS}, which the Pod must ask for"
        )
    return count


def _metadata(template: Mapping[str, Any], unit: Unit, marks: Mapping[str, str]) -> dict[str, Any]:
    labels, annotations = write_marks(unit)
    return {
        "name": unit.slice_name,
        "namespace": unit.namespace,
        "labels": {**template.get("labels", {}), **labels},
        "annotations": {**template.get("annotations", {}), **marks, **annotations},
    }


def _make_hash(spec: Mapping[str, Any], asked: Mapping[str, str]) -> str:
    """The hash of the properties that a Pod needs of its group.

    Fields that only the template has, and labels that are only copied, are not part of it: their change
    does not replace a slice.
    """
    config = {"labels": dict(asked), "machineType": spec["instanceConfig"]["machineType"]}
    wanted = {"config": config, "nodeCount": spec["nodeCount"], "topology": spec["topology"]}
    return short_hash(wanted)
