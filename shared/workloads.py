"""What the Pods of a workload say of the slice that they are: who its workers are, and which is this.

A `Workload` is read from a StatefulSet, an Indexed Job (a JobSet's too) or a Pod that belongs to
one of them or to a LeaderWorkerSet. Nothing is looked up: what an object does not say itself is not
known. How names come about: ``<name>-<ordinal>.<serviceName>`` of a StatefulSet, of an Indexed Job
``<job>-<index>.<subdomain>`` (Kubernetes documentation), of a LeaderWorkerSet
``<leader>-<index>.<subdomain>`` (its Pod webhook).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RESOURCE = "google.com/tpu"
POD_INDEX = "apps.kubernetes.io/pod-index"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
JOBSET = "jobset.sigs.k8s.io"
LWS = "leaderworkerset.sigs.k8s.io"
TEMPLATE = "/spec/template"

_POD_NAME = "statefulset.kubernetes.io/pod-name"
_JOB_NAMES = ("batch.kubernetes.io/job-name", "job-name")
_MIRROR = "kubernetes.io/config.mirror"
_HOSTNAMES = "TPU_WORKER_HOSTNAMES"

Object = Mapping[str, Any]


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
    ``subdomain`` is the headless Service that gives the names.
    """

    name: str
    hosts: tuple[str, ...]
    index: int | FieldPath | None
    subdomain: str = ""
    slices: Slices | None = None
    is_leader_worker_set: bool = False


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
    return found


def chips_of(container: Object) -> int:
    """How many chips a container asks for: its limit, else its request; 0 for what is no number."""
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        amount = str((resources.get(part) or {}).get(RESOURCE, ""))
        if amount.isdecimal():
            return int(amount)
    return 0


def tpu_containers(spec: Object) -> list[Object]:
    """The containers of a Pod that ask for chips, init containers among them."""
    both = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    return [container for container in both if chips_of(container)]


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
    if not replicas:
        return Workload(TEMPLATE, metadata, pod, None)
    if not service:
        problem = (
            f"StatefulSet {name} has no spec.serviceName, so its Pods have no stable names; "
            "name a headless Service"
        )
        return Workload(TEMPLATE, metadata, pod, None, (problem,))
    hosts = tuple(f"{name}-{start + number}.{service}" for number in range(replicas))
    index = None if start else FieldPath(f"metadata.labels['{POD_INDEX}']")
    return Workload(TEMPLATE, metadata, pod, Workers(name, hosts, index, service))


def _read_job(document: Object) -> Workload | None:
    spec = document.get("spec") or {}
    template = spec.get("template") or {}
    pod = template.get("spec") or {}
    metadata = template.get("metadata") or {}
    completions = spec.get("completions")
    if spec.get("completionMode") != "Indexed" or not completions:
        return None
    name = str(document["metadata"].get("name") or "")
    subdomain = str(pod.get("subdomain") or "")
    problem = _find_job_problem(document, int(completions), spec.get("parallelism"), subdomain)
    if problem is not None:
        return Workload(TEMPLATE, metadata, pod, None, (problem,) if problem else ())
    if int(completions) == 1:
        return Workload(TEMPLATE, metadata, pod, Workers(name, (), 0))
    hosts = tuple(f"{name}-{number}.{subdomain}" for number in range(int(completions)))
    index = FieldPath(f"metadata.annotations['{COMPLETION_INDEX}']")
    slices = _slices(document["metadata"], subdomain)
    return Workload(TEMPLATE, metadata, pod, Workers(name, hosts, index, subdomain, slices))


def _find_job_problem(
    document: Object, completions: int, parallelism: Any, subdomain: str
) -> str | None:
    """Why the Pods of a Job are no workers with names; empty when nobody needs to be told."""
    metadata = document["metadata"]
    name = metadata.get("name") or ""
    if not name:
        return f"Job {metadata.get('generateName', '')}* has no name yet: give it metadata.name"
    together = 1 if parallelism is None else int(parallelism)
    if together != completions:
        return (
            f"Job {name}: parallelism {together} differs from completions {completions}: the workers "
            "of one slice would not run together; set both to the number of hosts"
        )
    if completions > 1 and not subdomain:
        if f"{JOBSET}/jobset-name" in (metadata.get("labels") or {}):
            return (
                f"Job {name}: the JobSet's Pods have no DNS names; set network.enableDNSHostnames"
            )
        return ""
    return None


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
        return _member(name, str(labels.get(POD_INDEX) or ordinal), subdomain, spec, None)
    if owner == "Job":
        name = next((str(labels[key]) for key in _JOB_NAMES if labels.get(key)), "")
        index = str(annotations.get(COMPLETION_INDEX) or labels.get(COMPLETION_INDEX) or "")
        return _member(name, index, subdomain, spec, _slices(metadata, subdomain))
    return None


def _member(
    name: str, number: str, subdomain: str, spec: Object, slices: Slices | None
) -> Workers | None:
    """One Pod of a numbered row. Its workers are those that its template has been given."""
    if not name or not number.isdecimal():
        return None
    own = f"{name}-{int(number)}.{subdomain}"
    hosts = _listed_hosts(spec)
    index = hosts.index(own) if own in hosts else int(number)
    return Workers(name, hosts if own in hosts else (), index, subdomain, slices)


def _listed_hosts(spec: Object) -> tuple[str, ...]:
    """The hosts in the list of the first container that has one; each once."""
    for container in tpu_containers(spec):
        listed = find_value(container, _HOSTNAMES)
        if listed:
            return tuple(dict.fromkeys(listed.split(",")))
    return ()


def _slices(metadata: Object, subdomain: str) -> Slices | None:
    """The slices of a JobSet: the Jobs of the replicated Job to which this one belongs."""
    labels = metadata.get("labels") or {}
    jobset = labels.get(f"{JOBSET}/jobset-name")
    replicated = labels.get(f"{JOBSET}/replicatedjob-name")
    count = str(labels.get(f"{JOBSET}/replicatedjob-replicas", ""))
    index = str(labels.get(f"{JOBSET}/job-index", ""))
    if not (jobset and replicated and count.isdecimal() and index.isdecimal()) or int(count) < 2:
        return None
    return Slices(int(count), int(index), f"{jobset}-{replicated}-0-0.{subdomain}")


def _leader_worker_set(metadata: Object, spec: Object) -> Workers | None:
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    number = str(labels.get(f"{LWS}/worker-index", ""))
    size = str(annotations.get(f"{LWS}/size", ""))
    name = str(metadata.get("name") or "")
    if not (number.isdecimal() and size.isdecimal() and name):
        return None
    place = int(number)
    leader = name if place == 0 else name.removesuffix(f"-{place}")
    is_leader_worker = place == 0 or annotations.get(f"{LWS}/leader-requests-tpus") == "true"
    first = 0 if is_leader_worker else 1
    count = int(size) - first
    group = str(annotations.get(f"{LWS}/subgroup-size", ""))
    if group.isdecimal() and int(group):
        first += (place - first) // int(group) * int(group)
        count = int(group)
    members = [leader if one == 0 else f"{leader}-{one}" for one in range(first, first + count)]
    subdomain = str(spec.get("subdomain") or "")
    hosts = tuple(f"{member}.{subdomain}" for member in members)
    return Workers(leader, hosts, place - first, subdomain, is_leader_worker_set=True)


def _controller(metadata: Object) -> str:
    owners: Sequence[Object] = metadata.get("ownerReferences") or []
    return next((str(owner.get("kind")) for owner in owners if owner.get("controller")), "")


_READERS = {"StatefulSet": _read_stateful_set, "Job": _read_job, "Pod": _read_pod}
