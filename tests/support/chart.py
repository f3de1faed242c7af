"""The chart of ``infra/chart``, rendered and installed by helm."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.control_plane import helm
from local.control_plane.plane import ControlPlane
from shared.triggers.routes import SLICE_STEPS, STEPS

Manifest = dict[str, Any]

CHART = Path(__file__).parents[2] / "infra" / "chart"
MANIFESTS = CHART / "manifests"
HELM = helm.find(os.environ)
needs_helm = pytest.mark.skipif(HELM is None, reason="there is no helm: make control-plane")
NAMESPACE = "tpu-functions"
PROJECT: Manifest = {"project": "my-gcp-project"}
"""The only value that an installation needs."""
USERS: Mapping[str, str] = {
    name.replace(
        "_", "-"
    ): f"tpu-functions-{name.replace('_', '-')}@my-gcp-project.iam.gserviceaccount.com"
    for name in (*STEPS, *SLICE_STEPS)
}
"""The user of each step with Google identities."""
AUDIENCE = (
    "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/clusters/"
    "providers/my-cluster"
)
TOKEN_WRITER: Manifest = {
    "tokenWriter": {
        "enabled": True,
        "server": "https://10.128.0.2:6443",
        "ca": "Q0E=",
        "steps": ["sweep", "label-node"],
    }
}
WITH_USERS: Manifest = {"identity": {"users": dict(USERS)}}


def run_helm(
    *arguments: str,
    values: Mapping[str, Any] | None = None,
    plane: ControlPlane | None = None,
    namespace: str = NAMESPACE,
) -> subprocess.CompletedProcess[str]:
    """Run helm; ``values`` are added to those of the chart."""
    assert HELM is not None
    given = [] if values is None else ["--values=-"]
    return subprocess.run(
        [str(HELM), *arguments, f"--namespace={namespace}", *given],
        input=None if values is None else json.dumps(values),
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig) if plane else os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )


def template(values: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    """Render the chart for a project with more values."""
    return run_helm("template", NAMESPACE, str(CHART), "--no-hooks", values={**PROJECT, **values})


def render(values: Mapping[str, Any]) -> list[Manifest]:
    """The objects of an installation for a project with more values."""
    run = template(values)
    assert (run.returncode, run.stderr) == (0, "")
    return [document for document in yaml.safe_load_all(run.stdout) if document]


def apply(plane: ControlPlane, values: Mapping[str, Any], *options: str) -> list[str]:
    """Apply the rendered chart with its namespace, and return kubectl's line for each object."""
    namespace = yaml.safe_load((MANIFESTS / "namespace.yaml").read_text())
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [namespace, *render(values)]})
    result = plane.run_kubectl("apply", *options, "-f", "-", stdin=text)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


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
