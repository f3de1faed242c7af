"""The manifests for JobSets and other workloads."""

from __future__ import annotations

from tests.support import chart

MANIFESTS = [
    str(path)
    for name in ("jobsets", "workloads", "jobsets-node-groups")
    for path in (chart.MANIFESTS / name).glob("*.yaml")
]
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
