"""Messages to publish with their topics, and the resyncs of a group."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from replay.completion import KINDS
from replay.dependencies import Dependencies
from replay.errors import ReplayError
from replay.text import MAX_NAMES
from shared.node_groups import node_group, status
from shared.node_groups.node_group import AnyGroup
from shared.node_groups.work import message_about
from shared.triggers.message import Cause


@dataclass(frozen=True)
class Publication:
    """A message for a step's topic. ``line`` is where it was read; 0 if it is new."""

    step: str
    data: bytes
    attributes: Mapping[str, str] = field(default_factory=dict)
    about: str = ""
    cause: str = ""
    line: int = 0


@dataclass(frozen=True)
class Sent:
    """A message and the id that Pub/Sub gave it; empty when it was only to be shown."""

    publication: Publication
    message_id: str = ""


def get_group(deps: Dependencies, namespace: str, name: str) -> AnyGroup:
    """The group of that name. Raises `ReplayError`, `CallError`."""
    cluster = deps.open_cluster()
    raw = cluster.find_group(namespace or deps.namespace, name)
    if raw is None:
        known = [one["metadata"] for one in cluster.list_groups()]
        words = describe_absent("TPUNodeGroup", namespace or deps.namespace, name, known)
        if namespace not in ("", deps.namespace, *(one["namespace"] for one in known)):
            kinds = ", ".join(map(str.lower, dict.fromkeys(KINDS.values())))
            words += f". If {namespace} is a kind: those that can be named are {kinds}"
        raise ReplayError(words)
    return node_group.parse(raw, cluster.get_cluster_id())


def describe_absent(
    kind: str, namespace: str, name: str, known: Sequence[Mapping[str, Any]]
) -> str:
    """There is no such object; ``known`` is the metadata of those that there are, of which the nearest
    are named: that name in another namespace, or a name like it in this one."""
    same = [f"-n {one['namespace']} {name}" for one in known if one["name"] == name]
    here = [one["name"] for one in known if one["namespace"] == namespace]
    near = [*same, *get_close_matches(name, here)][:MAX_NAMES]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"there is no {kind} {namespace}/{name}; {hint}`kubectl tng get -A` lists them"


def list_groups(deps: Dependencies, namespace: str = "") -> list[AnyGroup]:
    """All groups of the cluster, or of a namespace. Raises `CallError`."""
    cluster = deps.open_cluster()
    cluster_id = cluster.get_cluster_id()
    return [node_group.parse(raw, cluster_id) for raw in cluster.list_groups(namespace)]


def resyncs(groups: Iterable[AnyGroup], step: str | None, now: datetime) -> Iterator[Publication]:
    """A resync of each group, to the named step, or to those that the sweep would trigger."""
    from functions import sweep

    for group in groups:
        known = status.parse_of(group)
        for topic in (step,) if step else sweep.decide.list_steps(group, known):
            message = message_about(group, Cause.RESYNC, now)
            yield Publication(
                topic,
                message.encode(),
                message.attributes(group.cluster),
                about=group.key,
                cause=message.cause,
            )


def publish(deps: Dependencies, publications: Iterable[Publication]) -> Iterator[Sent]:
    """Publish one after the other; each is out when it is yielded. Raises `CallError`."""
    for one in publications:
        yield Sent(one, deps.publish(one.step, one.data, one.attributes))
