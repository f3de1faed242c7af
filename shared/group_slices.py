"""TPUNodeGroups as slices: what a Job's leader asks for as a group, and what a group says of itself.

What all groups of an installation have in common (project, zone, image, how VMs join) stands in the
ConfigMap ``jobsets``, as a TPUNodeGroup without the rest; what the Pod says is the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from shared import topology
from shared.cluster import Cluster
from shared.errors import Reason
from shared.jobsets import EXCLUSIVE_TOPOLOGY, Leader, find_key_problem
from shared.names import (
    ACCELERATOR_COUNT_LABEL,
    ACCELERATOR_LABEL,
    GROUP,
    GROUP_LABEL,
    GROUP_NAME_LABEL,
    GROUP_NAMESPACE_LABEL,
    JOBSET_LABEL,
    KIND,
    POOL_LABEL,
    SYSTEM_NAMESPACE,
    TOPOLOGY_LABEL,
    TPU_RESOURCE,
    VERSION,
)
from shared.slices import (
    Clash,
    InputError,
    Owner,
    Slice,
    SliceState,
    Wanted,
    short_hash,
    slice_name,
)
from shared.spec import Given, is_settable_label, region_of
from shared.topology import Machine
from shared.when import find_time, render_time

JOB_LABEL = "tpu-functions.dev/job-name"
"""On a group that was made for a JobSet: the Job; an annotation if it is too long for a label."""
JOB_KEY_LABEL = "tpu-functions.dev/job-key"
HASH_ANNOTATION = "tpu-functions.dev/slice-hash"
RELEASE_ANNOTATION = "tpu-functions.dev/release-after"
TEMPLATE_ANNOTATION = "tpu-functions.dev/slice-template"
"""On a Pod: which of the templates its slice is made from."""
COPY_LABELS = "tpu-provisioner.cloud.google.com/copy-labels"
SPOT = "cloud.google.com/gke-spot"
RESERVATION = "cloud.google.com/reservation-name"
RESERVATION_PROJECT = "cloud.google.com/reservation-project"
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
HOSTNAME = "kubernetes.io/hostname"

LOST_AFTER = timedelta(minutes=10)
"""A host that is lost may come back (an automatic restart); Spot VMs that were taken do not."""
_MAX_LABEL = 63
_OF_KUBELETS = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
_AS_SELECTED = (
    SPOT,
    RESERVATION,
    RESERVATION_PROJECT,
    "cloud.google.com/gke-location-hint",
    "cloud.google.com/gke-tpu-ici-resiliency",
)
"""Selectors of GKE's own that are fulfilled by giving the Nodes the label."""
_PLATFORM = re.compile(
    r"([^/]*[.])?(google[.]com|googleapis[.]com|gke[.]io|kubernetes[.]io|k8s[.]io)/.*"
)
"""Labels whose meaning is the platform's: a Node that was merely given one would not be so."""
_FROM_THE_POD = (
    "nodeCount",
    "minNodeCount",
    "topology",
    "targetSizePolicyMode",
    "instanceTemplateURI",
)
_COMING = frozenset({Reason.PROVISIONING, Reason.AWAITING_NODE_JOIN, Reason.NOT_WIRED})
_LOST = frozenset({Reason.PREEMPTED, Reason.NODE_LOST, Reason.RESOURCE_LOST})


class GroupSlices:
    """The provider whose slices are TPUNodeGroups, in the namespaces of their JobSets."""

    noun = KIND
    event_prefix = KIND

    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now

    def want(self, leader: Leader) -> Wanted:
        return want(leader, self._cluster.get_jobset_options())

    def find(self, wanted: Wanted) -> Slice | Clash | None:
        raw = self._cluster.find_group(wanted.owner.namespace, wanted.name)
        if raw is None:
            return None
        found = read_slice(raw, self._now())
        if found is None:
            return Clash(wanted.name, "a TPUNodeGroup that was not made for a JobSet")
        owner = found.owner
        if owner != wanted.owner:
            whose = f"the TPUNodeGroup of Job {owner.job} of JobSet {owner.jobset}"
            return Clash(wanted.name, whose)
        return found

    def get(self, namespace: str, name: str) -> Slice | None:
        raw = self._cluster.find_group(namespace, name)
        return None if raw is None else read_slice(raw, self._now())

    def list_of(self, namespace: str, jobset: str) -> list[Slice]:
        return list(self._read(self._cluster.list_slice_groups(namespace, jobset)))

    def list_all(self) -> list[Slice]:
        return list(self._read(self._cluster.list_slice_groups()))

    def create(self, wanted: Wanted) -> None:
        self._cluster.create_group(wanted.body)

    def delete(self, existing: Slice) -> bool:
        return self._cluster.delete_group(existing.raw)

    def stamp(self, existing: Slice, release_after: datetime | None) -> None:
        text = render_time(release_after) if release_after else None
        self._cluster.annotate_group(existing.raw, {RELEASE_ANNOTATION: text})

    def _read(self, groups: Iterable[Mapping[str, Any]]) -> Iterator[Slice]:
        now = self._now()
        for raw in groups:
            found = read_slice(raw, now)
            if found is not None:
                yield found


def want(leader: Leader, options: Mapping[str, str]) -> Wanted:
    """The group that a leader asks for, from the ConfigMap's data. Raises `InputError`."""
    problem = find_key_problem(leader)
    if problem:
        raise InputError(problem)
    key = _template_key(leader)
    template = _read_template(key, options.get(key))
    machine = _find_machine(leader)
    count = _count_hosts(leader, machine)
    name = slice_name(leader.jobset, leader.job_key)
    spec = template["spec"]
    selected = _Selection(leader, name, machine, spec)
    selected.check()
    spec |= {
        "nodeCount": count,
        "acceleratorConnectionMode": "STATIC",
        "topology": leader.topology,
        "targetSizePolicyMode": "BULK" if count > 1 else "INDIVIDUAL",
        "nodeLabels": selected.node_labels(),
    }
    spec["instanceConfig"] |= {"machineType": machine.machine_type}
    _buy(leader, spec["instanceConfig"])
    problems = Given(spec).problems
    if problems:
        told = "; ".join(map(str, problems))
        raise InputError(f"with {_place(key)} the TPUNodeGroup would be refused: {told}")
    owner = Owner(leader.namespace, leader.jobset, leader.owner_name)
    digest = _make_hash(spec, selected.asked)
    return Wanted(
        name=name,
        owner=owner,
        hash=digest,
        size=f"{count} host{'s' if count > 1 else ''} of {machine.machine_type} ({leader.topology})",
        body={
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": _metadata(template.get("metadata", {}), leader, name, digest),
            "spec": spec,
        },
    )


def _template_key(leader: Leader) -> str:
    name = leader.annotations.get(TEMPLATE_ANNOTATION, "")
    return f"template.{name}" if name else "template"


def _place(key: str) -> str:
    return f"the key {key!r} of the ConfigMap {SYSTEM_NAMESPACE}/jobsets"


def _read_template(key: str, text: str | None) -> Any:
    """Its ``spec`` and the spec's ``instanceConfig`` are there, to be changed at will."""
    import yaml

    if text is None:
        raise InputError(
            f"{_place(key)} is missing: it must be a TPUNodeGroup in YAML with project, nodeLocation "
            "and instanceConfig, without a name and what follows from the Pod"
        )
    try:
        template = yaml.safe_load(text)
    except yaml.YAMLError as error:
        told = " ".join(str(error).split())
        raise InputError(f"{_place(key)} is no YAML: {told}") from error
    for path in ("", "metadata", "spec", "spec.instanceConfig", "spec.nodeLabels"):
        if not isinstance(_at(template, path), dict):
            what = path or "it"
            raise InputError(f"{_place(key)} must be a TPUNodeGroup: {what} must be a mapping")
    spec = template["spec"]
    given = [f"spec.{name}" for name in _FROM_THE_POD if name in spec]
    given += ["spec.instanceConfig.machineType"] if "machineType" in spec["instanceConfig"] else []
    if given:
        raise InputError(f"{_place(key)} must not have {', '.join(given)}: the Pod decides it")
    return template


def _at(template: Any, path: str) -> Any:
    """What stands there; what may be left out is empty then."""
    *above, name = path.split(".")
    if not path:
        return template
    holder = template[above[0]] if above else template
    return holder.get(name, None if name in ("spec", "instanceConfig") else {})


def _find_machine(leader: Leader) -> Machine:
    families = {one.accelerator: one.family for one in topology.GENERATIONS.values()}
    family = families.get(leader.accelerator)
    if family is None:
        wrong = f"is {leader.accelerator!r}" if leader.accelerator else "is missing"
        raise InputError(
            f"the Pod's nodeSelector {ACCELERATOR_LABEL} {wrong}: it must be {_any_of(families)}, "
            "which TPUNodeGroups are made of"
        )
    machine = topology.find_machine(f"{family}-standard-{leader.chips}t")
    if machine is None:
        raise InputError(
            f"the Pod asks for {leader.chips} of {TPU_RESOURCE}: it must ask for as many as a host has, "
            f"{_any_of(map(str, topology.CHIP_BOUNDS))}"
        )
    return machine


def _count_hosts(leader: Leader, machine: Machine) -> int:
    shape = leader.topology
    if len(shape) > _MAX_TOPOLOGY or not topology.TOPOLOGY.fullmatch(shape):
        raise InputError(
            f"the Pod's nodeSelector {TOPOLOGY_LABEL} is {shape!r}: it must be a shape, as in 2x2x2 "
            "or 4x4"
        )
    problem = topology.find_shape_problem(shape, machine)
    if problem:
        raise InputError(f"the Pod's nodeSelector {TOPOLOGY_LABEL}: {problem}")
    return topology.chips_of(shape) // machine.chips


_MAX_TOPOLOGY = 11


def _buy(leader: Leader, config: dict[str, Any]) -> None:
    """How the VMs are bought, where the Pod says it."""
    is_spot, reservation = SPOT in leader.selector, leader.selector.get(RESERVATION)
    if is_spot and reservation is not None:
        raise InputError(
            f"the Pod's nodeSelector has both {SPOT} and {RESERVATION}: VMs of a reservation are never "
            "Spot; it must have one of them"
        )
    if not is_spot and reservation is None:
        return
    for name in ("reservation", "maxRunDuration"):
        config.pop(name, None)
    if is_spot:
        config["provisioningModel"] = "SPOT"
        return
    project = leader.selector.get(RESERVATION_PROJECT)
    config["provisioningModel"] = "RESERVATION_BOUND"
    config["reservation"] = (
        f"projects/{project}/reservations/{reservation}" if project else reservation
    )


class _Selection:
    """What the Pod wants of its Nodes, held against what the slice's Nodes will be like."""

    def __init__(
        self, leader: Leader, name: str, machine: Machine, spec: Mapping[str, Any]
    ) -> None:
        self._leader = leader
        self._name = name
        self._spec = spec
        self._given: Mapping[str, str] = spec.get("nodeLabels", {})
        zone = str(spec.get("nodeLocation"))
        self._known = {ZONE: zone, REGION: region_of(zone), INSTANCE_TYPE: machine.machine_type}
        self._set_for_us = {
            **_OF_KUBELETS,
            TOPOLOGY_LABEL: leader.topology,
            ACCELERATOR_LABEL: leader.accelerator,
            ACCELERATOR_COUNT_LABEL: str(machine.chips),
            GROUP_NAMESPACE_LABEL: leader.namespace,
            GROUP_NAME_LABEL: name,
            GROUP_LABEL: f"{leader.namespace}-{name}",
        }
        self.asked = {
            key: value
            for key, value in leader.selector.items()
            if key in _AS_SELECTED or self._is_free(key)
        }
        """Labels that the Nodes get because the Pod selects by them."""

    def node_labels(self) -> dict[str, str]:
        """What of the Nodes' labels is not set by whoever makes and proves them."""
        known = {key: value for key, value in self._known.items() if key in self._leader.selector}
        return {
            **self._copied(),
            **known,
            **self._domain(),
            **self.asked,
            **self._given,
            POOL_LABEL: self._name,
        }

    def check(self) -> None:
        """Raise `InputError` for what would be paid for though the Pod could never run there."""
        if self._leader.selector.get(SPOT, "true") != "true":
            raise InputError(f'the Pod\'s nodeSelector {SPOT} must be "true", or not be there')
        labels = {**self._set_for_us, **self.node_labels()}
        for key, value in self._leader.selector.items():
            if labels.get(key) != value:
                has = f"{key}={labels[key]}" if key in labels else "no such label"
                raise InputError(
                    f"the Pod's nodeSelector has {key}={value}, and the Nodes of its slice would have "
                    f"{has}: it must be taken out, or fulfilled by the template's nodeLabels"
                )
        for taint in self._taints():
            if not any(_tolerates(one, taint) for one in self._leader.tolerations):
                text = f"{taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}"
                raise InputError(
                    f"the Nodes of the Pod's slice would have the taint {text}, of the template's "
                    "nodeTaints: the Pod must tolerate it"
                )

    def _taints(self) -> list[Mapping[str, Any]]:
        listed = self._spec.get("nodeTaints")
        taints = (
            [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        )
        return [one for one in taints if one.get("effect") in ("NoSchedule", "NoExecute")]

    def _copied(self) -> dict[str, str]:
        """Labels of the Pod that its annotation names. Those that say what a Node is are set by who
        knows it, whatever the Pod says."""
        keys = (key.strip() for key in self._leader.annotations.get(COPY_LABELS, "").split(","))
        labels = self._leader.labels
        return {key: labels[key] for key in keys if key in labels and self._is_free(key)}

    def _domain(self) -> dict[str, str]:
        """The label by which JobSet keeps a Job to one slice."""
        key = self._leader.annotations.get(EXCLUSIVE_TOPOLOGY, POOL_LABEL)
        if key in self._set_for_us or key == HOSTNAME:
            return {}
        if key in self._known:
            return {key: self._known[key]}
        if not is_settable_label(key):
            raise InputError(
                f"the exclusive topology of the Pod's JobSet is {key}, which the Nodes of its slice "
                f"would not have: it must be {POOL_LABEL}, or a label that can be given to Nodes"
            )
        return {key: self._name}

    def _is_free(self, key: str) -> bool:
        """Whether a label of this key says nothing that somebody else knows better."""
        is_known = key in self._set_for_us or key in self._known or key == POOL_LABEL
        return not is_known and not _PLATFORM.fullmatch(key) and is_settable_label(key)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    is_meant = key == taint.get("key") or (not key and operator == "Exists")
    is_equal = (toleration.get("value") or "") == (taint.get("value") or "")
    return (
        is_meant
        and (operator == "Exists" or is_equal)
        and (toleration.get("effect") or taint["effect"]) == taint["effect"]
    )


def _metadata(
    template: Mapping[str, Any], leader: Leader, name: str, digest: str
) -> dict[str, Any]:
    labels = {JOBSET_LABEL: leader.jobset, JOB_KEY_LABEL: leader.job_key}
    annotations = {HASH_ANNOTATION: digest}
    job = labels if len(leader.owner_name) <= _MAX_LABEL else annotations
    job[JOB_LABEL] = leader.owner_name
    return {
        "name": name,
        "namespace": leader.namespace,
        "labels": {**(template.get("labels") or {}), **labels},
        "annotations": {**(template.get("annotations") or {}), **annotations},
    }


def _make_hash(spec: Mapping[str, Any], asked: Mapping[str, str]) -> str:
    """What a group must have been made of for a Pod to fit. What only the template says, and labels
    that are only copied, are not in it: no change to those makes a slice anew."""
    config = spec["instanceConfig"]
    content = {
        "config": {
            "labels": dict(asked),
            "machineType": config["machineType"],
        },
        "nodeCount": spec["nodeCount"],
        "topology": spec["topology"],
    }
    return short_hash(json.dumps(content, sort_keys=True, separators=(",", ":")))


def _any_of(words: Iterable[str]) -> str:
    *rest, last = words
    return f"{', '.join(rest)} or {last}" if rest else last


# What a group says of itself.


def read_slice(raw: Mapping[str, Any], now: datetime) -> Slice | None:
    """A group as a slice; ``None`` if it was not made for a JobSet's Job.

    Its labels alone do not prove that, since users can write them: the name must follow from them.
    """
    metadata = raw["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    jobset, key = labels.get(JOBSET_LABEL, ""), labels.get(JOB_KEY_LABEL, "")
    job = labels.get(JOB_LABEL) or annotations.get(JOB_LABEL, "")
    if not (jobset and key and job) or metadata["name"] != slice_name(jobset, key):
        return None
    state, words, since = _read_state(raw)
    status = raw.get("status") or {}
    return Slice(
        name=metadata["name"],
        owner=Owner(metadata["namespace"], jobset, job),
        hash=annotations.get(HASH_ANNOTATION, ""),
        state=state,
        words=words,
        has_ready_nodes=bool((status.get("nodeSummary") or {}).get("ready")),
        mends_itself=not _is_lost(raw, since, now),
        release_after=_find_stamp(annotations.get(RELEASE_ANNOTATION, "")),
        since=since,
        raw=raw,
    )


def _read_state(raw: Mapping[str, Any]) -> tuple[SliceState, str, datetime | None]:
    """The state, what is said of it, and since when."""
    metadata, ready = raw["metadata"], _ready(raw)
    if metadata.get("deletionTimestamp"):
        return SliceState.GOING, "", find_time(metadata["deletionTimestamp"])
    since = find_time(ready.get("lastTransitionTime") or metadata.get("creationTimestamp"))
    if ready.get("status") == "True":
        return SliceState.READY, "", since
    reason = ready.get("reason", Reason.PROVISIONING)
    is_half_made = reason == Reason.NODE_NOT_READY and not _was_complete(raw)
    if reason in _COMING or is_half_made:
        return SliceState.COMING, "", since
    return SliceState.TROUBLED, f"{reason}: {ready.get('message', '')}", since


def _ready(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == "Ready"), {})


def _was_complete(raw: Mapping[str, Any]) -> bool:
    return bool((raw.get("status") or {}).get("completedAt"))


def _is_lost(raw: Mapping[str, Any], since: datetime | None, now: datetime) -> bool:
    """A slice of several hosts that was once complete is not bought again by itself."""
    spec = raw.get("spec") or {}
    reason = _ready(raw).get("reason")
    if spec.get("targetSizePolicyMode") != "BULK" or not _was_complete(raw) or reason not in _LOST:
        return False
    is_spot = (spec.get("instanceConfig") or {}).get("provisioningModel") == "SPOT"
    is_final = reason == Reason.RESOURCE_LOST or (is_spot and reason == Reason.PREEMPTED)
    return is_final or (since is not None and now - since >= LOST_AFTER)


def _find_stamp(text: str) -> datetime | None:
    """A stamp that somebody has written wrongly is none, and is written anew."""
    try:
        return find_time(text)
    except ValueError:
        return None
