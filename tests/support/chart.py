"""Overlays of ``infra/kubernetes`` for tests, as installations have them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

KUBERNETES = Path(__file__).parents[2] / "infra" / "kubernetes"
EXAMPLE = KUBERNETES / "overlays" / "example"
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())
NAMES: Mapping[str, str] = {
    **yaml.safe_load((EXAMPLE / "installation.yaml").read_text())["data"],
    "relay": "relay@my-gcp-project.iam.gserviceaccount.com",
    "provision-slice": "provision-slice@my-gcp-project.iam.gserviceaccount.com",
    "release-slice": "release-slice@my-gcp-project.iam.gserviceaccount.com",
}
"""The names on Google Cloud that components need: those of the example overlay, and more."""

INJECT_ENV_CA: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {
        "name": "inject-env-ca",
        "annotations": {"config.kubernetes.io/local-config": "true"},
    },
    "data": {"caBundle": "Q0E="},
}
"""The CA that the component inject-env puts into webhooks."""


def write_overlay(
    folder: Path,
    *components: str,
    names: Mapping[str, str] = NAMES,
    resources: Sequence[Mapping[str, Any]] = (INJECT_ENV_CA,),
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


def define_anything(group: str, kind: str) -> dict[str, Any]:
    """A CRD that accepts any object of the kind, for tests that only need the kind to exist."""
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{**version, "schema": {"openAPIV3Schema": anything}}],
        },
    }
