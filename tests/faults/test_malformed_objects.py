"""Mutated TPUNodeGroups in every step, and mutated reviews in the webhook: each is answered."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.faults.test_malformed_messages import JUNK, list_places
from tests.support.builders import raw_group
from tests.unit.functions.test_any_object import FULL, MUTABLE_FIELDS, check
from tests.unit.webhook.test_anything import WORKLOADS
from tests.unit.webhook.workloads import as_review, injecting
from webhook.tpu_env.admission import NoReviewError, review

Document = dict[str, Any]
COUNTS = pytest.mark.parametrize(
    "count, seed",
    [
        pytest.param(1_000, 1, id="daily"),
        pytest.param(20_000, 2, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)


def mutate(random: Random, document: Document) -> None:
    """Replace one to three values at random places."""
    for _ in range(random.randint(1, 3)):
        places = list(list_places(document))
        if places:
            holder, key = random.choice(places)
            holder[key] = copy.deepcopy(random.choice(JUNK))


def draw_groups(count: int, seed: int) -> Iterator[Document]:
    """TPUNodeGroups with the identity of a real one and arbitrary other values."""
    random = Random(seed)
    for number in range(count):
        raw = raw_group(deleting=number % 3 == 0)
        parts = {
            "spec": raw["spec"],
            "status": copy.deepcopy(FULL),
            "metadata": {key: raw["metadata"].get(key, {}) for key in MUTABLE_FIELDS},
        }
        parts = copy.deepcopy(parts)
        mutate(random, parts)
        metadata = parts["metadata"] if isinstance(parts["metadata"], dict) else {}
        yield {**raw, **parts, "metadata": {**raw["metadata"], **metadata}}


@COUNTS
def test_every_step_decides_about_a_mutated_group(count: int, seed: int) -> None:
    for raw in draw_groups(count, seed):
        check(raw)


@COUNTS
def test_every_mutated_review_gets_an_answer(count: int, seed: int) -> None:
    random = Random(seed)
    answers = 0
    for _ in range(count):
        document = as_review(copy.deepcopy(random.choice(WORKLOADS)))
        mutate(random, document)
        try:
            reviewed = review(json.dumps(document).encode(), injecting())
        except NoReviewError:
            continue
        assert reviewed.document["response"]["uid"] == document["request"]["uid"]
        answers += 1
    assert answers > count / 4
