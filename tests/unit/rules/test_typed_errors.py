"""Decisions read the fields of errors and events: they search in no text and in no name of a call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
STORED = {
    "functions/create_resources/resource_conditions.py": "the status keeps the text of an error alone",
    "functions/inject_token/tokens_condition.py": "the status keeps the text of an error alone",
    "functions/label_node/joined_condition.py": "the status keeps the text of a condition alone",
    "functions/label_node/maintenance_condition.py": "the status keeps the window in a text alone",
    "shared/slices/units.py": "the scheduler names volume claims in a text alone",
    "shared/node_groups/readiness.py": "whether a message has its advice already",
}
"""The modules that search in a text because nothing else is stored, and why."""
TEXTS = {"call", "message", "method", "error"}
SEARCHES = {"startswith", "endswith", "find", "index", "partition", "rpartition"}
PATTERNS = {"search", "match", "fullmatch", "findall", "finditer"}


def is_text(node: ast.expr) -> bool:
    """Whether an expression is, by its name, the text of an error or of a call."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return any(map(is_text, node.args))
    return (isinstance(node, ast.Attribute) and node.attr in TEXTS) or (
        isinstance(node, ast.Name) and node.id in TEXTS
    )


def find_searches(tree: ast.AST) -> Iterator[int]:
    """The lines that search in such a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            is_search = any(isinstance(one, ast.In | ast.NotIn) for one in node.ops)
            if is_search and any(map(is_text, node.comparators)):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in SEARCHES and is_text(node.func.value):
                yield node.lineno
            if node.func.attr in PATTERNS and any(map(is_text, node.args)):
                yield node.lineno


def test_no_decision_searches_in_the_text_of_an_error() -> None:
    files = [path for folder in ("functions", "shared") for path in (ROOT / folder).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)): lines
        for path in files
        if not {"ports", "triggers"} & {*path.parts}  # they set the fields
        and (lines := [*find_searches(ast.parse(path.read_text()))])
    }
    assert found.keys() == STORED.keys(), found


def test_the_rule_finds_a_search() -> None:
    searches = (
        '"x" in error.call',
        'error.message.startswith("x")',
        're.search("x", str(error))',
        '"x" not in event.method',
    )
    assert all([*find_searches(ast.parse(text))] == [1] for text in searches)
    assert [*find_searches(ast.parse("error.kind in (A, B) and error.http == 404"))] == []
