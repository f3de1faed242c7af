"""Create a virtual environment with progress lines and, if pip fails, the causes from its log.

    python3 infra/set_up.py .venv local/requirements.txt

It uses only the standard library, because it runs before anything is installed. pip does not compile the
packages: few modules are imported, and Python compiles each at its first import.
"""

import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path

OLDEST = (3, 11)
EVERY = 20
"""The number of packages for each progress line."""
_SHOWN = 5


def count_packages(requirements: str) -> int:
    """Return the number of packages in a file of pinned requirements."""
    return sum("==" in line for line in requirements.splitlines() if line[:1].isalnum())


def report_progress(lines: Iterable[str], total: int) -> Iterator[str]:
    """Yield a line for every `EVERY` packages, and all errors and warnings with their indented lines."""
    seen: set[str] = set()
    is_error = False
    for line in lines:
        # pip names the packages of an error in indented lines below it.
        is_error = line.lstrip().startswith(("ERROR", "WARNING")) or (is_error and line[:1] == " ")
        found = re.match(r"\s*Collecting ([\w.-]+)(?:\[.*?\])?==", line)
        if found and found[1] not in seen:
            seen.add(found[1])
            if len(seen) % EVERY == 0:
                yield f"  {len(seen)} of {total} packages found"
        elif line.startswith("Installing collected packages"):
            yield "  installing them, which takes about as long"
        elif is_error:
            yield line.rstrip()


def find_causes(log: str) -> list[str]:
    """Return the last errors of the package index, which pip writes only to its log."""
    pattern = re.compile(r"(Could not fetch URL .*|HTTP error \d+ .*|.*Retrying .*broken by .*)")
    found = [match[1].strip() for line in log.splitlines() if (match := pattern.search(line))]
    return list(dict.fromkeys(found))[-_SHOWN:]


def main(folder: str, requirements: str) -> int:
    """Set up ``folder`` with the packages of a requirements file. Returns the exit code."""
    try:
        return _set_up(folder, requirements)
    except KeyboardInterrupt:
        print(f"Setting up {folder} was interrupted: run make again to continue.")
        return 130


def _has_pip(folder: str) -> bool:
    """Whether Python and pip run: Python may have been upgraded or removed since, and an interrupted run
    may have left no pip."""
    command = [str(Path(folder, "bin", "python")), "-m", "pip", "--version"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _set_up(folder: str, requirements: str) -> int:
    if sys.version_info < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        print(f"tpu-functions needs Python {oldest} or newer: make PYTHON=python{oldest} setup")
        return 1
    began = time.monotonic()
    total = count_packages(Path(requirements).read_text())
    print(f"Setting up {folder}: packages to install: {total}, in a minute or two ...", flush=True)
    if not _has_pip(folder):
        try:
            # Only what is a virtual environment is emptied.
            venv.create(folder, with_pip=True, clear=Path(folder, "pyvenv.cfg").exists())
        except subprocess.CalledProcessError:
            print(
                f"Setting up {folder} failed: this Python has no ensurepip. On Debian and Ubuntu "
                "install python3-venv, then run make again."
            )
            return 1
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "pip.log")
        command = [str(Path(folder, "bin", "python")), "-m", "pip", "install"]
        command += ["--disable-pip-version-check", "--require-hashes", "--no-compile"]
        command += ["--progress-bar=off", "--log", str(log)]
        with subprocess.Popen(
            [*command, "-r", requirements],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as pip:
            assert pip.stdout is not None
            for line in report_progress(pip.stdout, total):
                print(line, flush=True)
        causes = find_causes(log.read_text()) if pip.returncode and log.exists() else []
    if pip.returncode:
        print(f"Setting up {folder} failed: pip ended with code {pip.returncode}.")
        for cause in causes:
            print(f"  the package index: {cause}")
        return 1
    print(f"Set up in {time.monotonic() - began:.0f} seconds.")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        sys.exit("usage: python3 infra/set_up.py FOLDER REQUIREMENTS")
    sys.exit(main(*sys.argv[1:]))
