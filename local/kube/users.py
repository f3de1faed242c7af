"""Who is asking."""

from __future__ import annotations

from dataclasses import dataclass

ALL_AUTHENTICATED = "system:authenticated"
MASTERS = "system:masters"
NODES = "system:nodes"
NODE_PREFIX = "system:node:"


@dataclass(frozen=True)
class User:
    """An identity, as authentication found it."""

    name: str
    groups: tuple[str, ...]
    uid: str = ""

    @property
    def node_name(self) -> str:
        """The Node whose kubelet this is, or the empty string."""
        if NODES in self.groups and self.name.startswith(NODE_PREFIX):
            return self.name.removeprefix(NODE_PREFIX)
        return ""


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
ADMIN = User("kubernetes-admin", (MASTERS, ALL_AUTHENTICATED))
"""Who applies manifests in process."""


def controller(name: str) -> User:
    """One of the controllers that live in this process."""
    return User(f"system:serviceaccount:kube-system:{name}", (MASTERS, ALL_AUTHENTICATED))
