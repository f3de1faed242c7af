"""ProvisioningRequests of this system's class: demand for units, by a queue or by hand.

Kueue makes one for a Workload, whose owner is a JobSet, a Job or a LeaderWorkerSet, before that has
Pods: the units are those of its Pods. A request without a Workload has units of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from shared.base import names
from shared.base.documents import Document, read_mapping, read_mappings, read_text, read_texts
from shared.base.pods import find_controller
from shared.base.slice_names import JOB_KEY_SELECTOR
from shared.base.topology import TOPOLOGY
from shared.ports.errors import CallError
from shared.ports.kubernetes.cluster import Cluster
from shared.slices import units
from shared.slices.classes import CLASS_ANNOTATION
from shared.slices.kinds import KINDS, get_kind
from shared.slices.kinds.kind import Entry, find_fence_violation, find_true
from shared.slices.kinds.provisioning_request import PROVISIONING_REQUEST
from shared.slices.units import Demand, Need, Unit, UnitState, UnservableError

CLASS_NAME = "slices.tpu-functions.dev"
"""The provisioningClassName of the requests that this system serves."""
MAX_UNITS = 200
DETAIL = "WorkloadKey"
"""The detail in the status with the value of `names.WORKLOAD_LABEL` on the Nodes."""


class RequestSource(NamedTuple):
    """A request, its Workload (empty: none), and whose it is (``None``: of a kind without slices)."""

    request: Document
    workload: Document
    owner: Document | None


def is_open(request: Document) -> bool:
    """Whether a request is of this system's class and has not ended. Its Workload may have ended."""
    is_ours = read_text(read_mapping(request, "spec"), "provisioningClassName") == CLASS_NAME
    is_deleted = "deletionTimestamp" in read_mapping(request, "metadata")
    return is_ours and not is_deleted and not PROVISIONING_REQUEST.find_end(request)


def find_source(cluster: Cluster, request: Document) -> RequestSource | None:
    """Whose a request is; ``None`` if its Workload has ended, or that or its owner is gone."""
    controller = find_controller(request["metadata"]) or {}
    group = read_text(controller, "apiVersion").rpartition("/")[0]
    if (group, controller.get("kind")) != ("kueue.x-k8s.io", "Workload"):
        return RequestSource(request, {}, request)
    workload = _find(cluster, request, controller) or {"spec": {"active": False}}
    is_inactive = read_mapping(workload, "spec").get("active") is False
    if is_inactive or find_true(workload, ("Finished", "Evicted")):
        return None
    kinds = {one.name: one.api_version.rpartition("/")[0] for one in KINDS}
    for reference in read_mappings(workload["metadata"], "ownerReferences"):
        group = read_text(reference, "apiVersion").rpartition("/")[0]
        if kinds.get(read_text(reference, "kind")) == group:
            owner = _find(cluster, request, reference)
            return RequestSource(request, workload, owner) if owner else None
    return RequestSource(request, workload, None)


def _find(cluster: Cluster, request: Document, reference: Document) -> dict[str, Any] | None:
    """The object of a reference, unless another one has its name."""
    namespace = request["metadata"]["namespace"]
    found = cluster.find_owner(reference["kind"], namespace, reference["name"])
    return found if found and found["metadata"]["uid"] == reference.get("uid") else None


def read_entry(request: Document, name: str, pods: int, template: Document) -> Entry:
    """What the Pods of a PodTemplate ask for. Raises `UnservableError`."""
    metadata, given = read_mapping(template, "metadata"), request["metadata"]
    annotations = read_texts(metadata, "annotations")
    asked = read_texts(read_mapping(request, "spec"), "parameters").get("class")
    if asked and annotations.setdefault(CLASS_ANNOTATION, asked) != asked:
        raise UnservableError(f"PodTemplate {name} has not the parameter's {CLASS_ANNOTATION}")
    about = {"labels": read_texts(metadata, "labels"), "annotations": annotations, "uid": ""}
    about |= {key: given[key] for key in ("name", "namespace", "creationTimestamp")}
    pod = {"metadata": about, "spec": read_mapping(template, "spec"), "request": given}
    demand = units.read_demand(pod)
    is_out = units.has_opted_out(demand.labels, annotations)
    if demand.chips and (is_out or not TOPOLOGY.fullmatch(demand.topology)):
        violation = f"must select a {names.TOPOLOGY_LABEL}, as in 4x4, and not opt out of slices"
        raise UnservableError(f"PodTemplate {name} {violation}")
    return Entry(name, pods, demand)


def list_units(source: RequestSource, entries: Sequence[Entry]) -> dict[Unit, Demand]:
    """The units of a request, and what their Pods ask for. Raises `InputError`."""
    owner, found = source.owner or {}, dict[Unit, Demand]()
    kind = get_kind(read_text(owner, "kind"))
    asking = [one for one in entries if one.demand.chips]
    listed = kind.list_units(owner, source.workload, asking) if asking else ()
    for member, entry, holder in islice(listed, MAX_UNITS + 1):
        demand, given = entry.demand, read_texts(read_mapping(holder, "metadata"), "annotations")
        own = {key: one for key, one in given.items() if key == kind.exclusive_topology}
        unit = Unit(kind.name, demand.namespace, owner["metadata"]["name"], member)
        found[unit] = replace(demand, annotations={**demand.annotations, **own})
    if not 0 < len(found) <= MAX_UNITS:
        raise UnservableError(f"the Pods must ask for chips, and for at most {MAX_UNITS} slices")
    for unit, demand in found.items():
        # The Pods of a single unit are tied to its slice by the label of the workload.
        if len(found) > 1 and (violation := find_fence_violation(kind, demand, unit)):
            raise units.InputError(violation)
        # A webhook may tie the Pods to their slice by their key, which no template has.
        tie = {JOB_KEY_SELECTOR: unit.key, names.WORKLOAD_LABEL: unit.workload_key}
        found[unit] = replace(demand, selector={**demand.selector, **tie})
    return found


def find_needed(
    cluster: Cluster, states: Mapping[Unit, UnitState], now: datetime
) -> dict[Unit, UnitState]:
    """The units that are needed because of an open request that was accepted: those of owners that have
    been suspended for long, which a queue resumes when they have slices, and those whose slices are for
    the next units (`UnitKind.is_for_next`). Where requests cannot be read, their states have the error.
    """
    unneeded = {
        unit: read_mapping(state.owner or {}, "metadata").get("uid")
        for unit, state in states.items()
        if state.need is Need.NOT_NEEDED and (state.since or is_for_next(unit, state))
    }
    found, keys = dict[Unit, UnitState](), {unit.workload_key for unit in unneeded}
    for namespace in {unit.namespace for unit in unneeded}:
        uids, errors = set(), []
        try:
            requests = cluster.list_requests(namespace, now)
        except CallError as error:
            requests, errors = [], [error]
        for request in filter(is_open, requests):
            details = read_texts(read_mapping(request, "status"), "provisioningClassDetails")
            # The requests of workloads that have ended may stay: few are read.
            if find_true(request, ("Accepted",)) and details.get(DETAIL) in (None, *keys):
                try:
                    source = find_source(cluster, request)
                except CallError as error:
                    errors.append(error)
                else:
                    uids.add(source.owner["metadata"]["uid"] if source and source.owner else "")
        for unit, uid in unneeded.items():
            if unit.namespace == namespace and uid in uids:
                found[unit] = UnitState(Need.NEEDED, owner=states[unit].owner)
            elif unit.namespace == namespace and errors:
                found[unit] = replace(states[unit], error=errors[0])
    return found


def is_for_next(unit: Unit, state: UnitState) -> bool:
    """Whether a request needs the slice of a unit that is not needed."""
    is_unneeded = state.need is Need.NOT_NEEDED and state.owner is not None
    return is_unneeded and get_kind(unit.kind).is_for_next(unit, state.owner or {})
