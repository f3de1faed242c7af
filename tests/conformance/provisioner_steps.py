"""For each behaviour of TPU Provisioner's controllers that is known: the tests that show ours, or why it
is otherwise.

tests/data/tpu_provisioner.yaml has the behaviours, of which these are the areas that say for whom a
slice is made, when, and when it goes. What it is made of is in `tests.conformance.provisioner`.
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


def _made(case: str) -> str:
    return f"{PROVISION}test_what_is_done[{case}]"


def _released(case: str) -> str:
    return f"{RELEASE}test_what_is_done[{case}]"


def _waits(name: str) -> Row:
    return shown(f"{LEADERS}test_who_waits_for_a_slice[{name}]")


_OF_SLICES = "slices are looked at, not their Nodes"
_NO_OPERATION = "no operation is waited for or asked about: its end is an entry of the audit log"
_ONE_WAY = "a slice goes by what its JobSet says, whatever its state and however many Nodes it has"
AFTER_DELETION = (
    f"{TRIGGERS}test_the_end_of_a_deletion_is_for_both_steps_of_jobsets[provision_slice-True]"
)
GONE = (_released("its JobSet is gone"), _released("due, and its JobSet is gone"))

STEPS: dict[str, Row] = {
    **{name: _waits(name) for name, row in ROWS.items() if row["area"] == "filter"},
    "filter-accelerator-selector-missing": shown(
        f"{LEADERS}test_who_waits_for_a_slice[filter-accelerator-selector-missing]",
        f"{MANIFESTS}test_impossible_values_are_reported[no accelerator]",
        f"{STORIES}test_an_unsupported_accelerator_is_reported_once",
    ),
    "filter-owner-kind-any": shown(
        f"{LEADERS}test_who_waits_for_a_slice[filter-owner-kind-any]",
        f"{LEADERS}test_what_the_leader_of_a_job_says",
    ),
    "filter-not-rechecked-in-reconcile": shown(
        f"{STORIES}test_a_pod_that_no_longer_wants_a_slice_gets_none"
    ),
    "state-not-exists": shown(
        _made("nothing there"),
        f"{STORIES}test_a_jobset_gets_its_slice_runs_and_leaves_nothing_behind",
    ),
    "state-exists-and-matches": shown(_made("it is there")),
    "state-exists-and-differs": shown(
        _made("it is another than the Pod asks for"),
        f"{STORIES}test_a_jobset_that_requests_another_slice_gets_it",
    ),
    "state-other-jobset": shown(f"{MANIFESTS}test_another_jobset_s_slice_is_another"),
    "state-get-404": shown(_made("nothing there")),
    "state-get-500": shown(f"{STORIES}test_a_slice_that_cannot_be_listed_is_not_created"),
    "state-stopping-and-matches": shown(
        _made("it is being deleted"),
        AFTER_DELETION,
    ),
    "state-stopping-wait": shown(
        _made("it is being deleted and is another"),
        AFTER_DELETION,
    ),
    "state-provisioning-and-matches": shown(_made("it is being made")),
    "state-error-and-matches": shown(
        _made("it was lost"),
        _made("it was lost, and time has passed"),
        _made("it was lost, and some of its Nodes are ready"),
        f"{STORIES}test_a_slice_without_any_host_is_created_again_for_waiting_pods",
    ),
    "state-operation-done-with-error": shown(
        f"{POOL_ENDS}test_a_failed_creation_of_a_pool_is_reported_and_retried"
    ),
    "state-operation-poll-fails-once": differs(_NO_OPERATION),
    "state-operation-timeout": differs(_NO_OPERATION, _made("it is being made")),
    "state-create-request-refused": differs(
        "what was refused has not begun, and is not said to have",
        f"{STORIES}test_a_refused_creation_of_a_slice_is_reported_and_retried",
    ),
    "state-duplicate-name-in-flight": shown(
        f"{STORIES}test_two_concurrent_invocations_create_one_slice"
    ),
    "delete-jobset-gone": shown(
        GONE, f"{STORIES}test_a_jobset_that_is_deleted_leaves_nothing_behind"
    ),
    "delete-jobset-running": shown(_released("its JobSet lives")),
    "delete-jobset-completed": shown(
        _released("its JobSet has completed"), _released("due, and its JobSet has ended")
    ),
    "delete-jobset-suspended": shown(
        _released("suspended for long"),
        f"{STORIES}test_the_slice_of_a_suspended_jobset_is_released_if_configured",
        f"{STORIES}test_the_slice_of_a_suspended_jobset_is_kept_if_its_release_is_off",
    ),
    "delete-node-not-managed": shown(
        f"{GROUPS}test_what_is_no_slice_of_ours[a group of somebody's]",
        f"{STORIES}test_foreign_resources_are_not_touched",
    ),
    "delete-node-without-pool-label": differs(_OF_SLICES, GONE),
    "delete-legacy-id-label": shown(
        f"{POOLS}test_a_pool_that_tpu_provisioner_made_is_known[of long ago]"
    ),
    "delete-node-too-young": differs(
        f"{_OF_SLICES}: what is to go is marked, and goes half a minute later",
        _released("its JobSet is gone"),
        _released("marked"),
    ),
    "delete-node-shutting-down": differs(_OF_SLICES, GONE),
    "delete-node-unknown-for-long": shown(
        _released("lost"),
        _released("lost for long"),
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
        _released("marked"),
        _released("due, and its JobSet is gone"),
    ),
    "delete-jobset-recreated-same-name": shown(
        _released("marked, and its JobSet is there again"),
        f"{STORIES}test_a_jobset_that_is_recreated_immediately_keeps_its_slice",
    ),
    "delete-pool-without-nodes-running": shown(_released("being made, and its JobSet is gone")),
    "delete-pool-error-jobset-finished": shown(_released("in trouble, and its JobSet has failed")),
    "delete-recreate-deletes-in-use": shown(
        _made("it is another, and in use"),
        f"{STORIES}test_a_slice_in_use_is_not_replaced_until_it_is_free",
    ),
    "gc-error-jobset-gone-no-nodes": differs(
        f"{_ONE_WAY}; the Event is about the JobSet, where it was, and not about a namespace",
        GONE,
        f"{STORIES}test_a_jobset_that_is_deleted_leaves_nothing_behind",
    ),
    "gc-not-error": differs(_ONE_WAY, _released("being made, and its JobSet is gone")),
    "gc-jobset-exists": shown(_released("lost")),
    "gc-jobset-finished": shown(_released("in trouble, and its JobSet has failed")),
    "gc-nodes-exist": differs(_ONE_WAY, GONE),
    "gc-manager-label-not-checked": shown(
        f"{GROUPS}test_what_is_no_slice_of_ours[a group of somebody's]",
        f"{POOLS}test_what_has_the_name_and_another_owner_is_a_clash[no manager]",
    ),
    "gc-interval": shown(f"{STORIES}test_the_sweep_alone_is_enough"),
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
        f"{_OF_SLICES}, and there is no such setting", _released("marked")
    ),
    "config-pause-creation": shown(
        _made("nothing there, and paused"),
        f"{STORIES}test_a_pause_creates_nothing_and_still_deletes_the_slices_of_ended_jobsets",
    ),
}
