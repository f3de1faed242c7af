"""A slice whose group is gone is reported once an hour."""

from __future__ import annotations

from typing import Any

import pytest

from local.cloud.simulation import PROJECT
from local.gce import Principal
from shared.ports.gce import calls as gce_calls
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME, REGION, ZONE
from tests.support.harness import Harness
from tests.support.manifests import manifest

LEAKED = "report_leaks: LeakedSlice"


def errors(harness: Harness) -> list[dict[str, Any]]:
    """The lines about leaked slices so far."""
    return [line for line in harness.log.lines if line["message"] == LEAKED]


def runs(harness: Harness) -> list[dict[str, Any]]:
    """The log lines of the step's invocations."""
    lines = [line for line in harness.log.lines if line["message"].startswith("report_leaks: ")]
    return [line for line in lines if line["decision"] not in ("LeakedSlice", "IdleSlice")]


def force_delete(harness: Harness, name: str = NAME) -> None:
    """Delete the group and remove its finalizer, as a user would."""
    harness.delete(name)
    helpers.patch(harness, helpers.group_path(name), {"metadata": {"finalizers": []}})
    assert harness.group(name) is None


def force_deleted(**change: Any) -> tuple[Harness, str]:
    """A simulation with a slice whose group is gone, and the name of its resources."""
    harness = helpers.ready(manifest(**change))
    name = helpers.resource_name(harness)
    force_delete(harness)
    return harness, name


def test_a_slice_whose_finalizer_was_removed_is_reported_with_all_that_is_left() -> None:
    harness, name = force_deleted()
    vms = sorted(helpers.vm_name(vm) for vm in helpers.vms(harness))
    harness.run_for(2 * HOUR)
    line = errors(harness)[0]
    assert line["severity"] == "ERROR"
    assert (line["decision"], line["slice"], line["project"]) == ("LeakedSlice", name, PROJECT)
    assert (line["group"], line["vms"]) == (f"default/{NAME}", 2)
    assert line["note"].endswith(
        f"or its finalizer is gone, or its slice has another name or place, and project "
        f"{PROJECT} still has its managed instance group {name} "
        f"with 2 VMs ({', '.join(vms)}), instance template {name}, workload policy {name}. They stay "
        "until you delete them, and running VMs are billed. To see the commands that delete them: "
        "kubectl tng leaks"
    )


def test_it_is_reported_each_hour_until_it_is_deleted_and_nothing_is_deleted_by_itself() -> None:
    harness, name = force_deleted()
    left = harness.simulation.gce.leftovers()
    harness.run_for(4 * HOUR)
    assert 3 <= len(errors(harness)) <= 4, "once an hour, if the leak is an hour old"
    assert harness.simulation.gce.leftovers() == left
    harness.simulation.gce.faults.act_as_user("DELETE", f"{ZONE}/instanceGroupManagers/{name}")
    harness.run_for(10 * MINUTE)
    for path in (
        f"projects/{PROJECT}/global/instanceTemplates/{name}",
        f"{REGION}/resourcePolicies/{name}",
    ):
        harness.simulation.gce.faults.act_as_user("DELETE", path)
    for node in helpers.nodes(harness):
        harness.simulation.admin("DELETE", f"/api/v1/nodes/{node}")
    harness.run_for(MINUTE)
    reported = len(errors(harness))
    harness.run_for(3 * HOUR)
    assert len(errors(harness)) == reported
    assert runs(harness)[-1]["decision"] == "NoLeaks"


def test_an_existing_group_is_never_reported_as_leaked() -> None:
    harness = helpers.ready()
    harness.run_for(3 * HOUR)
    harness.simulation.gce.faults.fail_next("instanceGroupManagers.delete", calls=20, http=503)
    harness.delete(NAME)
    harness.run_for(3 * HOUR)
    helpers.until_gone(harness, timeout=24 * HOUR)
    harness.run_for(2 * HOUR)
    assert errors(harness) == []
    assert {line["decision"] for line in runs(harness)} == {"NoLeaks"}
    assert harness.leftovers() == []


@pytest.mark.parametrize(
    "description",
    [
        "tpu-functions cluster=another group=default/my-slice uid=u",
        "tpu-functions cluster={cluster} group=default/my-slice",
        "mine",
    ],
)
def test_resources_without_this_clusters_mark_are_not_reported(description: str) -> None:
    harness = Harness()
    found = harness.simulation.admin("GET", "/api/v1/namespaces/kube-system")
    mark = description.format(cluster=found["metadata"]["uid"])
    body = {
        "name": "tng-my-slice-12345678",
        "description": mark,
        "workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "2x2x2"},
    }
    harness.simulation.gce.faults.act_as_user("POST", f"{REGION}/resourcePolicies", body)
    harness.run_for(3 * HOUR)
    assert len(runs(harness)) == 3
    assert errors(harness) == []


@pytest.mark.parametrize("hosts, topology", [(2, "2x2x2"), (16, "4x4x4")])
def test_a_run_costs_three_lists_and_a_leak_few_calls_more(
    hosts: int, topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gce_calls, "PAGE_SIZE", 6)
    harness = helpers.ready(manifest(nodeCount=hosts, topology=topology))
    harness.run_for(2 * HOUR)
    idle = hosts + 1 if hosts <= 9 else 3  # the Pods of each Node, or of one and a list; an Event
    assert runs(harness)[-1]["calls"] == {"gce": 3, "kubernetes": 2 + idle}
    force_delete(harness)
    harness.run_for(2 * HOUR)
    assert runs(harness)[-1]["calls"] == {"gce": 3 + 3 + 1, "kubernetes": 2}
    assert errors(harness)[-1]["vms"] == hosts


def test_a_step_without_permission_to_list_reports_it_once_an_hour() -> None:
    powerless = Principal("report-leaks@example.com", frozenset())
    harness = Harness(callers={"report_leaks": powerless})
    harness.run_for(2 * HOUR)
    lines = runs(harness)
    assert [(one["severity"], one["decision"]) for one in lines] == [("WARNING", "NotAllSeen")] * 2
    assert lines[0]["note"].startswith(f"Not seen: project {PROJECT}; instance_group_managers.")
    assert "compute.instanceGroupManagers.list" in lines[0]["note"]


def test_a_list_without_an_unreachable_zone_is_not_reported_as_one_without_leaks() -> None:
    harness, name = force_deleted()
    zone, region = "zones/us-central1-c", "regions/us-central1"
    for scope in (zone, region):
        harness.simulation.gce.faults.hide_scope(scope)
    unseen = ", ".join(f"{scope} (UNREACHABLE) of project {PROJECT}" for scope in (region, zone))
    harness.run_for(2 * HOUR)
    assert (errors(harness)[-1]["slice"], errors(harness)[-1]["vms"]) == (name, 0)
    assert (runs(harness)[-1]["severity"], runs(harness)[-1]["note"]) == (
        "WARNING", f"Not seen: {unseen}",
    )  # fmt: skip
    for scope in (zone, region):
        harness.simulation.gce.faults.hide_scope(scope, hidden=False)
    harness.run_for(HOUR)
    assert errors(harness)[-1]["vms"] == 2


def test_a_slice_whose_finalizer_was_removed_while_another_one_keeps_the_group_is_reported() -> (
    None
):
    harness = helpers.ready()
    name = helpers.resource_name(harness)
    both = ["example.com/keeps", "tpu-functions.dev/cleanup"]
    helpers.patch(harness, helpers.group_path(), {"metadata": {"finalizers": both}})
    harness.run_for(2 * HOUR)
    assert errors(harness) == []
    harness.simulation.pubsub.begin_outage()
    harness.delete(NAME)
    helpers.patch(harness, helpers.group_path(), {"metadata": {"finalizers": both[:1]}})
    harness.simulation.pubsub.end_outage()
    harness.run_for(2 * HOUR)
    assert harness.group(NAME) is not None
    line = errors(harness)[0]
    assert (line["slice"], line["group"], line["vms"]) == (name, f"default/{NAME}", 2)
    assert " is gone, or its slice has another name or place, and project " in line["note"]


def test_nodes_without_a_group_are_reported_each_hour_with_the_command() -> None:
    """One has a foreign finalizer, another was registered after the end of its group."""
    harness = helpers.ready()
    kept, late = sorted(helpers.nodes(harness))
    path = f"/api/v1/nodes/{kept}"
    helpers.patch(harness, path, {"metadata": {"finalizers": ["example.com/keeps"]}})
    harness.delete(NAME)
    helpers.until_gone(harness)
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": late}}
    harness.simulation.admin("POST", "/api/v1/nodes", body, **helpers.as_kubelet(late))
    harness.run_for(3 * HOUR)
    lines = [one for one in harness.log.lines if one.get("decision") == "NodesWithoutGroup"]
    assert [(one["severity"], one["nodes"]) for one in lines] == [("WARNING", 2)] * 2
    assert lines[0]["note"] == (
        f"No TPUNodeGroup has the Nodes {kept}, {late}. They stay until you delete them, and remove "
        "their finalizers. To see the commands that delete them: kubectl tng leaks"
    )
    assert sorted(helpers.nodes(harness)) == [kept, late]
