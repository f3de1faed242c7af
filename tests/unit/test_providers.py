"""What the providers of slices ask GKE and the cluster for, and what they make of the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from shared.base.errors import CallError
from shared.ports.gke import GkeClient
from shared.ports.kubernetes.cluster import Cluster
from shared.slices.by_node_group.desired_group import (
    TEMPLATE_HASH_ANNOTATION,
    build_desired_slice,
)
from shared.slices.by_node_group.provider import GroupSlices
from shared.slices.by_node_pool.found_pools import read_slice
from shared.slices.by_node_pool.provider import NodePools
from shared.slices.provider import NameConflict
from tests.jobset_objects import options
from tests.unit import test_group_slices as groups
from tests.unit.builders import NOW, merge
from tests.unit.reads import Reads
from tests.unit.test_desired_pool import SETTINGS, labelled, leader, pool
from tests.unit.test_provision_slice import leader as group_leader

PATH = SETTINGS.cluster_path
WANTED_POOL = NodePools(SETTINGS, cast("GkeClient", None), lambda: 1.0, lambda _: ()).build_desired(
    leader()
)
MINE = pool()
UNMANAGED, ELSEWHERE, OTHERS = (
    {**changed, "name": name}
    for changed, name in (
        (labelled(manager=None), "a"),
        (labelled(namespace="elsewhere"), "b"),
        (labelled(name="other"), "c"),
    )
)
FAILED = {**MINE, "status": "ERROR"}
UNTAGGED = {key: value for key, value in MINE.items() if key != "etag"}
GONE = CallError("nodePools.get", 404, "notFound", "not found")
REFUSED = CallError("nodePools.get", 403, "forbidden", "may not")


@dataclass
class Gke:
    """GKE with an answer for each method."""

    answers: Mapping[str, Any]
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def call(self, method: str, request: dict[str, Any], remaining_s: Callable[[], float]) -> Any:
        assert remaining_s() == 7.0
        self.requests.append((method, request))
        answer = self.answers[method]
        if isinstance(answer, Exception):
            raise answer
        return answer


def node_pools(readiness: tuple[bool, ...] = (), **answers: Any) -> tuple[NodePools, Gke]:
    gke = Gke(answers)
    return NodePools(SETTINGS, cast("GkeClient", gke), lambda: 7.0, lambda _: readiness), gke


def listing(*pools: Mapping[str, Any]) -> dict[str, Any]:
    return {"list_node_pools": {"nodePools": list(pools)}}


@pytest.mark.parametrize(
    "readiness, has_ready_nodes, was_created",
    [((), False, False), ((False, False), False, True), ((False, True), True, True)],
)
def test_only_of_a_failed_pool_the_nodes_are_read(
    readiness: tuple[bool, ...], has_ready_nodes: bool, was_created: bool
) -> None:
    provider, gke = node_pools(readiness, **listing(FAILED))
    found = provider.find(WANTED_POOL)
    assert found == replace(
        read_slice(FAILED), has_ready_nodes=has_ready_nodes, was_created=was_created
    )
    assert gke.requests == [("list_node_pools", {"parent": PATH})]
    sound, _ = node_pools(readiness, **listing(MINE))
    assert sound.find(WANTED_POOL) == read_slice(MINE)


@pytest.mark.parametrize("pools", [(), (OTHERS, ELSEWHERE)])
def test_there_may_be_no_pool(pools: tuple[dict[str, Any], ...]) -> None:
    assert node_pools(**listing(*pools))[0].find(WANTED_POOL) is None
    assert node_pools(list_node_pools={})[0].find(WANTED_POOL) is None


def test_a_pool_of_the_name_that_is_not_the_jobs_is_a_conflict() -> None:
    found = node_pools(**listing(labelled(manager=None)))[0].find(WANTED_POOL)
    assert isinstance(found, NameConflict)


@pytest.mark.parametrize(
    "answer, is_found",
    [(MINE, True), (UNMANAGED, False), (ELSEWHERE, False), (GONE, False)],
    ids=["the slice", "not managed", "of another namespace", "gone"],
)
def test_a_pool_by_its_name(answer: Any, is_found: bool) -> None:
    provider, gke = node_pools(get_node_pool=answer)
    assert provider.get("default", "pool-1") == (read_slice(MINE) if is_found else None)
    assert gke.requests == [("get_node_pool", {"name": f"{PATH}/nodePools/pool-1"})]


def test_an_error_of_a_read_is_raised() -> None:
    with pytest.raises(CallError, match="forbidden"):
        node_pools(get_node_pool=REFUSED)[0].get("default", "pool-1")


def test_pools_of_jobsets_are_listed() -> None:
    provider, _ = node_pools((True,), **listing(FAILED, UNMANAGED, ELSEWHERE, OTHERS))
    mine = replace(read_slice(FAILED), has_ready_nodes=True)
    jobset = mine.owner.jobset
    assert provider.list_by_jobset("default", jobset) == [mine]
    assert provider.list_by_jobset("elsewhere", jobset) == [read_slice(ELSEWHERE)]
    others = [read_slice(ELSEWHERE), read_slice(OTHERS)]
    assert list(provider.list_all()) == [mine, *others]
    assert list(provider.list_all(with_nodes=False)) == [read_slice(FAILED), *others]


def test_a_pool_is_created() -> None:
    provider, gke = node_pools(create_node_pool={})
    provider.create(WANTED_POOL)
    assert gke.requests == [("create_node_pool", {"parent": PATH, "nodePool": WANTED_POOL.body})]


DELETES: dict[str, tuple[Any, Any, bool | str]] = {
    "as it was read": ({**MINE, "etag": "1"}, {}, True),
    "changed since it was read": ({**MINE, "etag": "2"}, {}, "has changed since it was read"),
    "without etag": (UNTAGGED, {}, True),
    "without etag, and changed": (
        {**UNTAGGED, "status": "ERROR"},
        {},
        "has changed since it was read",
    ),
    "without etag, and not managed": (
        {**UNMANAGED, "etag": ""},
        {},
        "has changed since it was read",
    ),
    "gone": (GONE, {}, False),
    "gone in between": ({**MINE, "etag": "1"}, GONE, False),
}


@pytest.mark.parametrize("case", DELETES.values(), ids=DELETES)
def test_a_pool_is_deleted_only_as_it_was_read(case: tuple[Any, Any, bool | str]) -> None:
    found, deletion, outcome = case
    provider, gke = node_pools(get_node_pool=found, delete_node_pool=deletion)
    existing = read_slice({**MINE, "etag": "1"})
    if isinstance(outcome, str):
        with pytest.raises(CallError, match=outcome) as raised:
            provider.delete(existing)
        assert raised.value.http == 409
        assert [method for method, _ in gke.requests] == ["get_node_pool"]
        return
    assert provider.delete(existing) is outcome
    assert gke.requests[-1][1] == {"name": f"{PATH}/nodePools/{existing.name}"}
    asked = [method for method, _ in gke.requests]
    assert asked == ["get_node_pool", *(["delete_node_pool"] if found is not GONE else [])]


@pytest.mark.parametrize("etag", ["", "1"])
def test_the_deadline_is_written_to_a_pool_that_is_unchanged(etag: str) -> None:
    provider, gke = node_pools(update_node_pool={})
    existing = read_slice({**UNTAGGED, **({"etag": etag} if etag else {})})
    provider.set_release_deadline(existing, NOW)
    ((method, request),) = gke.requests
    assert (method, request["name"]) == (
        "update_node_pool",
        f"{PATH}/nodePools/{existing.name}",
    )
    assert str(int(NOW.timestamp())) in request["labels"]["labels"].values()
    assert request["etag"] == etag


# Slices that are TPUNodeGroups

WANTED_GROUP = build_desired_slice(group_leader(), options())
OWN = groups.group()
FOREIGN = merge(OWN, {"metadata": {"labels": None}})


def group_slices(**answers: Any) -> tuple[GroupSlices, Reads]:
    reads = Reads(answers)
    return GroupSlices(cast("Cluster", reads), lambda: NOW), reads


def test_the_group_of_a_job_is_found() -> None:
    provider, _ = group_slices(find_group=OWN, get_jobset_options=options())
    found = provider.find(provider.build_desired(group_leader()))
    assert found == replace(groups.read({}), is_selected=True)
    assert provider.get("default", OWN["metadata"]["name"]) == groups.read({})


def test_there_may_be_no_group() -> None:
    provider, _ = group_slices(find_group=None)
    assert provider.find(WANTED_GROUP) is None
    assert provider.get("default", "x") is None


@pytest.mark.parametrize(
    "raw, owner, description",
    [
        (FOREIGN, WANTED_GROUP.owner, "for a JobSet"),
        (
            OWN,
            replace(WANTED_GROUP.owner, job="x"),
            "the TPUNodeGroup of Job train-workers-0 of JobSet train",
        ),
    ],
)
def test_a_group_of_the_name_that_is_not_the_jobs_is_a_conflict(
    raw: Any, owner: Any, description: str
) -> None:
    provider, _ = group_slices(find_group=raw)
    found = provider.find(replace(WANTED_GROUP, owner=owner))
    assert isinstance(found, NameConflict)
    assert found.name == WANTED_GROUP.name
    assert found.description.endswith(description)


def test_a_group_that_is_made_otherwise_does_not_heal_itself() -> None:
    changed = merge(OWN, {"metadata": {"annotations": {TEMPLATE_HASH_ANNOTATION: "x"}}})
    provider, _ = group_slices(find_group=changed)
    found = provider.find(WANTED_GROUP)
    assert found == replace(groups.read({}), is_self_healing=False)


def test_groups_that_are_no_slices_are_left_out() -> None:
    asked: list[tuple[Any, ...]] = []

    def listed(*arguments: Any) -> list[Any]:
        asked.append(arguments)
        return [OWN, FOREIGN]

    provider, _ = group_slices(list_slice_groups=listed)
    assert provider.list_all() == provider.list_by_jobset("default", "train") == [groups.read({})]
    assert asked == [(), ("default", "train")]


@pytest.mark.parametrize(
    "deadline, text", [(NOW, "2026-11-20T10:00:00Z"), (None, None)], ids=["set", "removed"]
)
def test_a_group_is_created_marked_and_deleted(deadline: Any, text: str | None) -> None:
    done: list[tuple[Any, ...]] = []

    def do(*arguments: Any) -> bool:
        done.append(arguments)
        return False

    provider, reads = group_slices(create_group=do, annotate_group=do, delete_group=do)
    existing = replace(groups.read({}), raw=OWN)
    provider.create(WANTED_GROUP)
    provider.set_release_deadline(existing, deadline)
    assert provider.delete(existing) is False
    assert reads.made == ["create_group", "annotate_group", "delete_group"]
    assert done == [
        (WANTED_GROUP.body,),
        (OWN, {"tpu-functions.dev/release-after": text}),
        (OWN,),
    ]
