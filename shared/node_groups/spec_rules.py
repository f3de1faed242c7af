"""The rules across fields of a TPUNodeGroup's spec, and `Given`: a spec with all its violations.

Each rule is stated once, as a test for the functions and the same test in CEL for the API server:

- A rule about one field is on the field (`spec`). One that compares fields is on the nearest object
  that has them all. A value that does not parse is reported once, by the field's own rule; other rules
  skip it, because all rules run.
- CEL has no let: ``[x].exists(d, ...)`` and ``[x].map(d, ...)[0]`` give x the name d.
- Only functions of Kubernetes 1.30. Every string, list and map has a bound, because the API server
  rejects rules whose estimated cost is too high.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shared.base import topology
from shared.base.accelerators import CHIP_BOUNDS
from shared.base.fields import Violation, matches
from shared.base.names import STARTUP_SCRIPT_KEY
from shared.node_groups.spec import MAX_METADATA, RECREATE, REGION, SPEC, ZONE


class Given:
    """A spec with its violations. Fields are read by paths, as in ``instanceConfig.image``.

    Only well-formed fields can be read, so that values can be built from them without checks.
    """

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        malformed = list(SPEC.check("spec", spec))
        self._malformed = {violation.path for violation in malformed}
        broken = (rule for rule in RULES if not rule.holds(self))
        together = (Violation(f"spec.{rule.at}".rstrip("."), rule.message) for rule in broken)
        self.violations = (*malformed, *together, *_find_shape_violations(self))

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


@dataclass(frozen=True)
class Rule:
    """A rule across fields: one test for the functions (``holds``), the same for the API server.

    ``at`` is the path of the field to change, ``on`` that of the object whose ``self`` the CEL reads;
    ``cel_message`` is the message with values.
    """

    at: str
    message: str
    holds: Callable[[Given], object]
    cel: str
    on: str = ""
    cel_message: str = ""


# Template and subnetwork are of the project and region of the group.

TEMPLATE = re.compile(
    r"(?:https://(?:www|compute)\.googleapis\.com/compute/[a-z0-9]+/)?"
    r"projects/(?P<project>[^/]+)/"
    rf"(?:(?:locations/)?global|(?:regions|locations)/(?P<region>{REGION}))/"
    r"instanceTemplates/(?P<name>[a-z0-9-]{1,63})"
)
_SUBNETWORK = re.compile(r"(?:.*/)?regions/(?P<region>[^/]+)/subnetworks/.*")
_CEL_TEMPLATE = re.sub(r"\?P<\w+>|\?:", "", TEMPLATE.pattern)
_CEL_ZONE = f"self.nodeLocation.{matches(ZONE)}"
_CEL_REGION = "self.nodeLocation.substring(0, self.nodeLocation.lastIndexOf('-'))"


def region_of(zone: str) -> str:
    """The region of a zone."""
    return zone.rsplit("-", 1)[0]


def _is_template_of_project(given: Given) -> bool:
    uri, project = given.get("instanceTemplateURI"), given.get("project")
    found = TEMPLATE.fullmatch(uri or "")
    return uri is None or (found is not None and project in (None, found["project"]))


def _is_in_region(given: Given, path: str, pattern: re.Pattern[str]) -> bool:
    found, zone = pattern.fullmatch(given.get(path, "")), given.get("nodeLocation")
    region = found["region"] if found is not None else None
    return region is None or zone is None or region == region_of(zone)


# The shape. `_find_shape_violations` makes the tests of the functions, for messages with values.

_CEL_MACHINE = "self.instanceConfig.machineType"
_CEL_NO_MACHINE = (
    f"!has(self.instanceConfig) || !{_CEL_MACHINE}.matches('^[a-z0-9]+-[a-z]+-[1248]t(-tpu)?$')"
)
_CEL_CHIPS = f"int({_CEL_MACHINE}.split('-')[2].substring(0, 1))"
_CEL_SUFFIX = f"[{_CEL_MACHINE}.split('-')[2]]"
_CEL_HOST = (
    f"{ {f'{chips}t': f'{a}x{b}' for chips, (a, b, _) in CHIP_BOUNDS.items()} }{_CEL_SUFFIX}"
)
_CEL_BOUNDS = f"{ {f'{chips}t': [a, b] for chips, (a, b, _) in CHIP_BOUNDS.items()} }{_CEL_SUFFIX}"


def _is_found_apart(_given: Given) -> bool:
    return True


def _find_shape_violations(given: Given) -> Iterator[Violation]:
    shape, mode = given.get("topology"), given.get("targetSizePolicyMode")
    machine = topology.find_machine(given.get("instanceConfig.machineType", ""))
    if shape is None or machine is None:
        return
    is_bulk, count = mode == "BULK", given.get("nodeCount")
    violation = topology.find_shape_violation(shape, machine)
    if violation is not None:
        yield Violation("spec.topology", violation)
    elif mode is not None and not (is_bulk and count in (None, 1)):
        violation = topology.find_count_violation(shape, machine, count or 1, mode)
        if violation is not None:
            yield Violation("spec.nodeCount" if is_bulk else "spec.topology", violation)


def _has_little_metadata(given: Given) -> bool:
    metadata = given.get("instanceConfig.metadata", {})
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    return size <= MAX_METADATA


def _model(given: Given) -> Any:
    return given.get("instanceConfig.provisioningModel")


RULES = (
    Rule(
        "",
        "targetSizePolicyMode must be INDIVIDUAL when nodeCount is 1 or less",
        lambda given: given.get("targetSizePolicyMode") != "BULK" or given.get("nodeCount") != 1,
        "self.targetSizePolicyMode != 'BULK' || self.nodeCount > 1",
    ),
    Rule(
        "",
        "Either InstanceConfig or InstanceTemplateURI must be specified",
        lambda given: given.has("instanceConfig") or given.has("instanceTemplateURI"),
        "has(self.instanceConfig) || has(self.instanceTemplateURI)",
    ),
    Rule(
        "",
        "InstanceConfig and InstanceTemplateURI cannot be specified together",
        lambda given: not given.has("instanceConfig") or not given.has("instanceTemplateURI"),
        "!has(self.instanceConfig) || !has(self.instanceTemplateURI)",
    ),
    Rule(
        "",
        "Bootstrapping is not supported when bringing your own instance template",
        lambda given: not given.has("bootstrapKubernetes") or not given.has("instanceTemplateURI"),
        "!has(self.bootstrapKubernetes) || !has(self.instanceTemplateURI)",
    ),
    Rule(
        "",
        "InstanceTemplateURI must belong to the same project as specified in spec.project",
        _is_template_of_project,
        f"""!has(self.instanceTemplateURI)
            || (self.instanceTemplateURI.{matches(_CEL_TEMPLATE)}
            && ('/' + self.instanceTemplateURI).contains('/projects/' + self.project + '/'))""",
    ),
    Rule(
        "instanceTemplateURI",
        "a regional template must be in the region of nodeLocation",
        lambda given: _is_in_region(given, "instanceTemplateURI", TEMPLATE),
        f"""!has(self.instanceTemplateURI) || !{_CEL_ZONE}
            || !self.instanceTemplateURI.matches('/(regions|locations)/{REGION}/instanceTemplates/')
            || self.instanceTemplateURI.contains('/' + {_CEL_REGION} + '/instanceTemplates/')""",
    ),
    Rule(
        "instanceConfig.subnetwork",
        "subnetwork must be in the region of nodeLocation",
        lambda given: _is_in_region(given, "instanceConfig.subnetwork", _SUBNETWORK),
        f"""!has(self.instanceConfig) || !has(self.instanceConfig.subnetwork) || !{_CEL_ZONE}
            || !self.instanceConfig.subnetwork.matches('(^|/)regions/[^/]+/subnetworks/')
            || self.instanceConfig.subnetwork.contains('regions/' + {_CEL_REGION} + '/subnetworks/')""",
    ),
    Rule(
        "repair",
        "must be Never with targetSizePolicyMode INDIVIDUAL: Compute Engine repairs its VMs one by one",
        lambda given: (
            given.get("repair") != RECREATE or given.get("targetSizePolicyMode") == "BULK"
        ),
        f"!has(self.repair) || self.repair != '{RECREATE}' || self.targetSizePolicyMode == 'BULK'",
    ),
    Rule(
        "instanceConfig.metadata",
        f"metadata must not hold {STARTUP_SCRIPT_KEY} while bootstrapKubernetes is set, which brings "
        "its own",
        lambda given: (
            not given.has("bootstrapKubernetes")
            or STARTUP_SCRIPT_KEY not in given.get("instanceConfig.metadata", {})
        ),
        f"""!has(self.bootstrapKubernetes) || !has(self.instanceConfig)
            || !has(self.instanceConfig.metadata)
            || !('{STARTUP_SCRIPT_KEY}' in self.instanceConfig.metadata)""",
    ),
    # The shape, for each generation, VM and number of VMs
    Rule(
        "topology",
        "topology must have two dimensions with ct6e- machine types, as in 4x4, and three with tpu7, as "
        "in 2x2x2",
        _is_found_apart,
        f"""!has(self.instanceConfig)
            || !({_CEL_MACHINE}.startsWith('ct6e-') && self.topology.matches('^[0-9]+x[0-9]+x[0-9]+$')
            || {_CEL_MACHINE}.startsWith('tpu7') && self.topology.matches('^[0-9]+x[0-9]+$'))""",
        cel_message=f"""({_CEL_MACHINE}.startsWith('ct6e-')
            ? 'topology must have two dimensions with %s, as in 4x4'
            : 'topology must have three dimensions with %s, as in 2x2x2').format([{_CEL_MACHINE}])""",
    ),
    Rule(
        "topology",
        "topology must be the chips of one VM when targetSizePolicyMode is INDIVIDUAL",
        _is_found_apart,
        f"""{_CEL_NO_MACHINE} || self.targetSizePolicyMode != 'INDIVIDUAL'
            || self.topology == {_CEL_HOST}
            + ({_CEL_MACHINE}.startsWith('tpu7') ? 'x1' : '')""",
        cel_message=f"""'topology must be %s%s: in an INDIVIDUAL group each %s is a slice of its own'
            .format([{_CEL_HOST},
            {_CEL_MACHINE}.startsWith('tpu7') ? 'x1' : '', {_CEL_MACHINE}])""",
    ),
    Rule(
        "topology",
        "topology must be a multiple of a VM's own, 2x2 of four chips and 2x4 of eight",
        _is_found_apart,
        f"""{_CEL_NO_MACHINE} || self.targetSizePolicyMode != 'BULK'
            || !self.topology.matches('^[0-9]{{1,3}}x[0-9]{{1,3}}(x[0-9]{{1,3}})?$')
            || [self.topology.split('x').map(n, int(n))].exists(d,
            [{_CEL_BOUNDS}].exists(b,
            d[0] % b[0] == 0 && d[1] % b[1] == 0))""",
        cel_message=f"""'topology %s cannot be made of %s VMs, which are %s chips each'
            .format([self.topology, {_CEL_MACHINE}, {_CEL_HOST}])""",
    ),
    Rule(
        "nodeCount",
        "nodeCount must be the chips of the topology divided by the chips of a VM when "
        "targetSizePolicyMode is BULK",
        _is_found_apart,
        f"""{_CEL_NO_MACHINE} || self.targetSizePolicyMode != 'BULK' || self.nodeCount < 2
            || !self.topology.matches('^[0-9]{{1,3}}x[0-9]{{1,3}}(x[0-9]{{1,3}})?$')
            || [(self.topology + 'x1').split('x').map(n, int(n))].exists(d,
            [{_CEL_CHIPS}].exists(c,
            d[0] * d[1] * d[2] % c != 0 || d[0] * d[1] * d[2] == self.nodeCount * c))""",
        cel_message=f"""[(self.topology + 'x1').split('x').map(n, int(n))].map(d,
            [{_CEL_CHIPS}].map(c,
            d[0] * d[1] * d[2] == c
            ? 'topology %s is one %s: for %d slices of one VM each
            set targetSizePolicyMode to INDIVIDUAL'
            .format([self.topology, {_CEL_MACHINE}, self.nodeCount])
            : 'nodeCount must be %d: topology %s has %d chips, a %s has %d'
            .format([d[0] * d[1] * d[2] / c, self.topology, d[0] * d[1] * d[2],
            {_CEL_MACHINE}, c]))[0])[0]""",
    ),
    # The provisioning model and metadata
    Rule(
        "instanceConfig.reservation",
        "Reservation is required when provisioningModel is RESERVATION_BOUND",
        lambda given: (
            _model(given) != "RESERVATION_BOUND" or given.has("instanceConfig.reservation")
        ),
        """!has(self.provisioningModel) || self.provisioningModel != 'RESERVATION_BOUND'
            || has(self.reservation)""",
        on="instanceConfig",
    ),
    Rule(
        "instanceConfig.provisioningModel",
        "ProvisioningModel must be RESERVATION_BOUND when reservation is specified",
        lambda given: (
            not given.has("instanceConfig.reservation")
            or not given.has("instanceConfig.provisioningModel")
            or _model(given) == "RESERVATION_BOUND"
        ),
        """!has(self.reservation) || !has(self.provisioningModel)
            || self.provisioningModel == 'RESERVATION_BOUND'""",
        on="instanceConfig",
    ),
    Rule(
        "instanceConfig.maxRunDuration",
        "maxRunDuration is required when provisioningModel is FLEX_START, as in 168h",
        lambda given: _model(given) != "FLEX_START" or given.has("instanceConfig.maxRunDuration"),
        """!has(self.provisioningModel) || self.provisioningModel != 'FLEX_START'
            || has(self.maxRunDuration)""",
        on="instanceConfig",
    ),
    Rule(
        "instanceConfig.maxRunDuration",
        "maxRunDuration is for provisioningModel FLEX_START only",
        lambda given: (
            not given.has("instanceConfig.maxRunDuration") or _model(given) == "FLEX_START"
        ),
        """!has(self.maxRunDuration)
            || (has(self.provisioningModel) && self.provisioningModel == 'FLEX_START')""",
        on="instanceConfig",
    ),
    Rule(
        "instanceConfig.metadata",
        f"metadata must be at most {MAX_METADATA} bytes in all, keys and values",
        _has_little_metadata,
        # CEL counts characters, which are no more than the bytes.
        f"self.map(k, k.size() + self[k].size()).sum() <= {MAX_METADATA}",
        on="instanceConfig.metadata",
    ),
)
