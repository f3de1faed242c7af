"""Read the workers of a slice from a workload: their names, and the index of a Pod among them.

A `Workload` is read from a StatefulSet, a Job (also a JobSet's), a Deployment or a Pod. Only the object
itself is read. The names of Pods are ``<name>-<ordinal>.<serviceName>`` in a StatefulSet and
``<job>-<index>.<subdomain>`` in an Indexed Job (Kubernetes documentation). The names in a
LeaderWorkerSet are not computed here: its own webhook writes them.
"""

from dataclasses import dataclass, field, replace

from shared.base.names import COMPLETION_INDEX
from shared.base.pods import find_controller, list_tpu_containers, parse_count
from webhook.tpu_env.admission import Object

POD_INDEX = "apps.kubernetes.io/pod-index"
JOBSET = "jobset.sigs.k8s.io"
LWS = "leaderworkerset.sigs.k8s.io"
INJECTED = "tpu-functions.dev/injected"
"""Annotation of a Pod template or Pod: the injected variables, with digests of their values, as JSON."""
NOTHING = "{}"
"""`INJECTED` of a template that had no Pods when it was reviewed, so that their number is not known."""
NOT_INJECTED = "tpu-functions.dev/not-injected"
"""On a Pod template: why nothing was injected. A Pod alone may not show the reason."""
TEMPLATE = "/spec/template"
MAX_WORKERS = 9216
"""The largest slice has 9,216 chips (tpu7x), and each worker has at least one."""
_MAX_DNS_NAME = 253

_POD_NAME = "statefulset.kubernetes.io/pod-name"
_JOB_NAMES = ("batch.kubernetes.io/job-name", "job-name")
_MIRROR = "kubernetes.io/config.mirror"
_HOSTNAMES = "TPU_WORKER_HOSTNAMES"
_WITHOUT_SERVICE = (
    "{} has no spec.serviceName, so its Pods have no stable names; name a headless Service"
)
_UNNAMED = "{} has no name yet: give it metadata.name"
_NUMBERED = "use a StatefulSet, an Indexed Job, a JobSet or a LeaderWorkerSet"
_WITHOUT_DNS = "the JobSet's Pods have no DNS names; set network.enableDNSHostnames"


@dataclass(frozen=True)
class FieldPath:
    """A value that is known only in the Pod: a path of the downward API."""

    path: str


@dataclass(frozen=True)
class Multislice:
    """The slices of a multislice workload: their count, the index of this one, the coordinating Pod."""

    count: int
    index: int
    coordinator: str


@dataclass(frozen=True)
class Workers:
    """The Pods of one slice.

    ``has_led_subgroup``: one of its subgroups contains a leader with chips, which LeaderWorkerSet 0.9
    numbers -1.
    ``hosts`` are their DNS names in the order of worker ids, empty where they are not known, and always
    in a LeaderWorkerSet.
    ``index`` is the place of this Pod in them, ``None`` where only the Pod's own admission can tell.
    ``subdomain`` is the headless Service that gives the names; ``first`` the number in the name of the
    first, and ``count`` their number, 0 if a Pod cannot know it. ``is_ordered``: a Pod is created when
    the one before is ready. Three errors of the user leave
    ``hosts`` unknown: ``nameless`` is reported if the slice has more than one host; ``unnamed`` if
    the slice does not have ``count`` hosts, because otherwise each Pod will know the rest; ``wrong``
    if it does not have one host, because otherwise each Pod is a slice. ``is_noted``: ``wrong`` is what
    the Pod's template says, which may be outdated.
    """

    name: str
    hosts: tuple[str, ...]
    index: int | FieldPath | None
    subdomain: str = ""
    slices: Multislice | None = None
    is_leader_worker_set: bool = False
    has_subgroups: bool = False
    has_led_subgroup: bool = False
    count: int = 0
    first: int = 0
    is_ordered: bool = False
    nameless: str = ""
    unnamed: str = ""
    wrong: str = ""
    is_noted: bool = False


@dataclass(frozen=True)
class Workload:
    """A workload: the Pod's spec, its path in the object, and its workers.

    ``path`` is the JSON pointer of what holds the Pod's metadata and spec: empty for a Pod. Without
    ``workers`` nothing is injected. ``stored`` is the metadata that an update replaces.
    """

    path: str
    metadata: Object
    spec: Object
    workers: Workers | None
    stored: Object = field(default_factory=dict)

    @property
    def has_template(self) -> bool:
        """Whether the object has a Pod template; false for a Pod."""
        return bool(self.path)


def read_tpu_workload(document: Object) -> Workload | None:
    """The workload of an object; ``None`` if it is not one that requests TPUs."""
    kind = str(document.get("kind"))
    if kind == "Pod":
        found = _read_pod(document)
    elif kind in ("StatefulSet", "Job", "Deployment"):
        found = _read_template(kind, document)
    else:
        return None
    if found is None or not list_tpu_containers(found.spec):
        return None
    is_named = found.workers is None or len(found.workers.name) <= _MAX_DNS_NAME
    return found if is_named else None


def name_hosts(name: str, numbers: range, subdomain: str) -> tuple[str, ...]:
    """The DNS names of numbered Pods; empty if they would be too long."""
    if len(name) + len(subdomain) > _MAX_DNS_NAME:
        return ()
    return tuple(f"{name}-{number}.{subdomain}" for number in numbers)


def find_value(container: Object, name: str) -> str | None:
    """The literal value of a container's variable; ``None`` if it has none, or a reference."""
    entry = find_entry(container, name)
    return None if entry is None or "valueFrom" in entry else str(entry.get("value") or "")


def find_entry(container: Object, name: str) -> Object | None:
    """The last entry of a container's variable, which a process sees."""
    entries: list[Object] = container.get("env") or []
    return next((one for one in reversed(entries) if one.get("name") == name), None)


def _read_template(kind: str, document: Object) -> Workload | None:
    own, spec = document["metadata"], document.get("spec") or {}
    template = spec.get("template") or {}
    pod, metadata = template.get("spec") or {}, template.get("metadata") or {}
    if kind == "Job":
        workers = _read_job(own, spec, str(pod.get("subdomain") or ""))
    elif kind == "Deployment":
        name = str(own.get("name") or "")
        workers = Workers(name, (), None, nameless=_unnumbered(f"Deployment {_show_name(own)}"))
    else:
        workers = _read_stateful_set(own, spec)
        if f"{LWS}/name" in (metadata.get("labels") or {}):
            # A LeaderWorkerSet's: its Pods have other numbers, because its leader is elsewhere.
            return None
    return Workload(TEMPLATE, metadata, pod, workers)


def _show_name(metadata: Object) -> str:
    """The name of a workload; with ``generateName`` it has none before it is stored."""
    return str(metadata.get("name") or f"{metadata.get('generateName', '')}*")


def _read_stateful_set(metadata: Object, spec: Object) -> Workers | None:
    name, shown = str(metadata.get("name") or ""), f"StatefulSet {_show_name(metadata)}"
    service = str(spec.get("serviceName") or "")
    replicas = 1 if spec.get("replicas") is None else int(spec["replicas"])
    start = int((spec.get("ordinals") or {}).get("start") or 0)
    if replicas < 1:
        return None
    index = None if start else FieldPath(f"metadata.labels['{POD_INDEX}']")
    is_ordered = spec.get("podManagementPolicy") != "Parallel"
    workers = Workers(name, (), index, service, count=replicas, first=start, is_ordered=is_ordered)
    if replicas > MAX_WORKERS:
        wrong = f"{shown} has {replicas} replicas, but a slice has at most {MAX_WORKERS}"
        return replace(workers, wrong=wrong)
    if not service:
        return replace(workers, wrong=_WITHOUT_SERVICE.format(shown))
    if not name:
        return replace(workers, unnamed=_UNNAMED.format(shown))
    return replace(workers, hosts=name_hosts(name, range(start, start + replicas), service))


def _read_job(metadata: Object, spec: Object, subdomain: str) -> Workers | None:
    name = str(metadata.get("name") or "")
    shown = _show_name(metadata)
    if spec.get("completionMode") != "Indexed":
        nameless = f"Job {shown} is not Indexed; set completionMode: Indexed"
        return Workers(name, (), None, nameless=nameless)
    completions = int(spec.get("completions") or 0)
    if completions < 1:
        return None
    index = FieldPath(f"metadata.annotations['{COMPLETION_INDEX}']")
    together = 1 if spec.get("parallelism") is None else int(spec["parallelism"])
    workers = Workers(
        name,
        (),
        index,
        subdomain,
        _slices(metadata, subdomain),
        count=completions,
        nameless="" if subdomain else _without_subdomain(name, metadata),
    )
    if completions > MAX_WORKERS:
        wrong = f"Job {shown} has {completions} completions, but a slice has at most {MAX_WORKERS}"
    elif together != completions:
        wrong = (
            f"Job {shown}: parallelism {together} differs from completions {completions}: the workers "
            "of one slice would not run together; set both to the number of hosts"
        )
    elif completions == 1:  # one worker may be intended
        return workers
    elif not name:
        return replace(workers, unnamed=_UNNAMED.format(f"Job {shown}"))
    elif not subdomain and _is_of_jobset(metadata):
        wrong = f"Job {name}: {_WITHOUT_DNS}"
    else:
        hosts = name_hosts(name, range(completions), subdomain) if subdomain else ()
        return replace(workers, hosts=hosts)
    return replace(workers, wrong=wrong)


def _is_of_jobset(metadata: Object) -> bool:
    return f"{JOBSET}/jobset-name" in (metadata.get("labels") or {})


def _without_subdomain(name: str, metadata: Object) -> str:
    """Why the Pods of a Job have no names, by the metadata of the Job or a Pod."""
    if _is_of_jobset(metadata):
        return _WITHOUT_DNS
    return f"Job {name} has no subdomain; set spec.template.spec.subdomain to a headless Service"


def _read_pod(document: Object) -> Workload | None:
    metadata = document.get("metadata") or {}
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    if _MIRROR in annotations or "ray.io/cluster" in labels:
        return None
    spec = document.get("spec") or {}
    if f"{LWS}/name" in labels:
        return Workload("", metadata, spec, _leader_worker_set(metadata))
    workers = _owned(metadata, spec)
    reason = str(annotations.get(NOT_INJECTED) or "")
    if reason:
        workers = replace(workers, hosts=(), wrong=reason, is_noted=True)
    return Workload("", metadata, spec, workers)


def _owned(metadata: Object, spec: Object) -> Workers:
    owner = find_controller(metadata) or {}
    subdomain = str(spec.get("subdomain") or "")
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    if owner.get("kind") == "StatefulSet":
        full = str(labels.get(_POD_NAME) or metadata.get("name") or "")
        name, _, ordinal = full.rpartition("-")
        index = parse_count(labels.get(POD_INDEX) or ordinal)
        if index is None or not name:
            return Workers("", (), None, nameless="the number of this Pod is not known")
        nameless = "" if subdomain else _WITHOUT_SERVICE.format(f"StatefulSet {name}")
        return _member(Workers(name, (), index, subdomain, nameless=nameless), index, spec)
    is_of_batch = str(owner.get("apiVersion")).startswith("batch/")  # Volcano's has the kind, too
    if owner.get("kind") == "Job" and is_of_batch:
        name = next((str(labels[key]) for key in _JOB_NAMES if labels.get(key)), "")
        index = parse_count(annotations.get(COMPLETION_INDEX) or labels.get(COMPLETION_INDEX))
        if index is None:
            return Workers(name, (), None, nameless="the Pods of this Job are not numbered")
        if not name:
            return Workers("", (), None, nameless="the name of this Pod's Job is not known")
        nameless = "" if subdomain else _without_subdomain(name, metadata)
        slices = _slices(metadata, subdomain)
        return _member(Workers(name, (), index, subdomain, slices, nameless=nameless), index, spec)
    name = str(metadata.get("name") or "")
    if not owner:
        return Workers(name, (), None, nameless=f"a Pod without a controller has none; {_NUMBERED}")
    shown = f"{owner.get('kind')} {owner.get('name')}"
    return Workers(name, (), None, nameless=_unnumbered(shown))


def _unnumbered(owner: str) -> str:
    return f"those of the Pods of {owner} are not known; {_NUMBERED}"


def _member(workers: Workers, number: int, spec: Object) -> Workers:
    """One of several numbered Pods, with the workers that are in its list of hosts."""
    hosts = _listed_hosts(spec)
    own = f"{workers.name}-{number}.{workers.subdomain}"
    if own in hosts:
        return replace(workers, hosts=hosts, index=hosts.index(own), count=len(hosts))
    name, _, subdomain = hosts[0].partition(".") if hosts else ("", "", "")
    row, _, ordinal = name.rpartition("-")
    is_of_workload = (row, subdomain) == (workers.name, workers.subdomain)
    if is_of_workload and parse_count(ordinal) is not None:
        wrong = (
            f"{own} is not among the {len(hosts)} in {_HOSTNAMES}; apply the manifest with the number "
            "of Pods that there are, or create a workload for each slice"
        )
        return replace(workers, wrong=wrong)
    return workers


def _listed_hosts(spec: Object) -> tuple[str, ...]:
    """The hosts in the list of the first container that has one; each once."""
    for container in list_tpu_containers(spec):
        listed = find_value(container, _HOSTNAMES)
        if listed:
            hosts = tuple(dict.fromkeys(listed.split(",")))
            return hosts if len(hosts) <= MAX_WORKERS else ()
    return ()


def _slices(metadata: Object, subdomain: str) -> Multislice | None:
    """The slices of a JobSet: the Jobs of this Job's replicated Job."""
    labels = metadata.get("labels") or {}
    jobset = labels.get(f"{JOBSET}/jobset-name")
    replicated = labels.get(f"{JOBSET}/replicatedjob-name")
    count = parse_count(labels.get(f"{JOBSET}/replicatedjob-replicas"))
    index = parse_count(labels.get(f"{JOBSET}/job-index"))
    if not (jobset and replicated) or count is None or index is None or count < 2:
        return None
    hosts = name_hosts(f"{jobset}-{replicated}-0", range(1), subdomain)
    return Multislice(count, index, hosts[0]) if hosts else None


def _leader_worker_set(metadata: Object) -> Workers:
    """A Pod of a LeaderWorkerSet. A worker has no index before LeaderWorkerSet's webhook has seen it."""
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    size = parse_count(annotations.get(f"{LWS}/size")) or 0
    place = parse_count(labels.get(f"{LWS}/worker-index"))
    has_leader = place == 0 or annotations.get(f"{LWS}/leader-requests-tpus") == "true"
    count = size if has_leader or not size else size - 1
    group = parse_count(annotations.get(f"{LWS}/subgroup-size"))
    has_subgroups = f"{LWS}/subgroup-size" in annotations
    return Workers(
        "",
        (),
        None,
        is_leader_worker_set=True,
        has_subgroups=has_subgroups,
        has_led_subgroup=has_subgroups and has_leader,
        count=group or count,
    )
