"""``make demo`` and ``make local`` on a real control plane.

After each run, whatever its end, the cluster has the same objects as before. An unsuitable cluster is
not changed, and the error has the solution.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest

from local.cluster.named import NamedCluster
from local.control_plane import jobset_crd
from local.control_plane.plane import ControlPlane, OwnControlPlane
from local.jobsets import BESIDE_A_CONTROL_PLANE, SIMULATED_CONTROLLERS, Controller
from local.run.supervisor import TPU_NODE_GROUP
from local.tests.jobsets.cluster import jobset
from local.tests.real_parts import (
    get_control_plane_binaries,
    get_jobset_crd,
    get_workload_controllers,
    open_own_control_plane,
)
from tests.processes.program import Local, Program, running
from tests.real.inventory import list_everything
from tests.real.relay.waiting import until
from tests.support.harness import MANIFESTS, ROOT

pytestmark = [
    pytest.mark.real,
    pytest.mark.processes,
    pytest.mark.xdist_group("demo on a real control plane"),
]

LIFECYCLE_TIMEOUT_S = 240.0
WORKLOAD_TIMEOUT_S = 600.0
CLEAN_WITHIN_S = 120.0
ANY_PORTS = ("--compute-port", "0")
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def cluster() -> Iterator[OwnControlPlane]:
    """A cluster for this file only, because its tests apply cluster-scoped objects."""
    with open_own_control_plane() as own:
        yield own


@pytest.fixture
def untouched(cluster: OwnControlPlane) -> Iterator[None]:
    """Fail if the cluster has other objects after the test than before."""
    before = list_everything(cluster)
    yield
    assert list_everything(cluster) ^ before == set()


def run_demo(folder: Path, cluster: ControlPlane, *arguments: str) -> Program:
    """Run a demo on a cluster to its end."""
    with running(
        folder, "local.show.demo", "--kubeconfig", str(cluster.kubeconfig), *arguments
    ) as demo:
        demo.process.wait(timeout=LIFECYCLE_TIMEOUT_S)
    return demo


def run_local(
    folder: Path, cluster: ControlPlane, *arguments: str
) -> AbstractContextManager[Program]:
    """Run ``make local`` on a cluster."""
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    return running(folder, "local", *kubeconfig, *ANY_PORTS, *arguments)


@pytest.mark.usefixtures("untouched")
def test_the_demo_creates_and_deletes_a_group_on_a_real_cluster(
    tmp_path: Path, cluster: OwnControlPlane, print_figure: Callable[[str], None]
) -> None:
    demo = run_demo(tmp_path, cluster)
    assert demo.process.returncode == 0, demo.output
    for line in (
        f"Kubernetes API at {cluster.server}",
        "TPUNodeGroup training: Ready=True Ready, Nodes 2/2",
    ):
        assert line in demo.output
    assert len(set(re.findall(r"VM (\w+) +joined: ", demo.output))) == 2
    assert demo.output.count("  none  ") == 5
    assert demo.children() == []
    assert demo.files() == []
    (took,) = re.findall(r"Done in (.*)\.", demo.output)
    print_figure(f"make demo on a real control plane: {took}")


@contextmanager
def jobset_defined(cluster: ControlPlane) -> Iterator[None]:
    """Apply JobSet's own CRD, without its controller."""
    crd = jobset_crd.read(get_jobset_crd())
    code, answer = cluster.request("POST", DEFINITIONS, crd)
    assert code == 201, answer
    until(lambda: cluster.request("GET", JOBSETS)[0] == 200, "JobSets are served")
    yield
    cluster.request("DELETE", f"{DEFINITIONS}/{crd['metadata']['name']}")
    until(lambda: cluster.request("GET", JOBSETS)[0] == 404, "JobSets are no longer served")


@pytest.fixture
def own_definition(cluster: OwnControlPlane) -> Iterator[None]:
    """Apply JobSet's CRD before the test."""
    with jobset_defined(cluster):
        yield


def run_jobset_demo(folder: Path, cluster: ControlPlane, *arguments: str) -> Program:
    """Run a demo of a JobSet on a cluster to its end."""
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    with running(folder, "local.show.workload_demo", "jobset", *kubeconfig, *arguments) as demo:
        demo.process.wait(timeout=LIFECYCLE_TIMEOUT_S)
    return demo


@pytest.mark.usefixtures("own_definition", "untouched")
def test_the_jobset_demo_runs_with_the_real_crd_and_scheduler_and_leaves_no_object(
    tmp_path: Path, cluster: OwnControlPlane, print_figure: Callable[[str], None]
) -> None:
    demo = run_jobset_demo(tmp_path, cluster, "--controllers=simulated")
    assert demo.process.returncode == 0, demo.output
    places = dict(re.findall(r"^  (multislice-slice-\d-\d)   tng-(\S+)-\w+$", demo.output, re.M))
    slices = [{places[f"multislice-slice-{job}-{host}"] for host in "01"} for job in "01"]
    assert [len(hosts) for hosts in slices] == [1, 1], "the Pods of a Job are on one slice"
    assert slices[0] != slices[1]
    assert "JobSet multislice: Completed" in demo.output
    assert demo.output.count("  none  ") == 8
    assert demo.children() == []
    assert demo.files() == []
    (took,) = re.findall(r"Done in (.*)\.", demo.output)
    print_figure(f"make demo-jobset on a real control plane: {took}")


@pytest.mark.parametrize(
    "is_defined, text",
    [
        pytest.param(
            False, "Event TPUNodeGroupCreationStarted on Pod", id="while slices are created"
        ),
        pytest.param(
            True,
            "Pod multislice-slice-0-0: Running",
            id="while Pods run",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ctrl_c_deletes_the_jobset_of_the_demo(
    tmp_path: Path, cluster: OwnControlPlane, is_defined: bool, text: str
) -> None:
    with jobset_defined(cluster) if is_defined else nullcontext():
        before = list_everything(cluster)
        kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
        options = (*kubeconfig, "--controllers=simulated")
        with running(tmp_path, "local.show.workload_demo", "jobset", *options) as demo:
            demo.wait_for_output(text, LIFECYCLE_TIMEOUT_S)
            assert demo.stop(signal.SIGINT, CLEAN_WITHIN_S) == 130, demo.output
        assert list_everything(cluster) ^ before == set()
    assert "Traceback" not in demo.output
    assert demo.children() == []


@pytest.mark.slow
def test_the_demo_of_a_leader_worker_set_serves_scales_and_rolls_with_the_real_controllers(
    tmp_path: Path, print_figure: Callable[[str], None]
) -> None:
    get_control_plane_binaries(), get_workload_controllers()
    with running(tmp_path, "local.show.workload_demo", "lws", "--real") as demo:
        demo.process.wait(timeout=WORKLOAD_TIMEOUT_S)
    assert demo.process.returncode == 0, demo.output
    shown = demo.output.split("kubectl get pods -o wide\n")[1:]
    begun, grown, shrunk, rolled = (
        dict(re.findall(r"^  (serve-\S+) +(tng-\S+)$", one.partition("\n\n")[0], re.M))
        for one in shown
    )
    assert [*grown] == ["serve-0", "serve-0-1", "serve-1", "serve-1-1"]
    assert begun.items() < grown.items(), "the first group stays"
    assert begun == shrunk
    assert {*rolled.values()} == {*begun.values()}, "on the slice of the old Pods"
    groups = [{grown[one].rpartition("-")[0] for one in names} for names in _GROUPS]
    assert [len(one) for one in groups] == [1, 1], "the Pods of a group are on one slice"
    assert groups[0] != groups[1]
    assert len({*grown.values()}) == 4, "each Pod has a Node"
    assert "Slices: at most 2 at the same time" in demo.output
    assert demo.output.count("  none  ") == 8
    _assert_nothing_is_left(demo)
    (took,) = re.findall(r"Done in (.*)\.", demo.output)
    print_figure(f"make demo-workload KIND=lws ARGS=--real: {took}")


_GROUPS = ("serve-0", "serve-0-1"), ("serve-1", "serve-1-1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("on Pod serve-0", id="while its slice is created"),
        pytest.param("scales LeaderWorkerSet serve to 2", id="while it grows"),
    ],
)
def test_ctrl_c_ends_the_real_controllers_of_the_demo_and_their_control_plane(
    tmp_path: Path, text: str
) -> None:
    get_control_plane_binaries(), get_workload_controllers()
    with running(tmp_path, "local.show.workload_demo", "lws", "--real") as demo:
        demo.wait_for_output(text, LIFECYCLE_TIMEOUT_S)
        assert demo.stop(signal.SIGINT, CLEAN_WITHIN_S) == 130, demo.output
    assert demo.output.endswith("interrupted by SIGINT; nothing runs any more\n")
    _assert_nothing_is_left(demo)


def _assert_nothing_is_left(demo: Program) -> None:
    """No process and no file, and no traceback in the output."""
    assert "Traceback" not in demo.output
    assert demo.children() == []
    assert demo.files() == []


@pytest.mark.usefixtures("own_definition")
def test_a_cluster_with_jobsets_is_not_changed(tmp_path: Path, cluster: OwnControlPlane) -> None:
    code, answer = cluster.request("POST", JOBSETS, jobset("train"))
    assert code == 201, answer
    before = list_everything(cluster)
    rejected = run_jobset_demo(tmp_path, cluster)
    assert list_everything(cluster) ^ before == set()
    assert rejected.process.returncode == 1
    assert rejected.output.partition("FAILED: ")[2] == (
        f"{cluster.server} has been left as it is.\n"
        "This run would give simulated slices to workloads that request TPUs, and there are:\n"
        "  JobSet default/train\n"
        "Delete them, or name a cluster without them.\n"
    )


@pytest.mark.parametrize(
    "jobset, expected",
    [("", {Controller.KUBELETS}), (SIMULATED_CONTROLLERS, BESIDE_A_CONTROL_PLANE)],
)
@pytest.mark.usefixtures("own_definition", "untouched")
def test_the_jobset_controller_is_not_simulated_if_jobset_is_installed_unless_an_option_says_so(
    tmp_path: Path, cluster: OwnControlPlane, jobset: str, expected: frozenset[Controller]
) -> None:
    async def find_controllers() -> frozenset[Controller]:
        named = NamedCluster(
            *(cluster.kubeconfig, ["relay"], tmp_path, lambda _: None),
            slices=TPU_NODE_GROUP,
            jobset=jobset,
        )
        async with AsyncExitStack() as stack:
            await named.check()
            await named.start(stack)
            return named.controllers

    assert asyncio.run(find_controllers()) == expected


OF_CONTROLLERS = {
    "jobset-v6e-multislice": "job/multislice-slice-1",
    "leaderworkerset-v6e-2x4": "pod/serve-0",
}
"""Examples, and what their controllers create."""


@pytest.mark.parametrize("controllers", [pytest.param("simulated", marks=pytest.mark.slow), "real"])
def test_make_local_with_real_starts_and_stops_a_real_control_plane(
    tmp_path: Path, controllers: str
) -> None:
    """And the controllers of JobSets and LeaderWorkerSets, if an option says so."""
    options = (f"--controllers={controllers}", *ANY_PORTS, "--pubsub-port", "0")
    with running(tmp_path, "local", "--real", *options) as program:
        local = Local(program, get_control_plane_binaries().path("kubectl"))
        assert "etcd ok" in local.kubectl("get", "--raw", "/readyz?verbose")
        for example, made in OF_CONTROLLERS.items() if controllers == "real" else ():
            manifest = f"examples/{example}.yaml"
            assert "created" in local.kubectl("apply", "-f", manifest)
            local.kubectl("wait", "--for=create", made, "--timeout=60s")
            # Only the webhooks of their own set defaults.
            assert set(
                re.findall(
                    r"successPolicy|startupPolicy",
                    local.kubectl("get", "-o", "yaml", "-f", manifest),
                )
            )
            local.kubectl("delete", "-f", manifest)
        local.kubectl("apply", "-f", "examples/v6e-single-host.yaml")
        local.kubectl("wait", "--for=condition=Ready", "tng", "--all", "--timeout=100s")
        assert program.stop(signal.SIGINT, CLEAN_WITHIN_S) == 0, program.output
    assert "Traceback" not in program.output
    assert program.children() == []
    assert program.files() == []


@pytest.mark.parametrize(
    "module, arguments, message",
    [
        pytest.param(
            "local.show.demo",
            ("--real", "--kubeconfig", __file__),
            "argument --kubeconfig: not allowed with argument --real",
            id="with a kubeconfig",
        ),
        pytest.param(
            "local",
            ("--real", "--port", "1"),
            "--port is the embedded Kubernetes API's; --kubeconfig and --real are others",
            id="with the port of the embedded API",
        ),
        pytest.param(
            "local.show.workload_demo",
            ("jobset", "--real", "--gke"),
            "--gke is a simulated cluster; --kubeconfig and --real are others",
            id="with GKE",
        ),
        pytest.param(
            "local.show.workload_demo",
            ("jobset", "--controllers=real"),
            "--controllers=real needs --real or --kubeconfig: the embedded API has no controllers",
            id="JobSet's controller on the embedded API",
        ),
    ],
)
def test_an_option_of_another_cluster_is_an_error_with_real(
    tmp_path: Path, module: str, arguments: Sequence[str], message: str
) -> None:
    with running(tmp_path, module, *arguments) as program:
        assert program.process.wait(timeout=60) == 2
    assert message in program.output


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("checks the cluster", id="during the checks", marks=pytest.mark.slow),
        pytest.param("has applied ", id="after the manifests are applied", marks=pytest.mark.slow),
        pytest.param("applies TPUNodeGroup", id="after a group is applied"),
    ],
)
@pytest.mark.usefixtures("untouched")
def test_ctrl_c_at_any_time_leaves_no_object(
    tmp_path: Path, cluster: OwnControlPlane, text: str
) -> None:
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    with running(tmp_path, "local.show.demo", *kubeconfig) as demo:
        demo.wait_for_output(text)
        assert demo.stop(signal.SIGINT, CLEAN_WITHIN_S) == 130, demo.output
    assert demo.output.endswith("interrupted by SIGINT; nothing runs any more\n")
    assert "Traceback" not in demo.output
    assert demo.children() == []
    assert demo.files() == []


@pytest.mark.usefixtures("untouched")
def test_the_objects_of_a_killed_run_are_reported_and_deleted_by_clean(
    tmp_path: Path, cluster: OwnControlPlane
) -> None:
    with run_local(tmp_path / "killed", cluster, "--pubsub-port", "0") as program:
        local = Local(program, cluster.kubectl)
        local.kubectl("apply", "-f", "examples/v6e-single-host.yaml")
        local.kubectl("wait", "--for=condition=Ready", "tng", "--all", "--timeout=100s")
        meanwhile = run_demo(tmp_path / "meanwhile", cluster, "--clean")
        assert meanwhile.process.returncode == 1
        still = f"The run is still running: end it by Ctrl-C (process {program.process.pid} on "
        assert still in meanwhile.output
        program.stop(signal.SIGKILL)
        program.until_alone()
    rejected = run_demo(tmp_path / "rejected", cluster)
    assert rejected.process.returncode == 1
    for text in (
        f"FAILED: {cluster.server} has been left as it is.\n",
        f"Another run uses the cluster or was killed: process {program.process.pid} on ",
        f"remove what is left: make demo KUBECONFIG={cluster.kubeconfig} ARGS=--clean\n",
    ):
        assert text in rejected.output
    cleaned = run_demo(tmp_path / "cleaned", cluster, "--clean")
    assert cleaned.process.returncode == 0, cleaned.output
    assert "removed Namespace tpu-functions\n" in cleaned.output
    again = run_demo(tmp_path / "again", cluster, "--clean")
    assert again.output == "No run has left anything there.\n"


@pytest.mark.usefixtures("untouched")
def test_a_cluster_with_an_installation_is_not_changed(
    tmp_path: Path, cluster: OwnControlPlane
) -> None:
    installed = [f"--filename={MANIFESTS / name}" for name in ("namespace.yaml", "base/crd.yaml")]
    group = f"--filename={ROOT / 'examples' / 'tpu7x-2x2x2.yaml'}"
    _kubectl(cluster, "create", *installed)
    _kubectl(cluster, "wait", "--for=condition=Established", installed[1])
    _kubectl(cluster, "create", group)
    before = list_everything(cluster)
    rejected = run_demo(tmp_path / "rejected", cluster)
    cleaned = run_demo(tmp_path / "cleaned", cluster, "--clean")
    assert list_everything(cluster) ^ before == set()
    _kubectl(cluster, "delete", group)
    _kubectl(cluster, "delete", *installed)
    assert rejected.process.returncode == 1
    assert rejected.output.partition("FAILED: ")[2] == (
        f"{cluster.server} has been left as it is.\n"
        "tpu-functions or tpu-operator is installed:\n"
        "  Namespace tpu-functions\n"
        "  CustomResourceDefinition tpunodegroups.tpu.google.com\n"
        "Both would work on the same groups. Name a cluster without it, or uninstall it.\n"
    )
    assert rejected.files() == []
    assert cleaned.output == "No run has left anything there.\n"


def _kubectl(cluster: OwnControlPlane, *arguments: str) -> None:
    done = cluster.run_kubectl(*arguments)
    assert done.returncode == 0, done.stderr
