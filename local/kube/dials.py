"""What can be set of an embedded cluster. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dials:
    """Defaults are a cluster's usual ones.

    ``server`` is the URL that ``kube-public/cluster-info`` tells joining nodes; ``history`` is how
    many changes of each kind a watch can catch up on; ``node_grace_s`` how long a Node may be silent.
    """

    server: str = "https://127.0.0.1:6443"
    history: int = 1000
    node_grace_s: float = 50.0
