"""The everyday commands of a real kubectl against the server behind a real port."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.kubernetes.cases.objects import widget
from tests.contract.kubernetes.definitions import WIDGETS
from tests.unit.kube.serving import Served, served

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]

Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kubectl")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Served]:
    with served(directory) as running:
        yield running


@pytest.fixture(scope="module")
def kubectl(server: Served, directory: Path) -> Kubectl:
    """Run kubectl and return what it prints, errors included; ``code`` is what is expected."""

    def run(
        *arguments: str, user: str = "admin", stdin: Any = None, code: int = 0, **extra: str
    ) -> str:
        environment = {
            "HOME": str(directory),
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(getattr(server, user)),
            **extra,
        }
        done = subprocess.run(
            [str(KUBECTL), *arguments],
            env=environment,
            input=None if stdin is None else yaml.safe_dump(stdin),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == code, printed
        return printed

    run("apply", "-f", "-", stdin=WIDGETS)
    run("wait", "--for=condition=established", "crd/widgets.cases.example.com", "--timeout=10s")
    return run


def manifest(name: str, size: int = 3, **more: Any) -> dict[str, Any]:
    return widget(name, size, metadata={"namespace": "default", **more})


def columns(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()]


def test_apply_creates_leaves_alone_and_changes(kubectl: Kubectl) -> None:
    assert "created" in kubectl("apply", "-f", "-", stdin=manifest("applied"))
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=manifest("applied"))
    assert "configured" in kubectl("apply", "-f", "-", stdin=manifest("applied", 4))
    assert "+  size: 5" in kubectl("diff", "-f", "-", stdin=manifest("applied", 5), code=1)
    dry = kubectl("apply", "--dry-run=server", "-f", "-", stdin=manifest("applied", 5))
    assert "configured (server dry run)" in dry
    assert kubectl("get", "wd", "applied", "-o", "jsonpath={.spec.size}") == "4"


def test_apply_on_the_server_meets_its_conflicts(kubectl: Kubectl) -> None:
    apply = ("apply", "--server-side", "-f", "-", "--field-manager")
    assert "serverside-applied" in kubectl(*apply, "one", stdin=manifest("owned", 3))
    refused = kubectl(*apply, "two", stdin=manifest("owned", 4), code=1)
    assert 'conflict with "one": .spec.size' in refused
    assert "serverside-applied" in kubectl(
        *apply, "two", "--force-conflicts", stdin=manifest("owned", 4)
    )


def test_what_is_wrong_is_said_before_it_is_stored(kubectl: Kubectl) -> None:
    wrong = manifest("wrong")
    wrong["spec"]["colour"] = "red"
    assert 'strict decoding error: unknown field "spec.colour"' in kubectl(
        "apply", "-f", "-", stdin=wrong, code=1
    )
    assert "spec.size: Invalid value: 0" in kubectl(
        "apply", "-f", "-", stdin=manifest("wrong", 0), code=1
    )


def test_get_prints_the_definitions_columns(kubectl: Kubectl) -> None:
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


def test_describe_shows_an_objects_events(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=manifest("told"))
    uid = kubectl("get", "wd", "told", "-o", "jsonpath={.metadata.uid}")
    about = {
        "apiVersion": "cases.example.com/v1",
        "kind": "Widget",
        "name": "told",
        "namespace": "default",
        "uid": uid,
    }
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "told.1", "namespace": "default"},
        "involvedObject": about,
        "type": "Warning",
        "reason": "Shrunk",
        "message": "It has shrunk.",
        "source": {"component": "tests"},
        "count": 1,
    }
    kubectl("create", "-f", "-", stdin=event)
    assert "It has shrunk." in kubectl("describe", "wd", "told")
    assert "It has shrunk." in kubectl("events", "--for", "widget.cases.example.com/told")
    assert "It has shrunk." in kubectl("get", "events", "--field-selector", "reason=Shrunk")


def test_objects_are_labelled_patched_edited_and_replaced(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=manifest("changed"))
    kubectl("label", "wd", "changed", "a=b")
    kubectl("annotate", "wd", "changed", "c=d")
    kubectl("patch", "wd", "changed", "--type=merge", "-p", '{"spec":{"size":4}}')
    kubectl("patch", "wd", "changed", "--type=json", "-p", '[{"op":"remove","path":"/spec/color"}]')
    refused = kubectl("patch", "wd", "changed", "-p", '{"spec":{"size":5}}', code=1)
    assert "application/strategic-merge-patch+json is not supported" in refused
    assert "edited" in kubectl("edit", "wd", "changed", KUBE_EDITOR="sed -i s/size:.*/size:\\ 9/")
    shown = yaml.safe_load(kubectl("get", "wd", "changed", "-o", "yaml"))
    assert shown["metadata"]["labels"] == {"a": "b"}
    assert shown["spec"] == {"size": 9, "color": "red", "note": "none"}
    assert "replaced" in kubectl("replace", "-f", "-", stdin=manifest("changed", 6))


def test_delete_waits_until_it_is_done(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=manifest("held", finalizers=["cases.example.com/hold"]))
    assert "deleted" in kubectl("delete", "wd", "held", "--wait=false")
    assert kubectl("get", "wd", "held", "-o", "jsonpath={.metadata.deletionTimestamp}")
    kubectl("patch", "wd", "held", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    kubectl("wait", "--for=delete", "wd/held", "--timeout=10s")
    assert "not found" in kubectl("get", "wd", "held", code=1)


def test_nodes_are_cordoned_tainted_and_described(kubectl: Kubectl) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1"},
        "spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]},
    }
    kubectl("apply", "-f", "-", stdin=node)
    assert "cordoned" in kubectl("cordon", "n1")
    assert "SchedulingDisabled" in kubectl("get", "node", "n1")
    assert "uncordoned" in kubectl("uncordon", "n1")
    kubectl("taint", "node", "n1", "y=1:NoSchedule")
    taints = kubectl("get", "node", "n1", "-o", "jsonpath={.spec.taints[*].key}").split()
    assert {"x", "y"} <= set(taints)
    assert "Name:               n1" in kubectl("describe", "node", "n1")
    assert "drained" in kubectl("drain", "n1")


def test_discovery_and_explain_know_the_definition(kubectl: Kubectl) -> None:
    resources = kubectl("api-resources", "--api-group=cases.example.com")
    assert columns(resources)[1] == ["widgets", "wd", "cases.example.com/v1", "true", "Widget"]
    assert "cases.example.com/v1" in kubectl("api-versions")
    assert "Widget is what the cases are about." in kubectl("explain", "wd")
    assert "ENUM:\n    red\n    blue" in kubectl("explain", "wd.spec.color")
    assert "Server Version: v1.36" in kubectl("version")
    assert kubectl("get", "--raw", "/healthz") == "ok"


def test_rights_can_be_asked_for(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "delete", "widgets").strip() == "yes"
    assert kubectl("auth", "can-i", "delete", "widgets", user="joe", code=1).strip() == "no"
    assert "selfsubjectreviews" in kubectl("auth", "can-i", "--list", user="joe")
    assert "joe" in kubectl("auth", "whoami", user="joe")
    refused = kubectl("get", "widgets", user="joe", code=1)
    assert (
        'widgets.cases.example.com is forbidden: User "joe" cannot list resource "widgets" in API '
        'group "cases.example.com" in the namespace "default"'
    ) in refused


def test_what_kubectl_creates_in_protobuf_is_created(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "made")
    kubectl("create", "configmap", "c", "--from-literal=a=b", "-n", "made")
    kubectl("create", "secret", "generic", "s", "--from-literal=a=b", "-n", "made")
    kubectl("create", "serviceaccount", "sa", "-n", "made")
    assert kubectl("get", "cm", "c", "-n", "made", "-o", "jsonpath={.data.a}") == "b"
    assert kubectl("get", "secret", "s", "-n", "made", "-o", "jsonpath={.data.a}") == "Yg=="
    assert "deleted" in kubectl("delete", "namespace", "made")
    assert "not found" in kubectl("get", "namespace", "made", code=1)


def test_a_watch_prints_what_happens(kubectl: Kubectl, server: Served, directory: Path) -> None:
    kubectl("create", "-f", "-", stdin=manifest("watched"))
    with subprocess.Popen(
        [str(KUBECTL), "get", "wd", "watched", "-w", "--no-headers"],
        env={"HOME": str(directory), "PATH": os.environ["PATH"], "KUBECONFIG": str(server.admin)},
        stdout=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().split()[:2] == ["watched", "3"]
        kubectl("patch", "wd", "watched", "--type=merge", "-p", '{"spec":{"size":8}}')
        assert watching.stdout.readline().split()[:2] == ["watched", "8"]
        watching.terminate()
