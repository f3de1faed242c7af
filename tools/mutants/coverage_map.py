"""Which tests run which line of the product, recorded in one run of the tests."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from coverage import CoverageData

from tools.mutants.mutate import Mutant
from tools.mutants.tree import ROOT, copied_tree, list_files, run_pytest

FOLDERS = ("functions", "shared", "relay")
TESTS = ("tests/conformance", "tests/stories", "tests/unit")
"""The others draw worlds or fork at each call: they run for minutes under coverage, and too long for a
mutant."""
STORED = ROOT / "build" / "mutants"
_GROUP = re.compile(r"@[^@\[\]/]+$")
"""What pytest-xdist appends to the id of a test in a group."""


@dataclass(frozen=True)
class CoverageMap:
    """The tests of each line of ``sources``, which are the files at the time of the recording."""

    sources: Mapping[str, str]
    test_files: Mapping[str, str]
    seconds: Mapping[str, float]
    """The duration of each test that passed."""
    lines: Mapping[str, Mapping[int, frozenset[str]]]
    """The tests that ran a line, by path and line."""

    @cached_property
    def breadth(self) -> Mapping[str, int]:
        """How many lines each test ran."""
        tests = (
            test for lines in self.lines.values() for found in lines.values() for test in found
        )
        return Counter(tests)

    def find_tests(self, mutant: Mutant, source: str) -> list[str]:
        """The tests of a mutant's lines, the most specific and fastest first.

        A line that is newer than the map, or that runs at import, has the tests of its whole file,
        first those that run few other lines. Before them are the tests that have the name of the
        constant in their names, and those that import its module or run a line that uses it.
        """
        lines = self.lines.get(mutant.path, {})
        numbers = _old_lines(self.sources.get(mutant.path, ""), source)
        old = {numbers[line] for line in range(mutant.line, mutant.last_line + 1)} - {0}
        found = Counter({test for line in old for test in lines.get(line, ())})
        is_run_by_no_test = not found and any(line in lines for line in old)
        if mutant.at_import or is_run_by_no_test or not old:
            found = Counter(test for tests in lines.values() for test in tests)
        if mutant.path.endswith("/__main__.py"):
            found.update(self._find_running(mutant.path))
        named, using = self._find_uses(mutant.names) if mutant.names else ([], Counter())
        if mutant.at_import:
            using.update(self._find_importing(mutant.path))
        return list(dict.fromkeys([*named, *self._sort(using), *self._sort(found)]))

    def take(self, tests: Sequence[str], seconds: float) -> list[str]:
        """Select the first tests whose total time is within the limit, and at least one."""
        chosen = []
        for test in tests:
            if self.seconds[test] <= seconds or test == tests[0]:
                chosen.append(test)
                seconds -= self.seconds[test]
        return chosen

    def _find_importing(self, path: str) -> list[str]:
        """The tests of the files that import a module."""
        module = path.removesuffix(".py").replace("/", ".")
        package, _, name = module.rpartition(".")
        imports = re.compile(
            rf"^(?:from|import) {module}\b|^from {package} import .*\b{name}\b", re.MULTILINE
        )
        return self._list_tests(imports)

    def _find_running(self, path: str) -> list[str]:
        """The tests of the files that run a program in its own process, which coverage does not
        measure."""
        program = path.removesuffix("/__main__.py").replace("/", ".")
        return self._list_tests(re.compile(rf"python -m {program}\b"))

    def _list_tests(self, pattern: re.Pattern[str]) -> list[str]:
        """The tests of the files that match the pattern."""
        files = {file for file, text in self.test_files.items() if pattern.search(text)}
        return [test for test in self.seconds if test.partition("::")[0] in files]

    def _find_uses(self, names: Sequence[str]) -> tuple[list[str], Counter[str]]:
        """The tests whose names contain one of the names, and those of the lines that use one."""
        used = re.compile(rf"\b(?:{'|'.join(names)})\b")
        lines = (
            self.lines.get(path, {}).get(number, ())
            for path, text in self.sources.items()
            for number, line in enumerate(text.splitlines(), 1)
            if used.search(line)
        )
        named = sorted(test for test in self.seconds if used.search(test.partition("::")[2]))
        return named, Counter(test for tests in lines for test in tests)

    def _sort(self, found: Counter[str]) -> list[str]:
        """Sort tests: first those that run many of the lines and few others, and are fast. The second
        case of a test is after the first cases of all other tests."""

        def cost(test: str) -> tuple[float, str]:
            return self.breadth[test] / found[test] * (0.1 + self.seconds[test]), test

        cases: Counter[str] = Counter()
        ranks = {}
        for test in sorted(found, key=cost):
            function = test.partition("[")[0]
            ranks[test] = cases[function]
            cases[function] += 1
        return sorted(ranks, key=ranks.__getitem__)


def _old_lines(old: str, new: str) -> dict[int, int]:
    """Map each line number of the new source to that in the old one; 0 for a new line."""
    numbers = dict.fromkeys(range(1, new.count("\n") + 2), 0)
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    for block in matcher.get_matching_blocks():
        numbers |= {block.b + index + 1: block.a + index + 1 for index in range(block.size)}
    return numbers


def order_tests(
    tests: Sequence[str], recorded: Mapping[str, str], current: Mapping[str, str]
) -> list[str]:
    """Order the tests: first the complete files that have changed since the recording, then the other
    tests.

    Files that no longer exist are omitted.
    """
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    changed = [path for path in files if path in current and current[path] != recorded.get(path)]
    same = {path for path in files if path in current} - set(changed)
    return changed + [test for test in tests if test.partition("::")[0] in same]


def read_sources(folders: Iterable[str]) -> dict[str, str]:
    """The text of each Python file in folders."""
    paths = (path for path in list_files(*folders) if path.endswith(".py"))
    return {path: (ROOT / path).read_text() for path in paths}


def make_map(arguments: Sequence[str] = ("-n", "2", "--dist", "loadgroup", *TESTS)) -> None:
    """Run tests of ``make test`` in a copy of the tree, and store what they ran."""
    STORED.mkdir(parents=True, exist_ok=True)
    record, data = STORED / "record.json", STORED / "coverage"
    options = ["--record", str(record), "--cov", "--cov-context=test", "--cov-report="]
    texts = {"sources": read_sources(FOLDERS), "test_files": read_sources(["tests"])}
    with copied_tree() as copy:
        _, output = run_pytest(copy, [*options, *arguments], COVERAGE_FILE=str(data))
    print(output.rstrip().rpartition("\n")[2], flush=True)
    (STORED / "sources.json").write_text(json.dumps(texts))


def load_map() -> CoverageMap:
    """Load the stored map."""
    record = json.loads((STORED / "record.json").read_text())
    failed = {_GROUP.sub("", test) for test in record["failed"]}
    seconds = {_GROUP.sub("", test): taken for test, taken in record["seconds"].items()}
    seconds = {test: taken for test, taken in seconds.items() if test not in failed}
    data = CoverageData(str(STORED / "coverage"))
    data.read()
    lines = {}
    for path in data.measured_files():
        found: dict[int, frozenset[str]] = {}
        for line, contexts in data.contexts_by_lineno(path).items():
            tests = {_GROUP.sub("", context.rpartition("|")[0]) for context in contexts}
            found[line] = frozenset(tests & seconds.keys())
        lines[path] = found
    texts = json.loads((STORED / "sources.json").read_text())
    return CoverageMap(texts["sources"], texts["test_files"], seconds, lines)
