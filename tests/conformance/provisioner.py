"""For each behaviour of TPU Provisioner's node pools that is known: the tests that show ours, or why it
is otherwise.

tests/data/tpu_provisioner.yaml has the behaviours, of which these are the areas that say what a pool is
made of. What it is made for and when it goes is held against the table where those steps are tested.
"""

from __future__ import annotations

from typing import Any

import yaml

from tests.conformance.table import Row, differs, shown
from tests.unit.builders import DATA
from tests.unit.test_desired_pool import DIFFERS, REFUSED

POOLS = "unit/test_desired_pool.py::"
AREAS = ("nodepool", "name", "hash", "machine_type", "node_count")
OF_SETTINGS = {"config-zone-from-controller", "config-list-spaces"}
"""Rows of the area ``config`` that are about node pools."""
ROWS: dict[str, dict[str, Any]] = {
    row["id"]: row
    for row in yaml.safe_load((DATA / "tpu_provisioner.yaml").read_text())["rows"]
    if row["area"] in AREAS or row["id"] in OF_SETTINGS
}


def _wishes(case: str) -> str:
    return f"{POOLS}test_wishes_that_differ_by[{case}]"


def _machine(row: str, *chips: int) -> list[str]:
    return [f"{POOLS}test_a_machine_type[{row}-{number}]" for number in chips]


def _count(row: str, *topologies: str) -> list[str]:
    return [f"{POOLS}test_a_count[{row}-{topology}]" for topology in topologies]


def _no_count(row: str) -> str:
    return f"{POOLS}test_there_is_no_such_count[{row}]"


_NEVER_LANDS = "the Pod could never run there, so that the pool would be paid for and of no use"
_WHY_REFUSED = {
    "nodepool-spot-forced-on-demand": _NEVER_LANDS,
    "nodepool-reservation-forced-on-demand": _NEVER_LANDS,
    "nodepool-selector-google-prefix-not-copied": _NEVER_LANDS,
    "nodepool-reservation-project-alone": _NEVER_LANDS,
}


def _pool(name: str) -> Row:
    if name in REFUSED:
        test = f"{POOLS}test_a_pool_that_would_help_nobody_is_refused[{name}]"
        return Row((test,), _WHY_REFUSED.get(name, ""))
    return Row((f"{POOLS}test_a_pool_is_asked_for[{name}]",), DIFFERS.get(name, ("", {}))[0])


_FIXED_LIST = (
    "a hash is over what a pool must have been made of for the Pod to fit, not over all labels"
)

NODE_POOLS: dict[str, Row] = {
    **{name: _pool(name) for name, row in ROWS.items() if row["area"] == "nodepool"},
    "name-job-key-label-missing": shown(
        f"{POOLS}test_what_cannot_be_made_is_refused_with_what_would_be_right[no key]"
    ),
    "name-short-jobset": differs(
        "64 bits of the key are in it", f"{POOLS}test_a_name_has_64_bits_of_the_jobs_key[short]"
    ),
    "name-long-jobset": differs(
        "64 bits of the key are in it", f"{POOLS}test_a_name_has_64_bits_of_the_jobs_key[long]"
    ),
    "name-key-shorter-than-5": shown(
        f"{POOLS}test_what_cannot_be_made_is_refused_with_what_would_be_right[short key]"
    ),
    "name-same-after-restart": shown(
        f"{POOLS}test_a_jobs_key_and_with_it_the_name_is_the_same_over_restarts"
    ),
    "name-job-key-algorithm": shown(
        f"{POOLS}test_a_jobs_key_and_with_it_the_name_is_the_same_over_restarts"
    ),
    "name-collision-in-one-jobset": shown(
        f"{POOLS}test_keys_with_the_same_beginning_have_names_of_their_own",
        f"{POOLS}test_what_has_the_name_and_another_owner_is_a_clash[another job]",
    ),
    "name-collision-two-jobsets": shown(
        f"{POOLS}test_keys_with_the_same_beginning_have_names_of_their_own",
        f"{POOLS}test_what_has_the_name_and_another_owner_is_a_clash[another jobset]",
        f"{POOLS}test_what_has_the_name_and_another_owner_is_a_clash[another namespace]",
    ),
    "hash-two-empty": shown(_wishes("nothing")),
    "hash-machine-type-differs": shown(_wishes("machine types")),
    "hash-labels-differ": differs(
        f"{_FIXED_LIST}; those that the Pod selects by count",
        _wishes("labels selected by"),
        _wishes("selectors"),
    ),
    "hash-upgrade-settings-not-hashed": shown(_wishes("all other settings")),
    "hash-value-2": shown(f"{POOLS}test_a_hash_is_computed_by_their_rule"),
    "hash-value-base-pod": differs(_FIXED_LIST, f"{POOLS}test_a_whole_pool"),
    "hash-value-base-pod-spot": differs(_FIXED_LIST, _wishes("spot")),
    "hash-value-base-pod-reservation": differs(_FIXED_LIST, _wishes("reservations")),
    "hash-already-labelled": shown(f"{POOLS}test_a_pools_hash_is_what_its_label_says"),
    "hash-restart-attempt-copied": shown(_wishes("copied labels")),
    "hash-config-change-rebuilds": shown(
        _wishes("labels copied by settings"), _wishes("all other settings")
    ),
    "machine-tpu-v4-podslice": shown(_machine("machine-tpu-v4-podslice", 4)),
    "machine-tpu-v5-lite-podslice": shown(_machine("machine-tpu-v5-lite-podslice", 1, 4, 8)),
    "machine-tpu-v6e-slice": shown(_machine("machine-tpu-v6e-slice", 4, 8)),
    "machine-tpu7x": shown(_machine("machine-tpu7x", 4)),
    "machine-unknown-accelerator": shown(
        f"{POOLS}test_there_is_no_such_machine_type[unknown accelerator]"
    ),
    "machine-negative": shown(f"{POOLS}test_there_is_no_such_machine_type[negative]"),
    "machine-v5p-8-not-checked": shown(
        f"{POOLS}test_there_is_no_such_machine_type[too many]",
        f"{POOLS}test_what_cannot_be_made_is_refused_with_what_would_be_right[chips]",
    ),
    "machine-sum-over-containers": shown(f"{POOLS}test_chips_are_counted_over_all_containers"),
    "count-tpu-v4-podslice": shown(
        _count("count-tpu-v4-podslice", "2x2x1", "2x2x2", "2x2x4", "2x4x4")
    ),
    "count-tpu-v5p-slice": shown(_count("count-tpu-v5p-slice", "2x2x2", "2x2x4")),
    "count-tpu-v5-lite-podslice": shown(_count("count-tpu-v5-lite-podslice", "1x1")),
    "count-tpu7x": differs(
        "a slice of one host has the one topology that GKE gives it, 2x2x1: a Pod that asks for 1x2x2 "
        "could never run there",
        f"{POOLS}test_a_single_host_has_the_one_topology_that_gke_gives_it[tpu7x-1x2x2-4-2x2x1]",
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
        f"{POOLS}test_without_any_zone_there_is_no_pool",
        f"{POOLS}test_the_zone_that_a_pod_selects_comes_before_the_settings",
    ),
    "config-list-spaces": shown(f"{POOLS}test_settings_are_read_from_their_variables"),
}
