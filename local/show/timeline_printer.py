"""Renders the events of a run as lines of the timeline: actor, action, cause."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from local.base.events import (
    AuditEntry,
    ClusterAction,
    Event,
    SerialText,
    SubprocessEnded,
    SubprocessLine,
    SweepTriggered,
)
from local.show.timeline import Line

_SCRIPT_MARK = "tpu-functions: "
_NOUNS = {
    "resourcePolicies": "workload policy",
    "instanceTemplates": "instance template",
    "regionInstanceTemplates": "instance template",
    "instanceGroupManagers": "MIG",
    "instances": "VM",
    "nodePools": "node pool",
}
_DONE = {
    "insert": "created",
    "delete": "deleted",
    "setMetadata": "changed the metadata of",
    "update": "changed",
    "preempted": "preempted",
    "hostError": "lost the host of",
    "automaticRestart": "restarted",
}
_BEGUN = {
    "insert": "creates",
    "delete": "deletes",
    "setMetadata": "changes the metadata of",
}
_SUBJECTS = ("group", "pod", "jobset", "slice")
DECISIONS = {
    "Inserting": "inserts what is missing and possible now",
    "Waiting": "nothing to do yet",
    "ResourcesReady": "policy, template and MIG are Ready",
    "Injecting": "a token into the VM's metadata, then its Secret",
    "PublishingVMs": "publishes a message for each batch of VMs that need a token",
    "AllHaveTokens": "every VM has its token, or has joined",
    "Approving": "the request comes from the VM that holds the token",
    "NotApproved": "the VM holds another token than the requester",
    "Denied": "no kubelet sends such a request; the token is revoked",
    "Counting": "labels and counts the Nodes",
    "AllJoined": "all VMs have joined",
    "AllReady": "all Nodes are Ready and the interconnect is up",
    "Deleting": "the group is being deleted; tear_down handles its Nodes",
    "Cordoning": "writes the deletion to the status; cordons the Nodes",
    "DeletingMIG": "revokes tokens, deletes the MIG",
    "DeletingRest": "the MIG is gone; deletes policy and template",
    "AwaitingCreate": "a resource may still appear; it is deleted then",
    "AwaitingDelete": "the rest is still being deleted",
    "DeleteFailed": "the status has the error; the sweep triggers the step again",
    "Unusable": "chips that are billed, and were not usable since the last such line",
    "Partly": "out of time; a message to the same step continues",
    "NoBootstrap": "these VMs join without a token",
    "TryAgain": "a transient error; Pub/Sub delivers the message again",
    "LeftToTheSweep": "no more retries; the sweep triggers the step again",
    "Done": "nothing is left; removes the finalizer",
    "Swept": "lists the groups; resyncs those that wait",
    "Creating": "creates a slice for the Pod and those that share it",
    "Provisioning": "its slice is being provisioned",
    "DeadlineSet": "deletes the slice later, unless it is needed again",
    "Releasing": "the slice is not needed any more; deletes it",
    "PodGone": "the Pod is gone",
    "NotWaiting": "the Pod does not wait for a slice any more",
    "GroupGone": "the group is gone",
    "NotOurs": "belongs to no existing group",
}
"""Explanations of the decisions in log lines; other decisions are shown without one."""


@dataclass
class StepCalls:
    """The invocations and calls of a step so far."""

    invocations: int = 0
    gce: int = 0
    kubernetes: int = 0
    slowest_ms: int = 0


@dataclass
class TimelinePrinter:
    """Renders events as lines, and counts the steps' calls.

    ``shows_sweeps``: render the runs of the sweep, too.
    """

    shows_sweeps: bool = True
    step_calls: dict[str, StepCalls] = field(default_factory=dict)

    def render(self, event: Event) -> Line | None:
        """The line for an event; ``None`` if it is not shown."""
        match event:
            case SubprocessLine("relay", text):
                return _render_relay(text)
            case SubprocessLine(step, text):
                return self._render_step(step, text)
            case AuditEntry(entry, steps):
                return _render_audit(entry, steps)
            case SerialText(vm, text):
                return _render_serial(vm, text)
            case SweepTriggered():
                tick = Line("scheduler", "triggers the sweep", "a full minute")
                return tick if self.shows_sweeps else None
            case ClusterAction(what, why, is_bad):
                return Line("setup", what, why, is_bad)
            case SubprocessEnded(name, how, again_in_s, last_lines):
                what = "\n".join([how, *map(_render_last_line, last_lines)])
                return Line("supervisor", what, f"{name} again in {again_in_s:g} s", is_bad=True)

    def _render_step(self, step: str, text: str) -> Line | None:
        record = _parse(text)
        if "decision" not in record:
            return None
        decision = str(record["decision"])
        # A step's lines about single objects, such as LeakedSlice, have neither time nor calls.
        counts = self._count(step, record) if "milliseconds" in record else ""
        if decision == "Swept" and not self.shows_sweeps:
            return None
        what = f"{decision}: {DECISIONS[decision]}" if decision in DECISIONS else decision
        what = f"{_subject(record)}{what}"
        note = f"; {record['note']}" if record.get("note") else ""
        trigger = str(record.get("trigger", "a message")).removeprefix("compute.")
        if "chip_hours" in record:
            trigger = f"{record['chip_hours']:g} chip-hours, by the cause: {record.get('cause')}"
        return Line(step, what, f"{trigger}{note}{counts}", is_bad=decision == "Poison")

    def _count(self, step: str, record: Mapping[str, Any]) -> str:
        """Count an invocation; returns its calls and time as text."""
        calls, took = record.get("calls") or {}, record["milliseconds"]
        gce, kubernetes = calls.get("gce", 0), calls.get("kubernetes", 0)
        total = self.step_calls.setdefault(step, StepCalls())
        total.invocations += 1
        total.gce += gce
        total.kubernetes += kubernetes
        total.slowest_ms = max(total.slowest_ms, took)
        return f"; {gce} GCE and {kubernetes} Kubernetes calls, {took} ms"


def _subject(record: Mapping[str, Any]) -> str:
    """The object that a step's log line names, as the line's beginning; empty if it names none."""
    about = next((str(record[kind]) for kind in _SUBJECTS if record.get(kind)), "")
    return f"{about.removeprefix('default/')}  " if about else ""


def render_group(before: Mapping[str, Any], after: Mapping[str, Any]) -> Line | None:
    """The line for a change of a TPUNodeGroup's status; ``None`` if Ready and nodes are unchanged."""
    old, new = _ready(before), _ready(after)
    summary = after.get("status", {}).get("nodeSummary", {}).get("text", "")
    shown = (new.get("status"), new.get("reason"), summary)
    if not new or shown == (old.get("status"), old.get("reason"), _summary(before)):
        return None
    name = after["metadata"]["name"]
    what = f"TPUNodeGroup {name}: Ready={new['status']} {new['reason']}, Nodes {summary}"
    return Line("kubernetes", what, new.get("message", ""))


def render_node(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Line | None:
    """The line for a change of a Node; ``None`` if it is not shown."""
    name = after["metadata"]["name"]
    if kind == "DELETED":
        return Line("kubernetes", f"Node {name} is gone")
    if not before:
        return Line("kubernetes", f"Node {name} has registered")
    if _ready(after).get("status") == "True" and _ready(before).get("status") != "True":
        return Line("kubernetes", f"Node {name} is Ready")
    if _chips(after) and not _chips(before):
        return Line("kubernetes", f"Node {name} offers {_chips(after)} chips", "device plugin")
    return None


def render_secret(kind: str, secret: Mapping[str, Any]) -> Line | None:
    """The line for a bootstrap token's Secret that was created or deleted; its content is not read."""
    vm = secret["metadata"].get("labels", {}).get("tpu-functions.dev/vm")
    if vm is None or kind == "MODIFIED":
        return None
    state = "exists" if kind == "ADDED" else "is revoked"
    return Line("kubernetes", f"the bootstrap token of {vm} {state}")


def render_workload(
    name: str, kind: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Line | None:
    """The line for a workload of the kind ``name`` with another state, or deleted, else ``None``."""
    shown = f"{name} {after['metadata']['name']}"
    if kind == "DELETED":
        return Line("kubernetes", f"{shown} is gone")
    state = _state(after)
    return Line("kubernetes", f"{shown}: {state}") if state and state != _state(before) else None


def _state(workload: Mapping[str, Any]) -> str:
    """The end, the restarts, or the replicas of a workload; empty if it has none of these yet."""
    spec, status = workload.get("spec", {}), workload.get("status", {})
    conditions = status.get("conditions") or ()
    ends = [one["type"] for one in conditions if one["status"] == "True"]
    ended = [one for one in ends if one in ("Complete", "Failed")]
    if status.get("terminalState") or ended:
        return str(status.get("terminalState") or ended[0])
    if status.get("restarts"):
        return f"restart {status['restarts']}"
    if "replicas" in spec:
        return f"{status.get('readyReplicas', 0)} of {spec['replicas']} replicas are ready"
    return ""


def render_pod(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Line | None:
    """The line for a change of a Pod's phase or scheduling, else ``None``."""
    name = f"Pod {after['spec'].get('hostname') or after['metadata']['name']}"
    if kind == "DELETED":
        return None
    node = after["spec"].get("nodeName")
    if node and not before.get("spec", {}).get("nodeName"):
        return Line("kubernetes", f"{name} is bound to {node}")
    if not node and _is_unschedulable(after) and not _is_unschedulable(before):
        return Line("kubernetes", f"{name} is unschedulable", _message_of(after))
    phase = after.get("status", {}).get("phase")
    if phase in ("Running", "Succeeded", "Failed") and phase != _phase(before):
        return Line("kubernetes", f"{name}: {phase}")
    return None


def render_class(_kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Line | None:
    """The line for the refusals that a TPUSliceClass has got; ``None`` without any."""
    old, new = (one.get("status", {}).get("refusals", ()) for one in (before, after))
    shown = [
        f"{one['candidate']} is asked again by {one['askedBy']}"
        if one.get("askedBy")
        else f"{one['candidate']}: {one['reason']}"
        for one in new
        if one not in old
    ]
    words = [one["message"] for one in new if one not in old]
    if not shown:
        return None
    what = f"TPUSliceClass {after['metadata']['name']}: {', '.join(shown)}"
    return Line("kubernetes", what, "; ".join(words))


def render_event(kind: str, _before: Mapping[str, Any], event: Mapping[str, Any]) -> Line | None:
    """The line for an Event of this system about a Pod or its owner, else ``None``."""
    about = event["involvedObject"]
    is_ours = event.get("source", {}).get("component", "").startswith("tpu-functions-")
    if kind == "DELETED" or not is_ours or about["kind"] in ("TPUNodeGroup", "Node"):
        return None
    what = f"Event {event['reason']} on {about['kind']} {about['name']}"
    return Line("kubernetes", what, event["message"], is_bad=event["type"] == "Warning")


def _is_unschedulable(pod: Mapping[str, Any]) -> bool:
    return _scheduled(pod).get("reason") == "Unschedulable"


def _message_of(pod: Mapping[str, Any]) -> str:
    return str(_scheduled(pod).get("message", ""))


def _scheduled(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = pod.get("status", {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == "PodScheduled"), {})


def _phase(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _render_relay(text: str) -> Line | None:
    record = _parse(text)
    if record.get("message") != "published":
        is_bad = record.get("severity") in ("ERROR", "CRITICAL")
        return Line("relay", str(record.get("message", text)), is_bad=True) if is_bad else None
    nodes = f", {record['nodes']} Nodes" if record.get("nodes", 0) > 1 else ""
    subjects = record.get("requests") or [record[kind] for kind in _SUBJECTS if kind in record]
    why = f"{', '.join(subjects)}: {record.get('cause', '?')}{nodes}"
    return Line("relay", f"publishes to {record.get('step', '?')}", why)


def _render_audit(entry: Mapping[str, Any], steps: tuple[str, ...]) -> Line | None:
    payload = entry["protoPayload"]
    actor, noun, verb = _parse_method(payload["methodName"])
    if not verb:
        return None  # NotifyInstanceLocation, for instance
    name = payload["resourceName"].rpartition("/")[2]
    status = payload.get("status", {})
    if status.get("message"):
        what = f"{noun}.{verb} of {name}: {status['message']}"
        return Line(actor, what, _to(steps), is_bad=True)
    is_first = entry.get("operation", {}).get("first", False)
    is_last = entry.get("operation", {}).get("last", not is_first)
    if not is_last and verb not in _BEGUN:
        return None
    words = _DONE.get(verb, verb) if is_last else _BEGUN[verb]
    return Line(actor, f"{words} {_NOUNS.get(noun, noun)} {name}", _to(steps))


def _parse_method(method: str) -> tuple[str, str, str]:
    """Actor, object and verb of an audit log entry."""
    if "ClusterManager." in method:
        words = re.fullmatch("(Create|Delete|Update)NodePool", method.rpartition(".")[2])
        verb = {"Create": "insert", "Delete": "delete", "Update": "update"}
        return "GKE", "nodePools", verb[words[1]] if words else ""
    noun, _, verb_of_compute = method.rpartition("compute.")[2].partition(".")
    return "compute engine", noun, verb_of_compute


def _to(steps: tuple[str, ...]) -> str:
    return f"audit log: to {', '.join(steps)}" if steps else ""


def _render_serial(vm: str, text: str) -> Line | None:
    if _SCRIPT_MARK not in text:
        return None
    return Line(f"VM {vm.rpartition('-')[2]}", text.rpartition(_SCRIPT_MARK)[2].strip())


def _render_last_line(text: str) -> str:
    """A line that a child wrote before its end; a log record without its machine-readable fields."""
    record = _parse(text)
    if "message" not in record:
        return f"  {text}"
    words = [str(record.get("severity", "")), f"{record['message']}"]
    words += [str(record[name]) for name in ("group", "note", "crash") if record.get(name)]
    return "  " + " ".join(word for word in words if word)


def _parse(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _ready(thing: Mapping[str, Any]) -> dict[str, Any]:
    conditions = thing.get("status", {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == "Ready"), {})


def _summary(group: Mapping[str, Any]) -> str:
    return str(group.get("status", {}).get("nodeSummary", {}).get("text", ""))


def _chips(node: Mapping[str, Any]) -> int:
    return int(node.get("status", {}).get("allocatable", {}).get("google.com/tpu", 0))
