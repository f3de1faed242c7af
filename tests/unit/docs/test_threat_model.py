"""The threat model: each grant has a line, and each test that it names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from local.tests.contract.kubernetes.embedded import Embedded
from local.tests.kube.joining import SECRETS, TOKEN, certificate_of, csr, signing_request, submit
from shared.node_groups.bootstrap import KUBEADM_GROUP, Token, token_secret
from tests.unit.infra.terraform.terraform_module import read, read_permissions

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
PERMISSIONS = read_permissions()
SCOPES = (
    "project",
    "served",
    "named",
    "vm_service_account",
    "subnetwork",
    "node_service_account",
    "secrets",
)
ROLE = re.compile(r"(?:tpu-functions-)?(.*?)(?:-jobsets|-node-groups|-workloads)?")
FOR_ALL = {"get namespaces", "create get patch events"}
"""The grants of all identities; one line on the page lists them."""


def read_sections(level: int) -> dict[str, str]:
    """Return the page's text by heading of a level."""
    parts = re.split(rf"(?m)^{'#' * level} (.*)$", PAGE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


SECTIONS = {
    name: text.partition("\n## ")[0].partition("\n### ")[0]
    for name, text in read_sections(3).items()
}


def read_grants(identity: str) -> list[str]:
    """Return the code in the first column of an identity's table."""
    rows = re.findall(r"(?m)^\| (.*?) \|", SECTIONS[identity])
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row)]


def list_cluster_grants() -> Iterator[tuple[str, str]]:
    """Yield each rule of each Role in the manifests with its identity, such as ``get list nodes``."""
    for path in sorted((ROOT / "infra" / "chart" / "manifests").rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document is None or document["kind"] not in ("Role", "ClusterRole"):
                continue
            found = ROLE.fullmatch(document["metadata"]["name"])
            assert found is not None
            name = found[1] if found[1] == "tpu-device-plugin" else found[1].replace("-", "_")
            for rule in document["rules"]:
                for resource in rule["resources"]:
                    yield name, f"{' '.join(rule['verbs'])} {resource}"


def list_cloud_grants() -> Iterator[tuple[str, str]]:
    """Yield each permission on Google Cloud with its identity."""
    for identity, places in PERMISSIONS.items():
        if identity == "cluster_project":
            continue
        for scope in SCOPES:
            yield from ((identity, permission) for permission in places.get(scope) or ())
        yield from ((identity, f"publish {step}") for step in places.get("topics") or ())


GRANTS = sorted({*list_cluster_grants(), *list_cloud_grants()})


def test_grants_were_found() -> None:
    assert len(GRANTS) > 80


@pytest.mark.parametrize("identity", sorted({identity for identity, _ in GRANTS}))
def test_each_grant_of_an_identity_has_a_line_and_each_line_is_a_grant(identity: str) -> None:
    granted = {grant for owner, grant in GRANTS if owner == identity} - FOR_ALL
    assert set(read_grants(identity)) == granted


def test_the_grants_of_all_identities_have_a_line() -> None:
    (text,) = re.findall(r"(?s)All of these: .*?\n\n", PAGE)
    assert all(f"`{grant}`" in text for grant in FOR_ALL)


def test_no_identity_has_two_lines_for_one_grant() -> None:
    for identity in SECTIONS:
        grants = read_grants(identity)
        assert sorted(grants) == sorted(set(grants)), identity


def test_each_binding_of_terraform_has_a_line() -> None:
    text = read_sections(2)["Other grants of the Terraform module"]
    named = set(re.findall(r"`(google_\w+\.\w+)`", text))
    bindings = {
        block.address
        for block in read().blocks.values()
        if block.type.endswith(("_iam_member", "_iam_binding", "_iam_policy"))
    }
    assert named == bindings
    assert all(f"`{permission}`" in text for permission in PERMISSIONS["cluster_project"])


def test_each_test_that_the_page_or_the_one_about_reliability_names_exists() -> None:
    page = PAGE + (ROOT / "docs" / "reliability.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    existing = {
        name
        for folder in ("tests", "local/tests")
        for path in (ROOT / folder).rglob("test_*.py")
        for name in re.findall(r"(?m)^(?:async )?def (test_\w+)", path.read_text())
    }
    assert len(named) > 30
    assert named - existing == set()


@pytest.mark.parametrize(
    "actor",
    [
        "Author of TPUNodeGroups",
        "Author of Pods",
        "Author of JobSets",
        "Whoever may edit TPUSliceClasses",
        "Whoever names a class in Pods",
        "Whoever has a slice that a candidate refuses",
        "Project viewer",
        "Whoever may publish to the topics",
        "Root on a TPU VM",
        "A Pod on a TPU VM",
        "A VM whose service account may read other VMs' metadata",
        "A VM whose service account may write other VMs' metadata",
    ],
)
def test_the_page_has_a_complete_row_for_each_actor(actor: str) -> None:
    (row,) = re.findall(rf"(?m)^\| {re.escape(actor)}.*\|$", PAGE)
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert len(cells) == 5
    assert all(cells)


@pytest.mark.parametrize("name", ["tng-train-1a2b3c4d-x1y2", "control-plane-1"])
def test_a_token_of_kubeadms_group_is_approved_for_every_node(name: str) -> None:
    """Tokens have their own group because kubeadm's bindings approve any Node name."""
    server = Embedded()
    key, _, secret = TOKEN.partition(".")
    token = Token(key, secret, server.clock.now() + timedelta(hours=1))
    secret_object = token_secret(
        token,
        resource_name="tng-train-1a2b3c4d",
        vm="tng-train-1a2b3c4d-x1y2",
        bootstrap_group=KUBEADM_GROUP,
    )
    server.ask("POST", SECRETS, secret_object)
    request = csr(signing_request(name=f"system:node:{name}"))
    status = submit(server, request, user=f"token:{TOKEN}")
    assert [one["reason"] for one in status["conditions"]] == ["AutoApproved"]
    subject = certificate_of(status).subject.rfc4514_string()
    assert subject == f"CN=system:node:{name},O=system:nodes"


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


def test_each_statement_of_security_md_links_to_an_existing_heading() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    bullets = re.findall(r"(?m)^- .*$", text)
    assert bullets
    for bullet in bullets:
        target = re.match(r"- \[[^]]+]\(([^)#]+)#([^)]+)\)", bullet)
        assert target is not None, f"{bullet} refers to no page"
        assert target[2] in anchors((ROOT / target[1]).read_text()), target[2]
