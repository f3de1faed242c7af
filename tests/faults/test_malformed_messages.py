"""Mutated push requests at the entry points of the steps: each is answered, and none is retried forever.

The steps run in a simulation with a Ready slice and a JobSet's node pool, so the objects that a message
names exist if it can still be decoded. For every fourth request, the API servers are too slow for any
call.
"""

from __future__ import annotations

import base64
import copy
import io
import json
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any, NoReturn

import flask
import pytest

import main
from functions import label_node
from shared.base.logs import make_logger
from shared.base.names import JOBSET_KIND, TOKEN_KEY
from shared.node_groups.work import GroupWork
from shared.settings import GKE
from shared.triggers.decode import decode
from shared.triggers.message import POD_KIND, SLICE_KIND, SWEEP_KIND, Cause, Message
from shared.triggers.route import find_steps
from shared.triggers.routes import ROUTES
from tests.faults.malformed import ANSWERS, JUNK, list_places, redelivered, slow
from tests.stories import helpers
from tests.stories.jobsets import (
    NAME,
    RUNS_FOREVER,
    apply,
    apply_options,
    are_running,
    pods,
    until,
)
from tests.stories.node_pool_slices import SETTINGS
from tests.support import jobset_objects as objects
from tests.support.builders import DATA
from tests.support.harness import GKE_CLUSTER, Harness
from tests.support.jobset_objects import NAMESPACE
from tests.support.manifests import manifest
from tests.support.pushes import push

LATER = timedelta(hours=1)
CHARACTERS = ["\ud800", "/", ".", "..", "\n", "\x00", "%", "é", "A", "-", ",", "="]

Document = dict[str, Any]
Genuine = tuple[Document, tuple[str, ...]]
"""A message's data, and the steps that it concerns."""


class Mutator:
    """Mutated push requests from a seed."""

    def __init__(self, genuine: list[Genuine], seed: int, now: str) -> None:
        self._genuine = genuine
        self._random = Random(seed)
        self._now = now

    def generate(self) -> tuple[str, bytes]:
        """A step, and the body of a request whose data, envelope or bytes were changed."""
        document, steps = self._random.choice(self._genuine)
        document = copy.deepcopy(document)
        for _ in range(self._random.choice((0, 1, 1, 1, 2, 3))):
            self._mutate(document)
        return self._random.choice(steps), self._envelope(json.dumps(document).encode())

    def _envelope(self, data: bytes) -> bytes:
        data = self._damage(data)
        message = {
            "data": base64.b64encode(data).decode(),
            "messageId": str(self._random.randrange(10**6)),
            "publishTime": self._now,
        }
        envelope = {"message": message, "subscription": "s", "deliveryAttempt": 1}
        if self._random.random() < 0.3:
            self._mutate(envelope)
        return self._damage(json.dumps(envelope).encode())

    def _damage(self, raw: bytes) -> bytes:
        if self._random.random() > 0.05:
            return raw
        at = self._random.randrange(len(raw))
        ends = (raw[at + 1 :], b"", b"\xff" + raw[at:], b"\xed\xa0\x80" + raw[at:])
        return raw[:at] + self._random.choice(ends)

    def _mutate(self, document: Document) -> None:
        places = list(list_places(document))
        if not places:
            return
        holder, key = self._random.choice(places)
        how = self._random.randrange(4)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder[key], str):
            text, at = holder[key], self._random.randint(0, len(holder[key]))
            holder[key] = text[:at] + self._random.choice(CHARACTERS) + text[at:]
        else:
            holder[key] = copy.deepcopy(self._random.choice(JUNK))


@pytest.fixture(scope="module")
def harness() -> Harness:
    """A simulation with a Ready slice and a JobSet that runs on a node pool."""
    harness = Harness(slices={"slice_provider": GKE, "gke": SETTINGS})
    apply_options(harness)
    harness.jobsets.behaviour = RUNS_FOREVER
    helpers.ready_slice(harness, manifest())
    apply(harness, objects.jobset())
    until(harness, lambda: are_running(harness))
    return harness


def genuine(harness: Harness) -> list[Genuine]:
    """Messages of each kind and entries of the audit log, about objects in the simulation."""
    return [(one, steps) for one in _documents(harness) if (steps := _steps_for(one))]


def _steps_for(document: Document) -> tuple[str, ...]:
    data = base64.b64encode(json.dumps(document).encode()).decode()
    trigger = decode(json.dumps({"message": {"data": data}}).encode(), ROUTES).trigger
    return () if trigger is None else find_steps(trigger, ROUTES)


def _documents(harness: Harness) -> list[Document]:
    group, pod, now = harness.group(helpers.NAME), pods(harness)[0]["metadata"], harness.clock.now()
    assert group is not None
    uid, vm = group["metadata"]["uid"], helpers.vm_name(helpers.vms(harness)[0])
    node = next(iter(helpers.nodes(harness)))
    messages = [
        *(
            Message("default", helpers.NAME, uid, cause, now, (node,), (vm,))
            for cause in (Cause.NODES_CHANGED, Cause.VMS_NEED_TOKENS, Cause.SPEC_CHANGED)
        ),
        Message("default", helpers.NAME, uid, Cause.RESYNC, now),
        Message(NAMESPACE, pod["name"], pod["uid"], Cause.UNSCHEDULABLE, now, kind=POD_KIND),
        Message(NAMESPACE, objects.JOBSET, "", Cause.COMPLETED, now, kind=JOBSET_KIND),
        Message(NAMESPACE, NAME, "", Cause.RESYNC, now, kind=SLICE_KIND),
    ]
    entries = [
        *_entries(
            "audit-log-entries", "tng-default-my-slice-1a2b3c4d", helpers.resource_name(harness)
        ),
        *_entries("node-pool-log-entries", "my-jobset-759730a97e4373f3", NAME),
    ]
    sweep = {"version": 1, "kind": SWEEP_KIND}
    return [*(json.loads(one.encode()) for one in messages), *entries, sweep]


def _entries(file: str, their_name: str, our_name: str) -> list[Document]:
    text = (DATA / f"{file}.jsonl").read_text().replace(their_name, our_name)
    text = text.replace("my-project", "my-gcp-project").replace("my-cluster", GKE_CLUSTER)
    return [json.loads(line)["entry"] for line in text.splitlines()]


class EntryPoints:
    """The functions of `main` as a web server calls them, each with the runtime of its step."""

    def __init__(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        self._harness = harness
        self._patch = monkeypatch
        self._app = flask.Flask("functions")
        self.written = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)

    def post(self, step: str, body: bytes, *, is_slow: bool, later: timedelta) -> tuple[int, str]:
        """The answer's status and text."""
        runtime = self._harness.runtime(step)
        with redirect_stdout(self.written):
            runtime.log = make_logger()
        runtime.now = lambda: self._harness.clock.now() + later
        runtime.monotonic = slow() if is_slow else lambda: 0.0
        self._patch.setattr(main, "get_runtime", lambda: runtime)
        with self._app.test_request_context(method="POST", data=body):
            answer = self._app.make_response(getattr(main, step)(flask.request))
        return answer.status_code, answer.get_data(as_text=True)

    def read_log(self) -> str:
        """Return what was logged since the last call."""
        buffer = self.written.buffer
        assert isinstance(buffer, io.BytesIO)
        text = buffer.getvalue().decode()
        buffer.seek(0)
        buffer.truncate()
        return text


@pytest.mark.parametrize(
    "count, seed",
    [
        pytest.param(1_000, 1, id="daily"),
        pytest.param(20_000, 2, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_every_mutated_request_gets_an_answer_and_is_not_retried_forever(
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    print_figure: Callable[[str], None],
    count: int,
    seed: int,
) -> None:
    entry_points = EntryPoints(harness, monkeypatch)
    tokens = tokens_in(harness)
    assert len(tokens) == 2
    now = harness.clock.now().isoformat()
    mutator = Mutator(genuine(harness), seed, now)
    outcomes: Counter[tuple[int, str]] = Counter()
    for number in range(count):
        (step, body), is_slow = mutator.generate(), number % 4 == 0
        status, text = entry_points.post(step, body, is_slow=is_slow, later=timedelta(0))
        if status == 503:
            last = redelivered(body)
            last_status, _ = entry_points.post(step, last, is_slow=is_slow, later=LATER)
            assert last_status == 204, (step, body)
        log = entry_points.read_log()
        decisions = [check_line(line)["decision"] for line in log.splitlines()]
        assert status in ANSWERS, (step, body, text)
        assert "Crashed" not in decisions, log
        assert not any(token in text + log for token in tokens), (step, body)
        outcomes[status, decisions[0]] += 1
    print_figure(f"{count} mutated requests: {dict(outcomes)}")
    assert {status for status, _ in outcomes} == ANSWERS


def test_an_error_that_utf_8_cannot_encode_is_answered(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: GroupWork) -> NoReturn:
        raise ValueError("invalid: \ud800")

    monkeypatch.setattr(label_node, "STEP", replace(label_node.STEP, observe=fail))
    entry_points, body = EntryPoints(harness, monkeypatch), push(_documents(harness)[0])
    answer = entry_points.post("label_node", body, is_slow=False, later=timedelta(0))
    assert answer == (503, "Crashed: ValueError: invalid: ?\n")
    assert check_line(entry_points.read_log())["note"] == "ValueError: invalid: ?"


def check_line(line: str) -> Document:
    """Parse a line of the log, which must be valid JSON in UTF-8."""
    document: Document = json.loads(line)
    json.dumps(document, ensure_ascii=False).encode()
    return document


def tokens_in(harness: Harness) -> set[str]:
    """The secrets of the tokens in the metadata of the VMs."""
    found = [helpers.metadata_of(helpers.get(harness, path)) for path in helpers.vms(harness)]
    return {metadata[TOKEN_KEY].partition(".")[2] for metadata in found}
