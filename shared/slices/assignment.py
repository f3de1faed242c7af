"""Which slice each single-host Pod of an owner has: computed from its Pods and slices alone.

Pods of a Deployment have no ordinal of their own, so that nothing about one says which slice is its.
Invocations about several Pods at the same time compute the same map from the same lists. If the lists
differ, two may choose the same ordinal: the second create finds the name taken, and observes again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
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
    """A slice of the owner."""

    nodes: frozenset[str] = frozenset()
    is_deleting: bool = False


def assign(
    pods: Collection[PodView],
    slices: Mapping[int, SliceView],
    find_occupied: Callable[[Collection[str]], Iterable[str]],
) -> Mapping[str, int]:
    """The ordinal of the slice of each Pod, by uid; Pods on other Nodes have none. No Pod of the owner
    needs the other slices.

    A Pod that runs has the slice of its Node. Those that wait, the oldest first, get the free slices in
    the order of their ordinals, then the lowest ordinals without a slice. A slice on which a Pod of
    another owner runs is not free. ``find_occupied`` returns which of these Nodes have such a Pod; it is
    called only if a Pod waits and has a slice with Nodes: the scheduler would have used that slice.
    """
    by_node = {node: ordinal for ordinal, one in slices.items() for node in one.nodes}
    by_pod = {pod.uid: by_node[pod.node] for pod in pods if pod.node in by_node}
    waiting, left = (
        [pod.uid for pod in sorted(pods) if not pod.node],
        {*slices} - {*by_pod.values()},
    )
    usable = {one: slices[one].nodes for one in sorted(left) if not slices[one].is_deleting}
    nodes = [node for found in usable.values() for node in sorted(found)] if waiting else []
    occupied = {*find_occupied(nodes)} if nodes else set()
    free = [ordinal for ordinal, found in usable.items() if occupied.isdisjoint(found)]
    new = (ordinal for ordinal in count() if ordinal not in slices)
    ordinals = [*free, *islice(new, max(0, len(waiting) - len(free)))]
    return by_pod | dict(zip(waiting, ordinals, strict=False))
