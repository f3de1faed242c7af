"""The output of `kubectl kustomize` for the base, each component and the example overlay."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from base64 import b64encode
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from google.auth import identity_pool

from local.base.clock import VirtualClock
from local.kube import KubeApi
from relay.settings import read_settings
from shared.base.names import BOOTSTRAP_GROUP
from shared.node_groups.bootstrap import KUBEADM_GROUP
from shared.triggers.routes import SLICE_STEPS
from tests.support.admission import evaluate, refusal
from tests.support.overlays import COMPONENTS, EXAMPLE, KUBERNETES, NAMES, write_overlay
from tests.unit.infra.kubernetes.kubectl import KUBECTL, USERS
from tests.unit.infra.kubernetes.manifests import DOCUMENTS, LABELS, SECRET, Permission, merge_patch
from tests.unit.infra.kubernetes.manifests import expand as expand_role
from version import VERSION

Manifest = dict[str, Any]

PAGE = KUBERNETES.parents[1] / "docs" / "kubernetes-manifests.md"
CREDENTIALS = "/var/run/secrets/google"


def permissions(namespace: str, group: str, resource: str, *verbs: str) -> set[Permission]:
    return {(namespace, group, resource, verb) for verb in verbs}


pytestmark = pytest.mark.skipif(
    KUBECTL is None, reason="kubectl, which renders the manifests, is not installed"
)


def kustomize(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(KUBECTL), "kustomize", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def render(folder: Path) -> list[Manifest]:
    run = kustomize(folder)
    assert (run.returncode, run.stderr) == (0, "")
    return [document for document in yaml.safe_load_all(run.stdout) if document]


def key(document: Manifest) -> str:
    metadata = document["metadata"]
    return f"{document['kind']} {metadata.get('namespace', '')}/{metadata['name']}"


@functools.cache
def render_base() -> tuple[Manifest, ...]:
    return tuple(render(KUBERNETES))


def changed(rendered: list[Manifest]) -> dict[str, tuple[Manifest | None, Manifest | None]]:
    """Return the documents that differ from the base: before and after, by kind and name."""
    before = {key(document): document for document in render_base()}
    after = {key(document): document for document in rendered}
    return {
        name: (before.get(name), after.get(name))
        for name in sorted(before | after)
        if before.get(name) != after.get(name)
    }


def only(rendered: list[Manifest], kind: str, name: str = "") -> Manifest:
    (found,) = (
        document
        for document in rendered
        if document["kind"] == kind and document["metadata"]["name"].startswith(name)
    )
    return found


def relay_pod(rendered: list[Manifest]) -> Manifest:
    pod: Manifest = only(rendered, "Deployment", "relay")["spec"]["template"]["spec"]
    return pod


# The base


def test_the_folder_renders_the_base_and_the_relays_settings() -> None:
    rendered = list(render_base())
    assert len(rendered) == len(DOCUMENTS) + 1
    settings = only(rendered, "ConfigMap", "relay-")
    (container,) = relay_pod(rendered)["containers"]
    assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    assert set(LABELS) <= settings["metadata"]["labels"].keys()


# The example


def test_the_example_is_a_complete_installation() -> None:
    rendered = render(EXAMPLE)
    (container,) = relay_pod(rendered)["containers"]
    assert container["image"] == f"ghcr.io/OWNER/tpu-functions/relay:{VERSION}"
    (reference,) = container["envFrom"]
    settings = read_settings(only(rendered, "ConfigMap", reference["configMapRef"]["name"])["data"])
    assert (settings.project, settings.topic_prefix) == ("my-gcp-project", "tpu-functions-")


def test_the_example_sets_exactly_the_names_that_its_components_use() -> None:
    names = yaml.safe_load((EXAMPLE / "installation.yaml").read_text())["data"]
    assert set(names) == {*USERS, "relay-audience"}
    text = kustomize(EXAMPLE).stdout
    assert "from the ConfigMap installation" not in text
    for name in names.values():
        assert name in text


@pytest.mark.parametrize("folder", [KUBERNETES, EXAMPLE], ids=["base", "example"])
def test_the_embedded_kubernetes_accepts_the_rendered_manifests(folder: Path) -> None:
    KubeApi(VirtualClock(), random=Random(1)).apply_manifests(render(folder))


# Components


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_manifest_of_a_component_has_the_recommended_labels(
    component: str, tmp_path: Path
) -> None:
    for document in render(write_overlay(tmp_path, component)):
        assert set(LABELS) <= document["metadata"]["labels"].keys(), key(document)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_is_described(component: str) -> None:
    assert f"| `{component}` |" in PAGE.read_text(), f"{PAGE.name} has no row for the component"


@pytest.mark.parametrize(
    "components, deployments",
    [
        (["control-plane-taint"], ["relay"]),
        (["inject-env", "control-plane-taint"], ["relay", "inject-env"]),
        (["token-writer", "control-plane-taint"], ["relay", "token-writer"]),
    ],
)
def test_control_plane_taint_schedules_deployments_on_the_control_plane(
    components: list[str], deployments: list[str], tmp_path: Path
) -> None:
    rendered = render(write_overlay(tmp_path, *components))
    if components == ["control-plane-taint"]:
        assert list(changed(rendered)) == ["Deployment tpu-functions/relay"]
    for name in deployments:
        pod = only(rendered, "Deployment", name)["spec"]["template"]["spec"]
        control_plane = {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}
        assert pod["tolerations"] == [{**control_plane, "effect": "NoSchedule"}]
        affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        no_tpu = {"key": "cloud.google.com/gke-tpu-accelerator", "operator": "DoesNotExist"}
        assert affinity == {"nodeSelectorTerms": [{"matchExpressions": [no_tpu, control_plane]}]}


def test_without_device_plugin_removes_only_the_device_plugin(tmp_path: Path) -> None:
    removed = changed(render(write_overlay(tmp_path, "without-device-plugin")))
    assert list(removed) == [
        "ClusterRole /tpu-device-plugin",
        "ClusterRoleBinding /tpu-device-plugin",
        "DaemonSet kube-system/tpu-device-plugin",
        "ServiceAccount kube-system/tpu-device-plugin-sa",
        "ValidatingAdmissionPolicy /tpu-device-plugin-own-node",
        "ValidatingAdmissionPolicyBinding /tpu-device-plugin-own-node",
    ]
    assert all(after is None for _, after in removed.values())


@pytest.mark.parametrize(
    "components",
    [
        [],
        ["google-identities"],
        ["jobsets", "jobsets-node-groups", "jobsets-google-identities"],
        ["guardrails", "inject-env"],
    ],
)
def test_without_admission_policies_removes_only_policies_and_the_rules_that_need_them(
    components: list[str], tmp_path: Path
) -> None:
    name = "without-admission-policies"
    (tmp_path / "with").mkdir()
    whole = render(write_overlay(tmp_path / "with", *components))
    rendered = render(write_overlay(tmp_path / "without", *components, name))
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    kept = [document for document in whole if document["kind"] not in kinds]
    assert [document for document in rendered if document not in kept] == [
        {
            **document,
            "rules": [
                rule for rule in document["rules"] if "deletecollection" not in rule["verbs"]
            ],
        }
        for document in kept
        if key(document)
        in (f"Role kube-system/tpu-functions-{step}" for step in ("label-node", "tear-down"))
    ]
    assert list(map(key, rendered)) == list(map(key, kept))
    assert len(rendered) <= len(whole) - 4


def test_without_admission_policies_secrets_may_only_be_created_and_deleted_by_name(
    tmp_path: Path,
) -> None:
    rendered = render(write_overlay(tmp_path, "without-admission-policies"))
    verbs = {
        verb
        for document in rendered
        for rule in document.get("rules") or ()
        if "secrets" in rule.get("resources", ())
        for verb in rule["verbs"]
    }
    assert verbs == {"create", "delete"}


# Google identities


def test_google_identities_bind_each_step_to_its_user_and_no_service_account(
    tmp_path: Path,
) -> None:
    rendered = {
        key(document): document for document in render(write_overlay(tmp_path, "google-identities"))
    }
    for binding in render_base():
        for subject in binding.get("subjects", ()):
            if subject["name"] in USERS:
                (user,) = rendered.pop(key(binding))["subjects"]
                assert user == {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "User",
                    "name": NAMES[subject["name"]],
                }
    assert not [name for name in rendered if name.partition("/")[2] in USERS]
    assert "ServiceAccount tpu-functions/relay" in rendered


@pytest.mark.parametrize(
    "policy",
    ["tpu-functions-bootstrap-tokens", "tpu-functions-nodes", "tpu-functions-join-approvals"],
)
def test_the_admission_policies_apply_to_google_identities(policy: str, tmp_path: Path) -> None:
    rendered = render(write_overlay(tmp_path, "google-identities"))
    document = only(rendered, "ValidatingAdmissionPolicy", policy)
    (condition,) = document["spec"]["matchConditions"]

    def applies_to(name: str, *groups: str) -> bool:
        user = {"username": name, "groups": list(groups)}
        return bool(evaluate(condition["expression"], {"request": {"userInfo": user}}))

    assert [applies_to(NAMES[user]) for user in USERS] == [True] * len(USERS)
    accounts = "system:serviceaccounts:tpu-functions"
    assert applies_to("system:serviceaccount:tpu-functions:relay", accounts)
    assert not applies_to("jane@example.com", "system:masters")
    assert not applies_to("sweep")


@pytest.mark.parametrize(
    "components, accepts",
    [
        pytest.param((), False, id="by default"),
        pytest.param(("join-approval-external",), True, id="with external approval"),
    ],
)
def test_a_token_of_kubeadms_group_needs_the_component_for_external_approval(
    components: tuple[str, ...], accepts: bool, tmp_path: Path
) -> None:
    rendered = render(write_overlay(tmp_path, "google-identities", *components))
    policy = only(rendered, "ValidatingAdmissionPolicy", "tpu-functions-bootstrap-tokens")
    user = {"username": NAMES["inject-token"], "groups": []}
    for group, is_accepted in [(BOOTSTRAP_GROUP, True), (KUBEADM_GROUP, accepts), ("x", False)]:
        data = {"auth-extra-groups": b64encode(group.encode()).decode()}
        token = merge_patch(SECRET, {"data": data})
        assert (refusal(policy, "CREATE", token, user=user) == "") is is_accepted


def test_user_names_may_have_a_prefix(tmp_path: Path) -> None:
    names = {name: f"gcp:{value}" for name, value in NAMES.items()}
    rendered = render(write_overlay(tmp_path, "google-identities", names=names))
    (user,) = only(rendered, "ClusterRoleBinding", "tpu-functions-sweep")["subjects"]
    assert user["name"] == "gcp:tpu-functions-sweep@my-gcp-project.iam.gserviceaccount.com"


def test_a_missing_name_is_an_error(tmp_path: Path) -> None:
    names = {name: value for name, value in NAMES.items() if name != "tear-down"}
    run = kustomize(write_overlay(tmp_path, "google-identities", names=names))
    assert run.returncode == 1
    assert "fieldPath `data.tear-down` is missing for replacement source ConfigMap" in run.stderr


# JobSets

SLICE_USERS = [step.replace("_", "-") for step in SLICE_STEPS]
OF_JOBSETS = ("jobsets", "jobsets-node-groups")
OF_WORKLOADS = ("jobsets", "workloads", "jobsets-node-groups")


def expand(rendered: list[Manifest], subject: Manifest) -> set[Permission]:
    """Return the permissions that are bound to a subject."""
    roles = {key(document): document for document in rendered}
    return {
        permission
        for binding in rendered
        if subject in binding.get("subjects", ())
        for permission in expand_role(
            roles[
                f"{binding['roleRef']['kind']} {binding['metadata'].get('namespace', '')}/"
                f"{binding['roleRef']['name']}"
            ]
        )
    }


def account(name: str) -> Manifest:
    return {"kind": "ServiceAccount", "name": name, "namespace": "tpu-functions"}


def test_a_relay_with_permission_for_jobsets_and_pods_reports_jobsets(tmp_path: Path) -> None:
    rendered = render(write_overlay(tmp_path, "jobsets"))
    settings = only(rendered, "ConfigMap", "relay-")["data"]
    assert read_settings({**settings, "PUBSUB_PROJECT": "my-gcp-project"}).jobsets is True
    added = expand(rendered, account("relay")) - expand(list(render_base()), account("relay"))
    read = ("list", "watch")
    jobsets = permissions("*", "jobset.x-k8s.io", "jobsets", *read)
    requests = permissions("*", "autoscaling.x-k8s.io", "provisioningrequests", *read)
    assert added == permissions("*", "", "pods", *read) | jobsets | requests


READ_WITH_WORKLOADS = {
    "relay": set[Permission](),
    "provision-slice": permissions("*", "leaderworkerset.x-k8s.io", "leaderworkersets", "get")
    | {("*", "apps", kind, "get") for kind in ("deployments", "replicasets", "statefulsets")}
    | permissions("*", "batch", "jobs", "get"),
    "release-slice": permissions("*", "leaderworkerset.x-k8s.io", "leaderworkersets", "get", "list")
    | {("*", "apps", kind, "get") for kind in ("deployments", "replicasets", "statefulsets")}
    | permissions("*", "apps", "statefulsets", "list")
    | permissions("*", "batch", "jobs", "get")
    | permissions("*", "", "pods", "get"),
}


@pytest.mark.parametrize("user, reads", READ_WITH_WORKLOADS.items())
def test_workloads_adds_only_reads_of_the_owners_of_pods(
    user: str, reads: set[Permission], tmp_path: Path
) -> None:
    without, with_workloads = (
        render(write_overlay(tmp_path / str(len(names)), *names))
        for names in (OF_JOBSETS, OF_WORKLOADS)
    )
    settings = only(with_workloads, "ConfigMap", "relay-")["data"]
    read = read_settings({**settings, "PUBSUB_PROJECT": "my-gcp-project"})
    assert (read.jobsets, read.slice_workloads) == (True, True)
    assert expand(with_workloads, account(user)) - expand(without, account(user)) == reads


def test_the_base_does_not_mention_jobsets() -> None:
    text = kustomize(KUBERNETES).stdout
    assert not [word for word in ("jobset", "provision-slice", "release-slice") if word in text]


@pytest.mark.parametrize("user", SLICE_USERS)
def test_a_step_of_jobsets_may_write_only_events_the_ledger_and_statuses_of_classes_without_a_provider(
    user: str, tmp_path: Path
) -> None:
    found = expand(render(write_overlay(tmp_path, "jobsets")), account(user))
    writes = {permission for permission in found if permission[3] not in ("get", "list", "watch")}
    ledger = {("tpu-functions", "", "configmaps/slice-ledger", "update")}
    own = permissions("*", "tpu-functions.dev", "tpusliceclasses/status", "update")
    requests = "autoscaling.x-k8s.io", "provisioningrequests/status"
    ledger |= permissions("*", *requests, "update")
    own |= ledger if user == "provision-slice" else set()
    assert writes == permissions("*", "", "events", "create", "patch") | own
    assert not [
        permission
        for permission in found
        if permission[1] == "tpu.google.com" or "secret" in permission[2]
    ]


ADDED_WITH_GROUPS = {
    "provision-slice": ("get", "list", "create", "patch", "delete"),
    "release-slice": ("get", "list", "patch", "delete"),
}


@pytest.mark.parametrize("user, verbs", ADDED_WITH_GROUPS.items())
def test_jobsets_node_groups_adds_permissions_for_tpunodegroups(
    user: str, verbs: tuple[str, ...], tmp_path: Path
) -> None:
    without, with_groups = (
        expand(render(write_overlay(tmp_path / str(count), *OF_JOBSETS[:count])), account(user))
        for count in (1, 2)
    )
    assert with_groups - without == permissions("*", "tpu.google.com", "tpunodegroups", *verbs)


def test_applying_jobsets_again_keeps_a_pause(tmp_path: Path) -> None:
    rendered = render(write_overlay(tmp_path, "jobsets"))
    for name in ("jobsets", "slice-ledger"):
        assert "data" not in only(rendered, "ConfigMap", name)


@pytest.mark.parametrize("of", [OF_JOBSETS, OF_WORKLOADS], ids=["jobsets", "workloads"])
def test_google_identities_of_jobsets_bind_their_users_and_no_service_account(
    of: tuple[str, ...], tmp_path: Path
) -> None:
    rendered = render(write_overlay(tmp_path / "google", *of, "jobsets-google-identities"))
    plain = render(write_overlay(tmp_path / "plain", *of))
    assert "from the ConfigMap installation" not in yaml.safe_dump_all(rendered)
    for name in SLICE_USERS:
        user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": NAMES[name]}
        assert expand(rendered, user) == expand(plain, account(name)) != set()
        assert key({"kind": "ServiceAccount", "metadata": account(name)}) not in map(key, rendered)
    assert "ServiceAccount tpu-functions/relay" in map(key, rendered)


JOBSET_LABELS = {"tpu-functions.dev/jobset-name": "train"}
SLICE: Manifest = {
    "metadata": {"name": "train-1", "namespace": "default", "labels": JOBSET_LABELS},
    "spec": {"nodeCount": 2},
}
NOT_FOR_JOBSETS = (
    "the steps of JobSets may only create, change and delete TPUNodeGroups with the label "
    "tpu-functions.dev/jobset-name"
)
ONLY_ANNOTATIONS = (
    "the steps of JobSets may only change the annotations of an existing TPUNodeGroup"
)
CHANGES = {
    "create a slice": ("CREATE", {}, {}, ""),
    "delete a slice": ("DELETE", {}, {}, ""),
    "annotate a slice": ("UPDATE", {}, {"metadata": {"annotations": {"a": "b"}}}, ""),
    "create another group": ("CREATE", {"metadata": {"labels": None}}, {}, NOT_FOR_JOBSETS),
    "delete another group": ("DELETE", {"metadata": {"labels": None}}, {}, NOT_FOR_JOBSETS),
    "label another group": (
        "UPDATE",
        {"metadata": {"labels": None}},
        {"metadata": {"labels": JOBSET_LABELS}},
        NOT_FOR_JOBSETS,
    ),
    "remove the label of a slice": ("UPDATE", {}, {"metadata": {"labels": None}}, ONLY_ANNOTATIONS),
    "change a spec": ("UPDATE", {}, {"spec": {"nodeCount": 4}}, ONLY_ANNOTATIONS),
    "remove a finalizer": (
        "UPDATE",
        {"metadata": {"finalizers": ["tpu-functions.dev/cleanup"]}},
        {"metadata": {"finalizers": None}},
        ONLY_ANNOTATIONS,
    ),
}


@pytest.mark.parametrize("operation, old, change, message", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("identity", ["service account", "google"])
def test_the_steps_of_jobsets_may_change_only_groups_that_were_created_for_jobsets(
    operation: str, old: Manifest, change: Manifest, message: str, identity: str
) -> None:
    google = identity == "google"
    rendered = _policies_of_slices(google)
    policy = only(rendered, "ValidatingAdmissionPolicy", "tpu-functions-slices")
    names = NAMES if google else {name: f"{ACCOUNTS}:{name}" for name in SLICE_USERS}
    before = merge_patch(SLICE, old)
    after = merge_patch(before, change)
    for name in SLICE_USERS:
        user = {"username": names[name], "groups": []}
        assert refusal(policy, operation, after, old=before, user=user) == message
    jane = {"username": "jane", "groups": ["system:masters"]}
    assert refusal(policy, operation, after, old=before, user=jane) == ""


STATUS: Manifest = {
    "refusals": [{"candidate": "a"}],
    "usage": {"slices": 1},
    "waits": {"p90": "1m"},
}
ONLY_REFUSALS = "provision_slice may change only the refusals of a TPUSliceClass"
ONLY_USAGE = "release_slice may change only the usage and the waits of a TPUSliceClass"
OF_STATUS = {
    "a refusal": ({"refusals": [{"candidate": "b"}]}, "provision-slice", ONLY_USAGE),
    "no refusals": ({"refusals": None}, "provision-slice", ONLY_USAGE),
    "the usage": ({"usage": {"slices": 2}}, "release-slice", ONLY_REFUSALS),
    "the waits": ({"waits": None}, "release-slice", ONLY_REFUSALS),
}


@pytest.mark.parametrize("change, step, message", OF_STATUS.values(), ids=OF_STATUS.keys())
@pytest.mark.parametrize("identity", ["service account", "google"])
@pytest.mark.parametrize("is_new", [False, True], ids=["changed", "first"])
def test_each_part_of_the_status_of_a_class_has_one_writer(
    change: Manifest, step: str, message: str, identity: str, is_new: bool
) -> None:
    google = identity == "google"
    policy = only(
        _policies_of_slices(google), "ValidatingAdmissionPolicy", "tpu-functions-slice-classes"
    )
    names = NAMES if google else {name: f"{ACCOUNTS}:{name}" for name in SLICE_USERS}
    old = {"metadata": {"name": "v6e"}, **({} if is_new else {"status": STATUS})}
    new = merge_patch(old, {"status": change})
    for user in (*SLICE_USERS, "jane"):
        found = refusal(policy, "UPDATE", new, old=old, user={"username": names.get(user, user)})
        is_deletion = is_new and None in change.values()
        assert found == ("" if user in (step, "jane") or is_deletion else message)


@pytest.mark.parametrize("identity", ["service account", "google"])
@pytest.mark.parametrize("name", ["slices.tpu-functions.dev", "queued-provisioning.gke.io"])
def test_a_step_may_write_only_the_status_of_requests_of_its_class(
    name: str, identity: str
) -> None:
    google = identity == "google"
    policy = only(
        _policies_of_slices(google),
        "ValidatingAdmissionPolicy",
        "tpu-functions-provisioning-requests",
    )
    step = NAMES["provision-slice"] if google else f"{ACCOUNTS}:provision-slice"
    old = {"metadata": {"name": "train-1"}, "spec": {"provisioningClassName": name}}
    new = merge_patch(old, {"status": {"conditions": []}})
    for user in (step, "jane"):
        found = refusal(policy, "UPDATE", new, old=old, user={"username": user})
        is_theirs = user == step and name != "slices.tpu-functions.dev"
        assert bool(found) is is_theirs


ACCOUNTS = "system:serviceaccount:tpu-functions"


@functools.cache
def _policies_of_slices(google: bool) -> list[Manifest]:
    more = ("jobsets-google-identities",) if google else ()
    with tempfile.TemporaryDirectory() as folder:
        return render(write_overlay(Path(folder), *OF_JOBSETS, *more))


# The relay's credentials


@pytest.mark.parametrize("component", ["relay-key-secret", "relay-workload-identity"])
def test_the_path_of_the_relays_credentials_is_mounted(component: str, tmp_path: Path) -> None:
    pod = relay_pod(render(write_overlay(tmp_path, component)))
    (container,), (volume,) = pod["containers"], pod["volumes"]
    (variable,), (mount,) = container["env"], container["volumeMounts"]
    assert variable["name"] == "GOOGLE_APPLICATION_CREDENTIALS"
    assert mount == {"name": volume["name"], "mountPath": CREDENTIALS, "readOnly": True}
    assert Path(variable["value"]).parent == Path(CREDENTIALS)


@pytest.mark.parametrize("name", ["relay", "token-writer"])
def test_workload_identity_mounts_a_token_for_the_configured_provider(
    name: str, tmp_path: Path
) -> None:
    rendered = render(write_overlay(tmp_path, "token-writer", "relay-workload-identity"))
    settings = only(rendered, "ConfigMap", "relay-google-credentials-")
    pod = only(rendered, "Deployment", name)["spec"]["template"]["spec"]
    path = {
        "name": "GOOGLE_APPLICATION_CREDENTIALS",
        "value": f"{CREDENTIALS}/credential-configuration.json",
    }
    assert path in pod["containers"][0]["env"]
    assert pod["containers"][0]["volumeMounts"][-1]["mountPath"] == CREDENTIALS
    volume = pod["volumes"][-1]
    token, configuration = volume["projected"]["sources"]
    assert token["serviceAccountToken"] == {
        "path": "token",
        "audience": NAMES["relay-audience"],
        "expirationSeconds": 3600,
    }
    assert configuration["configMap"]["name"] == settings["metadata"]["name"]
    (content,) = settings["data"].values()
    info = json.loads(content)
    assert (
        info["credential_source"]["file"] == f"{CREDENTIALS}/{token['serviceAccountToken']['path']}"
    )
    credentials = identity_pool.Credentials.from_info(info)
    assert credentials.info["audience"] == NAMES["relay-audience"]


def test_relay_gke_workload_identity_annotates_the_relays_service_account(tmp_path: Path) -> None:
    rendered = render(write_overlay(tmp_path, "relay-gke-workload-identity"))
    assert list(changed(rendered)) == ["ServiceAccount tpu-functions/relay"]
    annotations = only(rendered, "ServiceAccount", "relay")["metadata"]["annotations"]
    email = "relay@my-gcp-project.iam.gserviceaccount.com"
    assert annotations == {"iam.gke.io/gcp-service-account": email}


# Webhooks


WEBHOOKS = ("tpu-functions-inject-env", "admit-jobs.tpu-functions.dev", "tpu-functions-tie-pods")


def test_all_webhooks_trust_the_ca_of_the_overlay_without_cert_manager(tmp_path: Path) -> None:
    rendered = render(
        write_overlay(tmp_path, "inject-env", "admit-jobs", "tie-pods", "inject-env-ca")
    )
    found = [only(rendered, "MutatingWebhookConfiguration", name) for name in WEBHOOKS]
    bundles = [hook["clientConfig"]["caBundle"] for one in found for hook in one["webhooks"]]
    assert len(bundles) == 4
    assert len(set(bundles)) == 1


# Network and priority


DNS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
SERVERS = [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443}]
METADATA = {"169.254.169.254/32": 80, "169.254.169.252/32": 988}


def test_each_deployment_has_its_own_network_policy(tmp_path: Path) -> None:
    rendered = render(write_overlay(tmp_path, "inject-env", "token-writer"))
    deployments = [one for one in rendered if one["kind"] == "Deployment"]
    names = ["inject-env", "relay", "token-writer"]
    assert sorted(one["metadata"]["name"] for one in deployments) == names
    for deployment in deployments:
        name = deployment["metadata"]["name"]
        policy = only(rendered, "NetworkPolicy", name)
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert policy["metadata"]["namespace"] == deployment["metadata"]["namespace"]
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        (rule,) = policy["spec"]["ingress"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert [port["port"] for port in rule["ports"]] == [
            port["name"] for port in container["ports"]
        ]


def test_the_relay_may_connect_only_to_dns_https_and_metadata_servers() -> None:
    policy = only(list(render_base()), "NetworkPolicy", "relay")
    dns, servers, *metadata = policy["spec"]["egress"]
    assert (dns, servers) == ({"ports": DNS}, {"ports": SERVERS})
    assert metadata == [
        {"to": [{"ipBlock": {"cidr": cidr}}], "ports": [{"protocol": "TCP", "port": port}]}
        for cidr, port in METADATA.items()
    ]


def test_only_pods_of_the_cluster_may_read_the_relays_metrics() -> None:
    (rule,) = only(list(render_base()), "NetworkPolicy", "relay")["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {}}]


def test_the_webhook_accepts_all_connections_and_cannot_open_any(tmp_path: Path) -> None:
    rendered = render(write_overlay(tmp_path, "inject-env"))
    spec = only(rendered, "NetworkPolicy", "inject-env")["spec"]
    assert "Egress" in spec["policyTypes"]
    assert "egress" not in spec  # none is allowed; the API server drops an empty list
    assert [list(rule) for rule in spec["ingress"]] == [["ports"]]


def test_the_relay_and_the_webhook_have_a_higher_priority_than_pods_without_one(
    tmp_path: Path,
) -> None:
    rendered = render(write_overlay(tmp_path, "inject-env", "token-writer"))
    priority = only(rendered, "PriorityClass")
    assert 0 < priority["value"] <= 1_000_000_000, "higher values are reserved for Kubernetes"
    assert not priority.get("globalDefault")
    named = {
        one["metadata"]["name"]: one["spec"]["template"]["spec"].get("priorityClassName")
        for one in rendered
        if one["kind"] == "Deployment"
    }
    assert named == dict.fromkeys(
        ("inject-env", "relay", "token-writer"), priority["metadata"]["name"]
    )


# Monitoring


@pytest.mark.parametrize(
    "component, kind, endpoints",
    [
        ("monitoring-google", "PodMonitoring", "endpoints"),
        ("monitoring-prometheus", "PodMonitor", "podMetricsEndpoints"),
    ],
)
def test_monitoring_scrapes_the_relays_port(
    component: str, kind: str, endpoints: str, tmp_path: Path
) -> None:
    rendered = render(write_overlay(tmp_path, component))
    template = only(rendered, "Deployment", "relay")["spec"]["template"]
    spec = only(rendered, kind)["spec"]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (port,) = template["spec"]["containers"][0]["ports"]
    assert spec[endpoints] == [{"port": port["name"], "interval": "30s"}]
