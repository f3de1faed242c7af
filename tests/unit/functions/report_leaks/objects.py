"""Objects of the tests of report_leaks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from functions.report_leaks.leaks import MIG_SERVICE, POLICY_SERVICE, TEMPLATE_SERVICE
from shared.base.logs import make_logger
from shared.base.names import RESOURCE_NAME_LABEL
from shared.base.timestamps import render_time
from shared.frame.plan import Work
from shared.ports.gce.calls import Gce
from shared.ports.gce.values import ListedResource, ManagedInstance
from shared.ports.kubernetes.cluster import Cluster
from shared.triggers.trigger import TimeTrigger
from tests.support.builders import CLUSTER, NOW, RESOURCE, SETTINGS, group
from tests.support.compute import instance_group, policy, template
from tests.support.reads import Reads

MARK = group().mark
LOCATIONS = {MIG_SERVICE: "us-central1-c", TEMPLATE_SERVICE: "", POLICY_SERVICE: "us-central1"}


def listed(
    service: str, project: str = "my-gcp-project", name: str = RESOURCE, mark: str = MARK
) -> ListedResource:
    return ListedResource(project, service, LOCATIONS[service], name, mark, NOW - timedelta(days=1))


MEMBERS = (
    ManagedInstance(f"{RESOURCE}-ab12", "RUNNING", id="42"),
    ManagedInstance(f"{RESOURCE}-cd34", ""),
)
EXISTING: dict[str, Any] = {
    "get_cluster_id": CLUSTER,
    "list_named": lambda _project, service, _prefix: ([listed(service)], ()),
    "list_groups": [],
    "find_mig": instance_group(description=MARK),
    "find_policy": replace(policy(), description=MARK),
    "find_template": replace(template(), description=MARK),
    "list_managed_instances": MEMBERS,
    "list_all_nodes": [],
}


def work(projects: tuple[str, ...] = ("my-gcp-project",), **answers: Any) -> tuple[Work, Reads]:
    reads, nothing = Reads(EXISTING | answers), cast("Any", None)
    leak_work = Work(
        settings=replace(SETTINGS, projects=frozenset(projects)),
        gce=cast("Gce", reads),
        cluster=cast("Cluster", reads),
        publish=nothing,
        random_bytes=bytes,
        remaining_s=lambda: 30.0,
        now=NOW,
        trigger=TimeTrigger(NOW),
        log=make_logger(),
    )
    return leak_work, reads


def raw_node(name: str = f"{RESOURCE}-ab12", label: str = "", age: int = 60) -> dict[str, Any]:
    created = render_time(NOW - timedelta(minutes=age))
    labels = {RESOURCE_NAME_LABEL: label} if label else {}
    return {"metadata": {"name": name, "creationTimestamp": created, "labels": labels}}
