"""Each story runs on the embedded Kubernetes API and, if it can, on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.bridge.ground import standing_on_real

EVERY_DAY_ON_REAL = frozenset(
    {
        "test_budget.py::test_a_whole_life_keeps_to_its_budget",
        "test_budget.py::test_nothing_is_listed_per_event_that_grows_with_the_cluster",
        "test_deletions.py::test_vms_go_within_minutes_whatever_else_fails_or_hangs",
        "test_deletions.py::test_a_process_that_dies_after_the_first_write_has_cordoned_when_the_message_comes_again",
        "test_deletions.py::test_a_node_that_cannot_be_deleted_is_named_and_holds_up_nothing_else",
        "test_deletions.py::test_a_forged_message_keeps_no_token_valid_and_no_node_schedulable",
        "test_either_alone.py::test_a_whole_life",
        "test_either_alone.py::test_doubled_and_overtaking_messages_make_nothing_twice",
        "test_either_alone.py::test_messages_of_a_predecessor_do_not_touch_its_successor",
        "test_joins.py::test_a_vms_own_request_is_approved",
        "test_joins.py::test_several_requests_of_one_vm_are_each_approved",
        "test_joins.py::test_a_request_may_have_any_name_that_the_cluster_takes",
        "test_joins.py::test_a_request_that_no_parser_reads_whole_is_denied_and_stops_no_other",
        "test_joins.py::test_what_no_vm_of_ours_asks_for_is_denied_and_the_token_revoked",
        "test_joins.py::test_a_request_by_a_token_that_is_not_ours_to_revoke_is_denied_and_the_token_reported",
        "test_joins.py::test_a_denial_shows_at_the_vm_with_what_to_do",
        "test_joins.py::test_another_vms_certificate_is_never_approved_and_the_attempt_is_reported",
        "test_joins.py::test_a_node_made_by_hand_before_approval_is_not_counted_and_revokes_nothing",
        "test_joins.py::test_a_request_that_somebody_else_approves_is_reported",
        "test_joins.py::test_a_renewal_by_a_joined_kubelet_is_the_clusters_to_approve",
        "test_joins.py::test_where_the_cluster_approves_tokens_are_kubeadms_and_nobody_asks_us",
        "test_leaks.py::test_a_slice_whose_finalizer_was_removed_is_reported_with_all_that_is_left",
        "test_lives.py::test_the_readme_of_tpu_operator_works_unchanged",
        "test_lives.py::test_a_group_with_a_long_name_reaches_ready_and_goes_without_a_trace",
        "test_lives.py::test_every_valid_spec_reaches_ready_and_goes_without_a_trace",
        "test_lives.py::test_labels_and_taints_of_the_user_are_on_every_node",
        "test_lives.py::test_labels_and_taints_are_put_on_nodes_that_joined_by_other_means",
        "test_lives.py::test_events_tell_a_life_in_the_words_of_tpu_operator",
        "test_lives.py::test_columns_are_those_that_a_person_reads",
        "test_lives.py::test_deletion_is_told_step_by_step",
        "test_lives.py::test_pause_in_mid_creation_makes_nothing_more",
        "test_lives.py::test_a_group_applied_again_while_the_old_one_goes_waits_for_the_name_alone",
        "test_lives.py::test_a_group_forced_away_and_applied_again_leaves_its_predecessor_alone",
        "test_losses.py::test_a_vm_deleted_by_hand_is_made_anew_and_let_in_again",
        "test_losses.py::test_a_node_deleted_by_hand_on_a_ready_group_is_told_with_what_to_do",
        "test_losses.py::test_a_node_deleted_by_hand_is_told_as_lost_and_comes_back_with_its_vm",
        "test_losses.py::test_kubelets_that_fall_silent_are_told",
        "test_losses.py::test_a_node_of_another_machine_that_bears_our_label_is_not_touched",
        "test_losses.py::test_a_node_that_joins_without_a_providerid_is_told_of_and_counts_as_none",
        "test_losses.py::test_tokens_that_were_not_used_are_void_after_an_hour",
        "test_losses.py::test_a_status_that_was_wiped_heals_without_a_second_purchase",
        "test_losses.py::test_our_mark_on_the_group_comes_back_when_somebody_removes_it",
        "test_losses.py::test_a_recreated_vm_that_joins_by_other_means_takes_over_its_predecessors_node",
        "test_mended.py::test_a_node_of_another_machine_that_bears_our_proof_is_not_touched",
        "test_mended.py::test_a_time_that_is_none_in_a_status_keeps_the_minute_from_nobody",
        "test_refusals.py::test_a_message_about_a_group_whose_namespace_is_gone_is_acknowledged",
        "test_refusals.py::test_a_namespace_that_goes_takes_its_groups_along",
        "test_refusals.py::test_the_definition_refuses_a_wrong_spec_and_names_the_field",
        "test_refusals.py::test_the_functions_refuse_what_an_older_definition_lets_pass",
        "test_refusals.py::test_a_group_with_finalizers_of_tpu_operator_is_not_ours_until_they_are_gone",
        "test_refusals.py::test_a_group_with_children_of_tpu_operator_is_not_ours_until_they_are_gone",
        "test_refusals.py::test_a_kubeconfig_that_cannot_be_used_is_named_in_the_log",
        "test_refusals.py::test_rights_that_a_step_lacks_are_named_and_used_when_they_come",
        "test_refusals.py::test_what_is_told_while_an_api_server_starts_and_refuses_everybody_is_not_missed",
        "test_refusals.py::test_nodes_that_may_not_be_read_are_told_in_the_condition",
        "test_refusals.py::test_a_status_that_may_not_be_written_is_told_in_the_log_and_nothing_is_made",
        "test_refusals.py::test_events_that_may_not_be_written_stop_nothing",
        "test_refusals.py::test_a_step_that_may_not_tear_down_does_so_when_it_may",
        "test_refusals.py::test_secrets_that_are_refused_are_told_with_the_right_that_is_missing",
        "test_retries.py::test_a_transient_error_is_on_the_object_after_ten_minutes_and_goes_when_it_ends",
        "test_tokens.py::test_a_group_deleted_right_after_its_tokens_were_written_leaves_none",
        "test_tokens.py::test_secrets_of_others_outlive_a_group",
    }
)
"""The stories whose first case runs on a real control plane in `make test-real`: each kind of call to
Kubernetes is in one of them. `make test-all` runs all stories there, in all cases."""
EMBEDDED_ALONE = frozenset(
    {
        "tests.stories.test_clocks",
        "tests.stories.test_jobset_slices",
        "tests.stories.test_many_jobsets",
        "tests.stories.test_node_pool_ends",
        "tests.stories.test_node_pool_slices",
        "tests.stories.test_older_pools",
        "tests.stories.test_suspended_jobsets",
        "tests.stories.test_upgrades",
    }
)
"""Stories in which Pods run (a real control plane alone has no kubelets), clocks are wrong, or manifests
change (there they are applied once for all)."""
REAL = pytest.param("real", marks=pytest.mark.real)
LONG_S = 1800
"""How long one of those may take there."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    told: set[str] = set()
    for item in items:
        if not item.get_closest_marker("real"):
            continue
        story = item.nodeid.removeprefix("tests/stories/").partition("[")[0]
        if story != item.nodeid.partition("[")[0]:
            if story in told or story not in EVERY_DAY_ON_REAL:
                item.add_marker(pytest.mark.slow)
            told.add(story)
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(LONG_S))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    real = [] if metafunc.module.__name__ in EMBEDDED_ALONE else [REAL]
    metafunc.parametrize("ground", ["embedded", *real], indirect=True)


@pytest.fixture(autouse=True)
def ground(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the story's harnesses stand on."""
    if request.param == "embedded":
        yield
        return
    with standing_on_real(request.getfixturevalue("installation")):
        yield
