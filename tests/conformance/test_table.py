"""Every known behaviour of other systems has a test here, or a reason for a difference.

The rows of tests/data/{tpu_node_group,tpu_provisioner,tpu_env,topology}.yaml are the behaviours. A
test shows rows with ``@pytest.mark.conformance("row", ...)``; if only some of its cases do, with
``cases={"id of a case": "row row"}``. The key ``differs`` of a file has the reasons.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

TESTS = Path(__file__).parents[1]
DATA = {
    name: yaml.safe_load((TESTS / "data" / f"{name}.yaml").read_text())
    for name in ("tpu_node_group", "tpu_provisioner", "tpu_env", "topology")
}
MARK = "mark.conformance("


def _list_rows() -> Iterator[tuple[str, str]]:
    """Each row with its verdict."""
    for name in ("tpu_node_group", "tpu_provisioner"):
        yield from ((row["id"], row["verdict"]) for row in DATA[name]["rows"])
    yield from ((row["id"], "") for row in DATA["tpu_env"]["rows"])
    for part in ("rules", "labels", "generations"):
        yield from ((f"{part}.{name}", "") for name in DATA["topology"][part])
    yield from ((trap["id"], "") for trap in DATA["topology"]["traps"])


ROWS = dict(_list_rows())
REASONS: dict[str, str] = {
    row: why for data in DATA.values() for row, why in data["differs"].items()
}


class Collector:
    """A plugin of pytest that prints the rows of each test."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            case: str = item.callspec.id if hasattr(item, "callspec") else ""
            case = case.removeprefix("embedded-")  # the cluster of a story
            for mark in item.iter_markers("conformance"):
                named = mark.kwargs.get("cases", {}).get(case, "").split()
                for row in (*mark.args, *named):
                    print(json.dumps([row, item.nodeid]))


@pytest.fixture(scope="module")
def shown() -> dict[str, list[str]]:
    """The tests of each row that a mark names."""
    files = [str(path) for path in TESTS.rglob("test_*.py") if MARK in path.read_text()]
    command = [sys.executable, "-m", __name__, *sorted(files)]
    found = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=True)
    tests: dict[str, list[str]] = defaultdict(list)
    for line in found.stdout.splitlines():
        if line.startswith("["):
            row, test = json.loads(line)
            tests[row].append(test)
    return dict(tests)


def test_only_rows_are_named(shown: dict[str, Any]) -> None:
    assert sorted({*shown, *REASONS} - {*ROWS}) == []


def test_every_row_has_a_test_or_a_reason(shown: dict[str, Any]) -> None:
    assert sorted({*ROWS} - {*shown, *REASONS}) == []


def test_a_behaviour_with_the_verdict_same_has_a_test(shown: dict[str, Any]) -> None:
    assert [row for row, verdict in ROWS.items() if verdict == "same" and row not in shown] == []


if __name__ == "__main__":
    sys.exit(pytest.main(["--collect-only", "-qq", *sys.argv[1:]], plugins=[Collector()]))
