"""The list of machine types: those of the inventory, by zone."""

from __future__ import annotations

from local.gce import links
from local.gce.calls import Call, Route
from local.gce.context import Context
from local.gce.listing import answer_aggregated
from local.gce.schema import Document

_KIND = "compute#machineType"


class MachineTypes:
    """All machine types; empty without a table."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> tuple[Route, ...]:
        """The methods about machine types."""
        list_all = Route(
            "GET aggregated machineTypes", "machineTypes.aggregatedList", self.list_all
        )
        return (list_all,)

    def list_all(self, call: Call) -> Document:
        """Answer the aggregated list."""
        documents = [
            {
                "kind": _KIND,
                "name": name,
                "zone": zone,
                "selfLink": links.url(f"projects/{call.project}/zones/{zone}/machineTypes/{name}"),
            }
            for zone, names in self._context.inventory.machine_types.items()
            for name in names
            if not name.endswith("*")
        ]
        return answer_aggregated(call, f"{_KIND}AggregatedList", documents)
