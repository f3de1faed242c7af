"""The environment of the simulated Compute Engine: clock, random numbers, timings, fault plan."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from uuid import UUID

from local.base.clock import Callback, Clock, Timer
from local.gce import links
from local.gce.callers import Caller, Principal
from local.gce.fault_plan import ComputeFaultPlan
from local.gce.inventory import Inventory, UnrestrictedInventory
from local.gce.refusals import MALFORMED_URL
from local.gce.timings import Range, Timings

AGENT_USER_AGENT = "GCE Managed Instance Group"


class Environment:
    """Passed to every part of one simulated Compute Engine; imports none of the resources."""

    def __init__(
        self, clock: Clock, *, projects: Mapping[str, str], random: Random, timings: Timings
    ) -> None:
        self.clock = clock
        self.projects = projects
        self._ids = {number: project for project, number in projects.items()}
        self.random = random
        self.timings = timings
        self.inventory: Inventory = UnrestrictedInventory()
        self.fault_plan = ComputeFaultPlan(clock, projects)

    def draw(self, timing: Range) -> float:
        """Draw a duration from a range, in seconds."""
        low, high = timing
        return self.random.uniform(low, high) if low < high else low

    def later(self, timing: Range, callback: Callback) -> Timer:
        """Run a callback after a duration drawn from a range."""
        return self.clock.call_later(self.draw(timing), callback)

    def path_of(self, reference: str, project: str, field: str) -> str:
        """Resolve a reference in a request to a path. Raises `Refused` for a malformed one."""
        path = links.find_path(reference, project)
        if path is None:
            raise MALFORMED_URL.refused(field=field, value=reference)
        _, owner, rest = path.split("/", 2)
        return f"projects/{self.project_id(owner)}/{rest}"

    def project_id(self, project: str) -> str:
        """Find the id of a project by id or number."""
        return self._ids.get(project, project)

    def uuid(self) -> str:
        """A random UUID, as in requests of Google's agents."""
        return str(UUID(int=self.random.getrandbits(128), version=4))

    def numbered(self, path: str) -> str:
        """The path with the project's number instead of its id, as Google's agents write it."""
        _, project, rest = path.split("/", 2)
        return f"projects/{self.projects[project]}/{rest}"

    def agent_email(self, project: str) -> str:
        """The e-mail address of the Google APIs service agent, which creates the VMs of groups."""
        return f"{self.projects[project]}@cloudservices.gserviceaccount.com"

    def agent(self, project: str) -> Caller:
        """The service agent as a caller."""
        email = self.agent_email(project)
        return Caller(Principal(email), AGENT_USER_AGENT, denied=self.fault_plan.denied_to(email))
