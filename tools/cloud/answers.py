"""The answers: their comparison with the assumptions, the printed table, and the file to send."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from replay.output import print_paragraph, print_rows
from tools.cloud.project import Document
from tools.cloud.questions import Facts, Question
from version import VERSION

FORMAT = 1
_NUMBER = re.compile(
    r"(?:projects?|organizations|folders)[ /=:]+(\d{6,})\b"
    r"|\b(\d{6,})(?:-compute)?@[\w.-]*gserviceaccount\.com"
)
_AGENT = re.compile(r"(?:service-)?(?:\d+|NUMBER)(?:-compute)?@[\w.-]*gserviceaccount\.com")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_ADDRESS = re.compile(
    r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"
    r"|(?<![\w:])(?:[\da-fA-F]{1,4}:){7}[\da-fA-F]{1,4}(?![\w:])"
    r"|(?<![\w:])(?:[\da-fA-F]{1,4}:)+(?::[\da-fA-F]{1,4})+(?![\w:])"
)
_PROJECT = re.compile(r"(?<=projects/)(?!debian-cloud/)[a-z][a-z0-9.:-]{4,}(?=/|\b)")
_NETWORK = re.compile(r"(?<=networks/)(?!default(?![\w-]))[a-z][a-z0-9-]*")
_TOKEN = re.compile(
    r"\bya29\.[\w-]+|\beyJ[\w-]+\.[\w.-]+|\bBearer +\S+|\b[a-z0-9]{6}\.[a-z0-9]{16}\b"
    r"|-----BEGIN[\s\S]+?(?:-----END[ A-Z]*-----|$)"
)
"""Access and ID tokens, join tokens, keys."""
_NO_ITEMS = frozenset({"fingerprint", "kind", "@type"})
"""Fields of metadata that are not its items."""
_VALUE = re.compile(r"VALUE-\d+")
_OF_CALLERS = frozenset(
    {"callerip", "principalsubject", "serviceaccountkeyname", "authorization", "headers"}
)
"""Fields that are dropped, in lower case."""


@dataclass(frozen=True)
class Answer:
    """The answer to a question: ``facts``, or the ``error`` that prevented it."""

    question: Question
    facts: Facts = field(default_factory=dict)
    error: str = ""
    evidence: Sequence[Document] = ()

    @property
    def verdict(self) -> str:
        """Whether the answer is as assumed, for the table."""
        if self.error:
            return "no answer"
        return "differs" if list(self.differences()) else "as assumed"

    def differences(self) -> Iterator[str]:
        """Yield each fact that differs from the assumption."""
        for name, assumed in self.question.assumed.items():
            found = self.facts.get(name, "nothing") if not self.error else assumed
            if found != assumed:
                yield f"{name}: {found}; assumed: {assumed}"

    def document(self) -> Document:
        """Return the answer in JSON form."""
        question = self.question
        return {
            "id": question.id,
            "asks": question.text,
            "verdict": self.verdict,
            "answer": dict(self.facts),
            "assumed": dict(question.assumed),
            "assumedIn": question.assumed_in,
            "notKnownIn": question.documented_in,
            **({"error": self.error} if self.error else {}),
            "evidence": list(self.evidence),
        }


@dataclass(frozen=True)
class Report:
    """The file with the answers of one run."""

    path: Path
    project: str
    zone: str
    run: str
    began: datetime
    keep_names: bool

    def write(self, answers: Sequence[Answer], left: Sequence[str]) -> None:
        """Replace the whole file. It is written after each answer."""
        document = {
            "format": FORMAT,
            "suite": f"tpu-functions {VERSION}, test-cloud",
            "date": f"{self.began:%Y-%m-%d}",
            "run": self.run,
            "zone": self.zone,
            "left": list(left),
            "answers": [answer.document() for answer in answers],
        }
        redacted = redact(document, self.project, keep_names=self.keep_names)
        scratch = self.path.with_name(f"{self.path.name}.part")
        scratch.write_text(json.dumps(redacted, indent=2, ensure_ascii=False) + "\n")
        os.replace(scratch, self.path)


def print_questions(questions: Sequence[Question]) -> None:
    """Print the resources that each question creates, and their cost."""
    rows = [((one.id, _render_cost(one.cost_usd)), (one.creates,)) for one in questions]
    print_rows(("QUESTION", "MAX COST"), rows)
    total = sum(one.cost_usd for one in questions)
    print_paragraph(
        f"{len(questions)} questions, at most about {total:.2f} USD together at list prices in the US."
        " All resources are deleted afterwards."
    )


def print_answers(answers: Sequence[Answer]) -> None:
    """Print a table, then the answers that differ and the questions without an answer."""
    rows = [
        (
            (answer.question.id, answer.verdict),
            ("; ".join(f"{name}: {found}" for name, found in answer.facts.items()),),
        )
        for answer in answers
    ]
    print_rows(("QUESTION", "VERDICT"), rows)
    for answer in answers:
        for difference in answer.differences():
            place = answer.question.assumed_in
            print_paragraph(f"- {answer.question.id}: {difference} ({place}).", "  ", "")
        if answer.error:
            print_paragraph(f"- {answer.question.id} has no answer: {answer.error}", "  ", "")


def redact(document: Any, project: str, *, keep_names: bool = False) -> Any:
    """Return the document without addresses of people, tokens and values of metadata and, unless kept,
    without names of the project."""
    numbers = set() if keep_names else _find_numbers(document)
    return _Redaction(project, frozenset(numbers), keep_names).apply(document)


@dataclass(frozen=True)
class _Redaction:
    project: str
    numbers: frozenset[str]
    keep_names: bool
    values: dict[str, str] = field(default_factory=dict)
    """The values of metadata that were replaced."""

    def apply(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                self._text(key): self._field(key, one)
                for key, one in value.items()
                if key.lower() not in _OF_CALLERS
            }
        if isinstance(value, list):
            return [self.apply(one) for one in value]
        return self._text(value) if isinstance(value, str) else value

    def _field(self, key: str, value: Any) -> Any:
        if key == "project_id" and not self.keep_names:
            return "PROJECT"
        if key == "items" and isinstance(value, list):
            return [self._item(one) for one in value]
        if key == "metadata" and isinstance(value, dict) and "items" not in value:
            return {
                name: self.apply(one) if name in _NO_ITEMS else self._value(one)
                for name, one in value.items()
            }
        return self.apply(value)

    def _item(self, one: Any) -> Any:
        """Return an item of a list; if it is one of metadata, without its value."""
        if isinstance(one, dict) and one.keys() == {"key", "value"}:
            return {"key": self.apply(one["key"]), "value": self._value(one["value"])}
        return self.apply(one)

    def _value(self, value: Any) -> Any:
        """Return a value of metadata as ``VALUE-n``: equal values get equal numbers."""
        if not isinstance(value, str):
            return self.apply(value)
        if _VALUE.fullmatch(value):
            return value
        return self.values.setdefault(value, f"VALUE-{len(self.values) + 1}")

    def _text(self, text: str) -> str:
        text = _TOKEN.sub("TOKEN", text)
        text = _EMAIL.sub(lambda found: found[0] if _AGENT.fullmatch(found[0]) else "EMAIL", text)
        text = _ADDRESS.sub("ADDRESS", text)
        if self.keep_names:
            return text
        text = re.sub(rf"(?<![\w-]){re.escape(self.project)}(?![\w-])", "PROJECT", text)
        text = _NETWORK.sub("NETWORK", _PROJECT.sub("PROJECT", text))
        for number in self.numbers:
            text = text.replace(number, "NUMBER")
        return text


def _find_numbers(value: Any) -> set[str]:
    """Return the project numbers in a document."""
    if isinstance(value, dict):
        return set().union(*map(_find_numbers, value.values()), *map(_find_numbers, value))
    if isinstance(value, list):
        return set().union(*map(_find_numbers, value))
    if not isinstance(value, str):
        return set()
    return {first or second for first, second in _NUMBER.findall(value)}


def _render_cost(usd: float) -> str:
    return f"{usd:.2f} USD" if usd else "nothing"
