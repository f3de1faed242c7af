"""Describe what a step has observed, in a few words for each kind of fact."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import singledispatch
from typing import Any

from functions.approve_join.observe import Candidate, ObservedRequests
from functions.create_resources.observe import ObservedResources
from functions.inject_token.observe import NothingToInject, ObservedVms
from functions.label_node.observed_nodes import ObservedNodes
from functions.tear_down.observe import ObservedBeginning, ObservedRemains
from replay.text import MAX_NAMES, join_names
from shared.base.fields import count
from shared.base.names import TOKEN_KEY
from shared.base.timestamps import render_time
from shared.node_groups.node_group import AnyGroup
from shared.node_groups.resources import Found
from shared.node_groups.status import NOUN, Status, Type
from shared.ports.gce.values import GceError, Instance, Mig, Operation
from shared.ports.kubernetes.nodes import Node


def list_facts(observed: Any) -> Iterator[str]:
    """The facts of an observation, those about its group first."""
    if (group := getattr(observed, "group", None)) is not None:
        yield from _describe_group(group)
    yield from _list_own_facts(observed)
    if (known := getattr(observed, "status", None)) is not None:
        yield from _describe_status(known)


@singledispatch
def _list_own_facts(observed: Any) -> Iterator[str]:
    if not hasattr(observed, "group"):
        yield type(observed).__name__


@_list_own_facts.register
def _(observed: ObservedResources) -> Iterator[str]:
    if observed.has_operator_children:
        yield "tpu-operator's children of the group exist"
    yield from _describe_found(observed.found, observed.operations)
    errors = [error for member in observed.members for error in member.errors]
    if observed.members:
        yield f"{count(len(observed.members), 'VM')} of the MIG listed{_describe_errors(errors)}"
    if observed.may_repeat_insert:
        yield "an earlier delivery of the message was interrupted"


@_list_own_facts.register
def _(observed: ObservedNodes) -> Iterator[str]:
    wanted = observed.group.spec.node_count
    own, ready = len(observed.joined), len(observed.ready)
    read = count(len(observed.nodes), "Node")
    yield f"{read} read: {wanted} wanted, {own} of the group, {ready} ready"
    yield _describe_vms(observed.instances, has_all_vms=observed.has_all_vms)
    if observed.unread_nodes:
        yield f"no time to read {count(len(observed.unread_nodes), 'Node')}"
    if observed.mig is not None:
        yield f"MIG: {_describe_mig(observed.mig)}"


@_list_own_facts.register
def _(observed: ObservedVms) -> Iterator[str]:
    states = Counter(vm.instance.status for vm in observed.vms)
    yield f"{count(len(observed.vms), 'VM')} read{_describe_counts(states)}"
    if observed.vms:
        joined = sum(vm.has_joined for vm in observed.vms)
        stale = sum(vm.is_node_stale for vm in observed.vms)
        tokens = [vm.token.expires for vm in observed.vms if vm.token is not None]
        until = f", the first expires at {render_time(min(tokens))}" if tokens else ""
        yield f"{joined} have joined, {stale} have the Node of an earlier VM"
        yield f"{len(tokens)} have a token{until}"
    if observed.unread:
        yield f"no time to read {count(len(observed.unread), 'VM')}"
    yield from (str(error) for error in observed.errors)


@_list_own_facts.register
def _(observed: NothingToInject) -> Iterator[str]:
    if not observed.can_be_served:
        yield "the group's spec or project is not served"


@_list_own_facts.register
def _(observed: ObservedRemains) -> Iterator[str]:
    yield from _describe_found(observed.found, observed.operations)
    yield _describe_nodes(observed.nodes)
    if observed.instances:
        yield _describe_vms({vm.name: vm for vm in observed.instances}, has_all_vms=True)
    yield from observed.notes


@_list_own_facts.register
def _(observed: ObservedBeginning) -> Iterator[str]:
    yield _describe_nodes(observed.nodes)
    if observed.note:
        yield observed.note


@_list_own_facts.register
def _(observed: ObservedRequests) -> Iterator[str]:
    yield f"{count(len(observed.candidates), 'signing request')} read"
    yield from map(_describe_candidate, observed.candidates[:MAX_NAMES])
    if observed.unread:
        yield f"no time to read {count(len(observed.unread), 'signing request')}"
    yield from (str(error) for error in observed.errors)


def _describe_candidate(one: Candidate) -> str:
    request, subject = one.request, one.subject
    if request.is_decided:
        return f"{request.name}: already decided"
    if one.group is None:
        requester = "there is no such group"
    elif one.instance is None:
        requester = f"group {one.group.key}, and no VM was read"
    else:
        token = one.instance.metadata.get(TOKEN_KEY)
        holds = "no token" if not token else f"the token {token.partition('.')[0]}"
        vm = f"its VM is {one.instance.status} and holds {holds}"
        requester = f"group {one.group.key}, and {vm}"
    made = f"made with the token {request.token_id}, {render_time(request.created)}"
    found = subject.violation or one.error or requester
    return f"{request.name} for {subject.node or 'no Node'}, {made}: {found}"


def _describe_group(group: AnyGroup) -> Iterator[str]:
    """The facts about a group that differ from most groups."""
    if group.deleting is not None:
        yield f"the group is being deleted since {render_time(group.deleting)}"
    if not group.is_owned:
        yield "the group lacks this system's finalizer or label"
    if group.is_paused:
        yield "the group is paused"
    if group.has_operator_finalizer:
        yield "the group has tpu-operator's finalizer"
    yield from (f"spec: {violation}" for violation in group.violations[:MAX_NAMES])


def _describe_status(known: Status) -> Iterator[str]:
    if known.resources:
        states = (f"{NOUN.get(kind, kind)} {one.state}" for kind, one in known.resources.items())
        yield f"status: {', '.join(states)}"
    else:
        yield "status: no resources"
    ready = known.conditions.get(Type.READY)
    if ready is not None:
        yield f"Ready was {ready.status} ({ready.reason})"
    if known.pending:
        names = [f"{entry.name} {entry.why}" for entry in known.pending]
        yield f"VMs that delay it: {join_names(names)}"


def _describe_found(
    found: Mapping[str, Found | None], operations: Mapping[str, Operation | None]
) -> Iterator[str]:
    for kind, one in found.items():
        noun = NOUN.get(kind, kind)
        if isinstance(one, Mig):
            yield f"Compute Engine has the {noun}: {_describe_mig(one)}"
        else:
            yield f"Compute Engine has {'no' if one is None else 'the'} {noun}"
    for kind, operation in operations.items():
        state = "unknown" if operation is None else "done" if operation.is_done else "running"
        error = operation.error if operation is not None else None
        yield f"operation of the {NOUN.get(kind, kind)}: {f'failed, {error.code}' if error else state}"


def _describe_mig(mig: Mig) -> str:
    parts = [f"{count(mig.target_size, 'VM')} wanted"]
    parts += [f"{mig.creating} being created"] if mig.creating else []
    parts += [f"{mig.recreating} being repaired"] if mig.recreating else []
    parts += ["bulk operation in progress"] if mig.is_bulk_in_progress else []
    parts += [f"topology {name} {state}" for name, state in mig.topologies.items()]
    return f"{', '.join(parts)}{_describe_errors(mig.errors)}"


def _describe_errors(errors: Iterable[GceError]) -> str:
    codes = Counter(error.code for error in errors)
    return f", errors: {', '.join(codes)}" if codes else ""


def _describe_vms(instances: Mapping[str, Instance | None], *, has_all_vms: bool) -> str:
    states = Counter("gone" if vm is None else vm.status for vm in instances.values())
    read = "all VMs listed" if has_all_vms else f"{count(len(instances), 'VM')} read"
    return f"{read}{_describe_counts(states)}"


def _describe_nodes(nodes: tuple[Node, ...]) -> str:
    if not nodes:
        return "no Nodes"
    ready = sum(node.is_ready for node in nodes)
    cordoned = sum(node.is_unschedulable for node in nodes)
    return f"{count(len(nodes), 'Node')} read, {ready} ready, {cordoned} cordoned"


def _describe_counts(counts: Counter[str]) -> str:
    return f": {', '.join(f'{number} {word}' for word, number in counts.items())}" if counts else ""
