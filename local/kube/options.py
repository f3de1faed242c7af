"""The options of an embedded cluster. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterOptions:
    """``server`` is the URL in ``kube-public/cluster-info``, for VMs that join. ``history`` is the
    number of changes of each kind that watches can read. After ``node_grace_s`` without a heartbeat, the
    Ready condition of a Node becomes Unknown. ``max_token_s`` limits the life of ServiceAccounts'
    tokens, as ``--service-account-max-token-expiration`` does; 0 is no limit.

    The defaults are those of Kubernetes.
    """

    server: str = "https://127.0.0.1:6443"
    history: int = 1000
    node_grace_s: float = 50.0
    max_token_s: int = 0
