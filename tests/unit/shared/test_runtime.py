"""A process has what its settings name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.runtime import get_runtime

GKE = {
    "JOBSET_PROVIDER": "gke",
    "GCP_PROJECT_ID": "my-project",
    "GCP_CLUSTER_LOCATION": "us-east5",
    "GCP_CLUSTER": "my-cluster",
}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    get_runtime.cache_clear()
    yield
    get_runtime.cache_clear()


@pytest.mark.parametrize("given, has_gke", [({}, False), (GKE, True)], ids=["no provider", "gke"])
def test_only_a_process_whose_slices_are_node_pools_has_a_client_of_gke(
    given: dict[str, str], has_gke: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {
        "PUBSUB_PROJECT": "p",
        "KUBECONFIG": str(tmp_path / "none"),
        **given,
    }.items():
        monkeypatch.setenv(name, value)
    assert (get_runtime().gke is not None) is has_gke
