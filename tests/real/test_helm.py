"""Helm installs, upgrades, takes over, rolls back and uninstalls the chart on a real control plane."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import open_own_control_plane
from shared.base.names import FINALIZER
from tests.real.deploy.installer import simulated_kubelet
from tests.real.helm_hooks import checks_run, list_left
from tests.real.inventory import list_everything
from tests.real.relay.waiting import until
from tests.support.chart import (
    CHART,
    MANIFESTS,
    PROJECT,
    define_anything,
    needs_helm,
    render,
    run_helm,
)
from tests.support.manifests import manifest

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("helm"), needs_helm]

Document = dict[str, Any]
GROUPS = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
RELAY = "/apis/apps/v1/namespaces/tpu-functions/deployments/relay"
MERGE_PATCH = "application/merge-patch+json"
FOR_CRDS = {"customresourcedefinitions", "apiservices", "tpunodegroups"}


@pytest.fixture(scope="module")
def plane() -> Iterator[OwnControlPlane]:
    with open_own_control_plane() as started, simulated_kubelet(started):
        yield started


def helm(plane: OwnControlPlane, *arguments: str, values: Document | None = None) -> str:
    done = run_helm(*arguments, values=values, plane=plane)
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(plane: OwnControlPlane, values: Document, *flags: str) -> str:
    arguments = ("upgrade", "--install", "tpu-functions", str(CHART), "--create-namespace", *flags)
    return helm(plane, *arguments, values={**PROJECT, **values})


def image_of_the_relay(plane: OwnControlPlane) -> str:
    spec = plane.request("GET", RELAY)[1]["spec"]["template"]["spec"]
    return str(spec["containers"][0]["image"])


def test_an_installation_is_upgraded_rolled_back_and_uninstalled_only_without_slices(
    plane: OwnControlPlane, tmp_path: Path
) -> None:
    before = list_everything(plane)
    install(plane, {"slices": {"workloads": "all"}, "image": {"tag": "1"}})
    until(lambda: plane.request("GET", GROUPS)[0] == 200, "groups are served")
    install(plane, {"slices": {"workloads": "all"}, "image": {"tag": "2"}})
    assert image_of_the_relay(plane).endswith("/relay:2")
    helm(plane, "rollback", "tpu-functions", "1")
    assert image_of_the_relay(plane).endswith("/relay:1")
    group = manifest("held")
    group["metadata"]["finalizers"] = [FINALIZER]
    assert plane.request("POST", GROUPS, group)[0] == 201
    with checks_run(plane, tmp_path) as outputs:
        refused = run_helm("uninstall", "tpu-functions", plane=plane)
        assert refused.returncode == 1
        assert outputs == [
            "Slices exist, and without tpu-functions nobody would delete them:\n\n"
            "  TPUNodeGroup default/held\n\n"
            "Delete them, or the workloads that they are for, and wait until they are gone. Then\n"
            "uninstall again.\n"
            "To keep tpu-functions: helm rollback tpu-functions 1 --namespace tpu-functions\n"
        ]
        assert plane.request("GET", RELAY)[0] == 200
        helm(plane, "rollback", "tpu-functions", "1")
        assert image_of_the_relay(plane).endswith("/relay:1")
        install(plane, {"image": {"tag": "3"}})
        held = f"{GROUPS}/held"
        plane.request("PATCH", held, {"metadata": {"finalizers": None}}, MERGE_PATCH)
        assert plane.request("DELETE", held)[0] == 200
        helm(plane, "uninstall", "tpu-functions", "--wait")
    assert len(outputs) == 2
    left = list_everything(plane) - before
    kept = {line for line in left if "customresourcedefinition" in line.lower()}
    assert len(kept) == 2, "the definitions are kept"
    crds = (str(MANIFESTS / "base" / "crd.yaml"), str(MANIFESTS / "jobsets" / "class-crd.yaml"))
    plane.run_kubectl("delete", "-f", crds[0], "-f", crds[1])
    plane.run_kubectl("delete", "namespace", "tpu-functions")
    until(lambda: not list_left(plane, before), "nothing is left")


def test_what_kubectl_has_applied_is_taken_over_without_what_the_chart_lacks(
    plane: OwnControlPlane,
) -> None:
    """As deploy.sh does it: an old variable is gone, and a patched switch is kept."""
    objects = render({"slices": {"workloads": "jobsets"}, "image": {"tag": "1"}})
    for one in objects:
        if one["kind"] == "Deployment":
            one["spec"]["template"]["spec"]["containers"][0]["env"] = [
                {"name": "OLD", "value": "1"}
            ]
    plane.run_kubectl("apply", "-f", str(MANIFESTS / "namespace.yaml"))
    applied = plane.run_kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    )
    assert applied.returncode == 0, applied.stderr
    switch = ("patch", "configmap", "jobsets", "--type=merge", '-p={"data": {"paused": "true"}}')
    plane.run_kubectl("-n", "tpu-functions", *switch)
    uid = plane.request("GET", RELAY)[1]["metadata"]["uid"]
    items = render({"slices": {"workloads": "jobsets"}, "image": {"tag": "2"}})
    moved = plane.run_kubectl(
        *("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", "-"),
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
    )
    assert moved.returncode == 0, moved.stderr
    install(plane, {"slices": {"workloads": "jobsets"}, "image": {"tag": "2"}}, "--take-ownership")
    relay = plane.request("GET", RELAY)[1]
    (container,) = relay["spec"]["template"]["spec"]["containers"]
    assert (relay["metadata"]["uid"], container.get("env")) == (uid, None)
    path = "/api/v1/namespaces/tpu-functions/configmaps/jobsets"
    for tag in ("3", "4"):
        install(plane, {"slices": {"workloads": "jobsets"}, "image": {"tag": tag}})
        assert plane.request("GET", path)[1]["data"] == {"paused": "true"}
    helm(plane, "uninstall", "tpu-functions", "--no-hooks", "--wait")


def test_the_definition_that_tpu_operator_has_applied_is_taken_over_with_its_groups(
    plane: OwnControlPlane,
) -> None:
    """It is applied by kubectl, whose fields helm 4 does not take without ``--force-conflicts``."""
    definition = define_anything("tpu.google.com", "TPUNodeGroup")
    definition["spec"]["versions"][0]["name"] = "v1alpha1"
    applied = plane.run_kubectl("apply", "-f", "-", stdin=json.dumps(definition))
    assert applied.returncode == 0, applied.stderr
    until(lambda: plane.request("GET", GROUPS)[0] == 200, "groups are served")
    group = manifest("theirs")
    assert plane.request("POST", GROUPS, group)[0] == 201
    install(plane, {"image": {"tag": "1"}}, "--take-ownership", "--force-conflicts")
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tpunodegroups.tpu.google.com"
    assert plane.request("GET", path)[1]["spec"]["names"]["shortNames"] == ["tng"]
    found = plane.request("GET", f"{GROUPS}/theirs")[1]
    assert found["spec"] == {"repair": "Never", **group["spec"]}
    install(plane, {"image": {"tag": "2"}})
    helm(plane, "uninstall", "tpu-functions", "--no-hooks", "--wait")
    assert plane.request("GET", f"{GROUPS}/theirs")[0] == 200, "definitions are kept"
    plane.run_kubectl("delete", "-f", str(MANIFESTS / "base" / "crd.yaml"))


def test_the_webhook_alone_is_one_installation_and_keeps_its_certificate(
    plane: OwnControlPlane,
) -> None:
    values = {"project": "", "slices": {"enabled": False}, "injectEnv": {"enabled": True}}
    path = "/api/v1/namespaces/tpu-functions/secrets/inject-env-tls"

    def bundle() -> str:
        found = plane.run_kubectl(
            *("get", "mutatingwebhookconfiguration", "tpu-functions-inject-env"),
            "-o=jsonpath={.webhooks[0].clientConfig.caBundle}",
        )
        return found.stdout

    install(plane, values)
    secret = plane.request("GET", path)[1]["data"]
    assert bundle() == secret["ca.crt"]
    for changed in ({}, {"tpu-functions.dev/generated": None}):  # as of an earlier version
        plane.request("PATCH", path, {"metadata": {"annotations": changed}}, MERGE_PATCH)
        install(plane, values)
        assert plane.request("GET", path)[1]["data"] == secret
        assert bundle() == secret["ca.crt"]
    helm(plane, "uninstall", "tpu-functions", "--wait")
    plane.request("DELETE", path)


def test_the_certificate_of_another_owner_is_neither_taken_for_the_generated_one_nor_deleted(
    plane: OwnControlPlane,
) -> None:
    """Nobody would renew it, and without the Secret no Pod of the webhook starts."""
    alone = {"project": "", "slices": {"enabled": False}}
    generated = {**alone, "injectEnv": {"enabled": True}}
    own = {"enabled": True, "certificate": "secret", "caBundle": "dGhlaXJz"}
    secrets = "/api/v1/namespaces/tpu-functions/secrets"
    path = f"{secrets}/inject-env-tls"
    theirs = dict.fromkeys(("ca.crt", "tls.crt", "tls.key"), "dGhlaXJz")
    secret = {"metadata": {"name": "inject-env-tls"}, "type": "kubernetes.io/tls", "data": theirs}

    def check_refusal() -> None:
        arguments = ("upgrade", "--install", "tpu-functions", str(CHART), "--take-ownership")
        done = run_helm(*arguments, values={**PROJECT, **generated}, plane=plane)
        assert done.returncode == 1
        assert done.stderr.endswith(
            "injectEnv.certificate: the Secret inject-env-tls is not generated, and nobody would "
            "renew its certificate: delete it, and before it the Certificates of cert-manager, if it "
            "is theirs; then upgrade\n"
        )
        assert plane.request("GET", path)[1]["data"] == theirs

    plane.run_kubectl("apply", "-f", str(MANIFESTS / "namespace.yaml"))
    assert plane.request("POST", secrets, secret)[0] == 201
    check_refusal()
    plane.request("DELETE", path)
    install(plane, generated)
    assert plane.request("PATCH", path, {"data": theirs}, MERGE_PATCH)[0] == 200
    install(plane, {**alone, "injectEnv": own})
    check_refusal()
    helm(plane, "uninstall", "tpu-functions", "--wait")
    plane.request("DELETE", path)
