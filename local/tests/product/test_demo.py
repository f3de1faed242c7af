# ruff: noqa: E501  (a table reads best with a row on a line)
"""``make demo`` shows a slice from creation to deletion, checks for leftovers, and leaves nothing."""

from __future__ import annotations

import itertools
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.program import TIMEOUT_S, Program, running
from tests.support.harness import ROOT

pytestmark = pytest.mark.processes

MOST_MEMORY_MIB = 1536


def test_the_demo_shows_a_slice_and_finds_no_leftovers(
    tmp_path: Path, print_figure: Callable[[str], None]
) -> None:
    with running(tmp_path, "local.show.demo") as demo:
        assert demo.process.wait(timeout=TIMEOUT_S) == 0, demo.output
    memory_mib = int(re.findall(r"at most (\d+) MiB", demo.output)[0])
    (took,) = re.findall(r"Done in (.*)\.", demo.output)
    print_figure(f"make demo, set up: {took}, {memory_mib} MiB (PSS)")
    assert memory_mib < MOST_MEMORY_MIB
    assert " supervisor " not in demo.output, "none of the processes ended by itself"
    assert demo.output.count("  none  ") == 7
    assert re.search(_SUMMARY, demo.output)
    assert demo.children() == []
    assert demo.files() == []
    _check_story(demo)


_SUMMARY = (
    r"The slice: Ready after \d+ s, its Job complete after \d+ s, gone after \d+ s; "
    r"\d+ calls to Compute Engine and \d+ to Kubernetes in all\."
)


def _check_story(demo: Program) -> None:
    story = (
        r"person +applies TPUNodeGroup training",
        r"relay +publishes to create_resources",
        r"create_resources +training +Inserting: ",
        r"compute engine +created MIG ",
        r"inject_token +training +Injecting: ",
        r"VM \w+ +joining: ",
        r"kubernetes +Node \S+ has registered",
        r"kubernetes +TPUNodeGroup training: Ready=True Ready, Nodes 2/2",
        r"person +applies Job hello",
        r"kubernetes +Pod hello-\d is bound to tng-training-",
        r"kubernetes +Pod hello-\d: Succeeded",
        r"TPU_WORKER_ID=1\n +TPU_WORKER_HOSTNAMES=hello-0.hello,hello-1.hello\n",
        r"person +deletes TPUNodeGroup training",
        r"tear_down +training +DeletingMIG: ",
        r"compute engine +deleted MIG ",
        r"tear_down +training +Done: ",
    )
    pattern = ".*?".join(story)
    assert re.search(pattern, demo.output, re.DOTALL), demo.output
    assert "\x1b" not in demo.output, "no colours without a terminal"
    assert len(set(re.findall(r"VM (\w+) +joining", demo.output))) == 2, "both VMs must join"
    assert len(set(re.findall(r"VM (\w+) +waiting", demo.output))) >= 1, (
        "one must join by its script"
    )


@pytest.mark.real
@pytest.mark.slow
def test_the_demo_of_a_jobset_gives_each_job_a_slice_and_finds_no_leftovers(
    tmp_path: Path, print_figure: Callable[[str], None]
) -> None:
    with running(tmp_path, "local.show.workload_demo", "jobset") as demo:
        assert demo.process.wait(timeout=TIMEOUT_S) == 0, demo.output
    (took,) = re.findall(r"Done in (.*)\.", demo.output)
    (memory,) = re.findall(r"at most (\d+ MiB)", demo.output)
    print_figure(f"make demo-jobset, set up: {took}, {memory} (PSS)")
    story = (
        r"person +applies JobSet multislice",
        r"kubernetes +Pod multislice-slice-\d-0 is unschedulable",
        r"relay +publishes to provision_slice",
        r"provision_slice +multislice\S* +Creating: ",
        r"kubernetes +TPUNodeGroup multislice-\w+: Ready=True Ready, Nodes 2/2",
        r"kubernetes +Pod multislice-slice-0-0: Failed",
        r"kubernetes +JobSet multislice: restart 1",
        r"demo +the new Pods have the slices of the old ones",
        r"kubernetes +JobSet multislice: Completed",
        r"release_slice +multislice-\w+ +Releasing: ",
        r"kubernetes +JobSet multislice is gone",
    )
    assert re.search(".*?".join(story), demo.output, re.DOTALL), demo.output
    nodes = dict(re.findall(r"^  (multislice-slice-\d-\d)   tng-(\S+)-\w+$", demo.output, re.M))
    slices = [{nodes[f"multislice-slice-{job}-{host}"] for host in "01"} for job in "01"]
    assert [len(hosts) for hosts in slices] == [1, 1], "the Pods of a Job must be on one slice"
    assert slices[0] != slices[1]
    assert " supervisor " not in demo.output, "none of the processes ended by itself"
    assert demo.output.count("  none  ") == 8
    assert demo.children() == []
    assert demo.files() == []


STORIES = {
    "deployment": (
        r"applies Deployment serve",
        r"Event TPUNodeGroupCreationStarted on Pod serve-",
        r"Deployment serve: 1 of 1 replicas are ready",
        r"scales Deployment serve to 3",
        r"Deployment serve: 3 of 3 replicas are ready",
        r"scales Deployment serve to 0",
        r"waits: a slice is kept for \d+ s more, in case its Pods come back",
        r"Deployment serve is gone",
        r"Slices: at most 3 at the same time",
    ),
    "job": (
        r"applies Job train +\[slices: 1, hosts of each: 2\]",
        r"kubernetes +Job train: Complete\n",
        r"Job train is gone",
        r"Slices: at most 1 at the same time",
    ),
    "lws": (
        r"applies LeaderWorkerSet serve +\[slices: 1, hosts of each: 2\]",
        r"LeaderWorkerSet serve: 1 of 1 replicas are ready",
        r"scales LeaderWorkerSet serve to 2",
        r"LeaderWorkerSet serve: 2 of 2 replicas are ready",
        r"scales LeaderWorkerSet serve to 1",
        r"release_slice +serve-\w+ +Releasing: ",
        r"changes the Pods of LeaderWorkerSet serve",
        r"the new Pods have the slices of the old ones",
        r"LeaderWorkerSet serve is gone",
        r"Slices: at most 2 at the same time",
    ),
}


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("kind", STORIES)
def test_the_demo_of_a_workload_shows_its_life_and_finds_no_leftovers(
    tmp_path: Path, kind: str
) -> None:
    with running(tmp_path, "local.show.workload_demo", kind) as demo:
        assert demo.process.wait(timeout=TIMEOUT_S) == 0, demo.output
    assert re.search(".*?".join(STORIES[kind]), demo.output, re.DOTALL), demo.output
    for shown in demo.output.split("kubectl get pods -o wide\n")[1:]:
        nodes = re.findall(r"^  \S+ +(tng-\S+)$", shown.partition("kubectl")[0], re.M)
        assert nodes
        assert len(nodes) == len(set(nodes)), "each Pod has a Node of its own"
    times = [float(one) for one in re.findall(r"^ +([\d.]+)s  ", demo.output, re.M)]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps[2:]) < 6, "it says what it waits for"
    assert " supervisor " not in demo.output, "none of the processes ended by itself"
    assert demo.output.count("  none  ") == (7 if kind == "job" else 8)
    assert demo.children() == []
    assert demo.files() == []


@pytest.mark.parametrize(
    "arguments, text",
    [
        ([], "KIND is one of deployment, job, jobset, lws: as in make demo-workload KIND=lws\n"),
        (["pod"], "KIND is one of deployment, job, jobset, lws: not pod\n"),
        (
            ["job", "--controllers=real", "--real"],
            "--controllers is for KIND=jobset and KIND=lws: Kubernetes has the others\n",
        ),
        (
            ["lws", "--controllers=simulated", "--real"],
            "beside a control plane, the controller of LeaderWorkerSets is not simulated\n",
        ),
    ],
    ids=["none", "unknown", "an option of another kind", "simulated beside a control plane"],
)
def test_a_wrong_kind_is_answered_with_the_kinds(
    tmp_path: Path, arguments: list[str], text: str
) -> None:
    with running(tmp_path, "local.show.workload_demo", *arguments) as demo:
        assert demo.process.wait(timeout=TIMEOUT_S) == 2
    assert demo.output.endswith(text)
    assert demo.files() == []


@pytest.mark.real
@pytest.mark.slow
def test_the_demo_of_capacity_tries_three_candidates_and_begins_again_with_the_first(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "local.show.capacity_demo") as demo:
        assert demo.process.wait(timeout=600) == 0, demo.output
    story = (
        r"compute engine +us-east5-b has no capacity for v6e",
        r"TPUSliceClass v6e: my-gcp-project:us-east5-b/STANDARD: Waited",
        r"TPUSliceClass v6e: my-gcp-project:us-east5-a/RESERVATION_BOUND/\S+: ReservationFull",
        r"TPUNodeGroup multislice-\w+: Ready=True Ready, Nodes 2/2",
        r"us-east5-b has capacity again, and Spot VMs are preempted",
        r"TPUSliceClass v6e: my-gcp-project:us-east5-b/STANDARD is asked again",
        r"TPUNodeGroup multislice-\w+: Ready=True Ready, Nodes 2/2",
        r"JobSet multislice is gone",
        r"Slices: at most 1 at the same time",
    )
    assert re.search(".*?".join(story), demo.output, re.DOTALL), demo.output
    assert demo.output.count("  none  ") == 9
    assert demo.children() == []
    assert demo.files() == []


INTERRUPTED = (
    "interrupted by SIGINT; nothing runs any more\n",
    "interrupted before anything had been started\n",
)


@pytest.mark.real
def test_the_demo_of_a_jobset_on_gke_gives_it_a_node_pool_and_finds_no_leftovers(
    tmp_path: Path, print_figure: Callable[[str], None]
) -> None:
    with running(tmp_path, "local.show.workload_demo", "jobset", "--gke") as demo:
        assert demo.process.wait(timeout=TIMEOUT_S) == 0, demo.output
    (took,) = re.findall(r"Done in (.*)\.", demo.output)
    print_figure(f"make demo-jobset ARGS=--gke, set up: {took}")
    story = (
        r"person +applies JobSet v4-2x2x4",
        r"relay +publishes to provision_slice",
        r"Event NodePoolCreationStarted on Pod ",
        r"GKE +created node pool v4-2x2x4-",
        r"kubernetes +JobSet v4-2x2x4: Completed",
        r"GKE +deletes node pool v4-2x2x4-",
        r"kubernetes +JobSet v4-2x2x4 is gone",
    )
    assert re.search(".*?".join(story), demo.output, re.DOTALL), demo.output
    assert " supervisor " not in demo.output, "none of the processes ended by itself"
    assert demo.output.count("  none  ") == 9
    assert demo.children() == []
    assert demo.files() == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Setting up", id="while it starts"),
        pytest.param("applies TPUNodeGroup", id="when something is asked for"),
        pytest.param("creates VM", id="while Compute Engine makes VMs", marks=[pytest.mark.real, pytest.mark.slow]),
        pytest.param("joining: ", id="while VMs join", marks=pytest.mark.real),
    ],
)  # fmt: skip
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path, text: str) -> None:
    with running(tmp_path, "local.show.demo") as demo:
        demo.wait_for_output(text)
        assert demo.stop(signal.SIGINT) == 130, demo.output
    assert demo.output.endswith(INTERRUPTED[: None if text == "Setting up" else 1])
    assert "Traceback" not in demo.output
    assert demo.children() == []
    assert demo.files() == []


def test_sigterm_ends_the_demo_like_ctrl_c(tmp_path: Path) -> None:
    with running(tmp_path, "local.show.demo") as demo:
        demo.wait_for_output("Pub/Sub at")
        assert demo.stop(signal.SIGTERM) == 143, demo.output
    assert demo.children() == []


def test_the_error_about_a_function_that_cannot_start_has_its_last_lines(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("local", "infra", "examples", "functions", "relay", "shared", "webhook"):
        shutil.copytree(ROOT / name, copy / name)
    (copy / "main.py").write_text("def create_resources(:\n")
    with running(tmp_path / "run", "local.show.demo", root=copy) as demo:
        assert demo.process.wait(timeout=TIMEOUT_S) == 1
    # No function can start. The first one to exit is named.
    assert re.search(r"FAILED: before it was ready: \w+ ended with code 1; its last", demo.output)
    assert "SyntaxError" in demo.output
    (directory,) = demo.files()
    assert f"The output of all processes is in {directory / 'log'}." in demo.output
    assert demo.children() == []
