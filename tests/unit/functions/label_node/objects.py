"""Nodes, VMs and observations of label_node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from functions.label_node.observed_nodes import ObservedNodes
from shared.base.names import VM_ID_LABEL
from shared.base.reasons import Reason
from shared.base.timestamps import render_time
from shared.base.topology import find_machine
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import (
    MIG,
    Condition,
    Pending,
    Resource,
    State,
    Status,
    Type,
)
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node, parse_node
from shared.triggers.audit_log import LogEvent
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import LogTrigger, ObjectTrigger, Trigger
from tests.support.builders import NOW, RESOURCE, group
from tests.support.compute import OLD, instance

A, B, C = (f"{RESOURCE}-{name}" for name in ("aaaa", "bbbb", "cccc"))
EARLIER = NOW - timedelta(minutes=10)
RESYNC = ObjectTrigger(Message("default", "my-slice", "", Cause.RESYNC, NOW))
NODES_CHANGED = ObjectTrigger(
    Message("default", "my-slice", "", Cause.NODES_CHANGED, NOW, nodes=(A,))
)
RESOURCES_READY = Status(
    conditions={
        Type.ACCEPTED: Condition("True", "Accepted", "", EARLIER, 1),
        Type.MIG_READY: Condition("True", "Ready", "", EARLIER, 1),
        Type.TOKENS_INJECTED: Condition("True", "Injected", "", EARLIER, 1),
    },
    resources={MIG: Resource(RESOURCE, State.READY, EARLIER)},
)


def preempted(
    vm: str, method: str = "compute.instances.preempted", *, has_failed: bool = False
) -> Trigger:
    event = LogEvent(
        method, "my-gcp-project", "us-central1-c", vm, "instances", has_failed=has_failed
    )
    return LogTrigger(at=NOW, event=event)


def raw_node(
    vm: str = A,
    *,
    proved: bool = True,
    ready: bool = True,
    silent: bool = False,
    chips: int = 4,
    provider_id: str | None = None,
    labelled: bool = True,
    changed: datetime = EARLIER,
    boot: str = "",
    labels: dict[str, str] | None = None,
    created: datetime | None = None,
) -> dict[str, Any]:
    machine = find_machine("tpu7x-standard-4t")
    own_labels = dict(group().node_labels(machine)) if labelled else {}
    if proved:
        own_labels[VM_ID_LABEL] = "42"
    chips_text = {"google.com/tpu": str(chips)} if chips else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": vm,
            "uid": f"uid-of-{vm}",
            "resourceVersion": "9",
            "labels": own_labels | (labels or {}),
            **({"creationTimestamp": render_time(created)} if created else {}),
        },
        "spec": {
            "taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}],
            "providerID": f"gce://my-gcp-project/us-central1-c/{vm}"
            if provider_id is None
            else provider_id,
        },
        "status": {
            "capacity": chips_text,
            "allocatable": chips_text,
            "nodeInfo": {"bootID": boot},
            "conditions": [
                {
                    "type": "Ready",
                    "status": "Unknown" if silent else str(ready),
                    "lastTransitionTime": changed.isoformat(),
                }
            ],
        },
    }


def node(vm: str = A, **options: Any) -> Node:
    return parse_node(raw_node(vm, **options))


def vm(name: str = A, status: str = "RUNNING", started: datetime = EARLIER) -> Instance:
    return instance(name, status, OLD, started, started)


def observed(
    *nodes: Node,
    known: Status = RESOURCES_READY,
    trigger: Trigger = NODES_CHANGED,
    about: NodeGroup | None = None,
    instances: Mapping[str, Instance | None] | None = None,
    has_all_vms: bool = False,
    **rest: Any,
) -> ObservedNodes:
    timeout = timedelta(minutes=15)
    return ObservedNodes(
        about or group(), known, trigger, timeout, nodes, instances or {}, has_all_vms, **rest
    )


def on_resync(*nodes: Node, **rest: Any) -> ObservedNodes:
    return observed(*nodes, trigger=RESYNC, has_all_vms=True, **rest)


COMPLETE = replace(RESOURCES_READY, completed_at=EARLIER)
LOSS_REPORTED = replace(
    COMPLETE,
    conditions={
        **COMPLETE.conditions,
        Type.READY: Condition("False", Reason.PREEMPTED, "", NOW, 1),
    },
    pending=(Pending(A, Reason.PREEMPTED, NOW),),
)
"""The status of a group that has just reported that a VM was preempted."""
