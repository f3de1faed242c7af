"""The requests that a trigger names, each with the group and the VM of its Node."""

from __future__ import annotations

from collections.abc import Mapping
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
from shared.ports.kubernetes.nodes import parse_node

SECONDS_FOR_WRITING = 15.0
"""Reading leaves so many seconds for writing."""


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
    error: CallError | None = None
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
    """Read each request, its group and its VM, as long as time for writing is left.

    The first request is always read, so that messages about the rest do not follow each other forever.
    """
    candidates: list[Candidate] = []
    errors: list[CallError | OutOfTimeError] = []
    names = work.trigger.requests
    cache = Cache(work)
    with work.reserve(SECONDS_FOR_WRITING):
        for index, name in enumerate(names):
            if index and not work.has_time():
                found, unread = tuple(candidates), names[index:]
                return ObservedRequests(found, unread, work.is_repetition, tuple(errors))
            try:
                candidate = find_candidate(work, cache, name)
            except (CallError, OutOfTimeError) as error:
                errors.append(error)
                continue
            if candidate is not None:
                candidates.append(candidate)
    return ObservedRequests(tuple(candidates), errors=tuple(errors))


def find_candidate(work: Work, cache: Cache, name: str) -> Candidate | None:
    """Read a request, the group of its token's owner and, if it may be approved, the VM. ``None`` if the
    request is gone or not by our token."""
    raw = work.cluster.find_signing_request(name)
    request = find_signing_request(raw) if raw is not None else None
    if raw is None or request is None:
        return None
    if request.is_decided and not request.is_approved_elsewhere:
        return Candidate(request, Subject(""))
    candidate = Candidate(request, read_subject(raw), raw)
    resource_name = find_resource_name(request.token_vm)
    if not resource_name:
        return candidate
    try:
        group = cache.find_group(resource_name)
        if group is not None:
            candidate = replace(candidate, group=group, status=status.parse_of(group))
        if not isinstance(group, NodeGroup) or group.deleting is not None:
            return candidate
        if candidate.violation or request.is_decided:
            return candidate
        if not work.settings.serves(group.spec.project):
            return replace(candidate, is_served=False)
        instance = cache.find_instance(group, candidate.node_vm)
        may_have_joined = candidate.status.counts.joined > 0
        proved_ids = cache.list_proved_ids(group) if instance and may_have_joined else ()
    except CallError as error:
        return replace(candidate, error=error)
    has_node = instance is not None and instance.id in proved_ids
    return replace(candidate, instance=instance, has_node=has_node)


class Cache:
    """Groups by resource name and VMs by name, each read once."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._found: dict[str, AnyGroup | None] = {}
        self._instances: dict[str, Instance | None] = {}
        self._proved_ids: dict[str, frozenset[str]] = {}

    def find_instance(self, group: NodeGroup, vm: str) -> Instance | None:
        """The VM in the group's project and zone. A VM's name is unique: it contains the group's."""
        if vm not in self._instances:
            spec = group.spec
            self._instances[vm] = self._work.gce.find_instance(spec.project, spec.zone, vm)
        return self._instances[vm]

    def list_proved_ids(self, group: NodeGroup) -> frozenset[str]:
        """The ids of the VMs that have joined, by the labels of the group's Nodes."""
        name = group.resource_name
        if name not in self._proved_ids:
            nodes = map(parse_node, self._work.cluster.list_recent_nodes(name, self._work.now))
            self._proved_ids[name] = frozenset(node.proved_vm_id for node in nodes)
        return self._proved_ids[name]

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
