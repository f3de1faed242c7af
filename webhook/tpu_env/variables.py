"""The variables that libtpu, JAX and PyTorch/XLA read, for each container of a workload. All functions
are pure.

The sources of their meaning: the Cloud TPU and GKE documentation, JAX's ``cloud_tpu_cluster``,
PyTorch/XLA's ``tpu`` module, and the TPU device plugin. The values equal the device plugin's if both set
one. Host names consist of Pod and Service, without a port: the readers add their own ports.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from shared.base.accelerators import CHIP_BOUNDS, GENERATIONS, Generation
from shared.base.names import ACCELERATOR_LABEL, INSTANCE_TYPE_LABEL, TOPOLOGY_LABEL
from shared.base.pods import (
    CONTAINER_LISTS,
    count_chips,
    count_pod_chips,
    list_running_together,
    list_tpu_containers,
    parse_count,
)
from shared.base.topology import TOPOLOGY, find_host_violation, parse_dimensions
from webhook.tpu_env.admission import Object
from webhook.tpu_env.workloads import (
    INJECTED,
    MAX_WORKERS,
    NOTHING,
    FieldPath,
    Multislice,
    Workers,
    Workload,
    find_entry,
    find_value,
    name_hosts,
)

PROCESS_ADDRESSES_ANNOTATION = "tpu-functions.dev/process-addresses"
LOCALHOST = "localhost"
LONG_LIST_BYTES, MAX_LIST_BYTES = 100_000, 131_000
"""The lengths from which a list causes a warning, and from which it is impossible: Linux accepts no
environment string above 131,072 bytes."""
LISTS = ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES")
"""Variables with an entry for each worker."""
_METADATA_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_SHORTER = "choose shorter names"
_LONGEST_TOPOLOGY = len("1000x1000x1000")
MAX_CONTAINERS = 32
"""The limit of containers with chips in a Pod: the lists of all must fit into one object."""
MULTISLICE_ANNOTATION = "tpu-functions.dev/multislice"
"""On a Pod template: ``disabled`` if the slices of a JobSet work independently of each other."""

Value = str | FieldPath


@dataclass(frozen=True)
class Ports:
    """The ports of processes; all processes must use the same.

    8471 is the first port of a TPU process in GKE's webhook and in kuberay, 8482 JAX's default for its
    coordinator, 8081 kuberay's first port for connections between slices.
    """

    process: int = 8471
    jax_coordinator: int = 8482
    megascale: int = 8081


_GENERATIONS = {key: one for key, one in GENERATIONS.items() if one.libtpu_name}
"""The generations whose name in libtpu is known, by accelerator label."""
_ACCELERATORS = {one.family: key for key, one in _GENERATIONS.items()}
"""Accelerator labels by the family of the machine type."""
_WITH_PROCESS_ADDRESSES = frozenset({"tpu7x"})
"""Accelerators whose processes each need an address."""


@dataclass(frozen=True)
class Environment:
    """The variables to inject, by container (its JSON pointer), in order.

    ``problems`` are contradictions in the workload. ``notices`` say why something is not injected.
    ``doubts`` are those notices of a template that are the reason why it gets nothing.
    """

    variables: Mapping[str, Mapping[str, Value]]
    problems: tuple[str, ...]
    notices: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class _SelectedSlice:
    """The slice by the node selectors; ``hosts`` is `None` if they do not determine it."""

    topology: str
    generation: Generation | None
    hosts: int | None
    problem: str = ""

    @property
    def is_selected(self) -> bool:
        """Whether a topology is asked for at all, also one that does not fit."""
        return bool(self.topology or self.problem)


@dataclass(frozen=True)
class _Process:
    """A container that is one of ``count`` processes in a Pod."""

    pointer: str
    container: Object
    number: int
    count: int


def decide_variables(workload: Workload, ports: Ports) -> Environment:
    """The variables of each container that requests chips. The caller leaves out what users have set."""
    slice_ = _read_slice(workload.spec)
    count = len(list_tpu_containers(workload.spec))
    unfit, doubts = tuple(_find_container_problems(workload, slice_)), ()
    if count <= MAX_CONTAINERS and _may_be_split_later(workload):
        unfit, doubts = (), unfit
    impossible = [slice_.problem, *unfit]
    if count > MAX_CONTAINERS:
        too_many = f"{count} containers ask for google.com/tpu; at most {MAX_CONTAINERS} may"
        found = Environment({}, tuple(filter(None, (slice_.problem, too_many))))
    elif workload.workers is None or any(impossible) or doubts:
        found = Environment({}, tuple(filter(None, impossible)))
    elif workload.workers.is_leader_worker_set:
        found = _decide_group(workload, workload.workers, slice_, ports)
    else:
        named = _without_outdated_note(workload, workload.workers, slice_)
        found = _decide_workers(workload, _complete(named, slice_), slice_, ports)
    notices = list(_find_selectors_elsewhere(workload.spec))
    workers = workload.workers
    is_probed = any(one.get("readinessProbe") for one in workload.spec.get("containers") or [])
    if workers and workers.is_ordered and is_probed and (slice_.hosts or workers.count) > 1:
        notices.append(
            "each Pod waits until the one before it is ready, but a readinessProbe may wait for all "
            "Pods of the slice; set podManagementPolicy: Parallel"
        )
    notices += _find_shared_ports(workload, found, ports)
    if workload.workers and not (found.variables or found.problems or doubts):
        notices += _explain_nothing(workload, workload.workers)
    return replace(found, notices=(*doubts, *notices), doubts=doubts)


def selects_topology(spec: Object) -> bool:
    """Whether a Pod's spec selects a topology, also one that does not fit."""
    return _read_slice(spec).is_selected


def _decide_workers(
    workload: Workload, workers: Workers, slice_: _SelectedSlice, ports: Ports
) -> Environment:
    problems: list[str] = []
    has_addresses = _wants_addresses(workload, slice_)
    every = list(_processes(workload, splits=has_addresses))
    processes = [one for one in every if _is_served(one, workload, workers, slice_)]
    is_settled = len(processes) == len(every) or _are_all_listed(workload.spec)
    problems += _find_host_problems(workers, slice_, all_served=is_settled)
    if not processes or _has_too_many(workers, slice_):
        return Environment({}, tuple(problems))
    extra = len(":65535,") if has_addresses else len(",")
    size = sum(len(host.encode()) + extra for host in workers.hosts)
    if size * max(process.count for process in processes) > MAX_LIST_BYTES:
        problems.append(f"a list of all workers is longer than {MAX_LIST_BYTES} bytes; {_SHORTER}")
        return Environment({}, tuple(problems))
    together = list_running_together(workload.spec)
    variables: dict[str, Mapping[str, Value]] = {}
    for process in processes:
        slices, is_clear = _choose_slices(process, workload, workers.slices)
        if not is_clear and workers.slices:
            given = _find_slice_count(process, workload)
            is_joined = _read_annotation(workload, MULTISLICE_ANNOTATION) != "disabled"
            count = workers.slices.count if is_joined else 1
            problems.append(f"MEGASCALE_NUM_SLICES is {given} and should be {count}; leave it out")
        variables[process.pointer], process_problems = _decide_process(
            process,
            replace(workers, slices=slices),
            slice_,
            ports,
            together,
            has_addresses=has_addresses,
            is_clear=is_clear,
        )
        problems += process_problems
    return Environment(variables, tuple(dict.fromkeys(problems)))


def _choose_slices(
    process: _Process, workload: Workload, slices: Multislice | None
) -> tuple[Multislice | None, bool]:
    """The multislice of a process, and whether that is clear.

    A container may set its own number of slices. With 1 it is independent. With another number only the
    user knows which slices are counted, so that is not clear.
    """
    if _read_annotation(workload, MULTISLICE_ANNOTATION) == "disabled":
        slices = None
    given = _find_slice_count(process, workload)
    is_count = given in ("", str(slices.count if slices else 1)) or "$(" in given
    if slices is None:
        return None, is_count
    return (slices, True) if is_count else (None, given == "1")


def _find_slice_count(process: _Process, workload: Workload) -> str:
    """The container's own number of slices; JAX multiplies by it. Empty where it is not known."""
    entry = find_entry(process.container, "MEGASCALE_NUM_SLICES") or {}
    return read_field(entry, workload.metadata) or str(entry.get("value") or "")


def read_field(entry: Object, metadata: Object) -> str:
    """The label or annotation that an entry refers to; empty if it is not set, or of other entries."""
    field = (entry.get("valueFrom") or {}).get("fieldRef") or {}
    named = _METADATA_FIELD.fullmatch(str(field.get("fieldPath")))
    return str((metadata.get(named[1]) or {}).get(named[2]) or "") if named else ""


def _decide_group(
    workload: Workload, workers: Workers, slice_: _SelectedSlice, ports: Ports
) -> Environment:
    """The variables that LeaderWorkerSet's own webhook does not set.

    That webhook reviews all Pods of a group and does not change a Pod that has a list of hosts or an id.
    So these two are only read here: all Pods agree, whichever webhook is called first.
    """
    is_each_alone = slice_.hosts == 1 and workers.count > 1
    problems = [] if is_each_alone else list(_find_host_problems(workers, slice_, all_served=True))
    problems += _find_group_problems(workload, workers)
    if _has_too_many(workers, slice_) and not is_each_alone:
        return Environment({}, tuple(problems))
    variables: dict[str, Mapping[str, Value]] = {}
    for process in _processes(workload, splits=False):
        found: dict[str, Value] = dict(_shape(process, slice_))
        # Like JAX, which prefers the addresses.
        addresses, hostnames = (find_value(process.container, name) for name in reversed(LISTS))
        listed = addresses or hostnames
        worker = parse_count(find_value(process.container, "TPU_WORKER_ID"))
        hosts = (listed or LOCALHOST).split(",")
        is_alone = hosts[0].partition(":")[0] == LOCALHOST
        if is_each_alone and not is_alone:
            problems.append(
                f"topology {slice_.topology} is one host, so each Pod is a slice of its own, but "
                f"LeaderWorkerSet lists {workers.count} hosts; set size to 1, or TPU_WORKER_ID to 0 and "
                f"TPU_WORKER_HOSTNAMES to {LOCALHOST}"
            )
        elif is_alone and listed and workers.count > 1 and not is_each_alone:
            problems.append(
                f"the list of workers is {LOCALHOST} in a group of {workers.count} Pods, and "
                "LeaderWorkerSet keeps it; let nothing else set TPU_WORKER_HOSTNAMES"
            )
        elif worker is not None and worker >= len(hosts):
            problems.append(
                f"TPU_WORKER_ID is {worker}, and there are {len(hosts)} entries in the list of workers; "
                "leave both out: LeaderWorkerSet sets them"
            )
        elif listed and worker is not None and not workers.has_led_subgroup:
            first = hosts[0].partition(":")[0]
            found |= {
                "JAX_COORDINATOR_ADDRESS": f"{first}:{ports.jax_coordinator}",
                "JAX_PROCESS_COUNT": str(len(hosts)),
                "JAX_PROCESS_ID": str(worker),
            }
        variables[process.pointer] = found
    return Environment(variables, tuple(dict.fromkeys(problems)))


def _find_group_problems(workload: Workload, workers: Workers) -> Iterator[str]:
    if _read_annotation(workload, PROCESS_ADDRESSES_ANNOTATION) == "disabled":
        yield (
            f"{PROCESS_ADDRESSES_ANNOTATION} has no effect on TPU_PROCESS_ADDRESSES, which "
            "LeaderWorkerSet sets; leave it out"
        )
    every = list_tpu_containers(workload.spec)
    preparing = [one for one in every if one not in list_running_together(workload.spec)]
    if workers.has_subgroups and len(every) > 1:
        yield (
            "with subgroups, LeaderWorkerSet sets TPU variables in one container only; ask for "
            "google.com/tpu in one"
        )
    elif preparing and len(every) > 1:
        yield (
            "LeaderWorkerSet counts an init container with google.com/tpu as one more process of each "
            "Pod; ask for it in containers only"
        )
    elif find_value(every[0], "TPU_WORKER_ID") == "-1":
        yield (
            "TPU_WORKER_ID is -1: LeaderWorkerSet 0.9 numbers a leader with google.com/tpu so in "
            "subgroups; use a newer version, or subgroups without the leader (LeaderExcluded)"
        )
    has = [name for name in ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID") if find_entry(every[0], name)]
    if len(has) == 1:
        yield f"LeaderWorkerSet sets no TPU variables where {has[0]} is set; leave it out"
    ports = [one for it in every if (one := find_entry(it, "TPU_PROCESS_PORT"))]
    if not all(str(port.get("value") or "").isdecimal() for port in ports):
        yield (
            "TPU_PROCESS_PORT has no port number as its value, and LeaderWorkerSet builds addresses "
            "from it; set a number, or leave it out"
        )


def _find_selectors_elsewhere(spec: Object) -> Iterator[str]:
    """Notices about labels of a slice that are required where they are not read."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    keys = {
        expression.get("key")
        for term in required.get("nodeSelectorTerms") or []
        for expression in term.get("matchExpressions") or []
    }
    for label in (TOPOLOGY_LABEL, ACCELERATOR_LABEL):
        if label in keys and label not in (spec.get("nodeSelector") or {}):
            yield f"{label} is read from nodeSelector only; move it there from nodeAffinity"


def _explain_nothing(workload: Workload, workers: Workers) -> Iterator[str]:
    """Why a workload without problems gets no variables."""
    if workers.is_leader_worker_set or _are_all_listed(workload.spec):
        return
    reason = (
        f"no TPU variables are injected: select a topology ({TOPOLOGY_LABEL.partition('/')[2]})"
    )
    if workers.nameless:
        yield f"{reason}, or give the workers names: {workers.nameless}"
    elif _had_no_pods(workload):
        yield f"{reason}, or apply the manifest with the number of Pods, which was 0"
    elif workers.count == 1:
        yield f"{reason}, because there is 1 worker, which may be one of a larger slice"


def _are_all_listed(spec: Object) -> bool:
    return all(map(_has_list, list_tpu_containers(spec)))


def _is_served(
    process: _Process, workload: Workload, workers: Workers, slice_: _SelectedSlice
) -> bool:
    """Whether to inject worker variables into a container.

    A worker that knows its own number but no other host waits forever. So without hosts nothing is
    injected, unless the container has its own list, or there may be no other worker.
    """
    if workers.hosts:
        return True
    if workload.has_template or workers.index is None:
        return False
    says_nothing = not slice_.is_selected and not workers.wrong and bool(workers.subdomain)
    return (says_nothing and not _had_no_pods(workload)) or _has_list(process.container)


def _had_no_pods(workload: Workload) -> bool:
    """Whether the template of a Pod was reviewed while it had no Pods, and so has no list of hosts."""
    return not workload.has_template and _read_annotation(workload, INJECTED) == NOTHING


def _has_list(container: Object) -> bool:
    """Whether the container sets its list of workers itself; ``localhost`` alone is only a default."""
    entries = [entry for name in LISTS if (entry := find_entry(container, name))]
    given = [str(entry.get("value") or "") for entry in entries if "valueFrom" not in entry]
    return len(given) < len(entries) or any(one and LOCALHOST not in one for one in given)


def _decide_process(
    process: _Process,
    workers: Workers,
    slice_: _SelectedSlice,
    ports: Ports,
    together: Sequence[Object],
    *,
    has_addresses: bool,
    is_clear: bool,
) -> tuple[dict[str, Value], list[str]]:
    """The variables of a process and its problems. ``together``: the containers of its Pod with chips
    that run at the same time. ``is_clear``: it is clear which slices are counted."""
    found: dict[str, Value] = dict(_shape(process, slice_))
    problems: list[str] = []
    if slice_.hosts == 1:  # each Pod is a slice of its own
        found["TPU_NAME"] = FieldPath("metadata.name")
    elif workers.name:
        found["TPU_NAME"] = workers.name
    worker: Value | None = None
    if isinstance(workers.index, int):
        worker = str(workers.index * process.count + process.number)
    elif process.count == 1:  # with several processes, it is known only at the Pod's admission
        worker = workers.index
    if worker is not None:
        found["TPU_WORKER_ID"] = worker
    if not workers.hosts:
        return found, problems
    hosts = [host for host in workers.hosts for _ in range(process.count)]
    found["TPU_WORKER_HOSTNAMES"] = ",".join(hosts)
    if has_addresses:
        own = [process.container] if process.count == 1 else together
        numbers = _ports(own, "TPU_PROCESS_PORT", ports.process)
        port = numbers[process.number]
        if port is None or None in numbers:
            problems.append(
                "TPU_PROCESS_PORT has no port number as its value, so no addresses can be built; set a "
                "number, or set TPU_PROCESS_ADDRESSES as well"
            )
        else:
            addresses = (f"{host}:{number}" for host in workers.hosts for number in numbers)
            found["TPU_PROCESS_ADDRESSES"] = ",".join(addresses)
            found["TPU_PROCESS_PORT"] = port
    if is_clear:
        found |= _jax(workers, len(hosts), worker, ports)
    slices = workers.slices
    if is_clear and slices is not None:
        found["MEGASCALE_NUM_SLICES"] = str(slices.count)
        found["MEGASCALE_SLICE_ID"] = str(slices.index)
        found["MEGASCALE_COORDINATOR_ADDRESS"] = slices.coordinator
    if is_clear and slices is not None and process.count > 1:
        # The containers of a Pod share its network.
        numbers = _ports(together, "MEGASCALE_PORT", ports.megascale)
        first, port = numbers[0], numbers[process.number]
        if first is not None:
            found["MEGASCALE_COORDINATOR_ADDRESS"] = f"{slices.coordinator}:{first}"
        else:
            problems.append(
                "MEGASCALE_PORT has no port number as its value, so MEGASCALE_COORDINATOR_ADDRESS has "
                "no port; set a number"
            )
        if port is not None:
            found["MEGASCALE_PORT"] = port
    for name in LISTS:
        value = found.get(name, "")
        if isinstance(value, str) and len(value.encode()) > LONG_LIST_BYTES:
            problems.append(f"{name} is longer than {LONG_LIST_BYTES} bytes; {_SHORTER}")
    return found, problems


def _jax(workers: Workers, count: int, worker: Value | None, ports: Ports) -> dict[str, Value]:
    slices = workers.slices
    first = slices.coordinator if slices else workers.hosts[0]
    found: dict[str, Value] = {
        "JAX_COORDINATOR_ADDRESS": f"{first}:{ports.jax_coordinator}",
        "JAX_PROCESS_COUNT": str(count * (slices.count if slices else 1)),
    }
    if slices is None:
        return found | ({"JAX_PROCESS_ID": worker} if worker is not None else {})
    if isinstance(worker, str):
        found["JAX_PROCESS_ID"] = str(int(worker) + slices.index * count)
    return found


def _ports(containers: Sequence[Object], name: str, base: int) -> list[str | None]:
    """The port of each container: its own, or the next one; ``None`` if its own is not literal."""
    found: list[str | None] = []
    for number, container in enumerate(containers):
        given = find_entry(container, name) or {}
        port = "" if "valueFrom" in given else str(given.get("value") or base + number)
        found.append(port if (parse_count(port) or 65536) < 65536 else None)
    return found


def _find_shared_ports(workload: Workload, found: Environment, ports: Ports) -> Iterator[str]:
    """Notices about ports that two processes would use: the containers of a Pod share its network."""
    if not any("TPU_PROCESS_ADDRESSES" in one for one in found.variables.values()):
        return
    together = list_running_together(workload.spec)
    numbers = _ports(together, "TPU_PROCESS_PORT", ports.process)
    if not any(find_entry(one, "JAX_COORDINATOR_ADDRESS") for one in together):
        numbers.append(str(ports.jax_coordinator))
    for port in dict.fromkeys(numbers):
        if port is not None and numbers.count(port) > 1:
            yield (
                f"a Pod has port {port} twice, in TPU_PROCESS_PORT or JAX_COORDINATOR_ADDRESS; set "
                "another TPU_PROCESS_PORT"
            )


def _shape(process: _Process, slice_: _SelectedSlice) -> dict[str, str]:
    if not slice_.topology or slice_.hosts is None:
        return {}
    dimensions = _dimensions(slice_.topology)
    found = {"TPU_TOPOLOGY": slice_.topology}
    if slice_.generation is not None:
        cores = prod(dimensions) * slice_.generation.cores
        found["TPU_ACCELERATOR_TYPE"] = f"{slice_.generation.libtpu_name}-{cores}"
    bounds = CHIP_BOUNDS.get(count_chips(process.container))
    if bounds and not any(size % bound for size, bound in zip(dimensions, bounds, strict=True)):
        hosts = (size // bound for size, bound in zip(dimensions, bounds, strict=True))
        found["TPU_HOST_BOUNDS"] = ",".join(str(size) for size in hosts)
        found["TPU_CHIPS_PER_HOST_BOUNDS"] = ",".join(str(bound) for bound in bounds)
    return found


def _read_slice(spec: Object) -> _SelectedSlice:
    selector = spec.get("nodeSelector") or {}
    topology = str(selector.get(TOPOLOGY_LABEL) or "")
    family = str(selector.get(INSTANCE_TYPE_LABEL) or "").partition("-")[0]
    accelerator = str(selector.get(ACCELERATOR_LABEL) or _ACCELERATORS.get(family, ""))
    generation = _GENERATIONS.get(accelerator)
    if not topology:
        return _SelectedSlice("", generation, None)
    if not TOPOLOGY.fullmatch(topology) or len(topology) > _LONGEST_TOPOLOGY:
        problem = f"the node selector {TOPOLOGY_LABEL}={topology} is not a topology, as in 2x2x2"
        return _SelectedSlice("", generation, None, problem)
    chips, own = prod(_dimensions(topology)), count_pod_chips(spec)
    problem = _find_chips_problem(topology, chips, own)
    if generation is not None:
        problem = problem or find_host_violation(generation, topology, own)
    return _SelectedSlice(topology, generation, None if problem else chips // own, problem)


def _find_chips_problem(topology: str, chips: int, own: int) -> str:
    if chips > MAX_WORKERS:
        return f"topology {topology} has {chips} chips, but a slice has at most {MAX_WORKERS}"
    if chips % own:
        return (
            f"topology {topology} has {chips} chips, which Pods of {own} cannot share evenly; ask for "
            "as many google.com/tpu as a host has"
        )
    if own not in CHIP_BOUNDS:
        return (
            f"no TPU VM has {own} chips; ask for as many google.com/tpu as a host has: 1, 2, 4 or 8"
        )
    return ""


def _find_container_problems(workload: Workload, slice_: _SelectedSlice) -> Iterator[str]:
    """Why the containers of a Pod cannot be processes of one slice.

    The device plugin allocates all chips of a host together, except on tpu7x. libtpu compares the list
    of workers with the bounds, which follow from the chips of a process.
    """
    together = list_running_together(workload.spec)
    of_group = workload.workers is not None and workload.workers.is_leader_worker_set
    is_older = slice_.generation and slice_.generation.accelerator not in _WITH_PROCESS_ADDRESSES
    is_split = of_group or _wants_addresses(workload, slice_)
    if len(together) > 1 and (is_older or not is_split):
        several = f"{len(together)} containers ask for google.com/tpu at the same time"
        is_disabled = _read_annotation(workload, PROCESS_ADDRESSES_ANNOTATION) == "disabled"
        if is_disabled and not is_older:
            yield (
                f"{several}, so each needs an address, but {PROCESS_ADDRESSES_ANNOTATION} is disabled; "
                "leave it out, or ask for all chips in one container"
            )
        else:
            yield (
                f"{several}, which only hosts of tpu7x allow ({ACCELERATOR_LABEL}); ask for all chips "
                "in one container"
            )
        return
    asking = together if len(together) > 1 else list_tpu_containers(workload.spec)
    chips = list(dict.fromkeys(str(count_chips(one)) for one in asking))
    if len(chips) > 1:
        yield (
            f"containers ask for {' and '.join(chips)} google.com/tpu, but all processes of a slice "
            "have the same number; ask for the same in each"
        )


def _may_be_split_later(workload: Workload) -> bool:
    """Whether the Pods of a template may be split into processes once their accelerator is known.

    A queue such as Kueue selects it when it admits a workload, long after the review of the template.
    """
    selector = workload.spec.get("nodeSelector") or {}
    is_chosen = ACCELERATOR_LABEL in selector or INSTANCE_TYPE_LABEL in selector
    asked = _read_annotation(workload, PROCESS_ADDRESSES_ANNOTATION)
    is_unknown = workload.has_template and not is_chosen and asked not in ("enabled", "disabled")
    return is_unknown and len(list_running_together(workload.spec)) > 1


def _without_outdated_note(workload: Workload, workers: Workers, slice_: _SelectedSlice) -> Workers:
    """The workers of a Pod without the reason that its template has, if the topology gives their names.

    ``kubectl scale`` and updates of a Job call no webhook, so nothing removes the reason. If each
    container has an id or a list of its own, the Pod is created with the reason, and stays as it was.
    """
    is_below = isinstance(workers.index, int) and workers.index < (slice_.hosts or 0)
    is_nameable = workers.name and workers.subdomain
    needs = (
        not (_has_list(one) or find_entry(one, "TPU_WORKER_ID"))
        for one in list_tpu_containers(workload.spec)
    )
    is_outdated = workers.is_noted and is_below and is_nameable and any(needs)
    return replace(workers, wrong="") if is_outdated else workers


def _complete(workers: Workers, slice_: _SelectedSlice) -> Workers:
    """Complete the workers by the size of the slice.

    If the slice is one host, each Pod is a slice. If its size is known, so are the names of its hosts,
    whatever the current number of Pods.
    """
    if slice_.hosts == 1:
        return replace(
            workers,
            hosts=(LOCALHOST,),
            index=0,
            count=0,
            slices=None,
            nameless="",
            unnamed="",
            wrong="",
        )
    is_nameable = workers.name and workers.subdomain
    if slice_.hosts is None or workers.wrong or not is_nameable:
        return workers
    if isinstance(workers.index, int) and (workers.hosts or workers.index >= slice_.hosts):
        return workers
    numbers = range(workers.first, workers.first + slice_.hosts)
    return replace(workers, hosts=name_hosts(workers.name, numbers, workers.subdomain))


def _has_too_many(workers: Workers, slice_: _SelectedSlice) -> bool:
    """Whether there are Pods beyond the slice's hosts: nothing that all of them get would be right."""
    return slice_.hosts is not None and workers.count > slice_.hosts


def _find_host_problems(
    workers: Workers, slice_: _SelectedSlice, *, all_served: bool
) -> Iterator[str]:
    if workers.wrong:
        yield workers.wrong
        return
    is_count_wrong = bool(workers.count) and workers.count != slice_.hosts
    if workers.unnamed and is_count_wrong:
        yield workers.unnamed
    if slice_.hosts is None:
        return
    needs = f"topology {slice_.topology} needs {slice_.hosts} Pod{'s' * (slice_.hosts > 1)}"
    if not workers.hosts and workers.nameless and not all_served:
        yield f"{needs} with names, and {workers.nameless}"
    elif is_count_wrong:
        there_are = "there is 1" if workers.count == 1 else f"there are {workers.count}"
        slices, rest = divmod(workers.count, slice_.hosts)
        several = slices > 1 and not rest and not workers.is_leader_worker_set
        more = f", and create a workload for each of {slices} slices" if several else ""
        yield f"{needs}, and {there_are}; set their number to {slice_.hosts}{more}"
    elif not workers.hosts and isinstance(workers.index, int) and not all_served:
        yield (
            f"{needs}, and this one has number {workers.index} and no TPU_WORKER_HOSTNAMES; create a "
            "workload for each slice, or create it again if its ordinals do not start at 0"
        )


def _wants_addresses(workload: Workload, slice_: _SelectedSlice) -> bool:
    """Whether to set the addresses of all processes.

    TPU7x needs an address for each process, unless the annotation disables that. Other generations get
    them only on request: PyTorch/XLA with a process for each chip builds its own list, and an entry for
    each host would replace it.
    """
    asked = _read_annotation(workload, PROCESS_ADDRESSES_ANNOTATION)
    if asked in ("enabled", "disabled"):
        return asked == "enabled"
    generation = slice_.generation
    return generation is not None and generation.accelerator in _WITH_PROCESS_ADDRESSES


def _read_annotation(workload: Workload, name: str) -> str:
    """An annotation of the Pods; empty where there is none."""
    return str((workload.metadata.get("annotations") or {}).get(name) or "")


def _processes(workload: Workload, *, splits: bool) -> Iterator[_Process]:
    together = list_running_together(workload.spec)
    for part in CONTAINER_LISTS:
        for place, container in enumerate(workload.spec.get(part) or []):
            if not count_chips(container):
                continue
            pointer = f"{workload.path}/spec/{part}/{place}"
            is_one = splits and any(container is one for one in together)
            number = next((n for n, one in enumerate(together) if one is container), 0)
            yield _Process(
                pointer, container, number if is_one else 0, len(together) if is_one else 1
            )


def _dimensions(topology: str) -> list[int]:
    """The sizes of a topology in three dimensions."""
    sizes = parse_dimensions(topology)
    return sizes + [1] * (3 - len(sizes))


def render(name: str, value: Value) -> dict[str, Any]:
    """An entry of a container's ``env``."""
    if isinstance(value, FieldPath):
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": value.path}}}
    return {"name": name, "value": value}
