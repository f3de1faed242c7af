"""Check that a Pod fits on the Nodes of its slice, and build the labels of these Nodes.

A slice that the Pod does not fit would be billed while the Pod still waits. So it is rejected before it
is created, with a message that says what to change.
"""

import re
from collections.abc import Mapping
from typing import Any

from shared.base import names
from shared.base.documents import read_mappings
from shared.base.slice_names import JOB_KEY_SELECTOR
from shared.base.topology import Machine
from shared.node_groups.spec import is_settable_label
from shared.node_groups.spec_rules import region_of
from shared.slices.classes import COMPUTE_CLASS
from shared.slices.selection import build_selection
from shared.slices.selectors import (
    COPY_LABELS,
    RESERVATION,
    RESERVATION_PROJECT,
    SPOT,
    check_spot,
    check_tolerations,
    describe_impossible_domain,
)
from shared.slices.units import Demand, InputError, Unit

_OF_KUBELETS = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
_LOCATION_HINT = "cloud.google.com/gke-location-hint"
_AS_SELECTED = (SPOT, RESERVATION, RESERVATION_PROJECT, COMPUTE_CLASS, _LOCATION_HINT)
"""Selectors of GKE that the Nodes match because they get the label."""
_PLATFORM = re.compile(
    r"([^/]*[.])?(google[.]com|googleapis[.]com|gke[.]io|kubernetes[.]io|k8s[.]io)/.*"
)
"""Labels whose meaning the platform defines: to set one on a Node does not make it true."""


class NodeFit:
    """The requirements of a Pod for its Nodes, and the labels that the Nodes will have. ``domain`` is
    the annotation key of the exclusive topology of the Pod's kind."""

    def __init__(
        self, demand: Demand, unit: Unit, domain: str, machine: Machine, spec: Mapping[str, Any]
    ) -> None:
        self._demand = demand
        self._unit = unit
        self._domain_key = domain
        self._name = unit.slice_name
        self._spec = spec
        self._given: Mapping[str, str] = spec.get("nodeLabels", {})
        zone = str(spec.get("nodeLocation"))
        self._known = {
            names.ZONE_LABEL: zone,
            names.REGION_LABEL: region_of(zone),
            names.INSTANCE_TYPE_LABEL: machine.machine_type,
            names.WORKLOAD_LABEL: unit.workload_key,
        }
        self._set_for_us = {
            **_OF_KUBELETS,
            names.TOPOLOGY_LABEL: demand.topology,
            names.ACCELERATOR_LABEL: demand.accelerator,
            names.ACCELERATOR_COUNT_LABEL: str(machine.chips),
            names.GROUP_NAMESPACE_LABEL: demand.namespace,
            names.GROUP_NAME_LABEL: unit.slice_name,
            names.GROUP_LABEL: f"{unit.namespace}-{unit.slice_name}",
        }
        self.asked = {
            key: value
            for key, value in demand.selector.items()
            if key in _AS_SELECTED or self._is_free(key)
        }
        """The labels that the Nodes get because the Pod selects them."""
        self.selection = build_selection(demand, self._set_for_us)

    def node_labels(self) -> dict[str, str]:
        """The ``nodeLabels`` of the group: the labels that no other component sets."""
        known = {key: value for key, value in self._known.items() if key in self._demand.selector}
        return {
            **self._copied(),
            **known,
            **self._domain(),
            **self.asked,
            **self._given,
            names.POOL_LABEL: self._name,
        }

    def check(self) -> None:
        """Raise `InputError` if the Pod could never run on the slice."""
        check_spot(self._demand)
        other_way = ", or fulfilled by the template's nodeLabels"

        def find_other_way(key: str) -> str:
            can_be_given = key not in self._set_for_us and is_settable_label(key)
            return other_way if can_be_given else ""

        self.selection.check(self.node_labels(), find_other_way, other_way)
        taints = read_mappings(self._spec, "nodeTaints")
        hard = (one for one in taints if one.get("effect") in ("NoSchedule", "NoExecute"))
        check_tolerations(self._demand, hard, ", of the template's nodeTaints")

    def _copied(self) -> dict[str, str]:
        """The labels of the Pod that its annotation names, without those that other components set."""
        keys = (key.strip() for key in self._demand.annotations.get(COPY_LABELS, "").split(","))
        labels = self._demand.labels
        free = (key for key in keys if key != JOB_KEY_SELECTOR and self._is_free(key))
        return {key: labels[key] for key in free if key in labels}

    def _domain(self) -> dict[str, str]:
        """The label of the kind's exclusive topology, which keeps a unit on one slice."""
        key = self._demand.annotations.get(self._domain_key, names.POOL_LABEL)
        if key in self._set_for_us or key == names.HOSTNAME_LABEL:
            return {}
        if key in self._known:
            return {key: self._known[key]}
        if not is_settable_label(key):
            raise InputError(describe_impossible_domain(self._unit, key))
        return {key: self._name}

    def _is_free(self, key: str) -> bool:
        """Whether a label may have this key: no other component sets it."""
        is_known = key in self._set_for_us or key in self._known or key == names.POOL_LABEL
        return not is_known and not _PLATFORM.fullmatch(key) and is_settable_label(key)
