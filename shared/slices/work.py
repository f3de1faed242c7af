"""What the steps of JobSets do around their decisions: find their provider, tell of what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from shared.base.errors import STALE_ANSWERS, CallError, OutOfTimeError
from shared.base.names import JOB_NAME, JOBSET_GROUP, JOBSET_KIND, JOBSET_VERSION
from shared.base.pods import list_tpu_containers
from shared.base.timestamps import guess_time
from shared.frame.audit_log import LogEvent
from shared.frame.settings import Settings
from shared.frame.step import ACKNOWLEDGED, MAX_LOOKS, Answer, Invocation
from shared.ports.classify import verdict_of
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.events import Event
from shared.ports.kubernetes.nodes import parse_node
from shared.slices.provider import Owner, Provider, Slice

FEW_NODES = 8
"""So many Nodes are asked for their Pods one by one; a call for each of hundreds takes too long."""
QUEUED = "Queued"
"""The outcome where a provider has no room now."""


def look_until_done(invocation: Invocation, once: Callable[[Provider], Answer]) -> Answer:
    """Look, decide and do ``once``; again, three times at most, while what was seen is no longer so."""

    note = ""
    for _ in range(MAX_LOOKS):
        invocation.look_from_now()
        try:
            return once(make_provider(invocation))
        except CallError as error:
            if error.http not in STALE_ANSWERS:
                raise
            note = str(error)
    raise CallError(invocation.step, 409, "conditionNotMet", f"the world keeps moving: {note}")


def make_provider(invocation: Invocation) -> Provider:
    """Who makes slices here."""
    runtime, cluster = invocation.runtime, invocation.cluster
    if runtime.gke is None or runtime.settings.gke is None:
        from shared.slices.by_node_group.provider import GroupSlices

        return GroupSlices(cluster, runtime.now)
    from shared.slices.by_node_pool.provider import NodePools

    def has_ready_nodes(name: str) -> bool:
        return any(parse_node(raw).is_ready for raw in cluster.list_nodes_of_slice(name))

    def remaining_s() -> float:
        """Asked once for each call."""
        invocation.facts["gke_calls"] = invocation.facts.get("gke_calls", 0) + 1
        return invocation.remaining_s()

    return NodePools(runtime.settings.gke, runtime.gke, remaining_s, has_ready_nodes)


def trace(invocation: Invocation, existing: Slice) -> None:
    """Have the log line read with the others about this slice, where it has an identity of its own."""
    metadata = existing.raw.get("metadata") or {}
    if "uid" in metadata:
        invocation.facts["uid"] = metadata["uid"]


def is_of_our_pools(event: LogEvent, settings: Settings) -> bool:
    """Whether an entry of the audit log tells of the cluster in which slices are made here."""
    gke = settings.gke
    return gke is not None and (event.project, event.location, event.cluster) == (
        gke.project,
        gke.location,
        gke.cluster,
    )


def list_jobs_on(
    cluster: Cluster, name: str, now: datetime, *, but: Owner | None = None
) -> tuple[str, ...]:
    """The Jobs whose Pods are on a slice, as far as the first of its Nodes that has any; ``but`` not
    this one."""
    nodes = {node["metadata"]["name"] for node in cluster.list_nodes_of_slice(name)}
    for pods in _list_pods_on(cluster, nodes):
        found = tuple(job for job in find_jobs(pods, now) if but is None or job != job_of(but))
        if found:
            return found
    return ()


def _list_pods_on(cluster: Cluster, nodes: set[str]) -> Iterator[list[dict[str, Any]]]:
    """The Pods of Jobs on these Nodes, in as many lists as were asked for."""
    if len(nodes) <= FEW_NODES:
        yield from map(cluster.list_pods_on, sorted(nodes))
    else:
        yield [pod for pod in cluster.list_bound_pods() if pod["spec"]["nodeName"] in nodes]


def find_jobs(pods: Iterable[Mapping[str, Any]], now: datetime) -> Iterator[str]:
    """The Jobs of Pods with TPU chips that have not ended; for others no slice is paid.

    A Pod that was to end before now may be on a dead Node.
    """
    for pod in pods:
        metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        end = guess_time(metadata.get("deletionTimestamp"))
        is_there = phase in ("Pending", "Running") and (end is None or now < end)
        if is_there and list_tpu_containers(pod.get("spec") or {}):
            yield f"{metadata['namespace']}/{metadata['labels'][JOB_NAME]}"


def job_of(owner: Owner) -> str:
    """A slice's Job as `find_jobs` names it."""
    return f"{owner.namespace}/{owner.job}"


def refuse(error: CallError, tell_of_it: Callable[[], None]) -> Answer:
    """The answer to a refusal of the world, which is told. Raises what is ours to try again."""
    reason = verdict_of(error).reason
    if not is_refused(error) or reason is None:
        raise error
    tell_of_it()
    return Answer(ACKNOWLEDGED, reason, str(error))


def is_out_of_places(error: CallError, provider: Provider) -> bool:
    """Whether a provider that changes only so many slices at a time has no room for one more now.

    It has when an operation ends, which takes minutes: until then Pub/Sub would try in vain, and hold
    up all other messages.
    """
    return provider.concurrency_limit is not None and error.http == 429


def is_refused(error: CallError) -> bool:
    """Whether the world says no, and not only for now."""
    return error.http not in STALE_ANSWERS and verdict_of(error).reason is not None


def tell(invocation: Invocation, about: Mapping[str, Any], event: Event, *, once: bool) -> None:
    """Write an Event, if that can be done; ``once``: not again while it is there."""
    cluster, now = invocation.cluster, invocation.runtime.now()
    try:
        (cluster.emit_once if once else cluster.emit)(about, event, now)
    except (CallError, OutOfTimeError) as error:
        invocation.facts.setdefault("left_undone", []).append(str(error))


def jobset_reference(namespace: str = "", name: str = "") -> dict[str, Any]:
    """A JobSet as Events can be about it when it is gone, or was an item of a list, which says less."""
    return {
        "apiVersion": f"{JOBSET_GROUP}/{JOBSET_VERSION}",
        "kind": JOBSET_KIND,
        "metadata": {"namespace": namespace, "name": name, "uid": "", "resourceVersion": ""},
    }
