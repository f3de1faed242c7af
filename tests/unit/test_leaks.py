"""Which resources are a leaked slice, and what is said of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shared.node_groups.leaks import (
    MIGS,
    POLICIES,
    TEMPLATES,
    Leak,
    find_leaks,
    render_commands,
    render_message,
)
from shared.ports.gce.values import ListedResource
from tests.unit.builders import CLUSTER, NOW, group

GROUP = group()
DAY = timedelta(days=1)
PLACES = {MIGS: "us-central1-c", TEMPLATES: "", POLICIES: "us-central1"}


def listed(
    service: str = MIGS, description: str = GROUP.mark, age: timedelta = DAY, project: str = "p"
) -> ListedResource:
    """A resource of the group, changed."""
    name = GROUP.resource_name
    return ListedResource(project, service, PLACES[service], name, description, NOW - age)


def test_the_mark_that_groups_write_is_the_mark_that_is_read() -> None:
    (leak,) = find_leaks([listed()], (), CLUSTER, NOW)
    assert (leak.group, leak.uid, leak.name) == (GROUP.key, GROUP.uid, GROUP.resource_name)


NOT_LEAKED = {
    "its group is there": ([listed()], {GROUP.uid}, CLUSTER),
    "another cluster's": ([listed()], set(), "another"),
    "no mark": ([listed(description="")], set(), CLUSTER),
    "a mark and more": ([listed(description=f"{GROUP.mark} keep")], set(), CLUSTER),
    "a person's words": ([listed(description=f"copy of {GROUP.mark}")], set(), CLUSTER),
    "young": ([listed(age=timedelta(minutes=59))], set(), CLUSTER),
}


@pytest.mark.parametrize("case", NOT_LEAKED)
def test_what_is_no_leak(case: str) -> None:
    resources, uids, cluster = NOT_LEAKED[case]
    assert find_leaks(resources, uids, cluster, NOW) == ()


def test_a_slice_is_as_old_as_its_oldest_resource() -> None:
    young = listed(MIGS, age=timedelta())
    (leak,) = find_leaks([young, listed(TEMPLATES, age=timedelta(hours=1))], (), CLUSTER, NOW)
    assert [one.service for one in leak.resources] == [MIGS, TEMPLATES]


def test_slices_of_two_projects_are_two_and_the_oldest_is_first() -> None:
    found = find_leaks(
        [listed(), listed(project="q", age=2 * DAY), listed(TEMPLATES)], (), CLUSTER, NOW
    )
    assert [(leak.project, len(leak.resources)) for leak in found] == [("q", 1), ("p", 2)]


def test_the_commands_delete_the_mig_first_and_each_where_it_is() -> None:
    every = [listed(POLICIES), listed(TEMPLATES), listed(MIGS)]
    (leak,) = find_leaks(every, (), CLUSTER, NOW)
    name = GROUP.resource_name
    assert render_commands(leak) == (
        f"gcloud compute instance-groups managed delete {name} --zone=us-central1-c --project=p",
        f"gcloud compute instance-templates delete {name} --project=p",
        f"gcloud compute resource-policies delete {name} --region=us-central1 --project=p",
    )


def message(vms: int) -> str:
    names = tuple(f"vm-{number}" for number in range(vms))
    return render_message(Leak("p", GROUP.key, GROUP.uid, (listed(),), names))


def test_the_message_names_what_is_left_and_what_to_do() -> None:
    name = GROUP.resource_name
    assert message(2) == (
        f"TPUNodeGroup {GROUP.key} (uid {GROUP.uid}) is gone, and project p still has its managed "
        f"instance group {name} with 2 VMs (vm-0, vm-1). They stay until you delete them, and running "
        "VMs are billed. To delete them, run in this order: gcloud compute instance-groups managed "
        f"delete {name} --zone=us-central1-c --project=p"
    )
    assert f"managed instance group {name}. They stay" in message(0)
    assert "with 2304 VMs (vm-0, " in message(2304)
    assert ", vm-15 and 2288 more). They stay" in message(2304)
