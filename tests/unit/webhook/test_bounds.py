"""What a review may cost, whoever sends it: the webhook's port is open to every Pod of the cluster."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.webhook.workloads import (
    as_review,
    container,
    injecting,
    job,
    pod,
    selector,
    stateful_set,
)
from webhook.server import MAX_LARGE_BYTES
from webhook.tpu_env import admission
from webhook.tpu_env.admission import MAX_BYTES, MAX_VALUES, NoReviewError, review

MIB = 1024 * 1024
DEPLOYMENT = Path(__file__).parents[3] / "infra/chart/manifests/inject-env/deployment.yaml"
PROCESS = 50 * MIB
"""The process itself, after hundreds of reviews."""
PARSED = 14
"""Bytes of memory that a byte of the largest body may take."""
SCALE = 8
"""The bodies are smaller than the largest ones by this factor, and so is the number of values."""
EMOJI = "\N{GRINNING FACE}"
"""One of these in a body makes Python store four bytes for each of its characters."""


def fill(
    unit: Callable[[int], str], *, ends: str = "[]", limit: int = MAX_VALUES // SCALE
) -> bytes:
    """As many units as may be, each with another number; a long text makes the body the largest."""
    values = sum(unit(0).count(mark) for mark in "{[,")
    size = len(unit(0xFFFFF).encode())
    count = min((limit - 3) // values, (MAX_BYTES // SCALE - 100) // size)
    units = "".join(unit(number) for number in range(0x10000, 0x10000 + count))
    rest = MAX_BYTES // SCALE - len(units.encode()) - 30
    text = f'"{EMOJI}{"x" * max(0, rest)}"'
    return f"{ends[0]}{units}{text}{':0' if ends == '{}' else ''}{ends[1]}".encode()


def in_review(field: str) -> bytes:
    """A review of which one field is as long as a body may be."""
    document = as_review({"kind": "Pod"})
    text = EMOJI * ((MAX_BYTES // SCALE - 400) // len(EMOJI.encode()))
    for holder in (document, document["request"]):
        if field in holder:
            holder[field] = text
    return json.dumps(document, ensure_ascii=False).encode()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "objects with a list": lambda: fill(lambda _: '{"":[]},'),
    "empty lists": lambda: fill(lambda _: "[],"),
    "empty objects": lambda: fill(lambda _: "{},"),
    "lists of lists": lambda: fill(lambda _: "[[]],"),
    "numbers": lambda: fill(lambda _: "-6,"),
    "floats": lambda: fill(lambda _: "1e9,"),
    "texts": lambda: fill(lambda number: f'"{number:x}",'),
    "texts beyond Latin-1": lambda: fill(lambda number: f'"Ā{number:x}",'),
    "objects with other keys": lambda: fill(lambda number: f'{{"{number:x}":"{number:x}"}},'),
    "one object with many keys": lambda: fill(lambda n: f'"{n:x}":"{n:x}",', ends="{}"),
    "many keys with objects": lambda: fill(lambda n: f'"{n:x}":{{"":[]}},', ends="{}"),
    "deeper than Python can parse": lambda: b"[" * (MAX_VALUES // SCALE),
    "a long version": lambda: in_review("apiVersion"),
    "a long uid": lambda: in_review("uid"),
    "a long operation": lambda: in_review("operation"),
    "32 containers with the longest lists": lambda: json.dumps(
        as_review(
            job(
                *(container(f"c{number}", 1) for number in range(32)),
                name="n" * 20,
                count=32,
                pod={"nodeSelector": selector("tpu7x")},
            )
        )
    ).encode(),
}


def measure(body: bytes) -> int:
    """The peak of the memory that a review takes beside its body, in bytes."""
    tracemalloc.start()
    try:
        answered = review(body, injecting())
        json.dumps(answered.document)
    except NoReviewError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("case", HOSTILE)
def test_the_memory_of_a_review_is_bounded_by_what_is_parsed(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_VALUES", MAX_VALUES // SCALE)
    body = HOSTILE[case]()
    assert len(body) <= MAX_BYTES // SCALE
    assert measure(body) <= PARSED * MAX_BYTES / SCALE


def test_the_webhook_can_parse_the_largest_review_within_its_memory_limit() -> None:
    documents = yaml.safe_load_all(DEPLOYMENT.read_text())
    [deployment] = [one for one in documents if one["kind"] == "Deployment"]
    [webhook] = deployment["spec"]["template"]["spec"]["containers"]
    limit = int(webhook["resources"]["limits"]["memory"].removesuffix("Mi")) * MIB
    # A body is copied once when its last part has been read.
    assert limit > PROCESS + PARSED * MAX_BYTES + MAX_LARGE_BYTES + MAX_BYTES


@pytest.mark.parametrize("unit", ['{"":[]},', "[],", '"{[,",'])
def test_a_body_with_too_many_values_is_not_parsed(unit: str) -> None:
    body = f'{{"a":[{unit * (MAX_VALUES // 2)}0]}}'.encode()
    with pytest.raises(NoReviewError, match="the body has more than 320000 values"):
        review(body, injecting())
    assert measure(body) < 10_000


def test_an_answer_is_not_much_longer_than_an_object_can_be() -> None:
    hosts = selector("tpu7x")
    many = (container(f"c{number}", 1) for number in range(32))
    body = json.dumps(as_review(job(*many, name="n" * 40, count=50, pod={"nodeSelector": hosts})))
    with pytest.raises(NoReviewError, match=r"the patch has \d+ bytes, more than 1572864"):
        review(body.encode(), injecting())
    long = as_review({"kind": "Pod"})
    long["request"]["uid"] = "u" * 254
    with pytest.raises(NoReviewError, match="the AdmissionReview has no request with a uid"):
        review(json.dumps(long).encode(), injecting())


def applied(manifest: dict[str, Any], part: tuple[str, ...]) -> dict[str, Any]:
    """A manifest with 1.5 MB of variables, as kubectl apply --server-side stores it."""
    found = manifest
    for name in part:
        found = found[name]
    [one] = found["containers"]
    one["env"] = []
    fields: dict[str, Any] = {}
    while len(fields) < 13_500:
        name = f"SETTING_{len(fields):05}"
        one["env"].append({"name": name, "value": f"value-{len(fields)}"})
        fields[f'k:{{"name":"{name}"}}'] = {".": {}, "f:name": {}, "f:value": {}}
    key = f'k:{{"name":"{one["name"]}"}}'
    spec: dict[str, Any] = {"f:containers": {key: {"f:env": {".": {}, **fields}}}}
    for name in reversed(part):
        spec = {f"f:{name}": spec}
    entry = {"manager": "kubectl", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": spec}
    manifest["metadata"]["managedFields"] = [entry]
    return manifest


LARGE: dict[str, Callable[[], dict[str, Any]]] = {
    "a Pod": lambda: applied(pod(container()), ("spec",)),
    "a Job": lambda: applied(job(container()), ("spec", "template", "spec")),
    "a StatefulSet": lambda: applied(stateful_set(), ("spec", "template", "spec")),
}


@pytest.mark.parametrize("case", LARGE)
def test_a_real_review_of_a_large_object_and_its_old_one_is_answered(case: str) -> None:
    document = as_review(LARGE[case]())
    document["request"] |= {"operation": "UPDATE", "oldObject": document["request"]["object"]}
    body = json.dumps(document, separators=(",", ":")).encode()
    assert len(body) > 3_000_000
    assert review(body, injecting()).document["response"]["allowed"]
