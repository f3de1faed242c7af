"""Who calls: a principal, and what a request shows of it."""

from __future__ import annotations

from dataclasses import dataclass

from local.gce.refusals import ACT_AS_MISSING, PERMISSION_MISSING
from local.gce.schema import Document


@dataclass(frozen=True)
class Principal:
    """Somebody who calls. ``permissions`` ``None`` means all."""

    email: str
    permissions: frozenset[str] | None = None


@dataclass(frozen=True)
class Caller:
    """A principal as one request shows it: with its user agent and the API surface it uses.

    ``denied`` are permissions that were taken away from it since.
    """

    principal: Principal
    user_agent: str = ""
    surface: str = "v1"
    denied: frozenset[str] = frozenset()

    @property
    def email(self) -> str:
        """The principal's e-mail address."""
        return self.principal.email

    def may(self, permission: str) -> bool:
        """Whether the caller has an IAM permission."""
        granted = self.principal.permissions
        return permission not in self.denied and (granted is None or permission in granted)

    def demand(self, permission: str, resource: str) -> None:
        """Raise `Refused` (403) when the caller lacks a permission on a resource."""
        if not self.may(permission):
            raise PERMISSION_MISSING.refused(permission=permission, resource=resource)

    def demand_act_as(self, accounts: list[Document] | None) -> None:
        """Raise `Refused` (403) when the caller may not act as a VM's service accounts."""
        for account in accounts or ():
            if not self.may("iam.serviceAccounts.actAs"):
                raise ACT_AS_MISSING.refused(account=account.get("email", ""), user=self.email)
