"""Which slice each single-host Pod of an owner has: computed from its Pods and slices alone.

Pods of a Deployment have no ordinal of their own, so that nothing about one says which slice is its.
Invocations about several Pods at the same time compute the same map from the same lists. If the lists
differ, two may choose the same ordinal: the second create finds the name taken, and observes again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice


@dataclass(frozen=True, order=True)
class PodView:
    """A Pod with TPUs that has not ended and is not being deleted: the controller of one that is has
    created its successor, which waits for the same slice. ``node`` is empty while it waits."""

    created: str
    uid: str
    node: str = ""


@dataclass(frozen=True)
class SliceView:
    """A slice of the owner. ``has_stranger``: the Pod of another owner runs on it."""

    nodes: frozenset[str] = frozenset()
    is_deleting: bool = False
    has_stranger: bool = False


def assign(pods: Collection[PodView], slices: Mapping[int, SliceView]) -> Mapping[str, int]:
    """The ordinal of the slice of each Pod, by uid; Pods on other Nodes have none. No Pod of the owner
    needs the other slices.

    A Pod that runs has the slice of its Node. Those that wait, the oldest first, get the free slices in
    the order of their ordinals, then the lowest ordinals without a slice.
    """
    by_node = {node: ordinal for ordinal, one in slices.items() for node in one.nodes}
    by_pod = {pod.uid: by_node[pod.node] for pod in pods if pod.node in by_node}
    taken = {*by_pod.values()}
    free = [
        ordinal for ordinal in sorted(slices) if ordinal not in taken and _is_free(slices[ordinal])
    ]
    waiting = [pod.uid for pod in sorted(pods) if not pod.node]
    new = (ordinal for ordinal in count() if ordinal not in slices)
    ordinals = [*free, *islice(new, max(0, len(waiting) - len(free)))]
    return by_pod | dict(zip(waiting, ordinals, strict=False))


def mark_strangers(
    pods: Collection[PodView],
    slices: Mapping[int, SliceView],
    find_occupied: Callable[[Collection[str]], Iterable[str]],
) -> Mapping[int, SliceView]:
    """The slices, those marked on which a Pod of another owner runs.

    ``find_occupied`` returns which of these Nodes have such a Pod. It is called only if a Pod waits and
    has a slice with Nodes: the scheduler would have used that slice.
    """
    if all(pod.node for pod in pods):
        return slices
    own = {pod.node for pod in pods}
    nodes = [
        node
        for one in slices.values()
        if _is_free(one) and own.isdisjoint(one.nodes)
        for node in sorted(one.nodes)
    ]
    occupied = {*find_occupied(nodes)} if nodes else set()
    return {
        ordinal: replace(one, has_stranger=not occupied.isdisjoint(one.nodes))
        for ordinal, one in slices.items()
    }


def _is_free(one: SliceView) -> bool:
    return not (one.is_deleting or one.has_stranger)
