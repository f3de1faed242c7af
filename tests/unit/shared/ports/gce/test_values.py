"""The values that are parsed from Compute Engine's answers."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import compute_v1

from shared.ports.gce import values
from shared.ports.gce.values import GceError, ListedResource, Operation

HOST = "https://www.googleapis.com/compute/v1/"


@pytest.mark.parametrize(
    "link, location, name",
    [
        ("projects/p/zones/z/instanceGroupManagers/tng-a", "z", "tng-a"),
        ("projects/p/regions/r/resourcePolicies/tng-a", "r", "tng-a"),
        ("projects/p/global/instanceTemplates/tng-a", "", "tng-a"),
        ("projects/p/regions/r/instanceTemplates/tng-a", "r", "tng-a"),
    ],
)
@pytest.mark.parametrize("host", ["", HOST])
def test_the_link_of_a_resource_has_project_location_and_name(
    link: str, location: str, name: str, host: str
) -> None:
    found = compute_v1.InstanceTemplate(self_link=host + link, description="words")
    assert values.parse_listed("a_service", found) == ListedResource(
        "p", "a_service", location, name, "words", None
    )


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"name": "vm-1", "instance": f"{HOST}projects/p/zones/z/instances/vm-2"}, "vm-1"),
        ({"instance": f"{HOST}projects/p/zones/z/instances/vm-2"}, "vm-2"),
        ({}, ""),
    ],
)
def test_the_name_of_a_managed_instance_is_its_name_or_is_read_from_its_link(
    fields: dict[str, Any], name: str
) -> None:
    error: Any = {"code": "QUOTA_EXCEEDED", "message": "no"}
    found = compute_v1.ManagedInstance(
        instance_status="RUNNING", last_attempt={"errors": {"errors": [error]}}, **fields
    )
    assert values.parse_managed_instance(found) == values.ManagedInstance(
        name, "RUNNING", (GceError("QUOTA_EXCEEDED", "no"),)
    )


ERRORS: Any = {"errors": [{"code": "A", "message": "first"}, {"code": "B", "message": "second"}]}


@pytest.mark.parametrize(
    "fields, operation",
    [
        ({"status": "RUNNING"}, Operation("op", False)),
        ({"status": "PENDING"}, Operation("op", False)),
        ({"status": "DONE"}, Operation("op", True)),
        (
            {"status": "DONE", "error": ERRORS, "http_error_status_code": 403},
            Operation("op", True, GceError("A", "first", 403)),
        ),
    ],
)
def test_an_operation_is_running_or_done_or_has_its_first_error(
    fields: dict[str, Any], operation: Operation
) -> None:
    assert values.parse_operation(compute_v1.Operation(name="op", **fields)) == operation


def test_vms_that_a_mig_creates_with_and_without_retries_are_counted_together() -> None:
    status: Any = {"current_instance_statuses": {"non_existent": 2, "running": 7}}
    actions: Any = {"creating": 2, "creating_without_retries": 3, "recreating": 4, "none": 5}
    found = compute_v1.InstanceGroupManager(
        self_link=f"{HOST}projects/p/zones/z/instanceGroupManagers/g",
        description="mark",
        target_size=9,
        current_actions=actions,
        status=status,
    )
    assert values.parse_mig(found) == values.Mig(
        uri="projects/p/zones/z/instanceGroupManagers/g",
        description="mark",
        target_size=9,
        creating=5,
        is_bulk_in_progress=False,
        recreating=4,
        missing=2,
    )
    assert values.parse_mig(compute_v1.InstanceGroupManager()).missing is None


def warning(code: str, *scopes: str) -> Any:
    return {"code": code, "data": [{"key": "scope", "value": scope} for scope in scopes]}


@pytest.mark.parametrize(
    "page, unseen",
    [
        ({}, []),
        ({"warning": warning("NO_RESULTS_ON_PAGE")}, []),
        ({"items": {"zones/a": {"warning": warning("NO_RESULTS_ON_PAGE", "zones/a")}}}, []),
        ({"items": {"zones/a": {"warning": warning("UNREACHABLE")}}}, ["zones/a (UNREACHABLE)"]),
        ({"warning": warning("UNREACHABLE", "zones/a")}, ["zones/a (UNREACHABLE)"]),
        ({"warning": warning("PARTIAL_SUCCESS")}, ["some scopes (PARTIAL_SUCCESS)"]),
        ({"unreachables": ["zones/a"]}, ["zones/a (UNREACHABLE)"]),
        ({"unreachables": [f"{HOST}projects/p/zones/a"]}, ["zones/a (UNREACHABLE)"]),
    ],
)
def test_a_page_of_an_aggregated_list_says_which_scopes_it_lacks(
    page: dict[str, Any], unseen: list[str]
) -> None:
    kinds = [compute_v1.InstanceGroupManagerAggregatedList, compute_v1.ResourcePolicyAggregatedList]
    if "unreachables" not in page:
        kinds.append(compute_v1.InstanceTemplateAggregatedList)
    for kind in kinds:
        assert list(values.find_unseen(kind(page))) == unseen
