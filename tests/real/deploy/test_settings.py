"""deploy.sh with Terraform itself, which has the module's variables and nothing else to work on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.control_plane.plane import OwnControlPlane
from tests.real.deploy.installer import ROOT, Installer, installer
from tests.real_parts import miss, open_own_control_plane

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("deploy settings")]

EXAMPLES = ROOT / "infra" / "terraform" / "examples"
READ = {
    "gke": "project my-gcp-project, region us-central1, TPUs in my-gcp-project,",
    "gke-jobsets": "project my-gcp-project, region us-central1, TPUs in my-gcp-project,",
    "self-managed-id-token": "project my-gcp-project, region us-central1, TPUs in my-gcp-project,",
    "self-managed-kubeconfig": (
        "project my-gcp-project, region us-central1, "
        "TPUs in my-gcp-project my-tpu-project my-other-tpu-project,"
    ),
}
"""What deploy.sh says of each example."""


@pytest.fixture(scope="module")
def plane() -> Iterator[OwnControlPlane]:
    with open_own_control_plane() as started:
        yield started


@pytest.fixture
def deploy(tmp_path: Path, plane: OwnControlPlane) -> Iterator[Installer]:
    """Without providers: what they would make is not there."""
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


def settle(deploy: Installer, example: str, more: str = "", **changes: str) -> None:
    """Make an example's settings, with some changes, those of ``prod``."""
    text = (EXAMPLES / example / "cluster.tfvars").read_text()
    for before, after in changes.items():
        text = text.replace(before, after)
    (deploy.tree / "infra" / "terraform" / "prod.tfvars").write_text(text + more)


def test_each_example_has_words_here() -> None:
    assert {path.parent.name for path in EXAMPLES.glob("*/cluster.tfvars")} == set(READ)


@pytest.mark.parametrize("example", READ)
def test_settings_are_read(example: str, deploy: Installer) -> None:
    settle(deploy, example)
    jobsets = "get customresourcedefinitions jobsets.jobset.x-k8s.io"
    deploy.kubectl = [(jobsets, "customresourcedefinition", 0)]
    ran = deploy.run("--dry-run", "prod")
    assert ran.code == 0, ran.output
    assert f"\n{READ[example]} context tests\n" in ran.output
    asked = [call.split()[4] for call in ran.calls if "secrets versions list" in call]
    steps = (
        *("approve-join", "create-resources", "inject-token", "label-node"),
        *("report-leaks", "sweep", "tear-down"),
    )
    has_secrets = example == "self-managed-kubeconfig"
    assert asked == ([f"tpu-functions-{step}" for step in steps] if has_secrets else [])


def test_desired_pool_are_looked_for_where_the_settings_say(deploy: Installer) -> None:
    settle(deploy, "gke-jobsets")
    ran = deploy.run("--destroy", "--yes", "prod")
    assert ran.code == 0, ran.output
    (asked, _) = (call for call in ran.calls if "container node-pools list" in call)
    assert asked.startswith(
        "gcloud container node-pools list --project=my-gcp-project --location=us-central1"
        " --cluster=my-cluster "
    )


def test_a_variable_that_the_module_has_not_is_no_setting(deploy: Installer) -> None:
    settle(deploy, "gke", 'owner = "me"\n')
    ran = deploy.run("--dry-run", "prod")
    assert ran.code == 0, ran.output
    assert f"\n{READ['gke']} context tests\n" in ran.output


def test_what_terraform_refuses_ends_it_in_terraforms_words(deploy: Installer) -> None:
    settle(deploy, "gke", **{'"us-central1"': '"us-central1-a"'})
    ran = deploy.run("--dry-run", "prod")
    assert ran.code == 1
    assert (
        "deploy.sh: infra/terraform/prod.tfvars: Terraform refuses it\n"
        "Error: Invalid value for variable\n"
    ) in ran.output
    assert "region must be a region such as us-central1, not a zone." in ran.output
    assert ran.changing_calls() == []


def test_settings_that_cannot_be_read_end_it_in_terraforms_words(deploy: Installer) -> None:
    settle(deploy, "gke", "vpc_egress = {\n")
    ran = deploy.run("--dry-run", "prod")
    assert ran.code == 1
    assert "deploy.sh: infra/terraform/prod.tfvars: Terraform refuses it\nError: " in ran.output
