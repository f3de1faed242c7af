"""Build the GKE node pool that a Pod asks for its unit.

Labels and annotations are those of TPU Provisioner, so that its manifests and node pools keep their
meaning. `found_pools` reads existing pools.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from shared.base import names
from shared.base.accelerators import GENERATIONS, Generation
from shared.base.documents import (
    read_list,
    read_mappings,
    read_number,
    read_text,
    without_empty,
)
from shared.base.environment import split_items
from shared.base.fields import any_of
from shared.base.slice_names import JOB_KEY_SELECTOR
from shared.base.timestamps import parse_duration_s
from shared.base.topology import chips_of, find_host_violation
from shared.ports.gke_settings import (
    NETWORKS_MEANING,
    OWN_DOMAIN,
    OWNERSHIP_DOMAINS,
    GkeSettings,
    Network,
    is_below,
    parse_networks,
)
from shared.slices.classes import CLASS_ANNOTATION, Place, Shape, SliceClass
from shared.slices.kinds import get_kind
from shared.slices.provider import ASKED_AT, DesiredSlice, short_hash
from shared.slices.selection import Selection, build_selection
from shared.slices.selectors import (
    COPY_LABELS,
    RESERVATION,
    RESERVATION_PROJECT,
    SPOT,
    check_spot,
    check_tolerations,
    describe_impossible_domain,
    reservation_path,
)
from shared.slices.units import Demand, InputError, Unit, UnservableError, find_wait_start

MANAGER_LABEL = "google.com/nodepool-manager"
MANAGER = "tpu-provisioner"
PARENT = "google.com/tpu-provisioner-parent-"
"""The prefix of the labels that name the Job."""
JOBSET_LABEL = "google.com/tpu-provisioner-jobset-name"
JOBSET_NAMESPACE_LABEL = "google.com/tpu-provisioner-jobset-namespace"
UNIT_LABEL = f"{OWN_DOMAIN}/unit"
"""Kind and member of a unit that is no JobSet's Job. Pods cannot have labels of this domain copied."""
_MAX_LABEL = 63
HASH_LABEL = "google.com/tpu-provisioner-nodepool-hash"

SERVICE_ACCOUNT = "tpu-provisioner.cloud.google.com/node-service-account"
NETWORKS = "tpu-provisioner.cloud.google.com/additional-node-networks"

_SPOT_TAINT = {"key": SPOT, "value": "true", "effect": "NoSchedule"}
_ASKED_FOR = ("cloud.google.com/gke-tpu-ici-resiliency", "cloud.google.com/gke-location-hint")
"""Selectors of GKE that the Nodes match because they get the label."""
_GOOGLE = ("google.com", "googleapis.com", "gke.io")
"""Domains in which GKE sets many labels of Nodes and accepts few from users."""
_KUBERNETES = ("k8s.io", "kubernetes.io")
"""Domains in which kubelets, and so GKE, accept labels only below `_OF_KUBELETS`."""
_OF_KUBELETS = ("node.kubernetes.io", "kubelet.kubernetes.io")
_OF_GROUPS = (names.GROUP_LABEL, names.GROUP_NAMESPACE_LABEL, names.GROUP_NAME_LABEL)
_KNOWN_GOOGLE = frozenset({*_ASKED_FOR, SPOT, RESERVATION, *_OF_GROUPS})
"""Labels in Google's domains that Nodes have only if the pool is created with them, or of no pool."""

_MOST_HOSTS = 2**31 - 1
"""The limit of the field. GKE has lower limits and its own messages for them."""


POOL_GENERATIONS = {key: one for key, one in GENERATIONS.items() if one.single_host_shapes}
"""The generations by the value of ``cloud.google.com/gke-tpu-accelerator``."""
_BY_WORKLOAD_POLICY = frozenset({"tpu7x"})


def get_generation(accelerator: str) -> Generation:
    """The generation of an accelerator label. Raises `InputError`."""
    generation = POOL_GENERATIONS.get(accelerator)
    if generation is None:
        wrong = f"is {accelerator!r}" if accelerator else "is missing"
        raise UnservableError(
            f"the Pod's nodeSelector {names.ACCELERATOR_LABEL} {wrong}: it must be "
            f"{any_of(POOL_GENERATIONS)}"
        )
    return generation


def count_nodes(accelerator: str, topology: str, chips: int) -> int:
    """The number of hosts of a slice, each with this number of chips. Raises `InputError`."""
    violation = find_host_violation(get_generation(accelerator), topology, chips)
    if violation:
        raise UnservableError(violation)
    count = chips_of(topology) // chips
    if count > _MOST_HOSTS:
        raise UnservableError(
            f"the topology {topology} would need {count} hosts: no slice has so many"
        )
    return count


def build_desired_slice(
    demand: Demand, unit: Unit, cluster: GkeSettings, cls: SliceClass, place: Place
) -> DesiredSlice:
    """Build the node pool that a Pod asks for its unit at a candidate of a class. Raises
    `InputError`."""
    settings = _read_settings(cluster, cls)
    count = count_nodes(demand.accelerator, demand.topology, demand.chips)
    machine = get_generation(demand.accelerator).machine_type(demand.chips)
    _check_pod(demand, settings)
    # GKE rejects the name with a 400: it must match [a-z]([-a-z0-9]*[a-z0-9])? (seen in public reports).
    if unit.slice_name[0].isdigit():
        raise UnservableError(
            f"{unit.kind} {unit.owner} has a name that begins with a digit, and its node pools are "
            "named after it: GKE requires a letter first. Create it again with another name"
        )
    is_spot = place.model == "SPOT"
    check_tolerations(demand, [_SPOT_TAINT] if is_spot else [])
    if not place.zone:
        raise InputError(
            f"the Pod selects no {names.ZONE_LABEL} and GCP_ZONE is not set: one of them must name "
            "the zone"
        )
    selected = {key: value for key, value in demand.selector.items() if _can_be_given(key)}
    reservation = reservation_path(demand) if RESERVATION in demand.selector else ""
    asked = {"reservationAffinity": _reservation(reservation), "spot": SPOT in demand.selector}
    digest = make_hash(
        {**asked, "machineType": machine, "labels": selected},
        initialNodeCount=count,
        topology=demand.topology,
        zone=demand.selector.get(names.ZONE_LABEL, ""),
    )
    labels = {
        **_copied_labels(demand, settings),
        **selected,
        **_unit_labels(demand, unit),
        HASH_LABEL: digest,
    }
    if names.WORKLOAD_LABEL in demand.selector:
        labels[names.WORKLOAD_LABEL] = unit.workload_key
    if not cls.is_legacy:
        asked_at = str(int(find_wait_start(demand).timestamp()))
        labels |= {CLASS_ANNOTATION: cls.name, ASKED_AT: asked_at}
    config = {
        "machineType": machine,
        "reservationAffinity": _reservation(place.reservation),
        "spot": is_spot,
        # Whether GKE queues the TPU VMs of a flex-start pool has not been tried.
        "flexStart": place.model == "FLEX_START",
        "maxRunDuration": f"{parse_duration_s(place.max_run)}s" if place.max_run else "",
        "labels": labels,
        "serviceAccount": demand.annotations.get(SERVICE_ACCOUNT, "").strip()
        or settings.service_account,
        "tags": list(settings.tags),
        "shieldedInstanceConfig": without_empty(
            {"enableIntegrityMonitoring": True, "enableSecureBoot": settings.secure_boot}
        ),
        "taints": [{"key": SPOT, "value": "true", "effect": "NO_SCHEDULE"}] if is_spot else [],
        "diskType": settings.disk_type,
        "bootDiskKmsKey": settings.boot_disk_kms_key,
        "enableConfidentialStorage": settings.confidential_storage,
        **_image_cache(settings),
    }
    name = unit.slice_name
    selection = _select(demand, machine, place.zone, is_spot=is_spot)
    has = {*labels, *selection.implied, names.POOL_LABEL, names.HOSTNAME_LABEL}
    labels |= _find_domain(demand, unit, has)
    body = {
        "name": name,
        "initialNodeCount": count,
        "locations": [place.zone],
        "config": without_empty(config),
        "placementPolicy": _placement(demand, count),
        "management": {"autoRepair": True, "autoUpgrade": False},
        "upgradeSettings": {"maxSurge": 1},
        "maxPodsConstraint": {"maxPodsPerNode": settings.max_pods},
        "networkConfig": _network_config(demand, settings),
    }
    given = {**labels, names.POOL_LABEL: name}
    taken = f", because GKE takes no label under {any_of(_KUBERNETES)} for the Nodes of a pool"
    other = ", or the nodeSelector must have the label, too: a pool gets labels from nothing else"
    refused = {key for key in demand.selector if is_below(key, _KUBERNETES)} - {*selection.implied}
    selection.check(given, lambda key: taken if key in refused else "", other)
    size = f"{count} host{'s' if count > 1 else ''} of {machine} ({demand.topology})"
    chips = count * demand.chips
    shape = Shape(machine, demand.topology)
    return DesiredSlice(
        name, unit, digest, size, without_empty(body), selection, chips, place, shape
    )


def _read_settings(cluster: GkeSettings, cls: SliceClass) -> GkeSettings:
    """What the node pools of a class have in common; for one of former versions the settings."""
    if cls.is_legacy:
        return cluster
    pool = cls.node_pool or {}
    networks = read_mappings(pool, "additionalNetworks")
    return replace(
        cluster,
        service_account=read_text(pool, "serviceAccount"),
        tags=tuple(read_list(pool, "tags")),
        pod_to_node_labels=tuple(read_list(pool, "podToNodeLabels")),
        secondary_disk=read_text(pool, "secondaryDisk"),
        networks=tuple(Network(one["network"], one["subnetwork"]) for one in networks),
        disk_type=read_text(pool, "diskType"),
        boot_disk_kms_key=read_text(pool, "bootDiskKmsKey"),
        secure_boot=pool.get("secureBoot") is not False,
        confidential_storage=pool.get("confidentialStorage") is True,
        force_on_demand=False,
        max_pods=int(read_number(pool, "maxPodsPerNode")) or GkeSettings.max_pods,
    )


def _unit_labels(demand: Demand, unit: Unit) -> dict[str, str]:
    """The labels by which `found_pools` reads the unit. Those of a JobSet's Job are TPU
    Provisioner's."""
    if unit.kind == names.JOBSET_KIND:
        parent, own = (demand.controller.kind if demand.controller else "Job", unit.member), {}
    else:
        if len(unit.owner) > _MAX_LABEL:
            raise InputError(
                f"the name of {unit.kind} {unit.owner} is longer than {_MAX_LABEL} characters, the most "
                "that GKE takes as a label of its node pool: it must be shorter"
            )
        member = unit.member.replace("/", "_")
        parent = (unit.kind, unit.owner)
        own = {UNIT_LABEL: f"{unit.kind}.{member}" if member else unit.kind}
    return {
        MANAGER_LABEL: MANAGER,
        f"{PARENT}kind": parent[0].lower(),
        f"{PARENT}name": parent[1],
        f"{PARENT}namespace": unit.namespace,
        JOBSET_LABEL: unit.owner,
        JOBSET_NAMESPACE_LABEL: unit.namespace,
        **own,
    }


def make_hash(config: Mapping[str, Any], **others: Any) -> str:
    """The hash of the properties that a Pod needs of its pool, by TPU Provisioner's rule.

    Settings and labels that are only copied are not among them: their change does not replace a slice.
    """
    return short_hash(without_empty({"config": without_empty(config), **others}))


def _check_pod(demand: Demand, settings: GkeSettings) -> None:
    """Raise `InputError` if the Pod could never run on the pool."""
    selector = demand.selector
    for key in (RESERVATION, RESERVATION_PROJECT):
        if key in selector and not (selector[key] and selector.get(RESERVATION)):
            raise InputError(
                f"the Pod's nodeSelector has {key}, which no Node has unless its reservation is named: "
                f"{RESERVATION} must name one, or both must be taken out"
            )
    asked = next((key for key in (SPOT, RESERVATION) if key in selector), None)
    if settings.force_on_demand and asked:
        raise InputError(
            f"the Pod's nodeSelector has {asked}, which no on-demand Node has, and "
            "GCP_FORCE_ON_DEMAND is set: the selector must be taken out, as the admission of Jobs "
            "does where FORCE_ON_DEMAND is set there too"
        )
    check_spot(demand)


def _find_domain(demand: Demand, unit: Unit, known: Collection[str]) -> dict[str, str]:
    """The label of the exclusive topology, which keeps a unit on its pool, unless the Nodes have it."""
    key = demand.annotations.get(get_kind(unit.kind).exclusive_topology, names.POOL_LABEL)
    if key in known or (is_below(key, _GOOGLE) and key not in _KNOWN_GOOGLE):
        return {}
    if not _can_be_given(key) or key in _ASKED_FOR:
        raise InputError(describe_impossible_domain(unit, key))
    return {key: unit.slice_name}


def _select(demand: Demand, machine: str, zone: str, *, is_spot: bool) -> Selection:
    """The selection of the Pod, with the known labels that GKE sets on the Nodes of its pool.

    GKE sets many more, so unknown labels in its domains count as set.
    """
    region = zone.rpartition("-")[0]
    implied = {
        names.ACCELERATOR_LABEL: demand.accelerator,
        names.TOPOLOGY_LABEL: demand.topology,
        names.ACCELERATOR_COUNT_LABEL: str(demand.chips),
        names.INSTANCE_TYPE_LABEL: machine,
        names.ZONE_LABEL: zone,
        names.REGION_LABEL: region,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        # The older names of these, which Kubernetes still sets.
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/instance-type": machine,
        "failure-domain.beta.kubernetes.io/zone": zone,
        "failure-domain.beta.kubernetes.io/region": region,
    }
    implied |= {SPOT: "true"} if is_spot else {}
    implied |= {RESERVATION: demand.selector[RESERVATION]} if RESERVATION in demand.selector else {}
    selection = build_selection(demand, implied)
    return replace(selection, open_domains=_GOOGLE, closed_keys=_KNOWN_GOOGLE)


def _reservation(path: str) -> dict[str, Any]:
    if not path:
        return {}
    return {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [path],
    }


def _can_be_given(key: str) -> bool:
    """Whether GKE accepts the label for the Nodes of a pool, and neither it nor this system sets it."""
    if is_below(key, _KUBERNETES):
        return is_below(key, _OF_KUBELETS) and key != names.INSTANCE_TYPE_LABEL
    return key in _ASKED_FOR or not is_below(key, (*_GOOGLE, OWN_DOMAIN))


def _copied_labels(demand: Demand, settings: GkeSettings) -> dict[str, str]:
    asked = split_items(demand.annotations.get(COPY_LABELS, ""))
    refused = next((key for key in asked if is_below(key, OWNERSHIP_DOMAINS)), None)
    if refused:
        raise InputError(
            f"the Pod's annotation {COPY_LABELS} names {refused}: labels under google.com and "
            f"{OWN_DOMAIN} say whose a Node is and are not copied; it must name others"
        )
    keys = (key for key in (*settings.pod_to_node_labels, *asked) if key != JOB_KEY_SELECTOR)
    return {key: demand.labels[key] for key in keys if key in demand.labels}


def _placement(demand: Demand, count: int) -> dict[str, str]:
    """The placement policy of the hosts. GKE rejects one for a single host."""
    if count == 1:
        return {}
    if demand.accelerator in _BY_WORKLOAD_POLICY:
        return {"policyName": f"tpu-provisioner-{demand.topology}"}
    return {"type": "COMPACT", "tpuTopology": demand.topology}


def _image_cache(settings: GkeSettings) -> dict[str, Any]:
    """The fields for a disk with container images. Only image streaming (gcfs) uses it."""
    if not settings.secondary_disk:
        return {}
    disk = {"diskImage": settings.secondary_disk, "mode": "CONTAINER_IMAGE_CACHE"}
    return {"secondaryBootDisks": [disk], "gcfsConfig": {"enabled": True}}


def _network_config(demand: Demand, settings: GkeSettings) -> dict[str, Any]:
    text = demand.annotations.get(NETWORKS, "")
    try:
        networks = parse_networks(text) or settings.networks
    except ValueError as error:
        raise InputError(
            f"the Pod's annotation {NETWORKS} is {text!r}: it must be {NETWORKS_MEANING}"
        ) from error
    pairs = [{"network": one.network, "subnetwork": one.subnetwork} for one in networks]
    return {"additionalNodeNetworkConfigs": pairs} if pairs else {}
