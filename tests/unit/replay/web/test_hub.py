"""Reads are shared by all tabs, and end with the last one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from queue import Queue
from threading import Semaphore
from types import SimpleNamespace
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
    answers: Queue[Exception | str] = Queue()
    hours = iter(range(10, 20))

    def read() -> Iterator[Sections]:
        answer = answers.get(timeout=60)
        if isinstance(answer, Exception):
            raise answer
        yield {"what": answer}

    subject = PageSubject(read, 0.0, "error")
    changes = Hub(lambda _: subject, lambda: NOW.replace(hour=next(hours))).watch("read")
    seen: list[Any] = []
    for answer in (ReplayError("gone"), ReplayError("still gone"), "there", ReplayError("again")):
        answers.put(answer)
        seen.append(wait_for(changes, "error"))
    answers.put("there")
    changes.close()
    assert seen == [
        {"since": "2026-01-01T10:00:00Z", "words": "gone"},
        {"since": "2026-01-01T10:00:00Z", "words": "still gone"},
        None,
        {"since": "2026-01-01T11:00:00Z", "words": "again"},
    ]


def test_a_bug_is_said_on_the_page_and_once_in_the_terminal_and_reading_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    is_fixed, reads = threading.Event(), threading.Semaphore(0)

    def read() -> Iterator[Sections]:
        reads.release()
        yield {"what": 5 if is_fixed.is_set() else 1 // 0}

    changes = make_hub(read=read).watch("read")
    words = "This is a bug of the tool; its terminal shows more."
    assert wait_for(changes, "error")["words"] == words
    for _ in range(3):
        assert reads.acquire(timeout=60)
    is_fixed.set()
    assert wait_for(changes, "error", None) is None
    changes.close()
    said = capsys.readouterr().err
    assert said.count("ZeroDivisionError: integer division or modulo by zero") == 1
    assert "1 // 0" in said


def test_a_slow_source_is_read_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = [100.0]
    monkeypatch.setattr(hub, "time", SimpleNamespace(monotonic=lambda: ticks[-1]))

    def read() -> Iterator[Sections]:
        ticks.append(110.0)
        yield {"what": 1}

    found = make_hub(3, slow=read)
    changes = found.watch("slow")
    wait_for(changes, "error", None)
    changes.close()
    for thread in find_threads("slow"):
        thread.join(60)
    assert found._sources["slow"].next_at == 110 + 40


def test_an_answer_that_is_the_same_is_no_change() -> None:
    reads = Semaphore(0)

    def read() -> Iterator[Sections]:
        reads.release()
        yield {"what": [1]}

    found = make_hub(same=read)
    changes = found.watch("same")
    wait_for(changes, "error", None)
    before = found._version
    for _ in range(3):
        assert reads.acquire(timeout=60)
    changes.close()
    assert found._version == before


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


def test_an_answer_that_somebody_looks_at_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_KEPT", 1)
    first = Counter()
    second = Counter()
    found = make_hub(3600, v0=first, v1=second, v2=Counter(), v3=Counter())
    for name in ("v0", "v1"):
        changes = found.watch(name)
        wait_for(changes, "number")
        changes.close()
        for thread in find_threads(name):
            thread.join(60)
    both, again = found.watch("v0", "v2"), found.watch("v0")
    assert (wait_for(both, "number"), wait_for(again, "number"), first.reads) == (1, 1, 1)
    third, kept = found.watch("v3"), found.watch("v1")
    assert (wait_for(third, "number"), wait_for(kept, "number"), second.reads) == (1, 1, 1)
    for one in (both, again, third, kept):
        one.close()
