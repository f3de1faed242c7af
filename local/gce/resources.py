"""All resources of one simulated Compute Engine."""

from __future__ import annotations

from typing import Any

from local.gce.context import Context
from local.gce.groups import Groups
from local.gce.instances import Instances
from local.gce.machine_types import MachineTypes
from local.gce.policies import Policies
from local.gce.store import Store
from local.gce.templates import Templates


class Resources:
    """The resources of each kind."""

    def __init__(self, context: Context) -> None:
        self.machine_types = MachineTypes(context)
        self.policies = Policies(context, self._find_user)
        self.templates = Templates(context, self._find_user)
        self.instances = Instances(context, self.policies, self.templates)
        self.groups = Groups(context, self.policies, self.templates, self.instances)

    def paths(self) -> list[str]:
        """The paths of all resources that exist."""
        return [resource.path for store in self._stores() for resource in store]

    def find_id(self, path: str) -> str:
        """The numeric id of the resource at a path; empty when there is none."""
        found = (store.find(path) for store in self._stores())
        return next((resource.id for resource in found if resource is not None), "")

    def _stores(self) -> tuple[Store[Any], ...]:
        return (
            self.policies.store, self.templates.store, self.groups.store, self.instances.store
        )  # fmt: skip

    def _find_user(self, path: str) -> str:
        return self.groups.find_user(path)
