"""The actions on Nodes and tokens that several steps execute."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.node_groups.work import GroupWork


@dataclass(frozen=True)
class RevokeToken:
    """Revoke a VM's token."""

    token_id: str
    vm: str

    def apply(self, work: GroupWork) -> None:
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
