"""The manifests of the components for JobSets and other workloads."""

from __future__ import annotations

from pathlib import Path

from tests.real.relay.conftest import INSTALLATION

COMPONENTS = Path(INSTALLATION) / "components"
MANIFESTS = [
    str(path)
    for name in ("jobsets", "workloads", "jobsets-node-groups")
    for path in (COMPONENTS / name).glob("[!k]*.yaml")
]
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
