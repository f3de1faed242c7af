"""`make simulate`: a manifest and a script, the product on a virtual clock, and what is printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from local.simulate import command
from local.simulate.script import Line, WrongInput, parse_script
from tests.support.harness import ROOT

EXAMPLES = ROOT / "examples"
OBJECTS = (("TPUNodeGroup", "training"), ("JobSet", "twice"), ("Job", "twice"))


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def rehearse(folder: Path, manifest: str | Path, script: str, *arguments: str) -> int:
    """Run the command with this script; returns the exit code."""
    if isinstance(manifest, str):
        (folder / "file.yaml").write_text(manifest)
        manifest = folder / "file.yaml"
    (folder / "script").write_text(script)
    return command.main(["-f", str(manifest), "--faults", str(folder / "script"), *arguments])


@pytest.mark.parametrize(
    "line, expected",
    [
        ("2:00 preempt 3 hosts", Line(120, "preempt", "preempt 3 hosts", {"count": "3"})),
        ("90:00 fail 1 host # x", Line(5400, "fail", "fail 1 host", {"count": "1"})),
        (
            "1:02:03   maintain  host 3 of training",
            Line(
                3723, "maintain", "maintain host 3 of training", {"host": "3", "name": "training"}
            ),
        ),
        ("0:05 delete job/twice", Line(5, "delete", "delete job/twice", {"name": "job/twice"})),
        (
            "0:00 reservation r in us-east5-b has 0 hosts of ct6e-standard-4t",
            Line(
                0,
                "reservation",
                "reservation r in us-east5-b has 0 hosts of ct6e-standard-4t",
                {"name": "r", "zone": "us-east5-b", "count": "0", "type": "ct6e-standard-4t"},
            ),
        ),
    ],
)
def test_a_line_of_a_script_is_parsed(line: str, expected: Line) -> None:
    assert parse_script(line, "script", OBJECTS) == [expected]


def test_lines_are_played_in_the_order_of_their_times_and_an_outage_ends() -> None:
    text = "9:00 delete training\n\n# a comment\n0:00 no capacity in us-east5-b for SPOT until 1:00"
    found = [(one.at_s, one.text) for one in parse_script(text, "script", OBJECTS)]
    assert found == [
        (0, "no capacity in us-east5-b for SPOT until 1:00"),
        (60, "capacity in us-east5-b again"),
        (540, "delete training"),
    ]


@pytest.mark.parametrize(
    "other, ends",
    [
        ("2:00 no capacity in us-east5-b until 10:00", [600]),
        ("0:30 no capacity in us-east5-b until 1:00", [180]),
        ("3:00 no capacity in us-east5-b until 5:00", [300]),
        ("2:00 no capacity in us-east5-b", []),
        ("3:01 no capacity in us-east5-b", [180]),
        ("2:00 no capacity in us-east5-a until 10:00", [180, 600]),
        ("2:00 no capacity in us-east5-b for SPOT until 10:00", [180, 600]),
    ],
)
def test_times_without_capacity_that_overlap_have_one_end(other: str, ends: list[int]) -> None:
    text = f"{other}\n0:00 no capacity in us-east5-b until 3:00"
    found = parse_script(text, "script", OBJECTS)
    assert [one.at_s for one in found if one.text.endswith("again")] == ends


ON_HOSTS = "preempt N hosts [of NAME] or preempt host I [of NAME]"
NAMES = "which has TPUNodeGroup/training, JobSet/twice, Job/twice"
WRONG = {
    "2 preempt 3 hosts": "'2' is not a time: a line begins with M:SS or H:MM:SS",
    "0:60 delete training": "'0:60' is not a time: a line begins with M:SS or H:MM:SS",
    "1:60:00 delete training": "'1:60:00' is not a time: a line begins with M:SS or H:MM:SS",
    "1:00": "nothing follows the time; it must be one of preempt, fail, maintain, delete, "
    "no capacity, reservation",
    "1:00 preemt 3 hosts": "'preemt 3 hosts' is not known; it must be one of preempt, fail, maintain, "
    "delete, no capacity, reservation",
    "1:00 preempt three hosts": f"'preempt three hosts' must be: {ON_HOSTS}",
    "1:00 preempt 0 hosts": "0 hosts: the number must be at least 1",
    "1:00 delete": "'delete' must be: delete [KIND/]NAME",
    "1:00 delete nobody": f"nobody is not in the manifest, {NAMES}",
    "1:00 fail 1 host of twice": f"twice is the name of several objects of the manifest, {NAMES}",
    "1:00 no capacity in us-east5": "us-east5 is not a zone, as in us-east5-b",
    "1:00 no capacity in us-east5-b for CHEAP": "CHEAP is not a provisioning model; it must be one of "
    "STANDARD, SPOT, FLEX_START",
    "1:00 no capacity in us-east5-b until 1:00": "until 1:00 must be a later time, M:SS or H:MM:SS",
    "1:00 reservation r in us-east5-b has 1 host of n1": "n1 is not a machine type with TPUs, as in "
    "ct6e-standard-4t",
}


def test_each_wrong_line_is_named_with_what_is_allowed() -> None:
    with pytest.raises(WrongInput) as found:
        parse_script("\n".join(WRONG), "a.txt", OBJECTS)
    expected = [f"a.txt, line {number}: {why}" for number, why in enumerate(WRONG.values(), 1)]
    assert str(found.value).splitlines() == expected


BAD_MANIFESTS = {
    "a: [1": "this is not YAML that kubectl reads: while parsing a flow sequence",
    "a: &a [*a]": "this is not YAML that kubectl reads: Circular reference detected",
    "a: !!set {b}": "this is not YAML that kubectl reads: Object of type set is not JSON serializable",
    "a: !!bool x": "this is not YAML that kubectl reads: 'x'",
    "": "there is no object in it",
    "- 1": "document 1: it must have apiVersion, kind and metadata.name",
    "kind: Job\nmetadata: {name: 3}": "document 1: it must have apiVersion, kind and metadata.name",
    "{apiVersion: v1, kind: Foo, metadata: {name: x}}": "Foo default/x is rejected: v1 Foo is not "
    "simulated",
    "{apiVersion: tpu.google.com/v1alpha1, kind: TPUNodeGroup, metadata: {name: x}, spec: {a: 1}}": (
        'TPUNodeGroup default/x is rejected: TPUNodeGroup.tpu.google.com "x" is invalid:'
    ),
}


@pytest.mark.parametrize("manifest", BAD_MANIFESTS)
def test_a_manifest_that_cannot_be_used_is_rejected_in_a_sentence(
    manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rehearse(tmp_path, manifest, "") == 2
    captured = capsys.readouterr()
    assert BAD_MANIFESTS[manifest] in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("missing", ["-f", "--faults"])
def test_a_file_that_does_not_exist_is_named(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"-f": str(EXAMPLES / "v6e-4x4-spot.yaml"), missing: str(tmp_path / "none")}
    assert command.main([word for pair in files.items() for word in pair]) == 2
    assert capsys.readouterr().err == f"{tmp_path}/none: No such file or directory\n"


def test_an_end_before_the_last_line_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = EXAMPLES / "v6e-4x4-spot.yaml"
    assert rehearse(tmp_path, example, "2:00 delete experiments", "--until", "1:00") == 2
    assert capsys.readouterr().err == f"--until is before the last line of {tmp_path}/script\n"


def test_the_end_may_be_before_capacity_is_there_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = EXAMPLES / "v6e-4x4-spot.yaml"
    script = "0:00 no capacity in us-east5-b until 9:00"
    assert rehearse(tmp_path, example, script, "--until", "2:00") == 0
    output = capsys.readouterr().out
    assert "At the end, 00:02:00:" in output
    assert "again" not in output.replace(" apply it again", "")


JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: hello, labels: {built: 2026-11-01}, annotations: {at: 2026-11-01T09:00:00Z}}
spec: {template: {spec: {containers: [{name: a, image: a}], restartPolicy: Never}}}
"""


def test_a_rehearsal_without_a_slice_prints_the_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "0:00 delete hello\n1:00 delete hello\n1:30 preempt 2 hosts of hello"
    assert rehearse(tmp_path, JOB, script, "--until", "2:00") == 1
    assert capsys.readouterr().out == TRANSCRIPT


TRANSCRIPT = """\
No slice was created.
00:00:00  delete hello  [not done: jobs.batch "hello" not found]
00:00:00  apply  [Job default/hello]
00:01:00  delete hello  [Job default/hello]
00:01:30  preempt 2 hosts of hello  [not done: 0 hosts run]

At the end, 00:02:00:

Job default/hello: gone

CALLS OF          INVOCATIONS   COMPUTE ENGINE   KUBERNETES
sweep             2             0                3
provision_slice   2             0                5
release_slice     2             0                5
all               6             0                13

0.00 chip-hours in all.
Left on Compute Engine: none.
Pods: none.
"""


def test_a_rehearsal_may_end_before_any_step_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rehearse(tmp_path, JOB, "", "--until", "0:00") == 0
    assert re.search(r"^all +0 +0 +0$", capsys.readouterr().out, re.MULTILINE)


def test_a_workload_has_its_slices_and_a_script_may_name_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = EXAMPLES / "deployment-v6e-2x2.yaml"
    script = "5:00 fail host 0 of serve\n5:01 preempt 1 host of serve"
    assert rehearse(tmp_path, example, script, "--until", "6:00") == 1
    lines = capsys.readouterr().out.splitlines()
    played = [line.split(maxsplit=2)[2] for line in lines if line[10:16] == "script"]
    assert played == [
        "apply  [Deployment default/serve]",
        "fail host 0 of serve",
        "preempt 1 host of serve  [not done: 0 hosts run]",
    ]
    assert any("hostError" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_line_limits_a_reservation_and_another_ends_the_maintenance_of_a_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = EXAMPLES / "tpu-operator-readme.yaml"
    room = "reservation my-tpu-reservation in us-central1-c has {} hosts of tpu7x-standard-4t"
    full = f"0:00 {room.format(1)}\n4:00 {room.format(2)}\n10:00 maintain host 1"
    assert rehearse(tmp_path, example, full, "--until", "12:00") == 0
    output = capsys.readouterr().out
    waited = next(line for line in output.splitlines() if line.startswith("First Ready after"))
    assert waited.startswith(("First Ready after 5m", "First Ready after 6m"))
    assert "terminateOnHostMaintenance" in output


def test_a_reader_that_ends_gets_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("0:01 delete experiments")
    words = ["-f", str(EXAMPLES / "v6e-4x4-spot.yaml"), "--faults", str(tmp_path / "script")]
    run = [sys.executable, "-m", "local.simulate", *words, "--until", "0:02"]
    process = subprocess.Popen(run, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert (process.stderr.read(), process.wait()) == (b"", 141)


def test_a_users_own_project_and_reservation_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (EXAMPLES / "tpu-operator-readme.yaml").read_text()
    manifest = yaml.safe_load(text.replace("my-gcp-project", "acme-tpus"))
    manifest["metadata"] |= {"namespace": None, "labels": {"project": "research"}}
    assert rehearse(tmp_path, json.dumps(manifest), "", "--until", "10:00") == 0
    assert "Ready                                    True     Ready" in capsys.readouterr().out
