"""`make mutants`: what it changes, which tests it runs, and what it counts."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pytest

from tools.mutants.__main__ import Outcome, Result, list_all_mutants, read_equivalent, score
from tools.mutants.coverage_map import FOLDERS, CoverageMap, order_tests, read_sources
from tools.mutants.mutate import Mutant, list_enums, list_mutants


def changes(source: str) -> set[tuple[str, str]]:
    enums = list_enums(["class Color(StrEnum):\n    RED = 'r'\n    BLUE = 'b'\n"])
    return {(mutant.before, mutant.after) for mutant in list_mutants("a.py", source, enums)}


@pytest.mark.parametrize(
    "line, mutated",
    [
        ("a = b == c", {"a = (b != c)"}),
        ("a = b != c", {"a = (b == c)"}),
        ("a = b < c", {"a = (b <= c)", "a = (b >= c)"}),
        ("a = b <= c", {"a = (b < c)", "a = (b > c)"}),
        ("a = b > c", {"a = (b >= c)", "a = (b <= c)"}),
        ("a = b >= c", {"a = (b > c)", "a = (b < c)"}),
        ("a = b is c", {"a = (b is not c)"}),
        ("a = b is not c", {"a = (b is c)"}),
        ("a = b in c", {"a = (b not in c)"}),
        ("a = b not in c", {"a = (b in c)"}),
        ("a = b and c", {"a = (b or c)"}),
        ("a = b or c", {"a = (b and c)"}),
        ("a = not b", {"a = (b)"}),
        ("a = 'ö' if b else c", {"a = 'ö' if (not (b)) else c"}),
        ("a = [b for b in c if d]", {"a = [b for b in c if True]"}),
        ("a = True", {"a = False"}),
        ("a = False", {"a = True"}),
        ("a = 5", {"a = 6", "a = 4"}),
        ("a = 0", {"a = 1", "a = (-1)"}),
        ("a = [b, c]", {"a = [c]", "a = [b]"}),
        ("a = (b, c, d)", {"a = (c, d)", "a = (b, d)", "a = (b, c)"}),
        ("a = (b, c,)", {"a = (c,)", "a = (b,)"}),
        ("a = {'b': c, 'd': e}", {"a = {'d': e}", "a = {'b': c}"}),
        ("a = {'b': c, **d}", set()),
        ("a = b(c=d, e=f)", {"a = b(e=f)", "a = b(c=d)"}),
        ("a = b(c, d, *e)", {"a = b(d, c, *e)"}),
        ("a = b(c, c)", set()),
        ("a = min(b, c)", {"a = max(b, c)"}),
        ("a = any(b)", {"a = all(b)"}),
        ("a = b + c", {"a = (b - c)"}),
        ("a = b - c", {"a = (b + c)"}),
        ("a = b + ', '", set()),
        ("a = Mapping[str, B]", set()),
        ("a = Color.RED", {"a = Color.BLUE"}),
        ("a = Color.BLUE", {"a = Color.RED"}),
        ("a = Color.mixed", set()),
        ("a: int = b", set()),
        ("a = b", set()),
        ("a = 'b'", set()),
        ("a(b)", set()),
    ],
)
def test_a_line_has_these_mutants(line: str, mutated: set[str]) -> None:
    assert changes(line) == {(line, after) for after in mutated}


@pytest.mark.parametrize(
    "body, mutated",
    [
        ("return a", {("return a", "return None")}),
        ("return None", set()),
        ("return", set()),
        ("raise a", {("raise a", "pass")}),
        ("raise NotImplementedError('a')", set()),
        ("a(b)", {("a(b)", "pass")}),
        ("a += b", {("a += b", "pass")}),
        ("a.b = c", {("a.b = c", "pass")}),
        ("a[b] = c", {("a[b] = c", "pass")}),
        ("del a", {("del a", "pass")}),
        ("yield a", {("yield a", "pass")}),
        ("a = b", set()),
        ("'text'", set()),
        ("...", set()),
        ("a = f'{b == c}'", set()),
        ("a: 'b == c' = d", set()),
        ("log.info(a == b)", set()),
        ("work.log.error('a', code=5)", set()),
        ("_LOG.error('a', code=5)", set()),
        ("math.log(a)", {("math.log(a)", "pass")}),
        ("for a in b:\n    continue", {("continue", "pass")}),
        ("while a:\n    break", {("break", "pass")}),
        ("if a:\n    b = c", {("if a:", "if (not (a)):"), ("b = c", "pass")}),
        (
            "if a:\n    pass\nelse:\n    b = c",
            {("if a:", "if (not (a)):"), ("b = c", "pass")},
        ),
        ("if TYPE_CHECKING:\n    import a", set()),
    ],
)
def test_a_function_has_these_mutants(body: str, mutated: set[tuple[str, str]]) -> None:
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    assert changes(f"def f(a: b == c) -> b == c:\n{indented}\n") == mutated


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def __repr__(self):\n        return 5\n",
        "class A:\n    a: B = field(repr=False)\n",
        "if __name__ == '__main__':\n    main(5)\n",
        "@decorated(5)\ndef f(): ...\n",
        '"""5 == 5"""\n',
    ],
)
def test_reprs_decorators_docstrings_and_main_blocks_have_no_mutants(source: str) -> None:
    assert changes(source) == set()


def test_a_mutant_is_shown_with_its_line_and_as_a_diff() -> None:
    first, second = list_mutants("a.py", "a = 1\nif (\n    b\n    < c\n):\n    d()\n")[2:4]
    assert str(first) == "a.py:3\n    - b\n    - < c\n    + (b <= c)"
    assert (first.line, first.last_line) == (3, 4)
    assert second.source == "a = 1\nif (\n    (b >= c)\n):\n    d()\n"


@pytest.mark.parametrize(
    "source, at_import, names",
    [
        ("A = 5\n", True, ("A",)),
        ("A, B = 5, c\n", True, ("A", "B")),
        ("class A:\n    b = 5\n", True, ("b",)),
        ("class A:\n    b: int = 5\n", True, ("b",)),
        ("def f(a=5): ...\n", True, ("f",)),
        ("def f():\n    a = 5\n", False, ()),
        ("f = lambda: 5\n", False, ()),
        ("f(5)\n", True, ()),
    ],
)
def test_a_mutant_records_whether_it_runs_at_import_and_the_names_it_defines(
    source: str, at_import: bool, names: tuple[str, ...]
) -> None:
    found = {(mutant.at_import, mutant.names) for mutant in list_mutants("a.py", source)}
    assert found == {(at_import, names)}


def test_each_mutant_of_the_product_is_python() -> None:
    path, source = next(iter(read_sources(["shared/frame"]).items()))
    mutants = list_mutants(path, source)
    assert all(ast.parse(mutant.source) for mutant in mutants)


SOURCE = (
    "LIMIT = 5\n\n"
    "def f(a):\n    return a < LIMIT\n"
    "def at_import():\n    return 1\n"
    "def never():\n    return 2\n"
)
MAP = CoverageMap(
    sources={"a.py": SOURCE},
    test_files={"tests/unit/test_a.py": "", "tests/stories/test_b.py": ""},
    seconds={"tests/unit/test_a.py::x": 1, "tests/unit/test_a.py::y": 0.5, "tests/b.py::z": 2},
    lines={
        "a.py": {
            1: frozenset(),
            4: frozenset({"tests/unit/test_a.py::x", "tests/unit/test_a.py::y"}),
            6: frozenset(),
        },
        "b.py": {
            1: frozenset({"tests/unit/test_a.py::x", "tests/b.py::z"}),
            2: frozenset({"tests/unit/test_a.py::x"}),
        },
    },
)


def find_tests(source: str, before: str) -> list[str]:
    mutant = next(found for found in list_mutants("a.py", source) if found.before == before)
    return MAP.find_tests(mutant, source)


SPECIFIC_FIRST = ["tests/unit/test_a.py::y", "tests/unit/test_a.py::x"]


@pytest.mark.parametrize(
    "source, before",
    [
        (SOURCE, "return a < LIMIT"),
        ("# moved\n\n" + SOURCE, "return a < LIMIT"),
        (SOURCE, "LIMIT = 5"),
        (SOURCE.replace("LIMIT\n", "MAX\n"), "return a < MAX"),
        (SOURCE, "return 1"),
    ],
    ids=["as recorded", "moved", "at import", "newer than the map", "in a function, at import"],
)
def test_a_mutant_has_the_tests_of_its_line_the_most_specific_first(
    source: str, before: str
) -> None:
    assert find_tests(source, before) == SPECIFIC_FIRST


def test_a_constant_has_the_tests_that_name_it_then_those_of_its_uses_then_those_of_its_file() -> (
    None
):
    source = "LIMIT = 5\n\ndef f(a):\n    return a < 2\n"
    stored = CoverageMap(
        sources={"a.py": source, "b.py": "from a import LIMIT\ndef g(a):\n    return a > LIMIT\n"},
        test_files={"tests/test_a.py": "from a import f\n", "tests/test_c.py": "import a\n"},
        seconds=dict.fromkeys(
            (
                "tests/test_a.py::of_the_file_and_imports_it",
                "tests/test_e.py::of_the_file",
                "tests/test_b.py::of_a_use",
                "tests/test_c.py::that_imports_it",
                "tests/test_d.py::page[a.LIMIT]",
                "tests/test_d.py::page[a.LIMITS]",
            ),
            1.0,
        ),
        lines={
            "a.py": {
                4: frozenset(
                    {"tests/test_a.py::of_the_file_and_imports_it", "tests/test_e.py::of_the_file"}
                )
            },
            "b.py": {1: frozenset(), 3: frozenset({"tests/test_b.py::of_a_use"})},
        },
    )
    mutant = next(one for one in list_mutants("a.py", source) if one.at_import)
    assert stored.find_tests(mutant, source) == [
        "tests/test_d.py::page[a.LIMIT]",
        "tests/test_c.py::that_imports_it",
        "tests/test_a.py::of_the_file_and_imports_it",
        "tests/test_b.py::of_a_use",
        "tests/test_e.py::of_the_file",
    ]


def test_a_program_has_the_tests_of_the_files_that_run_it() -> None:
    source = "def main():\n    return 1\n"
    stored = CoverageMap(
        sources={"a/__main__.py": source},
        test_files={"t.py": '"""``python -m a`` as a process."""\n', "u.py": "python -m ab\n"},
        seconds={"t.py::x": 1, "u.py::y": 1},
        lines={},
    )
    (mutant, *_) = list_mutants("a/__main__.py", source)
    assert stored.find_tests(mutant, source) == ["t.py::x"]


def test_the_cases_of_a_test_alternate_with_those_of_other_tests() -> None:
    tests = ("t.py::x[1]", "t.py::x[2]", "t.py::y[1]", "t.py::y[2]", "t.py::z")
    stored = CoverageMap(
        sources={"a.py": SOURCE},
        test_files={},
        seconds={test: number / 10 for number, test in enumerate(tests)},
        lines={"a.py": {4: frozenset(tests)}},
    )
    mutant = next(one for one in list_mutants("a.py", SOURCE) if one.line == 4)
    assert stored.find_tests(mutant, SOURCE) == [
        "t.py::x[1]",
        "t.py::y[1]",
        "t.py::z",
        "t.py::x[2]",
        "t.py::y[2]",
    ]


@pytest.mark.parametrize(
    "seconds, taken",
    [(10, ["x", "y", "z"]), (3, ["x", "y"]), (2, ["x", "z"]), (0, ["x"])],
    ids=["all", "as many as fit", "a long one is left out", "at least one"],
)
def test_tests_are_selected_if_they_fit_into_the_remaining_time(
    seconds: float, taken: list[str]
) -> None:
    stored = CoverageMap({}, {}, {"x": 1, "y": 2, "z": 1}, {})
    assert stored.take(["x", "y", "z"], seconds) == taken
    assert stored.take([], seconds) == []


def test_a_line_that_no_test_runs_has_no_tests() -> None:
    assert find_tests(SOURCE, "return 2") == []


def test_a_file_that_is_not_recorded_has_no_tests() -> None:
    (mutant,) = list_mutants("new.py", "A = True\n")
    assert MAP.find_tests(mutant, "A = True\n") == []


@pytest.mark.parametrize(
    "current, ordered",
    [
        ({"a.py": "1", "b.py": "1"}, ["a.py::x", "b.py::y", "a.py::z"]),
        ({"a.py": "1", "b.py": "2"}, ["b.py", "a.py::x", "a.py::z"]),
        ({"a.py": "1"}, ["a.py::x", "a.py::z"]),
    ],
    ids=["unchanged", "a changed file runs as a whole", "a deleted file"],
)
def test_tests_that_changed_since_the_map_run_first(
    current: dict[str, str], ordered: list[str]
) -> None:
    tests = ["a.py::x", "b.py::y", "a.py::z"]
    assert order_tests(tests, {"a.py": "1", "b.py": "1"}, current) == ordered


def results(*outcomes: tuple[Outcome, bool]) -> Sequence[Result]:
    mutant = Mutant("a.py", 1, 1, "a", "b", "b", at_import=False)
    return [Result(mutant, outcome, by_unit) for outcome, by_unit in outcomes]


def test_the_scores_count_the_mutants_that_are_killed_or_time_out() -> None:
    found = results(
        (Outcome.KILLED, True),
        (Outcome.KILLED, False),
        (Outcome.KILLED, True),
        (Outcome.TIMED_OUT, False),
        (Outcome.SURVIVED, False),
        (Outcome.NOT_COVERED, False),
        (Outcome.UNCONFIRMED, True),
        (Outcome.SURVIVED, False),
    )
    assert score(found) == (
        "8 mutants: 3 killed, 2 survived, 1 timed out, 1 not covered, "
        "1 killed by a test that also fails without it\n"
        "score by unit tables: 25%\n"
        "score by all tests:   50%"
    )


def test_each_mutant_that_is_listed_as_equivalent_exists_and_has_a_reason() -> None:
    sources = read_sources(FOLDERS)
    found = {mutant.key for path, text in sources.items() for mutant in list_mutants(path, text)}
    listed = read_equivalent()
    assert [key for key, _ in listed if key not in found] == []
    assert [key for key, reason in listed if not reason.endswith(".")] == []
    keys = {key for key, _ in listed}
    assert not keys & {mutant.key for mutant in list_all_mutants(sources)}
