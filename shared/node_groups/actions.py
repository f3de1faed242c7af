"""The actions on Nodes and tokens that several steps execute."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.node_groups.work import GroupWork
from shared.ports.errors import CallError


@dataclass(frozen=True)
class RevokeToken:
    """Revoke a VM's token.

    ``together``: this VM and others whose tokens one call revokes. If the API server forbids that (for
    example because the cluster has no admission policies), each token is revoked by its name.
    """

    token_id: str
    vm: str
    together: tuple[str, ...] = field(default=(), repr=False)

    def apply(self, work: GroupWork) -> None:
        if self.vm in work.revoked:
            return
        if len(self.together) > 1 and work.may_revoke_together:
            try:
                work.cluster.delete_token_secrets(work.group.resource_name, self.together)
            except CallError as error:
                if error.http != 403:
                    raise
                work.may_revoke_together = False
            else:
                work.revoked.update(self.together)
                return
        work.cluster.delete_token_secret(self.token_id)

    def describe(self) -> str:
        return f"revoke the token of {self.vm}"


@dataclass(frozen=True)
class PatchNode:
    """Patch this Node (labels, taints, cordon), but no later Node with its name."""

    name: str
    uid: str
    patch: Mapping[str, Any]

    def apply(self, work: GroupWork) -> None:
        metadata = {**self.patch.get("metadata", {}), "uid": self.uid}
        work.cluster.patch_node(self.name, {**self.patch, "metadata": metadata})

    def describe(self) -> str:
        return f"patch the Node {self.name}: {sorted(self.patch)}"


@dataclass(frozen=True)
class DeleteNode:
    """Delete this Node object, but no later Node with its name."""

    name: str
    uid: str

    def apply(self, work: GroupWork) -> None:
        work.cluster.delete_node(self.name, self.uid)

    def describe(self) -> str:
        return f"delete the Node {self.name}"
