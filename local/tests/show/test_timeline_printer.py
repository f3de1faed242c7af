# ruff: noqa: E501  (a table reads best with a row on a line)
"""The lines of the timeline in the demo and `make local`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local.base.events import (
    AuditEntry,
    Event,
    SerialText,
    SubprocessEnded,
    SubprocessLine,
    SweepTriggered,
)
from local.show.timeline import Line
from local.show.timeline_printer import (
    TimelinePrinter,
    render_class,
    render_event,
    render_group,
    render_node,
    render_pod,
    render_secret,
    render_workload,
)

VM = "tng-training-80f92ae7-jdc7"


def step_line(**change: Any) -> str:
    record = {
        "severity": "INFO",
        "step": "create_resources",
        "decision": "Inserting",
        "trigger": "compute.resourcePolicies.insert",
        "calls": {"gce": 2, "kubernetes": 9},
        "milliseconds": 34,
    }
    return json.dumps(record | change)


def audit(method: str, *, first: bool = False, last: bool = False, error: str = "") -> Any:
    payload: dict[str, Any] = {"methodName": method, "resourceName": f"projects/p/zones/z/x/{VM}"}
    if error:
        payload["status"] = {"code": 5, "message": error}
    return {"protoPayload": payload, "operation": {"first": first, "last": last}}


@pytest.mark.parametrize(
    "event, line",
    [
        pytest.param(
            SubprocessLine("create_resources", step_line()),
            Line(
                "create_resources",
                "Inserting: inserts what is missing and possible now",
                "resourcePolicies.insert; 2 GCE and 9 Kubernetes calls, 34 ms",
            ),
            id="a decision with a detail",
        ),
        pytest.param(
            SubprocessLine(
                "label_node", step_line(decision="Novel", note="because", trigger="Resync")
            ),
            Line("label_node", "Novel", "Resync; because; 2 GCE and 9 Kubernetes calls, 34 ms"),
            id="a decision without a detail",
        ),
        pytest.param(
            SubprocessLine("label_node", step_line(decision="Novel", group="default/training")),
            Line(
                "label_node",
                "training  Novel",
                "resourcePolicies.insert; 2 GCE and 9 Kubernetes calls, 34 ms",
            ),
            id="a decision about a group",
        ),
        pytest.param(
            SubprocessLine("release_slice", step_line(decision="Novel", jobset="research/train")),
            Line(
                "release_slice",
                "research/train  Novel",
                "resourcePolicies.insert; 2 GCE and 9 Kubernetes calls, 34 ms",
            ),
            id="a decision about a JobSet in another namespace",
        ),
        pytest.param(
            SubprocessLine("sweep", step_line(decision="Poison", severity="WARNING", trigger="x")),
            Line("sweep", "Poison", "x; 2 GCE and 9 Kubernetes calls, 34 ms", is_bad=True),
            id="poison",
        ),
        pytest.param(
            SubprocessLine("report_leaks", '{"decision": "LeakedSlice", "note": "It is left."}'),
            Line("report_leaks", "LeakedSlice", "a message; It is left."),
            id="a line about one of several objects, without time and calls",
        ),
        pytest.param(
            SubprocessLine(
                "label_node",
                json.dumps({"decision": "Unusable", "group": "default/a", "cause": "start", "chip_hours": 0.0028}),
            ),
            Line(
                "label_node",
                "a  Unusable: chips that are billed, and were not usable since the last such line",
                "0.0028 chip-hours, by the cause: start",
            ),
            id="a line about chips",
        ),
        pytest.param(
            SubprocessLine("sweep", '{"decision": "Novel", "calls": null, "milliseconds": 3}'),
            Line("sweep", "Novel", "a message; 0 GCE and 0 Kubernetes calls, 3 ms"),
            id="an invocation without calls",
        ),
        pytest.param(SubprocessLine("sweep", "[2026] Booting worker"), None, id="no log line"),
        pytest.param(SubprocessLine("sweep", "[1]"), None, id="JSON that is no log line"),
        pytest.param(
            SubprocessLine(
                "relay",
                '{"message": "published", "step": "label_node", "group": "default/training",'
                ' "cause": "NodesChanged", "nodes": 2}',
            ),
            Line("relay", "publishes to label_node", "default/training: NodesChanged, 2 Nodes"),
            id="the relay publishes",
        ),
        pytest.param(
            SubprocessLine(
                "relay",
                '{"message": "published", "step": "provision_slice", "pod": "default/train-0",'
                ' "cause": "Unschedulable", "nodes": 0}',
            ),
            Line("relay", "publishes to provision_slice", "default/train-0: Unschedulable"),
            id="the relay publishes about a Pod",
        ),
        pytest.param(
            SubprocessLine(
                "relay",
                '{"message": "published", "step": "approve_join", "requests": ["csr-1", "csr-2"],'
                ' "cause": "JoinRequested", "nodes": 0}',
            ),
            Line("relay", "publishes to approve_join", "csr-1, csr-2: JoinRequested"),
            id="the relay publishes about requests for certificates",
        ),
        pytest.param(SubprocessLine("relay", '{"message": "listed", "severity": "INFO"}'), None, id="the rest"),
        pytest.param(SubprocessLine("relay", "no JSON"), None, id="a line of the relay that is no JSON"),
        pytest.param(
            SubprocessLine("relay", '{"message": "cannot start: x", "severity": "CRITICAL"}'),
            Line("relay", "cannot start: x", is_bad=True),
            id="an error of the relay",
        ),
        pytest.param(
            SubprocessLine("relay", '{"severity": "ERROR"}'),
            Line("relay", '{"severity": "ERROR"}', is_bad=True),
            id="an error of the relay without a message",
        ),
        pytest.param(
            SubprocessLine("relay", '{"message": "published"}'),
            Line("relay", "publishes to ?", ": ?"),
            id="a publication without fields",
        ),
        pytest.param(AuditEntry(audit("v1.compute.instances.insert", first=True), ()), Line("compute engine", f"creates VM {VM}"), id="an insert begins"),
        pytest.param(
            AuditEntry(audit("v1.compute.instances.insert", last=True), ("inject_token",)),
            Line("compute engine", f"created VM {VM}", "audit log: to inject_token"),
            id="an insert ends",
        ),
        pytest.param(
            AuditEntry(
                audit("v1.compute.instances.insert", last=True, error="ZONE_X"), ("label_node",)
            ),
            Line(
                "compute engine",
                f"instances.insert of {VM}: ZONE_X",
                "audit log: to label_node",
                is_bad=True,
            ),
            id="an insert fails",
        ),
        pytest.param(
            AuditEntry(audit("compute.instances.preempted", first=True, last=True), ()),
            Line("compute engine", f"preempted VM {VM}"),
            id="a system event",
        ),
        pytest.param(
            AuditEntry(
                audit("google.container.v1.ClusterManager.CreateNodePool", last=True),
                ("provision_slice",),
            ),
            Line("GKE", f"created node pool {VM}", "audit log: to provision_slice"),
            id="a node pool is created",
        ),
        pytest.param(AuditEntry(audit("google.container.v1.ClusterManager.SetLabels", first=True), ()), None, id="GKE does something else"),
        pytest.param(AuditEntry(audit("v1.compute.instances.stop", first=True), ()), None, id="a beginning without text"),
        pytest.param(AuditEntry(audit("NotifyInstanceLocation", first=True, last=True), ()), None, id="noise"),
        pytest.param(SerialText(VM, "tpu-functions: joined: host as vm\n"), Line("VM jdc7", "joined: host as vm"), id="our script"),
        pytest.param(SerialText(VM, "systemd: started\n"), None, id="a line of another script"),
        pytest.param(SweepTriggered(), Line("scheduler", "triggers the sweep", "a full minute"), id="a trigger of the sweep"),
        pytest.param(
            SubprocessEnded("relay", "relay was ended by SIGKILL", 0.5),
            Line("supervisor", "relay was ended by SIGKILL", "relay again in 0.5 s", is_bad=True),
            id="a child's end",
        ),
        pytest.param(
            SubprocessEnded(
                "relay",
                "relay ended with code 2",
                0.5,
                ('{"severity": "CRITICAL", "message": "cannot start: x"}', "Killed"),
            ),
            Line(
                "supervisor",
                "relay ended with code 2\n  CRITICAL cannot start: x\n  Killed",
                "relay again in 0.5 s",
                is_bad=True,
            ),
            id="a child's end, with its last lines",
        ),
    ],
)  # fmt: skip
def test_each_event_is_printed_as_one_line_or_not_at_all(event: Event, line: Line | None) -> None:
    assert TimelinePrinter().render(event) == line


def test_the_calls_of_each_step_are_counted() -> None:
    printer = TimelinePrinter()
    for milliseconds in (34, 20):
        printer.render(SubprocessLine("tear_down", step_line(milliseconds=milliseconds)))
    counts = printer.step_calls["tear_down"]
    assert (counts.invocations, counts.gce, counts.kubernetes, counts.slowest_ms) == (2, 4, 18, 34)


def group(status: str = "False", reason: str = "Provisioning", text: str = "0/2") -> dict[str, Any]:
    ready = {"type": "Ready", "status": status, "reason": reason, "message": "why"}
    return {
        "metadata": {"name": "training"},
        "status": {"conditions": [ready], "nodeSummary": {"text": text}},
    }


def node(ready: str = "False", chips: int = 0) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready}]
    allocatable = {"google.com/tpu": str(chips)} if chips else {}
    return {
        "metadata": {"name": VM},
        "status": {"conditions": conditions, "allocatable": allocatable},
    }


@pytest.mark.parametrize(
    "before, after, what",
    [
        ({}, group(), "TPUNodeGroup training: Ready=False Provisioning, Nodes 0/2"),
        (group(), group("True", "Ready", "2/2"), "TPUNodeGroup training: Ready=True Ready, Nodes 2/2"),
        (group(), group(text="1/2"), "TPUNodeGroup training: Ready=False Provisioning, Nodes 1/2"),
        (group(), group(), None),
        ({}, {"metadata": {"name": "training"}}, None),
    ],
    ids=["first status", "Ready", "one more Node", "no change", "no status yet"],
)  # fmt: skip
def test_a_group_is_printed_when_it_is_ready_or_its_count_changes(
    before: dict[str, Any], after: dict[str, Any], what: str | None
) -> None:
    line = render_group(before, after)
    assert (line and line.what) == what


@pytest.mark.parametrize(
    "kind, before, after, what",
    [
        ("ADDED", {}, node(), f"Node {VM} has registered"),
        ("MODIFIED", node(), node("True"), f"Node {VM} is Ready"),
        ("MODIFIED", node("True"), node("True", 4), f"Node {VM} offers 4 chips"),
        ("MODIFIED", node("True", 4), node("True", 4), None),
        ("DELETED", node("True", 4), node("True", 4), f"Node {VM} is gone"),
    ],
    ids=["registered", "Ready", "chips", "no change", "deleted"],
)
def test_the_addition_and_deletion_of_a_node_are_printed(
    kind: str, before: dict[str, Any], after: dict[str, Any], what: str | None
) -> None:
    line = render_node(kind, before, after)
    assert (line and line.what) == what


def test_only_our_tokens_are_printed_without_their_content() -> None:
    ours = {
        "metadata": {"labels": {"tpu-functions.dev/vm": VM}},
        "data": {"token-secret": "c2VjcmV0"},
    }
    line = render_secret("ADDED", ours)
    assert line == Line("kubernetes", f"the bootstrap token of {VM} exists")
    assert render_secret("ADDED", {"metadata": {"name": "another"}}) is None


def pod(phase: str = "Pending", node: str = "", reason: str = "") -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "no room"}
    return {
        "metadata": {"name": "train-0-0-x7abc"},
        "spec": {"hostname": "train-0-0", **({"nodeName": node} if node else {})},
        "status": {"phase": phase, "conditions": [condition] if reason else []},
    }


UNSCHEDULABLE = pod(reason="Unschedulable")
BOUND = pod(node=VM)


@pytest.mark.parametrize(
    "kind, before, after, line",
    [
        ("ADDED", {}, pod(), None),
        ("MODIFIED", pod(), UNSCHEDULABLE, Line("kubernetes", "Pod train-0-0 is unschedulable", "no room")),
        ("MODIFIED", UNSCHEDULABLE, UNSCHEDULABLE, None),
        ("MODIFIED", UNSCHEDULABLE, BOUND, Line("kubernetes", f"Pod train-0-0 is bound to {VM}")),
        ("MODIFIED", BOUND, pod("Running", VM), Line("kubernetes", "Pod train-0-0: Running")),
        ("DELETED", BOUND, BOUND, None),
    ],
    ids=["created", "unschedulable", "no change", "bound", "running", "deleted"],
)  # fmt: skip
def test_a_pod_is_printed_when_it_is_scheduled(
    kind: str, before: dict[str, Any], after: dict[str, Any], line: Line | None
) -> None:
    assert render_pod(kind, before, after) == line


REFUSED = {"candidate": "us-b/SPOT", "reason": "Waited", "message": "none"}
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}


@pytest.mark.parametrize(
    "change, kind, spec, before, after, what",
    [
        ("ADDED", "JobSet", {}, {}, {}, None),
        ("MODIFIED", "JobSet", {}, {"restarts": 0}, {"restarts": 1}, "train: restart 1"),
        ("MODIFIED", "JobSet", {}, {"restarts": 1}, {"restarts": 1}, None),
        ("MODIFIED", "JobSet", {}, {"restarts": 1}, {"restarts": 1, "terminalState": "Completed"}, "train: Completed"),
        ("DELETED", "JobSet", {}, {}, {}, "train is gone"),
        ("MODIFIED", "Job", {}, {}, COMPLETE, "train: Complete"),
        ("ADDED", "Deployment", {"replicas": 3}, None, {}, "train: 0 of 3 replicas are ready"),
        ("MODIFIED", "Deployment", {"replicas": 3}, {}, {"readyReplicas": 2}, "train: 2 of 3 replicas are ready"),
    ],
)  # fmt: skip
def test_a_workload_is_printed_when_its_state_changes(
    change: str,
    kind: str,
    spec: dict[str, Any],
    before: dict[str, Any] | None,
    after: dict[str, Any],
    what: str | None,
) -> None:
    workload = {"metadata": {"name": "train"}, "spec": spec}
    old = {} if before is None else {**workload, "status": before}
    line = render_workload(kind, change, old, {**workload, "status": after})
    assert line == (Line("kubernetes", f"{kind} {what}") if what else None)


@pytest.mark.parametrize(
    "by, about, type_, line",
    [
        ("tpu-functions-provision-slice", "Pod", "Normal", Line("kubernetes", "Event Tested on Pod x", "why")),
        ("tpu-functions-release-slice", "JobSet", "Warning", Line("kubernetes", "Event Tested on JobSet x", "why", is_bad=True)),
        ("tpu-functions-label-node", "Node", "Normal", None),
        ("default-scheduler", "Pod", "Warning", None),
    ],
)  # fmt: skip
def test_our_events_about_jobsets_and_their_pods_are_printed(
    by: str, about: str, type_: str, line: Line | None
) -> None:
    event = {
        "source": {"component": by},
        "involvedObject": {"kind": about, "name": "x"},
        "reason": "Tested",
        "message": "why",
        "type": type_,
    }
    assert render_event("ADDED", {}, event) == line


@pytest.mark.parametrize(
    "before, after, line",
    [
        ([], [], None),
        ([], [REFUSED], Line("kubernetes", "TPUSliceClass v6e: us-b/SPOT: Waited", "none")),
        ([REFUSED], [REFUSED], None),
        ([REFUSED], [{**REFUSED, "askedBy": "default/x"}], Line("kubernetes", "TPUSliceClass v6e: us-b/SPOT is asked again by default/x", "none")),
    ],
    ids=["none", "refused", "no change", "claimed"],
)  # fmt: skip
def test_refusals_of_a_class_are_printed(
    before: list[Any], after: list[Any], line: Line | None
) -> None:
    old, new = (
        {"metadata": {"name": "v6e"}, "status": {"refusals": one}} for one in (before, after)
    )
    assert render_class("MODIFIED", old, new) == line


def test_frequent_sweeps_are_not_printed() -> None:
    printer = TimelinePrinter(shows_sweeps=False)
    assert printer.render(SweepTriggered()) is None
    assert printer.render(SubprocessLine("sweep", step_line(decision="Swept"))) is None
    assert printer.step_calls["sweep"].invocations == 1
