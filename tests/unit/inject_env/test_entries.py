"""The entries of a container's env: whose they are, and what becomes of several of one name."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.unit.inject_env.workloads import Answered, Manifest, container, pod, stateful_set

HOSTS = "web-0.nginx,web-1.nginx,web-2.nginx"


def entry(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def with_entries(*entries: Manifest, **more: Any) -> Manifest:
    return stateful_set(container(env=list(entries)), **more)


def note_of(target: Manifest) -> set[str]:
    """The variables that the annotation on the template claims."""
    annotations = target["spec"]["template"]["metadata"]["annotations"]
    return {key.partition("/")[2] for key in json.loads(annotations["tpu-functions.dev/injected"])}


def test_what_the_user_has_set_is_not_claimed_and_outlives_every_change() -> None:
    target = with_entries(entry("A", "b"), entry("TPU_NAME", "mine"), replicas=2)
    once = Answered(target)
    assert note_of(once.target) == {
        "TPU_WORKER_ID",
        "TPU_WORKER_HOSTNAMES",
        "JAX_COORDINATOR_ADDRESS",
        "JAX_PROCESS_COUNT",
        "JAX_PROCESS_ID",
    }
    once.target["spec"]["replicas"] = 3
    again = Answered(once.target, operation="UPDATE")
    assert again.env()["TPU_WORKER_HOSTNAMES"] == HOSTS
    assert again.entries()[:2] == [entry("A", "b"), entry("TPU_NAME", "mine")]


def test_a_value_of_the_user_that_equals_the_injected_one_stays_the_users() -> None:
    once = Answered(with_entries(entry("JAX_PROCESS_COUNT", "2"), replicas=2))
    assert "JAX_PROCESS_COUNT" not in note_of(once.target)
    once.target["spec"]["replicas"] = 3
    again = Answered(once.target, operation="UPDATE")
    assert again.env()["JAX_PROCESS_COUNT"] == "2"


DUPLICATES: list[tuple[str, list[str], list[str]]] = [
    ("two empty ones", ["", ""], [HOSTS]),
    ("an empty one and a default", ["", "localhost"], [HOSTS]),
    ("a default and an empty one", ["localhost", ""], [HOSTS]),
    ("the user's last", ["", "x,y,z"], ["", "x,y,z"]),
    ("the user's twice", ["x,y,z", "x,y,z"], ["x,y,z", "x,y,z"]),
    ("the user's without effect", ["x,y,z", ""], ["x,y,z", HOSTS]),
]


@pytest.mark.parametrize(
    "given, left", [row[1:] for row in DUPLICATES], ids=[row[0] for row in DUPLICATES]
)
def test_of_several_entries_of_a_name_the_last_counts(given: list[str], left: list[str]) -> None:
    name = "TPU_WORKER_HOSTNAMES"
    answered = Answered(with_entries(entry(name, given[0]), entry("A", "b"), entry(name, given[1])))
    entries = answered.entries()
    assert [one["value"] for one in entries if one["name"] == name] == left
    assert entry("A", "b") in entries
    assert Answered(answered.target, operation="UPDATE").patch == []


def test_several_of_ours_become_one_when_they_change() -> None:
    stored = Answered(stateful_set(pod={"nodeSelector": {}})).target
    spec = stored["spec"]["template"]["spec"]
    spec["containers"][0]["env"] *= 2
    stored["spec"]["replicas"] = 2
    answered = Answered(stored, operation="UPDATE")
    hosts = [one for one in answered.entries() if one["name"] == "TPU_WORKER_HOSTNAMES"]
    assert hosts == [entry("TPU_WORKER_HOSTNAMES", "web-0.nginx,web-1.nginx")]


MANY = 60_000


@pytest.mark.parametrize(
    "entries",
    [
        [entry("TPU_WORKER_HOSTNAMES", "")] * MANY,
        [entry("TPU_WORKER_HOSTNAMES", "localhost")] * MANY,
        [entry("TPU_WORKER_HOSTNAMES", "a,b")] * MANY,
        [entry("TPU_NAME", "web")] * MANY,
        [entry("TPU_PROCESS_PORT", "1")] * MANY,
    ],
    ids=["empty", "default", "the user's", "ours", "ports"],
)
def test_entries_of_one_name_take_no_longer_than_others_and_no_patch_of_their_number(
    entries: list[Manifest],
) -> None:
    """The one event loop waits for each review, and the API server for each operation of a patch."""
    note = {"tpu-functions.dev/injected": '{"c/TPU_NAME":"00000000"}'}

    def seconds(entries: list[Manifest]) -> float:
        target = with_entries(*entries, name="w" * 40, replicas=1500)
        target["spec"]["template"]["metadata"]["annotations"] = dict(note)
        began = time.process_time()
        answered = Answered(target)
        elapsed = time.process_time() - began
        assert len(answered.patch) < 30
        return elapsed

    others = seconds([entry(f"A{number}", "") for number in range(MANY)])
    assert seconds(entries) < 4 * others


def test_the_effective_entry_is_what_a_worker_is_read_from() -> None:
    listed = [entry("TPU_WORKER_HOSTNAMES", "localhost"), entry("TPU_WORKER_HOSTNAMES", HOSTS)]
    made = pod(container(env=listed), name="web-2", owner="StatefulSet", subdomain="nginx")
    seen = Answered(made).env()
    assert (seen["TPU_WORKER_ID"], seen["JAX_PROCESS_COUNT"]) == ("2", "3")
