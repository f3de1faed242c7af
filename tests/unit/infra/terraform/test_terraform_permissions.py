"""The table of permissions matches the permissions that the steps use in lifecycles of a group.

The simulated Compute Engine rejects a call whose caller lacks the permission that Google documents
for it. Each step has the permissions of the table, and their use is recorded. So no permission is
missing in the table, and none is unused.
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
from local.tests.gke.small_gke import Gke
from local.tests.product.node_pools import LEADER, SETTINGS, provider
from local.vm import agents
from shared.base.names import RESOURCE_NAME_LABEL
from shared.node_groups.node_group import resource_name
from shared.ports.gke import GkeClient
from shared.slices.by_node_pool.provider import NodePools
from shared.slices.provider import Slice
from shared.triggers import routes
from shared.triggers.routes import ROUTES, SLICE_STEPS, STEPS
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME
from tests.support.harness import Harness
from tests.support.manifests import manifest
from tests.support.slices import build_first
from tests.unit.infra.terraform.terraform_module import ROOT, read, read_permissions

pytestmark = pytest.mark.xdist_group("permissions of the table")
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


class RecordingPermissions(frozenset[str]):
    """Permissions that record all checks, also those of other permissions."""

    def __init__(self, _permissions: object) -> None:
        self.checked: set[str] = set()

    def __contains__(self, permission: object) -> bool:
        self.checked.add(str(permission))
        return super().__contains__(permission)


def project_permissions_of(step: str) -> set[str]:
    """Return the permissions of a step on its project, independent of names."""
    return {
        *PERMISSIONS[step]["project"],
        *PERMISSIONS[step]["vm_service_account"],
    }


def named_permissions_of(step: str) -> set[str]:
    """Return the permissions of a step on VMs and templates with names of this system."""
    return set(PERMISSIONS[step]["named"])


def condition() -> str:
    """The condition on names, as Terraform writes it."""
    text = read().locals["is_own_name"]
    (kinds,) = re.findall(r"for kind in \[(.*?)]", text)
    (term,) = re.findall(r': "(resource.*)"', text)
    plain = term.replace('\\"', '"')
    return " || ".join(plain.replace("${kind}", kind.strip(' "')) for kind in kinds.split(","))


def harness_with(options: Options | None, permissions: dict[str, RecordingPermissions]) -> Harness:
    callers = {
        step: gce.Principal(
            f"{step}@my-gcp-project.iam.gserviceaccount.com",
            permissions[step],
            (gce.ConditionalRole(frozenset(named_permissions_of(step)), condition()),),
        )
        for step in STEPS
    }
    return Harness(options, callers=callers)


def create_and_delete_by_events(permissions: dict[str, RecordingPermissions]) -> None:
    """A group is created and deleted; events trigger the steps."""
    harness = harness_with(None, permissions)
    helpers.ready_slice(harness, manifest(**AS_A_SERVICE_ACCOUNT))
    helpers.assert_deleted_completely(harness)


def create_and_delete_by_the_sweep(permissions: dict[str, RecordingPermissions]) -> None:
    """No event triggers a step, and operations are still in progress at each observation."""
    harness = harness_with(Options(relays=False, sinks=False), permissions)
    harness.simulation.gce.faults.slow_operations("*.insert", 100)
    harness.simulation.gce.faults.slow_operations("*.delete", 100)
    harness.apply(manifest(**AS_A_SERVICE_ACCOUNT))
    helpers.until_ready(harness, timeout=3 * HOUR)
    harness.delete(NAME)
    helpers.until_gone(harness, timeout=3 * HOUR)


def delete_before_the_join(permissions: dict[str, RecordingPermissions]) -> None:
    """A group is deleted when its VMs exist and none has joined."""
    harness = harness_with(Options(agents=agents.Timings(joins=False)), permissions)
    harness.apply(manifest(**AS_A_SERVICE_ACCOUNT))
    helpers.until(harness, lambda: len(helpers.vms(harness)) == 2)
    harness.run_for(5 * MINUTE)
    harness.delete(NAME)
    helpers.until_gone(harness)


def delete_beside_a_vm_made_by_hand(permissions: dict[str, RecordingPermissions]) -> None:
    """A VM with a name of the group, which is not a member of its MIG, has a Node that reports."""
    harness = harness_with(None, permissions)
    helpers.ready_slice(harness, manifest(instanceConfig=helpers.STANDARD))
    name = helpers.vm_name(helpers.make_vm_manually(harness))
    labels = {RESOURCE_NAME_LABEL: helpers.resource_name(harness)}
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
    }
    body["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    harness.simulation.admin("POST", "/api/v1/nodes", body, **helpers.as_kubelet(name))
    harness.delete(NAME)
    helpers.until_gone(harness)
    assert list(helpers.nodes(harness)) == [name]


def leak_a_slice(permissions: dict[str, RecordingPermissions]) -> None:
    """The finalizer is removed manually, and report_leaks lists the resources."""
    harness = harness_with(None, permissions)
    helpers.ready_slice(harness, manifest(**AS_A_SERVICE_ACCOUNT))
    harness.delete(NAME)
    helpers.patch(harness, helpers.group_path(), {"metadata": {"finalizers": []}})
    harness.run_for(2 * HOUR)


SCENARIOS: list[Callable[[dict[str, RecordingPermissions]], None]] = [
    create_and_delete_by_events,
    create_and_delete_by_the_sweep,
    delete_before_the_join,
    delete_beside_a_vm_made_by_hand,
    leak_a_slice,
]


@pytest.fixture(scope="module")
def checked() -> dict[str, set[str]]:
    """The permissions that were checked for each step in all scenarios. A denial ends a scenario.

    The permissions on the project are checked before those by name.
    """
    permissions = {step: RecordingPermissions(project_permissions_of(step)) for step in STEPS}
    for run_scenario in SCENARIOS:
        run_scenario(permissions)
    return {step: permissions[step].checked for step in STEPS}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_has_exactly_the_permissions_on_compute_engine_that_it_uses(
    step: str, checked: dict[str, set[str]]
) -> None:
    assert checked[step] == project_permissions_of(step) | named_permissions_of(step)
    assert not project_permissions_of(step) & named_permissions_of(step), (
        "a condition would have no effect"
    )


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
def test_the_condition_is_true_only_for_vms_and_templates_with_names_of_this_system(
    resource: str, granted: bool
) -> None:
    assert iam.holds(condition(), resource) is granted


def test_names_of_this_system_fulfil_the_condition() -> None:
    name = resource_name("cluster", "train", "uid")
    assert iam.holds(condition(), f"projects/p/zones/z/instances/{name}-x1y2")


def test_only_permissions_to_which_a_condition_on_names_applies_are_granted_by_name() -> None:
    for step in STEPS:
        for permission in named_permissions_of(step):
            _, kind, verb = permission.split(".")
            assert kind in ("instances", "instanceTemplates")
            assert verb not in ("list", "create"), "these are checked on the project"


def test_only_inject_token_may_write_metadata_and_only_of_vms_of_this_system() -> None:
    writers = [
        (step, scope)
        for step in ROUTES
        for scope in ("project", "named")
        if "compute.instances.setMetadata" in PERMISSIONS[step].get(scope, ())
    ]
    assert writers == [("inject_token", "named")]


@pytest.mark.parametrize("step", ROUTES)
def test_a_step_may_publish_only_to_the_topics_of_steps_that_it_triggers(step: str) -> None:
    assert topics_of(step) == set(PERMISSIONS[step]["topics"])


def topics_of(step: str) -> set[str]:
    """Return the steps that a step triggers, by its source: others are named for nothing else."""
    named = [name for node in _walk_source(step) for name in _list_steps(node)]
    sent = [
        name
        for node in _walk_source(step)
        if isinstance(node, ast.Call) and re.search("send", ast.unparse(node.func), re.I)
        for name in _list_steps(node.args[0])
    ]
    resumed = [
        step
        for node in _walk_source(step)
        if isinstance(node, ast.keyword) and node.arg == "resume"
    ]
    return {*named} - {step} | {*sent, *resumed}


def _list_steps(node: ast.AST) -> tuple[str, ...]:
    """Return the steps that an expression such as ``routes.SWEEP`` names."""
    is_of_routes = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "routes"
    found = getattr(routes, node.attr) if is_of_routes and isinstance(node, ast.Attribute) else ()
    return (found,) if isinstance(found, str) else tuple(found)


def _walk_source(step: str) -> Iterator[ast.AST]:
    """Yield the nodes of the syntax trees of a step's modules."""
    for path in sorted((ROOT / "functions" / step).glob("*.py")):
        yield from ast.walk(ast.parse(path.read_text()))


# Node pools of JobSets


def use_pools(gke: Gke, step: str) -> None:
    """Make the calls of a step of JobSets to GKE in the lifecycle of a pool."""

    def prepare(session: Any) -> None:
        mount(session, gke.simulator)
        session.headers["Authorization"] = f"Bearer {step}"

    client = GkeClient("http://simulator.test", prepare=prepare)
    pools = NodePools(SETTINGS, client, lambda: 30.0, lambda _: (), gke.clock.now)
    desired = build_first(provider(gke), *LEADER)
    if step == "provision_slice":
        pools.create(desired)
    else:
        provider(gke).create(desired)
    gke.clock.run_for(600)
    found = pools.find(desired)
    assert [found] == list(pools.list_all())
    assert isinstance(found, Slice)
    pools.set_release_deadline(found, datetime(2026, 1, 1, tzinfo=UTC))
    gke.clock.run_for(600)
    (existing,) = pools.list_all()
    pools.delete(existing)


@pytest.mark.parametrize("step", SLICE_STEPS)
def test_a_step_of_jobsets_has_exactly_the_permissions_on_gke_that_it_uses(step: str) -> None:
    granted = {*PERMISSIONS[step]["project"], *PERMISSIONS[step]["node_service_account"]}
    permissions = RecordingPermissions(granted)
    use_pools(Gke(principals={step: gce.Principal(f"{step}@x", permissions)}), step)
    assert permissions.checked == granted
