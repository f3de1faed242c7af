"""Add a flight to those that `make test` repeats (``make flight FILE=...``), and print its differences.

Without FILE, it records ``simulation.json`` again, from the simulated Compute Engine.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from local.cloud.logging import serve
from local.gce import Timings
from tests.flights.repeat import repeat_with_product, repeat_with_simulation
from tests.support.loopback import open_loopback
from tests.support.small_project import FOREIGN_ACCOUNT, Cloud
from tools.cloud.flight import UnusableFlightError, read_flight

FOLDER = Path(__file__).parent
OF_SIMULATION = "simulation.json"
QUESTIONS = (
    "repeated-insert", "policy-log", "in-use", "act-as", "metadata-fingerprint", "delete-early"
)  # fmt: skip
"""Those of the flight that is recorded from the simulation."""
SAME, DIFFERS, USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None, folder: Path = FOLDER) -> int:
    """Check, repeat and copy a flight; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.flights", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="flight-RUN.json")
    path = parser.parse_args(arguments).file
    if path is None:
        path = folder / OF_SIMULATION
        record(path)
    try:
        flight = read_flight(path)
        is_kept = path.resolve().parent == folder.resolve()
        kept = path if is_kept else folder / f"{flight['run']}.json"
        if not is_kept and kept.exists() and kept.read_bytes() != path.read_bytes():
            raise UnusableFlightError(f"another flight is in {kept}; remove it first")
        if not is_kept:
            shutil.copyfile(path, kept)
    except (OSError, UnusableFlightError) as error:
        print(f"Error: {error}.", file=sys.stderr)
        return USAGE
    differences = [*repeat_with_product(flight), *repeat_with_simulation(flight)]
    print(*differences, f"{kept}: {len(differences)} differences", sep="\n")
    return DIFFERS if differences else SAME


def record(
    path: Path,
    questions: Sequence[str] = QUESTIONS,
    timings: Timings = Timings(),  # noqa: B008
) -> None:
    """Ask the simulated Compute Engine some of the questions; write the flight."""
    random.seed(3)  # the name of the run
    with open_loopback() as loopback, tempfile.TemporaryDirectory() as scratch:
        cloud = Cloud(loopback, Path(scratch) / "answers.json", timings)
        server, os.environ["LOGGING_EMULATOR_HOST"] = loopback.run(
            serve(cloud.logging, "127.0.0.1")
        )
        options = [option for name in questions for option in ("--only", name)]
        cloud.ask(*options, "--foreign-account", FOREIGN_ACCOUNT, "--flight", str(path))
        loopback.run(server.stop(None))


if __name__ == "__main__":
    sys.exit(main())
