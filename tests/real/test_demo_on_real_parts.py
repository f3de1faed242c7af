"""``make demo`` and ``make local`` on a real control plane.

The cluster is as it was afterwards, however the run ends; and a cluster that will not do is left
alone, with a word on what would be right.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest

from local.base.access import Access, read_kubeconfig
from local.base.cluster_client import ClusterClient
from local.cluster import named as named_cluster
from local.cluster.leftovers import GROUPS
from local.cluster.named import NamedCluster
from local.control_plane import binaries, jobset_crd, plane
from local.control_plane.plane import ControlPlane, OwnControlPlane
from local.jobsets import BESIDE_A_CONTROL_PLANE, Controller
from local.run.supervisor import TPU_NODE_GROUP
from local.tests.jobsets.cluster import jobset
from tests.harness import MANIFESTS, ROOT
from tests.processes.program import Local, Program, running
from tests.real.inventory import list_everything
from tests.real.relay.patience import until
from tests.real_parts import (
    get_control_plane_binaries,
    get_jobset_crd,
    miss,
    open_own_control_plane,
)

pytestmark = [
    pytest.mark.real,
    pytest.mark.processes,
    pytest.mark.xdist_group("demo on real parts"),
]

LIFE_WITHIN_S = 240.0
CLEAN_WITHIN_S = 120.0
ANY_PORTS = ("--compute-port", "0")
CRD = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def cluster() -> Iterator[OwnControlPlane]:
    """One that only the tests of this file use: what they apply is of the whole cluster."""
    with open_own_control_plane() as own:
        yield own


@pytest.fixture
def untouched(cluster: OwnControlPlane) -> Iterator[None]:
    """Fails unless the cluster is after the test what it was before, object by object."""
    before = list_everything(cluster)
    yield
    assert list_everything(cluster) ^ before == set()


def run_demo(folder: Path, cluster: ControlPlane, *arguments: str) -> Program:
    """A demo on a cluster, run to its end."""
    with running(
        folder, "local.show.demo", "--kubeconfig", str(cluster.kubeconfig), *arguments
    ) as demo:
        demo.process.wait(timeout=LIFE_WITHIN_S)
    return demo


def run_local(
    folder: Path, cluster: ControlPlane, *arguments: str
) -> AbstractContextManager[Program]:
    """A ``make local`` on a cluster."""
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    return running(folder, "local", *kubeconfig, *ANY_PORTS, *arguments)


@pytest.mark.usefixtures("untouched")
def test_the_demo_shows_a_life_on_a_real_cluster(
    tmp_path: Path, cluster: OwnControlPlane, say: Callable[[str], None]
) -> None:
    demo = run_demo(tmp_path, cluster)
    assert demo.process.returncode == 0, demo.output
    for line in (
        f"Kubernetes API at {cluster.server}",
        "TPUNodeGroup training: Ready=True Ready, Nodes 2/2",
    ):
        assert line in demo.output
    assert len(set(re.findall(r"VM (\w+) +joined: ", demo.output))) == 2
    assert demo.output.count("  none  ") == 6
    assert demo.children() == []
    assert demo.files() == []
    (took,) = re.findall(r"Done in (.*)\.", demo.output)
    say(f"make demo on real parts: {took}")


@contextmanager
def jobset_defined(cluster: ControlPlane) -> Iterator[None]:
    """JobSet's own definition is in the cluster, and nobody acts on what it defines."""
    crd = jobset_crd.read(get_jobset_crd())
    code, answer = cluster.request("POST", DEFINITIONS, crd)
    assert code == 201, answer
    until(lambda: cluster.request("GET", JOBSETS)[0] == 200, "JobSets are known")
    yield
    cluster.request("DELETE", f"{DEFINITIONS}/{crd['metadata']['name']}")
    until(lambda: cluster.request("GET", JOBSETS)[0] == 404, "JobSets are known no more")


@pytest.fixture
def own_definition(cluster: OwnControlPlane) -> Iterator[None]:
    """JobSet's definition was there before, and is to stay."""
    with jobset_defined(cluster):
        yield


def run_jobset_demo(folder: Path, cluster: ControlPlane, *arguments: str) -> Program:
    """A demo of a JobSet on a cluster, run to its end."""
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    with running(folder, "local.show.jobset_demo", *kubeconfig, *arguments) as demo:
        demo.process.wait(timeout=LIFE_WITHIN_S)
    return demo


@pytest.mark.usefixtures("own_definition", "untouched")
def test_the_demo_of_a_jobset_meets_jobsets_definition_and_a_real_scheduler_and_leaves_nothing(
    tmp_path: Path, cluster: OwnControlPlane, say: Callable[[str], None]
) -> None:
    demo = run_jobset_demo(tmp_path, cluster)
    assert demo.process.returncode == 0, demo.output
    places = dict(re.findall(r"^  (multislice-slice-\d-\d)   tng-(\S+)-\w+$", demo.output, re.M))
    slices = [{places[f"multislice-slice-{job}-{host}"] for host in "01"} for job in "01"]
    assert [len(hosts) for hosts in slices] == [1, 1], "the Pods of a Job are on one slice"
    assert slices[0] != slices[1]
    assert "JobSet multislice: Completed" in demo.output
    assert demo.output.count("  none  ") == 9
    assert demo.children() == []
    assert demo.files() == []
    (took,) = re.findall(r"Done in (.*)\.", demo.output)
    say(f"make demo-jobset on a real control plane: {took}")


@pytest.mark.parametrize(
    "is_defined, text",
    [
        pytest.param(False, "Event TPUNodeGroupCreationStarted on Pod", id="its slices are made"),
        pytest.param(
            True,
            "Pod multislice-slice-0-0: Running",
            id="its Pods run",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ctrl_c_takes_along_the_jobset_of_the_demo(
    tmp_path: Path, cluster: OwnControlPlane, is_defined: bool, text: str
) -> None:
    with jobset_defined(cluster) if is_defined else nullcontext():
        before = list_everything(cluster)
        kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
        with running(tmp_path, "local.show.jobset_demo", *kubeconfig) as demo:
            demo.until_it_says(text, LIFE_WITHIN_S)
            assert demo.stop(signal.SIGINT, CLEAN_WITHIN_S) == 130, demo.output
        assert list_everything(cluster) ^ before == set()
    assert "deletes the JobSets that are left: multislice" in demo.output
    assert "by force" not in demo.output
    assert "Traceback" not in demo.output
    assert demo.children() == []


@pytest.mark.slow
@pytest.mark.usefixtures("own_definition", "untouched")
def test_what_a_killed_demo_of_a_jobset_leaves_is_named_and_cleaned(
    tmp_path: Path, cluster: OwnControlPlane
) -> None:
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    with running(tmp_path / "killed", "local.show.jobset_demo", *kubeconfig) as demo:
        demo.until_it_says("Pod multislice-slice-0-0: Running", LIFE_WITHIN_S)
        demo.stop(signal.SIGKILL)
        demo.until_alone()
    refused = run_jobset_demo(tmp_path / "refused", cluster)
    assert refused.process.returncode == 1
    assert "    1 JobSets (default/multislice)\n" in refused.output
    cleaned = run_demo(tmp_path / "cleaned", cluster, "--clean")
    assert cleaned.process.returncode == 0, cleaned.output
    assert "removed 1 JobSets (default/multislice)\n" in cleaned.output


@pytest.mark.usefixtures("own_definition")
def test_a_cluster_with_jobsets_that_ask_for_chips_is_left_alone(
    tmp_path: Path, cluster: OwnControlPlane
) -> None:
    for name, chips in (("train", 4), ("render", 0)):
        code, answer = cluster.request("POST", JOBSETS, jobset(name, chips=chips))
        assert code == 201, answer
    before = list_everything(cluster)
    refused = run_jobset_demo(tmp_path, cluster)
    assert list_everything(cluster) ^ before == set()
    assert refused.process.returncode == 1
    assert refused.output.partition("FAILED: ")[2] == (
        f"{cluster.server} has been left as it is, because\n"
        "  there are JobSets that ask for TPUs, and this run would give them simulated slices:\n"
        "    default/train\n"
        "  Delete them, or name a cluster without such JobSets.\n"
    )


@pytest.mark.usefixtures("own_definition", "untouched")
def test_where_jobsets_own_controller_is_nobody_stands_in_for_it(
    tmp_path: Path, cluster: OwnControlPlane
) -> None:
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    labels = {"control-plane": "controller-manager"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "manager", "image": "manager"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}

    async def parts() -> frozenset[Controller]:
        named = NamedCluster(
            *(cluster.kubeconfig, ["relay"], tmp_path, lambda _: None, asyncio.Event()),
            TPU_NODE_GROUP,
        )
        async with AsyncExitStack() as stack:
            await named.check()
            await named.start(stack)
            return named.controllers

    assert asyncio.run(parts()) == BESIDE_A_CONTROL_PLANE
    manager = {"metadata": {"name": "jobset-controller-manager"}, "spec": spec}
    assert cluster.request("POST", deployments, manager)[0] == 201
    try:
        assert asyncio.run(parts()) == {Controller.KUBELETS}
    finally:
        cluster.request("DELETE", f"{deployments}/jobset-controller-manager")


@pytest.mark.slow
@pytest.mark.usefixtures("untouched")
def test_ctrl_c_takes_along_the_groups_that_are_left(
    tmp_path: Path, cluster: OwnControlPlane
) -> None:
    with run_local(tmp_path, cluster, "--pubsub-port", "0") as program:
        local = Local(program, cluster.kubectl)
        assert local.kubeconfig == cluster.kubeconfig
        for name in ("own-template", "v6e-single-host"):
            local.kubectl("apply", "-f", f"examples/{name}.yaml")
        local.kubectl("wait", "--for=condition=Ready", "tng", "--all", "--timeout=100s")
        assert program.stop(signal.SIGINT, CLEAN_WITHIN_S) == 0, program.output
    assert "deletes the TPUNodeGroups that are left: " in program.output
    assert "by force" not in program.output
    assert "Traceback" not in program.output
    assert program.children() == []


def test_with_one_option_make_local_has_a_real_control_plane_that_ends_with_it(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "local", "--real", *ANY_PORTS, "--pubsub-port", "0") as program:
        local = Local(program, get_control_plane_binaries().path("kubectl"))
        assert "etcd ok" in local.kubectl("get", "--raw", "/readyz?verbose")
        local.kubectl("apply", "-f", "examples/v6e-single-host.yaml")
        local.kubectl("wait", "--for=condition=Ready", "tng", "--all", "--timeout=100s")
        assert program.stop(signal.SIGINT, CLEAN_WITHIN_S) == 0, program.output
    assert "deletes the TPUNodeGroups that are left: " in program.output
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
            id="and a cluster",
        ),
        pytest.param(
            "local",
            ("--real", "--port", "1"),
            "--port is the embedded Kubernetes API's; --kubeconfig and --real are others",
            id="and the embedded API's port",
        ),
        pytest.param(
            "local.show.jobset_demo",
            ("--real", "--gke"),
            "--gke is a simulated cluster; --kubeconfig and --real are others",
            id="and GKE",
        ),
    ],
)
def test_a_real_control_plane_is_refused_with_what_is_of_another(
    tmp_path: Path, module: str, arguments: Sequence[str], message: str
) -> None:
    with running(tmp_path, module, *arguments) as program:
        assert program.process.wait(timeout=60) == 2
    assert message in program.output


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("checks the cluster", id="while it checks", marks=pytest.mark.slow),
        pytest.param(
            "has applied ", id="when it has applied the manifests", marks=pytest.mark.slow
        ),
        pytest.param("applies TPUNodeGroup", id="when a group is there"),
    ],
)
@pytest.mark.usefixtures("untouched")
def test_ctrl_c_leaves_nothing_whenever_it_comes(
    tmp_path: Path, cluster: OwnControlPlane, text: str
) -> None:
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    with running(tmp_path, "local.show.demo", *kubeconfig) as demo:
        demo.until_it_says(text)
        assert demo.stop(signal.SIGINT, CLEAN_WITHIN_S) == 130, demo.output
    assert demo.output.endswith("interrupted by SIGINT; nothing runs any more\n")
    assert "Traceback" not in demo.output
    assert demo.children() == []
    assert demo.files() == []


@pytest.mark.usefixtures("untouched")
def test_ctrl_c_twice_waits_for_no_function(tmp_path: Path, cluster: OwnControlPlane) -> None:
    with run_local(tmp_path, cluster, "--pubsub-port", "0") as program:
        local = Local(program, cluster.kubectl)
        local.kubectl("apply", "-f", "examples/tpu7x-2x2x2.yaml")
        local.kubectl(
            *("wait", "--for=jsonpath={.status.resources.managedInstanceGroup.state}=Creating"),
            *("tng/training", "--timeout=60s"),
        )
        program.process.send_signal(signal.SIGINT)
        program.until_it_says("deletes the TPUNodeGroups that are left: training")
        assert program.stop(signal.SIGINT, CLEAN_WITHIN_S) == 0, program.output
    assert "removes them by force" in program.output
    assert program.children() == []


@pytest.mark.usefixtures("untouched")
def test_what_a_killed_run_leaves_is_named_and_cleaned(
    tmp_path: Path, cluster: OwnControlPlane
) -> None:
    with run_local(tmp_path / "killed", cluster, "--pubsub-port", "0") as program:
        local = Local(program, cluster.kubectl)
        local.kubectl("apply", "-f", "examples/v6e-single-host.yaml")
        local.kubectl("wait", "--for=condition=Ready", "tng", "--all", "--timeout=100s")
        meanwhile = run_demo(tmp_path / "meanwhile", cluster, "--clean")
        assert meanwhile.process.returncode == 1
        running_on = f"it is process {program.process.pid} of "
        assert running_on in meanwhile.output
        program.stop(signal.SIGKILL)
        program.until_alone()
    refused = run_demo(tmp_path / "refused", cluster)
    assert refused.process.returncode == 1
    for line in (
        f"FAILED: {cluster.server} has been left as it is, because",
        "  an earlier run has left things there:",
        "    Namespace tpu-functions",
        f"  Remove them: make demo KUBECONFIG={cluster.kubeconfig} ARGS=--clean",
    ):
        assert f"{line}\n" in refused.output
    cleaned = run_demo(tmp_path / "cleaned", cluster, "--clean")
    assert cleaned.process.returncode == 0, cleaned.output
    assert "removed Namespace tpu-functions\n" in cleaned.output
    again = run_demo(tmp_path / "again", cluster, "--clean")
    assert again.output == "No run has left anything there.\n"


@pytest.mark.parametrize(
    "manifests, said",
    [
        pytest.param(
            [f"{MANIFESTS / 'namespace.yaml'}", f"{MANIFESTS / 'crd.yaml'}", "GROUP"],
            [
                "  tpu-functions is installed there:",
                "    Namespace tpu-functions",
                "    CustomResourceDefinition tpunodegroups.tpu.google.com",
                "    1 TPUNodeGroups (default/training)",
                "  Two installations would work on the same groups. Name a cluster without one, or "
                "remove",
            ],
            id="tpu-functions",
        ),
        pytest.param(
            ["OPERATOR"],
            [
                "  tpu-operator is installed there:",
                "    CustomResourceDefinition tpunodegroups.tpu.google.com",
                "    CustomResourceDefinition workloadpolicies.tpu.google.com",
                "  Both would work on the same groups. Name a cluster without tpu-operator.",
            ],
            id="tpu-operator",
        ),
    ],
)
@pytest.mark.usefixtures("untouched")
def test_a_cluster_with_another_installation_is_left_alone(
    tmp_path: Path, cluster: OwnControlPlane, manifests: list[str], said: list[str]
) -> None:
    for name in manifests:
        _kubectl(cluster, "create", name)
        if name.endswith("crd.yaml"):
            _kubectl(cluster, "wait", name)
    before = list_everything(cluster)
    refused = run_demo(tmp_path, cluster)
    assert list_everything(cluster) ^ before == set()
    for name in reversed(manifests):
        _kubectl(cluster, "delete", name)
    assert refused.process.returncode == 1
    for line in said:
        assert f"{line}\n" in refused.output
    assert refused.files() == []


def _kubectl(cluster: OwnControlPlane, verb: str, name: str) -> None:
    if verb == "wait":
        done = cluster.run_kubectl("wait", "--for=condition=Established", "-f", name)
    else:
        texts = {
            "GROUP": (ROOT / "examples" / "tpu7x-2x2x2.yaml").read_text,
            "OPERATOR": lambda: "---\n".join(map(_crd, ("TPUNodeGroup", "WorkloadPolicy"))),
        }
        text = texts[name]() if name in texts else Path(name).read_text()
        done = cluster.run_kubectl(verb, "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr


def _crd(kind: str) -> str:
    """A definition as another's, by name."""
    plural = {"TPUNodeGroup": "tpunodegroups", "WorkloadPolicy": "workloadpolicies"}[kind]
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    spec = {
        "group": "tpu.google.com",
        "scope": "Namespaced",
        "names": {"kind": kind, "plural": plural},
        "versions": [version],
    }
    metadata = {"name": f"{plural}.tpu.google.com"}
    return f"{CRD}metadata: {json.dumps(metadata)}\nspec: {json.dumps(spec)}\n"


def test_a_cluster_that_vms_cannot_join_is_left_as_it_was(tmp_path: Path) -> None:
    found = binaries.find(os.environ)
    if found is None:
        miss("there is no real control plane here; `make control-plane` makes one")
    with plane.start(found, ["--enable-bootstrap-token-auth=false"]) as bare:
        for path in (
            # Not missed: what joining VMs may do, the installation brings.
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/kubeadm:kubelet-bootstrap",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/kubeadm:node-autoapprove-bootstrap",
        ):
            assert bare.request("DELETE", path)[0] == 200
        before = list_everything(bare)
        refused = run_demo(tmp_path, bare)
        changed = list_everything(bare) ^ before
        # The controller manager makes these a moment after it has started.
        assert {one for one in changed if not one.endswith("/kube-root-ca.crt")} == set()
        assert refused.process.returncode == 1
        assert refused.output.partition("FAILED: ")[2] == (
            f"VMs cannot join {bare.server}: error execution phase preflight: unable to fetch the "
            "kubeadm-config ConfigMap: failed to get config map: Unauthorized\n"
            "The cluster needs what `kubeadm init` creates for nodes that join: see docs/local.md.\n"
        )


def test_somebody_without_rights_is_told_so(tmp_path: Path, cluster: OwnControlPlane) -> None:
    token = cluster.run_kubectl("create", "token", "default").stdout.strip()
    view = json.loads(cluster.kubeconfig.read_text())
    view["users"][0]["user"] = {"token": token}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(view))
    with running(tmp_path / "run", "local.show.demo", "--kubeconfig", str(kubeconfig)) as demo:
        assert demo.process.wait(timeout=60) == 1
    assert "the kubeconfig's user is not the cluster's administrator" in demo.output
    assert "Name a user that is bound to cluster-admin" in demo.output


def test_nobody_who_answers_is_named(tmp_path: Path, cluster: OwnControlPlane) -> None:
    view = json.loads(cluster.kubeconfig.read_text())
    view["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(view))
    with running(tmp_path / "run", "local.show.demo", "--kubeconfig", str(kubeconfig)) as demo:
        assert demo.process.wait(timeout=60) == 1
    assert f"https://127.0.0.1:9, which {kubeconfig} names, cannot be used: " in demo.output
    assert "Traceback" not in demo.output


@pytest.mark.usefixtures("untouched")
def test_tokens_are_renewed_before_they_expire(
    tmp_path: Path, cluster: OwnControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_cluster, "TOKEN_LIFE_S", 600)
    monkeypatch.setattr(named_cluster, "RENEW_AT", 0.005)

    async def story() -> None:
        named = NamedCluster(
            cluster.kubeconfig, ["relay"], tmp_path, lambda _: None, asyncio.Event()
        )
        async with AsyncExitStack() as stack:
            await named.check()
            await named.start(stack)
            first = read_kubeconfig(named.kubeconfig_of("relay"), tmp_path)
            async with asyncio.timeout(30):
                while (second := _read(named)).authorization() == first.authorization():
                    await asyncio.sleep(0.1)
            for access in (first, second):
                async with ClusterClient(access) as client:
                    assert await client.list(GROUPS) == []

    def _read(named: NamedCluster) -> Access:
        return read_kubeconfig(named.kubeconfig_of("relay"), tmp_path)

    asyncio.run(story())
