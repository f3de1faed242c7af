"""deploy.sh with the real Terraform, and only the variables of the module."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import miss, open_own_control_plane
from shared.triggers.routes import STEPS
from tests.real.deploy.installer import Installer, installer
from tests.terraform.examples import EXAMPLES, read_settings

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("deploy settings")]

EXPECTED = {
    "gke": "project my-gcp-project, region us-central1, TPUs in my-gcp-project,",
    "gke-jobsets": "project my-gcp-project, region us-central1, TPUs in my-gcp-project,",
    "self-managed-id-token": "project my-gcp-project, region us-central1, TPUs in my-gcp-project,",
    "self-managed-kubeconfig": (
        "project my-gcp-project, region us-central1, "
        "TPUs in my-gcp-project my-tpu-project my-other-tpu-project,"
    ),
}
"""The line that deploy.sh prints for each example."""


@pytest.fixture(scope="module")
def plane() -> Iterator[OwnControlPlane]:
    with open_own_control_plane() as started:
        yield started


@pytest.fixture
def deploy(tmp_path: Path, plane: OwnControlPlane) -> Iterator[Installer]:
    """Without providers and resources."""
    program = shutil.which("terraform")
    if program is None:
        miss("there is no terraform here")
    with installer(tmp_path, plane) as made:
        for path in (made.tree / "infra" / "terraform").glob("*.tf"):
            if path.name != "variables.tf":
                path.unlink()
        (made.tree / "bin" / "terraform").unlink()
        (made.tree / "bin" / "terraform").symlink_to(program)
        made.gcloud = [("secrets versions list", "1", 0)]
        yield made


def write_settings(deploy: Installer, example: str, more: str = "", **changes: str) -> None:
    """Write an example's settings, with changes, as those of ``prod``."""
    text = read_settings(example)
    for before, after in changes.items():
        text = text.replace(before, after)
    (deploy.tree / "infra" / "terraform" / "prod.tfvars").write_text(text + more)


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
        "deploy.sh: infra/terraform/prod.tfvars: Terraform rejects it\n"
        "Error: Invalid value for variable\n"
    ) in ran.output
    assert "region must be a region such as us-central1, not a zone." in ran.output
    assert ran.changing_calls() == []


@pytest.mark.parametrize(
    "example, message",
    [
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
    (deploy.tree / "infra" / "terraform" / "prod.tfvars").write_text(copied)
    ran = deploy.run("--dry-run", "prod")
    assert ran.code == 1
    assert message in " ".join(ran.output.split())


def test_unreadable_settings_are_reported_with_terraforms_error(deploy: Installer) -> None:
    write_settings(deploy, "gke", "vpc_egress = {\n")
    ran = deploy.run("--dry-run", "prod")
    assert ran.code == 1
    assert "deploy.sh: infra/terraform/prod.tfvars: Terraform rejects it\nError: " in ran.output
