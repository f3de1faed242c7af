"""The requests for certificates of VMs' kubelets: what is read about one, and the actions on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from functions.approve_join.certificate_subject import Subject, read_subject
from shared.base.names import find_resource_name
from shared.base.signing_requests import SigningRequest, find_signing_request
from shared.frame.plan import Send, Work
from shared.node_groups import node_group
from shared.node_groups.bootstrap import find_token
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.ports.errors import CallError
from shared.ports.gce.values import Instance
from shared.settings import Settings
from shared.triggers import routes

_PERMANENT_ERRORS = (400, 403, 422)
"""The HTTP status codes with which API servers and admission webhooks reject a write permanently."""
DENIED, NOT_APPROVED, ELSEWHERE = "Denied", "NotApproved", "ApprovedElsewhere"
"""The outcomes that may get a log line of their own, with the prefix ``Join``. An alert in
infra/terraform counts these lines."""


@dataclass(frozen=True)
class Candidate:
    """A request with the group and the VM of its Node, as far as they were found."""

    request: SigningRequest
    subject: Subject
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    group: AnyGroup | None = None
    is_served: bool = True
    instance: Instance | None = None
    error: CallError | None = None
    """The error if the group or the VM could not be read."""


@dataclass(kw_only=True)
class JoinWork(Work):
    """Work that writes log lines about single requests."""

    settings: Settings
    log: Any = field(repr=False)


class Cache:
    """Groups by resource name and VMs by name, each read once."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._found: dict[str, AnyGroup | None] = {}
        self._instances: dict[str, Instance | None] = {}

    def find_instance(self, group: NodeGroup, vm: str) -> Instance | None:
        """The VM in the group's project and zone. A VM's name is unique: it contains the group's."""
        if vm not in self._instances:
            spec = group.spec
            self._instances[vm] = self._work.gce.find_instance(spec.project, spec.zone, vm)
        return self._instances[vm]

    def find_group(self, resource_name: str) -> AnyGroup | None:
        """The group whose resources have this name.

        Groups are listed by a label that users can write, so the name computed from the uid decides.
        """
        if resource_name not in self._found:
            cluster_id = self._work.cluster.get_cluster_id()
            labelled = self._work.cluster.list_groups_named(resource_name)
            groups = (node_group.parse(raw, cluster_id) for raw in labelled)
            self._found[resource_name] = next(
                (group for group in groups if group.resource_name == resource_name), None
            )
        return self._found[resource_name]


def find_candidate(work: Work, cache: Cache, name: str) -> Candidate | None:
    """Read a request, its group and its VM. ``None`` if the request is gone or not by our token."""
    raw = work.cluster.find_signing_request(name)
    request = find_signing_request(raw) if raw is not None else None
    if raw is None or request is None:
        return None
    if request.is_decided:
        return Candidate(request, Subject(""))
    subject = read_subject(raw)
    vm = subject.node.partition(".")[0]  # a name with a domain is reported, see approve_join
    resource_name = find_resource_name(vm)
    if not resource_name:
        return Candidate(request, subject, raw)
    group: AnyGroup | None = None
    try:
        group = cache.find_group(resource_name)
        if not isinstance(group, NodeGroup) or group.deleting is not None:
            return Candidate(request, subject, raw, group)
        if not work.settings.serves(group.spec.project):
            return Candidate(request, subject, raw, group, is_served=False)
        instance = cache.find_instance(group, vm)
    except CallError as error:
        return Candidate(request, subject, raw, group, error=error)
    return Candidate(request, subject, raw, group, instance=instance)


def find_token_of_vm(candidate: Candidate, now: datetime) -> str:
    """The id of the token in the VM's metadata; empty if there is none."""
    metadata = candidate.instance.metadata if candidate.instance is not None else {}
    token = find_token(metadata, now)
    return token.id if token is not None else ""


@dataclass(frozen=True)
class WriteDecision:
    """Approve or deny a request, if it is unchanged since it was read."""

    name: str
    condition: Mapping[str, str]
    raw: Mapping[str, Any] = field(repr=False)

    def apply(self, work: Work) -> None:
        work.cluster.decide_signing_request(self.raw, self.condition)

    def describe(self) -> str:
        verb = "approve" if self.condition["type"] == "Approved" else "deny"
        return f"{verb} the signing request {self.name}"


@dataclass(frozen=True)
class Approve:
    """Approve a request. A permanent rejection by the API server is reported, and ends nothing."""

    decision: WriteDecision
    node: str
    group: str
    if_rejected: tuple[Send, ...] = field(default=(), repr=False)

    def apply(self, work: JoinWork) -> None:
        try:
            self.decision.apply(work)
        except CallError as error:
            # An API server that has just started answers 403 to calls that it allows a second later. The
            # frame retries a message after a 403 that is left to it.
            may_change = error.http == 403 and not work.trigger.is_redelivered
            if error.http not in _PERMANENT_ERRORS or may_change:
                raise
            name = self.decision.name
            work.facts.setdefault("rejected", []).append(name)
            Report(NOT_APPROVED, str(error), name, self.node, self.group).apply(work)
            for send in self.if_rejected:
                with work.best_effort():
                    send.apply(work)

    def describe(self) -> str:
        return self.decision.describe()


@dataclass(frozen=True)
class Report:
    """Write a line about a request to the log."""

    outcome: str
    note: str
    request: str
    node: str = ""
    group: str = ""

    def apply(self, work: JoinWork) -> None:
        write = work.log.warning if self.outcome == NOT_APPROVED else work.log.error
        write(
            f"approve_join: Join{self.outcome}",
            step=routes.APPROVE_JOIN,
            decision=f"Join{self.outcome}",
            group=self.group,
            request=self.request,
            node=self.node,
            note=self.note,
        )

    def describe(self) -> str:
        return f"report the signing request {self.request}: {self.outcome}"


@dataclass(frozen=True)
class Revoke:
    """Revoke the token with which a request was made.

    A Secret may be one that this system has not created: then an admission policy does not let the step
    delete it. That is reported, and the request is denied all the same.
    """

    token_id: str
    request: str
    node: str = ""
    group: str = ""

    def apply(self, work: JoinWork) -> None:
        try:
            work.cluster.delete_token_secret(self.token_id)
        except CallError as error:
            if error.http not in _PERMANENT_ERRORS:
                raise
            note = (
                f"its token {self.token_id} could not be revoked: {error}. Delete the Secret "
                f"bootstrap-token-{self.token_id} in kube-system: until then its holder makes new "
                "requests"
            )
            Report(DENIED, note, self.request, self.node, self.group).apply(work)

    def describe(self) -> str:
        return f"revoke the token {self.token_id}"
