"""Which slices report_leaks looks at, and what it records and reports about those that are idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from functions.report_leaks.decide import decide
from functions.report_leaks.idle import (
    SliceInUse,
    TpuNode,
    WriteIdle,
    find_slices,
    plan_writes,
    read_tpu_node,
)
from functions.report_leaks.observe import ObservedLeaks, observe
from shared.base.names import JOBSET_LABEL, POOL_LABEL, RESOURCE_NAME_LABEL
from shared.base.slice_names import JOB_LABEL
from shared.base.timestamps import render_time
from shared.frame.plan import Emit
from shared.node_groups import status
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.status import Status, Type
from shared.ports.errors import CallError, OutOfTimeError
from tests.support.builders import CLUSTER, NOW, RESOURCE, group, raw_group
from tests.unit.functions.report_leaks import objects as leaks

HOUR = timedelta(hours=1)
WORKLOAD = {JOBSET_LABEL: "train", JOB_LABEL: "train-workers-0"}
POOL_LABELS = {
    POOL_LABEL: "train-bfcf5ebea76efcf5",
    "google.com/nodepool-manager": "tpu-provisioner",
    "google.com/tpu-provisioner-jobset-name": "train",
    "google.com/tpu-provisioner-parent-name": "train-workers-0",
    "google.com/tpu-provisioner-parent-namespace": "team",
}


def node(name: str = "a", labels: dict[str, str] | None = None, hours: float = 1) -> TpuNode:
    own = {RESOURCE_NAME_LABEL: RESOURCE} if labels is None else labels
    reference = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    return TpuNode(name, own, 4, NOW - hours * HOUR, reference)


def ready(reason: str = "Ready", since: float | None = None) -> Status:
    idle = None if since is None else NOW - timedelta(minutes=since)
    known = Status(idle_since=idle)
    return known.with_condition(Type.READY, reason == "Ready", reason, "m", group(), NOW)


def raw(reason: str = "Ready", **metadata: Any) -> dict[str, Any]:
    return {**raw_group(**metadata), "status": status.render(ready(reason))}


SLICES: dict[str, tuple[list[TpuNode], list[dict[str, Any]], list[tuple[str, int, str]]]] = {
    "a Ready group with two Nodes": ([node("b"), node()], [raw()], [(RESOURCE, 2, "")]),
    "a group of a workload": (
        [node()], [raw(labels=WORKLOAD)], [(RESOURCE, 1, "JobSet train")],
    ),
    "a group that is not Ready": ([node()], [raw("NodeLost")], []),
    "a group that is being deleted": ([node()], [raw(deletionTimestamp="x")], []),
    "a group without Nodes": ([], [raw()], []),
    "Nodes of a group that is gone": ([node()], [], []),
    "a node pool of a workload": (
        [node(labels=POOL_LABELS)], [], [("train-bfcf5ebea76efcf5", 1, "JobSet train")],
    ),
    "a node pool with a new Node": (
        [node(labels=POOL_LABELS), node("b", POOL_LABELS, 0.9)], [], [],
    ),
    "a node pool of others": ([node(labels={POOL_LABEL: "tpu"})], [], []),
}  # fmt: skip


@pytest.mark.parametrize("case", SLICES.values(), ids=SLICES)
def test_slices_that_may_be_idle_are_looked_at(
    case: tuple[list[TpuNode], list[dict[str, Any]], list[tuple[str, int, str]]],
) -> None:
    nodes, groups, expected = case
    found = find_slices(nodes, groups, CLUSTER, NOW)
    assert [(one.name, len(one.nodes), one.workload) for one in found] == expected


def test_of_a_node_only_its_slice_its_chips_and_its_age_are_kept() -> None:
    given = leaks.raw_node("a", RESOURCE)
    given["metadata"] |= {"uid": "u", "resourceVersion": "7", "annotations": {"a": "b"}}
    read = read_tpu_node({**given, "status": {"capacity": {"google.com/tpu": "4"}}})
    named = {"name": "a", "uid": "u", "resourceVersion": "7"}
    expected = {"apiVersion": "v1", "kind": "Node", "metadata": named}
    assert read == replace(node(), reference=expected)
    assert read_tpu_node(leaks.raw_node("a")) is None
    assert read_tpu_node({**leaks.raw_node("a", RESOURCE), "status": {}}) is not None


def of_group(is_used: bool | None, since: float | None) -> SliceInUse:
    parsed = group()
    assert isinstance(parsed, NodeGroup)
    return SliceInUse(RESOURCE, (node(), node("b")), "", parsed, ready(since=since), is_used)


RECORDED: dict[str, tuple[bool | None, float | None, list[Any], bool]] = {
    "used": (True, None, [], False),
    "used again": (True, 60, [None], False),
    "idle for the first time": (False, None, [NOW], False),
    "idle for almost an hour": (False, 54, [], False),
    "idle for an hour": (False, 55, [], True),
    "not looked at": (None, 90, [], False),
}


@pytest.mark.parametrize("case", RECORDED.values(), ids=RECORDED)
def test_a_group_records_since_when_it_is_idle_and_is_reported_after_an_hour(
    case: tuple[bool | None, float | None, list[Any], bool],
) -> None:
    is_used, since, written, is_reported = case
    one = of_group(is_used, since)
    assert [write.since for write in plan_writes([one], NOW)] == written
    plan = decide(ObservedLeaks((), 0, slices=(one,)), NOW)
    assert plan.outcome == "NoLeaks"
    assert plan.facts.get("idle", 0) == is_reported
    events = [action.event for action in plan.best_effort if isinstance(action, Emit)]
    assert [event.reason for event in events] == ["SliceIdle"] * is_reported


def test_the_report_of_a_node_pool_names_it_and_its_workload() -> None:
    one = SliceInUse("pool", (node(labels=POOL_LABELS),), "JobSet train", node(), Status(), False)
    line, event = decide(ObservedLeaks((), 0, slices=(one,)), NOW).best_effort
    assert isinstance(event, Emit)
    assert event.event.message == (
        "No Pod used the 4 TPU chips of node pool pool now. They are billed. It was created for JobSet "
        "train, and is deleted when that ends."
    )
    assert (event.about, event.once) == (node().reference, True)
    assert line.describe() == "report the idle slice pool"


def test_the_write_has_the_whole_status_that_was_read() -> None:
    written: list[Any] = []
    cluster = type("", (), {"replace_status": lambda _, *given: written.append(given)})()
    (write,) = plan_writes([of_group(False, None)], NOW)
    write.apply(cast("Any", type("", (), {"cluster": cluster})))
    ((raw_object, rendered),) = written
    assert raw_object == group().raw
    assert rendered == status.render(replace(ready(), idle_since=NOW))
    assert rendered["idleSince"] == render_time(NOW)
    assert write.describe() == f"record that {group().key} is idle"
    assert WriteIdle(write.group, write.known, None).describe().endswith("is used")


def pod(chips: str = "4", node_name: str = "a") -> dict[str, Any]:
    limits = {"resources": {"limits": {"google.com/tpu": chips}}}
    spec = {"nodeName": node_name, "containers": [limits]}
    return {"metadata": {"name": "a"}, "spec": spec, "status": {}}


def tpu_node(name: str) -> dict[str, Any]:
    return leaks.raw_node(name, RESOURCE)


LOOKS: dict[str, tuple[dict[str, Any], bool | None, list[str], tuple[str, ...]]] = {
    "its first Node is used": ({"a": [pod()]}, True, ["a"], ()),
    "its last Node is used": (
        {"a": [pod("0")], "b": [], "c": [pod(node_name="c")]}, True, ["a", "b", "c"], (),
    ),
    "no Node is used": ({"a": [], "b": [], "c": []}, False, ["a", "b", "c"], ()),
    "its Pods may not be read": ({"a": CallError("list", 403, "x", "")}, None, ["a"], ("Pods",)),
    "there is no time": ({"a": [], "b": OutOfTimeError("late")}, None, ["a", "b"], ()),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOKS.values(), ids=LOOKS)
def test_the_nodes_of_a_slice_are_read_until_one_is_used(
    case: tuple[dict[str, Any], bool | None, list[str], tuple[str, ...]],
) -> None:
    answers, is_used, read, unseen = case
    asked: list[str] = []

    def list_pods_on(name: str) -> Any:
        asked.append(name)
        if isinstance(answers[name], Exception):
            raise answers[name]
        return answers[name]

    given: dict[str, Any] = {
        "list_named": ([], ()),
        "list_groups": [raw(labels={RESOURCE_NAME_LABEL: RESOURCE})],
        "list_all_nodes": [tpu_node(name) for name in "cab"],
        "list_pods_on": list_pods_on,
    }
    observed = observe(leaks.work(**given)[0])
    assert [one.is_used for one in observed.slices] == [is_used]
    assert (asked, observed.unseen) == (read, unseen)
    assert observe(leaks.work(**given)[0], with_use=False).slices == ()


def test_a_list_of_nodes_that_ends_early_shows_neither_an_idle_slice_nor_a_leaked_pool() -> None:
    """The Nodes that prove the contrary may be on the next page."""
    error = CallError("list nodes", 503, "ServiceUnavailable", "shutting down")
    pool = tpu_node("n")
    pool["metadata"]["labels"] = {POOL_LABEL: POOL_LABELS[POOL_LABEL]}
    pool["status"] = {"capacity": {"google.com/tpu": "4"}}

    def list_all_nodes() -> Iterator[dict[str, Any]]:
        yield from (pool, tpu_node("a"))
        raise error

    given: dict[str, Any] = {
        "list_named": ([], ()),
        "list_groups": [raw(labels={RESOURCE_NAME_LABEL: RESOURCE})],
        "list_pods_on": [],
    }
    observed = observe(leaks.work(**given, list_all_nodes=list_all_nodes)[0])
    assert (observed.slices, observed.pools) == ((), ())
    assert (observed.failures, observed.unseen) == ((error,), ("Nodes",))


LARGE = [f"{number:04}" for number in range(2_304)]
"""The Nodes of a slice of the largest size."""


@pytest.mark.parametrize("used", [[], ["2303"], ["0000"], ["other"]])
def test_the_use_of_a_slice_of_2304_hosts_takes_one_read_and_at_most_one_list(
    used: list[str],
) -> None:
    work, reads = leaks.work(
        list_named=([], ()),
        list_groups=[raw(labels={RESOURCE_NAME_LABEL: RESOURCE})],
        list_all_nodes=list(map(tpu_node, LARGE)),
        list_pods_on=lambda name: [pod(node_name=name)] if name in used else [],
        list_bound_pods=[pod(node_name=name) for name in ("x", *used)],
    )
    observed = observe(work)
    is_used = not {*used}.isdisjoint(LARGE)
    assert ([one.is_used for one in observed.slices], observed.unseen) == ([is_used], ())
    lists = [] if used == ["0000"] else ["list_bound_pods"]
    assert [call for call in reads.calls if "pods" in call] == ["list_pods_on", *lists]


@pytest.mark.parametrize("hosts, calls", [(1, (1, 0)), (9, (9, 0)), (10, (1, 1))])
def test_the_pods_of_an_idle_slice_of_up_to_nine_hosts_are_read_without_a_list_of_all(
    hosts: int, calls: tuple[int, int]
) -> None:
    work, reads = leaks.work(
        list_named=([], ()),
        list_groups=[raw(labels={RESOURCE_NAME_LABEL: RESOURCE})],
        list_all_nodes=[tpu_node(f"{number:02}") for number in range(hosts)],
        list_pods_on=[],
        list_bound_pods=[],
    )
    assert [one.is_used for one in observe(work).slices] == [False]
    found = Counter(reads.calls)
    assert (found["list_pods_on"], found["list_bound_pods"]) == calls


def test_without_time_no_further_slice_is_looked_at() -> None:
    work, _ = leaks.work(
        list_named=([], ()),
        list_groups=[raw(labels={RESOURCE_NAME_LABEL: RESOURCE})],
        list_all_nodes=[tpu_node("a")],
    )

    def no_time() -> float:
        raise OutOfTimeError("late")

    work.remaining_s = no_time
    observed = observe(work)
    assert ([one.is_used for one in observed.slices], observed.unseen) == ([None], ())
