"""Programs that ``tests/workflows/go.mod`` pins, built by Go when they are first used."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from local.control_plane.binaries import GO_SETTINGS
from local.tests.real_parts import miss
from tests.support.harness import ROOT

MODULE = ROOT / "tests" / "workflows" / "go.mod"
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint"
KREW = "sigs.k8s.io/krew/cmd/krew"
REGISTRY = "github.com/google/go-containerregistry/cmd/registry"
VALIDATE_KREW_MANIFEST = "sigs.k8s.io/krew/cmd/validate-krew-manifest"


def run_tool(
    name: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program; without Go, the test is skipped or fails."""
    return subprocess.run(
        [find_tool(name), *arguments],
        cwd=MODULE.parent,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def find_tool(name: str) -> str:
    """Return the path of a program; it is built if it was not."""
    if shutil.which("go") is None:
        miss(f"Go is not installed, which builds {name}")
    found = subprocess.run(
        ["go", "tool", "-n", name],
        cwd=MODULE.parent,
        env={**os.environ, **GO_SETTINGS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()
