"""The snapshot in a log line has the observation of a decision, is read back, and has no secret."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions import approve_join, create_resources, inject_token, label_node, tear_down
from functions.label_node.observed_nodes import ObservedNodes
from shared.base.names import TOKEN_EXPIRY_KEY, TOKEN_KEY, VM_ID_LABEL
from shared.frame.plan import Fail, NothingToDo, Plan
from shared.frame.snapshot import (
    FIELD,
    MAX_BYTES,
    VERSION,
    Rules,
    Snapshot,
    SnapshotError,
    decode,
    describe,
    encode,
    find_classes,
)
from shared.frame.step import Invocation, Step, handle, open_work
from shared.node_groups.node_group import InstanceConfig
from shared.node_groups.snapshot import RULES
from shared.node_groups.status import Status
from shared.node_groups.work import WriteStatus
from shared.ports.errors import CallError, OutOfTimeError
from tests.support import compute
from tests.support.builders import NOW, RESOURCE, flat, group
from tests.unit.functions.inject_token import objects as injection
from tests.unit.functions.label_node import objects as labels
from tests.unit.shared.frame import objects
from tests.unit.shared.frame.cases import CASES, rules_of

STEPS: dict[str, Step[Any, Any]] = {
    module.STEP.name: module.STEP
    for module in (create_resources, inject_token, approve_join, label_node, tear_down)
}


def snapshot_of(step: Step[Any, Any], observed: Any, now: datetime = NOW) -> dict[str, Any]:
    return encode(observed, now, step.decide(observed, now), rules_of(step))


def read(step: Step[Any, Any], line: Any) -> Snapshot:
    return decode(json.loads(json.dumps(line)), find_classes(step.decide))


def text_of(line: Mapping[str, Any]) -> str:
    """Return the text of a snapshot, decompressed."""
    return zlib.decompress(base64.b64decode(line["data"])).decode()


class Colour(StrEnum):
    RED = "Red"


@dataclass(frozen=True)
class Part:
    name: str
    at: datetime


@dataclass(frozen=True)
class Whole:
    """A value of each kind."""

    parts: tuple[Part, ...]
    first: Part | None
    colour: Colour
    took: timedelta
    names: frozenset[str]
    flag: bool
    number: float
    mapping: Mapping[str, Part | None]
    words: Mapping[str, Any] = field(default_factory=dict)
    by_colour: Mapping[Colour, str] = field(default_factory=dict)


PART = Part("a\ud800\N{SNOWMAN}", NOW)
WHOLE = Whole(
    parts=(PART, Part("", NOW + timedelta(microseconds=1))),
    first=None,
    colour=Colour.RED,
    took=timedelta(days=9, microseconds=3),
    names=frozenset({"b", "a"}),
    flag=False,
    number=0.1,
    mapping={"x": PART, "y": None},
    words={"number": 1, "text": "t"},
    by_colour={Colour.RED: "red"},
)


def decide_whole(_observed: Whole, _now: datetime) -> Plan:
    return Plan("Decided")


WHOLE_CLASSES = {"Whole": Whole, "Part": Part, "Colour": Colour}


def test_a_value_of_each_kind_is_read_back_unchanged() -> None:
    line = encode(WHOLE, NOW, Plan("Done", (Fail(OutOfTimeError("late")),)), {})
    found = decode(json.loads(json.dumps(line)), find_classes(decide_whole))
    assert found == Snapshot(WHOLE, NOW, "Done", ("fail: late",))
    assert isinstance(found.observed.colour, Colour)


def test_errors_are_read_back_with_all_their_fields() -> None:
    line = encode((CallError("get x", 503, "why", "text"), OutOfTimeError("late")), NOW, None, {})
    call, late = decode(line, {}).observed
    assert (call.call, call.http, call.code, call.message) == ("get x", 503, "why", "text")
    assert (type(late), str(late)) == (OutOfTimeError, "late")


@pytest.mark.parametrize(
    "value, error",
    [
        (replace(WHOLE, mapping={}), ""),
        (replace(WHOLE, words={"spec": {"secret": "s"}}), "Whole.words: a document"),
        (replace(WHOLE, words={"secrets": ["s"]}), "Whole.words: a list"),
        (Part("x", object()), "Part.at: a object"),  # type: ignore[arg-type]
        ((Part(("x", [1]), NOW),), "Part.name: a list"),  # type: ignore[arg-type]
    ],
)
def test_an_observation_with_a_document_of_an_api_is_not_written(value: Any, error: str) -> None:
    line = encode(value, NOW, Plan("Done"), {})
    assert line.get("error", "") == error
    assert ("data" in line) == (not error)


def test_the_error_of_an_unwritten_snapshot_names_the_field() -> None:
    line = encode(Part([], NOW), NOW, Plan("Done"), {})  # type: ignore[arg-type]
    with pytest.raises(SnapshotError) as raised:
        decode(line, WHOLE_CLASSES)
    assert str(raised.value) == "the function could not write it: Part.name: a list"


@dataclass(frozen=True)
class Hidden:
    text: str = field(repr=False)
    document: Mapping[str, Any] = field(repr=False)
    words: Mapping[str, str]


def test_a_field_that_repr_hides_is_empty_and_a_rule_selects_a_part_of_another() -> None:
    given = Hidden("secret", {"spec": {"secret": "s"}}, {"public": "p", "private": "secret"})
    rules: Rules = {(Hidden, "words"): lambda words: {"public": words["public"]}}
    line = encode(given, NOW, Plan("Done"), rules)
    assert "secret" not in text_of(line)
    assert decode(line, {"Hidden": Hidden}).observed == Hidden("", {}, {"public": "p"})


@pytest.mark.parametrize("name, observed", CASES.values(), ids=CASES)
def test_the_decision_is_reproduced_from_the_logged_snapshot(name: str, observed: Any) -> None:
    step = STEPS[name]
    plan, line = step.decide(observed, NOW), snapshot_of(step, observed)
    found = read(step, line)
    again = step.decide(found.observed, found.now)
    assert (found.outcome, found.actions) == (plan.outcome, describe(plan))
    assert (again.outcome, again.note, describe(again)) == (plan.outcome, plan.note, found.actions)
    assert statuses(again) == statuses(plan)
    assert text_of(snapshot_of(step, found.observed)) == text_of(line)


def statuses(plan: Plan) -> list[Status]:
    return [action.status for action in flat(plan) if isinstance(action, WriteStatus)]


WITHOUT_SECRETS = {
    "NodeGroup.labels",
    "UnreadableGroup.labels",
    "Spec.node_labels",
    "Mig.topologies",
    "Node.labels",
    "Node.taints",
}
"""The fields that others can write and that are encoded as they are: no secret belongs there."""


def test_a_text_of_others_is_encoded_only_where_no_secret_belongs() -> None:
    """Otherwise a new field could bring a secret to the log."""
    written, rules = set(), RULES
    for step in STEPS.values():
        for kind in filter(is_dataclass, find_classes(step.decide).values()):
            hints = get_type_hints(kind)
            shown = [one.name for one in fields(kind) if one.repr and (kind, one.name) not in rules]
            for name in shown:
                if any(word in str(hints[name]) for word in ("Mapping[str, str]", "Any", "dict")):
                    written.add(f"{kind.__name__}.{name}")
    assert written == WITHOUT_SECRETS


SECRETS = {
    "a token": {TOKEN_KEY: "abcdef.0123456789abcdef", TOKEN_EXPIRY_KEY: "2026-11-20T10:30:00Z"},
    "a truncated token": {TOKEN_KEY: "abcdef.0123456789abcde", TOKEN_EXPIRY_KEY: "no time"},
    "a token without its expiry": {TOKEN_KEY: "abcdef.0123456789abcdef"},
    "a secret of the user's": {"user-data": "0123456789abcde", "ssh-keys": "0123456789abcdef"},
    "a secret in place of the expiry": {TOKEN_KEY: "abcdef", TOKEN_EXPIRY_KEY: "0123456789abcde"},
}


@pytest.mark.parametrize("metadata", SECRETS.values(), ids=SECRETS)
def test_the_metadata_of_a_vm_is_written_without_secrets(metadata: dict[str, str]) -> None:
    vm = replace(compute.instance(RESOURCE), metadata=metadata)
    given = labels.on_resync(
        labels.node(proved=False), instances={labels.A: replace(vm, name=labels.A)}
    )
    line = snapshot_of(label_node.STEP, given)
    assert "0123456789abcde" not in text_of(line)
    found = read(label_node.STEP, line)
    assert describe(label_node.decide.decide(found.observed, NOW)) == describe(
        label_node.decide.decide(given, NOW)
    )


def test_a_spec_is_written_without_metadata_annotations_and_the_document() -> None:
    about = group(
        change={"instanceConfig": {"metadata": {"startup": "0123456789abcdef"}}},
        annotations={"kubectl.kubernetes.io/last-applied-configuration": "0123456789abcdef"},
    )
    assert isinstance(about.spec.source, InstanceConfig)
    assert about.spec.source.metadata == {"startup": "0123456789abcdef"}
    line = snapshot_of(label_node.STEP, labels.on_resync(about=about))
    assert "0123456789abcdef" not in text_of(line)
    found = read(label_node.STEP, line).observed.group
    assert found.spec == replace(about.spec, source=replace(about.spec.source, metadata={}))
    assert (found.key, found.resource_name, found.is_owned) == (about.key, RESOURCE, True)


def test_new_tokens_are_written_without_their_secrets() -> None:
    vm = inject_token.observe.Vm(compute.instance(RESOURCE), None, compute.OLD)
    line = snapshot_of(inject_token.STEP, injection.observed(vm))
    assert injection.NEW.secret not in text_of(line)
    assert compute.OLD.secret not in text_of(line)
    assert "sha256:" not in text_of(line)


def large(hosts: int) -> ObservedNodes:
    """Return the observation of a slice whose Nodes and VMs differ as much as real ones."""
    random = Random(hosts)
    names = [f"{RESOURCE}-{number:04x}" for number in random.sample(range(16**4), hosts)]
    nodes, vms = [], {}
    for name in names:
        at = NOW - timedelta(milliseconds=random.randrange(10**8))
        number = str(random.getrandbits(63))
        node_labels = {f"label-{n}.example.com/{n}": "value" for n in range(15)}
        node_labels |= {VM_ID_LABEL: number, "kubernetes.io/hostname": name}
        boot = f"{random.getrandbits(128):032x}"
        nodes.append(labels.node(name, changed=at, boot=boot, labels=node_labels, created=at))
        token = replace(compute.OLD, id=f"{random.getrandbits(24):06x}")
        vm = compute.instance(name, "RUNNING", token, at, at)
        vms[name] = replace(vm, id=number)
    known = labels.RESOURCES_READY
    about = group(change={"nodeCount": 2304, "topology": "16x24x24"})
    return labels.on_resync(*nodes, about=about, instances=vms, known=known)


@pytest.mark.parametrize("hosts, at_most", [(64, 16_000), (512, 96_000)])
def test_the_snapshot_of_a_slice_of_hundreds_of_hosts_is_within_the_limit(
    hosts: int, at_most: int
) -> None:
    line = snapshot_of(label_node.STEP, large(hosts))
    assert line["bytes"] == len(line["data"]) <= at_most <= MAX_BYTES


def test_a_snapshot_that_is_too_large_is_replaced_by_its_size() -> None:
    line = snapshot_of(label_node.STEP, large(2304))
    assert line == {"version": VERSION, "bytes": line["bytes"]}
    assert line["bytes"] > MAX_BYTES
    with pytest.raises(SnapshotError) as raised:
        read(label_node.STEP, line)
    assert str(raised.value) == (
        f"the function left it out: it had {line['bytes']} bytes, and the log takes 98304"
    )


def test_a_snapshot_that_cannot_be_encoded_is_replaced_by_the_error() -> None:
    rules: Rules = {(Whole, "words"): lambda words: words["no such secret"]}
    assert encode(WHOLE, NOW, None, rules) == {"version": VERSION, "error": "KeyError"}


def packed(document: Any) -> dict[str, Any]:
    data = base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()
    return {"version": VERSION, "bytes": len(data), "data": data}


VALID = {
    "now": NOW.isoformat(),
    "outcome": "Done",
    "actions": [],
    "observed": [0, "x", [-5, NOW.isoformat()]],
    "classes": [["Part", ["name", "at"]]],
}
UNREADABLE: dict[str, tuple[Any, str]] = {
    "no snapshot": (None, "the log line has none"),
    "a snapshot that is text": ("data", "the log line has none"),
    "a later version": ({"version": 2, "data": ""}, "version 2 is not known; this tool reads 1"),
    "no version": ({"data": ""}, "version None is not known; this tool reads 1"),
    "no base64": ({"version": 1, "data": "%"}, "it is damaged: Error: "),
    "data that is a number": ({"version": 1, "data": 7}, "it is damaged: TypeError: "),
    "not compressed": ({"version": 1, "data": "aGVsbG8="}, "it is damaged: error: "),
    "truncated": (
        {"version": 1, "data": packed(VALID)["data"][:40]},
        "it is damaged: ValueError: its end is missing, or it is too large",
    ),
    "no object": (packed([]), "it is damaged: TypeError: "),
    "no class": (
        packed(VALID | {"classes": [["Other", ["name"]]]}),
        "another version has written it: there is no Other here",
    ),
    "a removed field": (
        packed(VALID | {"classes": [["Part", ["name", "at", "size"]]]}),
        "another version has written it: Part has no field size here",
    ),
    "an added field": (
        packed(VALID | {"classes": [["Part", ["name"]]]}),
        "another version has written it: Part has a new field at",
    ),
    "too few values": (packed(VALID | {"observed": [0, "x"]}), "it is damaged: ValueError: "),
    "no such tag": (packed(VALID | {"observed": [-99]}), "it is damaged: KeyError: "),
    "no such class": (packed(VALID | {"observed": [5]}), "it is damaged: IndexError: "),
    "a duration that is too long": (
        packed(VALID | {"observed": [-6, 1e300]}),
        "it is damaged: OverflowError: ",
    ),
}


def test_a_valid_snapshot_is_read() -> None:
    assert decode(packed(VALID), WHOLE_CLASSES).observed == Part("x", NOW)


@pytest.mark.parametrize("line, error", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_snapshot_raises_an_error_with_the_reason(line: Any, error: str) -> None:
    with pytest.raises(SnapshotError) as raised:
        decode(line, WHOLE_CLASSES)
    assert str(raised.value).startswith(error)


def test_a_field_that_is_newer_than_the_line_has_its_default() -> None:
    names = [one.name for one in fields(Whole)][:-2]
    line = json.loads(text_of(encode(WHOLE, NOW, None, {})))
    schema = dict(line["classes"])
    line["classes"] = [(name, names if name == "Whole" else schema[name]) for name in schema]
    line["observed"] = line["observed"][: len(names) + 1]
    expected = replace(WHOLE, words={}, by_colour={})
    assert decode(packed(line), WHOLE_CLASSES).observed == expected


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 3) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
)


@given(_JSON, _JSON)
def test_any_content_of_the_log_is_read_or_raises_a_snapshot_error(
    observed: Any, other: Any
) -> None:
    for line in (packed(VALID | {"observed": observed}), packed(VALID | {"classes": other}), other):
        try:
            decode(line, WHOLE_CLASSES)
        except SnapshotError:
            continue


def run(step: Step[Any, Any], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the log line of an invocation."""
    handle(objects.STEP, step.run, objects.message("Added", 5), objects.runtime())
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    found: dict[str, Any] = line
    return found


def make_step(**change: Any) -> Step[Any, Any]:
    step: Step[Any, Any] = Step(
        objects.STEP, open_work, lambda _: WHOLE, decide_whole, lambda _, __: None, snapshot={}
    )
    return replace(step, **change)


def test_the_line_of_an_invocation_has_the_snapshot(capsys: pytest.CaptureFixture[str]) -> None:
    line = run(make_step(), capsys)
    found = decode(line[FIELD], WHOLE_CLASSES)
    assert found == Snapshot(WHOLE, datetime(2026, 1, 1, tzinfo=UTC), "Decided", ())


def test_a_decision_that_crashes_is_logged_with_its_snapshot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def crash(_observed: Whole, _now: datetime) -> Plan:
        raise KeyError("x")

    line = run(make_step(decide=crash), capsys)
    assert line["decision"] == "Crashed"
    assert decode(line[FIELD], WHOLE_CLASSES).outcome is None


def test_a_step_without_rules_logs_no_snapshot(capsys: pytest.CaptureFixture[str]) -> None:
    assert FIELD not in run(make_step(snapshot=None), capsys)


def test_a_second_observation_that_finds_nothing_discards_the_first_snapshot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def open_once(invocation: Invocation, is_first_observation: bool) -> Any:
        if not is_first_observation:
            raise NothingToDo("GroupGone")
        return open_work(invocation, is_first_observation)

    def observe_again(_observed: Whole, _now: datetime) -> Plan:
        return Plan("Observing", again="it is stale")

    line = run(make_step(open=open_once, decide=observe_again), capsys)
    assert (line["decision"], FIELD in line) == ("GroupGone", False)
