"""Reads are shared by all tabs, and end with the last one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from replay.errors import ReplayError
from replay.web import hub
from replay.web.hub import Hub, PageSubject
from replay.web.state import Sections

NOW = datetime(2026, 1, 1, 10, tzinfo=UTC)
Read = Callable[[], Iterator[Sections]]


def make_hub(every_s: float = 0.0, **reads: Read) -> Hub:
    subjects = {name: PageSubject(read, every_s, "error") for name, read in reads.items()}
    return Hub(subjects.get, lambda: NOW)


def wait_for(changes: Generator[Sections], name: str, value: Any = ...) -> Any:
    """The next change of a section, or the one that is this value."""
    for sections in changes:
        if name in sections and value in (..., sections[name]):
            return sections[name]
    raise AssertionError("the changes ended")


def find_threads(name: str) -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == f"read {name}"]


class Counter:
    """Yields a number that grows with each read."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> Iterator[Sections]:
        self.reads += 1
        yield {"number": self.reads}


def test_nothing_is_read_before_somebody_looks_and_after_the_last_one_has_left() -> None:
    read = Counter()
    found = make_hub(counted=read)
    assert read.reads == 0
    one, other = found.watch("counted"), found.watch("counted")
    assert wait_for(one, "number") >= 1
    wait_for(other, "number")
    assert len(find_threads("counted")) == 1
    one.close()
    wait_for(other, "number")
    other.close()
    for thread in find_threads("counted"):
        thread.join(60)
    reads = read.reads
    assert (find_threads("counted"), read.reads) == ([], reads)


def test_who_comes_back_before_the_next_read_gets_the_last_answer() -> None:
    read = Counter()
    found = make_hub(3600, counted=read)
    for _ in range(3):
        changes = found.watch("counted")
        assert wait_for(changes, "number") == 1
        changes.close()
    assert read.reads == 1


def test_an_error_is_published_with_its_first_time_and_cleared_by_the_next_answer() -> None:
    answers: list[Exception | str] = [ReplayError("gone"), ReplayError("still gone"), "there"]

    def read() -> Iterator[Sections]:
        answer = answers.pop(0) if answers else "there"
        if isinstance(answer, Exception):
            raise answer
        yield {"what": answer}

    changes = make_hub(read=read).watch("read")
    seen: list[Any] = []
    for sections in changes:
        seen += [sections["error"]] if "error" in sections else []
        if seen[-1:] == [None]:
            break
    changes.close()
    words = [one["words"] for one in seen[:-1]]
    assert set(words) <= {"gone", "still gone"}
    assert words
    assert {one["since"] for one in seen[:-1]} == {"2026-01-01T10:00:00Z"}


def test_a_bug_is_said_on_the_page_and_in_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", said.append)

    def read() -> Iterator[Sections]:
        yield {"what": 1 // 0}

    changes = make_hub(read=read).watch("read")
    assert (
        wait_for(changes, "error")["words"] == "This is a bug of the tool; its terminal shows more."
    )
    changes.close()
    for thread in find_threads("read"):
        thread.join(60)
    assert [one.exc_type for one in said] == [ZeroDivisionError]


def test_a_name_without_a_topic_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HEARTBEAT_S", 0.01)
    changes = make_hub().watch("nothing")
    assert [next(changes), next(changes)] == [{}, {}]
    changes.close()


def test_answers_of_few_views_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_KEPT", 2)
    reads = [Counter() for _ in range(4)]
    found = make_hub(3600, **{f"v{at}": read for at, read in enumerate(reads)})
    for name in ("v0", "v1", "v2", "v3", "v3", "v0"):
        changes = found.watch(name)
        wait_for(changes, "number")
        changes.close()
        for thread in find_threads(name):
            thread.join(60)
    assert [read.reads for read in reads] == [2, 1, 1, 1]
