"""The suite for a real project on the simulated Compute Engine, over HTTP, with the real clients."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from local.base.http import Request
from local.cloud.logging import serve
from local.gce import Inventory, Timings
from tests.support.loopback import open_loopback
from tests.support.small_project import (
    FOREIGN_ACCOUNT,
    IMAGE,
    NUMBER,
    PERSON,
    POLICIES,
    PROJECT,
    Cloud,
)
from tools.cloud.answers import redact
from tools.cloud.flight import is_read, read_flight
from tools.cloud.project import MIG, POLICY, TEMPLATE, CallError, Project
from tools.cloud.questions import QUESTIONS, Question

ROOT = Path(__file__).parents[2]
ALL = ("--with-tpu", "--foreign-account", FOREIGN_ACCOUNT)
SOME_POLICY = {"workload_policy": {"type": "HIGH_THROUGHPUT"}}
SMALL_TEMPLATE = {
    "properties": {
        "machine_type": "e2-micro",
        "disks": [{"boot": True, "initialize_params": {"source_image": IMAGE}}],
        "network_interfaces": [{"network": "global/networks/default"}],
    }
}


_WITH_PROJECT = {**os.environ, "PROJECT": "exported-for-another-tool"}
Start = Callable[..., Cloud]


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Restore the default handlers: nohup and background jobs start pytest with ignored signals."""
    before = {
        number: signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts Compute Engine, with these timings, and Cloud Logging."""
    monkeypatch.setenv("COLUMNS", "80")
    with open_loopback() as loopback:
        servers = []

        def start_cloud(**timings: Any) -> Cloud:
            cloud = Cloud(loopback, tmp_path / "answers.json", Timings(**timings))
            server, address = loopback.run(serve(cloud.logging, "127.0.0.1"))
            servers.append(server)
            monkeypatch.setenv("LOGGING_EMULATOR_HOST", address)
            return cloud

        yield start_cloud
        for server in servers:
            loopback.run(server.stop(None))


@pytest.mark.parametrize("question", QUESTIONS, ids=[one.id for one in QUESTIONS])
def test_the_simulation_answers_each_question_as_assumed(start: Start, question: Any) -> None:
    cloud = start()
    assert cloud.ask(*ALL, "--only", question.id) == 0
    answer = cloud.read_answers()[question.id]
    assert answer["answer"] == question.assumed
    assert answer["verdict"] == "as assumed"
    assert all(answer["evidence"].count(one) == 1 for one in answer["evidence"])
    assert cloud.simulator.leftovers() == []


def test_a_run_asks_all_questions_that_create_no_tpu_vm_and_leaves_no_resource(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = start()
    assert cloud.ask() == 0
    assert list(cloud.read_answers()) == [one.id for one in QUESTIONS if not one.required_option]
    assert cloud.simulator.leftovers() == []
    out, err = capsys.readouterr()
    assert "15 of 15 questions answered; 0 differ from the assumption." in " ".join(out.split())
    assert re.search(r"No resource of run \w{6} is left in some-project\.", err)
    assert max(map(len, out.splitlines())) <= 80
    assert cloud.list_parts_with_vms() == {"metadata", "early", "repair", "vmlog"}


def test_every_vm_has_the_label_of_the_run(start: Start) -> None:
    cloud = start()
    labels: set[bool] = set()

    def check_labels(request: Request) -> None:
        if request.method == "DELETE":
            vms = [path for path in cloud.simulator.leftovers() if "/instances/" in path]
            found = [cloud.faults.act_as_user("GET", vm) for vm in vms]
            labels.update(vm["name"].split("-")[1] == vm["labels"]["tngtest"] for vm in found)

    cloud.before_request = check_labels
    assert cloud.ask("--only", "delete-early", "--only", "metadata-fingerprint") == 0
    assert labels == {True}


def test_an_answer_that_differs_is_printed_and_is_not_an_error(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = start(bulk_takes_all_instances_config=False, repair_keeps_id=True)
    assert cloud.ask("--only", "bulk-config", "--only", "repair") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "2 of 2 questions answered; 2 differ from the assumption." in out
    assert (
        "- bulk-config: a BULK MIG with allInstancesConfig: rejected: 400 invalid; assumed:"
        " accepted (functions/create_resources/user_template.py)."
    ) in out
    assert "- repair: numeric id: the same; assumed: another" in out


def test_the_answer_shows_whether_the_call_or_its_operation_failed(start: Start) -> None:
    cloud = start(in_use_refused_by="operation")
    assert cloud.ask("--only", "in-use") == 0
    answer = cloud.read_answers()["in-use"]["answer"]
    failed = "operation failed: RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    assert answer["delete of a used template"] == failed
    assert answer["delete of a used policy"] == failed
    assert cloud.simulator.leftovers() == []


def test_a_question_that_fails_does_not_stop_the_others(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = start()
    cloud.faults.remove_permission(PERSON, "compute.instanceTemplates.create")
    assert cloud.ask("--only", "name-again", "--only", "metadata-fingerprint") == 1
    answers = cloud.read_answers()
    assert answers["name-again"]["verdict"] == "no answer"
    assert "Required 'compute.instanceTemplates.create'" in answers["name-again"]["error"]
    assert answers["metadata-fingerprint"]["verdict"] == "as assumed"
    out = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 questions answered; 0 differ from the assumption." in out
    assert "- name-again has no answer: instance_templates.insert: 403 forbidden" in out


def test_an_unexpected_error_does_not_stop_the_other_questions(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(project: Project) -> dict[str, str]:
        project.create(POLICY, "odd", {"workload_policy": {"type": "HIGH_THROUGHPUT"}})
        raise ZeroDivisionError("odd")

    first, second = QUESTIONS[:2]
    odd = replace(first, ask=fail)
    monkeypatch.setattr("tools.cloud.questions.QUESTIONS", (odd, second))
    cloud = start()
    assert cloud.ask() == 1
    answers = cloud.read_answers()
    assert answers[first.id]["error"] == "ZeroDivisionError: odd"
    assert answers[second.id]["verdict"] == "as assumed"
    assert cloud.simulator.leftovers() == []


# Signals


_INTERRUPTED_QUESTION = "vm-log"


def _count_writes(cloud: Cloud) -> int:
    return sum(request.method != "GET" for request in cloud.requests)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("nth", range(1, 5))
def test_a_signal_during_any_insert_leaves_no_resource(
    start: Start, capsys: pytest.CaptureFixture[str], number: signal.Signals, nth: int
) -> None:
    cloud = start(list_lag_s=(20.0, 20.0))
    inserts = iter(range(1, 100))

    def interrupt(request: Request) -> None:
        if request.method == "POST" and next(inserts) == nth:
            os.kill(os.getpid(), number)

    cloud.on_request = interrupt
    assert cloud.ask("--only", _INTERRUPTED_QUESTION) == 128 + number
    assert cloud.simulator.leftovers() == []
    out, err = capsys.readouterr()
    assert "0 of 1 questions answered" in " ".join(out.split())
    assert re.search(r"No resource of run \w{6} is left in some-project\.", err)


@pytest.mark.parametrize("nth", range(1, 4))
def test_a_signal_during_an_operation_leaves_no_resource(start: Start, nth: int) -> None:
    cloud = start(list_lag_s=(60.0, 60.0))
    reads = iter(range(1, 1000))

    def interrupt(request: Request) -> None:
        if "/operations/" in request.path and next(reads) == nth:
            os.kill(os.getpid(), signal.SIGINT)

    cloud.on_request = interrupt
    assert cloud.ask("--only", "delete-early") == 130
    assert cloud.simulator.leftovers() == []


def test_an_insert_without_an_answer_leaves_no_resource(start: Start) -> None:
    cloud = start(list_lag_s=(60.0, 60.0))
    cloud.faults.fail_next("resourcePolicies.insert", 1, http=503, executed=True)
    assert cloud.ask("--only", "list-lag") == 1
    assert "503 backendError" in cloud.read_answers()["list-lag"]["error"]
    assert cloud.simulator.leftovers() == []


def test_an_insert_that_is_executed_after_its_call_timed_out_leaves_no_resource(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = start()
    project = cloud.open_project("dead01")
    call, late = project.call, []

    def time_out(service: str, method: str, **request: Any) -> Any:
        if method != "insert_unary":
            return call(service, method, **request)
        late.append((project.time.monotonic() + 75, service, request))
        project.time.sleep(60)
        raise CallError(f"{service}.insert", 504, {})

    def execute_late(seconds: float) -> None:
        sleep(seconds)
        if late and project.time.monotonic() >= late[0][0]:
            _, service, request = late.pop()
            call(service, "insert_unary", **request)

    sleep = project.time.sleep
    monkeypatch.setattr(project, "call", time_out)
    with pytest.raises(CallError, match="504"):
        project.insert(POLICY, "late", SOME_POLICY)
    project.time = replace(project.time, sleep=execute_late)
    assert project.remove_created(print) == []
    assert late == []
    assert cloud.simulator.leftovers() == []


def test_a_resource_with_a_name_of_the_run_but_without_its_mark_is_not_deleted(
    start: Start,
) -> None:
    cloud = start()
    foreign = cloud.create_foreign("tngtest-dead01-foreign")
    project = cloud.open_project("dead01")
    with pytest.raises(CallError, match="409 alreadyExists"):
        project.insert(POLICY, "foreign", SOME_POLICY)
    assert project.remove_created(print) == []
    assert cloud.simulator.leftovers() == [foreign]


def test_a_run_whose_names_exist_creates_no_resource(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "random.choices", lambda _letters, k: ["dead01"[place] for place in range(k)]
    )
    cloud = start()
    cloud.create_foreign("tngtest-dead01-foreign")
    assert cloud.ask() == 1
    assert _count_writes(cloud) == 0
    assert (
        "Error: some-project already has resources with names of run dead01"
        in capsys.readouterr().err
    )


def test_resources_of_other_runs_are_reported_and_not_deleted(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = start(list_lag_s=(0.0, 0.0))
    cloud.open_project("alive1").create(POLICY, "left", SOME_POLICY)
    assert cloud.ask("--only", "list-lag") == 0
    assert "Other runs are in progress or left resources: alive1." in capsys.readouterr().err
    assert [path.rsplit("/", 1)[1] for path in cloud.simulator.leftovers()] == [
        "tngtest-alive1-left"
    ]


def test_the_resources_of_a_question_are_deleted_before_the_next_question(start: Start) -> None:
    cloud = start()
    found = []

    def record_leftovers(request: Request) -> None:
        if request.method == "POST" and b"-requested" in request.body:
            found.append(cloud.simulator.leftovers())

    cloud.before_request = record_leftovers
    assert cloud.ask("--only", "repeated-insert", "--only", "request-id") == 0
    assert found[0] == []


def test_a_signal_that_was_ignored_stays_ignored(start: Start) -> None:
    cloud = start()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    cloud.on_request = lambda _: os.kill(os.getpid(), signal.SIGHUP)
    try:
        assert cloud.ask("--only", "repeated-insert") == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_templates_are_deleted_after_the_migs_that_use_them(start: Start) -> None:
    cloud = start(in_use_lag_s=(0.0, 0.0))
    assert cloud.ask("--only", "delete-early", "--only", "bulk-config") == 0
    deletes = [one for one in cloud.simulator.calls.records if one.verb.endswith(".delete")]
    assert len(deletes) == 5
    assert {one.status for one in deletes} == {200}


class _ClosedTerminal(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_a_closed_terminal_does_not_stop_the_cleanup(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = start()

    def close(request: Request) -> None:
        if request.method == "POST" and request.path.endswith("/instances"):
            monkeypatch.setattr("sys.stderr", _ClosedTerminal())
            os.kill(os.getpid(), signal.SIGHUP)

    cloud.on_request = close
    assert cloud.ask("--only", "metadata-fingerprint") == 128 + signal.SIGHUP
    assert cloud.simulator.leftovers() == []


def test_a_second_signal_does_not_stop_the_cleanup(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = start()

    def interrupt(request: Request) -> None:
        if "instanceGroupManagers" in request.path and request.method in ("POST", "DELETE"):
            os.kill(os.getpid(), signal.SIGINT)

    cloud.on_request = interrupt
    assert cloud.ask("--only", "delete-early") == 130
    assert cloud.simulator.leftovers() == []
    assert re.search(
        r"Deleting the created resources\. .* --clean \w{6} deletes", capsys.readouterr().err
    )


def test_clean_deletes_only_the_resources_of_a_killed_run(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = start()
    project = cloud.open_project("dead01")
    template = project.create(TEMPLATE, "left", SMALL_TEMPLATE)
    project.create(MIG, "left", {"instance_template": template, "target_size": 0})
    cloud.open_project("alive1").create(POLICY, "left", SOME_POLICY)
    foreign = cloud.create_foreign("tngtest-dead01-foreign")
    assert cloud.ask("--clean", "dead01") == 0
    others = f"{POLICIES}/tngtest-alive1-left"
    assert cloud.simulator.leftovers() == [others, foreign]
    err = capsys.readouterr().err
    assert "instance group manager tngtest-dead01-left in us-east5-b" in err
    assert "instance template tngtest-dead01-left" in err
    assert cloud.ask("--clean") == 0
    assert cloud.simulator.leftovers() == [foreign]


def test_clean_deletes_resources_that_are_not_listed_yet(start: Start) -> None:
    cloud = start(list_lag_s=(6.0, 6.0), operation_s={"resourcePolicies.insert": (2.0, 2.0)})
    cloud.open_project("dead01").create(POLICY, "left", SOME_POLICY)
    assert cloud.ask("--clean", "dead01") == 0
    assert cloud.simulator.leftovers() == []


def test_a_resource_that_cannot_be_deleted_is_reported(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = start()
    cloud.faults.remove_permission(PERSON, "compute.instanceTemplates.delete")
    assert cloud.ask("--only", "list-lag", "--only", "delete-early") == 3
    (left,) = cloud.simulator.leftovers()
    assert cloud.count_minutes() < 5
    err = capsys.readouterr().err
    name = left.rpartition("/")[2]
    assert f"Left in some-project: instance template {name}. Delete with --clean" in err
    assert "Required 'compute.instanceTemplates.delete' permission" in err
    assert json.loads(cloud.answers_path.read_text())["left"] == [f"instance template {name}"]


# Before a resource is created


def test_a_dry_run_prints_the_cost_and_makes_no_call(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = start()
    assert cloud.ask("--dry-run", *ALL) == 0
    out = capsys.readouterr().out
    assert cloud.requests == []
    assert not cloud.answers_path.exists()
    for question in QUESTIONS:
        assert question.id in out
    assert max(map(len, out.splitlines())) <= 80
    assert "17 questions, at most about 3.05 USD together" in " ".join(out.split())


@pytest.mark.parametrize("error", ["403", "200 UNREACHABLE: the list lacks zones/"])
def test_without_a_complete_list_no_resource_is_created(
    start: Start, capsys: pytest.CaptureFixture[str], error: str
) -> None:
    cloud = start()
    if error == "403":
        cloud.faults.remove_permission(PERSON, "compute.instanceGroupManagers.list")
    else:
        cloud.faults.hide_scope("zones/us-east5-c")
    assert cloud.ask() == 1
    assert _count_writes(cloud) == 0
    assert f"Error: instance_group_managers.aggregated_list: {error}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, message",
    [
        (["--only", "odd"], "no question is named odd; there are machine-types, "),
        (["--only", "act-as"], "act-as needs --foreign-account"),
        (["--only", "bulk-wait"], "bulk-wait needs --with-tpu"),
        (["--zone", "A B"], "'A B' is not a name"),
    ],
)
def test_wrong_options_are_rejected(
    start: Start, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    cloud = start()
    with pytest.raises(SystemExit, match="2"):
        cloud.ask(*options)
    assert message in capsys.readouterr().err
    assert cloud.requests == []


# The answers file


def test_a_machine_type_that_no_zone_has_is_reported(start: Start) -> None:
    cloud = start()
    cloud.simulator.restrict(Inventory({"us-east5-b": ["ct6e-standard-4t"]}))
    assert cloud.ask("--only", "machine-types") == 0
    assert cloud.read_answers()["machine-types"]["answer"] == {
        "ct6e-standard-4t": "listed",
        "tpu7x-standard-1t": "listed in no zone",
        "tpu7x-standard-4t": "listed in no zone",
    }


def test_the_answers_do_not_name_the_project_or_people(start: Start) -> None:
    cloud = start()
    assert cloud.ask(*ALL, "--only", "vm-log", "--only", "act-as") == 0
    text = cloud.answers_path.read_text()
    for secret in (PROJECT, NUMBER, PERSON):
        assert secret not in text
    assert "projects/PROJECT/zones/us-east5-b/instances/tngtest-" in text
    assert "NUMBER@cloudservices.gserviceaccount.com" in text


def test_a_file_that_cannot_be_written_is_a_wrong_option(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = start()
    assert cloud.ask("--flight", str(tmp_path / "absent" / "flight.json")) == 2
    assert "Error: --answers or --flight: [Errno 2]" in capsys.readouterr().err
    assert _count_writes(cloud) == 0


def test_a_run_writes_a_flight_beside_its_answers(start: Start) -> None:
    cloud = start()
    assert cloud.ask(*ALL, "--only", "vm-log", "--only", "act-as", "--keep-names") == 0
    (path,) = cloud.answers_path.parent.glob("flight-*.json")
    flight = read_flight(path)
    assert flight["recorded_against"] == "simulation"
    assert path.name == f"flight-{flight['run']}.json"
    assert {entry["question"] for entry in flight["entries"]} == {"", "vm-log", "act-as"}
    changes = [one["request"] for one in flight["entries"] if not is_read(one["request"])]
    assert len(changes) == _count_writes(cloud) - sum(
        "listManagedInstances" in request.path for request in cloud.requests
    )
    assert not [secret for secret in (PROJECT, NUMBER, PERSON) if secret in path.read_text()]


def test_keep_names_keeps_the_project_but_not_addresses_of_people(start: Start) -> None:
    cloud = start()
    assert cloud.ask("--only", "vm-log", "--keep-names") == 0
    text = cloud.answers_path.read_text()
    assert f"projects/{PROJECT}/zones" in text
    assert f"{NUMBER}@cloudservices" in text
    assert PERSON not in text


@pytest.mark.parametrize(
    "text, redacted",
    [
        ("project_number:123456789012", "project_number:NUMBER"),
        ("projects/my-proj/zones/us-east5-b", "projects/PROJECT/zones/us-east5-b"),
        ("my-proj-2 and my-proj.", "my-proj-2 and PROJECT."),
        ("projects/host-one/regions/r/subnetworks/a", "projects/PROJECT/regions/r/subnetworks/NETWORK"),
        ("global/networks/default", "global/networks/default"),
        ("projects/debian-cloud/global/images", "projects/debian-cloud/global/images"),
        ("user:ann.lee+x@corp.example asked", "user:EMAIL asked"),
        ("app@my-proj.iam.gserviceaccount.com", "EMAIL"),
        ("service-123456789012@compute-system.iam.gserviceaccount.com",
         "service-NUMBER@compute-system.iam.gserviceaccount.com"),
        ("from 10.1.2.3", "from ADDRESS"),
        ("from 2001:db8::1, at 01:08:52", "from ADDRESS, at 01:08:52"),
        ("not used in project 123456789012 before", "not used in project NUMBER before"),
        ("organizations/987654321012 denies", "organizations/NUMBER denies"),
        ("global/networks/default-acme", "global/networks/NETWORK"),
        ("google-cloud-compute 1.56.0", "google-cloud-compute 1.56.0"),
    ],
)  # fmt: skip
def test_names_and_addresses_are_redacted(text: str, redacted: str) -> None:
    shown = {"seen": "projects/123456789012/zones/z", "callerIp": "2001:db8::1", "text": [text]}
    assert redact(shown, "my-proj") == {"seen": "projects/NUMBER/zones/z", "text": [redacted]}


# The table of questions


@pytest.mark.parametrize("question", QUESTIONS, ids=[one.id for one in QUESTIONS])
def test_each_question_refers_to_an_existing_file_and_heading(question: Question) -> None:
    assert (ROOT / question.assumed_in).exists()
    page, _, anchor = question.documented_in.partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    if question.documented_in.endswith("#not-known-for-sure"):
        assert f"`{question.id}`" in (ROOT / page).read_text().partition("## Not known for sure")[2]
    assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_make_requires_the_project() -> None:
    command = ["make", "-n", "test-cloud"]
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=_WITH_PROJECT)
    assert failed.returncode == 2
    assert "PROJECT is not set: make test-cloud PROJECT=ID" in failed.stderr
    options = ["PROJECT=some-project", "ZONE=us-east1-d", "ARGS=--dry-run"]
    run = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=True)
    expected = '-m tools.cloud --project "some-project" --zone "us-east1-d" --dry-run'
    assert expected in run.stdout
