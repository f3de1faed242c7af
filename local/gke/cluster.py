"""A cluster whose node pools are simulated."""

from __future__ import annotations

from dataclasses import dataclass

from local.gke.wire import Document


@dataclass(frozen=True)
class Cluster:
    """An existing cluster. ``number`` is its project's, ``location`` a zone or region."""

    project: str
    number: str
    location: str
    name: str
    release_channel: str = ""

    @property
    def path(self) -> str:
        """The path of the cluster in links, without the project."""
        return f"{self.place}/clusters/{self.name}"

    @property
    def place(self) -> str:
        """The location in links."""
        is_zone = self.location.count("-") == 2
        return f"{'zones' if is_zone else 'locations'}/{self.location}"

    @property
    def region(self) -> str:
        """The cluster's region."""
        return "-".join(self.location.split("-")[:2])

    def zone_of(self, pool: Document) -> str:
        """The zone of a requested pool."""
        named = pool.get("locations") or ()
        is_zone = self.location.count("-") == 2
        return str(named[0]) if named else self.location if is_zone else f"{self.region}-a"
