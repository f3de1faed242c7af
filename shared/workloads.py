"""What the Pods of a workload say of the slice that they are: who its workers are, and which is this.

A `Workload` is read from a StatefulSet, a Job (a JobSet's too) or a Pod that belongs to one of them
or to a LeaderWorkerSet. Nothing is looked up: what an object does not say itself is not
known. How names come about: ``<name>-<ordinal>.<serviceName>`` of a StatefulSet, of an Indexed Job
``<job>-<index>.<subdomain>`` (Kubernetes documentation), of a LeaderWorkerSet
``<leader>-<index>.<subdomain>`` (its Pod webhook).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.admission import Object

RESOURCE = "google.com/tpu"
POD_INDEX = "apps.kubernetes.io/pod-index"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
JOBSET = "jobset.sigs.k8s.io"
LWS = "leaderworkerset.sigs.k8s.io"
TEMPLATE = "/spec/template"
MAX_WORKERS = 9216
"""The largest slice has 9,216 chips of tpu7x, and no worker has less than one."""
_MAX_DNS_NAME = 253

_POD_NAME = "statefulset.kubernetes.io/pod-name"
_JOB_NAMES = ("batch.kubernetes.io/job-name", "job-name")
_MIRROR = "kubernetes.io/config.mirror"
_HOSTNAMES = "TPU_WORKER_HOSTNAMES"


@dataclass(frozen=True)
class FieldPath:
    """A value that only the Pod knows: a path of the downward API."""

    path: str


@dataclass(frozen=True)
class Slices:
    """Of a multislice workload: how many slices, which is this, and the Pod that coordinates them."""

    count: int
    index: int
    coordinator: str


@dataclass(frozen=True)
class Workers:
    """The Pods of one slice.

    ``hosts`` are their DNS names in the order of worker ids, empty where they are not known.
    ``index`` is the place of this Pod in them, ``None`` where only the Pod's own admission can tell.
    ``subdomain`` is the headless Service that gives the names. ``nameless`` says why ``hosts`` are not
    known, where that is the user's to change: told if the slice has more hosts than one.
    """

    name: str
    hosts: tuple[str, ...]
    index: int | FieldPath | None
    subdomain: str = ""
    slices: Slices | None = None
    is_leader_worker_set: bool = False
    nameless: str = ""


@dataclass(frozen=True)
class Workload:
    """What was read: the Pod's spec, where it stands, its workers, and what does not fit.

    ``path`` is the JSON pointer of what holds the Pod's metadata and spec: empty for a Pod. Without
    ``workers`` nothing is injected.
    """

    path: str
    metadata: Object
    spec: Object
    workers: Workers | None
    problems: tuple[str, ...] = field(default=())


def read(document: Object) -> Workload | None:
    """The workload of an object, or ``None`` for what is none that wants TPUs or concerns us."""
    reader = _READERS.get(str(document.get("kind")))
    found = reader(document) if reader is not None else None
    if found is None or not tpu_containers(found.spec):
        return None
    is_named = found.workers is None or len(found.workers.name) <= _MAX_DNS_NAME
    return found if is_named else None


def chips_of(container: Object) -> int:
    """How many chips a container asks for: its limit, else its request; 0 for what is no number."""
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        amount = _count((resources.get(part) or {}).get(RESOURCE))
        if amount is not None:
            return amount
    return 0


def tpu_containers(spec: Object) -> list[Object]:
    """The containers of a Pod that ask for chips, init containers among them."""
    both = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    return [container for container in both if chips_of(container)]


def name_hosts(name: str, numbers: range, subdomain: str) -> tuple[str, ...]:
    """The DNS names of a numbered row of Pods; empty where they would be too long to be any."""
    if len(name) + len(subdomain) > _MAX_DNS_NAME:
        return ()
    return tuple(f"{name}-{number}.{subdomain}" for number in numbers)


def find_value(container: Object, name: str) -> str | None:
    """The literal value of a container's variable; ``None`` if it has none, or one from elsewhere."""
    for entry in container.get("env") or []:
        if entry.get("name") == name and "valueFrom" not in entry:
            return str(entry.get("value") or "")
    return None


def _read_stateful_set(document: Object) -> Workload | None:
    spec = document.get("spec") or {}
    template = spec.get("template") or {}
    name = str(document["metadata"].get("name", ""))
    service = str(spec.get("serviceName") or "")
    replicas = 1 if spec.get("replicas") is None else int(spec["replicas"])
    start = int((spec.get("ordinals") or {}).get("start") or 0)
    pod = template.get("spec") or {}
    metadata = template.get("metadata") or {}
    if f"{LWS}/name" in (metadata.get("labels") or {}):
        # A LeaderWorkerSet's own: its Pods are numbered otherwise, together with a leader elsewhere.
        return None
    if replicas < 1:
        return Workload(TEMPLATE, metadata, pod, None)
    if replicas > MAX_WORKERS:
        problem = (
            f"StatefulSet {name} has {replicas} replicas, and no slice more than {MAX_WORKERS}"
        )
        return Workload(TEMPLATE, metadata, pod, None, (problem,))
    if not service:
        problem = (
            f"StatefulSet {name} has no spec.serviceName, so its Pods have no stable names; "
            "name a headless Service"
        )
        return Workload(TEMPLATE, metadata, pod, None, (problem,))
    hosts = name_hosts(name, range(start, start + replicas), service)
    index = None if start else FieldPath(f"metadata.labels['{POD_INDEX}']")
    return Workload(TEMPLATE, metadata, pod, Workers(name, hosts, index, service))


def _read_job(document: Object) -> Workload | None:
    spec = document.get("spec") or {}
    template = spec.get("template") or {}
    pod = template.get("spec") or {}
    metadata = template.get("metadata") or {}
    workers, problem = _job_workers(document["metadata"], spec, str(pod.get("subdomain") or ""))
    return Workload(TEMPLATE, metadata, pod, workers, (problem,) if problem else ())


def _job_workers(metadata: Object, spec: Object, subdomain: str) -> tuple[Workers | None, str]:
    """The workers of a Job, as far as they are known, or what does not fit."""
    name = str(metadata.get("name") or "")
    if spec.get("completionMode") != "Indexed":
        nameless = f"Job {name} is not Indexed; set completionMode: Indexed"
        return Workers(name, (), None, nameless=nameless), ""
    completions = int(spec.get("completions") or 0)
    if completions < 1:
        return None, ""
    if completions > MAX_WORKERS:
        return (
            None,
            f"Job {name} has {completions} completions, and no slice more than {MAX_WORKERS}",
        )
    together = 1 if spec.get("parallelism") is None else int(spec["parallelism"])
    if together != completions:
        return None, (
            f"Job {name}: parallelism {together} differs from completions {completions}: the workers "
            "of one slice would not run together; set both to the number of hosts"
        )
    if completions == 1:
        nameless = f"Job {name} has one; set completions and parallelism to their number"
        return Workers(name, (), 0, nameless=nameless), ""
    if not name:
        return (
            None,
            f"Job {metadata.get('generateName', '')}* has no name yet: give it metadata.name",
        )
    if not subdomain and f"{JOBSET}/jobset-name" in (metadata.get("labels") or {}):
        return None, (
            f"Job {name}: the JobSet's Pods have no DNS names; set network.enableDNSHostnames"
        )
    index = FieldPath(f"metadata.annotations['{COMPLETION_INDEX}']")
    if not subdomain:
        nameless = (
            f"Job {name} has no subdomain; set spec.template.spec.subdomain to a headless Service"
        )
        return Workers(name, (), index, nameless=nameless), ""
    hosts = name_hosts(name, range(completions), subdomain)
    return Workers(name, hosts, index, subdomain, _slices(metadata, subdomain)), ""


def _read_pod(document: Object) -> Workload | None:
    metadata = document.get("metadata") or {}
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    if _MIRROR in annotations or "ray.io/cluster" in labels:
        return None
    spec = document.get("spec") or {}
    if f"{LWS}/name" in labels:
        workers = _leader_worker_set(metadata, spec)
    else:
        workers = _owned(metadata, spec)
    return Workload("", metadata, spec, workers) if workers is not None else None


def _owned(metadata: Object, spec: Object) -> Workers | None:
    owner = _controller(metadata)
    subdomain = str(spec.get("subdomain") or "")
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    if owner == "StatefulSet":
        full = str(labels.get(_POD_NAME) or metadata.get("name") or "")
        name, _, ordinal = full.rpartition("-")
        index = _count(labels.get(POD_INDEX) or ordinal)
        return None if index is None else _member(name, index, subdomain, spec, None)
    if owner == "Job":
        name = next((str(labels[key]) for key in _JOB_NAMES if labels.get(key)), "")
        index = _count(annotations.get(COMPLETION_INDEX) or labels.get(COMPLETION_INDEX))
        if index is None:
            return Workers(name, (), None, nameless="the Pods of this Job are not numbered")
        return _member(name, index, subdomain, spec, _slices(metadata, subdomain))
    return None


def _member(
    name: str, number: int, subdomain: str, spec: Object, slices: Slices | None
) -> Workers | None:
    """One Pod of a numbered row. Its workers are those that its template has been given."""
    if not name:
        return None
    own = f"{name}-{number}.{subdomain}"
    hosts = _listed_hosts(spec)
    index = hosts.index(own) if own in hosts else number
    return Workers(name, hosts if own in hosts else (), index, subdomain, slices)


def _listed_hosts(spec: Object) -> tuple[str, ...]:
    """The hosts in the list of the first container that has one; each once."""
    for container in tpu_containers(spec):
        listed = find_value(container, _HOSTNAMES)
        if listed:
            hosts = tuple(dict.fromkeys(listed.split(",")))
            return hosts if len(hosts) <= MAX_WORKERS else ()
    return ()


def _slices(metadata: Object, subdomain: str) -> Slices | None:
    """The slices of a JobSet: the Jobs of the replicated Job to which this one belongs."""
    labels = metadata.get("labels") or {}
    jobset = labels.get(f"{JOBSET}/jobset-name")
    replicated = labels.get(f"{JOBSET}/replicatedjob-name")
    count = _count(labels.get(f"{JOBSET}/replicatedjob-replicas"))
    index = _count(labels.get(f"{JOBSET}/job-index"))
    if not (jobset and replicated) or count is None or index is None or count < 2:
        return None
    hosts = name_hosts(f"{jobset}-{replicated}-0", range(1), subdomain)
    return Slices(count, index, hosts[0]) if hosts else None


def _leader_worker_set(metadata: Object, spec: Object) -> Workers | None:
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    place = _count(labels.get(f"{LWS}/worker-index"))
    size = _count(annotations.get(f"{LWS}/size"))
    name = str(metadata.get("name") or "")
    if place is None or size is None or size > MAX_WORKERS or not name:
        return None
    leader = name if place == 0 else name.removesuffix(f"-{place}")
    is_leader_worker = place == 0 or annotations.get(f"{LWS}/leader-requests-tpus") == "true"
    first = 0 if is_leader_worker else 1
    count = size - first
    group = _count(annotations.get(f"{LWS}/subgroup-size"))
    if group and group <= size:
        first += (place - first) // group * group
        count = group
    subdomain = str(spec.get("subdomain") or "")
    hosts = name_hosts(leader, range(first, first + count), subdomain)
    if first == 0:
        hosts = (f"{leader}.{subdomain}", *hosts[1:])
    return Workers(leader, hosts, place - first, subdomain, is_leader_worker_set=True)


def _count(value: Any) -> int | None:
    """A number in a label or annotation; ``None`` for what is none that can be meant."""
    text = "" if value is None else str(value)
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _controller(metadata: Object) -> str:
    owners: Sequence[Object] = metadata.get("ownerReferences") or []
    return next((str(owner.get("kind")) for owner in owners if owner.get("controller")), "")


_READERS = {"StatefulSet": _read_stateful_set, "Job": _read_job, "Pod": _read_pod}
