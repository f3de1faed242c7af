"""For each known behaviour of TPU Provisioner's node pools: the tests of this system's behaviour, or the
reason why it differs.

tests/data/tpu_provisioner.yaml lists the behaviours. These are the areas about the fields of a pool.
`tests.conformance.provisioner_steps` has those about its creation and deletion.
"""

from __future__ import annotations

from typing import Any

import yaml

from tests.conformance.table import Row, differs, shown
from tests.unit.builders import DATA
from tests.unit.test_desired_pool import DIFFERS, INPUT_ERRORS

POOLS = "unit/test_desired_pool.py::"
AREAS = ("nodepool", "name", "hash", "machine_type", "node_count")
OF_SETTINGS = {"config-zone-from-controller", "config-list-spaces"}
"""Rows of the area ``config`` that are about node pools."""
ROWS: dict[str, dict[str, Any]] = {
    row["id"]: row
    for row in yaml.safe_load((DATA / "tpu_provisioner.yaml").read_text())["rows"]
    if row["area"] in AREAS or row["id"] in OF_SETTINGS
}


def _hashed(case: str) -> str:
    return f"{POOLS}test_the_hash_follows_from_the_fields_that_a_pool_must_have[{case}]"


def _machine(row: str, *chips: int) -> list[str]:
    return [
        f"{POOLS}test_the_machine_type_follows_from_accelerator_and_chips[{row}-{number}]"
        for number in chips
    ]


def _count(row: str, *topologies: str) -> list[str]:
    return [
        f"{POOLS}test_the_number_of_nodes_follows_from_topology_and_chips[{row}-{topology}]"
        for topology in topologies
    ]


def _no_count(row: str) -> str:
    return f"{POOLS}test_a_topology_without_a_number_of_nodes_is_an_input_error[{row}]"


_NEVER_RUNS = "the Pod could never run on the pool, which would be billed without use"
_WHY_INVALID = {
    "nodepool-spot-forced-on-demand": _NEVER_RUNS,
    "nodepool-reservation-forced-on-demand": _NEVER_RUNS,
    "nodepool-selector-google-prefix-not-copied": _NEVER_RUNS,
    "nodepool-reservation-project-alone": _NEVER_RUNS,
}


def _pool(name: str) -> Row:
    if name in INPUT_ERRORS:
        test = f"{POOLS}test_a_pool_that_the_pod_could_not_use_is_an_input_error[{name}]"
        return Row((test,), _WHY_INVALID.get(name, ""))
    return Row(
        (f"{POOLS}test_a_pool_is_requested_as_tpu_provisioner_does[{name}]",),
        DIFFERS.get(name, ("", {}))[0],
    )


_REQUIRED_FIELDS = (
    "the hash is over the fields that the Pod requires of its pool, not over all labels"
)

NODE_POOLS: dict[str, Row] = {
    **{name: _pool(name) for name, row in ROWS.items() if row["area"] == "nodepool"},
    "name-job-key-label-missing": shown(
        f"{POOLS}test_an_invalid_field_of_a_pod_is_an_input_error_with_the_valid_values[no key]"
    ),
    "name-short-jobset": differs(
        "the name has 64 bits of the key", f"{POOLS}test_a_name_has_64_bits_of_the_jobs_key[short]"
    ),
    "name-long-jobset": differs(
        "the name has 64 bits of the key", f"{POOLS}test_a_name_has_64_bits_of_the_jobs_key[long]"
    ),
    "name-key-shorter-than-5": shown(
        f"{POOLS}test_an_invalid_field_of_a_pod_is_an_input_error_with_the_valid_values[short key]"
    ),
    "name-same-after-restart": shown(
        f"{POOLS}test_the_key_of_a_job_and_the_name_of_its_slice_are_kept_over_restarts"
    ),
    "name-job-key-algorithm": shown(
        f"{POOLS}test_the_key_of_a_job_and_the_name_of_its_slice_are_kept_over_restarts"
    ),
    "name-collision-in-one-jobset": shown(
        f"{POOLS}test_keys_that_differ_in_their_first_64_bits_have_different_names",
        f"{POOLS}test_a_pool_with_the_name_and_another_owner_is_a_name_conflict[another job]",
    ),
    "name-collision-two-jobsets": shown(
        f"{POOLS}test_keys_that_differ_in_their_first_64_bits_have_different_names",
        f"{POOLS}test_a_pool_with_the_name_and_another_owner_is_a_name_conflict[another jobset]",
        f"{POOLS}test_a_pool_with_the_name_and_another_owner_is_a_name_conflict[another namespace]",
    ),
    "hash-two-empty": shown(_hashed("no fields")),
    "hash-machine-type-differs": shown(_hashed("machine types")),
    "hash-labels-differ": differs(
        f"{_REQUIRED_FIELDS}; labels that the Pod selects are included",
        _hashed("labels"),
        _hashed("selectors"),
    ),
    "hash-upgrade-settings-not-hashed": shown(_hashed("all other settings")),
    "hash-value-2": shown(f"{POOLS}test_a_hash_is_computed_as_in_tpu_provisioner"),
    "hash-value-base-pod": differs(
        _REQUIRED_FIELDS, f"{POOLS}test_a_pool_is_requested_with_these_fields"
    ),
    "hash-value-base-pod-spot": differs(_REQUIRED_FIELDS, _hashed("spot")),
    "hash-value-base-pod-reservation": differs(_REQUIRED_FIELDS, _hashed("reservations")),
    "hash-already-labelled": shown(f"{POOLS}test_the_hash_of_a_pool_is_read_from_its_label"),
    "hash-restart-attempt-copied": shown(_hashed("copied labels")),
    "hash-config-change-rebuilds": shown(
        _hashed("labels copied by settings"), _hashed("all other settings")
    ),
    "machine-tpu-v4-podslice": shown(_machine("machine-tpu-v4-podslice", 4)),
    "machine-tpu-v5-lite-podslice": shown(_machine("machine-tpu-v5-lite-podslice", 1, 4, 8)),
    "machine-tpu-v6e-slice": shown(_machine("machine-tpu-v6e-slice", 4, 8)),
    "machine-tpu7x": shown(_machine("machine-tpu7x", 4)),
    "machine-unknown-accelerator": shown(
        f"{POOLS}test_a_machine_type_that_does_not_exist_is_an_input_error[unknown accelerator]"
    ),
    "machine-negative": shown(
        f"{POOLS}test_a_machine_type_that_does_not_exist_is_an_input_error[negative]"
    ),
    "machine-v5p-8-not-checked": shown(
        f"{POOLS}test_a_machine_type_that_does_not_exist_is_an_input_error[too many]",
        f"{POOLS}test_an_invalid_field_of_a_pod_is_an_input_error_with_the_valid_values[chips]",
    ),
    "machine-sum-over-containers": shown(f"{POOLS}test_the_chips_of_all_containers_are_added"),
    "count-tpu-v4-podslice": shown(
        _count("count-tpu-v4-podslice", "2x2x1", "2x2x2", "2x2x4", "2x4x4")
    ),
    "count-tpu-v5p-slice": shown(_count("count-tpu-v5p-slice", "2x2x2", "2x2x4")),
    "count-tpu-v5-lite-podslice": shown(_count("count-tpu-v5-lite-podslice", "1x1")),
    "count-tpu7x": differs(
        "GKE gives a slice of one host the topology 2x2x1: a Pod that requests 1x2x2 could never run "
        "there",
        f"{POOLS}test_a_single_host_slice_must_have_the_topology_of_gke[tpu7x-1x2x2-4-2x2x1]",
        *_count("count-tpu7x", "1x2x2", "2x2x2", "4x4x8", "8x8x16"),
    ),
    "count-tpu-v5-lite-podslice-2x4-by-4": shown(
        _count("count-tpu-v5-lite-podslice-2x4-by-4", "2x4")
    ),
    "count-tpu-v5-lite-podslice-2x4-by-8": shown(
        _count("count-tpu-v5-lite-podslice-2x4-by-8", "2x4")
    ),
    "count-tpu-v6e-slice-2x4-by-4": shown(_count("count-tpu-v6e-slice-2x4-by-4", "2x4")),
    "count-tpu-v6e-slice-2x4-by-8": shown(_count("count-tpu-v6e-slice-2x4-by-8", "2x4")),
    "count-unknown-accel": shown(_no_count("count-unknown-accel")),
    "count-not-a-topology": shown(_no_count("count-not-a-topology")),
    "count-v6e-three-dims": shown(_no_count("count-v6e-three-dims")),
    "count-zero-dim": shown(_no_count("count-zero-dim")),
    "config-zone-from-controller": shown(
        f"{POOLS}test_a_pod_without_a_zone_is_an_input_error_if_no_zone_is_set",
        f"{POOLS}test_the_zone_that_a_pod_selects_overrides_the_setting",
    ),
    "config-list-spaces": shown(f"{POOLS}test_settings_are_read_from_their_variables"),
}
