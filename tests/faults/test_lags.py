"""Compute Engine's parts do not see each other's work at once; that costs seconds, no sweep."""

from __future__ import annotations

from datetime import timedelta

import pytest

from local import gce
from local.cloud.simulation import Options
from tests.harness import Harness
from tests.manifests import manifest

LAGS = {
    "the group service does not see the template yet": gce.Timings(
        template_visibility_lag_s=(5.0, 5.0)
    ),
    "template and policy are in use by the group that has gone": gce.Timings(
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
