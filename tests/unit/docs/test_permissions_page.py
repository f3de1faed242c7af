"""The page on permissions is generated from the grants."""

from __future__ import annotations

import runpy
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]


def test_the_page_on_permissions_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "infra/terraform/render_reference.py"))
    page = (ROOT / "docs/reference/permissions.md").read_text()
    assert page == script["render"](), "run: python infra/terraform/render_reference.py"


def test_the_webhook_has_no_permissions() -> None:
    manifests = [
        one
        for path in (ROOT / "infra" / "kubernetes").rglob("*.yaml")
        for one in yaml.safe_load_all(path.read_text())
        if one
    ]
    (account,) = (
        one
        for one in manifests
        if one["kind"] == "ServiceAccount" and one["metadata"]["name"] == "inject-env"
    )
    assert account["automountServiceAccountToken"] is False
    subjects = {subject["name"] for one in manifests for subject in one.get("subjects") or ()}
    assert subjects
    assert not subjects & {"inject-env", "system:serviceaccounts:tpu-functions"}
