"""The buckets of the histograms, which set the resolution of quantiles."""

from __future__ import annotations

import re

import pytest
from prometheus_client import generate_latest

from relay.metrics import DESCRIPTIONS

DURATIONS = "5 10 30 60 120 180 300 600 1200 1800 3600 10800 43200 172800 604800"
BUCKETS = {
    "tpu_functions_slice_time_to_ready_seconds": DURATIONS,
    "tpu_functions_slice_phase_duration_seconds": DURATIONS,
    "tpu_functions_slice_time_to_repair_seconds": DURATIONS,
    "tpu_functions_relay_publish_duration_seconds": "0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10",
    "tpu_functions_relay_reaction_seconds": "0.01 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 300 1800",
}


@pytest.mark.parametrize("name", BUCKETS)
def test_a_histogram_has_these_buckets(name: str) -> None:
    found = re.findall(rf'^{name}_bucket{{.*?le="(.+?)"', generate_latest().decode(), re.MULTILINE)
    assert list(dict.fromkeys(found)) == [*(f"{float(b)}" for b in BUCKETS[name].split()), "+Inf"]


def test_each_histogram_is_in_the_table() -> None:
    assert {one.name for one in DESCRIPTIONS if one.type == "histogram"} == set(BUCKETS)
