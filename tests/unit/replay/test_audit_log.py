"""``kubectl tng audit-log``: publishes the entries that the log sinks lost, as the sinks would."""

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
from shared.ports.errors import About, CallError
from tests.support.harness import Harness
from tests.unit.infra.terraform.log_entries import ENTRIES, EXCESS, FILTERS, POOLS, find_steps
from tests.unit.replay.tool import Tool, training

REQUEST = types.ListLogEntriesRequest(resource_names=["projects/p"])
NO_SINKS = Options(sinks=False, sweeps=False)


def stuck_tool() -> Tool:
    """The tool in a simulation without sinks: entries of the audit log trigger no step."""
    tool = Tool(Harness(NO_SINKS))
    tool.harness.apply(training())
    tool.harness.run_for(timedelta(minutes=5))
    return tool


@pytest.mark.parametrize("name", [*ENTRIES, *POOLS])
def test_an_entry_is_published_to_the_topics_to_which_the_sinks_would_send_it(name: str) -> None:
    entry = (ENTRIES | POOLS)[name]["entry"]
    found = make_publications(entry, FILTERS)
    steps = [] if isinstance(found, str) else [one.step for one in found]
    assert steps == ([] if name in EXCESS and not steps else find_steps(entry))


def test_a_message_is_the_one_that_the_sink_would_have_published() -> None:
    entry = next(row["entry"] for row in ENTRIES.values() if find_steps(row["entry"]))
    found = make_publications(entry, FILTERS)
    assert not isinstance(found, str)
    [publication] = found
    assert json.loads(publication.data) == entry
    assert publication.attributes == {TIMESTAMP_ATTRIBUTE: entry["timestamp"]}


def test_a_group_whose_messages_were_lost_becomes_ready() -> None:
    tool = stuck_tool()
    assert tool.harness.condition("training", "Ready")["status"] == "False"
    for _ in range(4):
        result = tool.run("audit-log", "--since", "1h")
        assert result.exit_code == 0, result.output
        tool.harness.run_for(timedelta(minutes=3))
    assert tool.harness.is_ready("training")


def test_a_dry_run_shows_the_messages_and_publishes_none() -> None:
    tool = stuck_tool()
    result = tool.run("audit-log", "--since", "1h", "--dry-run")
    assert (result.exit_code, tool.published) == (0, [])
    assert result.stderr.startswith("Read ")
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["ABOUT", "CAUSE", "TOPIC", "MESSAGE", "ID"]
    name = tool.harness.group("training")["metadata"]["labels"]["tpu-functions.dev/resource-name"]  # type: ignore[index]
    assert sorted(row.split()[:3] for row in rows) == [
        [name, "compute.instanceTemplates.insert", "tpu-functions-create-resources"],
        [name, "compute.resourcePolicies.insert", "tpu-functions-create-resources"],
    ]


def test_only_entries_of_the_requested_time_are_read() -> None:
    tool = stuck_tool()
    tool.harness.run_for(timedelta(hours=3))
    assert len(tool.json("audit-log", "--since", "1h", "--dry-run")) == 0
    assert len(tool.json("audit-log", "--since", "4h", "--dry-run")) == 2
    assert len(tool.json("audit-log", "--since", "4h", "--until", "1h", "--dry-run")) == 2
    assert len(tool.json("audit-log", "--since", "4h", "--until", "200m", "--dry-run")) == 0


def test_only_the_messages_of_a_named_group_are_published() -> None:
    tool = stuck_tool()
    tool.harness.apply(training("other"))
    tool.harness.run_for(timedelta(minutes=5))
    assert len(tool.json("audit-log", "--since", "1h", "--dry-run")) == 4
    shown = tool.json("audit-log", "default/other", "--since", "1h", "--dry-run")
    assert len(shown) == 2
    assert {one["about"][:10] for one in shown} == {"tng-other-"}


def test_an_end_before_the_beginning_is_an_error() -> None:
    result = stuck_tool().run("audit-log", "--since", "1h", "--until", "2h")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: --since must be before --until\n"


def test_the_topics_of_jobset_steps_that_are_not_installed_have_no_filter(tool: Tool) -> None:
    assert "provision_slice" not in read_filters(tool.harness.settings["sweep"])


class ManyPages:
    """Cloud Logging with a number of pages; only `sleep` advances its clock."""

    def __init__(self, pages: int, others_calls: int = 0) -> None:
        self.clock = VirtualClock()
        self.logging = CloudLogging(self.clock, PROJECT)
        self.pages, self.calls = pages, 0
        self.rejected = 0
        for _ in range(others_calls):
            self.logging.list(REQUEST)

    def list_page(self, _projects: Any, _query: str, token: str, newest: int = 0) -> Page:
        assert not newest
        try:
            self.logging.list(REQUEST)
        except LoggingError as error:
            self.rejected += 1
            raise CallError("entries.list", 429, "refused", str(error), About("entries")) from error
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
    assert logs.rejected == 0
    assert (logs.clock.now() - began).total_seconds() == SECONDS_A_CALL * (3 * CALLS_A_MINUTE - 1)


def test_the_tool_waits_for_a_quota_that_other_clients_have_exhausted() -> None:
    logs = ManyPages(pages=2, others_calls=CALLS_A_MINUTE)
    assert [page.entries for page in logs.read()] == [({"n": 1},), ({"n": 2},)]
    assert 0 < logs.rejected <= MAX_EXHAUSTED


def test_other_clients_may_exhaust_the_quota_repeatedly() -> None:
    class Shared(ManyPages):
        tries = 0

        def list_page(self, projects: Any, query: str, token: str, newest: int = 0) -> Page:
            self.tries += 1
            if self.tries % 3:
                raise CallError("entries.list", 429, "refused", "Quota exceeded", About("entries"))
            return super().list_page(projects, query, token, newest)

    assert len(Shared(MAX_EXHAUSTED + 2).read()) == MAX_EXHAUSTED + 2


def test_a_transient_error_in_the_middle_loses_nothing_that_was_read() -> None:
    class Interrupted(ManyPages):
        failed = 0

        def list_page(self, projects: Any, query: str, token: str, newest: int = 0) -> Page:
            if token and not self.failed:
                self.failed += 1
                raise CallError("entries.list", 503, "unavailable", "away", About("entries"))
            return super().list_page(projects, query, token, newest)

    assert len(Interrupted(3).read()) == 3


def test_a_transient_error_of_the_first_call_is_raised_without_a_wait() -> None:
    class Unreachable(ManyPages):
        def list_page(self, *_: Any) -> Page:
            raise CallError("entries.list", 503, "unavailable", "away", About("entries"))

    logs = Unreachable(1)
    began = logs.clock.now()
    with pytest.raises(CallError, match="away"):
        logs.read()
    assert logs.clock.now() == began


def test_an_error_other_than_an_exhausted_quota_is_raised() -> None:
    class Denying(ManyPages):
        def list_page(self, *_: Any) -> Page:
            raise CallError("entries.list", 403, "refused", "Permission denied", About("entries"))

    with pytest.raises(CallError, match="Permission denied"):
        Denying(1).read()


def test_an_entry_of_an_unknown_type_is_skipped() -> None:
    unknown = Any_(type_url="type.googleapis.com/other.Message", value=b"\x08\x01")
    assert read_entry(types.LogEntry(proto_payload=unknown)) is None
    assert read_entry(types.LogEntry(text_payload="a")) == {"textPayload": "a"}
