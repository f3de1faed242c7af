"""VMs get their tokens independently: a VM that fails or is not ready yet delays no other VM."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from local import gce
from local.base import turns
from local.base.http import Request, Response
from shared.triggers.message import Cause, Message
from tests.stories import helpers
from tests.stories.helpers import MINUTE, NAME, ONE_HOST, SPOT
from tests.support.harness import Harness
from tests.support.manifests import manifest

FOUR: dict[str, Any] = {"nodeCount": 4, "topology": "2x2x4"}


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
    # Those of VMs that joined together were revoked together with the tokens that the VMs used.
    assert helpers.secrets(harness)
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


def test_a_secret_that_is_created_after_its_vm_has_joined_is_revoked_within_seconds() -> None:
    """Two invocations inject one token: the first has written it into the metadata, and pauses. The
    second reads it there and creates the Secret, the VM joins, and label_node revokes the token. Then
    the first one creates the Secret again. Pub/Sub pushes messages side by side after some answers."""
    quick = helpers.vm_options(**dict.fromkeys(("boot_s", "prepare_s", "join_s"), (1.0, 1.0)))
    harness, created = Harness(quick), list[str]()

    def pause_last(_: str, request: Request, server: Callable[[Request], Response]) -> Response:
        if request.method == "POST" and request.path.endswith("/secrets"):
            created.append(json.loads(request.body)["metadata"]["name"])
            if len(created) == 4:
                vms, at = map(helpers.vm_name, helpers.vms(harness)), harness.clock.now()
                begun = Message("default", NAME, "", Cause.VMS_NEED_TOKENS, at, vms=tuple(vms))
                turns.sleep(harness.clock, 5.0)  # until the metadata is written
                harness.simulation.publish("inject_token", begun.encode(), {})
                turns.sleep(harness.clock, 15.0)
                assert len(helpers.nodes(harness)) == 4
                assert helpers.secrets(harness) == []
        return server(request)

    harness.hooks.around = pause_last
    harness.apply(manifest(**FOUR, instanceConfig=SPOT))
    helpers.until_ready(harness)
    harness.run_for(MINUTE)
    assert created.count(created[3]) == 2
    assert helpers.secrets(harness) == []
