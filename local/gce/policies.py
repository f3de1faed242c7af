"""Workload policies (``resourcePolicies``), which are regional."""

from __future__ import annotations

from local.gce import links
from local.gce.calls import Call, Route
from local.gce.records import Records
from local.gce.refusals import BAD_VALUE, POLICY_IN_USE, POLICY_SHAPE, REQUIRED
from local.gce.schema import Document

_OWN = ("workloadPolicy", "groupPlacementPolicy", "snapshotSchedulePolicy",
        "instanceSchedulePolicy", "diskConsistencyGroupPolicy")  # fmt: skip


class Policies(Records):
    """All resource policies."""

    kind = "compute#resourcePolicy"
    in_use = POLICY_IN_USE

    def routes(self) -> tuple[Route, ...]:
        """The methods about resource policies."""
        base = "regions resourcePolicies"
        return (
            Route(f"POST {base}", "resourcePolicies.insert", self.insert, "ResourcePolicy"),
            Route(f"GET {base}", "resourcePolicies.list", self.list),
            Route(f"GET {base} NAME", "resourcePolicies.get", self.get),
            Route(f"DELETE {base} NAME", "resourcePolicies.delete", self.delete),
            Route(
                "GET aggregated resourcePolicies", "resourcePolicies.aggregatedList", self.list_all
            ),
        )

    def complete(self, call: Call) -> Document:
        """Check a new policy. Raises `Refused`."""
        own = {key: call.body[key] for key in _OWN if call.body.get(key) is not None}
        if len(own) != 1:
            raise REQUIRED.refused(field="resource.workloadPolicy")
        if "workloadPolicy" in own:
            _check_workload_policy(own["workloadPolicy"])
        description = call.body.get("description")
        return {
            **({"description": description} if description is not None else {}),
            **own,
            "region": links.url(f"projects/{call.project}/{call.location}"),
            "status": "READY",
        }


def _check_workload_policy(policy: Document) -> None:
    if "type" not in policy:
        raise REQUIRED.refused(field="resource.workloadPolicy.type")
    distance = policy.get("maxTopologyDistance")
    topology = policy.get("acceleratorTopology")
    if distance and (topology or policy.get("acceleratorTopologyMode")):
        raise POLICY_SHAPE.refused(value=distance)
    if topology and not all(side.isdecimal() for side in topology.split("x")):
        raise BAD_VALUE.refused(
            field="resource.workloadPolicy.acceleratorTopology",
            value=topology,
            why="The topology is malformed.",
        )
