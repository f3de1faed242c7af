"""The three GCE resources of a group, and the calls on them, in one table: `KINDS`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shared.base.names import MIGS, POLICIES, TEMPLATES
from shared.base.topology import Machine, find_machine
from shared.node_groups.node_group import InstanceConfig, NodeGroup, Spec
from shared.node_groups.status import MIG, POLICY, TEMPLATE, Resource
from shared.ports.errors import About, CallError
from shared.ports.gce.calls import Gce
from shared.ports.gce.values import Mig, Operation, Policy, Template, TemplateRef

Found = Policy | Template | Mig


def machine_of(group: NodeGroup, template_type: str) -> Machine | None:
    """The machine of the group's VMs. ``template_type`` is the machine type of its own template."""
    source = group.spec.source
    if isinstance(source, InstanceConfig):
        return find_machine(source.machine_type)
    return find_machine(template_type)


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
        find=lambda gce, spec, name: gce.find_template(TemplateRef(spec.project, name)),
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


def find_resource(
    gce: Gce, spec: Spec, kind: str, name: str, *, may_be_nowhere: bool
) -> Found | None:
    """The resource of this kind and name. ``may_be_nowhere``: in a zone or region that Compute Engine
    does not know, there is none."""
    try:
        return KINDS[kind].find(gce, spec, name)
    except CallError as error:
        if may_be_nowhere and error.is_of_unknown_place:
            return None
        raise


def find_operation(gce: Gce, spec: Spec, kind: str, resource: Resource) -> Operation | None:
    """The operation that a resource's entry names; ``None`` if Compute Engine has forgotten it."""
    about = About(KINDS[kind].collection, resource.name)
    return gce.find_operation(spec.project, KINDS[kind].scope(spec), resource.operation, about)
