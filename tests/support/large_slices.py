"""Decisions about large slices: a case for each state that all hosts can have at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from functions import create_resources, inject_token, label_node, tear_down
from functions.inject_token.observe import Vm
from shared.frame.plan import Plan
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import MIG, Status
from shared.ports.gce.values import GceError, Instance, ManagedInstance
from shared.ports.kubernetes.nodes import Node
from tests.support import compute
from tests.support.builders import NOW, RESOURCE, group
from tests.unit.functions.create_resources import objects as creation
from tests.unit.functions.inject_token import objects as injection
from tests.unit.functions.label_node import objects as labels
from tests.unit.functions.tear_down import objects as deletion

TOPOLOGIES = {32: "4x4x8", 288: "8x12x12", 2304: "16x24x24"}
"""Topologies by the number of hosts with four chips each; 2,304 hosts are the maximum of a spec."""
COMPLETE = labels.COMPLETE
STOCKOUT = GceError("ZONE_RESOURCE_POOL_EXHAUSTED", "no", 503)

Decide = Callable[[], Plan]


def about(hosts: int, **options: Any) -> NodeGroup:
    return group(change={"nodeCount": hosts, "topology": TOPOLOGIES[hosts]}, **options)


def names(hosts: int) -> list[str]:
    return [f"{RESOURCE}-{number:04x}" for number in range(hosts)]


def label(
    hosts: int,
    make: Callable[[str], Node] | None,
    read: Callable[[str], Instance | None] | None = labels.vm,
    known: Status = labels.RESOURCES_READY,
) -> Decide:
    """Return label_node on a resync; ``make`` and ``read`` return a host's Node and VM."""
    given = labels.on_resync(
        *(map(make, names(hosts)) if make else ()),
        about=about(hosts),
        instances={name: read(name) for name in names(hosts)} if read else {},
        known=known,
    )
    return partial(label_node.decide.decide, given, NOW)


def inject(hosts: int) -> Decide:
    vms = [Vm(compute.instance(name), None, None) for name in names(hosts)]
    given = injection.observed(*vms, trigger=injection.RESYNC, about=about(hosts))
    return partial(inject_token.decide.decide, given, NOW)


def create(hosts: int) -> Decide:
    members = tuple(ManagedInstance(name, "", (STOCKOUT,)) for name in names(hosts))
    known = Status(resources=deletion.ALL_READY)
    mig = compute.instance_group(target_size=hosts, creating=hosts)
    given = creation.observed(about(hosts), known, found={MIG: mig}, members=members)
    return partial(create_resources.decide.decide, given, NOW)


def continue_tear_down(hosts: int, **fields: Any) -> Decide:
    given = replace(deletion.observed_remains(**fields), group=about(hosts, deleting=True))
    return partial(tear_down.decide.decide, given, NOW)


def begin_tear_down(hosts: int) -> Decide:
    nodes = tuple(map(deletion.node, names(hosts)))
    given = replace(deletion.beginning(*nodes), group=about(hosts, deleting=True))
    return partial(tear_down.decide.decide, given, NOW)


def unlabelled(hosts: int) -> dict[str, Any]:
    return {
        "found": {MIG: deletion.OWN_MIG},
        "nodes": tuple(deletion.node(name, proved=False) for name in names(hosts)),
        "instances": tuple(compute.instance(name, token=compute.OLD) for name in names(hosts)),
    }


def remaining(hosts: int) -> dict[str, Any]:
    nodes = tuple(map(deletion.node, names(hosts)))
    return {"entries": dict.fromkeys(deletion.ALL_READY, deletion.GONE), "nodes": nodes}


CASES: dict[str, Callable[[int], Decide]] = {
    "create_resources: no VM could be created": create,
    "inject_token: no VM has a token": inject,
    "label_node: none has joined": lambda hosts: label(hosts, None),
    "label_node: all have just joined": lambda hosts: label(
        hosts, partial(labels.node, proved=False)
    ),
    "label_node: all joined without providerID": lambda hosts: label(
        hosts, partial(labels.node, proved=False, provider_id="")
    ),
    "label_node: all are ready": lambda hosts: label(hosts, labels.node),
    "label_node: none is ready": lambda hosts: label(hosts, partial(labels.node, ready=False)),
    "label_node: all VMs are stopping": lambda hosts: label(
        hosts, labels.node, partial(labels.vm, status="STOPPING"), COMPLETE
    ),
    "label_node: all VMs are gone": lambda hosts: label(
        hosts, labels.node, lambda _: None, COMPLETE
    ),
    "tear_down: the deletion begins": begin_tear_down,
    "tear_down: no Node is labelled": lambda hosts: continue_tear_down(hosts, **unlabelled(hosts)),
    "tear_down: only the Nodes are left": lambda hosts: continue_tear_down(
        hosts, **remaining(hosts)
    ),
}
