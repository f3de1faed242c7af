"""For each known behaviour of tpu-operator: the tests of this system's behaviour, or the reason why it
differs.

tests/data/tpu_node_group.yaml lists the behaviours, each with a verdict: ``same``, or ``known_wrong``
with the correct behaviour. The tests are about what a user observes. Internals of tpu-operator (child
objects, their names, finalizers and times) are not compared, only their purpose is.
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
PERMISSIONS = "unit/infra/test_cluster_permissions.py::"
BOOT = "unit/startup/test_boot.py::"
JOIN = "unit/startup/test_join.py::"
BODIES = "conformance/test_bodies.py::"
MESSAGES = "conformance/test_messages.py::"
BEHAVIOUR = "conformance/test_behaviour.py::"
LIFECYCLE = "stories/test_lifecycle.py::"
CRASHES = "faults/test_crash_anywhere.py::"


@dataclass(frozen=True)
class Row:
    """The answer to one row: ``tests`` (node ids below tests/), and ``why`` if the behaviour differs."""

    tests: tuple[str, ...]
    why: str = ""


Ids = str | Iterable[str]


def shown(*tests: Ids) -> Row:
    """A behaviour that is the same, or the correct one if tpu-operator's is known to be wrong."""
    return Row(tuple(_flat(tests)))


def differs(why: str, *tests: Ids) -> Row:
    """A behaviour that differs for a reason; the tests show it."""
    return Row(tuple(_flat(tests)), why)


def _flat(tests: Iterable[Ids]) -> Iterable[str]:
    for entry in tests:
        yield from (entry,) if isinstance(entry, str) else entry


def valid(name: str) -> list[str]:
    """Tests that the CRD and the functions accept a spec of tests/data/spec.yaml."""
    return [
        f"{CRD}test_a_spec_that_tpu_operator_accepts_is_accepted[{name}]",
        f"{SPEC}test_a_valid_spec_has_no_violation[{name}]",
    ]


def invalid(name: str) -> list[str]:
    """Tests that the CRD and the functions reject a spec of tests/data/spec.yaml."""
    return [
        f"{CRD}test_an_invalid_spec_is_rejected_with_the_path_of_the_violation[{name}]",
        f"{SPEC}test_an_invalid_spec_has_a_violation_at_its_field[{name}]",
    ]


def accepted(name: str) -> list[str]:
    """Tests that the CRD and the functions accept a spec of tests/unit/specs.py."""
    return [
        f"{CRD}test_a_valid_value_of_a_field_is_accepted[{name}]",
        f"{SPEC}test_a_spec_that_the_crd_accepts_has_no_violation[{name}]",
    ]


def rejected(name: str) -> list[str]:
    """Tests that the CRD and the functions reject a spec of tests/unit/specs.py."""
    return [
        f"{CRD}test_an_invalid_value_of_a_field_is_rejected_with_the_valid_ones[{name}]",
        f"{SPEC}test_a_spec_that_the_crd_rejects_has_a_violation_at_the_same_path[{name}]",
    ]


def invalid_shape(name: str) -> list[str]:
    """Tests that the CRD and the functions reject a shape."""
    return [
        f"{CRD}test_an_invalid_shape_is_rejected_with_the_valid_ones[{name}]",
        f"{SPEC}test_an_inconsistent_shape_has_one_violation_at_the_same_path[{name}]",
    ]


def immutable(name: str) -> str:
    return f"{CRD}test_a_field_that_tpu_operator_makes_immutable_is_immutable[{name}]"


def inserted(case: str) -> str:
    return f"{CREATE}test_create_resources_inserts_the_resources_that_are_missing[{case}]"


def insert_result(case: str) -> str:
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


def deletion_plan(case: str) -> str:
    return f"{DELETE}test_the_plan_follows_from_the_resources_that_are_left[{case}]"


def deletion_message(case: str) -> str:
    return f"{MESSAGES}test_the_condition_of_a_deletion_names_the_resource_it_waits_for[{case}]"


def family(machine_type: str) -> str:
    return f"{SHAPES}test_another_machine_type_is_not_found[{machine_type}]"


def error(name: str) -> str:
    return f"{ERRORS}test_a_known_error_is_classified[{name}]"


ONE_OBJECT = "one object replaces the three child objects of tpu-operator"
README = f"{LIFECYCLE}test_the_example_in_the_readme_of_tpu_operator_works_unchanged"
PLUGIN = f"{BEHAVIOUR}test_the_device_plugin_is_not_changed_by_groups"
PLUGIN_IS_INSTALLED = (
    "the device plugin belongs to the installation: the permission to create DaemonSets in "
    "kube-system permits everything there, and no function needs it"
)

VALIDATION = {
    "val-required-fields": shown(
        invalid("missing-project"),
        invalid("missing-nodecount"),
        invalid("missing-topology"),
        invalid("missing-acceleratorconnectionmode"),
        rejected("no-zone"),
        rejected("no-size-mode"),
    ),
    "val-project-pattern": shown(rejected("project-with-underscore"), invalid("project-too-long")),
    "val-project-too-short": shown(rejected("project-of-five"), accepted("project-of-six")),
    "val-connection-mode-enum": shown(invalid("connection-mode")),
    "val-size-mode-enum": shown(invalid("size-mode")),
    "val-bulk-needs-two-nodes": shown(invalid("bulk-single")),
    "val-individual-many-nodes": shown(valid("individual-several")),
    "val-template-source-missing": shown(invalid("no-template-source")),
    "val-template-source-both": shown(invalid("two-template-sources")),
    "val-byo-other-project": shown(rejected("template-of-another-project")),
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
    "val-nodecount-negative": shown(rejected("negative-node-count")),
    "val-topology-product": shown(
        invalid("topology-does-not-fit"), invalid("single-host-topology-too-big")
    ),
    "val-topology-format": shown(
        invalid("topology-empty"),
        invalid("topology-not-a-shape"),
        invalid("topology-wrong-dimensions"),
        invalid_shape("trailing-x"),
        invalid_shape("zero"),
    ),
    "val-location-format": shown(invalid("location-is-a-region")),
    "val-reservation-bound-without-name": shown(invalid("reservation-bound-without-reservation")),
    "val-reservation-with-other-model": shown(invalid("reservation-with-spot")),
    "val-name-not-gce-name": differs(
        "dots are rejected; a leading digit and up to 63 characters are accepted, because names on "
        "Compute Engine are computed to be valid",
        f"{CRD}test_a_name_that_compute_engine_does_not_accept_in_names_is_rejected[a.b]",
        f"{SPEC}test_a_resource_name_is_valid_on_compute_engine_for_any_group_name[1group]",
    ),
    "val-cp-endpoint-format": shown(
        invalid("control-plane-empty"),
        rejected("endpoint-of-several-words"),
        valid("control-plane-with-port"),
        accepted("ipv6"),
        f"{JOIN}test_the_port_is_6443_unless_the_endpoint_names_one[fd00::2-[fd00::2]:6443]",
    ),
    "val-unknown-field-minnodecount": differs(
        "accepted, so that manifests of tpu-operator work unchanged; a Warning event reports that it "
        "has no effect",
        f"{LIFECYCLE}test_min_node_count_has_no_effect_and_a_warning_says_so",
    ),
}

NAMING = {
    "name-hash-suffix": differs(
        "names have another format, because two clusters may share a project; names of tpu-operator "
        "are recognized, so that its resources are not changed",
        f"{BODIES}test_children_of_tpu_operator_are_recognized_by_name",
        f"{SPEC}test_resource_names_differ_by_uid_and_by_cluster",
    ),
    "name-template": differs(
        ONE_OBJECT, f"{BODIES}test_children_of_tpu_operator_are_recognized_by_name"
    ),
    "name-mig": differs(
        ONE_OBJECT, f"{BODIES}test_children_of_tpu_operator_are_recognized_by_name"
    ),
    "name-gce-equals-cr": differs(
        f"{ONE_OBJECT}; a resource refers to its group by label, name and description",
        f"{LIFECYCLE}test_every_resource_on_compute_engine_names_its_group",
        f"{TRIGGERS}test_the_group_of_an_entry_is_found[mig-insert-last]",
    ),
    "name-owner-reference": differs(
        f"{ONE_OBJECT}: resources are deleted because of the finalizer, not by garbage collection",
        README,
    ),
    "name-secret": shown(
        f"{TOKENS}test_the_secret_of_a_token_has_the_fields_of_bootstrap_authentication"
    ),
    "name-region-from-zone": shown(
        f"{BODIES}test_a_policy_is_in_the_region_of_the_zone[us-central1-a-us-central1]"
    ),
    "name-region-from-region": differs(
        "validation rejects a region (val-location-format)", invalid("location-is-a-region")
    ),
    "name-region-bad": shown(invalid("location-malformed"), rejected("zone-of-one-part")),
}

TEMPLATE = {
    "tmpl-none-for-byo": shown(
        f"{BEHAVIOUR}test_a_user_template_is_not_read_again_after_the_slice_is_ready",
        f"{LIFECYCLE}test_a_user_template_is_used_and_not_deleted",
    ),
    "tmpl-default-standard": shown(
        f"{SPEC}test_the_provisioning_model_without_a_reservation_is_standard"
    ),
    "tmpl-default-reservation-bound": shown(
        f"{SPEC}test_the_provisioning_model_with_a_reservation_is_reservation_bound"
    ),
    "tmpl-set-fields-kept": shown(
        f"{BODIES}test_the_scheduling_of_vms_follows_from_the_provisioning_model[SPOT-scheduling1]",
        f"{BODIES}test_the_subnetwork_follows_from_the_spec[custom-subnet-"
        "projects/my-gcp-project/regions/us-central1/subnetworks/custom-subnet]",
    ),
    "tmpl-termination-reservation-bound": shown(
        f"{BODIES}test_the_scheduling_of_vms_follows_from_the_provisioning_model"
        "[RESERVATION_BOUND-scheduling2]"
    ),
    "tmpl-reservation-affinity": shown(
        f"{BODIES}test_the_template_refers_to_the_reservation_by_name"
    ),
    "tmpl-no-reservation": shown(
        f"{BODIES}test_the_template_has_no_reservation_if_the_spec_has_none"
    ),
    "tmpl-boot-disk": shown(
        f"{BODIES}test_the_boot_disk_follows_from_the_spec_and_is_deleted_with_its_vm"
    ),
    "tmpl-no-disk-at-all": shown(invalid("no-boot-image")),
    "tmpl-tags": shown(f"{BODIES}test_the_tags_are_those_of_the_spec"),
    "tmpl-no-tags": shown(f"{BODIES}test_the_template_has_no_tags_if_the_spec_has_none[tags0]"),
    "tmpl-service-account": shown(f"{BODIES}test_the_service_account_is_that_of_the_spec"),
    "tmpl-startup-script": shown(
        f"{BODIES}test_the_startup_script_contains_version_project_and_zone",
        f"{TOKENS}test_the_script_sets_the_values_of_the_slice",
    ),
    "tmpl-startup-script-wins": shown(rejected("startup-script-with-bootstrap")),
    "tmpl-no-script-without-bootstrap": shown(
        f"{BODIES}test_without_bootstrapping_the_metadata_has_only_the_startup_script_of_the_user[given0]",
        f"{BODIES}test_without_bootstrapping_the_metadata_has_only_the_startup_script_of_the_user[given1]",
    ),
    "tmpl-version-nil": differs(
        "the default version is 1.31, in the CRD and in the functions",
        valid("version-defaulted"),
        f"{BODIES}test_the_startup_script_contains_version_project_and_zone",
    ),
    "tmpl-kube-labels-not-in-template": shown(
        f"{BODIES}test_the_template_has_the_node_labels",
        f"{BEHAVIOUR}test_metadata_is_written_once_for_each_vm",
    ),
    "tmpl-never-updated": differs(
        "a template cannot be changed on Compute Engine; a template that replaces it lacks the "
        "ownership mark, and a condition reports that",
        f"{CREATE}test_a_resource_with_another_ownership_mark_is_a_conflict_and_not_inserted",
    ),
}

POLICY = {
    "pol-bulk-only": shown(
        f"{BODIES}test_a_bulk_group_has_a_policy_with_its_topology",
        f"{BODIES}test_a_policy_is_in_the_region_of_the_zone[us-central1-a-us-central1]",
    ),
    "pol-skip-individual": shown(
        f"{BODIES}test_the_mig_of_an_individual_group_repairs_vms_and_has_no_policy",
        f"{LIFECYCLE}test_several_single_hosts_are_separate_slices",
    ),
    "pol-skip-empty-topology": shown(invalid("topology-empty")),
    "pol-condition-created": differs(
        f"{ONE_OBJECT}: same condition and reason; the message names the policy",
        f"{BEHAVIOUR}test_the_condition_of_a_resource_is_provisioning_until_it_exists"
        "[WorkloadPolicyReady-workload policy-WorkloadPolicy]",
    ),
    "pol-condition-ready": shown(
        f"{BEHAVIOUR}test_the_condition_of_a_resource_is_provisioning_until_it_exists"
        "[WorkloadPolicyReady-workload policy-WorkloadPolicy]",
    ),
    "pol-spec-always-differs": shown(f"{BEHAVIOUR}test_a_settled_group_is_not_written"),
}

MIG = {
    "mig-bulk-without-policy": differs(
        "a BULK group always has a policy; its single VMs are not repaired either",
        f"{BODIES}test_the_mig_of_a_bulk_group_has_the_policy_and_no_repair",
    ),
    "mig-individual-repairs": shown(
        f"{BODIES}test_the_mig_of_an_individual_group_repairs_vms_and_has_no_policy"
    ),
    "mig-gce-body": shown(
        f"{BODIES}test_the_mig_of_a_bulk_group_has_the_policy_and_no_repair",
        f"{CREATE}test_the_mig_of_a_user_template_adds_the_node_labels_to_the_metadata_of_its_vms",
    ),
    "mig-insert-pending": differs(
        "the operation is in status.resources; normal progress emits no event, and the operation is "
        "not polled: the audit log reports its end",
        f"{BEHAVIOUR}test_an_operation_is_in_the_status_while_it_runs",
        f"{LIFECYCLE}test_the_events_of_a_slice_have_the_messages_of_tpu_operator",
    ),
    "mig-op-still-running": shown(insert_result("is running")),
    "mig-op-done": shown(f"{BEHAVIOUR}test_an_operation_is_in_the_status_while_it_runs"),
    "mig-op-failed": differs(
        "the condition has the reason and the message of the failure; a retry follows within minutes",
        insert_result("failed with an environment error"),
        insert_result("failed with an internal error"),
        f"{BEHAVIOUR}test_a_failed_insert_is_retried[QUOTA_EXCEEDED-QuotaExceeded]",
    ),
    "mig-insert-transient": shown(
        *(
            f"{BEHAVIOUR}test_a_transient_error_is_retried_without_a_warning"
            f"[instanceGroupManagers.insert-{http}]"
            for http in (429, 500, 503, 504)
        ),
        f"{BEHAVIOUR}test_an_unknown_error_is_reported_and_the_call_retried",
        f"{ERRORS}test_an_error_that_the_table_does_not_have_is_classified[no answer]",
    ),
    "mig-get-error": shown(
        f"{BEHAVIOUR}test_a_failed_read_causes_no_warning[instanceGroupManagers.get]"
    ),
    "mig-unstable": shown(
        f"{CREATE}test_the_condition_of_the_mig_follows_from_its_state[is creating its VMs]",
        f"{BEHAVIOUR}test_a_slice_is_ready_within_40_seconds_of_its_last_node",
    ),
    "mig-creation-failed": shown(
        f"{CREATE}test_the_condition_of_the_mig_follows_from_its_state[could not create a VM]",
        f"{BEHAVIOUR}test_a_group_waits_until_a_stockout_ends_and_becomes_ready",
    ),
    "mig-terminal-is-forever": shown(
        f"{BEHAVIOUR}test_a_group_waits_until_a_stockout_ends_and_becomes_ready",
        f"{BEHAVIOUR}test_an_unknown_error_is_reported_and_the_call_retried",
    ),
    "mig-ready": differs(
        f"{ONE_OBJECT}: its condition is ManagedInstanceGroupReady, its URL is in "
        "status.resources, the event is ChildResourcesProvisioned",
        f"{BEHAVIOUR}test_the_condition_of_the_mig_is_ready_when_its_vms_exist",
        f"{BEHAVIOUR}test_the_status_has_the_uri_of_the_mig",
        f"{LIFECYCLE}test_the_events_of_a_slice_have_the_messages_of_tpu_operator",
    ),
    "mig-parent-waits-stable": differs(
        f"{ONE_OBJECT}: same condition and reason; the message has the number of VMs",
        f"{BEHAVIOUR}test_the_condition_of_the_mig_is_ready_when_its_vms_exist",
    ),
    "mig-parent-ready-event": shown(
        f"{BEHAVIOUR}test_the_condition_of_the_mig_is_ready_when_its_vms_exist",
        f"{LIFECYCLE}test_the_events_of_a_slice_have_the_messages_of_tpu_operator",
    ),
    "mig-list-before-it-exists": shown(
        f"{BEHAVIOUR}test_ready_has_only_the_expected_reasons_during_creation",
        f"{BEHAVIOUR}test_a_creation_without_errors_emits_no_warning",
    ),
    "mig-op-expired": shown(
        insert_result("does not exist any more"),
        f"{BEHAVIOUR}test_a_slice_becomes_ready_although_its_operations_no_longer_exist",
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
        "Compute Engine rejects writes of metadata until the insert or start of a VM has ended; the "
        "token is written then",
        *(
            f"{BODIES}test_a_vm_gets_a_token_if_its_metadata_can_be_written[{status}]"
            for status in ("PROVISIONING", "STAGING", "RUNNING")
        ),
        f"{INJECT}test_a_vm_that_is_being_staged_gets_a_token_after_the_end_of_its_insert",
    ),
    "boot-vm-states-skipped": differs(
        "no token either; kube-labels needs no call, because the template has it",
        *(
            f"{BODIES}test_a_vm_that_cannot_join_gets_no_token[{status}]"
            for status in ("STOPPING", "SUSPENDING", "SUSPENDED", "TERMINATED", "")
        ),
        f"{BODIES}test_the_template_has_the_node_labels",
    ),
    "boot-byo-no-token": shown(
        f"{BEHAVIOUR}test_vms_of_a_user_template_get_their_labels_without_a_call_per_vm",
        f"{CREATE}test_the_mig_of_a_user_template_adds_the_node_labels_to_the_metadata_of_its_vms",
    ),
    "boot-kube-labels-merge": shown(
        f"{BODIES}test_kube_labels_keeps_labels_of_other_writers[foo=bar-a=1,b=2,foo=bar]"
    ),
    "boot-kube-labels-topology-removed": differs(
        "an empty topology is rejected (val-topology-format); a different value is replaced",
        invalid("topology-empty"),
        f"{BODIES}test_kube_labels_keeps_labels_of_other_writers[a=old,foo=bar-a=1,b=2,foo=bar]",
    ),
    "boot-topology-id-missing": differs(
        "the required value of accelerator_topology_id is not known; it is not written"
    ),
    "boot-writes-always": shown(
        vm("a VM with a token in its metadata gets the Secret"),
        vm("a VM that has joined needs no action"),
        f"{BEHAVIOUR}test_metadata_is_written_once_for_each_vm",
    ),
    "boot-list-fails": shown(f"{BEHAVIOUR}test_a_failed_read_causes_no_warning[instances.list]"),
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
    "tok-expired": shown(
        f"{BODIES}test_a_token_is_kept_if_it_is_valid_for_at_least_ten_minutes[-1-False]"
    ),
    "tok-expires-soon": shown(
        f"{BODIES}test_a_token_is_kept_if_it_is_valid_for_at_least_ten_minutes[5-False]",
        f"{BODIES}test_a_token_is_kept_if_it_is_valid_for_at_least_ten_minutes[10-True]",
    ),
    "tok-latest-wins": shown(
        f"{BEHAVIOUR}test_each_vm_has_its_own_token_and_none_is_valid_after_the_join",
        vm("a VM with a token in its metadata gets the Secret"),
    ),
    "tok-other-group": differs(
        "Secrets are not read: each token is for one VM, whose metadata contains it",
        f"{BEHAVIOUR}test_each_vm_has_its_own_token_and_none_is_valid_after_the_join",
        f"{PERMISSIONS}test_a_step_has_exactly_the_permissions_in_the_cluster_that_it_uses[inject_token]",
    ),
    "tok-shared-by-slice": shown(
        f"{BEHAVIOUR}test_each_vm_has_its_own_token_and_none_is_valid_after_the_join"
    ),
    "tok-not-removed-after-join": differs(
        "the Secret is deleted as soon as the Node is proved; the keys in the metadata remain, because "
        "they are useless without it and their removal would cost one more write for each VM",
        f"{BEHAVIOUR}test_each_vm_has_its_own_token_and_none_is_valid_after_the_join",
    ),
    "tok-gc-on-delete": shown(
        f"{BEHAVIOUR}test_a_deletion_revokes_the_tokens_of_its_group_and_no_others",
        (
            f"{DELETE}test_a_deletion_begins_with_the_actions_that_are_missing"
            "[tokens of VMs that have not joined are revoked]"
        ),
    ),
    "tok-gc-skipped-without-bootstrap": shown(
        f"{BEHAVIOUR}test_without_bootstrapping_no_secret_is_touched"
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
        f"{BEHAVIOUR}test_a_node_with_the_correct_labels_is_not_patched_again",
    ),
    "node-label-unknown-machine": differs(
        "such a machine type is rejected, in the spec and in a user template; its Nodes would get "
        "the group's labels and no labels about chips",
        user_template("is of a machine type without TPUs"),
        f"{MESSAGES}test_an_unknown_machine_type_has_no_accelerator_labels",
    ),
    "node-accelerator-older": differs(
        "both systems reject these machine types, so no mapping is needed",
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
        f"{MESSAGES}test_a_node_is_ready_only_with_all_chips_of_its_vm[all]",
        ready("both, and the interconnect is active"),
    ),
    "node-ready-needs-chips": shown(
        *(
            f"{MESSAGES}test_a_node_is_ready_only_with_all_chips_of_its_vm[{case}]"
            for case in ("none", "zero", "too few")
        )
    ),
    "node-ready-no-ici": shown(
        ready("both, and the interconnect has failed"),
        ready("both, and the interconnect is unknown"),
        f"{LABEL}test_an_unknown_interconnect_delays_a_slice_for_at_most_five_minutes",
    ),
    "node-no-taint": differs(
        "no taint unless nodeTaints requests it: workloads written for tpu-operator, which sets none, "
        "must still be scheduled",
        f"{LIFECYCLE}test_nodes_get_no_taint_unless_the_user_requests_it",
        f"{LIFECYCLE}test_labels_and_taints_of_the_user_are_on_every_node",
    ),
    "node-not-watched": shown(
        f"{BEHAVIOUR}test_an_unready_node_makes_the_slice_unready_within_seconds"
    ),
}

STATUS = {
    "stat-finalizers": differs(
        "one finalizer: status.resources has the resources that exist; the finalizer is written before "
        "the first call to Compute Engine",
        f"{CREATE}test_a_new_group_gets_finalizer_and_label_before_the_first_insert",
    ),
    "stat-gone": shown(f"{BEHAVIOUR}test_a_message_about_a_group_that_is_gone_is_acknowledged"),
    "stat-awaiting": shown(
        f"{BEHAVIOUR}test_nodes_that_have_not_joined_are_counted_in_the_message_of_tpu_operator"
    ),
    "stat-joining-event": shown(
        f"{MESSAGES}test_joining_emits_one_event_at_the_first_of_several_nodes[0-1-events0]"
    ),
    "stat-no-joining-event": shown(
        f"{MESSAGES}test_joining_emits_one_event_at_the_first_of_several_nodes[1-1-events1]",
        f"{MESSAGES}test_joining_emits_one_event_at_the_first_of_several_nodes[1-2-events2]",
    ),
    "stat-ready": shown(
        f"{BEHAVIOUR}test_ready_has_only_the_expected_reasons_during_creation",
        f"{MESSAGES}test_a_change_emits_one_event[ready]",
        f"{MESSAGES}test_a_change_emits_one_event[still ready]",
    ),
    "stat-failed-never-set": differs(
        "VMs that did not join in time are counted; the condition of the MIG reports VMs that could "
        "not be created, with the message of Compute Engine",
        f"{CREATE}test_the_condition_of_the_mig_follows_from_its_state[could not create a VM]",
        f"{BEHAVIOUR}test_vms_that_never_join_are_named_and_counted_after_15_minutes",
    ),
    "stat-error": shown(f"{BEHAVIOUR}test_a_failed_read_causes_no_warning[instances.get]"),
    "stat-ready-overwritten-by-blip": shown(
        f"{BEHAVIOUR}test_a_failed_read_does_not_change_the_condition_of_a_ready_slice"
    ),
    "stat-child-terminal": shown(
        f"{BEHAVIOUR}test_an_unknown_error_is_reported_and_the_call_retried",
        f"{MESSAGES}test_a_change_emits_one_event[an error]",
        f"{MESSAGES}test_a_change_emits_one_event[the same error]",
    ),
    "stat-no-deadline": shown(
        f"{BEHAVIOUR}test_vms_that_never_join_are_named_and_counted_after_15_minutes",
        ready("a VM has not joined in time"),
    ),
    "stat-no-observed-generation": shown(
        f"{BEHAVIOUR}test_every_condition_has_the_observed_generation"
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
        f"{PLUGIN_IS_INSTALLED}; kubectl apply updates it",
        f"{MANIFESTS}test_every_manifest_of_the_folder_is_part_of_the_base",
    ),
    "dp-wakes-every-group": shown(
        f"{PERMISSIONS}test_the_relay_may_read_only_the_collections_that_it_watches"
    ),
    "dp-service-account-not-applied": shown(
        f"{MANIFESTS}test_the_device_plugin_runs_only_on_tpu_nodes_and_tolerates_their_taints"
    ),
    "dp-kept-while-others": shown(PLUGIN),
    "dp-deleted-with-last": differs(
        f"{PLUGIN_IS_INSTALLED}; without TPU Nodes it has no Pods", PLUGIN
    ),
    "dp-already-gone": differs(
        f"{PLUGIN_IS_INSTALLED}; if it is missing, Nodes without chips are reported",
        ready("one has no chips for long"),
    ),
}

DELETION = {
    "del-cordon": shown(
        f"{BEHAVIOUR}test_a_deletion_cordons_nodes_and_deletes_the_mig_before_the_template",
        f"{DELETE}test_a_deletion_begins_with_the_status_and_the_nodes",
    ),
    "del-no-drain": differs(
        "both systems delete the VMs of a deleted group immediately; a user who wants to drain the "
        "Nodes first runs kubectl drain before"
    ),
    "del-order": differs(
        "MIG before template and policy, as in tpu-operator; template and policy in parallel, since "
        "neither uses the other; tokens first, because a VM could still join with them",
        f"{BEHAVIOUR}test_a_deletion_cordons_nodes_and_deletes_the_mig_before_the_template",
        (
            f"{DELETE}test_a_deletion_begins_with_the_actions_that_are_missing"
            "[tokens of VMs that have not joined are revoked]"
        ),
        deletion_plan("template and policy are deleted in parallel, then Nodes"),
        deletion_plan("late Nodes are deleted before the group"),
    ),
    "del-wait-mig": shown(
        deletion_message("all exist"), f"{LIFECYCLE}test_deletion_is_reported_step_by_step"
    ),
    "del-wait-template": shown(deletion_message("the MIG is gone")),
    "del-wait-policy": shown(deletion_message("the template is gone too")),
    "del-nodes": differs(
        "the tokens are revoked earlier, so the message is about Nodes only",
        deletion_message("all are gone"),
        deletion_plan("late Nodes are deleted before the group"),
    ),
    "del-nodes-only-labelled": shown(
        f"{BEHAVIOUR}test_a_node_that_was_never_labelled_is_deleted_with_its_group"
        "[registered with labels]",
        f"{BEHAVIOUR}test_a_node_that_was_never_labelled_is_deleted_with_its_group[without any]",
    ),
    "del-device-plugin-condition": differs(PLUGIN_IS_INSTALLED, PLUGIN),
    "del-all-gone": shown(deletion_plan("the finalizer is removed after the last resource")),
    "del-child-404": shown(
        f"{BEHAVIOUR}test_resources_that_were_deleted_manually_are_not_deleted_again",
        f"{BEHAVIOUR}test_a_delete_that_answers_404_is_complete[instanceGroupManagers]",
    ),
    "del-child-op-404": shown(
        f"{BEHAVIOUR}test_a_delete_whose_operation_fails_with_404_is_complete"
    ),
    "del-child-starts": differs(
        "the operation is in status.resources; one Cleanup event for the whole deletion, no "
        "polling",
        deletion_plan("a running delete is awaited"),
        f"{LIFECYCLE}test_the_events_of_a_slice_have_the_messages_of_tpu_operator",
    ),
    "del-child-done-at-once": differs(
        "a resource is read to find that it is gone, even if its operation has ended",
        deletion_plan("the finalizer is removed after the last resource"),
        f"{BEHAVIOUR}test_resources_that_were_deleted_manually_are_not_deleted_again",
    ),
    "del-child-error": shown(
        f"{BEHAVIOUR}test_a_group_exists_until_a_refused_delete_succeeds[503-backendError]",
        f"{BEHAVIOUR}test_a_group_exists_until_a_refused_delete_succeeds[403-forbidden]",
    ),
    "del-during-create": shown(
        deletion_plan("a running insert is awaited"),
        f"{CRASHES}test_a_step_may_be_killed_at_any_call[deleted_during_creation-0]",
    ),
    "del-op-failed": shown(
        f"{BEHAVIOUR}test_a_failed_delete_is_retried_within_two_minutes",
        deletion_plan("a delete that ended without an effect is repeated"),
    ),
    "del-child-finalizers": differs(
        f"{ONE_OBJECT} and their finalizers; a group with finalizers of tpu-operator is not changed",
        f"{CREATE}test_a_group_of_tpu_operator_is_not_owned[finalizer]",
        f"{CREATE}test_a_group_of_tpu_operator_is_not_owned[children]",
    ),
    "del-byo-template-kept": shown(
        f"{DELETE}test_a_template_of_the_user_is_not_deleted",
        f"{LIFECYCLE}test_a_user_template_is_used_and_not_deleted",
    ),
}

OWN_TEMPLATE = {
    "byo-machine-type": differs(
        "same condition, message and event; Ready has the same reason instead of ReconcileError, "
        "and no second event follows",
        f"{BEHAVIOUR}test_a_user_template_without_tpus_is_reported_and_its_replacement_is_used",
    ),
    "byo-machine-type-url": shown(user_template("names its machine type by a URL")),
    "byo-no-scheduling": shown(user_template("has no scheduling")),
    "byo-maintenance": shown(user_template("migrates VMs on maintenance")),
    "byo-reservation-bound-action": shown(user_template("stops reserved VMs")),
    "byo-spot-action": shown(user_template("deletes Spot VMs, which is valid")),
    "byo-regional-template": shown(
        f"{BEHAVIOUR}test_a_regional_template_is_read_from_its_region",
        f"{BODIES}test_a_user_template_is_used_from_the_scope_in_its_uri[regions/us-central1]",
    ),
    "byo-fetched-every-pass": shown(
        f"{BEHAVIOUR}test_a_user_template_is_not_read_again_after_the_slice_is_ready"
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

UNSUPPORTED = "groups are of v6e and TPU7x only; other machine types are rejected"
CONTAINER_VARIABLES = "about variables of containers, which no group sets"

TOPOLOGY_RULES: dict[str, Row] = {
    "dims": shown(
        invalid_shape("four-dimensions"), invalid_shape("trailing-x"), invalid_shape("zero")
    ),
    "chips": shown(
        f"{SHAPES}test_the_number_of_vms_follows_from_topology_and_machine_type[ct6e-standard-8t-1]"
    ),
    "hosts": shown(f"{SHAPES}test_a_wrong_size_of_a_bulk_group_is_reported_with_the_right_one"),
    "chips_per_host_bounds": shown(
        f"{SHAPES}test_the_chip_bounds_of_a_host_are_those_of_the_device_plugin",
    ),
    "chips_per_host_bounds_source": differs("a note, not a behaviour"),
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
        differs(CONTAINER_VARIABLES),
    ),
}
NODE_LABELS = f"{LABEL}test_a_node_gets_the_labels_of_tpu_operator_and_of_this_system"
TOPOLOGY_LABELS: dict[str, Row] = {
    "accelerator": shown(NODE_LABELS),
    "topology": shown(NODE_LABELS),
    "chips_per_node": shown(NODE_LABELS),
    "node_group": shown(NODE_LABELS),
    "topology_mode": differs("Nodes always have the topology label"),
    "sub_slice_annotation": differs(CONTAINER_VARIABLES),
    "ici_resiliency": differs("the device plugin uses its default"),
    "design_doc_only": differs("no code of tpu-operator writes or reads them"),
}
TOPOLOGY_GENERATIONS: dict[str, Row] = {
    "v6e": shown(f"{SHAPES}test_a_generation_has_the_documented_properties[v6e]"),
    "tpu7x": shown(
        f"{SHAPES}test_a_generation_has_the_documented_properties[tpu7x]",
        f"{CRD}test_each_shape_of_xpk_is_accepted",
        f"{SHAPES}test_a_large_v7_shape_is_valid_if_it_is_a_sorted_block_of_cubes_within_a_pod",
    ),
    "v4": differs(UNSUPPORTED, family("ct4p-hightpu-4t")),
    "v5e": differs(UNSUPPORTED, family("ct5lp-hightpu-4t")),
    "v5p": differs(UNSUPPORTED, family("ct5p-hightpu-4t")),
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
    "seed-manifest-type": differs(CONTAINER_VARIABLES),
    "chips-vs-cores": shown(
        f"{SHAPES}test_a_machine_type_has_a_generation_and_chips[tpu7x-standard-4t-tpu-tpu7x-4]",
        NODE_LABELS,
    ),
    "dra-driver-tpu7x": differs("the device plugin allocates chips, not that driver"),
    "operator-supported": shown(family("tpu7x-standard"), invalid("machine-type-v5e")),
}
