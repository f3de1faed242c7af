"""Approve or deny the request of a kubelet, revoke its token, and write a log line about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.frame.plan import Send, Work
from shared.ports.errors import CallError
from shared.triggers import routes

_PERMANENT_ERRORS = (400, 403, 422)
"""The HTTP status codes with which API servers and admission webhooks reject a write permanently."""
DENIED, NOT_APPROVED, ELSEWHERE = "Denied", "NotApproved", "ApprovedElsewhere"
"""The outcomes that may get a log line of their own, with the prefix ``Join``. An alert in
infra/terraform counts these lines."""


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
    """Approve a request. A permanent rejection by the API server is reported; the plan continues."""

    decision: WriteDecision
    node: str
    group: str
    if_rejected: tuple[Send, ...] = field(default=(), repr=False)

    def apply(self, work: Work) -> None:
        try:
            self.decision.apply(work)
        except CallError as error:
            # An API server that has just started answers 403 to calls that it allows a second later. So
            # the first 403 is left to the frame, which retries the message.
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

    def apply(self, work: Work) -> None:
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
    delete it. That is reported with ``outcome``, and the plan goes on.
    """

    token_id: str
    request: str
    node: str = ""
    group: str = ""
    outcome: str = DENIED

    def apply(self, work: Work) -> None:
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
            Report(self.outcome, note, self.request, self.node, self.group).apply(work)

    def describe(self) -> str:
        return f"revoke the token {self.token_id}"
