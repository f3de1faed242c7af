"""Each story runs on the embedded Kubernetes API and, if it can, on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.bridge.clusters import on_installation

FAST_ON_REAL = frozenset(
    {
        "test_budget.py::test_the_lifecycle_of_a_slice_stays_within_its_budget",
        "test_budget.py::test_nothing_is_listed_per_event_that_grows_with_the_cluster",
        "test_deletions.py::test_vms_are_deleted_within_minutes_whatever_else_fails_or_hangs",
        "test_deletions.py::test_a_process_that_is_killed_after_the_first_write_cordons_at_the_next_delivery",
        "test_deletions.py::test_a_node_that_cannot_be_deleted_is_named_and_delays_nothing_else",
        "test_deletions.py::test_a_forged_message_keeps_no_token_valid_and_no_node_schedulable",
        "test_events_or_sweep_only.py::test_the_lifecycle_of_a_slice_completes",
        "test_events_or_sweep_only.py::test_duplicate_and_reordered_messages_create_nothing_twice",
        "test_events_or_sweep_only.py::test_messages_of_a_predecessor_do_not_touch_its_successor",
        "test_joins.py::test_a_vms_own_requests_are_approved_whatever_their_names",
        "test_joins.py::test_a_request_that_no_parser_reads_completely_is_denied_and_stops_no_other",
        "test_joins.py::test_a_request_that_no_vm_of_ours_sends_is_denied_and_the_token_revoked",
        "test_joins.py::test_a_request_by_a_foreign_token_is_denied_and_the_token_reported",
        "test_joins.py::test_a_denial_is_reported_at_the_vm_with_what_to_do",
        "test_joins.py::test_requests_for_another_vms_node_are_reported_once_an_hour_at_the_vm_that_makes_them",
        "test_joins.py::test_a_node_created_manually_before_approval_is_not_counted_and_revokes_nothing",
        "test_joins.py::test_a_request_that_another_client_approves_is_reported",
        "test_joins.py::test_a_renewal_by_a_joined_kubelet_is_left_to_the_cluster",
        "test_leaks.py::test_a_slice_whose_finalizer_was_removed_is_reported_with_all_that_is_left",
        "test_lifecycle.py::test_the_example_in_the_readme_of_tpu_operator_works_unchanged",
        "test_lifecycle.py::test_a_group_with_a_long_name_becomes_ready_and_is_deleted_completely",
        "test_lifecycle.py::test_every_valid_spec_becomes_ready_and_is_deleted_completely",
        "test_lifecycle.py::test_labels_and_taints_of_the_user_are_on_every_node",
        "test_lifecycle.py::test_labels_and_taints_are_set_on_nodes_that_joined_by_other_means",
        "test_lifecycle.py::test_the_events_of_a_slice_have_the_messages_of_tpu_operator",
        "test_lifecycle.py::test_kubectl_get_prints_readable_columns",
        "test_lifecycle.py::test_deletion_is_reported_step_by_step",
        "test_lifecycle.py::test_a_pause_during_creation_creates_nothing_more",
        "test_lifecycle.py::test_a_group_applied_again_while_the_old_one_is_deleted_waits_only_for_the_name",
        "test_lifecycle.py::test_a_group_force_deleted_and_applied_again_does_not_touch_its_predecessor",
        "test_losses.py::test_a_vm_deleted_manually_is_recreated_and_admitted_again",
        "test_losses.py::test_a_node_of_a_ready_group_deleted_manually_is_reported_with_what_to_do",
        "test_losses.py::test_a_node_deleted_manually_is_reported_and_returns_with_its_vm",
        "test_losses.py::test_silent_kubelets_are_reported",
        "test_losses.py::test_a_node_of_another_machine_with_our_label_is_not_touched",
        "test_losses.py::test_a_node_that_joins_without_a_providerid_is_reported_and_not_counted",
        "test_losses.py::test_unused_tokens_expire_after_an_hour",
        "test_losses.py::test_a_wiped_status_is_rebuilt_without_a_second_insert",
        "test_losses.py::test_a_removed_finalizer_or_label_of_a_group_is_restored",
        "test_losses.py::test_a_recreated_vm_that_joins_by_other_means_takes_over_its_predecessors_node",
        "test_other_installations.py::test_nothing_is_created_joined_or_deleted_until_the_ids_are_right",
        "test_regressions.py::test_a_node_of_another_machine_with_our_proof_is_not_touched",
        "test_regressions.py::test_an_invalid_time_in_a_status_does_not_keep_the_sweep_from_other_groups",
        "test_api_errors.py::test_a_message_about_a_group_whose_namespace_is_gone_is_acknowledged",
        "test_api_errors.py::test_deleting_a_namespace_deletes_its_groups",
        "test_api_errors.py::test_the_functions_reject_what_an_older_definition_accepts",
        "test_api_errors.py::test_a_group_with_finalizers_of_tpu_operator_is_not_handled_until_they_are_gone",
        "test_api_errors.py::test_a_group_with_children_of_tpu_operator_is_not_handled_until_they_are_gone",
        "test_api_errors.py::test_a_kubeconfig_that_cannot_be_used_is_named_in_the_log",
        "test_api_errors.py::test_missing_permissions_are_named_and_used_once_granted",
        "test_api_errors.py::test_messages_while_a_starting_api_server_refuses_everyone_are_not_lost",
        "test_api_errors.py::test_missing_permission_to_read_nodes_is_reported_in_the_condition",
        "test_api_errors.py::test_without_permission_to_write_the_status_the_log_reports_it_and_nothing_is_created",
        "test_api_errors.py::test_missing_permission_to_write_events_stops_nothing",
        "test_api_errors.py::test_a_deletion_without_permissions_continues_once_they_are_granted",
        "test_api_errors.py::test_refused_secrets_are_reported_with_the_missing_permission",
        "test_recorded.py::test_a_deletion_finds_what_the_status_has_recorded_whatever_the_spec_says_by_now",
        "test_recorded.py::test_a_restored_group_is_a_new_one_whatever_its_old_status_says",
        "test_retries.py::test_a_transient_error_is_reported_after_ten_minutes_and_cleared_when_it_ends",
        "test_tokens.py::test_a_group_deleted_right_after_its_tokens_were_written_leaves_none",
        "test_tokens.py::test_secrets_of_others_survive_a_group",
    }
)
"""The stories whose first case runs on a real control plane in `make test-real`: each kind of call to
Kubernetes is in one of them. `make test-all` runs all stories there, in all cases."""
EMBEDDED_ONLY = frozenset(
    {
        "tests.stories.test_candidates",
        "tests.stories.test_clocks",
        "tests.stories.test_jobset_ends",
        "tests.stories.test_jobset_slices",
        "tests.stories.test_limits",
        "tests.stories.test_kinds",
        "tests.stories.test_leader_worker_sets",
        "tests.stories.test_lives_of_kinds",
        "tests.stories.test_many_jobsets",
        "tests.stories.test_node_pool_ends",
        "tests.stories.test_node_pool_slices",
        "tests.stories.test_older_pools",
        "tests.stories.test_requests",
        "tests.stories.test_suspended_jobsets",
        "tests.stories.test_turns",
        "tests.stories.test_upgrades",
        "tests.stories.test_use",
        "tests.stories.test_waiting_for_candidates",
        "tests.stories.test_workloads",
    }
)
"""Stories in which Pods run (a real control plane has no kubelets), clocks are wrong, or manifests
change (on a real control plane they are applied once for all stories)."""
REAL = pytest.param("real", marks=pytest.mark.real)
LONG_S = 1800
"""The time limit of one of them there, in seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: set[str] = set()
    for item in items:
        if not item.get_closest_marker("real"):
            continue
        story = item.nodeid.removeprefix("tests/stories/").partition("[")[0]
        if story != item.nodeid.partition("[")[0]:
            if story in seen or story not in FAST_ON_REAL:
                item.add_marker(pytest.mark.slow)
            seen.add(story)
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(LONG_S))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    real = [] if metafunc.module.__name__ in EMBEDDED_ONLY else [REAL]
    metafunc.parametrize("cluster", ["embedded", *real], indirect=True)


@pytest.fixture(autouse=True)
def cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """The cluster of the story's harnesses: embedded, or on a real control plane."""
    if request.param == "embedded":
        yield
        return
    with on_installation(request.getfixturevalue("installation")):
        yield
