"""The port to the Kubernetes cluster: all calls that are in the budget, and no others.

`Cluster` combines the calls of the modules, one for each kind of object, on one `transport`.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from shared.base.names import INSTALLATION_ANNOTATION, SYSTEM_NAMESPACE
from shared.ports.kubernetes.classes import SliceClassCalls
from shared.ports.kubernetes.connection import Connection
from shared.ports.kubernetes.events import EventCalls
from shared.ports.kubernetes.groups import GroupCalls
from shared.ports.kubernetes.nodes import Node, NodeCalls
from shared.ports.kubernetes.signing_requests import SigningRequestCalls
from shared.ports.kubernetes.tokens import TokenCalls
from shared.ports.kubernetes.transport import Target
from shared.ports.kubernetes.workloads import WorkloadCalls

T = TypeVar("T")

_NAMESPACES = Target("Namespace", "/api/v1", "namespaces")
_CONFIG_MAPS = Target("ConfigMap", "/api/v1", "configmaps")
_LEDGER = _CONFIG_MAPS.within(SYSTEM_NAMESPACE).one("slice-ledger")
_CA_KEPT = timedelta(minutes=10)
"""How long a CA is cached. CAs are replaced once in years."""
_RECENT = timedelta(seconds=20)


class Cluster(
    GroupCalls,
    NodeCalls,
    TokenCalls,
    SigningRequestCalls,
    WorkloadCalls,
    SliceClassCalls,
    EventCalls,
):
    """The cluster, for one invocation of a step. Its ids, its CA and its options are read once."""

    def __init__(self, connection: Connection, step: str, remaining_s: Callable[[], float]) -> None:
        super().__init__(connection, step, remaining_s)
        self._jobset_options: Mapping[str, str] | None = None

    def get_cluster_id(self) -> str:
        """The uid of the namespace ``kube-system``, read once for each kubeconfig, and after a 401."""
        return self._get_constant("cluster")

    def get_installation_id(self) -> str:
        """The id of the installation whose cluster this is, read with the cluster's id; empty: none."""
        return self._get_constant("installation")

    def forget_installation_id(self) -> None:
        """Read the id again when it is next needed: it is not the expected one, and may be corrected."""
        self._connection.constants.pop("installation", None)

    def _get_constant(self, name: str) -> str:
        self._connection.session(self._remaining_s)  # forgets them if it may be another cluster
        constants = self._connection.constants
        if name not in constants:
            metadata = self._call("GET", _NAMESPACES.one("kube-system"))["metadata"]
            self._connection.cluster_id = constants["cluster"] = str(metadata["uid"])
            annotations = metadata.get("annotations") or {}
            constants["installation"] = str(annotations.get(INSTALLATION_ANNOTATION, ""))
        return constants[name]

    def get_ca_certificate(self, now: datetime) -> str:
        """The cluster's CA in PEM form, read every ten minutes; empty while it is not published."""
        return self._read_seldom("CA", self._read_ca_certificate, now, _CA_KEPT)

    def forget_ca_certificate(self) -> None:
        """Drop the cached CA: it cannot be parsed, or may be older than a rotation."""
        self._connection.cached.pop("CA", None)

    def list_recent_groups_named(self, resource_name: str, now: datetime) -> list[dict[str, Any]]:
        """As `list_groups_named`, read at most 20 seconds ago: to know whose a VM is."""
        return self._read_seldom(
            resource_name, lambda: self.list_groups_named(resource_name), now, _RECENT
        )

    def list_recent_nodes(
        self, resource_name: str, hosts: int, now: datetime, kept: timedelta = _RECENT
    ) -> list[Node]:
        """As `list_nodes`, read at most so long ago, also if there were none."""
        key = f"{resource_name}/nodes"
        return self._read_seldom(key, lambda: (self.list_nodes(resource_name, hosts),), now, kept)[
            0
        ]

    def _read_ca_certificate(self) -> str:
        found = self._find(_CONFIG_MAPS.within("kube-system").one("kube-root-ca.crt")) or {}
        return str((found.get("data") or {}).get("ca.crt", ""))

    def _read_seldom(self, key: str, read: Callable[[], T], now: datetime, kept: timedelta) -> T:
        """The cached value of this key; if there is none, it is read. An empty one is not cached."""
        cached = self._connection.cached
        for one, (_, until) in tuple(cached.items()):
            if now >= until:
                cached.pop(one, None)
        known = cached.get(key)
        value: T = known[0] if known is not None else read()
        if value:
            cached.setdefault(key, (value, now + kept))
        return value

    def get_jobset_options(self) -> Mapping[str, str]:
        """The data of the ConfigMap ``jobsets``, read once an invocation; empty if there is none."""
        if self._jobset_options is None:
            found = self._find(_CONFIG_MAPS.within(SYSTEM_NAMESPACE).one("jobsets")) or {}
            self._jobset_options = found.get("data") or {}
        return self._jobset_options

    def find_tool_settings(self) -> Mapping[str, str]:
        """The data of the ConfigMap ``kubectl-tng``, which deploy.sh writes; empty if there is none."""
        found = self._find(_CONFIG_MAPS.within(SYSTEM_NAMESPACE).one("kubectl-tng")) or {}
        return found.get("data") or {}

    def find_slice_ledger(self) -> dict[str, Any] | None:
        """The ConfigMap ``slice-ledger``, or ``None``: the slices that are about to be created."""
        return self._find(_LEDGER)

    def replace_slice_ledger(self, ledger: Mapping[str, Any], data: Mapping[str, str]) -> None:
        """Write the ledger's data, if it is unchanged since it was read (409 if not)."""
        self._call("PUT", _LEDGER, {**ledger, "data": data})
