"""The roles in the cluster match the calls of the components: no permission is missing or unused.

The steps run through whole lifecycles on the embedded API, which enforces their roles and records
their calls. The relay's reads are listed in its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.kube.calls import Call, CallLog
from relay import daemon
from shared.settings import TPU_NODE_GROUP
from shared.slices.kinds.kind import FEW_OWNERS
from shared.triggers.routes import ROUTES
from tests.stories import (
    errors,
    helpers,
    jobset_slices,
    jobsets,
    joins,
    test_api_errors,
    test_candidates,
    test_jobset_ends,
    test_jobset_slices,
    test_joins,
    test_limits,
    test_losses,
    test_requests,
    test_workloads,
    workload_objects,
)
from tests.stories.helpers import HOUR, MINUTE
from tests.stories.request_objects import jobset
from tests.support.builders import merge
from tests.support.harness import Harness
from tests.support.manifests import manifest
from tests.support.signing_requests import kubelets, pem
from tests.unit.infra.chart.manifests import Permission, expand

pytestmark = pytest.mark.xdist_group("permissions in the cluster")

MANIFESTS = Path(__file__).parents[4] / "infra" / "chart" / "manifests"
FILES = (
    "base/rbac.yaml",
    *(f"jobsets/{name}.yaml" for name in ("roles", "relay")),
    "jobsets-node-groups/roles.yaml",
    "workloads/roles.yaml",
)
DOCUMENTS = [
    document for name in FILES for document in yaml.safe_load_all((MANIFESTS / name).read_text())
]


def granted(account: str) -> set[Permission]:
    """Return the permissions that the roles grant to a ServiceAccount of this system."""

    def roles() -> Iterator[dict[str, Any]]:
        for binding in DOCUMENTS:
            if account in [one["name"] for one in binding.get("subjects", ())]:
                namespace = binding["metadata"].get("namespace")
                yield from (
                    one
                    for one in DOCUMENTS
                    if one["kind"] == binding["roleRef"]["kind"]
                    and one["metadata"]["name"] == binding["roleRef"]["name"]
                    and one["metadata"].get("namespace") == namespace
                )

    return {permission for role in roles() for permission in expand(role)}


def is_covered(permission: Permission, call: Call) -> bool:
    """Return True if a call needs this permission."""
    namespace, _, resource, verb = permission
    resource_path = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
    if resource.startswith("signers/") and verb == "approve":
        return resource_path == "certificatesigningrequests/approval"  # admission requires this one
    if resource == resource_path == "events" and call.verb == "create":
        return True  # the same call of the port increases the count of an equal Event
    return (
        namespace in ("*", call.namespace)
        and resource in (resource_path, f"{resource_path}/{call.name}")
        and verb == call.verb
    )


def lose_a_vm_without_an_event() -> None:
    """A VM is recreated without a report of its loss: its Node still exists."""
    harness = Harness(replace(helpers.with_heartbeats(), sinks=False))
    helpers.ready_slice(harness, manifest(**helpers.TWO_SINGLE))
    harness.simulation.gce.faults.act_as_user("DELETE", helpers.vms(harness)[0])
    harness.run_for(30 * MINUTE)
    helpers.until_ready(harness)


def delete_before_the_join() -> None:
    """A group is deleted when its VMs exist and none has joined."""
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest())
    helpers.until(harness, lambda: len(helpers.vms(harness)) == 2)
    harness.run_for(5 * MINUTE)
    harness.delete(helpers.NAME)
    helpers.until_gone(harness)


def write_no_token() -> None:
    """Compute Engine rejects the tokens for some time."""
    test_api_errors.test_missing_permission_to_write_tokens_is_reported("instances.setMetadata")


def run_beside_tpu_operator() -> None:
    """The CRDs of tpu-operator's child objects exist; the group has no child objects."""
    harness = Harness()
    errors.define_children(harness)
    helpers.ready_slice(harness, manifest())
    harness.run_for(2 * HOUR)  # report_leaks runs once an hour
    helpers.assert_deleted_completely(harness)


def recreate_a_jobset() -> None:
    """A JobSet is recreated while its slice, which has a release deadline, is still being created."""
    harness = jobset_slices.new_harness()
    jobset_slices.post(harness)
    helpers.until(harness, lambda: harness.group(jobsets.NAME) is not None)
    jobsets.delete(harness)
    harness.run_for(20 * jobsets.SECOND)
    assert "tpu-functions.dev/release-after" in jobset_slices.marks(harness)
    jobset_slices.post(harness)
    jobsets.until(harness, lambda: jobsets.are_running(harness))


def keep_slices_of_workloads() -> None:
    """A workload of each kind; of two kinds more than are read one by one."""
    harness = test_workloads.new_harness(TPU_NODE_GROUP)
    kinds = "Deployment, ReplicaSet, StatefulSet, Job, Pod, LeaderWorkerSet"
    listed = {"namespaces": f"{workload_objects.NAMESPACE}: {{kinds: [{kinds}], slices: 99}}"}
    path = f"{jobsets.OPTIONS}/jobsets"
    harness.simulation.admin("PATCH", path, {"data": listed}, **test_workloads.MERGE)
    made: list[dict[str, Any]] = [
        workload_objects.pod(),
        workload_objects.job(),
        merge(workload_objects.deployment(), {"metadata": {"name": "server"}}),
        merge(workload_objects.replica_set(), {"metadata": {"name": "replicas"}}),
    ]
    for number in range(FEW_OWNERS + 1):
        groups = workload_objects.leader_worker_set(1, topology=workload_objects.ONE_HOST)
        made.append(merge(groups, {"metadata": {"name": f"groups-{number}"}}))
        made.append(
            merge(workload_objects.stateful_set(), {"metadata": {"name": f"ordinals-{number}"}})
        )
    for one in made:
        test_workloads.apply(harness, one)
    helpers.until(harness, lambda: test_workloads.running(harness) == len(made))
    harness.run_for(2 * MINUTE)
    for kind, name in (("LeaderWorkerSet", "groups-0"), ("StatefulSet", "ordinals-0")):
        harness.simulation.admin("DELETE", f"{workload_objects.PATHS[kind]}/{name}")
    harness.run_for(5 * MINUTE)


def request_a_control_planes_certificate() -> None:
    """The request is denied, and the token is revoked."""
    groups = joins.TwoGroups()
    groups.request(pem(kubelets("control-plane-1")))
    groups.harness.run_for(MINUTE)
    assert groups.decisions() == ["Denied"]


# Scenarios that together need each permission: a component that lacks one makes no progress.
SCENARIOS: tuple[Callable[[], object], ...] = (
    lose_a_vm_without_an_event,
    delete_before_the_join,
    write_no_token,
    request_a_control_planes_certificate,
    test_joins.test_a_token_that_is_created_again_while_its_vm_joins_is_revoked,
    test_losses.test_a_vm_deleted_manually_is_recreated_and_admitted_again,
    run_beside_tpu_operator,
    test_jobset_slices.test_a_jobset_gets_its_slice_runs_and_leaves_nothing_behind,
    recreate_a_jobset,
    keep_slices_of_workloads,
    test_jobset_slices.test_a_jobset_that_requests_another_slice_gets_it,
    lambda: test_jobset_slices.test_a_slice_that_has_lost_a_spot_host_is_created_again({}),
    test_jobset_slices.test_the_sweep_without_events_is_enough,
    lambda: test_limits.test_a_slice_that_is_released_is_replaced_by_the_next_within_two_minutes(
        TPU_NODE_GROUP, is_of_class=False
    ),
    lambda: test_limits.test_a_slice_that_is_released_is_replaced_by_the_next_within_two_minutes(
        TPU_NODE_GROUP, is_of_class=True
    ),
    lambda: test_candidates.test_two_candidates_refuse_and_the_third_one_has_the_slice(
        TPU_NODE_GROUP
    ),
    lambda: test_requests.test_a_workload_gets_its_slices_before_its_pods(
        jobset(), None, 1, 2, TPU_NODE_GROUP
    ),
    lambda: test_requests.test_the_slice_of_a_completed_job_is_not_made_again_for_a_request(
        TPU_NODE_GROUP
    ),
    lambda: test_requests.test_a_request_that_nobody_uses_expires_after_ten_minutes(TPU_NODE_GROUP),
    lambda: test_jobset_ends.test_the_slice_of_a_completed_job_is_released_while_the_others_run(
        "TPUNodeGroups"
    ),
)


@pytest.fixture(scope="module")
def calls() -> set[Call]:
    """All calls to the API server in these scenarios."""
    found: set[Call] = set()
    add = CallLog.add

    def note(log: CallLog, call: Call) -> None:
        found.add(replace(call, name=call.name if call.name in ONLY_NAMES else ""))
        add(log, call)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(CallLog, "add", note)
        for run_scenario in SCENARIOS:
            run_scenario()
    return found


AFTER_A_CONFLICT = {("provision-slice", "tpu-functions.dev", "tpusliceclasses", "get")}
"""A class is read again if another invocation has written its status."""
ONLY_NAMES = {"kube-system", "kube-root-ca.crt", "jobsets", "slice-ledger"}
"""The names to which roles limit a permission."""


@pytest.mark.parametrize("step", ROUTES)
def test_a_step_has_exactly_the_permissions_in_the_cluster_that_it_uses(
    step: str, calls: set[Call]
) -> None:
    account = step.replace("_", "-")
    user = f"system:serviceaccount:tpu-functions:{account}"
    made = {call for call in calls if call.user == user}
    unused = {
        permission
        for permission in granted(account)
        if (account, *permission[1:]) not in AFTER_A_CONFLICT
        and not any(is_covered(permission, call) for call in made)
    }
    assert unused == set()


@pytest.mark.conformance("dp-wakes-every-group")
def test_the_relay_may_read_only_the_collections_that_it_watches() -> None:
    watched = [resource.path for resource in (*daemon.RESOURCES, *daemon.JOBSET_RESOURCES)]
    needed = {
        ("*", group_of(path), path.rpartition("/")[2], verb)
        for path in watched
        for verb in ("list", "watch")
    }
    assert granted("relay") == needed | {("*", "", "namespaces/kube-system", "get")}


def group_of(path: str) -> str:
    """The API group of a collection."""
    return path.split("/")[2] if path.startswith("/apis/") else ""
