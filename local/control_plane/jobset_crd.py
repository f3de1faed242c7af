"""JobSet's CustomResourceDefinition, downloaded once as a part of JobSet's Go module.

``jobset/go.mod`` beside this file pins the module. The file is cached beside the programs of `binaries`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from local.control_plane.binaries import (
    GO_SETTINGS,
    HERE,
    Unavailable,
    can_build,
    folder_in_cache,
    get_version,
)

MODULE = "sigs.k8s.io/jobset"
_FILE = Path("config", "components", "crd", "bases", "jobset.x-k8s.io_jobsets.yaml")
_TIMEOUT_S = 120.0
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C loader is ten times faster, and the file is long."""


def obtain(environment: Mapping[str, str]) -> Path:
    """Return the file's path; download it if necessary. Raises `Unavailable`."""
    version = get_version("jobset", MODULE)
    path = folder_in_cache(environment, f"jobset-{version}", "jobset") / "crd.yaml"
    if not path.exists():
        _copy(_download() / _FILE, path)
    return path


def read(path: Path) -> dict[str, Any]:
    """Parse the file."""
    return dict(yaml.load(path.read_text(), _LOADER))


def _download() -> Path:
    """Return the folder that holds the module's files."""
    if not can_build():
        raise Unavailable(
            "JobSet's CustomResourceDefinition is not cached; install Go to download it"
        )
    try:
        done = subprocess.run(
            ["go", "mod", "download", "-json", MODULE],
            cwd=HERE / "jobset",
            env={**os.environ, **GO_SETTINGS},
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"go could not download {MODULE} in {_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise Unavailable(f"go could not download {MODULE}:\n{done.stdout}{done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])


def _copy(source: Path, target: Path) -> None:
    """Copy a file atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}")
    shutil.copyfile(source, unfinished)
    unfinished.replace(target)
