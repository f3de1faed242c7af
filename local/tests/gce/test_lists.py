"""Lists: filters, pages, lag."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from local.gce import Inventory, Timings
from local.tests.gce.small_cloud import GROUP, PROJECT, REGION, ZONE, ZONE_PATH, Cloud

LISTED = f"{ZONE_PATH}/instances"


@pytest.fixture(scope="module")
def fleet() -> Cloud:
    """A project with seven VMs of a MIG labelled ``team=red``."""
    cloud = Cloud(Timings(list_lag_s=(0, 0)))
    cloud.make_parts(labels={"team": "red", "part": "1"})
    cloud.make_group(size=7, bulk=False)
    cloud.run_until_running(7)
    return cloud


def names(cloud: Cloud, **request: object) -> list[str]:
    request = {"project": PROJECT, "zone": ZONE, **request}
    return [vm.name for vm in cloud.client("InstancesClient").list(request)]


@pytest.mark.parametrize(
    "expression, count",
    [
        ("labels.team=red", 7),
        ("labels.team=blue", 0),
        ("labels.team!=red", 0),
        ("labels.team:red", 7),
        ("labels.none:*", 0),
        ("labels.team:*", 7),
        ('labels.team="red" AND labels.part="1"', 7),
        ("labels.team=red AND labels.part=2", 0),
        ("(labels.team = red) (labels.part = 1)", 7),
        ("name eq slice-.*", 7),
        ("name eq slice", 0),
        ("name ne slice-.*", 0),
        ('(name eq "slice-....") AND (status eq RUNNING)', 7),
        ("status=RUNNING", 7),
        ("deletionProtection=false", 7),
    ],
)
def test_a_filter_selects(fleet: Cloud, expression: str, count: int) -> None:
    assert len(names(fleet, filter=expression)) == count


def test_a_filter_selects_by_name(fleet: Cloud) -> None:
    name = names(fleet)[3]
    assert names(fleet, filter=f"name = {name}") == names(fleet, filter=f"name eq {name}") == [name]


def test_pages_contain_every_item_once_in_order(fleet: Cloud) -> None:
    before = fleet.simulator.calls.counts()["instances.list"]
    paged = names(fleet, max_results=3)
    assert paged == sorted(paged) == names(fleet)
    assert fleet.simulator.calls.counts()["instances.list"] == before + 3 + 1


def test_an_empty_list_has_no_items(cloud: Cloud) -> None:
    assert cloud.get(LISTED) == {
        "kind": "compute#instanceList",
        "id": LISTED,
        "selfLink": f"https://www.googleapis.com/compute/v1/{LISTED}",
    }


def test_the_aggregated_list_is_by_zone(fleet: Cloud) -> None:
    client = fleet.client("InstancesClient")
    scopes = dict(client.aggregated_list({"project": PROJECT, "filter": "labels.team=red"}))
    assert list(scopes) == [f"zones/{ZONE}"]
    assert len(scopes[f"zones/{ZONE}"].instances) == 7


@pytest.mark.parametrize(
    "collection, scope",
    [
        ("resourcePolicies", f"regions/{REGION}"),
        ("instanceTemplates", "global"),
        ("instanceGroupManagers", f"zones/{ZONE}"),
    ],
)
def test_the_resources_of_a_slice_are_listed_over_all_locations(
    fleet: Cloud, collection: str, scope: str
) -> None:
    listed = f"projects/{PROJECT}/aggregated/{collection}"
    answer = fleet.get(f"{listed}?filter=name%20eq%20%22sl.*%22")
    assert answer["kind"].endswith("AggregatedList")
    (found,) = answer["items"].items()
    assert (found[0], [one["name"] for one in found[1][collection]]) == (scope, ["slice"])
    assert fleet.get(f"{listed}?filter=name%20eq%20%22tng-.*%22")["items"] == {}


def test_an_aggregated_list_has_a_warning_about_a_hidden_scope() -> None:
    cloud = Cloud()
    cloud.make_parts()
    client, region = cloud.client("ResourcePoliciesClient"), f"regions/{REGION}"
    request = {"project": PROJECT, "filter": "name eq sl.*"}

    def listed() -> list[tuple[str, int, str]]:
        scopes = client.aggregated_list(request)
        return [(one, len(part.resource_policies), part.warning.code) for one, part in scopes]

    cloud.faults.hide_scope(region)
    assert listed() == [(region, 0, "UNREACHABLE")]
    cloud.faults.hide_scope(region, hidden=False)
    assert listed() == [(region, 1, "")]


@pytest.mark.parametrize(
    "collection, expression",
    [
        ("resourcePolicies", "labels.team=red"),
        ("instanceGroupManagers", "(labels.team=red)"),
        ("instances", "(name eq tng-.*) (labels.team=red)"),
        ("instances", "name eq tng-.* AND status=RUNNING"),
    ],
    ids=str,
)
def test_a_filter_by_an_unknown_field_is_an_error(
    fleet: Cloud, collection: str, expression: str
) -> None:
    path = f"projects/{PROJECT}/aggregated/{collection}?filter={quote(expression)}"
    status, answer = fleet.send("GET", path)
    assert (status, answer["error"]["message"]) == (
        400,
        f"Invalid value for field 'filter': '{expression}'. Invalid list filter expression.",
    )


@pytest.mark.parametrize("results, pages", [("PAGELESS", 1), ("PAGINATED", 3)])
def test_managed_instances_are_paged_only_if_the_mig_is_paginated(
    slice_cloud: Cloud, results: str, pages: int
) -> None:
    slice_cloud.make_group(size=5, bulk=False, listManagedInstancesResults=results)
    client = slice_cloud.client("InstanceGroupManagersClient")
    request = {
        "project": PROJECT,
        "zone": ZONE,
        "instance_group_manager": "slice",
        "max_results": 2,
    }
    found = list(client.list_managed_instances(request).pages)
    assert len(found) == pages
    assert sum(len(page.managed_instances) for page in found) == 5


def test_lists_lag_behind_inserts_and_deletes_but_gets_do_not() -> None:
    cloud = Cloud(Timings(list_lag_s=(3, 3), operation_s={"instances.delete": (5, 5)}))
    cloud.make_parts()
    cloud.make_group(size=1, bulk=False)
    name = cloud.managed()[0]["name"]
    assert cloud.send("GET", f"{LISTED}/{name}")[0] == 200
    assert names(cloud) == []
    cloud.run_until_running(1)
    assert names(cloud) == [name]
    cloud.settle("DELETE", f"{LISTED}/{name}")
    assert cloud.send("GET", f"{LISTED}/{name}")[0] == 404
    assert names(cloud) == [name]
    cloud.clock.run_for(3)
    assert names(cloud) == []


def test_list_errors_has_the_latest_first(slice_cloud: Cloud) -> None:
    slice_cloud.faults.set_capacity(ZONE, "ct6e", 0)
    slice_cloud.make_group(size=1, bulk=False)
    slice_cloud.clock.run_for(600)
    items = slice_cloud.get(f"{GROUP}/listErrors")["items"]
    times = [item["timestamp"] for item in items]
    assert len(times) > 2
    assert times == sorted(times, reverse=True)


def test_each_zone_has_the_machine_types_of_the_table() -> None:
    cloud = Cloud()
    listed = cloud.client("MachineTypesClient")

    def zones(name: str) -> list[str]:
        request = {"project": PROJECT, "filter": f'name eq "{name}"'}
        return sorted(s for s, found in listed.aggregated_list(request) if found.machine_types)

    assert zones(".*") == []
    cloud.simulator.restrict(
        Inventory({"us-east5-a": ["ct6e-standard-4t", "n2-*"], "us-east5-b": ["ct6e-standard-4t"]})
    )
    assert zones("ct6e-standard-4t") == ["zones/us-east5-a", "zones/us-east5-b"]
    assert zones("tpu7x-standard-1t") == []
    assert zones("n2-.*") == []
