"""inject_token: write a bootstrap token into the metadata of each VM that has to join.

Triggers:

- A resync, from the sweep or, if the condition TokensInjected is not up to date, from label_node.
- The end of a VM's insert, start or reset, or its automatic restart.
- A message that names VMs: from label_node about VMs with stale Nodes, and from the step itself.

A resync lists the group's VMs, publishes the names of those that need a token in batches to this step's
own topic, and writes the condition TokensInjected, which this step owns.

Any other trigger names VMs. The step does this for each of them that has not joined and whose metadata
can be written:

1. Delete the stale Node of its predecessor.
2. Write a new token to the metadata by one setMetadata, unless the old one is valid for ten more
   minutes. If the cluster's CA has changed since, the metadata is written with the old token and the
   hash of the new CA.
3. Create the token's Secret from the metadata. A repetition builds the same Secret, and that it exists
   is no error.
4. If the VM had a token before and a Node of its name exists now, the VM has joined meanwhile, and
   label_node may have revoked the token before item 3 made it valid again: revoke it.

VMs are independent: an error of one is raised after the others have their tokens. The names of VMs that
there was no time to read are published to this step's topic. The metadata of a VM that is being created
cannot be written: the end of its insert or start triggers the step, or else a resync.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from functions.inject_token import token_report
from shared.base.names import CA_HASH_KEY
from shared.base.reasons import REASONS, Reason
from shared.frame.plan import (
    ABORT_AFTER_FAILURE,
    Action,
    Attempt,
    Batch,
    Fail,
    ForOne,
    Plan,
    Send,
    forward_rest,
)
from shared.frame.snapshot import Rules, whole
from shared.frame.step import Step, is_retried
from shared.node_groups import readiness
from shared.node_groups.actions import (
    CreateSecret,
    DeleteNode,
    DeleteSecret,
    RevokeIfJoined,
    SetMetadata,
)
from shared.node_groups.bootstrap import (
    TOKEN_LIFE,
    Token,
    ca_hash,
    find_token,
    join_metadata,
    new_token,
)
from shared.node_groups.membership import is_of_predecessor
from shared.node_groups.node_group import AnyGroup, Bootstrap, NodeGroup
from shared.node_groups.snapshot import RULES, leave_out
from shared.node_groups.status import Status, Type
from shared.node_groups.work import (
    GroupWork,
    WriteStatus,
    message_about,
    open_group,
    report_environment_error,
    report_retry,
)
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.nodes import Node, parse_node
from shared.triggers.decode import Trigger
from shared.triggers.message import BATCH, Cause

MIN_LEFT = timedelta(minutes=10)
"""A token with less time left is replaced if its VM has not joined."""
UNUSED_AFTER = timedelta(minutes=2)
"""A token this old whose VM has not joined may lack its Secret: an invocation may have ended before it
created the Secret."""
READING_SHARE = 1 / 3
"""The share of the time for calls that reading may take: writing needs at least as many calls."""


@dataclass(frozen=True)
class Vm:
    """A VM of the group and the Node of its name, as far as they exist."""

    instance: Instance
    node: Node | None
    token: Token | None
    """The token in its metadata, which may have expired; ``None`` if there is none that this system has
    written (`find_token`)."""

    is_node_stale: bool = False
    """The Node is of a predecessor with the same name."""

    @property
    def has_joined(self) -> bool:
        """Whether there is a Node of its name that is not stale. Only the VM can have registered it: an
        admission policy reserves such names (infra/kubernetes/base). label_node asks more of a Node
        (`membership.is_match`), and sends a message if the Node turns out to be stale."""
        return self.node is not None and not self.is_node_stale


@dataclass(frozen=True)
class ObservedVms:
    """The VMs that the trigger names, or all VMs of the group on a resync.

    ``fresh`` has a new token for each VM that may need one: decisions are pure, so randomness is part of
    the observation.
    """

    group: NodeGroup
    bootstrap: Bootstrap
    status: Status
    trigger: Trigger
    vms: tuple[Vm, ...] = ()
    fresh: Mapping[str, Token] = field(default_factory=dict)
    ca_hash: str = ""
    unread: tuple[str, ...] = ()
    """The names of VMs that there was no time to read."""
    is_repetition: bool = False
    """Whether this is a later attempt: the message was redelivered, or is observed again. An earlier
    attempt may have published the unread names, so this one does only if all else succeeds
    (`forward_rest`)."""
    errors: tuple[CallError | OutOfTimeError, ...] = ()
    """The errors of VMs that could not be read."""


@dataclass(frozen=True)
class NothingToInject:
    """A group whose VMs get no tokens: it is being deleted, or they join by other means.

    ``can_be_served`` is false if its spec cannot be read, or this installation does not serve its
    project.
    """

    group: AnyGroup
    status: Status
    can_be_served: bool = True


def observe(work: GroupWork) -> ObservedVms | NothingToInject:
    """Read the VMs and the Nodes of their names."""
    group, known = work.group, work.status
    if not isinstance(group, NodeGroup) or not work.settings.serves(group.spec.project):
        return NothingToInject(group, known, can_be_served=False)
    bootstrap = group.spec.bootstrap
    if group.deleting is not None or bootstrap is None:
        return NothingToInject(group, known)
    if not work.trigger.vms:
        vms = tuple(_list_vms(work, group))
        return ObservedVms(group, bootstrap, known, work.trigger, vms)
    vms, unread, errors = _read_named_vms(work, group)
    return ObservedVms(
        group,
        bootstrap,
        known,
        work.trigger,
        vms,
        fresh={vm.instance.name: new_token(work.random_bytes, work.now) for vm in vms},
        ca_hash=_get_ca_hash(work, vms) if vms else "",
        unread=unread,
        is_repetition=work.trigger.is_redelivered or not work.is_first_observation,
        errors=errors,
    )


def decide(observed: ObservedVms | NothingToInject, now: datetime) -> Plan:
    """Decide which of the observed VMs get a token."""
    if isinstance(observed, NothingToInject):
        return _decide_without_tokens(observed, now)
    if not observed.trigger.vms:
        return _publish_batches(observed, now)
    injections = [
        ForOne(actions) for vm in observed.vms if (actions := tuple(_inject(observed, vm, now)))
    ]
    # The frame raises the first error: one that is retried comes first.
    errors = sorted(observed.errors, key=is_retried, reverse=True)
    failures = [ForOne((Fail(error),)) for error in errors]
    plan = Plan("NothingToDo", tuple(failures))
    if injections:
        plan = Plan("Injecting", (*injections, *failures, *_end_error(observed, now)))
    rest = _build_messages(observed, observed.unread, now)
    return forward_rest(plan, rest, is_repetition=observed.is_repetition)


def recover(work: GroupWork, error: CallError) -> Plan | None:
    """Report an environment error in the condition of this step; after an event about one VM only in
    the log, because the next resync tries the VM again (`report_environment_error`)."""

    def add_error(known: Status, reason: Reason) -> Status:
        message = f"{error.message} ({error.call}). {REASONS[reason]}"
        return known.with_condition(
            Type.TOKENS_INJECTED, False, reason, message, group=work.group, now=work.now
        )

    return report_environment_error(work, error, add_error)


# ``fresh`` with all its tokens, but without their secrets, which RULES leave out.
SNAPSHOT: Rules = {**RULES, (ObservedVms, "fresh"): whole, (ObservedVms, "ca_hash"): leave_out}
STEP = Step(
    "inject_token", open_group, observe, decide, recover, give_up=report_retry, snapshot=SNAPSHOT
)
run = STEP.run


def _decide_without_tokens(observed: NothingToInject, now: datetime) -> Plan:
    if observed.group.deleting is not None:
        return Plan("Deleting")
    known = observed.status.without_retry(STEP.name)
    if not observed.can_be_served:
        # create_resources reports why; this step only ends its own transient error.
        write = WriteStatus(readiness.conclude(observed.group, known, now))
        return Plan("NotServed", () if known == observed.status else (write,))
    message = "bootstrapKubernetes is not set: the VMs join by other means"
    known = known.with_condition(
        Type.TOKENS_INJECTED, True, "NotNeeded", message, group=observed.group, now=now
    )
    write = WriteStatus(readiness.conclude(observed.group, known, now))
    return Plan("NoBootstrap", (write,))


def _get_ca_hash(work: GroupWork, vms: Sequence[Vm]) -> str:
    """The hash of the cluster's CA. It is read again if a VM has another one: then the CA that is kept
    may be from before a rotation, and another process has written the new one."""
    found = _read_ca_hash(work)
    if all(vm.instance.metadata.get(CA_HASH_KEY, found) == found for vm in vms):
        return found
    work.cluster.forget_ca_certificate()
    return _read_ca_hash(work)


def _read_ca_hash(work: GroupWork) -> str:
    try:
        return ca_hash(work.cluster.get_ca_certificate(work.now))
    except ValueError as error:
        work.cluster.forget_ca_certificate()
        raise CallError("read the cluster's CA", 422, "Invalid", str(error)) from error


def _read_named_vms(
    work: GroupWork, group: NodeGroup
) -> tuple[tuple[Vm, ...], tuple[str, ...], tuple[CallError | OutOfTimeError, ...]]:
    """The VMs, the names of those that there was no time to read, and the errors of the others.

    The first VM is always read, so each invocation makes progress, however slow the calls are.
    """
    vms: list[Vm] = []
    errors: list[CallError | OutOfTimeError] = []
    names = work.trigger.vms
    with work.reserve(work.remaining_s() * (1 - READING_SHARE)):
        for index, name in enumerate(names):
            if index and not work.has_time():
                return tuple(vms), names[index:], tuple(errors)
            try:
                vm = _find_vm(work, group, name)
            except CallError as error:
                errors.append(error.about(name))
            except OutOfTimeError as error:
                errors.append(OutOfTimeError(f"{name}: {error}"))
            else:
                vms += [vm] if vm is not None else []
    return tuple(vms), (), tuple(errors)


def _find_vm(work: GroupWork, group: NodeGroup, name: str) -> Vm | None:
    spec = group.spec
    instance = work.gce.find_instance(spec.project, spec.zone, name)
    if instance is None or not instance.is_member_of(spec.zone, group.resource_name):
        return None
    raw = work.cluster.find_node(name)
    return _build_vm(group, instance, parse_node(raw) if raw else None, work.now)


def _build_vm(group: NodeGroup, instance: Instance, node: Node | None, now: datetime) -> Vm:
    is_stale = node is not None and is_of_predecessor(group, node, instance)
    return Vm(instance, node, find_token(instance.metadata, now), is_stale)


def _list_vms(work: GroupWork, group: NodeGroup) -> Iterator[Vm]:
    spec, name = group.spec, group.resource_name
    nodes = {node.vm: node for node in map(parse_node, work.cluster.list_nodes(name))}
    for instance in work.gce.list_instances(spec.project, spec.zone, name):
        if instance.is_member_of(spec.zone, name):
            yield _build_vm(group, instance, nodes.get(instance.name), work.now)


def _inject(observed: ObservedVms, vm: Vm, now: datetime) -> Iterator[Action]:
    """The actions for one VM: none, create the Secret of its token, or inject a new token.

    A VM that had a token may join at any time, also while these actions are executed. Then label_node
    may revoke the token before its Secret is created again, so it is revoked once more.
    """
    if vm.has_joined and vm.token is not None and observed.is_repetition:
        # An earlier attempt may have created the Secret, and have failed before it revoked the token.
        yield DeleteSecret(vm.token.id, vm.instance.name)
    if vm.has_joined or not _is_metadata_writable(vm, observed.trigger):
        return
    if vm.node is not None:
        yield DeleteNode(vm.node.name, vm.node.uid)
    token = vm.token
    if token is None or token.expires - now < MIN_LEFT:
        token = observed.fresh[vm.instance.name]
    metadata = _build_metadata(observed, vm, token)
    if metadata != vm.instance.metadata:  # also after a rotation of the cluster's CA
        yield SetMetadata(observed.group.spec, vm.instance, metadata)
    yield CreateSecret(token, vm.instance.name)
    if vm.token is not None:
        stale_uid = vm.node.uid if vm.node is not None else ""
        yield RevokeIfJoined(token.id, vm.instance.name, stale_uid)


def _build_metadata(observed: ObservedVms, vm: Vm, token: Token) -> dict[str, str]:
    """The VM's complete metadata, because setMetadata replaces all of it."""
    added = join_metadata(token, endpoint=observed.bootstrap.endpoint, ca_hash=observed.ca_hash)
    return {**vm.instance.metadata, **added}


def _publish_batches(observed: ObservedVms, now: datetime) -> Plan:
    """Publish the names of all VMs that need an injection, and report how many have a token."""
    names = [vm.instance.name for vm in observed.vms if _needs_injection(vm, observed.trigger, now)]
    sends = tuple(_build_messages(observed, names, now))
    actions: tuple[Action, ...] = (*sends, _report(observed, now))
    return Plan("PublishingVMs" if sends else "AllHaveTokens", actions)


def _build_messages(observed: ObservedVms, names: Sequence[str], now: datetime) -> Iterator[Send]:
    for start in range(0, len(names), BATCH):
        batch = tuple(names[start : start + BATCH])
        message = message_about(observed.group, Cause.VMS_NEED_TOKENS, now, vms=batch)
        yield Send("inject_token", (message,))


def _is_metadata_writable(vm: Vm, trigger: Trigger) -> bool:
    """Whether Compute Engine accepts setMetadata for a VM in this state.

    During an insert or start it answers "not ready". A VM whose insert or start has just ended may
    still be STAGING.
    """
    return vm.instance.status == "RUNNING" or (
        trigger.event is not None and vm.instance.status == "STAGING"
    )


def _needs_injection(vm: Vm, trigger: Trigger, now: datetime) -> bool:
    if vm.has_joined or not _is_metadata_writable(vm, trigger):
        return False
    if vm.token is None or vm.token.expires - now < MIN_LEFT or vm.is_node_stale:
        return True
    return now - (vm.token.expires - TOKEN_LIFE) >= UNUSED_AFTER


def _report(observed: ObservedVms, now: datetime) -> WriteStatus:
    """Write TokensInjected from the list of a resync."""
    group = observed.group
    unjoined = [
        vm.instance.name
        for vm in observed.vms
        if not vm.has_joined and _is_metadata_writable(vm, observed.trigger)
    ]
    done = sum(vm.has_joined or _has_valid_token(vm, now) for vm in observed.vms)
    known = token_report.add_condition(group, observed.status, unjoined, done, now)
    return WriteStatus(readiness.conclude(group, known, now))


def _end_error(observed: ObservedVms, now: datetime) -> Iterator[Action | Batch]:
    """End an error that an earlier invocation has reported about one of these VMs, if no VM of this
    message fails."""
    group, names = observed.group, [vm.instance.name for vm in observed.vms]
    known = token_report.end_error(group, observed.status, names, now)
    if known != observed.status:
        yield ABORT_AFTER_FAILURE
        yield Attempt(WriteStatus(readiness.conclude(group, known, now)))


def _has_valid_token(vm: Vm, now: datetime) -> bool:
    return vm.token is not None and vm.token.expires > now
