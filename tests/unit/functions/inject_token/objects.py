"""Observations of inject_token."""

from __future__ import annotations

from functions.inject_token.actions import CreateSecret, RevokeIfJoined
from functions.inject_token.observe import ObservedVms, Vm
from shared.frame.plan import Plan
from shared.node_groups.bootstrap import TOKEN_LIFE, Token
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import Status
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import ObjectTrigger, Trigger
from tests.support.builders import NOW, flat, group
from tests.support.compute import VM

NEW = Token("newnew", "n" * 16, NOW + TOKEN_LIFE)
NAMED = ObjectTrigger(Message("default", "my-slice", "", Cause.VMS_NEED_TOKENS, NOW, vms=(VM,)))
RESYNC = ObjectTrigger(Message("default", "my-slice", "", Cause.RESYNC, NOW))


def observed(*vms: Vm, trigger: Trigger = NAMED, about: NodeGroup | None = None) -> ObservedVms:
    fresh = {vm.instance.name: NEW for vm in vms}
    own = about or group()
    bootstrap = own.spec.bootstrap
    assert bootstrap is not None
    return ObservedVms(own, bootstrap, Status(), trigger, vms, fresh, "sha256:x")


def describe(plan: Plan) -> list[str]:
    return [
        f"{type(action).__name__} {action.token.id}"
        if isinstance(action, CreateSecret)
        else "RevokeIfJoined, if slow"
        if isinstance(action, RevokeIfJoined) and action.is_new
        else type(action).__name__
        for action in flat(plan)
    ]
