"""deploy.sh as a platform engineer meets it: a real cluster, and a cloud that answers from a table."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import jobset_crd
from tests.conftest import open_own_control_plane
from tests.control_plane.plane import OwnControlPlane
from tests.manifests import manifest
from tests.real.deploy.installer import Installer, installer, playing_kubelet
from tests.real.deploy.outputs import JOBSETS, PROJECT, USERS_WITH_JOBSETS

A_PROVIDER = (r"console .* var\.jobset_provider$", '"tpu-node-group"', 0)
pytestmark = [pytest.mark.real, pytest.mark.xdist_group("deploy")]


@pytest.fixture
def deploy(tmp_path: Path, own_control_plane: OwnControlPlane) -> Iterator[Installer]:
    """For a cluster of the test's own."""
    with installer(tmp_path, own_control_plane) as made:
        yield made


@pytest.fixture(scope="module")
def untouched() -> Iterator[OwnControlPlane]:
    with open_own_control_plane() as plane:
        yield plane


@pytest.fixture
def look(tmp_path: Path, untouched: OwnControlPlane) -> Iterator[Installer]:
    """For a cluster that several tests share, because none of them changes anything."""
    with installer(tmp_path, untouched) as made:
        yield made
    assert untouched.request("GET", "/api/v1/namespaces/tpu-functions")[0] == 404


def test_it_installs_and_a_second_time_changes_nothing(deploy: Installer) -> None:
    with playing_kubelet(deploy.plane):
        first = deploy.run("--yes", "prod")
        assert first.code == 0, first.output
        assert "namespace/tpu-functions created" in first.output
        assert "the policy on Secrets is in force" in first.output
        assert "a message was handled, and the cluster asked" in first.output
        built = [call for call in first.calls if "builds submit" in call]
        assert len(built) == 1
        assert "--config=infra/cloudbuild.yaml" in built[0]
        second = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
        assert second.code == 0, second.output
        changed = [
            line
            for line in second.output.splitlines()
            if line.endswith((" created", " configured")) and "deployment.apps/relay" not in line
        ]
        assert changed == []
        assert not any("builds submit" in call for call in second.calls)
    _, relay = deploy.plane.request(
        "GET", "/apis/apps/v1/namespaces/tpu-functions/deployments/relay"
    )
    assert relay["spec"]["template"]["spec"]["containers"][0]["image"] == "example.test/tpu/relay:1"


def test_what_is_not_confirmed_is_not_done(look: Installer) -> None:
    ran = look.run("prod", answer="n\n")
    assert ran.code == 1
    assert ran.output.endswith("deploy.sh: not confirmed; nothing was changed\n")
    assert ran.changing_calls() == []


def test_a_dry_run_changes_nothing(look: Installer) -> None:
    ran = look.run("--dry-run", "prod")
    assert ran.code == 0, ran.output
    assert ran.changing_calls() == []
    assert any("plan -input=false" in call for call in ran.calls)
    assert "infra/kubernetes/overlays/prod would be made" in ran.output
    assert not (look.tree / "infra/kubernetes/overlays/prod").exists()


def test_all_that_is_missing_is_said_at_once_with_what_mends_it(look: Installer) -> None:
    look.lacking = {"iam.roles.create", "pubsub.topics.create"}
    look.gcloud = [
        (
            "services list",
            "compute.googleapis.com\niam.googleapis.com\nserviceusage.googleapis.com",
            0,
        ),
        ("secrets versions list kubeconfig-sweep", "", 0),
    ]
    look.terraform = [(r"console .* join.*kubeconfig_secrets", '"kubeconfig-sweep"', 0)]
    ran = look.run("prod")
    assert ran.code == 1
    assert ran.output.partition("deploy.sh: ")[2] == (
        "6 thing(s) missing; nothing was changed\n"
        "\n  - project my-gcp-project: you lack iam.roles.create\n"
        "      gcloud projects add-iam-policy-binding my-gcp-project --member=user:YOU --role=ROLE\n"
        "\n  - project my-gcp-project: the API cloudresourcemanager.googleapis.com is off\n"
        "      gcloud services enable cloudresourcemanager.googleapis.com --project=my-gcp-project\n"
        "\n  - project my-gcp-project: the API artifactregistry.googleapis.com is off\n"
        "      gcloud services enable artifactregistry.googleapis.com --project=my-gcp-project\n"
        "\n  - project my-gcp-project: the API cloudbuild.googleapis.com is off\n"
        "      gcloud services enable cloudbuild.googleapis.com --project=my-gcp-project\n"
        "\n  - project my-gcp-project: you lack pubsub.topics.create\n"
        "      gcloud projects add-iam-policy-binding my-gcp-project --member=user:YOU --role=ROLE\n"
        "\n  - secret kubeconfig-sweep is not there, or has no kubeconfig in it\n"
        "      docs/install.md, Kubeconfigs\n"
    )  # fmt: skip
    assert ran.changing_calls() == []


def test_jobsets_are_asked_for_only_where_jobset_is(look: Installer) -> None:
    look.terraform = [A_PROVIDER]
    ran = look.run("prod")
    assert ran.code == 1
    assert ran.output.partition("deploy.sh: ")[2] == (
        "1 thing(s) missing; nothing was changed\n"
        "\n  - JobSet is not in the cluster, and jobset_provider is tpu-node-group\n"
        "      https://jobset.sigs.k8s.io/docs/installation\n"
    )


def test_jobsets_get_their_part_of_the_cluster(
    tmp_path: Path, own_control_plane: OwnControlPlane
) -> None:
    own_control_plane.run_kubectl("apply", "--server-side", "-f", str(jobset_crd.PATH))
    with installer(tmp_path, own_control_plane, JOBSETS) as deploy:
        deploy.terraform = [A_PROVIDER]
        with playing_kubelet(deploy.plane):
            ran = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
    assert ran.code == 0, ran.output
    assert "configmap/jobsets created" in ran.output
    for name in ("provision-slice", "release-slice"):
        user = USERS_WITH_JOBSETS[name]
        for verb, resource, answer in (
            ("delete", "tpunodegroups.tpu.google.com", "yes"),
            ("get", "jobsets.jobset.x-k8s.io", "yes"),
            ("get", "secrets", "no"),
            ("patch", "pods", "no"),
        ):
            asked = deploy.plane.run_kubectl("auth", "can-i", verb, resource, f"--as={user}")
            assert asked.stdout.strip() == answer, (name, verb, resource)


def test_a_cluster_that_is_away_is_named_with_credentials_that_are_missing(
    deploy: Installer,
) -> None:
    assert isinstance(deploy.plane, OwnControlPlane)
    deploy.plane.stop_api_server()
    deploy.gcloud = [("print-access-token", "Reauthentication is needed.", 1)]
    ran = deploy.run("--dry-run", "prod")
    assert ran.code == 1
    told = ran.output.partition("deploy.sh: ")[2].split("\n\n")
    assert told[:3] == [
        "3 thing(s) missing; nothing was changed",
        "  - gcloud has no account\n      gcloud auth login",
        "  - Terraform has no credentials\n      gcloud auth application-default login",
    ]
    assert told[3].startswith("  - the cluster does not answer: ")
    assert told[3].endswith("\n      kubectl config use-context CONTEXT\n")
    assert ran.changing_calls() == []


def test_functions_that_cannot_reach_the_cluster_are_told_at_the_end(deploy: Installer) -> None:
    why = "SyncDropped\tGET /api/v1/namespaces/kube-system: 401 Unauthorized: Unauthorized"
    deploy.gcloud = [("logging read", why, 0)]
    with playing_kubelet(deploy.plane):
        ran = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
    assert ran.code == 1
    assert len([call for call in ran.calls if "topics publish" in call]) == 3
    assert ran.output.endswith(
        f"deploy.sh: all is there, but label_node cannot do its work: {why}\n"
        "mend that (docs/cluster-access.md), and run this again; its log: gcloud logging read "
        "'resource.labels.service_name:label-node' --project=my-gcp-project --limit=20\n"
    )


def test_tools_that_are_missing_are_named_together(look: Installer) -> None:
    bare = look.tree / "bare"
    bare.mkdir()
    for tool in ("bash", "env", "dirname", "mktemp", "rm", "curl"):
        (bare / tool).symlink_to(str(shutil.which(tool)))
    ran = look.run("prod", path=os.fspath(bare))
    assert ran.code == 1
    assert ran.output == (
        "deploy.sh: 3 thing(s) missing; nothing was changed\n"
        "\n  - gcloud is not installed\n      install gcloud, and put it on PATH\n"
        "\n  - terraform is not installed\n      install terraform, and put it on PATH\n"
        "\n  - kubectl is not installed\n      install kubectl, and put it on PATH\n"
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "name the cluster: ./deploy.sh CLUSTER, with settings in infra/terraform/CLUSTER.tfvars"),
        (["--force", "prod"], "unknown option --force; see ./deploy.sh --help"),
        (["prod", "test"], "one cluster at a time, not prod and test"),
        (["../prod"], "CLUSTER must be lower-case letters, digits and hyphens, not ../prod"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_refused(
    arguments: list[str], message: str, look: Installer
) -> None:
    ran = look.run(*arguments)
    assert (ran.code, ran.output) == (1, f"deploy.sh: {message}\n")


def test_help_is_what_stands_at_its_top(look: Installer) -> None:
    ran = look.run("--help")
    top = (look.tree / "deploy.sh").read_text().partition("\nset -")[0].splitlines()[1:]
    assert (ran.code, ran.calls) == (0, [])
    assert ran.output.splitlines() == [line.removeprefix("#").removeprefix(" ") for line in top]


def test_it_is_taken_away_only_when_no_group_is_left(deploy: Installer) -> None:
    with playing_kubelet(deploy.plane):
        assert deploy.run("--yes", "--images", "example.test/tpu:1", "prod").code == 0
    groups = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
    group = manifest()
    code, _ = deploy.plane.request("POST", groups, group)
    assert code == 201
    name = group["metadata"]["name"]
    refused = deploy.run("--destroy", "--yes", "prod")
    assert refused.code == 1
    assert (
        f"  - there are TPUNodeGroups, whose slices nobody would delete: default/{name} \n"
        "      kubectl delete tpunodegroups --all --all-namespaces\n"
    ) in refused.output
    assert refused.changing_calls() == []
    deploy.plane.request("DELETE", f"{groups}/{name}")
    with playing_kubelet(deploy.plane):
        gone = deploy.run("--destroy", "--yes", "prod")
    assert gone.code == 0, gone.output
    assert any("terraform -chdir=infra/terraform destroy" in call for call in gone.calls)
    left = deploy.plane.run_kubectl(
        *("get", "all,clusterroles,clusterrolebindings,crd,validatingadmissionpolicies"),
        *("-A", "-l", "app.kubernetes.io/part-of=tpu-functions", "-o", "name"),
    )
    assert left.stdout == ""
    again = deploy.run("--destroy", "--yes", "prod")
    assert again.code == 0, again.output
    assert PROJECT in again.output


def test_it_is_not_taken_away_from_under_node_pools_of_jobsets(look: Installer) -> None:
    """Nor from under one without Nodes: it is being made, or has failed."""
    look.terraform.insert(0, (r"console .* var\.jobset_provider$", '"gke"', 0))
    look.terraform.insert(0, (r"console .* pools\.cluster", '"gke-home us-east5 research"', 0))
    theirs = "google.com/nodepool-manager=tpu-provisioner;team=a"
    pools = f"default-pool\t\ntrain-410e1982e93873ae\t{theirs}"
    asked = "container node-pools list --project=gke-home --location=us-east5 --cluster=research "
    look.gcloud.insert(0, (asked, pools, 0))
    refused = look.run("--destroy", "--yes", "prod")
    assert refused.code == 1
    assert (
        "  - there are node pools of JobSets, which nobody would delete: train-410e1982e93873ae \n"
        "      delete the JobSets that they were made for, and wait until they are gone\n"
    ) in refused.output
    assert refused.changing_calls() == []


def test_it_is_not_taken_away_where_node_pools_cannot_be_asked_for(look: Installer) -> None:
    look.terraform.insert(0, (r"console .* var\.jobset_provider$", '"gke"', 0))
    look.terraform.insert(0, (r"console .* pools\.cluster", '"gke-home us-east5 research"', 0))
    look.gcloud.insert(0, ("container node-pools list", "ERROR: (gcloud) no right", 1))
    refused = look.run("--destroy", "--yes", "prod")
    assert refused.code == 1
    assert "ERROR: (gcloud) no right" in refused.output
    assert refused.changing_calls() == []
