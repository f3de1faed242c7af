"""The tool as one file, ``kubectl-tng``: ``python -m tools.bundle FILE`` (``make kubectl-tng``).

A zip application with a shebang: our packages, and the pinned distributions as they are installed in
this environment, so that nothing is downloaded. shiv unpacks it once at its first start, because some of
them are compiled: the file is for this version of Python and this kind of machine.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from replay.audit_log import FILTERS

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "replay" / "requirements.txt"
PACKAGES = ("replay", "functions", "shared")
ENTRY_POINT = "replay.__main__:run_plugin"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[.*?\])?==(\S+)", re.MULTILINE)
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


class WrongVersionError(Exception):
    """What is installed is not what is pinned."""


def build(target: Path, requirements: str) -> None:
    """Write the file. Raises `WrongVersionError`, and `CalledProcessError` if shiv fails."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site-packages"
        for name, version in _PIN.findall(requirements):
            _copy_distribution(name, version, site)
        for package in PACKAGES:
            shutil.copytree(ROOT / package, site / package, ignore=_LEFT_OUT)
        shutil.copy(ROOT / "version.py", site)
        shutil.copytree(FILTERS, site / FILTERS.relative_to(ROOT))
        target.parent.mkdir(parents=True, exist_ok=True)
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        subprocess.run(
            [
                *(sys.executable, "-m", "shiv", "--site-packages", str(site)),
                *("--entry-point", ENTRY_POINT, "--python", f"/usr/bin/env {python}"),
                *("--compressed", "--reproducible", "--output-file", str(target)),
            ],
            check=True,
        )


def _copy_distribution(name: str, version: str, site: Path) -> None:
    try:
        found = distribution(name)
        installed = f"{found.version} is installed"
    except PackageNotFoundError:
        found, installed = None, "it is not installed"
    if found is None or found.version != version:
        raise WrongVersionError(
            f"{REQUIREMENTS.relative_to(ROOT)} pins {name} {version}, and {installed}; `make setup` "
            "installs what is pinned"
        )
    for file in found.files or ():
        if ".." in file.parts or file.suffix == ".pyc":
            continue  # a script beside site-packages, or what Python compiles by itself
        copy = site / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(file.locate()), copy)


if __name__ == "__main__":
    build(Path(sys.argv[1]), REQUIREMENTS.read_text())
