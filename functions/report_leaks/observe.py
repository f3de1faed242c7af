"""The slices that have lost their group or their labels, and the use of the others."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from functions.report_leaks.idle import SliceInUse, TpuNode, find_slices, read_tpu_node
from functions.report_leaks.leaks import (
    LISTED_KINDS,
    MIG_SERVICE,
    PREFIX,
    TEMPLATE_SERVICE,
    Leak,
    find_leaks,
    find_nodes_without_group,
    find_pools_without_labels,
    is_abandoned,
    list_places,
)
from shared.base.pods import holds_chips
from shared.frame.plan import StaleObservation, Work
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.calls import Gce
from shared.ports.gce.values import ListedResource, Mig, Policy, Template, TemplateRef
from shared.settings import Settings
from shared.slices.kinds.kind import FEW_NODES, list_pods_on_nodes

MAX_LEAKS = 10
"""How many leaked slices one invocation reads again and reports, the oldest first."""
SECONDS_FOR_CONFIRMING = 15.0
"""Listing leaves so many seconds for reading the groups and the suspected slices."""
SECONDS_FOR_WRITES = 5.0
"""Reading Pods leaves so many seconds for recording which slices are idle."""
SECONDS_FOR_PODS = 5.0
"""For the one list of Pods that large slices need whose first Node is not used."""


@dataclass(frozen=True)
class ObservedLeaks:
    """The leaked slices, and how many resources were listed.

    ``unseen`` names what could not be read: projects, scopes, slices, Nodes. ``failures`` are the
    errors. ``left`` is the number of slices that look leaked and were not read again (`MAX_LEAKS`).
    """

    leaks: tuple[Leak, ...]
    resources: int
    failures: tuple[CallError | OutOfTimeError, ...] = ()
    left: int = 0
    unseen: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    """Nodes without a group."""
    pools: tuple[str, ...] = ()
    """Node pools that have lost their labels."""
    slices: tuple[SliceInUse, ...] = ()
    """The slices with Nodes, and whether Pods use them."""


def observe(work: Work, *, with_use: bool = True) -> ObservedLeaks:
    """List the resources that have names of this system, then the groups. Read leaks again.

    ``with_use``: also read whether Pods use the slices.
    """
    cluster = work.cluster.get_cluster_id()
    listed: list[ListedResource] = []
    failures: list[CallError | OutOfTimeError] = []
    unseen: set[str] = set()

    @contextmanager
    def best_effort(about: str) -> Iterator[None]:
        try:
            yield
        except (CallError, OutOfTimeError) as error:
            failures.append(error)
            unseen.add(about)

    with work.reserve(SECONDS_FOR_CONFIRMING):
        settings: Settings = work.settings
        for project in work.rotate(sorted(settings.projects)):
            with best_effort(f"project {project}"):
                for kind in LISTED_KINDS:
                    found, lacks = work.gce.list_named(project, kind, PREFIX)
                    listed += found
                    unseen.update(f"{scope} of project {project}" for scope in lacks)
    groups = [raw for raw in work.cluster.list_groups() if not is_abandoned(raw)]
    places = {raw["metadata"]["uid"]: list_places(raw, cluster) for raw in groups}
    # A kubeconfig that has changed meanwhile clears the id that the connection keeps.
    if work.cluster.get_cluster_id() != cluster:
        raise StaleObservation("the kubeconfig leads to another cluster now")
    suspects = find_leaks(listed, places, cluster, work.now)
    leaks: list[Leak] = []
    for suspect in suspects[:MAX_LEAKS]:
        with best_effort(f"slice {suspect.name} of project {suspect.project}"):
            leaks.append(confirm(work.gce, suspect))
    existing = tuple(leak for leak in leaks if leak.resources)
    nodes: tuple[str, ...] = ()
    own: list[TpuNode] = []
    with best_effort("Nodes"):
        read: list[TpuNode] = []
        every = _keep_tpu_nodes(work.cluster.list_all_nodes(), read)
        nodes = find_nodes_without_group(every, groups, work.now)
        own = read  # a part of the list would show slices as idle whose other Nodes are used
    pools = find_pools_without_labels(own, work.now)
    found_slices = find_slices(own, groups, cluster, work.now) if with_use else ()
    slices = {one.name: one for one in found_slices}
    with best_effort("Pods"), work.reserve(SECONDS_FOR_WRITES):
        _find_users(work, slices)
    left, lacking = len(suspects[MAX_LEAKS:]), tuple(sorted(unseen))
    in_use = tuple(slices.values())
    return ObservedLeaks(
        existing, len(listed), tuple(failures), left, lacking, nodes, pools, in_use
    )


def _keep_tpu_nodes(
    every: Iterable[Mapping[str, Any]], kept: list[TpuNode]
) -> Iterator[Mapping[str, Any]]:
    """The same Nodes. What matters of those of slices is kept in ``kept``."""
    for raw in every:
        if (node := read_tpu_node(raw)) is not None:
            kept.append(node)
        yield raw


def _find_users(work: Work, slices: dict[str, SliceInUse]) -> None:
    """Set whether Pods hold chips of the slices. The first Node of a slice that is in use mostly shows
    it. The other Nodes of large slices are read together: an idle slice may have 2,304.

    If there is no time for all, the next run begins with another slice.
    """
    left: list[str] = []
    with work.reserve(SECONDS_FOR_WRITES + SECONDS_FOR_PODS):
        for name in work.rotate(sorted(slices)):
            if not work.has_time():
                break
            first, rest = slices[name].nodes[:1], slices[name].nodes[1:]
            try:
                is_used = bool(_find_used(work, first))
                if not is_used and len(rest) > FEW_NODES:
                    left.append(name)
                    continue
                is_used = is_used or bool(_find_used(work, rest))
            except OutOfTimeError:
                break
            slices[name] = replace(slices[name], is_used=is_used)
    if not left:
        return
    used = _find_used(work, [node for name in left for node in slices[name].nodes[1:]])
    for name in left:
        is_used = any(node.name in used for node in slices[name].nodes)
        slices[name] = replace(slices[name], is_used=is_used)


def _find_used(work: Work, nodes: Iterable[TpuNode]) -> frozenset[str]:
    """Those of the Nodes, by name, of which a Pod holds chips."""
    pods = list_pods_on_nodes(work.cluster, {node.name for node in nodes})
    return frozenset(pod["spec"]["nodeName"] for pod in pods if holds_chips(pod))


def confirm(gce: Gce, leak: Leak) -> Leak:
    """Read the slice's resources and VMs again: a list still shows what was deleted seconds ago."""
    left = tuple(resource for resource in leak.resources if _exists(gce, resource))
    vms: list[str] = []
    for mig in (resource for resource in left if resource.service == MIG_SERVICE):
        found = gce.list_managed_instances(mig.project, mig.location, mig.name)
        vms += [vm.name for vm in found if vm.id]
    return replace(leak, resources=left, vms=tuple(vms))


def _exists(gce: Gce, resource: ListedResource) -> bool:
    project, location, name = resource.project, resource.location, resource.name
    found: Mig | Template | Policy | None
    if resource.service == MIG_SERVICE:
        found = gce.find_mig(project, location, name)
    elif resource.service == TEMPLATE_SERVICE:
        found = gce.find_template(TemplateRef(project, name, location))
    else:
        found = gce.find_policy(project, location, name)
    return found is not None and found.description == resource.description
