"""Rules in the Common Expression Language, as ``x-kubernetes-validations`` holds them.

The language itself is cel-expr-python, the CEL project's own C++ implementation. Kubernetes adds
libraries of its own (lists, regex, url, quantity, ip) that are not here, but for `sum`: a CRD that
uses them is refused as one whose rule does not compile, never accepted and ignored. Values are
dynamically typed here, so a rule that a real server refuses for its types is found only there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_math, ext_optional, ext_strings
from google.protobuf.timestamp_pb2 import Timestamp

MAX_MESSAGE_BYTES = 5 * 1024
"""A message expression's result beyond this is dropped for the rule's own message (documented)."""

_ENVIRONMENT = cel.NewEnv(
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
    """An expression that cannot be compiled, or that failed when it ran."""


class Program:
    """One compiled expression over ``self`` and ``oldSelf``. Raises `CelError` if it is none."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._expression = _ENVIRONMENT.compile(text)
        except RuntimeError as error:
            raise CelError(f"the expression {text!r} does not compile: {error}") from error

    def run(self, self_value: Any, old: Any = None) -> Any:
        """The expression's value. Raises `CelError` when it ends in an error."""
        value = self._expression.eval(data={"self": self_value, "oldSelf": old})
        if value.type() == cel.Type.ERROR:
            raise CelError(_MISSING_KEY.sub(r"no such key: \1", str(value.value())))
        return value.value()


compile_program = lru_cache(maxsize=4096)(Program)
"""`Program`, compiled once per text in a process."""


@lru_cache(maxsize=4096)
def _pattern(pattern: str) -> Program:
    quoted = pattern.encode("unicode_escape").decode().replace('"', '\\"')
    return Program(f'self.matches("{quoted}")')


def matches(pattern: str, text: str) -> bool:
    """Whether RE2 (the syntax of a schema's ``pattern``) finds ``pattern`` in ``text``.

    Raises `CelError` when the pattern is not valid RE2.
    """
    return bool(_pattern(pattern).run(text))


def escape_name(name: str) -> str:
    """A property's name as a rule writes it: ``a-b`` is ``a__dash__b`` (documented)."""
    if name in _RESERVED:
        return f"__{name}__"
    return _ESCAPED.sub(lambda found: _ESCAPES[found.group()], name)


@dataclass(frozen=True)
class Rule:
    """One entry of ``x-kubernetes-validations``, compiled."""

    program: Program
    text: str
    message: str
    message_program: Program | None
    reason: str
    field_path: str
    transition: bool
    """The rule mentions ``oldSelf``: it runs on updates only, whether or not anything changed."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Rule:
        """Compile a rule. Raises `CelError` when its expressions are not valid."""
        text = str(document.get("rule", ""))
        reason = str(document.get("reason", "FieldValueInvalid"))
        if reason not in _REASONS:
            raise CelError(f"the rule {text!r} has the unknown reason {reason!r}")
        if document.get("optionalOldSelf"):
            raise CelError(f"the rule {text!r} has optionalOldSelf, which is not served here")
        message_expression = str(document.get("messageExpression", ""))
        return cls(
            compile_program(text),
            text,
            str(document.get("message", "")).strip() or f"failed rule: {text}",
            compile_program(message_expression) if message_expression else None,
            reason,
            str(document.get("fieldPath", "")),
            _OLD_SELF.search(_STRING.sub("", text)) is not None,
        )

    def find_failure(self, value: Any, old: Any, *, has_old: bool) -> str | None:
        """Why ``value`` breaks the rule, or ``None``. ``old`` is meant only with ``has_old``."""
        if self.transition and not has_old:
            return None
        try:
            held = self.program.run(value, old)
        except CelError as error:
            return f"{error} evaluating rule: {self.message}"
        if held is True:
            return None
        return self._render_message(value, old)

    def _render_message(self, value: Any, old: Any) -> str:
        if self.message_program is None:
            return self.message
        try:
            message = self.message_program.run(value, old)
        except CelError:
            return self.message  # documented: a message that fails gives way to the plain one
        usable = isinstance(message, str) and message.strip() and "\n" not in message
        if not usable or len(message.encode()) > MAX_MESSAGE_BYTES:
            return self.message
        return str(message)


def parse_timestamp(text: str) -> Timestamp:
    """A text of the format ``date-time`` as the value that CEL knows."""
    stamp = Timestamp()
    stamp.FromJsonString(text)
    return stamp
