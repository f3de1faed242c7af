"""JobSet's CustomResourceDefinition, downloaded once as a part of JobSet's Go module.

``kubernetes/go.mod`` beside this file pins the module. The file is cached beside the programs of
`binaries`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from local.control_plane.binaries import download, folder_in_cache, get_version

MODULE = "sigs.k8s.io/jobset"
_FILE = Path("config", "components", "crd", "bases", "jobset.x-k8s.io_jobsets.yaml")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C loader is ten times faster, and the file is long."""


def obtain(environment: Mapping[str, str]) -> Path:
    """Return the file's path; download it if necessary. Raises `Unavailable`."""
    version = get_version("kubernetes", MODULE)
    path = folder_in_cache(environment, f"jobset-{version}", "kubernetes") / "crd.yaml"
    if not path.exists():
        _copy(download(MODULE) / _FILE, path)
    return path


def read(path: Path) -> dict[str, Any]:
    """Parse the file."""
    return dict(yaml.load(path.read_text(), _LOADER))


def _copy(source: Path, target: Path) -> None:
    """Copy a file atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}")
    shutil.copyfile(source, unfinished)
    unfinished.replace(target)
