"""Workloads that are marked for the webhook."""

from __future__ import annotations

import json
from pathlib import Path

from local.control_plane.plane import ControlPlane
from tests.unit.webhook.workloads import (
    Manifest,
)

COMPONENT = Path(__file__).parents[2] / "infra" / "chart" / "manifests" / "inject-env"
OWN_MARK = "tpu-functions.dev/inject"


def kubectl(plane: ControlPlane, *arguments: str, stdin: str | None = None) -> str:
    done = plane.run_kubectl(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def marked(manifest: Manifest, key: str = OWN_MARK, kind: str = "labels") -> Manifest:
    """Return the manifest with the mark."""
    manifest["metadata"].setdefault(kind, {})[key] = "enabled"
    return manifest


def complete(manifest: Manifest) -> Manifest:
    """Add the fields that a real API server also requires: selectors, restart policies."""
    spec = manifest["spec"]
    if manifest["kind"] == "StatefulSet":
        spec["selector"] = {"matchLabels": spec["template"]["metadata"]["labels"]}
    if manifest["kind"] == "Job":
        spec["template"]["spec"]["restartPolicy"] = "Never"
    return manifest


def apply(plane: ControlPlane, manifest: Manifest, *flags: str) -> str:
    return kubectl(plane, "apply", *flags, "-f", "-", stdin=json.dumps(complete(manifest)))
