"""Compute Engine is eventually consistent: a lag delays a slice by seconds, without a sweep."""

from __future__ import annotations

from datetime import timedelta

import pytest

from local import gce
from local.cloud.simulation import Options
from tests.support.harness import Harness
from tests.support.manifests import manifest

LAGS = {
    "the template is not visible to the MIG yet": gce.Timings(template_visibility_lag_s=(5.0, 5.0)),
    "template and policy are still in use after the MIG is gone": gce.Timings(
        in_use_lag_s=(20.0, 20.0)
    ),
    "lists lag behind": gce.Timings(list_lag_s=(10.0, 10.0)),
}


@pytest.mark.parametrize("options", LAGS.values(), ids=LAGS)
def test_a_slice_needs_no_sweep_while(options: gce.Timings) -> None:
    harness = Harness(Options(gce=options, sweeps=False))
    harness.apply(manifest())
    assert harness.run_until(lambda: harness.is_ready("my-slice"), timedelta(minutes=5))
    harness.delete("my-slice")
    assert harness.run_until(lambda: harness.group("my-slice") is None, timedelta(minutes=5))
    assert harness.leftovers() == []
