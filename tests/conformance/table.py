"""For each behaviour of tpu-operator that is known: the tests that show ours, or why it is otherwise.

tests/data/tpu_node_group.yaml has the behaviours, each with its verdict: ``same``, or ``known_wrong``
with what would be better. A test shows what a user sees; how that operator is made inside (child
objects, their names, finalizers and times) is not repeated, what it is there for is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CRD = "unit/test_crd.py::"
SPEC = "unit/test_node_group.py::"
SHAPES = "unit/test_topology.py::"
CREATE = "unit/test_create_resources.py::"
INJECT = "unit/test_inject_token.py::"
LABEL = "unit/test_label_node.py::"
DELETE = "unit/test_tear_down.py::"
TOKENS = "unit/test_bootstrap.py::"
ERRORS = "unit/test_errors.py::"
TRIGGERS = "unit/test_triggers.py::"
MANIFESTS = "unit/test_manifests.py::"
RIGHTS = "unit/infra/test_cluster_permissions.py::"
BOOT = "unit/startup/test_boot.py::"
JOIN = "unit/startup/test_join.py::"
BODIES = "conformance/test_bodies.py::"
WORDS = "conformance/test_words.py::"
SEEN = "conformance/test_from_outside.py::"
LIVES = "stories/test_lives.py::"
CRASHES = "faults/test_crash_anywhere.py::"


@dataclass(frozen=True)
class Row:
    """Our answer to one row: ``tests`` (node ids below tests/), and where it differs, ``why``."""

    tests: tuple[str, ...]
    why: str = ""


Ids = str | Iterable[str]


def shown(*tests: Ids) -> Row:
    """Ours does the same; or, where theirs is known to be wrong, what would be better."""
    return Row(tuple(_flat(tests)))


def differs(why: str, *tests: Ids) -> Row:
    """Ours does otherwise, for a reason; the tests show what it does."""
    return Row(tuple(_flat(tests)), why)


def _flat(tests: Iterable[Ids]) -> Iterable[str]:
    for entry in tests:
        yield from (entry,) if isinstance(entry, str) else entry


def valid(name: str) -> list[str]:
    """A spec of tests/data/spec.yaml that both the definition and the functions take."""
    return [
        f"{CRD}test_a_spec_that_tpu_operator_accepts_is_accepted[{name}]",
        f"{SPEC}test_a_valid_spec_has_no_violation[{name}]",
    ]


def invalid(name: str) -> list[str]:
    """One that both refuse."""
    return [
        f"{CRD}test_an_invalid_spec_is_rejected_with_the_path_of_the_violation[{name}]",
        f"{SPEC}test_an_invalid_spec_has_a_violation_at_its_field[{name}]",
    ]


def accepted(name: str) -> list[str]:
    """One of ours that both take."""
    return [
        f"{CRD}test_a_valid_value_of_a_field_is_accepted[{name}]",
        f"{SPEC}test_a_spec_that_the_crd_accepts_has_no_violation[{name}]",
    ]


def refused(name: str) -> list[str]:
    """One of ours that both refuse."""
    return [
        f"{CRD}test_an_invalid_value_of_a_field_is_rejected_with_the_valid_ones[{name}]",
        f"{SPEC}test_a_spec_that_the_crd_rejects_has_a_violation_at_the_same_path[{name}]",
    ]


def misfit(name: str) -> list[str]:
    """A shape that both refuse."""
    return [
        f"{CRD}test_an_invalid_shape_is_rejected_with_the_valid_ones[{name}]",
        f"{SPEC}test_an_inconsistent_shape_has_one_violation_at_the_same_path[{name}]",
    ]


def immutable(name: str) -> str:
    return f"{CRD}test_a_field_that_tpu_operator_makes_immutable_is_immutable[{name}]"


def inserted(case: str) -> str:
    return f"{CREATE}test_create_resources_inserts_the_resources_that_are_missing[{case}]"


def judged(case: str) -> str:
    return (
        f"{CREATE}test_the_operation_of_an_insert_without_a_resource_decides_about_a_retry[{case}]"
    )


def user_template(case: str) -> str:
    return f"{CREATE}test_a_user_template_is_accepted_or_rejected_with_the_violation[{case}]"


def vm(case: str) -> str:
    return f"{INJECT}test_a_vm_gets_the_token_that_it_needs[{case}]"


def node(case: str) -> str:
    return f"{LABEL}test_a_node_is_labelled_deleted_or_left_unchanged[{case}]"


def ready(case: str) -> str:
    return f"{LABEL}test_the_condition_ready_follows_from_the_nodes[{case}]"


def goes(case: str) -> str:
    return f"{DELETE}test_the_plan_follows_from_the_resources_that_are_left[{case}]"


def goes_saying(case: str) -> str:
    return f"{WORDS}test_a_group_that_goes_says_what_is_waited_for_when[{case}]"


def family(machine_type: str) -> str:
    return f"{SHAPES}test_another_machine_type_is_not_found[{machine_type}]"


def error(name: str) -> str:
    return f"{ERRORS}test_a_known_error_is_classified[{name}]"


ONE_OBJECT = "one object stands for their three children"
NO_TRACE = f"{LIVES}test_the_readme_of_tpu_operator_works_unchanged"
PLUGIN = f"{SEEN}test_the_device_plugin_is_the_installations_and_stays"
PLUGIN_IS_INSTALLED = (
    "the device plugin belongs to the installation: the right to create DaemonSets in kube-system "
    "is the right to everything there, and no function needs it"
)

VALIDATION = {
    "val-required-fields": shown(
        invalid("missing-project"),
        invalid("missing-nodecount"),
        invalid("missing-topology"),
        invalid("missing-acceleratorconnectionmode"),
        refused("no-zone"),
        refused("no-size-mode"),
    ),
    "val-project-pattern": shown(refused("project-with-underscore"), invalid("project-too-long")),
    "val-project-too-short": shown(refused("project-of-five"), accepted("project-of-six")),
    "val-connection-mode-enum": shown(invalid("connection-mode")),
    "val-size-mode-enum": shown(invalid("size-mode")),
    "val-bulk-needs-two-nodes": shown(invalid("bulk-single")),
    "val-individual-many-nodes": shown(valid("individual-several")),
    "val-template-source-missing": shown(invalid("no-template-source")),
    "val-template-source-both": shown(invalid("two-template-sources")),
    "val-byo-other-project": shown(refused("template-of-another-project")),
    "val-byo-accepted-forms": shown(
        valid("bring-your-own-global"), valid("byo-regional"), accepted("locations-global")
    ),
    "val-byo-full-url-refused": shown(accepted("url")),
    "val-byo-uri-maxlength": shown(invalid("byo-too-long")),
    "val-machine-family": shown(
        invalid("machine-type-v5e"),
        invalid("machine-type-cpu"),
        family("ct5p-hightpu-4t"),
        family("ct4p-hightpu-4t"),
    ),
    "val-machine-family-ok": shown(
        accepted("tpu7"), valid("single-host-v6e-8"), valid("single-host-v6e-1")
    ),
    "val-machine-suffix-unchecked": shown(invalid("machine-type-unknown-suffix")),
    "val-one-service-account": shown(invalid("two-service-accounts")),
    "val-service-account-fields": shown(invalid("service-account-without-scopes")),
    "val-bootstrap-cp-required": shown(invalid("control-plane-missing")),
    "val-bootstrap-version-default": shown(
        f"{CRD}test_the_version_of_kubernetes_and_the_subnetwork_have_defaults"
    ),
    "val-immutable-objects": shown(
        immutable("change-image"),
        immutable("change-control-plane"),
        immutable("change-template-uri"),
    ),
    "val-immutable-bypass-by-removal": shown(
        immutable("drop-bootstrap"), immutable("swap-template-source")
    ),
    "val-nodecount-zero": shown(invalid("node-count-zero")),
    "val-nodecount-negative": shown(refused("negative-node-count")),
    "val-topology-product": shown(
        invalid("topology-does-not-fit"), invalid("single-host-topology-too-big")
    ),
    "val-topology-format": shown(
        invalid("topology-empty"),
        invalid("topology-not-a-shape"),
        invalid("topology-wrong-dimensions"),
        misfit("trailing-x"),
        misfit("zero"),
    ),
    "val-location-format": shown(invalid("location-is-a-region")),
    "val-reservation-bound-without-name": shown(invalid("reservation-bound-without-reservation")),
    "val-reservation-with-other-model": shown(invalid("reservation-with-spot")),
    "val-name-not-gce-name": differs(
        "dots are refused; a digit first and up to 63 characters are not, because names on Compute "
        "Engine are computed to fit",
        f"{CRD}test_a_name_that_compute_engine_does_not_accept_in_names_is_rejected[a.b]",
        f"{SPEC}test_a_resource_name_is_valid_on_compute_engine_for_any_group_name[1group]",
    ),
    "val-cp-endpoint-format": shown(
        invalid("control-plane-empty"),
        refused("endpoint-of-several-words"),
        valid("control-plane-with-port"),
        accepted("ipv6"),
        f"{JOIN}test_the_port_is_6443_unless_the_endpoint_names_one[fd00::2-[fd00::2]:6443]",
    ),
    "val-unknown-field-minnodecount": differs(
        "kept, so that their manifests work unchanged; a Warning event says that it does nothing",
        f"{LIVES}test_min_node_count_has_no_effect_and_a_warning_says_so",
    ),
}

NAMING = {
    "name-hash-suffix": differs(
        "names are of our own making (two clusters may share a project); theirs are known, to leave "
        "alone what that operator manages",
        f"{BODIES}test_children_that_tpu_operator_has_made_are_known_by_their_names",
        f"{SPEC}test_resource_names_differ_by_uid_and_by_cluster",
    ),
    "name-template": differs(
        ONE_OBJECT, f"{BODIES}test_children_that_tpu_operator_has_made_are_known_by_their_names"
    ),
    "name-mig": differs(
        ONE_OBJECT, f"{BODIES}test_children_that_tpu_operator_has_made_are_known_by_their_names"
    ),
    "name-gce-equals-cr": differs(
        f"{ONE_OBJECT}; the way from a resource to its group is label, name and description",
        f"{LIVES}test_every_resource_on_compute_engine_names_its_group",
        f"{TRIGGERS}test_the_group_of_an_entry_is_found[mig-insert-last]",
    ),
    "name-owner-reference": differs(
        f"{ONE_OBJECT}: nothing is left to the garbage collector, the finalizer sees to all",
        NO_TRACE,
    ),
    "name-secret": shown(
        f"{TOKENS}test_the_secret_of_a_token_has_the_fields_of_bootstrap_authentication"
    ),
    "name-region-from-zone": shown(
        f"{BODIES}test_policies_live_in_the_region_of_the_zone[us-central1-a-us-central1]"
    ),
    "name-region-from-region": differs(
        "a region is refused before (val-location-format)", invalid("location-is-a-region")
    ),
    "name-region-bad": shown(invalid("location-malformed"), refused("zone-of-one-part")),
}

TEMPLATE = {
    "tmpl-none-for-byo": shown(
        f"{SEEN}test_a_template_is_not_read_again_once_the_slice_stands",
        f"{LIVES}test_a_user_template_is_used_and_not_deleted",
    ),
    "tmpl-default-standard": shown(
        f"{SPEC}test_the_provisioning_model_without_a_reservation_is_standard"
    ),
    "tmpl-default-reservation-bound": shown(
        f"{SPEC}test_the_provisioning_model_with_a_reservation_is_reservation_bound"
    ),
    "tmpl-set-fields-kept": shown(
        f"{BODIES}test_vms_are_never_moved_and_end_as_their_model_demands[SPOT-scheduling1]",
        f"{BODIES}test_the_subnetwork_is_the_one_of_the_spec[custom-subnet-"
        "projects/my-gcp-project/regions/us-central1/subnetworks/custom-subnet]",
    ),
    "tmpl-termination-reservation-bound": shown(
        f"{BODIES}test_vms_are_never_moved_and_end_as_their_model_demands"
        "[RESERVATION_BOUND-scheduling2]"
    ),
    "tmpl-reservation-affinity": shown(f"{BODIES}test_a_reservation_is_consumed_by_its_name"),
    "tmpl-no-reservation": shown(f"{BODIES}test_without_reservation_none_is_named"),
    "tmpl-boot-disk": shown(f"{BODIES}test_the_boot_disk_is_as_the_spec_says_and_goes_with_its_vm"),
    "tmpl-no-disk-at-all": shown(invalid("no-boot-image")),
    "tmpl-tags": shown(f"{BODIES}test_tags_are_the_specs"),
    "tmpl-no-tags": shown(f"{BODIES}test_without_tags_there_are_none[tags0]"),
    "tmpl-service-account": shown(f"{BODIES}test_the_service_account_is_the_specs"),
    "tmpl-startup-script": shown(
        f"{BODIES}test_the_startup_script_knows_version_project_and_zone",
        f"{TOKENS}test_the_script_sets_the_values_of_the_slice",
    ),
    "tmpl-startup-script-wins": shown(refused("startup-script-with-bootstrap")),
    "tmpl-no-script-without-bootstrap": shown(
        f"{BODIES}test_without_bootstrapping_the_startup_script_is_the_users_or_none[given0]",
        f"{BODIES}test_without_bootstrapping_the_startup_script_is_the_users_or_none[given1]",
    ),
    "tmpl-version-nil": differs(
        "a version that is left out is 1.31, by the definition and again by the functions",
        valid("version-defaulted"),
        f"{BODIES}test_the_startup_script_knows_version_project_and_zone",
    ),
    "tmpl-kube-labels-not-in-template": shown(
        f"{BODIES}test_the_labels_that_are_known_beforehand_stand_in_the_template",
        f"{SEEN}test_metadata_is_written_once_for_each_vm",
    ),
    "tmpl-never-updated": differs(
        "a template cannot be changed on Compute Engine; one that somebody has put in the place of "
        "ours lacks our mark, and a condition says so",
        f"{CREATE}test_a_resource_with_another_ownership_mark_is_a_conflict_and_not_inserted",
    ),
}

POLICY = {
    "pol-bulk-only": shown(
        f"{BODIES}test_a_bulk_group_has_a_policy_with_its_topology",
        f"{BODIES}test_policies_live_in_the_region_of_the_zone[us-central1-a-us-central1]",
    ),
    "pol-skip-individual": shown(
        f"{BODIES}test_an_individual_group_repairs_its_vms_and_has_no_policy",
        f"{LIVES}test_several_single_hosts_are_separate_slices",
    ),
    "pol-skip-empty-topology": shown(invalid("topology-empty")),
    "pol-condition-created": differs(
        f"{ONE_OBJECT}: same condition and reason, the message names the policy",
        f"{SEEN}test_a_resource_is_provisioning_until_it_is_there"
        "[WorkloadPolicyReady-workload policy-WorkloadPolicy]",
    ),
    "pol-condition-ready": shown(
        f"{SEEN}test_a_resource_is_provisioning_until_it_is_there"
        "[WorkloadPolicyReady-workload policy-WorkloadPolicy]",
    ),
    "pol-spec-always-differs": shown(f"{SEEN}test_a_settled_group_is_written_no_more"),
}

MIG = {
    "mig-bulk-without-policy": differs(
        "there is none without; nothing repairs it VM by VM all the same",
        f"{BODIES}test_a_bulk_group_is_wired_by_its_policy_and_not_repaired_vm_by_vm",
    ),
    "mig-individual-repairs": shown(
        f"{BODIES}test_an_individual_group_repairs_its_vms_and_has_no_policy"
    ),
    "mig-gce-body": shown(
        f"{BODIES}test_a_bulk_group_is_wired_by_its_policy_and_not_repaired_vm_by_vm",
        f"{CREATE}test_the_mig_of_a_user_template_adds_the_node_labels_to_the_metadata_of_its_vms",
    ),
    "mig-insert-pending": differs(
        "the operation stands in status.resources; no event for what every life goes through, and "
        "no polling: the end of the operation is somebody's event",
        f"{SEEN}test_an_operation_stands_in_the_status_while_it_runs",
        f"{LIVES}test_events_report_a_life_in_the_words_of_tpu_operator",
    ),
    "mig-op-still-running": shown(judged("is running")),
    "mig-op-done": shown(f"{SEEN}test_an_operation_stands_in_the_status_while_it_runs"),
    "mig-op-failed": differs(
        "the reason is that of the failure, in GCE's words, and it is tried again within minutes",
        judged("failed with an environment error"),
        judged("failed with an internal error"),
        f"{SEEN}test_an_insert_that_ends_badly_is_made_again[QUOTA_EXCEEDED-QuotaExceeded]",
    ),
    "mig-insert-transient": shown(
        *(
            f"{SEEN}test_trouble_that_passes_is_tried_again_and_leaves_no_mark"
            f"[instanceGroupManagers.insert-{http}]"
            for http in (429, 500, 503, 504)
        ),
        f"{SEEN}test_a_refusal_of_another_kind_is_said_and_tried_again",
        f"{ERRORS}test_an_error_that_the_table_does_not_have_is_classified[no answer]",
    ),
    "mig-get-error": shown(
        f"{SEEN}test_a_read_that_fails_is_no_condition_and_no_event[instanceGroupManagers.get]"
    ),
    "mig-unstable": shown(
        f"{CREATE}test_the_condition_of_the_mig_follows_from_its_state[is creating its VMs]",
        f"{SEEN}test_a_slice_is_ready_within_seconds_of_what_it_waits_for",
    ),
    "mig-creation-failed": shown(
        f"{CREATE}test_the_condition_of_the_mig_follows_from_its_state[could not create a VM]",
        f"{SEEN}test_a_stockout_is_waited_out_and_its_condition_clears",
    ),
    "mig-terminal-is-forever": shown(
        f"{SEEN}test_a_stockout_is_waited_out_and_its_condition_clears",
        f"{SEEN}test_a_refusal_of_another_kind_is_said_and_tried_again",
    ),
    "mig-ready": differs(
        f"{ONE_OBJECT}: its condition is ManagedInstanceGroupReady, its URL stands in "
        "status.resources, the event is ChildResourcesProvisioned",
        f"{SEEN}test_the_managed_instance_group_is_ready_when_its_vms_are_made",
        f"{SEEN}test_what_stands_is_named_by_its_uri",
        f"{LIVES}test_events_report_a_life_in_the_words_of_tpu_operator",
    ),
    "mig-parent-waits-stable": differs(
        f"{ONE_OBJECT}: same condition and reason, the message says for how many VMs",
        f"{SEEN}test_the_managed_instance_group_is_ready_when_its_vms_are_made",
    ),
    "mig-parent-ready-event": shown(
        f"{SEEN}test_the_managed_instance_group_is_ready_when_its_vms_are_made",
        f"{LIVES}test_events_report_a_life_in_the_words_of_tpu_operator",
    ),
    "mig-list-before-it-exists": shown(
        f"{SEEN}test_ready_goes_through_the_reasons_of_every_life_and_no_other",
        f"{SEEN}test_a_life_in_which_nothing_goes_wrong_has_no_warning",
    ),
    "mig-op-expired": shown(
        judged("does not exist any more"),
        f"{SEEN}test_operations_that_compute_engine_knows_no_more_are_forgotten",
    ),
}

BOOTSTRAP = {
    "boot-keys": shown(
        vm("a new VM gets a token in its metadata, then the Secret"),
        f"{INJECT}test_the_metadata_of_other_writers_is_kept",
        error("instances.setMetadata: fingerprint stale"),
    ),
    "boot-cp-ip": shown(f"{TOKENS}test_the_metadata_contains_the_endpoint_of_the_spec_unchanged"),
    "boot-vm-states": differs(
        "while an insert or start is under way, Compute Engine refuses to write the VM's metadata: the"
        " token comes with its end",
        *(
            f"{BODIES}test_a_vm_gets_its_token_when_its_metadata_can_be_written[{status}]"
            for status in ("PROVISIONING", "STAGING", "RUNNING")
        ),
        f"{INJECT}test_a_vm_that_is_being_staged_gets_a_token_after_the_end_of_its_insert",
    ),
    "boot-vm-states-skipped": differs(
        "no token either; kube-labels needs no call, it stands in the template",
        *(
            f"{BODIES}test_a_vm_that_cannot_join_gets_none[{status}]"
            for status in ("STOPPING", "SUSPENDING", "SUSPENDED", "TERMINATED", "")
        ),
        f"{BODIES}test_the_labels_that_are_known_beforehand_stand_in_the_template",
    ),
    "boot-byo-no-token": shown(
        f"{SEEN}test_vms_of_ones_own_template_get_their_labels_without_a_call_for_each",
        f"{CREATE}test_the_mig_of_a_user_template_adds_the_node_labels_to_the_metadata_of_its_vms",
    ),
    "boot-kube-labels-merge": shown(
        f"{BODIES}test_kube_labels_keeps_what_others_have_put_there[foo=bar-a=1,b=2,foo=bar]"
    ),
    "boot-kube-labels-topology-removed": differs(
        "an empty topology is refused (val-topology-format); another value than ours is replaced",
        invalid("topology-empty"),
        f"{BODIES}test_kube_labels_keeps_what_others_have_put_there[a=old,foo=bar-a=1,b=2,foo=bar]",
    ),
    "boot-topology-id-missing": differs(
        "what accelerator_topology_id must hold is not known; it is neither written nor claimed"
    ),
    "boot-writes-always": shown(
        vm("a VM with a token in its metadata gets the Secret"),
        vm("a VM that has joined needs no action"),
        f"{SEEN}test_metadata_is_written_once_for_each_vm",
    ),
    "boot-list-fails": shown(
        f"{SEEN}test_a_read_that_fails_is_no_condition_and_no_event[instances.list]"
    ),
    "boot-ca-hash": shown(f"{TOKENS}test_the_pin_is_the_hash_of_the_public_key[rsa]"),
    "boot-ca-missing": shown(
        f"{TOKENS}test_an_unreadable_ca_is_reported_with_its_configmap[empty]",
        f"{TOKENS}test_an_unreadable_ca_is_reported_with_its_configmap[no-pem]",
    ),
    "boot-script-wait": shown(f"{JOIN}test_a_vm_without_a_token_waits_for_one"),
    "boot-script-reboot": shown(f"{BOOT}test_a_joined_vm_that_reboots_is_not_changed"),
}

TOKEN = {
    "tok-format": shown(f"{TOKENS}test_a_new_token_has_the_format_of_a_bootstrap_token"),
    "tok-labels": shown(
        f"{TOKENS}test_the_secret_of_a_token_has_the_fields_of_bootstrap_authentication"
    ),
    "tok-expired": shown(f"{BODIES}test_a_token_is_kept_while_it_lasts_ten_minutes_more[-1-False]"),
    "tok-expires-soon": shown(
        f"{BODIES}test_a_token_is_kept_while_it_lasts_ten_minutes_more[5-False]",
        f"{BODIES}test_a_token_is_kept_while_it_lasts_ten_minutes_more[10-True]",
    ),
    "tok-latest-wins": shown(
        f"{SEEN}test_every_vm_has_a_token_of_its_own_and_none_is_valid_after_the_join",
        vm("a VM with a token in its metadata gets the Secret"),
    ),
    "tok-other-group": differs(
        "Secrets are not read at all: a token is a VM's, and the VM's metadata names it",
        f"{SEEN}test_every_vm_has_a_token_of_its_own_and_none_is_valid_after_the_join",
        f"{RIGHTS}test_a_step_has_exactly_the_permissions_in_the_cluster_that_it_uses[inject_token]",
    ),
    "tok-shared-by-slice": shown(
        f"{SEEN}test_every_vm_has_a_token_of_its_own_and_none_is_valid_after_the_join"
    ),
    "tok-not-removed-after-join": differs(
        "the Secret goes as soon as the Node is proved; the keys in the metadata stay, being worth "
        "nothing without it, and one more write for each VM is saved",
        f"{SEEN}test_every_vm_has_a_token_of_its_own_and_none_is_valid_after_the_join",
    ),
    "tok-gc-on-delete": shown(
        f"{SEEN}test_tokens_of_a_group_that_goes_are_revoked_and_no_others",
        (
            f"{DELETE}test_a_deletion_begins_with_the_actions_that_are_missing"
            "[tokens of VMs that have not joined are revoked]"
        ),
    ),
    "tok-gc-skipped-without-bootstrap": shown(
        f"{SEEN}test_without_bootstrapping_no_secret_is_touched"
    ),
}

NODE = {
    "node-match": shown(
        node("of a VM of the group"),
        node("of another zone"),
        node("on a VM that the MIG did not create"),
    ),
    "node-missing-provider-id": shown(
        node("without a providerID"),
        f"{LABEL}test_the_message_counts_nodes_without_a_provider_id_as_tpu_operator_does",
    ),
    "node-labels": shown(f"{LABEL}test_a_node_gets_the_labels_of_tpu_operator_and_of_this_system"),
    "node-label-readme-selector": shown(
        f"{LABEL}test_a_node_gets_the_labels_of_tpu_operator_and_of_this_system",
        f"{SPEC}test_a_namespaced_name_that_is_too_long_for_a_label_is_omitted[63 characters]",
        f"{SPEC}test_a_namespaced_name_that_is_too_long_for_a_label_is_omitted[64]",
    ),
    "node-label-corrected": shown(node("proved, with a changed label")),
    "node-label-no-write-when-right": shown(
        node("proved, with all labels"),
        f"{SEEN}test_a_node_whose_labels_are_right_is_patched_no_more",
    ),
    "node-label-unknown-machine": differs(
        "such a machine is refused, in the spec and in a template of one's own; were there one, its "
        "Nodes would get the group's labels and none about its chips",
        user_template("is of a machine type without TPUs"),
        f"{WORDS}test_a_machine_that_is_not_known_gives_no_accelerator_labels",
    ),
    "node-accelerator-older": differs(
        "refused there and here, so that there is nothing to map",
        family("ct5lp-hightpu-4t"),
        family("ct5p-hightpu-4t"),
        family("ct4p-hightpu-4t"),
    ),
    "node-chips": shown(
        f"{SHAPES}test_a_machine_type_has_a_generation_and_chips[tpu7x-standard-1t-tpu7x-1]",
        f"{SHAPES}test_a_machine_type_has_a_generation_and_chips[ct6e-standard-2t-ct6e-2]",
        f"{SHAPES}test_a_machine_type_has_a_generation_and_chips[tpu7-standard-4t-tpu7-4]",
        f"{SHAPES}test_a_machine_type_has_a_generation_and_chips[ct6e-standard-8t-ct6e-8]",
        family("tpu7x-standard-16t"),
    ),
    "node-machine-type-url": shown(
        f"{SHAPES}test_a_machine_type_has_a_generation_and_chips"
        "[zones/us-central1-a/machineTypes/tpu7x-standard-4t-tpu7x-4]"
    ),
    "node-ready-rule": shown(
        f"{WORDS}test_a_ready_node_offers_all_chips_of_its_vm[all]",
        ready("both, and the interconnect is active"),
    ),
    "node-ready-needs-chips": shown(
        *(
            f"{WORDS}test_a_ready_node_offers_all_chips_of_its_vm[{case}]"
            for case in ("none", "zero", "too few")
        )
    ),
    "node-ready-no-ici": shown(
        ready("both, and the interconnect has failed"),
        ready("both, and the interconnect is unknown"),
        f"{LABEL}test_an_unknown_interconnect_delays_a_slice_for_at_most_five_minutes",
    ),
    "node-no-taint": differs(
        "none unless nodeTaints asks: workloads written for tpu-operator, which sets none, must "
        "still be scheduled",
        f"{LIVES}test_nodes_get_no_taint_unless_the_user_requests_it",
        f"{LIVES}test_labels_and_taints_of_the_user_are_on_every_node",
    ),
    "node-not-watched": shown(
        f"{SEEN}test_a_node_that_turns_unready_makes_the_slice_unready_within_seconds"
    ),
}

STATUS = {
    "stat-finalizers": differs(
        "one finalizer: what still stands is in status.resources; it is there before anything is "
        "asked of Compute Engine",
        f"{CREATE}test_a_new_group_gets_finalizer_and_label_before_the_first_insert",
    ),
    "stat-gone": shown(f"{SEEN}test_a_message_about_a_group_that_is_gone_is_acknowledged"),
    "stat-awaiting": shown(
        f"{SEEN}test_nodes_that_have_not_joined_are_counted_in_tpu_operators_words"
    ),
    "stat-joining-event": shown(
        f"{WORDS}test_joining_is_told_once_with_the_first_node_of_several[0-1-told0]"
    ),
    "stat-no-joining-event": shown(
        f"{WORDS}test_joining_is_told_once_with_the_first_node_of_several[1-1-told1]",
        f"{WORDS}test_joining_is_told_once_with_the_first_node_of_several[1-2-told2]",
    ),
    "stat-ready": shown(
        f"{SEEN}test_ready_goes_through_the_reasons_of_every_life_and_no_other",
        f"{WORDS}test_a_change_is_told_once[ready]",
        f"{WORDS}test_a_change_is_told_once[still ready]",
    ),
    "stat-failed-never-set": differs(
        "VMs that did not join in time are counted; that some could not be made is told by the "
        "condition of the managed instance group, in GCE's words",
        f"{CREATE}test_the_condition_of_the_mig_follows_from_its_state[could not create a VM]",
        f"{SEEN}test_vms_that_never_join_are_named_and_counted_after_a_quarter_of_an_hour",
    ),
    "stat-error": shown(
        f"{SEEN}test_a_read_that_fails_is_no_condition_and_no_event[instances.get]"
    ),
    "stat-ready-overwritten-by-blip": shown(
        f"{SEEN}test_a_read_that_fails_says_nothing_about_the_nodes_of_a_ready_slice"
    ),
    "stat-child-terminal": shown(
        f"{SEEN}test_a_refusal_of_another_kind_is_said_and_tried_again",
        f"{WORDS}test_a_change_is_told_once[refused]",
        f"{WORDS}test_a_change_is_told_once[still refused]",
    ),
    "stat-no-deadline": shown(
        f"{SEEN}test_vms_that_never_join_are_named_and_counted_after_a_quarter_of_an_hour",
        ready("a VM has not joined in time"),
    ),
    "stat-no-observed-generation": shown(
        f"{SEEN}test_every_condition_says_which_generation_it_is_about"
    ),
}

DEVICE_PLUGIN = {
    "dp-daemonset": differs(
        PLUGIN_IS_INSTALLED,
        f"{MANIFESTS}test_the_device_plugin_runs_only_on_tpu_nodes_and_tolerates_their_taints",
        f"{MANIFESTS}test_the_device_plugins_images_are_pinned_and_its_mounts_exist",
    ),
    "dp-exists": shown(PLUGIN),
    "dp-not-updated": differs(
        f"{PLUGIN_IS_INSTALLED}; kubectl apply brings it up to date",
        f"{MANIFESTS}test_every_manifest_of_the_folder_is_part_of_the_base",
    ),
    "dp-wakes-every-group": shown(
        f"{RIGHTS}test_the_relay_may_read_only_the_collections_that_it_watches"
    ),
    "dp-service-account-not-applied": shown(
        f"{MANIFESTS}test_the_device_plugin_runs_only_on_tpu_nodes_and_tolerates_their_taints"
    ),
    "dp-kept-while-others": shown(PLUGIN),
    "dp-deleted-with-last": differs(
        f"{PLUGIN_IS_INSTALLED}; without TPU Nodes it runs nowhere", PLUGIN
    ),
    "dp-already-gone": differs(
        f"{PLUGIN_IS_INSTALLED}; where it is missing, Nodes without chips are named",
        ready("one has no chips for long"),
    ),
}

DELETION = {
    "del-cordon": shown(
        f"{SEEN}test_deletion_cordons_first_and_takes_what_uses_before_what_is_used",
        f"{DELETE}test_a_deletion_begins_with_the_status_and_the_nodes",
    ),
    "del-no-drain": differs(
        "deleting a group deletes its VMs at once, there as here: whoever wants to drain does so "
        "first (kubectl drain)"
    ),
    "del-order": differs(
        "MIG before template and policy, as there; these two side by side, since neither uses the "
        "other; tokens before all, being what could still let somebody in",
        f"{SEEN}test_deletion_cordons_first_and_takes_what_uses_before_what_is_used",
        (
            f"{DELETE}test_a_deletion_begins_with_the_actions_that_are_missing"
            "[tokens of VMs that have not joined are revoked]"
        ),
        goes("template and policy are deleted in parallel, then Nodes"),
        goes("late Nodes are deleted before the group"),
    ),
    "del-wait-mig": shown(
        goes_saying("all stand"), f"{LIVES}test_deletion_is_reported_step_by_step"
    ),
    "del-wait-template": shown(goes_saying("the MIG is gone")),
    "del-wait-policy": shown(goes_saying("the template is gone too")),
    "del-nodes": differs(
        "the tokens are revoked long before, so that the message speaks of Nodes only",
        goes_saying("all are gone"),
        goes("late Nodes are deleted before the group"),
    ),
    "del-nodes-only-labelled": shown(
        f"{SEEN}test_a_node_that_joined_and_was_never_labelled_goes_with_its_group"
        "[registered with labels]",
        f"{SEEN}test_a_node_that_joined_and_was_never_labelled_goes_with_its_group[without any]",
    ),
    "del-device-plugin-condition": differs(PLUGIN_IS_INSTALLED, PLUGIN),
    "del-all-gone": shown(goes("the finalizer is removed after the last resource")),
    "del-child-404": shown(
        f"{SEEN}test_what_a_person_has_deleted_before_is_no_obstacle",
        f"{SEEN}test_an_answer_to_a_delete_that_says_there_is_nothing_is_no_obstacle"
        "[instanceGroupManagers]",
    ),
    "del-child-op-404": shown(f"{SEEN}test_a_delete_whose_operation_found_nothing_is_done"),
    "del-child-starts": differs(
        "the operation stands in status.resources; one Cleanup event for the whole deletion, no "
        "polling",
        goes("a running delete is awaited"),
        f"{LIVES}test_events_report_a_life_in_the_words_of_tpu_operator",
    ),
    "del-child-done-at-once": differs(
        "what is gone is seen by reading it, however soon its operation ended",
        goes("the finalizer is removed after the last resource"),
        f"{SEEN}test_what_a_person_has_deleted_before_is_no_obstacle",
    ),
    "del-child-error": shown(
        f"{SEEN}test_a_delete_that_is_refused_keeps_the_group_until_it_is_done[503-backendError]",
        f"{SEEN}test_a_delete_that_is_refused_keeps_the_group_until_it_is_done[403-forbidden]",
    ),
    "del-during-create": shown(
        goes("a running insert is awaited"),
        f"{CRASHES}test_a_step_may_die_at_any_call[deleted_in_mid_creation-0]",
    ),
    "del-op-failed": shown(
        f"{SEEN}test_a_delete_that_ends_badly_is_sent_again_within_two_minutes",
        goes("a delete that ended without an effect is repeated"),
    ),
    "del-child-finalizers": differs(
        f"{ONE_OBJECT} and their finalizers; while theirs are on a group it is not touched",
        f"{CREATE}test_a_group_of_tpu_operator_is_not_owned[finalizer]",
        f"{CREATE}test_a_group_of_tpu_operator_is_not_owned[children]",
    ),
    "del-byo-template-kept": shown(
        f"{DELETE}test_a_template_of_the_user_is_not_deleted",
        f"{LIVES}test_a_user_template_is_used_and_not_deleted",
    ),
}

OWN_TEMPLATE = {
    "byo-machine-type": differs(
        "same condition, message and event; Ready gives the same reason instead of ReconcileError, "
        "and no second event follows",
        f"{SEEN}test_a_template_for_no_tpu_is_named_and_waits_for_another",
    ),
    "byo-machine-type-url": shown(user_template("names its machine type by a URL")),
    "byo-no-scheduling": shown(user_template("has no scheduling")),
    "byo-maintenance": shown(user_template("migrates VMs on maintenance")),
    "byo-reservation-bound-action": shown(user_template("stops reserved VMs")),
    "byo-spot-action": shown(user_template("deletes Spot VMs, which is valid")),
    "byo-regional-template": shown(
        f"{SEEN}test_a_regional_template_is_read_from_its_region",
        f"{BODIES}test_a_template_of_ones_own_is_used_from_the_scope_that_its_uri_names"
        "[regions/us-central1]",
    ),
    "byo-fetched-every-pass": shown(
        f"{SEEN}test_a_template_is_not_read_again_once_the_slice_stands"
    ),
    "byo-not-checked": shown(
        user_template("has another shape"),
        user_template("names no reservation"),
        user_template("has no disk"),
    ),
}

ROWS: dict[str, Row] = {
    **VALIDATION,
    **NAMING,
    **TEMPLATE,
    **POLICY,
    **MIG,
    **BOOTSTRAP,
    **TOKEN,
    **NODE,
    **STATUS,
    **DEVICE_PLUGIN,
    **DELETION,
    **OWN_TEMPLATE,
}

NOT_MADE_HERE = "groups are of v6e and TPU7x only; the machine types of others are refused"
OF_CONTAINERS = "about the variables of containers, which no group sets"

TOPOLOGY_RULES: dict[str, Row] = {
    "dims": shown(misfit("four-dimensions"), misfit("trailing-x"), misfit("zero")),
    "chips": shown(
        f"{SHAPES}test_the_number_of_vms_follows_from_topology_and_machine_type[ct6e-standard-8t-1]"
    ),
    "hosts": shown(f"{SHAPES}test_a_wrong_size_of_a_bulk_group_is_reported_with_the_right_one"),
    "chips_per_host_bounds": shown(
        f"{SHAPES}test_the_chip_bounds_of_a_host_are_those_of_the_device_plugin",
    ),
    "chips_per_host_bounds_source": differs("a note"),
    **dict.fromkeys(
        (
            "host_bounds",
            "accelerator_type",
            "cores_per_chip",
            "wrap",
            "alt",
            "metrics_ports",
            "ici_resiliency",
            "single_host_defaults",
        ),
        differs(OF_CONTAINERS),
    ),
}
NODE_LABELS = f"{LABEL}test_a_node_gets_the_labels_of_tpu_operator_and_of_this_system"
TOPOLOGY_LABELS: dict[str, Row] = {
    "accelerator": shown(NODE_LABELS),
    "topology": shown(NODE_LABELS),
    "chips_per_node": shown(NODE_LABELS),
    "node_group": shown(NODE_LABELS),
    "topology_mode": differs("the topology label is always there"),
    "sub_slice_annotation": differs(OF_CONTAINERS),
    "ici_resiliency": differs("left to the device plugin's default"),
    "design_doc_only": differs("no code of tpu-operator writes or reads them"),
}
TOPOLOGY_GENERATIONS: dict[str, Row] = {
    "v6e": shown(f"{SHAPES}test_a_generation_has_the_documented_properties[v6e]"),
    "tpu7x": shown(
        f"{SHAPES}test_a_generation_has_the_documented_properties[tpu7x]",
        f"{CRD}test_each_shape_of_xpk_is_accepted",
        f"{SHAPES}test_a_large_v7_shape_is_valid_if_it_is_a_sorted_block_of_cubes_within_a_pod",
    ),
    "v4": differs(NOT_MADE_HERE, family("ct4p-hightpu-4t")),
    "v5e": differs(NOT_MADE_HERE, family("ct5lp-hightpu-4t")),
    "v5p": differs(NOT_MADE_HERE, family("ct5p-hightpu-4t")),
}
TOPOLOGY_TRAPS: dict[str, Row] = {
    "v6e-8-two-meanings": shown(
        (
            f"{SHAPES}test_the_number_of_vms_follows_from_topology_and_machine_type"
            "[ct6e-standard-8t-1]"
        ),
        (
            f"{SHAPES}test_the_number_of_vms_follows_from_topology_and_machine_type"
            "[ct6e-standard-4t-2]"
        ),
    ),
    "integer-division": shown(
        (
            f"{SHAPES}test_a_shape_that_does_not_fit_is_rejected_with_the_reason"
            "[a slice smaller than a VM]"
        ),
        (
            f"{SHAPES}test_a_shape_that_does_not_fit_is_rejected_with_the_reason"
            "[a shape that v6e does not have]"
        ),
    ),
    "request-three": shown(
        f"{SHAPES}test_the_chip_bounds_of_a_host_are_those_of_the_device_plugin",
        family("tpu7x-standard-3t"),
    ),
    "seed-manifest-type": differs(OF_CONTAINERS),
    "chips-vs-cores": shown(
        f"{SHAPES}test_a_machine_type_has_a_generation_and_chips[tpu7x-standard-4t-tpu-tpu7x-4]",
        NODE_LABELS,
    ),
    "dra-driver-tpu7x": differs("the device plugin is what gives out the chips, not that driver"),
    "operator-supported": shown(family("tpu7x-standard"), invalid("machine-type-v5e")),
}
