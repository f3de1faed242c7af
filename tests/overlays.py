"""Overlays of ``infra/kubernetes`` for tests, as an installer writes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

KUBERNETES = Path(__file__).parent.parent / "infra" / "kubernetes"
EXAMPLE = KUBERNETES / "overlays" / "example"
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())
NAMES: Mapping[str, str] = {
    **yaml.safe_load((EXAMPLE / "installation.yaml").read_text())["data"],
    "relay": "relay@my-gcp-project.iam.gserviceaccount.com",
}
"""The names on Google Cloud that components ask for: the example's, and one that it has no use for."""


def write_overlay(
    folder: Path,
    *components: str,
    names: Mapping[str, str] = NAMES,
    resources: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """An overlay of the base with these components and ``resources``; its folder."""
    installation = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "installation",
            "annotations": {"config.kubernetes.io/local-config": "true"},
        },
        "data": dict(names),
    }
    kustomization = {
        "resources": [os.path.relpath(KUBERNETES / "base", folder), "resources.yaml"],
        "components": [
            os.path.relpath(KUBERNETES / "components" / name, folder) for name in components
        ],
    }
    folder.mkdir(exist_ok=True)
    (folder / "resources.yaml").write_text(yaml.safe_dump_all([installation, *resources]))
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder
