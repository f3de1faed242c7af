"""deploy.sh with the real Terraform, and of the module only the variables and the identity."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from local.control_plane.plane import OwnControlPlane
from shared.triggers.routes import STEPS
from tests.real.deploy.installer import Installer, with_terraform
from tests.real.deploy.outputs import PROJECT
from tests.terraform.examples import EXAMPLES, read_settings

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("deploy settings")]

LAST = {
    "input": "${terraform_data.installation.output}",
    "provisioner": [{"local-exec": {"when": "destroy", "command": "test -e ../../may-end"}}],
}
"""A resource whose deletion fails at first."""
EXPECTED = {
    "gke": "project my-gcp-project, region us-central1, TPUs in my-gcp-project,",
    "gke-jobsets": "project my-gcp-project, region us-central1, TPUs in my-gcp-project,",
    "self-managed-token": "project my-gcp-project, region us-central1, TPUs in my-gcp-project,",
    "self-managed-id-token": "project my-gcp-project, region us-central1, TPUs in my-gcp-project,",
    "self-managed-kubeconfig": (
        "project my-gcp-project, region us-central1, "
        "TPUs in my-gcp-project my-tpu-project my-other-tpu-project,"
    ),
}
"""The line that deploy.sh prints for each example."""


@pytest.fixture
def deploy(tmp_path: Path, plane: OwnControlPlane) -> Iterator[Installer]:
    with with_terraform(tmp_path, plane) as made:
        yield made


def write_settings(deploy: Installer, example: str, more: str = "", **changes: str) -> None:
    """Write an example's settings, with changes, as those of ``prod``."""
    text = read_settings(example)
    for before, after in changes.items():
        text = text.replace(before, after)
    (deploy.folder / "prod.tfvars").write_text(text + more)


def test_each_example_has_an_expected_line() -> None:
    assert {path.parent.name for path in EXAMPLES.glob("*/cluster.tfvars")} == set(EXPECTED)


@pytest.mark.parametrize("example", EXPECTED)
def test_deploy_sh_reads_the_settings_of_each_example(example: str, deploy: Installer) -> None:
    write_settings(deploy, example)
    jobsets = "get customresourcedefinitions jobsets.jobset.x-k8s.io"
    deploy.kubectl = [(jobsets, "customresourcedefinition", 0)]
    ran = deploy.run("--dry-run", "prod")
    assert ran.code == 0, ran.output
    assert f"\n{EXPECTED[example]} context tests\n" in ran.output
    calls = [call.split()[4] for call in ran.calls if "secrets versions list" in call]
    steps = sorted(step.replace("_", "-") for step in STEPS)
    has_secrets = example == "self-managed-kubeconfig"
    assert calls == ([f"tpu-functions-{step}" for step in steps] if has_secrets else [])


def test_node_pools_are_listed_in_the_cluster_of_the_settings(deploy: Installer) -> None:
    write_settings(deploy, "gke-jobsets")
    ran = deploy.run("--destroy", "--yes", "prod")
    assert ran.code == 0, ran.output
    (listing, _) = (call for call in ran.calls if "container node-pools list" in call)
    assert listing.startswith(
        "gcloud container node-pools list --project=my-gcp-project --location=us-central1"
        " --cluster=my-cluster "
    )


def test_a_variable_that_the_module_does_not_have_is_ignored(deploy: Installer) -> None:
    write_settings(deploy, "gke", 'owner = "me"\n')
    ran = deploy.run("--dry-run", "prod")
    assert ran.code == 0, ran.output
    assert f"\n{EXPECTED['gke']} context tests\n" in ran.output


def test_a_setting_that_terraform_rejects_is_reported_with_terraforms_error(
    deploy: Installer,
) -> None:
    write_settings(deploy, "gke", **{'"us-central1"': '"us-central1-a"'})
    ran = deploy.run("--dry-run", "prod")
    assert ran.code == 1
    assert (
        "deploy.sh: DIR/prod.tfvars: Terraform rejects it\nError: Invalid value for variable\n"
    ) in ran.output
    assert "region must be a region such as us-central1, not a zone." in ran.output
    assert ran.changing_calls() == []


@pytest.mark.parametrize(
    "example, message",
    [
        ("self-managed-token", "jwks must be the JSON that `kubectl get --raw"),
        ("self-managed-id-token", "ca_certificate must be the cluster's CA in PEM form"),
        ("self-managed-kubeconfig", "jwks must be the JSON that `kubectl get --raw"),
        ("gke", "ca_certificate must be the cluster's CA in PEM form"),
        ("gke-jobsets", "ca_certificate must be the cluster's CA in PEM form"),
    ],
)
def test_the_placeholders_of_the_examples_are_rejected(
    example: str, message: str, deploy: Installer
) -> None:
    copied = (EXAMPLES / example / "cluster.tfvars").read_text()
    (deploy.folder / "prod.tfvars").write_text(copied)
    ran = deploy.run("--dry-run", "prod")
    assert ran.code == 1
    assert message in " ".join(ran.output.split())


def test_cluster_and_state_are_bound_to_each_other_by_an_id(
    tmp_path: Path, own_control_plane: OwnControlPlane
) -> None:
    plane = own_control_plane
    merge = "application/merge-patch+json"
    with with_terraform(tmp_path, plane) as deploy:
        deploy.kubectl = [("rollout status", "successfully rolled out", 0)]
        relay = {"PUBSUB_PROJECT": PROJECT, "TOPIC_PREFIX": "tpu-functions-"}
        outputs = {name: text.replace("${", "$${") for name, text in asdict(deploy.outputs).items()}
        module = {
            name: {"value": value} for name, value in [*outputs.items(), ("relay_settings", relay)]
        }
        (deploy.tree / "infra" / "terraform" / "outputs.tf.json").write_text(
            json.dumps({"output": module, "resource": {"terraform_data": {"last": LAST}}})
        )
        same_prefix = {'"research"': '"tpu-functions"'}
        write_settings(deploy, "self-managed-id-token", **same_prefix)

        def run(*options: str) -> str:
            ran = deploy.run(*options, "--yes", "--images", "example.test/tpu:1", "prod")
            assert ran.code == 0, ran.output
            return ran.output

        def state() -> list[str]:
            path = deploy.folder / "terraform.tfstate.d/prod/terraform.tfstate"
            kept = json.loads(path.read_text())["outputs"]
            return [kept["installation_id"]["value"], *kept["cluster_identity"]["value"].split()]

        def namespace() -> list[str]:
            _, found = plane.request("GET", "/api/v1/namespaces/kube-system")
            key = "tpu-functions.dev/installation-id"
            return [found["metadata"].get("annotations", {}).get(key), found["metadata"]["uid"]]

        def advertise(address: str) -> None:
            """Publish the address of the API server, as it does itself."""
            path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
            slice_ = {
                "metadata": {"name": "kubernetes"},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [address]}],
            }
            plane.request("DELETE", f"{path}/kubernetes")
            assert plane.request("POST", path, slice_)[0] == 201

        run()
        assert state() == namespace()
        installed = namespace()
        # A second run records what was not known, and repeats an annotation that was lost.
        advertise("10.128.0.2")
        lost = {"metadata": {"annotations": {"tpu-functions.dev/installation-id": None}}}
        plane.request("PATCH", "/api/v1/namespaces/kube-system", lost, merge)
        run()
        assert (state(), namespace()) == ([*installed, "10.128.0.2"], installed)
        # A copy has all of this, but other addresses.
        advertise("10.99.0.2")
        ran = deploy.run("--yes", "prod")
        assert (ran.code, ran.changing_calls()) == (1, [])
        assert (
            "may be a copy of that of prod: its API server has the address 10.99.0.2, not 10.128.0.2"
            in ran.output
        )
        run("--restored")
        assert (state(), namespace()) == ([*installed, "10.99.0.2"], installed)
        write_settings(deploy, "self-managed-id-token")
        ran = deploy.run("--dry-run", "prod")
        assert (ran.code, ran.changing_calls()) == (1, [])
        assert (
            "prod.tfvars is project my-gcp-project with prefix research-, but Terraform's state of "
            "prod is project my-gcp-project with prefix tpu-functions-\n"
        ) in ran.output
        write_settings(deploy, "self-managed-id-token", **same_prefix)
        # An interrupted destroy deletes the outputs first.
        failed = deploy.run("--destroy", "--yes", "prod")
        assert failed.code == 1, failed.output
        assert (failed.code, namespace()) == (1, [None, installed[1]])
        run()
        assert (state(), namespace()) == ([*installed, "10.99.0.2"], installed)
        (deploy.tree / "may-end").touch()
        run("--destroy")
        assert namespace() == [None, installed[1]]


def test_a_failed_first_run_is_continued_or_deleted(
    tmp_path: Path, own_control_plane: OwnControlPlane
) -> None:
    with with_terraform(tmp_path, own_control_plane) as deploy:
        late = {"provisioner": [{"local-exec": {"command": "test -e ../../may-begin"}}]}
        (deploy.tree / "infra" / "terraform" / "late.tf.json").write_text(
            json.dumps({"resource": {"terraform_data": {"late": late}}})
        )
        write_settings(deploy, "self-managed-id-token")
        for _ in range(2):
            failed = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
            assert failed.code == 1
            assert failed.output.endswith(
                "\n== The installation has not ended. There are now:\n"
                "3 resource(s) of Terraform in my-gcp-project, and the chart in tests: not installed\n"
                "To continue, run this again. To delete it: ./deploy.sh --dir DIR --destroy prod\n"
            )
        deleted = deploy.run("--destroy", "--yes", "prod")
        assert deleted.code == 0, deleted.output
        assert deleted.output.endswith("\n== Uninstalled. DIR remains.\n")
        assert (
            '"resources": []'
            in (deploy.folder / "terraform.tfstate.d" / "prod" / "terraform.tfstate").read_text()
        )


def test_unreadable_settings_are_reported_with_terraforms_error(deploy: Installer) -> None:
    write_settings(deploy, "gke", "vpc_egress = {\n")
    ran = deploy.run("--dry-run", "prod")
    assert ran.code == 1
    assert "deploy.sh: DIR/prod.tfvars: Terraform rejects it\nError: " in ran.output
