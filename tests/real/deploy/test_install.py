# ruff: noqa: E501  (a table reads best with a row on a line)
"""What deploy.sh installs and deletes: each test has a real cluster of its own, and a simulated cloud."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import get_jobset_crd
from tests.real.deploy.installer import (
    DIGEST,
    DIGESTS,
    GKE_VERSION,
    HAS_STATE,
    OLD_STATE,
    Installer,
    Settings,
    installer,
    simulated_kubelet,
)
from tests.real.deploy.outputs import (
    BUILDER,
    JOBSETS,
    PROJECT,
    REPOSITORY,
    USERS_WITH_JOBSETS,
)
from tests.support.chart import CHART, TOKEN_WRITER, define_anything, render, run_helm
from tests.support.chart import PROJECT as PROJECT_VALUES
from tests.support.manifests import manifest

DOCS = Path(__file__).parents[3] / "docs"
pytestmark = pytest.mark.real


@pytest.fixture
def deploy(tmp_path: Path, own_control_plane: OwnControlPlane) -> Iterator[Installer]:
    """deploy.sh for a cluster of this test only."""
    with installer(tmp_path, own_control_plane) as made:
        yield made


def test_an_installation_succeeds_and_a_second_one_changes_only_the_image(
    deploy: Installer,
) -> None:
    with simulated_kubelet(deploy.plane):
        first = deploy.run("--yes", "prod")
        assert first.code == 0, first.output
        assert "namespace/tpu-functions created" in first.output
        assert "the admission policy on Secrets has effect" in first.output
        assert "label_node has handled a message and called the cluster" in first.output
        assert first.output.endswith(
            "\n== Installed; all checks succeeded\nNext: edit a group of examples/, kubectl apply it, and "
            "kubectl get tpunodegroups --watch (docs/install.md, A first group)\n"
        )
        (built,) = [call for call in first.calls if "builds submit" in call]
        for flag in (
            "--config=infra/cloudbuild.yaml",
            f"--service-account={BUILDER}",
            "--gcs-source-staging-dir=gs://my-gcp-project-tpu-functions-source/images",
            f"--substitutions=_REPOSITORY={REPOSITORY},_TAG=",
        ):
            assert f" {flag}" in built
        (apply,) = [
            call for call in first.calls if call.startswith("terraform") and " apply" in call
        ]
        assert first.calls.index(apply) < first.calls.index(built)
        assert image_of_the_relay(deploy) == f"{REPOSITORY}/relay@{DIGEST}"
        _, namespace = deploy.plane.request("GET", "/api/v1/namespaces/kube-system")
        state = json.loads((deploy.tree / "state").read_text())
        uid, annotations = namespace["metadata"]["uid"], namespace["metadata"]["annotations"]
        assert state["cluster_identity"].split() == [uid]
        assert annotations["tpu-functions.dev/installation-id"] == state["installation_id"]
        deploy.terraform = [HAS_STATE]
        first_versions = list_generations(deploy)
        second = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
        assert second.code == 0, second.output
        changed = {name for name, _ in list_generations(deploy) - first_versions}
        assert changed == {"Deployment/relay"}
        assert not any("builds submit" in call for call in second.calls)
    assert image_of_the_relay(deploy) == "example.test/tpu/relay:1"


def test_an_installation_by_kubectl_becomes_helms_without_its_old_settings(
    deploy: Installer,
) -> None:
    """As kustomize left it: a ConfigMap with a hash in its name, and a patched variable."""
    objects = render({})
    for one in objects:
        if one["kind"] == "Deployment":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            container["env"] = [{"name": "OLD", "value": "1"}]
            container["envFrom"] = [{"configMapRef": {"name": "relay-5f2b7k"}}]
        if one["kind"] == "ConfigMap":
            one["metadata"]["name"] = "relay-5f2b7k"
    namespace = str(deploy.tree / "infra" / "chart" / "manifests" / "namespace.yaml")
    deploy.plane.run_kubectl("apply", "-f", namespace)
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    assert deploy.plane.run_kubectl("apply", "-f", "-", stdin=listed).returncode == 0
    relay = "/apis/apps/v1/namespaces/tpu-functions/deployments/relay"
    uid = deploy.plane.request("GET", relay)[1]["metadata"]["uid"]
    deploy.terraform = [OLD_STATE]
    with simulated_kubelet(deploy.plane):
        ran = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
        assert ran.code == 0, ran.output
        assert "the objects that kubectl has applied become helm's\n" in ran.output
        found = deploy.plane.request("GET", relay)[1]
        (container,) = found["spec"]["template"]["spec"]["containers"]
        assert (found["metadata"]["uid"], container.get("env")) == (uid, None)
        assert container["envFrom"] == [{"configMapRef": {"name": "relay"}}]
        settings = deploy.plane.run_kubectl(
            *("get", "configmaps", "-n", "tpu-functions", "-o", "name"),
            "--selector=app.kubernetes.io/component=relay",
        )
        assert settings.stdout == "configmap/relay\n"
        deploy.terraform = [HAS_STATE]
        again = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
        assert again.code == 0, again.output
        assert "become helm's" not in again.output


def list_commands(page: str, beginning: str) -> list[str]:
    """Return the lines of a page that begin so, without their indentation."""
    lines = (line.strip() for line in (DOCS / page).read_text().splitlines())
    return [line for line in lines if line.startswith(beginning)]


@pytest.mark.parametrize("applied", ["by the page", "by kubectl"])
def test_a_release_changes_the_permissions_that_were_applied_before_the_first_run(
    applied: str, deploy: Installer
) -> None:
    """Kubeconfigs need ServiceAccounts before it; fields that are kubectl's conflict with helm 4."""
    (command,) = [
        line for line in list_commands("install.md", "kubectl apply ") if "rbac.yaml" in line
    ]
    if applied == "by kubectl":
        command = command.replace(" --server-side --field-manager=helm", "")
    assert deploy.run_shell(command).code == 0
    rules = deploy.tree / "infra" / "chart" / "manifests" / "base" / "rbac.yaml"
    nodes = "    resources: [nodes]\n    verbs: [get, list, patch, delete]"
    with simulated_kubelet(deploy.plane):
        first = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
        assert first.code == 0, first.output
        if applied == "by the page":
            commands = list_commands("cluster-access.md", "kubectl ")
            delete, apply = (line for line in commands if " delete s" in line or " apply " in line)
            assert deploy.run_shell(f"{delete}\n{apply}").code == 0
        deploy.terraform = [HAS_STATE]
        assert nodes in rules.read_text()
        rules.write_text(rules.read_text().replace(nodes, nodes.replace("get", "get, watch")))
        second = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
        assert second.code == 0, second.output
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/tpu-functions-label-node"
    _, role = deploy.plane.request("GET", path)
    assert any("watch" in rule["verbs"] for rule in role["rules"])
    assert role["metadata"]["annotations"]["meta.helm.sh/release-name"] == "tpu-functions"


def test_the_commands_for_a_copy_of_a_cluster_leave_nothing_that_needs_the_installation(
    deploy: Installer,
) -> None:
    """Webhooks that fail closed would reject workloads, and a group would wait for its finalizer."""
    values = {**PROJECT_VALUES, "injectEnv": {"enabled": True, "admitJobs": True, "tiePods": True}}
    command = ("install", "tpu-functions", str(CHART), "--create-namespace")
    done = run_helm(*command, values=values, plane=deploy.plane)
    assert done.returncode == 0, done.stderr
    group = manifest()
    group["metadata"]["finalizers"] = ["tpu-functions.dev/cleanup"]
    groups = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
    assert deploy.plane.request("POST", groups, group)[0] == 201
    page = (DOCS / "backups.md").read_text()
    (block,) = re.findall(r"```sh\n(kubectl config use-context copy\n.*?)```", page, re.DOTALL)
    ran = deploy.run_shell(block.replace("use-context copy", "use-context tests"))
    assert ran.code == 0, ran.output
    kinds = "mutatingwebhookconfigurations,validatingadmissionpolicybindings"
    left = deploy.plane.run_kubectl("get", kinds, "-l", OWN_LABEL, "-o", "name").stdout
    assert left == ""
    assert deploy.plane.request("GET", groups)[1]["items"] == []


def list_generations(deploy: Installer) -> set[tuple[str, str]]:
    """Return what changes with the spec of an object, for all objects of the chart."""
    kinds = "deployments,daemonsets,networkpolicies,clusterroles,validatingadmissionpolicies,crd,configmaps"
    path = "{range .items[*]}{.kind}/{.metadata.name} {.metadata.generation}{.rules}{.data}{'\\n'}{end}"
    listed = deploy.plane.run_kubectl(
        *("get", kinds, "-A", "-l", OWN_LABEL, "-o", f"jsonpath={path}".replace("'", '"'))
    )
    return {(line.partition(" ")[0], line) for line in listed.stdout.splitlines()}


def image_of_the_relay(deploy: Installer) -> str:
    path = "/apis/apps/v1/namespaces/tpu-functions/deployments/relay"
    _, relay = deploy.plane.request("GET", path)
    return str(relay["spec"]["template"]["spec"]["containers"][0]["image"])


def test_the_definition_that_tpu_operator_has_applied_becomes_the_charts(deploy: Installer) -> None:
    definition = define_anything("tpu.google.com", "TPUNodeGroup")
    definition["spec"]["versions"][0]["name"] = "v1alpha1"
    applied = deploy.plane.run_kubectl("apply", "-f", "-", stdin=json.dumps(definition))
    assert applied.returncode == 0, applied.stderr
    with simulated_kubelet(deploy.plane):
        ran = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
    assert ran.code == 0, ran.output
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tpunodegroups.tpu.google.com"
    found = deploy.plane.request("GET", path)[1]
    assert found["spec"]["names"]["shortNames"] == ["tng"]
    assert found["metadata"]["annotations"]["meta.helm.sh/release-name"] == "tpu-functions"


def test_two_builds_of_one_commit_have_two_tags(deploy: Installer) -> None:
    """An uncommitted edit is also rolled out."""
    deploy.gcloud = [("artifacts docker images describe", "", 0)]
    tags = []
    for _ in range(2):
        ran = deploy.run("--yes", "prod")
        tags += re.findall(r",_TAG=(\S+)", "\n".join(ran.calls))
        assert ran.code == 1
        assert re.search(
            rf"deploy.sh: {re.escape(REPOSITORY)}/relay:\S+ was built, but the registry returned no "
            r"digest \(no answer\); run this again\n",
            ran.output,
        )
        deploy.run_shell("sleep 1")
    assert len(set(tags)) == 2


def write_user_values(deploy: Installer, **values: Any) -> None:
    """Write the user's values of the cluster."""
    (deploy.folder / "prod.yaml").write_text(json.dumps(values))


def test_a_deployment_without_an_image_ends_the_run(deploy: Installer) -> None:
    write_user_values(deploy, injectEnv={"enabled": True})
    ran = deploy.run("--yes", "--images", f"example.test/tpu/relay@{DIGESTS['relay']}", "prod")
    assert ran.code == 1
    assert ran.says(
        "deploy.sh: inject-env is enabled, but no image is given for it: "
        "add --images REPOSITORY/inject-env@sha256:...\n"
    )
    assert deploy.plane.request("GET", "/api/v1/namespaces/tpu-functions")[0] == 404


def test_all_pods_use_the_pull_secret(deploy: Installer) -> None:
    deploy.nodes_pull = False
    deploy.kubectl = [("get secret tpu-functions-images", "", 0)]
    with simulated_kubelet(deploy.plane):
        ran = deploy.run("--yes", "prod")
    assert ran.code == 0, ran.output
    path = "/apis/apps/v1/namespaces/tpu-functions/deployments/relay"
    spec = deploy.plane.request("GET", path)[1]["spec"]["template"]["spec"]
    assert spec["imagePullSecrets"] == [{"name": "tpu-functions-images"}]


@pytest.mark.parametrize(
    "pulled, pods, why",
    [
        pytest.param("ImagePullBackOff", "", "its Node cannot pull its image (docs/install.md, Images)", id="no image"),
        pytest.param("", "", "kubectl --namespace=tpu-functions describe pods --selector=" "app.kubernetes.io/name=relay shows the reason", id="unknown"),
        pytest.param(
            "",
            "Unschedulable",
            "no Node can run its Pod. If all Nodes are control planes or TPU VMs, set "
            "pods.onControlPlane: true in DIR/prod.yaml",
            id="no Node",
        ),
    ],
)  # fmt: skip
def test_a_relay_that_does_not_become_ready_is_reported_with_the_reason(
    pulled: str, pods: str, why: str, deploy: Installer
) -> None:
    deploy.kubectl = [
        ("rollout status deployment/relay", "error: timed out waiting", 1),
        ("get pods --selector=app.kubernetes.io/name=relay.*conditions", pods, 0),
        ("get pods --selector=app.kubernetes.io/name=relay", pulled, 0),
    ]
    ran = deploy.run("--yes", "prod")
    assert ran.code == 1
    assert ran.says(f"deploy.sh: relay is not ready: {why}; fix that, and run this again\n")


OWN_LABEL = "app.kubernetes.io/part-of=tpu-functions"


def test_the_steps_of_jobsets_get_their_permissions_in_the_cluster(
    tmp_path: Path, own_control_plane: OwnControlPlane
) -> None:
    own_control_plane.run_kubectl("apply", "--server-side", "-f", str(get_jobset_crd()))
    with installer(tmp_path, own_control_plane, JOBSETS) as deploy:
        deploy.settings.jobset_provider = "tpu-node-group"
        with simulated_kubelet(deploy.plane):
            ran = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
    assert ran.code == 0, ran.output
    assert "configmap/kubectl-tng created" in ran.output
    for name in ("provision-slice", "release-slice"):
        user = USERS_WITH_JOBSETS[name]
        for verb, resource, answer in (
            ("delete", "tpunodegroups.tpu.google.com", "yes"),
            ("get", "jobsets.jobset.x-k8s.io", "yes"),
            ("get", "secrets", "no"),
            ("patch", "pods", "no"),
        ):
            allowed = deploy.plane.run_kubectl("auth", "can-i", verb, resource, f"--as={user}")
            assert allowed.stdout.strip() == answer, (name, verb, resource)


def test_the_template_of_former_versions_is_printed_as_a_class_until_there_is_one(
    tmp_path: Path, own_control_plane: OwnControlPlane
) -> None:
    example = Path(__file__).parents[3] / "examples" / "jobset-template.yaml"
    heading, end = "Apply this (docs/reference/tpusliceclass.md):\n", "Then delete the template"
    kubectl = own_control_plane.run_kubectl
    kubectl("apply", "--server-side", "-f", str(get_jobset_crd()))
    with installer(tmp_path, own_control_plane, JOBSETS) as deploy:
        deploy.settings.jobset_provider = "tpu-node-group"

        removed: list[str] = []

        def print_class() -> str:
            with simulated_kubelet(deploy.plane):
                ran = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
            assert ran.code == 0, ran.output
            assert (heading in ran.output) is (end in ran.output)
            found, _, rest = ran.output.partition(heading)[2].partition(end)
            removed.extend(re.findall(r'"path": "/data/([^"]+)"', rest))
            return found

        assert print_class() == ""
        patch = f"--patch-file={example}"
        kubectl("--namespace=tpu-functions", "patch", "configmap", "jobsets", patch)
        named = {
            "data": {"template.small": yaml.safe_load(example.read_text())["data"]["template"]}
        }
        (tmp_path / "named.json").write_text(json.dumps(named))
        patch = f"--patch-file={tmp_path / 'named.json'}"
        kubectl("--namespace=tpu-functions", "patch", "configmap", "jobsets", patch)
        printed = print_class()
        applied = kubectl("apply", "--validate=strict", "--filename=-", stdin=printed)
        assert applied.stdout.splitlines() == [
            f"tpusliceclass.tpu-functions.dev/{name} created" for name in ("default", "small")
        ], applied.stderr
        default, small = yaml.safe_load_all(printed)
        assert (default["spec"].pop("isDefault"), default["spec"]) == (True, small["spec"])
        assert removed == ["template", "template.small"]
        assert print_class() == ""
        kubectl("delete", "tpusliceclass", "default", "small")


def test_a_cluster_of_gke_keeps_its_own_device_plugin(deploy: Installer) -> None:
    deploy.kubectl = [("get --raw /version", GKE_VERSION, 0)]
    with simulated_kubelet(deploy.plane):
        ran = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
    assert ran.code == 0, ran.output
    kinds = (
        "daemonsets,serviceaccounts,clusterroles,clusterrolebindings,validatingadmissionpolicies"
    )
    found = deploy.plane.run_kubectl("get", kinds, "-A", "-l", OWN_LABEL, "-o", "name").stdout
    assert "relay" in found
    assert "device-plugin" not in found


def test_a_webhook_without_its_certificate_ends_the_run(deploy: Installer) -> None:
    ca = {"certificate": "secret", "caBundle": "Q0E="}
    write_user_values(deploy, injectEnv={"enabled": True, **ca})
    deploy.kubectl = [("rollout status deployment/inject-env", "error: timed out waiting", 1)]
    with simulated_kubelet(deploy.plane):
        ran = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
        assert ran.code == 1
        assert ran.says(
            "deploy.sh: inject-env is not ready: its Secret inject-env-tls is missing "
            "(docs/injection.md, Switch it on); fix that, and run this again\n"
        )
        deploy.kubectl, deploy.terraform = [], [HAS_STATE]
        secret = {"metadata": {"name": "inject-env-tls"}, "type": "Opaque"}
        deploy.plane.request("POST", "/api/v1/namespaces/tpu-functions/secrets", secret)
        again = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
    assert again.code == 0, again.output
    assert 'deployment "inject-env" successfully rolled out' in again.output


def test_a_token_writer_that_has_not_written_all_tokens_ends_the_run(deploy: Installer) -> None:
    write_user_values(deploy, **TOKEN_WRITER)
    late = "rollout status deployment/token-writer --timeout=600s"
    deploy.kubectl = [(late, "error: timed out waiting", 1)]
    with simulated_kubelet(deploy.plane):
        ran = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
    assert ran.code == 1
    assert ran.says(
        "deploy.sh: token-writer is not ready: kubectl --namespace=tpu-functions describe pods "
        "--selector=app.kubernetes.io/name=token-writer shows the reason; kubectl "
        "--namespace=tpu-functions logs deployment/token-writer names each step's error "
        "(docs/reference/token-writer.md); fix that, and run this again\n"
    )


def test_an_uninstallation_keeps_google_cloud_which_destroy_then_deletes(deploy: Installer) -> None:
    """Helm's own check is tested with helm: here no kubelet runs its Job."""
    write_user_values(deploy, uninstallCheck=False, injectEnv={"enabled": True})
    with simulated_kubelet(deploy.plane):
        assert deploy.run("--yes", "--images", "example.test/tpu:1", "prod").code == 0
        deploy.terraform = [HAS_STATE]
        deploy.kubectl = [("get tpunodegroups", "default  train", 0)]
        rejected = deploy.run("--uninstall", "--yes", "prod")
        assert (rejected.code, rejected.changing_calls()) == (1, [])
        assert (
            "  - TPUNodeGroups exist, and nothing would delete their slices: default/train "
            in rejected.output
        )
        deploy.kubectl, deploy.helm = (
            [],
            [("^#1 uninstall", "Error: job uninstall-check failed", 1)],
        )
        refused = deploy.run("--uninstall", "--yes", "prod")
        assert refused.output.endswith(
            "Error: job uninstall-check failed\ndeploy.sh: helm has not uninstalled the chart. "
            "To keep it: ./deploy.sh --dir DIR prod\n"
        )
        deploy.helm = []
        done = deploy.run("--uninstall", "--yes", "prod")
        assert done.code == 0, done.output
    assert done.output.partition("\n== ")[2].partition("\n== ")[2] == (
        "Uninstalled. What remains:\n"
        "in the cluster: Namespace tpu-functions CustomResourceDefinition tpunodegroups.tpu.google.com "
        "Secret tpu-functions/inject-env-tls \n"
        "on Google Cloud: 4 resource(s) of Terraform in my-gcp-project. The sweep fails each minute; to pause it:\n"
        "  gcloud scheduler jobs pause tpu-functions-sweep --location=us-central1 --project=my-gcp-project\n"
        "To delete all of it: ./deploy.sh --dir DIR --destroy prod\n"
    )
    assert not any("terraform" in call for call in done.changing_calls())
    path = "/api/v1/namespaces/tpu-functions/configmaps"
    assert [one["metadata"]["name"] for one in deploy.plane.request("GET", path)[1]["items"]] == [
        "kube-root-ca.crt"
    ]
    with simulated_kubelet(deploy.plane):
        again = deploy.run("--yes", "--images", "example.test/tpu:1", "prod")
        assert again.code == 0, again.output
        assert "become helm's" not in again.output, "the CRD is helm's"
    destroyed = deploy.run("--destroy", "--yes", "prod")
    assert destroyed.code == 0, destroyed.output


def test_destroy_is_rejected_until_no_group_exists_and_can_be_repeated_after_an_error(
    deploy: Installer,
) -> None:
    with simulated_kubelet(deploy.plane):
        assert deploy.run("--yes", "--images", "example.test/tpu:1", "prod").code == 0
    deploy.terraform = [HAS_STATE]
    groups = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
    group = manifest()
    code, _ = deploy.plane.request("POST", groups, group)
    assert code == 201
    name = group["metadata"]["name"]
    rejected = deploy.run("--destroy", "--yes", "prod")
    assert rejected.code == 1
    assert (
        f"  - TPUNodeGroups exist, and nothing would delete their slices: default/{name} \n"
        "      kubectl delete tpunodegroups --all --all-namespaces\n"
    ) in rejected.output
    assert rejected.changing_calls() == []
    deploy.kubectl = [("^#1 get tpunodegroups", "", 0)]
    meanwhile = deploy.run("--destroy", "prod", answer="y\n")
    assert meanwhile.code == 1
    assert "  - TPUNodeGroups exist, and nothing would delete their slices" in meanwhile.output
    assert meanwhile.changing_calls() == []
    deploy.plane.request("DELETE", f"{groups}/{name}")
    # It can fail in Terraform or in kubectl, and be repeated.
    deploy.kubectl, deploy.terraform = [], [HAS_STATE, (" apply ", "Error: Forbidden", 1)]
    assert deploy.run("--destroy", "--yes", "prod").code == 1
    namespace = "/api/v1/namespaces/tpu-functions"
    assert deploy.plane.request("GET", f"{namespace}/serviceaccounts/sweep")[0] == 200
    deploy.helm, deploy.terraform = [("^#1 uninstall", "error: EOF", 1)], [HAS_STATE]
    failed = deploy.run("--destroy", "--yes", "prod")
    assert failed.code == 1
    annotate, apply, *_ = failed.changing_calls()
    assert annotate.endswith(" annotate namespace kube-system tpu-functions.dev/installation-id-")
    assert re.match(r"terraform \S+ apply -input=false \S+/plan$", apply)
    deploy.helm, deploy.terraform = [], [("state list", "", 0)]
    limits = {"metadata": {"name": "tpu-guardrails", "labels": dict([OWN_LABEL.split("=")])}}
    deploy.plane.request("POST", "/api/v1/namespaces/default/configmaps", limits)
    with simulated_kubelet(deploy.plane):
        destroyed = deploy.run("--destroy", "--yes", "prod")
    assert destroyed.code == 0, destroyed.output
    assert destroyed.output.endswith(
        "\n== Uninstalled. DIR remains.\n"
        "These objects remain in the cluster, because the chart does not have them; "
        "delete what is not needed:\n"
        "ConfigMap default/tpu-guardrails\n"
    )
    left = deploy.plane.run_kubectl(
        *("get", "all,clusterroles,clusterrolebindings,crd,validatingadmissionpolicies"),
        *("-A", "-l", OWN_LABEL, "-o", "name"),
    )
    assert left.stdout == ""
    deploy.settings = Settings(federation=True)
    again = deploy.run("--destroy", "--yes", "prod")
    assert again.code == 0, again.output
    assert PROJECT in again.output
    assert again.says(
        "Google keeps the id of the workload identity pool for 30 days: to install again before, set "
        "another pool_id in DIR/prod.tfvars\n"
    )
