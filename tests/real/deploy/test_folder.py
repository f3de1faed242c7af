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
from tests.real.deploy.installer import LOCAL_STATE, Installer, Rule, installer, with_terraform
from tests.terraform.examples import read_settings

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
        "\n== DIR/backend.tf was written. Create the bucket of the state, unless it exists:\n"
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
    assert [call for call in second.calls if " init " in call] == [
        "terraform -chdir=infra/terraform init -no-color -input=false -reconfigure"
    ]


@pytest.mark.parametrize(
    "server, is_named", [("0123-456.us-east5.gke.goog", True), ("10.0.0.2", False)]
)
def test_a_first_run_says_that_another_ca_signs_gkes_dns_based_endpoint(
    server: str, is_named: bool, deploy: Installer
) -> None:
    deploy.kubectl = [GKE, ("config view --minify --output", f"https://{server}", 0)]
    ran = deploy.run("research")
    assert ran.code == 0, ran.output
    assert ran.says("Replace ca_certificate: the certificate of GKE's DNS-based ") is is_named


@pytest.mark.parametrize("is_gke", [False, True])
@pytest.mark.parametrize(
    "cluster, prefix",
    [
        ("research", "research"),
        ("abc", "abc"),
        ("research-clus", "research-clus"),
        ("research-cluster-1", "research-clus"),
        ("team-alphabet-1", "team-alphabet"),
        ("one-two-four-five", "one-two-four"),
        ("a", "tpu-a"),
        ("ab-", "tpu-ab"),
        ("gcp-prod", "tpu-gcp-prod"),
        ("a--b-", "a-b"),
        ("Prod_EU.1", "prod-eu-1"),
        ("1a", "tpu-1a"),
    ],
)
def test_a_first_run_writes_a_prefix_of_its_own_that_terraform_accepts(
    cluster: str, prefix: str, is_gke: bool, deploy: Installer
) -> None:
    deploy.kubectl = [GKE] if is_gke else []
    ran = deploy.run(cluster)
    assert ran.code == 0, ran.output
    written = (deploy.folder / f"{cluster}.tfvars").read_text()
    assert f'\nname_prefix = "{prefix}"\n' in written
    variables = (deploy.tree / "infra/terraform/variables.tf").read_text()
    (pattern,) = re.findall(r'regex\("([^"]*)", var.name_prefix\)', variables)
    assert re.search(pattern, prefix)
    assert not prefix.startswith("gcp-")
    note = (
        f"The names of all resources begin with {prefix} (name_prefix), because {cluster} is no "
        "valid prefix.\n"
    )
    assert (note in ran.output) is (cluster != prefix)


def test_the_state_has_no_place_without_a_project_or_region(deploy: Installer) -> None:
    deploy.folder.mkdir()
    settings = deploy.folder / "prod.tfvars"
    pools = 'node_pools = {\n  project_id = "theirs" # (\n  zones = ["a"]\n  region = "theirs"\n}\n'
    settings.write_text(f'{pools}project_id="my-project" # not "another"\n')
    ran = deploy.run("prod")
    assert (ran.code, ran.output) == (
        1,
        "deploy.sh: DIR/prod.tfvars has no project_id or no region: add it\n",
    )
    settings.write_text(f'{settings.read_text()}  region\t= "us-east5"\n')
    assert deploy.run("prod").code == 0
    assert (
        'backend "gcs" {\n    bucket = "my-project-tpu-functions-state"\n'
        in (deploy.folder / "backend.tf").read_text()
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
        (GCLOUD, [], ["default"], "deploy.sh: CLUSTER cannot be default: Terraform keeps the local state of this workspace in the folder of the release, which an upgrade replaces. Choose another name\n"),
    ],
    ids=["no project", "no region", "an installation", "no cluster", "yes", "dry run", "destroy", "no name", "default"],
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
    deploy.kubectl = [("get --raw /version", "no route to host", 1)]
    gone = deploy.run_as_given("--destroy", "--dir", "../settings/of mine", "prod")
    assert " destroy -var-file=DIR/of\\ mine/prod.tfvars (docs/install.md," in gone.output


def write_settings(deploy: Installer) -> None:
    """Write settings of ``prod`` that Terraform accepts."""
    (deploy.folder / "prod.tfvars").write_text(read_settings("self-managed-id-token"))


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


def test_a_move_overwrites_nothing_and_says_what_is_left(deploy: Installer) -> None:
    module, values = deploy.tree / "infra" / "terraform", deploy.tree / "infra" / "values"
    states = "terraform.tfstate.d"
    for folder, clusters in ((deploy.folder, ("test",)), (module, ("prod", "test"))):
        for cluster in clusters:
            (folder / states / cluster).mkdir(parents=True)
            (folder / states / cluster / "terraform.tfstate").write_text(f"{folder.name} {cluster}")
            (folder / f"{cluster}.tfvars").write_text(f"{folder.name} {cluster}")
    (values / "test.yaml").write_text("old")
    (deploy.folder / "test.yaml").write_text("new")
    (deploy.folder / "backend.tf").write_text(LOCAL_STATE)
    ran = deploy.run("prod")
    assert (ran.code, ran.output) == (
        1,
        "deploy.sh: settings, values and state are in a folder of yours now, so that an upgrade finds "
        "them. Move them once, here to DIR:\n"
        "  mkdir -p DIR && mv -n infra/terraform/prod.tfvars DIR && "
        f"mkdir -p DIR/{states} && mv -n infra/terraform/{states}/prod DIR/{states}\n"
        "Then run this with --dir DIR\n"
        f"Not moved, because files of these names are there already: infra/terraform/{states}/test "
        "infra/terraform/test.tfvars infra/values/test.yaml. Compare them, and delete those that are "
        "not needed\n",
    )
    command = ran.output.splitlines()[1].replace("DIR", str(deploy.folder))
    assert deploy.run_shell(command).code == 0
    assert (deploy.folder / states / "prod" / "terraform.tfstate").read_text() == "terraform prod"
    assert (deploy.folder / states / "test" / "terraform.tfstate").read_text() == "settings test"
    assert (deploy.folder / "backend.tf").read_text() == LOCAL_STATE
    for cluster in ("prod", "test"):
        assert f"\n== Settings of {cluster}\n" in deploy.run("--dry-run", cluster).output
    third = deploy.run("third", answer="y\n")
    assert third.code == 0, "what is left is of other clusters"


@pytest.mark.parametrize("has_bucket", [False, True])
def test_settings_do_not_move_to_a_folder_whose_state_is_elsewhere(
    has_bucket: bool, deploy: Installer
) -> None:
    module = deploy.tree / "infra" / "terraform"
    (module / "prod.tfvars").write_text("the settings")
    deploy.folder.mkdir()
    (deploy.folder / "backend.tf").write_text(LOCAL_STATE if has_bucket else "a bucket")
    if has_bucket:
        (module / "backend.tf").write_text("another bucket")
    ran = deploy.run("prod")
    assert (ran.code, ran.output) == (
        1,
        "deploy.sh: the settings of prod are in infra/terraform, and DIR/backend.tf may name another "
        "state than theirs: choose a new folder with --dir\n",
    )


@pytest.mark.parametrize(
    "backend",
    [
        LOCAL_STATE,
        'terraform{\n\tbackend   "local"{ }\n}\n',
        "terraform {\n  backend local {\n  }\n}\n",
        '# backend "gcs" {}\nterraform {\n  backend /* or gcs */ "local" { # here\n  }\n}\n',
        'terraform {\n  backend "local" { path = "of-default.tfstate" }\n}\n',
    ],
)
def test_a_local_state_is_in_the_folder_in_whichever_way_its_backend_is_written(
    backend: str, tmp_path: Path, plane: OwnControlPlane
) -> None:
    with with_terraform(tmp_path, plane) as deploy:
        write_settings(deploy)
        (deploy.folder / "backend.tf").write_text(backend)
        ran = deploy.run("--dry-run", "prod")
        assert ran.code == 0, ran.output
        assert (deploy.folder / "terraform.tfstate.d" / "prod").is_dir()
        assert not (deploy.tree / "infra" / "terraform" / "terraform.tfstate.d").exists()


def test_a_place_of_the_state_that_the_backend_names_is_kept(
    tmp_path: Path, plane: OwnControlPlane
) -> None:
    with with_terraform(tmp_path, plane) as deploy:
        write_settings(deploy)
        (deploy.folder / "backend.tf").write_text(
            f'terraform {{\n  backend "local" {{\n    workspace_dir = "{tmp_path}/mine"\n  }}\n}}\n'
        )
        ran = deploy.run("--dry-run", "prod")
        assert ran.code == 0, ran.output
        assert (tmp_path / "mine" / "prod").is_dir()


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


def test_two_runs_at_once_do_not_share_a_folder_of_the_release(
    tmp_path: Path, plane: OwnControlPlane
) -> None:
    """Terraform keeps backend and workspace in the module's folder: the first would go on with the
    state and the outputs of the second one's cluster."""
    with with_terraform(tmp_path, plane) as deploy:
        write_settings(deploy)
        running = deploy.tree / "infra" / "terraform" / ".running"
        with subprocess.Popen(["sleep", "60"]) as other:
            running.symlink_to(str(other.pid))
            ran = deploy.run("--dry-run", "prod")
            other.kill()
        assert (ran.code, ran.changing_calls()) == (1, []), ran.output
        assert ran.output.endswith(
            f"deploy.sh: another run (process {other.pid}) uses this folder of the release, in which "
            "Terraform keeps which state it works on: wait until it ends, or use another copy of the "
            f"release. If process {other.pid} is none: rm infra/terraform/.running\n"
        )
        assert running.is_symlink()
        after_a_kill = deploy.run("--dry-run", "prod")
        assert after_a_kill.code == 0, after_a_kill.output
        assert not running.is_symlink()
