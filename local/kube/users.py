"""Users: the identities of API clients."""

from __future__ import annotations

from dataclasses import dataclass

ALL_AUTHENTICATED = "system:authenticated"
MASTERS = "system:masters"
NODES = "system:nodes"
NODE_PREFIX = "system:node:"


@dataclass(frozen=True)
class User:
    """An authenticated identity."""

    name: str
    groups: tuple[str, ...]
    uid: str = ""

    @property
    def node_name(self) -> str:
        """The name of the Node, if the user is its kubelet; otherwise the empty string."""
        if NODES in self.groups and self.name.startswith(NODE_PREFIX):
            return self.name.removeprefix(NODE_PREFIX)
        return ""


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
ADMIN = User("kubernetes-admin", (MASTERS, ALL_AUTHENTICATED))
"""The user that applies manifests in process."""


def controller(name: str) -> User:
    """The user of one of the controllers in this process."""
    return User(f"system:serviceaccount:kube-system:{name}", (MASTERS, ALL_AUTHENTICATED))
