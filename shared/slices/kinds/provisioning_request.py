"""ProvisioningRequests without a workload: units of their own, one for each slice."""

from itertools import count

from shared.base.documents import Document
from shared.base.topology import chips_of
from shared.slices.kinds.kind import Claim, Entries, Members, UnitKind
from shared.slices.units import Demand, UnservableError
from shared.triggers.message import REQUEST_KIND


class RequestKind(UnitKind):
    """Requests by hand. The member of a unit is its number. No Pod is of this kind."""

    name = REQUEST_KIND
    api_version = "autoscaling.x-k8s.io/v1"
    finished = ("Failed", "BookingExpired")

    def claim(self, _demand: Demand) -> Claim | None:
        return None

    def list_units(self, owner: Document, _workload: Document, entries: Entries) -> Members:
        members = count()
        for entry in entries:
            demand, chips = entry.demand, entry.pods * entry.demand.chips
            slices, rest = divmod(chips, chips_of(demand.topology))
            if rest or (demand.hosts > 1 and (len(entries), slices) != (1, 1)):
                raise UnservableError(
                    f"PodTemplate {entry.name}: {chips} chips are not one slice of {demand.topology} "
                    "or, of one host, several, which a request without a workload may ask for"
                )
            yield from ((str(next(members)), entry, owner) for _ in range(slices))


PROVISIONING_REQUEST = RequestKind()
