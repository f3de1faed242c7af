"""Operations and request ids."""

from __future__ import annotations

import re

import pytest

from local.gce import Timings
from local.tests.gce.small_cloud import (
    GROUP,
    POLICY,
    PROJECT,
    REGION,
    TEMPLATE,
    ZONE,
    ZONE_PATH,
    Cloud,
    Document,
    group_body,
    policy_body,
    template_body,
)

POLICIES = POLICY.rpartition("/")[0]
UUID = "b0a1c2d3-0000-4000-8000-000000000001"


def test_an_operation_runs_and_is_done_later(cloud: Cloud) -> None:
    first = cloud.change("POST", POLICIES, policy_body())
    assert (first["status"], first["progress"]) == ("RUNNING", 0)
    assert "endTime" not in first
    cloud.clock.run_for(5)
    last = cloud.operation(first)
    assert (last["status"], last["progress"]) == ("DONE", 100)
    assert last["endTime"] > last["startTime"] == first["insertTime"]


def test_an_operation_has_the_names_that_real_ones_have(cloud: Cloud) -> None:
    operation = cloud.change("POST", POLICIES, policy_body())
    assert re.fullmatch(r"operation-\d{13}-[0-9a-f]{13}-[0-9a-f]{8}-[0-9a-f]{8}", operation["name"])
    assert operation["id"].isdecimal()
    assert operation["targetLink"] == f"https://www.googleapis.com/compute/v1/{POLICY}"
    cloud.clock.run_for(5)
    assert operation["targetId"] == cloud.get(POLICY)["id"]


@pytest.mark.parametrize(
    "path, scope",
    [
        (POLICY, {"region": f"projects/{PROJECT}/regions/{REGION}"}),
        (TEMPLATE, {}),
        (GROUP, {"zone": ZONE_PATH}),
    ],
    ids=["regional", "global", "zonal"],
)
def test_an_operation_names_its_scope_and_no_other(path: str, scope: Document) -> None:
    cloud = Cloud()
    cloud.make_parts()
    cloud.make_group(size=0)
    operation = cloud.change("DELETE", path) if path == GROUP else _make_second(cloud, path)
    found = {key: value for key, value in operation.items() if key in ("zone", "region")}
    assert found == {
        key: f"https://www.googleapis.com/compute/v1/{value}" for key, value in scope.items()
    }


def _make_second(cloud: Cloud, path: str) -> Document:
    body = policy_body() if path == POLICY else template_body()
    return cloud.change("POST", path.rpartition("/")[0], body | {"name": "second"})


@pytest.mark.parametrize(
    "method, path, kind",
    [
        ("POST", POLICIES, "insert"),
        ("POST", TEMPLATE.rpartition("/")[0], "compute.instanceTemplates.insert"),
        ("POST", GROUP.rpartition("/")[0], "insert"),
        ("POST", f"{GROUP}/resize?size=0", "compute.instanceGroupManagers.resize"),
        ("DELETE", GROUP, "delete"),
    ],
)
def test_operation_types_match_those_of_compute_engine(method: str, path: str, kind: str) -> None:
    cloud = Cloud()
    cloud.make_parts()
    bodies = {POLICIES: policy_body(), TEMPLATE.rpartition("/")[0]: template_body()}
    if path.startswith(GROUP):
        cloud.make_group()
    body = bodies.get(path) or (group_body() if path == GROUP.rpartition("/")[0] else None)
    body = body | {"name": "second"} if body else None
    assert cloud.change(method, path, body)["operationType"] == kind


def test_wait_answers_immediately_even_if_the_operation_is_not_done(cloud: Cloud) -> None:
    operation = cloud.change("POST", POLICIES, policy_body())
    client = cloud.client("RegionOperationsClient")
    request = {"project": PROJECT, "region": REGION, "operation": operation["name"]}
    assert client.wait(request).status.name == "RUNNING"
    cloud.clock.run_for(5)
    assert client.wait(request).status.name == "DONE"


def test_operations_are_removed_after_their_retention() -> None:
    cloud = Cloud(Timings(operation_retention_s=3600))
    operation = cloud.settle("POST", POLICIES, policy_body())
    path = operation["selfLink"].partition("/v1/")[2]
    cloud.clock.run_for(3599)
    assert cloud.send("GET", path)[0] == 200
    cloud.clock.run_for(2)
    assert cloud.send("GET", path)[0] == 404


def test_operations_can_be_removed_on_demand(cloud: Cloud) -> None:
    done = cloud.settle("POST", POLICIES, policy_body())
    running = cloud.change("DELETE", POLICY)
    cloud.faults.forget_operations()
    assert cloud.send("GET", done["selfLink"].partition("/v1/")[2])[0] == 404
    assert cloud.operation(running)["status"] == "RUNNING"


def test_the_same_request_id_gives_the_same_operation(cloud: Cloud) -> None:
    path = f"{POLICIES}?requestId={UUID}"
    first = cloud.change("POST", path, policy_body())
    cloud.clock.run_for(5)
    again = cloud.change("POST", path, policy_body())
    assert again["name"] == first["name"]
    assert again["status"] == "DONE"
    assert again["clientOperationId"] == UUID


def test_a_request_id_expires() -> None:
    cloud = Cloud(Timings(request_id_retention_s=60))
    path = f"{POLICIES}?requestId={UUID}"
    cloud.settle("POST", path, policy_body())
    cloud.clock.run_for(61)
    assert cloud.send("POST", path, policy_body())[0] == 409


def test_a_failed_call_does_not_use_its_request_id(cloud: Cloud) -> None:
    path = f"{GROUP.rpartition('/')[0]}?requestId={UUID}"
    assert cloud.send("POST", path, group_body())[0] == 404
    cloud.make_parts()
    assert cloud.send("POST", path, group_body())[0] == 200


def test_a_failed_insert_creates_nothing(cloud: Cloud) -> None:
    cloud.faults.fail_operations("resourcePolicies.insert")
    cloud.settle("POST", POLICIES, policy_body())
    assert cloud.simulator.leftovers() == []
    assert "error" not in cloud.settle("POST", POLICIES, policy_body())


def test_a_failed_delete_deletes_nothing(slice_cloud: Cloud) -> None:
    slice_cloud.make_group()
    slice_cloud.run_until_running(2)
    slice_cloud.faults.fail_operations("*.delete", 1)
    operation = slice_cloud.settle("DELETE", GROUP)
    assert operation["error"]["errors"][0]["code"] == "INTERNAL_ERROR"
    assert len(slice_cloud.vms("RUNNING")) == 2
    assert "error" not in slice_cloud.settle("DELETE", GROUP)


def test_a_resource_cannot_be_read_before_its_insert_is_done(cloud: Cloud) -> None:
    cloud.change("POST", POLICIES, policy_body())
    assert cloud.send("GET", POLICY)[0] == 404
    assert cloud.send("POST", POLICIES, policy_body())[0] == 409
    assert cloud.simulator.leftovers() == [POLICY]


def test_a_resource_can_be_read_until_its_delete_is_done(slice_cloud: Cloud) -> None:
    operation = slice_cloud.change("DELETE", POLICY)
    assert slice_cloud.send("GET", POLICY)[0] == 200
    slice_cloud.clock.run_until(lambda: slice_cloud.operation(operation)["status"] == "DONE", 9)
    assert slice_cloud.send("GET", POLICY)[0] == 404


def test_operations_are_listed_by_scope(slice_cloud: Cloud) -> None:
    zonal = slice_cloud.get(f"projects/{PROJECT}/zones/{ZONE}/operations")
    regional = slice_cloud.get(f"projects/{PROJECT}/regions/{REGION}/operations")
    assert "items" not in zonal
    assert [item["operationType"] for item in regional["items"]] == ["insert"]
