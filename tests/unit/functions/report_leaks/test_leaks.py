"""Finding leaked slices, and the message about each of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from functions.report_leaks.idle import TpuNode
from functions.report_leaks.leaks import (
    MIG_SERVICE,
    POLICY_SERVICE,
    TEMPLATE_SERVICE,
    Leak,
    Places,
    find_leaks,
    find_pools_without_labels,
    list_places,
    render_message,
)
from shared.base.names import POOL_LABEL, RESOURCE_NAME_LABEL
from shared.ports.gce.values import ListedResource
from tests.support.builders import CLUSTER, NOW, group, raw_group

GROUP = group()
DAY = timedelta(days=1)
LOCATIONS = {MIG_SERVICE: "us-central1-c", TEMPLATE_SERVICE: "", POLICY_SERVICE: "us-central1"}


def listed(
    service: str = MIG_SERVICE,
    description: str = GROUP.mark,
    age: timedelta = DAY,
    project: str = "p",
) -> ListedResource:
    """Return a resource of the group, with changes."""
    name = GROUP.resource_name
    return ListedResource(project, service, LOCATIONS[service], name, description, NOW - age)


def test_the_ownership_mark_of_a_group_is_parsed_back() -> None:
    (leak,) = find_leaks([listed()], {}, CLUSTER, NOW)
    assert (leak.group, leak.uid, leak.name) == (GROUP.key, GROUP.uid, GROUP.resource_name)


NOT_LEAKED: dict[str, tuple[list[ListedResource], dict[str, Places], str]] = {
    "its group exists": ([listed()], {GROUP.uid: {("p", LOCATIONS[MIG_SERVICE])}}, CLUSTER),
    "its group exists, and its place is not known": ([listed()], {GROUP.uid: ()}, CLUSTER),
    "the mark of another cluster": ([listed()], {}, "another"),
    "no mark": ([listed(description="")], {}, CLUSTER),
    "a mark followed by text": ([listed(description=f"{GROUP.mark} keep")], {}, CLUSTER),
    "a mark preceded by text": ([listed(description=f"copy of {GROUP.mark}")], {}, CLUSTER),
    "less than an hour old": ([listed(age=timedelta(minutes=59))], {}, CLUSTER),
}


@pytest.mark.parametrize("case", NOT_LEAKED)
def test_such_a_resource_is_not_reported_as_leaked(case: str) -> None:
    resources, groups, cluster = NOT_LEAKED[case]
    assert find_leaks(resources, groups, cluster, NOW) == ()


OF_ANOTHER_ID = replace(GROUP, cluster="another")
RENAMED: dict[str, ListedResource] = {
    "made with another id of the cluster": replace(
        listed(description=OF_ANOTHER_ID.mark), name=OF_ANOTHER_ID.resource_name
    ),
    "with a name that does not follow from its mark": replace(listed(), name="tng-my-slice-0"),
}


@pytest.mark.parametrize("case", RENAMED)
def test_a_second_slice_of_a_group_is_leaked(case: str) -> None:
    groups: dict[str, Places] = {GROUP.uid: {("p", LOCATIONS[MIG_SERVICE])}}
    found = find_leaks([listed(), RENAMED[case]], groups, CLUSTER, NOW)
    assert [[one.name for one in leak.resources] for leak in found] == [[RENAMED[case].name]]


def test_a_slice_is_as_old_as_its_oldest_resource() -> None:
    young = listed(MIG_SERVICE, age=timedelta())
    (leak,) = find_leaks(
        [young, listed(TEMPLATE_SERVICE, age=timedelta(hours=1))], {}, CLUSTER, NOW
    )
    assert [one.service for one in leak.resources] == [MIG_SERVICE, TEMPLATE_SERVICE]


def test_slices_of_two_projects_are_listed_separately_the_oldest_first() -> None:
    found = find_leaks(
        [listed(), listed(project="q", age=2 * DAY), listed(TEMPLATE_SERVICE)], {}, CLUSTER, NOW
    )
    assert [(leak.project, len(leak.resources)) for leak in found] == [("q", 1), ("p", 2)]


def test_slices_that_may_have_vms_come_before_older_leftovers() -> None:
    """Only so many are reported at a time."""
    policy = replace(
        listed(POLICY_SERVICE, age=2 * DAY), description=GROUP.mark.replace(GROUP.uid, "old")
    )
    found = find_leaks([policy, listed()], {}, CLUSTER, NOW)
    assert [leak.uid for leak in found] == [GROUP.uid, "old"]


def message(vms: int) -> str:
    names = tuple(f"vm-{number}" for number in range(vms))
    return render_message(Leak("p", GROUP.key, GROUP.uid, (listed(),), names))


def test_the_message_names_the_resources() -> None:
    name = GROUP.resource_name
    assert message(2) == (
        f"TPUNodeGroup {GROUP.key} (uid {GROUP.uid}) or its finalizer is gone, or its slice has "
        f"another name or place, and project p still has its managed instance group {name} with 2 VMs "
        "(vm-0, vm-1). They stay until you delete them, and running VMs are billed."
    )
    assert f"managed instance group {name}. They stay" in message(0)
    assert "with 2304 VMs (vm-0, " in message(2304)
    assert ", vm-15 and 2288 more). They stay" in message(2304)


MIG_URI = f"projects/my-gcp-project/zones/us-central1-c/instanceGroupManagers/{GROUP.resource_name}"
ENTRY = {"name": GROUP.resource_name, "uri": MIG_URI}
RECORDED = {"resources": {"managedInstanceGroup": ENTRY}}


@pytest.mark.parametrize(
    "change, status, is_leaked",
    [
        pytest.param({}, {}, False, id="where the spec says"),
        pytest.param({"nodeLocation": "us-east5-b"}, {}, True, id="where the spec does not say"),
        pytest.param({"nodeLocation": "us-east5-b"}, RECORDED, False, id="where the status says"),
        pytest.param({"nodeLocation": None}, {}, False, id="the spec cannot be read"),
    ],
)
def test_a_resource_in_another_place_than_its_group_is_leaked(
    change: dict[str, Any], status: dict[str, Any], is_leaked: bool
) -> None:
    raw = raw_group(change=change, status=status)
    mig = replace(listed(project="my-gcp-project"), location="us-central1-c")
    found = find_leaks([mig], {GROUP.uid: list_places(raw, CLUSTER)}, CLUSTER, NOW)
    assert bool(found) is is_leaked


POOL = "train-bfcf5ebea76efcf5"
LABELS = {
    "google.com/nodepool-manager": "tpu-provisioner",
    "google.com/tpu-provisioner-jobset-name": "train",
}


def node(
    labels: dict[str, str] | None = None,
    pool: str = POOL,
    chips: int = 4,
    minutes: float | None = 60,
) -> TpuNode:
    created = None if minutes is None else NOW - timedelta(minutes=minutes)
    return TpuNode("n", {POOL_LABEL: pool, **(labels or {})}, chips, created, {})


POOLS: dict[str, tuple[list[TpuNode], tuple[str, ...]]] = {
    "without any label of ours": ([node()], (POOL,)),
    "without the owner": ([node({"google.com/nodepool-manager": "tpu-provisioner"})], (POOL,)),
    "with a new Node, too": ([node(minutes=1), node()], (POOL,)),
    "of two slices": ([node(), node(pool="a-0123456789abcdef")], ("a-0123456789abcdef", POOL)),
    "with its labels": ([node(LABELS)], ()),
    "with its labels, but for a Node from which somebody has removed them": (
        [node(), node(LABELS)],
        (),
    ),
    "with new Nodes only": ([node(minutes=59)], ()),
    "with a Node of an unknown age": ([node(minutes=None)], ()),
    "without TPUs": ([node(chips=0)], ()),
    "with another name": ([node(pool="train-workers-bfcf5")], ()),
    "of a TPUNodeGroup that was created for a workload": (
        [node({RESOURCE_NAME_LABEL: "tng-a"})],
        (),
    ),
    "no node pool": ([TpuNode("n", {}, 4, NOW - DAY, {})], ()),
}


@pytest.mark.parametrize("case", POOLS.values(), ids=POOLS)
def test_a_node_pool_with_the_name_of_a_slice_has_lost_its_labels(
    case: tuple[list[TpuNode], tuple[str, ...]],
) -> None:
    nodes, expected = case
    assert find_pools_without_labels(nodes, NOW) == expected
