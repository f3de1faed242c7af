"""A deletion continues if calls fail or hang, and reports what it waits for: VMs are billed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import pytest

from functions import tear_down
from local.base.http import Response
from local.cloud.simulation import PROJECT, Options
from local.gce.inventory import Inventory
from local.gce.timings import Timings
from shared.base.names import RESOURCE_NAME_LABEL, VM_ID_LABEL
from shared.base.reasons import REASONS, Reason
from shared.frame.step import handle
from shared.ports.errors import CallError
from shared.ports.gce.calls import Gce
from shared.ports.gce.values import Policy
from shared.triggers.message import Cause, Message
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME, SPOT, STANDARD, TWO_SINGLE
from tests.support.harness import Harness, ProcessKilled
from tests.support.manifests import manifest

HANGS_S = 31.0


def unjoined(hosts: int = 2, topology: str = "2x2x2") -> Harness:
    """A group whose VMs run and have tokens, but never join."""
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest(nodeCount=hosts, topology=topology, instanceConfig=SPOT))
    helpers.until(harness, lambda: len(helpers.secrets(harness)) == hosts)
    harness.run_for(3 * MINUTE)
    return harness


def joined() -> Harness:
    return helpers.ready()


def hang(harness: Harness, matches: Callable[[str], bool]) -> None:
    """Answer tear_down's calls of this kind only after its time limit."""
    passed = 0.0

    def before(step: str, call: str) -> None:
        nonlocal passed
        if step == "tear_down" and matches(call):
            passed += HANGS_S

    harness.hooks.before = before
    harness.runtime("tear_down").monotonic = lambda: harness.clock.now().timestamp() + passed


def refuse(harness: Harness, matches: Callable[[str], bool], http: int = 403) -> None:
    def before(step: str, call: str) -> None:
        if step == "tear_down" and matches(call):
            raise CallError(call, http, "Forbidden", "admission webhook x denied the request")

    harness.hooks.before = before


def is_node_list(call: str) -> bool:
    return call.startswith("GET /api/v1/nodes?")


def is_revocation(call: str) -> bool:
    return call.startswith("DELETE /api/v1/namespaces/kube-system/secrets")


def is_cordon(call: str) -> bool:
    return call.startswith("PATCH /api/v1/nodes/")


FAILURES: dict[str, tuple[Callable[[], Harness], Callable[[Harness], None]]] = {
    "the list of Nodes hangs": (unjoined, lambda harness: hang(harness, is_node_list)),
    "the list of Nodes hangs, of Nodes that have joined": (
        joined,
        lambda harness: hang(harness, is_node_list),
    ),
    "a revocation hangs": (unjoined, lambda harness: hang(harness, is_revocation)),
    "a revocation is rejected": (unjoined, lambda harness: refuse(harness, is_revocation)),
    "cordons hang": (joined, lambda harness: hang(harness, is_cordon)),
    "cordons are rejected": (joined, lambda harness: refuse(harness, is_cordon)),
    "a missing permission to publish to its own topic": (
        lambda: unjoined(64, "4x8x8"),
        lambda harness: refuse(harness, lambda call: call == "publish tear_down"),
    ),
}


@pytest.mark.parametrize("case", FAILURES.values(), ids=FAILURES)
def test_vms_are_deleted_within_minutes_whatever_else_fails_or_hangs(
    case: tuple[Callable[[], Harness], Callable[[Harness], None]],
) -> None:
    make, inject = case
    harness = make()
    inject(harness)
    harness.delete(NAME)
    helpers.until(harness, lambda: helpers.vms(harness) == [], timeout=10 * MINUTE)


def test_a_process_that_is_killed_after_the_first_write_cordons_at_the_next_delivery() -> None:
    harness = joined()
    is_killed = False

    def before(step: str, call: str) -> None:
        nonlocal is_killed
        if step == "tear_down" and is_cordon(call) and not is_killed:
            is_killed = True
            raise ProcessKilled

    harness.hooks.before = before
    cordoned: set[str] = set()
    harness.delete(NAME)

    def is_complete() -> bool:
        nodes = helpers.nodes(harness)
        cordoned.update(name for name, one in nodes.items() if one["spec"].get("unschedulable"))
        return not nodes

    helpers.until(harness, is_complete)
    assert is_killed
    assert len(cordoned) == 2


def test_a_node_that_cannot_be_deleted_is_named_and_delays_nothing_else() -> None:
    harness = joined()
    undeletable = sorted(helpers.nodes(harness))[0]
    refuse(harness, lambda call: call == f"DELETE /api/v1/nodes/{undeletable}")
    harness.delete(NAME)
    harness.run_for(HOUR)
    assert list(helpers.nodes(harness)) == [undeletable]
    assert helpers.of_kind(harness, "instanceTemplates") == []
    assert helpers.of_kind(harness, "resourcePolicies") == []
    status, reason, message = helpers.condition_of(harness)
    assert (status, reason) == ("False", "PermissionDenied")
    assert f"(DELETE /api/v1/nodes/{undeletable})" in message
    assert "managed instance group" not in message
    harness.hooks.before = lambda _step, _call: None
    helpers.until_gone(harness, timeout=HOUR)
    assert harness.leftovers() == []


FORGED: dict[str, dict[str, Any]] = {
    "from the last VM on": {"vms": ("zzzz",)},
    "from the last Node on": {"nodes": ("zzzz",)},
    "from the beginning": {},
}


@pytest.mark.parametrize("names", FORGED.values(), ids=FORGED)
def test_a_forged_message_keeps_no_token_valid_and_no_node_schedulable(
    names: dict[str, Any],
) -> None:
    harness = unjoined()
    uid = (harness.group(NAME) or {})["metadata"]["uid"]
    now = harness.clock.now()
    harness.delete(NAME)
    message = Message("default", NAME, uid, Cause.CONTINUED, now, **names)
    harness.simulation.publish("tear_down", message.encode(), {})
    helpers.until(harness, lambda: helpers.vms(harness) == [], timeout=10 * MINUTE)
    assert helpers.secrets(harness) == []


def test_a_foreign_policy_of_the_groups_name_causes_no_loop_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The status has no entry of the policy since before the deletion; a user created a policy of its
    name."""
    harness = joined()
    status = (harness.group(NAME) or {})["status"]
    status["resources"]["workloadPolicy"] |= {"state": "Gone", "since": "2025-12-31T00:00:00Z"}
    helpers.patch(harness, f"{helpers.group_path()}/status", {"status": status})
    find = Gce.find_policy

    def find_foreign(gce: Gce, project: str, region: str, name: str) -> Policy | None:
        found = find(gce, project, region, name)
        return replace(found, description="created manually") if found else None

    monkeypatch.setattr(Gce, "find_policy", find_foreign)
    harness.delete(NAME)
    harness.run_for(HOUR)
    ran = Counter(step for step, _ in harness.answers)
    assert ran["tear_down"] < 20
    assert harness.group(NAME) is None


def test_a_status_that_claims_that_nothing_was_ever_created_is_not_believed() -> None:
    """It was edited, or comes from a backup that is older than the inserts."""
    harness = joined()
    path, status = helpers.group_path(), (harness.group(NAME) or {})["status"]
    pending = {"state": "Pending", "uri": None, "since": None, "operation": None}
    changed = dict.fromkeys(status["resources"], pending)
    harness.delete(NAME)
    helpers.patch(harness, f"{path}/status", {"status": {"resources": changed}})
    helpers.until_gone(harness)
    assert harness.leftovers() == []


def test_a_node_that_lost_our_label_right_before_the_deletion_is_deleted_with_the_group() -> None:
    harness = joined()
    name, _ = helpers.nodes(harness)
    harness.hooks.before = lambda step, _call: _kill_if(step == "label_node")
    label = {"metadata": {"labels": {RESOURCE_NAME_LABEL: None}}}
    helpers.patch(harness, f"/api/v1/nodes/{name}", label)
    harness.delete(NAME)
    helpers.until_gone(harness)
    assert helpers.nodes(harness) == {}


def _kill_if(condition: bool) -> None:
    if condition:
        raise ProcessKilled


@pytest.mark.parametrize("rejected_by", ["call", "operation"])
def test_a_template_that_something_else_uses_does_not_keep_the_nodes(
    rejected_by: Literal["call", "operation"],
) -> None:
    harness = Harness(Options(gce=Timings(in_use_refused_by=rejected_by)))
    helpers.ready_slice(harness, manifest())
    (mine,) = helpers.of_kind(harness, "instanceGroupManagers")
    (template,) = helpers.of_kind(harness, "instanceTemplates")
    mig = helpers.get(harness, mine)
    body = {
        "name": "other",
        "baseInstanceName": "other",
        "targetSize": 0,
        "versions": [{"instanceTemplate": mig["instanceTemplate"]}],
    }
    act = harness.simulation.gce.faults.act_as_user
    act("POST", mine.rpartition("/")[0], body)
    harness.delete(NAME)
    helpers.until(harness, lambda: helpers.nodes(harness) == {}, timeout=10 * MINUTE)
    helpers.until_reason(harness, "InUse", timeout=30 * MINUTE)
    assert "cannot be deleted" in helpers.condition_of(harness)[2]
    assert "other" in helpers.condition_of(harness)[2]
    assert helpers.of_kind(harness, "instanceTemplates") == [template]
    act("DELETE", mine.rpartition("/")[0] + "/other")
    helpers.until_gone(harness, timeout=HOUR)
    assert harness.leftovers() == []


@pytest.mark.parametrize("deleted", [1, 20, 60])
@pytest.mark.parametrize("beside", ["a resync", "its own message again"])
def test_an_invocation_beside_another_repeats_no_delete_of_a_node(
    beside: str, deleted: int
) -> None:
    applied = manifest(nodeCount=64, topology="4x8x8", instanceConfig=SPOT)
    harness, calls = helpers.ready(applied), list[str]()
    entries: list[dict[str, Any]] = []
    harness.hooks.on_entry = lambda entry: (
        entries.append(entry) if "instanceGroupManagers.delete" in str(entry) else None
    )

    def interleave(step: str, call: str) -> None:
        if (step, call.partition("/api/v1/nodes/")[0]) != ("tear_down", "DELETE "):
            return
        calls.append(call)
        if len(calls) == deleted:
            handle("tear_down", tear_down.STEP.run, message(), harness.runtime("tear_down"))

    def message() -> bytes:
        if beside != "a resync":
            return helpers.envelope(json.dumps(entries[-1]).encode())
        uid = (harness.group(NAME) or {})["metadata"]["uid"]
        resync = Message("default", NAME, uid, Cause.RESYNC, harness.clock.now())
        return helpers.envelope(resync.encode())

    harness.hooks.before = interleave
    helpers.assert_deleted_completely(harness)
    assert len(calls) == 64


def test_finalizers_of_others_are_named_when_nothing_else_is_left() -> None:
    harness = helpers.ready()
    group = harness.group(NAME)
    assert group is not None
    finalizers = ["example.com/other", *group["metadata"]["finalizers"]]
    helpers.patch(harness, helpers.group_path(), {"metadata": {"finalizers": finalizers}})
    harness.delete(NAME)
    harness.run_for(10 * MINUTE)
    text = f"example.com/other: {REASONS[Reason.OTHER_FINALIZERS]}"
    assert helpers.condition_of(harness) == ("False", "OtherFinalizers", text)
    assert harness.leftovers() == [f"TPUNodeGroup {NAME}"]
    harness.run_for(24 * HOUR)
    assert helpers.condition_of(harness) == ("False", "OtherFinalizers", text)


@pytest.mark.parametrize("after", [49, 400, 7500])
def test_a_group_with_a_mistyped_zone_is_deleted_within_seconds(after: float) -> None:
    """Compute Engine rejects each call about a zone that does not exist, reads included."""
    harness = Harness()
    kinds = ("images", "networks", "subnetworks", "diskTypes")
    anything = Inventory({"us-central1-c": ["*"]}, {kind: ["*"] for kind in kinds})
    harness.simulation.gce.restrict(anything)
    harness.apply(manifest(nodeLocation="us-central1-q", instanceConfig=STANDARD))
    helpers.until_reason(harness, "NotOffered", timeout=MINUTE)
    assert helpers.condition_of(harness)[2].startswith("spec.nodeLocation: ")
    harness.run_for(timedelta(seconds=after))
    assert helpers.condition_of(harness)[2].startswith("spec.nodeLocation: ")
    harness.delete(NAME)
    helpers.until_gone(harness, timeout=timedelta(seconds=20))
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []


OWN_TEMPLATE = {
    **TWO_SINGLE,
    "instanceConfig": None,
    "bootstrapKubernetes": None,
    "instanceTemplateURI": f"projects/{PROJECT}/global/instanceTemplates/my-template",
}


@pytest.mark.parametrize("change", [{}, OWN_TEMPLATE], ids=["BULK", "own template"])
def test_a_slice_in_a_zone_that_is_hidden_from_the_project_is_not_gone(
    change: dict[str, Any],
) -> None:
    """Some zones are open to selected projects. When that ends, Compute Engine answers as for a zone
    that does not exist, and the VMs may still run."""
    message = "Invalid value for field 'zone': 'us-central1-c'. Unknown zone."
    error = {"code": 400, "message": message, "errors": [{"reason": "invalid"}]}
    unknown = Response(400, {}, json.dumps({"error": error}).encode())
    identity = helpers.by_other_means if change else None
    harness = Harness(helpers.vm_options(identity=identity))
    if change:
        helpers.create_template(harness, helpers.template())
    helpers.ready_slice(harness, manifest(**change))
    first, *_ = nodes = sorted(helpers.nodes(harness))
    harness.hooks.instead = lambda _, call: unknown if "/zones/" in call else None
    helpers.patch(harness, f"/api/v1/nodes/{first}", {"metadata": {"labels": {VM_ID_LABEL: None}}})
    harness.run_for(2 * HOUR)
    assert sorted(helpers.nodes(harness)) == nodes
    assert helpers.entry(harness, "managedInstanceGroup")["state"] == "Ready"
    harness.delete(NAME)
    harness.run_for(10 * MINUTE)
    assert helpers.condition_of(harness)[1] == "NotOffered"
    assert message in helpers.condition_of(harness)[2]
    assert len(helpers.vms(harness)) == 2
    harness.hooks.instead = lambda _, _call: None
    helpers.until_gone(harness)
    harness.run_for(10 * MINUTE)
    assert [one for one in harness.leftovers() if "my-template" not in one] == []


def test_a_mig_that_a_late_insert_creates_during_the_deletion_is_deleted() -> None:
    """Compute Engine refuses to delete template and policy while it uses them."""
    harness = helpers.ready()
    (path,) = helpers.of_kind(harness, "instanceGroupManagers")
    sent = {"name", "description", "baseInstanceName", "instanceTemplate", "targetSize"}
    sent |= {"targetSizePolicy", "instanceLifecyclePolicy", "resourcePolicies"}
    body = {key: one for key, one in helpers.get(harness, path).items() if key in sent}

    def insert_first(_step: str, call: str) -> None:
        if call.startswith("DELETE") and (
            "instanceTemplates" in call or "resourcePolicies" in call
        ):
            harness.hooks.before = lambda _step, _call: None
            harness.simulation.gce.faults.act_as_user("POST", path.rpartition("/")[0], body)

    harness.hooks.before = insert_first
    harness.delete(NAME)
    harness.run_for(3 * MINUTE)
    assert len(helpers.vms(harness)) == 2
    helpers.until_gone(harness)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == []
