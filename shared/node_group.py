"""A TPUNodeGroup as a typed value: what it asks for, what is wrong with it, what it is called.

The CRD refuses most mistakes already; the same is checked here again, because a CRD can be older
than the functions, and because an object may have been stored before a rule was.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shared import topology
from shared.names import (
    ACCELERATOR_COUNT_LABEL,
    ACCELERATOR_LABEL,
    CA_HASH_KEY,
    CONTROL_PLANE_KEY,
    FINALIZER,
    GROUP_LABEL,
    GROUP_NAME_LABEL,
    GROUP_NAMESPACE_LABEL,
    PAUSED_ANNOTATION,
    RESOURCE_NAME_LABEL,
    STARTUP_SCRIPT_KEY,
    THEIR_FINALIZER_PREFIX,
    TOKEN_EXPIRY_KEY,
    TOKEN_KEY,
    TOPOLOGY_LABEL,
)
from shared.topology import Machine
from shared.when import parse_time

MODELS = ("STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START")
MODES = ("BULK", "INDIVIDUAL")
MAX_LABEL = 63
MAX_URI = 255
MIN_RUN_S, MAX_RUN_S = 30, 7 * 24 * 3600
"""Limits of a flex-start VM's life (documented: seven days at most)."""

_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_PROJECT = re.compile(r"^[a-z][a-z0-9-]{4,28}[a-z0-9]$")
_ZONE = re.compile(r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")
_VERSION = re.compile(r"^[0-9]+\.[0-9]+$")
_METADATA_KEY = re.compile(r"^[a-zA-Z0-9_-]{1,127}$")
_TEMPLATE = re.compile(
    r"^(?:https://[a-z0-9.-]+/compute/[a-z0-9]+/)?"
    r"projects/(?P<project>[^/]+)/"
    r"(?:(?:locations/)?global|(?:regions|locations)/(?P<region>[a-z]+-[a-z]+[0-9]+))/"
    r"instanceTemplates/(?P<name>[a-z0-9-]+)$"
)
_DURATION = re.compile(r"^([0-9]+)([smhd])$")
_HOST = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$")
_IPV6 = re.compile(
    r"^(\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\](:[0-9]{1,5})?|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)$"
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RESERVED_METADATA = frozenset(
    {TOKEN_KEY, TOKEN_EXPIRY_KEY, CONTROL_PLANE_KEY, CA_HASH_KEY, "created-by", "instance-template"}
)


@dataclass(frozen=True)
class Problem:
    """What is wrong with a field, and what would be right."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


@dataclass(frozen=True)
class TemplateRef:
    """An instance template: global, or of a region."""

    project: str
    name: str
    region: str = ""

    @property
    def uri(self) -> str:
        """The partial URL that Compute Engine takes everywhere."""
        scope = f"regions/{self.region}" if self.region else "global"
        return f"projects/{self.project}/{scope}/instanceTemplates/{self.name}"


@dataclass(frozen=True)
class Bootstrap:
    """How VMs join: the endpoint exactly as the user gave it, and Kubernetes' minor version."""

    endpoint: str
    version: str


@dataclass(frozen=True)
class InstanceConfig:
    """What the group's own template is made of."""

    machine_type: str
    image: str
    provisioning_model: str
    reservation: str = ""
    max_run_s: int = 0
    boot_disk_gb: int = 0
    disk_type: str = ""
    subnetwork: str = "default"
    service_account: tuple[str, tuple[str, ...]] | None = None
    """E-mail and scopes."""
    network_tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Taint:
    """A taint that every Node of the slice registers with."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}"


@dataclass(frozen=True)
class Spec:
    """What is asked for. Exactly one of ``template`` and ``instance`` is set."""

    project: str
    zone: str
    node_count: int
    topology: str
    mode: str
    template: TemplateRef | None = None
    instance: InstanceConfig | None = None
    bootstrap: Bootstrap | None = None
    node_labels: Mapping[str, str] = field(default_factory=dict)
    node_taints: tuple[Taint, ...] = ()
    min_node_count: int | None = None

    @property
    def region(self) -> str:
        return self.zone.rsplit("-", 1)[0]

    @property
    def is_bulk(self) -> bool:
        return self.mode == "BULK"

    @property
    def resource_kinds(self) -> tuple[str, ...]:
        """Keys of ``status.resources`` that this group needs, in the order of creation."""
        policy = ("workloadPolicy",) if self.is_bulk else ()
        return (*policy, "instanceTemplate", "managedInstanceGroup")


@dataclass(frozen=True)
class NodeGroup:
    """One TPUNodeGroup as it was read. ``spec`` is ``None`` when ``problems`` leave nothing to go by.

    ``raw`` is the object itself: its ``status`` is read by `shared.status.parse`.
    """

    namespace: str
    name: str
    uid: str
    cluster: str
    resource_version: str
    generation: int
    created: datetime
    deleting: datetime | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    finalizers: tuple[str, ...]
    spec: Spec | None
    problems: tuple[Problem, ...]
    raw: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_paused(self) -> bool:
        return self.annotations.get(PAUSED_ANNOTATION) == "true"

    @property
    def has_finalizer(self) -> bool:
        return FINALIZER in self.finalizers

    @property
    def is_owned(self) -> bool:
        """Ours, and findable: finalizer and label are in place."""
        return self.has_finalizer and self.labels.get(RESOURCE_NAME_LABEL) == self.resource_name

    @property
    def carries_foreign_finalizer(self) -> bool:
        return any(name.startswith(THEIR_FINALIZER_PREFIX) for name in self.finalizers)

    @property
    def resource_name(self) -> str:
        return resource_name(self.cluster, self.name, self.uid)

    @property
    def mark(self) -> str:
        """What stands in the ``description`` of every GCE resource of this group."""
        return f"tpu-functions cluster={self.cluster} group={self.key} uid={self.uid}"

    @property
    def foreign_child_names(self) -> dict[str, str]:
        """tpu-operator's children of this group, had it made any: plural to name."""
        suffix = hashlib.sha256(self.uid.encode()).hexdigest()[:8]
        kinds = {
            "workloadpolicies": "policy",
            "instancetemplates": "template",
            "managedinstancegroups": "mig",
        }
        return {plural: f"{self.name}-{word}-{suffix}" for plural, word in kinds.items()}

    def node_labels(self, machine: Machine | None) -> dict[str, str]:
        """The labels that every Node of this group bears, the user's own included."""
        assert self.spec is not None
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
        """Labels of the VMs: for the bill, and to find them by."""
        return {
            "tpu-functions-cluster": self.cluster[:MAX_LABEL],
            "tpu-functions-resource-name": self.resource_name,
            "tpu-node-group-namespace": self.namespace,
            "tpu-node-group-name": self.name,
        }


def resource_name(cluster: str, name: str, uid: str) -> str:
    """The name of all GCE resources of a group: at most 58 characters, never used twice."""
    suffix = hashlib.sha256(f"{cluster}/{uid}".encode()).hexdigest()[:8]
    return f"tng-{name[:45].rstrip('-')}-{suffix}"


def parse(raw: Mapping[str, Any], cluster: str) -> NodeGroup:
    """Read an object as the API server gives it. Never raises for what stands in ``spec``."""
    metadata = raw["metadata"]
    reader = _Reader(raw.get("spec") or {}, metadata["name"])
    spec = reader.read()
    deleting = metadata.get("deletionTimestamp")
    return NodeGroup(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        cluster=cluster,
        resource_version=metadata["resourceVersion"],
        generation=metadata.get("generation", 1),
        created=parse_time(metadata["creationTimestamp"]),
        deleting=parse_time(deleting) if deleting else None,
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        finalizers=tuple(metadata.get("finalizers") or ()),
        spec=spec,
        problems=tuple(reader.problems),
        raw=raw,
    )


def parse_template_uri(uri: str) -> TemplateRef | None:
    """A template's URI in any form that Compute Engine gives out; ``None`` if it is none."""
    match = _TEMPLATE.match(uri)
    if match is None:
        return None
    return TemplateRef(match["project"], match["name"], match["region"] or "")


def parse_duration_s(text: str) -> int | None:
    """``90s``, ``30m``, ``168h`` or ``7d`` in seconds; ``None`` if it is no such duration."""
    match = _DURATION.match(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None


class _Reader:
    """Reads a spec field by field, collecting what is wrong on the way."""

    def __init__(self, spec: Mapping[str, Any], name: str) -> None:
        self.spec = spec
        self.name = name
        self.problems: list[Problem] = []

    def read(self) -> Spec | None:
        if not _NAME.match(self.name) or len(self.name) > MAX_LABEL:
            self._problem(
                "metadata.name", f"{self.name!r} must be at most 63 of a-z, 0-9 and -, without dots"
            )
        project, zone = self._project(), self._zone()
        count, mode = self._count(), self._choice("targetSizePolicyMode", MODES)
        self._choice("acceleratorConnectionMode", ("STATIC",))
        shape = self._topology()
        if count == 1 and mode == "BULK":
            self._problem(
                "spec", "targetSizePolicyMode must be INDIVIDUAL when nodeCount is 1 or less"
            )
        template, instance = self._source(project, zone)
        if not (project and zone and mode and shape and count and (template or instance)):
            return None
        self._fit(shape, count, mode, instance)
        return Spec(
            project=project,
            zone=zone,
            node_count=count,
            topology=shape,
            mode=mode,
            template=template,
            instance=instance,
            bootstrap=self._bootstrap(template),
            node_labels=self.spec.get("nodeLabels") or {},
            node_taints=tuple(self._taints()),
            min_node_count=self.spec.get("minNodeCount"),
        )

    def _problem(self, path: str, text: str) -> None:
        self.problems.append(Problem(path, text))

    def _text(self, path: str, holder: Mapping[str, Any], *, required: bool = False) -> str:
        value = holder.get(path.rsplit(".", 1)[-1])
        if isinstance(value, str) and value:
            return value
        if value is not None and not isinstance(value, str):
            self._problem(f"spec.{path}", f"must be text, not {value!r}")
        elif required:
            self._problem(f"spec.{path}", "is required and must not be empty")
        return ""

    def _project(self) -> str:
        value = self._text("project", self.spec, required=True)
        if value and not _PROJECT.match(value):
            self._problem(
                "spec.project", f"{value!r} is no project id; it must match {_PROJECT.pattern}"
            )
            return ""
        return value

    def _zone(self) -> str:
        value = self._text("nodeLocation", self.spec, required=True)
        if value and not _ZONE.match(value):
            self._problem(
                "spec.nodeLocation", f"{value!r} is no zone; a zone is like us-central1-c"
            )
            return ""
        return value

    def _count(self) -> int:
        value = self.spec.get("nodeCount")
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self._problem("spec.nodeCount", f"must be a whole number of at least 1, not {value!r}")
        return 0

    def _choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self._text(name, self.spec, required=True)
        if value and value not in choices:
            self._problem(f"spec.{name}", f"{value!r} must be one of {', '.join(choices)}")
            return ""
        return value

    def _topology(self) -> str:
        value = self._text("topology", self.spec, required=True)
        if value and not topology.TOPOLOGY.match(value):
            self._problem("spec.topology", f"{value!r} is no topology; one is like 2x2x2 or 4x4")
            return ""
        return value

    def _source(self, project: str, zone: str) -> tuple[TemplateRef | None, InstanceConfig | None]:
        uri, config = self._text("instanceTemplateURI", self.spec), self.spec.get("instanceConfig")
        if uri and config:
            self._problem(
                "spec", "InstanceConfig and InstanceTemplateURI cannot be specified together"
            )
        if not uri and not config:
            self._problem("spec", "Either InstanceConfig or InstanceTemplateURI must be specified")
        if uri:
            return self._template(uri, project, zone), None
        return None, self._instance(config) if config else None

    def _template(self, uri: str, project: str, zone: str) -> TemplateRef | None:
        if len(uri) > MAX_URI:
            self._problem(
                "spec.instanceTemplateURI", f"has {len(uri)} characters; {MAX_URI} are allowed"
            )
        ref = parse_template_uri(uri)
        if ref is None or (project and ref.project != project):
            self._problem(
                "spec",
                "InstanceTemplateURI must belong to the same project as specified in spec.project: "
                f"projects/{project or 'PROJECT'}/global/instanceTemplates/NAME",
            )
            return None
        if ref.region and zone and ref.region != zone.rsplit("-", 1)[0]:
            self._problem(
                "spec.instanceTemplateURI",
                f"the template is of region {ref.region}, the group of zone {zone}",
            )
        return ref

    def _instance(self, config: Mapping[str, Any]) -> InstanceConfig:
        reservation = self._text("instanceConfig.reservation", config)
        return InstanceConfig(
            machine_type=self._machine_type(config),
            image=self._text("instanceConfig.image", config, required=True),
            provisioning_model=self._model(config, reservation),
            reservation=reservation,
            max_run_s=self._max_run(config),
            boot_disk_gb=self._disk_size(config),
            disk_type=self._text("instanceConfig.diskType", config),
            subnetwork=self._text("instanceConfig.subnetwork", config) or "default",
            service_account=self._service_account(config),
            network_tags=tuple(config.get("networkTags") or ()),
            metadata=self._metadata(config),
        )

    def _machine_type(self, config: Mapping[str, Any]) -> str:
        path = "spec.instanceConfig.machineType"
        value = self._text("instanceConfig.machineType", config, required=True)
        if value and not topology.SUPPORTED_FAMILY.match(value):
            self._problem(path, f"Only v6 and v7 TPU machine types are supported, not {value!r}")
        elif value and topology.find_machine(value) is None:
            self._problem(path, f"{value!r} must end in -1t, -2t, -4t or -8t, the chips of one VM")
        return value

    def _model(self, config: Mapping[str, Any], reservation: str) -> str:
        path = "spec.instanceConfig.provisioningModel"
        value = self._text("instanceConfig.provisioningModel", config)
        model = value or ("RESERVATION_BOUND" if reservation else "STANDARD")
        if model not in MODELS:
            self._problem(path, f"{value!r} must be one of {', '.join(MODELS)}")
        if model == "RESERVATION_BOUND" and not reservation:
            self._problem(
                "spec.instanceConfig.reservation",
                "Reservation is required when provisioningModel is RESERVATION_BOUND",
            )
        if model != "RESERVATION_BOUND" and reservation:
            self._problem(
                path, "ProvisioningModel must be RESERVATION_BOUND when reservation is specified"
            )
        return model

    def _max_run(self, config: Mapping[str, Any]) -> int:
        path = "spec.instanceConfig.maxRunDuration"
        text = self._text("instanceConfig.maxRunDuration", config)
        flex = config.get("provisioningModel") == "FLEX_START"
        if flex != bool(text):
            word = "is required with" if flex else "goes only with"
            self._problem(path, f"{word} provisioningModel FLEX_START, as in 168h")
            return 0
        seconds = parse_duration_s(text) if text else 0
        if seconds is None or (text and not MIN_RUN_S <= seconds <= MAX_RUN_S):
            self._problem(path, f"{text!r} must be from 30s to 7d, as in 90m, 168h or 7d")
            return 0
        return seconds

    def _disk_size(self, config: Mapping[str, Any]) -> int:
        value = config.get("bootDiskSizeGB")
        if value is None:
            return 0
        if isinstance(value, int) and value >= 10:
            return value
        self._problem("spec.instanceConfig.bootDiskSizeGB", f"must be at least 10, not {value!r}")
        return 0

    def _service_account(self, config: Mapping[str, Any]) -> tuple[str, tuple[str, ...]] | None:
        path = "spec.instanceConfig.serviceAccounts"
        accounts = config.get("serviceAccounts") or []
        if not accounts:
            return None
        if len(accounts) > 1:
            self._problem(path, f"a VM has one service account at most, not {len(accounts)}")
        email, scopes = accounts[0].get("email"), accounts[0].get("scopes")
        if not email or not scopes:
            self._problem(f"{path}[0].{'scopes' if email else 'email'}", "is required")
            return None
        return email, tuple(scopes)

    def _metadata(self, config: Mapping[str, Any]) -> dict[str, str]:
        path = "spec.instanceConfig.metadata"
        metadata = dict(config.get("metadata") or {})
        for key, value in metadata.items():
            if not _METADATA_KEY.match(key):
                self._problem(path, f"key {key!r} must be at most 127 of a-z, A-Z, 0-9, - and _")
            if not isinstance(value, str):
                self._problem(f"{path}.{key}", f"must be text, not {value!r}")
        for key in sorted(_RESERVED_METADATA & metadata.keys()):
            self._problem(path, f"key {key!r} is set by the system; leave it out")
        if STARTUP_SCRIPT_KEY in metadata and self.spec.get("bootstrapKubernetes"):
            self._problem(
                path,
                "key 'startup-script' is the system's own while bootstrapKubernetes is set; "
                "use user-data (cloud-init) or leave bootstrapKubernetes out",
            )
        return metadata

    def _bootstrap(self, template: TemplateRef | None) -> Bootstrap | None:
        bootstrap = self.spec.get("bootstrapKubernetes")
        if not bootstrap:
            return None
        if template:
            self._problem(
                "spec", "Bootstrapping is not supported when bringing your own instance template"
            )
        path = "spec.bootstrapKubernetes"
        endpoint = self._text("bootstrapKubernetes.controlPlaneIP", bootstrap, required=True)
        if endpoint and not (_HOST.match(endpoint) or _IPV6.match(endpoint)):
            self._problem(
                f"{path}.controlPlaneIP",
                f"{endpoint!r} must be an address, a host, or either with a port, as 10.0.0.2:6443",
            )
        version = self._text("bootstrapKubernetes.version", bootstrap) or "1.31"
        if not _VERSION.match(version):
            self._problem(f"{path}.version", f"{version!r} must be a minor version, as 1.31")
        return Bootstrap(endpoint, version)

    def _taints(self) -> Iterator[Taint]:
        for index, taint in enumerate(self.spec.get("nodeTaints") or ()):
            effect = taint.get("effect", "")
            if effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
                self._problem(
                    f"spec.nodeTaints[{index}].effect",
                    f"{effect!r} must be NoSchedule, PreferNoSchedule or NoExecute",
                )
            yield Taint(taint.get("key", ""), taint.get("value", ""), effect)

    def _fit(self, shape: str, count: int, mode: str, instance: InstanceConfig | None) -> None:
        machine = topology.find_machine(instance.machine_type) if instance else None
        if machine is None:
            return
        problem = topology.find_shape_problem(shape, machine)
        if problem is None and mode == "INDIVIDUAL":
            problem = topology.find_count_problem(shape, machine, count, mode)
        if problem is not None:
            self._problem("spec.topology", problem)
            return
        problem = topology.find_count_problem(shape, machine, count, mode)
        if problem is not None:
            self._problem("spec.nodeCount", problem)
