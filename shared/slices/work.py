"""The work of a step on JobSets' slices: the provider, and the reads that both steps share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from shared.base.errors import STALE_ANSWERS, CallError
from shared.base.names import JOB_NAME, JOBSET_GROUP, JOBSET_KIND, JOBSET_VERSION
from shared.base.pods import list_tpu_containers
from shared.base.timestamps import guess_time
from shared.frame.audit_log import LogEvent
from shared.frame.message import Message
from shared.frame.plan import Action, NothingToDo, Require, Send, Work
from shared.frame.settings import Settings
from shared.frame.step import Invocation, work_fields
from shared.ports.classify import verdict_of
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.nodes import parse_node
from shared.slices.provider import Owner, Provider, Slice

if TYPE_CHECKING:
    from shared.ports.gke import GkeClient

FEW_NODES = 8
"""Up to so many Nodes, Pods are listed Node by Node. For hundreds of Nodes that would take too long."""
QUEUED = "Queued"
"""The outcome if the provider rejects a call because too many slices are changing."""


@dataclass(kw_only=True)
class SliceWork(Work):
    """Work on slices. ``about`` is the object of the Events: the Pod that waits, or the JobSet."""

    provider: Provider
    about: Mapping[str, Any] | None = None
    is_gone: bool = False
    """Whether the last `DeleteSlice` found that the slice was gone."""

    @property
    def subject(self) -> Mapping[str, Any] | None:
        return self.about


def slice_work_fields(invocation: Invocation, *, is_first_observation: bool) -> dict[str, Any]:
    """The fields of `SliceWork`, from an invocation.

    Raises `NothingToDo` if slices are switched off, or the trigger is about another cluster.
    """
    settings, event = invocation.runtime.settings, invocation.trigger.event
    if not settings.jobset_provider:
        raise NothingToDo("SwitchedOff")
    if event is not None and not is_of_our_pools(event, settings):
        raise NothingToDo("NotOurs")

    def remaining_s() -> float:
        """Count the calls: the client asks for the time before each call."""
        invocation.facts["gke_calls"] = invocation.facts.get("gke_calls", 0) + 1
        return invocation.remaining_s()

    runtime = invocation.runtime
    provider = build_provider(settings, invocation.cluster, runtime.gke, runtime.now, remaining_s)
    return {
        **work_fields(invocation, is_first_observation=is_first_observation),
        "provider": provider,
    }


def build_provider(
    settings: Settings,
    cluster: Cluster,
    gke: GkeClient | None,
    now: Callable[[], datetime],
    remaining_s: Callable[[], float],
) -> Provider:
    """The provider of an installation. ``remaining_s`` is called before each call to GKE."""
    if gke is None or settings.gke is None:
        from shared.slices.by_node_group.provider import GroupSlices

        return GroupSlices(cluster, now)
    from shared.slices.by_node_pool.provider import NodePools

    def list_readiness(name: str) -> list[bool]:
        return [parse_node(raw).is_ready for raw in cluster.list_nodes_of_slice(name)]

    return NodePools(settings.gke, gke, remaining_s, list_readiness)


def set_trace(work: SliceWork, existing: Slice) -> None:
    """Use the slice's uid as trace id of the log line, if it is an object of the cluster."""
    metadata = existing.raw.get("metadata") or {}
    if "uid" in metadata:
        work.facts["uid"] = metadata["uid"]


def resync(step: str, messages: Sequence[Message]) -> tuple[Action, ...]:
    """Publish resyncs to a step's topic; a failure ends the plan, so that they are published again."""
    return (Require(Send(step, tuple(messages))),) if messages else ()


def is_of_our_pools(event: LogEvent, settings: Settings) -> bool:
    """Whether an entry of the audit log is about the cluster of this installation's node pools."""
    gke = settings.gke
    return gke is not None and (event.project, event.location, event.cluster) == (
        gke.project,
        gke.location,
        gke.cluster,
    )


def list_jobs_on(
    cluster: Cluster, name: str, now: datetime, *, but: Owner | None = None
) -> tuple[str, ...]:
    """The Jobs whose Pods run on a slice, without the Job ``but``. Of many Nodes, only the first with
    such a Job counts: the caller asks whether there is any."""
    nodes = {node["metadata"]["name"] for node in cluster.list_nodes_of_slice(name)}
    for pods in _list_pods_on(cluster, nodes):
        found = tuple(job for job in find_jobs(pods, now) if but is None or job != job_of(but))
        if found:
            return found
    return ()


def _list_pods_on(cluster: Cluster, nodes: set[str]) -> Iterator[list[dict[str, Any]]]:
    """The Pods of Jobs on these Nodes, one list for each call."""
    if len(nodes) <= FEW_NODES:
        yield from map(cluster.list_pods_on, sorted(nodes))
    else:
        yield [pod for pod in cluster.list_bound_pods() if pod["spec"]["nodeName"] in nodes]


def find_jobs(pods: Iterable[Mapping[str, Any]], now: datetime) -> Iterator[str]:
    """The Jobs of Pods with TPU chips that have not ended.

    A Pod whose deletion is overdue does not count: its Node may be dead.
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


def is_out_of_slots(error: CallError, provider: Provider) -> bool:
    """Whether the provider rejected a call because of its concurrency limit.

    A slot becomes free when an operation ends, which takes minutes. Until then, retries by Pub/Sub would
    have no effect and delay other messages.
    """
    return provider.concurrency_limit is not None and error.http == 429


def find_refusal(error: CallError) -> str | None:
    """The reason of an environment error; ``None`` for one that is stale or transient."""
    return None if error.http in STALE_ANSWERS else verdict_of(error).reason


def jobset_reference(namespace: str = "", name: str = "") -> dict[str, Any]:
    """A reference to a JobSet for Events, if it is gone or an item of a list: items lack some fields."""
    return {
        "apiVersion": f"{JOBSET_GROUP}/{JOBSET_VERSION}",
        "kind": JOBSET_KIND,
        "metadata": {"namespace": namespace, "name": name, "uid": "", "resourceVersion": ""},
    }
