"""kubectl's everyday commands and their output. `{ns}` and `{id}` belong to the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from local.tests.contract.kubernetes.cases.objects import widget
from local.tests.contract.kubernetes.cases.scaling import deployment
from local.tests.contract.kubernetes.kubectl.terminal import Terminal

Run = Callable[[Terminal], None]


def manifest(name: str, size: int = 3, **more: Any) -> dict[str, Any]:
    return widget(name, size, metadata=more)


def columns(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()]


def pod(name: str, node: str) -> dict[str, Any]:
    """Build a Pod. It never runs, because by_field is no kubelet."""
    container = {"name": "main", "image": "main"}
    spec = {"containers": [container], "automountServiceAccountToken": False}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"key": "{id}"}},
        "spec": {**spec, "nodeName": node} if node else {**spec, "schedulerName": "nobody"},
    }


def apply_creates_then_reports_unchanged_then_configures(kubectl: Terminal) -> None:
    assert "created" in kubectl("apply", "-f", "-", stdin=manifest("applied"))
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=manifest("applied"))
    assert "configured" in kubectl("apply", "-f", "-", stdin=manifest("applied", 4))
    assert "+  size: 5" in kubectl("diff", "-f", "-", stdin=manifest("applied", 5), code=1)
    dry = kubectl("apply", "--dry-run=server", "-f", "-", stdin=manifest("applied", 5))
    assert "configured (server dry run)" in dry
    assert kubectl("get", "wd", "applied", "-o", "jsonpath={.spec.size}") == "4"


def scale_changes_the_replicas(kubectl: Terminal) -> None:
    serve = {"apiVersion": "apps/v1", "kind": "Deployment", **deployment(0)}
    kubectl("apply", "-f", "-", stdin=serve)
    assert "scaled" in kubectl("scale", "deployment", "serve", "--replicas=3")
    assert kubectl("get", "deployment", "serve", "-o", "jsonpath={.spec.replicas}") == "3"
    assert "scaled" in kubectl("scale", "deploy/serve", "--current-replicas=3", "--replicas=0")


def invalid_manifests_are_rejected(kubectl: Terminal) -> None:
    wrong = manifest("wrong")
    wrong["spec"]["colour"] = "red"
    assert 'strict decoding error: unknown field "spec.colour"' in kubectl(
        "apply", "-f", "-", stdin=wrong, code=1
    )
    assert "spec.size: Invalid value: 0" in kubectl(
        "apply", "-f", "-", stdin=manifest("wrong", 0), code=1
    )


def get_prints_the_definitions_columns(kubectl: Terminal) -> None:
    kubectl("apply", "-f", "-", stdin=manifest("shown", labels={"env": "x"}))
    kubectl(
        "patch", "wd", "shown", "--subresource=status", "--type=merge", "-p",
        '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}',
    )  # fmt: skip
    head, row = columns(kubectl("get", "wd", "shown"))
    assert (head, row[:3]) == (["NAME", "SIZE", "READY", "AGE"], ["shown", "3", "True"])
    assert columns(kubectl("get", "widgets", "shown", "-o", "wide"))[1][3] == "red"
    assert columns(kubectl("get", "wd", "-l", "env=x", "-L", "env"))[1][-1] == "x"
    assert "widget.cases.example.com/shown" in kubectl("get", "all", "-o", "name")
    assert yaml.safe_load(kubectl("get", "wd", "shown", "-o", "yaml"))["spec"]["size"] == 3
    assert "condition met" in kubectl("wait", "--for=condition=Ready", "wd/shown", "--timeout=10s")
    streamed = kubectl(
        "wait", "--for=condition=Ready", "wd/shown", "--timeout=10s",
        KUBE_FEATURE_WatchListClient="true",
    )  # fmt: skip
    assert "condition met" in streamed


def describe_shows_an_objects_events(kubectl: Terminal) -> None:
    kubectl("apply", "-f", "-", stdin=manifest("described"))
    uid = kubectl("get", "wd", "described", "-o", "jsonpath={.metadata.uid}")
    about = {
        "apiVersion": "cases.example.com/v1",
        "kind": "Widget",
        "name": "described",
        "namespace": "{ns}",
        "uid": uid,
    }
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "described.1", "namespace": "{ns}"},
        "involvedObject": about,
        "type": "Warning",
        "reason": "Shrunk",
        "message": "It has shrunk.",
        "source": {"component": "tests"},
        "count": 1,
    }
    kubectl("create", "-f", "-", stdin=event)
    assert "It has shrunk." in kubectl("describe", "wd", "described")
    assert "It has shrunk." in kubectl("events", "--for", "widget.cases.example.com/described")
    assert "It has shrunk." in kubectl("get", "events", "--field-selector", "reason=Shrunk")


def objects_are_labelled_patched_edited_and_replaced(kubectl: Terminal) -> None:
    kubectl("create", "-f", "-", stdin=manifest("changed"))
    kubectl("label", "wd", "changed", "a=b")
    kubectl("annotate", "wd", "changed", "c=d")
    kubectl("patch", "wd", "changed", "--type=merge", "-p", '{"spec":{"size":4}}')
    kubectl("patch", "wd", "changed", "--type=json", "-p", '[{"op":"remove","path":"/spec/color"}]')
    error = kubectl("patch", "wd", "changed", "-p", '{"spec":{"size":5}}', code=1)
    assert "application/strategic-merge-patch+json is not supported" in error
    assert "edited" in kubectl("edit", "wd", "changed", KUBE_EDITOR="sed -i s/size:.*/size:\\ 9/")
    shown = yaml.safe_load(kubectl("get", "wd", "changed", "-o", "yaml"))
    assert shown["metadata"]["labels"] == {"a": "b"}
    assert shown["spec"] == {"size": 9, "color": "red", "note": "none"}
    assert "replaced" in kubectl("replace", "-f", "-", stdin=manifest("changed", 6))


def delete_waits_for_finalizers(kubectl: Terminal) -> None:
    kubectl("create", "-f", "-", stdin=manifest("held", finalizers=["cases.example.com/hold"]))
    assert "deleted" in kubectl("delete", "wd", "held", "--wait=false")
    assert kubectl("get", "wd", "held", "-o", "jsonpath={.metadata.deletionTimestamp}")
    kubectl("patch", "wd", "held", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    kubectl("wait", "--for=delete", "wd/held", "--timeout=10s")
    assert "not found" in kubectl("get", "wd", "held", code=1)


def nodes_are_cordoned_tainted_and_described(kubectl: Terminal) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-{id}"},
        "spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]},
    }
    kubectl("apply", "-f", "-", stdin=node)
    assert "cordoned" in kubectl("cordon", "node-{id}")
    assert "SchedulingDisabled" in kubectl("get", "node", "node-{id}")
    assert "uncordoned" in kubectl("uncordon", "node-{id}")
    kubectl("taint", "node", "node-{id}", "y=1:NoSchedule")
    taints = kubectl("get", "node", "node-{id}", "-o", "jsonpath={.spec.taints[*].key}").split()
    assert {"x", "y"} <= set(taints)
    assert "Unschedulable:      false" in kubectl("describe", "node", "node-{id}")
    assert "drained" in kubectl("drain", "node-{id}")
    kubectl("delete", "node", "node-{id}")


def discovery_and_explain_show_the_definition(kubectl: Terminal) -> None:
    resources = kubectl("api-resources", "--api-group=cases.example.com")
    assert ["widgets", "wd", "cases.example.com/v1", "true", "Widget"] in columns(resources)
    assert "cases.example.com/v1" in kubectl("api-versions")
    assert "Widget is what the cases are about." in kubectl("explain", "wd")
    assert "ENUM:\n    red\n    blue" in kubectl("explain", "wd.spec.color")
    assert "Server Version: v1." in kubectl("version")
    assert kubectl("get", "--raw", "/healthz") == "ok"


def a_user_without_permission_gets_an_error(kubectl: Terminal) -> None:
    error = kubectl("get", "widgets", user="joe", code=1)
    assert (
        'widgets.cases.example.com is forbidden: User "joe" cannot list resource "widgets" in API '
        f'group "cases.example.com" in the namespace "{kubectl.known["ns"]}"'
    ) in error


def a_watch_prints_changes(kubectl: Terminal) -> None:
    kubectl("create", "-f", "-", stdin=manifest("watched"))
    with kubectl.following("get", "wd", "watched", "-w", "--no-headers") as lines:
        assert next(lines).split()[:2] == ["watched", "3"]
        kubectl("patch", "wd", "watched", "--type=merge", "-p", '{"spec":{"size":8}}')
        assert next(lines).split()[:2] == ["watched", "8"]


def pods_can_be_selected_by_phase_node_and_labels(kubectl: Terminal) -> None:
    for name, node in (("waits", ""), ("placed", "node-{id}")):
        kubectl("create", "-f", "-", stdin=pod(name, node))
    pending = ("get", "pods", "--field-selector", "status.phase=Pending", "-o", "name")
    assert kubectl(*pending, "-l", "key={id}") == "pod/placed\npod/waits\n"
    assert kubectl(*pending, "-l", "key=other") == ""
    by_field = ("get", "pods", "-o", "name", "--field-selector")
    assert kubectl(*by_field, "spec.nodeName=node-{id}") == "pod/placed\n"
    assert kubectl(*by_field, "spec.nodeName!=node-{id},status.phase=Pending") == "pod/waits\n"
    assert kubectl(*by_field, "spec.nodeName=") == "pod/waits\n"
    assert "field label not supported: spec.image" in kubectl(*by_field, "spec.image=x", code=1)
    kubectl("delete", "pods", "--all", "--force", "--grace-period=0")


RUNS: tuple[Run, ...] = (
    apply_creates_then_reports_unchanged_then_configures,
    scale_changes_the_replicas,
    invalid_manifests_are_rejected,
    get_prints_the_definitions_columns,
    describe_shows_an_objects_events,
    objects_are_labelled_patched_edited_and_replaced,
    delete_waits_for_finalizers,
    nodes_are_cordoned_tainted_and_described,
    discovery_and_explain_show_the_definition,
    a_user_without_permission_gets_an_error,
    a_watch_prints_changes,
    pods_can_be_selected_by_phase_node_and_labels,
)
