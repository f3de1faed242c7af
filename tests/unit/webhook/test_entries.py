"""The entries of a container's env: their owner, and duplicates of a name."""

from __future__ import annotations

import json
import time
from copy import deepcopy
from typing import Any

import pytest

from tests.unit.webhook.workloads import (
    Answered,
    Manifest,
    container,
    deployment,
    pod,
    selector,
    stateful_set,
)

HOSTS = "web-0.nginx,web-1.nginx,web-2.nginx"


def entry(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def with_entries(*entries: Manifest, **more: Any) -> Manifest:
    return stateful_set(container(env=list(entries)), **more)


def note_of(target: Manifest) -> set[str]:
    """Return the variables that the annotation of the template lists as injected."""
    annotations = target["spec"]["template"]["metadata"]["annotations"]
    return {key.partition("/")[2] for key in json.loads(annotations["tpu-functions.dev/injected"])}


def test_a_variable_of_the_user_is_not_listed_as_injected_and_is_never_changed() -> None:
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


def test_a_value_of_the_user_that_equals_the_injected_one_is_never_changed() -> None:
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
def test_the_last_of_several_entries_of_a_name_is_effective(
    given: list[str], left: list[str]
) -> None:
    name = "TPU_WORKER_HOSTNAMES"
    answered = Answered(with_entries(entry(name, given[0]), entry("A", "b"), entry(name, given[1])))
    entries = answered.entries()
    assert [one["value"] for one in entries if one["name"] == name] == left
    assert entry("A", "b") in entries
    assert Answered(answered.target, operation="UPDATE").patch == []


def test_injected_duplicates_are_replaced_by_one_entry_on_a_change() -> None:
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
    ids=["empty", "default", "the user's", "injected", "ports"],
)
def test_many_entries_of_one_name_need_little_time_and_a_small_patch(
    entries: list[Manifest],
) -> None:
    """A review blocks the event loop, and the API server applies each operation of a patch."""
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


def test_the_worker_id_is_read_from_the_effective_entry() -> None:
    listed = [entry("TPU_WORKER_HOSTNAMES", "localhost"), entry("TPU_WORKER_HOSTNAMES", HOSTS)]
    made = pod(container(env=listed), name="web-2", owner="StatefulSet", subdomain="nginx")
    variables = Answered(made).env()
    assert (variables["TPU_WORKER_ID"], variables["JAX_PROCESS_COUNT"]) == ("2", "3")


def test_injected_variables_are_removed_when_the_hosts_are_no_longer_known() -> None:
    one_host = {"nodeSelector": selector("tpu7x", "2x2x1")}
    once = Answered(deployment(container(env=[entry("A", "b")]), pod=one_host))
    assert once.env()["TPU_WORKER_HOSTNAMES"] == "localhost"
    once.target["spec"]["template"]["spec"]["nodeSelector"] = selector("tpu7x", "2x2x2")
    again = Answered(once.target, operation="UPDATE")
    assert again.env() == {"A": "b"}
    annotations = again.target["spec"]["template"]["metadata"]["annotations"]
    assert set(annotations) == {"tpu-functions.dev/not-injected"}
    assert Answered(again.target, operation="UPDATE").patch == []


def test_injected_variables_are_removed_from_a_container_that_no_longer_requests_chips() -> None:
    once = Answered(stateful_set(container(), replicas=2, pod={"initContainers": [container("d")]}))
    assert once.env("d")["TPU_WORKER_HOSTNAMES"] == once.env()["TPU_WORKER_HOSTNAMES"]
    [first], [second] = once.pod()["containers"], once.pod()["initContainers"]
    del second["resources"]
    next(one for one in second["env"] if one["name"] == "TPU_NAME")["value"] = "mine"
    again = Answered(once.target, operation="UPDATE")
    assert (again.env("d"), again.env()) == ({"TPU_NAME": "mine"}, once.env())
    annotations = again.target["spec"]["template"]["metadata"]["annotations"]
    listed = json.loads(annotations["tpu-functions.dev/injected"])
    assert {key.partition("/")[0] for key in listed} == {"c"}
    assert first["name"] == "c"


@pytest.mark.parametrize("replicas", [2, 0])
def test_a_workload_marked_disabled_loses_what_was_injected(replicas: int) -> None:
    own = [entry("A", "b"), entry("JAX_PROCESS_COUNT", "7")]
    once = Answered(stateful_set(container(env=own), replicas=2)).target
    once["spec"]["replicas"] = replicas
    once["metadata"]["labels"] = {"tpu-functions.dev/inject": "disabled"}
    again = Answered(once, operation="UPDATE")
    assert again.entries() == own
    metadata = again.target["spec"]["template"]["metadata"]
    assert metadata["annotations"] == {}
    assert metadata["labels"]["tpu-functions.dev/inject"] == "disabled"
    assert Answered(again.target, operation="UPDATE").patch == []


@pytest.mark.parametrize("left", ["annotations", ""])
def test_a_workload_without_any_mark_loses_what_was_injected_except_in_a_marked_namespace(
    left: str,
) -> None:
    """kubectl apply removes a map such as the annotations with the last key that the user had there."""
    own = [entry("A", "b")]
    stored = Answered(with_entries(*own, replicas=2)).target
    new = deepcopy(stored)
    metadata = new["spec"]["template"]["metadata"]
    new["spec"]["template"]["metadata"] = {left: metadata[left]} if left else {}
    again = Answered(new, operation="UPDATE", oldObject=stored)
    assert (again.entries(), again.warnings) == (own, [])
    assert not again.target["spec"]["template"]["metadata"].get("annotations")
    kept = Answered(new, operation="UPDATE", oldObject=stored, is_namespace_marked=True)
    assert kept.entries() == Answered(stored).entries() != own
    assert note_of(kept.target) == note_of(stored)


def test_a_mark_that_was_removed_is_a_warning_while_the_template_has_its_copy() -> None:
    old = stateful_set(replicas=2, labels={"tpu-functions.dev/inject": "enabled"})
    stored = Answered(old).target
    new = {**stored, "metadata": {**stored["metadata"], "labels": {}}}
    assert Answered(new, operation="UPDATE", oldObject=stored).warnings == [
        "the workload is not marked any more, but its Pod template or namespace is, and injection "
        "continues; to end it and remove the variables, mark the workload "
        "tpu-functions.dev/inject: disabled"
    ]


def test_injected_variables_are_kept_without_replicas_because_scaling_calls_no_webhook() -> None:
    once = Answered(with_entries(replicas=2))
    once.target["spec"]["replicas"] = 0
    assert Answered(once.target, operation="UPDATE").patch == []


@pytest.mark.parametrize(
    "now",
    [selector("tpu7x", "2x2x4"), selector("tpu7x", "2x2x2"), {}],
    ids=["other", "same", "none"],
)
def test_variables_that_depend_on_a_topology_are_removed_without_replicas_and_set_in_the_pods(
    now: dict[str, str],
) -> None:
    """``kubectl scale`` calls no webhook, and the topology may have changed before the scaling."""
    once = Answered(with_entries(replicas=2, pod={"nodeSelector": selector("tpu7x", "2x2x2")}))
    assert once.env()["TPU_TOPOLOGY"] == "2x2x2"
    once.target["spec"]["replicas"] = 0
    once.target["spec"]["template"]["spec"]["nodeSelector"] = now
    assert Answered(once.target, operation="UPDATE").env() == {}


def test_an_injected_list_in_a_copied_template_does_not_count_as_the_users() -> None:
    two_hosts = {"nodeSelector": selector("tpu7x", "2x2x2")}
    once = Answered(with_entries(replicas=2, pod=two_hosts))
    copy = deployment(pod=two_hosts)
    copy["spec"]["template"] = once.target["spec"]["template"]
    again = Answered(copy)
    assert again.env() == {}
    assert again.warnings == Answered(deployment(pod=two_hosts)).warnings != []


@pytest.mark.parametrize("name, is_followed", [("main", True), ("side", False)])
def test_a_container_that_is_renamed_keeps_its_injected_variables_as_such(
    name: str, is_followed: bool
) -> None:
    """Only a new container is a renamed one."""
    side = container("side", None, env=[entry("JAX_PROCESS_COUNT", "2")])
    own = container(env=[entry("TPU_NAME", "mine")])
    stored = Answered(stateful_set(own, side, replicas=2)).target
    spec = stored["spec"]["template"]["spec"]
    if name == "main":
        spec["containers"][0]["name"] = "main"
    else:
        del spec["containers"][0]
        spec["containers"][0] |= {"resources": container()["resources"]}
    renamed = Answered(stored, operation="UPDATE").target
    renamed["spec"]["replicas"] = 3
    again = Answered(renamed, operation="UPDATE")
    assert (again.env(name)["JAX_PROCESS_COUNT"] == "3") is is_followed
    assert again.env(name)["TPU_NAME"] == ("mine" if name == "main" else "web")
    assert again.env(name)["TPU_WORKER_HOSTNAMES"] == HOSTS
