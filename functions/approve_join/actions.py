"""Approve or deny the request of a kubelet, revoke its token, and write a log line about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shared.base.signing_requests import SigningRequest
from shared.frame.plan import Send, Work
from shared.ports.errors import CallError
from shared.ports.kubernetes.events import Event
from shared.triggers import routes

_PERMANENT_ERRORS = (400, 403, 422)
"""The HTTP status codes with which API servers and admission webhooks reject a write permanently."""
DENIED, NOT_APPROVED, ELSEWHERE = "Denied", "NotApproved", "ApprovedElsewhere"
"""The outcomes that may get a log line of their own, with the prefix ``Join``. An alert in
infra/terraform counts these lines."""
_VERBS = {DENIED: "is denied", NOT_APPROVED: "is not approved", ELSEWHERE: "is approved"}


def build_secret_reference(token_id: str) -> dict[str, Any]:
    """The object of an Event about a token that belongs to no group: its Secret, which is not read."""
    metadata = {"name": f"bootstrap-token-{token_id}", "namespace": "kube-system"}
    metadata |= {"uid": "", "resourceVersion": ""}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}


@dataclass(frozen=True)
class Report:
    """Write an Event and a line to the log about a request: once an hour for each owner of a token and
    cause, because the line is written only with a new Event.

    ``about`` is the object of the Event.
    """

    outcome: str
    note: str
    request: SigningRequest
    about: Mapping[str, Any] = field(repr=False)
    node: str = ""
    group: str = ""

    def apply(self, work: Work) -> None:
        request, is_new = self.request, True
        owner = f" of VM {request.token_vm}" if request.token_vm else ""
        text = (
            f"Signing request {request.name} by token {request.token_id}{owner} "
            f"{_VERBS[self.outcome]}: {self.note}."
        )
        # The holder of a token chooses the words of a denial.
        cause = "" if self.outcome == DENIED else self.note
        key = f"{request.token_vm or request.token_id}: {cause}"
        event = Event(f"Join{self.outcome}", text, is_warning=True, key=key)
        with work.best_effort():
            is_new = work.cluster.emit_once(self.about, event, work.now)
        write = work.log.warning if self.outcome == NOT_APPROVED else work.log.error
        fields = {"group": self.group, "vm": request.token_vm, "request": request.name}
        if is_new:
            fields |= {"node": self.node, "decision": event.reason, "note": self.note}
            write(f"approve_join: {event.reason}", step=routes.APPROVE_JOIN, **fields)

    def describe(self) -> str:
        return f"report the signing request {self.request.name}: {self.outcome}"


@dataclass(frozen=True)
class WriteDecision:
    """Approve or deny a request, if it is unchanged since it was read. A permanent rejection of an
    approval by the API server is reported, and the plan continues."""

    name: str
    condition: Mapping[str, str]
    raw: Mapping[str, Any] = field(repr=False)
    if_rejected: Report | None = None
    triggers: tuple[Send, ...] = field(default=(), repr=False)

    def apply(self, work: Work) -> None:
        try:
            work.cluster.decide_signing_request(self.raw, self.condition)
        except CallError as error:
            # An API server that has just started answers 403 to calls that it allows a second later. So
            # the first 403 is left to the frame, which retries the message.
            may_change = error.http == 403 and not work.trigger.is_redelivered
            if error.http not in _PERMANENT_ERRORS or may_change or self.if_rejected is None:
                raise
            work.facts.setdefault("rejected", []).append(self.name)
            replace(self.if_rejected, note=str(error)).apply(work)
            for send in self.triggers:
                with work.best_effort():
                    send.apply(work)

    def describe(self) -> str:
        verb = "approve" if self.condition["type"] == "Approved" else "deny"
        return f"{verb} the signing request {self.name}"


@dataclass(frozen=True)
class Revoke:
    """Revoke the token with which a request was made.

    A Secret may be one that this system has not created: then an admission policy does not let the step
    delete it. That is reported as not approved, and the plan goes on.
    """

    if_rejected: Report

    def apply(self, work: Work) -> None:
        token_id = self.if_rejected.request.token_id
        try:
            work.cluster.delete_token_secret(token_id)
        except CallError as error:
            if error.http not in _PERMANENT_ERRORS:
                raise
            note = (
                f"its token {token_id} could not be revoked: {error}. Delete the Secret "
                f"bootstrap-token-{token_id} in kube-system: until then its holder makes new requests"
            )
            replace(self.if_rejected, outcome=NOT_APPROVED, note=note).apply(work)

    def describe(self) -> str:
        return f"revoke the token {self.if_rejected.request.token_id}"
