"""The validation of a TPUNodeGroup's spec: rules of single fields, and rules across fields.

The CRD (infra/kubernetes/base/crd.yaml) has the same rules at the same paths, in tpu-operator's words if
it has the rule, too. The functions validate again, because the CRD may be older than the functions, or
an object older than a rule. One rule is not in the CRD, because it depends on the group's Job:
`node_group.parse` has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shared.base import topology
from shared.base.fields import (
    Entries,
    Items,
    Must,
    Number,
    OneOf,
    Record,
    Text,
    Violation,
    match,
    show,
)
from shared.base.names import (
    CA_HASH_KEY,
    CONTROL_PLANE_KEY,
    STARTUP_SCRIPT_KEY,
    TOKEN_EXPIRY_KEY,
    TOKEN_KEY,
)

MODELS = ("STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START")
MODES = ("BULK", "INDIVIDUAL")
MAX_NODES = 2304
"""The number of VMs with four chips in the largest slice."""
MIN_RUN_S, MAX_RUN_S = 30, 7 * 24 * 3600
"""The limits of a flex-start VM's run duration (documented: at most seven days)."""
MAX_METADATA_VALUE = 256 * 1024
"""The limit of one value in bytes (documented)."""
MAX_METADATA = 448 * 1024
"""The limit of keys and values together in bytes. Compute Engine's is 512 KiB (documented); the metadata
for joining needs the rest."""
TEMPLATE = re.compile(
    r"(?:https://(?:www|compute)\.googleapis\.com/compute/[a-z0-9]+/)?"
    r"projects/(?P<project>[^/]+)/"
    r"(?:(?:locations/)?global|(?:regions|locations)/(?P<region>[a-z]+-[a-z]+[0-9]+))/"
    r"instanceTemplates/(?P<name>[a-z0-9-]+)"
)

_MAX_INT32 = 2**31 - 1
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_GCE_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_PROJECT = r"[a-z][a-z0-9-]{4,28}[a-z0-9]"
_PREFIX = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?"
_QUALIFIED_NAME = rf"{_PREFIX}[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
_LABEL_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_IPV6 = r"[0-9A-Fa-f]{0,4}(:[0-9A-Fa-f]{0,4}){2,7}"
_HOST = r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?"
_PORT = re.compile(r"(?:[^:]+|\[.+\]):([0-9]{1,5})")
_SUBNETWORK_REGION = re.compile(r"(?:^|/)regions/([^/]+)/subnetworks/")
_RESERVED_METADATA = (
    TOKEN_KEY,
    TOKEN_EXPIRY_KEY,
    CONTROL_PLANE_KEY,
    CA_HASH_KEY,
    "created-by",
    "instance-template",
)


def parse_duration_s(text: str) -> int | None:
    """``90s``, ``30m``, ``168h`` or ``7d`` in seconds; ``None`` if it is not such a duration."""
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    return int(found[1]) * _SECONDS[found[2]] if found else None


def _is_run_duration(text: str) -> bool:
    seconds = parse_duration_s(text)
    return seconds is not None and MIN_RUN_S <= seconds <= MAX_RUN_S


def _is_port_possible(endpoint: str) -> bool:
    found = _PORT.fullmatch(endpoint)
    return found is None or 1 <= int(found[1]) <= 65535


def _is_short_enough(value: str) -> bool:
    return len(value.encode()) <= MAX_METADATA_VALUE


# Labels that a kubelet may set itself: it registers with them, and the API server (NodeRestriction)
# refuses a kubelet that names others of kubernetes.io and k8s.io (documented).
_OF_KUBERNETES = re.compile(r"^([^/]*[.])?(kubernetes|k8s)[.]io/")
_KUBELETS_OWN = re.compile(
    r"^([^/]*[.])?(node|kubelet)[.]kubernetes[.]io/|^topology[.]kubernetes[.]io/(region|zone)$"
)
_OURS = re.compile(
    r"^(tpu-functions[.]dev/"
    r"|cloud[.]google[.]com/(gke-tpu-|gke-accelerator-count$|tpu-node-group))"
)
_LABEL_KEYS = (
    match(_QUALIFIED_NAME, "keys must be label keys, as in team or example.com/team"),
    Must(
        lambda key: not _OF_KUBERNETES.search(key) or _KUBELETS_OWN.search(key),
        "keys of kubernetes.io and k8s.io must be topology.kubernetes.io/region, "
        "topology.kubernetes.io/zone, or under node.kubernetes.io/ or kubelet.kubernetes.io/",
    ),
    Must(
        lambda key: not _OURS.search(key),
        "keys must not be those that identify the slice of a Node, which are set automatically",
    ),
)


def is_settable_label(key: str) -> bool:
    """Whether ``nodeLabels`` may hold a label of this key."""
    return all(must.holds(key) for must in _LABEL_KEYS)


_INSTANCE_CONFIG = Record(
    {
        "machineType": Text(
            match(r"(tpu7x-|tpu7-|ct6e-).*", "Only v6 and v7 TPU machine types are supported"),
            match(
                topology.MACHINE_TYPE.pattern,
                "must end in the chips of a VM (-1t, -2t, -4t or -8t), as in tpu7x-standard-4t",
            ),
            most=63,
        ),
        "provisioningModel": OneOf(MODELS),
        "reservation": Text(
            match(
                rf"(projects/{_PROJECT}/reservations/)?[a-z]([-a-z0-9]{{0,61}}[a-z0-9])?",
                "must be a name, or projects/PROJECT/reservations/NAME",
            ),
            least=1,
            most=128,
        ),
        "maxRunDuration": Text(
            Must(
                _is_run_duration,
                "must be a number of s, m, h or d, as in 90m or 168h, from 30s to 7d",
            ),
            most=16,
        ),
        "image": Text(least=1, most=512),
        "bootDiskSizeGB": Number(10, 65536),
        "diskType": Text(
            match(_GCE_NAME, "must be a bare name, as in hyperdisk-balanced"), most=63
        ),
        "subnetwork": Text(least=1, most=512),
        "serviceAccounts": Items(
            Record(
                {
                    "email": Text(least=1, most=254),
                    "scopes": Items(Text(least=1, most=256), least=1, most=64),
                },
                required=("email", "scopes"),
            ),
            most=1,
        ),
        "networkTags": Items(
            Text(match(_GCE_NAME, "must be a network tag, as in my-tag"), most=63), most=64
        ),
        "metadata": Entries(
            Text(
                Must(_is_short_enough, f"must be at most {MAX_METADATA_VALUE} bytes"),
                most=MAX_METADATA_VALUE,
            ),
            most=64,
            keys=(
                match(
                    r"[a-zA-Z0-9_-]{1,127}",
                    "keys must be letters, digits, dashes and underscores, at most 127 of them",
                ),
                Must(
                    lambda key: key not in _RESERVED_METADATA,
                    "keys must not be those that are written for each VM when it is created or joins",
                ),
            ),
        ),
    },
    required=("machineType", "image"),
)
_BOOTSTRAP = Record(
    {
        "version": Text(match(r"[0-9]+\.[0-9]+", "must be a minor version, as in 1.31"), most=8),
        "controlPlaneIP": Text(
            match(
                rf"{_HOST}(:[0-9]{{1,5}})?|{_IPV6}|\[{_IPV6}\](:[0-9]{{1,5}})?",
                "must be HOST, HOST:PORT, an IPv6 address, or [IPv6]:PORT",
            ),
            Must(_is_port_possible, "must have a port from 1 to 65535"),
            most=261,
        ),
    },
    required=("controlPlaneIP",),
)
_TAINT = Record(
    {
        "key": Text(
            match(_QUALIFIED_NAME, "must be a taint's key, as in google.com/tpu"), most=317
        ),
        "value": Text(match(_LABEL_VALUE, "must be a taint's value, as in present"), most=63),
        "effect": OneOf(("NoSchedule", "PreferNoSchedule", "NoExecute")),
    },
    required=("key", "effect"),
)
_SPEC = Record(
    {
        "project": Text(match(_PROJECT, "must be a project id, as in my-project"), most=30),
        "nodeLocation": Text(
            match(
                r"[a-z]+-[a-z]+[0-9]+-[a-z][a-z0-9]*",
                "must be a zone, as in us-central1-c",
            ),
            most=63,
        ),
        "nodeCount": Number(1, MAX_NODES),
        "minNodeCount": Number(0, _MAX_INT32),
        "acceleratorConnectionMode": OneOf(("STATIC",)),
        "topology": Text(
            match(topology.TOPOLOGY.pattern, "must be a shape, as in 2x2x2 or 4x4"), most=11
        ),
        "targetSizePolicyMode": OneOf(MODES),
        "instanceConfig": _INSTANCE_CONFIG,
        "instanceTemplateURI": Text(most=255),
        "bootstrapKubernetes": _BOOTSTRAP,
        "nodeLabels": Entries(
            Text(match(_LABEL_VALUE, "must be a label's value, as in a or a.b"), most=63),
            most=32,
            keys=_LABEL_KEYS,
        ),
        "nodeTaints": Items(_TAINT, most=16, keys=("key", "effect")),
        "repair": OneOf(("Never",)),
    },
    required=(
        "project",
        "nodeLocation",
        "nodeCount",
        "acceleratorConnectionMode",
        "topology",
        "targetSizePolicyMode",
    ),
)


class Given:
    """A spec with its violations. Fields are read by paths, as in ``instanceConfig.image``.

    Only well-formed fields can be read, so that values can be built from them without checks.
    """

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        malformed = list(_SPEC.check("spec", spec))
        self._malformed = {violation.path for violation in malformed}
        together = [violation for rule in _TOGETHER for violation in rule(self)]
        self.violations = (*malformed, *together)

    def has(self, path: str) -> bool:
        """Whether a field is set, well-formed or not."""
        return self._get(path) is not None

    def get(self, path: str, default: Any = None) -> Any:
        """A field's value, if the field and all its parts are well-formed; otherwise the default."""
        value = self._get(path)
        return default if value is None or self._is_malformed(f"spec.{path}") else value

    def _get(self, path: str) -> Any:
        value = self._spec
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def _is_malformed(self, path: str) -> bool:
        within = (f"{path}.", f"{path}[")
        return path in self._malformed or any(bad.startswith(within) for bad in self._malformed)


def region_of(zone: str) -> str:
    """The region of a zone."""
    return zone.rsplit("-", 1)[0]


def _source(given: Given) -> Iterator[Violation]:
    has_config, has_template = given.has("instanceConfig"), given.has("instanceTemplateURI")
    if not has_config and not has_template:
        yield Violation("spec", "Either InstanceConfig or InstanceTemplateURI must be specified")
    if has_config and has_template:
        yield Violation(
            "spec", "InstanceConfig and InstanceTemplateURI cannot be specified together"
        )
    if has_template and given.has("bootstrapKubernetes"):
        yield Violation(
            "spec", "Bootstrapping is not supported when bringing your own instance template"
        )


def _template(given: Given) -> Iterator[Violation]:
    uri = given.get("instanceTemplateURI")
    if uri is None:
        return
    project, zone = given.get("project"), given.get("nodeLocation")
    found = TEMPLATE.fullmatch(uri)
    if found is None or (project and found["project"] != project):
        yield Violation(
            "spec",
            "InstanceTemplateURI must belong to the same project as specified in spec.project: "
            f"projects/{project or 'PROJECT'}/global/instanceTemplates/NAME",
        )
    elif found["region"] and zone and found["region"] != region_of(zone):
        yield Violation(
            "spec.instanceTemplateURI",
            f"the template is of region {found['region']}, the group of zone {zone}",
        )


def _subnetwork(given: Given) -> Iterator[Violation]:
    zone = given.get("nodeLocation")
    found = _SUBNETWORK_REGION.search(given.get("instanceConfig.subnetwork", ""))
    if found is not None and zone and found[1] != region_of(zone):
        yield Violation(
            "spec.instanceConfig.subnetwork",
            f"the subnetwork is of region {found[1]}, the group of zone {zone}",
        )


def _model(given: Given) -> Iterator[Violation]:
    model = given.get("instanceConfig.provisioningModel")
    is_free = not given.has("instanceConfig.provisioningModel")
    has_reservation = given.has("instanceConfig.reservation")
    if model == "RESERVATION_BOUND" and not has_reservation:
        yield Violation(
            "spec.instanceConfig.reservation",
            "Reservation is required when provisioningModel is RESERVATION_BOUND",
        )
    if has_reservation and model != "RESERVATION_BOUND" and not is_free:
        yield Violation(
            "spec.instanceConfig.provisioningModel",
            "ProvisioningModel must be RESERVATION_BOUND when reservation is specified",
        )


def _end(given: Given) -> Iterator[Violation]:
    path = "instanceConfig.maxRunDuration"
    is_flex = given.get("instanceConfig.provisioningModel") == "FLEX_START"
    if is_flex and not given.has(path):
        yield Violation(
            f"spec.{path}", "is required when provisioningModel is FLEX_START, as in 168h"
        )
    if given.has(path) and not is_flex:
        yield Violation(f"spec.{path}", "is for provisioningModel FLEX_START only")


def _metadata(given: Given) -> Iterator[Violation]:
    path = "spec.instanceConfig.metadata"
    metadata = given.get("instanceConfig.metadata", {})
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if size > MAX_METADATA:
        yield Violation(path, f"must be at most {MAX_METADATA} bytes in all, not {size}")
    if STARTUP_SCRIPT_KEY in metadata and given.has("bootstrapKubernetes"):
        yield Violation(
            path,
            "must not hold startup-script while bootstrapKubernetes is set, which brings its own; "
            "use user-data (cloud-init) or leave bootstrapKubernetes out",
        )


def _size(given: Given) -> Iterator[Violation]:
    if given.get("nodeCount") == 1 and given.get("targetSizePolicyMode") == "BULK":
        yield Violation(
            "spec", "targetSizePolicyMode must be INDIVIDUAL when nodeCount is 1 or less"
        )


def _shape(given: Given) -> Iterator[Violation]:
    shape, mode = given.get("topology"), given.get("targetSizePolicyMode")
    machine = topology.find_machine(given.get("instanceConfig.machineType", ""))
    if shape is None:
        return
    if machine is None:
        violation = topology.find_unknown_shape_violation(shape)
    else:
        violation = topology.find_shape_violation(shape, machine)
    if violation is not None:
        yield Violation("spec.topology", violation)
    elif machine is not None and mode is not None:
        count = given.get("nodeCount")
        yield from _count(shape, machine, mode, count)


def _count(
    shape: str, machine: topology.Machine, mode: str, count: int | None
) -> Iterator[Violation]:
    """Of a BULK group the number of VMs is what does not fit, of another the shape of each."""
    is_bulk = mode == "BULK"
    if is_bulk and (count is None or count == 1):
        return
    violation = topology.find_count_violation(shape, machine, count or 1, mode)
    if violation is not None:
        yield Violation("spec.nodeCount" if is_bulk else "spec.topology", violation)


_TOGETHER: tuple[Callable[[Given], Iterator[Violation]], ...] = (
    _size,
    _source,
    _template,
    _subnetwork,
    _model,
    _end,
    _metadata,
    _shape,
)


def find_name_violation(name: str) -> Violation | None:
    """Why a group cannot be called so: its name becomes part of names on Compute Engine."""
    if re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        return None
    return Violation(
        "metadata.name", f"must be at most 63 of a-z, 0-9 and -, without dots, not {show(name)}"
    )
