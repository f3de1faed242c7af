"""A process reads one large list at a time, and keeps little of it."""

from __future__ import annotations

import gc
import json
import pickle

import pytest

from local.cloud.simulation import PROJECT
from shared.ports import large_lists
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce import calls
from shared.ports.gce.calls import Gce
from shared.ports.kubernetes.nodes import parse_node
from shared.ports.large_lists import LARGE, LOCK, one_at_a_time
from shared.triggers.message import Cause, Message
from tests.stories import helpers
from tests.support.harness import Harness
from tests.support.manifests import manifest
from tests.unit.functions.label_node.objects import raw_node

STEPS = {"approve_join", "inject_token", "label_node", "tear_down"}


def read(hosts: int) -> str:
    with one_at_a_time(hosts, lambda: 0.01):
        return "read"


def test_a_large_list_waits_for_another_one_and_a_small_one_does_not() -> None:
    with LOCK:
        assert read(LARGE) == "read"
        with pytest.raises(OutOfTimeError, match="another message of this process"):
            read(LARGE + 1)
    assert read(LARGE + 1) == "read"


def test_a_list_that_fails_lets_the_next_one_begin() -> None:
    with pytest.raises(CallError, match="away"), one_at_a_time(LARGE + 1, lambda: 0.01):
        raise CallError("list", 503, "backendError", "away")
    assert read(LARGE + 1) == "read"


def test_each_step_reads_the_lists_of_a_large_slice_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_lists, "LARGE", 1)
    harness, alone = Harness(), set[tuple[str, str, bool]]()

    def note(step: str, call: str) -> None:
        names = step == "approve_join" and call.endswith("/instances")  # at most 20 VMs, by name
        if step in STEPS and call.startswith("GET ") and not names:
            kind = call.rpartition("/")[2]
            if kind in ("nodes", "instances"):
                alone.add((step, kind, LOCK.locked()))

    harness.hooks.before = note
    uid = harness.apply(manifest())["metadata"]["uid"]
    helpers.until(harness, lambda: bool(helpers.vms(harness)))
    for step in ("inject_token", "label_node"):
        resync = Message("default", helpers.NAME, uid, Cause.RESYNC, harness.clock.now())
        harness.runtime("create_resources").publish(step, [resync])
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)
    assert {step for step, *_ in alone} == STEPS
    assert {step for step, kind, _ in alone if kind == "instances"} >= {
        "inject_token",
        "label_node",
    }
    assert all(is_alone for *_, is_alone in alone), alone


def test_little_is_kept_of_a_node() -> None:
    raw = raw_node()
    raw["status"]["images"] = [{"names": [f"registry/image-{n}:v1"] * 2} for n in range(50)]
    raw["metadata"]["managedFields"] = [{"fieldsV1": {f"f:{n}": {} for n in range(200)}}] * 3
    node = parse_node(raw)
    assert len(pickle.dumps(node)) < len(json.dumps(raw)) / 5
    keys = ("name", "uid", "resourceVersion")
    metadata = {key: raw["metadata"][key] for key in keys}
    assert node.reference == {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def test_of_vms_equal_texts_are_kept_once_and_no_page_while_the_next_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "PAGE_SIZE", 1)
    harness, pages = Harness(), list[int]()
    harness.apply(manifest())
    helpers.until_ready(harness)

    def count_pages() -> float:
        pages.append(sum(type(one).__name__ == "InstanceList" for one in gc.get_objects()))
        return 30.0

    gce = Gce(harness.runtime("label_node").clients, count_pages)
    name = helpers.vm_name(helpers.vms(harness)[0]).rpartition("-")[0]
    listed = gce.list_instances(PROJECT, "us-central1-c", name, 2)
    assert len(listed) == 2
    assert len({id(vm.metadata["startup-script"]) for vm in listed}) == 1
    assert gce.calls == 2
    assert set(pages) == {pages[0]}
