"""The requested settings of a managed instance group."""

from __future__ import annotations

from local.gce import links
from local.gce.schema import Document
from local.gce.templates import Templates


class GroupSettings:
    """The settings of one group.

    ``settings`` is the body of insert, with full URLs as references; ``template`` and ``policy``
    are paths, the latter perhaps empty, as is ``topology``.
    """

    def __init__(
        self, templates: Templates, path: str, group_id: str, settings: Document, topology: str
    ) -> None:
        self._templates = templates
        self.path = path
        self.id = group_id
        self.settings = settings
        self.topology = topology
        self.deleting = False

    @property
    def project(self) -> str:
        """The project's id."""
        return self.path.split("/")[1]

    @property
    def zone(self) -> str:
        """The zone's name."""
        return self.path.split("/")[3]

    @property
    def name(self) -> str:
        """The group's name."""
        return links.name_of(self.path)

    @property
    def base_name(self) -> str:
        """The prefix of the names of its VMs."""
        return str(self.settings.get("baseInstanceName") or self.name)

    @property
    def template(self) -> str:
        """The path of the template for new VMs."""
        return str(links.find_path(self.settings["instanceTemplate"], self.project))

    @property
    def policy(self) -> str:
        """The path of the workload policy; empty if there is none."""
        reference = (self.settings.get("resourcePolicies") or {}).get("workloadPolicy", "")
        return links.find_path(reference, self.project) or ""

    @property
    def is_bulk(self) -> bool:
        """Whether its VMs are created all or none."""
        return self.mode == "BULK"

    @property
    def mode(self) -> str:
        """``targetSizePolicy.mode``."""
        return str((self.settings.get("targetSizePolicy") or {}).get("mode", "INDIVIDUAL"))

    @property
    def repairs(self) -> bool:
        """Whether it recreates lost VMs."""
        policy = self.settings.get("instanceLifecyclePolicy") or {}
        return not self.deleting and policy.get("defaultActionOnFailure", "REPAIR") == "REPAIR"

    @property
    def model(self) -> str:
        """The provisioning model of new VMs."""
        return str(self.template_properties(self.template)["scheduling"]["provisioningModel"])

    @property
    def all_instances_properties(self) -> Document:
        """The additions of every new VM to the template: ``metadata`` and ``labels``."""
        config: Document = self.settings.get("allInstancesConfig") or {}
        return config.get("properties") or {}

    def template_properties(self, template: str) -> Document:
        """The properties of a template of the group."""
        properties: Document = self._templates.store.get(template).document()["properties"]
        return properties

    @property
    def target_size(self) -> int:
        """The requested number of VMs."""
        return int(self.settings["targetSize"])
