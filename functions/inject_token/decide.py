"""Which VMs of a group get a token, and what the condition TokensInjected reports."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from functions.inject_token import tokens_condition
from functions.inject_token.actions import CreateSecret, RevokeIfJoined, SetMetadata
from functions.inject_token.observe import UNUSED_AFTER, NothingToInject, ObservedVms, Vm
from shared.base import backoff
from shared.base.names import VM_STARTED_KEY
from shared.frame.plan import Action, Each, Plan, Send, plan_unread
from shared.node_groups import readiness, recovery
from shared.node_groups.actions import DeleteNode, RevokeToken
from shared.node_groups.bootstrap import join_metadata
from shared.node_groups.membership import find_token_of_this_start
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import Type
from shared.node_groups.work import WriteStatus, message_about
from shared.triggers import routes
from shared.triggers.message import BATCH, Cause
from shared.triggers.trigger import LogTrigger, Trigger

MIN_LEFT = backoff.MAX_GAP + timedelta(minutes=1)
"""A token with less time left is replaced if its VM has not joined: it might expire before the next
resync."""
SWEPT_SELDOM_AFTER = timedelta(minutes=8)
"""A group that has waited so long for its VMs is not triggered by each run of the sweep any more."""


def decide(observed: ObservedVms | NothingToInject, now: datetime) -> Plan:
    """Decide which of the observed VMs get a token."""
    if isinstance(observed, NothingToInject):
        return _plan_without_tokens(observed, now)
    if not observed.trigger.vms:
        return _plan_resync(observed, now)
    injections = tuple(
        Each(vm.instance.name, actions)
        for vm in observed.vms
        if (actions := tuple(_plan_injection(observed, vm, now)))
    )
    unread = tuple(_build_messages(observed, observed.unread, now))
    at_once, at_end = plan_unread(unread, is_repetition=observed.is_repetition)
    # If no VM fails, an error that an earlier invocation has reported about one of them is over.
    names = [vm.instance.name for vm in observed.vms]
    known = tokens_condition.end_error(observed.group, observed.status, names, now)
    if injections and known != observed.status:
        at_end = (WriteStatus(readiness.conclude(observed.group, known, now)), *at_end)
    return Plan(
        "Injecting" if injections else "NothingToDo",
        each=(*at_once, *injections),
        errors=observed.errors,
        best_effort=tuple(_plan_forward(observed, now)) if observed.vms else (),
        if_all_succeeded=at_end,
    )


def _plan_forward(observed: ObservedVms | NothingToInject, now: datetime) -> Iterator[Send]:
    """Trigger create_resources if a VM was created after a wait that its condition still reports.

    Its next run ends this: it finds no error any more, or counts the VMs that run.
    """
    group, known = observed.group, observed.status
    mig = known.conditions.get(Type.MIG_READY)
    if mig is None or mig.is_true or not isinstance(observed.trigger, LogTrigger):
        return
    # The sweep triggers a BULK group some of whose VMs run each minute.
    is_swept = isinstance(group, NodeGroup) and group.spec.is_bulk and known.counts.running > 0
    has_waited = now - mig.since >= SWEPT_SELDOM_AFTER and not is_swept
    if known.has_api_error(Type.MIG_READY) or has_waited:
        yield Send(routes.CREATE_RESOURCES, (message_about(group, Cause.FORWARDED, now),))


def _plan_without_tokens(observed: NothingToInject, now: datetime) -> Plan:
    group = observed.group
    if group.deleting is not None:
        return Plan("Deleting")
    known = observed.status.without_retry(routes.INJECT_TOKEN)
    is_repaired = recovery.is_repair_begun(group, known)
    if is_repaired or not observed.can_be_served:
        # Another step reports why; this one only ends its own transient error.
        write = WriteStatus(readiness.conclude(group, known, now))
        first = () if known == observed.status else (write,)
        return Plan("Repairing" if is_repaired else "NotServed", first=first)
    message = "bootstrapKubernetes is not set: the VMs join by other means"
    known = known.with_condition(Type.TOKENS_INJECTED, True, "NotNeeded", message, group, now)
    return Plan(
        "NoBootstrap",
        first=(WriteStatus(readiness.conclude(group, known, now)),),
        best_effort=tuple(_plan_forward(observed, now)),
    )


def _plan_injection(observed: ObservedVms, vm: Vm, now: datetime) -> Iterator[Action]:
    """The actions for one VM: none, delete its stale Node, revoke its token, create its Secret, or
    inject a new token. When the Node is gone, label_node triggers the injection.

    A VM that has a token may join at any time, also while these actions are executed. Then label_node
    may revoke the token before its Secret is created again, so it is revoked once more.
    """
    if vm.has_joined and vm.token is not None and observed.is_repetition:
        # An earlier attempt may have created the Secret, and have failed before it revoked the token.
        yield RevokeToken(vm.token.id, vm.instance.name)
    if vm.has_joined or not _is_metadata_writable(vm, observed.trigger):
        return
    if vm.node is not None:
        if vm.node.is_silent:
            yield DeleteNode(vm.node.name, vm.node.uid)
        return
    token = vm.token
    if token is None or token.expires - now < MIN_LEFT:
        token = observed.fresh[vm.instance.name]
    # The VM's complete metadata, because setMetadata replaces all of it.
    added = join_metadata(
        token,
        endpoint=observed.bootstrap.endpoint,
        ca_hash=observed.ca_hash,
        started=vm.instance.started,
    )
    if token is vm.token and find_token_of_this_start(vm.instance, now):
        del added[VM_STARTED_KEY]  # it is recorded, or was not known
    metadata = {**vm.instance.metadata, **added}
    if metadata != vm.instance.metadata:  # also after a rotation of the cluster's CA
        yield SetMetadata(observed.group.spec, vm.instance, metadata)
    yield CreateSecret(token, vm.instance.name, vm.instance.id)
    yield RevokeIfJoined(token.id, vm.instance.name, is_new=vm.token is None)


def _plan_resync(observed: ObservedVms, now: datetime) -> Plan:
    """Publish the names of all VMs that need an injection, and report how many have a token.

    After a transient error of this step, such as a rate limit, inject their tokens at once.
    """
    group = observed.group
    waiting: list[str] = []
    to_inject: list[Vm] = []
    done = group.spec.node_count if observed.have_all_joined else 0
    for vm in observed.vms:
        name, token = vm.instance.name, vm.token
        done += vm.has_joined or (token is not None and token.expires > now)
        if vm.has_joined or not _is_metadata_writable(vm, observed.trigger):
            continue
        waiting.append(name)
        is_expiring = token is None or token.expires - now < MIN_LEFT
        is_unused = token is not None and now - token.given >= UNUSED_AFTER
        is_blocked = vm.node is not None and not vm.node.is_silent
        if (is_expiring or is_unused) and not is_blocked:
            to_inject.append(vm)
            is_counted = token is not None and token.expires > now
            done += observed.injects_at_once and vm.node is None and not is_counted
    names = [vm.instance.name for vm in to_inject]
    known = observed.status
    if observed.injects_at_once:
        known = tokens_condition.end_error(group, known, names, now)
    known = tokens_condition.add_condition(group, known, waiting, done, now)
    write = WriteStatus(readiness.conclude(group, known, now))
    if observed.injects_at_once and to_inject:
        injections = (
            Each(one.instance.name, tuple(_plan_injection(observed, one, now))) for one in to_inject
        )
        return Plan("Injecting", each=tuple(injections), if_all_succeeded=(write,))
    sends = tuple(_build_messages(observed, names, now))
    return Plan(
        "PublishingVMs" if sends else "AllHaveTokens",
        each=tuple(Each("", (send,)) for send in sends),
        after=(write,),
    )


def _build_messages(observed: ObservedVms, names: Sequence[str], now: datetime) -> Iterator[Send]:
    for start in range(0, len(names), BATCH):
        batch = tuple(names[start : start + BATCH])
        message = message_about(observed.group, Cause.VMS_NEED_TOKENS, now, vms=batch)
        yield Send(routes.INJECT_TOKEN, (message,))


def _is_metadata_writable(vm: Vm, trigger: Trigger) -> bool:
    """Whether Compute Engine accepts setMetadata for a VM in this state.

    During an insert or start it answers "not ready". A VM whose insert or start has just ended may
    still be STAGING.
    """
    return vm.instance.status == "RUNNING" or (
        isinstance(trigger, LogTrigger) and vm.instance.status == "STAGING"
    )
