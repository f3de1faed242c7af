"""What one managed instance group is asked to be; nothing about the VMs that it has."""

from __future__ import annotations

from local.gce import links
from local.gce.schema import Document
from local.gce.templates import Templates


class GroupSettings:
    """The settings of one group.

    ``settings`` is the client's part of the resource (what insert and patch sent), with all
    references turned into full URLs; ``template`` and ``policy`` are paths, the latter perhaps
    empty, as is ``topology``.
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
        """What the names of its VMs begin with."""
        return str(self.settings.get("baseInstanceName") or self.name)

    @property
    def template(self) -> str:
        """The path of the template for new VMs."""
        return str(links.find_path(self.settings["instanceTemplate"], self.project))

    @property
    def policy(self) -> str:
        """The path of the workload policy; empty when there is none."""
        reference = (self.settings.get("resourcePolicies") or {}).get("workloadPolicy", "")
        return links.find_path(reference, self.project) or ""

    @property
    def is_bulk(self) -> bool:
        """Whether its VMs are made all or none."""
        return self.mode == "BULK"

    @property
    def mode(self) -> str:
        """``targetSizePolicy.mode``."""
        return str((self.settings.get("targetSizePolicy") or {}).get("mode", "INDIVIDUAL"))

    @property
    def repairs(self) -> bool:
        """Whether it makes lost VMs anew."""
        policy = self.settings.get("instanceLifecyclePolicy") or {}
        return not self.deleting and policy.get("defaultActionOnFailure", "REPAIR") == "REPAIR"

    @property
    def model(self) -> str:
        """The provisioning model of new VMs."""
        return str(self.template_properties(self.template)["scheduling"]["provisioningModel"])

    @property
    def all_instances_properties(self) -> Document:
        """What every new VM gets over the template's: ``metadata`` and ``labels``, both maps."""
        config: Document = self.settings.get("allInstancesConfig") or {}
        return config.get("properties") or {}

    def template_properties(self, template: str) -> Document:
        """The properties of a template of the group, which cannot be deleted while it is used."""
        properties: Document = self._templates.store.get(template).document()["properties"]
        return properties

    @property
    def target_size(self) -> int:
        """How many VMs it shall have."""
        return int(self.settings["targetSize"])
