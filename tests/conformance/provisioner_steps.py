"""For each known behaviour of TPU Provisioner's controllers: the tests of this system's behaviour, or
the reason why it differs.

tests/data/tpu_provisioner.yaml lists the behaviours. These are the areas about the creation and deletion
of slices. `tests.conformance.provisioner` has those about the fields of a pool.
"""

from __future__ import annotations

from typing import Any

import yaml

from tests.conformance.provisioner import OF_SETTINGS, POOLS
from tests.conformance.table import Row, differs, shown
from tests.unit.builders import DATA

LEADERS = "unit/test_jobset_leaders.py::"
PROVISION = "unit/test_provision_slice.py::"
RELEASE = "unit/test_release_slice.py::"
GROUPS = "unit/test_group_slices.py::"
MANIFESTS = "unit/test_desired_group.py::"
TRIGGERS = "unit/test_triggers.py::"
STORIES = "stories/test_jobset_slices.py::"
POOL_STORIES = "stories/test_node_pool_slices.py::"
POOL_ENDS = "stories/test_node_pool_ends.py::"
AREAS = ("filter", "state", "delete", "gc", "event", "config")
ROWS: dict[str, dict[str, Any]] = {
    row["id"]: row
    for row in yaml.safe_load((DATA / "tpu_provisioner.yaml").read_text())["rows"]
    if row["area"] in AREAS and row["id"] not in OF_SETTINGS
}


def _planned(case: str) -> str:
    return (
        f"{PROVISION}test_the_plan_for_a_waiting_pod_follows_from_its_jobset_and_its_slice[{case}]"
    )


def _released(case: str) -> str:
    return f"{RELEASE}test_the_plan_for_a_slice_follows_from_its_state_and_its_jobset[{case}]"


def _waits(name: str) -> Row:
    return shown(f"{LEADERS}test_a_pod_waits_for_a_slice_as_in_tpu_provisioner[{name}]")


_OF_SLICES = "slices are read, not their Nodes"
_NO_OPERATION = "operations are not polled: the audit log has an entry at the end of each"
_BY_JOBSET = "the JobSet decides about a deletion, whatever the state and the Nodes of the slice"
AFTER_DELETION = (
    f"{TRIGGERS}test_the_entry_of_a_finished_deletion_triggers_both_jobset_steps"
    "[provision_slice-True]"
)
GONE = (_released("its JobSet is gone"), _released("due, and its JobSet is gone"))

STEPS: dict[str, Row] = {
    **{name: _waits(name) for name, row in ROWS.items() if row["area"] == "filter"},
    "filter-accelerator-selector-missing": shown(
        f"{LEADERS}test_a_pod_waits_for_a_slice_as_in_tpu_provisioner[filter-accelerator-selector-missing]",
        f"{MANIFESTS}test_an_impossible_value_of_a_pod_or_a_template_is_an_input_error[no accelerator]",
        f"{STORIES}test_an_unsupported_accelerator_is_reported_once",
    ),
    "filter-owner-kind-any": shown(
        f"{LEADERS}test_a_pod_waits_for_a_slice_as_in_tpu_provisioner[filter-owner-kind-any]",
        f"{LEADERS}test_the_fields_of_a_leader_are_read_from_its_pod",
    ),
    "filter-not-rechecked-in-reconcile": shown(
        f"{STORIES}test_a_pod_that_no_longer_needs_a_slice_gets_none"
    ),
    "state-not-exists": shown(
        _planned("no slice"),
        f"{STORIES}test_a_jobset_gets_its_slice_runs_and_leaves_nothing_behind",
    ),
    "state-exists-and-matches": shown(_planned("the slice is ready")),
    "state-exists-and-differs": shown(
        _planned("the slice has another hash"),
        f"{STORIES}test_a_jobset_that_requests_another_slice_gets_it",
    ),
    "state-other-jobset": shown(f"{MANIFESTS}test_the_slice_of_another_jobset_has_another_name"),
    "state-get-404": shown(_planned("no slice")),
    "state-get-500": shown(f"{STORIES}test_a_slice_that_cannot_be_listed_is_not_created"),
    "state-stopping-and-matches": shown(
        _planned("the slice is being deleted"),
        AFTER_DELETION,
    ),
    "state-stopping-wait": shown(
        _planned("the slice has another hash and is being deleted"),
        AFTER_DELETION,
    ),
    "state-provisioning-and-matches": shown(_planned("the slice is being created")),
    "state-error-and-matches": shown(
        _planned("the slice was lost"),
        _planned("the slice was lost, on a resync"),
        _planned("the slice was lost, some of its Nodes are ready, on a resync"),
        f"{STORIES}test_a_slice_without_any_host_is_created_again_for_waiting_pods",
    ),
    "state-operation-done-with-error": shown(
        f"{POOL_ENDS}test_a_failed_creation_of_a_pool_is_reported_and_retried"
    ),
    "state-operation-poll-fails-once": differs(_NO_OPERATION),
    "state-operation-timeout": differs(_NO_OPERATION, _planned("the slice is being created")),
    "state-create-request-refused": differs(
        "a refused creation has not begun, and no Event reports that it has",
        f"{STORIES}test_a_refused_creation_of_a_slice_is_reported_and_retried",
    ),
    "state-duplicate-name-in-flight": shown(
        f"{STORIES}test_two_concurrent_invocations_create_one_slice"
    ),
    "delete-jobset-gone": shown(
        GONE, f"{STORIES}test_a_jobset_that_is_deleted_leaves_nothing_behind"
    ),
    "delete-jobset-running": shown(_released("its JobSet is running")),
    "delete-jobset-completed": shown(
        _released("its JobSet has completed"), _released("due, and its JobSet has ended")
    ),
    "delete-jobset-suspended": shown(
        _released("suspended for 90 minutes"),
        f"{STORIES}test_the_slice_of_a_suspended_jobset_is_released_if_configured",
        f"{STORIES}test_the_slice_of_a_suspended_jobset_is_kept_if_its_release_is_off",
    ),
    "delete-node-not-managed": shown(
        f"{GROUPS}test_a_group_whose_labels_do_not_match_its_name_is_not_a_slice[a group of a user]",
        f"{STORIES}test_foreign_resources_are_not_touched",
    ),
    "delete-node-without-pool-label": differs(_OF_SLICES, GONE),
    "delete-legacy-id-label": shown(
        f"{POOLS}test_the_owner_of_a_pool_of_tpu_provisioner_is_read_from_its_labels[the oldest labels]"
    ),
    "delete-node-too-young": differs(
        f"{_OF_SLICES}: a slice gets a release deadline and is deleted 30 seconds later",
        _released("its JobSet is gone"),
        _released("its deadline is ahead"),
    ),
    "delete-node-shutting-down": differs(_OF_SLICES, GONE),
    "delete-node-unknown-for-long": shown(
        _released("lost"),
        _released("lost for 30 minutes"),
        f"{STORIES}test_a_slice_that_has_lost_a_host_is_reported_once",
        f"{STORIES}test_a_slice_that_has_lost_a_host_is_recreated_if_configured",
    ),
    "delete-call-fails": shown(
        f"{STORIES}test_a_refused_deletion_of_a_slice_is_reported_and_retried",
        f"{POOL_ENDS}test_a_failed_deletion_of_a_pool_is_reported_and_retried",
    ),
    "delete-not-found": shown(
        f"{STORIES}test_a_slice_that_is_gone_before_its_deletion_is_reported"
    ),
    "delete-second-check-delay-unused": shown(
        _released("its JobSet is gone"),
        _released("its deadline is ahead"),
        _released("due, and its JobSet is gone"),
    ),
    "delete-jobset-recreated-same-name": shown(
        _released("its deadline is ahead, and its JobSet exists again"),
        f"{STORIES}test_a_jobset_that_is_recreated_immediately_keeps_its_slice",
    ),
    "delete-pool-without-nodes-running": shown(_released("being created, and its JobSet is gone")),
    "delete-pool-error-jobset-finished": shown(_released("lost, and its JobSet has failed")),
    "delete-recreate-deletes-in-use": shown(
        _planned("the slice has another hash and is in use"),
        f"{STORIES}test_a_slice_in_use_is_not_replaced_until_it_is_free",
    ),
    "gc-error-jobset-gone-no-nodes": differs(
        f"{_BY_JOBSET}; the Event is about the JobSet, not about a namespace",
        GONE,
        f"{STORIES}test_a_jobset_that_is_deleted_leaves_nothing_behind",
    ),
    "gc-not-error": differs(_BY_JOBSET, _released("being created, and its JobSet is gone")),
    "gc-jobset-exists": shown(_released("lost")),
    "gc-jobset-finished": shown(_released("lost, and its JobSet has failed")),
    "gc-nodes-exist": differs(_BY_JOBSET, GONE),
    "gc-manager-label-not-checked": shown(
        f"{GROUPS}test_a_group_whose_labels_do_not_match_its_name_is_not_a_slice[a group of a user]",
        f"{POOLS}test_a_pool_with_the_name_and_another_owner_is_a_name_conflict[no manager]",
    ),
    "gc-interval": shown(f"{STORIES}test_the_sweep_without_events_is_enough"),
    "gc-on-every-replica": shown(f"{STORIES}test_two_concurrent_invocations_create_one_slice"),
    "event-creation-succeeded": shown(
        f"{POOL_STORIES}test_a_jobset_gets_its_pool_runs_and_leaves_nothing_behind",
        f"{POOL_ENDS}test_the_creation_of_a_pool_is_reported_even_after_its_pod_has_started",
    ),
    "event-creation-failed-request": shown(
        f"{STORIES}test_a_refused_creation_of_a_slice_is_reported_and_retried"
    ),
    "event-deletion-started": shown(
        f"{STORIES}test_a_jobset_that_is_deleted_leaves_nothing_behind",
        f"{STORIES}test_a_jobset_that_requests_another_slice_gets_it",
    ),
    "event-deletion-succeeded": shown(
        f"{POOL_STORIES}test_a_jobset_gets_its_pool_runs_and_leaves_nothing_behind"
    ),
    "event-deletion-failed": shown(
        f"{STORIES}test_a_refused_deletion_of_a_slice_is_reported_and_retried",
        f"{POOL_ENDS}test_a_failed_deletion_of_a_pool_is_reported_and_retried",
    ),
    "event-not-found": shown(f"{STORIES}test_a_slice_that_is_gone_before_its_deletion_is_reported"),
    "config-min-lifespan-zero": differs(
        f"{_OF_SLICES}, and there is no such setting", _released("its deadline is ahead")
    ),
    "config-pause-creation": shown(
        _planned("no slice, paused"),
        f"{STORIES}test_a_pause_creates_nothing_and_still_deletes_the_slices_of_ended_jobsets",
    ),
}
