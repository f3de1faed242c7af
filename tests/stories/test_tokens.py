"""VMs get their tokens independently: a VM that fails or is not ready yet delays no other VM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from local import gce
from local.base.http import Response
from tests.stories import helpers
from tests.stories.helpers import MINUTE, NAME, ONE_HOST, SPOT
from tests.support.harness import Harness
from tests.support.manifests import manifest

TWO_SINGLE = {**ONE_HOST, "nodeCount": 2}
FOUR: dict[str, Any] = {"nodeCount": 4, "topology": "2x2x4"}
UNREADABLE = {
    "answers 500": (500, "internalError", "Internal error"),
    "answers 403": (403, "forbidden", "Required 'compute.instances.get' permission"),
}


def refused_for(
    vm: str, http: int, reason: str, text: str
) -> Callable[[str, str], Response | None]:
    """Compute Engine always denies inject_token access to one VM."""
    error = {"message": text, "domain": "global", "reason": reason}
    body = {"error": {"code": http, "message": text, "errors": [error]}}

    def answer(step: str, call: str) -> Response | None:
        is_read = step == "inject_token" and call.startswith("GET ") and call.endswith(f"/{vm}")
        is_of_gce = "/compute/v1/" in call
        return Response.of_json(body, http) if is_read and is_of_gce else None

    return answer


@pytest.mark.parametrize("by_resync", [True, False], ids=["tokens by resync", "tokens by events"])
@pytest.mark.parametrize("refusal", UNREADABLE.values(), ids=UNREADABLE)
def test_a_vm_that_cannot_be_read_does_not_keep_others_from_joining(
    refusal: tuple[int, str, str], by_resync: bool
) -> None:
    harness = Harness(replace(helpers.vm_options(), sinks=not by_resync))
    harness.apply(manifest(**FOUR, instanceConfig=SPOT))
    helpers.until(harness, lambda: len(helpers.vms(harness)) == 4)
    denied = sorted(map(helpers.vm_name, helpers.vms(harness)))[0]
    harness.hooks.instead = refused_for(denied, *refusal)
    helpers.until(harness, lambda: len(helpers.nodes(harness)) == 3, timeout=10 * MINUTE)
    harness.run_for(5 * MINUTE)
    assert denied not in helpers.nodes(harness)
    notes = {line.get("note", "") for line in harness.log.lines if line["step"] == "inject_token"}
    assert any(f"instances.get of {denied}" in note for note in notes)
    if refusal[0] == 403:
        status, reason, message = helpers.condition_of(harness, "TokensInjected")
        assert (status, reason) == ("False", "PermissionDenied")
        assert message.startswith(f"{refusal[2]} (instances.get of {denied}). ")
    harness.hooks.instead = lambda _step, _call: None
    helpers.until_ready(harness, timeout=30 * MINUTE)
    helpers.assert_deleted_completely(harness)


def test_vms_that_are_being_recreated_are_awaited_without_a_nack() -> None:
    """A nack would delay all messages of the subscription."""
    harness = Harness(helpers.with_heartbeats())
    many: dict[str, Any] = {**ONE_HOST, "nodeCount": 32}
    helpers.ready_slice(harness, manifest(**many, instanceConfig=SPOT))
    start = len(harness.answers)
    calls = harness.simulation.gce.calls.counts()["instances.setMetadata"]
    for vm in helpers.vms(harness):
        harness.simulation.gce.faults.preempt(vm)
    helpers.until(harness, lambda: not harness.is_ready(NAME), 2 * MINUTE)
    helpers.until_ready(harness, timeout=20 * MINUTE)
    answers = [answer for step, answer in harness.answers[start:] if step == "inject_token"]
    assert [answer.note for answer in answers if answer.http > 299] == []
    assert harness.simulation.gce.calls.counts()["instances.setMetadata"] - calls == 32
    harness.run_for(timedelta(minutes=10))
    assert helpers.secrets(harness) == []
    helpers.assert_deleted_completely(harness)


def test_a_group_deleted_right_after_its_tokens_were_written_leaves_none() -> None:
    """The metadata has no tokens yet, so the token ids are unknown."""
    harness = Harness(
        replace(
            helpers.vm_options(), gce=gce.Timings(operation_s={"instances.setMetadata": (8.0, 8.0)})
        )
    )
    harness.apply(manifest(**FOUR, instanceConfig=SPOT))
    helpers.until(harness, lambda: len(helpers.secrets(harness)) == 4)
    helpers.assert_deleted_completely(harness)


def test_tokens_whose_metadata_could_not_be_written_are_deleted_with_the_group() -> None:
    harness = Harness()
    harness.simulation.gce.faults.fail_operations("instances.setMetadata", operations=4)
    helpers.ready_slice(harness, manifest(**FOUR, instanceConfig=SPOT))
    lost = helpers.secrets(harness)
    assert len(lost) == 4
    helpers.assert_deleted_completely(harness)


def test_secrets_of_others_survive_a_group() -> None:
    harness = helpers.ready(manifest(**ONE_HOST))
    foreign = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "keys",
            "labels": {"tpu-functions.dev/resource-name": helpers.resource_name(harness)},
        },
    }
    harness.simulation.admin("POST", "/api/v1/namespaces/kube-system/secrets", foreign)
    harness.delete(NAME)
    helpers.until_gone(harness)
    assert harness.leftovers() == ["Secret keys"]
    assert not any("left_undone" in line for line in harness.log.lines)


def test_the_error_of_one_vm_is_not_cleared_when_another_vm_gets_its_token() -> None:
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest(**TWO_SINGLE))
    helpers.until(harness, lambda: len(helpers.vms(harness)) == 2)
    denied, other = helpers.vms(harness)
    rejected = Response.of_json({"error": {"code": 403, "message": "may not"}}, 403)
    call = f"/{helpers.vm_name(denied)}/setMetadata"
    harness.hooks.instead = lambda _step, request: rejected if request.endswith(call) else None
    helpers.until(
        harness, lambda: helpers.condition_of(harness, "TokensInjected")[1] == "PermissionDenied"
    )
    condition = helpers.condition_of(harness, "TokensInjected")
    assert f"may not (instances.set_metadata of {helpers.vm_name(denied)}). " in condition[2]
    for _ in range(20):
        harness.simulation.gce.faults.act_as_user("POST", f"{other}/reset")
        harness.run_for(timedelta(seconds=20))
        assert helpers.condition_of(harness, "TokensInjected") == condition
    harness.hooks.instead = lambda _step, _call: None
    harness.run_for(10 * MINUTE)
    assert helpers.condition_of(harness, "TokensInjected")[:2] == ("True", "Injected")
