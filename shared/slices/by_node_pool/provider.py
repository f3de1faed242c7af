"""The provider of slices that are GKE's node pools.

Each call is one request; a deletion reads the pool first. A Job's pool has one of two names, ours or TPU
Provisioner's. Mostly neither exists, so one list of the cluster's pools replaces two failing reads.

Many JobSets begin or end in the same second. So that not each of their triggers lists the pools, the
process keeps the last list for some seconds. It only saves reads. What it lacks may exist: GKE rejects a
second pool of a name, and the step observes again, without it. What it has may have changed: a deletion
reads the pool first, and the write of a deadline has its etag.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from shared.base.names import NODE_POOLS
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import About, CallError
from shared.ports.gke import GkeClient, GkeMethod
from shared.ports.gke_settings import GkeSettings
from shared.slices.by_node_pool import found_pools
from shared.slices.by_node_pool.desired_pool import build_desired_slice
from shared.slices.classes import Place, SliceClass
from shared.slices.provider import DesiredSlice, NameConflict, Slice, SliceState
from shared.slices.units import Demand, Unit

KEPT_FOR = timedelta(seconds=5)
"""How long a list of node pools is used for other triggers of the same process."""
_LIMIT = 5
_CHANGING = frozenset({"PROVISIONING", "RECONCILING", "STOPPING"})


class NodePools:
    """The node pools of one cluster, for one invocation: a `shared.slices.provider.Provider`.

    ``remaining_s`` returns the seconds left for calls, or raises `OutOfTimeError`. ``list_readiness``
    returns for each Node of a pool whether it is ready; it is called only for failed pools.
    ``uses_kept``: the list of an earlier invocation may be used. ``checks_slots``: a change fails
    without a call if a recent list has no slot for it; GKE, which alone knows all operations, decides
    about others.
    """

    noun = "node pool"
    event_prefix = "NodePool"
    is_gke = True
    concurrency_limit: int | None = _LIMIT

    def __init__(
        self,
        settings: GkeSettings,
        client: GkeClient,
        remaining_s: Callable[[], float],
        list_readiness: Callable[[str], Sequence[bool]],
        now: Callable[[], datetime],
        *,
        uses_kept: bool = False,
        checks_slots: bool = False,
    ) -> None:
        self._settings = settings
        self._client = client
        self._remaining_s = remaining_s
        self._list_readiness = list_readiness
        self._now = now
        self._uses_kept = uses_kept
        self._checks_slots = checks_slots

    def find_legacy_class(self, name: str) -> SliceClass | None:
        if name:  # former versions had no templates for node pools
            return None
        place = Place(self._settings.zone)
        return SliceClass("the settings of node pools", (place,), node_pool={}, is_legacy=True)

    def build_desired(
        self, demand: Demand, unit: Unit, cls: SliceClass, place: Place
    ) -> DesiredSlice:
        return build_desired_slice(demand, unit, self._settings, cls, place)

    def find(self, desired: DesiredSlice) -> Slice | NameConflict | None:
        """The pool with the desired name, or the Job's pool by TPU Provisioner, or a conflict."""
        older_name = found_pools.older_name(desired.unit)
        pools = self._list_recent(desired.name, older_name)
        pool = pools.get(desired.name) or pools.get(older_name)
        found = found_pools.read_found(pool, desired) if pool else None
        if isinstance(found, Slice):
            return self._with_nodes(found)
        return found if desired.name in pools else None  # an older name may be another Job's

    def has_vm(self, existing: Slice) -> bool:
        return existing.has_vms

    def get(self, namespace: str, name: str) -> Slice | None:
        """The pool of that name, if it was created for a unit of that namespace."""
        pool = self._kept().get(name) or self._find(name)
        if pool is None or not found_pools.is_managed(pool):
            return None
        found = found_pools.read_slice(pool)
        return self._with_nodes(found) if found.unit.namespace == namespace else None

    def list_by_owner(self, kind: str, namespace: str, owner: str) -> list[Slice]:
        key = (kind, namespace, owner)
        found = _read(self._list_recent())
        return [self._with_nodes(one) for one in found if one.unit.owner_key == key]

    def list_all(self, namespace: str = "", *, with_nodes: bool = True) -> Iterable[Slice]:
        found = (one for one in _read(self._list_pools()) if namespace in ("", one.unit.namespace))
        return [self._with_nodes(one) if with_nodes else one for one in found]

    def create(self, desired: DesiredSlice) -> None:
        path, body = self._settings.cluster_path, desired.body
        with self._change(desired.name, body, "PROVISIONING"):
            self._call("create_node_pool", parent=path, nodePool=body)

    def delete(self, existing: Slice) -> bool:
        """Start deleting it, if it is unchanged (409 if not). Returns ``False`` if it was gone.

        GKE's delete takes no etag, unlike its update. So the pool is read again and compared; a change
        between the two requests is not noticed.
        """
        with self._change(existing.name, existing.raw, "STOPPING"):
            found = self._find(existing.name)
            if found is not None and not _is_same(found, existing.raw):
                message = f"node pool {existing.name} has changed since it was read"
                about = About(NODE_POOLS, existing.name)
                raise CallError("nodePools.delete", 409, "aborted", message, about)
            return found is not None and self._find(existing.name, "delete_node_pool") is not None

    def set_release_deadline(self, existing: Slice, release_after: datetime | None) -> None:
        """Write the deadline to the labels of the pool's Nodes, if the pool is unchanged (etag)."""
        self._call(
            "update_node_pool",
            name=self._path(existing.name),
            labels={"labels": found_pools.labels_with_deadline(existing.raw, release_after)},
            etag=existing.raw.get("etag", ""),
        )

    def _list_pools(self) -> dict[str, dict[str, Any]]:
        """List the pools, and keep the list. Requests at the same time each list: waiting for another's
        list would make all of them as slow as the slowest call."""
        began = self._now()
        found = self._call("list_node_pools", parent=self._settings.cluster_path)
        pools = {pool["name"]: pool for pool in found.get("nodePools") or ()}
        self._client.kept, self._uses_kept = (began, pools), True
        return dict(pools)

    def _kept(self) -> dict[str, dict[str, Any]]:
        """The pools of the last list, if it may be used and is recent; empty if not."""
        kept = self._client.kept
        is_usable = self._uses_kept and kept and self._now() - kept[0] <= KEPT_FOR
        return kept[1] if kept and is_usable else {}

    def _list_recent(self, *names: str) -> dict[str, dict[str, Any]]:
        """The kept list, or a new one. A pool of these names that was being deleted may be gone."""
        pools = dict(self._kept())
        is_outdated = any(pools.get(name, {}).get("status") == "STOPPING" for name in names)
        return self._list_pools() if is_outdated or not pools else pools

    @contextmanager
    def _change(self, name: str, pool: Mapping[str, Any], status: str) -> Iterator[None]:
        """Take a slot for a change in the kept list. Raises `CallError` as GKE would, if none is free.
        The list is not used after an error, which may be due to what it does not show."""
        with self._client.slots:
            pools = self._kept()
            count = sum(one.get("status") in _CHANGING for one in pools.values())
            if self._checks_slots and count >= _LIMIT:
                message, about = f"{count} node pools are being changed", About(NODE_POOLS, name)
                raise CallError("nodePools", 429, "rateLimitExceeded", message, about)
            pools[name] = {**pool, "status": status}
        try:
            yield
        except Exception:
            self._client.kept = None
            raise

    def _with_nodes(self, found: Slice) -> Slice:
        if found.state is not SliceState.FAILED:
            return found
        nodes = self._list_readiness(found.name)
        return replace(
            found,
            has_ready_nodes=any(nodes),
            was_created=bool(nodes),
            has_vms=found.has_vms or bool(nodes),
        )

    def _find(self, name: str, method: GkeMethod = "get_node_pool") -> dict[str, Any] | None:
        try:
            return self._call(method, name=self._path(name))
        except CallError as error:
            if error.kind is ErrorKind.ABSENT:
                return None
            raise

    def _path(self, name: str) -> str:
        return f"{self._settings.cluster_path}/nodePools/{name}"

    def _call(self, method: GkeMethod, **request: Any) -> dict[str, Any]:
        return self._client.call(method, request, self._remaining_s)


def _read(pools: Mapping[str, dict[str, Any]]) -> Iterable[Slice]:
    return map(found_pools.read_slice, filter(found_pools.is_managed, pools.values()))


def _is_same(found: Mapping[str, Any], read: Mapping[str, Any]) -> bool:
    """Whether a pool is unchanged: by its etag, or by its content if an answer has no etag."""
    if found.get("etag") and read.get("etag"):
        return bool(found["etag"] == read["etag"])
    same = found_pools.is_managed(found)
    return same and found_pools.read_slice(found) == found_pools.read_slice(read)
