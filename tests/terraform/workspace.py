"""A copy of the module with initialized providers, in which Terraform can run.

The providers have the versions that the module requires, if Terraform can get them. Otherwise a stand-in
replaces them: it has their schemas and some of their checks (``tests/data/terraform``), as needed for
``validate``, and for ``test`` with mock providers. ``make terraform-validate`` builds it once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAND_IN = Path(__file__).parent / "stand_in"
SCHEMAS = ROOT / "tests" / "data" / "terraform" / "provider-schema.json"
CHECKS = SCHEMAS.with_name("checks.json")
"""Patterns of arguments from the providers' source; not all of them."""
VERSIONS = {"google": "7.45.0", "archive": "2.8.1", "time": "0.13.1"}
"""The versions of the schemas in `SCHEMAS`."""
_HOST = "registry.terraform.io"
_TIMEOUT_S = 240.0


class Unavailable(Exception):
    """Terraform or its providers are not available; the message has the solution."""


@dataclass(frozen=True)
class Workspace:
    """The folder and the environment of Terraform."""

    module: Path
    providers: str
    """A description of the providers."""
    environment: Mapping[str, str]
    mirror: Path | None

    def init(self, folder: Path) -> None:
        """Initialize providers and modules in a folder. Raises `Unavailable`."""
        flags = [] if self.mirror is None else [f"-plugin-dir={self.mirror}"]
        done = self.run(folder, "init", "-backend=false", "-input=false", *flags)
        if done.returncode:
            raise Unavailable(done.stdout + done.stderr)

    def run(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run terraform in a folder of the copy."""
        return _run(["terraform", *arguments, "-no-color"], folder, self.environment)


def find_terraform() -> str | None:
    """Return the program, or None."""
    return shutil.which("terraform")


def make(folder: Path) -> Workspace:
    """Copy the module and the files that it deploys, and initialize providers. Raises `Unavailable`."""
    if find_terraform() is None:
        raise Unavailable("terraform is not installed: install Terraform 1.9 or newer")
    for part in ("infra", "functions", "shared"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns(".terraform*"))
    for name in ("main.py", "requirements.txt"):
        shutil.copy(ROOT / name, folder / name)
    module = folder / "infra" / "terraform"
    environment = {**os.environ, "CHECKPOINT_DISABLE": "1"}
    environment |= {"PROVIDER_SCHEMA": str(SCHEMAS), "PROVIDER_CHECKS": str(CHECKS)}
    if not Path(environment.get("TF_CLI_CONFIG_FILE", "/")).exists():
        del environment["TF_CLI_CONFIG_FILE"]
    real = Workspace(module, "the providers themselves", environment, None)
    try:
        real.init(module)
    except (Unavailable, subprocess.TimeoutExpired):
        program = find_stand_in(environment)
        if program is None:
            raise Unavailable(
                "Terraform cannot get the providers, and the stand-in is not built: "
                "make terraform-validate"
            ) from None
        description = (
            f"a stand-in with the schemas of google {VERSIONS['google']}: Terraform cannot get it"
        )
        stand_in = Workspace(module, description, environment, _mirror(program))
        stand_in.init(module)
        return stand_in
    return real


def find_stand_in(environment: Mapping[str, str]) -> Path | None:
    """Return the stand-in's program if it was built."""
    program = _program(environment)
    return program if program.exists() else None


def build_stand_in(environment: Mapping[str, str]) -> Path:
    """Return the stand-in's program; build it if necessary. Raises `Unavailable`."""
    program = _program(environment)
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise Unavailable(
            "Go is not installed; it is needed to build the stand-in for the providers"
        )
    program.parent.mkdir(parents=True, exist_ok=True)
    unfinished = program.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        ["go", "build", "-mod=readonly", "-trimpath", "-o", str(unfinished), "."],
        cwd=STAND_IN,
        env={**environment, "CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "auto"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"go could not build the stand-in:\n{done.stderr}")
    unfinished.replace(program)
    return program


def _program(environment: Mapping[str, str]) -> Path:
    sources = sorted(path for path in STAND_IN.iterdir() if path.suffix in (".go", ".mod", ".sum"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tpu-functions" / f"terraform-stand-in-{digest}" / "stand-in"


def _mirror(program: Path) -> Path:
    """Create the plugin folder in which Terraform finds the stand-in."""
    mirror = program.parent / "mirror"
    for name, version in VERSIONS.items():
        folder = mirror / _HOST / "hashicorp" / name / version / _platform()
        target = folder / f"terraform-provider-{name}_v{version}"
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(program, target)
    return mirror


def _platform() -> str:
    done = subprocess.run(
        ["go", "env", "GOOS", "GOARCH"], capture_output=True, text=True, check=True
    )
    return "_".join(done.stdout.split())


def _run(
    command: list[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
