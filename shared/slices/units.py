"""Units: what one slice is kept for, and the Pods that ask for one.

A unit is the Pods that share a slice: a JobSet's Job, a group of a LeaderWorkerSet, or one Pod of an
owner whose Pods fit on one host. `shared.slices.kinds` finds the unit of a Pod and whether it is still
needed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from shared.base import names
from shared.base.documents import (
    Document,
    find_condition,
    read_mapping,
    read_mappings,
    read_text,
    read_texts,
)
from shared.base.fields import is_yes
from shared.base.pods import CONTAINER_LISTS, count_chips, count_pod_chips, find_controller
from shared.base.slice_names import job_key, slice_name, workload_key
from shared.base.timestamps import guess_time, parse_time
from shared.base.topology import TOPOLOGY, chips_of
from shared.ports.errors import CallError

OPT_OUT = "tpu-provisioner.cloud.google.com/disable-autoprovisioning"
"""A label or annotation of a Pod, its owners or their templates: no slice is created for it."""
_CONSUMED = (
    "autoscaling.x-k8s.io/consume-provisioning-request",
    "cluster-autoscaler.kubernetes.io/consume-provisioning-request",
)
"""Annotations of a Pod that name the ProvisioningRequest that provides its Nodes."""
_PROVISIONED_ELSEWHERE = (
    *_CONSUMED,
    "autoscaling.x-k8s.io/provisioning-class-name",
    "cluster-autoscaler.kubernetes.io/provisioning-class-name",
)
"""Annotations of a Pod whose Nodes a ProvisioningRequest provides."""

_CLAIMS = re.compile(r'persistentvolumeclaim "|unbound immediate PersistentVolumeClaims')
"""In the scheduler's messages about claims as a whole (kube-scheduler 1.36, PreFilter of VolumeBinding);
those about claims and a Node do not match."""


class InputError(Exception):
    """The slice that a Pod asks for is impossible; the message says what would be valid."""


class UnservableError(InputError):
    """No class, limit or setting can make it possible: the Pod or its owner must change."""


class Need(StrEnum):
    """Whether the owner of a unit needs the unit's slice."""

    NEEDED = "needs it"
    OWNER_GONE = "is gone or being deleted"
    OWNER_ENDED = "has ended"
    OPTED_OUT = "has opted out"
    SUSPENDED = "is suspended"
    NOT_NEEDED = "has no such unit, has completed it or is suspended for long"
    """For a Pod: it has no such unit."""


@dataclass(frozen=True)
class Unit:
    """The Pods that one slice is for.

    ``kind`` is a row of `shared.slices.kinds`. ``owner`` names the object that decides whether the slice
    is needed. ``member`` says which of its units: for a JobSet the Job's name, for a LeaderWorkerSet
    ``3`` or ``3/1``, for a Deployment ``0``, for a Job or StatefulSet empty or ``2``, for a Pod empty.
    """

    kind: str
    namespace: str
    owner: str
    member: str

    @property
    def id(self) -> str:
        """Its name within the namespace. No Job's name has a slash."""
        is_job = self.kind == names.JOBSET_KIND
        return self.member if is_job else f"{self.kind}/{self.owner}/{self.member}"

    @property
    def key(self) -> str:
        """The key in its slice's name and Node labels; for a JobSet's Job the one of JobSet."""
        return job_key(self.namespace, self.id)

    @property
    def slice_name(self) -> str:
        """The name of its slice."""
        return slice_name(self.owner, self.key)

    @property
    def owner_key(self) -> tuple[str, str, str]:
        """Kind, namespace and name of the owner."""
        return self.kind, self.namespace, self.owner

    @property
    def workload_key(self) -> str:
        """The value of `names.WORKLOAD_LABEL` on its Nodes."""
        return workload_key(self.namespace, self.kind, self.owner, self.member)

    @property
    def shown(self) -> str:
        """It in words, as in ``Job a of JobSet b``."""
        return self.show()

    def show(self, prefix: str = "") -> str:
        """The same with a prefix of the first name."""
        if self.kind == names.JOBSET_KIND:
            return f"Job {prefix}{self.member} of {self.kind} {self.owner}"
        group, _, pod = self.member.partition("/")
        noun = "group" if self.kind == "LeaderWorkerSet" else "Pod"
        shown = f"{noun} {group} of " if group else ""
        shown = f"Pod {pod} of {shown}" if pod else shown
        return f"{shown}{self.kind} {prefix}{self.owner}"


@dataclass(frozen=True)
class Controller:
    """The owner that controls a Pod, by its reference. ``uid`` may be empty. ``group`` is its API group:
    other projects have Jobs and StatefulSets, too."""

    kind: str
    name: str
    uid: str
    group: str = ""


@dataclass(frozen=True)
class Demand:
    """What a Pod asks of a slice. ``chips`` are those that it needs on one host."""

    namespace: str
    name: str
    uid: str
    controller: Controller | None
    chips: int
    selector: Mapping[str, str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    tolerations: tuple[Document, ...]
    raw: Document = field(repr=False, compare=False)

    @property
    def topology(self) -> str:
        """The topology in the node selector; empty if there is none."""
        return self.selector.get(names.TOPOLOGY_LABEL, "")

    @property
    def accelerator(self) -> str:
        """The accelerator label in the node selector; empty if there is none."""
        return self.selector.get(names.ACCELERATOR_LABEL, "")

    @property
    def request(self) -> Document:
        """The metadata of the ProvisioningRequest that asks for it; empty for a Pod that exists."""
        return read_mapping(self.raw, "request")

    @property
    def hosts(self) -> int:
        """The hosts of one slice of this topology, at least 1; 1 if the topology is no shape."""
        if not self.chips or not TOPOLOGY.fullmatch(self.topology):
            return 1
        return max(1, chips_of(self.topology) // self.chips)


@dataclass(frozen=True)
class UnitState:
    """What decides whether a unit keeps its slice.

    ``why`` says in a sentence why it does not, and is empty while it does. ``since``: since when it has
    not been needed, if known. ``owner``: the owner's manifest, ``None`` if it is gone; the item of a
    list lacks kind and apiVersion. ``is_ending``: the owner is being deleted and may be created again
    when it is gone, or the unit's Pods may come back; its slice is then kept for twice as long.
    ``error``: why it is unknown whether the owner, or a ProvisioningRequest for it, needs it.
    """

    need: Need
    why: str = ""
    since: datetime | None = None
    owner: Document | None = field(default=None, repr=False)
    is_ending: bool = False
    error: CallError | None = None


def read_demand(pod: Document) -> Demand:
    """What a Pod asks for, whether it waits or not. Malformed parts of the Pod count as absent."""
    metadata, spec = read_mapping(pod, "metadata"), read_mapping(pod, "spec")
    owner = find_controller(metadata)
    return Demand(
        namespace=str(metadata.get("namespace")),
        name=str(metadata.get("name")),
        uid=str(metadata.get("uid")),
        controller=None if owner is None else _read_controller(owner),
        chips=count_pod_chips(spec),
        selector=read_texts(spec, "nodeSelector"),
        labels=read_texts(metadata, "labels"),
        annotations=read_texts(metadata, "annotations"),
        tolerations=tuple(read_mappings(spec, "tolerations")),
        raw=pod,
    )


def _read_controller(owner: Document) -> Controller:
    kind, name, uid = (str(owner.get(key) or "") for key in ("kind", "name", "uid"))
    return Controller(kind, name, uid, read_text(owner, "apiVersion").rpartition("/")[0])


def waits(pod: Document) -> Demand | None:
    """What a Pod asks for, if it waits for a slice; otherwise ``None``.

    It waits if it is Pending, and Unschedulable or held, requests TPU chips and a topology, has not
    opted out and is not being deleted. Whether it gets a slice depends on its kind.
    """
    metadata, status = read_mapping(pod, "metadata"), read_mapping(pod, "status")
    if (
        status.get("phase") != "Pending"
        or not (is_unschedulable(status) or is_held(pod))
        or "deletionTimestamp" in metadata
    ):
        return None
    demand = read_demand(pod)
    asks = demand.chips >= 1 and names.TOPOLOGY_LABEL in demand.selector
    return demand if asks and not has_opted_out(demand.labels, demand.annotations) else None


def find_wait_start(demand: Demand) -> datetime:
    """When the scheduler first reported that the Pod is unschedulable; the creation of one that it holds
    and that has no condition."""
    scheduled = find_condition(read_mapping(demand.raw, "status"), "PodScheduled")
    created = demand.raw["metadata"]["creationTimestamp"]
    return guess_time(scheduled.get("lastTransitionTime")) or parse_time(created)


def is_unschedulable(status: Document) -> bool:
    """Whether the scheduler reports that a Pod fits no Node, and another one may be missing."""
    scheduled = find_condition(status, "PodScheduled")
    is_reported = (scheduled.get("status"), scheduled.get("reason")) == ("False", "Unschedulable")
    return is_reported and not find_claims_message(status)


def find_claims_message(status: Document) -> str:
    """The scheduler's message, if a Pod fits no Node because its volume claims are missing or not bound;
    otherwise empty. A slice would be billed, and not used, until they are there and the message changes.
    """
    message = read_text(find_condition(status, "PodScheduled"), "message")
    return message if _CLAIMS.search(message) else ""


def is_held(pod: Document) -> bool:
    """Whether the scheduler has not tried a Pod of a gang. It holds the Pods of a gang that is not
    complete before its queue, and writes no condition then (seen with kube-scheduler 1.36.3 and 1.37.2).
    A Pod that it is just about to try looks the same."""
    spec, status = read_mapping(pod, "spec"), read_mapping(pod, "status")
    return (
        bool(read_mapping(spec, "schedulingGroup"))
        and not spec.get("schedulingGates")
        and not spec.get("nodeName")
        and not find_condition(status, "PodScheduled")
    )


def has_opted_out(labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Whether a label or annotation opts out of slices, in any spelling of true, or the annotations say
    that a ProvisioningRequest provides the Nodes."""
    is_elsewhere = any(annotations.get(key) for key in _PROVISIONED_ELSEWHERE)
    return is_elsewhere or any(is_yes(one.get(OPT_OUT, "")) for one in (labels, annotations))


def find_consumed_request(demand: Demand) -> str:
    """The name of the ProvisioningRequest whose Nodes a Pod is for; empty if it names none."""
    return next((one for key in _CONSUMED if (one := demand.annotations.get(key))), "")


def find_split_violation(demand: Demand) -> str | None:
    """The violation if the device plugin would not allocate the chips of a container, or ``None``."""
    spec = read_mapping(demand.raw, "spec")
    lists = (read_mappings(spec, kind) for kind in CONTAINER_LISTS)
    parts = {count_chips(one) for containers in lists for one in containers} - {0}
    if demand.accelerator == "tpu7x" or parts == {demand.chips}:
        return None
    part = min(parts - {demand.chips})
    return (
        f"a container asks for {part} of the host's {demand.chips} {names.TPU_RESOURCE}: only on "
        "tpu7x can containers share them, else one must ask for all"
    )
