"""Flights are what the product's port reads and sends, and what the simulated Compute Engine answers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from local.gce import Timings
from tests.flights.__main__ import FOLDER, OF_SIMULATION, QUESTIONS, main, record
from tests.flights.repeat import describe, fold, repeat_with_product, repeat_with_simulation
from tools.cloud.flight import is_read, read_flight

FLIGHTS = sorted(FOLDER.glob("*.json"))
ROOT = Path(__file__).parents[2]
Document = dict[str, Any]


@pytest.fixture
def flight() -> Document:
    return read_flight(FOLDER / OF_SIMULATION)


@pytest.mark.parametrize("path", FLIGHTS, ids=lambda path: path.stem)
def test_the_product_sends_and_reads_what_was_recorded(path: Path) -> None:
    assert repeat_with_product(read_flight(path)) == []


@pytest.mark.parametrize("path", FLIGHTS, ids=lambda path: path.stem)
def test_the_simulation_answers_what_was_recorded(path: Path) -> None:
    assert repeat_with_simulation(read_flight(path)) == []


def test_the_flight_of_the_simulation_has_its_questions_and_each_kind_of_change(
    flight: Document,
) -> None:
    assert flight["recorded_against"] == "simulation"
    entries = [entry for entry in flight["entries"] if entry["question"]]
    assert {entry["question"] for entry in entries} == set(QUESTIONS)
    found = {entry["response"]["status"] for entry in entries if not is_read(entry["request"])}
    assert found == {200, 400, 403, 409, 412}


# Differences


def find(flight: Document, status: int, method: str, path: str) -> tuple[int, Document]:
    """Return the first such entry of a question that is repeated, with its number."""
    return next(
        (number, flight["entries"][number - 1])
        for number, entry in fold(flight["entries"])
        if entry["question"]
        and entry["response"]["status"] == status
        and entry["request"]["method"] == method
        and path in entry["request"]["path"]
    )


def ask_only(flight: Document, question: str) -> None:
    """Leave no other question in the flight."""
    for entry in flight["entries"]:
        if entry["question"] != question:
            entry["question"] = ""


def change_reason(entry: Document) -> None:
    entry["response"]["body"]["error"]["errors"][0]["reason"] = "duplicate"


def change_status(entry: Document) -> None:
    entry["response"]["status"] = 400


def change_type(entry: Document) -> None:
    entry["response"]["body"]["operationType"] = "create"


def remove_field(entry: Document) -> None:
    del entry["response"]["body"]["metadata"]["kind"]


def change_log(entry: Document) -> None:
    entry["response"]["body"]["entries"][-2]["resource"]["type"] = "gce_policy"


POLICIES = "/regions/us-east5/resourcePolicies"


@pytest.mark.parametrize(
    "status, method, path, change, difference",
    [
        (409, "POST", POLICIES, change_reason,
         "body.error.errors.0.reason: 'duplicate' recorded, 'alreadyExists' simulated"),
        (409, "POST", POLICIES, change_status,
         "status: 400 alreadyExists recorded, 409 alreadyExists simulated"),
        (200, "POST", POLICIES, change_type,
         "body.operationType: 'create' recorded, 'insert' simulated"),
        (200, "GET", "/instances/", remove_field,
         "body.metadata.kind: nothing recorded, 'compute#metadata' simulated"),
        (200, "POST", "/v2/entries:list", change_log,
         "body.entries.0.resource: 'gce_policy' recorded, 'gce_resource_policy' simulated"),
    ],
)  # fmt: skip
def test_a_difference_of_the_simulation_names_flight_request_field_and_values(
    flight: Document,
    status: int,
    method: str,
    path: str,
    change: Callable[[Document], None],
    difference: str,
) -> None:
    number, entry = find(flight, status, method, path)
    change(entry)
    ask_only(flight, entry["question"])
    found = repeat_with_simulation(flight)
    assert found == [f"{describe(flight, number)}: {difference}"]
    assert describe(flight, number) == (
        f"flight {flight['run']}, request {number} ({method} {entry['request']['path']})"
    )


def test_an_operation_that_is_not_the_one_before_is_a_difference(flight: Document) -> None:
    number, entry = find(flight, 200, "GET", "/operations/")
    old, new = entry["response"]["body"]["name"], "operation-1-2-3-4"
    entry["response"]["body"]["name"] = new
    ask_only(flight, entry["question"])
    (difference,) = repeat_with_simulation(flight)
    assert difference.startswith(f"{describe(flight, number)}: body.name: {new!r} recorded, ")
    assert old not in difference.partition("body.name")[2]


def test_differences_of_the_product_name_the_request_and_what_it_sent_or_read(
    flight: Document,
) -> None:
    entries = [
        find(flight, 409, "POST", POLICIES)[1],
        find(flight, 200, "POST", "/v2/entries:list")[1],
        find(flight, 412, "POST", "/setMetadata")[1],
    ]
    flight["entries"] = entries
    taken, log, stale = entries
    change_reason(taken)
    log["response"]["body"]["entries"][-1]["protoPayload"]["resourceName"] = "odd"
    stale["request"]["body"]["extra"] = True
    stale["request"]["query"] = {"odd": "1"}
    assert repeat_with_product(flight) == [
        f"{describe(flight, number)}: {difference}"
        for number, difference in (
            (1, "kind: 'decide: no row in KINDS' recorded,"
                " <ErrorKind.CONFLICT: 'conflict'> by the product"),
            (2, "entries.3: last: True recorded, 'compute.resourcePolicies.delete: no resource that"
                " has steps' by the product"),
            (3, "body.extra: True recorded, nothing by the product"),
            (3, "query.odd: '1' recorded, nothing by the product"),
        )
    ]  # fmt: skip


# Time


def test_a_flight_that_was_slower_does_not_differ(tmp_path: Path) -> None:
    slow = (20.0, 40.0)
    verbs = ("resourcePolicies.insert", "instanceTemplates.insert", "instanceGroupManagers.delete")
    timings = Timings(
        operation_s=dict.fromkeys(verbs, slow),
        list_lag_s=slow,
        template_visibility_lag_s=(10.0, 20.0),
        in_use_lag_s=slow,
    )
    record(tmp_path / "slow.json", ("list-lag", "in-use"), timings)
    slow_flight = read_flight(tmp_path / "slow.json")
    kept = fold(slow_flight["entries"])
    assert len(kept) < len(slow_flight["entries"]) / 2
    assert repeat_with_simulation(slow_flight) == []


def test_behaviour_that_differs_is_found(tmp_path: Path) -> None:
    timings = Timings(in_use_refused_by="operation")
    record(tmp_path / "other.json", ("in-use",), timings)
    (difference,) = repeat_with_simulation(read_flight(tmp_path / "other.json"))
    assert "instanceTemplates/" in difference
    assert difference.endswith(
        ": status: 200 recorded, 400 resourceInUseByAnotherResource simulated"
    )


# make flight


def test_a_flight_is_repeated_and_copied_once(
    tmp_path: Path, flight: Document, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, path = tmp_path / "flights", tmp_path / "flight-abc.json"
    ask_only(flight, "repeated-insert")
    flight["entries"] = flight["entries"][:20]
    folder.mkdir()
    path.write_text(json.dumps(flight))
    kept = folder / f"{flight['run']}.json"
    for _ in range(2):
        assert main([str(path)], folder) == 0
        assert capsys.readouterr().out == f"{kept}: 0 differences\n"
    change_reason(find(flight, 409, "POST", POLICIES)[1])
    path.write_text(json.dumps(flight))
    assert main([str(path)], folder) == 2
    assert capsys.readouterr().err == f"Error: another flight is in {kept}; remove it first.\n"
    kept.unlink()
    assert main([str(path)], folder) == 1
    out = capsys.readouterr().out
    assert "'duplicate' recorded, 'alreadyExists' simulated" in out
    assert out.endswith(f"{kept}: 2 differences\n")


def test_an_unclean_flight_is_not_copied(
    tmp_path: Path, flight: Document, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flight-abc.json"
    flight["entries"][2]["response"]["body"]["user"] = "ann@corp.example"
    path.write_text(json.dumps(flight))
    folder = tmp_path / "flights"
    folder.mkdir()
    assert main([str(path)], folder) == 2
    assert "Error: flight-abc.json is not clean: entry 3.response.body.user has" in (
        capsys.readouterr().err
    )
    assert list(folder.iterdir()) == []


def test_make_flight_passes_the_file() -> None:
    command = ["make", "-n", "flight", "FILE=a b.json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert '-m tests.flights "a b.json"' in run.stdout
