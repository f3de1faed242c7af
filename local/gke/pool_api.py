"""The API methods on node pools and operations of given clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

from local.base.clock import Clock
from local.base.controls import UnknownFault
from local.gce.refusals import Refusal, Refused
from local.gce.supply import ANY_MODEL
from local.gke import machines, pools
from local.gke.audit import AuditLog
from local.gke.calls import Call
from local.gke.checks import check
from local.gke.cluster import Cluster
from local.gke.fault_plan import PoolFaultPlan
from local.gke.nodes import Nodes, make_nodes
from local.gke.operations import Failure, Operation, Operations
from local.gke.pools import Pool, Registrar
from local.gke.refusals import (
    ACT_AS,
    CLUSTER_ABSENT,
    COMPACT_TPU7X,
    ETAG,
    POOL_ABSENT,
    POOL_BUSY,
    POOL_EXISTS,
    QUOTA,
    RESERVATION_FULL,
    STOCKOUT,
    TOO_MANY_OPERATIONS,
)
from local.gke.timings import Timings
from local.gke.wire import Document

_UPDATE, _GET = "container.clusters.update", "container.clusters.get"
_ACT_AS = "iam.serviceAccounts.actAs"
_RESERVED = "RESERVATION_BOUND"
PERMISSIONS = (_UPDATE, _GET, _ACT_AS)
"""The permissions that the methods need."""


class PoolApi:
    """All node pools and their operations."""

    def __init__(
        self,
        clock: Clock,
        *,
        clusters: Iterable[Cluster],
        random: Random,
        nodes: Nodes,
        on_log_entry: Callable[[dict[str, Any]], None],
        timings: Timings,
        plan: PoolFaultPlan,
    ) -> None:
        self.operations = Operations(clock, random, timings)
        self._plan = plan
        self._clock = clock
        self._random = random
        self._timings = timings
        self._clusters = {(one.project, one.location, one.name): one for one in clusters}
        self._numbers = {one.project: one.number for one in self._clusters.values()}
        self._pools: dict[tuple[str, str], Pool] = {}
        self._audit = AuditLog(clock, random, timings, on_log_entry)
        self._registrar = Registrar(clock, random, timings.register_s, nodes)

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    @property
    def regions(self) -> set[str]:
        """The regions of the clusters."""
        return {cluster.region for cluster in self._clusters.values()}

    def find(self, name: str) -> Pool | None:
        """Find a pool by name, in any cluster."""
        return next((pool for pool in self._pools.values() if pool.name == name), None)

    def lose(self, pool: Pool, count: int) -> None:
        """Delete VMs of a pool; they are not replaced."""
        lost = pool.nodes[:count]
        self._registrar.remove(pool, lost)
        words = f"{len(lost)} of {len(lost) + len(pool.nodes)} instances are not running."
        pool.settle("RUNNING_WITH_ERROR", Failure(13, "INTERNAL", words))

    def repair(self, pool: Pool) -> None:
        """Create the VMs that a pool has lost."""
        cluster = next(one for one in self._clusters.values() if one.name == pool.cluster)
        pool.settle("RUNNING")
        self._register(pool, cluster)

    def create_without_operation(self, cluster: str, name: str, labels: dict[str, str]) -> None:
        """Create a pool without an operation."""
        found = next((one for one in self._clusters.values() if one.name == cluster), None)
        if found is None:
            raise UnknownFault(f"there is no cluster {cluster}")
        body = {"name": name, "initialNodeCount": 1, "config": {"labels": labels}}
        pool = self._make(found, body)
        pool.settle("RUNNING")
        self._register(pool, found)

    # the methods

    def answer(self, call: Call) -> tuple[Document, str]:
        """Answer a call: the document and its message's name. Raises `Refused`."""
        call.check()
        planned = self._plan.take_refusal(call.verb, executed=False)
        if planned is not None:
            raise planned
        answer = self._execute(call)
        planned = self._plan.take_refusal(call.verb, executed=True)
        if planned is not None:
            raise planned
        return answer

    def _execute(self, call: Call) -> tuple[Document, str]:
        if call.verb.startswith("operations."):
            return self._answer_about_operations(call)
        cluster = self._get_cluster(call)
        try:
            call.demand(_UPDATE if call.writes else _GET)
            method = getattr(self, f"_{call.verb.partition('.')[2]}")
            document, message = method(call, cluster)
            return document, message
        except Refused as refused:
            if call.writes:
                self._audit.write_refusal(self._operation(call, cluster, asked_only=True), refused)
            raise

    def _answer_about_operations(self, call: Call) -> tuple[Document, str]:
        number = self._numbers.get(call.project, call.project)
        if call.verb == "operations.get":
            found = self.operations.get(call.project, call.place, call.name)
            return found.document(number, call.version), "Operation"
        listed = self.operations.list(call.project, call.place)
        documents = [operation.document(number, call.version) for operation in listed]
        return {"operations": documents} if documents else {}, "ListOperationsResponse"

    def _get(self, call: Call, cluster: Cluster) -> tuple[Document, str]:
        pool = self._get_pool(call.name, cluster)
        return pool.document(cluster.project, call.version), "NodePool"

    def _list(self, call: Call, cluster: Cluster) -> tuple[Document, str]:
        documents = [
            pool.document(cluster.project, call.version)
            for (owner, _), pool in sorted(self._pools.items())
            if owner == f"{cluster.project}/{cluster.path}"
        ]
        return {"nodePools": documents} if documents else {}, "ListNodePoolsResponse"

    def _create(self, call: Call, cluster: Cluster) -> tuple[Document, str]:
        body = call.read_body("CreateNodePoolRequest").get("nodePool", {})
        check(body, cluster)
        if (f"{cluster.project}/{cluster.path}", body["name"]) in self._pools:
            resource = f"projects/{cluster.project}/{cluster.path}/nodePools/{body['name']}"
            raise POOL_EXISTS.refused(resource=resource)
        account = (body.get("config") or {}).get("serviceAccount", "default")
        if not call.may(_ACT_AS):
            raise ACT_AS.refused(account=account)
        self._check_quota(body, cluster)
        self._check_reservation(body, cluster)
        self._check_room_for_operations(cluster)
        pool = self._make(cluster, body)
        operation = self._begin(call, cluster, pool)
        failure = self._plan.take_failure(call.verb) or self._find_obstacle(pool, cluster)
        times = self._timings.failed_create_s if failure else self._timings.operation(call.verb)

        def end() -> None:
            pool.settle("ERROR" if failure else "RUNNING", failure)
            if failure is None:
                self._register(pool, cluster)

        return self._run(operation, pool, times, end, failure), "Operation"

    def _delete(self, call: Call, cluster: Cluster) -> tuple[Document, str]:
        pool = self._get_idle_pool(call, cluster)
        self._check_room_for_operations(cluster)
        operation = self._begin(call, cluster, pool)
        failure = self._plan.take_failure(call.verb)
        pool.settle("STOPPING")

        def end() -> None:
            if failure is not None:
                pool.settle("ERROR", failure)
                return
            self._registrar.remove(pool, pool.nodes)
            del self._pools[f"{cluster.project}/{cluster.path}", pool.name]

        times = self._timings.operation(call.verb)
        return self._run(operation, pool, times, end, failure), "Operation"

    def _update(self, call: Call, cluster: Cluster) -> tuple[Document, str]:
        body = call.read_body("UpdateNodePoolRequest")
        pool = self._get_idle_pool(call, cluster)
        if body.get("etag") and body["etag"] != pool.etag:
            raise ETAG.refused(etag=body["etag"])
        self._check_room_for_operations(cluster)
        operation = self._begin(call, cluster, pool)
        operation.progress = [{"name": "NODES_TOTAL", "intValue": "0"}]
        failure = self._plan.take_failure(call.verb)
        before = pool.status, pool.failure
        content, makes_anew = pools.updated(pool.content, body)
        pool.settle("RECONCILING")

        def end() -> None:
            pool.settle(*before)
            if failure is not None:
                return
            self._registrar.relabel(pool, content["config"].get("labels") or {})
            pool.content = content
            if makes_anew:
                self._registrar.remove(pool, pool.nodes)
                self._register(pool, cluster)

        times = self._timings.operation(call.verb)
        return self._run(operation, pool, times, end, failure), "Operation"

    # helpers of the methods

    def _get_cluster(self, call: Call) -> Cluster:
        found = self._clusters.get((call.project, call.location, call.cluster))
        if found is None:
            resource = f"projects/{call.project}/{call.place}/clusters/{call.cluster}"
            raise CLUSTER_ABSENT.refused(resource=resource)
        return found

    def _get_pool(self, name: str, cluster: Cluster) -> Pool:
        pool = self._pools.get((f"{cluster.project}/{cluster.path}", name))
        if pool is None:
            raise POOL_ABSENT.refused(name=name)
        return pool

    def _get_idle_pool(self, call: Call, cluster: Cluster) -> Pool:
        pool = self._get_pool(call.name, cluster)
        if pool.busy is not None:
            raise POOL_BUSY.refused(operation=pool.busy.name)
        return pool

    def _check_room_for_operations(self, cluster: Cluster) -> None:
        limit = self._timings.operations_at_once
        if self.operations.count_running(f"{cluster.path}/") >= limit:
            raise TOO_MANY_OPERATIONS.refused(cluster=cluster.name, limit=limit)

    def _check_quota(self, body: Document, cluster: Cluster) -> None:
        machine = machines.find_machine((body.get("config") or {}).get("machineType", ""))
        quota = self._plan.chip_quota(cluster.region, machine.family) if machine else None
        if machine is None or quota is None:
            return
        wanted = machine.chips * body.get("initialNodeCount", 0)
        left = quota - machine.chips * sum(self._count_vms(machine.family).values())
        if wanted > left:
            raise QUOTA.refused(
                resource=f"TPUS_PER_{machine.family.upper()}",
                wanted=wanted,
                short=wanted - left,
                quota=quota,
                left=left,
            )

    def _check_reservation(self, body: Document, cluster: Cluster) -> None:
        name, wanted = _reservation(body), body.get("initialNodeCount", 0)
        vms = self._plan.reservations.get(name)
        used = sum(
            pool.content.get("initialNodeCount", 0)
            for pool in self._pools.values()
            if _reservation(pool.content) == name and pool.status != "ERROR"
        )
        if vms is not None and used + wanted > vms:
            raise RESERVATION_FULL.refused(
                reservation=name,
                pool=body["name"],
                zone=cluster.zone_of(body),
                wanted=wanted,
                short=used + wanted - vms,
                machine_type=body["config"]["machineType"],
            )

    def _count_vms(self, family: str, zone: str = "") -> Counter[str]:
        """The number of VMs of a family by provisioning model, in a zone or in all, including those
        being created."""
        found = Counter[str]()
        for pool in self._pools.values():
            machine = machines.find_machine(pool.content["config"]["machineType"])
            is_there = not zone or pool.content["locations"] == [zone]
            if machine and machine.family == family and is_there and pool.status != "ERROR":
                found[_model(pool.content)] += pool.content.get("initialNodeCount", 0)
        return found

    def _find_obstacle(self, pool: Pool, cluster: Cluster) -> Failure | None:
        """Find why a pool's VMs cannot run; the pool itself is already counted."""
        content, zone = pool.content, pool.content["locations"][0]
        machine = machines.find_machine(content["config"]["machineType"])
        placement = content.get("placementPolicy") or {}
        if machine is None:
            return None
        if machine.family == "tpu7x-standard" and placement.get("type") == "COMPACT":
            return _failure(COMPACT_TPU7X, machine_type=machine.name)
        count, model = content.get("initialNodeCount", 0), _model(content)
        used = self._count_vms(machine.family, zone)
        del used[_RESERVED]
        room, of_all = (
            self._plan.find_room(zone, machine.family, one) for one in (model, ANY_MODEL)
        )
        has_room = room is None or used[model] <= room
        if model == _RESERVED or (has_room and (of_all is None or used.total() <= of_all)):
            return None
        return _failure(
            STOCKOUT,
            seconds=f"{self._random.uniform(10, 70):.9f}",
            count=count,
            instance=f"gke-tpu-{self._random.getrandbits(32):08x}-0",
            project=cluster.project,
            zone=zone,
        )

    def _make(self, cluster: Cluster, body: Document) -> Pool:
        zone = cluster.zone_of(body)
        content = pools.complete(body, cluster.project, cluster.name, zone, self._random)
        pool = Pool(content, cluster.place, cluster.name)
        self._pools[f"{cluster.project}/{cluster.path}", pool.name] = pool
        return pool

    def _register(self, pool: Pool, cluster: Cluster) -> None:
        created = make_nodes(
            pool.content, cluster.project, self._random, tpu_taint=self._timings.tpu_taint
        )
        self._registrar.add(pool, created[len(pool.nodes) :])

    def _operation(
        self, call: Call, cluster: Cluster, *, name: str = "", asked_only: bool = False
    ) -> Operation:
        """The operation of a call; with ``asked_only`` it is not started."""
        fields: dict[str, Any] = {
            "project": cluster.project,
            "place": cluster.place,
            "target": f"clusters/{cluster.name}/nodePools/{name or call.name or call.asked_name}",
            "email": call.principal.email,
            "user_agent": call.request.headers.get("user-agent", ""),
            "version": call.version,
            "request": call.document,
        }
        if asked_only:
            return Operation(verb=call.verb, name="", started=self._clock.now(), **fields)
        return self.operations.begin(call.verb, **fields)

    def _begin(self, call: Call, cluster: Cluster, pool: Pool) -> Operation:
        operation = pool.busy = self._operation(call, cluster, name=pool.name)
        self._audit.write_first(operation, cluster.number)
        return operation

    def _run(
        self,
        operation: Operation,
        pool: Pool,
        between_s: tuple[float, float],
        settle: Callable[[], None],
        failure: Failure | None,
    ) -> Document:
        """Run an operation; returns its document at the begin."""

        def end() -> None:
            pool.busy = None
            settle()
            self.operations.finish(operation, failure)
            self._audit.write_last(operation)

        delay = self._random.uniform(*between_s) + self._plan.slowness(operation.verb)
        self.operations.later(operation, delay, end)
        return operation.document(self._numbers[operation.project], operation.version)


def _failure(refusal: Refusal, **fields: object) -> Failure:
    code, status = refusal.log
    return Failure(code, status, refusal.message.format(**fields), refusal.reason)


def _model(pool: Document) -> str:
    """The provisioning model of a pool's VMs."""
    config = pool.get("config") or {}
    if _reservation(pool):
        return _RESERVED
    return "SPOT" if config.get("spot") else "FLEX_START" if config.get("flexStart") else "STANDARD"


def _reservation(pool: Document) -> str:
    """The name of the reservation of a pool; empty if it has none."""
    affinity = (pool.get("config") or {}).get("reservationAffinity") or {}
    (value, *_) = affinity.get("values") or [""]
    return str(value).rpartition("/")[2]
