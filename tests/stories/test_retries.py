"""Transient errors that last: the group reports them after ten minutes, until they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from local.base.http import Response
from shared.base.names import VM_ID_LABEL
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME, STANDARD
from tests.support.harness import Harness
from tests.support.manifests import manifest

CREATE, GET_MIG = "create_resources", "instanceGroupManagers.get"
FOREVER = 100_000


def retries(harness: Harness) -> list[dict[str, Any]]:
    """``status.retries``."""
    group = harness.group(NAME)
    assert group is not None
    found: list[dict[str, Any]] = group["status"].get("retries", [])
    return found


def status_writes(harness: Harness) -> int:
    return harness.simulation.kube.calls.count(resource="tpunodegroups", subresource="status")


def test_slices_that_exceed_the_rate_quota_together_are_ready_within_six_minutes() -> None:
    """A minute's quota is enough for a quarter of the reads. Nothing slows a subscription down."""
    harness, names = Harness(), [f"slice-{number}" for number in range(20)]
    harness.simulation.gce.faults.set_rate_quota(30)
    harness.run_for(MINUTE / 3)
    for name in names:
        harness.apply(manifest(name, instanceConfig=STANDARD))
    assert harness.run_until(lambda: all(map(harness.is_ready, names)), 6 * MINUTE)
    rejected = sum(record.status == 403 for record in harness.simulation.gce.calls.records)
    outcomes = Counter(answer.outcome for _, answer in harness.answers)
    assert rejected > 100
    assert outcomes["LeftToTheSweep"] > 50
    assert outcomes["TryAgain"] <= 5  # the status could not be written: a conflict
    for name in names:
        harness.delete(name)
    assert harness.run_until(lambda: not any(map(harness.group, names)), 5 * MINUTE)
    assert harness.leftovers() == []


CASES = {
    "the MIG cannot be created": ("instanceGroupManagers.insert", "create_resources", {}),
    "tokens cannot be written": ("instances.setMetadata", "inject_token", {}),
    "VMs cannot be listed": (
        "instances.list",
        "label_node",
        # Of few VMs, each may be read alone.
        {"nodeCount": 16, "topology": "4x4x4"},
    ),
}


@pytest.mark.parametrize("verb, step, spec", CASES.values(), ids=CASES)
def test_a_transient_error_is_reported_after_ten_minutes_and_cleared_when_it_ends(
    verb: str, step: str, spec: dict[str, Any]
) -> None:
    harness = Harness()
    faults = harness.simulation.gce.faults
    faults.fail_next(verb, calls=FOREVER, http=503)
    harness.apply(manifest(**spec))
    harness.run_for(9 * MINUTE)
    assert "has failed since" not in helpers.condition_of(harness)[2]
    harness.run_for(20 * MINUTE)
    message = helpers.condition_of(harness)[2]
    assert f"{step} has failed since 20" in message
    assert "503" in message
    assert "and is retried" in message
    before = status_writes(harness)
    harness.run_for(HOUR)
    intents = 12 if step == "create_resources" else 0
    assert status_writes(harness) - before <= intents + 1, "one an hour: chips that are not usable"
    faults.fail_next(verb, calls=0)
    helpers.until_ready(harness, timeout=2 * HOUR)
    harness.run_for(30 * MINUTE)
    assert retries(harness) == []
    assert helpers.condition_of(harness) == ("True", "Ready", "All nodes are ready")
    helpers.assert_deleted_completely(harness)


def crash() -> Response:
    raise RuntimeError("a bug")


ODD_ANSWERS: dict[str, tuple[Callable[[], Response], str]] = {
    "HTML": (lambda: Response(200, {}, b"<html>"), "unreachable: InvalidJSONError"),
    "null in a list": (
        lambda: Response(200, {}, b'{"error": {"errors": [null]}}'),
        "unparsable: the answer cannot be parsed (ParseError)",
    ),
    "a text as error": (
        lambda: Response(400, {}, b'"error"'),
        "unparsable: the answer cannot be parsed (AttributeError)",
    ),
    "a page as error": (
        lambda: Response(403, {}, b"<html>Sign in</html>"),
        "another server answers in place of the API (403)",
    ),
    "a bug": (crash, "unexpected RuntimeError; the step's log has the traceback"),
}


@pytest.mark.parametrize("case", ODD_ANSWERS.values(), ids=ODD_ANSWERS)
def test_an_answer_that_cannot_be_parsed_and_a_crash_are_reported_until_they_end(
    case: tuple[Callable[[], Response], str],
) -> None:
    answer, text = case
    harness = Harness()
    harness.may_crash = answer is crash
    harness.hooks.instead = lambda _, call: (
        answer() if call.startswith("POST") and call.endswith("/instanceGroupManagers") else None
    )
    harness.apply(manifest())
    harness.run_for(MINUTE)
    assert [entry["step"] for entry in retries(harness)] == [CREATE]
    harness.run_for(25 * MINUTE)
    message = helpers.condition_of(harness)[2]
    assert "create_resources has failed since 20" in message
    assert text in message
    harness.hooks.instead = lambda _step, _call: None
    helpers.until_ready(harness)
    harness.run_for(30 * MINUTE)
    assert retries(harness) == []


def test_a_deletion_without_an_answer_reports_that() -> None:
    harness = helpers.ready()
    faults = harness.simulation.gce.faults
    faults.fail_next("instanceGroupManagers.delete", calls=FOREVER, http=503)
    harness.delete(NAME)
    harness.run_for(30 * MINUTE)
    status, reason, message = helpers.condition_of(harness)
    assert (status, reason) == ("False", "DeletingMIG")
    assert message.startswith(
        "Waiting for ManagedInstanceGroup to be deleted. tear_down has failed since 20"
    )
    faults.fail_next("instanceGroupManagers.delete", calls=0)
    helpers.until_gone(harness)
    assert harness.leftovers() == []


def test_a_ready_slice_stays_ready_while_its_hourly_resync_fails() -> None:
    harness = helpers.ready()
    faults = harness.simulation.gce.faults
    faults.fail_next("instances.list", calls=FOREVER, http=503)
    harness.run_for(2 * HOUR)
    status, reason, message = helpers.condition_of(harness)
    assert (status, reason) == ("True", "Ready")
    assert message.startswith("All nodes are ready. label_node has failed since 20")
    faults.fail_next("instances.list", calls=0)
    harness.run_for(HOUR)
    assert helpers.condition_of(harness) == ("True", "Ready", "All nodes are ready")
    assert retries(harness) == []


def test_nothing_is_written_about_retries_while_there_is_no_error() -> None:
    harness = helpers.ready()
    before = status_writes(harness)
    harness.simulation.gce.faults.fail_next("instances.list", calls=1, http=503)
    harness.run_for(3 * HOUR)
    assert status_writes(harness) - before == 3, "one says that the slice is idle"
    before = status_writes(harness)
    harness.run_for(3 * HOUR)
    assert status_writes(harness) == before


def test_an_error_of_inject_token_is_over_though_a_vm_that_is_gone_never_gets_a_token() -> None:
    harness = Harness()
    harness.apply(manifest())
    helpers.until(harness, lambda: len(helpers.vms(harness)) == 2)
    faults = harness.simulation.gce.faults
    faults.fail_next("instances.list", calls=FOREVER, http=503)
    faults.act_as_user("DELETE", helpers.vms(harness)[0])
    harness.run_for(20 * MINUTE)
    assert "inject_token has failed since 20" in helpers.condition_of(harness)[2]
    faults.fail_next("instances.list", calls=0)
    harness.run_for(HOUR)
    assert retries(harness) == []
    assert "has failed since" not in helpers.condition_of(harness)[2]
    helpers.assert_deleted_completely(harness)


def test_secrets_that_cannot_be_created_are_reported_though_the_metadata_holds_tokens() -> None:
    harness = Harness()
    unavailable = Response.of_json({"kind": "Status", "message": "later"}, 503)
    is_down = True

    def instead(step: str, call: str) -> Response | None:
        is_secret = step == "inject_token" and call.startswith("POST ") and "/secrets" in call
        return unavailable if is_down and is_secret else None

    harness.hooks.instead = instead
    harness.apply(manifest())
    harness.run_for(20 * MINUTE)
    assert "inject_token has failed since 20" in helpers.condition_of(harness)[2]
    assert ": 503 : later" in helpers.condition_of(harness)[2]
    is_down = False
    helpers.until_ready(harness)
    harness.run_for(70 * MINUTE)
    assert retries(harness) == []
    helpers.assert_deleted_completely(harness)


def test_nodes_of_a_ready_slice_that_may_not_be_labelled_are_reported_after_ten_minutes() -> None:
    harness = Harness()
    error = {"reason": "Forbidden", "message": "admission webhook x denied the request"}
    denied = Response.of_json({"kind": "Status", **error}, 403)
    is_denied = True

    def instead(step: str, call: str) -> Response | None:
        is_patch = step == "label_node" and call.startswith("PATCH /api/v1/nodes/")
        return denied if is_denied and is_patch else None

    harness.hooks.instead = instead
    harness.apply(manifest())
    helpers.until_ready(harness)
    harness.run_for(90 * MINUTE)  # the status says that the slice is idle
    status, _, message = helpers.condition_of(harness)
    assert status == "True"
    assert message.startswith("All nodes are ready. label_node has failed since 20")
    assert "admission webhook x denied the request" in message
    before = status_writes(harness)
    harness.run_for(HOUR)
    assert status_writes(harness) == before
    is_denied = False
    harness.run_for(HOUR)
    assert helpers.condition_of(harness) == ("True", "Ready", "All nodes are ready")
    assert retries(harness) == []
    for node in helpers.nodes(harness).values():
        assert VM_ID_LABEL in node["metadata"]["labels"]
    helpers.assert_deleted_completely(harness)


def test_a_refused_call_ends_the_report_of_an_older_transient_error() -> None:
    harness = Harness()
    faults = harness.simulation.gce.faults
    faults.fail_next(GET_MIG, calls=FOREVER, http=503)
    harness.apply(manifest())
    harness.run_for(30 * MINUTE)
    assert "create_resources has failed since" in helpers.condition_of(harness)[2]
    faults.fail_next(GET_MIG, calls=0)
    faults.fail_next(GET_MIG, FOREVER, 403, "forbidden", "may not")
    harness.run_for(HOUR)
    status, reason, message = helpers.condition_of(harness)
    assert (status, reason) == ("False", "PermissionDenied")
    assert "create_resources has failed since" not in message
    assert CREATE not in [one["step"] for one in retries(harness)]


def test_an_insert_that_is_rejected_for_hours_is_retried_at_growing_intervals() -> None:
    harness = Harness()
    rejected = ("instanceGroupManagers.insert", FOREVER, 412, "conditionNotMet", "not now")
    harness.simulation.gce.faults.fail_next(*rejected)
    harness.apply(manifest())
    harness.run_for(2 * HOUR)
    lines = len(harness.log.lines)
    harness.run_for(2 * HOUR)
    causes = [line.get("trigger") for line in harness.log.lines[lines:] if line["step"] == CREATE]
    assert 2 <= causes.count("Resync") <= 6
