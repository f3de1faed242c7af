# ruff: noqa: E501  (a table reads best with a row on a line)
"""The folder of settings, values and the state's backend, outside of the release's."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import open_own_control_plane
from tests.real.deploy.installer import LOCAL_STATE, Installer, Rule, installer, with_terraform

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("deploy settings")]

GCLOUD: list[Rule] = [
    ("config get project", "research-1234", 0),
    ("config get compute/region", "us-east5", 0),
]
"""What gcloud knows of a user."""
GKE: Rule = ("get --raw /version", '{"minor": "33", "gitVersion": "v1.33.4-gke.1134000"}', 0)
BUCKET = (
    "  gcloud storage buckets create gs://research-1234-tpu-functions-state --project=research-1234 "
    "--location=us-east5 --uniform-bucket-level-access --public-access-prevention\n"
    "  gcloud storage buckets update gs://research-1234-tpu-functions-state --versioning\n"
)


@pytest.fixture(scope="module")
def plane() -> Iterator[OwnControlPlane]:
    with open_own_control_plane() as started:
        yield started


@pytest.fixture
def deploy(tmp_path: Path, plane: OwnControlPlane) -> Iterator[Installer]:
    """deploy.sh with an empty folder."""
    with installer(tmp_path, plane) as made:
        shutil.rmtree(made.folder)
        made.gcloud = GCLOUD
        yield made


def test_a_first_run_writes_settings_that_need_no_change_and_a_backend(deploy: Installer) -> None:
    first = deploy.run("research")
    assert first.code == 0, first.output
    server = deploy.plane.server
    assert first.output == (
        "\n== DIR/research.tfvars was written\n"
        f"Project research-1234, region us-east5, cluster tests at {server}: "
        "the functions must reach this address, through vpc_egress if it is private.\n"
        "\n== DIR/backend.tf was written\n"
        f"{BUCKET}"
        "\n== Nothing else was changed. Check these files, and run this again\n"
    )
    assert first.changing_calls() == []
    written = (deploy.folder / "research.tfvars").read_text()
    for line in (
        'project_id  = "research-1234"',
        'region      = "us-east5"',
        'name_prefix = "research"',
        f'    server         = "{server}" # as the functions reach it through vpc_egress',
        '    issuer = "https://kubernetes.default.svc.cluster.local"',
        '# vm_service_accounts = ["tpu-vm@research-1234.iam.gserviceaccount.com"]',
    ):
        assert f"\n{line}\n" in written
    assert (
        'backend "gcs" {\n    bucket = "research-1234-tpu-functions-state"\n'
        in (deploy.folder / "backend.tf").read_text()
    )
    second = deploy.run("--dry-run", "research")
    assert "\n== Settings of research\n" in second.output
    initialize = "terraform -chdir=infra/terraform init -no-color -input=false -reconfigure"
    assert initialize in second.calls
    (deploy.folder / "backend.tf").write_text(LOCAL_STATE)
    assert (
        f"{initialize} -backend-config=workspace_dir=DIR/terraform.tfstate.d"
        in deploy.run("--dry-run", "research").calls
    )


def test_terraform_accepts_the_settings_that_a_first_run_writes(
    tmp_path: Path, plane: OwnControlPlane
) -> None:
    with with_terraform(tmp_path, plane) as deploy:
        deploy.gcloud += GCLOUD
        (deploy.folder / "prod.tfvars").unlink()
        for kubectl in ([], [GKE]):
            deploy.kubectl = kubectl
            assert deploy.run("research").code == 0
            deploy.kubectl = []
            ran = deploy.run("--dry-run", "research")
            assert "\nproject research-1234, region us-east5, TPUs in research-1234," in ran.output
            assert (deploy.folder / "backend.tf").read_text() == LOCAL_STATE
            (deploy.folder / "research.tfvars").unlink()


@pytest.mark.parametrize(
    "gcloud, kubectl, arguments, why",
    [
        (GCLOUD[1:], [], ["prod"], "deploy.sh: gcloud has no project: gcloud config set project PROJECT\n"),
        (GCLOUD[:1], [], ["prod"], "deploy.sh: gcloud has no region, for the functions: gcloud config set compute/region REGION\n"),
        (GCLOUD, [("get configmaps", "my-gcp-project/research-", 0)], ["prod"], "deploy.sh: context tests has the installation of my-gcp-project/research- already: copy its settings to DIR (docs/install.md, Upgrade)\n"),
        (GCLOUD, [("get --raw /version", "no route to host", 1)], ["prod"], "deploy.sh: 1 problem(s); nothing was changed\n\n  - the cluster does not answer: no route to host\n      kubectl config use-context CONTEXT\n"),
        *((GCLOUD, [], [mode, "prod"], "deploy.sh: 2 problem(s); nothing was changed\n\n  - DIR/prod.tfvars does not exist\n      ./deploy.sh --dir DIR prod writes it\n\n  - DIR/backend.tf does not exist\n      ./deploy.sh --dir DIR prod writes it\n") for mode in ("--yes", "--dry-run", "--destroy")),
        (GCLOUD, [], [], "deploy.sh: name the cluster: ./deploy.sh --dir DIR CLUSTER\n"),
    ],
    ids=["no project", "no region", "an installation", "no cluster", "yes", "dry run", "destroy", "no name"],
)  # fmt: skip
def test_no_settings_are_written_without_what_they_need(
    gcloud: list[Rule], kubectl: list[Rule], arguments: list[str], why: str, deploy: Installer
) -> None:
    deploy.gcloud, deploy.kubectl = gcloud, kubectl
    ran = deploy.run(*arguments)
    assert (ran.code, ran.output) == (1, why)
    assert not deploy.folder.exists() or not list(deploy.folder.iterdir())


def test_settings_of_another_cluster_are_written_after_a_question(deploy: Installer) -> None:
    assert deploy.run("prod").code == 0
    asked = deploy.run("prood", answer="n\n")
    assert (asked.code, asked.output) == (1, "deploy.sh: not confirmed; nothing was changed\n")
    assert deploy.run("test", answer="y\n").code == 0
    both = deploy.run()
    assert both.output == (
        "deploy.sh: name the cluster: ./deploy.sh --dir DIR CLUSTER; there are settings of prod test\n"
    )
    (deploy.folder / "test.tfvars").unlink()
    assert "\n== Settings of prod\n" in deploy.run("--dry-run").output


def test_a_folder_is_needed_that_an_upgrade_does_not_replace(deploy: Installer) -> None:
    without = deploy.run_as_given("prod")
    assert (without.code, without.output) == (
        1,
        "deploy.sh: add --dir DIR, a folder of yours for the settings; a first run writes them\n",
    )
    within = deploy.run_as_given("--dir", "infra", "prod")
    assert (within.code, within.output) == (
        1,
        f"deploy.sh: --dir {deploy.tree}/infra is in the folder of the release, which an upgrade "
        "replaces: choose another\n",
    )
    (deploy.folder / "of mine").mkdir(parents=True)
    spaced = deploy.run_as_given("--yes", "--dir", "../settings/of mine", "prod")
    assert "\n      ./deploy.sh --dir DIR/of\\ mine prod writes it\n" in spaced.output


@pytest.mark.parametrize("has_bucket", [False, True])
def test_settings_and_state_in_a_releases_folder_are_moved_by_the_printed_command(
    has_bucket: bool, deploy: Installer
) -> None:
    module, values = deploy.tree / "infra" / "terraform", deploy.tree / "infra" / "values"
    (module / "prod.tfvars").write_text("the settings")
    (values / "prod.yaml").write_text("the values")
    if has_bucket:
        (module / "backend.tf").write_text("the bucket")
    else:
        (module / "terraform.tfstate.d" / "prod").mkdir(parents=True)
        (module / "terraform.tfstate.d" / "prod" / "terraform.tfstate").write_text("the state")
    for ran in (deploy.run("prod"), deploy.run_as_given("prod")):
        assert ran.code == 1
        assert ran.output.startswith(
            "deploy.sh: settings, values and state are in a folder of yours now, so that an upgrade "
            "finds them. Move them once, here to "
        )
    ran = deploy.run("prod")
    (command,) = re.findall(r"\n  (mkdir .*(?:\n.*)*)\nThen run this with --dir DIR\n$", ran.output)
    assert deploy.run_shell(command.replace("DIR", str(deploy.folder))).code == 0
    found = {
        path.relative_to(deploy.folder).as_posix(): path.read_text()
        for path in deploy.folder.rglob("*")
        if path.is_file()
    }
    state = (
        {"backend.tf": "the bucket"}
        if has_bucket
        else {
            "backend.tf": LOCAL_STATE,
            "terraform.tfstate.d/prod/terraform.tfstate": "the state",
        }
    )
    assert found == {"prod.tfvars": "the settings", "prod.yaml": "the values", **state}
    assert [path.name for path in values.iterdir()] == ["example.yaml"]
    assert "\n== Settings of prod\n" in deploy.run("--dry-run", "prod").output


def test_the_state_is_where_the_folder_says_whichever_was_used_before(
    tmp_path: Path, plane: OwnControlPlane
) -> None:
    """Terraform remembers the last backend and workspace in the module's folder."""
    with with_terraform(tmp_path, plane) as deploy:
        deploy.gcloud += GCLOUD
        settings = deploy.folder
        for name in ("one", "two", "one"):
            deploy.folder = tmp_path / name
            shutil.copytree(settings, deploy.folder, dirs_exist_ok=True)
            if not (deploy.folder / "research.tfvars").exists():
                (deploy.folder / "prod.tfvars").unlink()
                assert deploy.run("research").code == 0
            ran = deploy.run("--dry-run", "research")
            assert ran.code == 0, ran.output
            where = deploy.tree / "infra" / "terraform" / "backend_override.tf"
            assert where.read_text() == LOCAL_STATE
            shown = subprocess.run(
                ["grep", "-o", f'{tmp_path}/[^"]*', where.parent / ".terraform/terraform.tfstate"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert shown.stdout == f"{deploy.folder}/terraform.tfstate.d\n"
