"""``make mutants``: measure how many of a sample of mutants the tests detect.

Each mutant runs in a copy of the tree, with the tests that run its line: first those of tests/unit,
then, if none fails, the others. The first run records which test runs which line, in build/mutants;
``--map`` records it again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random

from tools.mutants.coverage_map import (
    FOLDERS,
    STORED,
    CoverageMap,
    load_map,
    make_map,
    order_tests,
    read_sources,
)
from tools.mutants.mutate import Mutant, list_enums, list_mutants
from tools.mutants.tree import ROOT, copied_tree, run_pytest

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
UNIT = "tests/unit/"
FIRST = 10
"""The number of tests of a stage that run before the others."""
SECONDS = {True: 10.0, False: 20.0}
"""The limit of the recorded time of a mutant's first tests: of those in tests/unit (True), and of the
others."""
MORE_SECONDS = 60.0
"""The limit of each of both, if none of the first has failed."""


class Outcome(StrEnum):
    """The result of the tests of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    NOT_COVERED = "not covered"
    UNCONFIRMED = "killed by a test that also fails without it"


@dataclass(frozen=True)
class Result:
    """A mutant, its outcome, and the test that failed."""

    mutant: Mutant
    outcome: Outcome
    by_unit: bool = False
    test: str = ""
    note: str = ""

    @property
    def is_detected(self) -> bool:
        """True if a test fails or takes too long."""
        return self.outcome in (Outcome.KILLED, Outcome.TIMED_OUT)

    def __str__(self) -> str:
        by, note = f" by {self.test}" if self.test else "", f" ({self.note})" if self.note else ""
        return f"{self.outcome}{by}{note}: {self.mutant}"


@dataclass(frozen=True)
class Bench:
    """A copy of the tree, with the coverage map of its tests."""

    copy: Path
    map: CoverageMap
    test_files: dict[str, str]

    def try_mutant(self, mutant: Mutant, source: str) -> Result:
        """Run the tests of the mutant until one fails."""
        tests = self.map.find_tests(mutant, source)
        if not tests:
            return Result(mutant, Outcome.NOT_COVERED)
        path, ran = self.copy / mutant.path, 0
        original, times = path.read_text(), path.stat()
        try:
            path.write_text(mutant.source)
            for by_unit, part in self._list_parts(tests, mutant.path):
                outcome, test = self._run(part)
                if outcome is not Outcome.SURVIVED:
                    return Result(mutant, outcome, by_unit, test)
                ran += len(part)
        finally:
            path.write_text(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # compiled files stay valid
        return Result(mutant, Outcome.SURVIVED, note=f"{ran} of {len(tests)} tests")

    def _list_parts(self, tests: Sequence[str], path: str) -> Iterator[tuple[bool, Sequence[str]]]:
        """The tests in groups, each with whether it is of tests/unit. The first few tests detect most
        mutants, and the collection of tests from many files takes longer. Of the rest, those of the
        module's own folder come first: they use what runs at import, which no line shows."""
        own = f"{UNIT}{path.rpartition('/')[0]}/"
        left = {
            True: [test for test in tests if test.startswith(UNIT)],
            False: [test for test in tests if not test.startswith(UNIT)],
        }
        for by_unit, limit in (*SECONDS.items(), (True, MORE_SECONDS), (False, MORE_SECONDS)):
            stage = self.map.take(left[by_unit], limit)
            rest = set(left[by_unit]) - set(stage)
            left[by_unit] = [test for test in left[by_unit] if test in rest]
            left[by_unit].sort(key=lambda test: not test.startswith(own))
            yield by_unit, stage[:FIRST]
            yield by_unit, stage[FIRST:]

    def _run(self, tests: Sequence[str]) -> tuple[Outcome, str]:
        if not tests:
            return Outcome.SURVIVED, ""
        chosen = order_tests(tests, self.map.test_files, self.test_files)
        seconds = [self.map.seconds[test] for test in tests]
        code, output = self.run_tests(
            chosen, "-x", f"--timeout={30 + 5 * max(seconds):.0f}", timeout=120 + 5 * sum(seconds)
        )
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
        if code is None or "Failed: Timeout" in output:
            return Outcome.TIMED_OUT, ""
        if code in (0, 5):  # 5: none of the tests exists any more
            return Outcome.SURVIVED, ""
        return Outcome.KILLED, failed[1] if failed else "import"

    def run_tests(
        self, tests: Sequence[str], *options: str, timeout: float | None = None
    ) -> tuple[int | None, str]:
        """Run tests in the copy, in their order."""
        order = self.copy.parent / "order.json"
        order.write_text(json.dumps(list(tests)))
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        arguments = ["--order", str(order), *options, *files]
        return run_pytest(self.copy, arguments, timeout, PYTHONDONTWRITEBYTECODE="1")


def list_all_mutants(sources: dict[str, str]) -> list[Mutant]:
    """The mutants of all files, without those that are listed as equivalent."""
    equivalent = {key for key, _ in read_equivalent()}
    enums = list_enums(read_sources(FOLDERS).values())
    found = (mutant for path, text in sources.items() for mutant in list_mutants(path, text, enums))
    return [mutant for mutant in found if mutant.key not in equivalent]


def read_equivalent() -> list[tuple[tuple[str, str, str], str]]:
    """Mutants that no test can detect, each with the reason."""
    entries = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])
    return [
        ((entry["file"], entry["before"], entry["after"]), entry["reason"]) for entry in entries
    ]


def confirm(bench: Bench, results: Sequence[Result]) -> Iterator[Result]:
    """Run the failed tests without a mutant; a test that fails then does not prove anything."""
    tests = sorted({result.test for result in results if "::" in result.test})
    _, output = bench.run_tests(tests) if tests else (0, "")
    failed = set(re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE))
    for result in results:
        if result.test in failed:
            result = Result(result.mutant, Outcome.UNCONFIRMED, note=result.test)
        yield result


def score(results: Sequence[Result]) -> str:
    """Render the two scores and the number of each outcome."""
    detected = [result for result in results if result.is_detected]
    by_unit = sum(result.by_unit for result in detected)
    numbers = Counter(result.outcome for result in results)
    counts = ", ".join(f"{number} {outcome}" for outcome, number in numbers.most_common())
    total = max(1, len(results))
    return (
        f"{len(results)} mutants: {counts}\n"
        f"score by unit tables: {by_unit / total:.0%}\n"
        f"score by all tests:   {len(detected) / total:.0%}"
    )


def default_seed() -> int:
    """A seed that depends on the commit."""
    command = ["git", "rev-parse", "HEAD"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return int(output[:8], 16)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try a sample of mutants, and print those that survive and the scores."""
    parser = argparse.ArgumentParser(
        "make mutants", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--seed", type=int, help="of the sample; default: from the commit")
    parser.add_argument("--count", type=int, default=100, help="size of the sample; default: 100")
    parser.add_argument(
        "--map", action="store_true", help="record again which test runs which line"
    )
    parser.add_argument("paths", nargs="*", default=FOLDERS, help="folders or files to change")
    options = parser.parse_args(arguments)
    if options.map or not (STORED / "sources.json").exists():
        make_map()
    seed = default_seed() if options.seed is None else options.seed
    sources = read_sources(options.paths)
    mutants = list_all_mutants(sources)
    sample = Random(seed).sample(mutants, min(options.count, len(mutants)))
    print(f"seed {seed}: {len(sample)} of {len(mutants)} mutants", flush=True)
    results = []
    with copied_tree() as copy:
        # Compile the tests once: the runs with a mutant write no compiled files.
        run_pytest(copy, ["--collect-only", "tests"])
        bench = Bench(copy, load_map(), read_sources(["tests"]))
        for mutant in sample:
            result = bench.try_mutant(mutant, sources[mutant.path])
            print(result, flush=True)
            results.append(result)
        results = list(confirm(bench, results))
    for title, chosen in (
        ("Not detected", [result for result in results if not result.is_detected]),
        ("Not detected by unit tests", [r for r in results if r.is_detected and not r.by_unit]),
    ):
        print(f"\n{title}: {len(chosen)}", *map(str, chosen), sep="\n")
    print(f"\n{score(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
