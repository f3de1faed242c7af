# ruff: noqa: E501  (a table reads best with a row on a line)
"""The objects that ``helm template`` renders from the chart, by its values."""

from __future__ import annotations

import functools
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from cryptography import x509
from google.auth import identity_pool

from infra.release.__main__ import read_repository
from local.base.clock import VirtualClock
from local.kube import KubeApi
from relay.settings import read_settings
from shared.base.names import BOOTSTRAP_GROUP
from shared.node_groups.bootstrap import KUBEADM_GROUP
from shared.triggers.routes import SLICE_STEPS, STEPS
from tests.support.admission import evaluate, refusal
from tests.support.chart import (
    AUDIENCE,
    CHART,
    NAMESPACE,
    PROJECT,
    TOKEN_WRITER,
    USERS,
    WITH_USERS,
    needs_helm,
    render,
    run_helm,
    template,
)
from tests.unit.infra.chart.manifests import DOCUMENTS, LABELS, SECRET, Permission, merge_patch
from tests.unit.infra.chart.manifests import expand as expand_role
from version import VERSION

Manifest = dict[str, Any]

STEP_USERS = [step.replace("_", "-") for step in STEPS]
CREDENTIALS = "/var/run/secrets/google"
IMAGES = f"ghcr.io/{read_repository().lower()}"
EXAMPLE: Manifest = yaml.safe_load((CHART.parent / "values" / "example.yaml").read_text())
DEFAULTS: Manifest = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: Manifest = json.loads((CHART / "values.schema.json").read_text())
INJECT_ENV: Manifest = {"injectEnv": {"enabled": True, "certificate": "secret", "caBundle": "Q0E="}}
ALL_WEBHOOKS = merge_patch(INJECT_ENV, {"injectEnv": {"admitJobs": True, "tiePods": True}})
ALL_VALUES: tuple[Manifest, ...] = (
    {},
    {**WITH_USERS, "slices": {"workloads": "all"}, "joinApproval": "external"},
    {**ALL_WEBHOOKS, "slices": {"workloads": "jobsets"}, "monitoring": "prometheus"},
    {
        "slices": {"workloads": "all", "provider": "gke"},
        "devicePlugin": {"enabled": False},
        "guardrails": {"enabled": True, "limits": {"strict": "true"}},
        "monitoring": "google",
        "identity": {"google": {"audience": AUDIENCE}},
        "injectEnv": {"enabled": True, "certificate": "cert-manager"},
    },
    {"slices": {"enabled": False}, "injectEnv": {"enabled": True}},
    {**TOKEN_WRITER, "identity": {"google": {"audience": AUDIENCE}}},
)
"""Values that together render everything."""
pytestmark = needs_helm


def permissions(namespace: str, group: str, resource: str, *verbs: str) -> set[Permission]:
    return {(namespace, group, resource, verb) for verb in verbs}


def key(document: Manifest) -> str:
    metadata = document["metadata"]
    return f"{document['kind']} {metadata.get('namespace', '')}/{metadata['name']}"


@functools.cache
def render_default() -> tuple[Manifest, ...]:
    return tuple(render({}))


def changed(rendered: list[Manifest]) -> dict[str, tuple[Manifest | None, Manifest | None]]:
    """Return the documents that differ from the default: before and after, by kind and name."""
    before = {key(document): document for document in render_default()}
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
        if document["kind"] == kind and name in ("", document["metadata"]["name"])
    )
    return found


def relay_pod(rendered: list[Manifest]) -> Manifest:
    pod: Manifest = only(rendered, "Deployment", "relay")["spec"]["template"]["spec"]
    return pod


# Values


def leaves(values: Manifest, path: str = "") -> Iterator[str]:
    """Yield the path of each value; what users name themselves is one value."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{name}.")
        else:
            yield path + name


def schema_leaves(schema: Manifest, defaults: Manifest, path: str = "") -> Iterator[str]:
    for name, one in schema["properties"].items():
        if "properties" in one and defaults.get(name):
            assert one["additionalProperties"] is False, path + name
            yield from schema_leaves(one, defaults[name], f"{path}{name}.")
        else:
            yield path + name


def test_the_schema_has_exactly_the_keys_of_the_values() -> None:
    """Helm itself adds ``global``."""
    assert set(schema_leaves(SCHEMA, DEFAULTS)) - {"global"} == set(leaves(DEFAULTS))
    assert SCHEMA["additionalProperties"] is False


def test_the_version_of_the_chart_is_that_of_the_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], str(chart["appVersion"])) == (VERSION, VERSION)


def test_a_value_that_is_not_empty_by_default_is_required() -> None:
    """helm removes the default of an empty key, such as one with comments only below it."""
    for schema, defaults in [(SCHEMA, DEFAULTS), *pairs_of_sections(SCHEMA, DEFAULTS)]:
        assert schema.get("required", []) == [name for name, value in defaults.items() if value]


def pairs_of_sections(schema: Manifest, defaults: Manifest) -> Iterator[tuple[Manifest, Manifest]]:
    """The schema and the defaults of each section, also of those in sections."""
    for name, value in defaults.items():
        if isinstance(value, dict) and value:
            yield schema["properties"][name], value
            yield from pairs_of_sections(schema["properties"][name], value)


def test_an_empty_list_of_values_may_be_written_without_anything() -> None:
    pods = dict.fromkeys(("annotations", "nodeSelector", "tolerations", "env"))
    empty = {"pods": pods, "image": dict.fromkeys(("digests", "pullSecrets"))}
    webhook = {"injectEnv": INJECT_ENV["injectEnv"] | {"env": None}}
    assert render({**empty, **webhook}) == render(INJECT_ENV)


ALONE: Manifest = {"slices": {"enabled": False}, "injectEnv": {"enabled": True}}
"""The webhook without slices."""
WRONG: tuple[tuple[Manifest, str], ...] = (
    ({"slice": {}}, "at '': additional properties 'slice' not allowed"),
    ({"slices": {"workload": "all"}}, "at '/slices': additional properties 'workload' not allowed"),
    ({"slices": {"workloads": "pods"}}, "at '/slices/workloads': value must be one of 'none', 'jobsets', 'all'"),
    ({"devicePlugin": {"enabled": "no"}}, "at '/devicePlugin/enabled': got string, want boolean"),
    ({"injectEnv": {"replicas": 0}}, "at '/injectEnv/replicas': minimum: got 0, want 1"),
    ({"guardrails": {"limits": {"maxChip": "4"}}}, "at '/guardrails/limits': additional properties 'maxChip' not allowed"),
    ({"identity": {"users": {"sweeper": "a@b"}}}, "at '/identity/users': additional properties 'sweeper' not allowed"),
    ({"identity": {"users": {"sweep": "a b"}}}, "at '/identity/users/sweep': 'a b' does not match pattern"),
    ({"network": {"apiServerPorts": []}}, "at '/network/apiServerPorts': minItems: got 0, want 1"),
    ({"monitoring": True}, "at '/monitoring': value must be one of 'none', 'prometheus', 'google'"),
    ({"pods": None}, "at '': missing property 'pods'"),
    ({"crds": {"install": None}}, "at '/crds': missing property 'install'"),
    ({"project": ""}, "project: it is required with slices"),
    ({"identity": {"users": {"sweep": "a@b"}}}, "identity.users: the user of create-resources is missing"),
    ({"tokenWriter": {"enabled": True}}, "tokenWriter.server: it is required with tokenWriter.enabled"),
    ({"tokenWriter": {**TOKEN_WRITER["tokenWriter"], "steps": []}}, "tokenWriter.steps: it is required with tokenWriter.enabled"),
    ({"tokenWriter": {"steps": ["label_node"]}}, "at '/tokenWriter/steps/0': value must be one of 'create-resources'"),
    ({**TOKEN_WRITER, **WITH_USERS}, "tokenWriter.enabled and identity.users: set one, because the token-writer needs the ServiceAccounts"),
    ({"injectEnv": {"admitJobs": True}}, "injectEnv.admitJobs and injectEnv.tiePods need injectEnv.enabled: they share its Deployment"),
    ({"injectEnv": {"enabled": True, "certificate": "secret"}}, "injectEnv.caBundle: it is required with injectEnv.certificate = secret (docs/injection.md)"),
    ({"identity": {"google": {"audience": AUDIENCE, "keySecret": "key"}}}, "identity.google: set audience or keySecret, not both"),
    ({"slices": {"enabled": False}}, "slices.enabled and injectEnv.enabled are both false: there is nothing to install"),
    ({"guardrails": {"limits": {"strict": "true"}}}, "guardrails.limits need guardrails.enabled: without it nothing is limited"),
    *(({**ALONE, **values}, f"{name} needs slices.enabled: it has no effect on the webhook") for name, values in (
        ("guardrails.enabled", {"guardrails": {"enabled": True}}),
        ("monitoring", {"monitoring": "google"}),
        ("slices.workloads", {"slices": {"enabled": False, "workloads": "all"}}),
        ("tokenWriter.enabled", TOKEN_WRITER),
    )),
)  # fmt: skip


@pytest.mark.parametrize("values, message", WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_value_is_an_error_that_names_it(values: Manifest, message: str) -> None:
    run = template(values)
    assert run.returncode == 1
    assert message in run.stderr


@pytest.mark.parametrize("values", [*ALL_VALUES, EXAMPLE])
def test_helm_has_no_warning_about_the_chart(values: Manifest) -> None:
    linted = run_helm("lint", "--strict", str(CHART), values={**PROJECT, **values})
    assert (linted.returncode, linted.stderr) == (0, "")
    assert "[WARNING]" not in linted.stdout


def test_another_namespace_is_an_error() -> None:
    run = run_helm("template", "x", str(CHART), namespace="other", values=PROJECT)
    assert "install it in the namespace tpu-functions: add --namespace tpu-functions" in run.stderr


# The default values


def test_the_default_objects_are_the_plain_manifests_with_images_and_the_relays_settings() -> None:
    rendered = {key(document): document for document in render_default()}
    plain = {key(document): document for document in DOCUMENTS}
    assert rendered.keys() ^ plain.keys() == {
        "Namespace /tpu-functions",  # helm's release is in it
        "ConfigMap tpu-functions/relay",
    }
    differing = {name for name in rendered.keys() & plain.keys() if rendered[name] != plain[name]}
    assert differing == {"Deployment tpu-functions/relay"}
    (container,) = relay_pod(list(render_default()))["containers"]
    assert container["image"] == f"{IMAGES}/relay:{VERSION}"
    settings = rendered["ConfigMap tpu-functions/relay"]
    assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    read = read_settings(settings["data"])
    assert (read.project, read.topic_prefix, read.port) == (
        "my-gcp-project",
        "tpu-functions-",
        8080,
    )


@pytest.mark.parametrize("values", ALL_VALUES, ids=lambda values: "+".join(values) or "default")
def test_all_objects_are_labelled(values: Manifest) -> None:
    for document in render(values):
        assert set(LABELS) <= document["metadata"]["labels"].keys(), key(document)


@pytest.mark.parametrize("values", [*ALL_VALUES[:2], EXAMPLE], ids=["default", "users", "example"])
def test_the_embedded_kubernetes_accepts_the_objects(values: Manifest) -> None:
    objects = [DOCUMENTS[0], *render(values)]
    KubeApi(VirtualClock(), random=Random(1)).apply_manifests(objects)


def test_a_change_of_the_relays_settings_restarts_it_and_another_change_does_not() -> None:
    def template_of(values: Manifest) -> Manifest:
        found: Manifest = only(render(values), "Deployment", "relay")["spec"]["template"]
        return found

    assert template_of({"topicPrefix": "research-"}) != template_of({})
    assert template_of({"guardrails": {"enabled": True}}) == template_of({})


def test_crds_that_are_installed_by_other_means_are_not_rendered() -> None:
    kinds = {one["kind"] for one in render({"crds": {"install": False}})}
    assert "CustomResourceDefinition" not in kinds


def test_images_can_be_named_by_digest_and_pulled_with_a_secret() -> None:
    digest = f"sha256:{'a' * 64}"
    images = {"relay": f"example.test/relay@{digest}", "pullSecrets": ["tpu-functions-images"]}
    rendered = render({**INJECT_ENV, "image": images})
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in rendered
        if one["kind"] == "Deployment"
    }
    assert {name: pod["containers"][0]["image"] for name, pod in pods.items()} == {
        "relay": f"example.test/relay@{digest}",
        "inject-env": f"{IMAGES}/inject-env:{VERSION}",
    }
    for pod in pods.values():
        assert pod["imagePullSecrets"] == [{"name": "tpu-functions-images"}]


def test_the_values_for_pods_are_those_of_each_deployment() -> None:
    pods = {
        "annotations": {"a": "b"},
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.test"}],
    }
    deployments = [
        one for one in render({**INJECT_ENV, "pods": pods}) if one["kind"] == "Deployment"
    ]
    assert len(deployments) == 2
    for one in deployments:
        template = one["spec"]["template"]
        assert template["metadata"]["annotations"]["a"] == "b"
        assert template["spec"]["nodeSelector"] == pods["nodeSelector"]
        assert template["spec"]["tolerations"] == pods["tolerations"]
        assert template["spec"]["containers"][0]["env"] == pods["env"]


def render_uninstall_check(values: Manifest) -> Manifest:
    run = run_helm(
        "template",
        NAMESPACE,
        str(CHART),
        "--show-only=templates/uninstall-check.yaml",
        values={**PROJECT, **values},
    )
    template: Manifest = yaml.safe_load(run.stdout)["spec"]["template"]
    return template


def test_the_check_before_an_uninstallation_runs_without_googles_credentials() -> None:
    pods = {"annotations": {"a": "b"}, "env": [{"name": "NO_PROXY", "value": "10.0.0.1"}]}
    values = {"pods": pods, "identity": {"google": {"keySecret": "missing"}}}
    template = render_uninstall_check(values)
    assert template["metadata"]["annotations"] == pods["annotations"]
    (container,) = template["spec"]["containers"]
    assert "volumes" not in template["spec"]
    assert "volumeMounts" not in container
    assert container["env"] == pods["env"]
    revision = "1"  # of a first installation
    assert container["command"] == ["python", "-m", "relay.uninstall", revision, "TPUNodeGroup"]
    assert template["spec"]["serviceAccountName"] == "relay"


@pytest.mark.parametrize(
    "slices, kinds",
    [
        ({"provider": "gke"}, ["TPUNodeGroup"]),  # its node pools are TPU Provisioner's
        ({"workloads": "jobsets"}, ["TPUNodeGroup"]),
        ({"workloads": "jobsets", "provider": "gke"}, ["TPUNodeGroup", "Node"]),
    ],
    ids=["no-workloads", "node-groups", "node-pools"],
)
def test_nodes_of_node_pools_prevent_an_uninstallation_only_if_the_chart_creates_such(
    slices: Manifest, kinds: list[str]
) -> None:
    (container,) = render_uninstall_check({"slices": slices})["spec"]["containers"]
    assert container["command"][4:] == kinds


def test_pods_can_be_scheduled_on_the_control_plane() -> None:
    rendered = render({**INJECT_ENV, **TOKEN_WRITER, "pods": {"onControlPlane": True}})
    for name in ("relay", "token-writer", "inject-env"):
        pod = only(rendered, "Deployment", name)["spec"]["template"]["spec"]
        control_plane = {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}
        assert pod["tolerations"] == [{**control_plane, "effect": "NoSchedule"}]
        affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        no_tpu = {"key": "cloud.google.com/gke-tpu-accelerator", "operator": "DoesNotExist"}
        assert affinity == {"nodeSelectorTerms": [{"matchExpressions": [no_tpu, control_plane]}]}


def test_only_the_device_plugin_is_removed_where_the_cluster_has_one() -> None:
    removed = changed(render({"devicePlugin": {"enabled": False}}))
    assert list(removed) == [
        "ClusterRole /tpu-device-plugin",
        "ClusterRoleBinding /tpu-device-plugin",
        "DaemonSet kube-system/tpu-device-plugin",
        "ServiceAccount kube-system/tpu-device-plugin-sa",
        "ValidatingAdmissionPolicy /tpu-device-plugin-own-node",
        "ValidatingAdmissionPolicyBinding /tpu-device-plugin-own-node",
    ]
    assert all(after is None for _, after in removed.values())


# Google identities


def test_google_identities_bind_each_step_to_its_user_and_no_service_account() -> None:
    rendered = {key(document): document for document in render(WITH_USERS)}
    for binding in render_default():
        for subject in binding.get("subjects", ()):
            if subject["name"] in STEP_USERS:
                (user,) = rendered.pop(key(binding))["subjects"]
                assert user == {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "User",
                    "name": USERS[subject["name"]],
                }
    assert not [name for name in rendered if name.partition("/")[2] in STEP_USERS]
    assert "ServiceAccount tpu-functions/relay" in rendered


@pytest.mark.parametrize(
    "policy",
    ["tpu-functions-bootstrap-tokens", "tpu-functions-nodes", "tpu-functions-join-approvals"],
)
def test_the_admission_policies_apply_to_google_identities(policy: str) -> None:
    rendered = render(WITH_USERS)
    document = only(rendered, "ValidatingAdmissionPolicy", policy)
    (condition,) = document["spec"]["matchConditions"]

    def applies_to(name: str, *groups: str) -> bool:
        user = {"username": name, "groups": list(groups)}
        return bool(evaluate(condition["expression"], {"request": {"userInfo": user}}))

    assert all(map(applies_to, USERS.values()))
    accounts = "system:serviceaccounts:tpu-functions"
    assert applies_to("system:serviceaccount:tpu-functions:relay", accounts)
    assert not applies_to("jane@example.com", "system:masters")
    assert not applies_to("sweep")


@pytest.mark.parametrize("approval, accepts", [("approve_join", False), ("external", True)])
def test_a_token_of_kubeadms_group_needs_external_approval(approval: str, accepts: bool) -> None:
    rendered = render({**WITH_USERS, "joinApproval": approval})
    policy = only(rendered, "ValidatingAdmissionPolicy", "tpu-functions-bootstrap-tokens")
    user = {"username": USERS["inject-token"], "groups": []}
    for group, is_accepted in [(BOOTSTRAP_GROUP, True), (KUBEADM_GROUP, accepts), ("x", False)]:
        data = {"auth-extra-groups": b64encode(group.encode()).decode()}
        token = merge_patch(SECRET, {"data": data})
        assert (refusal(policy, "CREATE", token, user=user) == "") is is_accepted


# JobSets

SLICE_USERS = [step.replace("_", "-") for step in SLICE_STEPS]
WITH_POOLS: Manifest = {"slices": {"workloads": "jobsets", "provider": "gke"}}
WITH_GROUPS: Manifest = {"slices": {"workloads": "jobsets"}}
WITH_WORKLOADS: Manifest = {"slices": {"workloads": "all"}}


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


def test_a_relay_with_permission_for_jobsets_and_pods_reports_jobsets() -> None:
    rendered = render(WITH_POOLS)
    assert read_settings(only(rendered, "ConfigMap", "relay")["data"]).jobsets is True
    added = expand(rendered, account("relay")) - expand(list(render_default()), account("relay"))
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
def test_workloads_adds_only_reads_of_the_owners_of_pods(user: str, reads: set[Permission]) -> None:
    without, with_workloads = render(WITH_GROUPS), render(WITH_WORKLOADS)
    read = read_settings(only(with_workloads, "ConfigMap", "relay")["data"])
    assert (read.jobsets, read.slice_workloads) == (True, True)
    assert expand(with_workloads, account(user)) - expand(without, account(user)) == reads


def test_the_default_does_not_mention_jobsets() -> None:
    text = yaml.safe_dump_all(render_default())
    assert not [word for word in ("jobset", "provision-slice", "release-slice") if word in text]


@pytest.mark.parametrize("user", SLICE_USERS)
def test_a_step_of_jobsets_may_write_only_events_the_ledger_and_statuses_of_classes_without_a_provider(
    user: str,
) -> None:
    found = expand(render(WITH_POOLS), account(user))
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
    user: str, verbs: tuple[str, ...]
) -> None:
    without, with_groups = (
        expand(render(values), account(user)) for values in (WITH_POOLS, WITH_GROUPS)
    )
    assert with_groups - without == permissions("*", "tpu.google.com", "tpunodegroups", *verbs)


def test_applying_jobsets_again_keeps_a_pause() -> None:
    rendered = render(WITH_POOLS)
    for name in ("jobsets", "slice-ledger"):
        assert "data" not in only(rendered, "ConfigMap", name)


@pytest.mark.parametrize("of", [WITH_GROUPS, WITH_WORKLOADS], ids=["jobsets", "workloads"])
def test_google_identities_of_jobsets_bind_their_users_and_no_service_account(
    of: Manifest,
) -> None:
    rendered = render({**of, **WITH_USERS})
    plain = render(of)
    for name in SLICE_USERS:
        user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USERS[name]}
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
    names = USERS if google else {name: f"{ACCOUNTS}:{name}" for name in SLICE_USERS}
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
    names = USERS if google else {name: f"{ACCOUNTS}:{name}" for name in SLICE_USERS}
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
    step = USERS["provision-slice"] if google else f"{ACCOUNTS}:provision-slice"
    old = {"metadata": {"name": "train-1"}, "spec": {"provisioningClassName": name}}
    new = merge_patch(old, {"status": {"conditions": []}})
    for user in (step, "jane"):
        found = refusal(policy, "UPDATE", new, old=old, user={"username": user})
        is_theirs = user == step and name != "slices.tpu-functions.dev"
        assert bool(found) is is_theirs


ACCOUNTS = "system:serviceaccount:tpu-functions"


@functools.cache
def _policies_of_slices(google: bool) -> list[Manifest]:
    return render({**WITH_GROUPS, **(WITH_USERS if google else {})})


# The relay's credentials


@pytest.mark.parametrize("google", [{"keySecret": "relay-google-key"}, {"audience": AUDIENCE}])
def test_the_path_of_the_relays_credentials_is_mounted(google: Manifest) -> None:
    pod = relay_pod(render({"identity": {"google": google}}))
    (container,), (volume,) = pod["containers"], pod["volumes"]
    (variable,), (mount,) = container["env"], container["volumeMounts"]
    assert variable["name"] == "GOOGLE_APPLICATION_CREDENTIALS"
    assert mount == {"name": volume["name"], "mountPath": CREDENTIALS, "readOnly": True}
    assert Path(variable["value"]).parent == Path(CREDENTIALS)


@pytest.mark.parametrize("name", ["relay", "token-writer"])
def test_workload_identity_mounts_a_token_for_the_configured_provider(name: str) -> None:
    rendered = render({**TOKEN_WRITER, "identity": {"google": {"audience": AUDIENCE}}})
    settings = only(rendered, "ConfigMap", "relay-google-credentials")
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
        "audience": AUDIENCE,
        "expirationSeconds": 3600,
    }
    assert configuration["configMap"]["name"] == settings["metadata"]["name"]
    (content,) = settings["data"].values()
    info = json.loads(content)
    assert (
        info["credential_source"]["file"] == f"{CREDENTIALS}/{token['serviceAccountToken']['path']}"
    )
    credentials = identity_pool.Credentials.from_info(info)
    assert credentials.info["audience"] == AUDIENCE


def test_gkes_workload_identity_annotates_the_relays_service_account() -> None:
    email = "relay@my-gcp-project.iam.gserviceaccount.com"
    rendered = render({"identity": {"google": {"serviceAccount": email}}})
    assert list(changed(rendered)) == ["ServiceAccount tpu-functions/relay"]
    annotations = only(rendered, "ServiceAccount", "relay")["metadata"]["annotations"]
    assert annotations == {"iam.gke.io/gcp-service-account": email}


@pytest.mark.parametrize(
    "audience, allowed",
    [
        ("https://issuer.test", ["https://issuer.test"]),
        ("https://issuer.test,k3s", ["https://issuer.test", "k3s"]),
        ("", ["https://kubernetes.default.svc.cluster.local"]),
    ],
)
def test_the_token_writer_has_its_settings_and_its_own_access(
    audience: str, allowed: list[str]
) -> None:
    values = {"tokenWriter": {**TOKEN_WRITER["tokenWriter"], "audience": audience}}
    rendered = render(values)
    assert only(rendered, "ConfigMap", "token-writer")["data"] == {
        "CLUSTER_SERVER": "https://10.128.0.2:6443",
        "CLUSTER_CA": "Q0E=",
        "STEPS": "sweep,label-node",
    }
    access = yaml.safe_load(
        only(rendered, "ConfigMap", "token-writer-access")["data"]["kubeconfig"]
    )
    assert access["clusters"][0]["cluster"]["server"] == "https://kubernetes.default.svc"
    policy = only(rendered, "ValidatingAdmissionPolicy", "tpu-functions-account-tokens")
    assert evaluate(policy["spec"]["variables"][1]["expression"], {}) == allowed


# Webhooks


WEBHOOKS = ("tpu-functions-inject-env", "admit-jobs.tpu-functions.dev", "tpu-functions-tie-pods")


def bundles_of(rendered: list[Manifest]) -> list[str]:
    found = [only(rendered, "MutatingWebhookConfiguration", name) for name in WEBHOOKS]
    return [hook["clientConfig"]["caBundle"] for one in found for hook in one["webhooks"]]


def test_all_webhooks_trust_the_given_ca() -> None:
    assert bundles_of(render(ALL_WEBHOOKS)) == ["Q0E="] * 4


def test_all_webhooks_trust_the_generated_ca_which_has_signed_the_servers_certificate() -> None:
    rendered = render(merge_patch(ALL_WEBHOOKS, {"injectEnv": {"certificate": "generated"}}))
    data = only(rendered, "Secret", "inject-env-tls")["data"]
    assert bundles_of(rendered) == [data["ca.crt"]] * 4
    ca, served = (
        x509.load_pem_x509_certificate(b64decode(data[one])) for one in ("ca.crt", "tls.crt")
    )
    served.verify_directly_issued_by(ca)
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName)[0] == "inject-env.tpu-functions.svc"


def test_the_webhook_can_be_installed_alone_without_a_project() -> None:
    values = {"project": "", **ALONE}
    assert {one["kind"] for one in render(values)} == {
        *("Secret", "ServiceAccount", "Service", "Deployment", "PodDisruptionBudget"),
        *("NetworkPolicy", "PriorityClass", "MutatingWebhookConfiguration"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }


def test_the_webhook_is_asked_at_the_port_of_its_settings() -> None:
    settings = [{"name": "PORT", "value": "10250"}]
    rendered = render(merge_patch(INJECT_ENV, {"injectEnv": {"env": settings}}))
    (container,) = only(rendered, "Deployment", "inject-env")["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["env"] == settings
    assert container["ports"] == [{"name": "https", "containerPort": 10250}]


def test_a_node_can_be_drained_also_if_the_webhook_has_one_replica() -> None:
    """With ``minAvailable: 1`` the only Pod would never be evicted."""
    rendered = render(merge_patch(INJECT_ENV, {"injectEnv": {"replicas": 1}}))
    assert only(rendered, "Deployment", "inject-env")["spec"]["replicas"] == 1
    budget = only(rendered, "PodDisruptionBudget")["spec"]
    assert budget.items() >= {"maxUnavailable": 1}.items()
    assert "minAvailable" not in budget


# Network and priority


DNS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
SERVERS = [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443}]
METADATA = {"169.254.169.254/32": 80, "169.254.169.252/32": 988}


def test_each_deployment_has_its_own_network_policy() -> None:
    rendered = render({**INJECT_ENV, **TOKEN_WRITER})
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
    policy = only(list(render_default()), "NetworkPolicy", "relay")
    dns, servers, *metadata = policy["spec"]["egress"]
    assert (dns, servers) == ({"ports": DNS}, {"ports": SERVERS})
    other = only(render({"network": {"apiServerPorts": [8443]}}), "NetworkPolicy", "relay")
    ports = [one["port"] for one in other["spec"]["egress"][1]["ports"]]
    assert ports == [443, 8443]
    assert metadata == [
        {"to": [{"ipBlock": {"cidr": cidr}}], "ports": [{"protocol": "TCP", "port": port}]}
        for cidr, port in METADATA.items()
    ]


def test_only_pods_of_the_cluster_may_read_the_relays_metrics() -> None:
    (rule,) = only(list(render_default()), "NetworkPolicy", "relay")["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {}}]


def test_the_webhook_accepts_all_connections_and_cannot_open_any() -> None:
    rendered = render(INJECT_ENV)
    spec = only(rendered, "NetworkPolicy", "inject-env")["spec"]
    assert "Egress" in spec["policyTypes"]
    assert "egress" not in spec  # none is allowed; the API server drops an empty list
    assert [list(rule) for rule in spec["ingress"]] == [["ports"]]


def test_the_relay_and_the_webhook_have_a_higher_priority_than_pods_without_one() -> None:
    rendered = render({**INJECT_ENV, **TOKEN_WRITER})
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
    "monitoring, kind, endpoints, rules",
    [
        ("google", "PodMonitoring", "endpoints", "Rules"),
        ("prometheus", "PodMonitor", "podMetricsEndpoints", "PrometheusRule"),
    ],
)
def test_monitoring_scrapes_the_relays_port_and_links_the_runbooks(
    monitoring: str, kind: str, endpoints: str, rules: str
) -> None:
    rendered = render({"monitoring": monitoring, "runbooks": "https://example.test/runbooks"})
    links = [
        rule["annotations"]["runbook_url"]
        for group in only(rendered, rules)["spec"]["groups"]
        for rule in group["rules"]
    ]
    assert len(links) > 5
    assert all(link.startswith("https://example.test/runbooks/") for link in links)
    template = only(rendered, "Deployment", "relay")["spec"]["template"]
    spec = only(rendered, kind)["spec"]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (port,) = template["spec"]["containers"][0]["ports"]
    assert spec[endpoints] == [{"port": port["name"], "interval": "30s"}]
