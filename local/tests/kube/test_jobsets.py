"""JobSet's own CRD in the embedded Kubernetes API."""

from __future__ import annotations

from typing import Any

import pytest

from local.control_plane import jobset_crd
from local.tests.contract.kubernetes.embedded import Embedded
from local.tests.real_parts import get_jobset_crd

pytestmark = pytest.mark.real

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"


def jobset(**spec: Any) -> dict[str, Any]:
    container = {"name": "train", "image": "train", "resources": {"limits": {"google.com/tpu": 4}}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    job = {"parallelism": 2, "completions": 2, "template": {"spec": pod}}
    workers = {"name": "workers", "template": {"spec": job}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train"},
        "spec": {"replicatedJobs": [workers], **spec},
    }


def serve() -> Embedded:
    server = Embedded()
    server.api.apply_manifests([jobset_crd.read(get_jobset_crd())])
    return server


def test_a_jobset_gets_its_defaults() -> None:
    created = serve().ask("POST", JOBSETS, jobset())
    assert created["spec"]["replicatedJobs"][0]["replicas"] == 1


def test_rules_of_the_crd_are_evaluated() -> None:
    workers = jobset()["spec"]["replicatedJobs"][0]
    later = {**workers, "name": "later", "dependsOn": [{"name": "workers", "status": "Ready"}]}
    in_order = {"startupPolicyOrder": "InOrder"}
    body = jobset(replicatedJobs=[workers, later], startupPolicy=in_order)
    answer = serve().send("POST", JOBSETS, body)
    assert answer.status == 422
    assert "StartupPolicy and DependsOn APIs are mutually exclusive" in answer.document["message"]


def test_the_status_is_a_subresource() -> None:
    server = serve()
    server.ask("POST", JOBSETS, jobset())
    ended = {"type": "Completed", "status": "True", "reason": "AllJobsCompleted", "message": ""}
    condition = {**ended, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    server.ask(
        "PATCH",
        f"{JOBSETS}/train/status",
        {"status": {"conditions": [condition]}},
        content_type="application/merge-patch+json",
    )
    assert server.ask("GET", f"{JOBSETS}/train")["status"]["conditions"] == [condition]
