# ruff: noqa: E501  (a table reads best with a row on a line)
"""``make local``: typical commands of users, with kubectl and without.

The tests share one instance. Ctrl-C ends it, and no process remains.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import requests
import yaml

from local.base.ports import find_free_ports
from local.run.supervisor import SLICE_STEPS, STEPS
from shared.triggers import routes
from tests.processes.program import STARTED, TIMEOUT_S, Local, Program, running
from tests.support.harness import ROOT

EXAMPLES = ROOT / "examples"
ANY_PORTS = ("--port", "0", "--compute-port", "0", "--pubsub-port", "0")

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("make local")]


class WithoutKubectl(Local):
    """The kubernetes client, as a replacement for kubectl."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        client = kubernetes.config.new_client_from_config(str(self.kubeconfig))
        self._groups = kubernetes.client.CustomObjectsApi(client)

    def create(self, manifest: dict[str, Any]) -> None:
        """Apply a TPUNodeGroup without kubectl."""
        self._groups.create_namespaced_custom_object(*_GROUPS, "default", "tpunodegroups", manifest)

    def delete(self, name: str) -> None:
        """Delete a TPUNodeGroup without kubectl."""
        self._groups.delete_namespaced_custom_object(*_GROUPS, "default", "tpunodegroups", name)

    def reasons(self) -> dict[str, str]:
        """Return the reason of each group's condition Ready, by name."""
        listed = self._groups.list_cluster_custom_object(*_GROUPS, "tpunodegroups")
        return {group["metadata"]["name"]: _reason(group) for group in listed["items"]}


_GROUPS = ("tpu.google.com", "v1alpha1")


def _reason(group: dict[str, Any]) -> str:
    conditions = group.get("status", {}).get("conditions", [])
    return next((one["reason"] for one in conditions if one["type"] == "Ready"), "")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithoutKubectl]:
    """The instance that all tests of this file share."""
    with running(tmp_path_factory.mktemp("local"), "local", *ANY_PORTS) as program:
        yield WithoutKubectl(program)
        assert program.stop(signal.SIGINT) == 0
    assert program.children() == []
    assert program.files() == []


needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed"
)


@needs_kubectl
def test_kubectl_shows_a_slice_from_apply_to_deletion(local: Local) -> None:
    applied = local.kubectl("apply", "-f", "examples/tpu7x-2x2x2.yaml")
    assert applied == "tpunodegroup.tpu.google.com/training created\n"
    with subprocess.Popen(
        ["kubectl", "get", "tng", "-w"],
        env={**os.environ, "KUBECONFIG": str(local.kubeconfig)},
        stdout=subprocess.PIPE,
        text=True,
    ) as watching:
        wait_output = local.kubectl(
            "wait", "--for=condition=Ready", "tng/training", "--timeout=240s"
        )
        assert watching.stdout is not None
        watched = ""
        for line in watching.stdout:  # the last line may follow after the wait has ended
            watched += line
            if re.match(r"training +True +Ready +2/2", line):
                break
        watching.terminate()
    assert wait_output == "tpunodegroup.tpu.google.com/training condition met\n"
    assert re.search(
        r"training +False +Provisioning +0/2 .*training +True +Ready +2/2", watched, re.DOTALL
    )
    listed = local.kubectl("get", "tng")
    assert listed.split()[:6] == ["NAME", "READY", "REASON", "NODES", "TOPOLOGY", "MACHINE"]
    assert re.search(r"^training +True +Ready +2/2 +2x2x2 +tpu7x-standard-4t", listed, re.MULTILINE)
    nodes = local.kubectl("get", "nodes", "-L", "cloud.google.com/gke-tpu-topology")
    assert len(re.findall(r"^tng-training-\S+ +Ready .* 2x2x2$", nodes, re.MULTILINE)) == 2
    _check_description(local)
    deleted = local.kubectl("delete", "-f", "examples/tpu7x-2x2x2.yaml", "--timeout=240s")
    assert deleted == 'tpunodegroup.tpu.google.com "training" deleted\n'
    assert local.kubectl("get", "tng,nodes") == "No resources found\n"


def _check_description(local: Local) -> None:
    event = re.compile(r"Normal +Provisioned .* tpu-functions-\S+ +All nodes are ready")
    # Events are written after the status that they describe.
    local.program.until(lambda: bool(event.search(_describe(local))))
    condition = (
        r"Message: +All nodes are ready\n.*\n +Reason: +Ready\n +Status: +True\n +Type: +Ready\n"
    )
    assert re.search(condition, _describe(local))


def _describe(local: Local) -> str:
    return local.kubectl("describe", "tng", "training")


@needs_kubectl
def test_kubectls_everyday_commands_work(local: Local) -> None:
    shown = local.kubectl("get", "all", "--all-namespaces")
    assert "0/1" not in shown, "no resource is listed that never becomes ready"
    assert "relay" not in shown
    wrong = "kind: TpuNodeGroup\napiVersion: tpu.google.com/v1alpha1\nmetadata: {name: x}\n"
    assert (
        'no matches for kind "TpuNodeGroup" in version "tpu.google.com/v1alpha1"'
        in local.kubectl("apply", "-f", "-", standard_input=wrong, code=1)
    )
    nothing = local.kubectl("get", "statefulsets,jobs,jobsets,pods")
    assert nothing == "No resources found in default namespace.\n"


@needs_kubectl
@pytest.mark.parametrize(
    "change, message",
    [
        pytest.param(
            ("nodeCount: 2", "nodeCount: 3"),
            "nodeCount must be 2: topology 2x2x2 has 8 chips, a tpu7x-standard-4t has 4",
            id="a count that does not fit",
        ),
        pytest.param(("nodeCount: 2", "nodeCount: two"), 'spec.nodeCount in body must be of type integer: "string"', id="a string instead of a number"),
        pytest.param(("nodeCount: 2", "nodeCuont: 2"), 'unknown field "spec.nodeCuont"', id="a typo"),
    ],
)  # fmt: skip
def test_the_error_about_an_invalid_manifest_names_the_violation(
    local: Local, change: tuple[str, str], message: str
) -> None:
    text = (EXAMPLES / "tpu7x-2x2x2.yaml").read_text().replace(*change)
    assert message in local.kubectl("apply", "-f", "-", standard_input=text, code=1)


@pytest.mark.real
@pytest.mark.slow
def test_the_examples_become_ready_and_can_be_deleted(local: WithoutKubectl) -> None:
    manifests = [yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()) for name in _EXAMPLES]
    for manifest in manifests:
        local.create(manifest)
    expected = {manifest["metadata"]["name"]: "Ready" for manifest in manifests}
    local.program.until(lambda: local.reasons() == expected)
    for name in expected:
        local.delete(name)
    local.program.until(lambda: not local.reasons())
    state = requests.get(f"{local.compute_url}/_simulator/state", timeout=5).json()
    assert state["groups"] == []
    assert state["instances"] == {}


_EXAMPLES = (
    "own-template",
    "tpu-operator-readme",
    "tpu7x-2x2x2",
    "v6e-4x4-spot",
    "v6e-8x8-flex-start",
    "v6e-single-host",
)


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        ("explain default/nobody", 1, "there is no TPUNodeGroup default/nobody"),
        ("dead-letters list", 0, "There are no dead letters."),
        ("audit-log --since 1h --dry-run", 0, "in 1 call."),
        ("timeline default/nobody", 1, "Cloud Logging has no entry about one of this name"),
    ],
)
def test_the_operators_tool_works_with_the_printed_command(
    local: WithoutKubectl, arguments: str, code: int, message: str
) -> None:
    printed = re.search(
        r"^(\. \S+)\n(\.venv/bin/python -m replay) explain default/training$",
        local.program.output,
        re.MULTILINE,
    )
    assert printed is not None, local.program.output
    command = printed[2].replace(".venv/bin/python", sys.executable)
    done = subprocess.run(
        ["bash", "-c", f"{printed[1]} && {command} {arguments}"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert message in done.stderr


@needs_kubectl
@pytest.mark.real
def test_every_example_can_be_applied_and_the_workloads_run(tmp_path: Path) -> None:
    """Uses its own instance. The JobSet's Jobs are fast only if nothing else uses the machine."""
    with running(tmp_path, "local", *ANY_PORTS) as program:
        local = Local(program)
        folder = "examples"
        first = ("jobset-template", "tpu7x-2x2x2", "workload/job", "jobset-v6e-multislice")
        paths = [EXAMPLES / f"{name}.yaml" for name in first]
        rest = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if path not in paths]
        for path in paths:
            local.kubectl("apply", "-f", f"{folder}/{path.relative_to(EXAMPLES)}")
        within = "--timeout=300s"
        local.kubectl("wait", "--for=condition=complete", "job/hello", within)
        log = local.kubectl("logs", "job/hello")
        assert "\nTPU_WORKER_ID=" in log
        assert "\nTPU_WORKER_HOSTNAMES=hello-0.hello,hello-1.hello\n" in log
        local.kubectl("wait", "--for=condition=Completed", "jobset/multislice", within)
        for path in rest:
            local.kubectl("apply", "-f", f"{folder}/{path.relative_to(EXAMPLES)}")
        ready = "--for=jsonpath={.status.readyReplicas}=2"
        local.kubectl("wait", ready, "statefulset/tpu-worker-v7x", within)


def test_the_error_about_a_used_port_names_its_process(local: Local, tmp_path: Path) -> None:
    port = local.compute_url.rpartition(":")[2]
    arguments = ("--port", "0", "--compute-port", port, "--pubsub-port", "0")
    with running(tmp_path, "local", *arguments) as second:
        assert second.process.wait(timeout=TIMEOUT_S) == 1
    assert f"make local: port {port} is taken by process {local.program.process.pid} (" in (
        second.output
    )
    assert "choose another port: --compute-port N, 0 for any free one" in second.output
    assert second.children() == []


def post_to_function(port: str, authorization: str) -> int:
    """Return the HTTP status of a request that does not come from Pub/Sub."""
    answer = requests.post(
        f"http://127.0.0.1:{port}/",
        data=b"{}",
        headers={"Authorization": authorization},
        timeout=60,
    )
    return answer.status_code


def test_requests_without_pubsubs_token_are_rejected_by_functions(local: Local) -> None:
    commands = [" ".join(process.cmdline()) for process in local.program.children()]
    ports = {
        found[1]: found[2]
        for command in commands
        if (found := re.search(r"--target (\w+) .*--port (\d+)", command))
    }
    assert set(ports) == {*STEPS, *SLICE_STEPS}
    assert {post_to_function(port, "Bearer e30.e30.e30") for port in ports.values()} == {401}


@pytest.mark.real
def test_the_kubeconfig_of_a_kept_directory_remains_valid(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (port,) = find_free_ports(1)
    arguments = ("--dir", str(kept), "--port", str(port), *ANY_PORTS[2:])
    with running(tmp_path / "first", "local", *arguments) as program:
        before = Local(program).kubeconfig.read_text()
        with running(tmp_path / "meanwhile", "local", *arguments) as other:
            assert other.process.wait(timeout=TIMEOUT_S) == 1
        assert f"{kept} is in use by another `make local`" in other.output
        assert program.stop() == 0
    with running(tmp_path / "second", "local", *arguments) as program:
        again = WithoutKubectl(program)
        assert again.kubeconfig.read_text() == before
        assert again.reasons() == {}
    assert program.children() == []
    assert kept.stat().st_mode & 0o077 == 0
    assert (kept / "log").exists()


def test_sigterm_stops_it_cleanly(tmp_path: Path) -> None:
    with running(tmp_path, "local", *ANY_PORTS) as program:
        program.wait_for_output(STARTED)
        assert program.stop(signal.SIGTERM) == 0
    assert program.children() == []
    assert program.files() == []


@pytest.mark.real
def test_killing_it_ends_its_processes(tmp_path: Path) -> None:
    with running(tmp_path, "local", *ANY_PORTS) as program:
        program.wait_for_output(STARTED)
        local = WithoutKubectl(program)
        local.create(yaml.safe_load((EXAMPLES / "v6e-single-host.yaml").read_text()))
        program.until(lambda: set(local.reasons().values()) == {"Ready"})
        assert len(program.children()) > 6
        program.stop(signal.SIGKILL)
        program.until_alone()


def test_every_step_runs() -> None:
    assert (STEPS, SLICE_STEPS) == (routes.STEPS, routes.SLICE_STEPS)
