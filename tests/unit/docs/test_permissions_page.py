"""What the page on permissions says of the webhook."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]


def test_the_webhook_has_no_permissions() -> None:
    manifests = [
        one
        for path in (ROOT / "infra" / "chart" / "manifests").rglob("*.yaml")
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
