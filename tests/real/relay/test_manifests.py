"""The objects of the chart on a new cluster, and later upgrades and deletion, by kubectl alone."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import open_own_control_plane
from shared.base.names import BOOTSTRAP_GROUP, FINALIZER
from tests.real.relay.waiting import until
from tests.support.chart import render
from tests.support.harness import manifests
from tests.support.manifests import manifest
from tests.support.signing_requests import kubelets, pem
from tests.support.signing_requests import manifest as signing_request
from tests.unit.infra.chart.manifests import DOCUMENTS

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("manifests")]

CRD = "tpunodegroups.tpu.google.com"
DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}"
GROUPS = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"


def kubectl(plane: OwnControlPlane, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Apply or delete all objects of the chart with its namespace."""
    items = [DOCUMENTS[0], *render({})]
    stdin = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    return plane.run_kubectl(verb, "-f", "-", *options, stdin=stdin)


@dataclass(frozen=True)
class Installed:
    """A new control plane with the manifests applied once, and kubectl's result."""

    plane: OwnControlPlane
    result: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    with open_own_control_plane() as plane:
        yield Installed(plane, kubectl(plane, "apply"))


def test_all_objects_are_created_without_warnings(installed: Installed) -> None:
    lines = installed.result.stdout.splitlines()
    assert (installed.result.returncode, installed.result.stderr) == (0, "")
    assert {line.rpartition(" ")[2] for line in lines} == {"created"}
    assert len(lines) == len(manifests()) + len(["the settings' ConfigMap"])


def test_the_crd_is_established_without_warnings(installed: Installed) -> None:
    until(lambda: _conditions(installed.plane).get("Established") == "True", "is established")
    assert _conditions(installed.plane) == {"NamesAccepted": "True", "Established": "True"}
    strictly = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    by = "ValidatingAdmissionPolicy 'tpu-functions-default-version'"

    def is_warned() -> bool:
        created = installed.plane.run_kubectl(*strictly, stdin=json.dumps(manifest()))
        assert created.returncode == 0
        lines = created.stderr.splitlines()
        return [line.startswith(f"Warning: Validation failed for {by}") for line in lines] == [True]

    until(is_warned, "warns only of the version, which is the default: the policy is in effect")


def test_policies_pass_the_type_check_of_the_cluster(installed: Installed) -> None:
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def checked() -> dict[str, Any]:
        items = installed.plane.request("GET", policies)[1]["items"]
        return {item["metadata"]["name"]: item.get("status", {}) for item in items}

    until(lambda: all("typeChecking" in status for status in checked().values()), "are checked")
    results = {name: status["typeChecking"] for name, status in checked().items()}
    assert results == {
        "tpu-device-plugin-own-node": {},
        "tpu-functions-bootstrap-tokens": {},
        "tpu-functions-default-version": {},
        "tpu-functions-join-approvals": {},
        "tpu-functions-join-requests": {},
        "tpu-functions-node-registrations": {},
        "tpu-functions-nodes": {},
    }


@pytest.mark.parametrize(
    "size, error",
    [(100, ""), (9_000, "a request by a bootstrap token of tpu-functions may have at most")],
)
def test_a_certificate_request_with_a_bootstrap_token_has_a_limited_size(
    installed: Installed, size: int, error: str
) -> None:
    request = signing_request(pem(kubelets("tng-x"), attribute=b"x" * size), name=f"csr-{size}")
    holder = ("--as=system:bootstrap:abcdef", f"--as-group={BOOTSTRAP_GROUP}")
    arguments = ("create", "--dry-run=server", "-f", "-", *holder)

    def is_as_expected() -> bool:
        answer = installed.plane.run_kubectl(*arguments, stdin=json.dumps(request))
        return (answer.returncode == 0) is (error == "") and error in answer.stderr

    until(is_as_expected, "is created or rejected: roles and policies are in effect")


def test_an_upgrade_of_the_crd_keeps_the_groups_and_adds_its_fields(
    own_control_plane: OwnControlPlane,
) -> None:
    older = _crd_without("nodeTaints")
    result = own_control_plane.run_kubectl("apply", "-f", "-", stdin=yaml.safe_dump(older))
    assert result.returncode == 0, result.stderr
    until(lambda: _conditions(own_control_plane).get("Established") == "True", "is established")
    until(lambda: own_control_plane.request("GET", GROUPS)[0] == 200, "is served")
    _, before = own_control_plane.request("POST", GROUPS, manifest("older"))
    upgraded = kubectl(own_control_plane, "apply")
    assert (upgraded.returncode, upgraded.stderr) == (0, "")
    assert f"{CRD} configured" in upgraded.stdout
    assert own_control_plane.request("GET", f"{GROUPS}/older")[1] == before
    taints = [{"key": "tpu", "value": "yes", "effect": "NoSchedule"}]
    newer = manifest("newer", nodeTaints=taints)
    until(lambda: _taints_of(own_control_plane, newer) == taints, "the new field is stored")


def test_the_deletion_leaves_no_objects(own_control_plane: OwnControlPlane) -> None:
    before = _list_objects(own_control_plane)
    kubectl(own_control_plane, "apply")
    assert len(_list_objects(own_control_plane)) > len(before)
    removed = kubectl(own_control_plane, "delete", "--timeout=100s")
    assert (removed.returncode, removed.stderr) == (0, "")
    until(lambda: _list_objects(own_control_plane) <= before, "all objects are deleted")


def test_an_installation_deleted_before_its_groups_can_be_applied_again_to_delete_them(
    own_control_plane: OwnControlPlane,
) -> None:
    """The finalizer keeps a group, and so the CRD, until ``tear_down`` has its permissions."""
    kubectl(own_control_plane, "apply")
    until(lambda: own_control_plane.request("GET", GROUPS)[0] == 200, "is served")
    held = manifest("held")
    held["metadata"]["finalizers"] = [FINALIZER]
    own_control_plane.request("POST", GROUPS, held)
    kubectl(own_control_plane, "delete", "--wait=false")
    until(lambda: _conditions(own_control_plane).get("Terminating") == "True", "is terminating")
    until(lambda: _is_being_deleted(own_control_plane, "held"), "the group is being deleted")
    namespace = "/api/v1/namespaces/tpu-functions"
    until(lambda: own_control_plane.request("GET", namespace)[0] == 404, "the namespace is deleted")
    again = kubectl(own_control_plane, "apply")
    assert again.returncode == 0, again.stderr
    as_tear_down = ("--as=system:serviceaccount:tpu-functions:tear-down", "-n", "default")
    remove_finalizer = (
        "patch",
        "tng",
        "held",
        "--type=merge",
        "-p",
        '{"metadata":{"finalizers":null}}',
    )
    result = own_control_plane.run_kubectl(*remove_finalizer, *as_tear_down)
    assert (result.returncode, result.stderr) == (0, "")
    until(lambda: own_control_plane.request("GET", DEFINITION)[0] == 404, "the CRD is deleted")


def _conditions(plane: OwnControlPlane) -> dict[str, str]:
    status = plane.request("GET", DEFINITION)[1].get("status", {})
    return {entry["type"]: entry["status"] for entry in status.get("conditions") or []}


def _crd_without(field: str) -> dict[str, Any]:
    """Return the CRD without a field of the spec."""
    definition = copy.deepcopy(
        next(one for one in manifests() if one["kind"] == "CustomResourceDefinition")
    )
    for version in definition["spec"]["versions"]:
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        del spec["properties"][field]
        rules = spec.get("x-kubernetes-validations", [])
        spec["x-kubernetes-validations"] = [rule for rule in rules if field not in rule["rule"]]
    return definition


def _taints_of(plane: OwnControlPlane, group: dict[str, Any]) -> Any:
    _, stored = plane.request("POST", f"{GROUPS}?dryRun=All", group)
    return stored.get("spec", {}).get("nodeTaints")


def _is_being_deleted(plane: OwnControlPlane, name: str) -> bool:
    return "deletionTimestamp" in plane.request("GET", f"{GROUPS}/{name}")[1]["metadata"]


def _list_objects(plane: OwnControlPlane) -> set[str]:
    """Return all objects of all kinds that can be listed, except short-lived ones."""
    short_lived = ("events", "leases", "componentstatuses")
    kinds = plane.run_kubectl("api-resources", "--verbs=list", "-o", "name", "--cached=false")
    names = [name for name in kinds.stdout.split() if name.partition(".")[0] not in short_lived]
    listed = plane.run_kubectl("get", ",".join(names), "-A", "-o", "name")
    assert listed.returncode == 0, listed.stderr
    return set(listed.stdout.split())
