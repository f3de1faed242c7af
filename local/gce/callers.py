"""Principals and callers."""

from __future__ import annotations

from dataclasses import dataclass

from local.gce import iam
from local.gce.refusals import ACT_AS_MISSING, PERMISSION_MISSING
from local.gce.schema import Document


@dataclass(frozen=True)
class ConditionalRole:
    """Permissions of a principal under a condition (`local.gce.iam`)."""

    permissions: frozenset[str]
    condition: str


@dataclass(frozen=True)
class Principal:
    """A principal. ``permissions`` ``None`` means all."""

    email: str
    permissions: frozenset[str] | None = None
    conditional: tuple[ConditionalRole, ...] = ()


@dataclass(frozen=True)
class Caller:
    """The principal of a request, with its user agent and API surface.

    ``denied`` are permissions that it has lost since.
    """

    principal: Principal
    user_agent: str = ""
    surface: str = "v1"
    denied: frozenset[str] = frozenset()

    @property
    def email(self) -> str:
        """The principal's e-mail address."""
        return self.principal.email

    def may(self, permission: str, resource: str) -> bool:
        """Whether the caller has an IAM permission on a resource."""
        granted = self.principal.permissions
        if permission in self.denied:
            return False
        if granted is None or permission in granted:
            return True
        return any(
            permission in role.permissions and iam.holds(role.condition, resource)
            for role in self.principal.conditional
        )

    def demand(self, permission: str, resource: str) -> None:
        """Raise `Refused` (403) when the caller lacks a permission on a resource."""
        if not self.may(permission, resource):
            raise PERMISSION_MISSING.refused(permission=permission, resource=resource)

    def demand_act_as(self, accounts: list[Document] | None) -> None:
        """Raise `Refused` (403) when the caller may not act as a VM's service accounts."""
        for account in accounts or ():
            email = account.get("email", "")
            if not self.may("iam.serviceAccounts.actAs", f"projects/-/serviceAccounts/{email}"):
                raise ACT_AS_MISSING.refused(account=email, user=self.email)
