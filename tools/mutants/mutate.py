"""The mutants of a module: small changes of its source that a test should detect."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_FLIPS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


@dataclass(frozen=True)
class Mutant:
    """A module with one change. ``before`` and ``after`` are the changed lines without indentation."""

    path: str
    line: int
    last_line: int
    before: str
    after: str
    source: str
    at_import: bool
    """The changed line runs when the module is imported, not in a function."""
    names: tuple[str, ...] = ()
    """What the changed statement defines, if it runs at import: constants, fields, a function."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the mutant independently of its line number."""
        return self.path, self.before, self.after

    def __str__(self) -> str:
        removed = "".join(f"    - {line}\n" for line in self.before.splitlines())
        added = "".join(f"    + {line}\n" for line in self.after.splitlines())
        return f"{self.path}:{self.line}\n{removed}{added}".rstrip("\n")


_Place = ast.expr | ast.stmt
_Change = tuple[_Place, _Place, str]
"""The first and the last node that a text replaces."""


@dataclass(frozen=True)
class _Edit:
    first: _Place
    last: _Place
    text: str
    at_import: bool
    names: tuple[str, ...]


def list_mutants(path: str, source: str) -> list[Mutant]:
    """List the mutants of a module, in the order of its lines."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    whole = b"".join(lines)
    mutants = {}
    for edit in _edits(ast.parse(source), in_function=False, names=()):
        begin = starts[edit.first.lineno - 1] + edit.first.col_offset
        end = starts[(edit.last.end_lineno or 0) - 1] + (edit.last.end_col_offset or 0)
        last_line = edit.last.end_lineno or edit.first.lineno
        region = slice(starts[edit.first.lineno - 1], starts[last_line])
        before = whole[region].decode()
        mutated = whole[region.start : begin] + edit.text.encode() + whole[end : region.stop]
        changed = _changed_lines(before.splitlines(), mutated.decode().splitlines())
        text = (whole[: region.start] + mutated + whole[region.stop :]).decode()
        place = path, edit.first.lineno, last_line
        mutants[text] = Mutant(*place, *changed, text, edit.at_import, edit.names)
    return sorted(mutants.values(), key=lambda mutant: (mutant.line, mutant.after))


def _changed_lines(before: list[str], after: list[str]) -> tuple[str, str]:
    """Drop the lines that are the same at both ends."""
    while len(before) > 1 and len(after) > 1 and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    while len(before) > 1 and len(after) > 1 and before[0] == after[0]:
        before, after = before[1:], after[1:]
    return "\n".join(map(str.strip, before)), "\n".join(map(str.strip, after))


def _edits(node: ast.AST, *, in_function: bool, names: tuple[str, ...]) -> Iterator[_Edit]:
    """The changes of a node and of what it contains."""
    if _is_excluded(node):
        return
    if not in_function:
        names = _defined_names(node) or names
    for first, last, text in (*_statement_changes(node, in_function), *_expression_changes(node)):
        yield _Edit(first, last, text, not in_function, () if in_function else names)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        is_body = name == "body" and isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        )
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _edits(child, in_function=in_function or is_body, names=names)


def _defined_names(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Assign(targets=targets):
            found = (name for target in targets for name in ast.walk(target))
            return tuple(name.id for name in found if isinstance(name, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return (name,)
    return ()


def _is_excluded(node: ast.AST) -> bool:
    """True for docstrings and log lines, for code that only a type checker reads, and for the start of a
    program."""
    match node:
        case ast.JoinedStr():  # its parts have no exact positions before Python 3.12
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.FunctionDef(name="__repr__") | ast.keyword(arg="repr"):
            return True
        case ast.If(test=test):
            return ast.unparse(test) in ("TYPE_CHECKING", "__name__ == '__main__'")
        case ast.Raise(exc=exc):
            return exc is not None and "NotImplementedError" in ast.unparse(exc)
        case ast.Call(func=ast.Attribute(attr=attr, value=value)):
            return attr in _LOG_METHODS and "log" in ast.unparse(value)
        case ast.Expr(value=call):
            return _is_excluded(call)
    return False


def _statement_changes(node: ast.AST, in_function: bool) -> Iterator[_Change]:
    match node:
        case ast.If(test=test, body=body):
            yield _negate(test)
            if not all(isinstance(statement, ast.Pass) for statement in body):
                yield body[0], body[-1], "pass"
            if node.orelse and not isinstance(node.orelse[0], ast.If):
                yield node.orelse[0], node.orelse[-1], "pass"
        case ast.Return(value=ast.expr() as value):
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield value, value, "None"
        case ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign():
            yield node, node, "pass"
        case ast.Expr() | ast.Delete() if in_function:
            yield node, node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if in_function:
            yield node, node, "pass"


def _expression_changes(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.Compare(ops=ops):
            for index, operator in enumerate(ops):
                for flip in _FLIPS[type(operator)]:
                    changed = copy.deepcopy(node)
                    changed.ops[index] = flip()
                    yield node, node, f"({ast.unparse(changed)})"
        case ast.BoolOp(op=operator):
            changed_bool = copy.deepcopy(node)
            changed_bool.op = ast.And() if isinstance(operator, ast.Or) else ast.Or()
            yield node, node, f"({ast.unparse(changed_bool)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, node, f"({ast.unparse(operand)})"
        case ast.IfExp(test=test):
            yield _negate(test)
        case ast.comprehension(ifs=tests):
            for condition in tests:
                yield condition, condition, "True"
        case ast.Constant(value=bool() as value):
            yield node, node, str(not value)
        case ast.Constant(value=int() | float() as number):
            yield node, node, f"{number + 1}"
            yield node, node, f"({number - 1})" if number < 1 else f"{number - 1}"


def _negate(test: ast.expr) -> _Change:
    return test, test, f"(not ({ast.unparse(test)}))"
