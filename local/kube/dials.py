"""What can be set of an embedded cluster. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dials:
    """Defaults are a cluster's usual ones.

    ``server`` is the URL that ``kube-public/cluster-info`` tells joining nodes; ``history`` is how
    many changes of each kind a watch can catch up on.
    """

    server: str = "https://127.0.0.1:6443"
    git_version: str = "v1.36.3"
    history: int = 1000
    bookmark_interval_s: float = 60.0
    node_grace_s: float = 50.0
    node_startup_grace_s: float = 60.0
    certificate_life_s: float = 365 * 86400.0
    controller_delay_s: float = 0.0
