# ruff: noqa: E501  (a table reads best with a row on a line)
"""Recorded messages: the topic of a line, and the errors of invalid lines."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replay.publications import Publication
from replay.recording import ReplayRules, read_line, read_recording
from shared.triggers.message import PoisonError
from tests.unit.replay.entries import ENTRIES, entry, message

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
RULES = ReplayRules(None, "tpu-functions-", NOW)
SOURCE = "CloudPubSubDeadLetterSourceSubscription"
STEPS = "create_resources, inject_token, label_node, tear_down"
# Only an observation of the step shows that these entries concern no group.
EXCESS = {
    "other-project-mig": "create_resources",
    "other-zone-same-name": "inject_token",
    "same-prefix-hand-made-vm": "inject_token",
}
NODE_POOLS = Path(__file__).parents[2] / "data" / "node-pool-log-entries.jsonl"


def pubsub(data: Any, **attributes: str) -> dict[str, Any]:
    """A Pub/Sub message as REST and gcloud write it."""
    raw = base64.b64encode(json.dumps(data).encode()).decode()
    return {
        "data": raw,
        "attributes": attributes,
        "messageId": "123",
        "publishTime": "2026-11-20T10:00:01Z",
    }


def read(document: Any, rules: ReplayRules = RULES) -> Publication:
    found = read_line(1, json.dumps(document).encode(), rules)
    assert not isinstance(found, str)
    (publication,) = found
    return publication


def sent(publication: Publication) -> Any:
    return json.loads(publication.data)


DEAD = {
    SOURCE: "tpu-functions-label-node",
    "CloudPubSubDeadLetterSourceDeliveryCount": "10",
    "CloudPubSubDeadLetterSourceSubscriptionProject": "p",
    "CloudPubSubDeadLetterSourceTopicPublishTime": "2026-11-20T10:00:00Z",
}
OWN = {"cluster": "c-1", "cause": "NodesChanged"}

FORMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "a message with a field step": (message(step="label_node"), {"cause": "NodesChanged"}),
    "a Pub/Sub message with an attribute": (pubsub(message(), step="label_node", **OWN), {"step": "label_node", **OWN}),
    "data as an object": ({"data": message(), "attributes": {**DEAD, **OWN}}, OWN),
    "a push request": ({"message": pubsub(message(), **OWN), "subscription": "projects/p/subscriptions/tpu-functions-label-node", "deliveryAttempt": 3}, OWN),
    "a pulled dead letter": ({"ackId": "a", "message": pubsub(message(), **DEAD, **OWN)}, OWN),
    "a pushed dead letter": ({"message": pubsub(message(), **DEAD, **OWN), "subscription": "projects/p/subscriptions/tpu-functions-dead-letters"}, OWN),
    "a message with attributes of a client library": (pubsub(message(), googclient_deliveryattempt="5", **DEAD), {}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_message_is_published_to_the_topic_that_its_envelope_names(form: str) -> None:
    document, attributes = FORMS[form]
    publication = read(document)
    assert (publication.step, publication.about) == ("label_node", "default/my-slice")
    assert sent(publication) | {"step": None} == message(step=None)
    assert publication.attributes == attributes


@pytest.mark.parametrize("form", FORMS)
def test_a_step_on_the_command_line_takes_precedence(form: str) -> None:
    document, _ = FORMS[form]
    assert read(document, ReplayRules("tear_down", "tpu-functions-", NOW)).step == "tear_down"


def test_both_alphabets_of_base64_are_read() -> None:
    raw = json.dumps(message(step="label_node", name="a", note="~?>~?>")).encode()
    codes = [base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()]
    assert codes[0] != codes[1]
    read_ones = [read({"data": code, "attributes": {"step": "label_node"}}) for code in codes]
    assert [publication.data for publication in read_ones] == [raw, raw]


def test_a_subscription_is_recognized_by_the_prefix_of_the_installation() -> None:
    dead = pubsub(message(), **{SOURCE: "team-x-tear-down"})
    assert read(dead, ReplayRules(None, "team-x-", NOW)).step == "tear_down"


@pytest.mark.parametrize("row", ENTRIES, ids=lambda row: row["name"])
def test_an_audit_log_entry_is_published_to_the_step_that_it_triggers(
    row: Mapping[str, Any],
) -> None:
    found = read_line(1, json.dumps(row["entry"]).encode(), RULES)
    expected = EXCESS.get(row["name"], row["wakes"])
    steps = ["none"] if isinstance(found, str) else [publication.step for publication in found]
    assert steps == [expected]


def test_an_audit_log_entry_is_published_to_every_step_that_it_triggers() -> None:
    for row in map(json.loads, NODE_POOLS.read_text().splitlines()):
        found = read_line(1, json.dumps(row["entry"]).encode(), RULES)
        steps = [] if isinstance(found, str) else [publication.step for publication in found]
        assert steps == row["wakes"]


def test_an_audit_log_entry_is_published_unchanged() -> None:
    original = entry("policy-insert-last")
    assert sent(read(original)) == original


OF_JOBSETS = {"Pod": "provision_slice", "JobSet": "release_slice", "Slice": "release_slice"}


@pytest.mark.parametrize("kind", OF_JOBSETS)
def test_a_dead_letter_about_a_jobset_is_published_to_the_only_step_that_accepts_it(
    kind: str,
) -> None:
    about = message(kind=kind, cause="Resync", nodes=[])
    source = f"tpu-functions-{OF_JOBSETS[kind].replace('_', '-')}"
    dead = pubsub(about, **{SOURCE: source})
    assert read(dead).step == read(about).step == OF_JOBSETS[kind]


def test_a_step_on_the_command_line_does_not_change_the_topic_of_an_audit_log_entry() -> None:
    rules = ReplayRules("tear_down", "tpu-functions-", NOW)
    assert read(entry("policy-insert-last"), rules).step == "create_resources"


def test_an_entry_that_triggers_no_step_is_skipped_with_the_reason() -> None:
    found = read_line(7, json.dumps(entry("policy-delete-first")).encode(), RULES)
    assert found == (
        "the message of line 7 triggers no step: compute.resourcePolicies.delete: not the end of an "
        "operation"
    )


def test_a_resync_is_published_with_the_current_time() -> None:
    old = message(cause="Resync", step="label_node", nodes=[])
    assert sent(read(old))["at"] == "2026-11-20T12:00:00Z"


def test_any_other_message_keeps_its_time() -> None:
    assert sent(read(message(step="label_node")))["at"] == "2026-11-20T10:00:00Z"


def test_a_message_of_the_scheduler_is_published_to_the_sweep() -> None:
    assert read({"version": 1, "kind": "Sweep"}).step == "sweep"


def test_a_message_to_report_leaks_is_published_to_it_again() -> None:
    assert read({"version": 1, "kind": "Sweep", "step": "report_leaks"}).step == "report_leaks"
    assert read({"version": 1, "kind": "Sweep", "step": "label_node"}).step == "sweep"
    assert read({"version": 1, "kind": "Sweep", "step": "release_slice"}).step == "release_slice"


NO_TOPIC = (
    "message of line 1: its step is unknown; name it with --step or with a field 'step', or "
    f"keep the attribute {SOURCE}. The step must be one of {STEPS}"
)
INVALID: dict[str, tuple[bytes, str]] = {
    "no JSON": (
        b"{oops",
        "message of line 1 is not JSON: Expecting property name enclosed in double quotes: line 1 "
        "column 2 (char 1); it must be a JSON object",
    ),
    "nested too deeply": (
        b'{"data":' * 50_000,
        "message of line 1 is not JSON: maximum recursion depth exceeded while decoding a JSON object "
        "from a unicode string; it must be a JSON object",
    ),
    "a list": (b"[1]", "message of line 1 is list; it must be a JSON object"),
    "another version": (
        b'{"version": 2, "kind": "TPUNodeGroup"}',
        "message of line 1: version 2 is not known; it must be 1",
    ),
    "another kind": (
        b'{"version": 1, "kind": "Deployment", "at": "2026-11-20T10:00:00Z"}',
        "message of line 1: kind 'Deployment' is not known; it must be TPUNodeGroup, "
        "CertificateSigningRequest, Sweep, Pod, ProvisioningRequest, JobSet or Slice",
    ),
    "no name": (
        json.dumps(message(name="", step="label_node")).encode(),
        "message of line 1: 'name' must be a DNS subdomain, not ''",
    ),
    "data that is no base64": (
        b'{"data": "%%%"}',
        "message of line 1: 'data' is not base64: Only base64 data is allowed",
    ),
    "attributes that are no text": (
        json.dumps({**pubsub(message()), "attributes": {"step": 1}}).encode(),
        "message of line 1: 'attributes' must be a map from text to text",
    ),
    "no step": (json.dumps(message()).encode(), NO_TOPIC),
    "a subscription that is no step's": (
        json.dumps(pubsub(message(), **{SOURCE: "something-else"})).encode(),
        NO_TOPIC,
    ),
    "an unknown step": (
        json.dumps(message(step="mow_lawn")).encode(),
        f"message of line 1: step 'mow_lawn' does not accept messages about a TPUNodeGroup; it must be "
        f"one of {STEPS}",
    ),
    "the sweep, which accepts no groups": (
        json.dumps(message(step="sweep")).encode(),
        f"message of line 1: step 'sweep' does not accept messages about a TPUNodeGroup; it must be "
        f"one of {STEPS}",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_line_is_reported_with_the_valid_values(case: str) -> None:
    line, message_text = INVALID[case]
    with pytest.raises(PoisonError) as caught:
        read_line(1, line, RULES)
    assert str(caught.value) == message_text


def test_empty_lines_count_in_line_numbers() -> None:
    lines = [b"", json.dumps(message(step="label_node")).encode(), b"  ", b"[]"]
    recording = read_recording(lines, RULES)
    assert [publication.line for publication in recording.publications] == [2]
    assert recording.wrong == ("message of line 4 is list; it must be a JSON object",)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
_FIELDS = st.sampled_from(
    ["message", "data", "attributes", "subscription", "step", "publishTime", "version", "kind"]
)

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@patient
@given(st.dictionaries(_FIELDS, _JSON))
def test_any_json_object_is_published_skipped_or_reported(document: dict[str, Any]) -> None:
    recording = read_recording([json.dumps(document).encode()], RULES)
    assert len(recording.publications) + len(recording.wrong) + len(recording.left_out) == 1


@patient
@given(st.binary(max_size=40).filter(lambda line: bool(line.strip())))
def test_any_bytes_are_published_skipped_or_reported(line: bytes) -> None:
    recording = read_recording([line], RULES)
    assert len(recording.publications) + len(recording.wrong) + len(recording.left_out) == 1
