"""The Common Expression Language: expressions, and the rules of ``x-kubernetes-validations``.

The language itself is cel-expr-python, the CEL project's own C++ implementation. Kubernetes adds
libraries of its own (lists, regex, url, quantity, ip), of which only `sum` is supported: a CRD that
uses another function is rejected, because its rule does not compile. Values are dynamically typed, so a
rule with wrong types is rejected only by a real server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_math, ext_optional, ext_strings
from google.protobuf.timestamp_pb2 import Timestamp

RULES = cel.NewEnv(
    variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN},
    extensions=[
        ext_strings.ExtStrings(),
        ext_optional.ExtOptional(),
        ext_math.ExtMath(),
        ext_bindings.ExtBindings(),
    ],
    functions=[
        cel.FunctionDecl(
            "sum",
            [
                cel.Overload(
                    "list_sum",
                    return_type=cel.Type.DYN,
                    parameters=[cel.Type.LIST],
                    is_member=True,
                    impl=sum,
                )
            ],
        )
    ],
)
"""The environment of the rules of a CRD."""
_STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
_OLD_SELF = re.compile(r"\boldSelf\b")
_MISSING_KEY = re.compile(r'NOT_FOUND: Key not found in map : "?([^"]*)"?')
_REASONS = frozenset(
    f"FieldValue{name}" for name in ("Invalid", "Forbidden", "Required", "Duplicate")
)
_RESERVED = frozenset(
    {"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function"}
    | {"if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while"}
)
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_ESCAPED = re.compile("|".join(map(re.escape, _ESCAPES)))


class CelError(ValueError):
    """An expression cannot be compiled, or its evaluation failed."""


class Program:
    """A compiled expression. Raises `CelError` if it does not compile."""

    def __init__(self, text: str, environment: Any = RULES) -> None:
        try:
            self._expression = environment.compile(text)
        except RuntimeError as error:
            raise CelError(f"the expression {text!r} does not compile: {error}") from error

    def run(self, variables: Mapping[str, Any]) -> Any:
        """Evaluate the expression. Raises `CelError`."""
        value = self._expression.eval(data=dict(variables))
        if value.type() == cel.Type.ERROR:
            raise CelError(_MISSING_KEY.sub(r"no such key: \1", str(value.value())))
        return value.plain_value()


compile_program = lru_cache(maxsize=4096)(Program)
"""`Program`, compiled once per text and environment in a process."""


@lru_cache(maxsize=4096)
def _pattern(pattern: str) -> Program:
    quoted = pattern.encode("unicode_escape").decode().replace('"', '\\"')
    return Program(f'self.matches("{quoted}")')


def matches(pattern: str, text: str) -> bool:
    """Whether ``text`` has a match of ``pattern``, in RE2 (the syntax of a schema's ``pattern``).

    Raises `CelError` if the pattern is not valid RE2.
    """
    return bool(_pattern(pattern).run({"self": text}))


def escape_name(name: str) -> str:
    """Escape a property's name for rules: ``a-b`` becomes ``a__dash__b`` (documented)."""
    if name in _RESERVED:
        return f"__{name}__"
    return _ESCAPED.sub(lambda found: _ESCAPES[found.group()], name)


class Rule:
    """One entry of ``x-kubernetes-validations``. Raises `CelError` if it cannot be compiled.

    ``transition``: the rule mentions ``oldSelf``. It runs on updates only, also on unchanged values.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        text = str(document.get("rule", ""))
        self.reason = str(document.get("reason", "FieldValueInvalid"))
        if self.reason not in _REASONS:
            raise CelError(f"the rule {text!r} has the unknown reason {self.reason!r}")
        if document.get("optionalOldSelf"):
            raise CelError(f"the rule {text!r} has optionalOldSelf, which is not served here")
        self.field_path = str(document.get("fieldPath", ""))
        self.transition = _OLD_SELF.search(_STRING.sub("", text)) is not None
        self._program = compile_program(text)
        self._message = str(document.get("message", "")).strip() or f"failed rule: {text}"
        self._message_program = compile_program(str(document.get("messageExpression") or "''"))

    def find_failure(self, value: Any, old: Any, *, has_old: bool) -> str | None:
        """Why ``value`` violates the rule, or ``None``. ``old`` is used only with ``has_old``."""
        if self.transition and not has_old:
            return None
        variables = {"self": value, "oldSelf": old}
        try:
            if self._program.run(variables) is True:
                return None
        except CelError as error:
            return f"{error} evaluating rule: {self._message}"
        try:
            message = self._message_program.run(variables)
        except CelError:
            return self._message  # documented: if messageExpression fails, message is used
        usable = isinstance(message, str) and message.strip() and "\n" not in message
        return str(message) if usable else self._message


def parse_timestamp(text: str) -> Timestamp:
    """Parse a text of the format ``date-time`` as CEL's timestamp."""
    timestamp = Timestamp()
    timestamp.FromJsonString(text)
    return timestamp
