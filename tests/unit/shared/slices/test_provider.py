"""The slice providers: their requests to GKE and the cluster, and how they read the answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from shared.ports.errors import CallError
from shared.ports.gce.calls import Gce
from shared.ports.gke import GkeClient
from shared.ports.kubernetes.cluster import Cluster
from shared.slices.by_node_group.desired_group import TEMPLATE_HASH_ANNOTATION
from shared.slices.by_node_group.provider import GroupSlices
from shared.slices.by_node_pool.found_pools import older_name, read_slice
from shared.slices.by_node_pool.provider import NodePools
from shared.slices.provider import NameConflict, Slice, SliceState
from tests.support.builders import NOW, merge
from tests.support.compute import instance_group
from tests.support.jobset_objects import options, waiting_pod
from tests.support.reads import Reads
from tests.support.slices import asked, build_first, build_group, build_pool
from tests.unit.shared.slices.by_node_group import objects as groups
from tests.unit.shared.slices.by_node_pool.objects import SETTINGS, labelled, leader, pool

PATH = SETTINGS.cluster_path
DESIRED_POOL = build_pool(*leader(), SETTINGS)
OWN_POOL = pool()
UNMANAGED, ELSEWHERE, OTHERS = (
    {**changed, "name": name}
    for changed, name in (
        (labelled(manager=None), "a"),
        (labelled(namespace="elsewhere"), "b"),
        (labelled(name="other"), "c"),
    )
)
FAILED = {**OWN_POOL, "status": "ERROR"}
UNTAGGED = {key: value for key, value in OWN_POOL.items() if key != "etag"}
GONE = CallError("nodePools.get", 404, "notFound", "not found")
FORBIDDEN = CallError("nodePools.get", 403, "forbidden", "may not")


@dataclass
class Gke:
    """GKE with an answer for each method."""

    answers: Mapping[str, Any]
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    kept: tuple[datetime, dict[str, dict[str, Any]]] | None = None
    slots: threading.Lock = field(default_factory=threading.Lock)

    def call(self, method: str, request: dict[str, Any], remaining_s: Callable[[], float]) -> Any:
        assert remaining_s() == 7.0
        self.requests.append((method, request))
        answer = self.answers[method]
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    def methods(self) -> list[str]:
        return [method.partition("_")[0] for method, _ in self.requests]


def node_pools(readiness: tuple[bool, ...] = (), **answers: Any) -> tuple[NodePools, Gke]:
    gke = Gke(answers)
    client = cast("GkeClient", gke)
    return NodePools(SETTINGS, client, lambda: 7.0, lambda _: readiness, lambda: NOW), gke


def listing(*pools: Mapping[str, Any]) -> dict[str, Any]:
    return {"list_node_pools": {"nodePools": list(pools)}}


@pytest.mark.parametrize(
    "readiness, has_ready_nodes, was_created",
    [((), False, False), ((False, False), False, True), ((False, True), True, True)],
)
def test_nodes_are_read_only_for_a_failed_pool(
    readiness: tuple[bool, ...], has_ready_nodes: bool, was_created: bool
) -> None:
    provider, gke = node_pools(readiness, **listing(FAILED))
    found = provider.find(DESIRED_POOL)
    assert found == replace(
        read_slice(FAILED),
        has_ready_nodes=has_ready_nodes,
        was_created=was_created,
        has_vms=was_created,
    )
    assert gke.requests == [("list_node_pools", {"parent": PATH})]
    healthy, _ = node_pools(readiness, **listing(OWN_POOL))
    assert healthy.find(DESIRED_POOL) == read_slice(OWN_POOL)


OLDER = older_name(DESIRED_POOL.unit)


@pytest.mark.parametrize(
    "pools",
    [(), (OTHERS, ELSEWHERE), ({**UNMANAGED, "name": OLDER},)],
)
def test_a_job_without_a_pool_has_no_slice(pools: tuple[dict[str, Any], ...]) -> None:
    assert node_pools(**listing(*pools))[0].find(DESIRED_POOL) is None
    assert node_pools(list_node_pools={})[0].find(DESIRED_POOL) is None


def test_an_unmanaged_pool_with_the_name_of_the_slice_is_a_conflict() -> None:
    found = node_pools(**listing(labelled(manager=None)))[0].find(DESIRED_POOL)
    assert isinstance(found, NameConflict)


@pytest.mark.parametrize(
    "answer, is_found",
    [(OWN_POOL, True), (UNMANAGED, False), (ELSEWHERE, False), (GONE, False)],
    ids=["the slice", "not managed", "of another namespace", "gone"],
)
def test_a_pool_is_read_by_its_name(answer: Any, is_found: bool) -> None:
    provider, gke = node_pools(get_node_pool=answer)
    assert provider.get("default", "pool-1") == (read_slice(OWN_POOL) if is_found else None)
    assert gke.requests == [("get_node_pool", {"name": f"{PATH}/nodePools/pool-1"})]


def test_an_error_of_a_read_is_raised() -> None:
    with pytest.raises(CallError, match="forbidden"):
        node_pools(get_node_pool=FORBIDDEN)[0].get("default", "pool-1")


def test_pools_of_jobsets_are_listed() -> None:
    provider, _ = node_pools((True,), **listing(FAILED, UNMANAGED, ELSEWHERE, OTHERS))
    own = replace(read_slice(FAILED), has_ready_nodes=True, has_vms=True)
    jobset = own.unit.owner
    assert provider.list_by_owner("JobSet", "default", jobset) == [own]
    assert provider.list_by_owner("JobSet", "elsewhere", jobset) == [read_slice(ELSEWHERE)]
    others = [read_slice(ELSEWHERE), read_slice(OTHERS)]
    assert list(provider.list_all()) == [own, *others]
    assert list(provider.list_all("elsewhere")) == [read_slice(ELSEWHERE)]
    assert list(provider.list_all(with_nodes=False)) == [read_slice(FAILED), *others]


def test_a_pool_is_created() -> None:
    provider, gke = node_pools(create_node_pool={})
    provider.create(DESIRED_POOL)
    assert gke.requests == [("create_node_pool", {"parent": PATH, "nodePool": DESIRED_POOL.body})]


DELETES: dict[str, tuple[Any, Any, bool | str]] = {
    "unchanged": ({**OWN_POOL, "etag": "1"}, {}, True),
    "changed since it was read": ({**OWN_POOL, "etag": "2"}, {}, "has changed since it was read"),
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
    "gone between the calls": ({**OWN_POOL, "etag": "1"}, GONE, False),
}


@pytest.mark.parametrize("case", DELETES.values(), ids=DELETES)
def test_a_pool_is_deleted_only_if_it_is_unchanged_since_it_was_read(
    case: tuple[Any, Any, bool | str],
) -> None:
    found, deletion, outcome = case
    provider, gke = node_pools(get_node_pool=found, delete_node_pool=deletion)
    existing = read_slice({**OWN_POOL, "etag": "1"})
    if isinstance(outcome, str):
        with pytest.raises(CallError, match=outcome) as raised:
            provider.delete(existing)
        assert raised.value.http == 409
        assert [method for method, _ in gke.requests] == ["get_node_pool"]
        return
    assert provider.delete(existing) is outcome
    assert gke.requests[-1][1] == {"name": f"{PATH}/nodePools/{existing.name}"}
    methods = [method for method, _ in gke.requests]
    assert methods == ["get_node_pool", *(["delete_node_pool"] if found is not GONE else [])]


@pytest.mark.parametrize("etag", ["", "1"])
def test_the_release_deadline_is_written_with_the_etag_of_the_pool(etag: str) -> None:
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


# The kept list


def invocation(gke: Gke, after_s: float = 0.0, **options: bool) -> NodePools:
    """The provider of an invocation of one process, so many seconds after the first."""
    client, now = cast("GkeClient", gke), NOW + timedelta(seconds=after_s)
    return NodePools(SETTINGS, client, lambda: 7.0, lambda _: (), lambda: now, **options)


def read_all(provider: NodePools) -> None:
    assert provider.find(DESIRED_POOL) == read_slice(OWN_POOL)
    assert provider.list_by_owner("JobSet", "default", DESIRED_POOL.unit.owner)
    assert provider.get("default", OWN_POOL["name"]) == read_slice(OWN_POOL)


@pytest.mark.parametrize(
    "after_s, uses_kept, lists", [(5.0, True, 1), (5.1, True, 2), (0.0, False, 2)]
)
def test_a_list_is_used_again_for_five_seconds_by_invocations_that_may(
    after_s: float, uses_kept: bool, lists: int
) -> None:
    gke = Gke(listing(OWN_POOL, OTHERS))
    read_all(invocation(gke))
    read_all(invocation(gke, after_s, uses_kept=uses_kept))
    assert gke.methods() == ["list"] * lists


def test_all_pools_are_never_read_from_a_list_of_before() -> None:
    gke = Gke(listing(OWN_POOL))
    for _ in range(2):
        assert list(invocation(gke, uses_kept=True).list_all()) == [read_slice(OWN_POOL)]
    assert gke.methods() == ["list"] * 2


def test_what_this_process_has_begun_is_in_the_kept_list() -> None:
    gke = Gke({**listing(OWN_POOL), "get_node_pool": OWN_POOL, "delete_node_pool": {}})
    first = invocation(gke)
    existing = first.find(DESIRED_POOL)
    assert isinstance(existing, Slice)
    assert first.delete(existing)
    (later,) = invocation(gke, uses_kept=True).list_by_owner(
        "JobSet", "default", existing.unit.owner
    )
    assert (later.state, gke.methods()) == (SliceState.DELETING, ["list", "get", "delete"])
    assert invocation(gke, uses_kept=True).find(DESIRED_POOL) == existing, "it may be gone by now"
    assert gke.methods()[3:] == ["list"]


def test_the_kept_list_is_not_used_after_a_rejected_change() -> None:
    gke = Gke({**listing(), "create_node_pool": CallError("nodePools.create", 409, "", "exists")})
    provider = invocation(gke)
    assert provider.find(DESIRED_POOL) is None
    with pytest.raises(CallError, match="exists"):
        provider.create(DESIRED_POOL)
    assert provider.find(DESIRED_POOL) is None
    assert gke.methods() == ["list", "create", "list"]


CHANGING = [
    {**changed, "name": f"changing-{status}-{number}", "status": status}
    for status, changed, count in (
        ("PROVISIONING", OTHERS, 2),
        ("RECONCILING", UNMANAGED, 1),
        ("STOPPING", UNMANAGED, 2),
    )
    for number in range(count)
]


@pytest.mark.parametrize(
    "pools, after_s, checks_slots, is_tried",
    [
        (CHANGING, 0.0, True, False),
        (CHANGING[:4], 0.0, True, True),
        (CHANGING, 0.0, False, True),
        (CHANGING, 5.1, True, True),
    ],
    ids=["no free slot", "a free slot", "selected for a slot", "no recent list"],
)
def test_a_change_is_tried_unless_a_recent_list_has_no_slot_for_it(
    pools: list[dict[str, Any]], after_s: float, checks_slots: bool, is_tried: bool
) -> None:
    answers = {"create_node_pool": {}, "get_node_pool": GONE}
    gke = Gke({**listing(OWN_POOL, *pools), **answers})
    invocation(gke).find(DESIRED_POOL)
    changes: tuple[Callable[[NodePools], object], ...] = (
        lambda one: one.create(DESIRED_POOL),
        lambda one: one.delete(read_slice(OWN_POOL)),
    )
    for change in changes:
        gke.requests.clear()
        given = invocation(gke, after_s, uses_kept=True, checks_slots=checks_slots)
        if is_tried:
            change(given)
            gke.kept = (NOW, {one["name"]: one for one in (OWN_POOL, *pools)})
        else:
            with pytest.raises(CallError, match="429 rateLimitExceeded: 5 node pools are being"):
                change(given)
        assert bool(gke.requests) is is_tried


class Guarded(dict[str, dict[str, Any]]):
    """A kept list whose slots are counted only by one request at a time."""

    lock: threading.Lock

    def values(self) -> Any:
        assert self.lock.locked()
        return super().values()


def test_requests_at_the_same_time_share_the_free_slots() -> None:
    may_answer = threading.Event()
    gke = Gke({**listing(), "create_node_pool": lambda: {"": may_answer.wait(30)}})
    gke.kept = (NOW, Guarded({OTHERS["name"]: OTHERS}))
    Guarded.lock = gke.slots

    def create(number: int) -> None:
        desired = replace(DESIRED_POOL, name=f"pool-{number}")
        invocation(gke, uses_kept=True, checks_slots=True).create(desired)

    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(create, number) for number in range(8)]
        rejected = 0
        while rejected < 3:
            done, pending = wait(futures, 30, FIRST_EXCEPTION)
            assert done, "no request was rejected"
            rejected, futures = rejected + len(done), [*pending]
        may_answer.set()
    assert gke.methods() == ["create"] * 5
    assert [one.exception() for one in futures] == [None] * 5


# Slices that are TPUNodeGroups

DESIRED_GROUP = build_group(*asked(waiting_pod()), options())
OWN = groups.group()
FOREIGN = merge(OWN, {"metadata": {"labels": None}})


def group_slices(**answers: Any) -> tuple[GroupSlices, Reads]:
    reads = Reads(answers)
    return GroupSlices(cast("Cluster", reads), cast("Gce", reads), lambda: NOW), reads


def test_the_group_of_a_job_is_found() -> None:
    provider, _ = group_slices(find_group=OWN, get_jobset_options=options())
    found = provider.find(build_first(provider, *asked(waiting_pod())))
    assert found == replace(groups.read({}), is_selected=True)
    assert provider.get("default", OWN["metadata"]["name"]) == groups.read({})


@pytest.mark.parametrize(
    "found, has_vm",
    [
        (None, False),
        (instance_group(target_size=4, missing=4), False),
        (instance_group(target_size=4, missing=3), True),
        (instance_group(target_size=4), True),  # unknown
    ],
)
def test_a_group_that_waits_has_a_vm_unless_its_mig_says_that_all_are_missing(
    found: Any, has_vm: bool
) -> None:
    status = {"resources": {"managedInstanceGroup": {"name": "tng-x", "state": "Ready"}}}
    provider, reads = group_slices(find_mig=found)
    assert provider.has_vm(groups.read({"status": status})) is has_vm
    assert reads.calls == ["find_mig"]


def test_a_job_without_a_group_has_no_slice() -> None:
    provider, _ = group_slices(find_group=None)
    assert provider.find(DESIRED_GROUP) is None
    assert provider.get("default", "x") is None


@pytest.mark.parametrize(
    "raw, owner, description",
    [
        (FOREIGN, DESIRED_GROUP.unit, "for a workload"),
        (
            OWN,
            replace(DESIRED_GROUP.unit, member="x"),
            "the TPUNodeGroup of Job train-workers-0 of JobSet train",
        ),
    ],
)
def test_a_group_of_another_owner_with_the_name_of_the_slice_is_a_conflict(
    raw: Any, owner: Any, description: str
) -> None:
    provider, _ = group_slices(find_group=raw)
    found = provider.find(replace(DESIRED_GROUP, unit=owner))
    assert isinstance(found, NameConflict)
    assert found.name == DESIRED_GROUP.name
    assert found.description.endswith(description)


def test_a_group_with_another_template_hash_is_not_self_healing() -> None:
    changed = merge(OWN, {"metadata": {"annotations": {TEMPLATE_HASH_ANNOTATION: "x"}}})
    provider, _ = group_slices(find_group=changed)
    found = provider.find(DESIRED_GROUP)
    assert found == replace(groups.read({}), is_self_healing=False)


def test_groups_that_are_no_slices_are_not_listed() -> None:
    calls: list[tuple[Any, ...]] = []

    def listed(*arguments: Any) -> list[Any]:
        calls.append(arguments)
        return [OWN, FOREIGN]

    provider, _ = group_slices(list_slice_groups=listed)
    assert provider.list_all() == [groups.read({})]
    assert provider.list_by_owner("JobSet", "default", "train") == [groups.read({})]
    assert provider.list_all("default") == [groups.read({})]
    assert calls == [("",), ("default", "train"), ("default",)]


@pytest.mark.parametrize(
    "deadline, text", [(NOW, "2026-11-20T10:00:00Z"), (None, None)], ids=["set", "removed"]
)
def test_a_group_is_created_annotated_and_deleted(deadline: Any, text: str | None) -> None:
    calls: list[tuple[Any, ...]] = []

    def record(*arguments: Any) -> bool:
        calls.append(arguments)
        return False

    provider, reads = group_slices(create_group=record, annotate_group=record, delete_group=record)
    existing = replace(groups.read({}), raw=OWN)
    provider.create(DESIRED_GROUP)
    provider.set_release_deadline(existing, deadline)
    assert provider.delete(existing) is False
    assert reads.calls == ["create_group", "annotate_group", "delete_group"]
    assert calls == [
        (DESIRED_GROUP.body,),
        (OWN, {"tpu-functions.dev/release-after": text}),
        (OWN,),
    ]
