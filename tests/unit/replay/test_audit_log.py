"""``kubectl tng audit-log``: what log sinks have lost, published as they would have done it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from google.cloud.logging_v2 import types
from google.protobuf.any_pb2 import Any as Any_

from local.base.clock import VirtualClock
from local.cloud.logging import CALLS_A_MINUTE, CloudLogging, LoggingError
from local.cloud.simulation import PROJECT, Options
from replay.audit_log import TIMESTAMP_ATTRIBUTE, make_publications, read_filters
from replay.cloud_logging import MAX_EXHAUSTED, SECONDS_A_CALL, Page, read_entry, read_pages
from shared.base.errors import CallError
from tests.harness import Harness
from tests.unit.replay.desk import Desk, training
from tests.unit.test_sink_filters import ENTRIES, EXCESS, FILTERS, POOLS, find_steps

ASKED = types.ListLogEntriesRequest(resource_names=["projects/p"])
NO_SINKS = Options(sinks=False, sweeps=False)


def stuck_desk() -> Desk:
    """The sinks are gone: the audit log has what is needed, and no step hears of it."""
    desk = Desk(Harness(NO_SINKS))
    desk.harness.apply(training())
    desk.harness.run_for(timedelta(minutes=5))
    return desk


@pytest.mark.parametrize("name", [*ENTRIES, *POOLS])
def test_an_entry_goes_to_the_topics_to_which_the_sinks_would_send_it(name: str) -> None:
    entry = (ENTRIES | POOLS)[name]["entry"]
    found = make_publications(entry, FILTERS)
    steps = [] if isinstance(found, str) else [one.step for one in found]
    assert steps == ([] if name in EXCESS and not steps else find_steps(entry))


def test_a_message_is_what_the_sink_would_have_published() -> None:
    entry = next(row["entry"] for row in ENTRIES.values() if find_steps(row["entry"]))
    found = make_publications(entry, FILTERS)
    assert not isinstance(found, str)
    [publication] = found
    assert json.loads(publication.data) == entry
    assert publication.attributes == {TIMESTAMP_ATTRIBUTE: entry["timestamp"]}


def test_a_group_whose_messages_were_lost_becomes_ready() -> None:
    desk = stuck_desk()
    assert desk.harness.condition("training", "Ready")["status"] == "False"
    for _ in range(4):
        result = desk.run("audit-log", "--since", "1h")
        assert result.exit_code == 0, result.output
        desk.harness.run_for(timedelta(minutes=3))
    assert desk.harness.is_ready("training")


def test_a_dry_run_shows_the_messages_and_publishes_none() -> None:
    desk = stuck_desk()
    result = desk.run("audit-log", "--since", "1h", "--dry-run")
    assert (result.exit_code, desk.published) == (0, [])
    assert result.stderr.startswith("Read ")
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["ABOUT", "CAUSE", "TOPIC", "MESSAGE", "ID"]
    name = desk.harness.group("training")["metadata"]["labels"]["tpu-functions.dev/resource-name"]  # type: ignore[index]
    assert sorted(row.split()[:3] for row in rows) == [
        [name, "compute.instanceTemplates.insert", "tpu-functions-create-resources"],
        [name, "compute.resourcePolicies.insert", "tpu-functions-create-resources"],
    ]


def test_the_time_that_is_read_is_the_one_that_was_asked_for() -> None:
    desk = stuck_desk()
    desk.harness.run_for(timedelta(hours=3))
    assert len(desk.json("audit-log", "--since", "1h", "--dry-run")) == 0
    assert len(desk.json("audit-log", "--since", "4h", "--dry-run")) == 2
    assert len(desk.json("audit-log", "--since", "4h", "--until", "1h", "--dry-run")) == 2
    assert len(desk.json("audit-log", "--since", "4h", "--until", "200m", "--dry-run")) == 0


def test_of_one_group_only_its_own_messages_are_published() -> None:
    desk = stuck_desk()
    desk.harness.apply(training("other"))
    desk.harness.run_for(timedelta(minutes=5))
    assert len(desk.json("audit-log", "--since", "1h", "--dry-run")) == 4
    shown = desk.json("audit-log", "default/other", "--since", "1h", "--dry-run")
    assert len(shown) == 2
    assert {one["about"][:10] for one in shown} == {"tng-other-"}


def test_an_end_before_its_beginning_is_refused() -> None:
    result = stuck_desk().run("audit-log", "--since", "1h", "--until", "2h")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: --since must be before --until\n"


def test_topics_of_jobsets_that_are_not_installed_get_nothing(desk: Desk) -> None:
    assert "provision_slice" not in read_filters(desk.harness.settings["sweep"])


class ManyPages:
    """Cloud Logging with so many pages, on a clock that only sleeping moves."""

    def __init__(self, pages: int, others_calls: int = 0) -> None:
        self.clock = VirtualClock()
        self.logging = CloudLogging(self.clock, PROJECT)
        self.pages, self.calls = pages, 0
        self.refused = 0
        for _ in range(others_calls):
            self.logging.list(ASKED)

    def list_page(self, _projects: Any, _query: str, token: str) -> Page:
        try:
            self.logging.list(ASKED)
        except LoggingError as error:
            self.refused += 1
            raise CallError("entries.list", 429, "refused", str(error)) from error
        self.calls += 1
        number = int(token or 0) + 1
        return Page(({"n": number},), str(number) if number < self.pages else "")

    def read(self) -> list[Page]:
        def sleep(seconds: float) -> None:
            self.clock.run_for(seconds)

        def monotonic() -> float:
            return self.clock.now().timestamp()

        return list(read_pages(self, ["p"], "", sleep, monotonic))


def test_many_pages_are_read_within_the_quota() -> None:
    logs = ManyPages(pages=3 * CALLS_A_MINUTE)
    began = logs.clock.now()
    assert len(logs.read()) == 3 * CALLS_A_MINUTE
    assert logs.refused == 0
    assert (logs.clock.now() - began).total_seconds() == SECONDS_A_CALL * (3 * CALLS_A_MINUTE - 1)


def test_a_quota_that_others_have_used_up_is_waited_for() -> None:
    logs = ManyPages(pages=2, others_calls=CALLS_A_MINUTE)
    assert [page.entries for page in logs.read()] == [({"n": 1},), ({"n": 2},)]
    assert 0 < logs.refused <= MAX_EXHAUSTED


def test_others_may_use_the_quota_up_again_and_again() -> None:
    class Shared(ManyPages):
        tries = 0

        def list_page(self, projects: Any, query: str, token: str) -> Page:
            self.tries += 1
            if self.tries % 3:
                raise CallError("entries.list", 429, "refused", "Quota exceeded")
            return super().list_page(projects, query, token)

    assert len(Shared(MAX_EXHAUSTED + 2).read()) == MAX_EXHAUSTED + 2


def test_a_refusal_that_waiting_does_not_end_is_said() -> None:
    class Refusing(ManyPages):
        def list_page(self, *_: Any) -> Page:
            raise CallError("entries.list", 403, "refused", "Permission denied")

    with pytest.raises(CallError, match="Permission denied"):
        Refusing(1).read()


def test_an_entry_of_a_type_that_nobody_knows_does_not_stop_the_others() -> None:
    unknown = Any_(type_url="type.googleapis.com/somebody.Elses", value=b"\x08\x01")
    assert read_entry(types.LogEntry(proto_payload=unknown)) is None
    assert read_entry(types.LogEntry(text_payload="a")) == {"textPayload": "a"}
