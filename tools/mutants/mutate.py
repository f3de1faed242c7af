"""The mutants of a module: small changes of its source that a test should detect."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
_OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
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


_Place = ast.expr | ast.stmt | ast.keyword
_Change = tuple[_Place, _Place, str]
"""The first and the last node that a text replaces."""
Enums = Mapping[str, Sequence[str]]
"""The members of each enumeration."""


@dataclass(frozen=True)
class _Edit:
    first: _Place
    last: _Place
    text: str
    at_import: bool
    names: tuple[str, ...]


class _Source:
    """The bytes of a module, by the nodes of its tree."""

    def __init__(self, text: str) -> None:
        lines = [line.encode() for line in text.splitlines(keepends=True)]
        self.whole = b"".join(lines)
        self.line_starts = [0]
        for line in lines:
            self.line_starts.append(self.line_starts[-1] + len(line))

    def begin(self, node: _Place) -> int:
        return self.line_starts[node.lineno - 1] + node.col_offset

    def end(self, node: _Place) -> int:
        return self.line_starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def without(self, node: ast.expr, parts: Sequence[_Part], index: int) -> str | None:
        """The text of a node without one of its parts; None where that is no expression of the kind,
        as beside a part in parentheses, which are outside its node."""
        if index + 1 < len(parts):
            cut = slice(self.begin(parts[index][0]), self.begin(parts[index + 1][0]))
        elif index:
            cut = slice(self.end(parts[index - 1][1]), self.end(parts[index][1]))
        else:
            cut = slice(self.begin(parts[0][0]), self.end(parts[0][1]))
        text = self.whole[self.begin(node) : cut.start] + self.whole[cut.stop : self.end(node)]
        return self._check(node, text.decode())

    def swapped(self, node: ast.Call, first: ast.expr, second: ast.expr) -> str | None:
        """The text of a call with two of its arguments swapped."""
        one, other = (
            slice(self.begin(first), self.end(first)),
            slice(self.begin(second), self.end(second)),
        )
        text = b"".join(
            (
                self.whole[self.begin(node) : one.start],
                self.whole[other],
                self.whole[one.stop : other.start],
                self.whole[one],
                self.whole[other.stop : self.end(node)],
            )
        )
        return self._check(node, text.decode())

    @staticmethod
    def _check(node: ast.expr, text: str) -> str | None:
        try:
            changed = ast.parse(f"({text})", mode="eval").body
        except SyntaxError:
            return None
        return text if type(changed) is type(node) else None


_Part = tuple[_Place, _Place]
"""The first and the last node of an element, of an entry of a dict, or of an argument."""


def list_enums(sources: Iterable[str]) -> Enums:
    """Find the enumerations of modules, with their members."""
    enums = {}
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and any(
                "Enum" in ast.unparse(base) for base in node.bases
            ):
                assigned = (part.targets[0] for part in node.body if isinstance(part, ast.Assign))
                enums[node.name] = [name.id for name in assigned if isinstance(name, ast.Name)]
    return enums


def list_mutants(path: str, text: str, enums: Enums | None = None) -> list[Mutant]:
    """List the mutants of a module, in the order of its lines."""
    source = _Source(text)
    mutants = {}
    for edit in _edits(ast.parse(text), _Changes(source, enums or {}), in_function=False, names=()):
        begin, end = source.begin(edit.first), source.end(edit.last)
        last_line = edit.last.end_lineno or edit.first.lineno
        region = slice(source.line_starts[edit.first.lineno - 1], source.line_starts[last_line])
        before = source.whole[region].decode()
        mutated = (
            source.whole[region.start : begin]
            + edit.text.encode()
            + source.whole[end : region.stop]
        )
        changed = _changed_lines(before.splitlines(), mutated.decode().splitlines())
        whole = (source.whole[: region.start] + mutated + source.whole[region.stop :]).decode()
        if whole == text:
            continue  # equal arguments were swapped
        place = path, edit.first.lineno, last_line
        mutants[whole] = Mutant(*place, *changed, whole, edit.at_import, edit.names)
    return sorted(mutants.values(), key=lambda mutant: (mutant.line, mutant.after))


def _changed_lines(before: list[str], after: list[str]) -> tuple[str, str]:
    """Drop the lines that are the same at both ends."""
    while len(before) > 1 and len(after) > 1 and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    while len(before) > 1 and len(after) > 1 and before[0] == after[0]:
        before, after = before[1:], after[1:]
    return "\n".join(map(str.strip, before)), "\n".join(map(str.strip, after))


def _edits(
    node: ast.AST, changes: _Changes, *, in_function: bool, names: tuple[str, ...]
) -> Iterator[_Edit]:
    """The changes of a node and of what it contains."""
    if _is_excluded(node):
        return
    if not in_function:
        names = _defined_names(node) or names
    for first, last, text in (*_statement_changes(node, in_function), *changes.list(node)):
        yield _Edit(first, last, text, not in_function, () if in_function else names)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        is_body = name == "body" and isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        )
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _edits(child, changes, in_function=in_function or is_body, names=names)


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
            return attr in _LOG_METHODS and "log" in ast.unparse(value).lower()
        case ast.Subscript(slice=ast.Tuple()):  # types
            return True
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


@dataclass(frozen=True)
class _Changes:
    """The changes of expressions in a module."""

    source: _Source
    enums: Enums

    def list(self, node: ast.AST) -> Iterator[_Change]:
        yield from _expression_changes(node)
        match node:
            case ast.Tuple(elts=elements, ctx=ast.Load()) | ast.List(elts=elements, ctx=ast.Load()):
                yield from self._drop(node, [(element, element) for element in elements])
            case ast.Set(elts=[_, _, *_] as elements):  # a set without elements is a dict
                yield from self._drop(node, [(element, element) for element in elements])
            case ast.Dict(keys=keys, values=values) if None not in keys:
                entries = zip(keys, values, strict=True)
                yield from self._drop(node, [(key, value) for key, value in entries if key])
            case ast.Call(func=called, args=arguments, keywords=keywords):
                places: list[_Place] = [*arguments, *keywords]
                if all(keyword.arg for keyword in keywords):
                    yield from self._drop(
                        node, [(place, place) for place in places], len(arguments)
                    )
                is_commutative = isinstance(called, ast.Name) and called.id in ("min", "max")
                for first, second in () if is_commutative else pairwise(arguments):
                    swapped = self.source.swapped(node, first, second)
                    if (
                        swapped
                        and not isinstance(first, ast.Starred)
                        and not isinstance(second, ast.Starred)
                    ):
                        yield node, node, swapped
            case ast.Attribute(value=ast.Name(id=enum), attr=member):
                members = self.enums.get(enum, [])
                if member in members and len(members) > 1:
                    other = members[(members.index(member) + 1) % len(members)]
                    yield node, node, f"{enum}.{other}"

    def _drop(self, node: ast.expr, parts: Sequence[_Part], first: int = 0) -> Iterator[_Change]:
        for index in range(first, len(parts)):
            text = self.source.without(node, parts, index)
            if text is not None and not _is_excluded(parts[index][0]):
                yield node, node, text


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
        case ast.Call(func=ast.Name(id=("min" | "max" | "any" | "all") as name) as function):
            yield function, function, _OPPOSITES[name]
        case ast.BinOp(op=ast.Add() | ast.Sub() as operator) if not _is_text(node):
            changed_sum = copy.deepcopy(node)
            changed_sum.op = ast.Sub() if isinstance(operator, ast.Add) else ast.Add()
            yield node, node, f"({ast.unparse(changed_sum)})"
        case ast.Constant(value=bool() as value):
            yield node, node, str(not value)
        case ast.Constant(value=int() | float() as number):
            yield node, node, f"{number + 1}"
            yield node, node, f"({number - 1})" if number < 1 else f"{number - 1}"


def _is_text(node: ast.expr) -> bool:
    """True for a sum with a text in it, whose difference is an error in each test."""
    match node:
        case ast.BinOp(left=left, right=right):
            return _is_text(left) or _is_text(right)
        case ast.Constant(value=value):
            return isinstance(value, str | bytes)
    return isinstance(node, ast.JoinedStr)


def _negate(test: ast.expr) -> _Change:
    return test, test, f"(not ({ast.unparse(test)}))"
