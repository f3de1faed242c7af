"""The table of rights against what the steps ask for in whole lives of a group.

Compute Engine is the simulated one, which refuses a call whose caller lacks the permission that
Google documents for it; each step comes with the permissions of the table, and what it was asked
for is remembered. So the table lacks nothing, and holds nothing that no life needs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from local import gce
from local.cloud.simulation import Options
from local.gce import iam
from local.gce.inprocess import mount
from local.tests.gke.small_gke import SETTINGS, Gke
from local.tests.gke.test_port import LEADER
from local.vm import agents
from shared.base.names import JOBSET_STEPS, STEPS
from shared.node_groups.node_group import resource_name
from shared.ports.gke import GkeClient
from shared.slices.by_node_pool.provider import NodePools
from shared.slices.provider import Slice
from tests.harness import Harness
from tests.manifests import manifest
from tests.stories import life
from tests.stories.life import HOUR, MINUTE, NAME
from tests.unit.infra.terraform_module import ROOT, read, read_permissions

pytestmark = pytest.mark.xdist_group("lives with the rights of the table")
PERMISSIONS = read_permissions()
AS_A_SERVICE_ACCOUNT: dict[str, Any] = {
    "instanceConfig": {
        "serviceAccounts": [
            {
                "email": "vm@my-gcp-project.iam.gserviceaccount.com",
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            }
        ]
    }
}


class Rights(frozenset[str]):
    """Permissions that remember which of them, and which others, were asked for."""

    def __init__(self, _permissions: object) -> None:
        self.asked: set[str] = set()

    def __contains__(self, permission: object) -> bool:
        self.asked.add(str(permission))
        return super().__contains__(permission)


def rights_of(step: str) -> set[str]:
    """What a step may do where its VMs, templates and groups are, whatever their names."""
    return {
        *PERMISSIONS[step]["project"],
        *PERMISSIONS[step]["vm_service_account"],
    }


def rights_by_name_of(step: str) -> set[str]:
    """What a step may do to VMs and templates with names of ours."""
    return set(PERMISSIONS[step]["named"])


def condition() -> str:
    """The condition on names, as Terraform writes it."""
    text = read().locals["names_of_ours"]
    (kinds,) = re.findall(r"for kind in \[(.*?)]", text)
    (term,) = re.findall(r': "(resource.*)"', text)
    plain = term.replace('\\"', '"')
    return " || ".join(plain.replace("${kind}", kind.strip(' "')) for kind in kinds.split(","))


def harness_with(options: Options | None, rights: dict[str, Rights]) -> Harness:
    callers = {
        step: gce.Principal(
            f"{step}@my-gcp-project.iam.gserviceaccount.com",
            rights[step],
            (gce.ConditionalRole(frozenset(rights_by_name_of(step)), condition()),),
        )
        for step in STEPS
    }
    return Harness(options, callers=callers)


def live_by_events(rights: dict[str, Rights]) -> None:
    """From apply to gone, each step woken by what happens."""
    harness = harness_with(None, rights)
    life.ready_slice(harness, manifest(**AS_A_SERVICE_ACCOUNT))
    life.assert_deleted_completely(harness)


def live_by_the_sweep(rights: dict[str, Rights]) -> None:
    """Nobody tells anything, and operations are still under way at each look."""
    harness = harness_with(Options(relays=False, sinks=False), rights)
    harness.simulation.gce.faults.slow_operations("*.insert", 100)
    harness.simulation.gce.faults.slow_operations("*.delete", 100)
    harness.apply(manifest(**AS_A_SERVICE_ACCOUNT))
    life.until_ready(harness, timeout=3 * HOUR)
    harness.delete(NAME)
    life.until_gone(harness, timeout=3 * HOUR)


def give_up_early(rights: dict[str, Rights]) -> None:
    """Deleted when its VMs are there and none has joined."""
    harness = harness_with(Options(agents=agents.Timings(joins=False)), rights)
    harness.apply(manifest(**AS_A_SERVICE_ACCOUNT))
    life.until(harness, lambda: len(life.vms(harness)) == 2)
    harness.run_for(5 * MINUTE)
    harness.delete(NAME)
    life.until_gone(harness)


def leave_a_slice_behind(rights: dict[str, Rights]) -> None:
    """The finalizer is removed manually, and what is left is looked for."""
    harness = harness_with(None, rights)
    life.ready_slice(harness, manifest(**AS_A_SERVICE_ACCOUNT))
    harness.delete(NAME)
    life.patch(harness, life.group_path(), {"metadata": {"finalizers": []}})
    harness.run_for(2 * HOUR)


LIVES: list[Callable[[dict[str, Rights]], None]] = [
    live_by_events,
    live_by_the_sweep,
    give_up_early,
    leave_a_slice_behind,
]


@pytest.fixture(scope="module")
def asked() -> dict[str, set[str]]:
    """What each step was asked for, in all lives together; a refusal would have ended them.

    What it has only by name, its other permissions are asked for first.
    """
    rights = {step: Rights(rights_of(step)) for step in STEPS}
    for live in LIVES:
        live(rights)
    return {step: rights[step].asked for step in STEPS}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_may_do_what_it_is_asked_for_and_no_more(
    step: str, asked: dict[str, set[str]]
) -> None:
    assert asked[step] == rights_of(step) | rights_by_name_of(step)
    assert not rights_of(step) & rights_by_name_of(step), "a condition narrows nothing then"


def test_the_condition_is_on_the_names_of_vms_and_templates() -> None:
    assert condition() == (
        'resource.name.extract("/instances/{name}").startsWith("tng-") || '
        'resource.name.extract("/instanceTemplates/{name}").startsWith("tng-")'
    )


@pytest.mark.parametrize(
    "resource, granted",
    [
        ("projects/p/zones/us-central1-c/instances/tng-train-1a2b3c4d-x1y2", True),
        ("projects/p/global/instanceTemplates/tng-train-1a2b3c4d", True),
        ("projects/p/zones/us-central1-c/instances/control-plane-1", False),
        ("projects/p/global/instanceTemplates/production", False),
        ("projects/tng-p/zones/us-central1-c/instances/control-plane-1", False),
        ("projects/p/zones/us-central1-c/instances/my-tng-vm", False),
        ("projects/p/zones/us-central1-c/instanceGroupManagers/tng-train-1a2b3c4d", False),
        ("projects/p/regions/us-central1/resourcePolicies/tng-train-1a2b3c4d", False),
        ("projects/p/regions/us-central1/instanceTemplates/tng-train-1a2b3c4d", False),
        ("projects/p", False),
    ],
)
def test_the_condition_holds_for_vms_and_templates_with_names_of_ours(
    resource: str, granted: bool
) -> None:
    assert iam.holds(condition(), resource) is granted


def test_names_of_ours_begin_as_the_condition_says() -> None:
    name = resource_name("cluster", "train", "uid")
    assert iam.holds(condition(), f"projects/p/zones/z/instances/{name}-x1y2")


def test_nothing_is_granted_by_name_to_which_a_condition_on_names_does_not_apply() -> None:
    for step in STEPS:
        for permission in rights_by_name_of(step):
            _, kind, verb = permission.split(".")
            assert kind in ("instances", "instanceTemplates")
            assert verb not in ("list", "create"), "they are asked of the project"


def test_only_inject_token_writes_metadata_and_only_of_vms_with_names_of_ours() -> None:
    writers = [
        (step, scope)
        for step in (*STEPS, *JOBSET_STEPS)
        for scope in ("project", "named")
        if "compute.instances.setMetadata" in PERMISSIONS[step].get(scope, ())
    ]
    assert writers == [("inject_token", "named")]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_may_publish_only_to_the_topics_of_steps_that_it_triggers(step: str) -> None:
    # The minute, where somebody asks for it, and once an hour; requests for certificates.
    forwarded = (*JOBSET_STEPS, "report_leaks", "approve_join") if step == "sweep" else ()
    assert {*topics_of(step), *forwarded} == set(PERMISSIONS[step]["topics"])


def topics_of(step: str) -> Iterator[str]:
    """The steps that a module names as those it wakes."""
    tree = ast.parse((ROOT / "functions" / f"{step}.py").read_text())
    for node in ast.walk(tree):
        is_send = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Send"
        value = node.args[0] if is_send and isinstance(node, ast.Call) else None
        if step == "sweep" and isinstance(node, ast.Yield):
            value = node.value
        if isinstance(value, ast.Constant) and value.value in STEPS:
            yield str(value.value)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "STEP.name":
            yield step


# Node pools, where JobSets get those


def see_to_pools(gke: Gke, step: str) -> None:
    """What a step of JobSets asks of GKE, in a pool's life."""

    def prepare(session: Any) -> None:
        mount(session, gke.simulator)
        session.headers["Authorization"] = f"Bearer {step}"

    pools = NodePools(
        SETTINGS, GkeClient("http://simulator.test", prepare=prepare), lambda: 30.0, lambda _: ()
    )
    wanted = gke.provider().build_desired(LEADER)
    if step == "provision_slice":
        pools.create(wanted)
    else:
        gke.provider().create(wanted)
    gke.clock.run_for(600)
    found = pools.find(wanted)
    assert [found] == list(pools.list_all())
    assert isinstance(found, Slice)
    pools.set_release_deadline(found, datetime(2026, 1, 1, tzinfo=UTC))
    gke.clock.run_for(600)
    (marked,) = pools.list_all()
    pools.delete(marked)


@pytest.mark.parametrize("step", JOBSET_STEPS)
def test_a_step_of_jobsets_may_do_what_node_pools_ask_for_and_no_more(step: str) -> None:
    granted = {*PERMISSIONS[step]["project"], *PERMISSIONS[step]["node_service_account"]}
    rights = Rights(granted)
    see_to_pools(Gke(principals={step: gce.Principal(f"{step}@x", rights)}), step)
    assert rights.asked == granted


@pytest.mark.parametrize("step", JOBSET_STEPS)
def test_a_step_of_jobsets_publishes_to_itself_alone(step: str) -> None:
    assert set(PERMISSIONS[step]["topics"]) == {step}
    assert "resync(NAME, " in (ROOT / "functions" / f"{step}.py").read_text()
