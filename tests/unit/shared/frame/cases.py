# ruff: noqa: E501  (a table reads best with a row on a line)
"""Observations of all steps with a snapshot."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from functions import approve_join, create_resources, tear_down
from shared.base.names import PAUSED_ANNOTATION
from shared.base.reasons import Reason
from shared.frame.snapshot import (
    Rules,
)
from shared.frame.step import Step
from shared.node_groups.status import Pending, Status
from shared.ports.errors import CallError
from tests.support import large_slices
from tests.support.builders import NOW, group, unreadable_group
from tests.unit.functions.approve_join import cases as joins
from tests.unit.functions.create_resources import objects as creation
from tests.unit.functions.inject_token import objects as injection
from tests.unit.functions.label_node import objects as labels


def rules_of(step: Step[Any, Any]) -> Rules:
    assert step.snapshot is not None
    return step.snapshot


RECREATED = replace(
    labels.COMPLETE,
    pending=(Pending(labels.A, str(Reason.NODE_NOT_READY), NOW - timedelta(seconds=5)),),
)
CASES: dict[str, tuple[str, Any]] = {
    **{
        name: (name.partition(":")[0], make(32).args[0])  # type: ignore[attr-defined]
        for name, make in large_slices.CASES.items()
    },
    **{f"approve_join: {name}": ("approve_join", approve_join.observe.ObservedRequests((case[0],))) for name, case in joins.CASES.items()},
    "a group that is paused": ("create_resources", creation.observed(group(annotations={PAUSED_ANNOTATION: "true"}))),
    "a group that is not owned": ("create_resources", creation.observed(group(owned=False))),
    "a group that cannot be read": ("create_resources", create_resources.observe.ObservedUnreadable(unreadable_group(), Status())),
    "a Node that was ready a moment ago": ("label_node", labels.on_resync(labels.node(created=labels.EARLIER - timedelta(days=1)), known=RECREATED)),
    "the Node of a recreated VM": ("label_node", labels.on_resync(labels.node(created=NOW), known=RECREATED)),
    "a VM that was preempted": ("label_node", labels.observed(trigger=labels.preempted(labels.A), instances={labels.A: None})),
    "the taints of a Node": (
        "label_node",
        labels.observed(
            labels.node(proved=False),
            instances={labels.A: labels.vm()},
            about=group(change={"nodeTaints": [{"key": "a", "effect": "NoSchedule"}]}),
        ),
    ),
    "a VM that could not be read": ("inject_token", replace(injection.observed(), errors=(CallError("get", 403, "forbidden", "no"),), unread=("x",))),
    "an unreadable group that is being deleted": ("tear_down", tear_down.observe.UnreadableRemains(unreadable_group(deleting=True), Status())),
}  # fmt: skip
