"""The requests that a trigger names, each with the group and the VM of its Node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from functions.approve_join.certificate_subject import Subject, read_subject
from shared.base.names import find_resource_name
from shared.base.signing_requests import SigningRequest, find_signing_request
from shared.frame.plan import Work
from shared.node_groups import node_group, status
from shared.node_groups.bootstrap import find_token
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.status import Status
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.values import Instance

SECONDS_FOR_WRITING = 15.0
"""Reading leaves so many seconds for writing."""
SECONDS_FOR_VMS = 5.0
"""Reading requests leaves so many more for reading VMs."""


@dataclass(frozen=True)
class Candidate:
    """A request with the group of its token's owner, and with the VM of its Node, as far as they were
    found."""

    request: SigningRequest
    subject: Subject
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    group: AnyGroup | None = None
    """The group of the VM that the token belongs to."""
    status: Status = field(default_factory=Status)
    is_served: bool = True
    instance: Instance | None = None
    has_node: bool = False
    """Whether a Node records that the VM has joined: its token is spent."""
    error: CallError | OutOfTimeError | None = None
    """The error if the group or the VM could not be read."""

    @property
    def node_vm(self) -> str:
        """The VM of the Node: its name up to the first dot."""
        return self.subject.node.partition(".")[0]

    @property
    def violation(self) -> str:
        """Why the request can never become valid; empty if it can."""
        request, vm = self.request, self.node_vm
        if self.subject.violation:
            return self.subject.violation
        if not find_resource_name(vm):
            return f"{self.subject.node} is not the name of a TPUNodeGroup's VM"
        if request.token_vm == vm:
            return ""
        whose = f"VM {request.token_vm}" if request.token_vm else "no VM"
        return f"it is for the Node of VM {vm}, and its token belongs to {whose}"

    @property
    def group_of_vm(self) -> NodeGroup | None:
        """The group, if the request may be approved, so that its VM is read."""
        group = self.group
        if not isinstance(group, NodeGroup) or group.deleting is not None or not self.is_served:
            return None
        return None if self.violation or self.request.is_decided else group


@dataclass(frozen=True)
class ObservedRequests:
    """The requests that the trigger names."""

    candidates: tuple[Candidate, ...] = ()
    unread: tuple[str, ...] = ()
    """The names of requests that there was no time to read."""
    is_repetition: bool = False
    errors: tuple[CallError | OutOfTimeError, ...] = ()
    """The errors of requests that could not be read."""


def observe(work: Work) -> ObservedRequests:
    """Read each request and its group, then the VMs, as long as time for writing is left.

    The first request is always read, so that messages about the rest do not follow each other forever.
    """
    found: list[Candidate] = []
    errors: list[CallError | OutOfTimeError] = []
    names, unread = work.trigger.requests, tuple[str, ...]()
    cache = Cache(work)
    with work.reserve(SECONDS_FOR_WRITING + SECONDS_FOR_VMS):
        for index, name in enumerate(names):
            if index and not work.has_time():
                unread = names[index:]
                break
            try:
                candidate = _find_candidate(work, cache, name)
            except (CallError, OutOfTimeError) as error:
                errors.append(error)
                continue
            if candidate is not None:
                found.append(candidate)
    with work.reserve(SECONDS_FOR_WRITING):
        cache.list_instances(found)
        candidates = tuple(_add_vm(cache, one) for one in found)
    return ObservedRequests(candidates, unread, work.is_repetition, tuple(errors))


def _find_candidate(work: Work, cache: Cache, name: str) -> Candidate | None:
    """Read a request and the group of its token's owner. ``None`` if the request is gone or not by our
    token."""
    raw = work.cluster.find_signing_request(name)
    request = find_signing_request(raw) if raw is not None else None
    if raw is None or request is None:
        return None
    if request.is_decided and not request.is_approved_elsewhere:
        return Candidate(request, Subject(""))
    candidate = Candidate(request, read_subject(raw), raw)
    resource_name = find_resource_name(request.token_vm)
    try:
        group = cache.find_group(resource_name) if resource_name else None
    except (CallError, OutOfTimeError) as error:
        return replace(candidate, error=error)
    if group is None:
        return candidate
    is_served = not isinstance(group, NodeGroup) or work.settings.serves(group.spec.project)
    return replace(candidate, group=group, status=status.parse_of(group), is_served=is_served)


def _add_vm(cache: Cache, candidate: Candidate) -> Candidate:
    """Add the VM of the Node, and whether it has joined, if the request may be approved."""
    group = candidate.group_of_vm
    if group is None:
        return candidate
    try:
        instance = cache.find_instance(group, candidate.node_vm)
        may_have_joined = candidate.status.counts.joined > 0
        proved_ids = cache.list_proved_ids(group) if instance and may_have_joined else ()
    except (CallError, OutOfTimeError) as error:
        return replace(candidate, error=error)
    has_node = instance is not None and instance.id in proved_ids
    return replace(candidate, instance=instance, has_node=has_node)


class Cache:
    """Groups by resource name and VMs by name, each read once."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._found: dict[str, AnyGroup | None] = {}
        self._instances: dict[str, Instance | None] = {}

    def list_instances(self, candidates: Iterable[Candidate]) -> None:
        """Read the VMs of several requests from one list for each zone. The list may lag: a VM that
        does not hold the request's token in it is read by name."""
        tokens: dict[tuple[str, str], dict[str, str]] = {}
        for one in candidates:
            if one.group_of_vm is not None:
                spec = one.group_of_vm.spec
                tokens.setdefault((spec.project, spec.zone), {})[one.node_vm] = one.request.token_id
        for place, of_vm in tokens.items():
            if len(of_vm) == 1:
                continue
            with self._work.best_effort():
                for vm in self._work.gce.list_instances_named(*place, of_vm):
                    token = find_token(vm.metadata, self._work.now)
                    if token is not None and token.id == of_vm[vm.name]:
                        self._instances[vm.name] = vm

    def find_instance(self, group: NodeGroup, vm: str) -> Instance | None:
        """The VM in the group's project and zone. A VM's name is unique: it contains the group's."""
        if vm not in self._instances:
            spec = group.spec
            self._instances[vm] = self._work.gce.find_instance(spec.project, spec.zone, vm)
        return self._instances[vm]

    def list_proved_ids(self, group: NodeGroup) -> frozenset[str]:
        """The ids of the VMs that have joined, by the labels of the group's Nodes."""
        place = group.resource_name, group.spec.node_count
        nodes = self._work.cluster.list_recent_nodes(*place, self._work.now)
        return frozenset(node.proved_vm_id for node in nodes)

    def find_group(self, resource_name: str) -> AnyGroup | None:
        """The group whose resources have this name.

        Groups are listed by a label that users can write, so the name computed from the uid decides.
        """
        if resource_name not in self._found:
            cluster_id = self._work.cluster.get_cluster_id()
            labelled = self._work.cluster.list_recent_groups_named(resource_name, self._work.now)
            groups = (node_group.parse(raw, cluster_id) for raw in labelled)
            self._found[resource_name] = next(
                (group for group in groups if group.resource_name == resource_name), None
            )
        return self._found[resource_name]


def find_token_of_vm(candidate: Candidate, now: datetime) -> str:
    """The id of the token in the VM's metadata; empty if there is none."""
    metadata = candidate.instance.metadata if candidate.instance is not None else {}
    token = find_token(metadata, now)
    return token.id if token is not None else ""
