"""A TPUNodeGroup as a typed value: its spec, its violations, its names.

`spec` and `spec_rules` say which specs are valid; this module reads the values of a valid field.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from shared.base.documents import (
    read_list,
    read_mapping,
    read_mappings,
    read_number,
    read_text,
    read_texts,
)
from shared.base.fields import Violation, is_yes
from shared.base.names import (
    ACCELERATOR_COUNT_LABEL,
    ACCELERATOR_LABEL,
    FINALIZER,
    GROUP_LABEL,
    GROUP_NAME_LABEL,
    GROUP_NAMESPACE_LABEL,
    JOBSET_KIND,
    JOBSET_LABEL,
    PAUSED_ANNOTATION,
    POOL_LABEL,
    RESOURCE_NAME_LABEL,
    THEIR_FINALIZER_PREFIX,
    TOPOLOGY_LABEL,
    UNIT_KIND_LABEL,
    WORKLOAD_LABEL,
)
from shared.base.slice_names import (
    JOB_KEY_SELECTOR,
    JOB_LABEL,
    job_key,
    may_be_job_key,
    may_be_slice_name,
    slice_name,
    workload_key,
)
from shared.base.timestamps import LONG_AGO, guess_time, parse_duration_s
from shared.base.topology import Machine
from shared.node_groups.spec import DEFAULT_SUBNETWORK, DEFAULT_VERSION, NAME, RECREATE
from shared.node_groups.spec_rules import TEMPLATE, Given, region_of
from shared.ports.gce.values import TemplateRef

MAX_LABEL = 63
MARK_PREFIX = "tpu-functions cluster="
"""The beginning of each ownership mark."""
_RECORDED = re.compile(
    r"projects/(?P<project>[a-z][a-z0-9-]+)/(?:global|(?:zones/(?P<zone>[a-z0-9-]+)"
    r"|regions/(?P<region>[a-z0-9-]+)))/[a-zA-Z]+/(?P<name>[a-z0-9-]+)"
)
"""The URI of one of a group's resources."""


@dataclass(frozen=True)
class Bootstrap:
    """How VMs join: the endpoint as in the spec, and the minor version of Kubernetes."""

    endpoint: str
    version: str


@dataclass(frozen=True)
class InstanceConfig:
    """The part of the spec from which the instance template is built."""

    machine_type: str
    image: str
    provisioning_model: str
    reservation: str = ""
    max_run_s: int = 0
    boot_disk_gb: int = 0
    disk_type: str = ""
    subnetwork: str = DEFAULT_SUBNETWORK
    service_account: tuple[str, tuple[str, ...]] | None = None
    """E-mail and scopes."""
    network_tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Taint:
    """A taint with which every Node of the slice registers."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}"


@dataclass(frozen=True)
class Spec:
    """The spec of a group."""

    project: str
    zone: str
    node_count: int
    topology: str
    mode: str
    source: TemplateRef | InstanceConfig
    """The user's own instance template, or the configuration of one that this system creates."""
    bootstrap: Bootstrap | None = None
    node_labels: Mapping[str, str] = field(default_factory=dict)
    node_taints: tuple[Taint, ...] = ()
    min_node_count: int | None = None
    repair: str = "Never"
    recorded_region: str = ""
    """The region that the status has recorded, if the spec was changed since."""

    @property
    def region(self) -> str:
        return self.recorded_region or region_of(self.zone)

    @property
    def is_bulk(self) -> bool:
        return self.mode == "BULK"

    @property
    def joins_with_tokens(self) -> bool:
        """Whether the VMs join with bootstrap tokens of this system; otherwise by other means."""
        return self.bootstrap is not None

    @property
    def user_template(self) -> TemplateRef | None:
        """The user's own instance template, if the group has one."""
        return self.source if isinstance(self.source, TemplateRef) else None

    @property
    def resource_kinds(self) -> tuple[str, ...]:
        """The keys of ``status.resources`` that this group needs, in the order of creation."""
        policy = ("workloadPolicy",) if self.is_bulk else ()
        return (*policy, "instanceTemplate", "managedInstanceGroup")


@dataclass(frozen=True, kw_only=True)
class GroupObject:
    """The fields of each TPUNodeGroup, whatever its spec.

    ``raw`` is the object itself: `shared.node_groups.status.parse` reads its ``status``.
    ``violations`` are those of its name and spec.
    """

    namespace: str
    name: str
    uid: str
    cluster: str
    generation: int
    created: datetime
    deleting: datetime | None
    labels: Mapping[str, str]
    is_paused: bool
    finalizers: tuple[str, ...]
    violations: tuple[Violation, ...]
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def workload(self) -> str:
        """The owner of the unit for which provision_slice has created the group, by its labels; empty
        for a group of a user. For messages and validation only: users can write labels."""
        owner, metadata = self.labels.get(JOBSET_LABEL, ""), read_mapping(self.raw, "metadata")
        unit = self.labels.get(JOB_LABEL) or read_texts(metadata, "annotations").get(JOB_LABEL)
        return f"{self.labels.get(UNIT_KIND_LABEL, JOBSET_KIND)} {owner}" if owner and unit else ""

    @property
    def has_finalizer(self) -> bool:
        return FINALIZER in self.finalizers

    @property
    def is_owned(self) -> bool:
        """Whether this system's finalizer and the resource-name label are on the group."""
        return self.has_finalizer and self.labels.get(RESOURCE_NAME_LABEL) == self.resource_name

    @property
    def has_operator_finalizer(self) -> bool:
        return any(name.startswith(THEIR_FINALIZER_PREFIX) for name in self.finalizers)

    @property
    def resource_name(self) -> str:
        return resource_name(self.cluster, self.name, self.uid)

    @property
    def mark(self) -> str:
        """The ownership mark: the ``description`` of every GCE resource of this group."""
        return f"{MARK_PREFIX}{self.cluster} group={self.key} uid={self.uid}"  # read by `leaks`

    @property
    def operator_child_names(self) -> dict[str, str]:
        """The names of the children that tpu-operator would create for this group, by plural."""
        suffix = hashlib.sha256(self.uid.encode()).hexdigest()[:8]
        kinds = {"workloadpolicies": "policy", "instancetemplates": "template"}
        kinds |= {"managedinstancegroups": "mig"}
        return {plural: f"{self.name}-{word}-{suffix}" for plural, word in kinds.items()}


@dataclass(frozen=True, kw_only=True)
class NodeGroup(GroupObject):
    """A group whose spec has a zone and a number of VMs, which creation and deletion need.

    It may still have ``violations``: then nothing new is created. If the spec was changed after its
    resources had been created, ``spec`` has what the status has recorded, and ``given`` what the object
    has: project, zone and region, nodeCount and topology, machineType and provisioningModel.
    """

    spec: Spec
    given: Spec | None = None

    def node_labels(self, machine: Machine | None) -> dict[str, str]:
        """The labels of each Node of this group, with the user's own."""
        labels = dict(self.spec.node_labels)
        labels |= {
            RESOURCE_NAME_LABEL: self.resource_name,
            GROUP_NAMESPACE_LABEL: self.namespace,
            GROUP_NAME_LABEL: self.name,
            TOPOLOGY_LABEL: self.spec.topology,
        }
        joined = f"{self.namespace}-{self.name}"
        if len(joined) <= MAX_LABEL:
            labels[GROUP_LABEL] = joined
        if machine is not None:
            labels[ACCELERATOR_LABEL] = machine.generation.accelerator
            labels[ACCELERATOR_COUNT_LABEL] = str(machine.chips)
        return labels

    def vm_labels(self) -> dict[str, str]:
        """Labels of the VMs, for billing and for queries."""
        return {
            "tpu-functions-cluster": self.cluster[:MAX_LABEL],
            "tpu-functions-resource-name": self.resource_name,
            "tpu-node-group-namespace": self.namespace,
            "tpu-node-group-name": self.name,
        }


@dataclass(frozen=True, kw_only=True)
class UnreadableGroup(GroupObject):
    """A group whose spec has no valid zone or count: nothing can be created from it."""


AnyGroup = NodeGroup | UnreadableGroup


def resource_name(cluster: str, name: str, uid: str) -> str:
    """The name of all GCE resources of a group: at most 58 characters, never used twice."""
    suffix = hashlib.sha256(f"{cluster}/{uid}".encode()).hexdigest()[:8]
    return f"tng-{name[:45].rstrip('-')}-{suffix}"


def parse(raw: Mapping[str, Any], cluster: str) -> AnyGroup:
    """Parse an object, whatever its spec, labels and annotations contain.

    Raises `ValueError` for an object without namespace, name and uid.
    """
    metadata = read_mapping(raw, "metadata")
    namespace, name, uid = (metadata.get(key) for key in ("namespace", "name", "uid"))
    if not (isinstance(namespace, str) and isinstance(name, str) and isinstance(uid, str)):
        raise ValueError("metadata.namespace, metadata.name and metadata.uid must be text")
    given = Given(raw.get("spec"))
    deleting, spec = metadata.get("deletionTimestamp"), _spec(given)
    labels, annotations = read_texts(metadata, "labels"), read_texts(metadata, "annotations")
    common: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "uid": uid,
        "cluster": cluster,
        "generation": max(read_number(metadata, "generation") or 1, 1),
        "created": guess_time(metadata.get("creationTimestamp")) or LONG_AGO,
        "deleting": guess_time(deleting) or LONG_AGO if deleting else None,
        "labels": labels,
        "is_paused": is_yes(annotations.get(PAUSED_ANNOTATION, "")),
        "finalizers": tuple(
            one for one in read_list(metadata, "finalizers") if isinstance(one, str)
        ),
        "raw": raw,
    }
    common["violations"] = (
        *NAME.check("metadata.name", name),
        *given.violations,
        *_find_foreign_labels(given.get("nodeLabels", {}), namespace, labels, annotations),
    )
    if given.get("repair") == RECREATE and GroupObject(**common).workload:
        text = "must be Never for the slice of a workload: jobset_lost_rebuild_minutes replaces it"
        common["violations"] = (*common["violations"], Violation("spec.repair", text))
    if spec is None:
        return UnreadableGroup(**common)
    return _follow_status(NodeGroup(**common, spec=spec))


def _follow_status(group: NodeGroup) -> NodeGroup:
    """The group in the place and with the VMs that the status has recorded, with a violation for each
    field of the spec that was changed since. Of several URIs the MIG's counts."""
    status = read_mapping(group.raw, "status")
    entries = read_mapping(status, "resources")
    spec = given = group.spec
    found, newest = dict[str, str](), ""
    for kind in ("instanceTemplate", "workloadPolicy", "managedInstanceGroup"):
        uri = _RECORDED.fullmatch(read_text(read_mapping(entries, kind), "uri"))
        if uri is not None and uri["name"] == group.resource_name:
            found[kind] = newest = uri[0]
            zone = uri["zone"] or spec.zone
            region = uri["region"] or region_of(zone)
            spec = replace(spec, project=uri["project"], zone=zone, recorded_region=region)
    is_elsewhere = (spec.zone, spec.region) != (given.zone, given.region)
    changed = {
        "spec.project": newest if spec.project != given.project else "",
        "spec.nodeLocation": newest if is_elsewhere else "",
        "spec.targetSizePolicyMode": "" if spec.is_bulk else found.get("workloadPolicy", ""),
        "spec.instanceTemplateURI": found.get("instanceTemplate", "") if spec.user_template else "",
    }
    policy_or_mig = found.get("workloadPolicy") or found.get("managedInstanceGroup", "")
    if topology := read_text(status, "topology") if policy_or_mig else "":
        spec = replace(spec, topology=topology)
        if topology != given.topology:
            changed["spec.topology"] = f"{policy_or_mig} with {topology}"
    count = int(read_number(read_mapping(status, "nodeSummary"), "desired"))
    # A MIG of another size than the status has: the way back is to its size. Other conflicts have an
    # error.
    mig_entry = read_mapping(entries, "managedInstanceGroup")
    has_other_size = not read_mapping(mig_entry, "error") and any(
        one.get("type") == "ManagedInstanceGroupReady" and one.get("reason") == "ResourceConflict"
        for one in read_mappings(status, "conditions")
    )
    if count > 0 and not has_other_size and (mig := found.get("managedInstanceGroup", "")):
        spec = replace(spec, node_count=count)
        changed["spec.nodeCount"] = f"{mig} with {count} VMs" if count != given.node_count else ""
    source, template = spec.source, found.get("instanceTemplate", "")
    if template and isinstance(source, InstanceConfig):
        machine = read_text(status, "machineType") or source.machine_type
        model = read_text(status, "provisioningModel") or source.provisioning_model
        if machine != source.machine_type:
            changed["spec.instanceConfig.machineType"] = f"{template} with {machine}"
        if model != source.provisioning_model:
            changed["spec.instanceConfig.provisioningModel"] = f"{template} with {model}"
        spec = replace(spec, source=replace(source, machine_type=machine, provisioning_model=model))
    text = "must not be changed, because the group has"
    moved = [Violation(path, f"{text} {uri}") for path, uri in changed.items() if uri]
    violations = (*moved, *group.violations)
    return replace(group, spec=spec, given=given, violations=violations) if moved else group


def _find_foreign_labels(
    node_labels: Mapping[str, str],
    namespace: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
) -> Iterator[Violation]:
    """The labels of Nodes that would make them part of another workload's slice.

    Pods of workloads select Nodes by these labels. Nodes of a group in another namespace that has them
    would get these Pods, with their Secrets.
    """
    job = labels.get(JOB_LABEL) or annotations.get(JOB_LABEL, "")
    key = job_key(namespace, job) if job else ""
    name = slice_name(labels.get(JOBSET_LABEL, ""), key) if job else ""
    selector = node_labels.get(JOB_KEY_SELECTOR, "")
    if may_be_job_key(selector) and selector != key:
        text = "must be the key of the Job for which this group was created; leave it out"
        yield Violation(f"spec.nodeLabels.{JOB_KEY_SELECTOR}", text)
    pool = node_labels.get(POOL_LABEL, "")
    if may_be_slice_name(pool) and pool != name:
        text = "must not be the name of another Job's slice; leave it out"
        yield Violation(f"spec.nodeLabels.{POOL_LABEL}", text)
    unit = job.split("/", 2)  # the id of a `shared.slices.units.Unit`
    kind, owner, member = (
        unit if len(unit) == 3 else (JOBSET_KIND, labels.get(JOBSET_LABEL, ""), job)
    )
    own = workload_key(namespace, kind, owner, member) if job else ""
    if node_labels.get(WORKLOAD_LABEL, own) != own:
        text = "must be the key of the workload for which this group was created; leave it out"
        yield Violation(f"spec.nodeLabels.{WORKLOAD_LABEL}", text)


def parse_template_uri(uri: str) -> TemplateRef | None:
    """Parse a template's URI in any form of Compute Engine; ``None`` if it is not one."""
    found = TEMPLATE.fullmatch(uri)
    if found is None:
        return None
    return TemplateRef(found["project"], found["name"], found["region"] or "")


def _spec(given: Given) -> Spec | None:
    """The spec; ``None`` if a field is malformed that a deletion needs."""
    project, zone = given.get("project"), given.get("nodeLocation")
    count, mode, shape = (
        given.get(path) for path in ("nodeCount", "targetSizePolicyMode", "topology")
    )
    template = parse_template_uri(given.get("instanceTemplateURI", ""))
    is_of_project = template is not None and template.project == project
    source = template if is_of_project else _read_instance(given)
    if not (project and zone and count and mode and shape and source):
        return None
    bootstrap = None
    if given.has("bootstrapKubernetes"):
        endpoint = given.get("bootstrapKubernetes.controlPlaneIP", "")
        version = given.get("bootstrapKubernetes.version", DEFAULT_VERSION)
        bootstrap = Bootstrap(endpoint, version)
    return Spec(
        project=project,
        zone=zone,
        node_count=count,
        topology=shape,
        mode=mode,
        source=source,
        bootstrap=bootstrap,
        node_labels=given.get("nodeLabels", {}),
        node_taints=tuple(
            Taint(taint["key"], taint.get("value") or "", taint["effect"])
            for taint in given.get("nodeTaints", ())
        ),
        min_node_count=given.get("minNodeCount"),
        repair=given.get("repair", "Never"),
    )


def _read_instance(given: Given) -> InstanceConfig | None:
    if not given.has("instanceConfig"):
        return None

    def get(name: str, default: Any = "") -> Any:
        return given.get(f"instanceConfig.{name}", default)

    accounts = get("serviceAccounts", [])
    default_model = "RESERVATION_BOUND" if get("reservation") else "STANDARD"
    return InstanceConfig(
        machine_type=get("machineType"),
        image=get("image"),
        provisioning_model=get("provisioningModel", default_model),
        reservation=get("reservation"),
        max_run_s=parse_duration_s(get("maxRunDuration")) or 0,
        boot_disk_gb=get("bootDiskSizeGB", 0),
        disk_type=get("diskType"),
        subnetwork=get("subnetwork", DEFAULT_SUBNETWORK),
        service_account=(accounts[0]["email"], tuple(accounts[0]["scopes"])) if accounts else None,
        network_tags=tuple(get("networkTags", ())),
        metadata=get("metadata", {}),
    )
