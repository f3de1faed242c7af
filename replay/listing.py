"""List slices, the workloads that wait for one, and classes, with what each waits for: from the cluster
alone."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from functions.provision_slice import waiting
from replay.dependencies import Dependencies
from replay.errors import in_plain_words
from replay.text import find_time_of, render_age
from shared.base.documents import read_mapping, read_number, read_text
from shared.base.fields import count
from shared.base.names import INSTANCE_TYPE_LABEL, POOL_LABEL, TOPOLOGY_LABEL
from shared.base.timestamps import guess_time, render_time
from shared.base.topology import TOPOLOGY, chips_of, count_chips
from shared.node_groups import status
from shared.node_groups.status import Type
from shared.ports.errors import CallError
from shared.ports.kubernetes.nodes import Node, parse_node
from shared.settings import TPU_NODE_GROUP
from shared.slices import classes
from shared.slices.by_node_group.provider import read_slice
from shared.slices.by_node_pool.desired_pool import MANAGER, MANAGER_LABEL
from shared.slices.by_node_pool.found_pools import is_managed, read_unit
from shared.slices.candidates import without_advice
from shared.slices.units import find_wait_start

UNSAID = "says why"
"""How the words about a Pod end of which provision_slice has said nothing."""
IDLE = "Idle for"
"""How the words about a Ready slice begin whose chips no Pod uses."""
POOL_READY, POOL_NOT_READY = "NodePool", "NodesNotReady"
"""The reasons of slices that are node pools: these have no status, no steps, and so no life to show."""
_ASKER = "tpu-functions-provision-slice"


Row = tuple[tuple[str, ...], str]
List = Callable[[Dependencies, str], Iterator[Row]]


class Table(NamedTuple):
    """Objects of a kind: a row has the cells below ``head``, and in words what it waits for. ``error``:
    why the user may not list them, or the node pools among them."""

    name: str
    head: tuple[str, ...]
    rows: list[Row]
    error: str = ""


def list_tables(deps: Dependencies, namespace: str) -> Iterator[Table]:
    """Slices and workloads of a namespace, or of all if it is empty, and classes. Raises `CallError`."""
    for name, words, lists in _TABLES:
        rows: list[Row] = []
        errors: list[str] = []
        for list_rows in lists:
            try:
                rows += list_rows(deps, namespace)
            except CallError as error:
                if error.http != HTTPStatus.FORBIDDEN:
                    raise
                errors.append(in_plain_words(error))
        yield Table(name, tuple(words.split()), rows, " ".join(errors))


def _list_slices(deps: Dependencies, namespace: str) -> Iterator[Row]:
    now = deps.now()
    for raw in deps.open_cluster().list_groups(namespace):
        metadata, summary = (
            raw["metadata"],
            read_mapping(read_mapping(raw, "status"), "nodeSummary"),
        )
        known = status.parse(raw.get("status"))
        ready = known.conditions.get(Type.READY)
        owned = read_slice(raw, now)
        state = (ready.status, ready.reason) if ready else ("-", "-")
        state = (state[0], "Deleting") if "deletionTimestamp" in metadata else state
        workload = owned.unit.shown if owned else "-"
        age = render_age(now - (guess_time(metadata.get("creationTimestamp")) or now))
        nodes = read_text(summary, "text") or "-"
        chips = _describe_chips(raw, known)
        cells = (metadata["namespace"], metadata["name"], *state, nodes, chips, workload, age)
        words = ready.message if ready and not ready.is_true else ""
        if owned and owned.class_name:  # the class asks elsewhere
            words = without_advice(words)
        if idle_since := guess_time(read_mapping(raw, "status").get("idleSince")):
            words = words or f"{IDLE} {render_age(now - idle_since)}: no Pod uses its chips"
        if known.run_ends and now < known.run_ends <= now + max(status.RUN_END_NOTICES):
            words = words or f"Compute Engine ends it at {render_time(known.run_ends)}"
        yield cells, words


def _describe_chips(raw: Mapping[str, Any], known: status.Status) -> str:
    """The chips of the VMs that run, and of all: they are billed while their VMs exist."""
    spec = read_mapping(raw, "spec")
    machine = read_text(read_mapping(spec, "instanceConfig"), "machineType") or known.machine_type
    chips = count_chips(machine, 1)
    wanted = read_number(spec, "nodeCount")
    return f"{chips * known.counts.running}/{chips * wanted}" if chips else "-"


def _list_pools(deps: Dependencies, namespace: str) -> Iterator[Row]:
    """Slices that are node pools, by their Nodes: GKE is not called. Without settings there may be
    some."""
    if deps.settings.slice_provider == TPU_NODE_GROUP:
        return
    now, pools = deps.now(), defaultdict[str, list[Node]](list)
    found = deps.open_cluster().list_all_nodes(f"{MANAGER_LABEL}={MANAGER}")
    for node in map(parse_node, found):
        pools[node.labels.get(POOL_LABEL, "")].append(node)
    for name, nodes in sorted(pools.items()):
        pool = {"name": name, "config": {"labels": nodes[0].labels}}
        unit = read_unit(pool) if is_managed(pool) else None
        if unit is not None and namespace in ("", unit.namespace):
            hosts, chips = _count_hosts(nodes)
            ready = sum(node.is_ready for node in nodes)
            state = ("True", POOL_READY) if ready == hosts else ("False", POOL_NOT_READY)
            missing = hosts - len(nodes)
            words = f"{count(missing, 'host')} of {hosts} without a Node" if missing else ""
            age = render_age(now - min(node.created or now for node in nodes))
            of_chips = f"{chips * len(nodes)}/{chips * hosts}" if chips else "-"
            cells = (unit.namespace, name, *state, f"{ready}/{hosts}", of_chips, unit.shown, age)
            yield cells, words


def _count_hosts(nodes: list[Node]) -> tuple[int, int]:
    """The hosts of a node pool, which may lack Nodes, and the chips of each (0: not known)."""
    labels = nodes[0].labels
    topology, machine = (labels.get(key, "") for key in (TOPOLOGY_LABEL, INSTANCE_TYPE_LABEL))
    chips = count_chips(machine, 1)
    whole = chips_of(topology) // chips if chips and TOPOLOGY.fullmatch(topology) else 0
    return max(whole, len(nodes)), chips


def _list_waiting(deps: Dependencies, namespace: str) -> Iterator[Row]:
    cluster, now = deps.open_cluster(), deps.now()
    leaders = waiting.find_leaders(cluster.list_pending_pods(namespace, with_all=True))
    places = {leader.demand.namespace for leader in leaders}
    said: dict[str, Mapping[str, Any]] = {}
    place = places.pop() if len(places) == 1 else ""  # an API server reads those of one, or all
    for event in cluster.list_pod_events(place, _ASKER) if leaders else ():
        uid = read_text(event["involvedObject"], "uid")
        said[uid] = max(said.get(uid, event), event, key=find_time_of)
    for leader in leaders:
        demand = leader.demand
        cells = demand.namespace, demand.name, leader.kind.show_unit(demand)
        why = read_text(said.get(demand.uid, {}), "message")
        unknown = f"`kubectl tng explain pod/{demand.name} -n {demand.namespace}` {UNSAID}"
        yield (*cells, render_age(now - find_wait_start(demand))), why or unknown


def _list_classes(deps: Dependencies, _namespace: str) -> Iterator[Row]:
    now = deps.now()
    for raw in deps.open_cluster().list_slice_classes(now):
        found = classes.parse(raw)
        usage = read_mapping(read_mapping(raw, "status"), "usage")
        used = (str(usage.get(key, "-")) for key in ("slices", "chips"))
        is_default = "yes" if found.is_default else "no"
        refused = (_describe_refusal(one) for one in found.refusals if one.until > now)
        yield (
            (found.name, is_default, *used, found.waits[0] or "-"),
            found.error or "; ".join(refused),
        )


def _describe_refusal(one: classes.Refusal) -> str:
    until = f"{one.until:%H:%M} UTC ({one.reason})"
    if one.asked_by:
        return f"{one.asked_by} asks {one.candidate} again, others may at {until}"
    return f"{one.candidate} is not asked for {one.shape.topology} until {until}"


_TABLES: tuple[tuple[str, str, tuple[List, ...]], ...] = (
    (
        "slices",
        "NAMESPACE SLICE READY REASON NODES CHIPS WORKLOAD AGE",
        (_list_slices, _list_pools),
    ),
    ("waiting", "NAMESPACE POD WORKLOAD WAITS", (_list_waiting,)),
    ("classes", "CLASS DEFAULT SLICES CHIPS WAIT", (_list_classes,)),
)


def to_document(tables: list[Table]) -> dict[str, Any]:
    """The tables as JSON; ``null`` for what could not be listed."""
    return {
        table.name: None
        if table.error and not table.rows
        else [
            {**dict(zip(map(str.lower, table.head), cells, strict=True)), "message": words}
            for cells, words in table.rows
        ]
        for table in tables
    }
