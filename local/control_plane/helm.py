"""Helm, which renders and installs the chart: built once from its pinned Go module, or found on PATH.

Helm's field manager is the name of its program, so the program that is built is called helm.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from local.control_plane.binaries import (
    Print,
    Unavailable,
    can_build,
    folder_in_cache,
    get_version,
    go_build,
)

MODULE = "helm.sh/helm/v4"
_VERSION_VARIABLE = f"{MODULE}/internal/version.version"


def find(environment: Mapping[str, str]) -> Path | None:
    """Return the program of an earlier build, or else that on ``PATH``."""
    built = _cached(environment)
    if os.access(built, os.X_OK):
        return built
    found = shutil.which("helm", path=environment.get("PATH", os.defpath))
    return Path(found) if found else None


def obtain(environment: Mapping[str, str], print_text: Print) -> Path:
    """Find the program or build it. Raises `Unavailable` if it is not found and cannot be built."""
    found = find(environment)
    if found is not None:
        return found
    if not can_build():
        raise Unavailable("helm is not on PATH; install it, or Go to build it")
    target = _cached(environment)
    target.parent.mkdir(parents=True, exist_ok=True)
    version = get_version("helm", MODULE)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as folder:
        flags = [f"-X {_VERSION_VARIABLE}={version}"]
        go_build("helm", {"helm": f"{MODULE}/cmd/helm"}, f"{folder}/helm", print_text, flags)
        Path(folder, "helm").replace(target)
    return target


def _cached(environment: Mapping[str, str]) -> Path:
    return folder_in_cache(environment, "helm", "helm") / "helm"
