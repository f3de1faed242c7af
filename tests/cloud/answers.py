"""The answers: compared with what is assumed, as a table, and as a file that a person can send in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from replay import VERSION
from replay.output import print_paragraph, print_table
from tests.cloud.project import Document
from tests.cloud.questions import Facts, Question

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
_OF_CALLERS = frozenset({"callerIp", "principalSubject"})


@dataclass(frozen=True)
class Answer:
    """What came of a question: ``facts``, or an ``error`` that left it unanswered."""

    question: Question
    facts: Facts = field(default_factory=dict)
    error: str = ""
    evidence: Sequence[Document] = ()

    @property
    def verdict(self) -> str:
        """Whether it is as assumed, in a word or two."""
        if self.error:
            return "no answer"
        return "differs" if list(self.differences()) else "as assumed"

    def differences(self) -> Iterator[str]:
        """What differs, with what is assumed and where."""
        for what, assumed in self.question.assumed.items():
            found = self.facts.get(what, "nothing") if not self.error else assumed
            if found != assumed:
                yield f"{what}: {found}; assumed is: {assumed}"

    def document(self) -> Document:
        """The answer in JSON form."""
        question = self.question
        return {
            "id": question.id,
            "asks": question.asks,
            "verdict": self.verdict,
            "answer": dict(self.facts),
            "assumed": dict(question.assumed),
            "assumedIn": question.place,
            "notKnownIn": question.cites,
            **({"error": self.error} if self.error else {}),
            "evidence": list(self.evidence),
        }


@dataclass(frozen=True)
class Report:
    """The answers of one run, and the file that keeps them."""

    path: Path
    project: str
    zone: str
    run: str
    began: datetime
    keep_names: bool

    def write(self, answers: Sequence[Answer], left: Sequence[str]) -> None:
        """Replace the file as a whole: it is written after each answer."""
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
    """What would be made, and about what it costs."""
    rows = [(one.id, _render_cost(one.costs_usd), one.makes) for one in questions]
    print_table(("QUESTION", "COSTS AT MOST", "MAKES"), rows)
    total = sum(one.costs_usd for one in questions)
    print_paragraph(
        f"{len(questions)} questions, at most about {total:.2f} USD together at list prices in the US."
        f" Everything is deleted again."
    )


def print_answers(answers: Sequence[Answer]) -> None:
    """A table, and below it what differs and what could not be answered."""
    rows = [
        (
            answer.question.id,
            answer.verdict,
            "; ".join(f"{what}: {found}" for what, found in answer.facts.items()),
        )
        for answer in answers
    ]
    print_table(("QUESTION", "VERDICT", "ANSWER"), rows)
    for answer in answers:
        for difference in answer.differences():
            place = answer.question.place
            print_paragraph(f"- {answer.question.id}: {difference} ({place}).", "  ", "")
        if answer.error:
            print_paragraph(f"- {answer.question.id} has no answer: {answer.error}", "  ", "")


def redact(document: Any, project: str, *, keep_names: bool = False) -> Any:
    """The document without people's addresses, and without names of the project unless they are kept."""
    numbers = set() if keep_names else _find_numbers(document)
    return _Redaction(project, frozenset(numbers), keep_names).apply(document)


@dataclass(frozen=True)
class _Redaction:
    project: str
    numbers: frozenset[str]
    keep_names: bool

    def apply(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                self._text(key): self.apply(one)
                for key, one in value.items()
                if key not in _OF_CALLERS
            }
        if isinstance(value, list):
            return [self.apply(one) for one in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
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
    """The numbers of projects that a document shows."""
    if isinstance(value, dict):
        return set().union(*map(_find_numbers, value.values()), *map(_find_numbers, value))
    if isinstance(value, list):
        return set().union(*map(_find_numbers, value))
    if not isinstance(value, str):
        return set()
    return {first or second for first, second in _NUMBER.findall(value)}


def _render_cost(usd: float) -> str:
    return f"{usd:.2f} USD" if usd else "nothing"
