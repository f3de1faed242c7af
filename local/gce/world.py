"""What the nouns of the simulated Compute Engine share: time, chance, dials, and each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any
from uuid import UUID

from local.clock import Callback, Clock, Timer
from local.gce import links
from local.gce.audit import AuditLog
from local.gce.calls import Caller, Principal
from local.gce.dials import Dials, Range
from local.gce.faults import Faults
from local.gce.groups import Groups
from local.gce.instances import Instances
from local.gce.operations import Operations
from local.gce.policies import Policies
from local.gce.refusals import MALFORMED_URL
from local.gce.schema import Document
from local.gce.shelf import Shelf
from local.gce.supply import Supply
from local.gce.templates import Templates
from local.machine import GuestFactory

AGENT_USER_AGENT = "GCE Managed Instance Group"


class World:
    """One simulated Compute Engine without its HTTP."""

    act: Callable[[Caller, str, str, Document | None], Document]
    """Makes a call as somebody: caller, HTTP method, path, body. Set by who routes calls."""

    def __init__(
        self,
        clock: Clock,
        *,
        projects: Mapping[str, str],
        random: Random,
        guests: GuestFactory,
        on_log_entry: Callable[[dict[str, Any]], None],
        dials: Dials,
    ) -> None:
        self.clock = clock
        self.projects = projects
        self._ids = {number: project for project, number in projects.items()}
        self.random = random
        self.guests = guests
        self.dials = dials
        self.audit = AuditLog(self, on_log_entry)
        self.faults = Faults(self)
        self.supply = Supply(self)
        self.operations = Operations(self)
        self.policies = Policies(self)
        self.templates = Templates(self)
        self.instances = Instances(self)
        self.groups = Groups(self)

    def paths(self) -> list[str]:
        """The paths of all resources that exist."""
        return [resource.path for shelf in self._shelves() for resource in shelf]

    def find_id(self, path: str) -> str:
        """The numeric id of the resource at a path; empty when there is none."""
        found = (shelf.find(path) for shelf in self._shelves())
        return next((resource.id for resource in found if resource is not None), "")

    def _shelves(self) -> tuple[Shelf[Any], ...]:
        return (
            self.policies.shelf, self.templates.shelf, self.groups.shelf, self.instances.shelf
        )  # fmt: skip

    def draw(self, dial: Range) -> float:
        """A duration from a range, in seconds."""
        low, high = dial
        return self.random.uniform(low, high) if low < high else low

    def later(self, dial: Range, callback: Callback) -> Timer:
        """Run a callback after a duration drawn from a range."""
        return self.clock.call_later(self.draw(dial), callback)

    def path_of(self, reference: str, project: str, field: str) -> str:
        """The path that a reference in a request means. Raises `Refused` for a malformed one."""
        path = links.find_path(reference, project)
        if path is None:
            raise MALFORMED_URL.refused(field=field, value=reference)
        _, owner, rest = path.split("/", 2)
        return f"projects/{self.project_id(owner)}/{rest}"

    def project_id(self, project: str) -> str:
        """The id of a project that is given by id or number."""
        return self._ids.get(project, project)

    def uuid(self) -> str:
        """A random UUID, as Google's agents put into their requests."""
        return str(UUID(int=self.random.getrandbits(128), version=4))

    def numbered(self, path: str) -> str:
        """A path with the project's number in place of its id, as Google's agents write it."""
        _, project, rest = path.split("/", 2)
        return f"projects/{self.projects[project]}/{rest}"

    def agent_email(self, project: str) -> str:
        """The Google APIs service agent, which makes the VMs of groups."""
        return f"{self.projects[project]}@cloudservices.gserviceaccount.com"

    def agent(self, project: str) -> Caller:
        """The service agent as a caller."""
        email = self.agent_email(project)
        return Caller(Principal(email), AGENT_USER_AGENT, denied=self.faults.denied_to(email))
