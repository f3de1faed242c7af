"""A copy of the module in which Terraform can work, with providers for it.

The providers are those of the versions that the module asks for, where Terraform can get them. Where
it cannot, a stand-in takes their place: it knows their schemas and some of their checks
(``tests/data/terraform``), which is what ``validate`` needs, and ``test`` with mock providers. It is
built once, by ``make terraform-validate``.
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
"""Patterns of arguments, as the providers' source has them; not all of them."""
VERSIONS = {"google": "7.45.0", "archive": "2.8.1", "time": "0.13.1"}
"""Those whose schemas `SCHEMAS` holds."""
_HOST = "registry.terraform.io"
_TIMEOUT_S = 240.0


class Unavailable(Exception):
    """Terraform, or providers for it, cannot be had here; the message says what would help."""


@dataclass(frozen=True)
class Workspace:
    """Where Terraform works."""

    module: Path
    providers: str
    """Whose schemas are used, in words."""
    environment: Mapping[str, str]
    mirror: Path | None

    def init(self, folder: Path) -> None:
        """Get providers and modules ready in a folder. Raises `Unavailable`."""
        flags = [] if self.mirror is None else [f"-plugin-dir={self.mirror}"]
        done = self.run(folder, "init", "-backend=false", "-input=false", *flags)
        if done.returncode:
            raise Unavailable(done.stdout + done.stderr)

    def run(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run terraform in a folder of the copy."""
        return _run(["terraform", *arguments, "-no-color"], folder, self.environment)


def find_terraform() -> str | None:
    """The program, if it is there."""
    return shutil.which("terraform")


def make(folder: Path) -> Workspace:
    """Copy the module and what it deploys, and find providers. Raises `Unavailable`."""
    if find_terraform() is None:
        raise Unavailable("there is no terraform here: install Terraform 1.9 or newer")
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
        words = (
            f"a stand-in with the schemas of google {VERSIONS['google']}: Terraform cannot get it"
        )
        stand_in = Workspace(module, words, environment, _mirror(program))
        stand_in.init(module)
        return stand_in
    return real


def find_stand_in(environment: Mapping[str, str]) -> Path | None:
    """The stand-in's program, if it has been built."""
    program = _program(environment)
    return program if program.exists() else None


def build_stand_in(environment: Mapping[str, str]) -> Path:
    """The stand-in's program, built if need be. Raises `Unavailable`."""
    program = _program(environment)
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise Unavailable("there is no Go to build the stand-in for the providers with")
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
    """A folder as Terraform looks for providers in."""
    mirror = program.parent / "mirror"
    for name, version in VERSIONS.items():
        place = mirror / _HOST / "hashicorp" / name / version / _platform()
        target = place / f"terraform-provider-{name}_v{version}"
        if not target.exists():
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(program, target)
    return mirror


def _platform() -> str:
    asked = subprocess.run(
        ["go", "env", "GOOS", "GOARCH"], capture_output=True, text=True, check=True
    )
    return "_".join(asked.stdout.split())


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
