# ruff: noqa: E501  (a table reads best with a row on a line)
"""deploy.sh with a real cluster and a simulated cloud that answers from a table."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.release.__main__ import read_repository
from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import open_own_control_plane
from tests.real.deploy.installer import (
    DIGEST,
    DIGESTS,
    ELSEWHERE,
    GKE_VERSION,
    HAS_STATE,
    OLD_STATE,
    Installer,
    Rule,
    Settings,
    installer,
    simulated_kubelet,
)
from tests.real.deploy.outputs import (
    ID_TOKENS,
    KUBECONFIGS,
    PROJECT,
    REPOSITORY,
)
from version import VERSION

ROLLED_OUT = ("rollout status", "successfully rolled out", 0)
"""For a cluster whose Node has sent no heartbeats, so that its Pods are no longer ready."""
GRANT = "gcloud projects add-iam-policy-binding my-gcp-project --member=user:me@example.com"
GONE = (
    "; if the cluster no longer exists, or never had tpu-functions: terraform -chdir=infra/terraform "
    "destroy -var-file=DIR/prod.tfvars (docs/install.md, A cluster that is gone)"
)
pytestmark = [pytest.mark.real, pytest.mark.xdist_group("deploy")]


@pytest.fixture(scope="module")
def empty_plane() -> Iterator[OwnControlPlane]:
    with open_own_control_plane() as plane:
        yield plane


@pytest.fixture
def read_only(tmp_path: Path, empty_plane: OwnControlPlane) -> Iterator[Installer]:
    """deploy.sh for an empty cluster that several tests share, because they do not change it."""
    with installer(tmp_path, empty_plane) as made:
        yield made
    assert empty_plane.request("GET", "/api/v1/namespaces/tpu-functions")[0] == 404


@pytest.fixture(scope="module")
def shared_installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installer]:
    with (
        open_own_control_plane() as plane,
        installer(tmp_path_factory.mktemp("installation"), plane) as made,
        simulated_kubelet(plane),
    ):
        ran = made.run("--yes", "--images", "example.test/tpu:1", "prod")
        assert ran.code == 0, ran.output
        yield made


@pytest.fixture
def installed(tmp_path: Path, shared_installation: Installer) -> Iterator[Installer]:
    """deploy.sh for an installation that several tests share, because they do not change it."""
    with installer(tmp_path, shared_installation.plane) as made:
        shutil.copytree(shared_installation.folder, made.folder, dirs_exist_ok=True)
        shutil.copy(shared_installation.tree / "state", made.tree)
        made.terraform = [HAS_STATE]
        yield made


@pytest.mark.parametrize(
    "images, shown",
    [
        (["example.test:5000/tpu:1"], "example.test:5000/tpu/relay:1"),
        ([f"example.test/tpu@{DIGESTS['relay']}"], f"example.test/tpu/relay@{DIGESTS['relay']}"),
        (
            [f"example.test/tpu/{name}@{digest}" for name, digest in DIGESTS.items()],
            f"example.test/tpu/relay@{DIGESTS['relay']}",
        ),
    ],
    ids=["a registry with a port", "one digest", "a digest for each"],
)
def test_images_are_named_by_tag_or_digest(
    images: list[str], shown: str, installed: Installer
) -> None:
    flags = [part for image in images for part in ("--images", image)]
    ran = installed.run("--dry-run", *flags, "prod")
    assert ran.code == 0, ran.output
    changed = [line.split() for line in ran.output.splitlines() if re.match(r"[-+] ", line)]
    assert ["+", "image:", shown] in changed


def test_a_release_is_installed_with_its_own_images(installed: Installer) -> None:
    """Cloud Build is neither used nor needed, and its images replace those of the run before."""
    values = installed.tree / "infra" / "chart" / "values.yaml"
    values.write_text(
        values.read_text().replace("digests: {}", f"digests: {json.dumps(DIGESTS)}", 1)
    )
    installed.lacking, installed.nodes_pull = {"cloudbuild.builds.create"}, False
    ran = installed.run("--dry-run", "prod")
    assert ran.code == 0, ran.output
    image = f"ghcr.io/{read_repository().lower()}/relay:{VERSION}@{DIGESTS['relay']}"
    assert re.search(rf"^\+ *(- )?image: {re.escape(image)}$", ran.output, re.MULTILINE)
    assert "unnamed" not in ran.output


# Pull credentials of Nodes

PULL_PROBLEM = (
    "  - the Nodes of this cluster need credentials to pull images from us-central1-docker.pkg.dev\n"
    "      pass the --images of the last run; or create the Secret tpu-functions-images; or set up a "
    "credential provider and pass --nodes-pull; or use other --images (docs/install.md, Images)\n"
)


def test_missing_pull_credentials_are_reported_if_they_cannot_be_detected(
    read_only: Installer,
) -> None:
    read_only.nodes_pull = False
    ran = read_only.run("prod", answer="n\n")
    assert ran.output.endswith(f"deploy.sh: 1 problem(s); nothing was changed\n\n{PULL_PROBLEM}")
    for images in (
        REPOSITORY + ":1",
        f"{REPOSITORY}/relay@{DIGEST}",
        "gcr.io/my-gcp-project/tpu:1",
    ):
        ran = read_only.run("--images", images, "prod", answer="n\n")
        assert "  - the Nodes of this cluster need credentials to pull images from " in ran.output


@pytest.mark.parametrize(
    "case", ["another registry", "GKE", "--nodes-pull", "a Secret", "the relay runs from there"]
)
def test_missing_pull_credentials_are_not_reported(case: str, read_only: Installer) -> None:
    read_only.nodes_pull = case == "--nodes-pull"
    images = ["--images", "example.test/tpu:1"] if case == "another registry" else []
    if case == "GKE":
        version = '{"major": "1", "minor": "33", "gitVersion": "v1.33.4-gke.1134000"}'
        read_only.kubectl = [("get --raw /version", version, 0)]
    if case == "a Secret":
        read_only.kubectl = [("get secret tpu-functions-images", "", 0)]
    if case == "the relay runs from there":
        runs = f"1 {REPOSITORY}/relay@{DIGEST}"
        read_only.kubectl = [("get deployment relay --ignore-not-found", runs, 0)]
    ran = read_only.run(*images, "prod", answer="n\n")
    assert ran.output.endswith("deploy.sh: not confirmed; nothing was changed\n")


def test_a_run_that_is_not_confirmed_changes_nothing(read_only: Installer) -> None:
    ran = read_only.run("prod", answer="n\n")
    assert ran.code == 1
    assert ran.output.endswith("deploy.sh: not confirmed; nothing was changed\n")
    assert ran.changing_calls() == []


def test_a_dry_run_changes_nothing(read_only: Installer) -> None:
    ran = read_only.run("--dry-run", "prod")
    assert ran.code == 0, ran.output
    assert ran.changing_calls() == []
    assert any("plan -input=false" in call for call in ran.calls)
    assert "the chart would be installed with values from Terraform's outputs" in ran.output
    assert {path.name for path in read_only.folder.iterdir()} == {"backend.tf", "prod.tfvars"}


def test_all_problems_are_reported_together_with_their_solutions(read_only: Installer) -> None:
    read_only.lacking = {"iam.roles.create", "pubsub.topics.create"}
    read_only.gcloud = [
        (
            "services list",
            "compute.googleapis.com\niam.googleapis.com\nserviceusage.googleapis.com",
            0,
        ),
        ("secrets versions list kubeconfig-sweep", "", 0),
    ]
    read_only.settings.secrets = ["kubeconfig-sweep"]
    ran = read_only.run("prod")
    assert ran.code == 1
    assert ran.output.partition("deploy.sh: ")[2] == (
        "4 problem(s); nothing was changed\n"
        "\n  - project my-gcp-project: the API cloudresourcemanager.googleapis.com is disabled\n"
        "      gcloud services enable cloudresourcemanager.googleapis.com --project=my-gcp-project\n"
        "\n  - project my-gcp-project: you lack iam.roles.create\n"
        f"      {GRANT} --role=roles/iam.roleAdmin\n"
        "\n  - project my-gcp-project: you lack pubsub.topics.create\n"
        f"      {GRANT} --role=roles/pubsub.admin\n"
        "\n  - secret kubeconfig-sweep does not exist, or has no enabled version\n"
        "      docs/install.md, Kubeconfigs\n"
    )  # fmt: skip
    assert ran.changing_calls() == []


PERMISSIONS = {
    "resourcemanager.projects.setIamPolicy": "resourcemanager.projectIamAdmin",
    "iam.roles.create": "iam.roleAdmin",
    "logging.sinks.create": "logging.configWriter",
    "logging.logMetrics.create": "logging.configWriter",
    "cloudfunctions.functions.create": "cloudfunctions.admin",
    "run.services.setIamPolicy": "run.admin",
    "pubsub.topics.create": "pubsub.admin",
    "pubsub.topics.setIamPolicy": "pubsub.admin",
    "pubsub.subscriptions.create": "pubsub.admin",
    "iam.serviceAccounts.create": "iam.serviceAccountAdmin",
    "iam.serviceAccounts.setIamPolicy": "iam.serviceAccountAdmin",
    "storage.buckets.create": "storage.admin",
    "storage.buckets.setIamPolicy": "storage.admin",
    "cloudscheduler.jobs.create": "cloudscheduler.admin",
    "artifactregistry.repositories.create": "artifactregistry.admin",
    "artifactregistry.repositories.setIamPolicy": "artifactregistry.admin",
    "iam.workloadIdentityPools.create": "iam.workloadIdentityPoolAdmin",
    "secretmanager.secrets.setIamPolicy": "secretmanager.admin",
    "secretmanager.secrets.create": "secretmanager.admin",
    "secretmanager.versions.add": "secretmanager.admin",
    "secretmanager.versions.access": "secretmanager.admin",
    "serviceusage.services.enable": "serviceusage.serviceUsageAdmin",
    "iam.serviceAccounts.actAs": "iam.serviceAccountUser",
    "cloudbuild.builds.create": "cloudbuild.builds.editor",
}
"""The permissions that an installation needs, with a role that includes each."""
ALSO_NEEDED_TO_DELETE = {name for name in PERMISSIONS if name.endswith("setIamPolicy")}


def test_each_missing_permission_is_reported_with_a_role_that_includes_it(
    read_only: Installer,
) -> None:
    read_only.lacking = set(PERMISSIONS)
    read_only.settings = Settings(secrets=["kubeconfig-sweep"], federation=True, tokens=True)
    service_account = "installer@my-gcp-project.iam.gserviceaccount.com"
    read_only.gcloud = [
        ("secrets versions list", "1", 0),
        ("config get account", service_account, 0),
    ]
    ran = read_only.run("prod")
    assert ran.code == 1
    assert ran.output.partition(" changed\n")[2] == "".join(
        f"\n  - project my-gcp-project: you lack {permission}\n"
        "      gcloud projects add-iam-policy-binding my-gcp-project"
        f" --member=serviceAccount:{service_account} --role=roles/{role}\n"
        for permission, role in PERMISSIONS.items()
    )


def test_the_permissions_in_a_served_project_are_checked(read_only: Installer) -> None:
    """Terraform enables APIs, creates a role and log sinks there, and grants the role."""
    read_only.lacking = set(PERMISSIONS)
    read_only.settings.projects = f"{PROJECT} my-tpu-project"
    ran = read_only.run("prod")
    assert re.findall(r"project my-tpu-project: you lack (\S+)", ran.output) == [
        "resourcemanager.projects.setIamPolicy",
        "iam.roles.create",
        "logging.sinks.create",
        "serviceusage.services.enable",
    ]
    assert ran.changing_calls() == []


FAILED: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "the APIs cannot be listed": ([], {"gcloud": [("services list", "ERROR: PERMISSION_DENIED\nmore", 1)], "lacking": {"iam.roles.create"}}, f"""2 problem(s); nothing was changed

  - project my-gcp-project: its APIs cannot be listed: ERROR: PERMISSION_DENIED
      {GRANT} --role=roles/serviceusage.serviceUsageViewer

  - project my-gcp-project: you lack iam.roles.create
      {GRANT} --role=roles/iam.roleAdmin
"""),
    "a permission cannot be checked": ([], {"unknown": {"run.services.setIamPolicy"}, "lacking": {"iam.roles.create"}}, f"""1 problem(s); nothing was changed

  - project my-gcp-project: you lack iam.roles.create
      {GRANT} --role=roles/iam.roleAdmin
"""),
    "terraform init fails": ([], {"terraform": [("init", "Initializing ...\n\nError: Failed to install provider\n\ncould not connect\nmore\nraw", 1)]}, """1 problem(s); nothing was changed

  - terraform init failed: Error: Failed to install provider could not connect more raw \n      terraform -chdir=infra/terraform init shows the whole error; DIR/backend.tf says where the state is, and how to create its bucket
"""),
    "--destroy: the cluster does not answer": (["--destroy", "--yes"], {"kubectl": [("get --raw /version", "Unable to connect to the server: EOF", 1)]}, """1 problem(s); nothing was changed

  - the cluster does not answer: Unable to connect to the server: EOF
      kubectl config use-context CONTEXTGONE
"""),
    "--destroy: the node pools cannot be listed": (["--destroy", "--yes"], {"settings": Settings(jobset_provider="gke", node_pools="gke-home us-east5 research"), "gcloud": [("container node-pools list", "ERROR: (gcloud) no right", 1)]}, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILED)
def test_what_cannot_be_checked_ends_the_run(case: str, read_only: Installer) -> None:
    arguments, prepared, problems = FAILED[case]
    for name, value in prepared.items():
        setattr(read_only, name, value)
    ran = read_only.run(*arguments, "prod")
    assert (ran.code, ran.changing_calls()) == (1, [])
    assert ran.output.partition("deploy.sh: ")[2] == problems.replace("GONE", GONE)
    if case == "a permission cannot be checked":
        assert "these permissions cannot be checked: run.services.setIamPolicy\n" in ran.output
    if not problems:
        assert ran.output.endswith("\nERROR: (gcloud) no right\n")


@pytest.mark.parametrize(
    "images, needed",
    [
        (["--images", "example.test/tpu:1"], set()),
        (["--docker"], set()),
        ([], {"cloudbuild.builds.create"}),
    ],
    ids=["named", "by docker", "by Cloud Build"],
)
def test_permissions_for_builds_are_checked_only_if_cloud_build_builds_the_images(
    images: list[str], needed: set[str], read_only: Installer
) -> None:
    read_only.lacking = {"cloudbuild.builds.create"}
    ran = read_only.run(*images, "prod", answer="n\n")
    assert set(re.findall(r"you lack (\S+)", ran.output)) == needed


def test_a_failed_build_ends_the_run(read_only: Installer) -> None:
    read_only.docker = [("build --file relay/", "ERROR: failed to solve", 1)]
    ran = read_only.run("--docker", "--yes", "prod")
    assert ran.code == 1
    assert ran.says("ERROR: failed to solve\n")
    assert not any("kubectl apply" in call or "docker push" in call for call in ran.calls)


APPROVES_ALL = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "auto-approve-csrs-for-group"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
    },
    "subjects": [
        {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Group",
            "name": "system:bootstrappers",
        }
    ],
}
"""The ClusterRoleBinding of Kubernetes' page on TLS bootstrapping."""


def test_a_cluster_that_approves_all_bootstrap_tokens_requires_external_join_approval(
    read_only: Installer,
) -> None:
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    assert read_only.plane.request("POST", bindings, APPROVES_ALL)[0] == 201
    try:
        ran = read_only.run("--dry-run", "prod")
        read_only.settings.join_approval = "external"
        external = read_only.run("--dry-run", "prod")
    finally:
        read_only.plane.request("DELETE", f"{bindings}/auto-approve-csrs-for-group")
    assert ran.code == 1
    assert ran.output.endswith(
        "1 problem(s); nothing was changed\n"
        "\n  - the cluster approves the requests of all bootstrap tokens, so that each token fits "
        "every Node\n      remove system:bootstrappers from the ClusterRoleBindings to "
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient, or set join_approval = "
        '"external"\n'
    )
    assert external.code == 0, external.output
    assert (
        "join_approval is external: the holder of a VM's token can become any Node"
        in external.output
    )


def test_a_jobset_provider_without_jobset_in_the_cluster_is_a_problem(read_only: Installer) -> None:
    read_only.settings.jobset_provider = "tpu-node-group"
    ran = read_only.run("prod")
    assert ran.code == 1
    assert ran.output.partition("deploy.sh: ")[2] == (
        "1 problem(s); nothing was changed\n"
        "\n  - jobset_provider is tpu-node-group, but JobSet is not installed in the cluster\n"
        "      https://jobset.sigs.k8s.io/docs/installation\n"
    )
    read_only.settings.slice_workloads = True
    assert "JobSet is not installed" not in read_only.run("prod").output


def test_a_cluster_without_admission_policies_is_a_problem(read_only: Installer) -> None:
    read_only.kubectl = [("get --raw /version", '{"major": "1", "minor": "29+"}', 0)]
    ran = read_only.run("prod")
    assert ran.code == 1
    assert ran.output.partition("deploy.sh: ")[2] == (
        "1 problem(s); nothing was changed\n"
        "\n  - Kubernetes 1.29 has no ValidatingAdmissionPolicies, which restrict permissions on Secrets "
        "and Nodes\n      upgrade the cluster to 1.30 or newer\n"
    )


def test_functions_that_cannot_reach_the_cluster_are_reported_at_the_end(
    installed: Installer,
) -> None:
    why = "ResyncDropped\tGET /api/v1/namespaces/kube-system: 401 Unauthorized: Unauthorized"
    installed.gcloud, installed.kubectl = [("logging read", why, 0)], [ROLLED_OUT]
    ran = installed.run("--yes", "--images", "example.test/tpu:1", "prod")
    assert ran.code == 1
    assert len([call for call in ran.calls if "topics publish" in call]) == 3
    assert "no answer yet" not in ran.output
    assert ran.output.endswith(
        f"deploy.sh: everything is installed, but label_node does not work: {why}\n"
        "fix that (docs/cluster-access.md), and run this again; its log: gcloud logging read "
        "'resource.labels.service_name:label-node' --project=my-gcp-project --limit=20\n"
    )


@pytest.mark.parametrize(
    "logged, publishes",
    [
        ("", 10),
        ("Refused\tGET /api/v1/namespaces/kube-system: 403 Forbidden: no right", 10),
        ("PushRefused\tthe token's audience is 'x', not PUSH_AUDIENCE='y'", 1),
        ("CannotStart\tPUBSUB_PROJECT is not set", 1),
    ],
    ids=["no line", "a permission not yet granted", "wrong audience", "no settings"],
)
def test_only_an_error_that_may_be_temporary_is_retried(
    logged: str, publishes: int, installed: Installer
) -> None:
    installed.gcloud, installed.kubectl = [("logging read", logged, 0)], [ROLLED_OUT]
    installed.sleep = [(" (4|5|60)$", "", 0)]
    ran = installed.run("--yes", "--images", "example.test/tpu:1", "prod")
    assert ran.code == 1
    assert len([call for call in ran.calls if "topics publish" in call]) == publishes
    cause = logged or "its log has no line for message 1234567890"
    assert (
        f"\ndeploy.sh: everything is installed, but label_node does not work: {cause}\n"
        in ran.output
    )


def test_the_scripts_use_no_feature_newer_than_bash_3_2_of_macos(read_only: Installer) -> None:
    """In Bash 3.2 an empty array is an unset variable, and newer builtins do not exist."""
    newer = (
        r"\$\{[#!]?\w+\[|\w\+?=\(|read -\w*a|mapfile|readarray|(?:declare|local) -"
        r"|\$\{\w+(?:,|\^|@)|&>>|\|&"
    )
    for script in ("deploy.sh", "infra/preflight.sh", "infra/settings.sh"):
        assert re.findall(newer, (read_only.tree / script).read_text()) == []


def test_all_missing_tools_are_reported_together(read_only: Installer) -> None:
    bare = read_only.tree / "bare"
    bare.mkdir()
    for tool in ("bash", "env", "dirname", "mktemp", "rm", "curl"):
        (bare / tool).symlink_to(str(shutil.which(tool)))
    ran = read_only.run("prod", path=os.fspath(bare))
    assert ran.code == 1
    assert ran.output == (
        "deploy.sh: 4 problem(s); nothing was changed\n"
        "\n  - gcloud is not installed\n      install gcloud, and put it on PATH\n"
        "\n  - terraform is not installed\n      install terraform, and put it on PATH\n"
        "\n  - kubectl is not installed\n      install kubectl, and put it on PATH\n"
        "\n  - helm is not installed\n      install helm, and put it on PATH\n"
    )


@pytest.mark.parametrize(
    "call, answer, problem",
    [
        (
            "template --help",
            "Flags:\n  --install",
            "  - helm is older than 3.17\n      install a newer one\n",
        ),
        (
            "status tpu-functions",
            '{"name":"tpu-functions","info":{"status":"pending-upgrade"}}',
            "  - the release tpu-functions is pending-upgrade: helm is still running, or it was interrupted\n"
            "      if it does not run: kubectl --namespace=tpu-functions delete secrets "
            "--selector=owner=helm,name=tpu-functions,status=pending-upgrade\n",
        ),
    ],
)
def test_a_helm_that_could_not_install_is_reported_before_anything_is_changed(
    call: str, answer: str, problem: str, read_only: Installer
) -> None:
    read_only.helm = [(call, answer, 0)]
    ran = read_only.run("--images", "example.test/tpu:1", "prod")
    assert ran.output.endswith(f"deploy.sh: 1 problem(s); nothing was changed\n\n{problem}")
    assert ran.changing_calls() == []


@pytest.mark.parametrize(
    "values, problem",
    [
        ("injectenv: {enabled: true}", "'injectenv' not allowed"),
        ("guardrails: {limits: {maxChips: '64'}}", "guardrails.limits need guardrails.enabled: "),
        ("guardrails: {enabled: true", "did not find expected"),
        ("guardrails: {enabled: true, limits: {maxChips: '64'}}", ""),
    ],
    ids=["unknown", "without effect", "no YAML", "valid"],
)
def test_values_that_the_chart_rejects_are_reported_before_anything_is_changed(
    values: str, problem: str, read_only: Installer
) -> None:
    (read_only.folder / "prod.yaml").write_text(values)
    ran = read_only.run("--dry-run", "--images", "example.test/tpu:1", "prod")
    found = re.findall(r"\n  - DIR/prod.yaml: (.*)\n      correct it \(docs/kub", ran.output)
    assert [problem in one for one in found] == ([True] if problem else []), ran.output
    assert (ran.code, ran.changing_calls()) == (1 if problem else 0, [])


def test_values_that_need_those_of_the_last_run_are_accepted(installed: Installer) -> None:
    installed.outputs = ID_TOKENS
    (installed.folder / "prod.yaml").write_text("identity: {users: {sweep: me}}")
    rejected = installed.run("--dry-run", "--images", "example.test/tpu:1", "prod")
    assert "  - DIR/prod.yaml: " in rejected.output
    (installed.folder / "prod.deployed.yaml").write_text(ID_TOKENS.values)
    ran = installed.run("--dry-run", "--images", "example.test/tpu:1", "prod")
    assert ran.code == 0, ran.output


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--force", "prod"], "unknown option --force; see ./deploy.sh --help"),
        (["--uninstall", "--restored", "prod"], "--restored installs: run ./deploy.sh --dir DIR --restored prod first, then --uninstall"),
        (["prod", "test"], "one cluster at a time, not prod and test"),
        (["--dir", "--destroy", "prod"], "--dir needs a folder, not --destroy; see ./deploy.sh --help"),
        (["--dir", "", "prod"], "--dir needs a folder; see ./deploy.sh --help"),
        (["--dir"], "--dir needs a folder; see ./deploy.sh --help"),
        (["--images", "--yes", "prod"], "--images needs REPOSITORY:TAG, not --yes; see ./deploy.sh --help"),
        (["--images"], "--images needs REPOSITORY:TAG; see ./deploy.sh --help"),
        (["../prod"], "CLUSTER must be letters, digits, '-', '_' and '.', the first one a letter or digit, not ../prod"),
    ],
)  # fmt: skip
def test_an_invalid_command_line_is_rejected(
    arguments: list[str], message: str, read_only: Installer
) -> None:
    ran = read_only.run(*arguments)
    assert (ran.code, ran.output) == (1, f"deploy.sh: {message}\n")


@pytest.mark.parametrize(
    "images, why",
    [
        ("example.test:5000/tpu", "it must be REPOSITORY:TAG, or REPOSITORY/relay@sha256:..."),
        ("example.test/tpu:", "it must be REPOSITORY:TAG, or REPOSITORY/relay@sha256:..."),
        ("example.test/tpu@sha256:12", "a digest is sha256: and 64 hexadecimal digits"),
        (
            "ghcr.io/Acme/tpu:1",
            "image names are lower-case",
        ),
    ],
)
def test_invalid_image_names_are_rejected(images: str, why: str, read_only: Installer) -> None:
    ran = read_only.run("--images", images, "prod")
    assert (ran.code, ran.output) == (1, f"deploy.sh: --images {images}: {why}\n")


def test_a_relative_path_in_kubeconfig_is_of_the_folder_in_which_it_is_given(
    read_only: Installer,
) -> None:
    kubeconfig = Path(read_only.plane.kubeconfig)
    ran = read_only.run_shell(
        f"cd {kubeconfig.parent}; export KUBECONFIG=missing:{kubeconfig.name}; "
        f"{read_only.tree}/deploy.sh --dir {read_only.folder} --nodes-pull --dry-run prod"
    )
    assert ran.code == 0, ran.output


def test_help_prints_the_comment_at_the_top_of_the_script(read_only: Installer) -> None:
    ran = read_only.run("--help")
    top = (read_only.tree / "deploy.sh").read_text().partition("\nset -")[0].splitlines()[1:]
    assert (ran.code, ran.calls) == (0, [])
    assert ran.output.splitlines() == [line.removeprefix("#").removeprefix(" ") for line in top]


@pytest.mark.parametrize("mode", [[], ["--dry-run"], ["--destroy"]])
def test_a_cluster_of_another_installation_is_not_changed(
    mode: list[str], installed: Installer
) -> None:
    installed.settings.prefix = "research"
    ran = installed.run(*mode, "--yes", "prod")
    assert ran.code == 1
    assert ran.output.partition("deploy.sh: ")[2] == (
        "1 problem(s); nothing was changed\n"
        "\n  - context tests has the installation of project my-gcp-project with prefix tpu-functions-,"
        " but prod is project my-gcp-project with prefix research-\n"
        "      kubectl config use-context CONTEXT\n"
    )
    assert ran.changing_calls() == []


@pytest.mark.parametrize("mode", [[], ["--destroy"]])
def test_a_folder_without_the_state_of_the_installation_is_rejected(
    mode: list[str], installed: Installer
) -> None:
    (installed.tree / "state").unlink()
    installed.terraform = []
    ran = installed.run(*mode, "--yes", "prod")
    assert ran.code == 1
    assert ran.output.partition("deploy.sh: ")[2] == (
        "1 problem(s); nothing was changed\n"
        "\n  - context tests has the installation, but Terraform has no state of prod here\n"
        "      correct DIR/backend.tf, or copy it, or terraform.tfstate.d, from where the state is "
        "(docs/install.md, Upgrade)\n"
    )
    assert ran.changing_calls() == []


NO_STATE = ("state list", "", 0)
"""Terraform's state is empty, as after ``destroy``."""
FORBIDDEN = 'Error from server (Forbidden): User "me" cannot get'
OTHER = ELSEWHERE["installation_id"]
OUT = "; if this is the cluster of prod, restored or rebuilt: ./deploy.sh --dir DIR --restored prod (docs/backups.md)"
IDENTITY = "it cannot be checked which cluster context tests is: "
READ = "kubectl get namespace kube-system --output=yaml; kubectl --namespace=default get endpointslices kubernetes"
ANSWERS = {
    "another cluster": ({"cluster_identity": ELSEWHERE["cluster_identity"]}, [], [HAS_STATE], "context tests is another cluster than that of prod: the uid of Namespace kube-system is UID, not 11111111-2222-3333-4444-555555555555", OUT),
    "another installation": ({"installation_id": OTHER}, [], [HAS_STATE], f"the cluster of context tests belongs to installation ID, but prod is {OTHER}", OUT),
    "no state of the installation": ({}, [], [NO_STATE], "the cluster of context tests belongs to installation ID, but prod is not installed yet", OUT),
    "a copy of the cluster": ({"cluster_identity": "UID 10.128.0.2 10.128.0.3"}, [("get endpointslices", "10.99.0.2", 0)], [HAS_STATE], "the cluster of context tests may be a copy of that of prod: its API server has the address 10.99.0.2, not 10.128.0.2 10.128.0.3", OUT),
    "an empty cluster and an old state": ({}, [("get namespace kube-system", "UID|", 0), ("get configmaps", "", 0)], [OLD_STATE], "context tests has no installation, but Terraform has 2 resource(s) of prod", OUT),
    "the state of another project": ({}, [], [("output -json relay_settings", '{"PUBSUB_PROJECT":"other-project","TOPIC_PREFIX":"research-"}', 0), HAS_STATE], "DIR/prod.tfvars is project my-gcp-project with prefix tpu-functions-, but Terraform's state of prod is project other-project with prefix research-", "restore project_id and name_prefix; an installation with others needs another name than prod"),
    "Namespace kube-system is forbidden": ({}, [("get namespace kube-system", f"{FORBIDDEN} namespaces", 1)], [HAS_STATE], f"{IDENTITY}{FORBIDDEN} namespaces", READ),
    "Namespace kube-system has no uid": ({}, [("get namespace kube-system", "|ID", 0)], [HAS_STATE], f"{IDENTITY}Namespace kube-system has no uid", READ),
    "EndpointSlices are forbidden": ({}, [("get endpointslices", f"{FORBIDDEN} endpointslices", 1)], [HAS_STATE], f"{IDENTITY}{FORBIDDEN} endpointslices", READ),
}  # fmt: skip
"""What differs in the state, answers of kubectl and Terraform, the problem and its solution."""
MODES = (["--yes"], ["--dry-run"], ["--destroy", "--yes"])


@pytest.mark.parametrize(
    "case, mode",
    [(case, mode) for case in ANSWERS for mode in MODES[:2]] + [("another cluster", MODES[2])],
    ids=str,
)
def test_nothing_is_changed_if_cluster_state_and_settings_are_not_of_one_installation(
    case: str, mode: list[str], installed: Installer
) -> None:
    state, kubectl, installed.terraform, problem, solution = ANSWERS[case]
    kept = json.loads((installed.tree / "state").read_text())
    uid = kept["cluster_identity"].split()[0]

    def real(text: str) -> str:
        return text.replace("UID", uid).replace("ID", kept["installation_id"])

    changed = {name: real(value) for name, value in state.items()}
    (installed.tree / "state").write_text(json.dumps(kept | changed))
    installed.kubectl = [(pattern, real(output), code) for pattern, output, code in kubectl]
    ran = installed.run(*mode, "prod")
    assert ran.code == 1
    if solution == OUT:
        solution = f"kubectl config use-context CONTEXT{OUT}"
        solution += GONE if "--destroy" in mode else ""
    assert ran.output.partition("deploy.sh: ")[2] == (
        f"1 problem(s); nothing was changed\n\n  - {real(problem)}\n      {solution}\n"
    )
    assert ran.changing_calls() == []
    assert not any("get tpunodegroups" in call for call in ran.calls)


@pytest.mark.parametrize("mode", MODES[:2], ids=" ".join)
@pytest.mark.parametrize(
    "output, code, problem, solution",
    [
        ("tpu-functions-label-node@my-gcp-project.iam.gserviceaccount.com", 0, "has another installation with prefix tpu-functions: tpu-functions-label-node@my-gcp-project.iam.gserviceaccount.com is not in Terraform's state of prod", "set another name_prefix in DIR/prod.tfvars; or run it where the state of that installation is (docs/install.md, Upgrade)"),
        ("ERROR: PERMISSION_DENIED", 1, ": it cannot be checked whether another installation has the prefix tpu-functions: ERROR: PERMISSION_DENIED", f"{GRANT} --role=roles/iam.serviceAccountViewer"),
    ],
    ids=["it exists", "it cannot be read"],
)  # fmt: skip
def test_a_prefix_of_another_installation_in_the_project_is_rejected(
    output: str, code: int, problem: str, solution: str, mode: list[str], read_only: Installer
) -> None:
    read_only.gcloud = [("iam service-accounts list", output, code)]
    ran = read_only.run(*mode, "prod")
    assert ran.code == 1
    space = "" if problem.startswith(":") else " "
    assert ran.output.partition("deploy.sh: ")[2] == (
        "1 problem(s); nothing was changed\n"
        f"\n  - project my-gcp-project{space}{problem}\n      {solution}\n"
    )
    assert ran.changing_calls() == []


def test_a_prefix_of_another_installation_that_serves_the_same_project_is_rejected(
    read_only: Installer,
) -> None:
    """The names of sinks and roles are unique in a served project, too."""
    read_only.settings = Settings(projects=f"{PROJECT} tpus")
    topic = "pubsub.googleapis.com/projects/another/topics/tpu-functions-label-node"
    listing = r"sinks list --project=tpus --filter=name~\^tpu-functions-\(label-node\|provision-slice\)\$ "
    read_only.gcloud = [(listing, topic, 0)]
    ran = read_only.run("--yes", "prod")
    assert (ran.code, ran.changing_calls()) == (1, [])
    assert ran.output.partition("deploy.sh: ")[2] == (
        "1 problem(s); nothing was changed\n\n"
        f"  - project tpus is served by another installation with prefix tpu-functions: a log sink exports to {topic}\n"
        "      set another name_prefix in DIR/prod.tfvars\n"
    )
    own = ("state list", f'{HAS_STATE[1]}\ngoogle_logging_project_sink.step["tpus/label_node"]', 0)
    read_only.terraform = [own]
    read_only.recorded = dict.fromkeys(ELSEWHERE, "")
    assert "another installation" not in read_only.run("--dry-run", "prod").output


def test_a_restored_cluster_is_recorded_after_a_question(read_only: Installer) -> None:
    read_only.terraform = [HAS_STATE, (" apply ", "Error: interrupted", 1)]
    read_only.kubectl = [("annotate", "namespace/kube-system annotated", 0)]
    asked = read_only.run("--restored", "prod", answer="n\n")
    assert asked.code == 1
    assert re.search(
        r"\ncontext tests is another cluster than that of prod: the uid of Namespace kube-system is \S+, "
        r"not \S+\ndeploy.sh: not confirmed; nothing was changed\n$",
        asked.output,
    )
    assert asked.changing_calls() == []
    shown = read_only.run("--dry-run", "--restored", "prod")
    assert (shown.code, shown.changing_calls()) == (0, [])
    annotate, apply = read_only.run("--restored", "--yes", "prod").changing_calls()
    assert annotate == (
        "kubectl annotate namespace kube-system --overwrite "
        f"tpu-functions.dev/installation-id={OTHER}"
    )
    assert " apply -input=false " in apply
    ran = read_only.run("--restored", "--destroy", "prod")
    assert (ran.code, ran.output) == (
        1,
        "deploy.sh: --restored installs: run ./deploy.sh --dir DIR --restored prod first, then --destroy\n",
    )


def test_the_first_upgrade_to_a_version_with_ids_can_be_repeated(installed: Installer) -> None:
    """The cluster was annotated before Terraform's apply, which has failed."""
    kept = json.loads((installed.tree / "state").read_text())
    installed.terraform = [OLD_STATE, (" apply ", "Error: interrupted", 1)]
    annotate, _ = installed.run("--yes", "prod").changing_calls()
    assert annotate.endswith(f"tpu-functions.dev/installation-id={kept['installation_id']}")


def test_a_missing_required_setting_is_reported(read_only: Installer) -> None:
    read_only.terraform = [("console", "(known after apply)", 0)]
    ran = read_only.run("prod")
    assert ran.code == 1
    assert ran.output.endswith(
        "deploy.sh: DIR/prod.tfvars: a required setting is missing or misspelled: "
        "project_id, region, cluster_access and relay_identity are required "
        "(infra/terraform/README.md)\n"
    )


def test_an_unknown_setting_is_noted(read_only: Installer) -> None:
    warning = (
        "Warning: Value for undeclared variable\n\nThe root module does not declare a variable named "
        '"nameprefix" but a value was found\n'
    )
    output = warning + read_only.settings.console_output()
    read_only.terraform = [("console", output, 0)]
    ran = read_only.run("prod", answer="n\n")
    assert (
        "\nnote: DIR/prod.tfvars sets nameprefix, which is not a setting: correct its name "
        "or delete it (infra/terraform/README.md)\n"
    ) in ran.output


def test_a_misspelled_cluster_is_reported_with_the_existing_ones(read_only: Installer) -> None:
    ran = read_only.run("--yes", "prood")
    assert ("\n  - DIR/prood.tfvars does not exist; there are settings of prod\n") in ran.output


def test_destroy_checks_only_the_permissions_that_it_needs(read_only: Installer) -> None:
    read_only.lacking = PERMISSIONS.keys() - ALSO_NEEDED_TO_DELETE
    read_only.settings.secrets = ["kubeconfig-sweep"]
    apis = ("cloudresourcemanager", "iam", "serviceusage")
    read_only.gcloud = [
        ("services list", "\n".join(f"{name}.googleapis.com" for name in apis), 0),
        ("secrets versions list", "ERROR: NOT_FOUND", 1),
    ]
    ran = read_only.run("--destroy", "--yes", "prod")
    assert ran.code == 0, ran.output
    read_only.lacking = {"pubsub.topics.delete"}
    rejected = read_only.run("--destroy", "--yes", "prod")
    assert rejected.code == 1
    assert re.findall(r"you lack (\S+)", rejected.output) == ["pubsub.topics.delete"]


def test_a_dry_run_shows_what_the_run_would_change_in_the_cluster(installed: Installer) -> None:
    same = installed.run("--dry-run", "--images", "example.test/tpu:1", "prod")
    assert same.code == 0, same.output
    assert "From version" not in same.output
    assert (
        "without the changes planned above; images: example.test/tpu:1\nno change\n" in same.output
    )
    kept = installed.run("--dry-run", "prod")
    assert (
        "images: the current ones, but an installation would build new ones\nno change\n"
        in kept.output
    )
    other = installed.run("--dry-run", "--images", "example.test/tpu:2", "prod")
    assert other.code == 0, other.output
    changed = [line.split() for line in other.output.splitlines() if re.match(r"[-+] ", line)]
    assert changed == [
        ["-", "image:", "example.test/tpu/relay:1"],
        ["+", "image:", "example.test/tpu/relay:2"],
    ]
    written = (installed.folder / "prod.deployed.yaml").read_text()
    assert 'relay: "example.test/tpu/relay:1"' in written


def test_a_run_keeps_the_context_that_it_has_checked(installed: Installer) -> None:
    """Somebody who works on another cluster in a second terminal switches the current context. A variable
    of helm's that names a context counts for helm alone."""
    kubeconfig = Path(installed.plane.kubeconfig)
    kubectl = f"{installed.plane.kubectl} --kubeconfig={kubeconfig}"
    own, terraform = kubeconfig.read_text(), installed.tree / "bin" / "terraform"
    terraform.rename(installed.tree / "terraform")
    terraform.write_text(
        f"""#!/bin/sh
        case "$*" in *" plan "*)
          {kubectl} config set-cluster another --server=https://127.0.0.1:9
          {kubectl} config set-context another --cluster=another
          {kubectl} config use-context another ;;
        esac
        exec {installed.tree}/terraform "$@"
        """
    )
    terraform.chmod(0o755)
    kubeconfig.write_text(own.replace('"tests"', json.dumps("CORP\\tests")))
    installed.environment = {"HELM_KUBECONTEXT": "another"}
    try:
        ran = installed.run("--dry-run", "prod")
    finally:
        kubeconfig.write_text(own)
    assert 'Switched to context "another"' in ran.output
    assert ran.code == 0, ran.output
    assert ran.says("no change\n")


@pytest.mark.parametrize(
    "version, provider, warns",
    [
        (GKE_VERSION, "", True),
        (GKE_VERSION, "tpu-node-group", True),
        (GKE_VERSION, "gke", False),
        ("", "", False),
    ],
)
def test_a_warning_says_that_groups_get_no_nodes_on_gke_without_node_pools(
    version: str, provider: str, warns: bool, read_only: Installer
) -> None:
    read_only.settings = Settings(jobset_provider=provider, node_pools="gke-home us-east5 research")
    read_only.kubectl = [("get customresourcedefinitions jobsets", "customresourcedefinition", 0)]
    read_only.kubectl += [("get --raw /version", version, 0)] if version else []
    ran = read_only.run("--images", "example.test/tpu:1", "prod", answer="n\n")
    assert ran.output.endswith("deploy.sh: not confirmed; nothing was changed\n")
    warning = (
        "this cluster is on GKE: no VM of a TPUNodeGroup can join it by kubeadm; for slices of "
        'JobSets, set jobset_provider = "gke" (docs/install.md, A cluster)\n'
    )
    assert (warning in ran.output) is warns


def test_an_uninstallation_without_resources_on_google_cloud_says_so(read_only: Installer) -> None:
    read_only.terraform = [("state list", "data.google_project.this", 0)]
    ran = read_only.run("--uninstall", "--yes", "prod")
    assert ran.code == 0, ran.output
    assert ran.output.endswith(
        "\non Google Cloud: nothing\nTo delete all of it: ./deploy.sh --dir DIR --destroy prod\n"
    )


def test_a_pause_of_the_sweep_is_reported_with_the_region_of_its_job(installed: Installer) -> None:
    installed.settings.sweep_region = "us-east1"
    unpaused = installed.run("--yes", "--images", "example.test/tpu:1", "prod")
    installed.gcloud = [("scheduler jobs describe", "PAUSED", 0)]
    paused = installed.run("--yes", "--images", "example.test/tpu:1", "prod")
    assert (unpaused.code, "is paused" in unpaused.output) == (0, False), unpaused.output
    assert paused.code == 0, paused.output
    assert (
        "\nnote: the sweep is paused; to resume it:\n"
        "  gcloud scheduler jobs resume tpu-functions-sweep --location=us-east1 --project=my-gcp-project\n"
        "\n== Installed; all checks succeeded\n"
    ) in paused.output


@pytest.mark.parametrize("is_first", [True, False])
def test_a_first_run_that_fails_says_what_is_there_and_how_to_delete_it(
    is_first: bool, read_only: Installer
) -> None:
    state = ("#2 .* state list", "data.google_project.this\ngoogle_pubsub_topic.step", 0)
    read_only.terraform = [(" apply ", "Error: Forbidden", 1), state]
    read_only.helm = [] if is_first else [("get metadata", '{"appVersion":"0.2.0"}', 0)]
    ran = read_only.run("--yes", "prod")
    assert ran.code == 1
    says = (
        "\n== The installation has not ended. There are now:\n"
        "1 resource(s) of Terraform in my-gcp-project, and the chart in tests: not installed\n"
        "To continue, run this again. To delete it: ./deploy.sh --dir DIR --destroy prod\n"
    )
    assert ran.output.endswith(f"Error: Forbidden\n{says if is_first else ''}")


NOTES = """
## [Unreleased]

### Upgrading

Of the next one.

### Added

- A thing.

## [0.2.0] - 2026-11-01

### Upgrading

Write a value.

### Changed

Other things.

## [0.1.9] - 2026-10-01

### Upgrading

Delete an object.

## [0.1.0] - 2026-01-01

### Upgrading

Of the installed one.
"""


@pytest.mark.parametrize(
    "metadata, shown",
    [
        (
            '"appVersion":"0.1.0"',
            "From version 0.1.0 to 0.2.0\n\nOf the next one.\n\n\nWrite a value.\n\n\nDelete an object.\n\n"
            "Decisions that this version makes differently: kubectl tng rehearse, by its own\n"
            "kubectl-tng (in a clone: make kubectl-tng).\n",
        ),
        ('"appVersion":"0.2.0"', ""),
        (
            '"appVersion":"0.10.0"',
            "From version 0.10.0 to 0.2.0\nThis is an older version (docs/operate.md, Upgrades and rollbacks)\n",
        ),
        ("", ""),
    ],
    ids=["older", "the same", "newer", "none"],
)
def test_a_run_shows_what_the_changelog_says_about_the_way_from_the_installed_version(
    metadata: str, shown: str, read_only: Installer
) -> None:
    (read_only.tree / "CHANGELOG.md").write_text(NOTES)
    chart = read_only.tree / "infra" / "chart" / "Chart.yaml"
    chart.write_text(re.sub("(?m)^appVersion: .*", "appVersion: 0.2.0", chart.read_text()))
    read_only.helm = [
        ("get metadata", f'{{"chart":"tpu-functions",{metadata},"labels":{{"version":"1"}}}}', 0)
    ]
    for arguments in (["--dry-run", "prod"], ["prod"]):
        ran = read_only.run(*arguments, answer="n\n")
        between = ran.output.partition(" context tests\n")[2].partition("\n== Google Cloud\n")[0]
        between = re.sub("^note: .*\n", "", between)
        assert between == (f"\n== {shown}" if shown else "")


def test_an_older_version_that_cannot_follow_is_rejected_with_the_reason(
    read_only: Installer,
) -> None:
    limit = '"annotations":{"tpu-functions.dev/oldest-downgrade":"0.9.0: older ones cannot read the status"}'
    read_only.helm = [("get metadata", f'{{"appVersion":"0.10.0",{limit}}}', 0)]
    ran = read_only.run("--yes", "prod")
    assert ran.output.partition("deploy.sh: ")[2] == (
        "1 problem(s); nothing was changed\n\n"
        f"  - version 0.10.0 is installed, from which there is no way back to {VERSION}: older ones cannot read the status\n"
        "      use the release 0.9.0, or a newer one\n"
    )
    assert ran.changing_calls() == []


def test_destroy_shows_the_deletions_before_it_asks_for_confirmation(installed: Installer) -> None:
    installed.terraform = [
        HAS_STATE,
        ("plan -destroy", "Plan: 0 to add, 0 to change, 7 to destroy.", 0),
    ]
    ran = installed.run("--destroy", "prod", answer="n\n")
    assert ran.code == 1
    assert ran.output.endswith(
        "\n== Google Cloud\nPlan: 0 to add, 0 to change, 7 to destroy.\n\n== Cluster\n"
        "then all objects of the chart are deleted from tests\n"
        "deploy.sh: not confirmed; nothing was changed\n"
    )
    assert ran.changing_calls() == []


RELEASES = 'google_pubsub_topic.step["release_slice"]'
"""The step that releases slices of workloads, in Terraform's state."""
POOLS_AT = "gke-home us-east5 research"
LISTING = "container node-pools list --project=gke-home --location=us-east5 --cluster=research "
POOL = "train-410e1982e93873ae\tgoogle.com/nodepool-manager=tpu-provisioner;team=a"


def has_slices(it: Installer, provider: str = "gke") -> None:
    """Let Terraform's state of this cluster be that of an installation with slices of workloads."""
    _, namespace = it.plane.request("GET", "/api/v1/namespaces/kube-system")
    it.recorded = {
        "installation_id": "",
        "cluster_identity": f"{namespace['metadata']['uid']} ",
    }
    it.terraform = [("state list", f"{HAS_STATE[1]}\n{RELEASES}", 0)]
    tool = {"JOBSET_PROVIDER": provider}
    if provider == "gke":
        keys = ("GCP_PROJECT_ID", "GCP_CLUSTER_LOCATION", "GCP_CLUSTER")
        tool |= dict(zip(keys, POOLS_AT.split(), strict=True))
    lines = "".join(f"export {key}='{value}'\n" for key, value in tool.items())
    it.outputs = replace(it.outputs, tool_environment=lines)


@pytest.mark.parametrize("mode", ["--destroy", "--uninstall"])
@pytest.mark.parametrize(
    "provider, pools",
    [("gke", POOLS_AT), ("gke", "gke-home us-east5 other"), ("", "")],
    ids=["of the last run", "another cluster", "no provider"],
)
def test_destroy_is_rejected_while_node_pools_of_jobsets_exist(
    provider: str, pools: str, mode: str, read_only: Installer
) -> None:
    """Also if a node pool has no Nodes, because its creation is in progress or failed, and whatever the
    settings say since the last run."""
    has_slices(read_only)
    read_only.settings = Settings(jobset_provider=provider, node_pools=pools)
    read_only.gcloud = [(LISTING, f"default-pool\t\n{POOL}", 0)]
    rejected = read_only.run(mode, "--yes", "prod")
    assert rejected.code == 1
    assert (
        "  - node pools of JobSets exist, and nothing would delete them: train-410e1982e93873ae \n"
        "      delete their JobSets, and wait until the node pools are gone\n"
    ) in rejected.output
    assert rejected.changing_calls() == []


def test_destroy_is_rejected_while_slices_without_a_group_exist(read_only: Installer) -> None:
    """The functions that it deletes are those that report them."""
    _, namespace = read_only.plane.request("GET", "/api/v1/namespaces/kube-system")
    uid = namespace["metadata"]["uid"]
    listing = f"managed list --project={PROJECT} --filter=name~.tng- AND description~{uid} "
    leaked: Rule = (listing, "tng-train-0a1b2c3d\ntng-serve-4e5f6a7b", 0)
    for mode in ("--destroy", "--uninstall"):
        read_only.gcloud = [leaked]
        rejected = read_only.run(mode, "--yes", "prod")
        assert (rejected.code, rejected.changing_calls()) == (1, [])
        assert (
            f"  - project {PROJECT} has slices whose TPUNodeGroups are gone, and nobody would report them: "
            "tng-train-0a1b2c3d tng-serve-4e5f6a7b \n"
            "      unless they are of a cluster that was copied from this one or to it (docs/backups.md), delete them: kubectl tng leaks prints the commands\n"
        ) in rejected.output
    read_only.gcloud = [("managed list", "ERROR: compute.instanceGroupManagers.list is needed", 1)]
    unread = read_only.run("--destroy", "prod", answer="n\n")
    assert (
        f"note: project {PROJECT}: it cannot be checked whether slices are left: "
        "ERROR: compute.instanceGroupManagers.list is needed\n"
    ) in unread.output
    assert unread.output.endswith("deploy.sh: not confirmed; nothing was changed\n")
    read_only.kubectl = [
        ("get customresourcedefinitions tpunodegroups", "found", 0),
        ("get tpunodegroups", "default  train", 0),
    ]
    read_only.gcloud = [leaked]
    with_groups = read_only.run("--destroy", "--yes", "prod")
    assert "deploy.sh: 1 problem(s)" in with_groups.output, "they may be those of the groups"


def test_destroy_is_rejected_while_a_node_pool_without_the_labels_of_its_slice_exists(
    read_only: Installer,
) -> None:
    """Nobody releases it, and the function that reports it would be deleted."""
    has_slices(read_only)
    read_only.settings = Settings(jobset_provider="gke", node_pools=POOLS_AT)
    pools = [
        "default-pool\t\te2-medium",
        "mine-410e1982e93873ae\tteam=a\te2-medium",
        "mine\tteam=a\tct6e-standard-4t",
        "train-410e1982e93873ae\tteam=a\tct6e-standard-4t",
        "serve-4b0601454a676bf9\t\ttpu7x-standard-4t",
    ]
    read_only.gcloud = [(LISTING, "\n".join(pools), 0)]
    rejected = read_only.run("--destroy", "--yes", "prod")
    assert rejected.output.partition("deploy.sh: ")[2] == (
        "1 problem(s); nothing was changed\n\n"
        "  - TPU node pools have the names of slices and not their labels, and nobody would report them: "
        "train-410e1982e93873ae serve-4b0601454a676bf9 \n"
        "      gcloud container node-pools delete NAME --project=gke-home --location=us-east5 --cluster=research\n"
    )
    assert (rejected.code, rejected.changing_calls()) == (1, [])


def test_slices_are_also_looked_for_in_a_project_that_the_settings_no_longer_have(
    read_only: Installer,
) -> None:
    has_slices(read_only, "tpu-node-group")
    sink = 'google_logging_project_sink.step["my-former-project/label_node"]'
    read_only.terraform = [("state list", f"{HAS_STATE[1]}\n{sink}", 0)]
    read_only.gcloud = [("managed list --project=my-former-project", "tng-train-0a1b2c3d", 0)]
    rejected = read_only.run("--destroy", "--yes", "prod")
    assert "  - project my-former-project has slices whose TPUNodeGroups" in rejected.output
    assert (rejected.code, rejected.changing_calls()) == (1, [])


GROUPS = (
    ("get customresourcedefinitions tpunodegroups", "found", 0),
    ("get tpunodegroups --all-namespaces --selector=tpu-functions.dev/jobset-name ", "train", 0),
)


@pytest.mark.parametrize(
    "before, provider, left",
    [
        ("gke", "", "train-410e1982e93873ae"),
        ("tpu-node-group", "", "train"),
        ("gke", "tpu-node-group", "train-410e1982e93873ae"),
        ("tpu-node-group", "gke", "train"),
    ],
)
def test_a_provider_is_kept_while_its_slices_exist(
    before: str, provider: str, left: str, read_only: Installer
) -> None:
    """The functions that release them would be deleted, or look for slices of the other provider. A node
    pool may have no Nodes."""
    has_slices(read_only, before)
    read_only.settings = Settings(jobset_provider=provider, slice_workloads=bool(provider))
    read_only.gcloud = [(LISTING, f"default-pool\t\n{POOL}", 0)]
    read_only.kubectl = list(GROUPS)
    ran = read_only.run("--dry-run", "--restored", "prod")
    assert (
        f'  - slices of workloads exist, and with jobset_provider = "{provider}" nobody would release them: {left} \n'
        "      restore jobset_provider, and delete the workloads; change it when the slices are gone\n"
    ) in ran.output
    assert (ran.code, ran.changing_calls()) == (1, [])
    read_only.terraform = [HAS_STATE]
    without = read_only.run("--dry-run", "--restored", "prod")
    assert "slices of workloads" not in without.output, "they are another program's"


@pytest.mark.parametrize(
    "provider, left", [("gke", "serve-4b0601454a676bf9"), ("tpu-node-group", "serve")]
)
def test_other_workloads_keep_their_slices_until_these_are_released(
    provider: str, left: str, read_only: Installer
) -> None:
    has_slices(read_only, provider)
    values = read_only.outputs.values.replace("workloads: none", "workloads: all")
    read_only.outputs = replace(read_only.outputs, values=values)
    pools = POOLS_AT if provider == "gke" else ""
    read_only.settings = Settings(jobset_provider=provider, node_pools=pools)
    unit = "google.com/nodepool-manager=tpu-provisioner;tpu-functions.dev/unit=Deployment"
    read_only.gcloud = [(LISTING, f"{POOL}\nserve-4b0601454a676bf9\t{unit}", 0)]
    selected = "get tpunodegroups --all-namespaces --selector=tpu-functions.dev/unit-kind "
    jobsets: Rule = ("get customresourcedefinitions jobsets", "found", 0)
    read_only.kubectl = [jobsets, GROUPS[0], (selected, "serve", 0)]
    ran = read_only.run("--dry-run", "--restored", "prod")
    assert ran.output.partition("deploy.sh: ")[2] == (
        "1 problem(s); nothing was changed\n\n"
        f"  - slices of workloads exist, and with slice_workloads = false nobody would release them: {left} \n"
        "      restore slice_workloads, and delete the workloads; change it when the slices are gone\n"
    )
    read_only.outputs = replace(read_only.outputs, values=KUBECONFIGS.values)
    assert "slices of workloads" not in read_only.run("--dry-run", "--restored", "prod").output


def test_node_pools_may_be_given_back_to_an_installed_tpu_provisioner(read_only: Installer) -> None:
    has_slices(read_only)
    read_only.gcloud = [(LISTING, POOL, 0)]
    installed = "get deployments --namespace=tpu-provisioner-system"
    read_only.kubectl = [(installed, "deployment.apps/manager", 0)]
    ran = read_only.run("--dry-run", "--restored", "prod")
    assert "slices of workloads" not in ran.output
    assert read_only.run("--destroy", "prod", answer="n\n").says("== Google Cloud")
    read_only.kubectl = []
    assert "slices of workloads" in read_only.run("--dry-run", "--restored", "prod").output


def test_missing_settings_credentials_and_cluster_are_reported_together(
    read_only: Installer,
) -> None:
    (read_only.folder / "prod.tfvars").unlink()
    read_only.gcloud = [("print-access-token", "Reauthentication is needed.", 1)]
    read_only.kubectl = [("get --raw /version", "no route to host", 1)]
    ran = read_only.run("--yes", "prod")
    assert ran.code == 1
    problems = ran.output.partition("deploy.sh: ")[2].split("\n\n")
    assert [one.splitlines()[0].split(":")[0] for one in problems] == [
        "4 problem(s); nothing was changed",
        "  - DIR/prod.tfvars does not exist",
        "  - gcloud has no account",
        "  - Terraform has no credentials",
        "  - the cluster does not answer",
    ]


def test_a_placeholder_of_the_examples_is_reported(read_only: Installer) -> None:
    words = "my-gcp-project is the name in the examples; check DIR/prod.tfvars"
    assert f"note: {words}\n" in read_only.run("--dry-run", "prod").output
    read_only.gcloud = [("projects describe", "not found", 1)]
    ran = read_only.run("--dry-run", "prod")
    assert ran.code == 1
    assert (
        "project my-gcp-project does not exist, or you cannot read it: it is the name in the examples"
        in ran.output
    )
