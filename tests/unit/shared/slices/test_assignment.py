"""Which slice each Pod of a Deployment has, also if many invocations decide at the same time."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.slices.assignment import PodView, SliceView, assign

FREE, DELETING, STRANGERS = (
    SliceView(frozenset({"n"})),
    SliceView(is_deleting=True),
    SliceView(frozenset({"strangers"})),
)


def find_strangers(nodes: Collection[str]) -> list[str]:
    return [node for node in nodes if node.startswith("strangers")]


def find_none(_nodes: Collection[str]) -> list[str]:
    return []


def waiting(*uids: str) -> list[PodView]:
    return [PodView(f"10:0{number}", uid) for number, uid in enumerate(uids)]


def on(node: str, uid: str = "running") -> PodView:
    return PodView("09:00", uid, node)


def slices(*names: str) -> dict[int, SliceView]:
    """A slice with one Node of this name for each; without a Node if it is empty."""
    return {
        number: SliceView(frozenset({name} if name else ())) for number, name in enumerate(names)
    }


@pytest.mark.parametrize(
    "pods, existing, expected, unneeded",
    [
        pytest.param(
            waiting("a", "b"), {}, {"a": 0, "b": 1}, [], id="new slices, the oldest first"
        ),
        pytest.param(
            waiting("b", "a")[::-1], {}, {"b": 0, "a": 1}, [], id="in any order of the list"
        ),
        pytest.param(
            [PodView("1", "b"), PodView("1", "a")], {}, {"a": 0, "b": 1}, [], id="same second"
        ),
        pytest.param(waiting("a"), slices("", ""), {"a": 0}, [1], id="an existing one"),
        pytest.param(
            [on("y"), *waiting("a")], slices("x", "y"), {"running": 1, "a": 0}, [], id="beside"
        ),
        pytest.param([on("x")], slices("x", "y", "z"), {"running": 0}, [1, 2], id="scaled down"),
        pytest.param(
            [on("z")], slices("x", "y", "z"), {"running": 2}, [0, 1], id="the last one stays"
        ),
        pytest.param([], slices("x", ""), {}, [0, 1], id="scaled to 0"),
        pytest.param([on("elsewhere")], slices("x"), {}, [0], id="a Pod on another Node has none"),
        pytest.param(waiting("a"), {0: DELETING}, {"a": 1}, [0], id="none that is being deleted"),
        pytest.param(
            waiting("a"), {0: DELETING, 2: FREE}, {"a": 2}, [0], id="the free one instead"
        ),
        pytest.param(waiting("a"), {1: STRANGERS}, {"a": 0}, [1], id="none with a stranger"),
        pytest.param(
            waiting("a", "b"), {0: STRANGERS, 1: FREE}, {"a": 1, "b": 2}, [0], id="next free"
        ),
    ],
)
def test_pods_have_the_slice_of_their_node_then_free_slices_then_new_ones(
    pods: list[PodView],
    existing: dict[int, SliceView],
    expected: dict[str, int],
    unneeded: list[int],
) -> None:
    found = assign(pods, existing, find_strangers)
    assert (found, existing.keys() - found.values()) == (expected, {*unneeded})


NODES = [*(f"n{number}" for number in range(6)), "strangers-1", "strangers-2"]
PODS = st.lists(
    st.builds(
        PodView, st.sampled_from("123"), st.sampled_from("abcdefgh"), st.sampled_from(["", *NODES])
    ),
    unique_by=(lambda one: one.uid, lambda one: one.node or one.uid),
)
SLICES = st.lists(
    st.builds(
        SliceView,
        st.sampled_from([frozenset(), *(frozenset({name}) for name in NODES)]),
        st.booleans(),
    ),
    unique_by=lambda one: one.nodes or id(one),
).flatmap(
    lambda views: st.permutations(range(8)).map(lambda at: dict(zip(at, views, strict=False)))
)


@given(PODS, SLICES, st.randoms())
def test_never_more_slices_than_pods_that_wait_or_run(
    pods: list[PodView], existing: dict[int, SliceView], generator: random.Random
) -> None:
    found = assign(pods, existing, find_strangers)
    ordinals = list(found.values())
    assert len(set(ordinals)) == len(ordinals), "two Pods have one slice"
    assert found.keys() >= {pod.uid for pod in pods if not pod.node}
    shuffled = pods[:]
    generator.shuffle(shuffled)
    assert assign(shuffled, dict(reversed(existing.items())), find_strangers) == found
    bought = set(ordinals) - existing.keys()
    usable = {
        number
        for number, one in existing.items()
        if not (one.is_deleting or find_strangers(one.nodes))
    }
    assert not bought or usable <= set(ordinals), "a slice is bought beside a free one"


class Owner:
    """An owner with Pods and slices. Each invocation reads the Pods, then the slices, and creates the
    slice of its Pod; other invocations act between any two of these calls."""

    def __init__(self) -> None:
        self.pods: list[PodView] = []
        self.slices: set[int] = set()

    def invoke(self, pod: PodView) -> Iterable[None]:
        for _ in range(len(self.slices) + 60):
            pods = list(self.pods)
            yield
            existing = set(self.slices)
            yield
            if pod not in pods:
                return
            ordinal = assign(pods, dict.fromkeys(existing, SliceView()), find_none)[pod.uid]
            if ordinal in existing:
                return
            if ordinal not in self.slices:
                self.slices.add(ordinal)
                return
            yield  # the name is taken: observe again
        raise AssertionError("an invocation never ends")


@pytest.mark.parametrize("seed", range(40))
def test_fifty_pods_at_once_get_fifty_slices(seed: int) -> None:
    generator, owner = random.Random(seed), Owner()
    everyone = [PodView(str(generator.randrange(3)), f"{number:02}") for number in range(50)]
    if seed % 2:
        owner.pods = everyone[:]  # else they appear one after the other
    running = [iter(owner.invoke(pod)) for pod in everyone for _ in range(2)]
    late = list(everyone)
    while running or late:
        if late and generator.random() < 0.3:
            pod = late.pop()
            if pod not in owner.pods:
                owner.pods.append(pod)
        if running:
            one = generator.choice(running)
            try:
                next(one)
            except StopIteration:
                running.remove(one)
        assert len(owner.slices) <= len(owner.pods)
    sweeps = 0
    while len(owner.slices) < 50:  # resyncs, for those whose invocation came before other Pods
        sweeps += 1
        for pod in generator.sample(everyone, 50):
            list(owner.invoke(pod))
    assert sweeps <= 4
    assert len(owner.slices) == 50


def run(owner: Mapping[int, str], pods: Collection[PodView]) -> dict[int, str]:
    """One round of provision and release for slices by ordinal, each with its Node."""
    views = {number: SliceView(frozenset({node})) for number, node in owner.items()}
    found = assign(pods, views, find_none)
    return {number: owner.get(number, f"node-{number}") for number in found.values()}


def test_scaled_from_1_to_3_to_0() -> None:
    state = run({}, waiting("a"))
    assert state == {0: "node-0"}
    state = run(state, [on("node-0", "a"), *waiting("b", "c")])
    assert list(state) == [0, 1, 2]
    assert run(state, [on("node-1", "b")]) == {1: "node-1"}
    assert run(state, []) == {}


@pytest.mark.parametrize("surge", [0, 1])
def test_a_rolling_update_reuses_slices_and_buys_only_what_surges(surge: int) -> None:
    """Pods that are being deleted are not in the list: their successors wait for the same slices."""
    state = run({}, waiting("a", "b", "c"))
    old, peak = [on(f"node-{number}", str(number)) for number in range(3)], 0
    new: list[PodView] = []
    if not surge:
        old.pop()
    while old or len(new) < 3 or not all(pod.node for pod in new):
        if len(old) + len(new) < 3 + surge and len(new) < 3:
            new.append(PodView("11:00", f"new-{len(new)}"))
        state = run(state, [*old, *new])
        peak = max(peak, len(state))
        used = {pod.node for pod in (*old, *new)}
        free = sorted({*state.values()} - used)
        new = [
            PodView(pod.created, pod.uid, pod.node or (free.pop(0) if free else "")) for pod in new
        ]
        if old and all(pod.node for pod in new):
            old.pop()
    assert peak == 3 + surge
    assert len(run(state, new)) == 3


def occupied(*nodes: str) -> tuple[list[list[str]], Callable[[Collection[str]], set[str]]]:
    asked: list[list[str]] = []

    def find(names: Collection[str]) -> set[str]:
        asked.append(sorted(names))
        return {*nodes} & {*names}

    return asked, find


@pytest.mark.parametrize(
    "pods, existing, asked",
    [
        pytest.param([on("x")], slices("x", "y"), [], id="not if no Pod waits"),
        pytest.param(waiting("a"), slices("", ""), [], id="not if there is no Node"),
        pytest.param(
            [on("x"), *waiting("a")],
            slices("x", "y", "z"),
            [["y", "z"]],
            id="those without its Pods",
        ),
        pytest.param(
            waiting("a"), {0: SliceView(frozenset("y"), is_deleting=True)}, [], id="none that goes"
        ),
    ],
)
def test_nodes_are_asked_for_strangers_only_if_it_matters(
    pods: list[PodView], existing: dict[int, SliceView], asked: list[list[str]]
) -> None:
    seen, find = occupied()
    assign(pods, existing, find)
    assert seen == asked


def test_a_slice_with_a_stranger_is_replaced_and_released_when_the_stranger_has_gone() -> None:
    """The stranger's own slice is unneeded meanwhile, so that the number of slices is that of Pods."""
    _, find = occupied("x")
    assert assign(waiting("a"), slices("x"), find) == {"a": 1}
    both = slices("x", "y")
    assert assign([on("y", "a")], both, find) == {"a": 1}
