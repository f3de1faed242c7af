"""Pods after their admission, for tests of libraries that read their variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.webhook.workloads import Answered, pod, stateful_set


def admitted_pod(
    number: int,
    hosts: int,
    *containers: Any,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Answered:
    """A Pod of a StatefulSet ``web``; the webhook has changed the template and the Pod."""
    workload = stateful_set(*containers, replicas=hosts, pod=spec)
    workload["spec"]["template"]["metadata"]["annotations"] = dict(annotations or {})
    template = Answered(workload).target["spec"]["template"]
    member = pod(
        name=f"web-{number}",
        owner="StatefulSet",
        labels={
            "statefulset.kubernetes.io/pod-name": f"web-{number}",
            "apps.kubernetes.io/pod-index": str(number),
        },
        annotations=template["metadata"]["annotations"],
    )
    member["spec"] = {**template["spec"], "subdomain": "nginx"}
    return Answered(member)
